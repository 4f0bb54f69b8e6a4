"""Reconstruction bounds and attacks for figures 3 to 8 of Koga, Meehan and Chaudhuri."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import spearmanr

from penstock.accountants.inference.estimators import Estimator, attack_success
from penstock.accountants.inference.information import information_bound, log_loose, noisy_information
from penstock.accountants.inference.observation import HiddenMarkovModel
from penstock.accountants.inference.success_bounds import Bound, success_upper_bound
from penstock.accountants.inference.success_prior import max_ball_probability
from penstock.accountants.markov import MarkovPrior, chain_prior, estimate_prior, spectral_gap, trajectory_entropy
from penstock.accountants.online_attack import exact_interval
from penstock.pipeline.sources.base import SOURCES
from reproductions.study import Figures

IntArray = NDArray[np.intp]
Sensors = Sequence[Iterable[int]]

BOUNDS: tuple[Bound, ...] = ("loose", "tight", "leakage", "first_moment", "segment")
ATTACKS: tuple[Estimator, ...] = get_args(Estimator)
SIGMAS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


class Swept(NamedTuple):
    """A point in a parameter sweep: the name and value of the parameter, and the trajectories to guess.

    ``sigma`` 0: raw counts; ``n_locations`` of the simulated chain, 0 for real people.
    """

    sweep: str
    at: float
    n_locations: int
    n_steps: int
    tolerance: int
    sigma: float


def averaged(draws: Sequence[tuple[Mapping[str, float], Mapping[Estimator, tuple[float, float, float]]]]) -> Figures:
    """Average the bounds and attacks (mean, low, high) over several sensor schedules."""
    figures: dict[str, list[Any]] = {}
    for bounds, attacks in draws:
        for name, value in bounds.items():
            figures.setdefault(f"bound {name}", []).append((value, value, value))
        for name, interval in attacks.items():
            figures.setdefault(f"attack {name}", []).append(interval)
    return {name: np.mean(values, axis=0) for name, values in figures.items()}


def sweep_table(places: Iterable[tuple[Mapping[str, object], Swept, Figures]]) -> pl.DataFrame:
    """Convert sweeps to a table of ``sweep``, ``at``, ``kind``, ``quantity``, ``mean`` and attacks' intervals."""
    rows = []
    for further, place, figures in places:
        for name, (mean, low, high) in figures.items():
            kind, _, quantity = name.partition(" ")
            key = {"sweep": place.sweep, "at": float(place.at), "kind": kind, "quantity": quantity, "mean": float(mean)}
            ends = {"low": float(low), "high": float(high)} if kind == "attack" else {"low": None, "high": None}
            rows.append({**further, **key, **ends})
    return pl.DataFrame(rows, schema_overrides={"low": pl.Float64, "high": pl.Float64}, infer_schema_length=None)


def gaps_to_best_attack(table: pl.DataFrame) -> pl.DataFrame:
    """Compare bounds with the best attack; ``ratio``: to the largest mean, null if none succeeded."""
    keys = [name for name in ("smoothing", "towards", "sweep", "at") if name in table.columns]
    best = table.filter(pl.col("kind") == "attack").group_by(keys).agg(pl.col("mean").max().alias("best_attack"))
    joined = table.filter(pl.col("kind") == "bound").join(best, on=keys, how="left", maintain_order="left")
    succeeded = pl.when(pl.col("best_attack") > 0).then(pl.col("best_attack"))
    return joined.with_columns(ratio=pl.col("mean") / succeeded).drop("kind", "low", "high")


def paper_bounds(prior: MarkovPrior, sensors: Sensors, tolerance: int, sigma: float | None = None) -> dict[str, float]:
    """Compute the paper's loose and tight bounds by its own information bound, ball and inequality of Fano.

    ``sigma`` None: raw counts; the rest as for `success_upper_bound`. Unlike that, the paper does not use that a noisy
    release is never more informative than raw counts.

    >>> result = paper_bounds(chain_prior(20, 0.1), [{t} for t in range(5)], 1)
    >>> {name: round(value, 3) for name, value in result.items()}
    {'paper_loose': 0.475, 'paper_tight': 0.344}

    Source: Koga, Meehan, Chaudhuri, sections 3.3.1 and 3.3.2.
    """
    n_steps = len(sensors)
    if sigma is None:
        information = information_bound(prior, sensors, order=1)
    else:
        information = noisy_information(HiddenMarkovModel.of(prior, sensors, "gaussian", sigma))
    entropy = trajectory_entropy(prior, n_steps)
    loose = math.exp(log_loose(prior.n_locations, n_steps, tolerance, entropy, information))
    log_ball = math.log(max_ball_probability(prior, n_steps, tolerance, "paper"))

    def slack(p: float) -> float:
        """Return the slack in the inequality H(p) + p ln B ≥ −information at the success probability p."""
        return -p * math.log(p) - (1 - p) * math.log1p(-p) + p * log_ball + information

    tight = 1.0
    if log_ball + information < 0:
        tight = float(brentq(slack, max(1 / (1 + math.exp(-log_ball)), 1e-300), 1 - 1e-15))
    return {"paper_loose": loose, "paper_tight": tight}


