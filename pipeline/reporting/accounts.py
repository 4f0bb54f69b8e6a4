"""Charts and tables of accountants' metrics, and how each known accountant and utility metric is presented."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import yaml

from penstock.evaluation.utility import METRICS
from penstock.pipeline.reporting.markup import number, pack, package_text, percent, plural

#: Up to this number of subjects, each one is drawn as a separate line.
MAX_LINES = 4
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Treatment:
    """Presentation of an accountant in reports. The defaults suit any accountant that is not listed in `KNOWN`."""

    #: Title and note of the charts.
    title: str = ""
    note: str = ""
    #: Position on the page. Smaller numbers come first.
    order: int = 50
    #: ``line``, or ``step`` if a value holds for a whole window.
    style: str = "line"
    #: Unit of the charts, unless the title states a different one.
    unit: str = "nats"
    #: Title of a separate chart for all metrics whose names start with a given prefix.
    panels: Mapping[str, str] = field(default_factory=dict)
    #: Metrics that are shown only on request.
    hidden: Sequence[str] = ()
    #: Horizontal lines, each given by a label and a value.
    rules: Sequence[tuple[str, float]] = ()
    #: Range of values that charts in the unit above always show.
    domain: tuple[float, float] | None = None
    #: Headline metrics for the whole run: for each entry, the first name that exists. None selects the first two.
    headline: Sequence[Sequence[str]] | None = None
    #: Value without any release, given as the name of a metric or as a number.
    baseline: str | float | None = None
    #: Metrics whose early rows cover fewer windows. Only rows that cover as many as the last row are compared.
    growing: Sequence[str] = ()
    #: Description of the adversary.
    adversary: str = ""
    #: Human-readable labels by name.
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Why metrics with a given prefix use a different neighbour relation than the headline losses.
    reasons: Mapping[str, str] = field(default_factory=dict)
    #: Metrics whose values add up. They are drawn as stacked areas.
    stacked: Sequence[str] = ()

    def label(self, name: str) -> str:
        """Return the human-readable label of a metric."""
        return self.labels.get(name, name.replace("_", " "))

    def reason(self, name: str) -> str:
        """Explain why a metric's neighbour relation differs from that of the headline losses, or return ""."""
        return next((reason for beginning, reason in self.reasons.items() if name.startswith(beginning)), "")

    def panel(self, name: str, unit: str) -> tuple[str, str]:
        """Return the title and unit of a metric's chart. Metrics of different units never share an axis."""
        matches_unit = unit.startswith(self.unit)
        plain = self.title if matches_unit else f"{self.title}, {unit}"
        titles = (title for beginning, title in self.panels.items() if name.startswith(beginning))
        return next(titles, plain), self.unit if matches_unit else unit


_STATED = yaml.safe_load(package_text(("treatments.yaml",)))
KNOWN = {name: Treatment(**stated) for name, stated in _STATED["accountants"].items()}
#: Titles of metrics whose names are abbreviations.
METRIC_TITLES: dict[str, str] = _STATED["metrics"]

#: Metrics that are fractions and are displayed as percentages.
SHARES = {"relative_mae", "variance_explained", "skill", "skill_last", "skill_prior", "coverage", "hotspot_f1"}
SHARES |= {"daily_relative_mae", "daily_city_error", "anomaly_agreement", "event_recall"}

#: Meaning of the only utility metric that requires a prior in addition to the two matrices.
PRIOR = (
    "Share of the prior's error that the release saves (0: none), in windows that this run did not learn it from; of a "
    "prior from a file the verdict says how many of them the file was learned from."
)


def metric_words(name: str, counted: str = "people") -> tuple[str, str, str]:
    """Return a utility metric's title, unit and meaning. Unknown metrics are allowed.

    >>> metric_words("mae")
    ('Mean absolute error', 'people', 'Absolute error in people, averaged over cells and windows (0 is best).')
    >>> metric_words("my_own")
    ('My own', '', '')
    >>> metric_words("mae", "trips")[1]
    'trips'
    """
    metric = METRICS.get(name)
    title = METRIC_TITLES.get(name, (metric.function.__name__ if metric else name).replace("_", " ").capitalize())
    if metric is None:
        return title, "", PRIOR if name == "skill_prior" else ""
    meaning = re.sub("[`*]", "", metric.help)
    return title, metric.unit.replace("people", counted), meaning.replace("people", counted)


