"""What a run that reads a topic decided since its latest checkpoint, on disk before it has any effect."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

#: Bytes that a file grows by before entries that are no longer needed are dropped.
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
    clock
        Time that is reached by the clock, where all partitions are idle and time goes on; otherwise None.
    elsewhere
        Time that readers of other partitions have reached, where all of this reader's are idle and not all of theirs.
    """

    number: int
    ranges: Mapping[int, tuple[int, int]]
    idle: frozenset[int]
    clock: int | None = None
    elsewhere: int | None = None

    def encode(self) -> str:
        """One line."""
        ranges = {str(partition): list(ends) for partition, ends in sorted(self.ranges.items())}
        entry = {"number": self.number, "ranges": ranges, "idle": sorted(self.idle), "clock": self.clock}
        return json.dumps(entry | {"elsewhere": self.elsewhere}) + "\n"

    @classmethod
    def decode(cls, line: str) -> Entry:
        """Inverse of `encode`."""
        entry = json.loads(line)
        ranges = {int(partition): (ends[0], ends[1]) for partition, ends in entry["ranges"].items()}
        return cls(entry["number"], ranges, frozenset(entry["idle"]), entry["clock"], entry.get("elsewhere"))


class Journal:
    """Entries in a file, one a line; a torn last line had no effect yet and is left out.

    Whoever opens the journal takes it over: what another process, which is thought dead, writes from then on counts
    for nothing.

    Parameters
    ----------
    folder
        Where the file is, made if need be.
    number
        First slice to be read again; earlier entries are dropped.
    """

    def __init__(self, folder: Path, number: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        files = sorted(folder.glob("journal-*.jsonl"))
        found = {entry.number: entry for entry in _entries(files[-1])} if files else {}
        #: Entries from ``number`` on, without a gap.
        self.entries: list[Entry] = []
        while number + len(self.entries) in found:
            self.entries.append(found[number + len(self.entries)])
        taken = int(files[-1].stem.partition("-")[2]) if files else 0
        self.path = folder / f"journal-{taken + 1:06d}.jsonl"
        self._write(self.entries)
        for file in files:
            file.unlink(missing_ok=True)

    def append(self, entry: Entry, needed: Callable[[], int]) -> None:
        """Make an entry durable; ``needed`` says which is the first that may not be dropped."""
        if self.path.stat().st_size > self._long:
            first = needed()
            self._write(kept for kept in _entries(self.path) if kept.number >= first)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(entry.encode())
            file.flush()
            os.fsync(file.fileno())

    def _write(self, entries: Iterable[Entry]) -> None:
        lines = [entry.encode() for entry in entries]
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)
        self._long = sum(map(len, lines)) + _LONG


def _entries(path: Path) -> list[Entry]:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [Entry.decode(line) for line in lines if line.endswith("\n")]
