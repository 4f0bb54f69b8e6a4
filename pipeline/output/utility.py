"""Utility of a finished simulation: metrics that compare released counts with true counts, and the error of released
traces.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from penstock.evaluation.utility import METRICS, skills
from penstock.mechanisms.core.geometry import distance
from penstock.mechanisms.core.profile import UsualCounts
from penstock.pipeline import atomic
from penstock.pipeline.config.kinds import parse_time
from penstock.pipeline.config.rules import METRIC
from penstock.pipeline.counting.spec import STREAM
from penstock.pipeline.output.tables import UTILITY
from penstock.pipeline.output.utility_summary import (
    bias_by_hour,
    coverage_by_part,
    interval_coverage,
    matrices,
    quiet_by_day,
    usual_counts,
    utility_summary,
    zone_in_words,
)

if TYPE_CHECKING:
    from penstock.accountants.correlation.adversary import Learned
    from penstock.pipeline.config.plan import Plan


Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


class _Score(NamedTuple):
    """A row of the utility table. A score for the whole run has the scope ``run``."""

    metric: str
    scope: str
    window: int | None
    value: float
    low: float | None = None
    high: float | None = None
    stream: str = STREAM


def write_utility(plan: Plan) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Write ``operator/utility.parquet``, and return entries of the manifest and doubts about the counts."""
    results, doubts = dict[str, dict[str, Any]](), list[str]()
    if plan.on_points:
        scores = _trace_scores(plan.folder)
    else:
        truth, released, deviation, alarm, active, windows = _matrices(plan.folder, plan.space.cells)
        scores = _count_scores(plan, truth, released, windows)
        if len(windows):
            starts = plan.grid.calendar.starts(1, int(windows[-1]))[windows - 1]
            against_prior, more = _prior_scores(plan, truth, released, active, windows, starts)
            scores += more
            summary = utility_summary(truth, released) | against_prior | interval_coverage(truth, released, deviation)
            parts = coverage_by_part(truth, released, deviation, alarm)
            by_hour = bias_by_hour(truth, released, starts, plan.config.windows.time_zone)
            results["utility_summary"] = summary | {
                k: v for k, v in (("coverage_by_part", parts), ("bias_by_hour", by_hour)) if v
            }
            scores += [_Score("bias", f"hour:{row['hour']:02}", None, row["bias"]) for row in by_hour]
            for name in ("coverage", "half_width"):
                scores += [_Score(name, part["part"], None, part[name]) for part in parts]
            if (hour := quiet_by_day(truth, starts, plan.config.windows.time_zone)) is not None:
                doubts.append(zone_in_words(hour, plan.config.windows.time_zone))
    if not plan.config.utility:
        return results, doubts
    columns = zip(*scores) if scores else ([] for _ in _Score._fields)
    with atomic.replacing(plan.folder / "operator" / "utility.parquet") as temporary:
        pq.write_table(pa.table(dict(zip(_Score._fields, columns)), schema=UTILITY), temporary)
    results["utility"] = {score.metric: score.value for score in scores if score.scope == "run"}
    return results, doubts


def _count_scores(plan: Plan, truth: Array, released: Array, windows: NDArray[Any]) -> list[_Score]:
    """Return the scores of every configured metric for the whole run and for each window or cell."""
    cells = plan.space.cells
    scores: list[_Score] = []
    days = _days(plan, windows)
    # A run that was stopped before its first window has nothing to compare.
    for name in plan.config.utility if len(windows) else ():
        metric = METRICS[name]
        if metric.daily and np.isnat(days).all():
            continue  # of a run that was stopped within its first day
        places, values = metric.scores(truth, released, **({"days": days} if metric.daily else {}))
        if not len(values):
            continue  # nothing is there that it is about
        scores.append(_Score(name, "run", None, float(values.mean())))
        if metric.scope == "window":
            scores += [_Score(name, "window", int(windows[i]), float(v)) for i, v in zip(places, values)]
        elif metric.scope == "day":
            dates = np.unique(days[~np.isnat(days)])
            scores += [_Score(name, f"day:{dates[i]}", None, float(v)) for i, v in zip(places, values)]
        else:
            scores += [_Score(name, f"cell:{cells[i]}", None, float(v)) for i, v in zip(places, values)]
    return scores


