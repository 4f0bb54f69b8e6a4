"""The contract of a mechanism: pure state in, state out; no clock, no generator, no Beam."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.errors import StateVersionError
from mechanisms.core.event import Event
from mechanisms.core.examples import examples_of
from mechanisms.core.facts import Facts
from mechanisms.core.parameters import Checked
from mechanisms.core.registry import Registry
from mechanisms.core.release import Release
from mechanisms.core.state import State
from mechanisms.core.timestamp import PointRelease, Timestamp
from mechanisms.core.window import Window

if TYPE_CHECKING:
    from mechanisms.core.noise import Noise

#: Parameters that stand for the amount of privacy, and their value without any.
UNLIMITED = {"epsilon": np.inf, "rho": np.inf, "sigma": 0.0}


@dataclass(frozen=True)
class Guarantee:
    """What a mechanism promises, in words that are shown to people.

    Parameters
    ----------
    unit
        What is protected: the unit of privacy.
    neighbours
        Which two inputs are compared.
    statement
        The guarantee; "none" where there is none.
    theorem
        Where it is proved: authors, year, theorem.
    """

    unit: str
    neighbours: str
    statement: str
    theorem: str

    @property
    def exists(self) -> bool:
        """Whether anything is promised at all."""
        return self.statement != "none"


ONE_WINDOW = "all of one user's events in one window"
ADD_REMOVE = "add or remove the unit"
NO_GUARANTEE = Guarantee(unit=ONE_WINDOW, neighbours=ADD_REMOVE, statement="none", theorem="none")


@dataclass(frozen=True, kw_only=True)
class Mechanism(Checked, ABC):
    """Base of every mechanism: a frozen dataclass of parameters whose methods are pure functions.

    A mechanism at stage "counts" implements `start`, `step` and `worst_charge`; one at stage "events" implements
    `keep`; one at stage "points" implements `step_points`. State is a flat dict of arrays whose leading axes are
    those of `Facts.shape`.

    The last four methods tell the conformance suite what to expect; a mechanism overrides one of them only where
    the base's answer is not its own.
    """

    stages: ClassVar[tuple[str, ...]] = ("counts",)
    version: ClassVar[int] = 1
    guarantee: ClassVar[Guarantee] = NO_GUARANTEE
    #: Whether amounts spent depend on earlier outputs, so that no accounting may assume them fixed in advance.
    adaptive: ClassVar[bool] = False
    #: What is released when epsilon is infinite, in words: "exact", or the approximation that remains without noise.
    ideal: ClassVar[str] = "exact"

    @property
    def stated_guarantee(self) -> Guarantee:
        """The guarantee with these parameters: that of the class, unless one of them takes it away."""
        return self.guarantee

    def start(self, facts: Facts) -> State:
        """State before the first window."""
        return {}

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Release one window.

        Parameters
        ----------
        window
            Public facts of the window.
        counts
            Shape (..., n_cells), integers; leading axes are independent replicas. Never changed.
        state
            From `start` or the previous step. Never changed.
        noise
            Keyed noise, bound to this window, input and state.

        Returns
        -------
        The releases that are now ready ([] while a block fills) and the next state. Of a block's releases the first
        carries the charge, a `Block`; the others carry none.
        """
        raise NotImplementedError(f"{type(self).__name__} does not work on counts")

    def finish(self, state: State, noise: Noise) -> list[Release]:
        """Releases still owed when a finite run ends (a last short block)."""
        return []

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """The most that the next step can charge; reads only what earlier releases already tell.

        A block announces its charge at its first window, after which nothing may be in its way.
        """
        raise NotImplementedError(f"{type(self).__name__} does not work on counts")

    def keep(
        self, users: NDArray[Any], cells: NDArray[np.int64], window: Window, hashes: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Event stage: which distinct (user, cell) memberships of the window stay; ``hashes`` are keyed and uniform."""
        raise NotImplementedError(f"{type(self).__name__} does not work on events")

    def step_points(
        self, time: Timestamp, points: NDArray[np.float64], present: NDArray[np.bool_], state: State, noise: Noise
    ) -> tuple[PointRelease, State]:
        """Point stage: one timestamp of many users.

        Parameters
        ----------
        time
            Public facts of each user's timestamp.
        points
            Shape (n_users, 2), degrees. Never changed.
        present
            Shape (n_users,): who has a point; the state of the others stays as it is.
        state
            One entry for each user on the leading axis of every array. Never changed.
        noise
            Keyed noise, bound to each user's timestamp, point and state.
        """
        raise NotImplementedError(f"{type(self).__name__} does not work on points")

    def migrate(self, version: int, state: State) -> State:
        """State of an older version as this version wants it; the base has no older version."""
        raise StateVersionError(f"{type(self).__name__} cannot read state of version {version}")

    @property
    def on_points(self) -> bool:
        """Whether it releases points of traces; otherwise counts."""
        return self.stages == ("points",)

    @property
    def unit_windows(self) -> int:
        """Windows over which contribution bounding must bound one user: those of a block; the base: one."""
        return 1

    @property
    def landmark_budget(self) -> float | None:
        """ε that all landmarks of a budget period and any one other window cost together; None: no such promise."""
        return None

    @property
    def crowd(self) -> tuple[int, float] | None:
        """k and ε of the crowd that a user in one count blends with (Gehrke et al. 2012); None: no such promise."""
        return None

    @classmethod
    def examples(cls) -> tuple[Mechanism, ...]:
        """Typical instances; the base makes them from the declared parameters."""
        return examples_of(cls)

    def unlimited(self) -> Mechanism:
        """The same mechanism with nothing to save: the budgets of `UNLIMITED` infinite, its noise zero."""
        given = {f.name: UNLIMITED[f.name] for f in fields(self) if f.name in UNLIMITED}
        return replace(self, **{name: value for name, value in given.items() if getattr(self, name) is not None})

    def without_noise(self, counts: NDArray[Any]) -> NDArray[Any]:
        """What a publication would hold without noise: shape (n_windows, n_cells) in and out; the base: the counts."""
        return counts

    def noise_in(self, published: NDArray[np.float64], counts: NDArray[Any]) -> NDArray[np.float64]:
        """The noise that publications contain, distributed as their ``noise`` and ``scale`` say; all (n, n_cells)."""
        return np.asarray(published - self.without_noise(counts), np.float64)


MECHANISMS: Registry[Mechanism] = Registry("mechanisms", "mechanism")
