"""A run's utility, measured after it ends: a few metrics, each explained in one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.mechanisms.core.intervals import LEVEL, margin
from penstock.pipeline.output.files import PART_ROWS, ROW_GROUP
from penstock.pipeline.output.loss import first_rows, short
from penstock.pipeline.output.rehearsal import remedies
from penstock.pipeline.windows.calendar import DAY

Array = NDArray[np.float64]


# Intervals that hold a true count with 95 %, from what is released; a count is never negative.


def ends(value: Any, margin: Any) -> tuple[Any, Any]:
    """Return the lower and upper bounds of a count's interval, clipped at 0."""
    return np.maximum(value - margin, 0.0), np.maximum(value + margin, 0.0)


def half_width() -> pl.Expr:
    """Return an expression for a 95 % interval's half-width, from deviation or noise (NaN without either)."""

    def stated_margins(both: Sequence[pl.Series]) -> pl.Series:
        """Apply `margin` to the values if the mechanism states their standard deviations."""
        value, deviation = both
        return deviation if deviation.is_null().all() else pl.Series(margin(value.to_numpy(), deviation.to_numpy()))

    quantiles = dict.fromkeys(("laplace", "discrete_laplace"), -math.log(1 - LEVEL))
    quantiles |= dict.fromkeys(("gaussian", "discrete_gaussian"), 1.96)
    noise = pl.col("noise").cast(pl.String)
    of_noise = pl.col("scale") * noise.replace_strict(quantiles, default=math.nan, return_dtype=pl.Float64)
    columns = ["value", "standard_deviation"]
    stated = pl.map_batches(columns, stated_margins, return_dtype=pl.Float64, is_elementwise=True)
    return pl.when(pl.col("standard_deviation").is_not_null()).then(stated).otherwise(of_noise)


# Error, known where the truth is.


def utility_summary(truth: Array, released: Array) -> dict[str, float]:
    """Return the mean count and the mean absolute errors of the release, of zeros and of the last release.

    >>> utility_summary(np.array([[4.0], [2.0]]), np.array([[5.0], [2.0]]))
    {'mean_count': 3.0, 'error': 0.5, 'error_of_zeros': 3.0, 'error_of_last': 3.5}
    """

    def error(other: Array) -> float:
        """Return the mean absolute error of another release."""
        difference = other - truth
        return float(np.abs(difference, out=difference).mean())

    return {
        "mean_count": float(truth.mean()),
        "error": error(released),
        "error_of_zeros": error(np.zeros(1)),
        "error_of_last": error(np.concatenate([np.zeros((1, truth.shape[1])), released[:-1]])),
    }


def usual_counts(
    truth: Array, active: NDArray[np.bool_], starts: NDArray[np.int64], time_zone: str, training: NDArray[np.bool_]
) -> Array:
    """Return each cell's mean training count at the same local time of the week, shape (n_windows, n_cells).

    At the same time of the day if the training part is shorter than a week, of all of it if it is shorter than a day,
    and at times that are not in it; 0 where a cell was not active. ``training``: the first windows, and not all.

    >>> truth, hours = np.tile([[4.0], [2.0]], (24, 1)), np.arange(48) * 3_600_000
    >>> usual_counts(truth, truth > 0, hours, "UTC", hours < 24 * 3_600_000)[-2:].tolist()
    [[4.0], [2.0]]
    >>> usual_counts(truth, truth > 0, hours, "UTC", hours < 6 * 3_600_000)[-2:].tolist()
    [[3.0], [3.0]]
    """
    clock = pl.Series(starts).cast(pl.Datetime("ms", "UTC")).dt.convert_time_zone(time_zone)
    wall = clock.dt.replace_time_zone(None).dt.epoch("ms").to_numpy()
    span = starts[~training][0] - starts[0]
    period = 7 * DAY if span >= 7 * DAY else DAY if span >= DAY else 1
    times, place = np.unique(wall % period, return_inverse=True)
    sums, n = np.zeros((2, len(times), truth.shape[1]))
    np.add.at(sums, place[training], truth[training])
    np.add.at(n, place[training], active[training])
    overall_mean = sums.sum(axis=0) / np.maximum(n.sum(axis=0), 1)
    means = np.where(n > 0, sums / np.maximum(n, 1), overall_mean)
    return np.where(active, means[place], 0.0)


