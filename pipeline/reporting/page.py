"""Self-contained HTML reports, built from the files of a run or an experiment."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup

from penstock.mechanisms.core.contract import ACTIONS
from penstock.pipeline import atomic
from penstock.pipeline.output.cells import cell_names, read_cells, rings_of
from penstock.pipeline.output.maps import read_outlines
from penstock.pipeline.reporting import summary
from penstock.pipeline.reporting.accounts import charts, is_share, metric_words, smallest_is_worst, treatment
from penstock.pipeline.reporting.data import Run, ShownCounts
from penstock.pipeline.reporting.experiment import ExperimentFolder, choice_section, frontier, is_experiment
from penstock.pipeline.reporting.glossary import terms_of
from penstock.pipeline.reporting.markup import Table, content_hash, document, number, pack, package_text, plural

STYLES = ("page.css", "charts.css")
SCRIPTS = ("base.js", "time.js", "chart.js", "map.js", "tables.js", "traces.js", "frontier.js", "main.js")

REPORT = "report.html"
#: The page draws the longest traces, each thinned evenly; the files hold all.
MAX_PEOPLE = 100
MAX_POINTS = 1_500
MAX_ROWS = 1_000
#: Whose page it is, in its first line.
SIMULATED, PUBLISHED, PRIVATE = (
    "penstock · simulation",
    "penstock · deployment · made from the published files only",
    "penstock · deployment · for the operator only",
)


def write_report(folder: str | Path) -> list[Path]:
    """Write the page of a run or an experiment, or of each grid of a choice, each to its folder.

    A deployment has two: ``public/report.html``, a function of the published files alone and as fit for publication as
    they are, and ``operator/report.html``. Return the paths, the page that shows most first.
    """
    folder = Path(folder)
    if is_experiment(folder):
        atomic.write_text(folder / REPORT, experiment_page(folder), private=True)
        return [folder / REPORT]
    if grids := [grid for grid in sorted(folder.glob("grid-*[0-9]"), reverse=True) if is_experiment(grid)]:
        return [page for grid in grids for page in write_report(grid)]
    run = Run(folder)
    pages = {folder / REPORT: run}
    if run.is_deployment:
        pages = {folder / "operator" / REPORT: run} if (folder / "operator").is_dir() else {}
        pages[folder / "public" / REPORT] = Run(folder, public_only=True)
    for path, shown in pages.items():
        atomic.write_text(path, run_page(shown), private=not run.is_deployment)
    return list(pages)


def run_page(run: Run, live: bool = False) -> str:
    """Render a run's page. A live page polls the server for newer versions of itself."""
    kicker = SIMULATED
    if run.is_deployment:
        kicker = PUBLISHED if run.public_only else PRIVATE
    counts, utility = run.counts, run.utility
    data = {"kind": "run", "name": run.public["name"], "time_zone": run.time_zone, "over": run.is_over, "live": live}
    if counts is None:
        data["traces"] = _traces_json(run)
    else:
        places = read_cells(run.folder) or {}
        data |= {
            "counts": _counts_json(counts, cell_names(run.folder)) | {"counted": run.counted},
            "geometry": shown if any(shown := [_drawn(places.get(cell)) for cell in counts.cells]) else None,
            "outlines": _outlines(run),
            "accounts": charts(run.accounts, counts.windows["window"]),
            "utility": [] if utility is None else _utility_charts(run, utility, counts),
            "cell_metrics": [] if utility is None else _cell_metrics(utility, counts),
        }
    return _page(
        "run.html",
        str(run.public["name"]),
        data,
        kicker=kicker,
        verdict=summary.verdict(run),
        released=summary.released(run),
        notices=summary.warnings(run),
        details=summary.details(run),
        headlines=summary.headlines(run),
        losses=summary.loss_table(run),
        people=_people_table(run),
        figures=summary.figures_table(run),
        provenance=summary.provenance(run),
        terms_of=partial(terms_of, data.get("accounts"), data.get("utility")),
        **summary.row_equation(run),
    )


def _counts_json(counts: ShownCounts, names: dict[str, str]) -> dict[str, Any]:
    times = {name: pack(counts.windows[name], exact=True) for name in ("start", "end")}
    others = {name: pack(counts.windows[name]) for name in ("window", "landmark", "action", "epsilon")}
    cells = [f"{names[cell]} ({cell})" if cell in names else cell for cell in counts.cells]
    margin = counts.margin
    is_same = (margin == margin[:, :1]).all()  # in all cells of each window
    matrices = {
        "released": pack(counts.released),
        "truth": None if counts.truth is None else pack(counts.truth),
        "alarm": None if counts.alarm is None else pack(counts.alarm > 0),
        "margin": pack(margin[:, 0] if is_same else margin),
    }
    return times | others | {"actions": ACTIONS, "cells": cells} | matrices


def _utility_charts(run: Run, utility: pl.DataFrame, counts: ShownCounts) -> list[dict[str, Any]]:
    """Return a chart for each metric that has one value per window."""
    made = []
    windows = counts.windows["window"]
    rows = utility.filter((pl.col("scope") == "window") & pl.col("window").is_in(windows.implode()))
    for (metric,), group in rows.group_by("metric", maintain_order=True):
        values = np.full(len(windows), np.nan)
        values[np.searchsorted(windows, group["window"])] = group["value"]
        title, unit, note = metric_words(str(metric), run.counted)
        line = {"name": metric, "label": title, "value": pack(values)}
        how = {"share": is_share(str(metric)), "people": unit == run.counted}
        about = {"id": f"utility-{metric}", "title": title, "unit": unit, "note": note, "lines": [line]}
        made.append(about | how)
    return made


