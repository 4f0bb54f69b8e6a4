"""Reconstruction bounds and attacks: figures 3 to 8 of Koga, Meehan and Chaudhuri.

``python -m penstock.evaluation.papers.koga --out DIR [--data FOLDER]`` writes the tables as CSV (`saved_tables`) and,
with the extra ``plot``, the figures as SVG. FOLDER holds ``gowalla`` and ``foursquare``.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import polars as pl
import polars.selectors as cs
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import beta, spearmanr

from penstock.accountants.inference.ball import max_ball_probability
from penstock.accountants.inference.estimators import Estimator, attack_success
from penstock.accountants.inference.information import information_bound, log_loose, noisy_information
from penstock.accountants.inference.observation import schedule
from penstock.accountants.inference.prior import (
    MarkovPrior,
    chain_prior,
    estimate_prior,
    spectral_gap,
    trajectory_entropy,
    visit_trajectories,
)
from penstock.accountants.inference.success_bounds import Bound, success_upper_bound

BOUNDS: tuple[Bound, ...] = ("loose", "tight", "leakage", "first_moment", "segment")
ATTACKS: tuple[Estimator, ...] = get_args(Estimator)


def paper_bounds(
    prior: MarkovPrior, sensors: Sequence[Iterable[int]], tolerance: int, sigma: float | None = None
) -> dict[str, float]:
    """Loose and tight bound with the paper's information, ball and form of Fano's inequality.

    ``sigma`` None: raw counts; the rest as for `success_upper_bound`. Unlike that, the paper does not use that a noisy
    release is never more informative than raw counts.

    Returns
    -------
    ``paper_loose`` and ``paper_tight``.

    Examples
    --------
    >>> from penstock.accountants.inference.prior import chain_prior
    >>> found = paper_bounds(chain_prior(20, 0.1), [{t} for t in range(5)], 1)
    >>> {name: round(value, 3) for name, value in found.items()}
    {'paper_loose': 0.475, 'paper_tight': 0.344}

    Source: Koga, Meehan, Chaudhuri, sections 3.3.1 and 3.3.2.
    """
    n_steps = len(sensors)
    if sigma is None:
        information = information_bound(prior, sensors, order=1)
    else:
        information = noisy_information(schedule(prior, sensors, "gaussian", sigma))
    entropy = trajectory_entropy(prior, n_steps)
    loose = math.exp(log_loose(prior.n_locations, n_steps, tolerance, entropy, information))
    ball = max_ball_probability(prior, n_steps, tolerance, "paper")
    return {"paper_loose": loose, "paper_tight": _largest_success(math.log(ball), information)}


def _largest_success(log_ball: float, information: float) -> float:
    """Largest p with H(p) + p ln B ≥ −information."""

    def slack(p: float) -> float:
        entropy = -p * math.log(p) - (1 - p) * math.log1p(-p)
        return entropy + p * log_ball + information

    if log_ball + information >= 0:
        return 1.0
    peak = 1 / (1 + math.exp(-log_ball))
    return float(brentq(slack, max(peak, 1e-300), 1 - 1e-15))


IntArray = NDArray[np.intp]

N_TOP, N_GUESSED, WINDOW_DAYS = 100, 5, 20
#: Windows in which a person must be seen: as in the paper, or few enough for people to remain.
PREPARATIONS = {"gowalla": 10, "foursquare": 3}
_QUANTILES = (0.25, 0.5, 0.75)
_ERROR = 1e-4
#: Ranges with fewer people have no quartiles.
_FEW = 10
Place = tuple[float, int, float | None]


@dataclass(frozen=True)
class People:
    """Real trajectories with a prior learned from all but the last ``N_STEPS`` windows of each.

    ``trajectories``: shape (n_people, n_windows), the most visited places and last "somewhere else".
    """

    trajectories: IntArray
    priors: tuple[MarkovPrior, ...]

    @property
    def n_people(self) -> int:
        """How many."""
        return len(self.priors)

    @property
    def last(self) -> IntArray:
        """What adversaries guess, shape (n_people, N_STEPS)."""
        return self.trajectories[:, -N_GUESSED:]


def people(folder: Path, name: str, smoothing: float, towards: str = "uniform") -> People:
    """Read one data set and learn everybody's prior.

    ``smoothing`` of the transitions (the paper states none, which is 0) adds moves to any place (``uniform``) or by the
    person's visits (``own``).
    """
    visits = {"gowalla": _gowalla, "foursquare": _foursquare}[name](folder / name)
    day = visits["time"].dt.truncate("1d")
    window = (day - day.min()).dt.total_days().to_numpy() // WINDOW_DAYS
    user, place = (visits[column].rank("dense").to_numpy() for column in ("user", "place"))
    n_windows = int(window.max()) + 1
    paths, _, _ = visit_trajectories(user, window, place, n_windows, N_TOP, PREPARATIONS[name])
    known = paths[:, :-N_GUESSED]
    if towards == "uniform":
        return People(paths, tuple(estimate_prior(path, N_TOP + 1, smoothing) for path in known))
    often = np.stack([np.bincount(path, minlength=N_TOP + 1) for path in known]) + smoothing / (N_TOP + 1)
    shares = often / often.sum(axis=1, keepdims=True)
    priors = (estimate_prior(path, N_TOP + 1, smoothing, share) for path, share in zip(known, shares))
    return People(paths, tuple(priors))


def _gowalla(folder: Path) -> pl.DataFrame:
    columns = ["user", "time", "latitude", "longitude", "place"]
    frame = pl.read_csv(folder / "gowalla_events.csv.gz", separator="\t", has_header=False, new_columns=columns)
    return frame.unique(maintain_order=True).with_columns(pl.col("time").str.to_datetime("%Y-%m-%dT%H:%M:%SZ"))


def _foursquare(folder: Path) -> pl.DataFrame:
    """All files together, a check-in that several of them have once; UTC times only."""
    parts = []
    for path in sorted(folder.glob("*.csv")):
        frame = pl.read_csv(path, columns=["user_id", "POI_id", "UTC_time"], schema_overrides={"user_id": pl.Int64})
        form = "%Y-%m-%d %H:%M:%S" if "-" in frame["UTC_time"][0] else "%a %b %d %H:%M:%S +0000 %Y"
        time = pl.col("UTC_time").str.to_datetime(form)
        parts.append(frame.select(user="user_id", place="POI_id", time=time))
    return pl.concat(parts).unique(maintain_order=True)


def _schedules(n_draws: int, seed: int) -> list[list[set[int]]]:
    """One random sensor a window, never at "somewhere else"."""
    rng = np.random.default_rng(seed)
    return [[{int(cell)} for cell in rng.integers(0, N_TOP, N_GUESSED)] for _ in range(n_draws)]


def frequency_table(known: People) -> pl.DataFrame:
    """Figure 3: bounds against how often the one fixed sensor, at the most visited place, sees a person.

    Returns
    -------
    A row for each range of frequencies: people in it, quartiles of the paper's tight bound and of the best one.
    """
    sensors = [{0}] * N_GUESSED
    frequency = (known.trajectories[:, :-N_GUESSED] == 0).mean(axis=1)
    edges = np.array([0.0, 1e-9, 0.1, 0.3, 1.0])
    return _binned("visit frequency", frequency, edges, _bounds(known, [sensors]))


def gap_table(known: People, n_draws: int, seed: int) -> pl.DataFrame:
    """Figure 4: bounds against the spectral gap of a person's transitions, random sensors."""
    gaps = np.array([spectral_gap(prior.transition) for prior in known.priors])
    edges = np.array([0.0, 0.02, 0.1, 0.3, 0.6, 1.0])
    return _binned("spectral gap", gaps, edges, _bounds(known, _schedules(n_draws, seed)))