def _prior_scores(
    plan: Plan,
    truth: Array,
    released: Array,
    active: Mask,
    windows: NDArray[Any],
    starts: NDArray[np.int64],
) -> tuple[dict[str, float | None], list[_Score]]:
    """Return the error and skill of the release relative to the prior, both empty if there is no prior."""
    n_training = max((accountant.training_windows or 0 for accountant in plan.accountants), default=0)
    later = windows > n_training
    about: dict[str, float | None] = {}
    if n_training and later.any():
        prior = usual_counts(truth, active, starts, plan.config.windows.time_zone, ~later)
    elif not n_training and (profile := _profile(plan)) is not None:
        known = [plan.grid.window(int(window)) for window in windows]
        prior = np.where(active, profile.at(known, plan.space.cells), 0.0)
        about["prior_overlap"] = _overlap(plan, profile.facts, windows)
    elif not n_training and (learned := _learned_file(plan)) is not None:
        prior = np.where(active, _usual_counts(learned, plan.grid.n_cells), 0.0)
        about["prior_overlap"] = _overlap(plan, learned.facts, windows)
    else:
        return {}, []
    truth, released, prior = truth[later], released[later], prior[later]
    scores = about | {"error_of_prior": float(np.abs(truth - prior).mean())}
    if n_training:
        scores["training_windows"] = n_training
        scores["error_after_training"] = float(np.abs(truth - released).mean())
    values = skills(truth, released, prior)
    by_cell = [_Score("skill_prior", f"cell:{cell}", None, float(v)) for cell, v in zip(plan.space.cells, values)]
    return scores, [_Score("skill_prior", "run", None, float(values.mean())), *by_cell]


def _profile(plan: Plan) -> UsualCounts | None:
    """Return the initial profile of the filter, or None if there is none."""
    profiles = (getattr(step, "profile", None) for step in plan.config.mechanism)
    return next((UsualCounts.read(profile.file) for profile in profiles if profile is not None), None)


def _learned_file(plan: Plan) -> Learned | None:
    """Return the `penstock learn` file of an accountant, or None if none covers the cells of the run."""
    for accountant in plan.accountants:
        known = getattr(accountant, "prior", None) or getattr(accountant, "correlation", None)
        if (path := getattr(known, "learned", None)) is None:
            continue
        from penstock.accountants.correlation.adversary import Learned

        learned, cells = Learned.read(path), plan.space.cells
        if tuple(learned.states[: len(cells)]) == cells:
            return learned
    return None


def _usual_counts(learned: Learned, n_cells: int) -> Array:
    """Return the mean number of people per window in each cell."""
    return np.asarray(learned.visits[:n_cells] / (learned.facts["windows"] * learned.facts["share"]))


def _overlap(plan: Plan, facts: dict[str, Any], windows: NDArray[Any]) -> int | None:
    """Count the windows that overlap the training period, or return None if the file does not state that period."""
    if not {"from", "until"} <= facts.keys():
        return None
    begin, end = (parse_time(facts[name]) for name in ("from", "until"))
    starts, ends = (of(1, int(windows[-1]))[windows - 1] for of in (plan.grid.calendar.starts, plan.grid.calendar.ends))
    return int(((starts < end) & (ends > begin)).sum())


def _days(plan: Plan, windows: NDArray[Any]) -> NDArray[np.datetime64]:
    """Return the local date of each released window, or NaT if its day is incomplete or no metric is daily."""
    if any(METRICS[name].daily for name in plan.config.utility):
        return plan.grid.calendar.whole_days(windows)
    return np.full(len(windows), "NaT", "M8[D]")


def _matrices(folder: Path, cells: tuple[str, ...]) -> tuple[Array, Array, Array, Mask | None, Mask, NDArray[Any]]:
    """Read the true counts, the released values with any deviations and alarms, the active cells, and the windows.

    Only windows and cells that were released are compared; elsewhere both are 0.
    """
    rows = pl.scan_parquet(folder / "public" / "releases.parquet")
    windows = rows.select(pl.col("window").unique().sort()).collect()["window"]
    names = {"value", "standard_deviation", "alarm"} & set(rows.collect_schema().names())
    released = matrices(rows, windows, cells, *(pl.col(name).cast(pl.Float64) for name in sorted(names)))
    true = matrices(pl.scan_parquet(folder / "operator" / "truth.parquet"), windows, cells, pl.col("count"))
    active = ~np.isnan(released["value"])
    truth, values = (np.where(active, of, 0.0) for of in (true["count"], released["value"]))
    alarm = released["alarm"] > 0 if "alarm" in names else None
    return truth, values, released["standard_deviation"], alarm, active, windows.to_numpy()


def _trace_scores(folder: Path) -> list[_Score]:
    """Return the mean distance in metres of released and true points: of all, by landmark, and by user."""
    released = pl.read_parquet(folder / "public" / "traces.parquet")
    true = pl.read_parquet(folder / "operator" / "truth.parquet")
    metres = distance(*(frame.select("latitude", "longitude").to_numpy() for frame in (released, true)))
    errors = released.select(pl.col("pseudonym").cast(pl.String), "landmark", pl.Series("error", metres))
    scores = {"run": _mean(errors)}
    for scope, is_landmark in (("landmarks", True), ("regular", False)):
        part = errors.filter(pl.col("landmark") == is_landmark)
        if len(part):
            scores[scope] = _mean(part)
    per_user = errors.group_by("pseudonym", maintain_order=True).agg(pl.col("error").mean())
    scores |= {f"user:{name}": error for name, error in per_user.iter_rows()}
    return [_Score(METRIC, scope, None, value) for scope, value in scores.items()]


def _mean(frame: pl.DataFrame) -> float:
    return float(frame["error"].to_numpy().mean()) if len(frame) else float("nan")
