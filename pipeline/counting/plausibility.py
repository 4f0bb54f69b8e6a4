"""Plausibility of an input that was read: what a sample of its rows makes doubtful, for the operator alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from penstock.pipeline.counting import input_check
from penstock.pipeline.counting.ingest import cells_of
from penstock.pipeline.counting.spec import CoreSpec
from penstock.pipeline.sources.base import EventBlock, Source
from penstock.pipeline.sources.reading.text import MappedColumns
from penstock.pipeline.spaces.places import ELSEWHERE
from penstock.pipeline.windows.calendar import DAY, clock_changes, utc_offset, wall_time

#: Share of the rows from which on it is said that they are outside, or of one user where an average one has far fewer.
MANY, ONE_USER, TIMES_AVERAGE = 0.05, 0.05, 20
#: Share of the rows from which on a word in the place of a user is said.
FEW = 0.005
#: Fewest rows that a share is said of.
LEAST = 100
#: What stands for a user that is not known, in small letters.
NOBODY = ("null", "none", "nan", "na", "n/a", "nil", "unknown", "undefined", "anonymous", "missing", "-", "?", "-1")
#: Rows that are read again to tell whether their times are local.
_ROWS = 1000


def doubts(sample: list[EventBlock], plan: CoreSpec, source: Source) -> list[str]:
    """Return what is doubtful about the rows of a finite input, a sentence each, without any value of a person.

    **Privacy**: shares of rows are exact. They are for the terminal and the operator's page, and never published.

    ``sample``: the first blocks. ``source``: what they were read from.
    """
    frame = pl.concat([block.frame for block in sample]) if sample else pl.DataFrame()
    found = [*_local_times(plan, source)]
    if len(frame) >= LEAST:
        found += [*_users(frame), *_positions(frame, plan)]
    return found


def _of(n: int, frame: pl.DataFrame) -> str:
    return f"{100 * n / len(frame):.2g} % of the first {len(frame):,} rows"


def _users(frame: pl.DataFrame) -> Iterator[str]:
    """Say of a user with too many rows; which one only where it is a word for nobody."""
    rows = frame.group_by(pl.col("user").cast(pl.String)).len().sort("len", "user", descending=True)
    words = rows.filter(pl.col("user").str.strip_chars().str.to_lowercase().is_in(NOBODY))
    for user, n in words.rows():
        if n >= FEW * len(frame):
            yield (
                f"{_of(n, frame)} have the user {user!r}: if that means that nobody is known, they are counted as one "
                "person, of whom bounding keeps next to nothing; take them out, or give each an identifier"
            )
    known = rows.join(words, on="user", how="anti")
    if len(known) and known["len"][0] >= max(ONE_USER * len(frame), TIMES_AVERAGE * len(frame) / len(rows)):
        times = known["len"][0] * len(rows) / len(frame)
        yield (
            f"{_of(known['len'][0], frame)} are of one user, {times:.0f} times as many as of an average one: is it "
            "a person, or what a device or an export writes where none is known?"
        )


def _positions(frame: pl.DataFrame, plan: CoreSpec) -> Iterator[str]:
    """Say where many rows are in no named cell, and what would help."""
    cell = cells_of(frame, plan)
    n_outside = int(np.count_nonzero(cell < 0))
    if MANY * len(frame) <= n_outside <= input_check.MOST * len(frame) and not plan.on_points:
        cure = input_check.cure_for_places(frame, plan)
        if "probably" in cure:
            yield f"{_of(n_outside, frame)} are in no cell. {cure}"
    cells = plan.space.cells
    n_elsewhere = int(np.count_nonzero(cell == len(cells) - 1)) if cells[-1] == ELSEWHERE else 0
    if n_elsewhere > input_check.MOST * len(frame):
        yield f"{_of(n_elsewhere, frame)} are elsewhere: are the places of the space named as in the input?"


def _local_times(plan: CoreSpec, source: Source) -> Iterator[str]:
    """Say of local times in a run that clocks are set back in."""
    if not isinstance(source, MappedColumns) or source.time_zone == "UTC":
        return
    begin, end = plan.grid.calendar.from_ms, plan.grid.calendar.until_ms
    changes = clock_changes(source.time_zone, begin, end) if end is not None else []
    back = [(at, offset) for at, offset in changes if offset < utc_offset(source.time_zone, at - 1)]
    if back and _times(source, source.time_zone) != _times(source, "UTC"):
        at, offset = back[0]
        day = np.datetime64(wall_time(source.time_zone, at) // DAY, "D")
        twice = (utc_offset(source.time_zone, at - 1) - offset) // 60_000
        yield (
            f"clocks were set back in {source.time_zone} on {day}, and times have no offset: {twice} minutes happened "
            "twice, events of both are counted at the first, and the second looks empty"
        )


def _times(source: Any, zone: str) -> list[int]:
    """Return the times of the first rows, read in a zone."""
    read = replace(source, time_zone=zone, block_rows=_ROWS).from_start()
    block = next((block for span in read.spans()[:1] for block in read.read(span)), None)
    return [] if block is None else block.frame["time"].to_list()
