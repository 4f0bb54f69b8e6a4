"""The documentation page of all experiments, from their files and the small tables that full runs have left."""

from __future__ import annotations

import json
import math
import textwrap
from pathlib import Path
from typing import Any

import polars as pl

from pipeline import parts
from pipeline.configuration.document import plain
from pipeline.configuration.reader import parse
from pipeline.configuration.run import read_text
from pipeline.experiments.differences import differences_table
from pipeline.experiments.papers import papers_section

HEADER = """\
# What the experiments show

Written by `make docs` from `configs/experiments/` and the small tables in `docs/results/`, which full runs have left
with `--save`. How to run one and what is in its file: [experiment_files.md](experiment_files.md).
Numbers are means over seeds with their interval.
"""
OWN = ("measure", "unit", "n", "mean", "low", "high", "standard_deviation", "minimum", "maximum")
PROVENANCE = ("configuration", "inputs", "versions")
#: Digits of a digest that a saved table keeps.
SHORT = 16


def save(folder: Path, results: Path) -> None:
    """Copy what the page needs of a finished experiment: a small table, the claims, and where the numbers come from.

    Parameters
    ----------
    folder
        Of the experiment.
    results
        Where ``<name>.csv``, ``<name>-expected.csv`` and ``<name>.json`` go.
    """
    manifest = json.loads((folder / "experiment.json").read_text(encoding="utf-8"))
    name = manifest["name"]
    if "tables" in manifest:
        copied = {table: table for table in manifest["tables"]}
    else:
        _save_summary(folder, results / f"{name}.csv", _shown(manifest["configuration"]))
        copied = {"expected.csv": f"{name}-expected.csv"} if (folder / "expected.csv").exists() else {}
    for found, saved in copied.items():
        with parts.whole(results / saved) as temporary:
            temporary.write_bytes((folder / found).read_bytes())
    kept = {key: manifest[key] for key in ("inputs", "versions", "cells", "confidence", "tables") if key in manifest}
    parts.write_json(results / f"{name}.json", kept | {"failed": len(manifest["failed"])})


def _save_summary(folder: Path, path: Path, shown: list[str]) -> None:
    """Means of the measures that are shown, without what nobody reads there."""
    summary = pl.read_parquet(folder / "summary.parquet").filter(pl.col("measure").is_in(shown))
    figures = [column for column, dtype in summary.schema.items() if dtype == pl.Float64 and column in OWN]
    summary = summary.drop("versions", "inputs", "standard_deviation", "minimum", "maximum").with_columns(
        pl.col("configuration").str.slice(0, SHORT),
        *(pl.col(column).round_sig_figs(6) for column in figures if column in ("mean", "low", "high")),
    )
    with parts.whole(path) as temporary:
        summary.write_csv(temporary)


def _shown(experiment: dict[str, Any]) -> list[str]:
    return list(experiment.get("tables") or experiment["measures"][:1])


def experiments_page(configs: Path, results: Path, papers: Path | None = None) -> str:
    """The page as Markdown.

    Parameters
    ----------
    configs
        Folder of the experiment files.
    results
        Folder that `save` has filled; an experiment without a table says that no full run is saved.
    papers
        Index of the papers' figures, for a table of them on top; see `papers_section`.
    """
    experiments: dict[str, dict[str, Any]] = {}
    sections = []
    for path in sorted(configs.glob("*.yaml")):
        root, _ = parse(read_text(path), path.name)
        experiment = plain(root) if root is not None else {}
        experiments[str(experiment["name"])] = experiment
        sections.append(_section(experiment, path, results))
    figures = [papers_section(papers, experiments, results)] if papers else []
    return "\n".join([HEADER, *figures, *sections])


def _section(experiment: dict[str, Any], path: Path, results: Path) -> str:
    name = str(experiment["name"])
    lines = [f"## {name}", "", _text(experiment["question"]), ""]
    if experiment.get("setting"):
        lines += [_text(experiment["setting"]), ""]
    if experiment.get("conclusion"):
        lines += [_text(f"**What came out.** {experiment['conclusion']}"), ""]
    lines += [f"File: [`{path.name}`](../configs/experiments/{path.name}).", ""]
    if "study" in experiment:
        return "\n".join([*lines, *_study(results, name)])
    table = results / f"{name}.csv"
    if not table.exists():
        return "\n".join([*lines, "No full run is saved.", ""])
    summary = pl.read_csv(table)
    labels = experiment.get("labels") or {}
    published = experiment.get("published") or {}
    lines += _tables(summary, _shown(experiment), labels, published)
    claims = results / f"{name}-expected.csv"
    if claims.exists():
        lines += [*_claims(pl.read_csv(claims)), ""]
    lines += differences_table(summary, experiment)
    lines += [_provenance(summary, json.loads((results / f"{name}.json").read_text(encoding="utf-8"))), ""]
    return "\n".join(lines)


