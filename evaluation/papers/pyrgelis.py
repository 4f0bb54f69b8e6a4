"""Pyrgelis, Troncoso and De Cristofaro (2020) on the San Francisco cabs: data, defenses, privacy gain and exposure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.accountants.online_attack import area_under_curve
from penstock.evaluation.attacks.challenge import privacy_gain
from penstock.evaluation.attacks.defenses import Defense, defended_presence, mechanism_defense
from penstock.evaluation.attacks.exposure import (
    component_loadings,
    feature_importance,
    mobility_features,
    sort_by_popularity,
)
from penstock.evaluation.attacks.game import Adversary, MembershipGame
from penstock.evaluation.attacks.targets import activity_profile, draw_targets, extreme_targets
from penstock.evaluation.papers.study import Study
from penstock.mechanisms.adaptive_ranges import AdaptiveRanges
from penstock.mechanisms.core.contract import Generalization, Mechanism
from penstock.mechanisms.core.plugin import DataError, ParameterError, parameter
from penstock.mechanisms.fixed_ranges import FixedRanges
from penstock.mechanisms.fpa import Fpa
from penstock.mechanisms.perturb_small import PerturbSmall
from penstock.mechanisms.sampling import Sampling
from penstock.mechanisms.spatial_generalization import SpatialGeneralization
from penstock.mechanisms.suppress_small import SuppressSmall
from penstock.mechanisms.suppress_unpopular import SuppressUnpopular
from penstock.mechanisms.temporal_generalization import TemporalGeneralization


class Box(NamedTuple):
    """An area, by its edges in degrees."""

    south: float
    north: float
    west: float
    east: float


CITY = Box(37.74, 37.82, -122.47, -122.37)
ROWS = COLUMNS = 10
#: Monday, 19 May 2008, 00:00 UTC.
BEGIN = 1_211_155_200
HOURS = 504


def cab_presence(folder: Path, box: Box = CITY) -> NDArray[np.bool_]:
    """Presence of every cab seen in the box within the three weeks, shape (n_cabs, 100, 504).

    ``folder``: the unpacked CRAWDAD data set epfl/mobility, one file ``new_*.txt`` a cab.

    Cells are numbered from the south-west corner, row by row; a cab in several cells of an hour is in all of them. The
    box and the dates are this project's reading of Pyrgelis, Troncoso, De Cristofaro, POMACS 2020, section 2.1: they
    give its 534 cabs, 78 ± 6 cells and 340 ± 94 active hours. About 27 MB and a few seconds.
    """
    paths = sorted(folder.glob("new_*.txt"))
    if not paths:
        raise DataError(f"{folder}: no file new_*.txt of the data set epfl/mobility")
    cabs = []
    for rows in pl.collect_all([_cells(path, box) for path in paths]):
        cell, window = rows.to_numpy().T
        presence = np.zeros((ROWS * COLUMNS, HOURS), dtype=bool)
        presence[cell, window] = True
        cabs.append(presence)
    everybody = np.array(cabs)
    return everybody[everybody.any(axis=(1, 2))]


def made_up_presence(n_people: int, seed: int) -> NDArray[np.bool_]:
    """Presence of synthetic people in that shape, with uneven activity of people and cells.

    >>> made_up_presence(3, seed=1).shape
    (3, 100, 504)
    """
    rng = np.random.default_rng(seed)
    busy = rng.gamma(1.0, 0.1, (n_people, 1, 1)) * rng.gamma(0.5, 1.0, (1, ROWS * COLUMNS, 1))
    return rng.random((n_people, ROWS * COLUMNS, HOURS)) < np.clip(busy, 0.001, 0.9)


def _cells(path: Path, box: Box) -> pl.LazyFrame:
    """Distinct (cell, hour) of one cab."""
    scan = pl.scan_csv(path, separator=" ", has_header=False, new_columns=["latitude", "longitude", "occupied", "time"])
    row = ((pl.col("latitude") - box.south) / (box.north - box.south) * ROWS).floor().cast(pl.Int64)
    column = ((pl.col("longitude") - box.west) / (box.east - box.west) * COLUMNS).floor().cast(pl.Int64)
    placed = scan.select(row=row, column=column, window=(pl.col("time") - BEGIN) // 3600)
    inside = pl.col("row").is_between(0, ROWS - 1) & pl.col("column").is_between(0, COLUMNS - 1)
    within = pl.col("window").is_between(0, HOURS - 1)
    return placed.filter(inside & within).select(pl.col("row") * COLUMNS + pl.col("column"), "window").unique()


Binary = NDArray[np.bool_]
Targets = NDArray[np.intp]


class Piece(NamedTuple):
    """One unit of work of a study: the attacks on one target under a common name."""

    target: int
    name: str


@dataclass(frozen=True, kw_only=True)
class CabStudy(Study):
    """Base of studies of attacks on cabs, target by target.

    Who is drawn as a target is drawn again when more are asked for (`draw_targets`).
    """

    aside: ClassVar[tuple[str, ...]] = ("path", "targets")

    path: str | None = parameter(
        None, kind="path", doc="folder of the San Francisco cabs (CRAWDAD epfl/mobility); unset: made-up people"
    )
    people: int = parameter(120, doc="how many made-up people there are, where path is unset", at_least=3)
    targets: int = parameter(30, doc="people attacked, a third of each mobility group", at_least=3)
    components: int = parameter(600, doc="principal components at most", at_least=1)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The folder of the cabs."""
        return (self.path,) if self.path else ()

    def data(self) -> Binary:
        """Who was where: (n_people, 100, 504), three weeks of hours on a grid of 10 × 10."""
        return made_up_presence(self.people, self.seed) if self.path is None else cab_presence(Path(self.path))

    def chosen(self, presence: Binary) -> Targets:
        """Whom to attack: as many as asked for, shared out as `draw_targets` says, the barely mobile ones first."""
        n_seen = np.count_nonzero(presence.any(axis=(1, 2)))
        if n_seen < self.targets:
            raise ParameterError("study.targets", self.targets, f"at most {n_seen}, the people who are seen")
        return draw_targets(presence, self.targets, self.seed)


