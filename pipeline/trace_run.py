"""Run a configuration whose mechanism works on points: from its input to released traces."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import polars as pl

from pipeline.output import files, tables
from pipeline.output import manifest as outcome
from pipeline.output.files import Target, merge, parts_folder
from pipeline.output.manifest import input_digests, operator_manifest, public_manifest
from pipeline.output.traces import TRACES, TRUE_TRACES, write_trace_utility
from pipeline.steps.traces import centre

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
    manifest = operator_manifest(
        plan,
        rows=outcome.row_equation(plan),
        users=_user_summaries(plan),
        points=_actions(plan),
        inputs=input_digests(plan.config),
        exit={"code": 0, "reason": "done"},
    )
    if plan.config.mode == "simulation" and plan.config.utility and plan.config.output.truth:
        manifest["utility"] = write_trace_utility(plan)
    manifest["seconds"] = {
        "pipeline": round(executed - begun, 3),
        "finish": round(time.monotonic() - executed, 3),
    }
    files.write_json(plan.folder / "public" / "manifest.json", _public_manifest(plan))
    files.write_json(plan.folder / "operator" / "manifest.json", manifest)
    outcome.clear_parts(plan)
    return manifest


def _public_manifest(plan: Plan) -> dict[str, Any]:
    """What may be published with the traces."""
    mechanism = plan.point_mechanism
    manifest = public_manifest(plan)
    for name in ("sensitivity", "cells", "windows"):
        manifest.pop(name)
    return manifest | {"radius_metres": mechanism.metres, "shown_before_any_release": list(centre(plan.space))}


def _merge(plan: Plan) -> None:
    public, operator = plan.folder / "public", plan.folder / "operator"
    merge(Target(parts_folder(plan, "traces"), public / "traces.parquet", TRACES))
    merge(Target(parts_folder(plan, "accounts_public"), public / "accounts.parquet", tables.ACCOUNTS))
    merge(Target(parts_folder(plan, "accounts"), operator / "accounts.parquet", tables.ACCOUNTS))
    if plan.config.mode == "simulation" and plan.config.output.truth:
        merge(Target(parts_folder(plan, "truth"), operator / "truth.parquet", TRUE_TRACES))
    outcome.merge_rejects(plan)


def _user_summaries(plan: Plan) -> dict[str, Any] | None:
    """Users seen, and the spread over them of points and landmarks; no identity."""
    if not plan.config.output.user_summaries:
        return None
    found: dict[str, list[int]] = {"points": [], "landmarks": []}
    for path in sorted(parts_folder(plan, "users").glob("*.json")):
        for name, values in json.loads(path.read_text(encoding="utf-8")).items():
            found[name] += values
    spreads = {f"{name}_per_user": outcome.spread(values) for name, values in found.items()}
    return {"users": len(found["points"]), **spreads}


def _actions(plan: Plan) -> dict[str, int]:
    """How many points were released, and how many of them published, repeated and refused."""
    frame = pl.scan_parquet(plan.folder / "public" / "traces.parquet").select(pl.col("action").cast(pl.String))
    counted = dict(frame.group_by("action").len().sort("action").collect().iter_rows())
    return {"released": sum(counted.values()), **counted}
