"""The running books of many targets: bounds on what comes, and the risk realised by what was released."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountants.inference.horizon import GenieAhead, genie_ahead, horizon_bounds
from accountants.inference.known import KnownTargets
from accountants.inference.outlook import Coming
from accountants.inference.places import Places, Reading
from accountants.inference.prior import MarkovPrior
from accountants.inference.realised import observe, predict, realised_risk, start_beliefs
from accountants.inference.stationary import spectral_gap
from accountants.inference.targets import Targets
from mechanisms.core.state import State

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
Figures = dict[str, FloatArray]
#: Targets that are worked on together: their matrices stay in the processor's cache.
BLOCK = 32


@dataclass(frozen=True, eq=False)
class Block:
    """A few targets with everything about them that does not change.

    Parameters
    ----------
    span
        Which targets these are.
    targets, places
        Their priors, and cells as places of those.
    horizon, tolerance
        T windows, of which at most ``tolerance`` may be guessed wrong.
    ahead
        The genie's success after the first window of a horizon.
    """

    span: slice
    targets: Targets
    places: Places
    horizon: int
    tolerance: int
    ahead: GenieAhead

    def start(self) -> State:
        """Beliefs before the first window."""
        return start_beliefs(self.targets, self.horizon)

    def bounds(self, state: State, coming: Coming) -> Figures:
        """Bounds over the coming windows, from what each adversary believes now; each (n_targets,)."""
        start = predict(self.targets, state)
        return horizon_bounds(
            self.targets, start, coming.sensors, self.tolerance, coming.noise, coming.scale, ahead=self.ahead
        )

    def observe(self, state: State, reading: Reading | None, cells: IntArray) -> State:
        """Beliefs after a release; None where it told nothing."""
        shape = self.targets.locations.shape
        if reading is None:
            return observe(self.targets, state, np.zeros(shape))
        away, here, seen = self.places.log_likelihood(reading, cells)
        places = np.append(away, -np.inf)[self.targets.locations]  # the last entry stands for padding
        places[seen] = -np.inf
        own = self.targets.locations == self.places.location[cells][:, None]
        return observe(self.targets, state, np.where(own, here[:, None], places))

    def risk(self, state: State) -> dict[str, NDArray[Any]]:
        """What is known about the last windows; see `realised_risk`."""
        return realised_risk(self.targets, state, self.tolerance)


@dataclass(frozen=True, eq=False)
class Watched:
    """Targets in blocks. All figures of one target are the same, to the last bit, whichever others it is with."""

    known: KnownTargets
    blocks: tuple[Block, ...]
    gaps: FloatArray

    @property
    def subjects(self) -> range:
        """Number of each target among all of the run, from 1."""
        return range(self.known.first + 1, self.known.first + self.known.n_targets + 1)

    def states(self, state: State) -> Iterator[tuple[Block, State]]:
        """Each block with its part of a state."""
        for number, block in enumerate(self.blocks):
            prefix = f"{number}."
            yield block, {name.removeprefix(prefix): v for name, v in state.items() if name.startswith(prefix)}


def named(number: int, state: State) -> State:
    """A block's state as part of the whole."""
    return {f"{number}.{name}": value for name, value in state.items()}


def watch(known: KnownTargets, horizon: int, tolerance: int) -> Watched:
    """Put targets into blocks and work out what does not change.

    Parameters
    ----------
    known
        Who they are and what is known of each.
    horizon, tolerance
        T and s.
    """
    is_shared = len(known.priors) == 1
    blocks = []
    for first in range(0, known.n_targets, BLOCK):
        last = min(first + BLOCK, known.n_targets)
        priors = known.priors * (last - first) if is_shared else known.priors[first:last]
        targets = Targets.of(priors, n_places=_width(known.priors[0]) if is_shared else known.places.n_locations)
        ahead = genie_ahead(targets, horizon, tolerance)
        blocks.append(Block(slice(first, last), targets, known.places, horizon, tolerance, ahead))
    gaps = np.array([spectral_gap(prior.transition) for prior in known.priors])
    return Watched(known, tuple(blocks), np.broadcast_to(gaps, known.n_targets))


def _width(prior: MarkovPrior) -> int:
    return int(prior.reduced[1].size)
