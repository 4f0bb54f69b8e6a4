"""Ingestion: assign rows to windows and cells, pseudonymise users, detect late rows and count rows by outcome."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import PluginError, place_of
from penstock.mechanisms.core.state import State
from penstock.pipeline.counting.spec import RunKeys
from penstock.pipeline.counting.users import with_digests
from penstock.pipeline.sources.base import EventBlock, MicroBatch, Reject
from penstock.pipeline.sources.reading.offsets import OffsetRange, joined_ranges
from penstock.pipeline.spaces.base import Space
from penstock.pipeline.windows.grid import WindowGrid


@dataclass
class RowCounts:
    """Row counts by outcome. Each row has exactly one outcome."""

    rows: int = 0
    used: int = 0
    late: int = 0
    out_of_area: int = 0
    out_of_time: int = 0
    clamped: int = 0  # of those used: points of a trace that were moved to the edge of the area
    rejected: dict[str, int] = field(default_factory=dict)
    offsets: list[OffsetRange] = field(default_factory=list)  # ranges that the rows are all of, if there are offsets

    def add(self, other: RowCounts) -> None:
        """Add the row counts from another part of the input."""
        for name in ("rows", "used", "late", "out_of_area", "out_of_time", "clamped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, n in other.rejected.items():
            self.rejected[reason] = self.rejected.get(reason, 0) + n
        if other.offsets:
            self.offsets = joined_ranges([*self.offsets, *other.offsets])

    def as_state(self) -> State:
        """Encode the counts as arrays, for checkpoints and engine state.

        >>> counts = RowCounts(rows=3, used=2, rejected={"user is missing": 1})
        >>> RowCounts.of_state(counts.as_state()) == counts
        True
        """
        numbers = {name: np.asarray(n) for name, n in asdict(self).items() if name not in ("rejected", "offsets")}
        reasons = np.asarray(list(self.rejected), np.str_ if self.rejected else "U1")
        offsets = np.asarray(self.offsets, np.int64).reshape(-1, len(OffsetRange._fields))
        rejected = np.asarray(list(self.rejected.values()), np.int64)
        return numbers | {"reasons": reasons, "rejected": rejected, "offsets": offsets}

    @classmethod
    def of_state(cls, state: State) -> RowCounts:
        """Restore counts encoded by `as_state`."""
        numbers = {name: int(n) for name, n in state.items() if name not in ("reasons", "rejected", "offsets")}
        rejected = dict(zip(state["reasons"].tolist(), state["rejected"].tolist()))
        return cls(rejected=rejected, offsets=joined_ranges(state["offsets"].tolist()), **numbers)


#: Stands in place of coordinates and places once a deployment has taken events in; −1 outside the area.
CELL = "cell"


def ingested(block: EventBlock, keys: RunKeys, space: Space | None, user_files: bool) -> EventBlock:
    """Prepare a block for counting. A deployment drops user ids, rejects' contents and, for counts, positions.

    Digests under the key of the run stand for users, and cells of the ``space`` for positions; None keeps positions
    (traces). ``user_files``: as in `redacted_reject`. Doing it twice changes nothing.
    """
    if keys.users is None:
        return block
    rejects = tuple(redacted_reject(reject, keys.users, user_files) for reject in block.rejects)
    frame = with_digests(block.frame, keys.users)
    if space is not None:
        kept = [name for name in ("time", "user", "arrival") if name in frame.columns]
        frame = frame.select(*kept, pl.Series(CELL, cells_of(frame, space), dtype=pl.Int64))
    return EventBlock(frame, block.n_rows, rejects, block.offsets)


def cells_of(frame: pl.DataFrame, space: Space) -> NDArray[np.int64]:
    """Return each event's cell, or −1 if it lies outside the area."""
    if CELL in frame.columns:
        return frame[CELL].to_numpy()
    cells, n_cells = np.asarray(space.place(frame)), len(space.cells)
    is_whole = cells.shape == (frame.height,) and cells.dtype.kind in "iu"
    if not is_whole or cells.max(initial=-1) >= n_cells or cells.min(initial=-1) < -1:
        text = f"place must return a whole number for each event, from −1 (outside) to {n_cells - 1:,}"
        place = place_of(type(space), ["place"])
        raise PluginError(f"{place}: the space {type(space).__name__}: {text}")
    return cells.astype(np.int64, copy=False)


def redacted_reject(reject: Reject, digest_key: bytes | None, user_files: bool) -> Reject:
    """Return a reject as stored: a deployment drops its contents, and its file name if ``user_files`` is set.

    ``digest_key``: None in a simulation. ``user_files``: whether files are named after users.
    """
    file = reject.file
    if digest_key is None:
        return reject
    if user_files and not file.startswith(_HIDDEN):
        file = _HIDDEN + hashlib.blake2b(file.encode(), digest_size=8, key=digest_key).hexdigest()
    return replace(reject, file=file, raw=None)


#: Before the digest that stands for the name of a file.
_HIDDEN = "file:"


@dataclass(frozen=True)
class ClassifiedRows:
    """A block's row counts, and each row's window, cell and whether it is used, as arrays of shape (n_rows,)."""

    counts: RowCounts
    window: NDArray[np.int64]
    cell: NDArray[np.int64]
    used: NDArray[np.bool_]


def classify_rows(
    block: EventBlock, grid: WindowGrid, space: Space, closed: NDArray[np.int64] | None = None
) -> ClassifiedRows:
    """Classify each row as out of time, out of area, late or used. The counts include rows that the source rejected.

    ``closed``: the last window that was final when each row arrived; None: all windows are still open.
    """
    window = grid.calendar.index(block.frame["time"].to_numpy())
    cell = cells_of(block.frame, space)
    on_time = window > 0
    inside = on_time & (cell >= 0)
    used = inside if closed is None else inside & (window > closed)
    n_on_time, n_inside, n_used = (int(np.count_nonzero(rows)) for rows in (on_time, inside, used))
    counts = RowCounts(
        rows=block.n_rows,
        used=n_used,
        late=n_inside - n_used,
        out_of_time=len(window) - n_on_time,
        out_of_area=n_on_time - n_inside,
    )
    counts.rejected, counts.offsets = rejected_by_reason(block), list(block.offsets)
    return ClassifiedRows(counts, window, cell, used)


def rejected_by_reason(block: EventBlock) -> dict[str, int]:
    """Count a block's rejected rows by reason."""
    return dict(Counter(reject.reason for reject in block.rejects))


def last_final_windows(piece: MicroBatch, grid: WindowGrid) -> NDArray[np.int64]:
    """Return, for each row in a micro-batch, the last window that was already final when it arrived, shape (n_rows,).

    A window is closed to a row once the watermark that the row is held against (in a deployment the row's arrival) has
    reached the window's end plus allowed lateness: row for row, so that the cuts do not matter.
    """
    return grid.closed(piece.block.frame["time"].to_numpy(), piece.watermarks)