#: Hours of the week under attack; mechanisms over a block take it as one.
WEEK = 168
#: √2645, the largest L2 norm of any cab's week: the sensitivity of the Fourier noise is measured, as in the paper.
MEASURED = 51.43


#: Shares that sampling and suppression drop.
DROPPED = (0.2, 0.4, 0.6, 0.8)


@dataclass(frozen=True)
class PaperDefense:
    """One defense with one setting."""

    family: str  # the paper's abbreviation: SPG, TG, SPG+TG, DGFR, DGAR, SSC, SLP, SMP, PSC, FPA, SPSC or SFPA
    setting: str  # what is varied, in the paper's terms; w is the share that sampling drops
    steps: tuple[Mechanism, ...]  # mechanisms in the order of a configuration
    in_figure: bool = True  # whether it is among the defenses that the privacy gain is measured for by default

    @property
    def name(self) -> str:
        """Family and setting."""
        return f"{self.family} {self.setting}"

    def of(self, binary: NDArray[np.bool_], rows: int, columns: int) -> tuple[NDArray[np.bool_], Defense | None]:
        """Presence as generalization leaves it, and what the other steps do to counts (None: nothing).

        Sampling is redrawn for every aggregate: the adversary does not know which memberships were kept.

        `binary` (n_users, rows·columns, n_windows): presence on a grid, row by row.
        """
        coarse = [step for step in self.steps if isinstance(step, Generalization)]
        if not coarse:
            return binary, mechanism_defense(self.steps, resample=True)
        spatial = [step for step in coarse if isinstance(step, SpatialGeneralization)]
        groups = spatial[0].groups(grid_geometry(rows, columns)) if spatial else None
        kept = defended_presence(binary, coarse, groups=groups, axes="cells_windows")
        return kept, mechanism_defense(self.steps, groups=groups)


def grid_geometry(rows: int, columns: int) -> list[dict[str, list[list[float]]]]:
    """Unit squares of a grid, row by row.

    >>> grid_geometry(1, 2)[1]
    {'polygon': [[1.0, 0.0], [2.0, 1.0]]}
    """
    return [
        {"polygon": [[float(column), float(row)], [column + 1.0, row + 1.0]]}
        for row in range(rows)
        for column in range(columns)
    ]


def paper_defenses() -> tuple[PaperDefense, ...]:
    """Every defense and setting of the paper's tables for the taxi data.

    >>> [one.name for one in paper_defenses() if one.family == "SPG"]
    ['SPG 5x5', 'SPG 2x2', 'SPG 1x1']
    """
    return tuple(_generalization()) + tuple(_hiding()) + tuple(_perturbation())


