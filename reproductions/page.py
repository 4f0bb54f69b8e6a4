"""Generate ``experiments.md`` from experiment files and saved tables. Run with ``python -m reproductions --page``."""

from __future__ import annotations

import json
import math
import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from penstock.pipeline.config.run import read_text
from penstock.pipeline.config.yaml import parse, plain
from reproductions.saved import ROOT, written

#: A figure is that of a published table if it is as near: so much, or this share of it.
NEAR, NEAR_SHARE = 0.02, 0.1
#: A half-width of an interval that is a smaller share of its mean is left to the file.
NARROW = 0.05
#: Shares of a table's figures that are near, from which on it agrees, or agrees in part.
MOST, MANY = 0.9, 0.4
#: A number of seeds that goes without saying.
SEEDS = 10
#: Whose claims have no paper as a source.
OURS = "our own"
#: What ends the name of a setting in the box that decides the errors over all cells.
SECOND_BOX = ", second box"
PLAIN = ("agrees", "no data", "no numbers")


def published_figures(published: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield the setting, measure and value of every published figure."""
    for setting, figures in published["rows"].items():
        for measure, figure in zip(published["measures"], figures):
            if figure is not None:
                yield str(setting), measure, figure


def distant_figures(summary: pl.DataFrame, published: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """Return the published figures that differ from our means, by setting (the first column) and measure.

    >>> ours = pl.DataFrame({"variant": ["a", "b"], "measure": ["mae"] * 2, "mean": [1.05, 3.0]})
    >>> distant_figures(ours, {"measures": ["mae"], "rows": {"a": [1.0], "b": [2.0], "c": [None]}})
    {('b', 'mae'): 2.0}
    """
    ours = means_by_figure(summary)
    return {
        (setting, measure): figure
        for setting, measure, figure in published_figures(published)
        if abs(ours.get((setting, measure), math.inf) - figure) > max(NEAR, NEAR_SHARE * abs(figure))
    }


def means_by_figure(summary: pl.DataFrame) -> dict[tuple[str, str], float]:
    """Return our means, by setting (the first column) and measure."""
    rows = summary.select(summary.columns[0], "measure", "mean").iter_rows()
    return {(str(setting), measure): mean for setting, measure, mean in rows}


def published_table(
    summary: pl.DataFrame, published: Mapping[str, Any], labels: Mapping[str, str] | None = None
) -> list[str]:
    """Format a published table in Markdown, with our means before each figure. Figures are bold where the first mean
    differs. Where a figure is not known, our means stand alone.

    >>> ours = pl.DataFrame({"variant": ["a", "b"], "measure": ["mae"] * 2, "mean": [1.049, 3.0]})
    >>> published_table(ours, {"measures": ["mae"], "rows": {"a": [1.0], "b": [2.0]}}, {"mae": "error"})
    ['|ours/published|error|', '|-|-|', '|a|1.05/1|', '|b|**3/2**|', '']
    """
    ours, far = means_by_figure(summary), distant_figures(summary, published)
    stated = {(setting, measure): figure for setting, measure, figure in published_figures(published)}
    measures = published["measures"]
    boxed = any((setting + SECOND_BOX, measures[0]) in ours for setting in map(str, published["rows"]))
    kind = "quoted" if "quoted" in published.get("source", "") else "published"
    title = "/".join(["|ours", *["second box"] * boxed, *[kind] * bool(stated)])
    lines = ["|".join([title, *((labels or {}).get(name, name) for name in measures), ""])]
    lines.append("|-" * (1 + len(measures)) + "|")
    for setting in map(str, published["rows"]):
        cells = [f"|{setting}"]
        for place in ((setting, measure) for measure in measures):
            mark, boxes = "**" * (place in far), [place, (setting + SECOND_BOX, place[1])][: 1 + boxed]
            means = "/".join(f"{round(ours[one], 4):.3g}" if one in ours else "" for one in boxes)
            cells.append(f"{mark}{means}/{stated[place]:.3g}{mark}" if place in stated else means)
        lines.append("|".join([*cells, ""]))
    return [*lines, ""]


def papers_section(index: Path, experiments: dict[str, dict[str, Any]], results: Path) -> str:
    """Format a Markdown list of reproduced results for each paper.

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
    lines = [
        "## Figure by figure",
        "",
        f"A figure is near if within {100 * NEAR_SHARE:.0f} % or {NEAR:g} of the paper's, else **bold**; small if at "
        f"most {NEAR:g}.",
        "",
    ]
    for paper in plain(root) if root is not None else ():
        lines += [f"**{paper['paper']}**", ""]
        for entry in paper["figures"]:
            link, finding, verdict = entry.get("page"), entry.get("found"), entry.get("verdict")
            if name := entry.get("experiment"):
                link, (finding, verdict) = f"#{name}", _judge_saved(experiments[name], name, results)
            linked = f"[{verdict}]({link})" if link else verdict
            marked = linked if verdict in PLAIN else f"**{linked}**"
            cell = f"{marked}: {finding}" if finding else marked
            lines.append(f"* {entry['figure']}: {entry['shows']}. {cell[0].upper()}{cell[1:]}")
        lines.append("")
    return "\n".join(lines)


def _judge_saved(experiment: dict[str, Any], name: str, results: Path) -> tuple[str, str]:
    """Compare saved results with the experiment's published table or claims, and return the verdict."""
    if published := experiment.get("published"):
        figures = [abs(figure) for _, _, figure in published_figures(published)]
        near = len(figures) - len(distant_figures(pl.read_csv(results / f"{name}.csv"), published))
        share, n_small = near / len(figures), sum(figure <= NEAR for figure in figures)
        verdict = "agrees" if share >= MOST else "in part" if share >= MANY else "differs"
        return f"{near} of {len(figures)} figures near" + (f" ({n_small} small)" if n_small else ""), verdict
    claims = pl.read_csv(results / f"{name}-expected.csv")
    by_source = _agreed_by_source(claims)
    judged = [counts for source, counts in by_source.items() if source != OURS] or list(by_source.values())
    agreed, n = (sum(column) for column in zip(*judged))
    return _agreed(claims), "agrees" if agreed == n else "in part" if agreed else "differs"


def _agreed_by_source(claims: pl.DataFrame) -> dict[str, tuple[int, int]]:
    """Count how many claims agree, and how many there are, for each paper. Claims without a year are our own."""
    counts: dict[str, tuple[int, int]] = {}
    for source, verdict in claims.select("source", "verdict").iter_rows():
        paper = re.match(r".*?\b\d{4}\b", source)
        key = paper[0] if paper else OURS
        agreed, n = counts.get(key, (0, 0))
        counts[key] = agreed + (verdict == "agrees"), n + 1
    return dict(sorted(counts.items(), key=lambda item: item[0] == OURS))


def _agreed(claims: pl.DataFrame) -> str:
    """Describe how many claims are confirmed, separately for each paper if there are several.

    >>> _agreed(pl.DataFrame({"source": ["the aim", "A and B 2022, on counts"], "verdict": ["agrees", "differs"]}))
    'Claims of A and B: 0 of 1 agree, our own: 1 of 1'
    """
    by_source = _agreed_by_source(claims)
    words: list[str] = []
    for source, (agreed, n) in by_source.items():
        verb = "agrees" if agreed == 1 else "agree"
        if len(by_source) == 1:
            return f"{agreed} of {n} claims {verb}"
        name = re.sub(r" \d{4}$", "", source)
        words.append(f"{name}: {agreed} of {n}" if words else f"Claims of {name}: {agreed} of {n} {verb}")
    return ", ".join(words)


HEADER = """\
# What the experiments show

For each experiment its question, its result, the claims that do not hold, and the paper's table behind ours. Its files:
the configuration with its `setting`; `means` with 95 % intervals over seeds, ten unless said; `claims` and what was
measured; `published` figures (*quoted* ones were quoted to us: the copy at hand lacks them, and tables 16, 20 and 24
altogether; without any, ours stand alone), and why ours differ; versions and inputs. A claim *agrees* if its whole
interval is within what is allowed, *differs* if none of it is.
Written by `python -m reproductions --page`.
"""


def experiments_page(paths: Iterable[Path], results: Path, papers: Path | None = None) -> str:
    """Return the page as Markdown.

    Parameters
    ----------
    paths
        Experiment files.
    results
        Folder that `save` has filled; an experiment without a table says that no full run is saved.
    papers
        Index of the papers' figures, for a table of them on top; see `papers_section`.
    """
    experiments = {path: written(path) for path in paths}
    by_name = {str(experiment["name"]): experiment for experiment in experiments.values()}
    figures = [papers_section(papers, by_name, results)] if papers else []
    return "\n".join([HEADER, *figures, *(_section(one, path, results) for path, one in experiments.items())])


def _section(experiment: dict[str, Any], path: Path, results: Path) -> str:
    name = str(experiment["name"])
    lines = [f"## {name}", "", _text(experiment["question"]), ""]
    if experiment.get("conclusion"):
        lines += [_text(f"**Result.** {experiment['conclusion']}"), ""]
    links = [f"[configuration]({os.path.relpath(path, ROOT)})"]
    saved = results / f"{name}.json"
    if not saved.exists():
        return "\n".join([*lines, f"No full run is saved: {links[0]}.", ""])
    kept = json.loads(saved.read_text(encoding="utf-8"))
    if "tables" in kept:
        runs = f"{kept['cells']:,} pieces"
        links += [f"[{table}](results/{table})" for table in kept["tables"]]
    else:
        n_seeds = pl.read_csv(results / f"{name}.csv")["n"].to_numpy().max()
        seeds = "" if n_seeds == SEEDS else ", 1 seed" if n_seeds == 1 else f", {n_seeds} seeds"
        runs = f"{kept['cells']:,} runs{seeds}"
        links.append(f"[means](results/{name}.csv)")
        claims = results / f"{name}-expected.csv"
        if claims.exists():
            lines += claims_section(pl.read_csv(claims), experiment)
            links.append(f"[claims](results/{claims.name})")
        if published := experiment.get("published"):
            lines += published_table(pl.read_csv(results / f"{name}.csv"), published, experiment.get("labels"))
            if any(published["rows"].values()):
                links.append(f"[published](shown/{name}.yaml)")
    return "\n".join([*lines, _text(f"[{runs}](results/{name}.json): {', '.join(links)}."), ""])


def _text(value: Any) -> str:
    return textwrap.fill(" ".join(str(value).split()), 120, break_long_words=False, break_on_hyphens=False)


def claims_section(claims: pl.DataFrame, experiment: Mapping[str, Any]) -> list[str]:
    """List the claims that are not confirmed and count the others, or list the subjects if all are."""
    lines = [
        f"* **{row['verdict']}**: {row['says']} ({_describe_limits(row['at_least'], row['at_most'])}): {_value(row)}"
        for row in claims.iter_rows(named=True)
        if row["verdict"] != "agrees"
    ]
    words = _agreed(claims)
    if lines:
        return [f"{words}:", "", *lines, ""]
    labels = experiment.get("labels") or {}
    measures = dict.fromkeys(labels.get(claim["measure"], claim["measure"]) for claim in experiment["expected"])
    return [_text(f"{words}, on {', '.join(measures)}."), ""]


def _value(row: Mapping[str, Any]) -> str:
    """Format a measured value. The interval is added unless the verdict is clear and the interval is narrow.

    >>> _value({"value": 1.01, "low": 0.99, "high": 1.3, "verdict": "differs"})
    '1.01 [0.99, 1.3]'
    """
    value, low, high = row["value"], row["low"], row["high"]
    wide = low is not None and max(value - low, high - value) > NARROW * abs(value)
    shown = low is not None and (wide or row["verdict"] != "differs")
    return f"{value:.3g}" + (f" [{low:.3g}, {high:.3g}]" if shown else "")


def _describe_limits(least: float | None, most: float | None) -> str:
    """Describe the limits of a claim.

    >>> _describe_limits(0.93, 0.97), _describe_limits(None, 0.5)
    ('0.93–0.97', '≤ 0.5')
    """
    if least is None:
        return f"≤ {most:g}"
    return f"≥ {least:g}" if most is None else f"{least:g}–{most:g}"
