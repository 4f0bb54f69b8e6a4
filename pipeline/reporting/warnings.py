"""What a reader must know before he trusts or publishes anything: one short note each, the gravest first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from pipeline.reporting.counts import ACTIONS
from pipeline.reporting.markup import Html, element
from pipeline.reporting.run_data import RunData
from pipeline.reporting.verdict import promises, with_values
from pipeline.reporting.words import number, percent, phrase, plural

Level = Literal["danger", "caution", "note"]
WORDS = {"danger": "Danger", "caution": "Caution", "note": "Note"}

#: A period's budget is nearly spent when less than this share of it is left.
NEARLY = 0.1
#: A fate other than "used" is worth a caution from this share of the rows on.
MANY_ROWS = 0.01


@dataclass(frozen=True)
class Notice:
    """One note.

    Parameters
    ----------
    level
        How grave.
    title, text
        In a few words, and in a sentence or two.
    """

    level: Level
    title: str
    text: str


def warnings(run: RunData) -> list[Notice]:
    """All that apply, the gravest first."""
    found = [*_guarantee(run), *_progress(run), *_windows(run), *_books(run), *_budget(run), *_rows(run), *_shown(run)]
    return sorted(found, key=lambda warning: list(WORDS).index(warning.level))


def as_html(found: list[Notice]) -> Html | None:
    """A list of notes; the level is a word, never colour alone."""
    if not found:
        return None
    items = [
        element(
            "li",
            element("strong", f"{WORDS[w.level]}: {w.title}."),
            " ",
            w.text,
            class_=w.level,
        )
        for w in found
    ]
    return element("ul", *items, class_="warnings", aria_label="Warnings")


def _guarantee(run: RunData) -> list[Notice]:
    public, found = run.files.public, []
    if not any(map(promises, public["guarantee"])):
        text = "What was released carries no promise of privacy. Do not publish it."
        found.append(Notice("danger", "no guarantee", text))
    if public["mode"] == "simulation":
        found.append(Notice("caution", "unfit for publication", public["notice"]))
    if not public.get("distinct_people", True):
        text = "The source knows trips, not people: a person who travels twice counts twice and is protected per trip."
        found.append(Notice("caution", "trips, not people", text))
    return found


def _progress(run: RunData) -> list[Notice]:
    manifest = run.files.operator
    if manifest is None:
        return [Notice("note", "the run goes on", "Everything here is provisional until it has ended.")]
    if manifest["exit"]["code"] != 0:
        text = f"{manifest['exit']['reason']}. What follows covers the windows released before."
        return [Notice("danger", "the run stopped early", text)]
    return []


def _windows(run: RunData) -> list[Notice]:
    if run.counts is None:
        return []
    windows = run.counts.windows
    refused = windows.index[windows.action == ACTIONS.index("refused")].tolist()
    if not refused:
        return []
    which = ", ".join(map(str, refused[:8])) + (" …" if len(refused) > 8 else "")
    text = f"No budget was left for {plural(len(refused), 'window')} ({which}): they show an earlier release again."
    return [Notice("caution", "refused windows", text)]


def _books(run: RunData) -> list[Notice]:
    found = []
    for figure in run.figures:
        if math.isinf(figure.value) and figure.value > 0 and not figure.name.endswith("_left"):
            compared = with_values(figure.adjacency, run.configuration)
            text = f"{figure.accountant} knows no bound for {phrase(figure.name)} ({compared})."
            found.append(Notice("caution", f"{phrase(figure.name)} is infinite", text))
    provisional = {f.accountant for f in run.figures} - {f.accountant for f in run.figures if f.final}
    if provisional and run.is_over:
        text = f"Later releases over the same events can still raise the figures of {', '.join(sorted(provisional))}."
        found.append(Notice("caution", "provisional figures", text))
    if any(own.get("method") == "paper" for own in run.configuration.get("accountants") or ()):
        text = "The landmark loss is the paper's, which can be too small. The method sound never understates it."
        found.append(Notice("caution", "a figure that may understate", text))
    if not run.configuration.get("accountants"):
        text = "The configuration names no accountant, so what the releases cost together is not known."
        found.append(Notice("caution", "nobody kept the books", text))
    return found


def _budget(run: RunData) -> list[Notice]:
    if run.accounts.is_empty():
        return []
    last: dict[str, Any] = {}
    for name in ("budget_left", "budget_spent"):
        rows = run.accounts.filter((pl.col("name") == name) & pl.col("window").is_not_null())
        if rows.is_empty():
            return []
        last[name] = rows.sort("window", maintain_order=True)["value"][-1]
    total = last["budget_left"] + last["budget_spent"]
    if last["budget_left"] > NEARLY * total:
        return []
    left = "all" if last["budget_left"] <= 1e-9 * total else percent(last["budget_spent"], total)
    text = (
        f"At the last window {left} of the period's {number(total)} nats is spent. A budget schedule plans for that; "
        "any further charge in this period would be refused or stop the run."
    )
    return [Notice("note", "budget spent" if left == "all" else "budget nearly spent", text)]


def _rows(run: RunData) -> list[Notice]:
    if run.files.operator is None:
        return []
    rows, found = run.files.operator["rows"], []
    for fate, title, text in (
        ("rejected", "rejected rows", "that could not be read"),
        ("late", "late rows", "that came after the window was final"),
        ("out_of_area", "rows outside the area", "in no cell"),
        ("out_of_time", "rows outside the time range", "before or after the run"),
    ):
        if rows[fate]:
            share = percent(rows[fate], rows["rows"])
            level: Level = (
                "caution" if fate in ("rejected", "late") and rows[fate] > MANY_ROWS * rows["rows"] else "note"
            )
            found.append(Notice(level, title, f"{plural(rows[fate], 'row')} ({share}) {text}: left out."))
    return found


def _shown(run: RunData) -> list[Notice]:
    counts, found = run.counts, []
    if counts is not None and len(counts.cells) < counts.n_all_cells:
        text = f"The charts show the {len(counts.cells):,} busiest of {counts.n_all_cells:,} cells; the files hold all."
        found.append(Notice("note", "not all cells are shown", text))
    if counts is not None and len(counts.windows) < counts.n_all_windows:
        text = f"The charts show the latest {len(counts.windows):,} of {counts.n_all_windows:,} windows."
        found.append(Notice("note", "not all windows are shown", text))
    return found
