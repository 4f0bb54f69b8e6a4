"""The advice of an experiment on its page: the limits, the best setting and its configuration, and every other one."""

from __future__ import annotations

from typing import Any

import polars as pl

from pipeline.reporting.experiment import Experiment, frame_table
from pipeline.reporting.markup import Html, element, join
from pipeline.reporting.packed import pack
from pipeline.reporting.provenance import listing
from pipeline.reporting.verdict import Headline, headlines
from pipeline.reporting.words import number, plural

LIMITS = (("at_least", "at least"), ("at_most", "at most"))


def choice_section(experiment: Experiment) -> Html | None:
    """Limits, best setting, frontier and table; None where nothing was to be chosen."""
    choice = experiment.manifest.get("choice")
    if not choice:
        return None
    parts: list[Html | None] = [element("p", _found(experiment, choice)), _best(experiment, choice)]
    table = _table(experiment)
    if table is not None:
        parts.append(element("div", id="frontier"))
        parts.append(frame_table(_shown(experiment, table), "Every setting: which limits it keeps, and its figures"))
    return join(*parts)


def _found(experiment: Experiment, choice: dict[str, Any]) -> str:
    limits = "; ".join(
        f"{experiment.label(name)} {words} {number(choice[side][name])}"
        for side, words in LIMITS
        for name in experiment.in_order(choice.get(side) or {})
    )
    table = _table(experiment)
    has_intervals = table is not None and any(table[n].count() for n in table.columns if n.startswith("low "))
    judged = " with its whole interval" if choice.get("judge_by") == "interval" and has_intervals else ""
    keep = "keeps" if choice["allowed"] == 1 else "keep"
    kept = f"Of {plural(choice['settings'], 'setting')} {choice['allowed']:,} {keep} every limit{judged}: {limits}."
    if choice.get("best"):
        return kept
    return f"{kept} Nothing can be advised: ask for less, or spend more."


def _best(experiment: Experiment, choice: dict[str, Any]) -> Html | None:
    """The best setting, its figures against their limits, and its configuration to run."""
    best = choice.get("best")
    if not best:
        return None
    numbers = [
        Headline(
            experiment.label(name), number(best["means"][name]), "", f"limit: {words} {number(choice[side][name])}"
        )
        for side, words in LIMITS
        for name in experiment.in_order(choice.get(side) or {})
        if name in best["means"]
    ]
    path = experiment.folder / "best.yaml"
    configuration = None
    if path.is_file():
        text = path.read_text(encoding="utf-8")
        told = element("summary", "Configuration of the best setting, ready to run")
        configuration = element("details", told, listing(text, "Configuration of the best setting"))
    title = element("p", element("strong", f"Best: {experiment.setting(best['values'])}."))
    return join(title, headlines("Best setting", numbers) if numbers else None, configuration)


def _table(experiment: Experiment) -> pl.DataFrame | None:
    path = experiment.folder / "frontier.parquet"
    return pl.read_parquet(path) if path.is_file() else None


def _shown(experiment: Experiment, table: pl.DataFrame) -> pl.DataFrame:
    """Names as people read them; intervals are in the CSV of the chart."""
    marks = [name for name in ("best", "allowed", "frontier") if name in table.columns]
    means = [name for name in table.columns if name.startswith("mean ")]
    varied = [name for name in experiment.manifest["varied"] if name in table.columns]
    names = {"allowed": "keeps every limit", "frontier": "on the frontier"}
    names |= {name: experiment.label(name.removeprefix("mean ")) for name in means}
    names |= {name: experiment.label(name) for name in varied}
    if marks:
        table = table.sort([pl.col(mark) for mark in marks], descending=True, maintain_order=True)
    return table.select(*varied, *marks, *means).rename(names)


def frontier(experiment: Experiment) -> dict[str, Any] | None:
    """What the page's script draws: every setting by its limited measures."""
    table, choice = _table(experiment), experiment.manifest.get("choice")
    if table is None or not choice:
        return None
    measures = []
    for name in experiment.in_order((choice.get("at_least") or {}) | (choice.get("at_most") or {})):
        if f"mean {name}" not in table.columns:
            continue
        at_least = name in (choice.get("at_least") or {})
        sides = {side: pack(table[f"{side} {name}"].cast(pl.Float64).fill_null(float("nan"))) for side in SIDES}
        limit = choice["at_least" if at_least else "at_most"][name]
        measures.append({"label": experiment.label(name), "limit": limit, "atLeast": at_least} | sides)
    if not measures:
        return None
    varied = experiment.manifest["varied"]
    rows = table.select(varied).to_dicts()
    first = varied[0] if varied else None
    return {
        "measures": measures,
        "settings": [experiment.setting(row) for row in rows],
        "group": [str(row[first]) if first else "" for row in rows],
        "allowed": pack(table["allowed"]),
        "best": pack(table["best"]),
    }


SIDES = ("mean", "low", "high")