def _generalization() -> Iterator[PaperDefense]:
    for n in (5, 2, 1):
        yield PaperDefense("SPG", f"{n}x{n}", (SpatialGeneralization(rows=n, columns=n),))
    for hours, name in ((4, "4 hours"), (8, "8 hours"), (24, "1 day"), (WEEK, "1 week")):
        yield PaperDefense("TG", name, (TemporalGeneralization(windows=hours),))
    coarsest = SpatialGeneralization(rows=1, columns=1), TemporalGeneralization(windows=WEEK)
    yield PaperDefense("SPG+TG", "1x1, 1 week", coarsest)
    for width in (2, 5, 10, 50, 100, 250):
        yield PaperDefense("DGFR", f"x = {width}", (FixedRanges(width=width),), width >= 50)
    for parts in (1, 2, 4, 8, 16):
        yield PaperDefense("DGAR", f"x′ = {parts}", (AdaptiveRanges(parts=parts, block=WEEK),), parts <= 2)


def _hiding() -> Iterator[PaperDefense]:
    for k in (2, 5, 10, 20, 40, 80, 160):
        yield PaperDefense("SSC", f"k = {k}", (SuppressSmall(threshold=k),), k >= 80)
    for z in DROPPED:
        yield PaperDefense("SLP", f"z = {z}", (SuppressUnpopular(fraction=z, block=WEEK, where="both"),), z == 0.8)
    for w in DROPPED:
        yield PaperDefense("SMP", f"w = {w}", (_sampling(w),), w == 0.8)


def _perturbation() -> Iterator[PaperDefense]:
    small = PerturbSmall(threshold=20, epsilon=0.1, noise="laplace")
    fourier = Fpa(
        epsilon=10.0,
        coefficients=24,
        block=WEEK,
        calibration="paper",
        transform="unnormalised",
        measured_sensitivity=MEASURED,
    )
    for k in (2, 5, 10, 20, 40, 80, 160):
        yield PaperDefense("PSC", f"k = {k}", (replace(small, threshold=k),), k == 160)
    for epsilon in (0.01, 0.1, 1.0, 10.0):
        yield PaperDefense("FPA", f"ε = {epsilon:g}", (replace(fourier, epsilon=epsilon),), epsilon >= 1)
    for w in DROPPED:
        yield PaperDefense("SPSC", f"w = {w}", (_sampling(w), small), w == 0.8)
    for w in DROPPED:
        # A sampled week is shorter: its largest L2 norm shrinks with the square root of what is kept.
        sampled = replace(fourier, measured_sensitivity=MEASURED * float(np.sqrt(1 - w)))
        yield PaperDefense("SFPA", f"w = {w}", (_sampling(w), sampled), w == 0.8)


def _sampling(dropped: float) -> Sampling:
    return Sampling(rate=round(1 - dropped, 12))


RAW = "raw"


def gain_table(areas: Mapping[str, Mapping[int, float]]) -> pl.DataFrame:
    """Privacy gain of each defense over its targets.

    ``areas`` under the curve, by defense and target; the gain is over those of ``raw`` counts.

    Returns one row for each defense: ``n_targets``, mean of the ``auc``, and of the gain the ``mean``, its ``low`` and
    ``high`` (95 %, over targets) and the quartiles ``q25``, ``median`` and ``q75``; ``mirrored`` is the mean where an
    area below ½ counts like the one above ½ that an adversary reaches by turning her answers round.

    >>> found = gain_table({"raw": {1: 1.0, 2: 1.0}, "noise": {1: 0.75, 2: 0.4}})
    >>> found.select("defense", "n_targets", "mean", "mirrored").row(0)
    ('noise', 2, 0.25, 0.65)
    """
    rows = []
    for name, own in areas.items():
        if name == RAW:
            continue
        raw, defended = np.array([areas[RAW][target] for target in own]), np.array(list(own.values()))
        gain = np.asarray(privacy_gain(raw, defended))
        turned = np.asarray(privacy_gain(raw, np.maximum(defended, 1 - defended)))
        reach = 1.96 * gain.std(ddof=1) / np.sqrt(gain.size) if gain.size > 1 else np.nan
        q25, median, q75 = np.quantile(gain, (0.25, 0.5, 0.75)).tolist()
        mean = float(gain.mean())
        row = {"mean": mean, "low": max(mean - reach, 0.0), "high": min(mean + reach, 1.0)}
        row |= {"q25": q25, "median": median, "q75": q75, "mirrored": float(turned.mean())}
        rows.append({"defense": name, "n_targets": gain.size, "auc": float(defended.mean())} | row)
    return pl.DataFrame(rows)


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
BOTH = {"1x1, 1 week": "1 week, 1x1"}


