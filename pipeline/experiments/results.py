"""An experiment's results: tables with confidence intervals across seeds, verdicts on expectations, and advice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
from numpy.typing import NDArray
from scipy.special import expit, logit

from penstock.evaluation.metrics import half_width
from penstock.evaluation.utility import METRICS
from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline import atomic
from penstock.pipeline.config.canonical import resolved
from penstock.pipeline.config.rules import unused_keys
from penstock.pipeline.experiments.config import Choose, Expectation, ExperimentConfig
from penstock.pipeline.experiments.load import Sweep
from penstock.pipeline.experiments.measures import LIMITS, measure
from penstock.pipeline.reporting.markup import CSV_DIGITS
from penstock.pipeline.reporting.summary import as_yaml

#: Level of intervals over seeds.
CONFIDENCE = 0.95


def write_tables(
    experiment: Sweep, records: Mapping[int, Mapping[str, Any]], folder: Path
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Write ``results.parquet``, ``summary.parquet`` and ``summary.csv``.

    Returns every measure of every finished trial, in the order of the grid, with the mean and interval of its setting
    and the provenance of its number; and one row for each setting and measure, with its interval and spread.
    """
    results = _results(experiment, records)
    summary = _summary(results, experiment.columns)
    setting = (*experiment.columns, "measure")
    ends = summary.select(*setting, "mean", "low", "high")
    results = results.join(ends, on=setting, how="left", maintain_order="left", nulls_equal=True)
    first = (*experiment.columns, "seed", "measure", "value", "unit", "mean", "low", "high")
    results = results.select(*first, pl.exclude(first))
    write_frame(results, folder / "results.parquet")
    write_frame(summary, folder / "summary.parquet")
    write_frame(summary, folder / "summary.csv")
    return results, summary


def _results(experiment: Sweep, records: Mapping[int, Mapping[str, Any]]) -> pl.DataFrame:
    rows = [
        [trial.values[name] for name in experiment.columns]
        # JSON has no infinity: "inf" is text there.
        + [trial.seed, row["measure"], float(row["value"]), row["unit"]]
        + [record[name] for name in ("configuration", "inputs", "people")]
        + [", ".join(f"{name} {version}" for name, version in record["versions"].items())]
        for trial in experiment.trials
        if (record := records.get(trial.number))
        for row in record["measures"]
    ]
    fixed = ("seed", "measure", "value", "unit", "configuration", "inputs", "people", "versions")
    names, types = (*experiment.columns, *fixed), {"seed": pl.Int64, "value": pl.Float64}
    columns = []
    for name, values in zip(names, zip(*rows) if rows else [()] * len(names)):
        # What varies is numeric if all its values are numbers, and text otherwise.
        kinds = set(map(type, values))
        if name in types or (kinds and (kinds == {bool} or kinds <= {int, float})):
            columns.append(pl.Series(name, values, types.get(name), strict=False))
        else:
            columns.append(pl.Series(name, list(map(str, values)), pl.String))
    return pl.DataFrame(columns)


def _summary(results: pl.DataFrame, varied: Sequence[str]) -> pl.DataFrame:
    """Return the `interval` across seeds for each setting and metric."""
    provenance = ("configuration", "inputs", "versions")
    rows = []
    for key, group in results.group_by(*varied, "measure", maintain_order=True):
        unit = group["unit"][0]
        rows.append(
            dict(zip((*varied, "measure"), key))
            | {"unit": unit}
            | interval(group["value"].to_numpy(), limits_of(str(key[-1]), unit))
            | {name: "; ".join(group[name].unique(maintain_order=True).to_list()) for name in provenance}
        )
    schema: dict[str, Any] = {name: results.schema[name] for name in (*varied, "measure", "unit")}
    schema |= {"n": pl.Int64} | dict.fromkeys(("mean", "low", "high", "standard_deviation"), pl.Float64)
    schema |= dict.fromkeys(("minimum", "maximum"), pl.Float64) | dict.fromkeys(provenance, pl.String)
    return pl.DataFrame(rows, schema=schema)


