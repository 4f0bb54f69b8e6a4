"""Beam as a run on one machine needs it: imported without what it would only carry along, and ended without a wait."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from typing import Any

from pipeline import process
from pipeline.deferral import deferred

#: What Beam tries to import for MongoDB, Google's services, flags and data frames, and does without where it is not
#: installed: a third of the time that importing Beam takes, and with pandas more than half.
CLIENTS = ("absl", "apache_beam.io.gcp.bigquery", "bson", "gridfs", "pandas", "pymongo")
#: What it must have, and hardly ever uses: two fifths of the rest.
HARDLY_USED = ("beartype", "cProfile", "cryptography.fernet", "dateutil", "httplib2")
#: Milliseconds after which Beam looks again what its steps are doing. It ends a bundle only after such a look, and its
#: own 200 were a twentieth of a short run.
SAMPLING_PERIOD = 5


def import_beam(alone: bool) -> None:
    """Import Beam quietly: it warns of clients that are not installed and not needed; errors still show.

    Parameters
    ----------
    alone
        Whether everything is run in this process, where no step of ours talks to a service through Beam.
    """
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    is_first = "apache_beam" not in sys.modules
    # A program that calls us may want the rest of Beam itself.
    trimmed = alone and process.is_command()
    try:
        with _without(CLIENTS if trimmed else ()), deferred(*HARDLY_USED if trimmed else ()):
            import apache_beam  # noqa: F401

            if alone:
                local_runner()
    finally:
        root.setLevel(level)
    if alone:
        _remember_specs()
    if alone and is_first:
        # What was imported stays: no need to look through it for garbage. Later it would keep garbage of other runs.
        gc.freeze()


def local_runner() -> Any:
    """Beam's in-process runner."""
    # Pinned: the name "DirectRunner" may pick another engine from one release of Beam to the next.
    from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
    from apache_beam.runners.worker.statesampler import StateSampler

    StateSampler.__init__.__defaults__ = (SAMPLING_PERIOD,)
    return FnApiRunner()


def _remember_specs() -> None:
    """Let Beam inspect each of our steps once: otherwise it goes through all methods at every bundle of a stream."""
    from apache_beam.transforms import userstate

    inspect: Callable[[Any], Any] = userstate.get_dofn_specs
    if hasattr(inspect, "known"):
        return
    known: dict[type, Any] = {}

    def get_dofn_specs(dofn: Any) -> Any:
        kind = type(dofn)
        # Ours say all in their class; Beam's own wrap functions that differ.
        if not kind.__module__.startswith("pipeline."):
            return inspect(dofn)
        if kind not in known:
            known[kind] = inspect(dofn)
        return known[kind]

    get_dofn_specs.known = known  # type: ignore[attr-defined]
    userstate.get_dofn_specs = get_dofn_specs


@contextmanager
def _without(names: tuple[str, ...]) -> Iterator[None]:
    """Let this thread's imports of modules that are not loaded yet fail meanwhile, as if they were not installed.

    >>> _ = sys.modules.pop("tabnanny", None)
    >>> with _without(("tabnanny",)):
    ...     import tabnanny
    Traceback (most recent call last):
    ModuleNotFoundError: No module named 'tabnanny'
    >>> import tabnanny
    """
    finder = _Missing(names, threading.get_ident())
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Missing(MetaPathFinder):
    """Says that some modules are not to be had in one thread; others may be reading input by a plug-in's own means."""

    def __init__(self, names: tuple[str, ...], thread: int) -> None:
        self.names, self.thread = names, thread

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Refuse, or leave it to the finders after this one."""
        if fullname in self.names and threading.get_ident() == self.thread:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