def trade_off_table(gains: pl.DataFrame, results: Path) -> pl.DataFrame:
    """Figures 7 to 10: privacy gain against loss of utility, for every defense that has both.

    ``results``: folder with the tables of the experiments sfc_*.

    Returns ``defense``, ``family``, ``metric``, ``privacy_gain`` (the ``mirrored`` one, as the paper's figures have it)
    and ``utility_loss``: the metric itself where 0 is best, and 1 less the metric where 1 is.
    """
    metrics = {"mre": 0, "mre_top": 0, "hotspot_f1": 1, "hotspot_rank_tau": 1, "js_distance": 0, "pearson": 1}
    rows = []
    for metric, best in metrics.items():
        for row in gains.iter_rows(named=True):
            family, _, setting = row["defense"].partition(" ")
            path = results / f"{EXPERIMENTS[family]}.csv"
            if not path.exists():
                continue
            found = pl.read_csv(path).filter(variant=BOTH.get(setting, setting), measure=metric)["mean"].to_list()
            for value in found:
                loss = abs(best - value)
                own = {"defense": row["defense"], "family": family, "metric": metric}
                rows.append(own | {"privacy_gain": row["mirrored"], "utility_loss": loss})
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
    """The game of section 3.2 over the first week: the adversary knows where some people are."""
    week = presence[:, :, :WEEK]
    return MembershipGame(week, challenges="others", observation=WEEK, inference=WEEK, axes="cells_windows", **sizes)


def past_game(presence: Binary, prior: str, *, groups: int, **sizes: Any) -> MembershipGame:
    """A game of section 3.3: the adversary knows two weeks of groups, and is challenged with the third."""
    periods: dict[str, Any] = {"observation": (0, 2 * WEEK), "inference": (2 * WEEK, 3 * WEEK)}
    periods["axes"] = "cells_windows"
    return MembershipGame(presence, prior=prior, groups=groups, n_samples=3 * groups, **periods, **sizes)


@dataclass(frozen=True)
class Exposure:
    """How exposed targets are, and by what."""

    targets: Targets  # indices of users
    areas: dict[str, NDArray[np.float64]]  # under the curve, by game, in the order of the targets
    # by game: how far the scores of challenges with and without the target lie apart, in deviations. It tells
    # apart whom the area cannot, as it is 1 for all who are always found.
    margins: dict[str, NDArray[np.float64]]
    loadings: dict[int, NDArray[np.float64]]  # by target, (n_cells, n_windows): of the five most important components


def study(games: Mapping[str, MembershipGame], target: int) -> dict[str, NDArray[np.float64]]:
    """Attack a target in games that differ in their challenges only, with one training.

    The adversary is trained in the first one.

    Returns ``areas`` and ``margins`` in the order of the games, and ``loadings``, as `Exposure` has them.
    """
    first = next(iter(games.values()))
    adversary = first.adversary(target)
    return {
        "areas": np.array([game.challenge(target, adversary).auc for game in games.values()]),
        "margins": np.array([_margin(game, target, adversary) for game in games.values()]),
        "loadings": component_loadings(first, target, TOP_COMPONENTS, adversary=adversary, axes="cells_windows"),
    }


def exposure_of(found: Mapping[Piece, Mapping[str, NDArray[np.float64]]], names: Sequence[str]) -> Exposure:
    """What `study` found of every target, together; ``names``: of the games, in their order."""
    areas, margins = (
        dict(zip(names, np.array([own[key] for own in found.values()]).T)) for key in ("areas", "margins")
    )
    loadings = {piece.target: own["loadings"] for piece, own in found.items()}
    return Exposure(np.array(list(loadings)), areas, margins, loadings)


def _margin(game: MembershipGame, target: int, adversary: Adversary) -> float:
    samples = game.samples(target)
    scores, inside = adversary.scores(samples), samples.labels[samples.n_train :]
    deviation = np.sqrt((scores[inside].var() + scores[~inside].var()) / 2)
    return float((scores[inside].mean() - scores[~inside].mean()) / deviation) if deviation > 0 else 0.0


