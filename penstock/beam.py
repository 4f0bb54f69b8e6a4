"""Transforms that embed a run in any Apache Beam pipeline.

`Release` is all of them in one. Alone, events flow through them in this order; each docstring says what it takes and
returns.

``ReadEvents`` or ``EventsToBlocks`` → ``CountDistinctUsers`` → ``ReleaseInOrder`` → ``WriteReleases`` →
``ReleasesToRows`` and ``Account``; ``TallyRows`` takes the row counts of counting and releasing.

``make_plan`` turns a configuration into the plan that every transform takes. The plan's folder holds the ledger and
what `WriteReleases` writes: all workers must see it, and each run has its own. A deployment's holds the nonce of the
run as well: made again for the same folder, the plan is that of the same run.

Examples
--------
>>> from pathlib import Path
>>> import apache_beam as beam
>>> from tempfile import TemporaryDirectory
>>> from penstock import load
>>> from penstock.beam import IN_PROCESS, CountDistinctUsers, EventsToBlocks, ReleaseInOrder, ReleasesToRows, make_plan
>>> config = load('''
... name: own pipeline
... source: {type: synthetic, from: 2024-01-01T00:00:00Z, until: 2024-01-01T02:00:00Z}  # only its times are used
... space: {type: places, list: [harbour, market], elsewhere: false}
... windows: {type: fixed, size: 1h}
... bounding: {max_cells: 1}
... mechanism: {type: discrete_laplace, epsilon: .inf}
... output: {path: runs/own}
... ''')
>>> start = 1704067200000
>>> events = [{"user": user, "time": start + 60_000, "place": "market"} for user in ("ann", "bob", "ann")]
>>> with TemporaryDirectory() as folder, beam.Pipeline(runner=IN_PROCESS) as pipeline:
...     plan = make_plan(config, Path(folder))
...     counted = pipeline | beam.Create(events) | EventsToBlocks() | CountDistinctUsers(plan)
...     released = counted["counts"] | ReleaseInOrder(plan)
...     rows = released["releases"] | ReleasesToRows(plan)
...     _ = rows | beam.Filter(lambda row: row["value"]) | beam.Map(lambda row: print(row["cell"], row["value"]))
market 2.0
"""

from penstock.pipeline.config.plan import Plan
from penstock.pipeline.output.checkpoint import plan_in_folder as make_plan
from penstock.pipeline.releasing.release import Batch
from penstock.pipeline.runners.beam import IN_PROCESS
from penstock.pipeline.runners.beam.adapters import EventsToBlocks, Release, ReleasesToRows
from penstock.pipeline.runners.beam.coders import NamedBlock
from penstock.pipeline.runners.beam.counts import CountDistinctUsers, require_used
from penstock.pipeline.runners.beam.graph import Account, ReleaseInOrder, TallyRows, WriteReleases, build
from penstock.pipeline.runners.beam.read import ReadEvents
from penstock.pipeline.runners.beam.traces import ReleaseTraces
from penstock.pipeline.sources.base import EventBlock

__all__ = [
    "IN_PROCESS",
    "Account",
    "Batch",
    "CountDistinctUsers",
    "EventBlock",
    "EventsToBlocks",
    "NamedBlock",
    "Plan",
    "ReadEvents",
    "Release",
    "ReleaseInOrder",
    "ReleaseTraces",
    "ReleasesToRows",
    "TallyRows",
    "WriteReleases",
    "build",
    "make_plan",
    "require_used",
]
