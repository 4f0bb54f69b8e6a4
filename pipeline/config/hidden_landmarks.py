"""Hidden landmarks: a public set of windows that covers private landmarks and is chosen by the exponential mechanism.

Let L be the true landmarks of N windows, of a declared size k. Every set S of m windows is a candidate, whatever L, so
that which sets are possible tells nothing; Pr(S) is proportional to exp(ε·abs(S ∩ L)) (McSherry, Talwar 2007).
Katsomallos' chapter on landmark privacy ends with "privacy-preserving landmark selection" as future work.

*Its source has a selection algorithm, commented out*: evaluate the sequence with the true landmarks alone, then with
every possible set of options, and return the set whose mean is nearest to the former. Its budget is an input that no
line reads, and nothing is random: what it returns rules out all landmarks that lead to another set, so that no finite ε
holds. Here nearness to L, the overlap, is the weight of a random choice, which rules out none.

*The choice is ε-private about each landmark.* Proof: how many sets overlap L in j windows is C(k, j)·C(N − k, m − j),
whichever windows L are, so all L of the size have the same normaliser; the log-ratio of two of them is
ε·(abs(S ∩ L) − abs(S ∩ L′)), at most ε for each landmark that differs, and at most ε·min(k, m). ∎ The usual
exponential mechanism, which does not know that, takes half of ε in the exponent.

*The choice is charged in the ledger of every run that shows the set*, and not against the budget: neighbours differ in
L there, in a person's events here, and no unit holds both. A set that is shown again is charged again, since nothing
public tells it from one that was drawn again, with another key or for other landmarks, and is equal by chance; a ledger
whose unit is landmarks refuses other ones than its first run's.

*What releases cost the true landmarks.* Budgets are spent as if S were the landmarks: over S and any one window at
most B. Let n of the windows of L and one other be outside S. If n > 0, those in S and one outside cost at most B
together and each further one at most B, so all of them n·B, else B; with c landmarks covered at most (k − c + 1)·B.
Where every window costs b (`landmark_uniform`), (k + 1)·b, which is at most B if m is at least k. ∎
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, logsumexp

from penstock.mechanisms.core.guarantee import at_most
from penstock.mechanisms.core.plugin import Checked, ConfigError, DataError, ParameterError, parameter
from penstock.mechanisms.core.samplers.siphash import keyed_hash
from penstock.mechanisms.core.schedules import LandmarkSchedule
from penstock.mechanisms.landmark_uniform import LandmarkUniform
from penstock.pipeline.config.goals import PlannedLine
from penstock.pipeline.config.plan import noise_key
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.windows.landmarks import HiddenLandmarks

#: Probability that the printed guarantee leaves to a choice that covers fewer landmarks.
_RARE = 0.05


@dataclass(frozen=True, kw_only=True)
class LandmarkChoice(Checked):
    """A choice of m windows (``shown``) out of N that hides k private landmarks. The number k (``size``) is public.

    >>> choice = LandmarkChoice(n_windows=24, size=3, shown=8, epsilon=2.0)
    >>> choice.coverage().round(3).tolist()  # that 0, 1, 2, 3 of the landmarks are in it, whichever they are
    [0.01, 0.13, 0.447, 0.413]
    """

    n_windows: int = parameter(doc="windows of the run", at_least=1)
    size: int = parameter(doc="declared number of landmarks", at_least=1)
    shown: int = parameter(doc="windows of the public set", at_least=1)
    epsilon: float = parameter(doc="loss about each landmark from the choice", at_least=0, unit="nats")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("size", "shown"):
            if getattr(self, name) > self.n_windows:
                raise ParameterError(name, getattr(self, name), f"at most the {self.n_windows} windows of the run")

    @property
    def whole_epsilon(self) -> float:
        """The privacy loss for all landmarks combined, in nats."""
        return HiddenLandmarks(number=self.size, epsilon=self.epsilon).whole_epsilon(self.shown)

    def coverage(self) -> NDArray[np.float64]:
        """Return the probabilities that the public set contains 0, 1, …, k of any k landmarks."""
        overlap, n_others = np.arange(self.size + 1), self.n_windows - self.size
        rest = self.shown - overlap
        is_possible = (rest >= 0) & (rest <= n_others)
        n_sets = _log_binomial(self.size, overlap) + _log_binomial(n_others, np.where(is_possible, rest, 0))
        weight = np.where(is_possible, n_sets + self.epsilon * overlap, -np.inf)
        return np.asarray(np.exp(weight - logsumexp(weight)))

    def choose(self, landmarks: ArrayLike, key: bytes) -> NDArray[np.bool_]:
        """Sample the public set as a mask of shape (N,), given a mask of the k true landmarks and a secret key.

        The same landmarks and key give the same set, so that choosing again tells no more.
        """
        mask = np.asarray(landmarks, bool)
        if mask.shape != (self.n_windows,) or mask.sum() != self.size:
            expected = f"a mask of {self.n_windows} windows, {self.size} of them"
            raise ParameterError("landmarks", int(mask.sum()), expected)
        words = [self.n_windows, self.shown, *np.frombuffer(np.float64(self.epsilon).tobytes(), np.uint32).tolist()]
        digest = keyed_hash(key, *([word] for word in (*words, *np.flatnonzero(mask).tolist()))).tobytes()
        drawn = keyed_hash(key, np.frombuffer(digest, np.uint64), np.arange(self.n_windows + 1))
        n_covered = int(np.searchsorted(np.cumsum(self.coverage())[:-1], drawn[-1] / 2.0**64, side="right"))
        chosen = np.zeros(self.n_windows, bool)
        for inside, n in ((mask, n_covered), (~mask, self.shown - n_covered)):
            places = np.flatnonzero(inside)
            chosen[places[np.argsort(drawn[places], kind="stable")[:n]]] = True
        return chosen


def worst_loss(amounts: ArrayLike, chosen: ArrayLike, size: int, covered: int = 0) -> float:
    """Return the largest total loss of ``size`` landmarks, at least ``covered`` of them chosen, and one other window.

    >>> worst_loss([1.0, 0.0, 1.0, 0.0], [False, True, False, True], size=2, covered=1)
    2.0
    """
    spent, mask = np.asarray(amounts, float), np.asarray(chosen, bool)
    most_expensive = [np.sort(spent[part])[::-1] for part in (mask, ~mask)]
    sums = [np.concatenate([[0.0], np.cumsum(values)]) for values in most_expensive]
    worst = 0.0
    for inside in range(max(covered, size - len(most_expensive[1])), min(size, len(most_expensive[0])) + 1):
        outside = size - inside
        left = [values[n] for values, n in zip(most_expensive, (inside, outside)) if n < len(values)]
        worst = max(worst, float(sums[0][inside] + sums[1][outside] + max(left, default=0.0)))
    return worst


def _log_binomial(n: int, k: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def choice_of(config: RunConfig) -> LandmarkChoice | None:
    """Return the choice that selected a configuration's landmarks, or None if the landmarks are not private."""
    landmarks = config.landmarks
    n_windows = config.calendar.n_windows
    if landmarks is None or landmarks.hidden is None or n_windows is None:
        return None
    shown, hidden = len(set(landmarks.windows)), landmarks.hidden
    return LandmarkChoice(n_windows=n_windows, size=hidden.number, shown=shown, epsilon=hidden.epsilon)


