"""Bounds on reconstruction beside attacks: the figures of Koga, Meehan and Chaudhuri, as tables.

``python -m evaluation.reconstruction_figures --out DIR [--data FOLDER]`` writes the tables as CSV (`saved_tables`) and,
with the extra ``plot``, the figures as SVG. Figures 5 and 7 are on the paper's simulated chain; 3, 4, 6 and 8 need
check-ins: FOLDER holds the folders ``gowalla`` and ``foursquare``. Tables hold means and bins over people, never
anybody's own figures.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import polars.selectors as cs

from accountants.reconstruction import MarkovPrior, attack_success, chain_prior, success_upper_bound
from evaluation.reconstruction_bounds import ATTACKS, BOUNDS, paper_bounds
from evaluation.reconstruction_people import PREPARATIONS, frequency_table, gap_table, mean_table, people

N_LOCATIONS, N_STEPS, TAU, TOLERANCE, SIGMA = 100, 10, 0.1, 5, 1.0
SIZES = (10, 20, 50, 100, 200)
LENGTHS = (2, 4, 6, 8, 10, 12, 14, 16, 18, 20)
SIGMAS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
#: Weights of the moves added to each row of a real person's prior, and where they go; the paper states none.
SMOOTHINGS = ((0.0, "uniform"), (0.01, "uniform"), (0.1, "uniform"), (1.0, "uniform"), (0.1, "own"))
#: One place of a sweep: what is swept, its value, and the prior, number of windows, tolerance and σ (None: raw).
Setting = tuple[str, float, MarkovPrior, int, int, float | None]


def sweeps() -> Iterator[Setting]:
    """The four sweeps of figure 5, raw counts."""
    chain = chain_prior(N_LOCATIONS, TAU)
    for n_locations in SIZES:
        yield "locations", n_locations, chain_prior(n_locations, TAU), N_STEPS, TOLERANCE, None
    for tolerance in range(N_STEPS - 1, -1, -1):
        yield "right windows", N_STEPS - tolerance, chain, N_STEPS, tolerance, None
    for n_steps in LENGTHS:
        yield "windows, half of them right", n_steps, chain, n_steps, n_steps // 2, None
    for n_steps in LENGTHS:
        yield "windows, two of them right", n_steps, chain, n_steps, n_steps - 2, None


def noise_sweep() -> Iterator[Setting]:
    """The sweep of figure 7: Gaussian noise, and raw counts as σ = 0."""
    chain = chain_prior(N_LOCATIONS, TAU)
    for sigma in (0.0, *SIGMAS):
        yield "sigma", sigma, chain, N_STEPS, TOLERANCE, sigma or None


def chain_table(
    settings: Iterable[Setting], n_draws: int = 3, n_trajectories: int = 2000, n_samples: int = 500, seed: int = 1
) -> pl.DataFrame:
    """Bounds and attacks on simulated trajectories.

    Parameters
    ----------
    settings
        From `sweeps` or `noise_sweep`.
    n_draws
        Schedules of one random sensor a window; figures are averages over them.
    n_trajectories
        Trajectories attacked for each schedule.
    n_samples
        Observations drawn for the first-moment bound, where it is not exact.
    seed
        Of schedules, trajectories and noise.

    Returns
    -------
    One row for each setting and quantity: ``sweep``, ``at``, ``kind`` (bound or attack), ``quantity``, ``mean``, and
    for attacks ``low`` and ``high``, the averaged ends of 99.99 % intervals.
    """
    rows = []
    for sweep, at, prior, n_steps, tolerance, sigma in settings:
        found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
        for draw in range(n_draws):
            rng = np.random.default_rng((seed, draw, n_steps, prior.n_locations))
            sensors = [{int(cell)} for cell in rng.integers(0, prior.n_locations, n_steps)]
            noise, scale = ("gaussian", sigma) if sigma else (None, None)
            bounds = paper_bounds(prior, sensors, tolerance, sigma) | {
                bound: success_upper_bound(prior, sensors, tolerance, noise, scale, bound, n_samples=n_samples)
                for bound in BOUNDS
            }
            bounds["best"] = min(bounds.values())
            for name, value in bounds.items():
                found.setdefault(("bound", name), []).append((value, value, value))
            for attack in ATTACKS:
                success = attack_success(attack, prior, sensors, tolerance, n_trajectories, rng, noise, scale)
                found.setdefault(("attack", attack), []).append(success)
        for (kind, name), values in found.items():
            mean, low, high = np.mean(values, axis=0).tolist()
            rows.append(_row(sweep, at, kind, name, mean, low, high))
    return pl.DataFrame(rows)


def _row(sweep: str, at: float, kind: str, name: str, mean: float, low: float, high: float) -> dict[str, object]:
    key = {"sweep": sweep, "at": float(at), "kind": kind, "quantity": name, "mean": mean}
    return key | ({"low": low, "high": high} if kind == "attack" else {"low": None, "high": None})


def gaps_to_best_attack(table: pl.DataFrame) -> pl.DataFrame:
    """How far each bound is above the best attack: ``ratio`` to the largest mean, null where no attack succeeded."""
    keys = [name for name in ("data", "smoothing", "towards", "sweep", "at") if name in table.columns]
    best = table.filter(pl.col("kind") == "attack").group_by(keys).agg(pl.col("mean").max().alias("best_attack"))
    joined = table.filter(pl.col("kind") == "bound").join(best, on=keys, how="left", maintain_order="left")
    succeeded = pl.when(pl.col("best_attack") > 0).then(pl.col("best_attack"))
    return joined.with_columns(ratio=pl.col("mean") / succeeded).drop("kind", "low", "high")


def real_tables(
    folder: Path, smoothings: Sequence[tuple[float, str]], n_draws: int, seed: int
) -> dict[str, pl.DataFrame]:
    """Figures 3, 4, 6 and 8 for every data set that is there and every (smoothing, towards) of `people`."""
    parts: dict[str, list[pl.DataFrame]] = {}
    for name in PREPARATIONS:
        if not (folder / name).is_dir():
            continue
        for smoothing, towards in smoothings:
            known = people(folder, name, smoothing, towards)
            made = {
                "figure3": frequency_table(known),
                "figure4": gap_table(known, n_draws, seed),
                "figure6": mean_table(known, "right windows", [(5 - s, s, None) for s in range(5)], n_draws, seed),
                "figure8": mean_table(known, "sigma", [(x, 1, x or None) for x in (0.0, *SIGMAS)], n_draws, seed),
            }
            for figure, table in made.items():
                labels = {"data": name, "people": known.n_people, "smoothing": smoothing, "towards": towards}
                labelled = table.with_columns(**{key: pl.lit(value) for key, value in labels.items()})
                parts.setdefault(figure, []).append(labelled.select(*labels, *table.columns))
    return {figure: pl.concat(tables) for figure, tables in parts.items()}


def saved_tables(tables: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """The tables as files: figures of one kind together, told by their number.

    Returns
    -------
    By file name: the sweeps of figures 5 to 8, how far their bounds are above the best attack, and the ranges of
    figures 3 and 4 where check-ins were given. The simulated chain has ``data`` "chain" and no people.
    """
    parts: dict[str, list[pl.DataFrame]] = {}
    for name, table in tables.items():
        number, _, kind = name.removeprefix("figure").partition("_")
        kind = kind or ("bins" if "against" in table.columns else "")
        if "data" not in table.columns:
            table = table.with_columns(data=pl.lit("chain"))
        file = "_".join(filter(None, ("experiments_reconstruction", kind)))
        parts.setdefault(file, []).append(table.with_columns(figure=pl.lit(int(number))))
    order = ("figure", "data", "people", "smoothing", "towards")
    joined = {name: pl.concat(own, how="diagonal_relaxed") for name, own in parts.items()}
    return {
        name: table.select(*(c for c in order if c in table.columns), pl.exclude(order))
        .sort("figure", maintain_order=True)
        .with_columns(cs.float().round_sig_figs(4))
        for name, table in joined.items()
    }


def main(words: Sequence[str] | None = None) -> None:
    """Write all tables, and the figures where matplotlib is installed."""
    parser = argparse.ArgumentParser(prog="python -m evaluation.reconstruction_figures", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/reconstruction-figures"), metavar="DIR")
    parser.add_argument("--data", type=Path, default=os.environ.get("PENSTOCK_DATA"), metavar="FOLDER")
    parser.add_argument("--draws", type=int, default=3, metavar="N", help="sensor schedules averaged over")
    parser.add_argument("--trajectories", type=int, default=2000, metavar="N", help="attacked for each schedule")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(words)
    given.out.mkdir(parents=True, exist_ok=True)
    tables = {
        "figure5": chain_table(sweeps(), given.draws, given.trajectories, seed=given.seed),
        "figure7": chain_table(noise_sweep(), given.draws, given.trajectories, seed=given.seed),
    }
    if given.data is not None:
        tables |= real_tables(Path(given.data), SMOOTHINGS, given.draws, given.seed)
    for name in ("figure5", "figure6", "figure7", "figure8"):
        if name in tables:
            tables[f"{name}_ratio"] = gaps_to_best_attack(tables[name])
    for name, table in saved_tables(tables).items():
        table.write_csv(given.out / f"{name}.csv")
    try:
        from evaluation.reconstruction_plots import draw

        draw(tables, given.out)
    except ModuleNotFoundError as error:
        print(f"no figures, only tables: {error} (pip install 'penstock[plot]')")
    print(given.out)


if __name__ == "__main__":
    main()
