"""State and timers of a step, in the form in which an engine passes them."""

from __future__ import annotations

from typing import Any


class Cell:
    """State of one value."""

    value: bytes | None = None

    def read(self) -> bytes | None:
        return self.value

    def write(self, value: bytes) -> None:
        self.value = value


class Bag(list[bytes]):
    """State that is a bag, and how much has been read from it."""

    n_read = 0

    def read(self) -> list[bytes]:
        self.n_read += len(self)
        return list(self)

    def add(self, entry: bytes) -> None:
        self.append(entry)


class Due:
    """A timer that nobody watches."""

    def set(self, *_: Any, **__: Any) -> None: ...
