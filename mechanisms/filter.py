"""A filter that predicts counts from earlier releases and combines each prediction with the noisy count."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core import surprise, usual_days
from penstock.mechanisms.core.contract import DAY, DAY_TYPES, Facts, Postprocess, Release
from penstock.mechanisms.core.intervals import TINY
from penstock.mechanisms.core.noise_family import NOISE_FAMILIES, families
from penstock.mechanisms.core.plugin import ParameterError, parameter
from penstock.mechanisms.core.portable import exp, millionths
from penstock.mechanisms.core.posterior import posterior
from penstock.mechanisms.core.state import State
from penstock.mechanisms.core.usual_days import Noisy, Profile, UsualCounts

Array = NDArray[np.float64]

#: Weight of each feature, in the order of `_features`, before anything is learned.
PRIOR_WEIGHTS = np.array([0.5, 0.3, 0.0, 0.2, 0.0, 0.0, 0.0])
#: Which of them is the cell's mean.
MEAN = 2
#: Windows over which today's level is compared with that of the usual day, and how far it may be from it.
LEVEL_WINDOWS, LARGEST_LEVEL = 3, 5.0
#: Factors by which the weight of a window falls with each further one: in the regression, and in its variances.
FORGETTING, VARIANCE_FORGETTING = 0.995, 0.99
#: A window before which nothing is known counts as this much of one in the variance of the errors.
FIRST_WEIGHT = 0.2
#: Standard errors by which the errors of a window must stand out of the noise to widen its variances at once.
JUMP = 2.0
#: Levels of a prediction, each of which is twice the one below it; the lowest is less than a quarter of a person.
LEVELS, LOWEST = 16, 2
#: How many squared errors the common ratio of variance to mean is worth at a level, and errors its bias of 0.
PRIOR_WEIGHT = 8.0
#: Standard deviation of the common error before any is seen, as a share of the counts; worth one window that shows it.
COMMON_ERROR = 0.2
#: Standard deviation of a profile's error before any is seen, as a share of the counts, beside that of counts.
PROFILE_ERROR = 0.3
#: The least that a prediction counts as in the variance of its errors: a share of the mean one, or of one person.
MIN_SIZE = 0.1
#: The least share of an error that is taken to be left once the common one is out.
MIN_LEFT = 0.2
#: How often in a window events are looked for, each time without the cells that have one.
PASSES = 2
#: Standard errors above 0 at which a mean of all noisy counts, or of a cell's, is as likely noise alone as people.
CLEAR_MEAN = 4.0


@dataclass(frozen=True, kw_only=True)
class Filter(Postprocess):
    """Replace each noisy count with an estimate and its standard deviation.

    Parameters
    ----------
    slots
        Times of day that have means of their own: 24 for hours. Where a day has fewer windows, each is one.
    profile
        Usual counts that are known before (`core.usual_days`): what a cell is predicted by until releases say more.

    **Privacy.** No guarantee of its own: it reads earlier releases and public facts only, so that the step before it
    keeps its unit, neighbours and budget, and nothing more is charged (post-processing; Dwork, McSherry, Nissim, Smith
    2006).

    Notes
    -----
    Time and state O(slots × n_cells) a window, 64 to 384 values of each count looked at twice; and time
    O(slots² × n_cells) twice a day.

    Each cell is predicted from features of the past: what is usual on a day of this type (weekday, Saturday, Sunday or
    public holiday) at this time (`core.usual_days`), with and without today's level, the cell's mean, the last value.
    The cells' means are drawn together by as much as noise of the known variance drives them apart (Efron, Morris
    1973). The means by type and time form a matrix: its part of rank one, and the rest in the few patterns that stand
    out of the noise, with singular values shrunk by what noise adds to them (Gavish, Donoho 2017); their sizes are
    drawn from types of day to the time of day, in the same way as cells. The weights of the features come from a
    recursive least-squares regression on the noisy counts that all cells share; the noise of the present count is
    independent of the features, so that the regression is consistent. Predictions of like size (each level twice the
    one below it) have a bias and a variance P = κ·m in common, learned from the errors of earlier ones less the noise:
    of few, the bias is drawn to 0 and κ to that of all levels. P is more where a cell's errors are clearly larger.
    Released is the median of the count's posterior (`core.posterior`), by the law of the noise, which is below the mean
    where counts are small, and a standard deviation whose 95 % interval around the median holds 95 % of the posterior,
    where P has one standard error of κ more. In the median a prediction counts by the probability that the mean of all
    noisy counts so far, or of the cell's, is not noise alone: until `CLEAR_MEAN` standard errors show people, zeros are
    nearer, as they are in hindsight where hardly anyone is counted. The next windows follow m + P/(P + R)·(y − m), y
    being the noisy count, R the variance of its noise. What the errors of all cells have in common in a window is
    estimated first and taken out, and P is more at once where those of the other cells are clearly larger.
    Where a mechanism repeats or refuses, and where a sensor is not active,
    nothing is learned; there m stands alone, with a variance that grows with the gap, and more at times of day of which
    nothing was ever published. Where means of groups are released the cells may differ from them as from 0.

    A count that neither the prediction nor noise explains is believed (`core.surprise`): the cell has an ``alarm``,
    follows its noisy counts, and teaches the others nothing until the event is over. Noise alone raises at most one
    alarm a day in all cells, by the law of the released noise; cells whose errors are often large have a higher limit.
    After `surprise.LONGEST` windows an event is no alarm any more: what it shows is the cell's new usual day.

    Examples
    --------
    >>> from penstock.mechanisms.core.chain import Chain
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> from penstock.mechanisms.gaussian import Gaussian
    >>> counts, noisy = np.tile([[100, 50, 0, 20]], (48, 1)), Gaussian(sigma=10.0)
    >>> run_mechanism(noisy, counts, seed=1)[-1].values.round().tolist()
    [89.0, 47.0, 9.0, 12.0]
    >>> filtered = run_mechanism(Chain.of([noisy, Filter()]), counts, seed=1)[-1]
    >>> filtered.values.round().tolist(), filtered.standard_deviation.round(1).tolist()
    ([95.0, 52.0, 0.0, 17.0], [6.1, 5.6, 2.0, 3.6])
    """

    slots: int = parameter(24, doc="times of day that have a mean of their own", at_least=1, at_most=96)
    profile: Profile | None = parameter(None, doc="counts that are usual, known before")
    reads_noise: ClassVar[bool] = True
    raises_alarms: ClassVar[bool] = True
    version: ClassVar[int] = 9

    def start(self, facts: Facts) -> State:
        """Return the initial state."""
        n_slots, n_features = min(self.slots, facts.windows_per_day), len(PRIOR_WEIGHTS)
        shape, n_cells = facts.shape, facts.n_cells
        profile = None
        if self.profile is not None:
            profile = UsualCounts.read(self.profile.file).rows(n_slots, facts.cells, n_cells)
        return {
            "windows_per_day": facts.constant(facts.windows_per_day, np.int64),
            **usual_days.start(facts, n_slots, profile),
            # The last filtered values, and the totals of the last ones, newest first; NaN: none yet.
            "last": np.zeros((*shape, n_cells)),
            "totals": np.full((*shape, LEVEL_WINDOWS), np.nan),
            "gap": facts.constant(0, np.int64),
            "hidden": np.zeros((*shape, n_cells)),
            # The regression: sums of features × features and of features × counts; the mean variance of the last noise.
            "information": np.zeros((*shape, n_features, n_features)),
            "moments": np.zeros((*shape, n_features)),
            "variance": facts.constant(1.0),
            # By level of the prediction: sums of errors, of their weights, of squared errors, and of their weights; the
            # last two also of single counts alone.
            "levels": np.zeros((*shape, 6, LEVELS)),
            # What windows show of the common error's variance: sums of it by its precision, and of these.
            "common_errors": facts.constant(0.0),
            "common_weights": facts.constant(0.0),
            **surprise.start(facts),
        }

    def process(self, release: Release, state: State) -> tuple[Release, State]:
        """Filter a release and update the state. Raise `ParameterError` if the noise variance is unknown."""
        values = np.asarray(release.values, np.float64)
        inactive = np.isnan(values)
        seen = np.asarray(np.asarray(release.action) == "published")[..., None] & ~inactive
        noisy = Noisy(
            values=np.where(seen, values, 0.0),
            variance=np.where(seen, noise_variance(release.noise, release.scale), 1.0),
            seen=seen,
        )
        n_slots = state["means"].shape[-2] // len(DAY_TYPES)
        per_day = int(np.max(state["windows_per_day"]))
        first, slot = release.day_type * n_slots, release.time_of_day * n_slots // DAY
        begun = np.asarray(state["levels"][..., 3, :].sum(-1) > 0) | ("profile" in state)

        hidden = group_variance(release, seen, state["hidden"])
        features = _features(first, slot, state)
        predicted, level = _predict(features, noisy, begun, state)
        size = np.maximum(predicted, MIN_SIZE * np.maximum(predicted.mean(-1), 1.0)[..., None])
        known, caution, beside = _spread(predicted, size, level, state)
        n_counts = float(per_day * values.shape[-1])
        limit = surprise.limits(release.noise, release.scale, n_counts, begun)

        # Cells with an event say nothing of the others: those of before, then those that this window shows, of which
        # the most surprising hide the others at first.
        is_quiet = seen & (state["event_belief"] <= 0.5)
        for _ in range(PASSES):
            shared = noisy._replace(seen=is_quiet)
            shifted, spread, uncertainty, common = _correct_common_error(predicted, known, shared, begun, state)
            total = spread + uncertainty
            event, events = surprise.believed(shifted, total, noisy.values, noisy.variance, seen, limit, state)
            is_quiet = seen & (event.belief <= 0.5)
        shared = noisy._replace(seen=is_quiet)

        alone = event.spread - uncertainty + _time_of_day_variance(first + slot, size, seen, state)
        best = posterior(
            shifted, alone, uncertainty + caution, noisy, release.noise, release.scale, event, _evidence(noisy, state)
        )
        gain = np.where(seen, alone / (alone + noisy.variance), 0.0)
        linear = np.maximum(shifted + gain * (noisy.values - shifted), 0.0)
        usual = np.where(event.alarm, shifted, linear)
        variance = best.deviation**2 + hidden + (1.0 - gain) ** 2 * beside
        shown = replace(
            release,
            values=np.where(inactive, np.nan, millionths(best.median)),
            standard_deviation=np.where(inactive, np.nan, millionths(np.sqrt(variance))),
            alarm=event.alarm & ~inactive,
        )
        learned = common | events
        learned |= _update(features, shifted, uncertainty, spread, size, level, shared, hidden, begun, state)
        shared = noisy._replace(seen=seen & ~event.alarm)
        learned |= usual_days.learned(first + slot, shared, shifted, learned["variance"], per_day, state)
        return shown, state | learned | {
            "last": usual,
            "hidden": hidden,
            "totals": np.concatenate([usual.sum(-1)[..., None], state["totals"][..., :-1]], -1),
            "gap": np.where(seen.any(-1), 0, np.minimum(state["gap"] + 1, n_slots)),
        }


def noise_variance(family: str, scale: Any) -> Any:
    """Return each cell's noise variance in a release. Raise `ParameterError` if the family is unknown.

    >>> float(noise_variance("laplace", 3.0)), noise_variance("discrete_gaussian", np.array([2.0, 0.5, 0.0])).round(3)
    (18.0, array([4.   , 0.215, 0.   ]))
    """
    if family == "none":
        return np.zeros(())
    if family not in families("counts"):
        raise ParameterError("noise", family, f"{', '.join(families('counts'))} or none")
    return NOISE_FAMILIES[family].variance(scale)


def group_variance(release: Release, seen: NDArray[np.bool_], before: Array) -> Array:
    """Return the variance of counts around their groups' released means. Unpublished cells keep their old variance.

    A mean says nothing of how its cells differ, however often it is released: counts of a group are taken to be as far
    from it as from 0, and to vary as counts do. A group's scale is smaller, that of the mean, and its cells share a
    value.

    >>> release = Release(window=1, values=np.array([40.0, 3.0, 3.0]), noise="laplace", scale=np.array([2.0, 1.0, 1.0]))
    >>> group_variance(release, np.ones(3, bool), np.zeros(3)).tolist()
    [0.0, 12.0, 12.0]
    """
    scale = np.asarray(release.scale, np.float64)
    if not scale.ndim or scale.shape[-1] < 2:
        return np.where(seen, 0.0, before)
    values = np.where(seen, release.values, 0.0)
    scale = np.where(seen, scale, 0.0)
    ordered = np.sort(np.where(seen, values, np.nan), -1)  # NaN comes last
    n_distinct = (np.diff(ordered, axis=-1) > 0).sum(-1) + 1
    # Where no cell stands alone all scales may be the same.
    is_common = 2 * n_distinct <= np.count_nonzero(seen, -1)
    is_mean = seen & ((scale < scale.max(-1)[..., None]) | is_common[..., None])
    return np.where(seen, np.where(is_mean, values**2 + np.abs(values), 0.0), before)


# All sums over cells are NumPy's own, without BLAS, whose last bit may depend on the number of threads.


def _features(first: int, slot: int, state: State) -> Array:
    """Return the regression features, shape (..., n_features, n_cells)."""
    last, totals = state["last"], state["totals"]
    n_slots = state["means"].shape[-2] // len(DAY_TYPES)
    mean = state["patterns"][..., 0, :]
    profile = usual_days.usual([first + (slot + by) % n_slots for by in (0, -1, 1)], state)
    today, before, after = (profile[..., row, :] for row in range(3))
    # Today's level: the last windows in all, against the same times of the usual day.
    is_known = ~np.isnan(totals)
    back = [first + (slot - 1 - number) % n_slots for number in range(totals.shape[-1])]
    usual = usual_days.usual(back, state).sum(-1)
    level = np.where(is_known, totals, 0.0).sum(-1) / np.maximum((usual * is_known).sum(-1), TINY)
    level = np.where(is_known.any(-1), np.clip(level, 1 / LARGEST_LEVEL, LARGEST_LEVEL), 1.0)[..., None]
    smooth = 0.5 * today + 0.25 * (before + after)
    return np.stack([today * level, today, mean, last, before, smooth, np.ones_like(last)], -2)


def _predict(features: Array, noisy: Noisy, begun: NDArray[np.bool_], state: State) -> tuple[Array, NDArray[np.int64]]:
    """Return each cell's bias-corrected prediction and its level."""
    # A ridge towards the first weights, worth the information of one window with the cells' means.
    ridge = np.maximum((features[..., MEAN, :] ** 2).sum(-1) / np.maximum(state["variance"], TINY), TINY)[..., None]
    information = state["information"] + ridge[..., None] * np.eye(len(PRIOR_WEIGHTS))
    weights = np.linalg.solve(information, (state["moments"] + ridge * PRIOR_WEIGHTS)[..., None])[..., 0]
    predicted: Array = np.maximum(np.einsum("...k,...kc->...c", weights, features), 0.0)
    # Before the first release there is nothing to predict from: its own mean over the cells stands for each of them.
    mean: Array = np.maximum(noisy.values.sum(-1) / np.maximum(np.count_nonzero(noisy.seen, -1), 1), 0.0)
    predicted = np.where(begun[..., None], predicted, mean[..., None])
    level = np.clip(np.frexp(predicted)[1] + LOWEST, 0, LEVELS - 1)
    error, weight = (np.take_along_axis(state["levels"][..., row, :], level, -1) for row in (0, 1))
    bias = error / (weight + PRIOR_WEIGHT / np.maximum(state["variance"], TINY)[..., None])
    predicted = np.maximum(predicted + bias, 0.0)
    # Where nothing is published predictions feed on themselves, and grow without end if the weights sum to more than 1.
    is_blind = ~noisy.seen.any(-1, keepdims=True)
    return np.where(is_blind, np.minimum(predicted, features.max(-2)), predicted), level


