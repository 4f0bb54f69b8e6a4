"""Output for papers: a run's or an experiment's results as a tidy data frame, a LaTeX table and a citation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs

from penstock.pipeline import atomic
from penstock.pipeline.reporting.accounts import metric_words
from penstock.pipeline.reporting.data import Run, citation, identity
from penstock.pipeline.reporting.experiment import ExperimentFolder, is_experiment
from penstock.pipeline.reporting.markup import CSV_DIGITS, number

#: Characters that LaTeX reads as commands, and letters that its usual fonts lack.
_LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "−": "$-$",
    "–": "--",
    **{"ε": r"$\varepsilon$", "δ": r"$\delta$", "ρ": r"$\rho$", "μ": r"$\mu$", "τ": r"$\tau$", "∞": r"$\infty$"},
}


def tidy_figures(folder: str | Path) -> pl.DataFrame:
    """Return the metrics of a run or an experiment as a tidy data frame with one metric per row.

    Columns: of a run ``kind`` (utility or account) and ``accountant``, of an experiment its varied parameters; then
    ``measure``, ``value``, ``low``, ``high``, ``unit``, and what decides the result: ``name``, ``version``,
    ``configuration`` (digest) and ``seed``, empty for a deployment.

    **Privacy**: of a simulation utility is measured against true counts; the frame is the operator's.
    """
    folder = Path(folder)
    name, manifest = _manifest(folder)
    if is_experiment(folder):
        frame = ExperimentFolder(folder).summary.rename({"mean": "value"})
        frame = frame.select(*manifest["varied"], "measure", "value", "low", "high", "unit")
    else:
        run = Run(folder)
        measured = (run.operator or {}).get("utility") or {}
        rows: list[tuple[Any, ...]] = []
        for measure, value in measured.items():
            unit = "metres" if run.traces is not None else metric_words(measure, run.counted)[1]
            rows.append(("utility", "", measure, value, None, None, unit))
        rows += [("account", f.accountant, f.name, f.value, f.low, f.high, f.unit) for f in run.figures]
        frame = pl.DataFrame(rows, schema=_SCHEMA, orient="row")
    decided = identity(manifest)
    constants = {
        "name": name,
        "version": manifest["versions"].get("penstock", ""),
        "configuration": decided["configuration digest"],
        "seed": decided.get("seed", decided.get("seeds", "")),
    }
    return frame.with_columns(pl.lit(str(value)).alias(column) for column, value in constants.items())


def _manifest(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return an experiment's or a run's name and the manifest that identifies it where it is cited."""
    if is_experiment(folder):
        manifest = ExperimentFolder(folder).manifest
        return manifest["name"], manifest
    run = Run(folder)
    return run.public["name"], run.cited


_TEXTS, _NUMBERS = ("kind", "accountant", "measure"), ("value", "low", "high")
_SCHEMA = dict.fromkeys(_TEXTS, pl.String) | dict.fromkeys(_NUMBERS, pl.Float64) | {"unit": pl.String}


def latex(frame: pl.DataFrame, about: str) -> str:
    r"""Format a data frame as a LaTeX ``tabular`` with booktabs rules, preceded by a comment.

    >>> print(latex(pl.DataFrame({"measure": ["a_b"], "value": [0.25]}), "about it"))
    % about it
    \begin{tabular}{lr}
    \toprule
    measure & value \\
    \midrule
    a\_b & 0.25 \\
    \bottomrule
    \end{tabular}
    """

    def line(cells: tuple[Any, ...]) -> str:
        shown = ["" if cell is None else number(cell) if isinstance(cell, float) else str(cell) for cell in cells]
        return " & ".join(re.sub(".", lambda one: _LATEX.get(one[0], one[0]), text) for text in shown) + r" \\"

    sides = "".join("r" if dtype.is_numeric() else "l" for dtype in frame.dtypes)
    remark = "\n".join(f"% {text}" for text in about.splitlines())
    rules = [rf"\begin{{tabular}}{{{sides}}}", r"\toprule", line(tuple(frame.columns)), r"\midrule"]
    return "\n".join([remark, *rules, *map(line, frame.rows()), r"\bottomrule", r"\end{tabular}"])


def write_for_paper(folder: str | Path) -> list[Path]:
    """Write ``figures.csv``, ``figures.tex`` and ``citation.bib`` beside the report. They are just as confidential."""
    folder, frame = Path(folder), tidy_figures(folder)
    entry = citation(*_manifest(folder))
    place = folder / "operator" if not is_experiment(folder) and Run(folder).is_deployment else folder
    shown = frame.drop("name", "version", "configuration", "seed")
    rounded = frame.with_columns(cs.float().round_sig_figs(CSV_DIGITS))
    texts = {
        "figures.csv": rounded.write_csv(),
        "figures.tex": latex(shown, entry) + "\n",
        "citation.bib": entry + "\n",
    }
    for name, text in texts.items():
        atomic.write_text(place / name, text, private=True)
    return [place / name for name in texts]
