"""Cost of the serial steps of a stream on many workers, and bytes that travel between workers.

``python -m benchmarks.scaling`` prints a table. Reading, deduplicating and counting are spread over readers, windows
and shards of users. One key releases all windows in order: it gets a count vector of every shard of users, adds them
up, steps the mechanism, and has the charge on disk before the release leaves. That step is run here as a worker runs
it, without the engine around it, window by window as on a stream; so are writing, which is spread over workers again,
and accounting, which is one key for each accountant.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl

from penstock.pipeline.config.plan import Plan, make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.counting.count import GroupCounts, contributions_of
from penstock.pipeline.counting.spec import STREAM
from penstock.pipeline.releasing.release import Batch
from penstock.pipeline.runners.beam import distributed, graph
from penstock.pipeline.runners.beam.coders import BatchCoder, encode_counts
from penstock.pipeline.sources.base import EventBlock
from penstock.pipeline.sources.stream import Stream

START = 1_704_067_200_000
SIDE = {100: (10, 10), 1000: (25, 40), 10_000: (100, 100)}


@dataclass(frozen=True)
class Costs:
    """Of one window: seconds of a processor, and bytes.

    Parameters
    ----------
    cells, shards
        Cells of the space, and shards of users.
    release, write, account
        Seconds: of the one key, of writing, of one accountant.
    syncs
        How often the one key waits until the disk has what it wrote.
    counts, batch
        Bytes: that the one key gets from all shards together, and that every accountant gets.
    """

    cells: int
    shards: int
    release: float
    write: float
    account: float
    syncs: int
    counts: int
    batch: int


class State(list[bytes]):
    """State of a step as an engine keeps it: a bag, or one value."""

    def read(self) -> Any:
        """Read all entries of a bag, or the value."""
        return [*self] if self.is_bag else (self[-1] if self else None)

    def __init__(self, is_bag: bool = True) -> None:
        self.is_bag = is_bag

    def add(self, entry: bytes) -> None:
        """Add an entry to the bag."""
        self.append(entry)

    def write(self, value: bytes) -> None:
        """Replace the value."""
        self[:] = [value]


class Timer:
    """A timer that nobody watches."""

    def set(self, *_: object, **__: object) -> None:
        """Do nothing."""


def plan_of(cells: int, shards: int, n_windows: int, folder: Path) -> Plan:
    """Plan of an endless run over a grid of that many cells."""
    rows, columns = SIDE[cells]
    times = {"from": "2024-01-01T00:00:00Z", "days": -(-n_windows // 1440)}
    value = {
        "name": "scaling",
        "seed": 1,
        "source": {"type": "synthetic", "n_users": 1, **times},
        "space": {"type": "grid", "south": 37.7, "north": 37.8, "west": -122.5, "east": -122.4}
        | {"rows": rows, "columns": columns},
        "windows": {"type": "fixed", "size": "1m"},
        "bounding": {"max_cells": 2},
        "mechanism": {"type": "discrete_laplace", "epsilon": 1.0},
        "accountants": [{"type": "composition"}],
        "output": {"path": str(folder), "report": False, "truth": False},
    }
    config = loads(json.dumps(value))
    return distributed(make_plan(replace(config, source=Stream(of=config.source)), folder), shards)


def timed(call: Callable[[], Iterator[Any]]) -> tuple[list[Any], float]:
    """Return what a call yields, and its processor seconds."""
    begun = time.process_time()
    results = list(call())
    return results, time.process_time() - begun


def costs(cells: int, shards: int, n_windows: int) -> Costs:
    """Release, write and account windows one by one."""
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as name:
        plan = plan_of(cells, shards, n_windows, Path(name) / "run")
        (plan.folder / "operator").mkdir(parents=True)
        release, write, account = graph.ReleaseWhenDue(plan), graph.WriteBatches(plan), graph.AccountInOrder(plan)
        for step in (release, write, account):
            step.setup()
        pending, further, loop, early, books = State(), State(), State(False), State(), State(False)
        seconds, sizes = np.zeros((n_windows, 3)), np.zeros((n_windows, 3))
        for window in range(n_windows):
            vectors = rng.poisson(50 / shards, (shards, 1, cells))
            data = [encode_counts(GroupCounts(window + 1, own, own, int(own.sum())), 0, plan) for own in vectors]

            def one(data: list[bytes] = data, window: int = window) -> Iterator[Any]:
                """Release one window as the graph does."""
                for own in data:
                    yield from release.process((STREAM, own), pending, further, loop, Timer())
                yield from release.fire(str(window), pending, further, loop, Timer())

            with patch.object(os, "fsync", wraps=os.fsync) as synced:
                results, seconds[window, 0] = timed(one)
            (batch,) = [entry for entry in results if isinstance(entry, Batch)]
            _, seconds[window, 1] = timed(partial(write.process, batch))
            _, seconds[window, 2] = timed(partial(account.process, ((0, 0), batch), early, books))
            sizes[window] = synced.call_count, sum(map(len, data)), len(BatchCoder().encode(batch))
    return Costs(cells, shards, *np.median(seconds, axis=0), *np.median(sizes, axis=0).astype(int).tolist())


def bytes_of_a_contribution(n: int = 100_000) -> float:
    """Bytes that a distinct (user, window, cell) takes between reading and counting, in a simulation."""
    rng = np.random.default_rng(1)
    place = {"latitude": rng.uniform(37.7, 37.8, n), "longitude": rng.uniform(-122.5, -122.4, n)}
    frame = pl.DataFrame({"user": np.arange(n), "time": np.full(n, START), **place})
    with tempfile.TemporaryDirectory() as name:
        plan = plan_of(1000, 1, 10, Path(name) / "run")
        _, pieces = contributions_of(EventBlock(frame, n), plan)
        return sum(len(piece.encode(plan.batching.layout)) for _, piece in pieces) / n


HEAD = (
    "| cells | shards of users | release key, ms | its syncs | writing, ms | an accountant, ms "
    "| counts to the release key | a batch to an accountant |\n" + "|---" * 8 + "|"
)


def line(cost: Costs) -> str:
    """A line of the table."""
    return (
        f"| {cost.cells:,} | {cost.shards} | {1e3 * cost.release:.1f} | {cost.syncs} | {1e3 * cost.write:.1f} "
        f"| {1e3 * cost.account:.1f} | {cost.counts / 1e3:,.0f} kB | {cost.batch / 1e3:,.1f} kB |"
    )


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windows", type=int, default=60, help="of which the median is taken")
    given = parser.parse_args()
    print(f"Milliseconds of a processor, medians of {given.windows} windows; load {os.getloadavg()[0]:.0f}.\n\n{HEAD}")
    for cells in SIDE:
        for shards in (1, 4, 100):
            print(line(costs(cells, shards, given.windows)), flush=True)
    print(f"\nA contribution: {bytes_of_a_contribution():.1f} bytes.")


if __name__ == "__main__":
    main()