def _study(results: Path, name: str) -> list[str]:
    """Which tables a full run of a study has left, and of what; nothing where none was saved."""
    path = results / f"{name}.json"
    if not path.exists():
        return []
    kept = json.loads(path.read_text(encoding="utf-8"))
    links = ", ".join(f"[{table}](results/{table})" for table in kept["tables"])
    return [_text(f"Tables: {links}."), "", _text(f"{kept['cells']:,} pieces; {_origin(kept)}."), ""]


def _text(value: Any) -> str:
    return textwrap.fill(" ".join(str(value).split()), 120, break_long_words=False, break_on_hyphens=False)


def _tables(summary: pl.DataFrame, measures: list[str], labels: dict[str, Any], published: dict[str, Any]) -> list[str]:
    """The first thing that varies down; all others across in a table a measure, or else the measures across.

    Published figures stand in brackets behind those of measures across.
    """
    varied = [name for name in summary.columns if name not in OWN + PROVENANCE]
    down, across = varied[0], varied[1:]
    cells = {(row["measure"], *(row[name] for name in varied)): row for row in summary.iter_rows(named=True)}
    rows = summary[down].unique(maintain_order=True).to_list()
    if not across:
        columns = [(measure,) for measure in measures]
        heads = [str(labels.get(measure, measure)) for measure in measures]
        table = _table(down, heads, rows, [[cells.get((*c, row)) for c in columns] for row in rows])
        if not published:
            return [*table, ""]
        figures = {str(row): dict(zip(published["measures"], found)) for row, found in published["rows"].items()}
        beside = [[figures.get(str(row), {}).get(measure) for measure in measures] for row in rows]
        note = _text(f"In brackets: {published['source']}.")
        return [*table[:2], *map(_with_published, table[2:], beside), "", note, ""]
    lines = []
    settings = summary.select(across).unique(maintain_order=True).rows()
    names = ", ".join(str(labels.get(name, name)) for name in across)
    for measure in measures:
        heads = [", ".join(str(labels.get(str(value), value)) for value in setting) for setting in settings]
        found = [[cells.get((measure, row, *setting)) for setting in settings] for row in rows]
        lines += [f"{labels.get(measure, measure)}, by {names}:", "", *_table(down, heads, rows, found), ""]
    return lines


def _table(down: str, heads: list[str], rows: list[Any], cells: list[list[dict[str, Any] | None]]) -> list[str]:
    lines = ["| " + " | ".join([down, *heads]) + " |", "|---" * (len(heads) + 1) + "|"]
    for row, found in zip(rows, cells):
        lines.append("| " + " | ".join([str(row), *map(_cell, found)]) + " |")
    return lines


def _with_published(line: str, figures: list[float | None]) -> str:
    """A line of a table with published figures behind its own.

    >>> _with_published("| k = 2 | 0.81 ± 0.01 | 3 |", [0.815, None])
    '| k = 2 | 0.81 ± 0.01 (0.815) | 3 |'
    """
    name, *found = line.strip("| ").split(" | ")
    shown = [cell if figure is None else f"{cell} ({figure:g})" for cell, figure in zip(found, figures)]
    return "| " + " | ".join([name, *shown]) + " |"


def _cell(row: dict[str, Any] | None) -> str:
    if row is None or row["mean"] is None:
        return ""
    mean = f"{row['mean']:,.0f}" if abs(row["mean"]) >= 1000 else f"{round(row['mean'], 12):.3g}"
    half = None if row["low"] is None else row["mean"] - row["low"]
    return f"{mean} ± {half:.2g}" if half and math.isfinite(half) else mean


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


def _provenance(summary: pl.DataFrame, kept: dict[str, Any]) -> str:
    failed = f", of which {kept['failed']:,} failed" if kept["failed"] else ""
    seeds = int(summary["n"].to_numpy().max())
    return (
        f"{kept['cells']:,} runs{failed}, {seeds} seeds, intervals at {kept['confidence']:.0%}; {_origin(kept)}. "
        "Every row of the CSV names its configuration's digest."
    )


def _origin(kept: dict[str, Any]) -> str:
    inputs = ", ".join(f"`{text[:SHORT]}`" for text in kept["inputs"])
    return f"input digest {inputs}; " + ", ".join(f"{name} {version}" for name, version in kept["versions"].items())