def _bounds(
    prior: MarkovPrior, sensors: Sensors, tolerance: int, sigma: float, bounds: Iterable[Bound], n_samples: int = 1000
) -> dict[str, float]:
    noise, scale = _noise(sigma)
    found = paper_bounds(prior, sensors, tolerance, scale) | {
        bound: success_upper_bound(prior, sensors, tolerance, noise, scale, bound, n_samples=n_samples)
        for bound in bounds
    }
    return found | {"best": min(found.values())}


def _noise(sigma: float) -> tuple[Literal["gaussian"] | None, float | None]:
    return ("gaussian", sigma) if sigma else (None, None)


def chain_figures(place: Swept, tau: float, n_draws: int, n_trajectories: int, n_samples: int, seed: int) -> Figures:
    """Compute bounds and attacks on lazy random walks, one random sensor a window (figures 5 and 7)."""
    prior, tolerance = chain_prior(place.n_locations, tau), place.tolerance
    noise, scale = _noise(place.sigma)
    draws = []
    for draw in range(n_draws):
        rng = np.random.default_rng((seed, draw, place.n_steps, place.n_locations))
        sensors = [{int(cell)} for cell in rng.integers(0, place.n_locations, place.n_steps)]
        bounds = _bounds(prior, sensors, tolerance, place.sigma, BOUNDS, n_samples)
        attacks = {
            attack: attack_success(attack, prior, sensors, tolerance, n_trajectories, rng, noise, scale)
            for attack in ATTACKS
        }
        draws.append((bounds, attacks))
    return averaged(draws)


# Real people: check-ins in windows of 20 days, at one of the most visited places or somewhere else.


N_TOP, N_GUESSED, WINDOW_DAYS = 100, 5, 20
_QUANTILES = (0.25, 0.5, 0.75)
#: Ranges with fewer people have no quartiles.
_FEW = 10
#: Edges of the ranges that people are binned in.
BINS = {"visit frequency": (0.0, 1e-9, 0.1, 0.3, 1.0), "spectral gap": (0.0, 0.02, 0.1, 0.3, 0.6, 1.0)}


