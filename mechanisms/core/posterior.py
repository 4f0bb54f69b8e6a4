"""Posterior distributions of counts: predictions weighted by the likelihood of the noisy counts."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.intervals import LEVEL, TINY, deviation_of
from penstock.mechanisms.core.surprise import Belief
from penstock.mechanisms.core.usual_days import Noisy

Array = NDArray[np.float64]

#: Values of a count whose probability is worked out, from the least to the largest that is not out of the question.
POINTS = 64
#: Fraction of a variance's uncertainty that counts in the median. The larger, the sooner small counts are shown as 0.
UNCERTAINTY_WEIGHT = 0.3
#: Standard deviations of prediction and of noise within which a count is looked for.
REACH = 8.0
#: Probability below which the values at either end are left out when the others are looked at more closely.
TAIL_MASS = 1e-4
#: What is added to an interval that ends at whole numbers, so that these are inside by more than rounding.
INSIDE = 0.01
#: The least that a mean is taken to be.
MIN_MEAN = 1e-3
#: Mean from which a Poisson distribution is taken to be normal.
MANY = 1e6
#: Looks at the values of a count, each at fewer of them; cells that are worked on at a time, so that memory is bounded.
ROUNDS, CELLS_PER_BATCH = 6, 4096


class Posterior(NamedTuple):
    """Each count's posterior median, and a standard deviation whose 95 % interval covers 95 % of the posterior."""

    median: Array
    deviation: Array


def posterior(
    mean: Array,
    variance: Array,
    uncertainty: Array,
    noisy: Noisy,
    family: str,
    scale: Any,
    event: Belief,
    evidence: Any = 1.0,
) -> Posterior:
    """Compute the posterior of each count.

    The prior is a negative binomial with the prediction's mean m and variance P; where P is below m, a Poisson
    distribution of mean m²/P in steps of P/m. The median, which has the least absolute error to expect, is that of a
    prior no more skewed than a geometric one (P at most m + m²): what is beyond comes from noise in m. In the interval
    it counts in full: P is larger by the ``uncertainty``, and m is raised until P is at most m + m², for a prediction
    near 0 that may be wrong does not rule out counts above 0. In the median alone m is multiplied by the ``evidence``
    for it, a probability. The posterior is the prior where there is no noisy count, and the count where there is no
    noise. With the probability of the event's belief a count is normal with its mean and variance.
    """
    each = (mean, variance, uncertainty, scale, evidence, *noisy, *event)
    arrays = [np.broadcast_to(one, mean.shape).reshape(-1) for one in each]
    parts = [
        _posterior(family, *(one[begin : begin + CELLS_PER_BATCH] for one in arrays))
        for begin in range(0, mean.size, CELLS_PER_BATCH)
    ]
    medians, deviations = (np.concatenate(one).reshape(mean.shape) for one in zip(*parts)) if parts else (mean, mean)
    return Posterior(medians, deviations)


def _posterior(
    family: str, mean: Array, variance: Array, uncertainty: Array, scale: Array, evidence: Array, *given: Any
) -> Posterior:
    noisy, event = Noisy(*given[: len(Noisy._fields)]), Belief(*given[len(Noisy._fields) :])
    mean = np.maximum(mean, MIN_MEAN)
    shown = np.maximum(evidence * mean, MIN_MEAN)
    skewed = np.clip(variance + UNCERTAINTY_WEIGHT * uncertainty, TINY, shown + shown**2)
    variance = np.maximum(variance + uncertainty, TINY)
    raised = np.maximum(mean, (np.sqrt(1.0 + 4.0 * variance) - 1.0) / 2.0)
    law = family, np.maximum(scale, TINY)
    median = _median(*_weigh(shown, skewed, noisy, *law, event))
    counts, weights, step = _weigh(raised, variance, noisy, *law, event)
    away = np.abs(counts - median[..., None])
    order = np.argsort(away, -1, kind="stable")
    inside = np.take_along_axis(weights, order, -1).cumsum(-1)
    half = _select(away, _select(order, (inside >= LEVEL).argmax(-1)))
    deviation = np.where(
        half > 0, deviation_of(median, half + INSIDE * (step == 1.0)), np.sqrt((weights * away**2).sum(-1))
    )
    deviation = np.sqrt(deviation**2 + np.where(step > 1.0, step**2 / 12.0, 0.0))
    exact = noisy.seen & (noisy.variance == 0)
    return Posterior(np.where(exact, noisy.values, median), np.where(exact, 0.0, deviation))


