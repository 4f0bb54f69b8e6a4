"""Blocks of events: the unit in which data moves until it is counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl


@dataclass(frozen=True)
class Reject:
    """One input row that could not be read, kept for the operator.

    Parameters
    ----------
    file
        File (or topic) it came from.
    line
        1-based line (or row, or offset) in it.
    reason
        What is wrong, for instance ``latitude out of range``.
    raw
        The row as it was read; None where it is not kept.
    sealed
        The row as only the owner of a private key can read it, where that is asked for.
    """

    file: str
    line: int
    reason: str
    raw: str | None
    sealed: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The reject as one line of ``rejects.jsonl``."""
        kept = {"file": self.file, "line": self.line, "reason": self.reason, "raw": self.raw}
        return kept if self.sealed is None else kept | {"sealed": self.sealed}


@dataclass(frozen=True)
class EventBlock:
    """Some rows of the input, parsed.

    Parameters
    ----------
    frame
        Columns ``time`` (Int64, milliseconds since 1970 UTC), ``user`` (Int64 or String) and either ``latitude``,
        ``longitude`` (Float64, degrees, finite and in range) or ``place`` (String), or both. No nulls. In a deployment
        `pipeline.ingestion` puts Binary digests in place of users, and ``cell`` in place of positions.
    n_rows
        Rows read from the input, those rejected included: ``n_rows == frame.height + len(rejects)``.
    rejects
        The rows that could not be parsed.
    """

    frame: pl.DataFrame
    n_rows: int
    rejects: tuple[Reject, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.n_rows != self.frame.height + len(self.rejects):
            raise ValueError(
                f"{self.n_rows} rows read, but {self.frame.height} parsed and {len(self.rejects)} rejected"
            )

    def pieces(self, n_rows: int) -> Iterator[EventBlock]:
        """The block in pieces of up to ``n_rows`` sound rows, which share its memory; rejects come with the first.

        >>> block = EventBlock(pl.DataFrame({"time": [1, 2, 3], "user": [1, 1, 2]}), 3)
        >>> [piece.n_rows for piece in block.pieces(2)]
        [2, 1]
        """
        if self.frame.height <= n_rows:
            yield self
            return
        rejects = self.rejects
        for frame in self.frame.iter_slices(n_rows):
            yield EventBlock(frame, frame.height + len(rejects), rejects)
            rejects = ()
