"""The files of a run as data frames and drawings."""

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
    """The files of a run as data frames and drawings. Runs made on the command line can be opened as well.

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
        """The operator's manifest: row counts, digests of the input, timings and exit state."""
        return dict(json.loads(self._file("operator/manifest.json").read_text(encoding="utf-8")))

    @property
    def exit_code(self) -> int:
        """The exit code: 0 completed, 1 not all input was counted, 3 stopped by a budget, 4 interrupted."""
        return int(self.manifest["exit"]["code"])

    @cached_property
    def releases(self) -> pl.DataFrame:
        """The published counts, one row per window and active cell."""
        return self._frame("public/releases.parquet")

    @cached_property
    def traces(self) -> pl.DataFrame:
        """The published trace points, one per row."""
        return self._frame("public/traces.parquet")

    @cached_property
    def accounts(self) -> pl.DataFrame:
        """The accountants' rows. The column ``side`` states the audience: public or operator."""
        import polars as pl

        sides = [side for side in ("public", "operator") if (self.folder / side / "accounts.parquet").exists()]
        frames = [self._frame(f"{side}/accounts.parquet") for side in sides or ["public"]]
        return pl.concat([frame.insert_column(0, pl.lit(side).alias("side")) for side, frame in zip(sides, frames)])

    @cached_property
    def truth(self) -> pl.DataFrame:
        """The true counts before and after bounding, in simulations only."""
        return self._frame("operator/truth.parquet")

    @cached_property
    def utility(self) -> pl.DataFrame:
        """Metrics of released against true counts, in simulations only."""
        return self._frame("operator/utility.parquet")

    @cached_property
    def figures(self) -> pl.DataFrame:
        """The figures of utility and accounts, one per row, of a run or an experiment (`tidy_figures`)."""
        from penstock.pipeline.reporting.paper import tidy_figures

        return tidy_figures(self.folder)

    def plot(self, cell: str | None = None) -> Drawing:
        """Plot the released counts of a cell (None: the busiest) over time, with the true counts if known."""
        from penstock.pipeline.reporting.data import Run
        from penstock.pipeline.reporting.drawing import draw_counts

        return draw_counts(Run(self.folder), cell)

    def map(self, window: int | None = None) -> Drawing:
        """Draw a map of the released counts of a window (1-based). None selects the busiest window."""
        from penstock.pipeline.reporting.data import Run
        from penstock.pipeline.reporting.drawing import draw_map

        return draw_map(Run(self.folder), window)

    def _repr_html_(self) -> str:
        """Return a summary of utility and cost as HTML, with a drawing of the busiest cell."""
        from penstock.pipeline.output.loss import losses_in_words
        from penstock.pipeline.output.utility_summary import ONE, counted, in_words
        from penstock.pipeline.reporting.drawing import shown_in_notebook

        manifest, lines = self.manifest, [self.manifest["exit"]["reason"]]
        if "utility_summary" in manifest:
            lines.append(in_words(manifest["utility_summary"], counted(manifest)))
        if "loss" in manifest:
            lines.append(losses_in_words(manifest["loss"], ONE[counted(manifest)]))
        return shown_in_notebook(str(self.folder), lines, None if "points" in manifest else self.plot)

    def _frame(self, name: str) -> pl.DataFrame:
        import polars as pl

        return pl.read_parquet(self._file(name))

    def _file(self, name: str) -> Path:
        path = self.folder / name
        if not path.exists():
            raise DataError(f"{path}: this run wrote no such file")
        return path
