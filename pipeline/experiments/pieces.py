"""Independent pieces of work, computed in worker processes and cached by the digest of their inputs."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from penstock.mechanisms.core.plugin import PenstockError
from penstock.pipeline.output import files

Task = tuple[Callable[..., None], tuple[Any, ...]]
#: Plain values, as JSON can hold them.
Record = dict[str, Any]
#: Called after every step with (pieces done, pieces failed).
Listener = Callable[[int, int], None]
DIED = "its process died; was there enough memory?"


def digest_of(value: Any) -> str:
    """The first 32 hexadecimal digits of the SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class RecordFolder:
    """Folder of records, each named by the digest of its inputs."""

    folder: Path

    def path(self, decides: Any) -> Path:
        """File of a record."""
        return self.folder / f"{digest_of(decides)}.json"

    def read(self, decides: Any) -> Record | None:
        """A record; None if it is missing or truncated."""
        try:
            record = json.loads(self.path(decides).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) else None

    def write(self, decides: Any, record: Record) -> None:
        """Write a record atomically."""
        files.write_json(self.path(decides), record)


@dataclass(frozen=True)
class Piece:
    """Unit of work."""

    #: Everything that decides the record, as plain values.
    decides: Any
    #: A module-level function, called in a worker process.
    function: Callable[..., Record]
    arguments: tuple[Any, ...]


@dataclass
class Made:
    """Records and reasons of failure, by the number of the piece."""

    records: dict[int, Record] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    #: How many records are from an earlier call.
    n_resumed: int = 0


def run_pieces(
    pieces: Sequence[Piece], folder: Path, n_jobs: int, listener: Listener, plugins: Sequence[str] = ()
) -> Made:
    """Make every piece without a record; one that fails affects no other, and another call resumes."""
    kept, made = RecordFolder(folder), Made()
    for number, piece in enumerate(pieces):
        if (record := kept.read(piece.decides)) is not None:
            made.records[number] = record
    made.n_resumed = len(made.records)
    waiting = [number for number in range(len(pieces)) if number not in made.records]
    workers = Workers(min(n_jobs, max(1, len(waiting))), plugins)
    for number in waiting:
        workers.submit(str(number), (_make, (pieces[number], kept)))
    listener(len(made.records), 0)
    for name, problem in workers.results():
        number = int(name)
        if problem is None:
            made.records[number] = kept.read(pieces[number].decides) or {}
        else:
            made.failed[number] = problem
        listener(len(made.records), len(made.failed))
    return made


def _make(piece: Piece, kept: RecordFolder) -> None:
    with threadpool_limits(1):  # results must not depend on the number of processors
        record = piece.function(*piece.arguments)
    kept.write(piece.decides, record)


class Workers:
    """A pool of worker processes in which a failing task, or one that kills its process, affects no other.

    With one job tasks run in this process; a process registers ``plugins`` before it unpickles a task.

    >>> workers = Workers(1)
    >>> workers.submit("six", (int, ("6",)))
    >>> workers.submit("six in words", (int, ("six",)))
    >>> list(workers.results())
    [('six', None), ('six in words', "ValueError: invalid literal for int() with base 10: 'six'")]
    """

    def __init__(self, n_jobs: int, plugins: Sequence[str] = ()) -> None:
        self.n_jobs, self.plugins = n_jobs, tuple(plugins)
        self.waiting: deque[tuple[str, Task]] = deque()
        self.alone: deque[tuple[str, Task]] = deque()

    def submit(self, name: str, task: Task) -> None:
        """Add a task: a module-level function and its arguments; allowed between two results."""
        self.waiting.append((name, task))

    def results(self) -> Iterator[tuple[str, str | None]]:
        """Name of each finished task, and the reason where it failed."""
        if self.n_jobs == 1:
            while self.waiting:
                name, task = self.waiting.popleft()
                yield name, attempt(task)
            return
        while self.waiting or self.alone:
            yield from self._together()
            while self.alone:
                yield from self._by_itself(*self.alone.popleft())

    def _together(self) -> Iterator[tuple[str, str | None]]:
        """Run waiting tasks in parallel; when a process dies, its tasks are queued to run alone."""
        running: dict[Future[str | None], tuple[str, Task]] = {}
        with self._pool(self.n_jobs) as pool:
            while self.waiting or running:
                while self.waiting and len(running) < self.n_jobs:
                    name, task = self.waiting.popleft()
                    running[pool.submit(attempt, task)] = (name, task)
                ended, _ = wait(running, return_when=FIRST_COMPLETED)
                if any(isinstance(future.exception(), BrokenProcessPool) for future in ended):
                    self.alone.extend(running.values())
                    return
                for future in ended:
                    name, _ = running.pop(future)
                    yield name, future.result()

    def _by_itself(self, name: str, task: Task) -> Iterator[tuple[str, str | None]]:
        with self._pool(1) as pool:
            try:
                yield name, pool.submit(attempt, task).result()
            except BrokenProcessPool:
                yield name, DIED

    def _pool(self, n_jobs: int) -> ProcessPoolExecutor:
        # Forking a process that runs threads (Arrow's, Polars') can hang it.
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(n_jobs, context, initializer=prepare, initargs=(self.plugins,))


def prepare(plugins: Sequence[str]) -> None:
    """Initialise a worker process: register the plug-ins of further folders."""
    from penstock.pipeline.config.sections import add_folder

    for folder in plugins:
        add_folder(folder)


def attempt(task: Task) -> str | None:
    """Run a task; return the reason if it fails."""
    function, arguments = task
    try:
        function(*arguments)
    except PenstockError as error:
        return str(error)
    except Exception as error:  # a trial may fail in any way; the others go on
        return f"{type(error).__name__}: {error}"
    return None
