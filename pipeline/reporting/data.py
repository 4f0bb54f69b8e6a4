"""Data for reports: a run's files, and its released and true counts as matrices."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
import polars.selectors as cs
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import ACTIONS
from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.output.loss import losses
from penstock.pipeline.output.utility_summary import counted, half_width, matrices, shared_rows
from penstock.pipeline.reporting.accounts import AccountFigure, figures

T = TypeVar("T")

#: Names of the unmerged parts of a table, if they differ from the name of the table.
KINDS = {"public/accounts": "accounts_public"}

#: Limits of a page. A larger run is reduced to its busiest cells and latest windows, which the page states.
MAX_COUNTS = 1_000_000
MAX_WINDOWS = 20_000
MAX_CELLS = 2_000


@dataclass(frozen=True)
class Run:
    """A run's folder, read from its merged tables or, during the run, from the parts written so far. If ``public_only``
    is set, only ``public/`` is read.
    """

    folder: Path
    public_only: bool = False

    @cached_property
    def public(self) -> dict[str, Any]:
        """The public manifest, which is written when a run begins. Raises `DataError` if it is missing."""
        path = self.folder / "public" / "manifest.json"
        if not path.is_file():
            raise DataError(f"{self.folder}: no run here (public/manifest.json is missing)")
        return read_json(path)

    @cached_property
    def operator(self) -> dict[str, Any] | None:
        """The operator's manifest, or None if the run has not ended yet."""
        path = self.folder / "operator" / "manifest.json"
        return read_json(path) if path.is_file() and not self.public_only else None

    @property
    def is_over(self) -> bool:
        """True if the run has ended, successfully or not. This is determined from public files alone."""
        if self.public_only:
            return any((self.folder / "public" / f"{name}.parquet").is_file() for name in ("releases", "traces"))
        return self.operator is not None

    @property
    def is_deployment(self) -> bool:
        """True if the run is a deployment, whose releases are meant to be published."""
        return bool(self.public["mode"] == "deployment")

    @property
    def cited(self) -> dict[str, Any]:
        """The manifest that identifies the run in a citation: the public one for a deployment."""
        return self.public if self.is_deployment else self.operator or self.public

    @property
    def configuration(self) -> dict[str, Any]:
        """The configuration in the operator's manifest, or the redacted one in the public manifest."""
        return dict((self.operator or self.public)["configuration"])

    @property
    def counted(self) -> str:
        """The unit that is counted: people, or trips if the source has no rider ids."""
        return counted(self.public)

    @property
    def time_zone(self) -> str:
        """The time zone of the run's windows."""
        return str(self.configuration.get("windows", {}).get("time_zone", "UTC"))

    @cached_property
    def releases(self) -> pl.DataFrame | None:
        """The table of releases, with one row per release, or None if the run releases traces."""
        return self.read("public/releases", shared_rows)

    @cached_property
    def counts(self) -> ShownCounts | None:
        """The released counts, with the true counts if they are known, or None before the first release."""
        if self.releases is None or self.releases.is_empty():
            return None
        # Parts that are not merged yet may hold a release twice.
        releases = self.releases.unique("window", keep="first").sort("window")
        windows = releases.select(
            "window",
            pl.col("window_start").dt.epoch("ms").alias("start"),
            pl.col("window_end").dt.epoch("ms").alias("end"),
            "landmark",
            pl.col("action").cast(pl.Enum(ACTIONS)).to_physical(),
            "epsilon",
        )
        released = self.read("public/releases", lambda rows: _released_counts(rows, windows))
        if released is None:
            return None
        shown, cells = released.windows["window"], released.cells
        truth = self.read("operator/truth", lambda rows: matrices(rows, shown, cells, pl.col("count")))
        return released if truth is None else replace(released, truth=truth["count"])

    @cached_property
    def accounts(self) -> pl.DataFrame:
        """The rows of all accountants, keeping each metric's last row and preferring final to provisional rows."""
        sides = {side: self.table(f"{side}/accounts") for side in ("public", "operator")}
        tables = [rows.with_columns(side=pl.lit(side)) for side, rows in sides.items() if rows is not None]
        tables = [rows for rows in tables if not rows.is_empty()]
        if not tables:
            return pl.DataFrame(schema=dict.fromkeys(("accountant", "name", "unit", "side"), pl.String))
        key = ["side", "accountant", "subject", "window", "name"]
        rows = pl.concat(tables).lazy().with_columns(is_final=pl.col("status") == "final")
        return rows.sort("is_final", maintain_order=True).unique(key, keep="last", maintain_order=True).collect()

    @cached_property
    def figures(self) -> list[AccountFigure]:
        """The run's metrics, one per accountant and name."""
        return figures(self.accounts)

    @cached_property
    def losses(self) -> dict[str, float] | None:
        """Any one person's largest possible loss over several time spans, or None before the first release."""
        if loss := (self.operator or {}).get("loss"):
            return dict(loss)
        rows = self.traces if self.releases is None else self.releases
        measures = [promise.get("measure") for promise in self.public["guarantee"]]
        measure = "gaussian" if "gaussian" in measures else None
        return None if rows is None else losses(rows.lazy(), self.time_zone, measure)

    @cached_property
    def visits(self) -> tuple[int, int] | None:
        """The number of visits (a person in a cell and window) and the number released, or None if unknown."""
        if self.traces is not None:
            return None
        sums = pl.col("count", "bounded").sum()
        return self.read("operator/truth", lambda rows: rows.select(sums).collect().row(0))

    @cached_property
    def traces(self) -> pl.DataFrame | None:
        """The released trace points, or None if the run releases counts."""
        return self.table("public/traces")

    @cached_property
    def utility(self) -> pl.DataFrame | None:
        """Utility metrics, which compare released counts with true counts."""
        return self.table("operator/utility")

    def table(self, name: str) -> pl.DataFrame | None:
        """Return a table such as ``public/accounts`` with categories as strings, or None if it does not exist yet."""
        return self.read(name, lambda rows: rows.with_columns(cs.categorical().cast(pl.String)).collect())

    def read(self, name: str, query: Callable[[pl.LazyFrame], T]) -> T | None:
        """Run a query on a table, or on the parts written so far. Return None if neither exists."""
        path = self.folder / f"{name}.parquet"
        if self.public_only and not name.startswith("public/"):
            return None
        paths = [path]
        if not path.is_file():
            side, _, kind = name.partition("/")
            paths = sorted((self.folder / side / "parts" / KINDS.get(name, kind)).glob("*.parquet"))
        if not paths:
            return None
        try:
            return query(pl.scan_parquet(paths, glob=False))
        except (OSError, pl.exceptions.PolarsError) as error:
            if not self.is_over:
                return None  # parts were merged meanwhile, or are still being written
            raise DataError(f"{path}: cannot be read ({error})") from error

    def rejects(self, limit: int) -> list[dict[str, Any]]:
        """Return the first rejected rows, at most ``limit`` of them."""
        path = self.folder / "operator" / "rejects.jsonl"
        if self.public_only or not path.is_file():
            return []
        with path.open(encoding="utf-8", errors="replace") as lines:
            return [json.loads(line) for line, _ in zip(lines, range(limit))]


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file. Raise a `DataError` that names the file if it does not contain valid JSON."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})") from error


