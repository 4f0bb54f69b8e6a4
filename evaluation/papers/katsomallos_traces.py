"""Error of Skip, Uniform and Adaptive on real traces against the share of landmarks: Katsomallos et al. 2022.

``penstock convert`` makes a Parquet file of each data set; then ``python -m
penstock.evaluation.papers.katsomallos_traces --geolife FILE --tdrive FILE --out TABLE.csv``.
``docs/experiments_landmark.md`` reads the table; single cabs are ``configs/experiments/landmark_traces.yaml``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Mechanism
from penstock.mechanisms.core.geometry import distance, stay_points
from penstock.mechanisms.core.noise import TraceNoise
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.run import collect, release_traces
from penstock.mechanisms.core.traces import PLANAR, PointSchedule, Traces
from penstock.mechanisms.landmark_adaptive import LandmarkAdaptive
from penstock.mechanisms.landmark_skip import LandmarkSkip
from penstock.mechanisms.landmark_uniform import LandmarkUniform

N_POINTS, N_REPETITIONS = 1000, 100
PERCENTAGES = (0, 20, 40, 60, 80, 100)
#: The paper's thresholds for these percentages: metres and minutes.
THRESHOLDS = {
    "geolife": ((0, 100_000), (205, 30), (450, 30), (725, 30), (855, 30), (50_000, 30)),
    "tdrive": ((0, 1000), (2095, 30), (2790, 30), (3590, 30), (4825, 30), (10_350, 30)),
}
#: Beijing and around; the public point shown before a first release is Tiananmen Square.
BOX = {"latitude": (39.4, 41.1), "longitude": (115.4, 117.6)}
ORIGIN = (39.9055, 116.3976)
Z_95 = 1.96


def mechanisms_compared() -> dict[str, Mechanism]:
    """The three mechanisms; Adaptive with equal rates, by the paper's rule and by the expected difference."""
    adaptive = partial(LandmarkAdaptive, epsilon=1.0, noise=PLANAR, decrease=0.5, increase=0.5)
    return {
        "skip": LandmarkSkip(epsilon=1.0, noise=PLANAR),
        "uniform": LandmarkUniform(epsilon=1.0, noise=PLANAR),
        "adaptive (paper)": adaptive(calibration="paper"),
        "adaptive": adaptive(),
    }


@dataclass(frozen=True)
class Sample:
    """The first points of a data set."""

    times: NDArray[np.int64]  # milliseconds since 1970 UTC, shape (n_points,)
    points: NDArray[np.float64]  # degrees, shape (n_points, 2)
    starts: NDArray[np.int64]  # first point of each user, shape (n_users,)

    def landmarks(self, max_distance: float, minutes: float) -> NDArray[np.bool_]:
        """Stay points of each user's own trace."""
        return stay_points(self.times, self.points, self.starts, max_distance, 60_000 * minutes)


def first_points(events: pl.DataFrame, n_points: int = N_POINTS) -> Sample:
    """The first points in the box, user by user in order of time, one for each user and instant.

    ``events``: as ``penstock convert`` writes them.

    >>> events = pl.DataFrame(
    ...     {"user": [2, 1, 1], "time": [5, 9, 3], "latitude": [39.9] * 3, "longitude": [116.4] * 3}
    ... )
    >>> sample = first_points(events)
    >>> sample.times.tolist(), sample.starts.tolist()
    ([3, 9, 5], [0, 2])
    """
    inside = pl.all_horizontal(pl.col(name).is_between(*limits) for name, limits in BOX.items())
    if events["time"].dtype.is_temporal():
        events = events.with_columns(pl.col("time").dt.epoch("ms"))
    chosen = events.filter(inside).unique(["user", "time"], keep="first", maintain_order=True)
    chosen = chosen.sort("user", "time").head(n_points)
    return Sample(
        times=chosen["time"].cast(pl.Int64).to_numpy(),
        points=chosen.select("latitude", "longitude").to_numpy(),
        starts=np.flatnonzero(chosen["user"].ne_missing(chosen["user"].shift(1)).to_numpy()),
    )


