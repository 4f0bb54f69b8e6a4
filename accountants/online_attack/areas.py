"""How well scores tell samples with the target from samples without."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.errors import ParameterError


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
