"""The running books of many targets: bounds on what comes, and the risk realised by what was released."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountants.core.accountant import Rows
from accountants.inference.costly import Costly
from accountants.inference.horizon import GenieAhead, genie_ahead, horizon_bounds
from accountants.inference.known import KnownTargets
from accountants.inference.outlook import Coming
from accountants.inference.places import Places, Reading
from accountants.inference.realised import observe, predict, realised_risk, start_beliefs
from accountants.inference.rows import RowWriter
from accountants.inference.stationary import spectral_gap
from accountants.inference.targets import Targets
from mechanisms.core.state import State

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
Figures = dict[str, FloatArray]
#: Targets that are worked on together: their matrices stay in the processor's cache.
BLOCK = 64


@dataclass(frozen=True, eq=False)
class Block:
    """A few targets with everything about them that does not change.

    Parameters
    ----------
    span
        Which targets these are.
    targets, places
        Their priors, and cells as places of those.
    horizon
        Windows T.
    ahead
        The genie's success after the first window of a horizon.
    costly
        Bounds that are made only when the schedule changes.
    """

    span: slice
    targets: Targets
    places: Places
    horizon: int
    ahead: GenieAhead
    costly: Costly

    def start(self) -> State:
        """Beliefs before the first window."""
        return start_beliefs(self.targets, self.horizon) | self.costly.start(self.targets)

    def bounds(self, state: State, coming: Coming) -> tuple[Figures, State]:
        """Bounds over the coming windows, from what each adversary believes now, and the tables of this schedule."""
        tables = self.costly.renewed(self.targets, state, coming)
        bounds = horizon_bounds(
            self.targets,
            predict(self.targets, state),
            coming.sensors,
            self.costly.tolerance,
            coming.noise,
            coming.scale,
            ahead=self.ahead,
        )
        bounds |= self.costly.bounds(tables, state["belief"][-1] if state["n_windows"] else None)
        bounds["best"] = np.min([bounds[name] for name in ("best", *self.costly.names)], axis=0)
        return bounds, tables

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
        return realised_risk(self.targets, state, self.costly.tolerance)


@dataclass(frozen=True, eq=False)
class Step:
    """One window: what is coming from it on, what its release told, the cells it showed and where the targets were."""

    window: int
    coming: Coming
    reading: Reading | None
    active: NDArray[np.bool_]
    cells: IntArray


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

    def start(self) -> State:
        """Nothing released yet."""
        state: State = {"window": np.asarray(0), "visits": np.zeros(self.known.n_targets)}
        for number, block in enumerate(self.blocks):
            state |= _named(number, block.start())
        return state

    def charge(self, writer: RowWriter, step: Step, state: State) -> tuple[Rows, State]:
        """Bound what the windows from this one on can tell, then take in what this one told."""
        window = step.window
        rows: Rows = [] if state["window"] else writer.gaps(self.subjects, self.gaps)
        visits = state["visits"] + np.append(step.active, False)[step.cells]
        new: State = {"window": np.asarray(window), "visits": visits}
        for number, (block, before) in enumerate(self._parts(state)):
            subjects = self.subjects[block.span]
            bounds, tables = block.bounds(before, step.coming)
            rows += writer.coming(subjects, window, bounds)
            after = block.observe(before, step.reading, step.cells[block.span])
            risk = block.risk(after)
            if window > writer.tolerance:
                rows += writer.realised(subjects, window, risk, "provisional")
            if window >= writer.horizon:
                oldest = window - writer.horizon + 1
                rows += writer.places(subjects, oldest, risk["marginals"][:, 0].max(axis=-1))
            new |= _named(number, after | tables)
        return rows + writer.visits(self.subjects, window, visits / window), new

    def finish(self, writer: RowWriter, state: State) -> Rows:
        """What is known of the last windows, now that no release follows."""
        last, rows = int(state["window"]), Rows()
        for block, beliefs in self._parts(state) if last else ():
            subjects, risk = self.subjects[block.span], block.risk(beliefs)
            if last > writer.tolerance:
                rows += writer.realised(subjects, last, risk, "final")
            n_steps = risk["marginals"].shape[1]
            # the oldest window of a whole horizon was final before
            for position in range(int(last >= writer.horizon), n_steps):
                likeliest = risk["marginals"][:, position].max(axis=-1)
                rows += writer.places(subjects, last - n_steps + 1 + position, likeliest)
        return rows

    def _parts(self, state: State) -> Iterator[tuple[Block, State]]:
        """Each block with its part of a state."""
        for number, block in enumerate(self.blocks):
            prefix = f"{number}."
            yield block, {name.removeprefix(prefix): v for name, v in state.items() if name.startswith(prefix)}


def _named(number: int, state: State) -> State:
    """A block's state as part of the whole."""
    return {f"{number}.{name}": value for name, value in state.items()}


def watch(known: KnownTargets, horizon: int, costly: Costly) -> Watched:
    """Put targets into blocks and work out what does not change.

    Parameters
    ----------
    known
        Who they are and what is known of each.
    horizon
        Windows T.
    costly
        The tolerance, and which bounds beyond the cheap ones are wanted.
    """
    is_shared = len(known.priors) == 1
    blocks = []
    for first in range(0, known.n_targets, BLOCK):
        last = min(first + BLOCK, known.n_targets)
        priors = known.priors * (last - first) if is_shared else known.priors[first:last]
        targets = Targets.of(priors, n_places=known.places.n_locations)
        ahead = genie_ahead(targets, horizon, costly.tolerance)
        blocks.append(Block(slice(first, last), targets, known.places, horizon, ahead, costly))
    gaps = np.array([spectral_gap(prior.transition) for prior in known.priors])
    return Watched(known, tuple(blocks), np.broadcast_to(gaps, known.n_targets))
