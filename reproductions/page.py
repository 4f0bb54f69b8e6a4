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
from reproductions.saved import ROOT, written

#: A figure is that of a published table if it is as near: so much, or this share of it.
NEAR, NEAR_SHARE = 0.02, 0.1
#: How a source says that a claim is on one figure of the published table.
WITHIN_TABLE = f"within {100 * NEAR_SHARE:.0f} % or {NEAR:g}"
#: A half-width of an interval that is a smaller share of its mean is left to the file.
NARROW = 0.05

Measured = Mapping[tuple[str, str], float]


def measured(summary: pl.DataFrame) -> dict[tuple[str, str], float]:
    """Index the means by the first varied parameter (as text) and by measure."""
    down = summary.columns[0]
    return {(str(row[down]), row["measure"]): row["mean"] for row in summary.iter_rows(named=True)}


def published_figures(published: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield the setting, measure and value of every published number."""
    for setting, figures in published["rows"].items():
        for measure, figure in zip(published["measures"], figures):
            if figure is not None:
                yield str(setting), measure, figure


def distant_figures(ours: Measured, published: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """Return the published figures that are far from ours, by setting and measure.

    Examples
    --------
    >>> ours = {("a", "mae"): 1.05, ("b", "mae"): 3.0}
    >>> distant_figures(ours, {"measures": ["mae"], "rows": {"a": [1.0], "b": [2.0], "c": [None]}})
    {('b', 'mae'): 2.0}
    """
    return {
        (setting, measure): figure
        for setting, measure, figure in published_figures(published)
        if not _is_near(ours.get((setting, measure)), figure)
    }


def _is_near(ours: float | None, figure: float) -> bool:
    return ours is not None and abs(ours - figure) <= max(NEAR, NEAR_SHARE * abs(figure))


NOT_RUN = "not run in full yet"
#: Shares of a table's figures that are near, from which on it agrees, or agrees in part.
MOST, MANY = 0.9, 0.4
PLAIN = ("agrees", "no data", "no numbers", NOT_RUN)


def papers_section(index: Path, experiments: dict[str, dict[str, Any]], results: Path) -> str:
    """Format a Markdown list for each paper.

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
        f"A figure is near if {WITHIN_TABLE} of the paper's, and small if it is at most {NEAR} itself.",
        "",
    ]
    for paper in plain(root) if root is not None else ():
        lines += [f"**{paper['paper']}**", ""]
        for entry in paper["figures"]:
            link, finding, verdict = _entry(entry, experiments, results)
            linked = f"[{verdict}]({link})" if link else verdict
            marked = linked if verdict in PLAIN else f"**{linked}**"
            cell = f"{marked}: {finding}" if finding else marked
            lines.append(f"* {entry['figure']}: {entry['shows']}. {cell[0].upper()}{cell[1:]}")
        lines.append("")
    return "\n".join(lines)


def _entry(
    entry: dict[str, Any], experiments: dict[str, dict[str, Any]], results: Path
) -> tuple[str | None, str | None, str]:
    """Return the link to the result, the finding in words, and the verdict."""
    name = entry.get("experiment")
    if name is None:
        return entry.get("page"), entry.get("found"), entry["verdict"]
    if name not in experiments:
        return None, None, NOT_RUN
    return f"#{name}", *_judge_saved(experiments[name], name, results)


def _judge_saved(experiment: dict[str, Any], name: str, results: Path) -> tuple[str | None, str]:
    """Judge saved results by an experiment's claims, or by the published table that it reproduces."""
    table, claims = results / f"{name}.csv", results / f"{name}-expected.csv"
    if not table.exists():
        return None, NOT_RUN
    if experiment.get("published"):
        near, n = compare(pl.read_csv(table), experiment["published"])
        share = near / n if n else 0.0
        verdict = "agrees" if share >= MOST else "in part" if share >= MANY else "differs"
        n_small = sum(abs(figure) <= NEAR for _, _, figure in published_figures(experiment["published"]))
        small = f" ({n_small} small)" if n_small else ""
        return f"{near} of {n} figures near{small}", verdict
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
    """Return how many figures of a published table are close to ours, and how many there are.

    Examples
    --------
    >>> ours = pl.DataFrame({"variant": ["a", "b"], "measure": ["mae"] * 2, "mean": [1.05, 3.0]})
    >>> compare(ours, {"measures": ["mae"], "rows": {"a": [1.0], "b": [2.0], "c": [1.0]}})
    (1, 3)
    """
    n = sum(1 for _ in published_figures(published))
    return n - len(distant_figures(measured(summary), published)), n


