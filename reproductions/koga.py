"""Reconstruction bounds and attacks for figures 3 to 8 of Koga, Meehan and Chaudhuri, computed piece by piece."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import spearmanr

from penstock.accountants.inference.estimators import Estimator, attack_success
from penstock.accountants.inference.information import information_bound, log_loose, noisy_information
from penstock.accountants.inference.observation import schedule
from penstock.accountants.inference.success_bounds import Bound, success_upper_bound
from penstock.accountants.inference.success_prior import max_ball_probability
from penstock.accountants.markov import MarkovPrior, chain_prior, estimate_prior, spectral_gap, trajectory_entropy
from penstock.accountants.online_attack import exact_interval
from penstock.pipeline.sources.base import SOURCES
from reproductions.study import Figures
from reproductions.visits import visit_trajectories

BOUNDS: tuple[Bound, ...] = ("loose", "tight", "leakage", "first_moment", "segment")
ATTACKS: tuple[Estimator, ...] = get_args(Estimator)
SIGMAS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


class Swept(NamedTuple):
    """A point of a parameter sweep: the parameter, its value, and the trajectories to guess.

    ``sigma`` 0: raw counts; ``n_locations`` of the simulated chain, 0 for real people.
    """

    sweep: str
    at: float
    n_locations: int
    n_steps: int
    tolerance: int
    sigma: float


#: Mean of each bound and attack over schedules of sensors, and the ends of 99.99 % intervals.
Intervals = dict[str, list[tuple[float, float, float]]]


def averaged(figures: Intervals) -> Figures:
    """Average figures over schedules. The result has an array (mean, low, high) for each named bound or attack."""
    return {name: np.mean(values, axis=0) for name, values in figures.items()}


def sweep_rows(place: Swept, figures: Figures) -> list[dict[str, object]]:
    """Return rows with ``sweep``, ``at``, ``kind`` (bound or attack), ``quantity``, ``mean``, and for attacks
    ``low`` and ``high``.
    """
    rows = []
    for name, (mean, low, high) in figures.items():
        kind, _, quantity = name.partition(" ")
        key = {"sweep": place.sweep, "at": float(place.at), "kind": kind, "quantity": quantity, "mean": float(mean)}
        ends = {"low": float(low), "high": float(high)} if kind == "attack" else {"low": None, "high": None}
        rows.append(key | ends)
    return rows


def gaps_to_best_attack(table: pl.DataFrame) -> pl.DataFrame:
    """Compare each bound with the best attack: ``ratio`` is to the largest mean, or null if no attack succeeded."""
    keys = [name for name in ("smoothing", "towards", "sweep", "at") if name in table.columns]
    best = table.filter(pl.col("kind") == "attack").group_by(keys).agg(pl.col("mean").max().alias("best_attack"))
    joined = table.filter(pl.col("kind") == "bound").join(best, on=keys, how="left", maintain_order="left")
    succeeded = pl.when(pl.col("best_attack") > 0).then(pl.col("best_attack"))
    return joined.with_columns(ratio=pl.col("mean") / succeeded).drop("kind", "low", "high")


def paper_bounds(
    prior: MarkovPrior, sensors: Sequence[Iterable[int]], tolerance: int, sigma: float | None = None
) -> dict[str, float]:
    """Compute the paper's loose and tight bounds, using its information bound, ball and form of Fano's inequality.

    ``sigma`` None: raw counts; the rest as for `success_upper_bound`. Unlike that, the paper does not use that a noisy
    release is never more informative than raw counts.

    Returns ``paper_loose`` and ``paper_tight``.

    >>> from penstock.accountants.markov import chain_prior
    >>> result = paper_bounds(chain_prior(20, 0.1), [{t} for t in range(5)], 1)
    >>> {name: round(value, 3) for name, value in result.items()}
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
    """Return the largest p with H(p) + p ln B ≥ −information."""

    def slack(p: float) -> float:
        """Return how far a success probability is below the bound, or a negative value if it exceeds the bound."""
        entropy = -p * math.log(p) - (1 - p) * math.log1p(-p)
        return entropy + p * log_ball + information

    if log_ball + information >= 0:
        return 1.0
    peak = 1 / (1 + math.exp(-log_ball))
    return float(brentq(slack, max(peak, 1e-300), 1 - 1e-15))


