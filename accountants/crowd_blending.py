"""Crowd-blending: suppress or perturb small counts, amplified by sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from scipy.stats import binom

from penstock.accountants.core.accountant import Accountant, AccountingFacts, AccountRow, Rows
from penstock.accountants.core.charges import pure_epsilon
from penstock.mechanisms.core.contract import EventStep, Release, Window
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.state import State
from penstock.mechanisms.core.unit import WINDOW
from penstock.mechanisms.raw import Raw
from penstock.mechanisms.sampling import Sampling

__all__ = ["CrowdBlending", "amplified_delta", "amplified_epsilon"]

BLENDING = "a user who is in one count only blends with k - 1 others, or is hidden by noise; not differential privacy"
ONE_WINDOW = f"add/remove {WINDOW.words()}"
SAMPLED = "; by that user's sampling and the other people's"
RUN = "add/remove all of one user's events"


def amplified_epsilon(crowd_epsilon: float, rate: float) -> float:
    """Return the paper's ε for (k, ε′)-crowd-blending after sampling: ln(p·(2−p)/(1−p)·e^ε′ + 1 − p).

    >>> round(amplified_epsilon(0.0, 0.5), 3)
    0.693

    Gehrke, Hay, Lui, Pass 2012, theorem on sampling.
    """
    return float(np.log(rate * (2 - rate) / (1 - rate) * np.exp(crowd_epsilon) + 1 - rate))


def amplified_delta(epsilon: float, threshold: int, crowd_epsilon: float, rate: float) -> float:
    """Return the δ of one count at a given ε, for crowd-blending on a sample of people.

    Returns p·max over m of Σ_{j ≥ k−1} [b_m(j) − R·b_m(j+1)]⁺ with b_m = Binomial(m, p), m the number of the others;
    equal to the δ of suppression where that has been worked out by brute force. 1 where nothing is gained (p = 1). Time
    O(k²/p²): m is tried until Chernoff's bound on the tail is below the largest sum. Gehrke, Hay, Lui, Pass 2012, with
    the sum in place of its bound.

    >>> f"{amplified_delta(amplified_epsilon(0.0, 0.2), 20, 0.0, 0.2):.1e}"
    '9.5e-05'
    """
    if rate >= 1:
        return 1.0
    ratio = (np.exp(epsilon) - 1 + rate) / (rate * np.exp(crowd_epsilon))
    if epsilon < -np.log1p(-rate) * (1 - 1e-12) or ratio < 1 - 1e-12:
        minimum = max(-np.log1p(-rate), np.log1p(rate * np.expm1(crowd_epsilon)))
        raise ParameterError("epsilon", epsilon, f"at least {minimum:g} at this rate and noise")
    return rate * _largest_sum(threshold, rate, float(max(ratio, 1.0)))


@lru_cache(maxsize=256)
def _largest_sum(threshold: int, rate: float, ratio: float) -> float:
    """Return the maximum over m of Σ_{j ≥ k−1} [b_m(j) − R·b_m(j+1)]⁺."""
    # A term is positive where (j+1)(1−p) > R·p·(m−j), that is for j beyond a fixed share of m that is above p.
    share = ratio * rate / (1 - rate + ratio * rate)
    largest, others = 0.0, threshold - 1
    while True:
        j = np.arange(threshold - 1, others + 1)
        mass = binom.pmf(np.arange(threshold - 1, others + 2), others, rate)
        largest = max(largest, float(np.maximum(mass[:-1] - ratio * mass[1:], 0.0)[: len(j)].sum()))
        others += 1
        # A bound on all sums from here on, from Pr[Binomial ≥ share·m − 1]. Where R is near 1 the sum telescopes to the
        # largest b_m, which is at most 1/√(2e·m·p·(1−p)).
        tail = 1 / np.sqrt(2 * np.e * others * rate * (1 - rate))
        part = (share * others - 1) / others
        if part > rate:
            divergence = part * np.log(part / rate) + (1 - part) * np.log((1 - part) / (1 - rate))
            tail = min(tail, np.exp(-others * divergence))
        if tail <= largest:
            return largest


@dataclass(frozen=True, kw_only=True)
class CrowdBlending(Accountant):
    """Account for crowd-blending and its amplification by sampling, even if no guarantee holds.

    **Privacy.** Rows of each window: ``window_epsilon`` and ``window_delta``, of all of one user's events in it. For
    crowd-blending alone ε is infinite: it is no differential privacy. After sampling the two are C·ε and C·δ for a user
    with up to C memberships that are sampled one by one, and infinite again if a user with several is sampled as a
    whole. For other mechanisms the pure ε. Rows of the run: ``event_epsilon`` and ``event_delta``, the largest of
    these; ``user_epsilon``, the sum of the pure ones, hence infinite (amplification is never claimed of a whole run);
    and of crowds ``crowd_size`` and ``crowd_epsilon``, the (k, ε)-crowd-blending of a user who is in a single count.
    Gehrke, Hay, Lui, Pass 2012. O(1) a window.
    """

    reads: ClassVar[tuple[str, ...]] = ()

    def start(self, facts: AccountingFacts) -> tuple[Mapping[str, Any], State]:
        """Compute the values of one window."""
        # Counts as they are may be released through post-processing that hides small ones.
        shown = (step for step in facts.steps if not isinstance(step, EventStep | Raw))
        first = next(shown, facts.mechanism)
        crowd = first.guarantee.crowd if first else None
        model: dict[str, Any] = {"crowd": crowd, "amplified": None}
        sampling = next((step for step in facts.steps if isinstance(step, Sampling)), None)
        n_counts = facts.per_window(facts.n_cells)
        if crowd is not None and sampling is not None and (n_counts == 1 or sampling.unit == "membership"):
            threshold, small = crowd
            if sampling.rate < 1:
                epsilon = amplified_epsilon(small, sampling.rate)
                delta = n_counts * amplified_delta(epsilon, threshold, small, sampling.rate)
                model["amplified"] = (n_counts * epsilon, delta) if delta < 1 else None
        return model, {"largest": np.zeros(2), "total": np.asarray(0.0)}

    def charge(
        self, release: Release, window: Window, private: Mapping[str, Any], model: Mapping[str, Any], state: State
    ) -> tuple[Rows, State]:
        """Account for one window."""
        pure = pure_epsilon(release.charge)
        epsilon, delta = (pure, 0.0) if pure < np.inf or model["amplified"] is None else model["amplified"]
        state = {"largest": np.maximum(state["largest"], [epsilon, delta]), "total": np.asarray(state["total"] + pure)}
        return _rows(window.index, "window", epsilon, delta), state

    def finish(self, model: Mapping[str, Any], state: State) -> Rows:
        """Return the largest values over all windows, the run's total and the crowd size."""
        total = float(state["total"])
        rows = _rows(None, "event", *state["largest"].tolist())
        rows.append(AccountRow("everybody", None, "user_epsilon", total, adjacency=_describe_unit(RUN, total)))
        if model["crowd"] is not None:
            size, epsilon = model["crowd"]
            rows += [
                AccountRow("everybody", None, "crowd_size", size, unit="people", adjacency=BLENDING),
                AccountRow("everybody", None, "crowd_epsilon", epsilon, adjacency=BLENDING),
            ]
        return rows


def _rows(window: int | None, level: str, epsilon: float, delta: float) -> Rows:
    unit = _describe_unit(ONE_WINDOW, epsilon) if delta == 0 else ONE_WINDOW + SAMPLED
    return [
        AccountRow("everybody", window, f"{level}_epsilon", epsilon, adjacency=unit),
        AccountRow("everybody", window, f"{level}_delta", delta, unit="probability", adjacency=unit),
    ]


def _describe_unit(unit: str, epsilon: float) -> str:
    return unit if epsilon < np.inf else f"{unit}; no differential privacy guarantee"
