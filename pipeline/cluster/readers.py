"""Which reader brings the events of a plan to a cluster."""

from __future__ import annotations

from pipeline.cluster import replay
from pipeline.cluster.graph import Read
from pipeline.plan import Plan


def reader_of(plan: Plan) -> Read:
    """The reader of a plan's source: its own where it has one, otherwise the source is replayed by one worker."""
    own: Read | None = getattr(plan.config.source, "cluster_reader", None)
    return replay.read if own is None else own