def _bounds(known: People, schedules: list[list[set[int]]]) -> dict[str, NDArray[np.float64]]:
    """Two bounds of each person with one wrong guess allowed, averaged over schedules."""
    found: dict[str, list[float]] = {"paper_tight": [], "best": []}
    for prior in known.priors:
        paper = [paper_bounds(prior, sensors, 1)["paper_tight"] for sensors in schedules]
        found["paper_tight"].append(float(np.mean(paper)))
        found["best"].append(float(np.mean([success_upper_bound(prior, sensors, 1) for sensors in schedules])))
    return {name: np.array(values) for name, values in found.items()}


def _binned(
    name: str, against: NDArray[np.float64], edges: NDArray[np.float64], bounds: dict[str, NDArray[np.float64]]
) -> pl.DataFrame:
    """People by range, and the rank correlation over all of them."""
    place = np.clip(np.searchsorted(edges, against, side="right") - 1, 0, len(edges) - 2)
    rows = []
    for bound, values in bounds.items():
        varies = np.ptp(against) > 0 and np.ptp(values) > 0
        correlation = float(spearmanr(against, values).statistic) if varies else None
        for number in range(len(edges) - 1):
            inside = values[place == number]
            shown = np.quantile(inside, _QUANTILES).tolist() if len(inside) >= _FEW else [None] * len(_QUANTILES)
            key = {"against": name, "from": edges[number], "to": edges[number + 1], "bound": bound, "n": len(inside)}
            rows.append(key | dict(zip(("q25", "median", "q75"), shown)) | {"rank_correlation": correlation})
    return pl.DataFrame(rows, schema_overrides=dict.fromkeys(("q25", "median", "q75"), pl.Float64))


