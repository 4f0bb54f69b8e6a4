"""Gaussian noise correlated over time, so that it cancels in sums over many windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Facts, Interpretation, Measured, Release, Window
from penstock.mechanisms.core.events import Event, Linked
from penstock.mechanisms.core.guarantee import Guarantee
from penstock.mechanisms.core.noise import Noise
from penstock.mechanisms.core.noise_family import families
from penstock.mechanisms.core.plugin import parameter, stretch
from penstock.mechanisms.core.schedules import Budgeted
from penstock.mechanisms.core.sensitivity import of_any_mixtures, of_mixtures
from penstock.mechanisms.core.state import State
from penstock.mechanisms.core.unit import Unit

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Entries of the strategy matrix are whole multiples of one part in this, so that integer noise serves.
GRID = 1024


@dataclass(frozen=True, kw_only=True)
class Correlated(Budgeted, Interpretation):
    """Add Gaussian noise correlated over time, for accurate sums over many windows.

    Parameters
    ----------
    epsilon, delta
        Budget of any ``w`` successive windows, (ε, δ) of it. The noise has the largest ρ that keeps to both.
    rho
        The same in ρ of zero-concentrated differential privacy, in place of epsilon and delta.
    w
        Windows of the unit: 1 protects what a user does in one window, 24 what a user does in a day of hours.
    band
        b: windows that one noisy number mixes. Sums are better the larger it is, single windows worse.
    noise
        ``discrete_gaussian`` (integers, the default) or ``gaussian``.

    **Privacy.** ρ-zCDP for any w successive windows: unit all of one user's bounded contributions in them, neighbours
    add or remove it. The Gaussian mechanism (Bun and Steinke 2016, proposition 1.6) on C·x, where x are the counts by
    window and C a lower triangular Toeplitz matrix of b bands; the release is a function of C·x + z, z independent. A
    user in the same cells in all w windows is the worst case: Δ² = max_cells · Σ (sums of w successive entries of C)²,
    since entries are positive and fall. Amounts of ρ of longer stretches do *not* add up from those of single windows:
    accountants get Δ² = max_cells · (Σ entries)² for each window, a bound for every set of windows (Schur), which the
    ledger sums. That of the w windows themselves stands in the row ``w_event_rho``.

    Notes
    -----
    Time and state O(b · n_cells) a window. Entries are those of the square root of the matrix of prefix sums,
    1, 1/2, 3/8, 5/16, … (Fichtenberger, Henzinger, Upadhyay 2023), cut after b (Kalinin and Lampert 2024; bands:
    Choquette-Choo et al. 2023), rounded down to 1024ths. The release is x + C⁻¹·z: its noise is negatively correlated
    over time, which ``scale``, that of a single count, does not show. `filter` and `kalman` are refused after it: they
    take the noise of different windows for independent.

    Examples
    --------
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> def noise_of_sums(band):
    ...     correlated = Correlated(rho=0.5, w=1, band=band, noise="gaussian")
    ...     releases = run_mechanism(correlated, np.zeros((64, 500), int), Facts(n_cells=500), seed=1)
    ...     return round(float(sum(release.values for release in releases).std()), 1)
    >>> noise_of_sums(1), noise_of_sums(32)
    (7.6, 2.5)
    """

    epsilon: float | None = parameter(None, doc="budget of w successive windows, with delta", above=0, unit="nats")
    w: int = stretch(1)
    band: int = parameter(24, doc="windows that one noisy number mixes", at_least=1, at_most=1000, unit="windows")
    noise: str = parameter("discrete_gaussian", doc="noise family", choices=families("counts", "rho"))

    @classmethod
    def examples(cls) -> tuple[Correlated, ...]:
        """Return one instance per kind of budget and noise, with one band or several."""
        return (
            cls(rho=0.5, band=3),
            cls(rho=0.5, w=4, band=5, noise="gaussian"),
            cls(epsilon=2.0, delta=1e-6, w=2, band=1),
        )

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee, which is ρ-zCDP for any w successive windows. Charges add up over any set of windows."""
        entries = strategy(self.band)
        charged, moved = of_any_mixtures(entries), of_mixtures(entries, self.w)
        return Guarantee(
            unit=Unit.stretch(self.w),
            measure="rho",
            amount=self.budget,
            charged=float(self.budget * self.w * charged.l2_squared / moved.l2_squared),
            delta=self.delta,
            theorem="Bun and Steinke 2016, proposition 1.6, on the sensitivity of the strategy matrix",
            linked=True,
            may_be_sampled=False,
            dependence="it cancels in sums",
        )

    def start(self, facts: Facts) -> State:
        """Return the initial state, including the noise's impulse response."""
        shape = (*facts.shape, self.band - 1, facts.n_cells)
        return {
            "max_cells": facts.constant(facts.sensitivity, np.int64),
            # The last counts and releases, newest first.
            "counts": np.zeros(shape, np.int64),
            "released": np.zeros(shape),
            # The last entries of C⁻¹'s first column, newest first, and the sum of the squares of all.
            "response": np.zeros((*facts.shape, self.band - 1)),
            "energy": facts.constant(0.0),
        }

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Publish one window."""
        later = strategy(self.band)[1:].astype(np.int64)
        sigma = self._sigma(state)
        # A cell without a sensor is publicly empty.
        counted = np.asarray(counts if window.active is None else np.where(window.active, counts, 0), np.int64)
        mixed = GRID * counted + (later[:, None] * state["counts"]).sum(-2)
        # The release is worked out from the noisy mixture and earlier releases, so that it tells nothing else.
        noisy = self.family.add(noise, mixed, sigma)
        values = (noisy - (later[:, None] * state["released"]).sum(-2)) / GRID
        begun = state["energy"] > 0
        response = np.where(begun, -(later * state["response"]).sum(-1), GRID) / GRID
        energy = state["energy"] + response * response
        scale = sigma / GRID * np.sqrt(energy)
        release = Release.of(
            window,
            values,
            self.worst_charge(window, state),
            noise=self.family.of_sums,
            scale=scale[..., None] if np.ndim(scale) else float(scale),
        )
        after = {"counts": counted, "released": values}
        moved = {
            name: np.concatenate([new[..., None, :], state[name]], -2)[..., : self.band - 1, :]
            for name, new in after.items()
        }
        shifted = np.concatenate([np.asarray(response)[..., None], state["response"]], -1)[..., : self.band - 1]
        return [release], state | moved | {"response": shifted, "energy": energy}

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """Return the charge for a window, which is the same for all windows and additive over any set of them."""
        moved = of_any_mixtures(strategy(self.band), state["max_cells"])
        return (Linked(self.family.event(moved, self._sigma(state))),)

    def measured(self, facts: Facts) -> Measured:
        """Return the linear combinations of windows to which noise is added."""
        entries = np.append(strategy(self.band), 0.0) / GRID
        lag = np.subtract.outer(windows := np.arange(facts.n_windows or 0), windows)
        mixed = entries[np.where((lag >= 0) & (lag < self.band), lag, self.band)]
        return Measured(mixed, scale=self._sigma(self.start(facts)) / GRID)

    def _sigma(self, state: State) -> float:
        """Return the noise's standard deviation, in units of 1/GRID."""
        moved = of_mixtures(strategy(self.band), self.w, state["max_cells"])
        return float(self.family.scale(self.budget, moved))


def strategy(band: int) -> Array:
    """Return the nonzero entries of one column of C in units of 1/GRID, as decreasing positive integers.

    >>> strategy(4).tolist()
    [1024.0, 512.0, 384.0, 320.0]
    """
    k = np.arange(1, band)
    entries: Array = np.floor(GRID * np.cumprod(np.append(1.0, (2 * k - 1) / (2 * k))))
    return np.maximum(entries, 1.0)
