"""Released and true traces as Arrow tables: the columns of the files of a trace run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from accountants.core.accountant import ACCOUNTANTS, Accountant
from accountants.core.trace_view import TraceView
from mechanisms.core.run import ReleasedTraces
from mechanisms.core.traces import Traces
from pipeline.output.tables import TEXT, TIME, accounts_table
from pipeline.steps.release import STREAM
from pipeline.steps.traces import pseudonyms

TRACES = pa.schema(
    [
        ("pseudonym", TEXT),
        ("time", TIME),
        ("latitude", pa.float64()),
        ("longitude", pa.float64()),
        ("epsilon", pa.float64()),
        ("landmark", pa.bool_()),
        ("action", TEXT),
    ]
)
TRUE_TRACES = pa.schema([TRACES.field(name) for name in ("pseudonym", "time", "latitude", "longitude")])
ACTIONS = ("published", "repeated", "refused", "absent")


def accounts_of(accountant: Accountant, seen: TraceView) -> pa.Table:
    """Rows of one accountant."""
    return accounts_table(accountant.account_traces(seen), ACCOUNTANTS.name_of(type(accountant)), STREAM)


def traces_table(traces: Traces, released: ReleasedTraces) -> pa.Table:
    """One row per released point, in order of pseudonym and time."""
    codes = np.select([released.action == action for action in ACTIONS], range(len(ACTIONS))).astype(np.int32)
    columns = _who_and_when(traces) | {
        "latitude": released.values[:, 0],
        "longitude": released.values[:, 1],
        "epsilon": released.epsilon,
        "landmark": traces.landmarks,
        "action": pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(ACTIONS)),
    }
    return pa.table([columns[name] for name in TRACES.names], schema=TRACES)


def true_traces_table(traces: Traces) -> pa.Table:
    """One row per true point, in the order of `traces_table` (simulation only)."""
    columns = _who_and_when(traces) | {"latitude": traces.points[:, 0], "longitude": traces.points[:, 1]}
    return pa.table([columns[name] for name in TRUE_TRACES.names], schema=TRUE_TRACES)


def _who_and_when(traces: Traces) -> dict[str, Any]:
    names = pa.DictionaryArray.from_arrays(
        pa.array(traces.user_of.astype(np.int32)), pa.array(pseudonyms(traces.users), pa.string())
    )
    return {"pseudonym": names, "time": pa.array(traces.times).cast(TIME)}
