"""Charts and figures of the accounts, and the presentation of each known accountant and metric."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from penstock.evaluation.utility import METRICS
from penstock.pipeline.reporting.markup import pack, plural

#: Up to so many subjects each has its own line.
MOST_LINES = 4
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Treatment:
    """Presentation of one accountant; the default serves any that is not in `KNOWN`."""

    #: Title and note of its charts.
    title: str = ""
    note: str = ""
    #: Place on the page, small first.
    order: int = 50
    #: ``line``, or ``step`` where a figure holds for a whole window.
    style: str = "line"
    #: Unit of its charts, unless their title has another one.
    unit: str = "nats"
    #: Prefixes of names, and the title of the chart that such names have to themselves.
    panels: Mapping[str, str] = field(default_factory=dict)
    #: Names that are shown on request only.
    hidden: tuple[str, ...] = ()
    #: Horizontal lines, each a label and a value.
    rules: tuple[tuple[str, float], ...] = ()
    #: Range of values that is always shown, in charts of its own unit.
    domain: tuple[float, float] | None = None
    #: Figures of the whole run on top of the page: of each entry the first name that is found; None: the first two.
    headline: tuple[tuple[str, ...], ...] | None = None
    #: What the adversary has without the release: the name of a figure, or the figure.
    baseline: str | float | None = None
    #: Names whose first rows are about fewer windows than the later ones: only rows about as many as the last compare.
    growing: tuple[str, ...] = ()
    #: Adversary against whom the figures hold, in words.
    adversary: str = ""
    #: Names in words.
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Names whose values add up, drawn as areas on top of one another.
    stacked: tuple[str, ...] = ()

    def label(self, name: str) -> str:
        """Describe a name in words."""
        return self.labels.get(name, name.replace("_", " "))

    def panel(self, name: str, unit: str) -> tuple[str, str]:
        """Title and unit of the chart that a name belongs to: figures of different units never share an axis."""
        is_own = unit.startswith(self.unit)
        plain = self.title if is_own else f"{self.title}, {unit}"
        titles = (title for beginning, title in self.panels.items() if name.startswith(beginning))
        return next(titles, plain), self.unit if is_own else unit


KNOWN = {
    "landmark_budget": Treatment(
        title="Budget",
        note="Spent on the landmarks and the costliest other window of each budget period (ε or ρ), and what is left.",
        order=10,
        style="step",
        hidden=("landmark_loss", "period_landmarks", "period_loss", "period_epsilon"),
        headline=(("period_epsilon", "period_loss", "budget_spent"),),
        labels={
            "epsilon": "ε of the window",
            "rho": "ρ of the window",
            "period_epsilon": "budget of a period, (ε, δ)",
            "budget_spent": "spent",
            "budget_left": "left",
            "period_loss": "loss of a budget period",
            "period_landmarks": "loss of the landmarks of a period",
        },
        stacked=("budget_spent", "budget_left"),
        adversary="someone who sees all releases and knows everything but one person's visits in the landmark windows "
        "of a period and in any one other window",
    ),
    "composition": Treatment(
        title="Loss",
        note="What has been spent so far on a window of one person, on any w successive ones and on a whole person.",
        order=20,
        style="step",
        panels={
            "event_": "Loss of one window",
            "w_event_": "Loss over w windows",
            "user_rho": "Concentrated loss of a whole person",
            "user_": "Loss of a whole person",
        },
        headline=(),  # the loss by a day leads the page, from the same charges
        labels={
            "event_epsilon": "one window, pure",
            "event_epsilon_rdp": "one window, (ε, δ) by Rényi",
            "w_event_epsilon": "any w windows, pure",
            "w_event_epsilon_rdp": "any w windows, (ε, δ) by Rényi",
            "user_epsilon": "a whole person, pure",
            "user_epsilon_rdp": "a whole person, (ε, δ) by Rényi",
            "user_epsilon_pld": "a whole person, (ε, δ) by loss distributions",
            "user_rho": "a whole person, ρ",
        },
        adversary="someone who sees all releases and knows everything but one person's events",
    ),
    "temporal": Treatment(
        title="Temporal privacy loss",
        note="What the releases before (backward) and after (forward) a window add to its own ε, through the way "
        "people move. Provisional figures end in the bound that later releases cannot pass.",
        order=30,
        hidden=("landmark_loss", "largest_landmark_loss"),
        headline=(("largest_total_loss", "total_loss"), ("largest_landmark_loss",), ("supremum",)),
        labels={
            "backward_loss": "backward",
            "forward_loss": "forward",
            "total_loss": "total",
            "largest_total_loss": "largest temporal loss of a window",
            "largest_landmark_loss": "largest temporal loss of all landmarks and one window",
            "supremum": "temporal loss if it went on for ever",
        },
        adversary="someone who also knows how people move from window to window",
    ),
    "reconstruction": Treatment(
        title="Reconstruction risk",
        note="How likely an adversary is to retrace a person's way, as a bound, and as realised where targets are "
        "followed.",
        order=40,
        unit="probability",
        panels={
            "place_known": "Certainty about a place",
            "information": "Information about a way",
            "visit_frequency": "How often targets are in a count",
        },
        hidden=("loose_bound", "tight_bound", "leakage_bound", "success_prior"),
        domain=(0, 1),
        headline=(("best_bound",), ("realised_risk",)),
        baseline="success_prior",
        growing=("realised_risk",),
        labels={
            "best_bound": "bound on the success of any attack",
            "realised_risk": "realised risk of reconstruction",
            "place_known": "likeliest place",
            "success_prior": "without any release",
        },
        adversary="someone who knows everyone else and how the target moves",
    ),
    "membership": Treatment(
        title="Membership inference",
        note="How well this attack tells whether a person is in the counts: 0.5 is guessing, 1 is certainty. It is no "
        "bound: another attack may do better.",
        order=60,
        unit="area under the curve",
        hidden=("window_auc",),
        rules=(("guessing", 0.5),),
        domain=(0.4, 1),
        headline=(("membership_auc",),),
        baseline=0.5,
        labels={"membership_auc": "membership attack so far", "window_auc": "from one window alone"},
        adversary="someone trained on counts with and without the target; another attack may do better",
    ),
    "crowd_blending": Treatment(
        title="Crowd blending",
        order=45,
        headline=(("event_epsilon",), ("crowd_epsilon",)),
        labels={"crowd_size": "size of the crowd", "crowd_epsilon": "loss within the crowd"},
    ),
    "conditional_inferential": Treatment(
        title="Conditional inferential loss",
        order=35,
        adversary="someone who knows the locations outside the secret and how they vary together",
    ),
}


#: Metrics whose names are short for something.
METRIC_TITLES = {
    "mre": "Relative error as in Pyrgelis et al. 2020",
    "mre_top": "Relative error as in Pyrgelis et al. 2020, busiest cells",
    "relative_mae": "Error as a share of the mean count",
    "variance_explained": "Variance explained",
    "skill": "Skill against zeros",
    "skill_last": "Skill against the last release",
    "skill_prior": "Skill against the prior",
    "daily_mae": "Error of a day's total",
    "daily_relative_mae": "Error of a day's total as a share of the mean one",
    "daily_city_error": "Error of a day's total of all cells as a share of the mean one",
    "js_distance": "Jensen–Shannon distance",
    "js_divergence": "Jensen–Shannon divergence",
    "kendall_tau": "Kendall's τ",
    "hotspot_f1": "Hotspots found (F1)",
    "hotspot_rank_tau": "Order of hotspots (τ)",
    "pearson": "Pearson correlation",
}


#: Meaning of the one figure of utility that is no metric of two matrices: it needs a prior too.
PRIOR = (
    "Share of the prior's error that the release saves (0: none), in windows that this run did not learn it from; of a "
    "prior from a file the verdict says how many of them the file was learned from."
)


def metric_words(name: str, counted: str = "people") -> tuple[str, str, str]:
    """Title, unit and meaning of a metric, known or not, of counts of people or of something else.

    >>> metric_words("mae")
    ('Mean absolute error', 'people', 'Absolute error in people, mean over cells and windows (0 is best).')
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


