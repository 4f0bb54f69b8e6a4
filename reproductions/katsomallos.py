"""Landmark sets of different sizes and shapes: two figures from Katsomallos, Tzompanaki and Kotzinos (2022)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from typing import Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.accountants.correlation.landmark_losses import LandmarkModel, Method
from penstock.accountants.correlation.leakage import LeakageFunction, leaked
from penstock.accountants.landmark_budget import landmark_allocation
from penstock.accountants.markov import laplacian_smoothing_matrix

Marks = NDArray[np.bool_]

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
#: The scale of every normal is the length of the series over this constant, which the paper does not state.
SCALE_DIVISOR = 10.0


def landmark_distribution(
    kind: str, n_windows: int, n_landmarks: int, seed: int, scale_divisor: float = SCALE_DIVISOR
) -> Marks:
    """Sample a landmark mask without replacement from a distribution over the windows of the series.

    Landmarks lie towards the end (``left_skewed``), in the middle (``symmetric``), at the beginning (``right_skewed``),
    in the middle of each half (``bimodal``) or anywhere (``uniform``).

    A window's weight is the density at its middle of the normals truncated to the series. Adding Gumbel noise to the
    log-weights and keeping the largest is drawing one landmark after the other, without replacement, with probability
    proportional to weight (Efraimidis, Spirakis 2006), and never underflows.

    >>> landmarks = landmark_distribution("right_skewed", 100, 20, seed=1)
    >>> int(landmarks.sum()), bool(landmarks[:50].sum() > landmarks[50:].sum())
    (20, True)
    """
    log_weight = np.zeros(n_windows)
    if SHAPES[kind]:
        centres = np.array(SHAPES[kind])[:, None]
        middles = (np.arange(n_windows) + 0.5) / n_windows
        log_weight = np.logaddexp.reduce(-((middles - centres) ** 2) * scale_divisor**2 / 2, axis=0)
    keys = log_weight + np.random.default_rng(seed).gumbel(size=n_windows)
    landmarks = np.zeros(n_windows, bool)
    landmarks[np.argsort(keys)[n_windows - n_landmarks :]] = True
    return landmarks


def row_keys(part: str, percentages: Iterable[int]) -> list[dict[str, Any]]:
    """Return the row keys of one table: either the distances, or the losses under one correlation."""
    sets = [{"shape": shape, "percentage": percentage} for shape in SHAPES for percentage in percentages]
    if part == "distance":
        return sets
    return [{"correlation": part} | one | {"method": method} for method in METHODS for one in sets]


def landmark_table(
    part: str, n_sets: int = 100, percentages: Iterable[int] = PERCENTAGES, seed: int = 1
) -> pl.DataFrame:
    """Tabulate landmark distances, or the loss under one correlation, by shape and percentage of landmarks.

    Returns the keys of the rows, and over the sets ``mean`` and ``standard_deviation``: of the distance of a window to
    the nearest landmark or end of the series; or of the loss, where every correlation and method has the same sets.
    With ``sound`` and ``paper`` that is the largest over t of the loss about L ∪ {t}; with ``single`` the average over
    t of the loss about t alone (`single_losses`). The budget of the series, ε = 1 for *replacing* a value, is divided
    uniformly over L ∪ {t}: without correlation the overall loss is ε whatever the landmarks.

    >>> landmark_table("distance", 2, percentages=[0]).select("shape", "mean").row(0)
    ('left_skewed', 25.5)
    """
    rows = []
    for key in row_keys(part, percentages):
        value = _value(part, key.get("method", ""))
        # Without or with nothing but landmarks there is one set only.
        seeds = range(seed, seed + (n_sets if 0 < key["percentage"] < 100 else 1))
        size = round(N_WINDOWS * key["percentage"] / 100)
        values = np.array([value(landmark_distribution(key["shape"], N_WINDOWS, size, one)) for one in seeds])
        rows.append(key | {"mean": float(values.mean()), "standard_deviation": float(values.std())})
    return pl.DataFrame(rows)


@cache
def _value(part: str, method: str) -> Callable[[Marks], float]:
    """Return the function that computes a table's values from a landmark set."""
    if part == "distance":
        return lambda landmarks: float(landmark_distance(landmarks).mean())
    matrix = laplacian_smoothing_matrix(2, CORRELATIONS[part])
    if method == "single":
        leakage = LeakageFunction(matrix)
        return lambda marks: float(single_losses(landmark_allocation("uniform", marks, 1.0), marks, leakage).mean())
    model = LandmarkModel(matrix, matrix, cast(Method, method))
    return lambda marks: float(model.losses(landmark_allocation("uniform", marks, 1.0), marks).max())


def single_losses(epsilons: NDArray[np.float64], landmarks: Marks, leakage: LeakageFunction) -> NDArray[np.float64]:
    """Return the loss about each window, caused by the windows up to the nearest landmark on either side.

    The published term α_t: backward loss from the landmark before (not included) plus forward loss from the one after,
    minus ε.

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


def landmark_distance(landmarks: Marks) -> NDArray[np.int64]:
    """Return the distance from each window to the nearest landmark, or to the position just outside the series.

    >>> landmark_distance(np.array([False, False, False, True, False])).tolist()
    [1, 2, 1, 0, 1]
    """
    anchors = np.concatenate([[-1], np.flatnonzero(landmarks), [len(landmarks)]])
    distances: NDArray[np.int64] = np.abs(np.arange(len(landmarks))[:, None] - anchors).min(axis=1)
    return distances
