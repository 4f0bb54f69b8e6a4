"""What a run is worth, in a few figures and a sentence: its error beside releases that cost nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from penstock.evaluation.metrics import absolute_errors


def worth(truth: NDArray[np.float64], released: NDArray[np.float64]) -> dict[str, float]:
    """Mean count, and mean absolute errors of the release, of zeros and of the last release shown again, in people.

    Parameters
    ----------
    truth, released
        Shape (n_cells, n_windows).

    Examples
    --------
    >>> worth(np.array([[4.0, 2.0]]), np.array([[5.0, 2.0]]))
    {'mean_count': 3.0, 'error': 0.5, 'error_of_zeros': 3.0, 'error_of_last': 3.5}
    """
    last = np.concatenate([np.zeros((len(truth), 1)), released[:, :-1]], axis=1)
    others = {"error": released, "error_of_zeros": np.zeros_like(truth), "error_of_last": last}
    return {"mean_count": float(truth.mean())} | {
        name: float(absolute_errors(truth, other).mean()) for name, other in others.items()
    }


def interval_coverage(
    truth: NDArray[np.float64], released: NDArray[np.float64], deviation: NDArray[np.float64]
) -> dict[str, float]:
    """Share of counts in the stated 95 % intervals, and the intervals' mean width in people.

    Parameters
    ----------
    truth, released, deviation
        Counts, values, and the values' standard deviations, NaN where none is stated; of one shape.

    Returns
    -------
    Nothing where no standard deviation is stated.

    Examples
    --------
    >>> interval_coverage(np.array([1.0, 9.0]), np.array([2.0, 2.0]), np.array([1.0, 1.0]))
    {'coverage': 0.5, 'interval_width': 3.92}
    """
    stated = ~np.isnan(deviation)
    if not stated.any():
        return {}
    within = np.abs(truth - released)[stated] <= 1.96 * deviation[stated]
    return {"coverage": float(within.mean()), "interval_width": float(2 * 1.96 * deviation[stated].mean())}


def beats(found: Mapping[str, float]) -> bool:
    """Whether a release is nearer to the truth than both releases that cost nothing."""
    return found["error"] < min(found["error_of_zeros"], found["error_of_last"])


def in_words(found: Mapping[str, float]) -> str:
    """The result of `worth` as a verdict.

    Examples
    --------
    >>> in_words({"mean_count": 0.04, "error": 24.0, "error_of_zeros": 0.04, "error_of_last": 24.1})
    'Wrong by 24 people on average where 0.04 are counted: worse than publishing nothing, since zeros are nearer.'
    >>> in_words({"mean_count": 34.0, "error": 3.8, "error_of_zeros": 34.0, "error_of_last": 8.1})
    'Wrong by 3.8 people on average where 34 are counted (11 %); zeros by 34, the last release shown again by 8.1.'
    """
    error, mean, zeros, last = (found[name] for name in ("error", "mean_count", "error_of_zeros", "error_of_last"))
    said = f"Wrong by {error:.3g} people on average where {mean:.3g} are counted"
    if error > 0 and error >= zeros:
        return f"{said}: worse than publishing nothing, since zeros are nearer."
    share = f" ({error / mean:.0%})".replace("%", " %") if mean else ""
    if error > 0 and error >= last:
        return f"{said}{share}: no better than the last release shown again, which is wrong by {last:.3g}."
    intervals = f" {found['coverage']:.0%} of the counts".replace("%", " %") if "coverage" in found else ""
    intervals = f" The stated 95 % intervals hold{intervals}." if intervals else ""
    return f"{said}{share}; zeros by {zeros:.3g}, the last release shown again by {last:.3g}.{intervals}"