def limits_of(name: str, unit: str) -> tuple[float, float] | None:
    """Return a metric's smallest and largest possible values, or None unless both are finite."""
    return measure(name).limits or LIMITS.get(unit)


def interval(values: Any, limits: tuple[float, float] | None = None) -> dict[str, Any]:
    """Return the mean, Student's t confidence interval and spread of independent numbers.

    With ``limits``, between which every number must be, the interval is Student's on the logit scale (delta method):
    it does not leave them, and is Student's where the spread is small.

    >>> result = interval([1.0, 2.0, 3.0])
    >>> result["mean"], round(result["low"], 3), round(result["high"], 3)
    (2.0, -0.484, 4.484)
    >>> interval([2.0])["low"] is None
    True
    >>> interval([1.0, 1.0 - 2**-53], (-1.0, 1.0))["low"] > 0.99  # at a limit but for rounding
    True
    >>> result = interval([0.9, 0.95, 1.0], (0.0, 1.0))
    >>> round(result["low"], 3), round(result["high"], 3)
    (0.582, 0.996)
    """
    array = np.asarray(values, np.float64)
    n, mean = len(array), float(array.mean())
    low = high = spread = None
    if n > 1:
        with np.errstate(invalid="ignore"):
            spread, half = float(array.std(ddof=1)), half_width(array, CONFIDENCE)
        low, high = mean - half, mean + half
        if limits is not None and 0 < (share := (mean - limits[0]) / (limits[1] - limits[0])) < 1:
            width = limits[1] - limits[0]
            step = half / width / (share * (1 - share))
            low, high = (limits[0] + width * expit(logit(share) + np.array([-step, step]))).tolist()
    figures = {"n": n, "mean": mean, "low": low, "high": high, "standard_deviation": spread}
    return figures | {"minimum": float(array.min()), "maximum": float(array.max())}


def matching(frame: pl.DataFrame, where: Mapping[str, Any]) -> pl.DataFrame:
    """Return the rows with the given column values; in mixed columns a number also matches its string."""
    for name, value in where.items():
        column = pl.col(name)
        frame = frame.filter(column == (str(value) if frame.schema[name] == pl.String else value))
    return frame


def wide_summary(summary: pl.DataFrame, measures: tuple[str, ...]) -> pl.DataFrame:
    """Pivot the summary to one row per setting, with columns such as ``mean mae``."""
    statistics = {"measure", "unit", "n", "mean", "low", "high", "standard_deviation", "minimum", "maximum"}
    varied = [name for name in summary.columns if name not in statistics | {"configuration", "inputs", "versions"}]
    rows = summary.filter(pl.col("measure").is_in(measures)).with_columns(pl.lit(0).alias("of"))
    sides = ("mean", "low", "high")
    wide = rows.pivot(on="measure", index=["of", *varied], values=sides, separator=" ", maintain_order=True)
    names = [f"{side} {name}" for name in dict.fromkeys(measures) for side in sides]
    missing = [pl.lit(None, pl.Float64).alias(name) for name in names if name not in wide.columns]
    return wide.with_columns(missing).select(*varied, *names)


def write_frame(frame: pl.DataFrame, path: Path) -> None:
    """Write a data frame as Parquet, or as CSV with numbers rounded for readers."""
    with atomic.replacing(path) as temporary:
        if path.suffix == ".csv":
            frame.with_columns(cs.float().round_sig_figs(CSV_DIGITS)).write_csv(temporary)
        else:
            frame.write_parquet(temporary)


AGREES, UNCERTAIN, DIFFERS, MISSING = "agrees", "too close to tell", "differs", "not measured"


