"""The contract of a mechanism: pure state in, state out; no clock, no generator, no Beam."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.errors import StateVersionError
from mechanisms.core.event import Event
from mechanisms.core.facts import Facts
from mechanisms.core.parameters import Checked
from mechanisms.core.registry import Registry
from mechanisms.core.release import Release
from mechanisms.core.state import State
from mechanisms.core.window import Window

if TYPE_CHECKING:
    from mechanisms.core.noise import Noise


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
    """

    stages: ClassVar[tuple[str, ...]] = ("counts",)
    version: ClassVar[int] = 1
    guarantee: ClassVar[Guarantee] = NO_GUARANTEE
    #: Whether amounts spent depend on earlier outputs, so that no accounting may assume them fixed in advance.
    adaptive: ClassVar[bool] = False
    #: What is released when epsilon is infinite: "exact", or the declared approximation without noise.
    ideal: ClassVar[str] = "exact"

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
        The releases that are now ready ([] while a block fills) and the next state.
        """
        raise NotImplementedError(f"{type(self).__name__} does not work on counts")

    def finish(self, state: State, noise: Noise) -> list[Release]:
        """Releases still owed when a finite run ends (a last short block)."""
        return []

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """The most that the next step can charge; reads only what earlier releases already tell."""
        raise NotImplementedError(f"{type(self).__name__} does not work on counts")

    def keep(
        self, users: NDArray[Any], cells: NDArray[np.int64], window: Window, hashes: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Event stage: which distinct (user, cell) memberships of the window stay; ``hashes`` are keyed and uniform."""
        raise NotImplementedError(f"{type(self).__name__} does not work on events")

    def step_points(
        self, time: int, points: NDArray[np.float64], present: NDArray[np.bool_], state: State, noise: Noise
    ) -> tuple[NDArray[np.float64], State]:
        """Point stage: one timestamp of many users, points of shape (n_users, 2) in degrees."""
        raise NotImplementedError(f"{type(self).__name__} does not work on points")

    def migrate(self, version: int, state: State) -> State:
        """State of an older version as this version wants it; the base has no older version."""
        raise StateVersionError(f"{type(self).__name__} cannot read state of version {version}")


MECHANISMS: Registry[Mechanism] = Registry("mechanisms", "mechanism")
