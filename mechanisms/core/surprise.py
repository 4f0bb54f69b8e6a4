"""Local surprise: trust a cell's noisy count if neither the prediction nor the noise can explain it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.intervals import TINY
from penstock.mechanisms.core.noise_family import NOISE_FAMILIES
from penstock.mechanisms.core.portable import exp, log
from penstock.mechanisms.core.state import State

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Factors by which an event's size, and the sum of a cell's surprises, fall with each further window.
EVENT_FADING, SUM_FADING = 0.85, 0.7
#: Probability, before a count is seen, that an event goes on for another window; below `FORGOTTEN` it is over.
PERSISTENCE, FORGOTTEN = 0.8, 0.05
#: Windows after which an event is nothing unusual any more: it is followed as before, and the others learn from it.
LONGEST = 3
#: False alarms that noise alone may raise in a day, in all cells together, divided by the two tests.
FALSE_ALARMS_PER_DAY = 1.0
#: Counts that a day is taken to have at least: where there are few, one false alarm a day would be most of them.
MIN_COUNTS = 1000.0
#: Factor by which the weight of a window falls in a cell's usual surprise; windows that a usual one of 1 counts as.
USUAL_FADING, USUAL_WEIGHT = 0.99, 24.0
#: Standard errors by which a cell's usual surprise must be above 1 to widen its intervals.
CLEAR_RATIO = 2.0
#: Coefficient of the last term in the tail of a faded sum of Laplace noise; those of earlier terms alternate.
_LARGEST_TERM = float(np.prod(1.0 / (1.0 - SUM_FADING ** (2 * np.arange(1.0, 60.0)))))


class Belief(NamedTuple):
    """The belief about each cell after a window: whether an event is under way and what the count would then be."""

    belief: Array  # probability that the cell has an event; 0 in cells where nothing is unusual
    mean: Array  # the count if it has one
    variance: Array
    spread: Array  # variance of the prediction without an event, by what the cell's errors usually are
    alarm: Mask  # cells in which an event is likelier than not and not older than `LONGEST` windows

    def mixed(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Combine the given no-event mean and variance with those under an event."""
        other = 1.0 - self.belief
        spread = self.belief * other * (self.mean - mean) ** 2
        mixed = other * mean + self.belief * self.mean
        return np.where(self.belief > 0, mixed, mean), np.where(
            self.belief > 0, other * variance + self.belief * self.variance + spread, variance
        )


def start(facts: Facts) -> State:
    """Return the initial state, with no events and no surprises."""
    shape = (*facts.shape, facts.n_cells)
    zeros = ("surprises", "event_belief", "event_size", "event_variance", "event_windows")
    # Faded sums of a cell's squared surprises and of the squares of their faded sum, and the windows in them.
    usual = ("usual_squares", "usual_sums", "usual_weight")
    return {name: np.zeros(shape) for name in zeros} | {name: np.full(shape, USUAL_WEIGHT) for name in usual}


def limits(family: str, scale: Any, n_counts: float, begun: Any = True) -> tuple[Any, Any]:
    """Return the alarm limits for a single surprise and for a cell's decayed sum, in standard deviations of the noise.

    Noise alone passes either with a probability of at most ``FALSE_ALARMS_PER_DAY / (2 · n_counts)``, with ``n_counts``
    a day in all cells, at least `MIN_COUNTS`. Where nothing has ``begun`` they are infinite. Prediction errors that are
    added to the noise have no heavier tails, so that the law of the noise bounds that of both. Laplace noise passes x·b
    with a probability of exp(−x), the sum with at most `_LARGEST_TERM` times that of its last term. Discrete Gaussian
    noise has tails of Gaussian noise plus one, and sums those of the bound on their moments (Canonne, Kamath, Steinke
    2020, propositions 24 and 25). Discrete Laplace noise is Laplace noise, rounded by less than one.
    """
    tail = FALSE_ALARMS_PER_DAY / (2.0 * max(n_counts, MIN_COUNTS))
    scale = np.maximum(np.where(np.isinf(scale), 1.0, np.asarray(scale, np.float64)), TINY)
    kept = np.sqrt(1.0 - SUM_FADING**2)
    if family == "none":
        return np.inf, np.inf
    if family in ("laplace", "discrete_laplace"):
        rounding = 1.0 if family == "discrete_laplace" else 0.0
        single = -log(tail) * scale + rounding
        summed = kept * (log(_LARGEST_TERM / tail) * scale + rounding / (1.0 - SUM_FADING))
    else:
        from statistics import NormalDist  # few configurations need it

        single = summed = NormalDist().inv_cdf(1.0 - tail / 2.0) * scale
        if family == "discrete_gaussian":
            single, summed = single + 1.0, np.sqrt(2.0 * log(2.0 / tail)) * scale
    deviation = np.maximum(NOISE_FAMILIES[family].standard_deviation(scale), TINY)
    begun = np.asarray(begun)[..., None]
    return np.where(begun, single / deviation, np.inf), np.where(begun, summed / deviation, np.inf)