def mean_table(known: People, sweep: str, places: Sequence[Place], n_draws: int, seed: int) -> pl.DataFrame:
    """Figures 6 and 8: means over people of bounds, and the share of them that attacks reconstruct.

    ``places``: (value, tolerance, σ) of each point of the ``sweep``; σ None: raw counts.
    """
    rows = []
    for at, tolerance, sigma in places:
        found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
        for draw, sensors in enumerate(_schedules(n_draws, seed)):
            rng = np.random.default_rng((seed, draw))
            for name, value in _mean_bounds(known, sensors, tolerance, sigma).items():
                found.setdefault(("bound", name), []).append((value, value, value))
            for attack in ATTACKS:
                share = _success(known, attack, sensors, tolerance, sigma, rng)
                found.setdefault(("attack", attack), []).append(share)
        for (kind, name), values in found.items():
            mean, low, high = np.mean(values, axis=0).tolist()
            ends = {"low": low, "high": high} if kind == "attack" else {"low": None, "high": None}
            rows.append({"sweep": sweep, "at": float(at), "kind": kind, "quantity": name, "mean": mean} | ends)
    return pl.DataFrame(rows)


def _mean_bounds(known: People, sensors: list[set[int]], tolerance: int, sigma: float | None) -> dict[str, float]:
    noise, scale = ("gaussian", sigma) if sigma else (None, None)
    sums: dict[str, float] = {}
    for prior in known.priors:
        own = paper_bounds(prior, sensors, tolerance, sigma)
        for bound in ("loose", "tight", "leakage", "segment"):
            own[bound] = success_upper_bound(prior, sensors, tolerance, noise, scale, bound)  # type: ignore[arg-type]
        if sigma is None:  # exact; with noise it would be sampled
            own["first_moment"] = success_upper_bound(prior, sensors, tolerance, bound="first_moment")
        own["best"] = min(own.values())
        sums = {name: sums.get(name, 0.0) + value for name, value in own.items()}
    return {name: total / known.n_people for name, total in sums.items()}


