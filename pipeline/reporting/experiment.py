"""The page of an experiment, which shows its results, its frontier and its choice."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from penstock.evaluation.metrics import METRICS
from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.reporting.accounts import METRIC_TITLES, figure_text, is_share, metric_words
from penstock.pipeline.reporting.data import citation, identity, read_json
from penstock.pipeline.reporting.markup import Cell, Table, number, pack, percent, phrase, plural, plus_minus
from penstock.pipeline.reporting.summary import Headline, Notice, as_yaml, by_level

MANIFEST = "experiment.json"
#: Content types of the figures that fit into the page.
PICTURES = {".svg": "image/svg+xml", ".png": "image/png"}
MAX_FAILED = 20
VARIANT = "variant"
#: Names of the limits in a manifest, and in words.
LIMITS = (("at_least", "at least"), ("at_most", "at most"))


def is_experiment(folder: Path) -> bool:
    """Return whether a folder was written by an experiment."""
    return (folder / MANIFEST).is_file()


@dataclass(frozen=True)
class ExperimentFolder:
    """An experiment's folder. Files are read when they are first used."""

    folder: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The experiment's manifest."""
        return read_json(self.folder / MANIFEST)

    @cached_property
    def summary(self) -> pl.DataFrame:
        """The mean and confidence interval of every metric in every setting."""
        path = self.folder / "summary.parquet"
        if not path.is_file():
            raise DataError(f"{path}: is missing; run the experiment again, it resumes where it stopped")
        return pl.read_parquet(path)

    @cached_property
    def frontier(self) -> pl.DataFrame | None:
        """All settings, with the metrics that the choice limits, or None if the experiment makes no choice."""
        path = self.folder / "frontier.parquet"
        return pl.read_parquet(path) if path.is_file() else None

    @property
    def limits(self) -> list[tuple[str, str, float]]:
        """The limits of the choice as (name, "at least" or "at most", value), ordered like the experiment's metrics."""
        choice = self.manifest["choice"]
        limits = {name: (words, limit) for side, words in LIMITS for name, limit in (choice.get(side) or {}).items()}
        return [(name, *limits[name]) for name in self.in_order(limits)]

    @property
    def labels(self) -> dict[str, str]:
        """The labels of metrics and varied parameters, by name."""
        return self.manifest["configuration"].get("labels") or {}

    def label(self, name: str) -> str:
        """Return the label of a metric or a varied parameter."""
        return self.labels.get(name) or (
            metric_words(name)[0] if name in METRICS or name in METRIC_TITLES else phrase(name)
        )

    @property
    def preferred(self) -> str:
        """The metric by which the choice ranks settings."""
        return str(self.manifest["choice"].get("prefer") or self.limits[0][0])

    @property
    def is_higher_better(self) -> bool:
        """True if higher values of the preferred metric are better."""
        sides = {name: words == "at least" for name, words, _ in self.limits}
        return bool(sides.get(self.preferred, getattr(METRICS.get(self.preferred), "higher_is_better", False)))

    def setting(self, values: dict[str, Any]) -> str:
        """Describe a setting by its varied parameters, in the order in which the experiment lists them."""
        varied = [name for name in self.manifest["varied"] if name in values]
        shown = [str(values[n]) if n == VARIANT else f"{self.label(n)} {_text(values[n])}" for n in varied]
        return ", ".join(shown) or "the only setting"

    def in_order(self, names: Iterable[str]) -> list[str]:
        """Sort metrics in the order of the experiment's list, which the manifest's sorted keys do not preserve."""
        order = self.manifest.get("measures", [])
        return sorted(names, key=lambda name: order.index(name) if name in order else len(order))

    def words(self) -> dict[str, str]:
        """Return the experiment's question, its description and a summary of its runs."""
        manifest = self.manifest
        n_failed, n_cells, names = len(manifest.get("failed", [])), manifest["cells"], manifest["varied"]
        settings = self.summary.select(names).n_unique() if names else 1
        varied = f", by {', '.join(map(self.label, names))}" if names else ""
        return {
            "question": " ".join(str(manifest["question"]).split()),
            "setting": " ".join(str(manifest["configuration"].get("setting") or "").split()),
            "ran": f"{n_cells - n_failed:,} of {plural(n_cells, 'run')} ended well: "
            f"{plural(settings, 'setting')}{varied}.",
        }

    def warnings(self) -> list[Notice]:
        """Return a warning not to publish the results as data, and notices about failed runs and reduced size."""
        notices = [Notice("caution", "unfit for publication", str(self.manifest["notice"]))]
        if self.manifest.get("reduced"):
            text = "The words above describe the full size; this run has smaller or fewer sizes, settings and limits."
            notices.append(Notice("note", "reduced size", text))
        if "not_drawn" in self.manifest:
            notices.append(Notice("note", "figures are not drawn", self.manifest["not_drawn"]))
        failed = self.manifest.get("failed", [])
        if failed:
            shown = [f"{self.setting(cell['values'])}, seed {cell['seed']}: {cell['problem']}" for cell in failed]
            more = f" and {len(failed) - MAX_FAILED:,} more" if len(failed) > MAX_FAILED else ""
            notices.append(Notice("danger", plural(len(failed), "failed run"), "; ".join(shown[:MAX_FAILED]) + more))
        return by_level(notices)

    def pictures(self) -> list[dict[str, str]]:
        """Return all figures in a form that can be embedded in the page."""
        made = []
        for figure in self._figures:
            path, title = self.folder / figure["file"], figure["title"]
            content = base64.b64encode(path.read_bytes()).decode("ascii")
            source = f"data:{PICTURES[path.suffix]};base64,{content}"
            made.append({"title": title[0].upper() + title[1:], "source": source})
        return made

    @property
    def _figures(self) -> list[dict[str, Any]]:
        """The figures that have an image file in a format supported by the page."""
        figures = ((figure, self.folder / figure["file"]) for figure in self.manifest.get("figures", []))
        return [figure for figure, path in figures if path.suffix in PICTURES and path.is_file()]

    def as_json(self) -> dict[str, Any]:
        """Return the data that the page's script needs, including the data behind every figure."""
        entries = []
        for figure in self._figures:
            path = self.folder / figure["data"] if figure.get("data") else None
            table = pl.read_csv(path) if path and path.is_file() else pl.DataFrame()
            rows = [[value if isinstance(value, int) else _text(value) for value in row] for row in table.iter_rows()]
            entries.append({"title": figure["title"], "columns": table.columns, "rows": rows})
        return {"kind": "experiment", "name": self.manifest["name"], "figures": entries}

    def expected(self) -> Table:
        """Return a table that compares claims with measured values."""
        rows = []
        for claim in self.manifest.get("expected") or []:
            limits = (("≥", claim.get("at_least")), ("≤", claim.get("at_most")))
            allowed = " and ".join(f"{sign} {number(limit, 6)}" for sign, limit in limits if limit is not None)
            interval = "" if claim.get("low") is None else f"{number(claim['low'])} to {number(claim['high'])}"
            cells = [claim["says"], claim["source"], claim.get("number", "")]
            rows.append([*cells, allowed, _cell(claim["value"]), interval, claim["verdict"]])
        heads = ["Expected", "By whom", "Number", "Allowed", "Found", "Interval", "Verdict"]
        return Table(heads, rows, "Claims, and what came out")

    def results(self) -> Table:
        """Return a table of every metric's mean, with one row per setting."""
        varied = self.manifest["varied"]
        settings: dict[tuple[Any, ...], dict[str, Cell]] = {}
        for row in self.summary.iter_rows(named=True):
            settings.setdefault(tuple(row[name] for name in varied), {})[row["measure"]] = _mean(row)
        measures = self.summary["measure"].unique(maintain_order=True).to_list()
        units = dict(self.summary.select("measure", "unit").iter_rows())
        heads = [*map(self.label, varied)]
        for name in measures:
            is_plain = not units[name] or name in self.labels or is_share(name, units[name])
            heads.append(self.label(name) if is_plain else f"{self.label(name)} ({units[name]})")
        rows = [[*map(_cell, key), *(values.get(name, "") for name in measures)] for key, values in settings.items()]
        level = percent(self.manifest.get("confidence", 0.95), 1.0)
        return Table(heads, rows, f"Means over seeds, with their {level} interval, or ± half of it")

    def provenance(self) -> dict[str, Any]:
        """Return the configuration, versions, inputs and citation."""
        manifest = self.manifest
        inputs = [[f"input digest {i}", text] for i, text in enumerate(manifest.get("inputs", []), 1)]
        return {
            "again": "Save it as a file and run it again:",
            "command": "penstock experiment FILE",
            "configuration": as_yaml(manifest["configuration"]),
            "facts": identity(manifest),
            "versions": manifest["versions"],
            "citation": citation(manifest["name"], manifest),
            "inputs": Table(["Input", "SHA-256"], inputs, "Digests of the inputs"),
        }


