"""Generate ``docs/experiments.md`` from the experiment files and the saved tables; called by ``docs/generate.py``."""

from __future__ import annotations

import json
import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from penstock.pipeline.config.run import read_text
from penstock.pipeline.config.yaml import parse, plain
from penstock.pipeline.experiments.results import DIGEST_DIGITS, shown_measures

#: A figure is that of a published table if it is as near: so much, or this share of it.
NEAR, NEAR_SHARE = 0.02, 0.1
DIFFERENCES_HEAD = ("| Figure | The paper | Here | Why, or what was tried |", "|---|---|---|---|")

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


def _near(found: float | None, figure: float) -> bool:
    return found is not None and abs(found - figure) <= max(NEAR, NEAR_SHARE * abs(figure))


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


def differences_table(summary: pl.DataFrame, experiment: Mapping[str, Any]) -> list[str]:
    """Every difference that the experiment file explains, as a Markdown table; nothing if it explains none."""
    ours, labels = measured(summary), experiment.get("labels") or {}
    far = far_figures(ours, experiment["published"]) if experiment.get("published") else {}
    rows = []
    for difference in experiment.get("differences") or ():
        about = explained(difference, far)
        names = [
            (str(labels.get(name, name)), [pair for pair in about if pair[1] == name])
            for name in difference["measures"]
        ]
        figure = "; ".join(f"{name}: {', '.join(setting for setting, _ in pairs)}" for name, pairs in names if pairs)
        paper = difference.get("paper") or _listed(names, far)
        why = " ".join(str(difference["why"]).split()).replace("|", "\\|")  # else it would end the table's cell
        rows.append(f"| {figure} | {paper} | {_listed(names, ours)} | {why} |")
    return ["Where it differs:", "", *DIFFERENCES_HEAD, *rows, ""] if rows else []


def _listed(names: list[tuple[str, list[tuple[str, str]]]], figures: Measured) -> str:
    return "; ".join(", ".join(f"{round(figures[pair], 6):.3g}" for pair in pairs) for _, pairs in names if pairs)


PAPERS_HEAD = "| Figure | What it shows | Here | As in the paper? |"
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
    lines = ["## Figure by figure", ""]
    for paper in plain(root) if root is not None else ():
        lines += [f"**{paper['paper']}**", "", PAPERS_HEAD, "|---|---|---|---|"]
        for entry in paper["figures"]:
            here, found, verdict = _entry(entry, experiments, results)
            marked = verdict if verdict in PLAIN else f"**{verdict}**"
            told = f"{marked}: {found}" if found else marked
            lines.append(f"| {entry['figure']} | {entry['shows']} | {here} | {told} |")
        lines.append("")
    return "\n".join(lines)


def _entry(entry: dict[str, Any], experiments: dict[str, dict[str, Any]], results: Path) -> tuple[str, str | None, str]:
    """Where the result is, what was found, and the verdict."""
    name = entry.get("experiment")
    if name is None:
        page = entry.get("page")
        return (f"[{page.partition('#')[0]}]({page})" if page else "–"), entry["found"], entry["verdict"]
    if name not in experiments:
        return "–", None, NOT_RUN
    found, verdict = _measured(experiments[name], name, results)
    return f"[{name}](#{name})", found, verdict


def _measured(experiment: dict[str, Any], name: str, results: Path) -> tuple[str | None, str]:
    """What saved results say of an experiment's claims, or of the published table that it repeats."""
    table, claims = results / f"{name}.csv", results / f"{name}-expected.csv"
    if not table.exists():
        return None, NOT_RUN
    if experiment.get("published"):
        near, n = compare(pl.read_csv(table), experiment["published"])
        share = near / n if n else 0.0
        verdict = "agrees" if share >= MOST else "in part" if share >= MANY else "differs"
        return f"{near} of {n} figures within {NEAR_SHARE:.0%} or {NEAR:g}", verdict
    if not claims.exists():
        return "the published table is not at hand", "no numbers"
    verdicts = Counter(pl.read_csv(claims)["verdict"].to_list())
    told = ", ".join(f"{n} {'claim' if n == 1 else 'claims'}: {verdict}" for verdict, n in verdicts.items())
    agreed = verdicts["agrees"]
    return told, "agrees" if agreed == verdicts.total() else "in part" if agreed else "differs"


def compare(summary: pl.DataFrame, published: dict[str, Any]) -> tuple[int, int]:
    """How many figures of a published table ours are near to, and how many it has.

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

Written by `make docs` from `configs/experiments/` and the small tables in `docs/results/`, which full runs have left
with `--save`. How to run one and what is in its file: [experiment_files.md](experiment_files.md).
Numbers are means over seeds with their interval.
"""
OWN = ("measure", "unit", "n", "mean", "low", "high", "standard_deviation", "minimum", "maximum")
PROVENANCE = ("configuration", "inputs", "versions")


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
    lines += _tables(summary, shown_measures(experiment), labels, published)
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
    if row is None or row["mean"] is None or math.isnan(row["mean"]):
        return ""
    mean = f"{row['mean']:,.0f}" if abs(row["mean"]) >= 1000 else f"{round(row['mean'], 12):.3g}"
    if row["low"] is None or not math.isfinite(row["low"]) or row["low"] == row["high"]:
        return mean
    below, above = row["mean"] - row["low"], row["high"] - row["mean"]
    if abs(above - below) > 0.1 * (above + below):  # near the limits of a measure
        return f"{mean} ({row['low']:.3g} to {row['high']:.3g})"
    return f"{mean} ± {below:.2g}"


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
    inputs = ", ".join(f"`{text[:DIGEST_DIGITS]}`" for text in kept["inputs"])
    read = f"input digest {inputs}; " if inputs else ""
    return read + ", ".join(f"{name} {version}" for name, version in kept["versions"].items())