def interval_coverage(truth: Array, released: Array, deviation: Array) -> dict[str, float]:
    """Return the fraction of counts in their 95 % intervals, with the intervals' mean width and score, in people.

    The score of an interval is its width, and 40 times the distance of a count that is not in it (Gneiting, Raftery
    2007, section 6.2, at 95 %): wide ones do not flatter. NaN: no deviation is stated; nothing if none is.

    >>> result = interval_coverage(np.array([11.0, 19.0]), np.array([12.0, 12.0]), np.array([1.0, 1.0]))
    >>> {name: round(value, 2) for name, value in result.items()}
    {'coverage': 0.5, 'interval_width': 4.08, 'interval_score': 103.28}
    """
    stated = ~np.isnan(deviation)
    if not stated.any():
        return {}
    truth, released = truth[stated], released[stated]
    low, high = ends(released, margin(released, deviation[stated]))
    width, beyond = high - low, np.maximum(low - truth, truth - high)
    return {
        "coverage": float((beyond <= 0).mean()),
        "interval_width": float(width.mean()),
        "interval_score": float((width + 2 / 0.05 * np.maximum(beyond, 0.0)).mean()),
    }


#: Cells that are the busiest by what is released of them.
BUSIEST = 10
#: Counts of a part that are named as the least covered, at least.
MIN_COVERED = 100


def coverage_by_part(
    truth: Array, released: Array, deviation: Array, alarm: NDArray[np.bool_] | None = None
) -> list[dict[str, Any]]:
    """Return the coverage and mean half-width of the stated 95 % intervals for each subset of the counts.

    Parts are tenths by *released* value (equal values stay together), the cells with the highest mean release, and the
    values that are marked by an alarm. By true count every estimate that is drawn to a mean would look biased.

    >>> values = np.arange(20.0)[:, None]
    >>> parts = coverage_by_part(np.where(values < 18, values, 30.0), values, np.ones((20, 1)))
    >>> [(one["part"], one["coverage"]) for one in (parts[0], parts[-2], parts[-1])]
    [('released as 0 to 1', 1.0), ('released as 18 to 19', 0.0), ('in the busiest cells', 0.9)]
    """
    stated = ~np.isnan(deviation)
    if not stated.any():
        return []
    half = margin(np.where(stated, released, 0.0), np.where(stated, deviation, 1.0))
    low, high = ends(released, half)
    is_held = (low <= truth) & (truth <= high)
    edges = np.unique(np.quantile(released[stated], np.arange(1, 10) / 10, method="higher"))
    tenth = np.searchsorted(edges, released, "right")
    parts = [("", stated & (tenth == number)) for number in range(len(edges) + 1)]
    totals = np.where(stated, released, 0.0).sum(0) / np.maximum(stated.sum(0), 1)
    is_busiest = np.isin(np.arange(len(totals)), np.argsort(-totals, kind="stable")[:BUSIEST])
    parts.append(("in the busiest cells", stated & is_busiest))
    if alarm is not None:
        parts.append(("with an alarm", stated & alarm))
    return [
        {
            "part": name or f"released as {short(released[inside].min())} to {short(released[inside].max())}",
            "counts": int(inside.sum()),
            "coverage": float(is_held[inside].mean()),
            "half_width": float(half[inside].mean()),
        }
        for name, inside in parts
        if inside.any()
    ]


#: Bias by time of day is told from this share of the counts on, at hours with this share of the mean one's counts, and
#: where it is so many standard errors from 0 over the days.
BIASED, BUSY, CLEARLY = 0.05, 0.5, 3.0