def _spread(predicted: Array, size: Array, level: NDArray[np.int64], state: State) -> tuple[Array, Array, Array]:
    """Return each prediction's variance (κ·m with its level's κ), its standard error and the within-group variance."""
    # Means of groups err less than their cells do: what errors of single counts show beyond is in the intervals.
    size = np.sqrt(1.0 + state["gap"])[..., None] * size
    # Before the first release the cells may be as far from their mean as from 0, or from the profile by a share of it.
    first = np.maximum(predicted.max(-1), 1.0)[..., None] * size
    if "profile" in state:
        first = size + PROFILE_ERROR**2 * size**2
    levels = state["levels"]
    spread, uncertainty = _level_variance(levels[..., 2:4, :], size, first, level)
    single, single_uncertainty = _level_variance(levels[..., 4:6, :], size, first, level)
    return spread, uncertainty, np.maximum(single - spread, 0.0) + np.maximum(single_uncertainty - uncertainty, 0.0)


def _level_variance(sums: Array, size: Array, first: Array, level: NDArray[np.int64]) -> tuple[Array, Array]:
    """Estimate each level's variance from squared errors and weights, and return it with its standard error."""
    errors, weights = sums[..., 0, :], sums[..., 1, :]
    total = weights.sum(-1, keepdims=True)
    some = np.maximum(total, TINY**2)
    common = np.maximum(errors.sum(-1, keepdims=True) / some, TINY)
    errors, weights = (np.take_along_axis(one, level, -1) for one in (errors, weights))
    # Where few errors are known at all, the common κ is not known to be small.
    prior_weight = PRIOR_WEIGHT / (common + np.sqrt(2.0 / some)) ** 2
    information = weights + prior_weight
    learned = np.maximum((errors + prior_weight * common) / information, TINY) * size
    return np.where(total > 0, learned, first), np.where(total > 0, np.sqrt(2.0 / information) * size, 0.0)


