"""Functions of the released numbers alone: without noise on true counts, post-processing after a private release."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.event import Event, Exact
from mechanisms.core.mechanism import Mechanism
from mechanisms.core.release import Release
from mechanisms.core.state import State
from mechanisms.core.window import Window

if TYPE_CHECKING:
    from mechanisms.core.noise import Noise


@dataclass(frozen=True, kw_only=True)
class Transformation(Mechanism):
    """Base of mechanisms that coarsen or suppress numbers, window by window and without noise."""

    @property
    def follows(self) -> bool:
        """Whether it may stand after a step that releases: it then works on private values, as post-processing."""
        return True

    @abstractmethod
    def transform(self, values: NDArray[np.float64], state: State) -> tuple[NDArray[np.float64], State]:
        """Values of one window as they are shown, and the next state.

        Parameters
        ----------
        values
            Shape (..., n_cells); NaN where no sensor is active, which stays NaN.
        state
            From `start` or the last call.
        """

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Transform the true counts of one window."""
        values, state = self.transform(np.asarray(counts, np.float64), state)
        return [Release.of(window, values, (Exact(),))], state

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """A function of true counts without noise: an exact release."""
        return (Exact(),)
