"""Information bounds: mutual information, Bayes capacity and Fano's inequality.

A raw count reads "at sensor c" or "elsewhere". A sighting resets the chain: the distribution of the next reading
given the past depends only on the last sighting and on having been elsewhere since. So instead of all alphabet^m
histories only (last sighting, elsewhere since) are followed, and following them to the start gives the exact mutual
information, which Koga et al. call intractable.

**Order m.** For raw counts Y is a function of X, so I(X; Y) = H(Y) = Σ_t H(Y_t | Y_1 … Y_{t−1}) ≤ Σ_t H(Y_t | Y_{t−m}
… Y_{t−1}). The paper uses m = 1. H(X) = H(π) + Σ_{t≥2} Σ_x Pr(X_{t−1} = x) H(P[x, ·]) by the chain rule.

**Exact** (``order="exact"``). *The history matters for Y_t only through the last sighting and the fact of having been
elsewhere since.* *Proof.* Let the last sighting be Y_u = c. By the Markov property X_{u+1}, X_{u+2}, … depend on the
past only through X_u = c. Hence Pr(Y_t | Y_1 … Y_{t−1}) is a function of (u, c), and H(Y_t | past) averages the
entropies of at most 1 + Σ_t |S_t| distributions, one for each (u, c) and one for "never seen": a vector over the
unseen locations, moved one step and masked. ∎ The same with u ≥ t − m gives order m.

**Noise.** If Z_t depends on Z_1 … Z_{t−1} and X only through X_t, I(X; Z) ≤ Σ_t I(X_t; Z_t), and by Kolchinsky and
Tracey (2017) I(X_t; Z_t) ≤ −Σ_m p_m ln Σ_l p_l e^{−D(m,l)}, D(m, l) the KL divergence between the releases given the
two locations: it adds, over the active cells among m and l, 1/(2σ²) (Gaussian, discrete Gaussian), 1/b + e^{−1/b} − 1
(Laplace), tanh(1/(2b))/b (discrete Laplace).

**ε-DP.** I(X; Z_t | past) ≤ max_x D(Z_t given x ‖ Z_t given absent) ≤ ε tanh(ε/2) with the add/remove ε, given any
past; ρ under zCDP by its definition. Both hold path by path, hence for adaptive schedules with the largest sum over
paths. The smallest of all that apply is used: a noisy bound is never above the raw one.

**Fano in KL form** (*tight*). Let p be the success of some estimator, B′ its success if the observation were drawn
independently of X. Then B′ ≤ B, the best success without observations, and by data processing p ln(p/B′) + (1−p)
ln((1−p)/(1−B′)) ≤ I(X; observations). For p ≥ B the left side decreases in B′, so it holds with B: the bound is the
largest such p. Its weakening H(E) + p ln B ≥ −I is the paper's form. *loose* is equation (3) of the paper, the same
inequality with B = N(s)/M^T and I replaced by T ln M − H(X) + I. The root is bracketed in ln p and rounded up.

**Leakage.** *Success ≤ B · Π_t λ_t, λ_t = Σ_y max_x Pr(y_t = y | X_t = x).* *Proof.* Success = Σ_y Σ_{x: d(x, x̂(y))
≤ s} Pr(x) Pr(y | x) ≤ Σ_y max_x Pr(y | x) · Pr[d(X, x̂(y)) ≤ s] ≤ B Σ_y max_x Π_t Pr(y_t | x_t, y_{<t}) ≤ B Π_t
sup_{y_{<t}} Σ_{y_t} max_x Pr(y_t | x, y_{<t}), summing over the last window first. ∎ Adaptive schedules have the
supremum over the past. Raw counts: λ_t is the number of possible readings. ε-DP: Pr(y | x) ≤ e^ε Pr(y | absent) gives
e^ε. Noise on m cells: divide by the density of empty cells; λ_t = E max(1, R_1, …, R_m) with independent likelihood
ratios R_c of an empty cell, that is 1 + ∫₁^∞ (1 − Π_c Pr(R_c ≤ r)) dr, summed from above because the integrand
decreases. One cell: 2Φ(1/(2σ)), 2 − e^{−1/(2b)}, 1 + tanh(1/(2b)) (discrete Laplace), 1 + Pr(0) (discrete Gaussian).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from scipy import sparse
from scipy.special import entr, logsumexp, xlogy

from penstock.accountants.inference.observation import ADDITIVE, HiddenMarkovModel, cell_divergence, log_capacity
from penstock.accountants.inference.success_prior import log_binomial
from penstock.accountants.markov import FloatArray, IntArray, MarkovPrior
from penstock.mechanisms.core.plugin import ParameterError

_EXACT_OPERATIONS = 5e9
_LOGARITHM = 50  # multiplications that one logarithm costs
_SLACK = 1e-12
_BISECTIONS = 60


def information_bound(
    prior: MarkovPrior,
    sensors: Sequence[int | Iterable[int]],
    noise: str | None = None,
    scale: Any = None,
    order: int | Literal["exact"] = 1,
) -> float:
    """Return an upper bound in nats on the mutual information between the trajectory and the releases.

    The smallest of the bounds that apply. Whatever the noise: the information in the raw counts of the same sensors
    (data processing). Besides, per window and added up: for a noise family, a mixture bound from the divergences
    between locations; for ε-DP, ε tanh(ε/2); for ρ-zCDP, ρ.

    Parameters
    ----------
    prior
        The target's Markov chain.
    sensors
        Per window the set of active locations; an empty set where nothing new is observed (a repeated release).
    noise
        None for raw counts and anything computed from them; gaussian, laplace, discrete_gaussian, discrete_laplace
        with noise that does not depend on earlier releases; or a guarantee, pure_dp or zcdp (add/remove one person).
    scale
        σ or b per location, or ε or ρ of the window's whole release: a scalar, (n_steps,) or, for a noise family,
        (n_steps, n_locations). For a schedule that adapts to earlier releases use pure_dp with the largest path:
        the ε spent in one run is no bound. A release over a block of windows has its ε once, zero elsewhere.
    order
        How many earlier readings the raw bound remembers, at least 1, or "exact".

    Returns
    -------
    Nats. Time O(n_steps · order · sensors · M · unseen locations).

    Examples
    --------
    >>> from penstock.accountants.markov import chain_prior
    >>> prior = chain_prior(20, 0.01)
    >>> first, exact = (information_bound(prior, [{10}] * 10, order=order) for order in (1, "exact"))
    >>> exact < first
    True
    >>> information_bound(prior, [{10}] * 10, "gaussian", 0.01) <= first   # never above the raw counts
    True

    Source: Koga, Meehan, Chaudhuri, section 3.3.1 and appendix C, extended to sets of sensors, other noise and
    higher orders; mixture bound: Kolchinsky, Tracey (2017).
    """
    if order != "exact" and not (isinstance(order, int | np.integer) and order >= 1):
        raise ParameterError("order", order, 'an integer of at least 1, or "exact"')
    model = HiddenMarkovModel.of(prior, sensors, noise, scale)
    raw = raw_information(model, None if order == "exact" else int(order))
    return min(raw, noisy_information(model))


def sharpest_information(model: HiddenMarkovModel) -> float:
    """Return the tightest information bound that takes about a second, exact for raw counts if feasible."""
    raw, n_locations = model.raw, model.prior.n_locations
    n_histories = np.mean([active.size * (hidden.size > 0) for active, hidden in zip(raw.active, raw.hidden)])
    width = np.mean([hidden.size for hidden in raw.hidden])
    n_operations = float(model.n_steps**2 * n_histories * n_locations * (width + _LOGARITHM))
    order = None if n_operations <= _EXACT_OPERATIONS else 1
    return min(raw_information(model, order), noisy_information(model))


def noisy_information(model: HiddenMarkovModel) -> float:
    """Return the information bound in nats that follows from the noise alone, or infinity for raw counts."""
    if model.noise not in ADDITIVE:
        return charged_information(model.noise, model.scales)
    total = 0.0
    for marginal, active, hidden, scale in zip(model.marginals, model.active, model.hidden, model.scales):
        if active.size:
            total += float(mixture_information(marginal[active], marginal[hidden].sum(), model.noise, scale[active]))
    return total


def charged_information(noise: str | None, scales: FloatArray) -> float:
    """Sum the information bounds implied by the windows' guarantees. Return infinity if there is no guarantee."""
    charge = scales.max(axis=1)
    if noise is None:
        return math.inf
    return float(np.sum(charge if noise == "zcdp" else charge * np.tanh(charge / 2)))