def describe_choice(choice: LandmarkChoice, mechanism: LandmarkSchedule) -> tuple[str, str]:
    """Return one sentence about the choice and one about what the releases cost the private landmarks."""
    chosen = np.arange(choice.n_windows) < choice.shown  # what they cost does not depend on which windows it is
    size, fewer = choice.size, np.cumsum(choice.coverage())
    usual = int(np.searchsorted(fewer, _RARE, side="right"))
    always, mostly = (_loss(mechanism, chosen, size, covered) for covered in (0, usual))
    unit = "ρ" if mechanism.guarantee.concentrated else "ε"
    return (
        f"{choice.shown} windows in which {size} private landmarks hide; the choice costs "
        f"{at_most(choice.epsilon)} nats about each and {at_most(choice.whole_epsilon)} about all",
        f"over any {size} landmarks and any one other window releases cost at most {unit} = {at_most(always)}; at "
        f"most {at_most(mostly)} where {usual} or more of the landmarks are covered, which has probability "
        f"{math.floor(1000 * (1 - (fewer[usual - 1] if usual else 0)) + 1e-9) / 1000:g}",
    )


def plan_landmarks(config: RunConfig, path: str | Path, shown: int, epsilon: float) -> PlannedLine:
    """Choose ``shown`` public landmarks that cover the private ones and state the guarantee of that choice.

    ``config``: counts of a run with an end, of one budget period, released by a landmark mechanism. Its noise key or
    seed makes the choice, so that the same private landmarks always give the same line. ``path``: file of the private
    landmarks, 1-based numbers of windows, a line each. ``epsilon``: loss about each by the choice, in nats.
    """
    mechanism = next((step for step in config.mechanism if isinstance(step, LandmarkSchedule)), None)
    if mechanism is None or config.windows.per_event or config.budget_period is not None:
        text = "private landmarks are for a landmark mechanism on counts, in a run of one budget period"
        raise ConfigError((f"mechanism: {text}",))
    n_windows = config.calendar.n_windows
    if n_windows is None:
        raise ConfigError(("source: the source has no end (until); private landmarks are chosen among its windows",))
    landmarks = _read(Path(path), n_windows)
    choice = LandmarkChoice(n_windows=n_windows, size=int(landmarks.sum()), shown=shown, epsilon=epsilon)
    chosen = choice.choose(landmarks, noise_key(config).subkey("landmarks"))
    windows, hidden = (np.flatnonzero(chosen) + 1).tolist(), {"number": choice.size, "epsilon": epsilon}
    promise, remark = describe_choice(choice, mechanism)
    value = {"windows": windows, "hidden": hidden}
    return PlannedLine(section="the configuration", key="landmarks", value=value, promise=promise, remark=remark)


def _loss(mechanism: LandmarkSchedule, chosen: NDArray[np.bool_], size: int, covered: int) -> float:
    """Return the largest total loss of the landmarks, at least ``covered`` of them public, and one other window."""
    if isinstance(mechanism, LandmarkUniform):
        share = mechanism.budget / min(int(chosen.sum()) + 1, len(chosen))
        return worst_loss(np.full(len(chosen), share), chosen, size, covered)
    # The chosen windows and any other one share the budget, so that windows outside, each with all of it, cost most.
    outside = worst_loss(np.where(chosen, 0.0, mechanism.budget), chosen, size, covered)
    return max(outside, mechanism.budget)


def _read(path: Path, n_windows: int) -> NDArray[np.bool_]:
    """Read a file that lists windows and return them as a mask."""
    mask = np.zeros(n_windows, bool)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if not line.strip().isdecimal() or not 1 <= int(line) <= n_windows:
            raise DataError(f"{path}:{number}: {line.strip()!r} must be the number of a window, from 1 to {n_windows}")
        mask[int(line) - 1] = True
    if not mask.any():
        raise DataError(f"{path}: no landmark; it must list the numbers of windows, a line each")
    return mask
