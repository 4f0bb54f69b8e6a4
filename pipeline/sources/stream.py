"""Replay a recorded source as a live stream."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl

from penstock.mechanisms.core.plugin import DataError, ParameterError, parameter
from penstock.mechanisms.core.state import State
from penstock.pipeline.atomic import make_folder, opener, write_first
from penstock.pipeline.sources.base import (
    SOURCES,
    Checkpointed,
    EventBlock,
    FileSource,
    LiveInput,
    LiveSource,
    MicroBatch,
    Reject,
    Source,
    latest_before,
)
from penstock.pipeline.sources.reading.offsets import OffsetRange

#: Note of the files of the input, and of their sizes.
_INPUT = "input.json"
_SPEED = re.compile(r"([0-9]*\.?[0-9]+)x")


@dataclass(frozen=True, kw_only=True)
class Stream(LiveSource):
    """A live stream that replays another source, either by event time or by order of arrival.

    Windows are released while the stream goes on: each once, when the watermark reaches its end plus allowed lateness.

    Parameters
    ----------
    of
        What is replayed; ``from``, ``until`` and ``block_rows`` may be given here or there.
    speed
        ``max``, or how many seconds of the stream's clock pass in one second, such as ``60x``.
    order
        ``time``: as the events happened, whatever order the files are in, so that none is late. ``arrival``: as they
        were received, by the column that ``of`` maps as ``arrival``; a row is late if it was received at the deadline
        of all its windows or later. Without such a column, and from an endless source, rows come as the source gives
        them, and the clock is the latest time of an event so far: for simulations only.
    disorder
        How far the watermark stays behind the clock.

    Notes
    -----
    **Privacy**: with ``time``, and with an arrival column, whether a row is late depends on the row alone. Where the
    clock is the latest event, one person's event can make other people's rows late, so that a deployment is refused.
    checkpoint
        How often the state is written down, for ``--resume``.

    Examples
    --------
    >>> from penstock.pipeline.sources.synthetic import Synthetic
    >>> stream = Stream(of=Synthetic(n_users=50, days=1, seed=7), speed="60x")
    >>> stream.factor, stream.clock, stream.until == stream.of.until
    (60.0, 'time', True)
    """

    of: Source = parameter(doc="the source that is replayed")
    speed: str = parameter("max", doc="max, or the factor to real time, such as 60x")
    order: str | None = parameter(
        None, choices=("time", "arrival"), doc="order of the events; unset: time, and arrival where there is no end"
    )

    def __post_init__(self) -> None:
        if isinstance(self.of, LiveSource):
            raise ParameterError("of", SOURCES.name_of(type(self.of)), "a source that is not live itself")
        of = replace(
            self.of,
            from_=self.of.from_ if self.from_ is None else self.from_,
            until=self.of.until if self.until is None else self.until,
            block_rows=min(self.of.block_rows, self.block_rows),
        )
        object.__setattr__(self, "of", of)
        object.__setattr__(self, "from_", of.from_)
        object.__setattr__(self, "until", of.until)
        super().__post_init__()
        if self.speed != "max" and not (_SPEED.fullmatch(self.speed) and float(self.speed[:-1]) > 0):
            raise ParameterError("speed", self.speed, "max, or a positive factor such as 60x")
        if self.order == "time" and self.until is None:
            raise ParameterError("order", self.order, "arrival where the source has no end (it cannot be sorted)")

    @property
    def factor(self) -> float | None:
        """The speed-up factor, or None if there is no speed limit."""
        return None if self.speed == "max" else float(self.speed[:-1])

    @property
    def clock(self) -> str | None:
        """The column by which events are sorted, or None if they keep the order of the source."""
        if self.until is None:
            return None
        if self.order != "arrival":
            return "time"
        return "arrival" if self.of.has_arrival else None

    @property
    def lateness_flaw(self) -> tuple[str, str] | None:
        """See `LiveSource.lateness_flaw`. None if the events are sorted by the clock that decides lateness."""
        if self.clock is not None:
            return None
        if self.until is None:
            return ("of", "a source with an end, or a topic of Kafka, whose rows have an arrival time of their own")
        return ("order", "time; or map when each row was received, as arrival, in the columns of the source")

    @property
    def endless(self) -> bool:
        """True if the source is unbounded."""
        return bool(getattr(self.of, "endless", False))

    @property
    def has_people(self) -> bool:
        """True if the replayed source identifies people."""
        return self.of.has_people

    @property
    def recorded(self) -> Source:
        """The source that is replayed."""
        return self.of

    def micro_batches(
        self, run: LiveInput, folder: Path, start: State, number: int, latest: int, checkpointed: Checkpointed
    ) -> Iterator[MicroBatch | None]:
        """Yield events in micro-batches that each cover a short interval. Temporary files for sorting go to ``folder``.

        A micro-batch covers a second of real time, or some windows where there is no speed. Memory: one chunk where
        events are sorted, otherwise one block.
        """
        *begin, begin_row = (int(start.get(name, 0)) for name in _POSITION)
        chunks = (_sort_chunks if self.clock else _chunks)(self, run, folder, begin[0])
        with closing(chunks):  # now and not some time later, when a run that goes on may have a folder of the same name
            for chunk, blocks in chunks:
                for index, block in enumerate(blocks):
                    if [chunk, index] < begin:
                        continue
                    first = begin_row if [chunk, index] == begin else 0
                    for piece in _cut(block, (chunk, index), first, latest, run, self):
                        latest = piece.after
                        yield replace(piece, number=number)
                        number += 1

    def starts(self, run: LiveInput) -> list[State]:
        """Record the names and sizes of the input files, and return the initial position of the only reader."""
        write_first(run.spool / _INPUT, json.dumps(self._sizes()).encode())
        return [{}]

    def check_beginning(self, run: LiveInput, counted: Sequence[OffsetRange]) -> None:
        """Check that every input file still exists and has not become smaller (see `LiveSource.check_beginning`)."""
        path = run.spool / _INPUT
        begun, now = json.loads(path.read_bytes()) if path.exists() else {}, self._sizes()
        if lost := sorted(file for file, size in begun.items() if now.get(file, -1) < size):
            raise DataError(
                f"{lost[0]}: is gone, or smaller than when the run began ({len(lost)} of {len(begun)} files), and "
                "there is no checkpoint to go on from, so that all of the input would have to be read again. Put it "
                "back, or begin another run in another folder, on the same output.ledger, with 'from' at the first "
                "window that is not released"
            )

    def _sizes(self) -> dict[str, int]:
        if self.endless:
            return {}
        files = {file for span in self.from_start().spans() for file in span.files}
        return {file: Path(file).stat().st_size for file in sorted(files)}

    def from_start(self) -> FileSource:
        """Return the source that is replayed."""
        return self.of.from_start()

    def digests(self) -> dict[str, str]:
        """Return the digests of the source that is replayed."""
        return self.of.digests()


#: Pieces that a stream is sorted in: each has to fit into memory.
_PIECES = 64
#: Windows that one micro-batch covers at most: what is due is released soon, and a stream can be stopped soon.
_MAX_WINDOWS = 64


#: Position in a stream: whole chunks, whole blocks of the next chunk, rows of the next block.
_POSITION = ("chunk", "block", "row")


def _cut(
    block: EventBlock, position: tuple[int, int], first: int, before: int, run: LiveInput, source: Stream
) -> Iterator[MicroBatch]:
    frame = block.frame.drop("arrival", strict=False)
    clock = block.frame[source.clock or "time"].to_numpy()[first:]
    if source.clock == "arrival":
        # A row is held against its own arrival, and not against what came before it.
        assert run.grid.over is not None  # a source in files has an end
        clock = np.minimum(clock, run.grid.over + source.disorder)
        latest, watermarks = np.maximum.accumulate(np.concatenate([[before], clock])), clock
    else:
        latest = latest_before(clock, run.grid.calendar.from_ms, run.grid.calendar.until_ms, before)
        watermarks = latest[:-1] - source.disorder
    factor = source.factor
    longest = _MAX_WINDOWS * run.grid.calendar.step if factor is None else max(1, round(factor * 1000))
    cuts = np.flatnonzero(np.diff(latest[1:] // longest)) + 1
    edges = [0, *cuts.tolist(), len(clock)]
    for begin, end in pairwise(edges):
        rejects = block.rejects if begin == 0 and first == 0 else ()
        piece = frame[first + begin : first + end] if end - begin < frame.height else frame
        counts = (position[0], position[1] + 1, 0) if end == len(clock) else (*position, first + end)
        yield MicroBatch(
            number=0,
            block=EventBlock(piece, piece.height + len(rejects), rejects),
            before=int(latest[begin]),
            after=int(latest[end]),
            watermarks=watermarks[begin:end],
            end={name: np.asarray(count) for name, count in zip(_POSITION, counts)},
            starts=int(clock[begin]) if source.clock and end > begin else None,
        )


Chunks = Generator[tuple[int, Iterator[EventBlock]]]


def _chunks(source: Stream, run: LiveInput, spool: Path, first: int) -> Chunks:
    """Yield one chunk per span, in the order of the source."""
    of = source.from_start()
    for span in of.spans_from(first):
        yield span.index, (run.ingest(block) for block in of.read(span))


def _sort_chunks(source: Stream, run: LiveInput, spool: Path, first: int) -> Chunks:
    """Yield the chunks sorted by the clock. Rows with the same time keep the order of the source.

    One pass shares the rows out to pieces of equal time on disk; these are sorted when their turn comes, as many
    together as fill a block.
    """
    begin, end = run.grid.calendar.from_ms, run.grid.calendar.until_ms or 0
    width = max(1, -(-(end - begin) // _PIECES))
    shutil.rmtree(spool, ignore_errors=True)
    make_folder(spool)
    try:
        empty = None
        rejects: tuple[Reject, ...] = ()
        for number, block in enumerate(map(run.ingest, source.all_blocks())):  # of a deployment without ids
            empty = block.frame.clear()
            rejects += block.rejects
            position = np.clip((block.frame[str(source.clock)].to_numpy() - begin) // width, 0, _PIECES - 1)
            for piece in np.unique(position).tolist():
                path = spool / f"{piece:02d}-{number:09d}.arrow"
                with open(path, "wb", opener=opener) as output:
                    block.frame.filter(position == piece).write_ipc(output)
        if empty is not None:
            yield 0, iter([EventBlock(empty, len(rejects), rejects)])
        files: list[Path] = []
        begun, n_rows = 0, 0
        for piece in range(max(0, first - 1), _PIECES):
            begun = begun if files else piece
            for file in sorted(spool.glob(f"{piece:02d}-*.arrow")):
                files.append(file)
                n_rows += pl.scan_ipc(file).select(pl.len()).collect().item()
            if files and (n_rows >= source.of.block_rows or piece == _PIECES - 1):
                frame = pl.concat(map(pl.read_ipc, files)).sort(str(source.clock), maintain_order=True)
                files, n_rows = [], 0
                yield begun + 1, (EventBlock(part, part.height) for part in frame.iter_slices(source.of.block_rows))
    finally:
        shutil.rmtree(spool, ignore_errors=True)
