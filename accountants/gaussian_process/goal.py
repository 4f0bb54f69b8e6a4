"""Calibrate noise to a goal for the loss about every secret, over a class of priors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg, optimize

from penstock.accountants.gaussian_process.design import cases, minimise_worst_loss
from penstock.accountants.gaussian_process.kernels import (
    Array,
    GaussianProcess,
    Indices,
    checked_times,
    named_family,
    noise_matrix,
    secret_family,
)
from penstock.accountants.gaussian_process.loss import (
    Response,
    conditional_response,
    largest_eigenvalue,
    loss_matrix,
    loss_per_eigenvalue,
)
from penstock.accountants.gaussian_process.running import largest_losses
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.run import Traces
from penstock.mechanisms.gaussian_trace import ConditionalGoal

#: Added to the worst loss found in a class, relative.
TOLERANCE = 1e-3
#: Relative slack by which the least noise for a goal is rounded up.
SAFETY = 1e-9
#: Of a designed covariance: relative distance from the optimum, rounds of design, and the gain that another is worth.
DESIGN_TOLERANCE, N_DESIGNS, MIN_GAIN = 0.05, 6, 0.01

Planned = TypeVar("Planned")


def planned_deviations(goal: ConditionalGoal, radius: float, traces: Traces) -> Array:
    """Return the smallest standard deviation that meets the goal for each trace, (n_users,), in metres per axis.

    Infinite if no noise is enough, because the prior determines a secret point from the others (see ``nugget``).
    """
    return np.array(_of_each_trace(partial(planned_sigma, goal, radius), goal.n_points, traces))


def planned_factors(goal: ConditionalGoal, radius: float, traces: Traces) -> tuple[Array, list[Array]]:
    """Return the noise designed by `planned_covariance` for each trace's first ``n_points`` points.

    Returns the standard deviation of each trace in the direction of least noise, √λ_min of its covariance Σ, and the
    Cholesky factor of Σ, both in metres; where no noise is enough, infinite and undefined. A point that costs
    ρ = radius²/(2·λ_min) is never charged too little: for every δ that moves some points by up to the radius, the sum
    of their ρ is at least δᵀΣ⁻¹δ/2.
    """

    def factor_of(times: Array) -> tuple[float, Array]:
        """Return one trace's smallest standard deviation and its factor."""
        covariance = planned_covariance(goal, radius, times)
        if not np.isfinite(covariance).all():
            return math.inf, np.full_like(covariance, np.nan)
        factor: Array = linalg.cholesky(covariance, lower=True)
        return float((1 - SAFETY) * linalg.svdvals(factor)[-1]), factor

    planned = _of_each_trace(factor_of, goal.n_points, traces)
    return np.array([minimum for minimum, _ in planned]), [factor for _, factor in planned]


def _of_each_trace(plan: Callable[[Array], Planned], n_points: int, traces: Traces) -> list[Planned]:
    """Apply a planner to each trace's first points, once per distinct sequence of time gaps."""
    planned: dict[bytes, Planned] = {}
    of_users = []
    for times in np.split(traces.times, traces.starts[1:]):
        gaps = np.diff(times[:n_points])
        if (known := gaps.tobytes()) not in planned:
            planned[known] = plan(np.concatenate([[0.0], np.cumsum(gaps) / 1000]))
        of_users.append(planned[known])
    return of_users


def planned_sigma(goal: ConditionalGoal, radius: float, times: ArrayLike) -> float:
    """Return the smallest standard deviation that meets the goal for a trace with points at ``times``, in seconds.

    For a class of length scales: enough for the worst of them, and at most 0.2 % more than that.
    """
    return planned_for_worst(goal, radius, times)[0]


def planned_for_worst(goal: ConditionalGoal, radius: float, times: ArrayLike) -> tuple[float, float]:
    """Return `planned_sigma` and the length scale in the class that attains the largest loss."""
    sigma, _, worst = _sigma_and_scales(goal, radius, checked_times(times), None)
    return sigma, worst


