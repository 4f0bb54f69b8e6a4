"""A run's public and operator manifests: guarantee, versions, digests, row equation, summaries and key epochs."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from penstock.accountants.core.accountant import ACCOUNTANTS
from penstock.mechanisms.core.contract import ChainStep
from penstock.mechanisms.core.guarantee import Guarantee
from penstock.mechanisms.core.noise_keys import BEGINNING
from penstock.mechanisms.core.plugin import DataError, RowEquationError
from penstock.mechanisms.core.schedules import LandmarkSchedule
from penstock.pipeline import atomic
from penstock.pipeline.config.canonical import digest, resolved, values_digest
from penstock.pipeline.config.plan import Plan, ledger_path
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.config.sections import SINKS
from penstock.pipeline.counting.ingest import RowCounts
from penstock.pipeline.output import tables
from penstock.pipeline.output.files import has_truth, merge, parts_folder
from penstock.pipeline.output.loss import losses, short
from penstock.pipeline.output.registration import LedgerRegistry, stated_guarantee
from penstock.pipeline.output.utility_summary import shared_rows
from penstock.pipeline.releasing.account import writable
from penstock.pipeline.releasing.ledger import Ledger, Posting, landmark_choices, series
from penstock.pipeline.releasing.terms import Terms
from penstock.pipeline.sources.base import LiveInput, LiveSource, Source
from penstock.pipeline.sources.reading.offsets import OffsetsRead
from penstock.pipeline.windows.calendar import format_time

PACKAGES = ("apache-beam", "numpy", "scipy", "polars", "pyarrow", "river", "scikit-learn", "dp-accounting")
#: Packages whose code decides a result, and the part of them that only presents results.
CODE, SHOWN = ("accountants", "evaluation", "mechanisms", "pipeline"), "pipeline/reporting"
ROOT = Path(__file__).parents[2]
SIMULATION_NOTICE = "This is a simulation: its seed undoes the noise. Its outputs are unfit for publication."


@cache
def versions() -> dict[str, str]:
    """Return the versions of the platform and of all packages that may affect a result."""
    installed = {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("penstock", *PACKAGES):
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return installed


@cache
def code_digest(root: Path = ROOT) -> str:
    """Return the SHA-256 digest of penstock's source files in a folder. It is used to validate cached results."""
    total = hashlib.sha256()
    for file in sorted(file for package in CODE for file in (root / package).rglob("*.py")):
        name = file.relative_to(root).as_posix()
        if not name.startswith(f"{SHOWN}/"):
            total.update(name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def software_versions() -> dict[str, Any]:
    """Return the versions and the code digest which, together with configuration and input, determine a result."""
    return {"versions": versions(), "code": code_digest()}


def describe_lateness(source: Source) -> str:
    """Describe the lateness rule. The description starts with ``shared`` if other people's rows can make a row late."""
    if not isinstance(source, LiveSource):
        return "none: all of the input is read before it is counted"
    if source.lateness_flaw is None:
        return "own: whether a row is late depends on its own arrival time and a public clock alone"
    return "shared: the latest event moves the clock, so that one person's event can make other people's rows late"


def describe_guarantee(mechanism: ChainStep, promised: Guarantee, source: Source) -> dict[str, Any]:
    """Describe a guarantee. Return it with its ``measure`` and ``amount`` (None if no amount is promised).

    There is no guarantee if other rows can make a row late.
    """
    words, lateness = promised.words, describe_lateness(source)
    statement = words.statement if promised.exists else "none: the mechanism has no privacy guarantee"
    is_shared = lateness.startswith("shared")
    is_priced = promised.exists and promised.amount is not None and not is_shared
    return {
        "mechanism": type(mechanism).__module__.rpartition(".")[2],
        "guarantee": f"none: lateness is {lateness}" if is_shared else statement,
        "measure": promised.measure if is_priced else None,
        "amount": promised.amount if is_priced else None,
        "unit": words.unit,
        "neighbours": words.neighbours,
        "theorem": words.theorem,
    }


def ledger_head(plan: Plan) -> dict[str, Any]:
    """Return the ledger's chain head and the run's name in the ledger.

    Of a deployment also whether ``others`` are known over the source, the cost of all runs (`series`), and ``choices``.
    """
    path, run = ledger_path(plan), plan.keys.run_id
    entries = list(Ledger(path).entries())
    last = entries[-1].head if entries else ""
    head = {"path": os.path.abspath(path), "head": last, "entries": len(entries), "run": run}
    if not run:
        return head
    postings = [Posting.of(entry.values) for entry in entries if entry.kind == "charge"]
    runs = (entry.values for entry in entries if entry.kind == "run" and entry.values["run"] == run)
    others = any(values["others"] for values in runs) or bool(LedgerRegistry(plan).others())
    return head | {
        "others": others,
        "series": writable(series(Terms.of(entries[0].values["terms"]), postings)) if entries else None,
        "choices": landmark_choices(entries),
    }


def unverified_note(plan: Plan) -> Path:
    """Return the path of the note recording that an engine's watermarks have not been verified."""
    return parts_folder(plan, "engine") / "unverified.json"


def _engine(plan: Plan) -> dict[str, str]:
    warning = atomic.read_json(unverified_note(plan))
    return {"engine": warning} if warning else {}


def public_configuration(config: RunConfig) -> dict[str, Any]:
    """Return the part of a configuration that the public manifest shows."""
    # Files without their folders, which say where and for whom the operator keeps things.
    values = resolved(config, files=lambda path: Path(path).name)
    if config.mode == "deployment":
        values.pop("source", None)
    for place in ("path", "ledger", *SINKS):
        values["output"].pop(place, None)
    # The others' books are the operator's, and their settings may name people.
    values["accountants"] = [section for section, a in zip(values["accountants"], config.accountants) if a.public]
    return values


def public_manifest(
    plan: Plan, accounts: Sequence[Mapping[str, Any]] = (), ledger: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the public manifest, which holds no secrets and depends on data only through the releases.

    ``accounts`` that are not public are left out. The ledger's head is a digest of keyed digests under the nonce of the
    run, so that it shows nothing of the data.
    """
    config = public_configuration(plan.config)
    reader, source = plan.traces.mechanism if plan.on_points else plan.chain.reader, plan.config.source
    manifest = {
        "name": plan.config.name,
        "mode": plan.config.mode,
        "notice": SIMULATION_NOTICE if plan.config.mode == "simulation" else "Released under the guarantee below.",
        "configuration": config,
        # Of what is shown alone: another would confirm guesses of what is not.
        "configuration_digest": values_digest(config).hex(),
        "versions": versions(),
        "guarantee": [
            describe_guarantee(step, stated_guarantee(plan) if step is reader else step.guarantee, source)
            for step in plan.config.mechanism
        ],
        **({} if plan.noise_choice is None else {"noise_choice": plan.noise_choice.words}),
        "lateness": describe_lateness(source),
        "distinct_people": source.has_people,
        "accounts": [dict(books) for books in accounts if books["public"]],
        **_engine(plan),
    }
    schedules = [step for step in plan.config.mechanism if isinstance(step, LandmarkSchedule)]
    if schedules and plan.config.landmarks is not None and plan.config.landmarks.hidden is not None:
        from penstock.pipeline.config.hidden_landmarks import choice_of, describe_choice  # loads SciPy

        if choice := choice_of(plan.config):
            manifest["hidden_landmarks"] = list(describe_choice(choice, schedules[0]))
    if ledger and "series" in ledger:
        manifest |= {"ledger_head": ledger["head"], "ledger_series": ledger["series"]}
        if ledger["choices"]:
            manifest["ledger_choices"] = ledger["choices"]
        if ledger["others"]:
            manifest["total"] = (
                "unknown: there are other ledgers over the same event source, whose charges count as well"
            )
    if plan.on_points:
        from penstock.pipeline.releasing.traces import area_of

        area = area_of(plan.space)
        return manifest | {
            "radius_metres": plan.traces.mechanism.metres,
            "shown_before_any_release": list(area.centre),
            "area_radius_metres": area.radius,
        }
    maximum = plan.bounds.max_cells
    return manifest | {
        "sensitivity": {"max_cells": maximum, "l1": maximum, "l2": maximum**0.5},
        "cells": plan.grid.n_cells,
        "windows": plan.grid.calendar.n_windows,
    }


def input_digests(config: RunConfig) -> dict[str, str]:
    """Return the inputs' SHA-256 digests by name, or a single digest if a deployment's files are named after people."""
    digests = config.source.digests()
    if config.mode == "simulation" or not config.source.recorded.has_user_names:
        return digests
    text = json.dumps(digests, sort_keys=True)
    return {f"{len(digests):,} files": hashlib.sha256(text.encode()).hexdigest()}


def operator_manifest(plan: Plan, **facts: Any) -> dict[str, Any]:
    """Return the operator's manifest. ``facts`` are the metrics of the completed run."""
    key = plan.keys.noise_key
    return {
        # With the *name* of the key's file or variable, so that the run can be checked and repeated; never the key.
        "configuration": resolved(plan.config, secrets=True),
        "configuration_digest": digest(plan.config).hex(),
        "noise": {"seed": plan.config.seed} if key.simulation else {"key": key.fingerprint, "epochs": key_epochs(plan)},
        "versions": versions(),
        "accountants": [ACCOUNTANTS.name_of(type(a)) for a in plan.config.accountants],
        "distinct_people": plan.config.source.has_people,
        **_engine(plan),
        **facts,
    }


def counted_rows(plan: Plan) -> RowCounts:
    """Return the row counts of the whole run."""
    total = RowCounts()
    for path in sorted(parts_folder(plan, "row_counts").glob("*.json")):
        total.add(RowCounts(**atomic.read_json(path)))
    return total


def row_equation(plan: Plan) -> dict[str, Any]:
    """Return the whole run's row counts by outcome. Raises `RowEquationError` if they do not balance."""
    total = counted_rows(plan)
    memberships = sum(map(atomic.read_json, parts_folder(plan, "memberships").glob("*.json")))
    equation = as_equation(total) | {"duplicates": total.used - memberships}
    if plan.on_points:
        equation["clamped"] = total.clamped
    check_row_equation(equation)
    return equation


def offsets_read(plan: Plan, complete: bool) -> dict[str, Any] | None:
    """Compare the counted offsets (up to the run's end if complete) with the brokers'. None if there are no offsets."""
    source = plan.config.source
    if not isinstance(source, LiveSource) or not source.has_offsets:
        return None
    topic_id = source.topic_id(LiveInput(plan.grid, parts_folder(plan, "spool"), lambda block: block))
    read = OffsetsRead(tuple(counted_rows(plan).offsets), topic_id, plan.grid.over if complete else None)
    return read.as_json() | shortfall(source, read)


def shortfall(source: LiveSource, read: OffsetsRead) -> dict[str, Any]:
    """Describe input that was skipped or counted twice. If the brokers could not be queried, explain why."""
    try:
        return {"shortfall": [*read.gaps(), *source.describe_unread_input(read)], "unchecked": None}
    except DataError as error:
        return {"shortfall": read.gaps(), "unchecked": str(error)}


def as_equation(total: RowCounts) -> dict[str, Any]:
    """Return row counts by outcome in the form used by the manifest."""
    outcomes = {name: getattr(total, name) for name in ("rows", "used", "late", "out_of_area", "out_of_time")}
    by_reason = dict(sorted(total.rejected.items()))
    return outcomes | {"rejected": sum(by_reason.values()), "rejected_by_reason": by_reason}


def check_row_equation(equation: dict[str, Any]) -> None:
    """Raise `RowEquationError` unless rows = used + late + out of area + out of time + rejected."""
    outcomes = {name: equation[name] for name in ("used", "late", "out_of_area", "out_of_time", "rejected")}
    if equation["rows"] != sum(outcomes.values()) or not 0 <= equation["duplicates"] <= equation["used"]:
        raise RowEquationError(f"{equation['rows']} rows were read, but their outcomes are {outcomes}")


def user_summaries(plan: Plan) -> dict[str, Any] | None:
    """Return the number of users, with distributions of cells and windows, or of points and landmarks."""
    if not plan.summarises_users:
        return None
    names = ("points", "landmarks") if plan.on_points else ("cells", "windows")
    counts: dict[str, list[int]] = {name: [] for name in names}
    for path in sorted(parts_folder(plan, "users").glob("*.json")):
        for name, values in atomic.read_json(path).items():
            counts[name] += values
    shown = {"windows": "active_windows"}
    spreads = {f"{shown.get(name, name)}_per_user": _spread(values) for name, values in counts.items()}
    return {"users": len(counts[names[0]]), **spreads}


def describe_users(users: Mapping[str, Any]) -> str:
    """Describe the number of people and their median activity, given the result of `user_summaries`.

    >>> describe_users({"users": 6000, "cells_per_user": {"median": 13.0}, "active_windows_per_user": {"median": 1.0}})
    '6,000, each with 13 cells and 1 active window (medians)'
    """
    spreads = {name: spread for name, spread in users.items() if name != "users" and spread}
    medians = {name.removesuffix("_per_user"): spread["median"] for name, spread in spreads.items()}
    if not users["users"] or not medians:
        return f"{users['users'] or 'none'}"
    named = (f"{short(n)} {what.replace('_', ' ').removesuffix('s' if n == 1 else '')}" for what, n in medians.items())
    return f"{users['users']:,}, each with {' and '.join(named)} (medians)"


def _spread(values: list[int]) -> dict[str, float]:
    """Return the mean, standard deviation, extremes and median, or an empty dictionary if there are no values."""
    if not values:
        return {}
    array = np.asarray(values)
    deviation = float(array.std(ddof=1)) if len(array) > 1 else 0.0
    ends = {"minimum": int(array.min()), "median": float(np.median(array)), "maximum": int(array.max())}
    return {"mean": float(array.mean()), "standard_deviation": deviation, **ends}


def account_summaries(plan: Plan) -> list[dict[str, Any]]:
    """Return every accountant's summary in the order of the configuration."""
    return [atomic.read_json(path) for path in sorted(parts_folder(plan, "summaries").glob("*.json"))]


def release_summary(plan: Plan, complete: bool) -> dict[str, Any]:
    """Return the windows and their accounts, or the points, for the operator's manifest (see `check_windows`)."""
    if plan.on_points:
        path = plan.folder / "public" / "traces.parquet"
        points = pl.read_parquet(path, columns=["action"])
        loss = losses(pl.scan_parquet(path), plan.config.windows.time_zone)
        return {"points": {"released": len(points), **actions(points)}} | ({"loss": loss} if loss else {})
    windows = released(plan.folder)
    check_windows(plan, windows, complete)
    loss = losses(windows.lazy(), plan.config.windows.time_zone, plan.chain.reader.guarantee.measure)
    summary = {"planned": plan.grid.calendar.n_windows, **actions(windows)}
    return {"windows": summary, "accounts": account_summaries(plan)} | ({"loss": loss} if loss else {})


def released(folder: Path) -> pl.DataFrame:
    """Read the columns that all rows of a release share, and return one row per release in file order."""
    return shared_rows(pl.scan_parquet(folder / "public" / "releases.parquet"))


def actions(released: pl.DataFrame) -> dict[str, int]:
    """Count windows or points by action."""
    counted = released.with_columns(pl.col("action").cast(pl.String)).group_by("action").len()
    return dict(sorted(counted.iter_rows()))


def check_windows(plan: Plan, released: pl.DataFrame, complete: bool) -> None:
    """Raise `RowEquationError` unless every window (up to the last released one if incomplete) was released once."""
    present = released["window"].to_numpy()
    n_due = plan.grid.calendar.n_windows if complete else None
    if n_due is None:
        n_due = int(present[-1]) if len(present) else 0
    if np.array_equal(present, np.arange(1, n_due + 1)):
        return
    absent = np.setdiff1d(np.arange(1, n_due + 1), present).tolist()
    # A window in which no sensor is active has no row.
    missing = [w for w in absent if (active := plan.grid.window(w).active) is None or active.any()]
    if missing or (np.diff(present) <= 0).any():
        named = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
        problem = f"{len(missing)} of {n_due} are missing ({named})" if missing else "some are there twice"
        raise RowEquationError(f"{plan.folder / 'public' / 'releases.parquet'}: of the windows that are due {problem}")


def key_epochs(plan: Plan) -> list[dict[str, Any]]:
    """Return the fingerprint, start and first window (None if it covers no window) of each epoch of the noise key."""
    rows, calendar = list[dict[str, Any]](), plan.grid.calendar
    for number, (start, fingerprint) in enumerate(zip(plan.keys.noise_key.epochs, plan.keys.noise_key.fingerprints), 1):
        begins = None if start == BEGINNING else format_time(start)
        rows.append({"epoch": number, "fingerprint": fingerprint, "from": begins})
        if plan.on_points:
            continue
        first = calendar.first_from(start)
        rows[-1]["first_window"] = first if calendar.n_windows is None or first <= calendar.n_windows else None
    return rows


def key_mismatch(plan: Plan, begun_with: Sequence[str]) -> str | None:
    """Return why a run with the fingerprints ``begun_with`` cannot resume with the plan's key, or None.

    Epochs may be added for windows that are not charged yet: another noise for a window would be a second release.
    """
    if not plan.keys.noise_key.continues(begun_with):
        return "began with another noise key; continue it with that one, or one that 'penstock key rotate' made of it"
    if len(plan.keys.noise_key.epochs) == len(begun_with):
        return None
    boundary = plan.keys.noise_key.epochs[len(begun_with)]
    postings = (posting for posting in Ledger(ledger_path(plan)).postings() if posting.run == plan.keys.run_id)
    last_window = max((1 if plan.on_points else posting.charge.last for posting in postings), default=None)
    if last_window is None or (last := plan.grid.calendar.end(last_window) - 1) < boundary:
        return None
    return (
        f"has released windows up to {format_time(last)}, and an epoch of its noise key now begins at "
        f"{format_time(boundary)}; begin it after what has been released"
    )


def merge_outputs(plan: Plan) -> None:
    """Merge each table's parts, including every window once, and merge the rejected rows."""
    public, operator = plan.folder / "public", plan.folder / "operator"
    if plan.on_points:
        merge(parts_folder(plan, "traces"), public / "traces.parquet", tables.TRACES)
    else:
        schema = tables.releases_schema(plan.config.mechanism)
        merge(parts_folder(plan, "releases"), public / "releases.parquet", schema, "window")
    merge(parts_folder(plan, "accounts_public"), public / "accounts.parquet", tables.ACCOUNTS)
    merge(parts_folder(plan, "accounts"), operator / "accounts.parquet", tables.ACCOUNTS)
    if has_truth(plan):
        schema, once = (tables.TRUE_TRACES, None) if plan.on_points else (tables.TRUTH, "window")
        merge(parts_folder(plan, "truth"), operator / "truth.parquet", schema, once)
    with atomic.replacing(operator / "rejects.jsonl") as temporary, temporary.open("wb") as target:
        for path in sorted(parts_folder(plan, "rejects").glob("*.jsonl")):
            with path.open("rb") as source:
                shutil.copyfileobj(source, target)


def clear_parts(plan: Plan) -> None:
    """Remove a completed run's parts and checkpoints."""
    for folder in ("public/parts", "operator/parts", "operator/checkpoint"):
        shutil.rmtree(plan.folder / folder, ignore_errors=True)
