"""Tasks in parallel processes; a task that fails, or kills its process, takes no other with it."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from mechanisms.core.plugin import PenstockError

Task = tuple[Callable[..., None], tuple[Any, ...]]
DIED = "its process died; was there enough memory?"


class Workers:
    """Runs tasks as processes become free.

    Parameters
    ----------
    n_jobs
        How many at a time; 1: in this process.
    plugins
        Folders of further plug-ins, which processes need before they can read a task.

    Examples
    --------
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
        """Add a task: a function of a module and its arguments; may be called between two results."""
        self.waiting.append((name, task))

    def results(self) -> Iterator[tuple[str, str | None]]:
        """Name of each task as it ends, and why it failed."""
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
        """Run what waits, until nothing does or a process dies; whatever ran then is tried again by itself."""
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
    """Make the plug-ins of further folders known in a process."""
    from pipeline.config.sections import add_folder

    for folder in plugins:
        add_folder(folder)


def attempt(task: Task) -> str | None:
    """Run a task; gives why it failed."""
    function, arguments = task
    try:
        function(*arguments)
    except PenstockError as error:
        return str(error)
    except Exception as error:  # whatever a cell does, the others go on
        return f"{type(error).__name__}: {error}"
    return None