def planned_covariance(goal: ConditionalGoal, radius: float, times: ArrayLike) -> Array:
    """Design a noise covariance for one axis that meets the goal with less total variance than white noise.

    The first design is for the longest length scale; it is scaled until all of the class keep to the goal, as in
    `planned_sigma`, and those that were worst join the next design. White noise where no design needs less; diagonal
    and infinite if no noise is enough. Releases of a beginning of the trace are a marginal of all of them, so their
    losses are no larger. O(n³) for each of some hundred iterations of at most six designs.
    """
    points = checked_times(times)
    secrets, prior = promised_secrets(goal, len(points)), GaussianProcess.of(goal)
    sigma, *_ = _sigma_and_scales(goal, radius, points, None)
    best = np.diag(np.full(len(points), sigma**2))
    scales = {prior.length_scale}
    for _ in range(N_DESIGNS if math.isfinite(sigma) else 0):
        total = float(np.trace(best))
        known = [
            case
            for scale in sorted(scales)
            for case in cases(replace(prior, length_scale=scale), points, secrets, radius, goal.order)
        ]
        shape = minimise_worst_loss(known, total, DESIGN_TOLERANCE).covariance / total
        sigma, worst, _ = _sigma_and_scales(goal, radius, points, shape)
        if sigma**2 < total:
            best = sigma**2 * shape
        if worst <= scales and sigma**2 > (1 - MIN_GAIN) * total:
            break
        scales |= worst
    return best


def _sigma_and_scales(
    goal: ConditionalGoal, radius: float, points: Array, shape: Array | None
) -> tuple[float, set[float], float]:
    """Return the smallest σ for covariance σ²·shape (white by default), the binding length scales and the worst one."""
    prior, scales = GaussianProcess.of(goal), set[float]()
    secrets, is_class = promised_secrets(goal, len(points)), goal.length_scales.at_most is not None
    aim = goal.goal / (1 + 2 * TOLERANCE) if is_class else goal.goal
    relative = np.ones(len(points)) if shape is None else shape
    at, sigma = prior.length_scale, 0.0
    try:
        while True:
            alone = replace(prior, length_scale=at)
            sufficient = smallest_scale(aim, alone, points, secrets, radius, goal.order, shape)
            scales.add(at)
            sigma = max(sufficient, sigma * (1 + SAFETY))
            if not is_class:
                return sigma, scales, at
            state = {"times": points, "noise_variance": sigma**2 * relative, "past": np.zeros(1)}
            losses = partial(largest_losses, state, prior, secrets, radius, goal.order)
            loss, at = worst_length_scale(losses, prior, points)
            if loss <= goal.goal:
                return sigma, scales, at
    except ParameterError as error:
        if error.field != "nugget":
            raise
        return math.inf, scales, at


def promised_secrets(goal: ConditionalGoal, n_points: int) -> list[Indices]:
    """Return the secrets that a goal protects: its family of secrets in the whole trace and in each prefix."""
    if goal.secrets == "every_other":
        return [np.arange(first, last + 1, 2) for first in range(2) for last in range(first, n_points, 2)]
    complete = list(named_family(goal.secrets, n_points, goal.width))
    shorter = min(goal.width, n_points) if goal.secrets == "sliding_blocks" else 0
    return [np.arange(size) for size in range(1, shorter)] + complete


def smallest_sigma(
    goal: float,
    times: ArrayLike,
    secret: Any,
    length_scale: float,
    radius: float,
    order: float,
    kernel: str = "rbf",
    variance: float = 1.0,
    period: float | None = None,
    noise_covariance: ArrayLike | None = None,
    *,
    nugget: float = 0.0,
) -> float:
    """Find the smallest σ for which `conditional_inferential_loss` is at most ``goal`` for every secret.

    Noise of variance σ² at every point, or σ²·``noise_covariance``: more of it never raises the loss, so the root is
    unique; it is bracketed in closed form and rounded up. A shorter ``length_scale`` may need a larger σ:
    `conditional_goal` of `gaussian_trace` plans for all up to the longest.

    Parameters
    ----------
    goal
        Largest loss allowed, nats, above 0.
    secret
        One subset (indices or mask), or a sequence of subsets that must all be protected.
    noise_covariance
        Shape of the noise, (n, n); white when not given.
    times, length_scale, radius, order, kernel, variance, period, nugget
        As in `conditional_inferential_loss`.

    Returns
    -------
    float
        In the unit of the radius; its loss is at most the goal and at least 1 − 10⁻⁸ of it. About ten evaluations
        of O(n³) for each secret that needs more than those before it, one for the others.

    Raises
    ------
    ParameterError
        If the goal is not a number above 0, or as `conditional_inferential_loss`.

    Examples
    --------
    A point that stands alone needs σ = r·sqrt(λ / (2·goal)).

    >>> round(smallest_sigma(0.5, [0.0], [0], length_scale=1.0, radius=2.0, order=2.0), 6)
    2.828427
    """
    points = checked_times(times)
    prior = GaussianProcess(kernel=kernel, length_scale=length_scale, variance=variance, period=period, nugget=nugget)
    family = secret_family(secret, len(points), "secret")
    return smallest_scale(goal, prior, points, family, radius, order, noise_covariance)


