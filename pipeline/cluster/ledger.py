"""A ledger that several processes may write to: a worker that was given up can still be alive beside its successor."""

from __future__ import annotations

import fcntl
from collections.abc import Iterable

from pipeline.ledger import Charge, Ledger
from pipeline.plan import Plan
from pipeline.run_ledger import open_ledger


class SharedLedger(Ledger):
    """A ledger behind a lock, read again whenever another process has added to it.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> charge = Charge("main", 1, 0, 1, 0.5, 0.125, False, "configuration", "data")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one, other = SharedLedger(Path(folder) / "ledger"), SharedLedger(Path(folder) / "ledger")
    ...     [len(ledger.append([charge])) for ledger in (one, other, one)]
    [1, 0, 0]
    """

    _size = -1

    @classmethod
    def of(cls, plan: Plan) -> SharedLedger:
        """The ledger of a run: no window is charged for two inputs, however often the engine or `--resume` goes back.

        What others have charged in it before the run began does not count.
        """
        return open_ledger(plan, cls, strict=True)

    def append(self, charges: Iterable[Charge]) -> list[Charge]:
        """Make charges durable, each once whoever wrote it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_name(f".{self.path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.length != self._size:
                self._known = None
            new = super().append(charges)
            self._size = self.length
        return new

    @property
    def length(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size if self.path.exists() else 0
