"""Studies by Pyrgelis, Troncoso and De Cristofaro (2020) on San Francisco cabs: presence, privacy gain and exposure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.accountants.online_attack import area_under_curve
from penstock.evaluation.attacks.game import MembershipGame
from penstock.evaluation.attacks.targets import draw_targets
from penstock.evaluation.membership import mobility_features
from penstock.mechanisms.core.plugin import ParameterError, parameter
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import load
from reproductions.exposure import (
    activity_profile,
    component_loadings,
    extreme_targets,
    feature_importance,
    sort_by_popularity,
)
from reproductions.study import Study

#: Presence of people, shape (n_people, n_windows, n_cells).
Binary = NDArray[np.bool_]
Targets = NDArray[np.intp]

#: One week of the cabs by the hour; the paper has three.
CABS = Path(__file__).parents[1] / "configs" / "datasets" / "sf_cabs_week.yaml"
UNTIL = "2008-06-09T00:00:00Z"
ROWS = COLUMNS = 10
HOURS = 504
#: Hours of the week under attack; mechanisms over a block take it as one.
WEEK = 168


def cab_presence(folder: str) -> Binary:
    """Read the presence of every cab seen in the box within the three weeks, shape (n_cabs, 504, 100), by file name.

    ``folder``: the unpacked CRAWDAD data set epfl/mobility, one file ``new_*.txt`` a cab.

    A cab in several cells of an hour is in all of them. The box and the dates are this project's reading of Pyrgelis,
    Troncoso, De Cristofaro, POMACS 2020, section 2.1: they give its 534 cabs, 78 ± 6 cells and 340 ± 94 active hours.
    """
    plan = make_plan(load(CABS, [f"source.path={folder}", f"source.until={UNTIL}"]))
    source = plan.config.source.from_start()
    seen = []
    for block in (block for span in source.spans() for block in source.read(span)):
        frame, window = block.frame, plan.grid.calendar.index(block.frame["time"].to_numpy())
        placed = frame.select("user").with_columns(window=window - 1, cell=np.asarray(plan.space.place(frame)))
        seen.append(placed.filter(pl.col("window") >= 0, pl.col("cell") >= 0).unique())
    visits = pl.concat(seen).unique()
    cabs = visits["user"].unique().sort()
    presence = np.zeros((len(cabs), HOURS, ROWS * COLUMNS), bool)
    presence[cabs.search_sorted(visits["user"]), visits["window"], visits["cell"]] = True
    return presence


def synthetic_presence(n_people: int, seed: int) -> Binary:
    """Generate presence in the shape of the cab data for synthetic people, with uneven activity of people and cells.

    >>> synthetic_presence(3, seed=1).shape
    (3, 504, 100)
    """
    rng = np.random.default_rng(seed)
    busy = rng.gamma(1.0, 0.1, (n_people, 1, 1)) * rng.gamma(0.5, 1.0, (1, ROWS * COLUMNS, 1))
    return (rng.random((n_people, ROWS * COLUMNS, HOURS)) < np.clip(busy, 0.001, 0.9)).swapaxes(1, 2)


class TargetPiece(NamedTuple):
    """A unit of work in a study: the attacks on one target under a common name."""

    target: int
    name: str


@dataclass(frozen=True, kw_only=True)
class CabStudy(Study):
    """Base class for studies that attack cabs, target by target.

    Who is drawn as a target is drawn again when more are asked for (`draw_targets`).
    """

    not_decisive: ClassVar[tuple[str, ...]] = ("path", "targets")

    path: str | None = parameter(
        None, kind="path", doc="folder of the San Francisco cabs (CRAWDAD epfl/mobility); unset: made-up people"
    )
    people: int = parameter(120, doc="how many made-up people there are, where path is unset", at_least=3)
    targets: int = parameter(30, doc="people attacked, a third of each mobility group", at_least=3)
    components: int = parameter(600, doc="principal components at most", at_least=1)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The folder of the cab data."""
        return (self.path,) if self.path else ()

    def data(self) -> Binary:
        """Return the presence, shape (n_people, 504, 100), for three weeks of hours on a grid of 10 × 10 cells."""
        return synthetic_presence(self.people, self.seed) if self.path is None else cab_presence(self.path)

    def chosen(self, presence: Binary) -> Targets:
        """Draw the requested number of people to attack, split as in `draw_targets` and starting with the barely
        mobile.
        """
        n_seen = np.count_nonzero(presence.any(axis=(1, 2)))
        if n_seen < self.targets:
            raise ParameterError("study.targets", self.targets, f"at most {n_seen}, the people who are seen")
        return draw_targets(presence, self.targets, self.seed)