def _text(value: Any) -> str:
    """Format a value as in the output files: floats to 12 significant digits, and None as an empty string."""
    return "" if value is None else f"{value:.12g}" if isinstance(value, float) else str(value)


def _mean(row: dict[str, Any]) -> Cell:
    mean = row["mean"]
    if mean is None:
        return ""
    mean_text, low, high = (figure_text(row[side], row["measure"], row["unit"]) for side in ("mean", "low", "high"))
    if row["low"] is None or math.isnan(mean) or math.isnan(row["low"]):
        return mean_text, mean
    below, above = mean - row["low"], row["high"] - mean
    if abs(above - below) > 0.1 * (above + below):  # near the limits of a measure
        return f"{mean_text} ({low} to {high})", mean
    factor, unit = (100, " %") if is_share(row["measure"], row["unit"]) else (1, "")
    return plus_minus(factor * mean, factor * below, unit), mean


def _cell(value: Any) -> Cell:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (number(value), float(value)) if isinstance(value, int | float) else str(value)


def choice_section(experiment: ExperimentFolder) -> dict[str, Any] | None:
    """Return the limits, the best setting and a table of all settings, or None if the experiment makes no choice."""
    choice = experiment.manifest.get("choice")
    if not choice:
        return None
    best, path, table = choice.get("best"), experiment.folder / "best.yaml", experiment.frontier
    units = dict(experiment.summary.select("measure", "unit").iter_rows())

    def shown(value: float, name: str) -> str:
        return figure_text(value, name, units.get(name, ""))

    limits = {  # to four digits: a limit is what was asked for
        name: f"{words} {f'{number(100 * at)} %' if is_share(name, units.get(name, '')) else number(at)}"
        for name, words, at in experiment.limits
    }
    asked = "; ".join(f"{experiment.label(name)} {limit}" for name, limit in limits.items())
    preferred, verdict = experiment.preferred, f"None of {plural(choice['settings'], 'setting')} keeps every limit."
    if best:
        verdict = f"Best of {plural(choice['settings'], 'setting')}: {experiment.setting(best['values'])}."
        if preferred in best["means"]:
            verdict += f" {experiment.label(preferred)}: {shown(best['means'][preferred], preferred)}."
    has_intervals = table is not None and any(table[n].count() for n in table.columns if n.startswith("low "))
    judged = " with its whole interval" if has_intervals else ""
    keep = "keeps" if choice["allowed"] == 1 else "keep"
    outcome = [
        f"Of {plural(choice['settings'], 'setting')} {choice['allowed']:,} {keep} every limit{judged}: {asked}.",
        describe_binding(choice, experiment.label, experiment.setting, shown),
        "" if best else "Nothing can be advised: ask for less, or spend more.",
    ]
    numbers = [
        Headline(experiment.label(name), shown(best["means"][name], name), "", f"limit: {limit}")
        for name, limit in (limits.items() if best else ())
        if name in best["means"]
    ]
    return {
        "verdict": verdict,
        "outcome": " ".join(filter(None, outcome)),
        "numbers": numbers,
        "configuration": path.read_text(encoding="utf-8") if best and path.is_file() else "",
        "settings": table is not None and _settings(experiment, table),
    }


