"""Success against raw counts, segment by segment between sightings.

Given the readings, the unseen runs between sightings are independent. Each run's chance of at most a wrong guesses is
bounded on its own; the budgets of wrong guesses are then convolved, and summed over all ways to be sighted, from the
end of the horizon to its start. Proof in docs/reconstruction.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import comb

from accountants.inference.kernel import Kernel
from accountants.inference.observation import Schedule
from accountants.inference.posterior import genie_levels
from accountants.inference.segment_moments import affordable_moments, moment_bounds

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
_UNDERFLOW = 1e-300


@dataclass(frozen=True)
class Segments:
    """The unseen runs that begin at the sightings of one window (or at the start of the horizon, window −1).

    Ends are numbered in the order they are met from the back: 0 is the end of the horizon, then the sightings of the
    last window, and so on; ``reach`` is (n_starts, n_ends, tolerance + 1), bounds on the joint probability of the run
    and at most a wrong guesses in it; ``whole`` is (n_starts, n_ends), the probability of the run.
    """

    window: int
    starts: IntArray
    reach: FloatArray
    whole: FloatArray


def log_segment(plan: Schedule, tolerance: int) -> float:
    """ln of the segment bound on the success against raw counts and anything computed from them.

    Parameters
    ----------
    plan
        Prior and sensors; noise is ignored, which is safe.
    tolerance
        Wrong guesses allowed.

    Returns
    -------
    Deterministic. O(T² s M · hidden) time per active sensor, times the sensors again for the convolution.
    """
    return float(log_segments(plan, tolerance, plan.prior.initial[None, :])[0])


def log_segments(plan: Schedule, tolerance: int, starts: FloatArray) -> FloatArray:
    """The same from each of several distributions of the first location, (n_starts, M), with little more work."""
    plan = plan.raw
    if tolerance >= plan.n_steps:
        return np.zeros(len(starts))
    n_moments = affordable_moments(plan)
    segments, end_windows, unseen = _genie_tables(plan, tolerance, starts, keep_unseen=n_moments > 0)
    places = [(part.window, part.starts) for part in segments]
    moments = moment_bounds(plan, places, starts, unseen, n_moments)
    # value[e, b]: bound on the success after end e with b wrong guesses left; 1 at the end of the horizon
    value = np.ones((1, tolerance + 1))
    for part, bounds in zip(segments, moments):
        lengths = end_windows[: part.reach.shape[1]] - part.window - 1
        reach = np.minimum(part.reach, part.whole[..., None])
        for j, bound in enumerate(bounds, start=1):
            ways = _choices(lengths, tolerance, j)
            reach = np.minimum(reach, np.where(ways > 0, bound[..., None] / np.maximum(ways, 1.0), np.inf))
        reach = np.minimum.accumulate(reach[..., ::-1], axis=-1)[..., ::-1]
        exactly = np.diff(reach, axis=-1, prepend=0.0)
        added = np.zeros((part.starts.size, tolerance + 1))
        for misses in range(tolerance + 1):
            added[:, misses:] += exactly[..., misses] @ value[:, : tolerance + 1 - misses]
        value = np.concatenate([value, added])
    # what underflowed on the way is far below this floor
    return np.asarray(np.minimum(0.0, np.log(np.maximum(value[-len(starts) :, -1], _UNDERFLOW))))


def _choices(lengths: IntArray, tolerance: int, j: int) -> FloatArray:
    """C(length − a, j) for a = 0 … tolerance, (n_ends, tolerance + 1); 0 where fewer than j guesses must be right."""
    return np.asarray(comb(np.maximum(lengths[:, None] - np.arange(tolerance + 1), 0), j))


def _genie_tables(
    plan: Schedule, tolerance: int, begin: FloatArray, keep_unseen: bool
) -> tuple[list[Segments], IntArray, dict[int, FloatArray]]:
    """Genie values of all runs, from the last window back; also the window of every end and, per window, the
    probability of staying unseen from each location until each end, (n_ends, M)."""
    n_locations, last = plan.prior.n_locations, plan.n_steps - 1
    matrix = plan.prior.transition
    # levels: 0 … tolerance wrong guesses left, then the plain probability of the run
    values = np.ones((1, tolerance + 2, n_locations))
    end_windows = [last + 1]
    segments: list[Segments] = []
    unseen: dict[int, FloatArray] = {}
    for window in range(last, -2, -1):
        if window < last:
            moves = matrix if window >= 0 else begin
            sighted, after = plan.active[window + 1], plan.hidden[window + 1]
            columns = moves[:, sighted]
            columns = (columns if isinstance(columns, np.ndarray) else columns.toarray()).T
            values = np.concatenate(
                [
                    genie_levels(Kernel(moves[:, after]), values[:, :, after]),
                    np.broadcast_to(columns[:, None, :], (sighted.size, tolerance + 2, columns.shape[1])),
                ]
            )
            end_windows += [window + 1] * sighted.size
        starts = plan.active[window] if window >= 0 else np.arange(len(begin))
        table = np.moveaxis(values[:, :, starts], -1, 0)
        segments.append(Segments(window, starts, table[..., :-1], table[..., -1]))
        if keep_unseen:
            unseen[window] = values[:, -1]
    return segments, np.array(end_windows), unseen


def segment_operations(plan: Schedule, tolerance: int) -> float:
    """Multiplications that `log_segment` will need, to leave it out where it would take too long."""
    plan = plan.raw
    sighted = np.array([active.size for active in plan.active])
    hidden = np.array([window.size for window in plan.hidden])
    matrix = plan.prior.transition
    per_location = plan.prior.n_locations if isinstance(matrix, np.ndarray) else matrix.nnz / plan.prior.n_locations
    n_ends = 1 + np.concatenate([np.cumsum(sighted[::-1])[::-1][1:], [0]])
    genie = (tolerance + 1) * per_location * float(n_ends @ hidden)
    return genie + (tolerance + 1) ** 2 * float(n_ends @ sighted)
