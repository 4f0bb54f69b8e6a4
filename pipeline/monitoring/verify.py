"""Verify a finished run from its files alone: row equation, windows or points, ledger, budget and digests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import DataError, PenstockError, RowEquationError
from penstock.mechanisms.core.run import TraceFacts
from penstock.mechanisms.core.unit import LANDMARKS, exceeds
from penstock.pipeline import atomic
from penstock.pipeline.config.canonical import digest, values_digest
from penstock.pipeline.config.plan import make_plan, outline
from penstock.pipeline.config.run import RunConfig, loads
from penstock.pipeline.output.manifest import (
    check_row_equation,
    check_windows,
    input_digests,
    public_configuration,
    shortfall,
)
from penstock.pipeline.output.tables import ACCOUNTS, TRACES, releases_schema
from penstock.pipeline.releasing.ledger import Ledger, Posting
from penstock.pipeline.releasing.traces import budget_periods
from penstock.pipeline.sources.base import LiveSource
from penstock.pipeline.sources.reading.offsets import OffsetsRead

if TYPE_CHECKING:
    from penstock.pipeline.config.plan import Plan


@dataclass(frozen=True)
class Check:
    """The result of a check: its name, outcome and details."""

    name: str
    passed: bool
    detail: str


class _Run(NamedTuple):
    """A finished run's folder with its manifests and their configuration."""

    folder: Path
    manifest: dict[str, Any]
    public: dict[str, Any]
    config: RunConfig


def verify(folder: Path) -> list[Check]:
    """Run all checks on a finished run's folder. Raise `DataError` if there is no finished run."""
    if (manifest := atomic.read_json(folder / "operator" / "manifest.json")) is None:
        raise DataError(f"{folder}: no finished run here (operator/manifest.json is missing)")
    public = json.loads((folder / "public" / "manifest.json").read_text(encoding="utf-8"))
    # JSON is YAML, so the manifest's configuration loads as it stands.
    config = loads(json.dumps(manifest["configuration"]), name="operator/manifest.json")
    run, of_traces, recomputed = _Run(folder, manifest, public, config), "points" in manifest, digest(config).hex()
    shown, wrong = public["configuration"], []
    if manifest["configuration_digest"] != recomputed:
        wrong.append("the operator's")
    if shown != public_configuration(config) or public["configuration_digest"] != values_digest(shown).hex():
        wrong.append("the public one (earlier versions made another)")
    table = ("traces", TRACES) if of_traces else ("releases", releases_schema(config.mechanism))
    checks = [*_rows(run), *(_schema(folder, *of) for of in (table, ("accounts", ACCOUNTS)))]
    checks += _traces(run) if of_traces else _releases(run)
    detail = f"{recomputed[:16]}… recomputed from the manifest" + (f"; wrong: {', '.join(wrong)}" if wrong else "")
    checks.append(Check("configuration digest", not wrong, detail))
    try:
        digests = input_digests(config)
    except PenstockError as error:
        return [*checks, Check("input digests", True, f"not checked: {error}")]
    changed = [name for name, value in manifest["inputs"].items() if digests.get(name) != value]
    detail = f"{len(digests)} inputs" + (f"; changed: {changed[:5]}" if changed else "")
    return [*checks, Check("input digests", not changed, detail)]


def _rows(run: _Run) -> list[Check]:
    """Check the row equation and, if the input has offsets, compare the counted offsets with those of the brokers."""
    rows, checks = run.manifest["rows"], list[Check]()
    try:
        check_row_equation(rows)
        detail = f"{rows['rows']} rows read, each with one outcome; {rows['used']} used"
        checks.append(Check("row equation", True, detail))
    except RowEquationError as error:
        checks.append(Check("row equation", False, str(error)))
    if "offsets" not in run.manifest:
        return checks
    read, source = OffsetsRead.of_json(run.manifest["offsets"]), run.config.source
    assert isinstance(source, LiveSource)
    result = shortfall(source, read)
    records, n_offsets = sum(span.records for span in read.ranges), sum(span.end - span.first for span in read.ranges)
    detail = f"{n_offsets:,} of {len(read.ranges):,} partitions without a gap, {n_offsets - records:,} without a record"
    if result["unchecked"]:
        detail += f"; not held against the brokers: {result['unchecked']}"
    short = "; ".join(result["shortfall"][:5])
    return [*checks, Check("offsets", not short, short or detail)]


def _schema(folder: Path, name: str, schema: pa.Schema) -> Check:
    names = pq.read_schema(folder / "public" / f"{name}.parquet").names
    return Check(f"columns of {name}.parquet", names == schema.names, ", ".join(names))


