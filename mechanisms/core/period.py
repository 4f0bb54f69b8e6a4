"""Bound on a person's memberships in a budget period, and how many of them the unit of a guarantee changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import ParameterError


class Window(Protocol):
    """What the bound uses of a window: landmarks and windows of its budget period; None where they are not known."""

    @property
    def n_landmarks(self) -> int | None:
        """Landmarks of the whole period."""

    @property
    def n_windows(self) -> int | None:
        """Windows of the whole period."""


@dataclass(frozen=True, kw_only=True)
class PeriodBound:
    """At most ``most`` memberships (person × cell × window) of a user in a budget period, in the order of windows.

    A person who gives up a part of a period makes room in it: memberships of later windows that the bound left out
    count then. So a unit smaller than the period changes what it holds *and* as many later memberships, which are in
    other cells and windows; each changes one count by 1. Hence `part` and `stretch`, for which noise is calibrated and
    by which accountants price it: the L1 sensitivity, and the square of the L2 sensitivity.

    >>> day = PeriodBound(most=30, max_cells=15, shortest=24, longest=24)
    >>> day.part(24), day.part(1), day.stretch(24)
    (30, 30, 90)
    """

    most: int  # n: memberships that bounding leaves a user in a period
    max_cells: int  # C: cells of one window that one user can add 1 to
    # `shortest`, `longest`: windows of the shortest and of the longest period; those at the ends of a run may be
    # shorter than either
    shortest: int
    longest: int
    alone: bool = False  # whether the whole run is one period

    def __post_init__(self) -> None:
        for name in ("most", "max_cells", "shortest", "longest"):
            value = getattr(self, name)
            if not (hasattr(value, "__index__") and value >= 1):
                raise ParameterError(name, value, "a whole number of at least 1")
        if self.shortest > self.longest:
            raise ParameterError("shortest", self.shortest, f"at most longest ({self.longest})")

    @property
    def of_window(self) -> int:
        """Memberships of one window, at most."""
        return min(self.max_cells, self.most)

    @property
    def whole(self) -> int:
        """Memberships that all of a user's events in a period change: nothing is left that could move up."""
        return min(self.most, self.max_cells * self.longest)

    def part(self, n_windows: int, length: int | None = None) -> int:
        """Memberships that a user's events in some windows of one period change, at most.

        `length`: windows of this period; None: as many as in the longest.

        >>> [PeriodBound(most=4, max_cells=1, shortest=6, longest=6).part(n) for n in (1, 2, 4, 6)]
        [2, 4, 6, 4]
        """
        return self.gone(n_windows, length) + self.moved_up(n_windows, length)

    def gone(self, n_windows: int, length: int | None = None) -> int:
        """Memberships of `part` that its windows lose themselves."""
        length = self.longest if length is None else length
        return min(self.most, self.max_cells * min(n_windows, length))

    def moved_up(self, n_windows: int, length: int | None = None) -> int:
        """Memberships of `part` that find room in later windows of the period."""
        length = self.longest if length is None else length
        return self._moved_up(n_windows, length - min(n_windows, length), length)

    def _moved_up(self, n_windows: int, n_others: int, length: int) -> int:
        """Memberships that find room in ``n_others`` windows, when some windows of a period lose theirs."""
        left_out = max(0, self.max_cells * length - self.most)
        return min(self.gone(n_windows, length), self.max_cells * n_others, left_out)

    def with_landmarks(self, window: Window) -> int:
        """Memberships that a user's events in all landmarks of the window's period and any other window change."""
        if window.n_landmarks is None or window.n_windows is None:
            raise ParameterError("budget_period", None, "given, so that the windows of a period are known")
        # The other window may be one of the landmarks, so that one window less is in the unit, and more finds room.
        return max(self.part(n, window.n_windows) for n in (window.n_landmarks, window.n_landmarks + 1))

    def stretch(self, n_windows: int) -> int:
        """Memberships that a user's events in any ``n_windows`` successive windows change, at most.

        A stretch holds the end of a period, behind which nothing can move up, then whole periods, then the beginning of
        another; the first and the last may be all that there is of it. Where only a part of a stretch goes more may
        change (`part_of_stretch`). Time O(``n_windows`` + ``longest``) where it is
        no longer than a period.
        """
        beginnings = [0]
        for n in range(1, min(n_windows, self.longest) + 1):
            beginnings.append(max(beginnings[-1], self.part(n)))
        if self.alone:
            return beginnings[-1]
        found = 0
        for at_end in range(min(n_windows, self.longest) + 1):
            before = min(self.most, self.max_cells * at_end)
            for n_whole in range((n_windows - at_end) // self.shortest + 1):
                rest = min(n_windows - at_end - n_whole * self.shortest, self.longest)
                found = max(found, before + n_whole * self.whole + beginnings[rest])
        return found

    def part_of_stretch(self, n_windows: int) -> int:
        """Memberships that change, at most, where a user's events in some of ``n_windows`` successive windows go.

        These are the neighbours of w-event privacy, which may differ in any of w successive windows. Where others of a
        period stay, memberships move up in the stretch, too.

        >>> day = PeriodBound(most=5, max_cells=2, shortest=24, longest=24)
        >>> day.part_of_stretch(1), day.stretch(24), day.part_of_stretch(24)
        (4, 15, 20)
        """
        return self._at_most(
            n_windows, lambda here, others: self.gone(here) + self._moved_up(here, others, self.longest)
        )

    def _at_most(self, n_windows: int, of_part: Callable[[int, int], int]) -> int:
        """The largest sum over the parts of a stretch, of which some windows lose all and others take what they can."""
        reach = min(n_windows, self.longest)
        beginnings, ends = [0], [0]
        for n in range(1, reach + 1):
            beginnings.append(max(beginnings[-1], of_part(n, self.longest - n)))
            ends.append(max(of_part(gone, n - gone) for gone in range(1, n + 1)))
        if self.alone:
            return beginnings[-1]
        inside = max(of_part(gone, self.longest - gone) for gone in range(1, self.longest + 1))
        found = 0
        for at_end in range(reach + 1):
            for n_whole in range((n_windows - at_end) // self.shortest + 1):
                rest = min(n_windows - at_end - n_whole * self.shortest, self.longest)
                found = max(found, ends[at_end] + n_whole * inside + beginnings[rest])
        return found

    def at_once(self, n_windows: int) -> int:
        """Memberships that a stretch may cost where any ``n_windows`` successive windows share a budget as they like.

        All of that budget may be one window's, which loses `of_window` of them. Those that move up are behind the
        stretch, in windows that may have the whole budget again.

        >>> day = PeriodBound(most=5, max_cells=15, shortest=24, longest=24)
        >>> day.at_once(24), day.at_once(1)
        (10, 10)
        """
        behind = -(-(self.longest - 1) // n_windows) * self.of_window
        return self.of_window + min(behind, self.most_moved_up(n_windows))

    def most_moved_up(self, n_windows: int) -> int:
        """Memberships that find room behind a stretch of at most this many windows."""
        return max(self.moved_up(n) for n in range(1, min(n_windows, self.longest) + 1))

    def found_room(self, n_windows: int) -> int:
        """Memberships that find room in or behind a stretch of this many windows, at most.

        >>> day = PeriodBound(most=30, max_cells=15, shortest=24, longest=24)
        >>> day.found_room(24)  # in the evening, and on the next day
        60
        """
        return self._at_most(n_windows, lambda here, others: self._moved_up(here, others, self.longest))

    def gone_from(self, n_windows: int) -> int:
        """Memberships that a stretch of this many windows loses itself, at most.

        >>> PeriodBound(most=30, max_cells=15, shortest=24, longest=24).gone_from(24)  # the end of a day, and the next
        60
        """
        if self.alone:
            return self.gone(n_windows)
        found = 0
        for at_end in range(min(n_windows, self.longest) + 1):
            n_whole, rest = divmod(n_windows - at_end, self.shortest)
            found = max(found, self.gone(at_end) + n_whole * self.whole + self.gone(rest))
        return min(found, self.max_cells * n_windows)


def costliest(prices: NDArray[np.float64], n_memberships: int, of_window: int) -> NDArray[np.float64]:
    """Most that this many memberships cost, of which a window holds ``of_window`` at most.

    Each membership of a window costs the same: where amounts add up (ε, or ρ), the dearest windows are filled first.

    `prices`: shape (n_windows, ...): what ``of_window`` memberships of each window cost.

    >>> costliest(np.array([1.0, 4.0, 2.0]), 3, 2)  # two of the second window, one of the third
    array(5.)
    """
    dearest = -np.sort(-np.asarray(prices, np.float64), axis=0)
    full, rest = divmod(n_memberships, of_window)
    total = dearest[:full].sum(axis=0)
    if rest and full < len(dearest):
        total = total + dearest[full] * (rest / of_window)
    return np.asarray(total)