def is_share(measure: str, unit: str = "") -> bool:
    """Return whether a metric is a fraction, to be displayed as a percentage.

    >>> is_share("skill"), is_share("share_published"), is_share("event_recall_40"), is_share("mae", "people")
    (True, True, True, False)
    """
    is_named = measure.startswith("share_") or re.sub(r"_\d+$", "", measure) in SHARES
    return is_named or unit in ("share", "probability")


def figure_text(value: float | None, measure: str, unit: str = "") -> str:
    """Format a metric's value: fractions as percentages, everything else to two significant digits.

    >>> figure_text(0.3665, "relative_mae"), figure_text(4.285, "mae", "people"), figure_text(None, "mae")
    ('37 %', '4.3', '–')
    """
    return percent(value, 1.0) if value is not None and is_share(measure, unit) else number(value, 2)


def treatment(accountant: str) -> Treatment:
    """Return how an accountant is presented. Unknown accountants get the defaults."""
    return KNOWN.get(accountant) or Treatment(title=accountant.replace("_", " ").capitalize())


def smallest_is_worst(name: str) -> bool:
    """Return whether the smallest value of a metric is the worst one."""
    return name.endswith("_left")


@dataclass(frozen=True)
class AccountFigure:
    """An accountant's metric for a whole run. Its fields correspond to the columns of the account rows."""

    accountant: str
    name: str
    unit: str
    adjacency: str
    #: Value for the whole run if the accountant reports one, otherwise the worst over all windows and subjects.
    value: float
    #: Window of the worst value, or None if the value is for the whole run.
    window: int | None
    #: Number of subjects over which the value is the worst.
    n_subjects: int
    #: Whether the value can no longer be changed by later releases.
    final: bool
    #: Limits of the interval, if there is one. ``high`` is the highest over all subjects and windows.
    low: float | None
    high: float | None


def figures(rows: pl.DataFrame) -> list[AccountFigure]:
    """Return one `AccountFigure` per accountant and metric, in the order in which accountants are displayed."""
    totals = []
    for (_, accountant, name), group in rows.group_by("side", "accountant", "name", maintain_order=True):
        windows, values = (group[column].to_numpy() for column in ("window", "value"))  # NaN where there is none
        is_total = np.isnan(windows)
        among = is_total if is_total.any() else ~is_total
        if name in treatment(str(accountant)).growing:
            latest = group.sort("window", maintain_order=True)["adjacency"][-1]
            among = among & (group["adjacency"] == latest).to_numpy()
        known = np.flatnonzero(among & ~np.isnan(values))
        if not len(known):
            continue
        is_least = smallest_is_worst(str(name))
        at = int(known[np.argmin(values[known]) if is_least else np.argmax(values[known])])
        worst = group.row(at, named=True)
        ends = group["high"].cast(pl.Float64).to_numpy()[known]
        high = worst["high"] if is_least else max(ends[~np.isnan(ends)].tolist(), default=None)
        n_subjects = (group if among.all() else group.filter(among))["subject"].n_unique()
        is_final = bool(group["is_final"].to_numpy()[among].all())
        shared = {column: worst[column] for column in ("accountant", "name", "unit", "adjacency", "value", "window")}
        totals.append(AccountFigure(**shared, n_subjects=n_subjects, final=is_final, low=worst["low"], high=high))
    return sorted(totals, key=lambda f: treatment(f.accountant).order)


