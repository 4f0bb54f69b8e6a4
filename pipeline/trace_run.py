"""Run a configuration whose mechanism works on points: from its input to released traces."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import polars as pl

from pipeline.output import files, tables
from pipeline.output import manifest as outcome
from pipeline.output.files import Target, merge, parts_folder
from pipeline.output.manifest import input_digests, operator_manifest, public_manifest
from pipeline.output.traces import TRACES, TRUE_TRACES
from pipeline.output.utility import write_utility

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


def run_traces(plan: Plan, execute: Callable[[], object]) -> dict[str, Any]:
    """Run a trace configuration into its folder.

    Parameters
    ----------
    plan
        The run; its folder is ready.
    execute
        Runs the graph.

    Returns
    -------
    The operator's manifest.
    """
    begun = time.monotonic()
    execute()
    executed = time.monotonic()
    _merge(plan)
    points = pl.read_parquet(plan.folder / "public" / "traces.parquet", columns=["action"])
    manifest = operator_manifest(
        plan,
        rows=outcome.row_equation(plan),
        users=outcome.user_summaries(plan),
        points={"released": len(points), **outcome.actions(points)},
        inputs=input_digests(plan.config),
        exit={"code": 0, "reason": "done"},
    )
    if plan.config.mode == "simulation" and plan.config.utility and plan.config.output.truth:
        manifest["utility"] = write_utility(plan)
    manifest["seconds"] = {
        "pipeline": round(executed - begun, 3),
        "finish": round(time.monotonic() - executed, 3),
    }
    files.write_json(plan.folder / "public" / "manifest.json", public_manifest(plan))
    files.write_json(plan.folder / "operator" / "manifest.json", manifest)
    outcome.clear_parts(plan)
    return manifest


def _merge(plan: Plan) -> None:
    public, operator = plan.folder / "public", plan.folder / "operator"
    merge(Target(parts_folder(plan, "traces"), public / "traces.parquet", TRACES))
    merge(Target(parts_folder(plan, "accounts_public"), public / "accounts.parquet", tables.ACCOUNTS))
    merge(Target(parts_folder(plan, "accounts"), operator / "accounts.parquet", tables.ACCOUNTS))
    if plan.config.mode == "simulation" and plan.config.output.truth:
        merge(Target(parts_folder(plan, "truth"), operator / "truth.parquet", TRUE_TRACES))
    outcome.merge_rejects(plan)