def write_expected(config: ExperimentConfig, results: pl.DataFrame, folder: Path) -> list[dict[str, Any]]:
    """Write each claim with its measured number and verdict to ``expected.csv``."""
    rows = []
    for claim in config.expected:
        values, units = per_seed(claim, results), results.filter(pl.col("measure") == claim.measure)["unit"]
        # A ratio has no limits, even of shares.
        limits = limits_of(claim.measure, units[0]) if len(units) and claim.over is None else None
        figure = interval(values, limits) if len(values) else {"mean": None, "low": None, "high": None}
        judged = {"value": figure["mean"], "low": figure["low"], "high": figure["high"]}
        said = {"says": claim.says, "source": claim.source, "number": _number(claim)}
        limited = {"at_least": claim.at_least, "at_most": claim.at_most}
        rows.append(said | limited | judged | {"verdict": verdict(claim, *judged.values())})
    if rows:
        numbers = dict.fromkeys(("at_least", "at_most", "value", "low", "high"), pl.Float64)
        write_frame(pl.DataFrame(rows, schema_overrides=numbers), folder / "expected.csv")
    return rows


def per_seed(claim: Expectation, results: pl.DataFrame) -> Any:
    """Compute a claim's number for each seed. It is either a mean over settings or a ratio of two means.

    Seeds are paired: both sides of a ratio use the same seed, so that what they share does not widen the interval.
    """
    frame = results.filter(pl.col("measure") == claim.measure)
    first = _means(matching(frame, claim.where))
    if claim.over is None:
        return first["value"].to_numpy()
    second = _means(matching(frame, claim.where | claim.over))
    both = first.join(second, on="seed", suffix="_over").sort("seed")
    if (both["value_over"] == 0).any():
        raise DataError(f"expected: {claim.says!r} divides by a mean of 0")
    return np.asarray(both["value"] / both["value_over"])


