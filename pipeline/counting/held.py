"""Contributions to groups of windows that are not counted yet: in memory up to a limit, beyond it on disk."""

from __future__ import annotations

import shutil
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from penstock.pipeline.atomic import make_folder, private_opener
from penstock.pipeline.counting.contributions import Contributions, IdentityTable, decoded, merged
from penstock.pipeline.counting.spec import CoreSpec

#: Bytes of contributions that are held in memory.
HELD_BYTES = 1 << 30
_LENGTH = struct.Struct("<q")


class HeldContributions:
    """Contributions by group of windows and shard of users, until they are taken.

    Where all together are more than `HELD_BYTES`, what there is of each group and shard is merged and appended to a
    file of its own in ``folder``: keys, and identities as counting knows them. A group that is taken has to fit into
    memory.
    """

    def __init__(self, plan: CoreSpec, folder: Path) -> None:
        self._layout, self._keep, self._folder = plan.batching.layout, plan.bounds.keep, folder
        self._pieces: dict[int, dict[int, list[Contributions]]] = defaultdict(lambda: defaultdict(list))
        self._bytes = 0
        self.drop()  # what a killed run has left

    def add(self, group: int, shard: int, piece: Contributions) -> None:
        """Hold some more."""
        self._pieces[group][shard].append(piece)
        self._bytes += _size(piece)
        if self._bytes > HELD_BYTES:
            self._spill()

    def take(self, group: int) -> dict[int, list[Contributions]]:
        """Take all that there is of a group, by shard."""
        pieces = self._pieces.pop(group, {})
        self._bytes -= sum(_size(piece) for shard in pieces.values() for piece in shard)
        found = defaultdict(list, pieces)
        for path in self._folder.glob(f"{group}-*"):
            found[int(path.name.partition("-")[2])] += _read(path)
            path.unlink()
        return dict(found)

    def drop(self) -> None:
        """Leave nothing on disk."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _spill(self) -> None:
        """Move all to disk."""
        make_folder(self._folder)
        for group, shards in self._pieces.items():
            for shard, pieces in shards.items():
                data = merged(pieces, self._layout, self._keep).encode(self._layout)
                with open(self._folder / f"{group}-{shard}", "ab", opener=private_opener) as file:
                    file.write(_LENGTH.pack(len(data)))
                    file.write(data)
                pieces.clear()
        self._pieces.clear()
        self._bytes = 0


def _size(piece: Contributions) -> int:
    """Bytes of keys and marks, and of a table that is not that of the whole run."""
    users = piece.users.identities.nbytes if isinstance(piece.users, IdentityTable) else 0
    return piece.keys.nbytes + (0 if piece.marks is None else piece.marks.nbytes) + min(users, 2 * piece.keys.nbytes)


def _read(path: Path) -> Iterator[Contributions]:
    """Read what was appended to a file, piece after piece."""
    with open(path, "rb") as file:
        while head := file.read(_LENGTH.size):
            yield decoded(file.read(*_LENGTH.unpack(head)))
