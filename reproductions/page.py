"""Generate ``experiments.md`` from the experiment files and the saved tables: ``python -m reproductions --page``."""

from __future__ import annotations

import json
import math
import os
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from penstock.pipeline.config.run import read_text
from penstock.pipeline.config.yaml import parse, plain
from reproductions.saved import HERE, shown_measures, written

#: A figure is that of a published table if it is as near: so much, or this share of it.
NEAR, NEAR_SHARE = 0.02, 0.1
#: How a source says that a claim is on one figure of the published table.
WITHIN_TABLE = f"within {100 * NEAR_SHARE:.0f} % or {NEAR:g}"
#: Measures of the main table where no published table says which.
MAIN_MEASURES = 5
#: A half-width of an interval that is a smaller share of its mean is left to the file.
NARROW = 0.05

Measured = Mapping[tuple[str, str], float]


def measured(summary: pl.DataFrame) -> dict[tuple[str, str], float]:
    """Means by what varies first, as text, and by measure."""
    down = summary.columns[0]
    return {(str(row[down]), row["measure"]): row["mean"] for row in summary.iter_rows(named=True)}


def published_figures(published: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Setting, measure and figure, wherever a published table has one."""
    for setting, figures in published["rows"].items():
        for measure, figure in zip(published["measures"], figures):
            if figure is not None:
                yield str(setting), measure, figure


def far_figures(ours: Measured, published: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """Figures of a published table that ours are not near to, by setting and measure.

    Examples
    --------
    >>> ours = {("a", "mae"): 1.05, ("b", "mae"): 3.0}
    >>> far_figures(ours, {"measures": ["mae"], "rows": {"a": [1.0], "b": [2.0], "c": [None]}})
    {('b', 'mae'): 2.0}
    """
    return {
        (setting, measure): figure
        for setting, measure, figure in published_figures(published)
        if not _near(ours.get((setting, measure)), figure)
    }


def _near(ours: float | None, figure: float) -> bool:
    return ours is not None and abs(ours - figure) <= max(NEAR, NEAR_SHARE * abs(figure))


def explained(difference: Mapping[str, Any], far: Mapping[tuple[str, str], float]) -> list[tuple[str, str]]:
    """Settings and measures that a difference is about.

    Examples
    --------
    >>> explained({"measures": ["mae"]}, {("a", "mae"): 1.0, ("a", "mre"): 2.0})
    [('a', 'mae')]
    """
    if difference.get("paper") is not None:
        return [(str(setting), measure) for measure in difference["measures"] for setting in difference["settings"]]
    chosen = {str(setting) for setting in difference.get("settings") or ()}
    return [
        (setting, measure)
        for wanted in difference["measures"]
        for setting, measure in far
        if measure == wanted and (not chosen or setting in chosen)
    ]


def differences_list(summary: pl.DataFrame, experiment: Mapping[str, Any]) -> list[str]:
    """Every difference that the experiment file explains, as a Markdown list; nothing if it explains none.

    Both figures are told where the published one is not in the table above.
    """
    ours, labels = measured(summary), experiment.get("labels") or {}
    far = far_figures(ours, experiment["published"]) if experiment.get("published") else {}
    lines = []
    for difference in experiment.get("differences") or ():
        about = explained(difference, far)
        names = [
            (str(labels.get(name, name)), [pair for pair in about if pair[1] == name])
            for name in difference["measures"]
        ]
        figure = "; ".join(f"{name}: {', '.join(setting for setting, _ in pairs)}" for name, pairs in names if pairs)
        paper = difference.get("paper")
        beside = "" if paper is None else f" (the paper {paper}, here {_listed(names, ours)})"
        lines.append(f"* **{figure}**{beside}. {' '.join(str(difference['why']).split())}")
    return ["Where it differs, and why or what was tried:", "", *lines, ""] if lines else []


def _listed(names: list[tuple[str, list[tuple[str, str]]]], figures: Measured) -> str:
    return "; ".join(", ".join(f"{round(figures[pair], 6):.3g}" for pair in pairs) for _, pairs in names if pairs)


PAPERS_HEAD = "| Figure | What it shows | As in the paper? |"
NOT_RUN = "not run in full yet"
#: Shares of a table's figures that are near, from which on it agrees, or agrees in part.
MOST, MANY = 0.9, 0.4
PLAIN = ("agrees", "no data", "no numbers", NOT_RUN)


def papers_section(index: Path, experiments: dict[str, dict[str, Any]], results: Path) -> str:
    """A table for each paper, as Markdown.

    Parameters
    ----------
    index
        YAML list of papers, each with its figures: what one shows, and either the experiment that repeats it or the
        page with what was found and the verdict.
    experiments
        Experiment files by name, as plain values.
    results
        Folder of saved tables.
    """
    root, _ = parse(read_text(index), index.name)
    lines = ["## Figure by figure", "", f"A figure is near if {WITHIN_TABLE} of the paper's.", ""]
    for paper in plain(root) if root is not None else ():
        lines += [f"**{paper['paper']}**", "", PAPERS_HEAD, "|---|---|---|"]
        for entry in paper["figures"]:
            link, finding, verdict = _entry(entry, experiments, results)
            linked = f"[{verdict}]({link})" if link else verdict
            marked = linked if verdict in PLAIN else f"**{linked}**"
            cell = f"{marked}: {finding}" if finding else marked
            lines.append(f"| {entry['figure']} | {entry['shows']} | {cell} |")
        lines.append("")
    return "\n".join(lines)


def _entry(
    entry: dict[str, Any], experiments: dict[str, dict[str, Any]], results: Path
) -> tuple[str | None, str | None, str]:
    """Link to the result, the finding in words, and the verdict."""
    name = entry.get("experiment")
    if name is None:
        return entry.get("page"), entry["found"], entry["verdict"]
    if name not in experiments:
        return None, None, NOT_RUN
    return f"#{name}", *_measured(experiments[name], name, results)


def _measured(experiment: dict[str, Any], name: str, results: Path) -> tuple[str | None, str]:
    """Judge saved results by an experiment's claims, or by the published table that it repeats."""
    table, claims = results / f"{name}.csv", results / f"{name}-expected.csv"
    if not table.exists():
        return None, NOT_RUN
    if experiment.get("published"):
        near, n = compare(pl.read_csv(table), experiment["published"])
        share = near / n if n else 0.0
        verdict = "agrees" if share >= MOST else "in part" if share >= MANY else "differs"
        return f"{near} of {n} figures near", verdict
    if not claims.exists():
        return "the published table is not at hand", "no numbers"
    verdicts = Counter(pl.read_csv(claims)["verdict"].to_list())
    agreed = verdicts["agrees"]
    others = (
        f"{n} {verdict if n == 1 else verdict.rstrip('s')}" for verdict, n in verdicts.items() if verdict != "agrees"
    )
    words = ", ".join([f"{agreed} of {verdicts.total()} claims {'agrees' if agreed == 1 else 'agree'}", *others])
    return words, "agrees" if agreed == verdicts.total() else "in part" if agreed else "differs"


def compare(summary: pl.DataFrame, published: dict[str, Any]) -> tuple[int, int]:
    """Count the figures of a published table that ours are near to, and all of them.

    Examples
    --------
    >>> ours = pl.DataFrame({"variant": ["a", "b"], "measure": ["mae"] * 2, "mean": [1.05, 3.0]})
    >>> compare(ours, {"measures": ["mae"], "rows": {"a": [1.0], "b": [2.0], "c": [1.0]}})
    (1, 3)
    """
    n = sum(1 for _ in published_figures(published))
    return n - len(far_figures(measured(summary), published)), n


HEADER = """\
# What the experiments show

For each experiment its question, what came out, its main table, and each claim held against what was measured.
Figures are means over seeds, with their 95 % interval where it reaches more than 5 % of the mean to either side. The
linked files hold all measures and every interval (`.csv`), what exactly each claim compares (`-expected.csv`), and the
inputs and versions of the run (`.json`). "Allowed" was set beforehand: a claim *agrees* if its whole interval is
within, *differs* if none of it is. How to run an experiment: [experiment_files.md](../docs/experiment_files.md).
Written by `python -m reproductions --page` from `configs/experiments/`, `reproductions/experiments/` and the results
of full runs.
"""
OWN = ("measure", "unit", "n", "mean", "low", "high", "standard_deviation", "minimum", "maximum")
PROVENANCE = ("configuration", "inputs", "versions")


def experiments_page(paths: Iterable[Path], results: Path, papers: Path | None = None) -> str:
    """The page as Markdown.

    Parameters
    ----------
    paths
        Experiment files.
    results
        Folder that `save` has filled; an experiment without a table says that no full run is saved.
    papers
        Index of the papers' figures, for a table of them on top; see `papers_section`.
    """
    experiments: dict[str, dict[str, Any]] = {}
    sections = []
    for path in paths:
        experiment = written(path)
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
    file = f"[{path.name}]({os.path.relpath(path, HERE)})"
    if "study" in experiment:
        return "\n".join([*lines, *_study(results, name, file)])
    table = results / f"{name}.csv"
    if not table.exists():
        return "\n".join([*lines, f"File: {file}.", "", "No full run is saved.", ""])
    summary = pl.read_csv(table)
    lines += main_table(summary, experiment)
    claims = results / f"{name}-expected.csv"
    if claims.exists():
        lines += claims_section(pl.read_csv(claims), experiment)
    lines += differences_list(summary, experiment)
    kept = json.loads((results / f"{name}.json").read_text(encoding="utf-8"))
    saved = [
        file,
        *(f"[{path.name}](results/{path.name})" for path in (table, claims) if path.exists()),
    ]
    return "\n".join([*lines, _text(f"{_runs(summary, kept)}: {', '.join([*saved, _origin(name)])}."), ""])


def _study(results: Path, name: str, file: str) -> list[str]:
    """Which tables a full run of a study has left, and of what; only the experiment file where none was saved."""
    path = results / f"{name}.json"
    if not path.exists():
        return [f"File: {file}.", ""]
    kept = json.loads(path.read_text(encoding="utf-8"))
    links = ", ".join([file, *(f"[{table}](results/{table})" for table in kept["tables"]), _origin(name)])
    return [_text(f"{kept['cells']:,} pieces: {links}."), ""]


def _text(value: Any) -> str:
    return textwrap.fill(" ".join(str(value).split()), 120, break_long_words=False, break_on_hyphens=False)


def main_table(summary: pl.DataFrame, experiment: Mapping[str, Any]) -> list[str]:
    """The table of an experiment: the first thing that varies down, and all others, or else measures, across.

    Where more than one thing varies it shows the first measure. Published figures stand in brackets behind those of
    measures across.
    """
    labels, published = experiment.get("labels") or {}, experiment.get("published") or {}
    measures = shown_measures(experiment)
    varied = [name for name in summary.columns if name not in OWN + PROVENANCE]
    down, across = varied[0], varied[1:]
    cells = {(row["measure"], *(row[name] for name in varied)): row for row in summary.iter_rows(named=True)}
    rows = summary[down].unique(maintain_order=True).to_list()
    if across:
        settings = summary.select(across).unique(maintain_order=True).rows()
        heads = [", ".join(str(labels.get(str(value), value)) for value in setting) for setting in settings]
        cells_of_row = [[cells.get((measures[0], row, *setting)) for setting in settings] for row in rows]
        names = ", ".join(str(labels.get(name, name)) for name in across)
        head = f"{labels.get(measures[0], measures[0])}, by {names}:"
        return [head[0].upper() + head[1:], "", *_table(down, heads, rows, cells_of_row), ""]
    main = [measure for measure in measures if measure in published["measures"]] if published else None
    main = main or measures[:MAIN_MEASURES]
    heads = [str(labels.get(measure, measure)) for measure in main]
    table = _table(down, heads, rows, [[cells.get((measure, row)) for measure in main] for row in rows])
    if not published:
        return [*table, ""]
    figures = {
        str(row): dict(zip(published["measures"], cells_of_row)) for row, cells_of_row in published["rows"].items()
    }
    beside = [[figures.get(str(row), {}).get(measure) for measure in main] for row in rows]
    note = _text(f"In brackets: {published['source']}.")
    return [*table[:2], *map(_with_published, table[2:], beside), "", note, ""]


def _table(down: str, heads: list[str], rows: list[Any], cells: list[list[dict[str, Any] | None]]) -> list[str]:
    lines = ["| " + " | ".join([down, *heads]) + " |", "|---" * (len(heads) + 1) + "|"]
    for row, cells_of_row in zip(rows, cells):
        lines.append("| " + " | ".join([str(row), *map(_cell, cells_of_row)]) + " |")
    return lines


def _with_published(line: str, figures: list[float | None]) -> str:
    """A line of a table with published figures behind its own.

    >>> _with_published("| k = 2 | 0.81 ± 0.01 | 3 |", [0.815, None])
    '| k = 2 | 0.81 ± 0.01 (0.815) | 3 |'
    """
    name, *cells = line.strip("| ").split(" | ")
    shown = [cell if figure is None else f"{cell} ({figure:g})" for cell, figure in zip(cells, figures)]
    return "| " + " | ".join([name, *shown]) + " |"


def _cell(row: dict[str, Any] | None) -> str:
    """A mean, and its interval unless that is narrow.

    >>> [_cell({"mean": 10 * d, "low": 9 * d, "high": 11 * d}) for d in (0.2, 120.0)]
    ['2 ± 0.2', '1,200 ± 120']
    >>> _cell({"mean": 2.0, "low": 1.95, "high": 2.05})
    '2'
    """
    if row is None or row["mean"] is None or math.isnan(row["mean"]):
        return ""
    mean = f"{row['mean']:,.0f}" if abs(row["mean"]) >= 1000 else f"{round(row['mean'], 12):.3g}"
    if _narrow(row["mean"], row["low"], row["high"]):
        return mean
    below, above = row["mean"] - row["low"], row["high"] - row["mean"]
    if abs(above - below) > 0.1 * (above + below):  # near the limits of a measure
        return f"{mean} ({row['low']:.3g} to {row['high']:.3g})"
    return f"{mean} ± {below:,.0f}" if below >= 100 else f"{mean} ± {below:.2g}"


def _narrow(mean: float, low: float | None, high: float | None) -> bool:
    """Return whether an interval is left to the file; also where there is none."""
    if low is None or high is None or not math.isfinite(low):
        return True
    return max(mean - low, high - mean) <= NARROW * abs(mean)


def claims_section(claims: pl.DataFrame, experiment: Mapping[str, Any]) -> list[str]:
    """Every claim with its verdict: those on a figure of the published table, which stands above, in a sentence."""
    rows, stated = claims.to_dicts(), experiment["expected"]
    above = [_figure_above(claim, experiment) for claim in stated]
    lines = []
    for verdict in dict.fromkeys(row["verdict"] for row in rows):
        names = [name for name, row in zip(above, rows, strict=True) if name and row["verdict"] == verdict]
        if names:
            shown = verdict if verdict == "agrees" else f"**{verdict}**"
            lines.append(f"Claimed {WITHIN_TABLE} of the table, {shown}: {'; '.join(names)}.")
    table_lines = claims_table(claims.filter(pl.Series([not name for name in above], dtype=pl.Boolean)))
    if experiment.get("published"):
        table_lines = [line.replace(str(experiment["published"]["source"]), "that table") for line in table_lines]
    return [*(text for line in lines for text in (_text(line), "")), *table_lines]


def _figure_above(claim: Mapping[str, Any], experiment: Mapping[str, Any]) -> str:
    """The figure of the published table that a claim is about, named; empty if it is about something else."""
    published, labels = experiment.get("published"), experiment.get("labels") or {}
    if not published or claim.get("over") or not str(claim["source"]).endswith(WITHIN_TABLE):
        return ""
    (setting,) = map(str, claim["where"].values())
    known = {(row, measure) for row, measure, _ in published_figures(published)}
    measure = claim["measure"]
    return f"{labels.get(measure, measure)} at {setting}" if (setting, measure) in known else ""


def claims_table(claims: pl.DataFrame) -> list[str]:
    """Claims with what was allowed, what was found, and the verdict; the commonest source is told once."""
    if claims.is_empty():
        return []
    ((common, _),) = Counter(claims["source"].to_list()).most_common(1)
    others = " unless another is named" if claims["source"].n_unique() > 1 else ""
    lines = [f"Claims, by {common}{others}:", ""]
    lines += ["| Expected | Allowed | Found | |", "|---|---|---|---|"]
    for row in claims.iter_rows(named=True):
        says = row["says"] if row["source"] == common else f"{row['says']} ({row['source']})"
        value = "" if row["value"] is None else f"{row['value']:.3g}"
        close = row["verdict"] not in ("agrees", "differs")
        if row["low"] is not None and (close or not _narrow(row["value"], row["low"], row["high"])):
            value += f" ({row['low']:.3g} to {row['high']:.3g})"
        verdict = row["verdict"] if row["verdict"] == "agrees" else f"**{row['verdict']}**"
        lines.append(f"| {says} | {_allowed(row['at_least'], row['at_most'])} | {value} | {verdict} |")
    return [*lines, ""]


def _allowed(least: float | None, most: float | None) -> str:
    """Limits of a claim.

    >>> _allowed(0.93, 0.97), _allowed(None, 0.5)
    ('0.93 to 0.97', '≤ 0.5')
    """
    if least is None:
        return f"≤ {most:g}"
    return f"≥ {least:g}" if most is None else f"{least:g} to {most:g}"


def _runs(summary: pl.DataFrame, kept: dict[str, Any]) -> str:
    failed = f", of which {kept['failed']:,} failed" if kept["failed"] else ""
    level = f", intervals at {kept['confidence']:.0%}" if kept["confidence"] != 0.95 else ""
    return f"{kept['cells']:,} runs{failed}, {int(summary['n'].to_numpy().max())} seeds{level}"


def _origin(name: str) -> str:
    return f"[{name}.json](results/{name}.json)"
