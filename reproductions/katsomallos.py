"""Temporal privacy loss by landmarks and correlation: two figures of Katsomallos et al. (2022)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.accountants.correlation.landmark_losses import LandmarkModel, Method
from penstock.accountants.correlation.leakage import LeakageFunction, leaked
from penstock.accountants.landmark_budget import landmark_allocation
from penstock.accountants.markov import laplacian_smoothing_matrix
from penstock.mechanisms.core.plugin import ParameterError

N_WINDOWS = 100
PERCENTAGES = (0, 20, 40, 60, 80, 100)
#: Laplacian smoothing of two states.
CORRELATIONS = {"weak": 1.0, "moderate": 0.1, "strong": 0.01}
METHODS = ("sound", "paper", "single")
#: Centres of the truncated normals, as fractions of the series; none: uniform.
SHAPES: dict[str, tuple[float, ...]] = {
    "left_skewed": (0.75,),
    "symmetric": (0.5,),
    "right_skewed": (0.25,),
    "bimodal": (0.25, 0.75),
    "uniform": (),
}
#: The scale of every normal is the length of the series over this constant.
SCALE_DIVISOR = 10.0


def landmark_distribution(
    kind: str, n_windows: int, n_landmarks: int, seed: int, scale_divisor: float = SCALE_DIVISOR
) -> NDArray[np.bool_]:
    """Sample a set of landmarks from a distribution over the series, without replacement.

    Landmarks lie towards the end (``left_skewed``), in the middle (``symmetric``), at the beginning (``right_skewed``),
    in the middle of each half (``bimodal``) or anywhere (``uniform``); the normals' standard deviation is ``n_windows /
    scale_divisor``. A `ParameterError` if a parameter is out of range.

    Returns mask of the landmarks, shape (n_windows,).

    O(n log n). A window's weight is the density at its middle of the normals truncated to the series. Adding Gumbel
    noise to the log-weights and keeping the largest is drawing one landmark after the other, without replacement,
    with probability proportional to weight (Efraimidis, Spirakis 2006), and never underflows. Katsomallos et al. 2022,
    evaluation section; the paper does not state its constant.

    >>> landmarks = landmark_distribution("right_skewed", 100, 20, seed=1)
    >>> int(landmarks.sum()), bool(landmarks[:50].sum() > landmarks[50:].sum())
    (20, True)
    """
    if kind not in SHAPES:
        raise ParameterError("kind", kind, "one of " + ", ".join(SHAPES))
    if n_windows < 1:
        raise ParameterError("n_windows", n_windows, "a whole number of at least 1")
    if not 0 <= n_landmarks <= n_windows:
        raise ParameterError("n_landmarks", n_landmarks, f"a whole number from 0 to n_windows ({n_windows})")
    if not scale_divisor > 0:
        raise ParameterError("scale_divisor", scale_divisor, "a number above 0")
    log_weight = np.zeros(n_windows)
    if SHAPES[kind]:
        centres = np.array(SHAPES[kind])[:, None]
        middles = (np.arange(n_windows) + 0.5) / n_windows
        log_weight = np.logaddexp.reduce(-((middles - centres) ** 2) * scale_divisor**2 / 2, axis=0)
    keys = log_weight + np.random.default_rng(seed).gumbel(size=n_windows)
    landmarks = np.zeros(n_windows, bool)
    landmarks[np.argsort(keys)[n_windows - n_landmarks :]] = True
    return landmarks


def temporal_loss_table(
    n_repetitions: int = 100,
    percentages: Iterable[int] = PERCENTAGES,
    seed: int = 1,
    correlations: Iterable[str] = tuple(CORRELATIONS),
) -> pl.DataFrame:
    """Tabulate the overall temporal loss by correlation, shape of the landmark set, percentage and method.

    Every correlation and method has the same landmark sets. The budget of the series, ε = 1 for *replacing* a value, is
    divided uniformly over L ∪ {t}: without correlation the overall loss is ε whatever the landmarks.

    Returns one row for each combination: ``correlation``, ``shape``, ``percentage``, ``method``, and over the
    repetitions ``mean`` and ``standard_deviation`` of the loss. With ``sound`` and ``paper`` that is the largest over t
    of the loss about L ∪ {t}; with ``single`` the average over t of the loss about t alone (`single_losses`).

    About 10 ms a landmark set and method. Source: Katsomallos, Tzompanaki, Kotzinos 2022, evaluation, the figure of
    privacy loss against percentage and distribution (n = 2 states, s = 1, 0.1, 0.01, 100 timestamps, ε = 1).
    """
    rows = []
    for name in correlations:
        matrix = laplacian_smoothing_matrix(2, CORRELATIONS[name])
        for method in METHODS:
            overall = _overall_loss(matrix, method)
            for shape, percentage, sets in _landmark_sets(n_repetitions, percentages, seed):
                losses = np.array([overall(landmark_allocation("uniform", marks, 1.0), marks) for marks in sets])
                key = {"correlation": name, "shape": shape, "percentage": percentage, "method": method}
                rows.append(key | _spread(losses))
    return pl.DataFrame(rows)


def distance_table(n_repetitions: int = 100, percentages: Iterable[int] = PERCENTAGES, seed: int = 1) -> pl.DataFrame:
    """Tabulate the mean distance to the nearest landmark or end of the series, by shape and percentage.

    Returns ``shape``, ``percentage``, and over the repetitions ``mean`` and ``standard_deviation`` of the distance,
    averaged over all windows, in windows.

    >>> distance_table(2, percentages=[0]).select("shape", "mean").row(0)
    ('left_skewed', 25.5)
    """
    rows = []
    for shape, percentage, sets in _landmark_sets(n_repetitions, percentages, seed):
        means = np.array([landmark_distance(marks).mean() for marks in sets])
        rows.append({"shape": shape, "percentage": percentage} | _spread(means))
    return pl.DataFrame(rows)


def single_losses(
    epsilons: NDArray[np.float64], landmarks: NDArray[np.bool_], leakage: LeakageFunction
) -> NDArray[np.float64]:
    """Return the loss about each single window, from windows up to the nearest landmark on either side.

    The published term α_t: backward loss from the landmark before (not included) plus forward loss from the one after,
    minus ε. Shape (n_windows,); two evaluations a window.

    >>> leakage = LeakageFunction([[0.8, 0.2], [0.2, 0.8]])
    >>> single_losses(np.ones(3), np.array([False, True, False]), leakage).round(3).tolist()
    [1.0, 2.139, 1.0]
    """
    n = len(epsilons)
    before, after = np.zeros(n), np.zeros(n)
    ends = [0, *(np.flatnonzero(landmarks) + 1).tolist(), n]
    starts = [0, *np.flatnonzero(landmarks).tolist(), n]
    for (first, last), (begin, end) in zip(pairwise(ends), pairwise(starts)):
        before[first:last] = leaked(epsilons[first:last], leakage)
        after[begin:end] = leaked(epsilons[begin:end][::-1], leakage)[::-1]
    return before + epsilons + after


def _overall_loss(matrix: NDArray[np.float64], method: str) -> Callable[..., float]:
    """Return a function that computes the overall loss from a series of budgets and a landmark set."""
    if method == "single":
        leakage = LeakageFunction(matrix)
        return lambda epsilons, landmarks: float(single_losses(epsilons, landmarks, leakage).mean())
    model = LandmarkModel(matrix, matrix, cast(Method, method))
    return lambda epsilons, landmarks: float(model.losses(epsilons, landmarks).max())


def _spread(values: NDArray[np.float64]) -> dict[str, float]:
    return {"mean": float(values.mean()), "standard_deviation": float(values.std())}


def landmark_distance(landmarks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return each window's distance to the nearest landmark, or to the position just outside the series.

    >>> landmark_distance(np.array([False, False, False, True, False])).tolist()
    [1, 2, 1, 0, 1]
    """
    n = len(landmarks)
    known = np.concatenate([[-1], np.flatnonzero(landmarks), [n]])
    place = np.arange(n)
    after = np.searchsorted(known, place)
    distance: NDArray[np.int64] = np.minimum(known[after] - place, place - known[after - 1])
    return np.where(landmarks, 0, distance)


def _landmark_sets(
    n_repetitions: int, percentages: Iterable[int], seed: int
) -> Iterable[tuple[str, int, list[NDArray[np.bool_]]]]:
    for shape in SHAPES:
        for percentage in percentages:
            # Without or with nothing but landmarks there is one set only.
            n_sets = n_repetitions if 0 < percentage < 100 else 1
            size = round(N_WINDOWS * percentage / 100)
            sets = [landmark_distribution(shape, N_WINDOWS, size, seed + i) for i in range(n_sets)]
            yield shape, percentage, sets