#: Experiment with the utility of each family of defenses, and how it names a setting.
EXPERIMENTS = {
    "SPG": "sfc_spatial_generalization",
    "TG": "sfc_temporal_generalization",
    "SPG+TG": "sfc_temporal_generalization",
    "DGFR": "sfc_fixed_ranges",
    "DGAR": "sfc_adaptive_ranges",
    "SSC": "sfc_suppress_small",
    "SLP": "sfc_suppress_unpopular",
    "SMP": "sfc_sampling",
    "PSC": "sfc_perturb_small",
    "FPA": "sfc_fpa",
    "SPSC": "sfc_sampling_perturb_small",
    "SFPA": "sfc_sampling_fpa",
}
#: Settings whose reading in these experiments, the one that is attacked, has another name.
VARIANTS = {
    "SPG+TG 1x1, 1 week": "1 week, 1x1",
    "DGAR x′ = 1": "x′ = 1, all middles",
    "DGAR x′ = 2": "x′ = 2, all middles",
    "FPA ε = 1": "ε = 1, both halves",
    "FPA ε = 10": "ε = 10, both halves",
    "SFPA w = 0.8": "w = 0.8, both halves",
}


def trade_off_table(gains: pl.DataFrame, results: Path) -> pl.DataFrame:
    """Tabulate figures 7 to 10: privacy gain against loss of utility, for every defense that has both.

    ``gains``: columns ``defense`` and ``gain``. ``results``: folder with the tables of the experiments sfc_*.

    Returns ``defense``, ``family``, ``metric``, ``privacy_gain`` (equation 1: an area below ½ counts as no gain) and
    ``utility_loss``: the distance of the metric from that of the raw counts, whose r is below 1, since counts of some
    cells are constant.
    """
    raw = pl.read_csv(results / "utility_differences.csv").filter(defense="true counts", reading="as here")
    rows = []
    for metric in ("mre", "mre_top", "hotspot_f1", "hotspot_rank_tau", "js_distance", "pearson"):
        for defense, gain in gains.select("defense", "gain").iter_rows():
            family, _, setting = defense.partition(" ")
            path = results / f"{EXPERIMENTS[family]}.csv"
            if not path.exists():
                continue
            utility = pl.read_csv(path).filter(variant=VARIANTS.get(defense, setting), measure=metric)["mean"]
            rows += [
                {"defense": defense, "family": family, "metric": metric, "privacy_gain": gain, "utility_loss": loss}
                for loss in (utility - raw[metric].item()).abs()
            ]
    return pl.DataFrame(rows)


#: Tables 2 and 3: importance in a random forest, and coefficients of a regression (negative: more exposed).
PAPER = {
    "events": (0.17, -0.36),
    "unique_cells": (0.01, 1.29),
    "active_windows": (0.23, 0.05),
    "cells_per_window": (0.30, -0.33),
    "active_windows_weekday": (0.01, 0.28),
    "active_windows_weekend": (0.01, -0.46),
    "events_weekday": (0.07, -0.38),
    "events_weekend": (0.03, -0.17),
    "spatial_entropy": (0.03, -0.18),
    "temporal_entropy": (0.01, -0.06),
    "unicity": (0.17, -0.68),
}
PAST_PRIORS = ("same_groups", "different_groups")
TOP_COMPONENTS = 5
N_BANDS = 10


