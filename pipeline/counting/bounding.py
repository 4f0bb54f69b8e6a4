"""Contribution bounding: per user, at most C cells per window, U cells and W windows per block, and n memberships per
budget period.

Sensitivity comes from here.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Window
from penstock.mechanisms.core.plugin import Checked, ConfigError, ParameterError, parameter
from penstock.mechanisms.core.samplers.siphash import keyed_hash
from penstock.mechanisms.core.sensitivity import Bounds
from penstock.mechanisms.core.state import State
from penstock.pipeline.counting.contributions import (
    REMEMBERED,
    ContributionRows,
    factorize,
    sorted_order,
    starts_of,
    widened,
)

Integers = NDArray[np.int64]

#: Words that keep the hashes of windows and of cells apart from each other and from those of memberships.
_WINDOW, _CELL = 1, 2


@dataclass(frozen=True, kw_only=True)
class Bounding(Checked):
    """Bounds on one user's contributions, which determine the sensitivity of every release."""

    max_cells: int | None = parameter(None, at_least=1, doc="cells of a window that one user adds 1 to; unset: all")
    keep: str = parameter("hash", choices=("hash", *REMEMBERED), doc="choice of the cells kept where a user has more")
    max_windows: int | None = parameter(None, at_least=1, doc="windows of a block that one user counts in; unset: all")
    max_block_cells: int | None = parameter(
        None, at_least=1, doc="cells of a block that one user counts in; unset: all"
    )
    max_per_period: int | None = parameter(
        None,
        at_least=1,
        doc="memberships (cell × window) of one user in a budget period, the earliest first; unset: all",
    )
    pace: tuple[float, ...] | None = parameter(
        None, doc="shares of max_per_period that open in turn, in equal parts of a budget period; unset: all at once"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pace is not None and (
            self.max_per_period is None or min(self.pace, default=-1) < 0 or not any(self.pace)
        ):
            expected = "left out without max_per_period, else numbers of at least 0 with a sum above 0"
            raise ParameterError("pace", self.pace, expected)
        if self.max_block_cells is not None and self.max_block_cells < (self.max_cells or 1):
            raise ParameterError("max_block_cells", self.max_block_cells, f"at least max_cells ({self.max_cells})")


def unbounded(bounding: Mapping[str, Any], n_cells: int) -> str | None:
    """Return a warning if ``bounding`` does not limit in how many cells per window one person counts, or None."""
    if n_cells == 1 or bounding.get("max_cells") is not None or bounding.get("max_per_period") is not None:
        return None
    return (
        f"bounding.max_cells is not set: one person may count in all {n_cells:,} cells of a window, so that Laplace "
        f"noise is {n_cells:,} times what it would be with max_cells: 1."
    )


def over_time(bounding: Mapping[str, Any], period: str | None) -> str:
    """Describe the per-period bound of a ``bounding`` section. A period of None means the whole run."""
    if (maximum := bounding.get("max_per_period")) is None:
        return "No bound: who comes every day counts every day."
    within = f"in each {period}" if period else "in the whole run"
    turn = ", which open in turn" if bounding.get("pace") else ""
    return f"{maximum:,} membership{'s' * (maximum > 1)} (cell × window) {within}{turn}, the earliest first."


def bound(memberships: ContributionRows, max_cells: int, keep: str, hash_key: bytes) -> NDArray[np.bool_]:
    """Return a mask of the memberships to keep.

    ``memberships``: sorted by user, window and cell (as `penstock.pipeline.counting.contributions.merge` leaves them).
    ``max_cells``: cells that one user keeps in one window. ``keep``: ``hash`` (by a keyed hash of user, window and
    cell), ``first``, ``last`` (by time of the user's earliest or latest event there) or ``most_frequent``; ties go to
    the smaller cell index. Returns a mask of shape (n,). O(n) where no one exceeds the bound; only the rest is hashed
    and sorted.
    """
    kept = np.ones(len(memberships), bool)
    if len(memberships) == 0:
        return kept
    segment = np.cumsum(starts_of([*memberships.user.T, memberships.window])) - 1
    crowded = np.flatnonzero(np.bincount(segment)[segment] > max_cells)
    if len(crowded) == 0:
        return kept
    some = memberships if len(crowded) == len(memberships) else memberships.take(crowded)
    kept[crowded] = _first_of_unit(segment[crowded], _preference(some, keep, hash_key), some.cell, max_cells)
    return kept


def _preference(memberships: ContributionRows, keep: str, hash_key: bytes) -> NDArray[np.generic]:
    """Return a sort key that ranks each row's cell within its window, with the most preferred cell first."""
    if keep == "hash":
        return np.asarray(keyed_hash(hash_key, *identity(memberships), memberships.window, memberships.cell))
    assert memberships.mark is not None
    return memberships.mark if keep == "first" else -memberships.mark


class PeriodQuota:
    """The amount of ``max_per_period`` that each user has consumed in the current budget period.

    Memberships count in the order of windows, those of one window in the order in which `bound` prefers them. Which
    ones count for a user is a function of that user's own rows, so that users can be split into shards with a quota
    each. Memory: an identity and a number for each user seen in the current period.
    """

    def __init__(self, saved: State | None = None) -> None:
        saved = saved or {}
        self._period = int(saved.get("period", -1))
        self._users = np.asarray(saved.get("users", np.zeros((0, 2))), np.int64)
        self._used = np.asarray(saved.get("used", np.zeros(0)), np.int64)
        self._closed = int(saved.get("closed", -1))

    def state(self) -> State:
        """Return the state for a checkpoint."""
        numbers = {"period": np.asarray(self._period), "closed": np.asarray(self._closed)}
        return numbers | {"users": self._users, "used": self._used}

    def close(self, period: int) -> bool:
        """Mark the quota of every user as exhausted for a budget period. Return False if this has already been done."""
        was_open, self._closed = self._closed < period, period
        return was_open

    def digest(self, key: bytes) -> bytes:
        """Return a keyed digest of the consumed quotas."""
        order = np.lexsort(self._users.T)
        hashed = hashlib.blake2b(np.asarray([self._period, self._closed], np.int64).tobytes(), digest_size=16, key=key)
        hashed.update(self._users[order].tobytes())
        hashed.update(self._used[order].tobytes())
        return hashed.digest()

    def admit(
        self, memberships: ContributionRows, period: Integers, maximum: int | Integers, keep: str, hash_key: bytes
    ) -> NDArray[np.bool_]:
        """Return a mask of the memberships to keep and deduct them from their users' quotas.

        Their windows follow all windows asked for before; they are sorted and bounded by `bound`. ``period``, of shape
        (n,): number of the budget period of each one's window. ``maximum``: memberships of one user in one period, of
        shape (n,) up to and including the window of each (`CountingBounds.quota_by_window`).
        """
        quota, kept = np.broadcast_to(maximum, len(memberships)), np.ones(len(memberships), bool)
        for number in np.unique(period).tolist():
            rows = np.flatnonzero(period == number)
            kept[rows] = self._admit(memberships.take(rows), number, quota[rows], keep, hash_key)
        return kept

    def _admit(
        self, memberships: ContributionRows, period: int, quota: Integers, keep: str, hash_key: bytes
    ) -> NDArray[np.bool_]:
        if period < self._period:
            raise ValueError(f"budget period {period} does not follow period {self._period}")
        if period > self._period:
            self._period, self._users, self._used = period, self._users[:0], self._used[:0]
        if period <= self._closed:
            return np.zeros(len(memberships), bool)
        users, code = factorize(np.concatenate([self._users, widened(memberships.user, 2)]))
        earlier, user = code[: len(self._users)], code[len(self._users) :]
        used = np.zeros(len(users), np.int64)
        used[earlier] = self._used
        window = memberships.window
        order = np.lexsort((memberships.cell, _preference(memberships, keep, hash_key), window, user))
        # Where the quota opens in turn, what is left of it depends on what the windows before have used.
        is_open = (quota == quota[0]).all()
        turns = [order] if is_open else [order[window[order] == number] for number in np.unique(window)]
        kept = np.empty(len(user), bool)
        for rows in turns:
            first = np.flatnonzero(starts_of([user[rows]]))
            rank = np.arange(len(rows)) - np.repeat(first, np.diff(first, append=len(rows)))
            kept[rows] = rank < quota[rows] - used[user[rows]]
            used += np.bincount(user[rows[kept[rows]]], minlength=len(users))
        self._users, self._used = users, used
        return kept


@dataclass(frozen=True, kw_only=True)
class CountingBounds(Bounds):
    """The enforced bounds on one user's contributions and the resulting sensitivity."""

    keep: str = "hash"  # which cells are kept where a user has more; see `bound`
    pace: tuple[float, ...] | None = None  # shares of ``max_per_period`` that open in turn; None: all at once
    block_length: int = 1  # windows of a block, of which window 1 begins one; 1 without blocks

    @classmethod
    def of(cls, bounding: Bounding, n_cells: int, block_length: int) -> CountingBounds:
        """Return a run's bounds, given its number of cells and the mechanism's block length in windows."""
        has_blocks = block_length > 1
        return cls(
            max_cells=min(bounding.max_cells or n_cells, n_cells),
            max_windows=bounding.max_windows if has_blocks else None,
            max_block_cells=bounding.max_block_cells if has_blocks else None,
            max_per_period=bounding.max_per_period,
            keep=bounding.keep,
            pace=bounding.pace,
            block_length=block_length,
        )

    def quota_by_window(self, windows: Integers, elapsed: Callable[[Integers], NDArray[np.float64]]) -> Integers:
        """Return how many memberships a user may have by each window, given the elapsed share of its period.

        At most ``max_per_period`` whatever the pace, so that the sensitivity of a whole period stays.

        >>> bounds = CountingBounds(max_per_period=10, pace=(2, 1, 1))
        >>> bounds.quota_by_window(np.array([1, 9]), lambda windows: windows / 10)
        array([ 5, 10])
        """
        assert self.max_per_period is not None
        if self.pace is None:
            return np.full(len(windows), self.max_per_period)
        shares = np.cumsum(self.pace) / np.sum(self.pace)
        opened = np.minimum(np.ceil(self.max_per_period * shares - 1e-9), self.max_per_period).astype(np.int64)
        return np.asarray(opened[(elapsed(windows) * len(shares)).astype(np.int64)])

    @property
    def over_blocks(self) -> bool:
        """Return whether contributions are bounded per block."""
        return self.max_windows is not None or self.max_block_cells is not None

    @property
    def over_periods(self) -> bool:
        """Return whether contributions are bounded per budget period, which requires counting windows in order."""
        return self.max_per_period is not None

    def first_joint_window(self, window: Window, length: int) -> int:
        """Return the first window bounded or counted together with the given one. ``length``: windows per block."""
        if self.over_periods and window.period_last is not None:
            return int(window.period_last - window.n_windows + 1)
        return (window.index - 1) // length * length + 1

    def check_joint_charges(self, charges_blocks: bool) -> None:
        """Raise `ConfigError` if contributions are bounded per budget period but charged window by window."""
        if self.over_periods and not charges_blocks:
            raise ConfigError(
                (
                    "bounding.max_per_period: this mechanism charges window by window, but what leaves a window makes "
                    "room in others, which no ledger can count; use mechanism type period_uniform",
                )
            )

    def spans_windows(self, together: int) -> bool:
        """Return whether bounding chooses among a person's events in several windows. ``together``: windows merged."""
        return self.over_blocks or self.over_periods or together > 1


def bound_block(memberships: ContributionRows, bounds: CountingBounds, hash_key: bytes) -> NDArray[np.bool_]:
    """Bound contributions over whole blocks: first to U cells, then to C cells per window, then to W windows.

    ``memberships``: all of each user's in each block, sorted as for `bound`; a window's or cell's mark is that of all
    its memberships in the block. Each bound only takes away, so that all three hold in the end.
    """
    kept = np.ones(len(memberships), bool)
    if bounds.max_block_cells is not None:
        kept = _bound_items(memberships, bounds, memberships.cell, _CELL, bounds.max_block_cells, hash_key)
    kept[kept] = bound(memberships.take(kept), bounds.max_cells, bounds.keep, hash_key)
    if bounds.max_windows is not None:
        some = memberships.take(kept)
        kept[kept] = _bound_items(some, bounds, some.window, _WINDOW, bounds.max_windows, hash_key)
    return kept


def identity(memberships: ContributionRows) -> tuple[Integers, Integers]:
    """Return each row's identity as two integer columns for hashing, regardless of its encoding."""
    user = memberships.user
    return user[:, 0], user[:, 1] if user.shape[1] == 2 else np.zeros(len(user), np.int64)


def _bound_items(
    memberships: ContributionRows, bounds: CountingBounds, item: Integers, word: int, limit: int, hash_key: bytes
) -> NDArray[np.bool_]:
    """Keep at most ``limit`` distinct items (windows or cells) per user and block."""
    if len(memberships) == 0:
        return np.ones(0, bool)
    keep, block = bounds.keep, (memberships.window - 1) // bounds.block_length
    unit = np.cumsum(starts_of([*memberships.user.T, block])) - 1
    order = sorted_order([unit, item])
    start = starts_of([unit[order], item[order]])
    first = np.flatnonzero(start)
    units, items = unit[order][first], item[order][first]
    if np.bincount(units).max() <= limit:
        return np.ones(len(item), bool)
    if keep == "hash":
        who = [column[order][first] for column in identity(memberships)]
        preference: NDArray[np.generic] = keyed_hash(hash_key, *who, block[order][first], items, word)
    else:
        assert memberships.mark is not None
        marks = REMEMBERED[keep].reduceat(memberships.mark[order], first)
        preference = marks if keep == "first" else -marks
    chosen = _first_of_unit(units, preference, items, limit)
    kept = np.empty(len(item), bool)
    kept[order] = chosen[np.cumsum(start) - 1]
    return kept


def _first_of_unit(unit: Integers, preference: NDArray[np.generic], tie: Integers, limit: int) -> NDArray[np.bool_]:
    """Return a mask of the first ``limit`` rows of each unit, ordered by preference with ties broken by ``tie``."""
    first = np.flatnonzero(starts_of([unit]))
    length = np.diff(first, append=len(unit))
    if len(unit) and preference.dtype == np.uint64:
        # The beginnings of two hashes of one unit are hardly ever equal, and short keys are sorted many times faster.
        n_bits = 63 - int(unit[-1]).bit_length()
        key = unit << n_bits | (np.asarray(preference, np.uint64) >> np.uint64(64 - n_bits)).astype(np.int64)
        ordered = np.sort(key)
        last = first + np.minimum(length, limit) - 1
        beyond = last[length > limit]
        if (ordered[beyond] != ordered[beyond + 1]).all():
            return np.asarray(key <= np.repeat(ordered[last], length), bool)
    order = np.lexsort((tie, preference, unit))
    chosen = np.empty(len(unit), bool)
    chosen[order] = np.arange(len(unit)) - np.repeat(first, length) < limit
    return chosen


def quota_for_share(memberships: ContributionRows, period: Integers, share: float) -> int:
    """Return the smallest ``max_per_period`` that keeps a given fraction of all memberships.

    >>> rows = ContributionRows(np.array([[7]] * 4 + [[8]]), np.array([1, 2, 3, 4, 1]), np.zeros(5, np.int64))
    >>> [quota_for_share(rows, np.zeros(5, np.int64), share) for share in (0.4, 0.6, 0.9)]
    [1, 2, 4]
    """
    if not len(memberships):
        return 1
    code = factorize(memberships.user)[1]
    order = sorted_order([code, period])
    first = np.flatnonzero(starts_of([code[order], period[order]]))
    n_own = np.diff(first, append=len(order))
    # Of a bound of n everybody with at least i memberships keeps the i-th, for all i up to n.
    kept = np.cumsum(np.bincount(n_own)[::-1][:-1].cumsum()[::-1])
    return int(np.searchsorted(kept, share * len(memberships))) + 1


#: A bound on a period that suits some noise keeps this share of all memberships, and leaves at most this part of the
#: noise's standard deviation as the root mean square of what it cuts off a count: a fiftieth of its square.
MIN_SHARE, MAX_CUT_SHARE = 0.99, 1 / 8


def quota_for_noise(
    memberships: ContributionRows, period: Integers, n_counts: int, deviation: Callable[[int], float]
) -> int:
    """Return the smallest ``max_per_period`` that keeps 99 % of memberships with little bias compared with the noise.

    ``n_counts``: windows × cells, over which the mean square of what is cut off is taken. ``deviation``: standard
    deviation of the noise for a bound; it grows with the bound.

    >>> user, window = np.array([[0]] * 3 + [[i] for i in range(1, 298)]), np.array([1, 2, 3] + [1] * 297)
    >>> rows, day = ContributionRows(user, window, np.zeros(300, np.int64)), np.zeros(300, np.int64)
    >>> [quota_for_noise(rows, day, 3, lambda n: size * n**0.5) for size in (9.0, 0.1)]
    [1, 3]
    """
    minimum = quota_for_share(memberships, period, MIN_SHARE)
    if not len(memberships):
        return minimum
    code = factorize(memberships.user)[1]
    order = sorted_order([code, period, memberships.window])
    first = np.flatnonzero(starts_of([code[order], period[order]]))
    rank = np.arange(len(order)) - np.repeat(first, np.diff(first, append=len(order)))
    place = (memberships.window * (int(memberships.cell.max()) + 1) + memberships.cell)[order]

    def is_negligible(n: int) -> bool:
        cut = np.unique(place[rank >= n], return_counts=True)[1]
        return bool((cut**2).sum() / n_counts <= (MAX_CUT_SHARE * deviation(n)) ** 2)

    return bisect.bisect_left(range(int(rank.max()) + 1), True, lo=minimum, key=is_negligible)
