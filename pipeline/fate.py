"""What became of the rows of the input: the row equation."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Fate:
    """What became of the rows of some input: every row has exactly one fate.

    ``overlaps`` are the further windows that used rows count in, where windows overlap; they are no fate.
    """

    rows: int = 0
    used: int = 0
    overlaps: int = 0
    late: int = 0
    out_of_area: int = 0
    out_of_time: int = 0
    rejected: dict[str, int] = field(default_factory=dict)

    def add(self, other: Fate) -> None:
        """Add the rows of another piece."""
        for name in ("rows", "used", "overlaps", "late", "out_of_area", "out_of_time"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, n in other.rejected.items():
            self.rejected[reason] = self.rejected.get(reason, 0) + n

    @property
    def balanced(self) -> bool:
        """The row equation."""
        return self.rows == self.used + self.late + self.out_of_area + self.out_of_time + sum(self.rejected.values())