def identity(manifest: dict[str, Any]) -> dict[str, str]:
    """Return the fields that identify a result: its configuration digest and, for simulations, its seeds.

    >>> identity({"configuration_digest": "c366", "noise": {"seed": 7}})
    {'configuration digest': 'c366', 'seed': '7'}
    """
    digest, seeds = manifest.get("configuration_digest"), manifest.get("noise", {})
    if digest is None:  # an experiment
        seeds = manifest["configuration"]
        digest = hashlib.sha256(json.dumps(seeds, sort_keys=True).encode()).hexdigest()
        seeds = {"seeds": f"1 to {seeds['seeds']}"} if seeds.get("seeds", 1) > 1 else {"seed": 1}
    return {"configuration digest": digest} | {key: str(seeds[key]) for key in ("seed", "seeds") if key in seeds}


def citation(name: str, manifest: dict[str, Any]) -> str:
    """Return a BibTeX entry for the software and the result. It is consistent with ``CITATION.cff``."""
    decided = ", ".join(f"{key} {value}" for key, value in identity(manifest).items())
    fields = {
        "title": "{penstock}: a streaming release simulator for location data",
        "author": "{The penstock authors}",
        "version": manifest["versions"].get("penstock", "unknown"),
        "note": f"{name}: {decided}",
    }
    return "\n".join(["@software{penstock,", *(f"  {key} = {{{value}}}," for key, value in fields.items()), "}"])


@dataclass(frozen=True)
class ShownCounts:
    """A run's counts, as displayed on its page."""

    #: One row a window shown, in order: window, start and end (ms), landmark, action (position in `ACTIONS`), epsilon.
    windows: pl.DataFrame
    #: Names of the cells shown.
    cells: tuple[str, ...]
    n_all_windows: int
    n_all_cells: int
    #: Shape (n_windows, n_cells), NaN where a sensor was not active.
    released: NDArray[np.float64]
    #: Half-width of the interval that holds 95 % of the noise, or of what a filtered count may be, same shape; `ends`.
    margin: NDArray[np.float64]
    #: Distinct users before bounding, same shape; None outside simulations.
    truth: NDArray[np.float64] | None = None
    #: 1 where a count is unusual and believed, same shape; None if no step judges that.
    alarm: NDArray[np.float64] | None = None

    def outcomes(self) -> list[tuple[str, int]]:
        """Return each action with the number of windows on which it was taken, most frequent first."""
        counted = zip(ACTIONS, np.bincount(self.windows["action"], minlength=len(ACTIONS)).tolist())
        return sorted(((action, n) for action, n in counted if n), key=lambda pair: -pair[1])


def _released_counts(rows: pl.LazyFrame, windows: pl.DataFrame) -> ShownCounts:
    """Return the released counts to display on the page. Memory use is bounded by the size of the page."""
    shown = windows.tail(MAX_WINDOWS)
    # In the order in which cells first come up.
    totals = rows.filter(pl.col("window") >= shown["window"][0]).group_by("cell", maintain_order=True)
    cells = totals.agg(pl.col("value").sum()).collect(engine="streaming").with_row_index()
    n_cells = min(MAX_CELLS, max(1, MAX_COUNTS // len(shown)))
    busiest = cells.sort("value", descending=True, maintain_order=True).head(n_cells).sort("index")
    names = tuple(busiest["cell"].cast(pl.String))
    columns = [pl.col("value").alias("released"), half_width().alias("margin")]
    if "alarm" in rows.collect_schema():
        columns.append(pl.col("alarm").cast(pl.Float64))
    return ShownCounts(shown, names, len(windows), len(cells), **matrices(rows, shown["window"], names, *columns))