def errors(
    sample: Sample, landmarks: NDArray[np.bool_], mechanism: Mechanism, n_repetitions: int, seed: int = 1
) -> tuple[NDArray[np.float64], float]:
    """Mean absolute error in metres of each repetition, and the share of points that were published.

    All repetitions are released in one pass, as if each were a user of its own.

    >>> sample = Sample(np.arange(3), np.tile([39.9, 116.4], (3, 1)), np.array([0]))
    >>> skip = mechanisms_compared()["skip"]
    >>> means, published = errors(sample, np.array([False, True, False]), skip, n_repetitions=5)
    >>> means.shape, round(published, 2)
    ((5,), 0.67)
    """
    n_points, n_users = len(sample.times), len(sample.starts)
    repetition = np.arange(n_repetitions)
    traces = Traces(
        users=np.column_stack([np.repeat(repetition, n_users), np.tile(np.arange(n_users), n_repetitions)]),
        starts=(n_points * repetition[:, None] + sample.starts).ravel(),
        times=np.tile(sample.times, n_repetitions),
        points=np.tile(sample.points, (n_repetitions, 1)),
        landmarks=np.tile(landmarks, n_repetitions),
        periods=np.zeros(n_points * n_repetitions, np.int64),
    )
    noise = TraceNoise(NoiseKey.from_seed(seed), b"")
    released = collect(release_traces(mechanism, PointSchedule(traces, ORIGIN), noise), len(traces.times))
    apart = distance(traces.points, released.values).reshape(n_repetitions, n_points)
    return apart.mean(axis=1), float((released.action == "published").mean())


def matched_thresholds(sample: Sample) -> list[tuple[float, float]]:
    """Distances that come closest to the wanted percentages of landmarks here, with the paper's 30 minutes."""
    distances = np.concatenate([[0.0], np.geomspace(10.0, 200_000.0, 200)])
    shares = np.array([100 * sample.landmarks(threshold, 30).mean() for threshold in distances])
    return [(float(distances[np.abs(shares - wanted).argmin()]), 30.0) for wanted in PERCENTAGES]


def error_table(
    data: str, sample: Sample, n_repetitions: int = N_REPETITIONS, mechanisms: dict[str, Mechanism] | None = None
) -> pl.DataFrame:
    """Error of every mechanism at every share of landmarks.

    Returns one row for each series (``each user``: a budget for every user; ``one``: all points as one series with one
    budget), choice of thresholds (``paper``, ``matched``), wanted percentage and mechanism: the thresholds, the
    percentage reached, ``mean`` error in metres with a 95 % interval over the repetitions, and the share published.
    """
    rows: list[dict[str, Any]] = []
    whole = replace(sample, starts=sample.starts[:1])
    series = {"each user": sample} | ({"one": whole} if len(sample.starts) > 1 else {})
    for choice, thresholds in (("paper", THRESHOLDS[data]), ("matched", matched_thresholds(sample))):
        for wanted, (metres, minutes) in zip(PERCENTAGES, thresholds):
            landmarks = sample.landmarks(metres, minutes)
            for kind, taken in series.items():
                for name, mechanism in (mechanisms or mechanisms_compared()).items():
                    means, published = errors(taken, landmarks, mechanism, n_repetitions)
                    half = Z_95 * means.std(ddof=1) / np.sqrt(n_repetitions)
                    rows.append(
                        {
                            "data": data,
                            "series": kind,
                            "thresholds": choice,
                            "wanted_percent": wanted,
                            "metres": metres,
                            "minutes": minutes,
                            "landmarks_percent": 100 * landmarks.mean(),
                            "mechanism": name,
                            "mean": means.mean(),
                            "low": means.mean() - half,
                            "high": means.mean() + half,
                            "published_percent": 100 * published,
                        }
                    )
    return pl.DataFrame(rows)


def main(argv: Iterable[str] | None = None) -> None:
    """Write the table of the data sets that are given."""
    parser = argparse.ArgumentParser(
        prog="python -m penstock.evaluation.papers.katsomallos_traces", description=__doc__
    )
    for name in THRESHOLDS:
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help="Parquet file from penstock convert")
    parser.add_argument("--out", type=Path, required=True, metavar="TABLE.csv")
    parser.add_argument("--repetitions", type=int, default=N_REPETITIONS, metavar="N")
    arguments = parser.parse_args(None if argv is None else list(argv))
    given = {name: path for name in THRESHOLDS if (path := getattr(arguments, name)) is not None}
    if not given:
        parser.error("give at least one data set")
    tables = [
        error_table(name, first_points(pl.read_parquet(path)), arguments.repetitions) for name, path in given.items()
    ]
    pl.concat(tables).write_csv(arguments.out, float_precision=1)


if __name__ == "__main__":
    main()
