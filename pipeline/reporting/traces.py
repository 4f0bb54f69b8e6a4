"""Released and true traces of each person, for the page of a run that releases points."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from penstock.pipeline.reporting.accounts import treatment
from penstock.pipeline.reporting.data import Run
from penstock.pipeline.reporting.markup import Html, number, pack, plural, table

#: The page draws the longest traces, each thinned evenly; the files hold all.
MOST_PEOPLE = 100
MOST_POINTS = 1_500
MOST_ROWS = 1_000


def traces(run: Run) -> dict[str, Any] | None:
    """The longest traces for the page's script; None for a run that releases counts."""
    released = run.traces
    if released is None or released.is_empty():
        return None
    truth = run.table("operator/truth")
    if truth is not None:
        # Rows of both files are the same points in the same order.
        released = released.with_columns(true_latitude=truth["latitude"], true_longitude=truth["longitude"])
    longest = (
        released.group_by("pseudonym", maintain_order=True).len().sort("len", descending=True, maintain_order=True)
    )
    people = longest["pseudonym"].head(MOST_PEOPLE).to_list()
    by_person = released.partition_by("pseudonym", as_dict=True)
    thinned = pl.concat([_thinned(by_person[(person,)]) for person in people])
    sizes = thinned.group_by("pseudonym", maintain_order=True).len()["len"]
    return {
        "people": people,
        "n_people": len(longest),
        "size": pack(sizes),
        "time": pack(thinned["time"].dt.epoch("ms"), exact=True),
        "landmark": pack(thinned["landmark"]),
        "released": pack(thinned.select("longitude", "latitude").to_numpy()),
        "truth": None if truth is None else pack(thinned.select("true_longitude", "true_latitude").to_numpy()),
    }


def _thinned(person: pl.DataFrame) -> pl.DataFrame:
    if len(person) <= MOST_POINTS:
        return person
    return person[np.linspace(0, len(person) - 1, MOST_POINTS).round().astype(np.int64)]


def people_table(run: Run) -> Html | None:
    """Each person: points, actions, mean error where the truth is known, and the worst value of each account figure."""
    released = run.traces
    if released is None:
        return None
    utility = run.utility
    errors = {} if utility is None else dict(utility.select("scope", "value").iter_rows())
    grouped = released.group_by("pseudonym", maintain_order=True).agg(
        pl.len(), pl.col("landmark").sum(), (pl.col("action") == "published").sum().alias("published")
    )
    rows = []
    costs = _costs(run.accounts, grouped["pseudonym"])
    for name, points, landmarks, published in grouped.head(MOST_ROWS).iter_rows():
        figures = [errors.get(f"user:{name}", float("nan")), *(cost.get(name, float("nan")) for cost in costs.values())]
        counted = [(f"{n:,}", float(n)) for n in (points, published, landmarks)]
        rows.append([name, *counted, *((number(figure), figure) for figure in figures)])
    caption = f"{plural(len(grouped), 'trace')}" + (f" (the first {MOST_ROWS:,})" if len(grouped) > MOST_ROWS else "")
    return table(["Pseudonym", "Points", "Published", "Landmarks", "Mean error (metres)", *costs], rows, caption)


def _costs(accounts: pl.DataFrame, people: pl.Series) -> dict[str, dict[str, float]]:
    """The worst value for each person of every name of the books, by the heading of its column."""
    if accounts.is_empty():
        return {}
    own = accounts.filter(pl.col("subject").is_in(people.implode()) & pl.col("value").is_not_null())
    found = {}
    for (accountant, name, unit), rows in own.group_by("accountant", "name", "unit", maintain_order=True):
        shown = treatment(str(accountant))
        value = pl.col("value").min() if shown.smallest_is_worst(str(name)) else pl.col("value").max()
        label = shown.label(str(name)) + (f" ({unit})" if unit != "1" else "")
        found[label[0].upper() + label[1:]] = dict(rows.group_by("subject").agg(value).iter_rows())
    return found
