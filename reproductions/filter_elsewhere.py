"""Evaluate the filter on 14 configurations of seven data sets. Run with ``python -m reproductions.filter_elsewhere``.

A day is protected (of T-Drive its hour) by (ε, δ = 1e-6): with the filter by the bound that suits the noise, in
published mechanisms by the smallest bound on a window that keeps 95 % of all memberships.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs

from penstock.pipeline.config.plan import Plan, make_plan
from penstock.pipeline.config.run import load, read_text
from penstock.pipeline.config.yaml import parse, plain
from penstock.pipeline.counting.bounding import quota_for_share
from penstock.pipeline.experiments.choose import PUBLISHED_WITH, suggested_bounds
from penstock.pipeline.experiments.trial import run_trial
from penstock.pipeline.output.utility_summary import coverage_by_part, interval_coverage
from reproductions.__main__ import DATA as FOLDER
from reproductions.saved import RESULTS, ROOT

BUDGETS, DELTA, HOUR, DAY = (1, 5), 1e-6, 60, 1440
PUBLISHED = ("w_event_uniform", "w_event_sample", "w_event_ba", "fast", "pegasus", "rescue_dp")
#: Share of the memberships that the bound on a window keeps, and coverage from which intervals are wide.
KEPT, WIDE = 0.95, 0.98
BEIJING = {"type": "grid", "south": 39.8, "north": 40.05, "west": 116.2, "east": 116.55, "rows": 10, "columns": 10}
TDRIVE, BIKES = "datasets/tdrive", "datasets/citibike"


def changes(start: str, end: str, side: int | None = None, **more: Any) -> dict[str, Any]:
    """Return configuration overrides that set a source's time range and the grid size, plus any others."""
    grid = {} if side is None else {"space.rows": side, "space.columns": side}
    return {"source.from": start + ":00:00Z", "source.until": end + ":00:00Z"} | grid | more


#: Configuration, minutes of a window, and changes, by name.
CABS, MONDAY, NOVEMBER = "2008-05-19T07", "2024-01-01T00", "2020-11-01T04"
TOP = {n: {"space.top": n, "space.elsewhere": False} for n in (15, 50)}
CITY, USERS = "made-up city of ", {n: {"source.n_users": 1000 * n} for n in (3, 10)}
DATA: dict[str, tuple[str, int, dict[str, Any]]] = {
    "cabs, 15 minutes, 10 × 10, 1 week": ("datasets/sf_cabs", 15, changes(CABS, "2008-05-26T07", 10)),
    "cabs, 30 minutes, 6 × 6, 2 weeks": ("datasets/sf_cabs", 30, changes(CABS, "2008-06-02T07", 6)),
    "cabs, 1 hour, 30 × 30, 2 weeks": ("datasets/sf_cabs", 60, changes(CABS, "2008-06-02T07", 30)),
    "cabs, 2 hours, 15 × 15, 2 weeks": ("datasets/sf_cabs", 120, changes(CABS, "2008-06-02T07", 15)),
    "cabs, 4 hours, 10 × 10, 3 weeks": ("datasets/sf_cabs", 240, changes(CABS, "2008-06-09T07", 10)),
    CITY + "3,000, 30 minutes, 8 × 8, 1 week": ("landmarks", 30, changes(MONDAY, "2024-01-08T00", 8, **USERS[3])),
    CITY + "10,000, 2 hours, 15 × 15, 2 weeks": ("landmarks", 120, changes(MONDAY, "2024-01-15T00", 15, **USERS[10])),
    "Citi Bike, 30 minutes, 15 stations, 3 weeks": (BIKES, 30, changes(NOVEMBER, "2020-11-22T05", **TOP[15])),
    "Citi Bike, 2 hours, 50 stations, 4 weeks": (BIKES, 120, changes(NOVEMBER, "2020-11-29T05", **TOP[50])),
    "Gowalla, 4 hours, 6 × 6, 2 months": ("datasets/gowalla", 240, changes("2010-07-01T04", "2010-08-31T04", 6)),
    "Gowalla, 1 hour, 12 × 9, 4 weeks": ("datasets/gowalla", 60, changes("2010-08-01T04", "2010-08-29T04")),
    "Foursquare, 4 hours, 6 × 5, 8 weeks": ("datasets/foursquare", 240, changes("2012-04-09T04", "2012-06-04T04")),
    "GeoLife, 1 hour, 10 × 10, 3 weeks": ("datasets/geolife", 60, changes("2009-02-03T16", "2009-02-24T16", 10)),
    "T-Drive, 5 minutes, 10 × 10, 1 hour": (TDRIVE, 5, {"space": BEIJING}),
}