def _cell_metrics(utility: pl.DataFrame, counts: ShownCounts) -> list[dict[str, Any]]:
    """Return the metrics that have one value per cell, with values in the order of the displayed cells."""
    metrics = []
    rows = utility.filter(pl.col("scope").str.starts_with("cell:"))
    for (metric,), group in rows.group_by("metric", maintain_order=True):
        values = dict(zip(group["scope"].str.slice(5), group["value"]))
        by_cell = pack([values.get(cell, np.nan) for cell in counts.cells])
        metrics.append({"name": metric_words(str(metric))[0], "value": by_cell, "share": is_share(str(metric))})
    return metrics


def _drawn(place: dict[str, Any] | None) -> dict[str, Any]:
    """Return a cell's outline or point, or an empty dictionary if the cell has no location."""
    if place is None:
        return {}
    return {"point": place["coordinates"]} if place["type"] == "Point" else {"rings": rings_of(place)}


def _outlines(run: Run) -> dict[str, Any] | None:
    """Encode the map's background outlines compactly, as differences between successive points in small units."""
    lines = read_outlines(run.folder)
    if not lines:
        return None
    every = np.concatenate(lines)
    origin, unit = every.min(axis=0), max(float(np.ptp(every, axis=0).max()), 1e-6) / 16_000
    rounded = [np.rint((line - origin) / unit) for line in lines]
    steps = np.concatenate([np.diff(line, axis=0, prepend=0) for line in rounded])
    return {"origin": origin.tolist(), "unit": unit, "sizes": pack([len(line) for line in lines]), "steps": pack(steps)}


# Released and true traces of each person.


def _traces_json(run: Run) -> dict[str, Any] | None:
    """Return the longest traces in the format used by the page's script, or None if the run releases counts."""
    released = run.traces
    if released is None or released.is_empty():
        return None
    truth = run.table("operator/truth")
    if truth is not None:
        # Rows of both files are the same points in the same order.
        released = released.with_columns(true_latitude=truth["latitude"], true_longitude=truth["longitude"])
    lengths = released.group_by("pseudonym", maintain_order=True).len()
    longest = lengths.sort("len", descending=True, maintain_order=True)
    people = longest["pseudonym"].head(MAX_PEOPLE).to_list()
    by_person = released.partition_by("pseudonym", as_dict=True)
    points = (by_person[(person,)] for person in people)
    thinned = pl.concat(
        [of[np.linspace(0, len(of) - 1, min(len(of), MAX_POINTS)).round().astype(np.int64)] for of in points]
    )
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


def _people_table(run: Run) -> Table | None:
    """Return a row per person: points, actions, the mean error and every metric's worst value."""
    released = run.traces
    if released is None:
        return None
    utility = run.utility
    errors = {} if utility is None else dict(utility.select("scope", "value").iter_rows())
    counts = [pl.len(), pl.col("landmark").sum(), (pl.col("action") == "published").sum().alias("published")]
    grouped = released.group_by("pseudonym", maintain_order=True).agg(counts)
    rows = []
    is_shown = pl.col("subject").is_in(grouped["pseudonym"].implode()) & pl.col("value").is_not_null()
    of_people = run.accounts if run.accounts.is_empty() else run.accounts.filter(is_shown)
    costs = dict[str, dict[str, float]]()
    for (accountant, figure, unit), account in of_people.group_by("accountant", "name", "unit", maintain_order=True):
        worst = pl.col("value").min() if smallest_is_worst(str(figure)) else pl.col("value").max()
        label = treatment(str(accountant)).label(str(figure)) + (f" ({unit})" if unit != "1" else "")
        costs[label[0].upper() + label[1:]] = dict(account.group_by("subject").agg(worst).iter_rows())
    for name, points, landmarks, published in grouped.head(MAX_ROWS).iter_rows():
        figures = [errors.get(f"user:{name}", float("nan")), *(cost.get(name, float("nan")) for cost in costs.values())]
        counted = [(f"{n:,}", float(n)) for n in (points, published, landmarks)]
        rows.append([name, *counted, *((number(figure), figure) for figure in figures)])
    caption = f"{plural(len(grouped), 'trace')}" + (f" (the first {MAX_ROWS:,})" if len(grouped) > MAX_ROWS else "")
    return Table(["Pseudonym", "Points", "Published", "Landmarks", "Mean error (metres)", *costs], rows, caption)


# The page of an experiment.


def experiment_page(folder: Path) -> str:
    """Render an experiment's page."""
    experiment = ExperimentFolder(folder)
    return _page(
        "experiment.html",
        str(experiment.manifest["name"]),
        experiment.as_json() | {"frontier": frontier(experiment)},
        kicker="penstock · experiment",
        notices=experiment.warnings(),
        choice=choice_section(experiment),
        pictures=experiment.pictures(),
        expected=experiment.expected(),
        results=experiment.results(),
        provenance=experiment.provenance(),
        terms_of=terms_of,
        **experiment.words(),
    )


def _page(template: str, name: str, data: dict[str, Any], **values: Any) -> str:
    """Render a page from a template, including its styles, scripts and data.

    No text of a configuration or of a file can become markup or script: templates escape it, data is JSON without
    ``<``, and the content policy allows exactly the script and the style of this package.
    """
    script = package_text(SCRIPTS)
    # NaN is not JSON: figures that may be NaN are packed.
    encoded = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        encoded = encoded.replace(character, f"\\u{ord(character):04x}")
    # The page asks for nothing, except a live one, which asks the server it came from.
    connect = "'self'" if data.get("live") else "'none'"
    policy = f"; script-src '{content_hash(script)}'; connect-src {connect}"
    values |= {"name": name, "data": Markup(encoded), "script": Markup(script)}
    return document(template, f"{name} · penstock", STYLES, policy, **values)
