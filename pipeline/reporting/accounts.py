"""The books as charts and figures: any accountant's rows, a line for each name, quantiles where subjects are many."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from pipeline.reporting.data import RunFiles, pack
from pipeline.reporting.treatment import Treatment, treatment

#: Up to so many subjects each has its own line.
MOST_LINES = 4
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Figure:
    """One name of one accountant over a whole run.

    Parameters
    ----------
    accountant, name, unit, adjacency
        As in its rows.
    value
        Of the whole run where the accountant gives one, else the worst over all windows and subjects.
    window
        Where the worst is; None: the whole run.
    n_subjects
        How many the figure is the worst of.
    final
        Whether no later release can change it.
    low, high
        Its interval, where it has one; ``high`` is the highest of all whose worst it is.
    side
        ``public``, or ``operator`` for what depends on data.
    """

    accountant: str
    name: str
    unit: str
    adjacency: str
    value: float
    window: int | None
    n_subjects: int
    final: bool
    low: float | None
    high: float | None
    side: str


def read_accounts(files: RunFiles) -> pl.DataFrame:
    """All rows of both sides, the last word on each figure only."""
    frames = []
    for side in ("public", "operator"):
        table = files.table(f"{side}/accounts")
        if table is not None and not table.is_empty():
            frames.append(table.lazy().with_columns(pl.lit(side).alias("side")))
    if not frames:
        return pl.DataFrame(schema=dict.fromkeys(("accountant", "name", "unit", "side"), pl.String))
    key = ["side", "stream", "accountant", "subject", "window", "name"]
    # A provisional figure may be revised by later rows; a final one stands.
    rows = pl.concat(frames).with_columns((pl.col("status") == "final").alias("is_final"))
    return rows.sort("is_final", maintain_order=True).unique(key, keep="last", maintain_order=True).collect()


def figures(rows: pl.DataFrame) -> list[Figure]:
    """One figure for each accountant and name, in the order in which the accountant writes them."""
    found = []
    for (side, accountant, name), group in rows.group_by("side", "accountant", "name", maintain_order=True):
        windows, values = (group[column].to_numpy() for column in ("window", "value"))  # NaN where there is none
        whole = np.isnan(windows)
        among = whole if whole.any() else ~whole
        known = np.flatnonzero(among & ~np.isnan(values))
        if not len(known):
            continue
        smallest_is_worst = treatment(str(accountant)).smallest_is_worst(str(name))
        at = int(known[np.argmin(values[known]) if smallest_is_worst else np.argmax(values[known])])
        worst = group.row(at, named=True)
        ends = group["high"].cast(pl.Float64).to_numpy()[known]
        ends = ends[~np.isnan(ends)]
        found.append(
            Figure(
                accountant=str(accountant),
                name=str(name),
                unit=worst["unit"],
                adjacency=worst["adjacency"],
                value=worst["value"],
                window=worst["window"],
                n_subjects=len(_subjects(group if among.all() else group.filter(among))),
                final=bool(group["is_final"].to_numpy()[among].all()),
                low=worst["low"],
                high=worst["high"] if smallest_is_worst else max(ends.tolist(), default=None),
                side=str(side),
            )
        )
    return sorted(found, key=lambda f: treatment(f.accountant).order)


def charts(rows: pl.DataFrame, windows: pl.Series) -> list[dict[str, Any]]:
    """One chart for each accountant and panel, in the page's format.

    Parameters
    ----------
    rows
        From `read_accounts`.
    windows
        Indices of the windows that the page shows.
    """
    made = []
    if rows.is_empty():
        return []
    within = rows.filter(pl.col("window").is_in(windows.implode()))
    whole = rows.filter(pl.col("window").is_null())
    for (accountant,), group in within.group_by("accountant", maintain_order=True):
        known = treatment(str(accountant))
        panels: dict[tuple[str, str], list[tuple[str, pl.DataFrame]]] = {}
        for (name, unit), named in group.group_by("name", "unit", maintain_order=True):
            panels.setdefault(known.panel(str(name), str(unit)), []).append((str(name), named))
        own = whole.filter(pl.col("accountant") == accountant)
        made += [_chart(known, title, panel, own, windows) for (title, _), panel in panels.items()]
    made.sort(key=lambda chart: chart["order"])
    for before, chart in pairwise(made):
        # One note for all panels of an accountant.
        if before["accountant"] == chart["accountant"]:
            chart["note"] = ""
    return made


def _chart(
    known: Treatment, title: str, panel: list[tuple[str, pl.DataFrame]], whole: pl.DataFrame, windows: pl.Series
) -> dict[str, Any]:
    lines = [line for name, named in panel for line in _lines(known, name, named, windows)]
    lines.sort(key=lambda line: line["hidden"])
    units = dict.fromkeys(named["unit"][0] for _, named in panel)
    compared = dict.fromkeys(text for _, named in panel for text in named["adjacency"].unique(maintain_order=True))
    rules = [{"label": label, "value": value} for label, value in known.rules]
    shown = {name for name, _ in panel}
    for row in whole.iter_rows(named=True):
        if known.is_rule(row["name"], shown) and math.isfinite(row["value"]):
            rules.append({"label": known.label(row["name"]), "value": row["value"]})
    return {
        "id": f"{panel[0][1]['accountant'][0]}-{title}",
        "title": title,
        "accountant": panel[0][1]["accountant"][0],
        "unit": " / ".join(units),
        "note": known.note,
        "adjacency": list(compared)[:4],
        "style": known.style,
        "lines": lines,
        "rules": rules,
        "domain": known.domain if all(unit.startswith(known.unit) for unit in units) else None,
        "order": known.order,
    }


def _lines(known: Treatment, name: str, named: pl.DataFrame, windows: pl.Series) -> list[dict[str, Any]]:
    """A line for each stream and subject, or bands of quantiles over many subjects."""
    base = {"name": name, "hidden": name in known.hidden, "stacked": name in known.stacked}
    subjects = _subjects(named)
    several = len({stream for stream, _ in subjects}) > 1
    if len(subjects) > MOST_LINES:
        found = named.group_by("window").agg(
            [pl.col("value").quantile(q, "linear").alias(f"q{i}") for i, q in enumerate(QUANTILES)]
        )
        columns = {f"q{i}": _along(found, f"q{i}", windows) for i in range(len(QUANTILES))}
        label = f"{known.label(name)} · median of {len(subjects):,}"
        return [base | {"label": label, "value": columns["q2"], "quantiles": columns}]
    lines = []
    for stream, subject in subjects:
        own = named
        if len(subjects) > 1:
            own = named.filter((pl.col("stream") == stream) & (pl.col("subject") == subject))
        words = [known.label(name), *([stream] if several else []), *([subject] if len(subjects) > 1 else [])]
        line = base | {"label": " · ".join(words), "value": _along(own, "value", windows)}
        if own["high"].null_count() < len(own):
            line |= {side: _along(own, side, windows) for side in ("low", "high")}
        lines.append(line)
    return lines


def _subjects(named: pl.DataFrame) -> list[tuple[str, str]]:
    """Stream and subject of all lines, mostly one."""
    if named["stream"].n_unique() == named["subject"].n_unique() == 1:
        return [(named["stream"][0], named["subject"][0])]
    return named.select("stream", "subject").unique(maintain_order=True).rows()  # type: ignore[return-value]


def _along(frame: pl.DataFrame, column: str, windows: pl.Series) -> dict[str, Any]:
    """One number a window, NaN where there is none."""
    values = np.full(len(windows), np.nan)
    at = np.searchsorted(windows.to_numpy(), frame["window"].to_numpy())
    values[at] = frame[column].cast(pl.Float64).to_numpy()
    # Sums of shares leave a budget of −1e-16 where 0 is meant.
    values[np.abs(values) < 1e-12] = 0
    return pack(values)
