"""Entries that wait in the state of a step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def leave(waiting: Any, entries: Iterable[Any]) -> None:
    """Let these entries wait, and no others.

    Parameters
    ----------
    waiting
        State of a step that is a bag.
    entries
        Must not be read from the bag while this goes on.
    """
    waiting.clear()
    for entry in entries:
        waiting.add(entry)