def mixture_information(seen: FloatArray, hidden: FloatArray, noise: str, scale: FloatArray) -> FloatArray:
    """Return −Σ_m p_m ln Σ_l p_l exp(−D(m, l)), D over active cells in which m and l differ; ``hidden``: all others."""
    overlap = np.exp(-cell_divergence(noise, scale))
    reached = seen * overlap
    away = np.asarray(hidden + reached.sum(axis=-1))
    newly_seen = seen + overlap * (away[..., None] - reached)
    lost = xlogy(seen, np.minimum(newly_seen, 1.0)).sum(axis=-1) + xlogy(hidden, np.minimum(away, 1.0))
    return np.asarray(np.maximum(0.0, -lost))


# Information in raw counts.


def raw_information(model: HiddenMarkovModel, order: int | None) -> float:
    """Return Σ_t H(Y_t given Y_{t−order} … Y_{t−1}) in nats, Y the raw reading; exact if ``order`` is None."""
    # O(n_steps · min(order, n_steps) · sensors · M · min(M, unseen locations)) time.
    model = model.raw
    order = model.n_steps if order is None else order
    matrix = model.prior.transition
    rows = np.empty((0, model.prior.n_locations))  # joint weight of (last sighting, elsewhere since, location now)
    sighted_at = np.empty(0, dtype=np.intp)
    never = model.marginals[0][None, :]
    total = _reading_entropy(never, model, 0)
    for step in range(1, model.n_steps):
        rows, sighted_at = _advance(rows, sighted_at, model, step, order)
        if order < step:
            never = model.marginals[step - order][None, :]
        for window in range(max(step - order, 0) if order < step else step - 1, step):
            never = never.copy()
            never[:, model.active[window]] = 0.0
            never = never @ matrix
        total += _reading_entropy(rows, model, step) + _reading_entropy(never, model, step)
    return total


