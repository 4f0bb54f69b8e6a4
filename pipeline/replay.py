"""The events of a source one slice after the other, and what time it was when each of them arrived."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl

from mechanisms.core.state import State
from pipeline.block import EventBlock, Reject
from pipeline.ingestion import ingested
from pipeline.plan import Plan
from pipeline.slices import NEVER, Slice, latest_before
from pipeline.source import Source
from pipeline.sources.stream import Stream

#: Pieces that a stream is sorted in: each has to fit into memory.
_PIECES = 64
#: Windows that one slice covers at most: what is due is released soon, and a stream can be stopped soon.
_MAX_WINDOWS = 64


@dataclass(frozen=True)
class Position:
    """How far a stream has been read: whole chunks, whole blocks of the next chunk, rows of the next block."""

    chunk: int = 0
    block: int = 0
    row: int = 0

    @classmethod
    def of(cls, state: State) -> Position:
        """Inverse of `as_state`; the beginning where there is no state."""
        return cls(**{name: int(value) for name, value in state.items()})

    def as_state(self) -> State:
        """The position as it is kept."""
        return {name: np.asarray(value) for name, value in asdict(self).items()}


def replay(plan: Plan, spool: Path, start: Position, number: int = 0, latest: int = NEVER) -> Iterator[Slice]:
    """Slices from a position on.

    Parameters
    ----------
    plan
        The run; its source is a stream.
    spool
        Folder for sorting, made and removed.
    start, number, latest
        Position, number and latest time where an earlier run of the stream ended.

    Notes
    -----
    A slice covers a second of real time, or some windows where there is no speed. Memory: one chunk where events are
    sorted, otherwise one block.
    """
    source = plan.config.source
    if not isinstance(source, Stream):
        raise TypeError(f"{type(source).__name__} is not a stream")
    sort = source.by_time
    chunks = _sorted(source.of, plan, spool, start.chunk) if sort else _arriving(source.of, plan, start.chunk)
    with closing(chunks):  # now and not some time later, when a run that goes on may have a spool of the same name
        for chunk, blocks in chunks:
            for index, block in enumerate(blocks):
                here = Position(chunk, index)
                if (here.chunk, here.block) < (start.chunk, start.block):
                    continue
                first = start.row if (here.chunk, here.block) == (start.chunk, start.block) else 0
                for piece in _cut(block, here, first, latest, plan, source.factor):
                    latest = piece.after
                    yield replace(piece, number=number)
                    number += 1


def _cut(
    block: EventBlock, here: Position, first: int, before: int, plan: Plan, factor: float | None
) -> Iterator[Slice]:
    frame = block.frame
    following = Position(here.chunk, here.block + 1)
    times = frame["time"].to_numpy()[first:]
    latest = latest_before(times, plan, before)
    longest = _MAX_WINDOWS * plan.calendar.step if factor is None else max(1, round(factor * 1000))
    cuts = np.flatnonzero(np.diff(latest[1:] // longest)) + 1
    edges = [0, *cuts.tolist(), len(times)]
    for begin, end in pairwise(edges):
        rejects = block.rejects if begin == 0 and first == 0 else ()
        piece = frame[first + begin : first + end] if end - begin < frame.height else frame
        yield Slice(
            number=0,
            block=EventBlock(piece, piece.height + len(rejects), rejects),
            before=int(latest[begin]),
            after=int(latest[end]),
            end=(following if end == len(times) else replace(here, row=first + end)).as_state(),
        )


def _arriving(source: Source, plan: Plan, first: int) -> Generator[tuple[int, Iterator[EventBlock]]]:
    """Chunks in the order of the source: its spans."""
    for span in source.spans_from(first):
        yield span.index, (ingested(block, plan) for block in source.read(span))


def _sorted(source: Source, plan: Plan, spool: Path, first: int) -> Generator[tuple[int, Iterator[EventBlock]]]:
    """Chunks in the order of time; ties stay in the order of the source.

    One pass shares the rows out to pieces of equal time on disk; these are sorted when their turn comes, as many
    together as fill a block.
    """
    begin, end = plan.calendar.from_ms, plan.calendar.until_ms or 0
    width = max(1, -(-(end - begin) // _PIECES))
    shutil.rmtree(spool, ignore_errors=True)
    spool.mkdir(parents=True)
    try:
        empty, rejects = _share_out(source, plan, spool, begin, width)
        if empty is not None:
            yield 0, iter([EventBlock(empty, len(rejects), rejects)])
        files: list[Path] = []
        begun, n_rows = 0, 0
        for piece in range(max(0, first - 1), _PIECES):
            begun = begun if files else piece
            for file in sorted(spool.glob(f"{piece:02d}-*.arrow")):
                files.append(file)
                n_rows += pl.scan_ipc(file).select(pl.len()).collect().item()
            if files and (n_rows >= source.block_rows or piece == _PIECES - 1):
                frame = pl.concat(map(pl.read_ipc, files)).sort("time", maintain_order=True)
                files, n_rows = [], 0
                yield begun + 1, (EventBlock(part, part.height) for part in frame.iter_slices(source.block_rows))
    finally:
        shutil.rmtree(spool, ignore_errors=True)


def _share_out(
    source: Source, plan: Plan, spool: Path, begin: int, width: int
) -> tuple[pl.DataFrame | None, tuple[Reject, ...]]:
    """Write every block's rows to the pieces they belong to; give the columns, and all rejects."""
    empty, number = None, 0
    rejects: list[Reject] = []
    for span in source.spans():
        for block in source.read(span):
            block = ingested(block, plan)  # what lies on disk names nobody in a deployment
            empty = block.frame.clear()
            rejects += block.rejects
            piece = np.clip((block.frame["time"].to_numpy() - begin) // width, 0, _PIECES - 1)
            for name in np.flatnonzero(np.bincount(piece, minlength=_PIECES)).tolist():
                block.frame.filter(piece == name).write_ipc(spool / f"{name:02d}-{number:09d}.arrow")
            number += 1
    return empty, tuple(rejects)
