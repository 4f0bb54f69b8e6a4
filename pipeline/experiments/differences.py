"""Published figures beside what came out: which are near, and why the others are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

#: A figure is that of a published table if it is as near: so much, or this share of it.
NEAR, NEAR_SHARE = 0.02, 0.1
HEAD = ("| Figure | The paper | Here | Why, or what was tried |", "|---|---|---|---|")

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
    return ["Where it differs:", "", *HEAD, *rows, ""] if rows else []


def _listed(names: list[tuple[str, list[tuple[str, str]]]], figures: Measured) -> str:
    return "; ".join(", ".join(f"{round(figures[pair], 6):.3g}" for pair in pairs) for _, pairs in names if pairs)
