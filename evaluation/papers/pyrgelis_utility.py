"""Why utility tables of the San Francisco cabs differ from the published ones: alternative readings, measured.

``python -m penstock.evaluation.papers.pyrgelis_utility --data DATA --out FILE.csv`` draws ten groups of 250 cabs, as
the experiments ``sfc_*`` do, and writes six metrics of Pyrgelis, Troncoso and De Cristofaro (2020) for every reading.
A reading maps the presence of a group (n_people, 100, n_hours) to true and released counts (100, n_hours). DATA holds
``cabspotting``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.evaluation.attacks.defenses import random_guess
from penstock.evaluation.papers.pyrgelis import (
    CITY,
    COLUMNS,
    MEASURED,
    ROWS,
    WEEK,
    Box,
    PaperDefense,
    cab_presence,
    paper_defenses,
)
from penstock.evaluation.utility import METRICS
from penstock.mechanisms.fpa import Fpa

Presence = NDArray[np.bool_]
Counts = NDArray[np.float64]
Pair = tuple[Counts, Counts]
Compared = Callable[[Presence, int], Pair]

#: Boxes in which the same 534 cabs are seen. Published: 78 ± 6 cells and 340 ± 94 hours of a cab, 30.3 square miles.
BOXES = {
    "as here": CITY,
    "600 m further east": Box(37.738, 37.814, -122.463, -122.365),
    "500 m further south, wider": Box(37.735, 37.806, -122.483, -122.356),
}
#: What the box decides.
BY_BOX = (
    *("SPG 5x5", "SPG 2x2", "SPG 1x1", "TG 4 hours", "TG 8 hours", "TG 1 day", "TG 1 week", "DGFR x = 50"),
    *("SSC k = 40", "SSC k = 80", "SMP w = 0.2", "SMP w = 0.4", "SMP w = 0.6", "SMP w = 0.8", "random guess"),
)
STRETCHES = {"TG 4 hours": 4, "TG 8 hours": 8, "TG 1 day": 24}
#: Midnight in the city, and two hours before: hours of UTC at which stretches may begin.
MIDNIGHT, EVENING = 7, 5
#: Hours without a release in one reading; people of the smaller groups that the paper attacks elsewhere.
UNRELEASED, FEW = 12, 100


@dataclass(frozen=True)
class Reading:
    """One interpretation of the published figures of one defense."""

    defense: str  # the defense with its setting, as `PaperDefense.name` gives it
    name: str  # how this reading differs from the project's
    compared: Compared  # true and released counts of a group, given a seed
    box: Box = CITY  # area that the cells divide
    most_active: int | None = None  # draw groups among that many cabs, those seen in most hours; None: among all
    group_size: int | None = None  # people of a group; None: as many as in all other readings


def readings() -> Iterator[Reading]:
    """Every reading, the project's own first for each defense."""
    defenses = {one.name: one for one in paper_defenses()}
    own = {name: _released(one) for name, one in defenses.items()} | {"random guess": _guess}
    yield Reading("true counts", "as here", lambda presence, _: (_counts(presence), _counts(presence)))
    for name, box in BOXES.items():
        yield from (Reading(defense, name, own[defense], box) for defense in BY_BOX)
    for defense in ("random guess", "DGFR x = 50", "SPG 5x5"):
        yield Reading(defense, "cells that no one visited left out", _edited(own[defense], _visited))
    yield from _coarse_space()
    for defense, hours in STRETCHES.items():
        yield from _coarse_time(defense, hours, own[defense])
    yield Reading("TG 1 week", "the 320 most active cabs", own["TG 1 week"], most_active=320)
    for defense in ("DGFR x = 5", "DGFR x = 50", "DGFR x = 100", "DGFR x = 250"):
        yield from _numbered(defense, own[defense])
    for defense in ("SPG 5x5", "SPG 2x2", "SPG 1x1", "TG 4 hours", "TG 8 hours", "TG 1 day", "TG 1 week"):
        yield from _numbered(defense, own[defense])
    for defense in ("SSC k = 20", "SSC k = 40", "SSC k = 80", "SSC k = 160", "SMP w = 0.8"):
        yield from _numbered(defense, own[defense])
    yield Reading("SSC k = 80", "hours without a count left out", _edited(own["SSC k = 80"], _emptied))
    yield Reading("SSC k = 80", "hours without a count taken as equal", _edited(own["SSC k = 80"], _filled))
    yield from _ranges_and_noise(defenses, own)


def _counts(presence: Presence) -> Counts:
    counts: Counts = presence.sum(axis=0).astype(np.float64)
    return counts


def _released(defense: PaperDefense) -> Compared:
    """What the mechanisms of a defense release."""

    def compared(presence: Presence, seed: int) -> Pair:
        """Counts, and what the defense releases of them."""
        let_through, release = defense.of(presence, ROWS, COLUMNS)
        counts = _counts(let_through)
        return _counts(presence), counts if release is None else release(counts.T[None].astype(int), seed)[0].T

    return compared


