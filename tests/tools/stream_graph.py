"""A small stream for workers elsewhere: its configuration, its plan, and the steps of its graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from penstock.pipeline.config.plan import Plan, make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.runners.beam import distributed
from penstock.pipeline.sources.stream import Stream

CONFIG = """
name: cluster
seed: 7
source: {type: synthetic, seed: 1, n_users: 60, events_per_hour: 2.0, from: 2024-01-01T00:00:00Z,
         until: 2024-01-01T12:00:00Z}
space: {type: grid, south: 37.74, north: 37.82, west: -122.47, east: -122.37, rows: 4, columns: 4}
windows: {type: fixed, size: 1h, allowed_lateness: 5m}
bounding: {max_cells: 2}
mechanism: {type: discrete_laplace, epsilon: 0.5}
accountants: [{type: composition}]
output: {path: PATH, report: false, ledger_source: events}
"""

#: What an engine's checkpoint knows steps and their state by. Where this changes, `GRAPH` is raised.
STEPS = {
    "ReadEvents/Source": [],
    "ReadEvents/Readers": [],
    "ReadEvents/Replay": [],
    "CountDistinctUsers/FindContributions/ParDo(FindContributions)": [],
    "CountDistinctUsers/CountWhenFinal/ParDo(CountWhenFinal)": ["lane", "pending", "quota", "ts-due"],
    "CountDistinctUsers/Rows": [],
    "ReleaseInOrder/Begin": [],
    "ReleaseInOrder/Start": [],
    "ReleaseInOrder/CountsAndStart": [],
    "ReleaseInOrder/Release/ParDo(ReleaseWhenDue)": ["further", "loop", "pending", "ts-due"],
    "WriteReleases/Write": [],
    "Account/ForEachAccountant": [],
    "Account/AccountInOrder": ["loop", "waiting"],
    "TallyRows/Begin": [],
    "TallyRows/Opening": [],
    "TallyRows/Together": [],
    "TallyRows/Tally": ["books", "ts-end"],
}


def plan_in(folder: Path, n_shards: int = 2, text: str = CONFIG) -> Plan:
    """The plan of a stream for workers elsewhere."""
    config = loads(text.replace("PATH", str(folder)))
    return distributed(make_plan(replace(config, source=Stream(of=config.source)), folder), n_shards)