def subset_game(presence: Binary, **sizes: Any) -> MembershipGame:
    """Return the game of section 3.2 over the first week: the adversary knows some people's locations."""
    week = presence[:, :WEEK]
    return MembershipGame(week, challenges="others", observation=WEEK, inference=WEEK, **sizes)


def past_game(presence: Binary, prior: str, *, groups: int, **sizes: Any) -> MembershipGame:
    """Return the game of section 3.3: the adversary knows groups from two weeks, and the challenges are from the
    third.
    """
    periods: dict[str, Any] = {"observation": (0, 2 * WEEK), "inference": (2 * WEEK, 3 * WEEK)}
    return MembershipGame(presence, prior=prior, groups=groups, n_samples=3 * groups, **periods, **sizes)


@dataclass(frozen=True)
class TargetExposure:
    """The exposure of targets, and the features that influence it most."""

    targets: Targets  # indices of users
    areas: dict[str, NDArray[np.float64]]  # under the curve, by game, in the order of the targets
    # by game: how far the scores of challenges with and without the target lie apart, in deviations. It tells
    # apart whom the area cannot, as it is 1 for all who are always found.
    margins: dict[str, NDArray[np.float64]]
    loadings: dict[int, NDArray[np.float64]]  # by target, (n_windows, n_cells): of the five most important components


def study(games: Mapping[str, MembershipGame], target: int) -> dict[str, NDArray[np.float64]]:
    """Attack a target in games that differ only in their challenges. Loadings come from the first game.

    Returns ``areas`` and ``margins`` in the order of the games, and ``loadings``, as `TargetExposure` has them.
    """
    played = [game.scores(target) for game in games.values()]
    return {
        "areas": np.array([area_under_curve(labels, scores) for labels, scores in played]),
        "margins": np.array([_margin(labels, scores) for labels, scores in played]),
        "loadings": component_loadings(next(iter(games.values())), target, TOP_COMPONENTS),
    }


def exposure_of(
    figures: Mapping[TargetPiece, Mapping[str, NDArray[np.float64]]], names: Sequence[str]
) -> TargetExposure:
    """Combine the figures of all targets. ``names`` are the names of the games, in order."""
    areas, margins = (
        dict(zip(names, np.array([of_target[key] for of_target in figures.values()]).T)) for key in ("areas", "margins")
    )
    loadings = {piece.target: of_target["loadings"] for piece, of_target in figures.items()}
    return TargetExposure(np.array(list(loadings)), areas, margins, loadings)


def _margin(inside: NDArray[np.bool_], scores: NDArray[np.float64]) -> float:
    deviation = np.sqrt((scores[inside].var() + scores[~inside].var()) / 2)
    return float((scores[inside].mean() - scores[~inside].mean()) / deviation) if deviation > 0 else 0.0


def comparison_table(areas: Mapping[str, NDArray[np.float64]]) -> pl.DataFrame:
    """Tabulate figure 1(b): the mean and deciles of the areas under the curve for each attack.

    >>> comparison_table({"pca": np.array([0.5, 1.0])}).row(0)
    ('pca', 2, 0.75, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
    """
    rows = []
    for attack, values in areas.items():
        deciles = {f"q{10 * i}": float(q) for i, q in enumerate(np.quantile(values, np.arange(11) / 10).round(6))}
        rows.append({"attack": attack, "n_targets": values.size, "mean": float(values.mean())} | deciles)
    return pl.DataFrame(rows)