def _success(
    known: People, attack: str, sensors: list[set[int]], tolerance: int, sigma: float | None, rng: np.random.Generator
) -> tuple[float, float, float]:
    """Share of people reconstructed, with a 99.99 % interval for people like these."""
    noise, scale = ("gaussian", sigma) if sigma else (None, None)
    if attack == "constant":
        # the luckiest place for all of them, "somewhere else" excepted, as in the paper
        hits = np.stack([(known.last == place).sum(axis=1) for place in range(N_TOP)])
        n = int((hits >= N_GUESSED - tolerance).sum(axis=1).max())
    else:
        n = 0
        for prior, path in zip(known.priors, known.last):
            rate, _, _ = attack_success(
                attack,  # type: ignore[arg-type]
                prior,
                sensors,
                tolerance,
                1,
                rng,
                noise,
                scale,
                trajectories=path[None],
            )
            n += round(rate)
    low = float(beta.ppf(_ERROR / 2, n, known.n_people - n + 1)) if n else 0.0
    high = float(beta.ppf(1 - _ERROR / 2, n + 1, known.n_people - n)) if n < known.n_people else 1.0
    return n / known.n_people, low, high


_FLOOR = 1e-12


def draw(tables: dict[str, pl.DataFrame], folder: Path) -> list[Path]:
    """Draw every table that is a sweep, and every binned one."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "penstock"
    import matplotlib.pyplot as plt

    drawn = []
    for name, table in tables.items():
        panels = _panels(table)
        figure, axes = plt.subplots(len(panels), 1, figsize=(8, 3.6 * len(panels)), squeeze=False)
        for axis, (title, panel) in zip(axes[:, 0], panels):
            if "bound" in panel.columns:
                _quartiles(axis, panel)
            else:
                _lines(axis, panel)
            axis.set_title(title, fontsize="small")
            axis.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1.0, 0.5))
        figure.tight_layout()
        path = folder / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
        drawn.append(path)
    return drawn


def _panels(table: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """One panel for each sweep, data set and smoothing."""
    keys = [name for name in ("data", "people", "smoothing", "towards", "sweep", "against") if name in table.columns]
    parts = table.partition_by(keys, as_dict=True, maintain_order=True)
    return [
        (", ".join(f"{name} {value}" for name, value in zip(keys, values)), panel) for values, panel in parts.items()
    ]


def _lines(axis: Any, panel: pl.DataFrame) -> None:
    value = "ratio" if "ratio" in panel.columns else "mean"
    for (name,), line in panel.partition_by("quantity", as_dict=True, maintain_order=True).items():
        line = line.sort("at")
        is_attack = "kind" in line.columns and line["kind"][0] == "attack"
        style = "--" if is_attack else "-"
        axis.plot(line["at"], line[value].clip(lower_bound=_FLOOR), style, marker="o", markersize=3, label=name)
    axis.set(xlabel=panel["sweep"][0], ylabel="bound / best attack" if value == "ratio" else "success", yscale="log")
    if panel["sweep"][0] == "sigma":
        axis.set_xscale("symlog", linthresh=0.25)


def _quartiles(axis: Any, panel: pl.DataFrame) -> None:
    for (name,), part in panel.partition_by("bound", as_dict=True, maintain_order=True).items():
        part = part.drop_nulls("median")
        ends = (part["median"] - part["q25"], part["q75"] - part["median"])
        middle = (part["from"] + part["to"]) / 2
        correlation = part["rank_correlation"].drop_nulls()
        label = f"{name!s}, rank correlation {correlation[0]:.2f}" if len(correlation) else str(name)
        axis.errorbar(middle, part["median"], yerr=ends, marker="o", capsize=3, label=label)
    axis.set(xlabel=panel["against"][0], ylabel="bound (quartiles)", ylim=(0, 1.02))


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
    """The tables as files: figures of one kind together, with a column for their number.

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
    parser = argparse.ArgumentParser(prog="python -m penstock.evaluation.papers.koga", description=__doc__)
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
        draw(tables, given.out)
    except ModuleNotFoundError as error:
        print(f"no figures, only tables: {error} (pip install 'penstock[plot]')")
    print(given.out)


if __name__ == "__main__":
    main()
