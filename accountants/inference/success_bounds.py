"""Upper bounds on any reconstruction attack's success."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

from penstock.accountants.inference.estimators import blind_guess, guess_success
from penstock.accountants.inference.first_moment import first_moment
from penstock.accountants.inference.information import largest_success, log_leakage, log_loose, sharpest_information
from penstock.accountants.inference.observation import HiddenMarkovModel
from penstock.accountants.inference.segment import log_segment, segment_operations
from penstock.accountants.inference.success_prior import Ball, check_horizon, log_ball, probability
from penstock.accountants.markov import MarkovPrior, trajectory_entropy
from penstock.mechanisms.core.plugin import ParameterError, check_choice

Bound = Literal["loose", "tight", "leakage", "first_moment", "segment", "best"]
_SEGMENT_OPERATIONS = 3e9
_ROUNDING = 1e-12


def success_upper_bound(
    prior: MarkovPrior,
    sensors: Sequence[int | Iterable[int]],
    tolerance: int,
    noise: str | None = None,
    scale: Any = None,
    bound: Bound = "best",
    ball: Ball = "best",
    n_samples: int = 1000,
    seed: int = 0,
    confidence: float = 0.9999,
) -> float:
    """Bound the probability that an attack gets all but ``tolerance`` of a trajectory's locations right.

    The attacker knows everybody else, the prior and the releases. It holds for every estimator. One location per
    person and window is assumed.

    Parameters
    ----------
    prior
        The target's Markov chain.
    sensors
        Per window the set of active locations; empty if nothing new is observed (a repeated release).
    tolerance
        s, wrong guesses that still count as a success.
    noise, scale
        As for `information_bound`. None covers raw counts and everything computed from them.
    bound
        loose: Fano's inequality for a uniform prior. tight: its form with the max ball. leakage: max ball times the
        Bayes capacities. first_moment: Markov's inequality on the posterior. segment: run by run between sightings,
        from the raw counts whatever the noise. best: the smallest of all.
    ball
        Which max ball tight and leakage use.
    n_samples, seed, confidence
        For first_moment where it has to sample: observations drawn, and the level of the upper confidence limit
        returned. ``n_samples=0`` leaves first_moment out of best, which is then certain and much faster.

    Returns
    -------
    A probability, rounded up; best leaves segment out where it would take more than a few seconds. Time: tight
    O(T s M²) or more, segment O(T² s M²) per active sensor, first_moment O(n_samples T s M²).

    Examples
    --------
    >>> from penstock.accountants.markov import chain_prior
    >>> prior, sensors = chain_prior(20, 0.1), [{t} for t in range(5)]
    >>> [round(success_upper_bound(prior, sensors, 1, bound=name), 5) for name in ("tight", "leakage", "segment")]
    [0.32874, 0.31687, 0.03542]

    Source: Koga, Meehan, Chaudhuri, section 3.3 (loose, tight); docs/reconstruction.md proves the others.
    """
    check_choice("bound", bound, get_args(Bound))
    check_choice("ball", ball, get_args(Ball))
    if not 0 < confidence < 1:
        raise ParameterError("confidence", confidence, "between 0 and 1")
    if n_samples < (2 if bound == "first_moment" else 0):
        raise ParameterError("n_samples", n_samples, "at least 2")
    model = HiddenMarkovModel.of(prior, sensors, noise, scale)
    check_horizon(model.n_steps, tolerance)
    chosen = {str(bound)}
    if bound == "best":
        chosen = {"loose", "tight", "leakage"}
        chosen |= {"segment"} if segment_operations(model, tolerance) <= _SEGMENT_OPERATIONS else set()
        chosen |= {"first_moment"} if n_samples >= 2 else set()
    information = sharpest_information(model) if chosen & {"loose", "tight"} else 0.0
    blind = min(0.0, log_ball(model.prior, model.n_steps, tolerance, ball)) if chosen & {"tight", "leakage"} else 0.0
    log_values = []
    if "loose" in chosen:
        entropy = trajectory_entropy(model.prior, model.n_steps)
        log_values.append(float(log_loose(prior.n_locations, model.n_steps, tolerance, entropy, information)))
    if "tight" in chosen:
        log_values.append(float(largest_success(blind, information)))
    if "leakage" in chosen:
        log_values.append(min(0.0, blind + log_leakage(model)))
    if "segment" in chosen:
        log_values.append(log_segment(model, tolerance))
    if "first_moment" in chosen:
        log_values.append(math.log(first_moment(model, tolerance, n_samples, seed, confidence)))
    return min(1.0, probability(min(log_values)) * (1 + _ROUNDING))


def advantage_upper_bound(
    prior: MarkovPrior,
    sensors: Sequence[int | Iterable[int]],
    tolerance: int = 0,
    noise: str | None = None,
    scale: Any = None,
    bound: Bound = "best",
    **options: Any,
) -> float:
    """Bound any attack's normalised advantage (p − p*) / (1 − p*).

    p is the success with the releases, p* that of the best guess without them. For ``tolerance=0`` p* is the largest
    probability of a trajectory; else the success of the most probable one stands for it, which is no more than p*, so
    that the advantage is never understated.

    Parameters
    ----------
    prior, sensors, tolerance, noise, scale, bound, options
        As for `success_upper_bound`. ``bound="loose"`` with ``tolerance=0`` is equation (1) of the paper.

    Returns
    -------
    A number from 0 to 1; 0 where p* is 1. Time of `success_upper_bound`, and O(T s M²).

    Examples
    --------
    >>> from penstock.accountants.markov import chain_prior
    >>> prior, sensors = chain_prior(20, 0.1), [{t} for t in range(5)]
    >>> [round(advantage_upper_bound(prior, sensors, bound=name), 4) for name in ("loose", "tight", "segment")]
    [0.3249, 0.1941, 0.0048]

    Source: Koga, Meehan, Chaudhuri, section 2.2.2, equation (1), after Guo, Sablayrolles, Sanjabi (2022).
    """
    success = success_upper_bound(prior, sensors, tolerance, noise, scale, bound, **options)
    blind = guess_success(prior, blind_guess("prior", prior, len(sensors)), tolerance)
    return max(0.0, min(1.0, (success - blind) / (1 - blind))) if blind < 1 else 0.0
