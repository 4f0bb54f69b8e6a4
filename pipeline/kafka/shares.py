"""Readers that share a topic on a cluster: each has partitions of its own, and knows what time it is at the others."""

from __future__ import annotations

import json
import time
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from mechanisms.core.state import State
from pipeline import parts
from pipeline.slices import NEVER

#: Readers of one topic at most: each looks at what all others say.
MOST = 16
#: Seconds for which what the others said is good enough.
_FRESH = 0.2


@dataclass(frozen=True)
class Share:
    """Which partitions a reader has.

    Parameters
    ----------
    reader, n_readers
        Which of how many it is; the only one has all partitions.

    Examples
    --------
    >>> [partition for partition in range(7) if Share(1, 3).owns(partition)]
    [1, 4]
    """

    reader: int = 0
    n_readers: int = 1

    @classmethod
    def of(cls, position: State) -> Share:
        """The share that a position belongs to."""
        return cls(int(position["reader"]), int(position["n_readers"])) if "reader" in position else cls()

    def as_state(self) -> State:
        """What a position says of it: nothing where there is one reader."""
        if self.n_readers == 1:
            return {}
        return {"reader": np.asarray(self.reader), "n_readers": np.asarray(self.n_readers)}

    def owns(self, partition: int) -> bool:
        """Whether a partition is read here, also one that the topic is given later."""
        return partition % self.n_readers == self.reader


@dataclass(frozen=True)
class Standing:
    """How far a reader has come.

    Parameters
    ----------
    reached, latest
        Time that its partitions have reached together, and the latest that any of them has shown.
    idle
        Whether all its partitions are idle, so that it holds nothing back.
    behind
        Typical time of the partition that is furthest back among those with more to be read; None where there is none.
    """

    reached: int = NEVER
    latest: int = NEVER
    idle: bool = False
    behind: float | None = NEVER


class Board:
    """Where the readers of a run tell each other how far they have come: a small file each, in a folder they share.

    Nothing is lost with it: it is only asked where a reader's own partitions say nothing of the time, and what follows
    from it goes into that reader's journal.

    Parameters
    ----------
    folder
        Of the run.
    share
        Whose board it is.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one, other = Board(Path(folder), Share(0, 2)), Board(Path(folder), Share(1, 2))
    ...     one.tell(Standing(reached=7))
    ...     other.others()[0].reached, one.others()[0].reached == NEVER
    (7, True)
    """

    def __init__(self, folder: Path, share: Share) -> None:
        self.folder, self.share = folder, share
        self._told: Standing | None = None
        self._heard: list[Standing] = []
        self._since = float("-inf")

    def tell(self, standing: Standing) -> None:
        """Tell the others, if there are any and it is something new."""
        if self.share.n_readers > 1 and standing != self._told:
            parts.write_json(self._path(self.share.reader), list(astuple(standing)))
            self._told = standing

    def others(self) -> list[Standing]:
        """What the others said last; one that has not been heard of may have everything before it."""
        if self.share.n_readers > 1 and time.monotonic() - self._since > _FRESH:
            numbers = [number for number in range(self.share.n_readers) if number != self.share.reader]
            self._heard = [self._hear(number) for number in numbers]
            self._since = time.monotonic()
        return self._heard

    def _hear(self, reader: int) -> Standing:
        path = self._path(reader)
        return Standing(*json.loads(path.read_bytes())) if path.exists() else Standing()

    def _path(self, reader: int) -> Path:
        return self.folder / f"standing-{reader:03d}.json"
