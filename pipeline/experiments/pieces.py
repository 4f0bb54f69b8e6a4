"""Run independent units of work in worker processes and cache the results under a digest of their inputs."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from penstock.mechanisms.core.plugin import PenstockError
from penstock.pipeline import atomic

Task = tuple[Callable[..., None], tuple[Any, ...]]
#: Plain values, as JSON can hold them.
Record = dict[str, Any]
#: Called after every step with (pieces done, pieces failed).
Listener = Callable[[int, int], None]
WORKER_DIED = "its process died; was there enough memory?"


def digest_of(value: Any) -> str:
    """Return the first 32 hexadecimal digits of the SHA-256 digest of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class RecordFolder:
    """A folder of records, each named after a digest of its inputs."""

    folder: Path

    def path(self, decides: Any) -> Path:
        """Return a record's file path."""
        return self.folder / f"{digest_of(decides)}.json"

    def read(self, decides: Any) -> Record | None:
        """Read a record. Returns None if it is missing or truncated."""
        try:
            record = json.loads(self.path(decides).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) else None

    def write(self, decides: Any, record: Record) -> None:
        """Write a record atomically to a file that only its owner can read."""
        atomic.write_json(self.path(decides), record, private=True)


@dataclass(frozen=True)
class Piece:
    """A unit of work."""

    #: Everything that decides the record, as plain values.
    decides: Any
    #: A module-level function, called in a worker process.
    function: Callable[..., Record]
    arguments: tuple[Any, ...]


@dataclass
class PieceResults:
    """The records and the reasons for failures, each keyed by the number of the piece."""

    records: dict[int, Record] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    #: How many records are from an earlier call.
    n_resumed: int = 0


def run_missing(
    pieces: Sequence[Piece], folder: Path, n_jobs: int, listener: Listener, plugins: Sequence[str] = ()
) -> PieceResults:
    """Run every piece that has no stored result. Failures are isolated, and calling this again resumes the work."""
    kept, made = RecordFolder(folder), PieceResults()
    for number, piece in enumerate(pieces):
        if (record := kept.read(piece.decides)) is not None:
            made.records[number] = record
    made.n_resumed = len(made.records)
    waiting = {number: (_make, (piece, kept)) for number, piece in enumerate(pieces) if number not in made.records}
    listener(len(made.records), 0)
    for number, problem in run_tasks(waiting, min(n_jobs, max(1, len(waiting))), plugins):
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


def run_tasks(tasks: Mapping[int, Task], n_jobs: int, plugins: Sequence[str] = ()) -> Iterator[tuple[int, str | None]]:
    """Run tasks (a module-level function and its arguments). Yield each task's number and, if it failed, the reason.

    With one job tasks run in this process; else in worker processes, which register ``plugins`` first. Where a process
    dies, the tasks that were not done run each in a process of its own, so that the one that kills it affects no other.

    >>> list(run_tasks({6: (int, ("6",)), 7: (int, ("seven",))}, 1))
    [(6, None), (7, "ValueError: invalid literal for int() with base 10: 'seven'")]
    """
    if n_jobs == 1:
        yield from ((number, attempt(task)) for number, task in tasks.items())
        return
    left = dict(tasks)
    with _pool(n_jobs, plugins) as pool:
        running = {pool.submit(attempt, task): number for number, task in tasks.items()}
        try:
            for future in as_completed(running):
                if not isinstance(future.exception(), BrokenProcessPool):
                    del left[running[future]]
                    yield running[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)  # who interrupts does not wait for tasks that have not begun
    for number, task in left.items():
        with _pool(1, plugins) as pool:
            try:
                yield number, pool.submit(attempt, task).result()
            except BrokenProcessPool:
                yield number, WORKER_DIED


def _pool(n_jobs: int, plugins: Sequence[str]) -> ProcessPoolExecutor:
    # Forking a process that runs threads (Arrow's, Polars') can hang it.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(n_jobs, context, initializer=prepare, initargs=(plugins,))


def prepare(plugins: Sequence[str]) -> None:
    """Initialise a worker process by registering the plug-ins in extra folders."""
    from penstock.pipeline.config.sections import add_folder

    def end_with_parent() -> None:
        """Exit when the parent process exits, because children survive when their parent is killed."""
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            signal.raise_signal(signal.SIGKILL)

    threading.Thread(target=end_with_parent, daemon=True).start()
    for folder in plugins:
        add_folder(folder)


def attempt(task: Task) -> str | None:
    """Run a task. Returns the reason if it fails."""
    function, arguments = task
    try:
        function(*arguments)
    except PenstockError as error:
        return str(error)
    except Exception as error:  # a trial may fail in any way; the others go on
        return f"{type(error).__name__}: {error}"
    return None
