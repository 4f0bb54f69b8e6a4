"""Membership attacks on the taxi data: the figures and tables of Pyrgelis, Troncoso and De Cristofaro (2020).

``python -m evaluation.membership_figures FIGURE --data FOLDER --out DIR`` writes tables as CSV and, with the extra
``plot``, figures as SVG. FIGURE is gain (6(b), and 7 to 10 with the tables of utility), comparison (1(b)), victims (3,
4(b), table 2) or past (5(b), table 3). FOLDER holds ``cabspotting``. Areas of single targets are kept in DIR, so that
what is interrupted goes on; they stay with whoever holds the data, as the other files are about no single cab.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import polars.selectors as cs
from numpy.typing import NDArray

from evaluation.attacks.game import MembershipGame
from evaluation.attacks.targets import sample_targets
from evaluation.cabs import cab_presence
from evaluation.membership_defenses import WEEK, paper_defenses
from evaluation.membership_gain import SCHEMA, gain_table, measure_gains, trade_off_table
from evaluation.membership_victims import (
    PAST,
    PAST_PRIORS,
    SUBSET,
    activity_table,
    attack_areas,
    comparison_table,
    extremes,
    importance_table,
    loadings_table,
    places_table,
    study,
)

Binary = NDArray[np.bool_]
Tables = dict[str, pl.DataFrame]


def gain(binary: Binary, given: argparse.Namespace) -> Tables:
    """Figure 6(b): the privacy gain of every defense, and with utility tables figures 7 to 10."""
    defenses = [one for one in paper_defenses() if one.in_figure or given.all]
    path = given.out / "gain_targets.csv"
    for done, total in measure_gains(binary, defenses, path, n_targets=given.targets or 30, seed=given.seed):
        if sys.stderr.isatty():
            print(f"\r{done} of {total} attacks", end="", file=sys.stderr)
    gains = gain_table(pl.read_csv(path, schema=SCHEMA))
    tables = {"gain": gains}
    if given.utility is not None:
        tables["trade_off"] = trade_off_table(gains, given.utility)
    return tables


def comparison(binary: Binary, given: argparse.Namespace) -> Tables:
    """Figure 1(b): principal components against statistics of cells, and the same for past participation."""
    week = binary[:, :, :WEEK]
    targets = sample_targets(week, (given.targets or 30) // 3, given.seed)
    games = {"": MembershipGame(week, **SUBSET, seed=given.seed)} | {
        f"{prior}: ": MembershipGame(binary, prior=prior, **PAST, seed=given.seed) for prior in PAST_PRIORS
    }
    return {
        "comparison": comparison_table(
            {
                f"{prior}{attack}": attack_areas(game, targets, attack)
                for prior, game in games.items()
                for attack in ("pca", "statistics")
            }
        )
    }


def victims(binary: Binary, given: argparse.Namespace) -> Tables:
    """Figures 3 and 4(b) and table 2: the adversary knows locations."""
    week = binary[:, :, :WEEK]
    targets = sample_targets(week, (given.targets or 150) // 3, given.seed)
    game = MembershipGame(week, **SUBSET, seed=given.seed)
    found = study({"subset": game}, targets, given.out / "victims_targets")
    most, least = extremes(targets, found.areas["subset"], found.margins["subset"])
    return {
        "exposed": comparison_table(found.areas),
        "loadings": loadings_table(found.loadings, week, {"all": targets, "most": most, "least": least}),
        "places": places_table(found.loadings),
        "activity": activity_table(week, most, least),
        "importance": importance_table(week, most, least, "random_forest"),
    }


def past(binary: Binary, given: argparse.Namespace) -> Tables:
    """Figure 5(b) and table 3: the adversary knows past participation."""
    targets = sample_targets(binary, (given.targets or 150) // 3, given.seed)
    games = {prior: MembershipGame(binary, prior=prior, **PAST, seed=given.seed) for prior in PAST_PRIORS}
    found = study(games, targets, given.out / "past_targets")
    name = "different_groups"
    most, least = extremes(targets, found.areas[name], found.margins[name])
    last = binary[:, :, -WEEK:]
    return {
        "past_comparison": comparison_table(found.areas),
        "past_loadings": loadings_table(found.loadings, last, {"all": targets}),
        "past_places": places_table(found.loadings),
        "past_importance": importance_table(binary, most, least, "logistic_regression"),
    }


FIGURES: dict[str, Callable[[Binary, argparse.Namespace], Tables]] = {
    "gain": gain,
    "comparison": comparison,
    "victims": victims,
    "past": past,
}


def main(words: Sequence[str] | None = None) -> None:
    """Write the tables that are asked for, and the figures where matplotlib is installed."""
    parser = argparse.ArgumentParser(prog="python -m evaluation.membership_figures", description=__doc__)
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("--out", type=Path, default=Path("runs/membership-figures"), metavar="DIR")
    parser.add_argument("--data", type=Path, default=os.environ.get("PENSTOCK_DATA", "data"), metavar="FOLDER")
    parser.add_argument("--targets", type=int, metavar="N", help="cabs attacked, a third of each mobility group")
    parser.add_argument("--all", action="store_true", help="gain: every setting of the paper's tables")
    parser.add_argument("--utility", type=Path, metavar="DIR", help="gain: tables sfc_*.csv of the experiments")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(words)
    given.out.mkdir(parents=True, exist_ok=True)
    tables = FIGURES[given.figure](cab_presence(Path(given.data) / "cabspotting"), given)
    for name, table in tables.items():
        table.with_columns(cs.float().round_sig_figs(4)).write_csv(given.out / f"{name}.csv")
    try:
        from evaluation.membership_plots import draw

        draw(tables, given.out)
    except ModuleNotFoundError as error:
        print(f"no figures, only tables: {error} (pip install 'penstock[plot]')")
    print(given.out)


if __name__ == "__main__":
    main()