def treatment(accountant: str) -> Treatment:
    """Presentation of an accountant, known or not.

    >>> treatment("landmark_budget").title, treatment("my_own").title
    ('Budget', 'My own')
    """
    return KNOWN.get(accountant) or Treatment(title=accountant.replace("_", " ").capitalize())


def smallest_is_worst(name: str) -> bool:
    """Return whether the value of a figure to watch is the smallest."""
    return name.endswith("_left")


@dataclass(frozen=True)
class AccountFigure:
    """Figure of an accountant over a run; accountant, name, unit and adjacency as in its rows."""

    accountant: str
    name: str
    unit: str
    adjacency: str
    #: Value for the whole run where the accountant gives one, else the worst over all windows and subjects.
    value: float
    #: Window of the worst value; None: the whole run.
    window: int | None
    #: Number of subjects that the value is the worst of.
    n_subjects: int
    #: Whether no later release can change it.
    final: bool
    #: Ends of its interval, if it has one; ``high`` is the highest over all those subjects and windows.
    low: float | None
    high: float | None


def figures(rows: pl.DataFrame) -> list[AccountFigure]:
    """Return one figure for each accountant and name, in the order in which the accountant writes them."""
    totals = []
    for (_, accountant, name), group in rows.group_by("side", "accountant", "name", maintain_order=True):
        windows, values = (group[column].to_numpy() for column in ("window", "value"))  # NaN where there is none
        whole = np.isnan(windows)
        among = whole if whole.any() else ~whole
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
        ends = ends[~np.isnan(ends)]
        totals.append(
            AccountFigure(
                accountant=str(accountant),
                name=str(name),
                unit=worst["unit"],
                adjacency=worst["adjacency"],
                value=worst["value"],
                window=worst["window"],
                n_subjects=len(_subjects(group if among.all() else group.filter(among))),
                final=bool(group["is_final"].to_numpy()[among].all()),
                low=worst["low"],
                high=worst["high"] if is_least else max(ends.tolist(), default=None),
            )
        )
    return sorted(totals, key=lambda f: treatment(f.accountant).order)