def _evidence(noisy: Noisy, state: State) -> Array:
    """Return the probability that each prediction is more than noise, by the mean of the cell or of all cells."""
    if "profile" in state:
        return np.ones_like(noisy.values)
    variances = np.concatenate([state["variances"], np.where(noisy.seen, noisy.variance, 0.0)[..., None, :]], -2)
    means = np.concatenate([state["means"], noisy.values[..., None, :]], -2)
    precision = np.where(variances > 0, 1.0 / np.maximum(variances, TINY), 0.0)
    total, of_cell = (precision * means).sum(-2), precision.sum(-2)
    of_all = _exceeds_noise(total.sum(-1, keepdims=True), of_cell.sum(-1, keepdims=True))
    return np.maximum(of_all, _exceeds_noise(total, of_cell))


def _exceeds_noise(total: Array, precision: Array) -> Array:
    """Return the probability that a precision-weighted sum of counts is more than noise."""
    square = np.maximum(total, 0.0) ** 2 / np.maximum(precision, TINY)
    return np.asarray(1.0 / (1.0 + exp(np.minimum((CLEAR_MEAN**2 - square) / 2.0, 50.0))))


def _time_of_day_variance(slot: int, size: Array, seen: NDArray[np.bool_], state: State) -> Array:
    """Return the additional prediction variance at times of day that have never been published."""
    # It may be as far from the others as these are from 0, and a cell that is empty at those may be as full as others.
    is_new = ~(state["variances"][..., slot, :] > 0).any(-1) & ~seen.any(-1)
    return np.asarray((is_new * size.max(-1))[..., None] * np.maximum(size, size.mean(-1)[..., None]))