def _releases(run: _Run) -> list[Check]:
    """Check that windows are in order with every cell once, and that every charge is in the ledger."""
    columns = ["window", "epsilon", "available_at", "cell"]
    releases = pl.read_parquet(run.folder / "public" / "releases.parquet", columns=columns)
    per_window = releases.group_by("window", maintain_order=True).agg(
        pl.col("epsilon", "available_at").first(), pl.len().alias("cells"), pl.col("cell").n_unique()
    )
    planned, n_windows = run.manifest["windows"]["planned"], len(per_window)
    is_complete, problem = run.manifest["exit"]["complete"], ""
    in_order = per_window["window"].to_list() == list(range(1, n_windows + 1))
    if not in_order or (is_complete and n_windows != planned):  # a window without an active sensor is no gap
        try:
            check_windows(outline(run.config, NoiseKey.from_seed(0), run.folder), per_window, is_complete)
        except PenstockError as error:
            problem = str(error)
    detail = f"{n_windows} released" + ("" if planned is None else f" of {planned} planned") + ", in order"
    twice = per_window.filter(pl.col("cells") != pl.col("cell"))
    # Windows of a block are available together; they show its charge, which is paid once.
    together = per_window.group_by("available_at", maintain_order=True)
    charges_due = list(together.agg("window", pl.col("epsilon").max()).select("window", "epsilon").iter_rows())
    return [
        Check("windows", not problem, problem or detail),
        Check("each cell once a window", twice.is_empty(), f"{len(twice)} windows with a repeated cell"),
        *_ledger(run, charges_due, f"{{}} charges for {n_windows} windows"),
    ]


def _traces(run: _Run) -> list[Check]:
    """Check that each point is released once, in order, and is covered by the charges and budgets."""
    plan = make_plan(run.config, run.folder)
    # What a budget in ρ has spent has no ε.
    measure = "rho" if plan.traces.mechanism.guarantee.concentrated else "epsilon"
    columns = ["pseudonym", "time", "epsilon", "rho", "landmark", "action"]
    points = pl.read_parquet(run.folder / "public" / "traces.parquet", columns=columns).with_columns(
        pl.col("pseudonym", "action").cast(pl.String), pl.col("time").dt.epoch("ms")
    )
    user, time = pl.col("pseudonym"), pl.col("time")
    follows = (user > user.shift(1)) | ((user == user.shift(1)) & (time > time.shift(1)))
    in_order = points.select(follows).to_series()
    expected = run.manifest["rows"]["used"] - run.manifest["rows"]["duplicates"]
    # The run is charged as a whole, for all that a user has in a unit: never less than any one point costs.
    charges_due = [([1], float(points[measure].max() or 0.0))]  # type: ignore[arg-type]
    return [
        Check("points", len(points) == expected, f"{len(points)} released, {expected} distinct ones read"),
        Check("order", bool(in_order[1:].all()), "each user's points once, in order of time"),
        *_ledger(run, charges_due, "{} charge for all points", measure),
        _budget(points, plan),
    ]


def _ledger(
    run: _Run, charges_due: Iterable[tuple[list[Any], float]], detail: str, measure: str = "epsilon"
) -> list[Check]:
    """Check that the ledger covers all charges for the releases and contains the heads recorded in both manifests.

    ``detail`` takes the number of charged windows.
    """
    stated, charged = run.manifest["ledger"], dict[int, float]()
    local_ledger, head = run.folder / "operator" / "ledger", stated["head"]
    try:
        entries = list(Ledger(local_ledger if local_ledger.exists() else Path(stated["path"])).entries())
    except PenstockError as error:
        return [Check(name, False, str(error)) for name in ("ledger", "ledger chain")]
    for posting in (Posting.of(entry.values) for entry in entries if entry.kind == "charge"):
        if posting.run == stated["run"] and posting.charge.part in ("", "traces"):
            charged[posting.charge.window] = getattr(posting.charge, measure)
    due = ((windows[0], sum(charged.get(w, 0.0) for w in windows), epsilon) for windows, epsilon in charges_due)
    short = [window for window, paid, epsilon in due if not (paid >= epsilon * (1 - 1e-12) or paid == epsilon)]
    text = detail.format(len(charged)) + (f"; charged too little: {short[:5]}" if short else "")
    is_recorded = head in [entry.head for entry in entries] or (not entries and not head)
    chain = f"{len(entries):,} entries" + ("" if is_recorded else "; the head at the end of the run is not among them")
    if run.public.get("ledger_head", head) != head:
        is_recorded, chain = False, "the heads in the two manifests differ"
    return [Check("ledger", not short, text), Check("ledger chain", is_recorded, chain)]


def _budget(points: pl.DataFrame, plan: Plan) -> Check:
    budget = plan.traces.mechanism.guarantee.amount_of(LANDMARKS)
    if budget is None:
        return Check("budget", True, "the mechanism promises no landmark budget")
    names, times = points["pseudonym"], points["time"].to_numpy()
    starts = np.flatnonzero(names.ne_missing(names.shift(1)).to_numpy())
    seen = TraceFacts(
        users=np.arange(len(starts))[:, None],
        starts=starts,
        times=times,
        landmarks=points["landmark"].to_numpy(),
        periods=budget_periods(plan.traces, plan.grid.calendar.start(1), times),
    )
    measure, unit = ("rho", " zCDP rho") if plan.traces.mechanism.guarantee.concentrated else ("epsilon", "")
    largest = float(seen.landmark_sums(points[measure].to_numpy())[1].max(initial=0.0))
    detail = f"landmarks and any one other point of a user cost at most {largest:g} of {budget:g}{unit}"
    return Check("budget", not exceeds(largest, budget), detail)
