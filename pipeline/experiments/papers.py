"""Figure by figure: what the papers show, where ours is, and whether the two agree."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.configuration.document import plain
from pipeline.configuration.reader import parse
from pipeline.configuration.run import read_text
from pipeline.experiments.differences import NEAR, NEAR_SHARE, far_figures, measured, published_figures

HEAD = "| Figure | What it shows | Here | As in the paper? |"
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
        lines += [f"**{paper['paper']}**", "", HEAD, "|---|---|---|---|"]
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
