"""What mechanisms on traces share: planar noise around a point, and showing the last release again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.facts import Facts
from mechanisms.core.mechanism import Guarantee, Mechanism
from mechanisms.core.parameters import parameter
from mechanisms.core.planar import with_planar_laplace
from mechanisms.core.sphere import Points
from mechanisms.core.state import State
from mechanisms.core.timestamp import Mask, PointRelease, Timestamp

if TYPE_CHECKING:
    from mechanisms.core.noise import Noise

#: The noise family that makes a budget schedule work on traces.
PLANAR = "planar_laplace"


@dataclass(frozen=True, kw_only=True)
class PointMechanism(Mechanism):
    """Base of mechanisms that can work on points.

    Their ε is what it costs to tell two points ``radius`` metres apart: points d metres apart cost ε·d/radius. The
    state of a user is one entry on the leading axis of every array, so that any users can share a step.
    """

    radius: float | None = parameter(
        None, doc="on traces: distance at which two points are told apart at a cost of epsilon; unset: 1", above=0
    )
    #: What is promised on traces, where that differs from the promise on counts.
    point_guarantee: ClassVar[Guarantee]

    @property
    def stated_guarantee(self) -> Guarantee:
        """That of points, where it works on them."""
        return self.point_guarantee if self.on_points else super().stated_guarantee

    @property
    def metres(self) -> float:
        """The radius, or its default."""
        return 1.0 if self.radius is None else self.radius

    def start_points(self, n_users: int) -> State:
        """State of some users before their first point."""
        return self.start(Facts(n_cells=2, n_replicas=n_users))

    def worst_points(self, time: Timestamp, state: State) -> NDArray[np.float64]:
        """The most ε that the next step can cost each user, shape (n_users,); reads only what releases tell."""
        raise NotImplementedError(f"{type(self).__name__} does not work on points")


def shown(time: Timestamp, state: State) -> Points:
    """What each user's last release was; before any, the public point."""
    return np.where((state["last_window"] > 0)[:, None], state["last"], time.origin)


def perturbed(
    time: Timestamp, points: Points, state: State, rate: NDArray[np.float64], publish: Mask, noise: Noise
) -> tuple[Points, State]:
    """Move the points of those who publish and show the last release of the others.

    Parameters
    ----------
    rate
        ε per metre of a publication, shape (n_users,).
    publish
        Who publishes, shape (n_users,).

    Returns
    -------
    What is shown, and the state that remembers it.
    """
    moved = with_planar_laplace(noise, points, np.where(publish, rate, np.inf))
    values = np.where(publish[:, None], moved, shown(time, state))
    return values, remember(time, values, state, publish)


def remember(time: Timestamp, values: Points, state: State, publish: Mask) -> State:
    """State in which the users who published have a new last release."""
    return state | {
        "last": np.where(publish[:, None], values, state["last"]),
        "last_window": np.where(publish, time.index, state["last_window"]),
    }


def only_present(release: PointRelease, present: Mask, before: State, after: State) -> tuple[PointRelease, State]:
    """A step as if the users without a point had not been there."""
    if present.all():
        return release, after
    hidden = PointRelease(
        values=np.where(present[:, None], release.values, np.nan),
        action=np.where(present, release.action, "absent"),
        noise=release.noise,
        scale=np.where(present, release.scale, 0.0),
        epsilon=np.where(present, release.epsilon, 0.0),
        repeats=np.where(present, release.repeats, -1),
    )
    kept = {
        name: np.where(present.reshape(present.shape + (1,) * (new.ndim - 1)), new, before[name])
        for name, new in after.items()
    }
    return hidden, kept
