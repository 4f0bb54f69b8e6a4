"""A bound on attack success against raw counts, composed over the segments between sightings.

Given the readings, the unseen runs between sightings are independent. Each run's chance of at most a wrong guesses is
bounded on its own; the budgets of wrong guesses are then convolved, and summed over all ways to be sighted, from the
end of the horizon to its start.

Markov's inequality on each run takes moments. For a run from a sighting to the next one, σ_j bounds the largest
expectation, over guesses, of C(right guesses, j) jointly with the run. With Q[u, v] the probability of moving from
window u to v without being seen,

    S_1(v)(x′) = Pr(unseen to v, at x′),    S_j(v)(x′) = Σ_{u < v} max_x S_{j−1}(u)(x) · Q[u, v][x, x′],
    σ_j = Σ_v max_x′ S_j(v)(x′) · Pr(unseen from x′ at v to the run's end).

Never more than C(length, j) times the largest joint probability of j places in the run.

**Proof.** A run is given by its two ends: a sighting (t, c), or the start, and the next sighting (t′, c′), or the end
of the horizon. Let A be the event that the run is as it is (unseen in between, then seen at (t′, c′)), given its
start, and F(a) a bound, for every guess, on Pr[A and at most a wrong guesses in it]: F(a) = min over a′ ≥ a of the
smallest of

* Pr(A);
* the genie value with P[x, x′]·1[x′ ∉ S_u] in window u and ending in P[·, c′] (the genie argument, jointly with A);
* σ_j / C(ℓ − a, j) for 1 ≤ j ≤ ℓ − a, ℓ the number of windows in the run (Markov's inequality).

*Success ≤ W(start, s), with W(end, b) = 1 and W(t, c)(b) = Σ over next ends e of Σ_a (F_e(a) − F_e(a−1)) W_e(b − a).*
Fix the readings y, hence the runs, and the guess x̂(y). Sighted windows are never guessed wrong. Given the sightings,
runs are independent by the Markov property, so Pr(y, at most s wrong) is the s-th partial sum of the convolution of
the runs' (sub-)distributions of wrong guesses C_i(a) = Pr[A_i, at most a wrong]. Each C_i ≤ F_i and both are
nondecreasing. The s-th partial sum of a convolution, Σ_a (C_i(a) − C_i(a−1)) V(s − a) with V nondecreasing, equals
Σ_a C_i(a) (V(s−a) − V(s−a−1)), which grows with C_i; replacing the runs one by one gives an upper bound, for each y
(V is the partial sum of the others, V(−1) = 0). It no longer depends on x̂, and summing over y, that is over all
sequences of ends, is the recursion for W. ∎

σ_j: for a guess x̂, E[C(right, j) 1_A] is the sum over v (the last of the j windows) of A_j(v) Pr(completed | x̂_v),
with A_j(v) = Σ_{u<v} A_{j−1}(u) Q_uv(x̂_u, x̂_v) ≤ S_j(v)(x̂_v) by induction. (Q_uv: the matrix Q[u, v]) ∎
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import comb

from penstock.accountants.inference.kernel import Kernel, genie_step
from penstock.accountants.inference.observation import HiddenMarkovModel
from penstock.accountants.markov import FloatArray, IntArray

_OPERATIONS = 1e8
_FIRST_OPERATIONS = 1e9
_UNDERFLOW = 1e-300


def log_segment(model: HiddenMarkovModel, tolerance: int) -> float:
    """Return the logarithm of the deterministic segment bound on success against raw counts or any function of them."""
    # O(T² s M · hidden) time per active sensor, times the sensors again for the convolution. Noise is ignored, which is
    # safe.
    model = model.raw
    if tolerance >= model.n_steps:
        return 0.0
    starts = model.prior.initial[None, :]
    n_steps, n_locations = model.n_steps, model.prior.n_locations
    n_starts, n_moments = 1 + sum(active.size for active in model.active), 0
    # As many moments of every run as take about a second; none for a large or sparse prior.
    if isinstance(model.prior.transition, np.ndarray) and n_starts**2 * n_steps * n_locations / 6 <= _FIRST_OPERATIONS:
        n_moments = 1 + int(min(n_steps - 1, _OPERATIONS / (n_starts * n_steps**2 * n_locations**2 / 6)))
    segments, end_windows, unseen = _genie_tables(model, tolerance, starts, keep_unseen=n_moments > 0)
    kernels = {
        (before, later): kernel
        for before in range(n_steps - 1 if n_moments > 1 else 0)
        for later, kernel in _unseen_after(model, before, model.prior.transition)
    }
    # value[e, b]: bound on the success after end e with b wrong guesses left; 1 at the end of the horizon
    value = np.ones((1, tolerance + 1))
    for part in segments:
        bounds = _moment_bounds(model, part, starts, unseen, kernels, n_moments) if n_moments else []
        lengths = end_windows[: part.reach.shape[1]] - part.window - 1
        reach = np.minimum(part.reach, part.probability[..., None])
        for j, bound in enumerate(bounds, start=1):
            # C(length − a, j) for a = 0 … tolerance; 0 if fewer than j guesses must be right
            ways = comb(np.maximum(lengths[:, None] - np.arange(tolerance + 1), 0), j)
            reach = np.minimum(reach, np.where(ways > 0, bound[..., None] / np.maximum(ways, 1.0), np.inf))
        reach = np.minimum.accumulate(reach[..., ::-1], axis=-1)[..., ::-1]
        exactly = np.diff(reach, axis=-1, prepend=0.0)
        added = np.zeros((part.starts.size, tolerance + 1))
        for misses in range(tolerance + 1):
            added[:, misses:] += exactly[..., misses] @ value[:, : tolerance + 1 - misses]
        value = np.concatenate([value, added])
    # what underflowed on the way is far below this floor
    return float(min(0.0, np.log(max(value[-1, -1], _UNDERFLOW))))


@dataclass(frozen=True)
class Segments:
    """Unseen runs that start at the sightings in one window, or at the horizon's start (window −1)."""

    # Ends are numbered in the order they are met from the back: 0 is the end of the horizon, then the sightings of the
    # last window, and so on. `reach` (n_starts, n_ends, tolerance + 1) bounds the joint probability of the run and at
    # most a wrong guesses in it; `probability` (n_starts, n_ends) is the probability of the run.

    window: int
    starts: IntArray
    reach: FloatArray
    probability: FloatArray


