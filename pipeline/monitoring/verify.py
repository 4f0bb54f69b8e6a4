"""Verify a completed run from its files alone: the row equation, windows or points, ledger, budget and digests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.accountants.core.trace_view import TraceView
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import DataError, PenstockError, RowEquationError
from penstock.mechanisms.core.unit import LANDMARKS
from penstock.pipeline.config.canonical import digest
from penstock.pipeline.config.plan import make_plan, outline
from penstock.pipeline.config.run import RunConfig, loads
from penstock.pipeline.output.manifest import check_row_equation, check_windows, input_digests, shortfall
from penstock.pipeline.output.tables import ACCOUNTS, TRACES, releases_schema
from penstock.pipeline.releasing.ledger import ROUNDING, Ledger
from penstock.pipeline.releasing.traces import budget_periods
from penstock.pipeline.sources.base import LiveSource
from penstock.pipeline.sources.reading.offsets import OffsetsRead

if TYPE_CHECKING:
    from penstock.pipeline.config.plan import Plan


@dataclass(frozen=True)
class Check:
    """The result of a check, with its name, outcome and detail."""

    name: str
    passed: bool
    detail: str


def verify(folder: Path) -> list[Check]:
    """Run all checks on the folder of a finished run, whether of counts or of traces, or raise `DataError`."""
    path = folder / "operator" / "manifest.json"
    if not path.exists():
        raise DataError(f"{folder}: no finished run here (operator/manifest.json is missing)")
    manifest = json.loads(path.read_text(encoding="utf-8"))
    public = json.loads((folder / "public" / "manifest.json").read_text(encoding="utf-8"))
    of_traces, recomputed = "points" in manifest, digest(_config(manifest)).hex()
    same = public["configuration_digest"] == manifest["configuration_digest"] == recomputed
    return [
        _rows(manifest),
        *_offsets(manifest),
        _schema(folder, "traces", TRACES)
        if of_traces
        else _schema(folder, "releases", releases_schema(_config(manifest).mechanism)),
        _schema(folder, "accounts", ACCOUNTS),
        *(_traces(folder, manifest) if of_traces else _releases(folder, manifest)),
        Check("configuration digest", same, f"{recomputed[:16]}… recomputed from the manifest"),
        _chain(folder, manifest, public),
        _inputs(manifest),
    ]


def _rows(manifest: dict[str, Any]) -> Check:
    rows = manifest["rows"]
    try:
        check_row_equation(rows)
    except RowEquationError as error:
        return Check("row equation", False, str(error))
    return Check("row equation", True, f"{rows['rows']} rows read, each with one outcome; {rows['used']} used")


def _offsets(manifest: dict[str, Any]) -> list[Check]:
    """Check the counted offsets against the brokers, or return no checks if the input has no offsets."""
    if "offsets" not in manifest:
        return []
    read, source = OffsetsRead.of_json(manifest["offsets"]), _config(manifest).source
    assert isinstance(source, LiveSource)
    result = shortfall(source, read)
    if result["shortfall"]:
        return [Check("offsets", False, "; ".join(result["shortfall"][:5]))]
    records, n_offsets = sum(span.records for span in read.ranges), sum(span.end - span.first for span in read.ranges)
    detail = f"{n_offsets:,} of {len(read.ranges):,} partitions without a gap, {n_offsets - records:,} without a record"
    if result["unchecked"]:
        detail += f"; not held against the brokers: {result['unchecked']}"
    return [Check("offsets", True, detail)]


def _schema(folder: Path, name: str, schema: pa.Schema) -> Check:
    names = pq.read_schema(folder / "public" / f"{name}.parquet").names
    return Check(f"columns of {name}.parquet", names == schema.names, ", ".join(names))


def _releases(folder: Path, manifest: dict[str, Any]) -> list[Check]:
    """Check released counts: every window is in order, every cell appears once, and every charge is in the ledger."""
    columns = ["window", "epsilon", "available_at", "cell"]
    releases = pl.read_parquet(folder / "public" / "releases.parquet", columns=columns)
    per_window = releases.group_by("window", maintain_order=True).agg(
        pl.col("epsilon", "available_at").first(), pl.len().alias("cells"), pl.col("cell").n_unique()
    )
    planned, windows = manifest["windows"]["planned"], per_window["window"].to_list()
    of = "" if planned is None else f" of {planned} planned"
    in_order = windows == list(range(1, len(windows) + 1))
    is_complete, flaw = manifest["exit"]["complete"], None
    if not in_order or (is_complete and len(windows) != planned):  # a window without an active sensor is no gap
        try:
            plan = outline(_config(manifest), NoiseKey.from_seed(0), folder)
            check_windows(plan, per_window, is_complete)
        except PenstockError as error:
            flaw = str(error)
    twice = per_window.filter(pl.col("cells") != pl.col("cell"))
    # Windows of a block are available together; they show its charge, which is paid once.
    together = per_window.group_by("available_at", maintain_order=True)
    charges_due = list(together.agg("window", pl.col("epsilon").max()).select("window", "epsilon").iter_rows())
    return [
        Check("windows", flaw is None, flaw or f"{len(windows)} released{of}, in order"),
        Check("each cell once a window", twice.is_empty(), f"{len(twice)} windows with a repeated cell"),
        _ledger(folder, manifest, charges_due, f"{{}} charges for {len(per_window)} windows"),
    ]


def _traces(folder: Path, manifest: dict[str, Any]) -> list[Check]:
    """Check that each point is released once and in order, and that charges and budgets cover them."""
    plan = make_plan(_config(manifest), folder)
    # What a budget in ρ has spent has no ε.
    measure = "rho" if plan.traces.mechanism.guarantee.concentrated else "epsilon"
    columns = ["pseudonym", "time", "epsilon", "rho", "landmark", "action"]
    points = pl.read_parquet(folder / "public" / "traces.parquet", columns=columns).with_columns(
        pl.col("pseudonym", "action").cast(pl.String), pl.col("time").dt.epoch("ms")
    )
    in_order = points.select(
        (pl.col("pseudonym") > pl.col("pseudonym").shift(1))
        | ((pl.col("pseudonym") == pl.col("pseudonym").shift(1)) & (pl.col("time") > pl.col("time").shift(1)))
    ).to_series()
    expected = manifest["rows"]["used"] - manifest["rows"]["duplicates"]
    # The run is charged as a whole, for all that a user has in a unit: never less than any one point costs.
    charges_due = [([1], float(points[measure].max() or 0.0))]  # type: ignore[arg-type]
    return [
        Check("points", len(points) == expected, f"{len(points)} released, {expected} distinct ones read"),
        Check("order", bool(in_order[1:].all()), "each user's points once, in order of time"),
        _ledger(folder, manifest, charges_due, "{} charge for all points", measure),
        _budget(points, plan),
    ]


def _ledger(
    folder: Path,
    manifest: dict[str, Any],
    charges_due: Iterable[tuple[list[Any], float]],
    detail: str,
    measure: str = "epsilon",
) -> Check:
    """Check that the ledger covers the charges for the releases. ``detail`` takes the number of charged windows."""
    run, charged = manifest["ledger"]["run"], dict[int, float]()
    try:
        for posting in Ledger(_ledger_path(folder, manifest)).postings():
            if posting.run == run and posting.charge.part in ("", "traces"):
                charged[posting.charge.window] = getattr(posting.charge, measure)
    except PenstockError as error:
        return Check("ledger", False, str(error))
    due = ((windows[0], sum(charged.get(w, 0.0) for w in windows), epsilon) for windows, epsilon in charges_due)
    short = [window for window, paid, epsilon in due if not (paid >= epsilon * (1 - 1e-12) or paid == epsilon)]
    text = detail.format(len(charged))
    return Check("ledger", not short, text + (f"; charged too little: {short[:5]}" if short else ""))


def _ledger_path(folder: Path, manifest: dict[str, Any]) -> Path:
    """Return the path of a run's ledger, whether local or shared."""
    local_ledger = folder / "operator" / "ledger"
    return local_ledger if local_ledger.exists() else Path(manifest["ledger"]["path"])


