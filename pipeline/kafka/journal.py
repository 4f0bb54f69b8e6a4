"""What a run that reads a topic decided since its latest checkpoint, on disk before it has any effect."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: Bytes after which entries that a checkpoint covers are dropped.
_LONG = 1 << 20


@dataclass(frozen=True)
class Entry:
    """What one slice consists of.

    Parameters
    ----------
    number
        Of the slice.
    ranges
        First offset and the one after the last, by partition.
    idle
        Partitions that do not hold time back after the slice.
    """

    number: int
    ranges: Mapping[int, tuple[int, int]]
    idle: frozenset[int]

    def encode(self) -> str:
        """One line."""
        ranges = {str(partition): list(ends) for partition, ends in sorted(self.ranges.items())}
        return json.dumps({"number": self.number, "ranges": ranges, "idle": sorted(self.idle)}) + "\n"

    @classmethod
    def decode(cls, line: str) -> Entry:
        """Inverse of `encode`."""
        entry = json.loads(line)
        ranges = {int(partition): (ends[0], ends[1]) for partition, ends in entry["ranges"].items()}
        return cls(entry["number"], ranges, frozenset(entry["idle"]))


class Journal:
    """File of entries, one a line; a torn last line had no effect yet and is cut off.

    Parameters
    ----------
    path
        The file, made with its folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._rewrite(0)

    def entries(self, number: int) -> list[Entry]:
        """The entries from a slice on; earlier ones are dropped."""
        return self._rewrite(number)

    def append(self, entry: Entry, covered: int) -> None:
        """Make an entry durable; ``covered``: number of the first slice that no checkpoint covers."""
        if self.path.stat().st_size > _LONG:
            self._rewrite(covered)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(entry.encode())
            file.flush()
            os.fsync(file.fileno())

    def _rewrite(self, number: int) -> list[Entry]:
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True) if self.path.exists() else []
        kept = [
            entry for entry in (Entry.decode(line) for line in lines if line.endswith("\n")) if entry.number >= number
        ]
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(entry.encode() for entry in kept)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)
        return kept