def chain_figures(place: Swept, tau: float, n_draws: int, n_trajectories: int, n_samples: int, seed: int) -> Figures:
    """Compute bounds and attacks on simulated lazy walks with one random sensor per window, for figures 5 and 7."""
    prior, noise, scale = chain_prior(place.n_locations, tau), *_noise(place.sigma)
    figures: Intervals = {}
    for draw in range(n_draws):
        rng = np.random.default_rng((seed, draw, place.n_steps, place.n_locations))
        sensors = [{int(cell)} for cell in rng.integers(0, place.n_locations, place.n_steps)]
        bounds = paper_bounds(prior, sensors, place.tolerance, scale) | {
            bound: success_upper_bound(prior, sensors, place.tolerance, noise, scale, bound, n_samples=n_samples)
            for bound in BOUNDS
        }
        bounds["best"] = min(bounds.values())
        for name, value in bounds.items():
            figures.setdefault(f"bound {name}", []).append((value, value, value))
        for attack in ATTACKS:
            success = attack_success(attack, prior, sensors, place.tolerance, n_trajectories, rng, noise, scale)
            figures.setdefault(f"attack {attack}", []).append(success)
    return averaged(figures)


def _noise(sigma: float) -> tuple[Literal["gaussian"] | None, float | None]:
    return ("gaussian", sigma) if sigma else (None, None)


# Real people: check-ins in windows of 20 days, at one of the most visited places or somewhere else.


IntArray = NDArray[np.intp]

N_TOP, N_GUESSED, WINDOW_DAYS = 100, 5, 20
_QUANTILES = (0.25, 0.5, 0.75)
_CONFIDENCE = 0.9999
#: Ranges with fewer people have no quartiles.
_FEW = 10
#: Edges of the ranges that people are binned in.
BINS = {"visit frequency": (0.0, 1e-9, 0.1, 0.3, 1.0), "spectral gap": (0.0, 0.02, 0.1, 0.3, 0.6, 1.0)}


@dataclass(frozen=True)
class LearnedPeople:
    """Real trajectories with priors learned from all but the last ``N_GUESSED`` windows of each.

    ``trajectories``: shape (n_people, n_windows), the most visited places and last "somewhere else".
    """

    trajectories: IntArray
    priors: tuple[MarkovPrior, ...]

    @property
    def n_people(self) -> int:
        """The number of people."""
        return len(self.priors)

    @property
    def last(self) -> IntArray:
        """The places to guess, shape (n_people, N_GUESSED)."""
        return self.trajectories[:, -N_GUESSED:]


def trajectories(visits: pl.DataFrame, min_windows: int) -> IntArray:
    """Return everybody's place in each window, shape (n_people, n_windows), or ``N_TOP`` for elsewhere and unseen.

    ``visits``: columns ``user``, ``time`` and ``place``; people seen in fewer than ``min_windows`` are left out.
    """
    day = visits["time"].dt.truncate("1d")
    window = (day - day.min()).dt.total_days().to_numpy() // WINDOW_DAYS
    user, place = (visits[column].rank("dense").to_numpy() for column in ("user", "place"))
    paths, _, _ = visit_trajectories(user, window, place, int(window.max()) + 1, N_TOP, min_windows)
    return paths


def learned(paths: IntArray, smoothing: float, towards: str) -> LearnedPeople:
    """Learn the priors of all people.

    ``smoothing`` of the transitions (the paper states none, which is 0) adds moves to any place (``uniform``) or by the
    person's visits (``own``).
    """
    known = paths[:, :-N_GUESSED]
    if towards == "uniform":
        return LearnedPeople(paths, tuple(estimate_prior(path, N_TOP + 1, smoothing) for path in known))
    often = np.stack([np.bincount(path, minlength=N_TOP + 1) for path in known]) + smoothing / (N_TOP + 1)
    shares = often / often.sum(axis=1, keepdims=True)
    priors = (estimate_prior(path, N_TOP + 1, smoothing, share) for path, share in zip(known, shares))
    return LearnedPeople(paths, tuple(priors))


def synthetic_checkins(n_people: int, seed: int) -> pl.DataFrame:
    """Generate check-ins of people who are mostly at one place, with one check-in every fourth day of 280 days.

    >>> synthetic_checkins(3, seed=1).columns
    ['user', 'time', 'place']
    """
    rng = np.random.default_rng(seed)
    days = np.arange(0, 280, 4)
    user = np.repeat(np.arange(n_people), len(days))
    place = np.where(rng.random(len(user)) < 0.8, user % 3, rng.integers(0, 6, len(user)))
    time = np.datetime64("2010-01-01T12:00:00", "ms") + np.tile(days, n_people).astype("timedelta64[D]")
    return pl.DataFrame({"user": user, "time": time, "place": place})


#: Data sets of check-ins, by the name of their source.
CHECKINS = ("gowalla", "foursquare")


