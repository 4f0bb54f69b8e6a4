"""Bounds that take too long for every window: made once for each schedule, from every place somebody may come from.

What a schedule allows is bounded given the place in the window before it. An adversary who was told that place would do
no worse, so the average over what is believed about it bounds the success, in every window that looks ahead on the
same schedule.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accountants.inference.first_moment import first_moment
from accountants.inference.observation import Schedule, schedule
from accountants.inference.outlook import Coming
from accountants.inference.prior import MarkovPrior
from accountants.inference.segment_bound import log_segments
from accountants.inference.targets import Targets
from mechanisms.core.state import State

FloatArray = NDArray[np.float64]
_ROUNDING = 1 + 1e-12
_CONFIDENCE = 0.9999


@dataclass(frozen=True)
class Costly:
    """Which of these bounds are wanted.

    Parameters
    ----------
    tolerance
        Wrong guesses that still count as a success.
    segment
        The segment bound: O(T² s M² · sensors) time for each target.
    n_samples, seed
        Observations drawn for the first-moment bound, 0 for none: O(n_samples T s M³) time for each target.
    """

    tolerance: int
    segment: bool = False
    n_samples: int = 0
    seed: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The bounds by name."""
        return (("segment",) if self.segment else ()) + (("first_moment",) if self.n_samples else ())

    def start(self, targets: Targets) -> State:
        """Tables of no schedule yet."""
        if not self.names:
            return {}
        n_targets, n_places = targets.locations.shape
        tables = {name: np.ones((n_targets, n_places + 1)) for name in self.names}
        return {"schedule": np.zeros(32, np.uint8)} | tables

    def renewed(self, targets: Targets, state: State, coming: Coming) -> State:
        """Tables of this schedule: those of the state, or new ones where the schedule has changed."""
        if not self.names:
            return {}
        key = np.frombuffer(hashlib.sha256(_text(coming)).digest(), np.uint8)
        if np.array_equal(key, state["schedule"]):
            return {name: state[name] for name in ("schedule", *self.names)}
        tables = {name: np.zeros((targets.n_targets, targets.locations.shape[1] + 1)) for name in self.names}
        for target in range(targets.n_targets):
            if target and _same(targets, target - 1, target):
                for table in tables.values():
                    table[target] = table[target - 1]
                continue
            for name, row in self._of_target(targets, target, coming).items():
                tables[name][target] = row
        return {"schedule": key} | tables

    def bounds(self, state: State, belief: FloatArray | None) -> dict[str, FloatArray]:
        """The bounds of each target from what is believed about the last window; None: before the first one."""
        if belief is None:
            return {name: np.minimum(state[name][:, -1], 1.0) for name in self.names}
        return {name: np.minimum((belief * state[name][:, :-1]).sum(axis=1) * _ROUNDING, 1.0) for name in self.names}

    def _of_target(self, targets: Targets, target: int, coming: Coming) -> dict[str, FloatArray]:
        """Bounds of one target from each of its places, and from the start of its prior."""
        known = np.flatnonzero(targets.locations[target] >= 0)
        where = targets.locations[target, known]
        matrix = np.eye(targets.n_locations)
        own = targets.transition[target if len(targets.transition) > 1 else 0]
        matrix[np.ix_(where, where)] = own[np.ix_(known, known)]
        initial = np.zeros(targets.n_locations)
        initial[where] = targets.initial[target, known]
        starts = np.vstack([matrix[where], initial])
        everywhere = MarkovPrior(np.full(targets.n_locations, 1 / targets.n_locations), matrix)
        plan = schedule(everywhere, coming.sensors, coming.noise, coming.scale)
        found = {}
        if self.segment:
            found["segment"] = np.exp(log_segments(plan, self.tolerance, starts)) * _ROUNDING
        if self.n_samples:
            found["first_moment"] = np.array([self._first_moment(plan, coming, start, len(starts)) for start in starts])
        rows = {name: np.zeros(targets.locations.shape[1] + 1) for name in found}
        for name, values in found.items():
            rows[name][np.append(known, -1)] = values
        return rows

    def _first_moment(self, plan: Schedule, coming: Coming, start: FloatArray, n_starts: int) -> float:
        own = schedule(MarkovPrior(start, plan.prior.transition), coming.sensors, coming.noise, coming.scale)
        # all limits of a table hold together
        confidence = 1 - (1 - _CONFIDENCE) / n_starts
        return first_moment(own, self.tolerance, self.n_samples, self.seed, confidence, raw_too=False)


def _same(targets: Targets, one: int, other: int) -> bool:
    """Whether two targets have one prior."""
    alike = (np.array_equal(values[one], values[other]) for values in (targets.locations, targets.initial))
    return len(targets.transition) == 1 and all(alike)


def _text(coming: Coming) -> bytes:
    scale = b"" if coming.scale is None else np.asarray(coming.scale, float).tobytes()
    return repr(([sorted(sensors) for sensors in coming.sensors], coming.noise)).encode() + scale
