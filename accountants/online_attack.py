"""Membership attacks that learn while releases go by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountants.core.training import Training
from mechanisms.core.plugin import ParameterError
from mechanisms.core.state import State

# How well scores tell samples with the target from samples without.


def area_under_curve(labels: NDArray[np.bool_], scores: NDArray[Any]) -> float:
    """Probability that a sample with the target scores above one without; ties count half.

    Examples
    --------
    >>> area_under_curve(np.array([True, True, False]), np.array([2.0, 1.0, 1.0]))
    0.75
    """
    labels = np.asarray(labels, dtype=bool)
    n_positive, n_negative = int(labels.sum()), int((~labels).sum())
    if n_positive == 0 or n_negative == 0:
        raise ParameterError("labels", (n_positive, n_negative), "samples with and without the target")
    from scipy.stats import rankdata  # not for those who only read configurations: it takes longer than all of ours

    above = rankdata(scores)[labels].sum() - n_positive * (n_positive + 1) / 2
    return float(above / (n_positive * n_negative))


def auc_interval(auc: float, n_positive: int, n_negative: int, confidence: float = 0.95) -> tuple[float, float]:
    """Confidence interval of an area under the curve, not empty even at 0 and 1.

    The limits are the areas whose own standard error reaches exactly to the observed one. They cover the choice of
    challenges for one trained adversary, not the choice of what she trained on.

    Parameters
    ----------
    auc
        Observed area.
    n_positive, n_negative
        Challenges with and without the target.
    confidence
        Probability of covering, in (0, 1).

    Notes
    -----
    Newcombe, "Confidence intervals for an effect size measure based on the Mann-Whitney statistic", Statistics in
    Medicine 2006, method 5.

    Examples
    --------
    >>> [round(limit, 3) for limit in auc_interval(0.8, 50, 50)]
    [0.697, 0.871]
    """
    if not 0 <= auc <= 1:
        raise ParameterError("auc", auc, "0 to 1")
    if not 0 < confidence < 1:
        raise ParameterError("confidence", confidence, "between 0 and 1")
    from scipy.optimize import brentq
    from scipy.stats import norm

    quantile = norm.ppf((1 + confidence) / 2)
    half = (n_positive + n_negative) / 2 - 1

    def excess(area: float) -> float:
        """Distance of the area from the estimate, above the half-width of the interval around it."""
        spread = area * (1 - area) * (1 + half * ((1 - area) / (2 - area) + area / (1 + area)))
        return abs(auc - area) - float(quantile) * math.sqrt(spread / (n_positive * n_negative))

    inside = min(max(auc, 1e-12), 1 - 1e-12)  # 0 and 1 themselves are roots, but not the ones sought
    low = brentq(excess, 0.0, inside) if excess(0.0) > 0 else 0.0
    high = brentq(excess, inside, 1.0) if excess(1.0) > 0 else 1.0
    return low, high


# Labelled groups of people whom the adversary knows, and how many of them are where.


#: Share of the groups that the adversary learns from; she is challenged with the others.
TRAINING_SHARE = 0.8


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups with and without one target.

    Parameters
    ----------
    subject
        Number of the target, from 0: a row must name nobody.
    trajectories
        Shape (n_known, n_windows): cell of every known person, -1 where not seen; the target is the first.
    members
        Shape (n_groups, n_known): who is in which group.
    n_train
        How many groups, from the first on, are learned from.

    Examples
    --------
    >>> groups = Groups(0, np.array([[1], [0], [-1]]), np.array([[True, True, False], [False, True, True]]), 1)
    >>> groups.counts(1, n_cells=2).tolist(), groups.labels.tolist()
    ([[1, 1], [1, 0]], [True, False])
    """

    subject: int
    trajectories: NDArray[np.integer[Any]]
    members: NDArray[np.bool_]
    n_train: int

    @property
    def labels(self) -> NDArray[np.bool_]:
        """Whether the target is in a group, shape (n_groups,)."""
        return self.members[:, 0]

    @property
    def n_windows(self) -> int:
        """Windows in which it is known who was where."""
        return int(self.trajectories.shape[1])

    def counts(self, window: int, n_cells: int) -> NDArray[np.int64]:
        """People of each group in each cell of a window (1-based), shape (n_groups, n_cells)."""
        cells = self.trajectories[:, window - 1]
        there = (cells[:, None] == np.arange(n_cells)).astype(np.float64)
        counts: NDArray[np.int64] = np.rint(self.members.astype(np.float64) @ there).astype(np.int64)
        return counts

    def features(self, values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
        """What the adversary looks at in released values (n_groups, n_cells): shape (n_groups, n_cells + 1).

        Every cell, and again the one where the target is (0 where not seen), which is another one in every window but
        tells the same; each less its mean over the groups that are learned from, which goes with the time of day.
        """
        apart = values - values[: self.n_train].mean(axis=0)
        cell = int(self.trajectories[0, window - 1])
        own = apart[:, cell] if cell >= 0 else np.zeros(len(values))
        return np.column_stack([apart, own])


def draw_groups(
    training: Training, *, n_targets: int, n_known: int, group_size: int | None, n_samples: int, seed: int
) -> tuple[Groups, ...]:
    """Choose targets, whom the adversary of each one knows, and groups of them, half with the target.

    Parameters
    ----------
    training
        Where people were.
    n_targets, n_known
        How many targets, and people known to the adversary of each, the target among them; fewer where there are
        fewer. Only people who are seen become targets.
    group_size
        People in a group; None: half of the known.
    n_samples
        Groups of each target.
    seed
        Of all choices. Those of one target do not depend on the others.
    """
    seen = np.flatnonzero((training.trajectories >= 0).any(axis=1))
    n_known = min(n_known, training.n_users)
    size = n_known // 2 if group_size is None else group_size
    if not 1 <= size < n_known:
        raise ParameterError("group_size", size, f"1 to {n_known - 1}, as {n_known} people are known")
    n_train = 2 * round(TRAINING_SHARE * n_samples / 2)
    chosen = np.random.default_rng(seed).permutation(seen)[:n_targets]
    groups = []
    for subject, target in enumerate(chosen.tolist()):
        rng = np.random.default_rng([seed, target])
        others = rng.choice(np.delete(np.arange(training.n_users), target), n_known - 1, replace=False)
        keys = rng.random((n_samples, n_known))
        keys[:, 0] = np.where(np.arange(n_samples) % 2 == 0, -1.0, 2.0)
        members = np.zeros(keys.shape, bool)
        np.put_along_axis(members, np.argpartition(keys, size - 1, axis=1)[:, :size], True, axis=1)
        groups.append(Groups(subject, training.trajectories[np.append(target, others)], members, n_train))
    return tuple(groups)


# Logistic regression that learns sample by sample, its memory a few flat arrays.


Array = NDArray[np.float64]


def start_learner(n_features: int) -> State:
    """A learner that has seen nothing: weights and intercept 0.

    Examples
    --------
    >>> sorted(start_learner(2))
    ['intercept', 'mean', 'seen', 'squares', 'weights']
    """
    return {
        "seen": np.asarray(0.0),
        "mean": np.zeros(n_features),
        "squares": np.zeros(n_features),
        "weights": np.zeros(n_features),
        "intercept": np.asarray(0.0),
    }


def learn(features: NDArray[Any], labels: NDArray[np.bool_], rate: float, state: State) -> State:
    """Take in labelled samples, one after the other.

    All of them first enter the running mean and deviation of every feature; then each standardised sample makes one
    step of stochastic gradient descent on the logarithmic loss.

    Parameters
    ----------
    features (n_samples, n_features)
        What was released.
    labels (n_samples,)
        Whether the target is in it.
    rate
        Learning rate of weights and intercept.
    state
        From `start_learner` or an earlier call; never changed.

    Notes
    -----
    O(n_samples·n_features). Equal to river's ``StandardScaler().learn_one`` on all samples followed by
    ``LogisticRegression(SGD(rate), intercept_lr=rate).learn_one`` on each, without a dictionary for every sample.

    Examples
    --------
    >>> state = learn(np.array([[0.0], [2.0]]), np.array([False, True]), 0.1, start_learner(1))
    >>> logits(np.array([[0.0], [2.0]]), state).round(2)
    array([-0.1,  0.1])
    """
    values = np.asarray(features, np.float64)
    state = _measured(values, state)
    rows, signs = _standardised(values, state), np.where(labels, 1.0, -1.0).tolist()
    weights, intercept = state["weights"].copy(), float(state["intercept"])
    for row, sign in zip(rows, signs):
        margin = sign * (float(row @ weights) + intercept)
        # −d loss/d logit = sign·σ(−margin), written so that neither exponential overflows.
        small = math.exp(-abs(margin))
        step = rate * sign * (small if margin > 0 else 1.0) / (1.0 + small)
        weights += step * row
        intercept += step
    return state | {"weights": weights, "intercept": np.asarray(intercept)}


def logits(features: NDArray[Any], state: State) -> Array:
    """Log-odds (n_samples,) that the target is in a sample, as learned so far."""
    scores: Array = _standardised(np.asarray(features, np.float64), state) @ state["weights"] + state["intercept"]
    return scores


def _measured(values: Array, state: State) -> State:
    """Mean and sum of squared deviations with more samples (Chan, Golub, LeVeque 1979)."""
    before, new = float(state["seen"]), len(values)
    mean = values.mean(axis=0)
    apart = mean - state["mean"]
    squares = state["squares"] + ((values - mean) ** 2).sum(axis=0) + apart**2 * (before * new / (before + new))
    return state | {
        "seen": np.asarray(before + new),
        "mean": state["mean"] + apart * (new / (before + new)),
        "squares": squares,
    }


def _standardised(values: Array, state: State) -> Array:
    """Mean 0 and deviation 1; 0 for features that have never varied."""
    deviations = np.sqrt(state["squares"] / max(float(state["seen"]), 1.0))
    # The mean of equal numbers is off by rounding; that must not look like a deviation.
    varies = deviations > 1e-12 * np.maximum(np.abs(state["mean"]), 1.0)
    return np.divide(values - state["mean"], deviations, out=np.zeros_like(values), where=varies)