def believed(
    predicted: Array, spread: Array, values: Array, variance: Array, seen: Mask, limit: tuple[Any, Any], state: State
) -> tuple[Belief, State]:
    """Detect events in one window's noisy counts and return the beliefs and next state.

    A cell's surprise is its error over the standard deviation of prediction and noise together. Where it passes the
    limit, or the faded sum of the last ones does, an event has begun: the prediction's variance grows by the squared
    error beyond what was expected. From then on two predictions stand side by side, with the event's size, which
    wanders and fades, and without it; each noisy count says which is likelier, so that an event that ends is given up
    in the window in which it ends. After `LONGEST` windows it is no alarm any more: the cell's surprises count again
    in what is usual for it.
    """
    belief, size, doubt = (state[name] for name in ("event_belief", "event_size", "event_variance"))
    usual, expected = predicted, np.maximum(spread + variance, TINY)
    # The mean square of a cell's surprises where it is clearly above 1.
    weight = state["usual_weight"]
    square = np.maximum(state["usual_squares"] / weight - CLEAR_RATIO * np.sqrt(2.0 / weight), 1.0)
    spread = spread + (square - 1.0) * expected
    usual_total = np.maximum(spread + variance, TINY)
    event_mean = np.maximum(predicted + EVENT_FADING * size, 0.0)
    event_mean_spread = spread + EVENT_FADING**2 * doubt + (1.0 - EVENT_FADING**2) * size**2
    event_total = np.maximum(event_mean_spread + variance, TINY)

    # Is an event that was known still there?
    errors = (values - usual) ** 2 / usual_total, (values - event_mean) ** 2 / event_total
    odds = 0.5 * (errors[0] - errors[1] + log(usual_total / event_total))
    prior = PERSISTENCE * belief
    after = np.where(seen, prior / (prior + (1.0 - prior) * exp(-odds)), prior)

    # Is this count beyond both predictions? A cell whose errors are often larger than the others' has a higher limit.
    is_quiet = seen & ((belief == 0) | (state["event_windows"] > LONGEST))
    surprise = (values - usual) / np.sqrt(expected)
    surprises = np.where(seen, np.where(is_quiet, SUM_FADING * state["surprises"] + surprise, 0.0), state["surprises"])
    summed = (1.0 - SUM_FADING**2) * surprises**2
    minimum = np.where((belief > 0) & (errors[1] < errors[0]), errors[1], surprise**2)
    maximum, most_summed = (
        np.square(one) * np.maximum(state[name] / state["usual_weight"], 1.0)
        for one, name in zip(limit, ("usual_squares", "usual_sums"))
    )
    fresh = seen & ((minimum > maximum) | (summed > most_summed))
    after = np.where(fresh, 1.0, after)
    mean = np.where(fresh, usual, event_mean)
    square = np.maximum(surprise**2, summed)
    event_spread = np.where(fresh, np.maximum(square * expected - variance, spread), event_mean_spread)
    usually = {
        name: np.where(is_quiet, USUAL_FADING * state[name] + new, state[name])
        for name, new in (
            ("usual_squares", np.minimum(surprise**2, maximum)),
            ("usual_sums", np.minimum(summed, most_summed)),
            ("usual_weight", 1.0),
        )
    }

    gain = np.where(seen, event_spread / np.maximum(event_spread + variance, TINY), 0.0)
    mean = np.maximum(mean + gain * (values - mean), 0.0)
    left = np.where(seen, gain * variance, event_spread)
    forgotten = after < FORGOTTEN
    after = np.where(forgotten, 0.0, after)
    windows = np.where(after > 0, state["event_windows"] + 1.0, 0.0)
    alarm = (after > 0.5) & (windows <= LONGEST)
    return Belief(after, mean, left, spread, alarm), usually | {
        "event_windows": windows,
        "surprises": np.where(fresh, 0.0, surprises),
        "event_belief": after,
        "event_size": np.where(forgotten, 0.0, mean - predicted),
        "event_variance": np.where(forgotten, 0.0, left),
    }
