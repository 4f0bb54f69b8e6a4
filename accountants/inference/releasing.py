"""What releases counts, and what one of its releases tells: noise with a likelihood, a count, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountants.inference.places import Reading
from mechanisms.core import event as events
from mechanisms.core.generalization import Generalization
from mechanisms.core.mechanism import Mechanism
from mechanisms.core.release import Release

FloatArray = NDArray[np.float64]

#: Noise family of each additive event.
FAMILIES: dict[type[events.Event], str] = {
    events.Laplace: "laplace",
    events.DiscreteLaplace: "discrete_laplace",
    events.Gaussian: "gaussian",
    events.DiscreteGaussian: "discrete_gaussian",
}
_NOTHING = (events.Repeated, events.Nothing)


@dataclass(frozen=True, eq=False)
class Releasing:
    """What releases: the mechanism that sees counts, and all steps of the release, itself among them."""

    mechanism: Mechanism | None
    steps: tuple[Mechanism, ...] = ()

    @property
    def adds_noise_only(self) -> bool:
        """Whether what is published is counts plus noise, and nothing else was done to them."""
        if self.mechanism is None or len(self.steps) > 1:
            return False
        own = type(self.mechanism)
        return own.without_noise is Mechanism.without_noise and own.noise_in is Mechanism.noise_in

    @property
    def is_coarse(self) -> bool:
        """Whether cells or windows are merged before counting: a cell without a sensor then shows through others."""
        return any(isinstance(step, Generalization) for step in self.steps)

    def additive(self, charge: tuple[events.Event, ...]) -> tuple[str, float] | None:
        """Noise family and scale of a release whose likelihood its charge tells; None for any other."""
        if len(charge) != 1 or type(charge[0]) not in FAMILIES or not self.adds_noise_only:
            return None
        event: Any = charge[0]
        return FAMILIES[type(event)], float(event.sigma if hasattr(event, "sigma") else event.scale)

    def reading(self, release: Release, counts: FloatArray) -> tuple[Reading | None, NDArray[np.bool_]]:
        """What a release tells the adversary of any target, None where nothing, and the mask of the cells it shows.

        Parameters
        ----------
        release
            What was published.
        counts
            (n_cells,) true bounded counts: the adversary knows everybody's share of them but the target's.

        Notes
        -----
        Noise that is simply added has a likelihood, also with a scale that follows earlier releases. For whatever else
        was done counts without noise stand: the beliefs are then those of somebody who was told more.
        """
        if tells_nothing(release.charge):
            return None, np.zeros(counts.shape, bool)
        hidden = release.active is None or self.is_coarse
        active = np.ones(counts.shape, bool) if hidden else np.asarray(release.active)
        known = self.additive(release.charge)
        if known and known[0] == release.noise and str(release.action) == "published" and np.all(release.scale > 0):
            return Reading(active, known[0], release.scale, np.asarray(release.values, float) - counts), active
        return Reading(active), active


def tells_nothing(charge: tuple[events.Event, ...]) -> bool:
    """Whether a release only repeats, and decided so without looking at the counts."""
    return bool(charge) and all(isinstance(event, _NOTHING) for event in charge)
