"""Access to a run's files as data frames and plots."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.mechanisms.core.plugin import DataError

# Polars and drawings are imported where they are used: every command imports this module.
if TYPE_CHECKING:
    import polars as pl

    from penstock.pipeline.reporting.drawing import Drawing


class Result:
    """A run's results as data frames and plots. Runs started from the command line can be opened as well.

    Each frame is read when it is first asked for. ``docs/library.md`` shows them.

    Parameters
    ----------
    folder
        Where the run wrote.

    Raises
    ------
    DataError
        By a property, where the run wrote no such file: truth and utility are of simulations, releases of runs on
        counts, traces of runs on traces.

    Examples
    --------
    >>> Result("runs/nowhere").releases
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.DataError: runs/nowhere/public/releases.parquet: this run wrote no such file
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The operator's manifest, which records row counts, input digests, timings and the exit status."""
        return dict(json.loads(self._file("operator/manifest.json").read_text(encoding="utf-8")))

    @property
    def exit_code(self) -> int:
        """The exit code: 0 complete, 1 some input not counted, 3 stopped by a budget, 4 interrupted."""
        return int(self.manifest["exit"]["code"])

    @cached_property
    def releases(self) -> pl.DataFrame:
        """The published counts, with one row per window and active cell."""
        return self._frame("public/releases.parquet")

    @cached_property
    def traces(self) -> pl.DataFrame:
        """The published trace points, with one row per point."""
        return self._frame("public/traces.parquet")

    @cached_property
    def accounts(self) -> pl.DataFrame:
        """The rows of all accountants. The ``side`` column states who may see a row: the public or the operator."""
        import polars as pl

        sides = [side for side in ("public", "operator") if (self.folder / side / "accounts.parquet").exists()]
        frames = [self._frame(f"{side}/accounts.parquet") for side in sides or ["public"]]
        return pl.concat([frame.insert_column(0, pl.lit(side).alias("side")) for side, frame in zip(sides, frames)])

    @cached_property
    def truth(self) -> pl.DataFrame:
        """The true counts before and after contribution bounding. Available in simulations only."""
        return self._frame("operator/truth.parquet")

    @cached_property
    def utility(self) -> pl.DataFrame:
        """Utility metrics, which compare released counts with true counts. Available in simulations only."""
        return self._frame("operator/utility.parquet")

    @cached_property
    def figures(self) -> pl.DataFrame:
        """All utility and privacy metrics, with one metric per row (see `tidy_figures`)."""
        from penstock.pipeline.reporting.paper import tidy_figures

        return tidy_figures(self.folder)

    def plot(self, cell: str | None = None) -> Drawing:
        """Plot a cell's released counts over time, and true counts if known. The default is the busiest cell."""
        from penstock.pipeline.reporting.data import Run
        from penstock.pipeline.reporting.drawing import draw_counts

        return draw_counts(Run(self.folder), cell)

    def map(self, window: int | None = None) -> Drawing:
        """Draw a map of the counts released for a window, numbered from 1. The default is the busiest window."""
        from penstock.pipeline.reporting.data import Run
        from penstock.pipeline.reporting.drawing import draw_map

        return draw_map(Run(self.folder), window)

    def _repr_html_(self) -> str:
        """Return an HTML summary of utility and privacy cost, with a plot of the busiest cell."""
        from penstock.pipeline.output.loss import describe_losses
        from penstock.pipeline.output.utility_summary import ONE, counted, describe_utility
        from penstock.pipeline.reporting.drawing import notebook_html

        manifest, lines = self.manifest, [self.manifest["exit"]["reason"]]
        if "utility_summary" in manifest:
            lines.append(describe_utility(manifest["utility_summary"], counted(manifest)))
        if "loss" in manifest:
            lines.append(describe_losses(manifest["loss"], ONE[counted(manifest)]))
        return notebook_html(str(self.folder), lines, None if "points" in manifest else self.plot)

    def _frame(self, name: str) -> pl.DataFrame:
        import polars as pl

        return pl.read_parquet(self._file(name))

    def _file(self, name: str) -> Path:
        path = self.folder / name
        if not path.exists():
            raise DataError(f"{path}: this run wrote no such file")
        return path