def read_checkins(data_set: str, path: str) -> pl.DataFrame:
    """Read the distinct check-ins of a data set: ``user``, ``time`` and ``place``."""
    # Every one of `CHECKINS` has a path.
    source = SOURCES.get(data_set)(path=path).from_start()  # type: ignore[call-arg]
    frames = [block.frame.select("user", "place", "time") for span in source.spans() for block in source.read(span)]
    return pl.concat(frames).unique(maintain_order=True).with_columns(pl.col("time").cast(pl.Datetime("ms")))


def binned_bounds(known: LearnedPeople, against: str, n_draws: int, seed: int) -> Figures:
    """Group people's bounds by ranges of the quantity ``against``, for figures 3 and 4.

    ``visit frequency``: how often the one fixed sensor, at the most visited place, sees a person. ``spectral gap`` of a
    person's transitions: random sensors.

    Returns for the paper's tight bound and the best one, a row for each range: its ends, people in it, quartiles (NaN
    where they are few) and over all ranges the rank correlation (NaN where nothing varies).
    """
    if against == "visit frequency":
        values = (known.trajectories[:, :-N_GUESSED] == 0).mean(axis=1)
        bounds = _bounds(known, [[{0}] * N_GUESSED])
    else:
        values = np.array([spectral_gap(prior.transition) for prior in known.priors])
        bounds = _bounds(known, _schedules(n_draws, seed))
    return {name: _bin_bounds(values, np.array(BINS[against]), bound) for name, bound in bounds.items()}


def _schedules(n_draws: int, seed: int) -> list[list[set[int]]]:
    """Draw one random sensor per window, never at "elsewhere"."""
    rng = np.random.default_rng(seed)
    return [[{int(cell)} for cell in rng.integers(0, N_TOP, N_GUESSED)] for _ in range(n_draws)]


def _bounds(known: LearnedPeople, schedules: list[list[set[int]]]) -> dict[str, NDArray[np.float64]]:
    """Compute two bounds for each person, averaged over schedules, with one wrong guess allowed."""
    bounds: dict[str, list[float]] = {"paper_tight": [], "best": []}
    for prior in known.priors:
        paper = [paper_bounds(prior, sensors, 1)["paper_tight"] for sensors in schedules]
        bounds["paper_tight"].append(float(np.mean(paper)))
        bounds["best"].append(float(np.mean([success_upper_bound(prior, sensors, 1) for sensors in schedules])))
    return {name: np.array(values) for name, values in bounds.items()}


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


def people_figures(known: LearnedPeople, place: Swept, n_draws: int, seed: int) -> Figures:
    """Compute the mean bounds over people, and the fraction of people that attacks reconstruct, for figures 6 and 8."""
    sigma = place.sigma or None
    figures: Intervals = {}
    for draw, sensors in enumerate(_schedules(n_draws, seed)):
        rng = np.random.default_rng((seed, draw))
        for name, value in _mean_bounds(known, sensors, place.tolerance, sigma).items():
            figures.setdefault(f"bound {name}", []).append((value, value, value))
        for attack in ATTACKS:
            share = _success(known, attack, sensors, place.tolerance, sigma, rng)
            figures.setdefault(f"attack {attack}", []).append(share)
    return averaged(figures)


def _mean_bounds(
    known: LearnedPeople, sensors: list[set[int]], tolerance: int, sigma: float | None
) -> dict[str, float]:
    noise, scale = _noise(sigma or 0.0)
    sums: dict[str, float] = {}
    for prior in known.priors:
        of_person = paper_bounds(prior, sensors, tolerance, sigma)
        for bound in BOUNDS:
            if bound == "first_moment" and sigma is not None:
                continue  # it would be sampled; raw counts have it exactly
            of_person[bound] = success_upper_bound(prior, sensors, tolerance, noise, scale, bound)
        of_person["best"] = min(of_person.values())
        sums = {name: sums.get(name, 0.0) + value for name, value in of_person.items()}
    return {name: total / known.n_people for name, total in sums.items()}


def _success(
    known: LearnedPeople,
    attack: Estimator,
    sensors: list[set[int]],
    tolerance: int,
    sigma: float | None,
    rng: np.random.Generator,
) -> tuple[float, float, float]:
    """Return the fraction of people reconstructed, with a 99.99 % interval over similar people."""
    noise, scale = _noise(sigma or 0.0)
    if attack == "constant":
        # the luckiest place for all of them, "somewhere else" excepted, as in the paper
        hits = np.stack([(known.last == place).sum(axis=1) for place in range(N_TOP)])
        n = int((hits >= N_GUESSED - tolerance).sum(axis=1).max())
    else:
        n = 0
        for prior, path in zip(known.priors, known.last):
            rate, _, _ = attack_success(
                attack, prior, sensors, tolerance, 1, rng, noise, scale, trajectories=path[None]
            )
            n += round(rate)
    return n / known.n_people, *exact_interval(n, known.n_people, _CONFIDENCE)