def _correct_common_error(
    predicted: Array, spread: Array, noisy: Noisy, begun: NDArray[np.bool_], state: State
) -> tuple[Array, Array, Array, State]:
    """Correct predictions for the error common to all cells. Return them with both variances and the state."""
    shift, uncertainty, _ = _common_error(predicted, spread, noisy, begun, state)
    # A variance is larger at once if the errors of the other cells clearly are: an event must not hide itself.
    weight = noisy.seen / (spread + noisy.variance)
    squares = np.maximum(_sum_of_others(weight**2 * spread**2), TINY**2)
    error = (noisy.values - predicted * (1.0 + shift)) ** 2 - noisy.variance + uncertainty
    ratio = _sum_of_others(weight**2 * spread * error) / squares
    spread = np.asarray(spread * np.maximum(1.0, ratio - JUMP * np.sqrt(2 / squares)))
    shift, uncertainty, common = _common_error(predicted, spread, noisy, begun, state)
    return predicted * (1.0 + shift), spread, uncertainty, common


def _sum_of_others(parts: Array) -> Array:
    """Return, for each cell, the sum of all other cells' parts."""
    return np.asarray(parts.sum(-1, keepdims=True) - parts)


def _common_error(
    predicted: Array, spread: Array, noisy: Noisy, begun: NDArray[np.bool_], state: State
) -> tuple[Array, Array, State]:
    """Estimate the relative error common to all cells, the variance due to its uncertainty and the next state."""
    # A late morning or a holiday: the sum over many cells shows it where the noise hides every single one.
    weight = noisy.seen / (spread + noisy.variance)
    parts, pulls = weight * predicted**2, weight * predicted * (noisy.values - predicted)
    precision, total = np.maximum(parts.sum(-1), TINY**2), pulls.sum(-1)
    learned = np.maximum((state["common_errors"] + COMMON_ERROR**2) / (state["common_weights"] + 1.0), TINY)
    # What two cells err together: the square of a cell's error shows what it errs alone, too.
    pairs = np.maximum(precision**2 - (parts**2).sum(-1), 0.0)
    squares = (pulls**2).sum(-1)
    observed = (total**2 - squares) / np.maximum(pairs, TINY**2)
    # √2 of it is the standard error where nothing is in common, which a cell that is far off by itself makes larger.
    crossed = np.maximum(squares**2 - (pulls**4).sum(-1), 0.0)
    error = np.sqrt(np.maximum(pairs, crossed)) / np.maximum(pairs, TINY**2)
    # A common error that stands out of the noise is believed at once.
    prior = np.maximum(learned, observed - JUMP * np.sqrt(2) * error)
    shift = np.where(begun, np.maximum(total / (precision + 1 / prior), -1.0), 0.0)
    uncertainty = np.where(begun, 1 / (precision + 1 / prior), 0.0)
    # Each window counts by its precision beside the prior's: of hardly anyone nothing is learned.
    weight = np.where(begun & noisy.seen.any(-1), (COMMON_ERROR**2 / (learned + error)) ** 2, 0.0)
    fading = np.where(weight > 0, VARIANCE_FORGETTING, 1.0)
    after = {
        "common_errors": fading * state["common_errors"] + weight * observed,
        "common_weights": fading * state["common_weights"] + weight,
    }
    return shift[..., None], predicted**2 * uncertainty[..., None], after