def charts(rows: pl.DataFrame, windows: pl.Series) -> list[dict[str, Any]]:
    """Return one chart for each accountant and panel, in the page's format, over the windows that the page shows."""
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
        of_accountant = whole.filter(pl.col("accountant") == accountant)
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
    known: Treatment, title: str, panel: list[tuple[str, pl.DataFrame]], whole: pl.DataFrame, windows: pl.Series
) -> dict[str, Any]:
    lines = [line for name, named in panel for line in _lines(known, name, named, windows)]
    lines.sort(key=lambda line: line["hidden"])
    units = dict.fromkeys(named["unit"][0] for _, named in panel)
    compared = dict.fromkeys(text for _, named in panel for text in named["adjacency"].unique(maintain_order=True))
    rules = [{"label": label, "value": value} for label, value in known.rules]
    shown = {name for name, _ in panel}
    for row in whole.iter_rows(named=True):
        if "supremum" in row["name"] and "total_loss" in shown and math.isfinite(row["value"]):
            rules.append({"label": known.label(row["name"]), "value": row["value"]})
    return {
        "id": f"{panel[0][1]['accountant'][0]}-{title}",
        "title": title,
        "accountant": panel[0][1]["accountant"][0],
        "unit": " / ".join(units),
        "note": known.note,
        "end": _end(panel, windows),
        "adjacency": list(compared)[:4],
        "style": known.style,
        "lines": lines,
        "rules": rules,
        "domain": known.domain if all(unit.startswith(known.unit) for unit in units) else None,
        "order": known.order,
    }


def _end(panel: list[tuple[str, pl.DataFrame]], windows: pl.Series) -> str:
    """Words about a chart whose figures end long before the windows shown do."""
    known = pl.concat([named.filter(pl.col("value").is_not_nan())["window"] for _, named in panel])
    last = int(known.to_numpy().max(initial=0))
    if last >= windows[max(0, len(windows) - 2)]:
        return ""
    after = plural(int(windows[-1]) - last, "window")
    return f"The figures end at window {last:,}: the accountant has none for the {after} after it."


def _lines(known: Treatment, name: str, named: pl.DataFrame, windows: pl.Series) -> list[dict[str, Any]]:
    """Return a line for each stream and subject, or bands of quantiles over many subjects."""
    base = {"name": name, "hidden": name in known.hidden, "stacked": name in known.stacked}
    subjects = _subjects(named)
    several = len({stream for stream, _ in subjects}) > 1
    if len(subjects) > MOST_LINES:
        grouped = named.group_by("window").agg(
            [pl.col("value").quantile(q, "linear").alias(f"q{i}") for i, q in enumerate(QUANTILES)]
        )
        columns = {f"q{i}": _along(grouped, f"q{i}", windows) for i in range(len(QUANTILES))}
        label = f"{known.label(name)} · median of {len(subjects):,}"
        return [base | {"label": label, "value": columns["q2"], "quantiles": columns}]
    lines = []
    for stream, subject in subjects:
        rows = named
        if len(subjects) > 1:
            rows = named.filter((pl.col("stream") == stream) & (pl.col("subject") == subject))
        words = [known.label(name), *([stream] if several else []), *([subject] if len(subjects) > 1 else [])]
        line = base | {"label": " · ".join(words), "value": _along(rows, "value", windows)}
        if rows["high"].null_count() < len(rows):
            line |= {side: _along(rows, side, windows) for side in ("low", "high")}
        lines.append(line)
    return lines


def _subjects(named: pl.DataFrame) -> list[tuple[str, str]]:
    """Stream and subject of all lines, mostly one."""
    if named["stream"].n_unique() == named["subject"].n_unique() == 1:
        return [(named["stream"][0], named["subject"][0])]
    return named.select("stream", "subject").unique(maintain_order=True).rows()  # type: ignore[return-value]


def _along(frame: pl.DataFrame, column: str, windows: pl.Series) -> dict[str, Any]:
    """Series by window, NaN where missing."""
    values = np.full(len(windows), np.nan)
    at = np.searchsorted(windows.to_numpy(), frame["window"].to_numpy())
    values[at] = frame[column].cast(pl.Float64).to_numpy()
    # Sums of shares leave a budget of −1e-16 where 0 is meant.
    values[np.abs(values) < 1e-12] = 0
    return pack(values)
