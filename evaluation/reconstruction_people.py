"""Reconstruction of real people's check-ins, prepared as in the paper: figures 3, 4, 6 and 8 of Koga et al."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats import beta, spearmanr

from accountants.reconstruction import (
    MarkovPrior,
    attack_success,
    estimate_prior,
    spectral_gap,
    success_upper_bound,
    visit_trajectories,
)
from evaluation.reconstruction_bounds import ATTACKS, paper_bounds

IntArray = NDArray[np.intp]

N_TOP, N_STEPS, WINDOW_DAYS = 100, 5, 20
#: Windows that somebody must be seen in: as in the paper, or so that anybody remains at all.
PREPARATIONS = {"gowalla": 10, "foursquare": 3}
_QUANTILES = (0.25, 0.5, 0.75)
_ERROR = 1e-4
#: Ranges of fewer people than this say no quartiles.
_FEW = 10
Place = tuple[float, int, float | None]


@dataclass(frozen=True)
class People:
    """Real trajectories with a prior learned from all but the last ``N_STEPS`` windows of each.

    Parameters
    ----------
    trajectories
        Shape (n_people, n_windows), the most visited places and last "somewhere else".
    priors
        One of each.
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
        return self.trajectories[:, -N_STEPS:]


def people(folder: Path, name: str, smoothing: float, towards: str = "uniform") -> People:
    """Read one data set and learn everybody's prior.

    Parameters
    ----------
    folder
        Holds the folder of the data set.
    name
        A key of `PREPARATIONS`.
    smoothing
        Of the transitions; the paper states none, which is 0.
    towards
        Where added moves go: ``uniform`` to any place, ``own`` by the person's visits.
    """
    visits = {"gowalla": _gowalla, "foursquare": _foursquare}[name](folder / name)
    day = visits["time"].dt.truncate("1d")
    window = (day - day.min()).dt.total_days().to_numpy() // WINDOW_DAYS
    user, place = (visits[column].rank("dense").to_numpy() for column in ("user", "place"))
    n_windows = int(window.max()) + 1
    paths, _, _ = visit_trajectories(user, window, place, n_windows, N_TOP, PREPARATIONS[name])
    known = paths[:, :-N_STEPS]
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
    return [[{int(cell)} for cell in rng.integers(0, N_TOP, N_STEPS)] for _ in range(n_draws)]


def frequency_table(known: People) -> pl.DataFrame:
    """Figure 3: bounds against how often the one fixed sensor, at the most visited place, sees somebody.

    Returns
    -------
    A row for each range of frequencies: people in it, quartiles of the paper's tight bound and of the best one.
    """
    sensors = [{0}] * N_STEPS
    frequency = (known.trajectories[:, :-N_STEPS] == 0).mean(axis=1)
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

    Parameters
    ----------
    known
        The people.
    sweep, places
        What is swept, and (value, tolerance, σ) at each place; σ None: raw counts.
    n_draws, seed
        Random schedules averaged over, and their seed.
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
        n = int((hits >= N_STEPS - tolerance).sum(axis=1).max())
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