def bias_by_hour(truth: Array, released: Array, starts: NDArray[np.int64], time_zone: str) -> list[dict[str, Any]]:
    """Return the error of the total over all cells for each local hour, in order, relative to the true total.

    A bound that keeps the first memberships of a day leaves the evenings too small. The ``standard_error`` is that of
    the mean over days, None for a single one. Empty for windows of a day or longer.

    >>> truth, hours = np.full((48, 1), 10.0), np.arange(48) * 3_600_000
    >>> evenings = np.where(np.arange(48) % 24 >= 18, 8.0, 10.0)[:, None]
    >>> [round(one["bias"], 2) for one in bias_by_hour(truth, evenings, hours, "UTC")][16:20]
    [0.0, 0.0, -0.2, -0.2]
    """
    times = pl.Series(starts).cast(pl.Datetime("ms", "UTC")).dt.convert_time_zone(time_zone)
    hours = times.dt.hour().to_numpy()
    if len(np.unique(hours)) < 2:
        return []
    true, error = truth.sum(axis=1), (released - truth).sum(axis=1)
    rows = []
    for hour in np.unique(hours).tolist():
        hourly = hours == hour
        scale = max(float(true[hourly].mean()), 1.0)
        spread = None if hourly.sum() < 2 else float(error[hourly].std(ddof=1) / hourly.sum() ** 0.5 / scale)
        mean = {"count": float(true[hourly].mean()), "bias": float(error[hourly].mean() / scale)}
        rows.append({"hour": hour} | mean | {"standard_error": spread})
    return rows


def _describe_bias(rows: Sequence[Mapping[str, Any]]) -> str:
    """Name the hour of the day with the largest significant bias. Returns an empty string if there is none."""
    usual = sum(row["count"] for row in rows) / max(len(rows), 1)
    busy = [row for row in rows if row["standard_error"] is not None and row["count"] >= BUSY * usual]
    clear = [row for row in busy if abs(row["bias"]) >= max(BIASED, CLEARLY * row["standard_error"])]
    if not clear:
        return ""
    worst = max(clear, key=lambda row: abs(float(row["bias"])))
    size = f"{100 * abs(worst['bias']):.0f} % too {'small' if worst['bias'] < 0 else 'large'}"
    return f" Around {worst['hour']:02}:00 all counts together are {size}."


#: One of those that `counted` names.
ONE = {"people": "person", "trips": "trip"}


def counted(manifest: Mapping[str, Any]) -> str:
    """Return the noun for what is counted: people, or trips if the source does not identify riders."""
    return "people" if manifest.get("distinct_people", True) else "trips"


def is_better(summary: Mapping[str, Any]) -> bool:
    """Return whether a release is more accurate than every alternative that has no privacy cost."""
    alternative = min(summary["error_of_zeros"], summary["error_of_last"])
    return bool(summary["error"] < alternative) and not _is_prior_better(summary)


def is_worse_than_zeros(summary: Mapping[str, Any]) -> bool:
    """Return whether publishing zeros would be at least as accurate as the release."""
    return bool(summary["error"] > 0 and summary["error"] >= summary["error_of_zeros"])


def _is_prior_better(summary: Mapping[str, Any]) -> bool:
    """Return whether the prior is at least as accurate as the release in windows that it was not trained on."""
    error = summary.get("error_after_training", summary["error"])
    return bool(error > 0 and error >= summary.get("error_of_prior", math.inf))


