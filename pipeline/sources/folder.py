"""A folder that is watched for new files, whose events are counted and released as they arrive.

It may be on a disk or in an object store (``gs://``, ``s3://``). On Beam's runners one splittable reader
watches it, the same that the plain loop has. Beam's own `MatchContinuously` is not used: its watermark is the time of
the look, so that a file which appears a moment after it was written is behind it; it keeps the name of every file there
ever was, where this keeps those that are still there; and nothing tells a run that goes on which block of which file
was read at which time of the clock, which is what makes it end with the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
import polars as pl

from penstock.mechanisms.core.plugin import DataError, ParameterError, duration, parameter
from penstock.mechanisms.core.state import State
from penstock.pipeline.sources.base import (
    MIN_EVENT_TIME,
    Checkpointed,
    EventBlock,
    LiveInput,
    LiveSource,
    MicroBatch,
    Source,
)
from penstock.pipeline.sources.reading.file_systems import (
    File,
    Files,
    LocalFiles,
    RemoteFiles,
    StorageUnavailable,
    is_url,
)
from penstock.pipeline.sources.reading.inputs import PathSource
from penstock.pipeline.sources.reading.kafka_progress import Journal
from penstock.pipeline.sources.reading.services import Outage, check_options


@dataclass(frozen=True, kw_only=True)
class Folder(LiveSource):
    """Read events from files that keep arriving in a folder, each of which is read once.

    A file has to be complete when it appears: write it elsewhere on the same file system, or under a name that begins
    with a dot, and rename it; objects of a store appear whole. A row arrives at its file's time of modification, or at
    the time in the column that ``of`` maps as ``arrival``. The clock is the time of day less ``idle_after``, and no
    later than any file that is still to be read; the watermark is the clock less ``disorder``. With ``until`` the run
    ends when the watermark has passed it (and what is allowed to be late); without, it goes on until it is stopped.

    Parameters
    ----------
    of
        How files are read, and where they come to: a folder, or a pattern such as ``in/*.csv``; on a disk or, as a URL
        (``gs://``, ``s3://``, ``hdfs://``, ``abfs://``), where fsspec reaches.
    options
        For a URL: options of the file system as fsspec calls them; secrets as ``env:`` or ``file:``.
    idle_after
        At most so long after its time of modification a file appears under its name.
    disorder
        How far the watermark stays behind the clock. With a column of arrival, at least as long as a row may wait for
        its file: for files that are written every five minutes, five minutes.

    Notes
    -----
    **Privacy**: a row is late if it arrived at the deadline of all its windows or later. That depends on the row and on
    when its file was written, so write files by the clock, and never when there are enough rows; with a column of
    arrival it depends on the row alone. A row that comes when its windows are gone although it arrived in time shows
    that ``idle_after`` or ``disorder`` is too short, and is counted as late.

    **Cost**: a look at the whole folder every second (``every``), so remove or move files that were read; a checkpoint
    holds the names of those that are still there, and each micro-batch copies them. A look at a
    bucket is a request for every thousand objects, and a file there is copied to a temporary folder while it is read.
    A file that changes after it was read ends the run.

    A folder below ``of.path`` that is a mount of its own, or one that is not mounted when a run goes on, looks empty,
    like one whose files were removed; when it is back its files are read again. Mount what is watched, not a part.

    What the clock decided is written down, so that a run that is continued decides the same; it needs the files that
    were read since its latest checkpoint.

    Examples
    --------
    >>> from penstock.pipeline.sources.csv import Csv
    >>> source = Folder(of=Csv(path="incoming"), from_=0)
    >>> source.endless, source.lateness_flaw
    (True, None)
    """

    on_services = True
    lateness_flaw = None  # a row's lateness never depends on other rows

    of: Source = parameter(doc="source that reads the files (csv, parquet, …), with the folder they arrive in")
    options: dict[str, str] | None = parameter(
        None, doc="fsspec's options of a remote file system; secrets as env: or file:"
    )
    every: int = duration(1_000, above=0, doc="polling interval of the folder")
    idle_after: int = duration(60_000, doc="delay of the clock: most time from a file's modification to its appearance")

    def __post_init__(self) -> None:
        if not isinstance(self.of, PathSource):
            raise ParameterError("of", type(self.of).__name__.lower(), "a source of files, such as csv or parquet")
        if self.of.has_user_names:  # a checkpoint has the names of files
            raise ParameterError("of", type(self.of).__name__.lower(), "one whose files are not named after people")
        check_options(self.options or {})
        if self.options and not is_url(self.of.path):
            raise ParameterError("options", self.options, "left out if files are on a disk")
        for name in ("from_", "until"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(self.of, name))
        object.__setattr__(self, "of", replace(self.of, from_=None, until=None))
        super().__post_init__()

    @property
    def has_people(self) -> bool:
        """True if rows identify people, according to the source that reads the files."""
        return self.of.has_people

    @property
    def has_arrival(self) -> bool:
        """True if rows have an ``arrival`` column. Otherwise, a row is taken to arrive when its file arrives."""
        return self.of.has_arrival

    @property
    def recorded(self) -> Folder:
        """The folder's configuration, without the options that concern watching it."""
        return replace(self, disorder=0, checkpoint=0, every=1, idle_after=0, options=None)

    @property
    def files(self) -> PathSource:
        """The source that reads the files."""
        assert isinstance(self.of, PathSource)
        return self.of

    def reading(self, columns: Collection[str]) -> Folder:
        """Return a copy of the folder whose file source reads only the columns in use."""
        return replace(self, of=self.of.reading(columns))

    def micro_batches(
        self, run: LiveInput, folder: Path, start: State, number: int, latest: int, checkpointed: Checkpointed
    ) -> Iterator[MicroBatch | None]:
        """Yield blocks of files as they arrive, journalling decisions since the checkpoint in the run's folder."""
        reader = _FileReader(self, run, start, latest)
        journal = Journal(run.spool, number, FolderEntry.decode)
        for entry in journal.entries:
            yield reader.micro_batch(entry)
            number = entry.number + 1
        while not reader.finished:
            following = reader.next(number)
            if following is None:
                yield None
                if run.waits:
                    time.sleep(min(self.every, 100) / 1000)
                continue
            journal.append(following, checkpointed)
            yield reader.micro_batch(following)
            number += 1

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 digest of the folder's path. The contents are unbounded, so they have no digest."""
        return {"folder": hashlib.sha256(self.files.path.encode()).hexdigest()}


@dataclass(frozen=True)
class FolderEntry:
    """A journal entry of one micro-batch: a block of a file, or an advance of the clock."""

    number: int  # of the micro-batch
    clock: int  # after the micro-batch
    file: File | None = None  # None: none was read
    block: int = 0  # number of the block in the file
    is_last: bool = True  # whether nothing follows it there

    def encode(self) -> str:
        """Encode the entry as a single line."""
        return json.dumps([self.number, self.clock, self.file, self.block, self.is_last]) + "\n"

    @classmethod
    def decode(cls, line: str) -> FolderEntry:
        """Decode a line written by `encode`.

        >>> entry = FolderEntry(3, 70, File(60_000_000, "in/a.csv", 12), 1, False)
        >>> FolderEntry.decode(entry.encode()) == entry
        True
        """
        number, clock, file, block, is_last = json.loads(line)
        return cls(number, clock, file and File(*file), block, is_last)


_COLUMNS = {"time": pl.Int64, "user": pl.String, "latitude": pl.Float64, "longitude": pl.Float64, "place": pl.String}
#: A block without rows, for micro-batches in which only time passes.
_NOTHING = EventBlock(pl.DataFrame(schema=_COLUMNS), 0)


class _Opened:
    """An open file. It is read one block ahead so that the last block can be recognised."""

    def __init__(self, file: File, files: Files, of: PathSource) -> None:
        self.file, self.number = file, 0
        self.held = ExitStack()
        path = self.held.enter_context(files.local(file))
        self._blocks = self._original_names(replace(of, path=path), path)
        self._next = next(self._blocks, None)
        self.following = next(self._blocks, None)

    def _original_names(self, of: PathSource, path: str) -> Iterator[EventBlock]:
        """Yield a file's blocks, rejects and errors under its original name, not that of a local copy."""
        try:
            for block in of.all_blocks():
                names = (reject.file.replace(path, self.file.name) for reject in block.rejects)
                rejects = tuple(replace(reject, file=name) for reject, name in zip(block.rejects, names))
                yield replace(block, rejects=rejects)
        except DataError as error:
            raise DataError(str(error).replace(path, self.file.name)) from error

    def take(self) -> EventBlock:
        """Return the next block. An empty file has a single empty block."""
        block, self._next, self.following = self._next, self.following, next(self._blocks, None)
        self.number += 1
        return _NOTHING if block is None else block


@dataclass
class _FileReader:
    """Converts newly arrived files to micro-batches."""

    source: Folder
    run: LiveInput
    start: State
    clock: int
    #: Files that were read to their end and are still in the folder, by name.
    done: dict[str, File] = field(default_factory=dict)
    opened: _Opened | None = None
    _waiting: deque[File] = field(default_factory=deque)
    _listed_at: float = float("-inf")
    _has_answered: bool = False
    _now: int = MIN_EVENT_TIME

    def __post_init__(self) -> None:
        of, start = self.source.files, self.start
        self._outage = Outage(of.path)
        self._files: Files = RemoteFiles(of, self.source.options or {}) if is_url(of.path) else LocalFiles(of)
        if "names" in start:
            files = zip(*(start[column].tolist() for column in ("written", "names", "sizes")))
            self.done = {file.name: file for file in map(File._make, files)}
        if "open" in start:
            file = File(int(start["open_written"]), str(start["open"]), int(start["open_size"]))
            self._open(file, int(start["block"]))
        over = self.run.grid.over
        self.end = None if over is None else over + self.source.disorder

    @property
    def finished(self) -> bool:
        """True if all of the run's windows are final."""
        return self.end is not None and self.clock >= self.end

    def next(self, number: int) -> FolderEntry | None:
        """Return the next journal entry, or None if there is no new input and no window has ended."""
        if self.opened is None and not self._waiting:
            self._look_for_files()
        if self.opened is None and self._waiting:
            if not self._outage.is_attempt_due:
                return None
            try:
                self._open(self._waiting[0], 0)
            except StorageUnavailable as error:
                self._outage.record_failure(str(error))
                return None
            self._waiting.popleft()
            self._outage.record_success()
        # No unknown or waiting file is earlier than the clock once the open file is read.
        clock = min([self._now - self.source.idle_after, *(file.arrival for file in islice(self._waiting, 1))])
        clock = max(self.clock, clock if self.end is None else min(clock, self.end))
        if self.opened is None:
            before, after = (self.run.grid.last_final(at - self.source.disorder) for at in (self.clock, clock))
            return FolderEntry(number, clock) if after > before else None
        file, is_last = self.opened.file, self.opened.following is None
        clock = clock if is_last else max(self.clock, min(clock, file.arrival))
        return FolderEntry(number, clock, file, self.opened.number, is_last)

    def micro_batch(self, entry: FolderEntry) -> MicroBatch:
        """Return an entry's rows as a micro-batch. Each row's arrival determines whether it is late."""
        before, block, arrival = self.clock, _NOTHING, np.zeros(0, np.int64)
        if entry.file is not None:
            opened = self.opened or self._open(entry.file, entry.block)  # where a run goes on
            block = opened.take()
            arrival = np.full(block.frame.height, opened.file.arrival, np.int64)
            if "arrival" in block.frame.columns:
                arrival = block.frame["arrival"].to_numpy()
                block = replace(block, frame=block.frame.drop("arrival"))
            if entry.is_last:
                opened.held.close()
                self.done[entry.file.name], self.opened = entry.file, None
        self.clock = max(self.clock, entry.clock)
        passed = MIN_EVENT_TIME if before == MIN_EVENT_TIME else before - self.source.disorder
        return MicroBatch(
            number=entry.number,
            block=self.run.ingest(block),
            before=before,
            after=self.clock,
            watermarks=np.maximum(arrival, passed),
            end=self._as_state(),
        )

    def _look_for_files(self) -> None:
        """Find new files, ordered by modification time. Raise `DataError` if a known file has changed."""
        if time.monotonic() - self._listed_at < self.source.every / 1000 or not self._outage.is_attempt_due:
            return
        now, self._listed_at = int(time.time() * 1000), time.monotonic()  # what appears after that is from later
        try:
            files = self._files.listing()
        except StorageUnavailable as error:
            if not self._has_answered:
                raise
            self._outage.record_failure(str(error))
            return  # the clock stands still
        self._has_answered = True
        self._outage.record_success()
        if changed := [name for name, file in files.items() if name in self.done and file != self.done[name]]:
            raise DataError(
                f"{min(changed)}: has changed after it was read; files have to be complete when they appear, so write "
                "them elsewhere and rename them"
            )
        self.done = {name: file for name, file in self.done.items() if name in files}
        self._waiting = deque(sorted(file for name, file in files.items() if name not in self.done))
        self._now = now

    def _open(self, file: File, block: int) -> _Opened:
        """Open a file and skip to the given block."""
        self.opened = opened = _Opened(file, self._files, self.source.files)
        for _ in range(block):
            opened.take()
        return opened

    def _as_state(self) -> State:
        files = sorted(self.done.values())
        state = {
            "names": np.asarray([file.name for file in files], np.str_ if files else "U1"),
            "written": np.asarray([file.written for file in files], np.int64),
            "sizes": np.asarray([file.size for file in files], np.int64),
        }
        if self.opened is not None:
            file = self.opened.file
            state |= {"open": np.asarray(file.name), "block": np.asarray(self.opened.number)}
            state |= {"open_written": np.asarray(file.written), "open_size": np.asarray(file.size)}
        return state
