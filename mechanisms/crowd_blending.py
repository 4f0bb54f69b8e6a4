"""Crowd-blending: suppress small counts, or perturb them if a budget is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Interpretation, Mechanism, Release, Window
from penstock.mechanisms.core.events import Event, Exact
from penstock.mechanisms.core.guarantee import CROWD_THEOREM, Guarantee
from penstock.mechanisms.core.noise import Noise
from penstock.mechanisms.core.noise_family import NOISE_FAMILIES, families
from penstock.mechanisms.core.plugin import parameter
from penstock.mechanisms.core.sensitivity import of_cells
from penstock.mechanisms.core.state import State


@dataclass(frozen=True, kw_only=True)
class CrowdBlending(Mechanism, Interpretation):
    """Release crowds' counts exactly and suppress smaller counts, or perturb them if a budget is given.

    Parameters
    ----------
    threshold
        k: how many make a crowd.
    epsilon
        ε of the noise on smaller counts, in nats; unset: they are suppressed.
    noise
        ``discrete_laplace`` (integers, the default) or ``laplace``, with ``epsilon``.

    **Privacy.** None: no differential privacy. (k, ε)-crowd-blending, or (k, 0) when it suppresses, for a user who is
    in one count only (Gehrke, Hay, Lui, Pass 2012). Another name of `perturb_small` and `suppress_small`, by
    parameters.

    Notes
    -----
    Time O(n_cells) a window, no state. With a budget every cell draws, so that time tells nothing; the published scale
    is that of a small count, in every cell.

    Examples
    --------
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> run_mechanism(CrowdBlending(threshold=5), np.array([[4, 5]]))[0].values
    array([0., 5.])
    """

    threshold: int = parameter(doc="number of people that make a crowd", at_least=1)
    epsilon: float | None = parameter(
        None, doc="budget of the noise on smaller counts; unset: they are suppressed", above=0, unit="nats"
    )
    noise: str = parameter("discrete_laplace", doc="noise family", choices=families("counts", "epsilon"))

    @classmethod
    def examples(cls) -> tuple[CrowdBlending, ...]:
        """Return an instance that suppresses small counts and one that perturbs them."""
        return cls(threshold=5), cls(threshold=5_000, epsilon=1.0)

    @property
    def guarantee(self) -> Guarantee:
        """The crowd-blending guarantee, under which counts below the threshold are noisy or suppressed."""
        return Guarantee(crowd=(self.threshold, self.epsilon or 0.0), theorem=CROWD_THEOREM)

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Publish one window."""
        if self.epsilon is None:
            return [Release.of(window, self.without_noise(counts), (Exact(),))], state
        family = NOISE_FAMILIES[self.noise]
        scale = float(family.scale(self.epsilon, of_cells(1)))
        values = np.where(counts < self.threshold, family.add(noise, counts, scale), counts)
        return [Release.of(window, values, (Exact(),), noise=self.noise, scale=scale)], state

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """Return the charge of an exact release, since crowd-blending gives no differential privacy."""
        return (Exact(),)

    def without_noise(self, counts: NDArray[Any]) -> NDArray[Any]:
        """Return all counts if a budget is given, otherwise only counts no smaller than the crowd size."""
        return counts if self.epsilon is not None else np.where(counts < self.threshold, 0, counts)