def _means(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the mean for each seed that has a complete set of settings. Failed trials may leave gaps."""
    means = frame.group_by("seed").agg(pl.col("value").mean(), pl.len().alias("n"))
    return means.filter(pl.col("n") == pl.col("n").max()).sort("seed")


def verdict(claim: Expectation, mean: float | None, low: float | None, high: float | None) -> str:
    """Return whether all, part or none of a number's confidence interval agrees with a claim.

    >>> claim = Expectation(says="less", source="A. Author", measure="mae", at_most=1.0)
    >>> verdict(claim, 0.5, 0.4, 0.6), verdict(claim, 1.1, 0.9, 1.3), verdict(claim, 2.0, None, None)
    ('agrees', 'too close to tell', 'differs')
    """
    if mean is None or math.isnan(mean):
        return MISSING
    minimum = -math.inf if claim.at_least is None else claim.at_least
    maximum = math.inf if claim.at_most is None else claim.at_most
    low, high = (mean if low is None else low), (mean if high is None else high)
    if low >= minimum and high <= maximum:
        return AGREES
    return UNCERTAIN if high >= minimum and low <= maximum else DIFFERS


def _number(claim: Expectation) -> str:
    """Describe a claim's number."""

    def settings(where: dict[str, Any]) -> str:
        return ", ".join(str(v) if k == "variant" else f"{k} {v}" for k, v in where.items()) or "all settings"

    ratio = "" if claim.over is None else f" ÷ {settings(claim.over)}"
    return f"{claim.measure}: {settings(claim.where)}{ratio}"


BEST_HEADER = """\
# Chosen by the experiment {name}: {result}.
# A simulation, ready to run: penstock run {file}
# It was chosen by a look at the exact counts, which no guarantee covers: a deployment is refused while the key
# looked_at_data stands below. Remove it if the data that were looked at are public, or the look was paid for.
"""


def write_choice(experiment: Sweep, summary: pl.DataFrame, folder: Path) -> dict[str, Any]:
    """Write ``frontier.parquet`` and ``frontier.csv``, as well as ``best.yaml`` if a setting meets all limits.

    Returns the choice for the manifest.
    """
    choose = experiment.config.choose
    assert choose is not None
    # A setting with failed trials is not eligible: the seeds that did not fail are a biased sample.
    complete = summary.filter(pl.col("n") == len({trial.seed for trial in experiment.trials}))
    table = frontier(choose, wide_summary(complete, choose.measures))
    for end in ("parquet", "csv"):
        write_frame(table, folder / f"frontier.{end}")
    choice: dict[str, Any] = {"at_least": choose.at_least, "at_most": choose.at_most, "prefer": choose.preferred}
    choice |= {"settings": len(table), "best": None, "binding": None}
    choice |= {"allowed": int(table["allowed"].sum()), "on_frontier": int(table["frontier"].sum())}
    if decisive := binding(choose, table):
        names = (*experiment.columns, *(f"mean {name}" for name in choose.measures))
        setting, keeping = (
            None if row is None else {name: table[name][row] for name in names}
            for row in (decisive["row"], decisive["keeping"])
        )
        choice["binding"] = {"limit": decisive["limit"], "setting": setting, "keeping": keeping}
    path = folder / "best.yaml"
    path.unlink(missing_ok=True)  # left by an earlier call with other limits
    for row in table.filter(pl.col("best")).iter_rows(named=True):  # at most one
        varied = {name: row[name] for name in experiment.columns}
        means = {name: row[f"mean {name}"] for name in choose.measures}
        intervals = {name: [row.get(f"low {name}"), row.get(f"high {name}")] for name in choose.measures}
        choice["best"] = {"values": varied, "means": means, "intervals": intervals}
        trial = next(trial for trial in experiment.trials if _shown(trial.values) == _shown(varied))
        values = resolved(trial.config) | {"name": f"{experiment.config.name}-best", "output": {"path": "runs/best"}}
        values |= {"looked_at_data": True, "utility": [name for name in experiment.config.measures if name in METRICS]}
        for key in unused_keys(trial.config):  # other trials read them
            del values[key]
        result = describe_best(choice["best"])
        header = BEST_HEADER.format(name=experiment.config.name, result=result, file=path.name)
        atomic.write_text(path, header + as_yaml(values))
    return choice


def frontier(choose: Choose, wide: pl.DataFrame) -> pl.DataFrame:
    """Add ``allowed`` (meets all limits), ``frontier`` (Pareto-optimal) and ``best`` (best allowed) to the settings.

    >>> wide = pl.DataFrame({"e": [1, 2, 3], "mean f1": [0.8, 0.9, 0.9], "mean loss": [1.0, 2.0, 3.0]})
    >>> limits = Choose(at_least={"f1": 0.85}, at_most={"loss": 5}, prefer="loss")
    >>> result = frontier(limits, wide)
    >>> result["allowed"].to_list(), result["frontier"].to_list(), result["best"].to_list()
    ([False, True, True], [True, True, False], [False, True, False])
    """
    allowed = np.all([excess <= 0 for excess in excesses(choose, wide).values()], axis=0)
    gains = np.stack([_gain(choose, name, wide[f"mean {name}"].to_numpy()) for name in choose.measures], axis=1)
    on_frontier = np.array([not ((gains >= row).all(axis=1) & (gains > row).any(axis=1)).any() for row in gains], bool)
    order = [choose.preferred, *(name for name in choose.measures if name != choose.preferred)]
    columns = [gains[:, choose.measures.index(name)] for name in order]
    best = np.zeros(len(wide), bool)
    if allowed.any():
        ranked = np.lexsort([-column for column in reversed(columns)])
        best[next(i for i in ranked if allowed[i])] = True
    return wide.with_columns(pl.Series("allowed", allowed), pl.Series("frontier", on_frontier), pl.Series("best", best))


def excesses(choose: Choose, wide: pl.DataFrame) -> dict[str, NDArray[np.float64]]:
    """Return by how much each setting misses each limit, relative to the limit. Positive if the limit is not met.

    >>> wide = pl.DataFrame({"mean f1": [1.0, 0.25], "mean loss": [1.0, 3.0]})
    >>> limits = Choose(at_least={"f1": 0.5}, at_most={"loss": 2})
    >>> {name: result.tolist() for name, result in excesses(limits, wide).items()}
    {'f1': [-1.0, 0.5], 'loss': [-0.5, 0.5]}
    """
    by_measure: dict[str, NDArray[np.float64]] = {}
    for limits, side, sign in ((choose.at_least, "low", -1), (choose.at_most, "high", 1)):
        for name, limit in limits.items():
            mean = wide[f"mean {name}"]
            end = wide.get_column(f"{side} {name}", default=mean).fill_null(mean)
            excess = sign * (end.to_numpy().astype(np.float64) - limit) / (abs(limit) or 1.0)
            by_measure[name] = np.maximum(by_measure.get(name, -np.inf), np.where(np.isnan(excess), np.inf, excess))
    return by_measure


def binding(choose: Choose, wide: pl.DataFrame) -> dict[str, Any] | None:
    """Return the only ``limit`` that rules out a better setting. If no setting is allowed, return the limit that the
    closest setting misses by the most.

    ``row`` is that of the setting, ``keeping`` that of the nearest setting that keeps this limit, if any.

    >>> wide = pl.DataFrame({"mean f1": [0.8, 0.9, 0.95], "mean loss": [1.0, 3.0, 5.0]})
    >>> binding(Choose(at_least={"f1": 0.5}, at_most={"loss": 2}), wide)
    {'limit': 'loss', 'row': 2, 'keeping': 0}
    >>> binding(Choose(at_least={"f1": 0.88}, at_most={"loss": 2}), wide)
    {'limit': 'f1', 'row': 0, 'keeping': 1}
    """
    if not len(wide):
        return None
    missed = excesses(choose, wide)
    names = list(missed)
    table = np.stack([missed[name] for name in names], axis=1)
    gain = _gain(choose, choose.preferred, wide[f"mean {choose.preferred}"].to_numpy())
    allowed = (table <= 0).all(axis=1)
    if allowed.any():
        keeping = int(np.where(allowed, gain, -np.inf).argmax())
        best, decisive = gain[allowed].max(), None
        for column, name in enumerate(names):
            others = (np.delete(table, column, axis=1) <= 0).all(axis=1) & ~allowed
            better = np.where(others, gain, -np.inf)
            if (top := better.max()) > best:
                best, decisive = top, {"limit": name, "row": int(better.argmax()), "keeping": keeping}
        return decisive
    row = int(np.argmin(np.maximum(table, 0.0).sum(axis=1)))
    limit = int(np.argmax(table[row]))
    kept = table[:, limit] <= 0
    other = np.maximum(np.delete(table, limit, axis=1), 0.0).sum(axis=1)
    nearest = int(np.argmin(np.where(kept, other, np.inf))) if kept.any() else None
    return {"limit": names[limit], "row": row, "keeping": nearest}


def _gain(choose: Choose, name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a metric's values, negated if lower is better."""
    gain = np.where(np.isnan(values), -np.inf, values if choose.is_higher_better(name) else -values)
    return np.asarray(gain, np.float64)


def describe_best(best: dict[str, Any]) -> str:
    """Describe the metrics of the best setting with their confidence intervals across seeds.

    >>> describe_best({"means": {"mae": 2.5, "f1": 0.75}, "intervals": {"mae": [2.25, 2.75], "f1": [None, None]}})
    'mae 2.5 (2.25 to 2.75), f1 0.75'
    """
    return ", ".join(
        f"{name} {mean:.4g}" + ("" if None in ends else f" ({ends[0]:.4g} to {ends[1]:.4g})")
        for (name, mean), ends in zip(best["means"].items(), best["intervals"].values())
    )


def _shown(values: dict[str, Any]) -> dict[str, str]:
    """Format values as strings in the form used by both the grid and the tables."""
    return {k: f"{v:.12g}" if isinstance(v, int | float) else str(v) for k, v in values.items()}