def _genie_tables(
    model: HiddenMarkovModel, tolerance: int, begin: FloatArray, keep_unseen: bool
) -> tuple[list[Segments], IntArray, dict[int, FloatArray]]:
    """Return all runs' genie values, the window in which each ends and the probability of staying unseen until then."""
    n_locations, last = model.prior.n_locations, model.n_steps - 1
    matrix = model.prior.transition
    # levels: 0 … tolerance wrong guesses left, then the plain probability of the run
    values = np.ones((1, tolerance + 2, n_locations))
    end_windows = [last + 1]
    segments: list[Segments] = []
    unseen: dict[int, FloatArray] = {}
    for window in range(last, -2, -1):
        if window < last:
            moves = matrix if window >= 0 else begin
            sighted, after = model.active[window + 1], model.hidden[window + 1]
            columns = moves[:, sighted]
            columns = (columns if isinstance(columns, np.ndarray) else columns.toarray()).T
            values = np.concatenate(
                [
                    genie_step(Kernel(moves[:, after]), values[:, :, after], has_total=True),
                    np.broadcast_to(columns[:, None, :], (sighted.size, tolerance + 2, columns.shape[1])),
                ]
            )
            end_windows += [window + 1] * sighted.size
        starts = model.active[window] if window >= 0 else np.arange(len(begin))
        table = np.moveaxis(values[:, :, starts], -1, 0)
        segments.append(Segments(window, starts, table[..., :-1], table[..., -1]))
        if keep_unseen:
            unseen[window] = values[:, -1]
    return segments, np.array(end_windows), unseen


def segment_operations(model: HiddenMarkovModel, tolerance: int) -> float:
    """Estimate the number of multiplications in `log_segment`, so that the bound can be skipped if it is too slow."""
    model = model.raw
    sighted = np.array([active.size for active in model.active])
    hidden = np.array([window.size for window in model.hidden])
    matrix = model.prior.transition
    per_location = model.prior.n_locations if isinstance(matrix, np.ndarray) else matrix.nnz / model.prior.n_locations
    n_ends = 1 + np.concatenate([np.cumsum(sighted[::-1])[::-1][1:], [0]])
    genie = (tolerance + 1) * per_location * float(n_ends @ hidden)
    return genie + (tolerance + 1) ** 2 * float(n_ends @ sighted)


# Moments of the number of right guesses in an unseen run.


def _moment_bounds(
    model: HiddenMarkovModel,
    part: Segments,
    begin: FloatArray,
    unseen: dict[int, FloatArray],
    kernels: dict[tuple[int, int], FloatArray],
    n_moments: int,
) -> list[FloatArray]:
    """Return σ_1, σ_2, … up to ``n_moments``, each (n_starts, n_ends), for the runs that start in one window."""
    # `begin`: (n, M) distributions of the first location; `unseen`: per window the probability (n_ends, M) of staying
    # unseen from there to each end. Beyond j = 1 the time is O(n_steps³ · sensors · M²) per j.
    window, bounds = part.window, []
    weights = dict(_unseen_after(model, window, begin if window < 0 else model.prior.transition[part.starts]))  # S_1
    for j in range(1, min(n_moments, max(1, model.n_steps - 1 - window)) + 1):
        if j > 1:  # S_j from S_{j−1}
            previous, windows = weights, sorted(weights)
            weights = {later: np.zeros_like(previous[later]) for later in windows[1:]}
            for later, total in weights.items():
                for before in windows[: windows.index(later)]:
                    for out, row in zip(total, previous[before]):
                        out += np.max(kernels[before, later] * row[:, None], axis=0)
        bound = np.zeros((part.starts.size, unseen[window].shape[0]))
        for later, weight in weights.items():
            after = unseen[later]
            for out, row in zip(bound, weight):
                # ends at or before this window have no such place in their run
                out[: len(after)] += (after * row).max(axis=1)
        bounds.append(bound)
    return bounds


def _unseen_after(model: HiddenMarkovModel, window: int, current: FloatArray) -> Iterator[tuple[int, FloatArray]]:
    """Yield each later window with ``current`` advanced to the next one and masked where seen."""
    for later in range(window + 1, model.n_steps):
        moved = current if later == window + 1 else current @ model.prior.transition
        current = moved.copy()
        current[:, model.active[later]] = 0.0
        yield later, current
