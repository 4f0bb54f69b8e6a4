"""True-positive rate of an attack at a low false-positive rate, with exact intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.online_attack import exact_interval
from penstock.mechanisms.core.plugin import ParameterError


@dataclass(frozen=True)
class Rate:
    """How often an adversary finds whom she looks for, if she accuses hardly anyone wrongly."""

    # `rate`, `low`, `high`: share of the challenges with the target that score above all but the allowed ones
    # without, and its interval
    rate: float
    low: float
    high: float
    n_found: int  # `n_found`, `n_present`: the numbers of the share
    n_present: int
    n_false: int  # `n_false`, `n_absent`: challenges without the target above the threshold, and all of them
    n_absent: int


def true_positive_rate(
    labels: NDArray[np.bool_], scores: NDArray[np.float64], at: float, confidence: float = 0.95
) -> Rate | None:
    """True-positive rate at a false-positive rate of ``at``; None where there are too few challenges to tell.

    Parameters
    ----------
    labels, scores (n,)
        Whether a challenge has the target, and its score, larger where it looks so.
    at
        False-positive rate; it needs 1/at challenges without the target.
    confidence
        Of the interval.

    Notes
    -----
    Found is what scores above the (⌊at·n_absent⌋ + 1)-th highest without the target, so that at most that share of them
    does; ties are not found. The exact interval is that of the share at this threshold; it does not cover the choice of
    the threshold. Carlini et al. 2022 say why an average over all thresholds, the area under the curve,
    hides an attack that is sure of a few.

    Examples
    --------
    >>> labels, scores = np.arange(200) < 100, np.r_[np.arange(100) + 50.5, np.arange(100)]
    >>> found = true_positive_rate(labels, scores, 0.01)
    >>> found.rate, round(found.low, 2), round(found.high, 2), found.n_false
    (0.52, 0.42, 0.62, 1)
    >>> true_positive_rate(labels, scores, 0.001) is None
    True
    """
    if not 0 < at < 1:
        raise ParameterError("at", at, "above 0 and below 1")
    labels = np.asarray(labels, dtype=bool)
    present, absent = np.asarray(scores)[labels], np.sort(np.asarray(scores)[~labels])[::-1]
    n_allowed = math.floor(at * absent.size + 1e-9)
    if n_allowed == 0 or present.size == 0:
        return None
    threshold = absent[n_allowed]
    n_found, n_false = int((present > threshold).sum()), int((absent > threshold).sum())
    limits = exact_interval(n_found, present.size, confidence)
    return Rate(n_found / present.size, *limits, n_found, present.size, n_false, absent.size)
