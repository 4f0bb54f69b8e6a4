"""Utility of a finished simulation: metrics that compare released with true counts, and the error of released
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
from penstock.mechanisms.core.usual_days import UsualCounts
from penstock.mechanisms.filter import Filter
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
    usual_counts,
    utility_summary,
)

if TYPE_CHECKING:
    from penstock.pipeline.config.plan import Plan


Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


class _Score(NamedTuple):
    """A row in the utility table. Scores for the whole run have the scope ``run``."""

    metric: str
    scope: str
    window: int | None
    value: float
    low: float | None = None
    high: float | None = None
    stream: str = STREAM


def write_utility(plan: Plan) -> dict[str, dict[str, Any]]:
    """Write ``operator/utility.parquet`` and return its summary for the operator's manifest."""
    results = dict[str, dict[str, Any]]()
    if plan.on_points:
        scores = _trace_scores(plan.folder)
    else:
        truth, released, deviation, alarm, active, windows = _matrices(plan.folder, plan.space.cells)
        scores = _count_scores(plan, truth, released, windows)
        if len(windows):
            starts = plan.grid.calendar.starts_of(windows)
            against_prior, more = _prior_scores(plan, truth, released, active, windows, starts)
            scores += more
            summary = utility_summary(truth, released) | against_prior | interval_coverage(truth, released, deviation)
            parts = coverage_by_part(truth, released, deviation, alarm)
            by_hour = bias_by_hour(truth, released, starts, plan.config.windows.time_zone)
            lists = {"coverage_by_part": parts, "bias_by_hour": by_hour}
            results["utility_summary"] = summary | {name: rows for name, rows in lists.items() if rows}
            scores += [_Score("bias", f"hour:{row['hour']:02}", None, row["bias"]) for row in by_hour]
            for name in ("coverage", "half_width"):
                scores += [_Score(name, part["part"], None, part[name]) for part in parts]
    if not plan.config.utility:
        return results
    columns = zip(*scores) if scores else ([] for _ in _Score._fields)
    with atomic.replacing(plan.folder / "operator" / "utility.parquet") as temporary:
        pq.write_table(pa.table(dict(zip(_Score._fields, columns)), schema=UTILITY), temporary)
    results["utility"] = {score.metric: score.value for score in scores if score.scope == "run"}
    return results


def _count_scores(plan: Plan, truth: Array, released: Array, windows: NDArray[Any]) -> list[_Score]:
    """Return the score of each configured metric for the whole run and for each window or cell."""
    cells, scores = plan.space.cells, list[_Score]()
    is_daily = any(METRICS[name].daily for name in plan.config.utility)
    # Of a day that is not released to its end there is no date.
    days = plan.grid.calendar.whole_days(windows) if is_daily else np.full(len(windows), "NaT", "M8[D]")
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
        else:
            among = np.unique(days[~np.isnat(days)]) if metric.scope == "day" else cells
            scores += [_Score(name, f"{metric.scope}:{among[i]}", None, float(v)) for i, v in zip(places, values)]
    return scores


def _prior_scores(
    plan: Plan, truth: Array, released: Array, active: Mask, windows: NDArray[Any], starts: NDArray[np.int64]
) -> tuple[dict[str, float | None], list[_Score]]:
    """Return the release's error and skill relative to the prior. Both are empty if there is no prior."""
    n_training = max((accountant.training_windows or 0 for accountant in plan.config.accountants), default=0)
    later = windows > n_training
    about: dict[str, float | None] = {}
    if n_training and later.any():
        prior = usual_counts(truth, active, starts, plan.config.windows.time_zone, ~later)
    elif not n_training and (known := _prior_of_file(plan, windows)) is not None:
        counts, facts = known
        prior = np.where(active, counts, 0.0)
        about["prior_overlap"] = None
        if {"from", "until"} <= facts.keys():
            begin, end = (parse_time(facts[name]) for name in ("from", "until"))
            ends = plan.grid.calendar.starts_of(windows + 1)
            about["prior_overlap"] = int(((starts < end) & (ends > begin)).sum())
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


def _prior_of_file(plan: Plan, windows: NDArray[Any]) -> tuple[Array, dict[str, Any]] | None:
    """Return the expected counts and facts from the filter's profile or a learned file, or None if neither applies."""
    profiles = (step.profile for step in plan.config.mechanism if isinstance(step, Filter))
    if (profile := next(filter(None, profiles), None)) is not None:
        usual = UsualCounts.read(profile.file)
        return usual.at([plan.grid.window(int(window)) for window in windows], plan.space.cells), usual.facts
    for accountant in plan.config.accountants:
        known = getattr(accountant, "prior", None) or getattr(accountant, "correlation", None)
        if (path := getattr(known, "learned", None)) is not None:
            from penstock.accountants.correlation.adversary import Learned

            learned, cells = Learned.read(path), plan.space.cells
            if tuple(learned.states[: len(cells)]) == cells:
                visits = np.asarray(learned.visits[: len(cells)])
                return visits / (learned.facts["windows"] * learned.facts["share"]), learned.facts
    return None


def _matrices(folder: Path, cells: tuple[str, ...]) -> tuple[Array, Array, Array, Mask | None, Mask, NDArray[Any]]:
    """Read the true counts, the released values with any deviations and alarms, the active cells and the windows.

    Only windows and cells that were released are compared; elsewhere both are 0.
    """
    rows = pl.scan_parquet(folder / "public" / "releases.parquet")
    windows = rows.select(pl.col("window").unique().sort()).collect()["window"]
    names = {"value", "standard_deviation", "alarm"} & set(rows.collect_schema().names())
    released = matrices(rows, windows, cells, *(pl.col(name).cast(pl.Float64) for name in sorted(names)))
    true = matrices(pl.scan_parquet(folder / "operator" / "truth.parquet"), windows, cells, pl.col("count"))
    active = ~np.isnan(released["value"])
    truth, values = true["count"], released["value"]
    for counts in (truth, values):
        counts[~active] = 0.0
    alarm = released["alarm"] > 0 if "alarm" in names else None
    return truth, values, released["standard_deviation"], alarm, active, windows.to_numpy()


def _trace_scores(folder: Path) -> list[_Score]:
    """Return the mean metres between released and true points: overall, for landmarks, for the rest, and by user."""
    released = pl.read_parquet(folder / "public" / "traces.parquet")
    true = pl.read_parquet(folder / "operator" / "truth.parquet")
    metres = distance(*(frame.select("latitude", "longitude").to_numpy() for frame in (released, true)))
    errors = released.select(pl.col("pseudonym").cast(pl.String), pl.Series("error", metres))
    is_landmark = released["landmark"].to_numpy()
    parts = {"run": metres, "landmarks": metres[is_landmark], "regular": metres[~is_landmark]}
    scores = {scope: float(part.mean()) for scope, part in parts.items() if len(part)} or {"run": float("nan")}
    per_user = errors.group_by("pseudonym", maintain_order=True).agg(pl.col("error").mean())
    scores |= {f"user:{name}": error for name, error in per_user.iter_rows()}
    return [_Score(METRIC, scope, None, value) for scope, value in scores.items()]
