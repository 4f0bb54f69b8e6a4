"""Progress of the run in this process; a worker elsewhere reports to nobody."""

from __future__ import annotations

from collections.abc import Callable

Listener = Callable[[int, int], None]

_listeners: list[Listener] = []


def listen(listener: Listener) -> None:
    """Call ``listener(events, windows)`` with every advance, until `silence`."""
    _listeners.append(listener)


def silence(listener: Listener) -> None:
    """Stop calling a listener."""
    _listeners.remove(listener)


def advance(events: int = 0, windows: int = 0) -> None:
    """Say that so many more events were read or windows released."""
    for listener in _listeners:
        listener(events, windows)