def trajectories(visits: pl.DataFrame, min_windows: int, n_top: int = N_TOP) -> IntArray:
    """Return each person's place by window, (n_people, n_windows); elsewhere or unseen is ``n_top``.

    ``visits``: columns ``user``, ``time`` and ``place``; people seen in fewer than ``min_windows`` are left out. In a
    window with several of the most visited places the most frequent of them counts (ties: the more popular one).
    """
    day = pl.col("time").dt.truncate("1d")
    visits = visits.with_columns(window=(day - day.min()).dt.total_days() // WINDOW_DAYS)
    ranks = visits.group_by("place").len().sort("len", "place", descending=[True, False]).head(n_top)
    often = visits.join(ranks.with_row_index("rank").drop("len"), on="place").group_by("user", "window", "rank").len()
    seen = often.sort("len", "rank", descending=[True, False]).unique(
        ("user", "window"), keep="first", maintain_order=True
    )
    seen = seen.filter(pl.len().over("user") >= min_windows).with_columns(pl.col("user").rank("dense") - 1)
    paths = np.full((seen["user"].n_unique(), visits["window"].to_numpy().max() + 1), n_top, dtype=np.intp)
    paths[seen["user"], seen["window"]] = seen["rank"]
    return paths


def learned(paths: IntArray, smoothing: float, towards: str) -> list[MarkovPrior]:
    """Learn each person's prior from all windows except the last ``N_GUESSED``.

    ``smoothing`` of the transitions (the paper states none, which is 0) adds moves to any place (``uniform``) or by the
    person's visits (``own``).
    """
    priors = []
    for path in paths[:, :-N_GUESSED]:
        often = np.bincount(path, minlength=N_TOP + 1) + smoothing / (N_TOP + 1)
        share = () if towards == "uniform" else (often / often.sum(),)
        priors.append(estimate_prior(path, N_TOP + 1, smoothing, *share))
    return priors


def synthetic_checkins(n_people: int, seed: int) -> pl.DataFrame:
    """Generate check-ins over 280 days by people who are at one place most of the time and check in every four days."""
    rng = np.random.default_rng(seed)
    days = np.arange(0, 280, 4)
    user = np.repeat(np.arange(n_people), len(days))
    place = np.where(rng.random(len(user)) < 0.8, user % 3, rng.integers(0, 6, len(user)))
    time = np.datetime64("2010-01-01T12:00:00", "ms") + np.tile(days, n_people).astype("timedelta64[D]")
    return pl.DataFrame({"user": user, "time": time, "place": place})


#: Data sets of check-ins, by the name of their source.
CHECKINS = ("gowalla", "foursquare")


def read_checkins(data_set: str, path: str) -> pl.DataFrame:
    """Read the distinct check-ins in a data set, with columns ``user``, ``time`` and ``place``."""
    # Every one of `CHECKINS` has a path.
    source = SOURCES.get(data_set)(path=path).from_start()  # type: ignore[call-arg]
    frames = [block.frame.select("user", "place", "time") for span in source.spans() for block in source.read(span)]
    return pl.concat(frames).unique(maintain_order=True).with_columns(pl.col("time").cast(pl.Datetime("ms")))


def binned_bounds(paths: IntArray, priors: Sequence[MarkovPrior], against: str, n_draws: int, seed: int) -> Figures:
    """Group people's bounds into bins by the quantity ``against``, for figures 3 and 4.

    ``visit frequency``: how often the one fixed sensor, at the most visited place, sees a person. ``spectral gap`` of a
    person's transitions: random sensors. One wrong guess is allowed.

    Returns for the paper's tight bound and the best one, a row for each range: its ends, people in it, quartiles (NaN
    where they are few) and over all ranges the rank correlation (NaN where nothing varies).
    """
    if against == "visit frequency":
        values, schedules = (paths[:, :-N_GUESSED] == 0).mean(axis=1), [[{0}] * N_GUESSED]
    else:
        values = np.array([spectral_gap(prior.transition) for prior in priors])
        schedules = _schedules(n_draws, seed)
    bounds = {
        "paper_tight": [[paper_bounds(one, sensors, 1)["paper_tight"] for sensors in schedules] for one in priors],
        "best": [[success_upper_bound(one, sensors, 1) for sensors in schedules] for one in priors],
    }
    return {name: _bin_bounds(values, np.array(BINS[against]), np.mean(of, axis=1)) for name, of in bounds.items()}


def _schedules(n_draws: int, seed: int) -> list[list[set[int]]]:
    """Draw schedules with one random sensor per window, which is never at "elsewhere"."""
    rng = np.random.default_rng(seed)
    return [[{int(cell)} for cell in rng.integers(0, N_TOP, N_GUESSED)] for _ in range(n_draws)]


def _bin_bounds(
    against: NDArray[np.float64], edges: NDArray[np.float64], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    place = np.clip(np.searchsorted(edges, against, side="right") - 1, 0, len(edges) - 2)
    varies = np.ptp(against) > 0 and np.ptp(values) > 0
    correlation = float(spearmanr(against, values).statistic) if varies else np.nan
    rows = []
    for number in range(len(edges) - 1):
        inside = values[place == number]
        shown = np.quantile(inside, _QUANTILES).tolist() if len(inside) >= _FEW else [np.nan] * len(_QUANTILES)
        rows.append([edges[number], edges[number + 1], len(inside), *shown, correlation])
    return np.array(rows)


def people_figures(paths: IntArray, priors: Sequence[MarkovPrior], place: Swept, n_draws: int, seed: int) -> Figures:
    """Compute the mean bounds over people and the fraction of people that attacks reconstruct, for figures 6 and 8."""
    # The first-moment bound under noise would be sampled; raw counts have it exactly.
    bounds = [bound for bound in BOUNDS if bound != "first_moment" or not place.sigma]
    draws = []
    for draw, sensors in enumerate(_schedules(n_draws, seed)):
        rng = np.random.default_rng((seed, draw))
        people = [_bounds(prior, sensors, place.tolerance, place.sigma, bounds) for prior in priors]
        means = {name: float(np.mean([one[name] for one in people])) for name in people[0]}
        shares = {attack: _success(paths, priors, attack, sensors, place, rng) for attack in ATTACKS}
        draws.append((means, shares))
    return averaged(draws)


def _success(
    paths: IntArray,
    priors: Sequence[MarkovPrior],
    attack: Estimator,
    sensors: Sensors,
    place: Swept,
    rng: np.random.Generator,
) -> tuple[float, float, float]:
    """Return the fraction of people who are reconstructed, with a 99.99 % confidence interval for similar people."""
    noise, scale = _noise(place.sigma)
    last = paths[:, -N_GUESSED:]
    if attack == "constant":
        # the luckiest place for all of them, "somewhere else" excepted, as in the paper
        n = max(int(((last == top).sum(axis=1) >= N_GUESSED - place.tolerance).sum()) for top in range(N_TOP))
    else:
        n = sum(
            round(
                attack_success(attack, prior, sensors, place.tolerance, 1, rng, noise, scale, trajectories=path[None])[
                    0
                ]
            )
            for prior, path in zip(priors, last)
        )
    return n / len(priors), *exact_interval(n, len(priors), 0.9999)
