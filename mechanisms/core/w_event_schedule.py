"""What w-event schedules share: the protected stretch, and the noisy dissimilarity that two of them decide by."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.budget_schedule import BudgetSchedule
from mechanisms.core.event import Event
from mechanisms.core.mechanism import ADD_REMOVE, Guarantee
from mechanisms.core.noise_draws import LARGEST_SCALE
from mechanisms.core.parameters import parameter
from mechanisms.core.perturb import active_l1, add_noise, pure_event, pure_scale
from mechanisms.core.point_mechanism import shown
from mechanisms.core.release import Release
from mechanisms.core.sphere import Points, distance
from mechanisms.core.state import State
from mechanisms.core.timestamp import Mask, Timestamp
from mechanisms.core.trace_schedule import W_EVENT_TRACES, Budgets
from mechanisms.core.window import Window

if TYPE_CHECKING:
    from mechanisms.core.noise import Noise


@dataclass(frozen=True, kw_only=True)
class WEventSchedule(BudgetSchedule):
    """Base of w-event mechanisms.

    Parameters
    ----------
    epsilon
        Budget of any w successive windows, in nats.
    w
        Length of the protected stretch, in windows; on traces, in points of a user.
    noise, radius
        As in `BudgetSchedule`.
    """

    point_guarantee: ClassVar[Guarantee] = W_EVENT_TRACES
    w: int = parameter(doc="length of the protected stretch", at_least=1, unit="windows")
    guarantee: ClassVar[Guarantee] = Guarantee(
        unit="all of one user's bounded contributions within any w successive windows",
        neighbours=ADD_REMOVE,
        statement="w-event ε-differential privacy",
        theorem="Kellaris, Papadopoulos, Xiao, Papadias 2014, theorem 3",
    )


@dataclass(frozen=True, kw_only=True)
class DissimilaritySchedule(WEventSchedule):
    """Base of the two schedules that spend half their budget on asking whether a publication is worth it.

    Parameters
    ----------
    epsilon
        Budget of any w successive windows, in nats: half for asking whether to publish, half for publishing.
    noise
        The same for questions and publications, of those that `BudgetSchedule` names.
    w, radius
        As in `WEventSchedule`.
    """

    adaptive: ClassVar[bool] = True
    ideal: ClassVar[str] = "exact where it publishes; the last publication where it repeats"

    @property
    def unit(self) -> float:
        """ε/(2w): what one window's question costs, and the unit in which publications are paid."""
        return self.epsilon / (2 * self.w)

    @abstractmethod
    def offer(self, window: Window | Timestamp, state: State) -> NDArray[np.float64]:
        """ε that a publication of this window may spend; 0 where it must not publish."""

    @abstractmethod
    def spend(self, window: Window | Timestamp, state: State, spent: NDArray[np.float64]) -> State:
        """The schedule's own state after ``spent`` (0: repeated)."""

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Ask how far the counts are from the last release; publish if that is more than the noise would be."""
        l1 = active_l1(window, state["max_cells"])
        epsilon = self.offer(window, state)
        # Halving again and again may leave less than any noise source serves; such an offer is none.
        epsilon = np.where(epsilon * LARGEST_SCALE < l1, 0.0, epsilon)
        distance = np.abs(counts - state["last"])
        if window.active is not None:
            distance = distance[..., window.active]
        n_active = max(distance.shape[-1], 1)
        asked = self._sum_with_noise(noise, distance.sum(-1), pure_scale(self.unit, l1)) / n_active
        publish = np.asarray((epsilon > 0) & (asked > pure_scale(np.where(epsilon > 0, epsilon, 1.0), l1)))
        release, after = self.decide(window, counts, state, epsilon, publish, noise, self._question(l1))
        return [release], after | self.spend(window, state, np.where(publish, epsilon, 0.0))

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """The question, and a publication with all that is on offer."""
        epsilon = self.offer(window, state)
        question = self._question(active_l1(window, state["max_cells"]))
        return question + (self.charge_of(window, state, epsilon) if np.any(epsilon > 0) else ())

    @property
    def question_epsilon(self) -> float:
        """One unit, at every timestamp."""
        return self.unit

    def allot(self, time: Timestamp, state: State) -> Budgets:
        """What is on offer, unless its noise would be larger than the world."""
        epsilon = self.offer(time, state)
        return np.where(epsilon * LARGEST_SCALE < self.metres, 0.0, epsilon)

    def choose(self, time: Timestamp, points: Points, state: State, epsilon: Budgets, noise: Noise) -> Mask:
        """Whoever is further from the last release, as far as noise lets that be told, than a new one would be."""
        scale = float(pure_scale(self.unit, self.metres))
        asked = distance(points, shown(time, state)) + noise.laplace(scale, epsilon.shape)
        # The mean length of a planar Laplace step is twice its scale.
        return np.asarray(asked > 2 * pure_scale(np.where(epsilon > 0, epsilon, 1.0), self.metres))

    def follow(self, time: Timestamp, before: State, after: State, epsilon: Budgets, publish: Mask) -> State:
        """Remember what was spent."""
        return after | self.spend(time, before, np.where(publish, epsilon, 0.0))

    def _question(self, l1: NDArray[np.float64]) -> tuple[Event, ...]:
        return (pure_event(self.noise, float(l1.max()), float(pure_scale(self.unit, l1).max())),)

    def _sum_with_noise(self, noise: Noise, total: NDArray[Any], scale: NDArray[Any]) -> NDArray[np.float64]:
        # The sum of distances moves by at most L1 when one unit comes or goes; for integers it is an integer.
        summed = np.asarray(total).astype(np.int64) if self.noise == "discrete_laplace" else np.asarray(total)
        return np.asarray(add_noise(noise, self.noise, summed[..., None], scale)[..., 0], np.float64)
