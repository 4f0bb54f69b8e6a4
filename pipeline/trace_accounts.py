"""Accounts of a trace run: every accountant sees each shard of released traces once, and no true position."""

from __future__ import annotations

import pyarrow as pa

from accountants.core.accountant import ACCOUNTANTS, Accountant
from accountants.core.trace_view import TraceView
from mechanisms.core.trace_run import ReleasedTraces
from mechanisms.core.traces import Traces
from pipeline.plan import STREAM, Plan
from pipeline.tables import accounts_table
from pipeline.trace_reading import pseudonyms


def view(plan: Plan, traces: Traces, released: ReleasedTraces) -> TraceView:
    """What accountants may see."""
    return TraceView(
        subjects=pseudonyms(traces.users),
        starts=traces.starts,
        times=traces.times,
        landmarks=traces.landmarks,
        periods=traces.periods,
        epsilon=released.epsilon,
        scale=released.scale,
        action=released.action,
        noise=released.noise,
        mechanism=plan.point_mechanism,
    )


def accounts_of(accountant: Accountant, seen: TraceView) -> pa.Table:
    """Rows of one accountant."""
    return accounts_table(accountant.account_traces(seen), ACCOUNTANTS.name_of(type(accountant)), STREAM)