def _update(
    features: Array,
    shifted: Array,
    uncertainty: Array,
    spread: Array,
    size: Array,
    level: NDArray[np.int64],
    noisy: Noisy,
    hidden: Array,
    begun: NDArray[np.bool_],
    state: State,
) -> State:
    """Update the regression and each level's errors with the data of one window."""
    published = noisy.seen.any(-1)
    weight = noisy.seen / (spread + noisy.variance)
    error = noisy.values - shifted
    # The more of a cell's error the common one took, the less is left to show.
    left = np.maximum(1.0 - weight * uncertainty, MIN_LEFT) ** 2
    square = np.where(begun[..., None], spread + (error**2 - noisy.variance + uncertainty - spread) / left, spread)
    information = np.where(begun, 1.0, FIRST_WEIGHT)[..., None] * left * weight**2 * size
    weight = weight * begun[..., None]
    single = information * (hidden == 0)
    errors = [weight * error, weight, information * square, information * size, single * square, single * size]
    sums = np.stack(errors, -2)
    by_level = np.einsum("...kc,...cl->...kl", sums, (level[..., None] == np.arange(LEVELS)).astype(np.float64))
    fading = np.where(published, FORGETTING, 1.0)[..., None]
    fading_errors = np.where(published, VARIANCE_FORGETTING, 1.0)[..., None, None]
    weighted = features * weight[..., None, :]
    products = np.einsum("...kc,...lc->...kl", weighted, features)
    variance = (noisy.variance * noisy.seen).sum(-1) / np.maximum(np.count_nonzero(noisy.seen, -1), 1)
    return {
        "information": fading[..., None] * state["information"] + products,
        "moments": fading * state["moments"] + np.einsum("...kc,...c->...k", weighted, noisy.values),
        "variance": np.where(published, variance, state["variance"]),
        "levels": fading_errors * state["levels"] + by_level,
    }
