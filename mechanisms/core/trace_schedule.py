"""Budget schedules over traces: the same rules as for counts, for every user of a shard at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.mechanism import Guarantee
from mechanisms.core.point_mechanism import PLANAR, PointMechanism, only_present, perturbed
from mechanisms.core.sphere import Points
from mechanisms.core.state import State
from mechanisms.core.timestamp import Mask, PointRelease, Timestamp

if TYPE_CHECKING:
    from mechanisms.core.noise import Noise

Budgets = NDArray[np.float64]

POSITIONS = "the positions may differ, the times at which there are points may not; landmarks are public"

LANDMARK_TRACES = Guarantee(
    unit="one user's positions at all landmarks of a budget period and at any one other timestamp",
    neighbours=f"two traces at most `radius` metres apart at each of these timestamps; {POSITIONS}",
    statement="ε-indistinguishability within `radius` metres, per user and budget period",
    theorem="Katsomallos et al. 2022 with planar Laplace noise (Andrés et al. 2013, sections 3.2 and 4.1)",
)
W_EVENT_TRACES = Guarantee(
    unit="one user's positions at any w successive timestamps",
    neighbours="two traces at most `radius` metres apart at each of them; the times of the points are public",
    statement="ε-indistinguishability within `radius` metres, for any w successive points of a user",
    theorem="Kellaris et al. 2014, theorem 3, with planar Laplace noise (Andrés et al. 2013, sections 3.2 and 4.1)",
)


@dataclass(frozen=True, kw_only=True)
class TraceSchedule(PointMechanism):
    """Decides *when to spend how much* on each user's points; planar Laplace does the rest.

    A schedule overrides `allot` and, where publishing is not a matter of budget alone, `choose` and `follow`. All
    arrays have shape (n_users,).
    """

    stages: ClassVar[tuple[str, ...]] = ("counts", "points")

    @property
    def question_epsilon(self) -> float:
        """ε that the decision to publish costs, at every timestamp."""
        return 0.0

    def allot(self, time: Timestamp, state: State) -> Budgets:
        """ε of a publication; 0 where none is due."""
        raise NotImplementedError(f"{type(self).__name__} does not work on points")

    def choose(self, time: Timestamp, points: Points, state: State, epsilon: Budgets, noise: Noise) -> Mask:
        """Who publishes of those who have something to spend."""
        return np.ones(len(epsilon), bool)

    def follow(self, time: Timestamp, before: State, after: State, epsilon: Budgets, publish: Mask) -> State:
        """The schedule's own state after a step that published with ``epsilon`` or repeated."""
        return after

    def enter(self, time: Timestamp, state: State) -> State:
        """State as the timestamp finds it."""
        return state

    def refused(self, time: Timestamp, state: State) -> Mask:
        """Who must not publish now, because more landmarks came than were declared."""
        return np.zeros(len(time.time), bool)

    def step_points(
        self, time: Timestamp, points: Points, present: Mask, state: State, noise: Noise
    ) -> tuple[PointRelease, State]:
        """Release one timestamp of many users."""
        before = self.enter(time, state)
        refused = self.refused(time, before)
        epsilon = np.where(refused, 0.0, self.allot(time, before))
        publish = present & (epsilon > 0) & self.choose(time, points, before, epsilon, noise)
        rate = epsilon / self.metres
        values, after = perturbed(time, points, before, rate, publish, noise)
        after = self.follow(time, before, after, epsilon, publish)
        with np.errstate(divide="ignore"):
            scale = np.where(publish, 1.0 / np.where(publish, rate, 1.0), 0.0)
        release = PointRelease(
            values=values,
            action=np.where(publish, "published", np.where(refused, "refused", "repeated")),
            noise=PLANAR,
            scale=scale,
            epsilon=np.where(publish, epsilon, 0.0) + self.question_epsilon,
            repeats=np.where(publish, -1, before["last_window"]),
        )
        return only_present(release, present, state, after)

    def worst_points(self, time: Timestamp, state: State) -> Budgets:
        """The question, and a publication with all that is allotted."""
        before = self.enter(time, state)
        return np.where(self.refused(time, before), 0.0, self.allot(time, before)) + self.question_epsilon