def comparison_table(areas: Mapping[str, NDArray[np.float64]]) -> pl.DataFrame:
    """Figure 1(b): mean and deciles of the areas of each attack.

    >>> comparison_table({"pca": np.array([0.5, 1.0])}).row(0)
    ('pca', 2, 0.75, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
    """
    rows = []
    for attack, found in areas.items():
        deciles = {f"q{10 * i}": float(q) for i, q in enumerate(np.quantile(found, np.arange(11) / 10).round(6))}
        rows.append({"attack": attack, "n_targets": found.size, "mean": float(found.mean())} | deciles)
    return pl.DataFrame(rows)


def loadings_table(
    loadings: Mapping[int, NDArray[np.float64]], binary: Binary, groups: Mapping[str, Targets]
) -> pl.DataFrame:
    """Figures 3 and 5(b): loadings of the five most important components, sorted by popularity.

    ``binary`` (n_users, n_cells, n_windows): presence over the windows of one block, for the popularity.

    Returns ``targets``, ``cells`` and ``windows`` (tenths by popularity, 1 the least popular) and ``loading``: the mean
    within, relative to the largest of the group.
    """
    rows = []
    for name, targets in groups.items():
        total = np.sum([loadings[int(target)] for target in targets], axis=0)
        ordered, _, _ = sort_by_popularity(total, binary, axes="cells_windows")
        bands = [np.array_split(np.arange(size), N_BANDS) for size in ordered.shape]
        means = np.array([[ordered[np.ix_(cells, windows)].mean() for windows in bands[1]] for cells in bands[0]])
        for (i, j), value in np.ndenumerate(means / means.max()):
            rows.append({"targets": name, "cells": i + 1, "windows": j + 1, "loading": float(value)})
    return pl.DataFrame(rows)


def places_table(loadings: Mapping[int, NDArray[np.float64]]) -> pl.DataFrame:
    """Figures 3(a) and 5, before sorting: the mean loading of every cell and of every window, relative to the largest.

    >>> places_table({0: np.array([[1.0, 3.0]])}).rows()
    [('cell', 0, 1.0), ('window', 0, 0.3333333333333333), ('window', 1, 1.0)]
    """
    total = np.sum(list(loadings.values()), axis=0)
    parts = [
        pl.DataFrame({"axis": axis, "index": np.arange(means.size), "loading": means / means.max()})
        for axis, means in (("cell", total.mean(axis=1)), ("window", total.mean(axis=0)))
    ]
    return pl.concat(parts)


def activity_table(binary: Binary, most: Targets, least: Targets) -> pl.DataFrame:
    """Figure 4(b): when the most and the least exposed tenth are seen, relative to their busiest hour.

    >>> binary = np.array([[[1, 0]], [[1, 1]]], dtype=bool)
    >>> activity_table(binary, np.array([1]), np.array([0])).rows()
    [(0, 1.0, 1.0), (1, 1.0, 0.0)]
    """
    profiles = {
        name: activity_profile(binary, own, axes="cells_windows") for name, own in (("most", most), ("least", least))
    }
    return pl.DataFrame({"hour": np.arange(binary.shape[2])} | profiles)


def importance_table(binary: Binary, most: Targets, least: Targets, method: str) -> pl.DataFrame:
    """Table 2 (``random_forest``) or 3 (``logistic_regression``): features separating most and least exposed.

    Returns ``feature``, ``weight``, the ``paper``'s, the feature's mean among the ``most`` and the ``least`` exposed,
    and the area under the curve of the feature ``alone``: features that say the same share their weight by chance.
    """
    weekend = np.arange(binary.shape[2]) // 24 % 7 >= 5
    features = mobility_features(binary, weekend, axes="cells_windows")
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
    """The most and the least exposed tenth of the targets, by area and where that is equal by margin.

    >>> areas = np.array([0.5, 1.0, 1.0, 0.7])
    >>> extremes(np.arange(4), areas, np.array([0.0, 4.0, 6.0, 1.0]))
    (array([2]), array([0]))
    """
    ranks = np.empty(len(targets))
    ranks[np.lexsort((margins, areas))] = np.arange(len(targets))
    most, least = extreme_targets(ranks)
    return targets[most], targets[least]