def loadings_table(
    loadings: Mapping[int, NDArray[np.float64]], binary: Binary, groups: Mapping[str, Targets]
) -> pl.DataFrame:
    """Tabulate figures 3 and 5(b): loadings of the five most important components, sorted by popularity.

    ``binary`` (n_users, n_windows, n_cells): presence over the windows of one block, for the popularity.

    Returns ``targets``, ``cells`` and ``windows`` (tenths by popularity, 1 the least popular) and ``loading``: the mean
    within, relative to the largest of the group.
    """
    rows = []
    for name, targets in groups.items():
        total = np.sum([loadings[int(target)] for target in targets], axis=0)
        ordered = sort_by_popularity(total, binary)[0].T
        bands = [np.array_split(np.arange(size), N_BANDS) for size in ordered.shape]
        means = np.array([[ordered[np.ix_(cells, windows)].mean() for windows in bands[1]] for cells in bands[0]])
        for (i, j), value in np.ndenumerate(means / means.max()):
            rows.append({"targets": name, "cells": i + 1, "windows": j + 1, "loading": float(value)})
    return pl.DataFrame(rows)


def places_table(loadings: Mapping[int, NDArray[np.float64]]) -> pl.DataFrame:
    """Tabulate figures 3(a) and 5, unsorted: the mean loading of every cell and window, relative to the largest.

    >>> places_table({0: np.array([[1.0], [3.0]])}).rows()
    [('cell', 0, 1.0), ('window', 0, 0.3333333333333333), ('window', 1, 1.0)]
    """
    total = np.sum(list(loadings.values()), axis=0)
    parts = [
        pl.DataFrame({"axis": axis, "index": np.arange(means.size), "loading": means / means.max()})
        for axis, means in (("cell", total.mean(axis=0)), ("window", total.mean(axis=1)))
    ]
    return pl.concat(parts)


def activity_table(binary: Binary, most: Targets, least: Targets) -> pl.DataFrame:
    """Tabulate figure 4(b): activity of the most and least exposed tenths, relative to their busiest hour.

    >>> binary = np.array([[[1], [0]], [[1], [1]]], dtype=bool)
    >>> activity_table(binary, np.array([1]), np.array([0])).rows()
    [(0, 1.0, 1.0), (1, 1.0, 0.0)]
    """
    profiles = {name: activity_profile(binary, users) for name, users in (("most", most), ("least", least))}
    return pl.DataFrame({"hour": np.arange(binary.shape[1])} | profiles)


def importance_table(binary: Binary, most: Targets, least: Targets, method: str) -> pl.DataFrame:
    """Tabulate table 2 (``random_forest``) or 3 (``logistic_regression``): features of the most and least exposed
    people.

    Returns ``feature``, ``weight``, the ``paper``'s, the feature's mean among the ``most`` and the ``least`` exposed,
    and the area under the curve of the feature ``alone``: features that say the same share their weight by chance.
    """
    weekend = np.arange(binary.shape[1]) // 24 % 7 >= 5
    features = mobility_features(binary, weekend, axes="windows_cells")
    weights = feature_importance(features, most, least, method=method)
    column = 0 if method == "random_forest" else 1
    both = np.concatenate([most, least])
    is_most = np.arange(both.size) < most.size
    return pl.DataFrame(
        [
            {
                "feature": name,
                "weight": weight,
                "paper": PAPER[name][column],
                "most": float(features[name][most].mean()),
                "least": float(features[name][least].mean()),
                "alone": area_under_curve(is_most, features[name][both]),
            }
            for name, weight in weights.items()
        ]
    )


def extremes(targets: Targets, areas: NDArray[np.float64], margins: NDArray[np.float64]) -> tuple[Targets, Targets]:
    """Return the most and least exposed tenths of the targets by area under the curve. Ties are broken by margin.

    >>> areas = np.array([0.5, 1.0, 1.0, 0.7])
    >>> extremes(np.arange(4), areas, np.array([0.0, 4.0, 6.0, 1.0]))
    (array([2]), array([0]))
    """
    ranks = np.empty(len(targets))
    ranks[np.lexsort((margins, areas))] = np.arange(len(targets))
    most, least = extreme_targets(ranks)
    return targets[most], targets[least]
