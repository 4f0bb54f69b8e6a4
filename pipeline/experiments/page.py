"""The documentation page of all experiments, from their files and the small tables that full runs have left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from pipeline.configuration.document import plain
from pipeline.configuration.reader import parse
from pipeline.configuration.run import read_text
from pipeline.experiments.measures import MEASURES

HEADER = """\
# What the experiments show

Written by `make docs` from `configs/experiments/` and the tables in `docs/results/`, which are the `summary.csv` and
`expected.csv` of full runs. How to run one and how to read its file: [experiment_files.md](experiment_files.md).
Numbers are means over seeds with their interval; **bold** is the best of its column.
"""
OWN = ("measure", "unit", "n", "mean", "low", "high", "standard_deviation", "minimum", "maximum")
PROVENANCE = ("configuration", "inputs", "versions")


def experiments_page(configs: Path, results: Path) -> str:
    """The page as Markdown.

    Parameters
    ----------
    configs
        Folder of the experiment files.
    results
        Folder with ``<name>.csv`` and ``<name>-expected.csv``; an experiment without says that it was not run.
    """
    sections = [HEADER]
    for path in sorted(configs.glob("*.yaml")):
        root, _ = parse(read_text(path), path.name)
        experiment = plain(root) if root is not None else {}
        sections.append(_section(experiment, path, results))
    return "\n".join(sections)


def _section(experiment: dict[str, Any], path: Path, results: Path) -> str:
    name = str(experiment["name"])
    lines = [f"## {name}", "", _text(experiment["question"]), ""]
    if experiment.get("setting"):
        lines += [_text(experiment["setting"]), ""]
    if experiment.get("conclusion"):
        lines += [f"**What came out.** {_text(experiment['conclusion'])}", ""]
    lines += [f"File: [`{path.name}`](../configs/experiments/{path.name}).", ""]
    table = results / f"{name}.csv"
    if not table.exists():
        return "\n".join([*lines, "No full run is saved.", ""])
    summary = pl.read_csv(table)
    labels = experiment.get("labels") or {}
    for measure in experiment.get("tables") or experiment["measures"][:1]:
        lines += [*_table(summary, str(measure), labels), ""]
    claims = results / f"{name}-expected.csv"
    if claims.exists():
        lines += [*_claims(pl.read_csv(claims)), ""]
    lines += [_provenance(summary), ""]
    return "\n".join(lines)


def _text(value: Any) -> str:
    return " ".join(str(value).split())


def _table(summary: pl.DataFrame, measure: str, labels: dict[str, Any]) -> list[str]:
    """One measure: the first thing that varies down, all others across."""
    frame = summary.filter(pl.col("measure") == measure)
    varied = [name for name in frame.columns if name not in OWN + PROVENANCE]
    down, across = varied[0], varied[1:]
    rows = frame[down].unique(maintain_order=True).to_list()
    columns = frame.select(across).unique(maintain_order=True).rows() if across else [()]
    unit = f", {frame['unit'][0]}" if frame["unit"][0] and measure not in labels else ""
    heads = [", ".join(f"{value}" for value in column) or "all" for column in columns]
    names = ", ".join(str(labels.get(name, name)) for name in across)
    lines = [
        f"{labels.get(measure, measure)}{unit}" + (f", by {names}" if names else "") + ":",
        "",
        "| " + " | ".join([down, *heads]) + " |",
        "|---" * (len(heads) + 1) + "|",
    ]
    cells = {(row[down], *(row[name] for name in across)): row for row in frame.iter_rows(named=True)}
    best = [_best([cells.get((row, *column)) for row in rows], measure) for column in columns]
    for row in rows:
        texts = [_cell(cells.get((row, *column)), best[i]) for i, column in enumerate(columns)]
        lines.append("| " + " | ".join([str(row), *texts]) + " |")
    return lines


def _best(column: list[dict[str, Any] | None], measure: str) -> float | None:
    higher = MEASURES[measure].higher_is_better if measure in MEASURES else None
    means = [row["mean"] for row in column if row is not None and row["mean"] is not None]
    return None if higher is None or not means else (max(means) if higher else min(means))


def _cell(row: dict[str, Any] | None, best: float | None) -> str:
    if row is None or row["mean"] is None:
        return ""
    mean = f"**{row['mean']:.3g}**" if row["mean"] == best else f"{row['mean']:.3g}"
    return mean if row["low"] is None else f"{mean} ± {row['mean'] - row['low']:.2g}"


def _claims(claims: pl.DataFrame) -> list[str]:
    lines = ["| Expected | By whom | Allowed | Found | |", "|---|---|---|---|---|"]
    for row in claims.iter_rows(named=True):
        limits = [f"≥ {row['at_least']:g}" if row["at_least"] is not None else ""]
        limits.append(f"≤ {row['at_most']:g}" if row["at_most"] is not None else "")
        found = "" if row["value"] is None else f"{row['value']:.3g}"
        if row["low"] is not None:
            found += f" ({row['low']:.3g} to {row['high']:.3g})"
        verdict = row["verdict"] if row["verdict"] == "agrees" else f"**{row['verdict']}**"
        allowed = " and ".join(filter(None, limits))
        lines.append(f"| {row['says']}; {row['number']} | {row['source']} | {allowed} | {found} | {verdict} |")
    return lines


def _provenance(summary: pl.DataFrame) -> str:
    inputs = ", ".join(f"`{text[:12]}`" for text in summary["inputs"].unique(maintain_order=True).to_list())
    versions = "; ".join(summary["versions"].unique(maintain_order=True).to_list())
    seeds = summary["n"].max()
    return f"{seeds} seeds; input digest {inputs}; {versions}. Every row of the CSV names its configuration's digest."
