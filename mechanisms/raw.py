"""Release raw counts without protection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Mechanism, Release, Window
from penstock.mechanisms.core.events import Event, Exact
from penstock.mechanisms.core.noise import Noise
from penstock.mechanisms.core.state import State


@dataclass(frozen=True, kw_only=True)
class Raw(Mechanism):
    """Release the true counts.

    **Privacy.** None: every accountant reports an infinite loss.

    Time and state: O(n_cells) and none.

    Examples
    --------
    >>> import numpy as np
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> run_mechanism(Raw(), np.array([[3, 0]]), seed=1)[0].values
    array([3., 0.])
    """

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Release a window unchanged."""
        return [Release.of(window, counts.copy(), (Exact(),))], {}

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """Return the charge of an exact release."""
        return (Exact(),)