def planned(name: str, mechanism: Sequence[Mapping[str, Any]], bound: Mapping[str, int]) -> Plan:
    """Return the run plan for one configuration."""
    file, minutes, more = DATA[name]
    path = ROOT.parent / f"configs/{file}.yaml"
    period = ("1h" if file == TDRIVE else "1d") if mechanism[0]["type"] in ("fast", "period_uniform") else None
    changed: dict[str, Any] = {"windows.type": "fixed", "windows.size": f"{minutes}m", "bounding": dict(bound)}
    changed |= {"budget_period": period, "mechanism": mechanism, "seed": 1} | more
    changed |= {"landmarks": None, "accountants": [], "utility": []}
    source = plain(parse(read_text(path), file)[0] or {})["source"]  # type: ignore[arg-type]
    if "path" in source:
        changed["source.path"] = source["path"].replace("data", os.environ.get(FOLDER, "data"), 1)
    return make_plan(load(path, [f"{key}={json.dumps(value)}" for key, value in changed.items()]))


def measured(name: str) -> dict[str, Any]:
    """Measure the errors for one configuration and return its table row."""
    file, minutes, _ = DATA[name]
    w = (HOUR if file == TDRIVE else DAY) // minutes
    plan = planned(name, [{"type": "w_event_uniform", "epsilon": 1, "w": w}], {})
    n_windows = plan.grid.n_windows
    people = plan.people.memberships(n_windows)
    bound = {"max_cells": quota_for_share(people, people.window, KEPT)}
    row: dict[str, Any] = {"data": name, "mean_count": float(len(people) / n_windows / plan.grid.n_cells)}
    for epsilon in BUDGETS:
        errors = {}
        for kind in PUBLISHED:
            published_with, after = PUBLISHED_WITH.get(kind, ({}, None))
            unit = {"publications": max(1, w // 4)} if kind == "fast" else {"w": w}
            noise = {} if kind == "pegasus" else {"delta": DELTA}
            then: list[dict[str, Any]] = [{"type": after}] if after else []
            chain = [{"type": kind, "epsilon": epsilon} | unit | noise | published_with, *then]
            trial = run_trial(planned(name, chain, bound).config, people)
            errors[kind] = float(np.abs(trial.released - trial.truth).mean())
        chain = [{"type": "period_uniform", "epsilon": epsilon, "delta": DELTA}]
        plan = planned(name, chain, {"max_per_period": 1})
        n = suggested_bounds(plan, n_windows, plan.config.mechanism[0])["max_per_period_for_noise"]
        trial = run_trial(planned(name, [*chain, {"type": "filter"}], {"max_per_period": n}).config, people)
        values = trial.truth, trial.released, trial.deviations
        tenths = [one for one in coverage_by_part(*values) if one["part"].startswith("released")]
        best, error = min(errors, key=errors.__getitem__), float(np.abs(trial.released - trial.truth).mean())
        figures = {
            "error": error,
            "error_over_best": error / errors[best],
            "best": best,
            "percent_in_intervals": 100 * interval_coverage(*values)["coverage"],
            "percent_in_worst_tenth": 100 * min(tenth["coverage"] for tenth in tenths),
            "half_width_above_98": max((one["half_width"] for one in tenths if one["coverage"] > WIDE), default=None),
        }
        row |= {f"{figure}_at_{epsilon}": value for figure, value in figures.items()}
    return row


if __name__ == "__main__":
    table = pl.DataFrame([measured(name) for name in DATA], infer_schema_length=None)
    table.with_columns(cs.float().round_sig_figs(3)).write_csv(RESULTS / "filter_elsewhere.csv")