def describe_utility(summary: Mapping[str, Any], counted: str = "people") -> str:
    """Describe the result of `utility_summary` as a verdict on counts of people or another unit.

    With ``error_of_prior`` also against the prior, learned from ``training_windows`` of the run, or from a file that
    overlaps ``prior_overlap`` windows (None: it does not say).

    >>> describe_utility({"mean_count": 0.04, "error": 24.0, "error_of_zeros": 0.04, "error_of_last": 24.1})
    'Wrong by 24 people on average where 0.04 are counted: worse than publishing nothing, since zeros are nearer.
    Take larger cells or longer windows, of 600 times as many people, or more budget.'
    >>> describe_utility({"mean_count": 34.0, "error": 3.8, "error_of_zeros": 34.0, "error_of_last": 8.1})
    'Wrong by 3.8 people on average where 34 are counted (11 %); zeros by 34, the last release shown again by 8.1.'
    """
    error, mean, zeros, last = (summary[name] for name in ("error", "mean_count", "error_of_zeros", "error_of_last"))
    text = f"Wrong by {short(error)} {counted} on average where {short(mean)} are counted"
    if is_worse_than_zeros(summary):
        return f"{text}: worse than publishing nothing, since zeros are nearer. {remedies(error, mean)}"
    share = f" ({100 * error / mean:.0f} %)" if mean else ""
    if error > 0 and error >= last:
        return f"{text}{share}: no better than the last release shown again, which is wrong by {short(last)}."
    prior = short(summary["error_of_prior"]) if "error_of_prior" in summary else ""
    if prior and "training_windows" in summary:
        after = short(summary["error_after_training"])
        prior = f"{prior} (after its training on {summary['training_windows']:,.0f} windows, the release by {after})"
    elif prior and summary.get("prior_overlap", 0) is None:
        prior += " (its file does not say when it was learned: perhaps from these windows)"
    elif prior and summary.get("prior_overlap"):
        prior += f" (learned from the times of {summary['prior_overlap']:,.0f} of these windows, which it may know)"
    if _is_prior_better(summary):
        return f"{text}{share}: no better than the prior, which is wrong by {prior}."
    prior = f", the prior by {prior}" if prior else ""
    intervals = ""
    if "coverage" in summary:
        parts = [part for part in summary.get("coverage_by_part", ()) if part["counts"] >= MIN_COVERED]
        minimum = min(parts, key=lambda part: float(part["coverage"]), default=None)
        of_part = f", and {100 * minimum['coverage']:.0f} % of those {minimum['part']}" if minimum else ""
        intervals = f" The stated 95 % intervals hold {100 * summary['coverage']:.0f} % of the counts{of_part}."
    baselines = f"zeros by {short(zeros)}, the last release shown again by {short(last)}{prior}"
    return f"{text}{share}; {baselines}.{intervals}{_describe_bias(summary.get('bias_by_hour', ()))}"


# What the rows of a release share.

#: Columns that the rows of a release share and that say what it was and cost.
SHARED = ["window", "window_start", "window_end", "landmark", "action", "epsilon", "rho", "available_at"]
SHARED += ["noise", "scale"]


def shared_rows(releases: pl.LazyFrame) -> pl.DataFrame:
    """Return each release's `SHARED` columns in order, reading a bounded number of rows at a time."""
    table = releases.select(SHARED)
    n_rows = table.select(pl.len()).collect().item()
    stretches = (table.slice(start, ROW_GROUP) for start in range(0, max(n_rows, 1), ROW_GROUP))
    # A filtered frame keeps the memory of all its rows. A release that goes on in the next stretch is first in both.
    shared = pl.concat([first_rows(rows).collect().shrink_to_fit() for rows in stretches])
    return first_rows(shared.lazy()).collect()


def matrices(
    rows: pl.LazyFrame, windows: pl.Series, cells: Sequence[str], *columns: pl.Expr, max_rows: int = PART_ROWS
) -> dict[str, NDArray[np.float64]]:
    """Return a window-by-cell matrix per column (NaN: missing), reading a bounded number of rows at a time."""
    names = [column.meta.output_name() for column in columns]
    made = {name: np.full((len(windows), len(cells)), np.nan) for name in names}
    row, column = windows.to_numpy(), pl.col("cell").cast(pl.Enum(cells), strict=False).to_physical()
    step = max(1, max_rows // max(1, len(cells)))
    for some in (row[first : first + step] for first in range(0, len(row), step)):
        shown = rows.filter(pl.col("window").is_between(some[0], some[-1])).select(column, "window", *columns)
        table = shown.filter(pl.col("cell").is_not_null()).collect(engine="streaming")
        window = table["window"].to_numpy()
        at = np.searchsorted(row, window)
        known = row[at] == window
        place = at[known], table["cell"].to_numpy()[known]
        for name in names:
            made[name][place] = table[name].to_numpy()[known]
    return made
