"""The plan of a run on a cluster, and how such a run is continued."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechanisms.core.plugin import ConfigError
from pipeline.output import checkpoint
from pipeline.output.checkpoint import finished
from pipeline.sources.base import LiveSource
from pipeline.sources.stream import Stream

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


#: Rows of a block on a cluster: small enough for any channel, large enough to amortise a call.
BLOCK_ROWS = 100_000


def as_cluster_plan(plan: Plan, n_shards: int = 1) -> Plan:
    """The same run with a source that is live, paths that every worker understands, and windows counted as they end.

    Parameters
    ----------
    plan
        As `make_plan` returns it.
    n_shards
        Parts that users are split into while counting; never changes a result.

    Raises
    ------
    ConfigError
        For traces, which are released on one machine.
    """
    if plan.on_points:
        raise ConfigError(("--runner flink: traces are released on one machine; leave --runner out",))
    source = plan.config.source
    if not isinstance(source, LiveSource):
        source = Stream(of=source)
    if isinstance(source, Stream):
        source = replace(source, block_rows=min(source.block_rows, BLOCK_ROWS))
    config = replace(plan.config, source=source)
    return replace(plan, config=config, folder=plan.folder.absolute(), streaming=True, n_shards=n_shards)


def prepare(plan: Plan) -> dict[str, Any] | None:
    """Check that the folder holds a run of the same configuration that can go on.

    What has been written stays: the first write of a part counts, and a repeated one is the same.

    Returns
    -------
    The operator's manifest if the run had finished already; None where there is something to do.
    """
    checkpoint.check_same(plan)
    return finished(plan)


def checkpoints_folder(plan: Plan) -> Path:
    """Where the engine keeps its checkpoints; removed when the run has ended."""
    return plan.folder / "operator" / "checkpoint" / "flink"


def latest_checkpoint(plan: Plan) -> Path | None:
    """The latest whole checkpoint or savepoint in the folder of the run, whichever attempt it is from."""
    folder = checkpoints_folder(plan)
    found = [*folder.glob("*/chk-*/_metadata"), *folder.glob("savepoint-*/_metadata")]
    latest = max(found, key=lambda path: path.stat().st_mtime_ns, default=None)
    return None if latest is None else latest.parent
