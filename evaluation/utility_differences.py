"""Why utility tables of the San Francisco cabs differ from published ones: every reading that was tried, measured.

``python -m evaluation.utility_differences --data DATA --out FILE.csv`` draws ten groups of 250 cabs, as the
experiments ``sfc_*`` do, and writes the six metrics of Pyrgelis, Troncoso and De Cristofaro (2020) for every reading.
DATA holds ``cabspotting``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from evaluation.cabs import Box, cab_presence
from evaluation.membership_defenses import WEEK
from evaluation.utility import METRICS
from evaluation.utility_readings import BOXES, Presence, Reading, readings

SHOWN = ("mre", "mre_top", "hotspot_f1", "hotspot_rank_tau", "js_distance", "pearson")
GROUP_SIZE, N_GROUPS = 250, 10


def differences(
    presence_in: Callable[[Box], Presence],
    tried: Iterable[Reading] | None = None,
    group_size: int = GROUP_SIZE,
    n_groups: int = N_GROUPS,
) -> pl.DataFrame:
    """Mean of every metric over random groups, a row for each reading.

    Parameters
    ----------
    presence_in
        Presence of all cabs (n_cabs, 100, n_hours) for an area; its first week is measured.
    tried
        Readings; None: all of them.
    group_size, n_groups
        People of a group, and groups; seeds 1, 2, … draw them, the same for all readings of one area.
    """
    rows = []
    for box, same in groupby(readings() if tried is None else tried, key=lambda reading: reading.box):
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
    return [METRICS[name].function(*pair) for name in SHOWN]


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
    parser = argparse.ArgumentParser(prog="python -m evaluation.utility_differences", description=__doc__)
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
