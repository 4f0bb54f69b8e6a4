"""Ledger of privacy charges: append-only, idempotent, fsynced before a release leaves."""

from __future__ import annotations

import fcntl
import json
import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.steps.release import Charge, Identity, Span

#: Charges that are remembered beside those that were there at first.
MAX_RECENT = 100_000


class Ledger:
    """Append-only file of charges, one JSON object a line; several runs, and several workers of one, may write to it.

    Parameters
    ----------
    path
        The file; made with its folder when first written. A torn last line (a killed run) is cut off, since the
        release it belongs to never left.
    strict
        Whether a window that was charged before must be charged for the same input again: a run that is continued
        cannot release a window twice.
    begun
        Where in the file the run's own charges begin, in bytes: those before are another run's, which may have
        released the same windows of other input.
    released
        Windows that the run has released: it may have done so under a charge of another run for the same input.

    Examples
    --------
    >>> import tempfile
    >>> charge = Charge("main", 1, 0, 1, 0.5, 0.125, False, "configuration", "data")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one, other = Ledger(Path(folder) / "ledger"), Ledger(Path(folder) / "ledger")
    ...     [len(ledger.append([charge])) for ledger in (one, other, one)]
    [1, 0, 0]
    """

    def __init__(
        self, path: Path, strict: bool = False, begun: int = 0, released: Collection[int] = frozenset()
    ) -> None:
        self.path, self.strict, self.begun, self.released = path, strict, begun, released
        self._known: set[Identity] = set()
        self._charged: set[Span] = set()
        self._recent: deque[Identity] = deque()
        self._read_to: int | None = None

    def __iter__(self) -> Iterator[Charge]:
        if self.path.exists():
            with self.path.open("rb") as file:
                for _, charge in self._lines(file, 0):
                    yield charge

    @property
    def end(self) -> int:
        """Bytes of its whole lines: where the next charge goes."""
        if not self.path.exists():
            return 0
        with self.path.open("rb") as lines:
            return sum(len(line) for line in lines if line.endswith(b"\n"))

    def _lines(self, file: BinaryIO, start: int) -> Iterator[tuple[int, Charge]]:
        """Where each line begins, and what it says, from a byte on."""
        file.seek(start)
        begins = start
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                yield begins, Charge(**json.loads(line))
            except (ValueError, TypeError) as error:
                file.seek(0)
                number = file.read(begins).count(b"\n") + 1
                raise DataError(f"{self.path}:{number}: not a ledger line ({error})") from None
            begins += len(line)

    def append(self, charges: Iterable[Charge]) -> list[Charge]:
        """Make charges durable, each once whoever wrote it; those already there are retries and are skipped.

        Returns
        -------
        The charges that were new. One write and one sync, whatever their number.
        """
        charges = list(charges)
        if not charges:
            return []
        with self._held() as file:
            if self._learn(file):
                os.fsync(file.fileno())  # a release may leave on what was found: its writer may have been killed
            new = [charge for charge in charges if charge.identity not in self._known]
            if self.strict:
                self._check(new)
            if new:
                file.write("".join(json.dumps(vars(charge)) + "\n" for charge in new).encode())
                file.flush()
                os.fsync(file.fileno())
                self._remember(new)
            self._read_to = file.seek(0, os.SEEK_END)
        return new

    def _learn(self, file: BinaryIO) -> bool:
        """Read the charges appended since the last read; returns whether there were any."""
        size = file.seek(0, os.SEEK_END)
        if self._read_to is not None and size < self._read_to:  # the file was replaced: forget its charges
            for known in (self._known, self._charged, self._recent):
                known.clear()
            self._read_to = None
        first, start = self._read_to is None, self._read_to or 0
        for begins, charge in self._lines(file, start):
            counts = begins >= self.begun or charge.window in self.released
            if first:
                self._known.add(charge.identity)
                if counts:
                    self._charged.add(charge.identity[:4])
            else:
                self._remember([charge], counts)
        return size > start

    def _remember(self, charges: list[Charge], counts: bool = True) -> None:
        """Remember the latest charges: a bundle is retried soon or never, and a stream has no end."""
        for charge in charges:
            self._known.add(charge.identity)
            if counts:
                self._charged.add(charge.identity[:4])
            self._recent.append(charge.identity)
        while len(self._recent) > MAX_RECENT:
            oldest = self._recent.popleft()
            self._known.discard(oldest)
            self._charged.discard(oldest[:4])

    def _check(self, new: list[Charge]) -> None:
        for charge in new:
            if charge.identity[:4] in self._charged:
                raise DataError(
                    f"the input of window {charge.window} is not what it was when the window was released; "
                    "a run can only be continued with the input that it began with"
                )

    @contextmanager
    def _held(self) -> Iterator[BinaryIO]:
        """The file, locked and ending with a whole line, so that what is appended begins one.

        Without the lock a torn line might be one that another run is writing.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Not where it ended when it was opened: another may have added to it before the lock was ours.
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.seek(0)
                    file.truncate(file.read().rfind(b"\n") + 1)
            yield file