HEADER = """\
# What the experiments show

For each experiment its question, what came out, and the claims that do not hold. Its files: the configuration, which
says what ran and how comparable it is (`setting`); `means` with their 95 % intervals over seeds; `claims` with what was
allowed beforehand and what was found; `published` figures, and why ours differ; `versions` and inputs. A claim *agrees*
if its whole interval is within what is allowed, *differs* if none of it is. Written by `python -m reproductions --page`
([run one yourself](../docs/experiment_files.md)).
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
    if experiment.get("conclusion"):
        lines += [_text(f"**What came out.** {experiment['conclusion']}"), ""]
    file = f"[configuration]({os.path.relpath(path, ROOT)})"
    if "study" in experiment:
        return "\n".join([*lines, *_study(results, name, file)])
    table = results / f"{name}.csv"
    if not table.exists():
        return "\n".join([*lines, f"File: {file}.", "", "No full run is saved.", ""])
    summary = pl.read_csv(table)
    claims = results / f"{name}-expected.csv"
    if claims.exists():
        lines += claims_section(pl.read_csv(claims), experiment)
    kept = json.loads((results / f"{name}.json").read_text(encoding="utf-8"))
    tables = {
        "means": f"results/{table.name}",
        "claims": f"results/{claims.name}" if claims.exists() else None,
        "published": f"shown/{name}.yaml" if experiment.get("published") else None,
    }
    linked = [file, *(f"[{what}]({link})" for what, link in tables.items() if link), _origin(name)]
    return "\n".join([*lines, _text(f"{_runs(summary, kept)}: {', '.join(linked)}."), ""])


def _study(results: Path, name: str, file: str) -> list[str]:
    """Return a section on a study's saved tables and subjects, or only its experiment file if none was saved."""
    path = results / f"{name}.json"
    if not path.exists():
        return [f"File: {file}.", ""]
    kept = json.loads(path.read_text(encoding="utf-8"))
    links = ", ".join([file, *(f"[{table}](results/{table})" for table in kept["tables"]), _origin(name)])
    return [_text(f"{kept['cells']:,} pieces: {links}."), ""]


def _text(value: Any) -> str:
    return textwrap.fill(" ".join(str(value).split()), 120, break_long_words=False, break_on_hyphens=False)


def _narrow(mean: float, low: float | None, high: float | None) -> bool:
    """Return whether an interval is missing or narrow enough to omit."""
    if low is None or high is None or not math.isfinite(low):
        return True
    return max(mean - low, high - mean) <= NARROW * abs(mean)


def claims_section(claims: pl.DataFrame, experiment: Mapping[str, Any]) -> list[str]:
    """Count the confirmed claims, and list all other claims with their verdicts, or what all confirmed ones are on."""
    labels, figures = experiment.get("labels") or {}, _table_figures(experiment)
    lines, n_agreed = [], 0
    for row, claim in zip(claims.iter_rows(named=True), experiment["expected"], strict=True):
        if row["verdict"] == "agrees":
            n_agreed += 1
            continue
        figure = _figure_above(claim, figures)
        says = f"{labels.get(figure[1], figure[1])} at {figure[0]}, as published" if figure else row["says"]
        lines.append(
            f"* **{row['verdict']}**: {says} ({_limits_in_words(row['at_least'], row['at_most'])}): {_value(row)}"
        )
    words = f"{n_agreed} of {claims.height} claims {'agrees' if n_agreed == 1 else 'agree'}"
    if lines:
        return [f"{words}:", "", *lines, ""]
    about = dict.fromkeys(labels.get(claim["measure"], claim["measure"]) for claim in experiment["expected"])
    return [_text(f"{words}, on {', '.join(about)}."), ""]


def _table_figures(experiment: Mapping[str, Any]) -> set[tuple[str, str]]:
    published = experiment.get("published")
    return {(setting, measure) for setting, measure, _ in published_figures(published)} if published else set()


def _figure_above(claim: Mapping[str, Any], figures: set[tuple[str, str]]) -> tuple[str, str] | None:
    """Return the setting and measure of the published figure behind a claim, or None for other claims."""
    if claim.get("over") or not str(claim["source"]).endswith(WITHIN_TABLE):
        return None
    (setting,) = map(str, claim["where"].values())
    return (setting, claim["measure"]) if (setting, claim["measure"]) in figures else None


def _value(row: Mapping[str, Any]) -> str:
    """Format a measured value with its interval, unless the interval is narrow.

    >>> _value({"value": 1.01, "low": 0.99, "high": 1.3, "verdict": "differs"})
    '1.01 (0.99 to 1.3)'
    """
    value = "" if row["value"] is None else f"{row['value']:.3g}"
    close = row["verdict"] not in ("agrees", "differs")
    if row["low"] is not None and (close or not _narrow(row["value"], row["low"], row["high"])):
        value += f" ({row['low']:.3g} to {row['high']:.3g})"
    return value


def _limits_in_words(least: float | None, most: float | None) -> str:
    """Format the limits of a claim.

    >>> _limits_in_words(0.93, 0.97), _limits_in_words(None, 0.5)
    ('0.93 to 0.97', '≤ 0.5')
    """
    if least is None:
        return f"≤ {most:g}"
    return f"≥ {least:g}" if most is None else f"{least:g} to {most:g}"


def _runs(summary: pl.DataFrame, kept: dict[str, Any]) -> str:
    failed = f", of which {kept['failed']:,} failed" if kept["failed"] else ""
    level = f", intervals at {kept['confidence']:.0%}" if kept["confidence"] != 0.95 else ""
    n_seeds = int(summary["n"].to_numpy().max())
    return f"{kept['cells']:,} runs{failed}, {n_seeds} {'seed' if n_seeds == 1 else 'seeds'}{level}"


def _origin(name: str) -> str:
    return f"[versions](results/{name}.json)"