def charts(rows: pl.DataFrame, windows: pl.Series) -> list[dict[str, Any]]:
    """Return one chart per accountant and panel, covering the displayed windows, in the format used by the page."""
    made = []
    if rows.is_empty():
        return []
    within = rows.filter(pl.col("window").is_in(windows.implode()))
    totals = rows.filter(pl.col("window").is_null())
    for (accountant,), group in within.group_by("accountant", maintain_order=True):
        known = treatment(str(accountant))
        panels: dict[tuple[str, str], list[tuple[str, pl.DataFrame]]] = {}
        for (name, unit), named in group.group_by("name", "unit", maintain_order=True):
            panels.setdefault(known.panel(str(name), str(unit)), []).append((str(name), named))
        of_accountant = totals.filter(pl.col("accountant") == accountant)
        made += [_chart(known, title, panel, of_accountant, windows) for (title, _), panel in panels.items()]
    made.sort(key=lambda chart: chart["order"])
    for before, chart in pairwise(made):
        # One note for all panels of an accountant.
        if before["accountant"] == chart["accountant"]:
            chart["note"] = ""
    for chart in made:
        chart["note"] = " ".join(filter(None, (chart["note"], chart.pop("end"))))
    return made


def _chart(
    known: Treatment, title: str, panel: list[tuple[str, pl.DataFrame]], totals: pl.DataFrame, windows: pl.Series
) -> dict[str, Any]:
    lines = [line for name, named in panel for line in _lines(known, name, named, windows)]
    lines.sort(key=lambda line: line["hidden"])
    units = dict.fromkeys(named["unit"][0] for _, named in panel)
    valued = pl.concat([named.filter(pl.col("value").is_not_nan())["window"] for _, named in panel])
    last, end = int(valued.to_numpy().max(initial=0)), ""
    if last < windows[max(0, len(windows) - 2)]:
        after = plural(int(windows[-1]) - last, "window")
        end = f"The figures end at window {last:,}: the accountant has none for the {after} after it."
    compared = dict.fromkeys(text for _, named in panel for text in named["adjacency"].unique(maintain_order=True))
    rules = [{"label": label, "value": value} for label, value in known.rules]
    shown = {name for name, _ in panel}
    for row in totals.iter_rows(named=True):
        if "supremum" in row["name"] and "total_loss" in shown and math.isfinite(row["value"]):
            rules.append({"label": known.label(row["name"]), "value": row["value"]})
    return {
        "id": f"{panel[0][1]['accountant'][0]}-{title}",
        "title": title,
        "accountant": panel[0][1]["accountant"][0],
        "unit": " / ".join(units),
        "share": all(is_share("", unit) for unit in units),
        "note": known.note,
        "end": end,
        "adjacency": list(compared)[:4],
        "style": known.style,
        "lines": lines,
        "rules": rules,
        "domain": known.domain if all(unit.startswith(known.unit) for unit in units) else None,
        "order": known.order,
    }


def _lines(known: Treatment, name: str, named: pl.DataFrame, windows: pl.Series) -> list[dict[str, Any]]:
    """Return one line per subject, or quantile bands if there are too many subjects."""
    base = {"name": name, "hidden": name in known.hidden, "stacked": name in known.stacked}
    subjects = named["subject"].unique(maintain_order=True).to_list()
    if len(subjects) > MAX_LINES:
        grouped = named.group_by("window").agg(
            [pl.col("value").quantile(q, "linear").alias(f"q{i}") for i, q in enumerate(QUANTILES)]
        )
        columns = {f"q{i}": _along(grouped, f"q{i}", windows) for i in range(len(QUANTILES))}
        label = f"{known.label(name)} · median of {len(subjects):,}"
        return [base | {"label": label, "value": columns["q2"], "quantiles": columns}]
    lines = []
    for subject in subjects:
        rows = named.filter(pl.col("subject") == subject)
        words = [known.label(name), *([subject] if len(subjects) > 1 else [])]
        line = base | {"label": " · ".join(words), "value": _along(rows, "value", windows)}
        if rows["high"].null_count() < len(rows):
            line |= {side: _along(rows, side, windows) for side in ("low", "high")}
        lines.append(line)
    return lines


def _along(frame: pl.DataFrame, column: str, windows: pl.Series) -> dict[str, Any]:
    """Align a column with the given windows, filling in NaN for missing values."""
    values = np.full(len(windows), np.nan)
    at = np.searchsorted(windows.to_numpy(), frame["window"].to_numpy())
    values[at] = frame[column].cast(pl.Float64).to_numpy()
    # Rounding may leave a budget of −1e-16 instead of 0.
    values[np.abs(values) < 1e-12] = 0
    return pack(values)
