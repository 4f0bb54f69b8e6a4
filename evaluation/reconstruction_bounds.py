"""The paper's two bounds exactly as it writes them, beside which the project's are shown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import get_args

from scipy.optimize import brentq

from accountants.inference.estimators import Estimator
from accountants.inference.fano import log_loose
from accountants.inference.information import information_bound, noisy_information
from accountants.inference.observation import schedule
from accountants.inference.success_bounds import Bound
from accountants.reconstruction import MarkovPrior, max_ball_probability, trajectory_entropy

BOUNDS: tuple[Bound, ...] = ("loose", "tight", "leakage", "first_moment", "segment")
ATTACKS: tuple[Estimator, ...] = get_args(Estimator)


def paper_bounds(
    prior: MarkovPrior, sensors: Sequence[Iterable[int]], tolerance: int, sigma: float | None = None
) -> dict[str, float]:
    """Loose and tight bound with the paper's information, ball and form of Fano's inequality.

    Parameters
    ----------
    prior, sensors, tolerance
        As for `success_upper_bound`.
    sigma
        Of Gaussian noise; None: raw counts. Unlike `success_upper_bound`, the paper does not use that noise never tells
        more than raw counts.

    Returns
    -------
    ``paper_loose`` and ``paper_tight``.

    Examples
    --------
    >>> from accountants.reconstruction import chain_prior
    >>> found = paper_bounds(chain_prior(20, 0.1), [{t} for t in range(5)], 1)
    >>> {name: round(value, 3) for name, value in found.items()}
    {'paper_loose': 0.475, 'paper_tight': 0.344}

    Source: Koga, Meehan, Chaudhuri, sections 3.3.1 and 3.3.2.
    """
    n_steps = len(sensors)
    if sigma is None:
        information = information_bound(prior, sensors, order=1)
    else:
        information = noisy_information(schedule(prior, sensors, "gaussian", sigma))
    entropy = trajectory_entropy(prior, n_steps)
    loose = math.exp(log_loose(prior.n_locations, n_steps, tolerance, entropy, information))
    ball = max_ball_probability(prior, n_steps, tolerance, "paper")
    return {"paper_loose": loose, "paper_tight": _largest_success(math.log(ball), information)}


def _largest_success(log_ball: float, information: float) -> float:
    """Largest p with H(p) + p ln B ≥ −information."""

    def slack(p: float) -> float:
        entropy = -p * math.log(p) - (1 - p) * math.log1p(-p)
        return entropy + p * log_ball + information

    if log_ball + information >= 0:
        return 1.0
    peak = 1 / (1 + math.exp(-log_ball))
    return float(brentq(slack, max(peak, 1e-300), 1 - 1e-15))
