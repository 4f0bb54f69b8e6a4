"""Sensitivity of counts and derived vectors to one unit of privacy, under contribution bounds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.mechanisms.core.plugin import ParameterError, check_whole
from penstock.mechanisms.core.unit import Unit


class Sensitivity(NamedTuple):
    """A vector's L1 and squared L2 sensitivity, which is its largest change between neighbouring inputs."""

    l1: Any
    l2_squared: Any

    def times(self, factor: float) -> Sensitivity:
        """Return the sensitivity after multiplying the vector by a factor."""
        return Sensitivity(factor * self.l1, factor**2 * self.l2_squared)


def price_of_replacement(measure: str, is_pure: bool = False) -> float:
    """Return the cost of replacing a person's contributions as a multiple of the cost of adding or removing them.

    Let v and v′ be the two contributions. In L1 they are at most abs(v) + abs(v′) apart, so that an ε doubles. In L2
    the square of their distance is abs(v)² + abs(v′)² − 2·v·v′, at most the sum of the squares, since contributions are
    not negative; so the ρ and the μ²/2 of Gaussian noise double. ``is_pure``: of a step that has an ε, ρ is ε²/2 and
    quadruples; that covers a ρ of which no more is known (Bun and Steinke 2016, proposition 1.9, for two steps).

    >>> price_of_replacement("epsilon"), price_of_replacement("rho"), price_of_replacement("rho", is_pure=True)
    (2.0, 2.0, 4.0)
    """
    return 4.0 if measure == "rho" and is_pure else 2.0


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Contribution bounds enforced per person."""

    max_cells: int = 1  # C: cells of one window
    max_windows: int | None = None  # W: windows of a block; None, here as below: no such bound
    max_block_cells: int | None = None  # U: cells over all windows of a block
    max_per_period: int | None = None  # n: memberships (cell × window) in a budget period, of earlier windows first

    def __post_init__(self) -> None:
        check_whole(self.limits())

    def limits(self) -> dict[str, Any]:
        """Return the bounds by name."""
        return {field.name: getattr(self, field.name) for field in fields(Bounds)}

    def per_window(self, n_cells: int) -> int:
        """Return the largest number of memberships that a person has in one window with ``n_cells`` active sensors."""
        return min(self.max_cells, n_cells, self.max_per_period or n_cells)

    def of_unit(self, unit: Unit, n_cells: int, n_windows: int | None = None) -> Sensitivity:
        """Return the joint sensitivity of all windows to adding or removing one unit.

        ``n_cells`` are those of a window whose sensors are active, ``n_windows`` the windows of a budget period, or its
        landmarks and one window more. A stretch or block has at most its length, a window is one.

        Let v hold, for every window and cell, 1 where bounding leaves the person a membership and 0 elsewhere, and v′
        be what it leaves of the person without the unit. Other people are bounded by their own events alone, so that
        neighbours differ by v − v′, and the sensitivities are the largest abs(v − v′) and abs(v − v′)².

        * *Window, stretch, landmarks*, under C alone: what is kept of a window depends on its events only. Outside the
          unit v and v′ are the same; in it v′ is 0 and v has at most C ones a window. So L1 = L2² = C · windows.
        * *Period*: what is kept of a period depends on its events only. Without them v′ is 0 there; v has at most C
          ones a window, and at most n in all. So L1 = L2² = min(n, C · windows).
        * *Block*, under C, W and U: likewise with at most W windows, each with at most min(C, U) ones.

        Under n a unit *smaller than the period* is not of that kind: when some of a person's events go, memberships of
        later windows that found no room are counted in their place. v and v′ then both have at most n ones in each
        period that the unit meets and differ by a replacement: L1 = L2² = 2·n a period, whatever the unit. A charge for
        the whole period so covers it at the price of a replacement (`price_of_replacement`); noise is not
        calibrated for it.

        >>> Bounds(max_cells=2, max_per_period=20).of_unit(Unit("period"), n_cells=9, n_windows=24)
        Sensitivity(l1=20.0, l2_squared=20.0)
        >>> Bounds(max_cells=2).of_unit(Unit.stretch(3), n_cells=9)
        Sensitivity(l1=6.0, l2_squared=6.0)

        Raises `ParameterError` if there is a bound on a budget period and the unit is smaller.
        """
        if self.max_per_period is not None and unit.kind != "period":
            expected = f"left out with units smaller than the budget period ({unit}); period_uniform has that unit"
            raise ParameterError("max_per_period", self.max_per_period, expected)
        n_ones = self.per_window(n_cells)  # entries of a window that change, each by 1
        if unit.kind in ("window", "stretch"):
            n_ones *= unit.length
        elif unit.kind == "block":
            n_windows = min(unit.length, self.max_windows or unit.length, n_windows or unit.length)
            n_ones = min(n_ones, self.max_block_cells or n_ones) * n_windows
        elif n_windows is None:
            raise ParameterError("n_windows", None, f"given for the unit {unit}")
        else:
            n_ones = min(n_ones * n_windows, self.max_per_period or n_ones * n_windows)
        return Sensitivity(float(n_ones), float(n_ones))


def of_point(radius: Any) -> Sensitivity:
    """Return a planar position's sensitivity to a displacement of ``radius`` metres."""
    return Sensitivity(radius, radius**2)


# Of what a window is released as, where one person is in at most ``max_cells`` cells once each.


def of_cells(max_cells: ArrayLike, active: NDArray[np.bool_] | None = None) -> Sensitivity:
    """Return the sensitivity of one window's counts to a person in at most ``max_cells`` of the ``active`` cells."""
    n = np.asarray(max_cells, np.float64)
    if active is not None:
        n = np.minimum(n, float(np.count_nonzero(active)))
    return Sensitivity(n, n)


