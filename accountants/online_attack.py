"""Online membership attack: labelled groups of known people, and a learner with its flat state and scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.core.training import Training
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.state import State

Array = NDArray[np.float64]


#: Share of the groups that the adversary learns from; she is challenged with the others.
TRAINING_SHARE = 0.8


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of known people with and without one target. The first ``n_train`` groups are used for training."""

    # `trajectories` (n_known, n_windows): cell of every known person, -1 where not seen, the target first. `members`
    # (n_groups, n_known): who is in which group. The target is a number, from 0, since a row must not identify a
    # person.

    subject: int
    trajectories: NDArray[np.integer[Any]]
    members: NDArray[np.bool_]
    n_train: int

    @property
    def labels(self) -> NDArray[np.bool_]:
        """Mask of the groups that contain the target, shape (n_groups,)."""
        return self.members[:, 0]

    @property
    def n_windows(self) -> int:
        """The number of windows in which trajectories are known."""
        return int(self.trajectories.shape[1])

    def counts(self, window: int, n_cells: int) -> NDArray[np.int64]:
        """Count each group's people in each cell of a window (the first is 1), shape (n_groups, n_cells)."""
        cells = self.trajectories[:, window - 1]
        is_present = (cells[:, None] == np.arange(n_cells)).astype(np.float64)
        return np.asarray(np.rint(self.members.astype(np.float64) @ is_present).astype(np.int64))

    def features(self, values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
        """Return features (n_groups, n_cells + 1): the released cells and the target's cell again, or 0 if unseen."""
        # The target's cell is another one in every window but carries the same evidence. Each feature is less its mean
        # over the training groups, which goes with the time of day.
        deviations = values - values[: self.n_train].mean(axis=0)
        cell = int(self.trajectories[0, window - 1])
        at_target = deviations[:, cell] if cell >= 0 else np.zeros(len(values))
        return np.column_stack([deviations, at_target])


def draw_groups(
    training: Training, *, n_targets: int, n_known: int, group_size: int | None, n_samples: int, seed: int
) -> tuple[Groups, ...]:
    """Sample targets, the people each adversary knows, and groups of those people, half of which include the target."""
    # Only people who are seen become targets. Fewer targets and known people where there are fewer; `group_size` None:
    # half of the known. The choices of one target do not depend on the others.
    seen = np.flatnonzero((training.trajectories >= 0).any(axis=1))
    n_known = min(n_known, training.n_users)
    size = n_known // 2 if group_size is None else group_size
    n_train, included = n_training(n_samples), np.arange(n_samples) % 2 == 0
    chosen = np.random.default_rng(seed).permutation(seen)[:n_targets]
    groups = []
    for subject, target in enumerate(chosen.tolist()):
        rng = np.random.default_rng([seed, target])
        others = rng.choice(np.delete(np.arange(training.n_users), target), n_known - 1, replace=False)
        members = random_groups(n_known, 0, size, included, rng)
        groups.append(Groups(subject, training.trajectories[np.append(target, others)], members, n_train))
    return tuple(groups)


def n_training(n_samples: int) -> int:
    """Return the training set size, which is even so that both sets are balanced."""
    return 2 * round(TRAINING_SHARE * n_samples / 2)


def random_groups(
    n_users: int, target: int, group_size: int, included: NDArray[np.bool_], rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw independent, uniformly random groups, with the target where ``included`` is set. O(n_groups·n_users)."""
    if not 1 <= group_size < n_users:
        raise ParameterError("group_size", group_size, f"1 to {n_users - 1}, so that a group without the target exists")
    keys = rng.random((included.size, n_users))
    keys[:, target] = np.where(included, -1.0, 2.0)
    members = np.zeros(keys.shape, bool)
    np.put_along_axis(members, np.argpartition(keys, group_size - 1, axis=1)[:, :group_size], True, axis=1)
    return members


def start_learner(n_features: int) -> State:
    """Return an untrained learner with zero weights and intercept."""
    return {
        "seen": np.asarray(0.0),
        "mean": np.zeros(n_features),
        "squares": np.zeros(n_features),
        "weights": np.zeros(n_features),
        "intercept": np.asarray(0.0),
    }


def learn(features: NDArray[Any], labels: NDArray[np.bool_], rate: float, state: State) -> State:
    """Learn from labelled samples (n_samples, n_features) one at a time, without modifying the given ``state``."""
    # All of them first enter the running mean and deviation of every feature; then each standardised sample makes one
    # step of stochastic gradient descent on the logarithmic loss. Equal to river's StandardScaler().learn_one on all
    # samples followed by LogisticRegression(SGD(rate), intercept_lr=rate).learn_one on each, without a dictionary for
    # every sample.
    values = np.asarray(features, np.float64)
    before, new, mean = float(state["seen"]), len(values), values.mean(axis=0)
    difference = mean - state["mean"]  # moments are updated as by Chan, Golub, LeVeque 1979
    spread = difference**2 * (before * new / (before + new))
    state = state | {
        "seen": np.asarray(before + new),
        "mean": state["mean"] + difference * (new / (before + new)),
        "squares": state["squares"] + ((values - mean) ** 2).sum(axis=0) + spread,
    }
    rows, signs = _standardise(values, state), np.where(labels, 1.0, -1.0).tolist()
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
    """Return each sample's learned log-odds (n_samples,) of containing the target."""
    return np.asarray(_standardise(np.asarray(features, np.float64), state) @ state["weights"] + state["intercept"])


def _standardise(values: Array, state: State) -> Array:
    """Standardise features to mean 0 and standard deviation 1; constant features become 0."""
    deviations = np.sqrt(state["squares"] / max(float(state["seen"]), 1.0))
    # The mean of equal numbers is off by rounding; that must not look like a deviation.
    varies = deviations > 1e-12 * np.maximum(np.abs(state["mean"]), 1.0)
    return np.divide(values - state["mean"], deviations, out=np.zeros_like(values), where=varies)


def area_under_curve(labels: NDArray[np.bool_], scores: NDArray[Any]) -> float:
    """Return the probability that a sample with the target scores above one without the target. Ties count half."""
    labels = np.asarray(labels, dtype=bool)
    n_positive, n_negative = int(labels.sum()), int((~labels).sum())
    if n_positive == 0 or n_negative == 0:
        raise ParameterError("labels", (n_positive, n_negative), "samples with and without the target")
    from scipy.stats import rankdata  # not for those who only read configurations: it takes longer than all of ours

    above = rankdata(scores)[labels].sum() - n_positive * (n_positive + 1) / 2
    return float(above / (n_positive * n_negative))


def auc_interval(auc: float, n_positive: int, n_negative: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return a confidence interval for an area under the curve. Its width is positive even at 0 and 1."""
    # The limits are the areas whose own standard error reaches exactly to the observed one (Newcombe, "Confidence
    # intervals for an effect size measure based on the Mann-Whitney statistic", Statistics in Medicine 2006, method 5).
    # They cover the choice of challenges for one trained adversary, not the choice of the training set.
    if not 0 <= auc <= 1:
        raise ParameterError("auc", auc, "0 to 1")
    if not 0 < confidence < 1:
        raise ParameterError("confidence", confidence, "between 0 and 1")
    from scipy.optimize import brentq
    from scipy.stats import norm

    quantile = norm.ppf((1 + confidence) / 2)
    half = (n_positive + n_negative) / 2 - 1

    def excess(area: float) -> float:
        """Return the distance between an area and the estimate, minus the half-width of the interval at that area."""
        spread = area * (1 - area) * (1 + half * ((1 - area) / (2 - area) + area / (1 + area)))
        return abs(auc - area) - float(quantile) * math.sqrt(spread / (n_positive * n_negative))

    inside = min(max(auc, 1e-12), 1 - 1e-12)  # 0 and 1 themselves are roots, but not the ones sought
    low = brentq(excess, 0.0, inside) if excess(0.0) > 0 else 0.0
    high = brentq(excess, inside, 1.0) if excess(1.0) > 0 else 1.0
    return low, high


def exact_interval(n_found: int, n: int, confidence: float = 0.95, n_choices: int = 1) -> tuple[float, float]:
    """Return the Clopper-Pearson limits of a proportion, with the error probability divided by ``n_choices``."""
    if not 0 < confidence < 1:
        raise ParameterError("confidence", confidence, "between 0 and 1")
    from scipy.stats import binomtest

    limits = binomtest(n_found, n).proportion_ci(1 - (1 - confidence) / n_choices)
    return float(limits.low), float(limits.high)
