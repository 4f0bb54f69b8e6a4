"""Reconstruction risk: how likely can an informed adversary retrace a person's way from released counts?

The adversary knows where everybody else is, how the target moves (a Markov chain) and every release. It succeeds when
it guesses all but ``tolerance`` of the target's locations; the loss is the probability of that. Here are the priors,
the information in releases, upper bounds on the loss of every attack, attacks with their success, and the risk
realised by the releases made so far. Definitions and proofs: ``docs/reconstruction.md``.

>>> import numpy as np
>>> prior = chain_prior(50, 0.1)
>>> sensors = [{3}, {17}, {25}, {40}, {11}]
>>> bound = success_upper_bound(prior, sensors, tolerance=2)
>>> rate, low, high = attack_success("map", prior, sensors, 2, 1000, np.random.default_rng(7))
>>> low <= bound < 0.05
True

Source: Koga, Meehan, Chaudhuri, "Measuring Privacy Loss in Distributed Spatio-Temporal Data", generalised to sets of
sensors, other noise and sharper bounds.
"""

from __future__ import annotations

from accountants.inference.attack import attack_success
from accountants.inference.ball import max_ball_probability
from accountants.inference.entropy import trajectory_entropy
from accountants.inference.estimators import estimate
from accountants.inference.horizon import horizon_bounds
from accountants.inference.information import information_bound
from accountants.inference.learning import estimate_prior, visit_trajectories
from accountants.inference.prior import MarkovPrior, chain_prior
from accountants.inference.realised import coming_prior, observe, predict, realised_risk, start_beliefs
from accountants.inference.stationary import spectral_gap, stationary_distribution
from accountants.inference.success_bounds import success_upper_bound
from accountants.inference.targets import Targets

__all__ = [
    "MarkovPrior",
    "Targets",
    "attack_success",
    "chain_prior",
    "coming_prior",
    "estimate",
    "estimate_prior",
    "horizon_bounds",
    "information_bound",
    "max_ball_probability",
    "observe",
    "predict",
    "realised_risk",
    "spectral_gap",
    "start_beliefs",
    "stationary_distribution",
    "success_upper_bound",
    "trajectory_entropy",
    "visit_trajectories",
]
