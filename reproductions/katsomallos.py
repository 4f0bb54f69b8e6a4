"""Temporal privacy loss against landmarks and correlation: two figures of Katsomallos et al. (2022).

``python -m reproductions.katsomallos --out DIR`` writes both tables as CSV and, with the extra ``plot``,
both figures as SVG and PNG.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.accountants.correlation.landmark_losses import LandmarkModel, Method
from penstock.accountants.correlation.leakage import LeakageFunction, leaked
from penstock.accountants.landmark_budget import landmark_allocation
from penstock.accountants.markov import laplacian_smoothing_matrix
from penstock.pipeline.windows.landmarks import SHAPES, landmark_distribution

N_WINDOWS = 100
PERCENTAGES = (0, 20, 40, 60, 80, 100)
#: Laplacian smoothing of two states.
CORRELATIONS = {"weak": 1.0, "moderate": 0.1, "strong": 0.01}
METHODS = ("sound", "paper", "single")


def temporal_loss_table(
    n_repetitions: int = 100, percentages: Iterable[int] = PERCENTAGES, seed: int = 1
) -> pl.DataFrame:
    """Overall temporal loss for every correlation, shape of the landmark set, percentage and method.

    Every correlation and method has the same landmark sets. The budget of the series, ε = 1 for *replacing* a value, is
    divided uniformly over L ∪ {t}: without correlation the overall loss is ε whatever the landmarks.

    Returns one row for each combination: ``correlation``, ``shape``, ``percentage``, ``method``, and over the
    repetitions ``mean`` and ``standard_deviation`` of the loss. With ``sound`` and ``paper`` that is the largest over t
    of the loss about L ∪ {t}; with ``single`` the average over t of the loss about t alone (`single_losses`).

    About 10 ms a landmark set and method. Source: Katsomallos, Tzompanaki, Kotzinos 2022, evaluation, the figure of
    privacy loss against percentage and distribution (n = 2 states, s = 1, 0.1, 0.01, 100 timestamps, ε = 1).
    """
    rows = []
    for name, strength in CORRELATIONS.items():
        matrix = laplacian_smoothing_matrix(2, strength)
        for method in METHODS:
            overall = _overall_loss(matrix, method)
            for shape, percentage, sets in _landmark_sets(n_repetitions, percentages, seed):
                losses = np.array([overall(landmark_allocation("uniform", one, 1.0), one) for one in sets])
                key = {"correlation": name, "shape": shape, "percentage": percentage, "method": method}
                rows.append(key | _spread(losses))
    return pl.DataFrame(rows)


def distance_table(n_repetitions: int = 100, percentages: Iterable[int] = PERCENTAGES, seed: int = 1) -> pl.DataFrame:
    """Average distance of a window from the nearest landmark or end of the series, for every shape and percentage.

    Returns ``shape``, ``percentage``, and over the repetitions ``mean`` and ``standard_deviation`` of the distance,
    averaged over all windows, in windows.

    >>> distance_table(2, percentages=[0]).select("shape", "mean").row(0)
    ('left_skewed', 25.5)
    """
    rows = []
    for shape, percentage, sets in _landmark_sets(n_repetitions, percentages, seed):
        means = np.array([landmark_distance(one).mean() for one in sets])
        rows.append({"shape": shape, "percentage": percentage} | _spread(means))
    return pl.DataFrame(rows)


def single_losses(
    epsilons: NDArray[np.float64], landmarks: NDArray[np.bool_], leakage: LeakageFunction
) -> NDArray[np.float64]:
    """Loss about each window alone, through the windows between it and the landmarks on both sides.

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
    """One figure for a series of budgets and a landmark set."""
    if method == "single":
        leakage = LeakageFunction(matrix)
        return lambda epsilons, landmarks: float(single_losses(epsilons, landmarks, leakage).mean())
    model = LandmarkModel(matrix, matrix, cast(Method, method))
    return lambda epsilons, landmarks: float(model.losses(epsilons, landmarks).max())


def _spread(values: NDArray[np.float64]) -> dict[str, float]:
    return {"mean": float(values.mean()), "standard_deviation": float(values.std())}


def landmark_distance(landmarks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Distance of every window from the nearest landmark, or from just before the first or just after the last window.

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


def draw(losses: pl.DataFrame, distances: pl.DataFrame, folder: Path) -> list[Path]:
    """Draw both figures as SVG and PNG; needs matplotlib (the extra ``plot``)."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(METHODS), len(CORRELATIONS), figsize=(13, 10), sharex=True, squeeze=False)
    for row, method in zip(axes, METHODS):
        for axis, name in zip(row, CORRELATIONS):
            chosen = losses.filter((pl.col("method") == method) & (pl.col("correlation") == name))
            _lines(axis, chosen, f"{name} correlation, {method}", "privacy loss (nats)")
            if method != "single":
                axis.axhline(1.0, color="black", linewidth=1, linestyle="--", label="no correlation")
    axes[0][0].legend(fontsize="small")
    drawn = [*_save(figure, folder / "landmark_loss")]
    figure, axis = plt.subplots(figsize=(6, 4))
    _lines(axis, distances, "distance from the nearest landmark or end", "windows")
    axis.legend(fontsize="small")
    return [*drawn, *_save(figure, folder / "landmark_distance")]


def _lines(axis: Any, table: pl.DataFrame, title: str, unit: str) -> None:
    for shape in SHAPES:
        line = table.filter(pl.col("shape") == shape).sort("percentage")
        spread = line["standard_deviation"].to_numpy()
        axis.errorbar(line["percentage"], line["mean"], yerr=spread, marker="o", capsize=2, label=shape)
    axis.set(title=title, xlabel="landmarks (%)", ylabel=unit, yscale="symlog" if unit == "windows" else "log")


def _save(figure: Any, stem: Path) -> list[Path]:
    figure.tight_layout()
    paths = [stem.with_suffix(suffix) for suffix in (".svg", ".png")]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths


def main(words: Sequence[str] | None = None) -> None:
    """Write both tables, and both figures where matplotlib is installed."""
    parser = argparse.ArgumentParser(prog="python -m reproductions.katsomallos", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/landmark-figures"), metavar="DIR")
    parser.add_argument("--repetitions", type=int, default=100, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args(words)
    arguments.out.mkdir(parents=True, exist_ok=True)
    losses = temporal_loss_table(arguments.repetitions, seed=arguments.seed)
    distances = distance_table(arguments.repetitions, seed=arguments.seed)
    losses.write_csv(arguments.out / "landmark_loss.csv")
    distances.write_csv(arguments.out / "landmark_distance.csv")
    try:
        draw(losses, distances, arguments.out)
    except ModuleNotFoundError as error:
        print(f"no figures, only tables: {error} (pip install 'penstock[plot]')")
    print(arguments.out)


if __name__ == "__main__":
    main()