def _chain(folder: Path, manifest: dict[str, Any], public: dict[str, Any]) -> Check:
    """Check that the ledger still contains the heads recorded in both manifests."""
    head = manifest["ledger"]["head"]
    try:
        heads = Ledger(_ledger_path(folder, manifest)).heads()
    except PenstockError as error:
        return Check("ledger chain", False, str(error))
    if public.get("ledger_head", head) != head:
        return Check("ledger chain", False, "the heads in the two manifests differ")
    is_recorded = head in heads or (not heads and not head)
    text = f"{len(heads):,} entries" + ("" if is_recorded else "; the head at the end of the run is not among them")
    return Check("ledger chain", is_recorded, text)


def _budget(points: pl.DataFrame, plan: Plan) -> Check:
    budget = plan.traces.mechanism.guarantee.amount_of(LANDMARKS)
    if budget is None:
        return Check("budget", True, "the mechanism promises no landmark budget")
    names, times = points["pseudonym"], points["time"].to_numpy()
    starts = np.flatnonzero(names.ne_missing(names.shift(1)).to_numpy())
    seen = TraceView(
        subjects=names.gather(starts).to_list(),
        starts=starts,
        times=times,
        landmarks=points["landmark"].to_numpy(),
        periods=budget_periods(plan, times),
        epsilon=points["epsilon"].to_numpy(),
        rho=points["rho"].to_numpy(),
        scale=np.zeros(len(points)),
        action=points["action"].to_numpy(),
        noise="",
        mechanism=plan.traces.mechanism,
    )
    concentrated = plan.traces.mechanism.guarantee.concentrated
    largest = float(seen.landmark_sums(concentrated)[1].max(initial=0.0))
    unit = " zCDP rho" if concentrated else ""
    detail = f"landmarks and any one other point of a user cost at most {largest:g} of {budget:g}{unit}"
    return Check("budget", largest <= budget * (1 + ROUNDING), detail)


def _config(manifest: dict[str, Any]) -> RunConfig:
    # JSON is YAML, so the manifest's configuration loads as it stands.
    return loads(json.dumps(manifest["configuration"]), name="operator/manifest.json")


def _inputs(manifest: dict[str, Any]) -> Check:
    try:
        digests = input_digests(_config(manifest))
    except PenstockError as error:
        return Check("input digests", True, f"not checked: {error}")
    changed = [name for name, value in manifest["inputs"].items() if digests.get(name) != value]
    detail = f"{len(digests)} inputs" + (f"; changed: {changed[:5]}" if changed else "")
    return Check("input digests", not changed, detail)