def _guess(presence: Presence, seed: int) -> Pair:
    return _counts(presence), random_guess(_counts(presence), seed, len(presence))


def _edited(own: Compared, edit: Callable[[Counts, Counts], Pair]) -> Compared:
    """An edit of the true and released counts of a reading."""
    return lambda presence, seed: edit(*own(presence, seed))


def _in_place(edit: Callable[[Counts], Counts]) -> Compared:
    """An edit of the true counts in place of a release."""
    return lambda presence, _: (_counts(presence), edit(_counts(presence)))


def _visited(truth: Counts, released: Counts) -> Pair:
    """Only cells with any true count."""
    some = truth.any(axis=1)
    return truth[some], released[some]


def _emptied(truth: Counts, released: Counts) -> Pair:
    """Only hours whose counts are not all suppressed."""
    some = released.any(axis=0)
    return truth[:, some], released[:, some]


def _filled(truth: Counts, released: Counts) -> Pair:
    """Hours whose counts are all suppressed as if nothing had been."""
    return truth, np.where(released.any(axis=0), released, truth)


def merged(counts: Counts, labels: NDArray[np.intp], way: Callable[..., Counts]) -> Counts:
    """Every row as one figure for all rows of its label: their sum, mean or largest, say.

    >>> merged(np.array([[1.0], [3.0], [5.0]]), np.array([0, 0, 1]), np.mean).ravel().tolist()
    [2.0, 2.0, 5.0]
    """
    coarse = np.array([way(counts[labels == label], axis=0) for label in range(labels.max() + 1)])
    return coarse[labels]


def _coarse_space() -> Iterator[Reading]:
    """Squares of four cells, but not by distinct people."""
    place = np.arange(ROWS * COLUMNS)
    square = place // COLUMNS // 2 * (COLUMNS // 2) + place % COLUMNS // 2
    ways: dict[str, Callable[..., Counts]] = {"sum": np.sum, "mean": np.mean, "largest": np.max, "median": np.median}
    for name, way in ways.items():
        coarse = partial(merged, labels=square, way=way)
        yield Reading("SPG 5x5", f"{name} of the four counts", _in_place(coarse))


def _coarse_time(defense: str, hours: int, own: Compared) -> Iterator[Reading]:
    """Stretches of hours, but at other times, by other counts or of other people."""
    for name, repeat in (
        ("filled backwards from the first hours", _backwards),
        (f"the last {UNRELEASED} hours not released", _cut_short),
    ):
        yield Reading(defense, name, _edited(own, partial(repeat, hours)))
    stretch = np.arange(WEEK) // hours
    for name, way in (("sum of the hours' counts", np.sum), ("largest of the hours' counts", np.max)):
        yield Reading(defense, name, _in_place(partial(_merged_hours, stretch, way)))

    late, evening = (partial(_later, own, begin) for begin in (MIDNIGHT, EVENING))
    yield Reading(defense, f"stretches begin {MIDNIGHT} hours later, the last goes round", late)
    yield Reading(defense, f"groups of {FEW}", own, group_size=FEW)
    yield Reading(defense, f"groups of {FEW}, stretches begin {EVENING} hours later", evening, group_size=FEW)
    yield Reading(defense, "the 320 most active cabs", own, most_active=320)


def _later(own: Compared, begin: int, presence: Presence, seed: int) -> Pair:
    return own(np.roll(presence, -begin, axis=2), seed)


def _backwards(hours: int, truth: Counts, released: Counts) -> Pair:
    """Coarse windows in the hours up to their first one."""
    return truth, np.roll(np.repeat(released[:, ::hours], hours, axis=1), 1 - hours, axis=1)


def _cut_short(hours: int, truth: Counts, released: Counts) -> Pair:
    """Coarse windows in each of their hours, the last unreleased ones as zeros."""
    copied = np.repeat(released[:, ::hours], hours, axis=1)
    copied[:, -UNRELEASED:] = 0.0
    return truth, copied


def _merged_hours(stretch: NDArray[np.intp], way: Callable[..., Counts], truth: Counts) -> Counts:
    return merged(truth.T, stretch, way).T


def _numbered(defense: str, own: Compared) -> Iterator[Reading]:
    """Other numbers for the cells: they decide ties, and the τ of ids."""
    grid = np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS)
    orders = {"from the north-west": grid[::-1], "column by column": grid.T, "from the north-east": grid[::-1, ::-1]}
    for name, order in orders.items():
        yield Reading(defense, f"cells numbered {name}", _edited(own, partial(_ordered, order.ravel())))

    def by_chance(presence: Presence, seed: int) -> Pair:
        """Add less than any difference, so that ties break by chance."""
        truth, released = own(presence, seed)
        return truth, released + np.random.default_rng(seed).random(released.shape) * 1e-6

    yield Reading(defense, "ties of the release broken by chance, for F1 and τ", by_chance)