def of_groups(sizes: NDArray[np.int64], max_cells: ArrayLike) -> Sensitivity:
    """Return the sensitivity of group sums. For L2, the person is assumed to be in the largest groups."""
    n, largest = np.asarray(max_cells), -np.sort(-sizes, axis=-1)
    in_group = np.clip(n[..., None] - (np.cumsum(largest, -1) - largest), 0, largest)
    return Sensitivity(n, np.asarray((in_group**2).sum(-1), np.float64))


def of_tree(n_cells: int, max_cells: int, fan_out: int) -> Sensitivity:
    """Return the joint sensitivity of all nodes in a tree over ordered cells with the given ``fan_out``.

    On every level a person moves most in L2 in as few nodes as hold ``max_cells`` cells. The root is reached last.
    """
    n_levels, total, size, n_nodes = 1, 0.0, 1, n_cells
    while True:
        full, rest = divmod(max_cells, size)
        total += full * size**2 + rest**2
        if n_nodes == 1:
            return Sensitivity(float(max_cells * n_levels), total)
        n_levels, size, n_nodes = n_levels + 1, size * fan_out, -(-n_nodes // fan_out)


def of_mixtures(entries: NDArray[np.float64], w: int, max_cells: ArrayLike = 1) -> Sensitivity:
    """Return the sensitivity of mixtures of windows to a person in the same cells of ``w`` successive windows.

    Window t is in the mixtures t, t + 1, … with the ``entries`` in turn, which are positive and fall.
    """
    moved, n = np.convolve(entries, np.ones(w)), float(np.max(max_cells))
    return Sensitivity(n * float(moved.sum()), n * float((moved**2).sum()))


def of_any_mixtures(entries: NDArray[np.float64], max_cells: ArrayLike = 1) -> Sensitivity:
    """Return the sensitivity to one window. Sums of it bound that to any windows (in L2 the largest row sum: Schur)."""
    n, total = float(np.max(max_cells)), float(entries.sum())
    return Sensitivity(n * total, n * total**2)


def of_deviations(max_cells: ArrayLike) -> Sensitivity:
    """Return the sensitivity of Σ abs(count − mean) by cell to a person in one of the windows, below 2 in each cell."""
    n = np.asarray(max_cells, np.float64)
    return Sensitivity(2 * n, 4 * n)


#: Up to this many rows of a transform, all signs of its coefficients are tried.
MAX_SIGNS = 12


def of_transform(basis: NDArray[np.float64], max_cells: int, max_windows: int, max_block_cells: int) -> Sensitivity:
    """Return the joint sensitivity of ``basis @ counts`` for all cells in a block. The basis has shape (k, n).

    One user's part of a block of n windows is a 0/1 matrix B with at most C ones in a row, ones in at most W rows and U
    columns. With F the basis, all coefficients of all cells together move by at most

        ‖FB‖₁ ≤ min( √(Σ|FFᵀ|·U·C·W),   C · Σ over the W largest ‖F e_t‖₁,
                     U · max over signs s of Σ over the W largest (sᵀF)_t⁺ )
        ‖FB‖₂ ≤ ‖F‖₂·√(C·W)

    *Proof.* First: ‖X‖₁ ≤ √(number of entries)·‖X‖₂ on the k·U entries that can differ from 0, and an orthonormal F,
    for which the root is √(k·U·C·W), does not lengthen B, whose norm is at most √(C·W); in general ‖Fᵀs‖² ≤ Σ|FFᵀ| over
    signs s. Second: FB is a sum of at most C columns F e_t for each of at most W windows. Third: each of at most U
    columns b is a 0/1 series with at most W ones, and ‖Fb‖₁ = max over s of sᵀFb. The maximum over signs is found by
    trying them for k ≤ 12; beyond, Σ(x)⁺ = (Σx + Σ|x|)/2 bounds it from above. ∎

    O(k · n), or O(2^k · n) for small k.
    """
    max_windows = min(max_windows, basis.shape[1])
    max_block_cells = min(max_block_cells, max_cells * max_windows)
    norm = float(np.sqrt(np.abs(basis @ basis.T).sum()))
    overall = norm * np.sqrt(float(max_block_cells) * max_cells * max_windows)
    by_window = max_cells * _largest(np.abs(basis).sum(axis=0), max_windows).sum()
    by_cell = max_block_cells * _largest_series(basis, norm, max_windows)
    l2 = float(np.linalg.norm(basis, 2) * np.sqrt(float(max_cells) * max_windows))
    return Sensitivity(float(min(overall, by_window, by_cell)), l2 * l2)


def _largest_series(basis: NDArray[np.float64], norm: float, max_windows: int) -> float:
    """Bound the L1 norm of any 0/1 series' coefficients if the series has at most ``max_windows`` ones."""
    n_rows, n_windows = basis.shape
    if n_rows <= MAX_SIGNS:
        signs = 1.0 - 2.0 * ((np.arange(2**n_rows)[:, None] >> np.arange(n_rows)) & 1)
        return float(_largest(np.maximum(signs @ basis, 0.0), max_windows).sum(axis=1).max())
    # Σ(x)⁺ = (Σx + Σ|x|)/2 with x = sᵀF: the first is at most ‖F1‖₁, the second √n·‖x‖; or take W terms at once.
    both = (np.abs(basis.sum(axis=1)).sum() + np.sqrt(n_windows) * norm) / 2
    return float(min(both, np.sqrt(max_windows) * norm))


def _largest(values: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Return the n largest values along the last axis."""
    return np.sort(values, axis=-1)[..., -n:]