def describe_binding(
    choice: Mapping[str, Any],
    label: Callable[[str], str],
    setting: Callable[[Any], str],
    shown: Callable[[float, str], str] = lambda value, name: number(value),
) -> str:
    """Describe the binding limit, the setting that it rules out, and the nearest setting that satisfies it."""
    binding = choice.get("binding")
    if not binding:
        return ""
    name = binding["limit"]
    rows = [row for row in (binding["setting"], binding["keeping"]) if row]
    named = [f"{setting(row)} ({shown(row[f'mean {name}'], name)})" for row in rows]
    out = "it keeps out" if choice.get("best") else "it is missed even by"
    return f"What binds is the limit on {label(name)}: {out} {', and the nearest that keeps it is '.join(named)}."


def _settings(experiment: ExperimentFolder, table: pl.DataFrame) -> Table:
    """Return a table of all settings, best first. Confidence intervals are in the chart's CSV file instead."""
    # Of settings that are judged by a single measure only the best one is on the frontier.
    kinds = ("best", "allowed", "frontier") if len(experiment.limits) > 1 else ("best", "allowed")
    marks = [name for name in kinds if name in table.columns]
    means = [name for name in table.columns if name.startswith("mean ")]
    varied = [name for name in experiment.manifest["varied"] if name in table.columns]
    names = {"allowed": "keeps every limit", "frontier": "on the frontier"}
    names |= {name: experiment.label(name.removeprefix("mean ")) for name in means}
    names |= {name: experiment.label(name) for name in varied}
    by, descending = list(marks), [True] * len(marks)
    if (ranking := f"mean {experiment.preferred}") in means:
        by, descending = [*by, ranking], [*descending, experiment.is_higher_better]
    if by:
        table = table.sort(by, descending=descending, nulls_last=True, maintain_order=True)
    shown, caption = table.select(*varied, *marks, *means), "Every setting: which limits it keeps, and its figures"
    units = dict(experiment.summary.select("measure", "unit").iter_rows())

    def cell(name: str, value: Any) -> Cell:
        measure = name.removeprefix("mean ")
        known = name in means and value is not None
        return (figure_text(value, measure, units.get(measure, "")), float(value)) if known else _cell(value)

    rows = [[cell(*entry) for entry in row.items()] for row in shown.iter_rows(named=True)]
    return Table([names.get(name, name) for name in shown.columns], rows, caption)


def frontier(experiment: ExperimentFolder) -> dict[str, Any] | None:
    """Return a chart that plots all settings by the metrics that are limited, or None if there is no choice.

    Of a single limit it is the ranking by the preferred measure: there is nothing to weigh it against.
    """
    table, choice = experiment.frontier, experiment.manifest.get("choice")
    if table is None or not choice:
        return None
    limits = {name: (words == "at least", limit) for name, words, limit in experiment.limits}
    charted: dict[str, tuple[bool, float | None]] = {**limits}
    if len(limits) == 1:
        charted = {experiment.preferred: limits.get(experiment.preferred, (experiment.is_higher_better, None))}
    measures: list[dict[str, Any]] = [
        {"label": experiment.label(name), "limit": limit, "atLeast": is_higher, "share": is_share(name)}
        | {side: pack(table[f"{side} {name}"].cast(pl.Float64).fill_null(math.nan)) for side in ("mean", "low", "high")}
        for name, (is_higher, limit) in charted.items()
        if f"mean {name}" in table.columns
    ]
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