def _advance(
    rows: FloatArray, sighted_at: IntArray, model: HiddenMarkovModel, step: int, order: int
) -> tuple[FloatArray, IntArray]:
    """Propagate the beliefs conditioned on each sighting in the last ``order`` windows to window ``step``."""
    matrix, hidden, active = model.prior.transition, model.hidden[step - 1], model.active[step - 1]
    alive = (step - sighted_at <= order) & (rows[:, hidden].sum(axis=1) > 0)
    unseen = rows[alive]
    if 2 * hidden.size > model.prior.n_locations:
        unseen[:, active] = 0.0
        moved = unseen @ matrix
    else:
        moved = unseen[:, hidden] @ matrix[hidden]
    arrivals = model.marginals[step - 1][active]
    fresh = matrix[active]
    fresh = fresh.toarray() if sparse.issparse(fresh) else fresh
    return (
        np.concatenate([moved, arrivals[:, None] * fresh]),
        np.concatenate([sighted_at[alive], np.full(active.size, step - 1)]),
    )


def _reading_entropy(rows: FloatArray, model: HiddenMarkovModel, step: int) -> float:
    """Return Σ over histories of Pr(history) · H(reading given history), from joint weights with the location."""
    seen = rows[:, model.active[step]]
    unseen = rows[:, model.hidden[step]].sum(axis=1)
    joint = entr(seen).sum(axis=1) + entr(unseen) - entr(seen.sum(axis=1) + unseen)
    return float(np.maximum(joint, 0.0).sum())


# Bayes capacity and Fano's inequality.


def log_leakage(model: HiddenMarkovModel) -> float:
    """Return ln Π_t λ_t, where λ_t = Σ_y max_x Pr(y given x) is window t's Bayes capacity."""
    # Never more than the raw counts of the same sensors, by data processing: per window for a noise family, over all
    # windows for a bare guarantee, whose release may mix windows. ρ-zCDP alone bounds no capacity.
    possible = model.marginals > 0
    readings = [
        np.count_nonzero(row[active]) + np.any(row[hidden])
        for row, active, hidden in zip(possible, model.active, model.hidden)
    ]
    raw = np.log(np.maximum(readings, 1))
    if model.noise == "pure_dp":
        return float(min(raw.sum(), model.scales.max(axis=1).sum()))
    if model.noise not in ADDITIVE:
        return float(raw.sum())
    noisy = [
        log_capacity(str(model.noise), model.scales[step, active[model.marginals[step, active] > 0]])
        for step, active in enumerate(model.active)
    ]
    return float(np.minimum(raw, noisy).sum())


def largest_success(log_baseline: float | FloatArray, information: float | FloatArray) -> FloatArray:
    """Return the log of the largest p ≥ B with p ln(p/B) + (1 − p) ln((1 − p)/(1 − B)) ≤ information, given ln B.

    Bisected in ln p, so that a probability of 1e-300 has as many digits as one of 0.1; the upper end is returned.
    """
    log_baseline, information = np.asarray(log_baseline, float), np.asarray(information, float)
    low, high = log_baseline.copy(), np.zeros(log_baseline.shape)
    baseline = np.exp(log_baseline)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        success = np.exp(middle)
        gain = np.minimum(middle - log_baseline, 700.0)
        above = np.where(gain < 1, baseline * np.expm1(gain), success - baseline)
        with np.errstate(divide="ignore", invalid="ignore"):
            rest = np.where(middle < 0, np.expm1(middle) * np.log1p(-above / (1 - baseline)), 0.0)
        fits = success * (middle - log_baseline) - rest <= information * (1 + _SLACK)
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    settled = (information <= 0) | (log_baseline >= 0)
    return np.where(settled, log_baseline, np.where(information >= -log_baseline, 0.0, high))


def log_loose(
    n_locations: int, n_steps: int, tolerance: int, entropy: float | FloatArray, information: float | FloatArray
) -> FloatArray:
    """Return the log of the largest success by Fano's inequality with a uniform prior (Koga et al., equation 3)."""
    # The number of trajectories within the tolerance of a guess, and that of all of them, stay in logarithms.
    entropy = np.asarray(entropy, float)
    if n_locations == 1 or tolerance >= n_steps:
        return np.zeros(entropy.shape)
    log_all = n_steps * math.log(n_locations)
    near = [log_binomial(n_steps, misses) + misses * math.log(n_locations - 1) for misses in range(tolerance + 1)]
    baseline = np.full(entropy.shape, min(0.0, float(logsumexp(near)) - log_all))
    return largest_success(baseline, log_all - entropy + information)
