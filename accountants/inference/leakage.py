"""How often any observation can multiply the best blind guess: Bayes capacities, window by window."""

from __future__ import annotations

import numpy as np

from accountants.inference.channel import log_capacity
from accountants.inference.observation import ADDITIVE, Schedule


def log_leakage(plan: Schedule) -> float:
    """ln Π_t λ_t, λ_t = Σ_y max_x Pr(y given x) the Bayes capacity of window t.

    Raw counts have one reading per sensor the target can be at, plus elsewhere; noisy counts of a family what
    `log_capacity` says; an ε-DP release e^ε. Never more than the raw counts of the same sensors, by data processing:
    per window for a noise family, over all windows for a bare guarantee, whose release may mix windows. ρ-zCDP alone
    bounds no capacity, so there the raw counts decide.
    """
    raw = np.log(np.maximum(plan.n_outcomes(), 1))
    if plan.noise == "pure_dp":
        return float(min(raw.sum(), plan.scales.max(axis=1).sum()))
    if plan.noise not in ADDITIVE:
        return float(raw.sum())
    noisy = [
        log_capacity(str(plan.noise), plan.scales[step, active[plan.marginals[step, active] > 0]])
        for step, active in enumerate(plan.active)
    ]
    return float(np.minimum(raw, noisy).sum())
