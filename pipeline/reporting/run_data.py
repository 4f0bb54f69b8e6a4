"""Everything the page of a run shows, collected once from its files."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mechanisms.core.plugin import PenstockError
from pipeline.reporting.accounts import Figure, charts, figures, read_accounts
from pipeline.reporting.data import Counts, RunFiles, counts, pack
from pipeline.reporting.markup import phrase
from pipeline.reporting.traces import traces
from pipeline.reporting.treatment import metric_words
from pipeline.spaces.base import Space


@dataclass(frozen=True)
class RunData:
    """One run, read where it is asked for.

    Parameters
    ----------
    files
        Its folder.
    """

    files: RunFiles

    @classmethod
    def of(cls, folder: Path) -> RunData:
        """The run in a folder."""
        return cls(RunFiles(folder))

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, well or not."""
        return self.files.operator is not None

    @property
    def configuration(self) -> dict[str, Any]:
        """Its configuration."""
        return self.files.configuration

    @property
    def time_zone(self) -> str:
        """Clock by which its windows are cut."""
        return str(self.configuration.get("windows", {}).get("time_zone", "UTC"))

    @cached_property
    def counts(self) -> Counts | None:
        """Its counts; None before the first release."""
        return counts(self.files)

    @cached_property
    def accounts(self) -> pl.DataFrame:
        """All rows of its books."""
        return read_accounts(self.files)

    @cached_property
    def figures(self) -> list[Figure]:
        """What its books say in the end."""
        return [] if self.accounts.is_empty() else figures(self.accounts)

    @cached_property
    def releases_traces(self) -> bool:
        """Whether points are released instead of counts."""
        return self.files.table("public/traces") is not None

    @cached_property
    def utility(self) -> pl.DataFrame | None:
        """Metrics of released against true counts."""
        return self.files.table("operator/utility")

    def as_json(self, later: Executor) -> dict[str, Any]:
        """The part that the page's script draws, counts packed elsewhere."""
        shared = {"kind": "run", "name": self.files.public["name"], "time_zone": self.time_zone, "over": self.is_over}
        if self.counts is None:
            return shared | {"traces": traces(self.files)}
        return shared | {
            "counts": self.counts.as_json(later),
            "geometry": geometry(self.configuration, self.counts.cells),
            "accounts": charts(self.accounts, pl.Series(self.counts.windows.index)),
            "utility": self._utility_charts(self.counts),
            "cell_metrics": self._cell_metrics(self.counts),
        }

    def _utility_charts(self, known: Counts) -> list[dict[str, Any]]:
        """A chart for each metric that has a figure per window."""
        if self.utility is None:
            return []
        made = []
        rows = self.utility.filter(pl.col("scope") == "window")
        windows = known.windows.index
        for (metric,), group in rows.group_by("metric", maintain_order=True):
            inside = group.filter(pl.col("window").is_between(windows[0], windows[-1]))
            values = np.full(len(windows), np.nan)
            values[np.searchsorted(windows, inside["window"].to_numpy())] = inside["value"].to_numpy()
            line = {"name": metric, "label": phrase(str(metric)), "value": pack(values)}
            title, unit, note = metric_words(str(metric))
            shown = {"id": f"utility-{metric}", "title": title, "unit": unit, "note": note}
            made.append(shown | {"lines": [line]})
        return made

    def _cell_metrics(self, known: Counts) -> list[dict[str, Any]]:
        """Metrics that have a figure per cell, in the order of the cells shown."""
        if self.utility is None:
            return []
        rows = self.utility.filter(pl.col("scope").str.starts_with("cell:"))
        found = []
        for (metric,), group in rows.group_by("metric", maintain_order=True):
            values = dict(zip(group["scope"].str.slice(5), group["value"]))
            found.append({"name": phrase(str(metric)), "value": pack([values.get(c, np.nan) for c in known.cells])})
        return found


def geometry(configuration: dict[str, Any], cells: tuple[str, ...]) -> list[dict[str, Any]] | None:
    """Polygon or point of every cell shown; None where the configuration does not say, or the space's file is gone."""
    from pipeline.config.build import read_plugin

    try:
        places = read_plugin(Space, configuration, "space").geometry()
    except (PenstockError, OSError):
        return None
    known = {place["cell"]: place for place in places}
    shown = [known.get(cell, {}) for cell in cells]
    if not any("polygon" in place or "point" in place for place in shown):
        return None
    return [{key: place[key] for key in ("polygon", "point") if key in place} for place in shown]