def smallest_scale(
    goal: float,
    prior: GaussianProcess,
    times: Array,
    family: Sequence[Indices],
    radius: float,
    order: float,
    noise_covariance: ArrayLike | None = None,
) -> float:
    """Compute `smallest_sigma` for a prior and validated secrets."""
    if not (math.isfinite(goal) and goal > 0):
        raise ParameterError("goal", goal, "a finite number above 0")
    shape = noise_matrix(len(times), 1.0 if noise_covariance is None else None, noise_covariance)
    covariance = prior.covariance(times)
    minimum = 0.0
    # From the middle of the trace outwards: the worst is soon found, and most of the others are only looked at once.
    for number in sorted(range(len(family)), key=lambda number: abs(2 * number + 1 - len(family))):
        indices = family[number]
        weight = loss_per_eigenvalue(len(indices), radius, order)
        response = conditional_response(covariance, indices)
        if not minimum or weight * largest_eigenvalue(loss_matrix(response, minimum * shape)) > goal:
            minimum = max(minimum, _smallest_variance(goal, weight, response, shape))
    return math.sqrt(minimum)


def _smallest_variance(goal: float, weight: float, response: Response, shape: Array) -> float:
    def excess(log_variance: float) -> float:
        """Return the log ratio of the loss to the goal. It decreases as the variance grows."""
        matrix = loss_matrix(response, math.exp(log_variance) * shape)
        return math.log(weight * largest_eigenvalue(matrix) / goal)

    secret = response.mean.any(axis=1) & ~response.residual.any(axis=1)
    alone = 1.0 / float(linalg.eigvalsh(shape[np.ix_(secret, secret)])[0])
    exposed = largest_eigenvalue(loss_matrix(Response(response.mean, np.zeros_like(shape)), shape))
    low, high = math.log(weight * alone / goal) - SAFETY, math.log(weight * exposed / goal) + SAFETY
    root = optimize.brentq(excess, low, high, xtol=SAFETY / 4) if excess(low) > 0 else low
    return math.exp(root + SAFETY)


# A class of priors: every length scale up to a maximum.
#
# Meehan and Chaudhuri (2021) take the longest length scale for the worst. That holds for single secret points as far as
# we could see, and not for sets of them: see ``docs/conditional_inferential.md``. So the class is searched.


POINTS_PER_FACTOR_E = 8
STEEPNESS = 2.0
MAX_EVALUATIONS = 10_000


def worst_length_scale(
    quantity: Callable[[Array], Array], prior: GaussianProcess, times: ArrayLike
) -> tuple[float, float]:
    """Maximise a positive function over length scales up to the prior's. Return the maximum and where it occurs.

    The scale is laid out in logarithms, eight points to a factor e, and every interval is halved that could still
    hide a value more than `TOLERANCE` above the best one, if the quantity is nowhere more than twice as steep as
    seen around the interval. The figure returned has the tolerance added.
    """
    points, maximum = checked_times(times), prior.length_scale
    lags = np.abs(np.subtract.outer(points, points))
    if prior.period is not None:
        lags = np.abs(np.sin(np.pi * lags / prior.period))
    apart = lags[lags > 1e-9 * lags.max(initial=0.0)]
    # Below a thirtieth of the shortest lag the points are practically independent (correlation below e⁻³⁰).
    start, end = math.log(min(float(apart.min(initial=math.inf)) / 30.0, maximum)), math.log(maximum)
    at = np.linspace(start, end, max(2, math.ceil(POINTS_PER_FACTOR_E * (end - start)) + 1) if start < end else 1)
    values = quantity(np.minimum(np.exp(at), maximum))
    while np.isfinite(values).all() and len(at) < MAX_EVALUATIONS:
        widths, either = np.diff(at), np.maximum(values[:-1], values[1:])
        slopes = np.pad(np.abs(np.diff(values)) / widths, 1)
        steepest = np.maximum(np.maximum(slopes[:-2], slopes[1:-1]), slopes[2:])
        possible = np.maximum(0.5 * (values[:-1] + values[1:] + STEEPNESS * steepest * widths), either)
        doubtful = np.flatnonzero(possible > (1.0 + TOLERANCE) * values.max())
        if not doubtful.size:
            break
        middles = 0.5 * (at[doubtful] + at[doubtful + 1])
        values = np.insert(values, doubtful + 1, quantity(np.minimum(np.exp(middles), maximum)))
        at = np.insert(at, doubtful + 1, middles)
    best = int(np.argmax(values))
    return (1.0 + TOLERANCE) * float(values[best]), float(min(np.exp(at[best]), maximum))
