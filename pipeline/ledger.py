"""The ledger: every charge, on disk before its release leaves."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mechanisms.core.errors import DataError

#: Charges of this process that are remembered.
MAX_RECENT = 100_000


@dataclass(frozen=True)
class Charge:
    """One line of the ledger.

    Parameters
    ----------
    stream, window, window_start, window_end
        What was released; times in milliseconds since 1970.
    epsilon, rho
        What the whole vector cost under add/remove.
    landmark
        Whether the window is a landmark.
    configuration, data
        Digests of the configuration and (keyed) of the input: the same pair again is a retry and is not charged.
    """

    stream: str
    window: int
    window_start: int
    window_end: int
    epsilon: float
    rho: float
    landmark: bool
    configuration: str
    data: str

    @property
    def identity(self) -> tuple[str, int, int, str, str]:
        """What makes two charges the same one."""
        return (self.stream, self.window_start, self.window_end, self.configuration, self.data)


class Ledger:
    """Append-only file of charges, one JSON object a line.

    Parameters
    ----------
    path
        The file; made with its folder when first written. A torn last line (a killed run) is cut off, since the
        release it belongs to never left.
    strict
        Whether a window that was charged before must be charged for the same input again: a run that is continued
        cannot release a window twice.
    """

    def __init__(self, path: Path, strict: bool = False) -> None:
        self.path, self.strict = path, strict
        self._known: set[tuple[str, int, int, str, str]] | None = None
        self._recent: deque[tuple[str, int, int, str, str]] = deque()

    def __iter__(self) -> Iterator[Charge]:
        if not self.path.exists():
            return
        with self.path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith("\n"):
                    return
                try:
                    yield Charge(**json.loads(line))
                except (ValueError, TypeError) as error:
                    raise DataError(f"{self.path}:{number}: not a ledger line ({error})") from None

    def append(self, charges: Iterable[Charge]) -> list[Charge]:
        """Make charges durable; those already there are retries and are skipped.

        Returns
        -------
        The charges that were new. One write and one sync, whatever their number.
        """
        if self._known is None:
            self._repair()
            self._known = {charge.identity for charge in self}
        new = [charge for charge in charges if charge.identity not in self._known]
        if self.strict:
            self._check(new)
        if new:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(vars(charge)) + "\n" for charge in new))
                file.flush()
                os.fsync(file.fileno())
            self._remember(new)
        return new

    def _remember(self, charges: list[Charge]) -> None:
        """Know the latest charges of this process: a bundle is repeated soon or never, and a stream has no end."""
        if self._known is None:
            return
        for charge in charges:
            self._known.add(charge.identity)
            self._recent.append(charge.identity)
        while len(self._recent) > MAX_RECENT:
            self._known.discard(self._recent.popleft())

    def _check(self, new: list[Charge]) -> None:
        charged = {identity[:4] for identity in self._known or ()}
        for charge in new:
            if charge.identity[:4] in charged:
                raise DataError(
                    f"the input of window {charge.window} is not what it was when the window was released; "
                    "a run can only be continued with the input that it began with"
                )

    def _repair(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb+") as file:
            data = file.read()
            if data and not data.endswith(b"\n"):
                file.truncate(data.rfind(b"\n") + 1)