def _ordered(order: NDArray[np.intp], truth: Counts, released: Counts) -> Pair:
    return truth[order], released[order]


def _ranges_and_noise(defenses: dict[str, PaperDefense], own: dict[str, Compared]) -> Iterator[Reading]:
    """Medians in place of middles; other numbers of coefficients and other sensitivities."""
    yield Reading("DGAR x′ = 2", "as here", own["DGAR x′ = 2"])
    yield Reading("DGAR x′ = 2", "median of the part", _medians)
    changes = {"as here": {}, "10 coefficients": {"coefficients": 10}, "15 coefficients": {"coefficients": 15}}
    mean_cab = {"the mean cab's sensitivity": {"measured_sensitivity": 34.57}}
    whole = {"the sensitivity before sampling": {"measured_sensitivity": MEASURED}}
    for name, more in (("FPA ε = 1", mean_cab), ("SFPA w = 0.8", whole)):
        defense = defenses[name]
        for told, change in (changes | more).items():
            steps = tuple(replace(step, **change) if isinstance(step, Fpa) else step for step in defense.steps)
            yield Reading(name, told, _released(replace(defense, steps=steps)))


def _medians(presence: Presence, _: int) -> Pair:
    """Two parts of each cell's span, each shown by the median of its counts."""
    truth = _counts(presence)
    low, high = truth.min(axis=1, keepdims=True), truth.max(axis=1, keepdims=True)
    upper = truth >= (low + high) / 2
    shown = truth.copy()
    for cell, inside in enumerate(upper):
        for part in (inside, ~inside):
            if part.any():
                shown[cell, part] = np.median(truth[cell, part])
    return truth, shown


SHOWN = ("mre", "mre_top", "hotspot_f1", "hotspot_rank_tau", "js_distance", "pearson")
GROUP_SIZE, N_GROUPS = 250, 10


def differences(
    presence_in: Callable[[Box], Presence], group_size: int = GROUP_SIZE, n_groups: int = N_GROUPS
) -> pl.DataFrame:
    """Mean of every metric over random groups, a row for each reading.

    `presence_in`: presence of all cabs (n_cabs, 100, n_hours) for an area; its first week is measured.
    """
    rows = []
    for box, same in groupby(readings(), key=lambda reading: reading.box):
        week = presence_in(box)[:, :, :WEEK]
        for reading in same:
            people = _people(week, reading.most_active)
            found = [
                _metrics(reading, week, people, reading.group_size or group_size, seed)
                for seed in range(1, n_groups + 1)
            ]
            rows.append(
                {"defense": reading.defense, "reading": reading.name} | dict(zip(SHOWN, np.mean(found, axis=0)))
            )
    return pl.DataFrame(rows)


def _people(week: Presence, most_active: int | None) -> NDArray[np.intp]:
    """Cabs that groups are drawn among: those seen in the week, or those seen in most of its hours."""
    hours = week.any(axis=1).sum(axis=1)
    seen = np.flatnonzero(hours)
    return seen if most_active is None else seen[np.argsort(-hours[seen], kind="stable")[:most_active]]


def _metrics(reading: Reading, week: Presence, people: NDArray[np.intp], size: int, seed: int) -> list[float]:
    group = week[np.random.default_rng(seed).choice(people, size, replace=False)]
    pair = reading.compared(group, seed)
    return [METRICS[name].function(*pair, axes="cells_windows") for name in SHOWN]


def box_facts(presence: Presence) -> str:
    """How many cabs an area shows over all hours, and in how many cells and hours each.

    >>> box_facts(np.array([[[1, 0], [1, 1]], [[0, 0], [0, 1]], [[0, 0], [0, 0]]], dtype=bool))
    '2 cabs, 1.5 ± 0.5 cells, 1.5 ± 0.5 hours'
    """
    seen = presence[presence.any(axis=(1, 2))]
    cells, hours = seen.any(axis=2).sum(axis=1), seen.any(axis=1).sum(axis=1)
    return (
        f"{len(seen)} cabs, {cells.mean():.1f} ± {cells.std():.1f} cells, {hours.mean():.1f} ± {hours.std():.1f} hours"
    )


def main(words: Sequence[str] | None = None) -> None:
    """Measure all readings and write the table."""
    parser = argparse.ArgumentParser(prog="python -m penstock.evaluation.papers.pyrgelis_utility", description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("PENSTOCK_DATA"), metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=Path("runs/utility_differences.csv"), metavar="FILE")
    given = parser.parse_args(words)
    if given.data is None:
        parser.error("--data: the folder that holds cabspotting")
    folder = Path(given.data) / "cabspotting"
    for name, box in BOXES.items():
        print(f"{name} {tuple(box)}: {box_facts(cab_presence(folder, box))}")
    table = differences(lambda box: cab_presence(folder, box))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    table.with_columns(pl.col(SHOWN).round_sig_figs(4)).write_csv(given.out)
    print(given.out)


if __name__ == "__main__":
    main()