def _weigh(
    mean: Array, variance: Array, noisy: Noisy, family: str, scale: Array, event: Belief
) -> tuple[Array, Array, Array]:
    """Return each count's grid of candidate values, their posterior probabilities and the grid step."""
    low, high = _range(mean, variance, noisy, event)
    counts, weights, step = np.empty((*mean.shape, POINTS)), np.empty((*mean.shape, POINTS)), np.empty(mean.shape)
    rows = np.arange(len(mean))  # cells to look at: those that are settled stay as they are
    for _ in range(ROUNDS):
        low = np.floor(low)
        width = np.maximum((high - low) / (POINTS - 1), 1.0)
        at = low[:, None] + width[:, None] * np.arange(POINTS)
        off = np.abs(noisy.values[:, None] - at) / scale[:, None]
        likelihood = np.where(noisy.seen[:, None], -off if "laplace" in family else -0.5 * off * off, 0.0)
        masses = _mix_event(_prior(at, mean, variance) + likelihood, at, event)
        counts[rows], weights[rows], step[rows] = at, masses, width
        below = masses.cumsum(-1)
        first = (below > TAIL_MASS).argmax(-1)
        last = (below >= 1.0 - TAIL_MASS).argmax(-1)
        # Decided for each cell alone: what others hold changes nothing.
        closer = np.flatnonzero((width > 1.0) & (last - first + 2 < POINTS // 2))
        if not closer.size:
            break
        low, high = np.maximum(low + width * (first - 1), 0.0)[closer], (low + width * (last + 1))[closer]
        rows, mean, variance, scale = rows[closer], mean[closer], variance[closer], scale[closer]
        noisy, event = Noisy._make(one[closer] for one in noisy), Belief._make(one[closer] for one in event)
    return counts, weights, step


def _range(mean: Array, variance: Array, noisy: Noisy, event: Belief) -> tuple[Array, Array]:
    """Return each count's range of plausible values, given the prediction, the noise and any event."""
    reach = REACH * np.maximum(np.sqrt(variance), variance / mean)
    off = REACH * np.sqrt(noisy.variance)
    low = np.where(noisy.seen, np.minimum(mean - reach, noisy.values - off), mean - reach)
    high = np.where(noisy.seen, np.maximum(mean + reach, noisy.values + off), mean + reach)
    width = np.where(event.belief > 0, REACH * np.sqrt(event.variance), 0.0)
    low = np.where(event.belief > 0, np.minimum(low, event.mean - width), low)
    high = np.where(event.belief > 0, np.maximum(high, event.mean + width), high)
    return np.maximum(low, 0.0), np.maximum(high, 1.0)


def _prior(counts: Array, mean: Array, variance: Array) -> Array:
    """Return the log prior of the counts, up to a constant per cell."""
    from scipy.special import gammaln  # loaded where a count is filtered

    part = np.minimum(variance / mean, 1.0)
    mean, variance = (mean / part)[..., None], (variance / part**2)[..., None]
    more, taken = variance - mean, counts / part[..., None]
    is_wide = more > TINY * mean
    shape = mean * np.minimum(mean / np.maximum(more, TINY * mean), 1.0 / TINY)
    ways = gammaln(taken + 1.0)
    log_mass = gammaln(taken + shape) - ways + taken * np.log(mean / (mean + shape))
    if is_wide.all():
        return np.asarray(log_mass)
    # Without a shape, whose logarithms would cancel; and of many the sum of logarithms keeps no digits either.
    narrow = np.where(mean < MANY, taken * np.log(mean) - ways, -((taken - mean) ** 2) / (2.0 * mean))
    return np.asarray(np.where(is_wide, log_mass, narrow))


def _mix_event(logarithms: Array, counts: Array, event: Belief) -> Array:
    """Mix the distributions of counts with and without an event."""
    weights = _normalise(logarithms)
    cells = np.flatnonzero(event.belief > 0)
    belief, middle, variance = (one[cells, None] for one in (event.belief, event.mean, event.variance))
    of_event = -((counts[cells] - middle) ** 2) / (2.0 * np.maximum(variance, 0.1))
    weights[cells] = (1.0 - belief) * weights[cells] + belief * _normalise(of_event)
    return weights


def _normalise(logarithms: Array) -> Array:
    weights = np.exp(logarithms - logarithms.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def _median(counts: Array, weights: Array, step: Array) -> Array:
    """Return the integer median, interpolating on grids coarser than 1."""
    below = weights.cumsum(-1)
    place = (below >= 0.5).argmax(-1)
    beyond = (_select(below, place) - 0.5) / np.maximum(_select(weights, place), TINY)
    median = _select(counts, place)
    return np.where((step == 1.0) | (median == 0), median, np.maximum(median + step * (0.5 - beyond), 0.0))


def _select(values: NDArray[Any], place: NDArray[np.integer[Any]]) -> NDArray[Any]:
    """Select one value per row along the last axis."""
    return np.take_along_axis(values, place[..., None], -1)[..., 0]
