"""The page of an experiment: results, frontier and choice."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
import yaml
from markupsafe import Markup

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.reporting.data import read_json
from penstock.pipeline.reporting.markup import (
    Cell,
    definitions,
    element,
    join,
    number,
    pack,
    phrase,
    plural,
    table,
)
from penstock.pipeline.reporting.summary import Headline, Notice, headlines, listing, type_first

MANIFEST = "experiment.json"
#: Content types of the figures that fit into the page.
PICTURES = {".svg": "image/svg+xml", ".png": "image/png"}
MOST_FAILED = 20
VARIANT = "variant"
#: Names of the limits in a manifest, and in words.
LIMITS = (("at_least", "at least"), ("at_most", "at most"))


def is_experiment(folder: Path) -> bool:
    """Return whether an experiment wrote this folder."""
    return (folder / MANIFEST).is_file()


@dataclass(frozen=True)
class ExperimentFolder:
    """Folder of an experiment; files are read on first use."""

    folder: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Manifest of the experiment."""
        return read_json(self.folder / MANIFEST)

    @cached_property
    def summary(self) -> pl.DataFrame:
        """Mean and interval of every setting and measure."""
        path = self.folder / "summary.parquet"
        if not path.is_file():
            raise DataError(f"{path}: is missing; run the experiment again, it resumes where it stopped")
        return pl.read_parquet(path)

    @cached_property
    def frontier(self) -> pl.DataFrame | None:
        """Every setting with its limited measures, of an experiment with a choice."""
        path = self.folder / "frontier.parquet"
        return pl.read_parquet(path) if path.is_file() else None

    @property
    def limits(self) -> list[tuple[str, str, float]]:
        """Name, side in words and value of every limit of the choice."""
        choice = self.manifest["choice"]
        return [
            (name, words, choice[side][name])
            for side, words in LIMITS
            for name in self.in_order(choice.get(side) or {})
        ]

    @property
    def labels(self) -> dict[str, str]:
        """Labels of measures and varied parameters, by name."""
        return self.manifest["configuration"].get("labels") or {}

    def label(self, name: str) -> str:
        """Label of a measure or of a varied parameter."""
        return self.labels.get(name, phrase(name))

    def setting(self, values: dict[str, Any]) -> str:
        """Return a setting in words, its varied parameters in the order of the experiment."""
        varied = [name for name in self.manifest["varied"] if name in values]
        shown = [str(values[n]) if n == VARIANT else f"{self.label(n)} {_text(values[n])}" for n in varied]
        return ", ".join(shown) or "the only setting"

    def in_order(self, names: Iterable[str]) -> list[str]:
        """Measures in the order of the experiment; a manifest keeps its keys sorted."""
        order = self.manifest.get("measures", [])
        return sorted(names, key=lambda name: order.index(name) if name in order else len(order))

    def verdict(self) -> Markup:
        """Return the question, the result of a full run, and the number of runs that ended well."""
        manifest = self.manifest
        setting = manifest["configuration"].get("setting")
        return join(
            element("p", " ".join(str(manifest["question"]).split()), class_="standfirst"),
            element("p", " ".join(str(setting).split())) if setting else None,
            element("p", self._ran()),
        )

    def _ran(self) -> str:
        n_failed, n_cells, names = len(self.manifest.get("failed", [])), self.manifest["cells"], self.manifest["varied"]
        settings = self.summary.select(names).n_unique() if names else 1
        varied = f", by {', '.join(map(self.label, names))}" if names else ""
        return f"{n_cells - n_failed:,} of {plural(n_cells, 'run')} ended well: {plural(settings, 'setting')}{varied}."

    def warnings(self) -> list[Notice]:
        """Failed runs, a reduced size, and the notice that nothing here may be published as data."""
        notices = [Notice("caution", "unfit for publication", str(self.manifest["notice"]))]
        if self.manifest.get("reduced"):
            text = (
                "The words above describe the full size; sizes, settings and limits of this run are smaller or fewer."
            )
            notices.append(Notice("note", "reduced size", text))
        failed = self.manifest.get("failed", [])
        if failed:
            shown = [f"{self.setting(cell['values'])}, seed {cell['seed']}: {cell['problem']}" for cell in failed]
            more = f" and {len(failed) - MOST_FAILED:,} more" if len(failed) > MOST_FAILED else ""
            notices.insert(
                0, Notice("danger", f"{plural(len(failed), 'failed run')}", "; ".join(shown[:MOST_FAILED]) + more)
            )
        return notices

    def figures(self) -> Markup | None:
        """Return all figures, in the page itself."""
        return join(*(self._picture(figure["file"], figure["title"]) for figure in self._figures)) or None

    @property
    def _figures(self) -> list[dict[str, Any]]:
        """Figures whose pictures are there and fit into the page."""
        names = self.manifest.get("figures", [])
        paths = [self.folder / figure["file"] for figure in names]
        return [figure for figure, path in zip(names, paths) if path.suffix in PICTURES and path.is_file()]

    def _picture(self, name: str, title: str) -> Markup:
        path = self.folder / name
        content = base64.b64encode(path.read_bytes()).decode("ascii")
        image = element("img", alt=title, src=f"data:{PICTURES[path.suffix]};base64,{content}")
        framed = element("div", image, class_="scroll", tabindex="0", role="region", aria_label=title)
        return element(
            "figure", element("figcaption", element("h3", title[0].upper() + title[1:])), framed, class_="picture"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the part of the page that the script needs: the data of every figure."""
        entries = []
        for figure in self._figures:
            path = self.folder / figure["data"] if figure.get("data") else None
            table = pl.read_csv(path) if path and path.is_file() else pl.DataFrame()
            rows = [[value if isinstance(value, int) else _text(value) for value in row] for row in table.iter_rows()]
            entries.append({"title": figure["title"], "columns": table.columns, "rows": rows})
        return {"kind": "experiment", "name": self.manifest["name"], "figures": entries}

    def expected(self) -> Markup | None:
        """Table of claims and measured values."""
        claims = self.manifest.get("expected")
        if not claims:
            return None

        def row(claim: dict[str, Any]) -> list[Cell]:
            """Row of the table for one claim."""
            interval = "" if claim.get("low") is None else f"{number(claim['low'])} to {number(claim['high'])}"
            cells = [claim["says"], claim["source"], claim.get("number", "")]
            return [*cells, _allowed(claim), _cell(claim["value"]), interval, claim["verdict"]]

        heads = ["Expected", "By whom", "Number", "Allowed", "Found", "Interval", "Verdict"]
        return table(heads, list(map(row, claims)), "Claims, and what came out")

    def results(self) -> Markup | None:
        """Means of all measures, one row a setting, and the whole summary."""
        varied = self.manifest["varied"]
        settings: dict[tuple[Any, ...], dict[str, Cell]] = {}
        for row in self.summary.iter_rows(named=True):
            settings.setdefault(tuple(row[name] for name in varied), {})[row["measure"]] = _mean(row)
        measures = self.summary["measure"].unique(maintain_order=True).to_list()
        units = dict(self.summary.select("measure", "unit").iter_rows())
        heads = [
            f"{self.label(name)} ({units[name]})" if units[name] and name not in self.labels else self.label(name)
            for name in measures
        ]
        rows = [
            [*map(_cell, setting), *(values.get(name, "") for name in measures)] for setting, values in settings.items()
        ]
        percent = f"{self.manifest.get('confidence', 0.95):.0%}"
        return table(
            [*map(self.label, varied), *heads],
            rows,
            f"Means over seeds, with their {percent} interval, or ± half of it",
        )

    def provenance(self) -> Markup:
        """Configuration, versions and inputs."""
        manifest = self.manifest
        written = yaml.safe_dump(type_first(manifest["configuration"]), sort_keys=False, allow_unicode=True, width=110)
        inputs = {f"input digest {i}": text for i, text in enumerate(manifest.get("inputs", []), 1)}
        return join(
            element("h3", "Configuration"),
            element("p", "Save it as a file and run it again: ", element("code", "penstock experiment FILE"), "."),
            listing(written, "Configuration as YAML"),
            element("h3", "Inputs and versions"),
            definitions(inputs | manifest["versions"]),
        )


def _text(value: Any) -> str:
    """Format a value as in a file: not rounded, empty for None."""
    return "" if value is None else f"{value:.12g}" if isinstance(value, float) else str(value)


def _allowed(claim: dict[str, Any]) -> str:
    limits = (("≥", claim.get("at_least")), ("≤", claim.get("at_most")))
    return " and ".join(f"{sign} {number(limit, 6)}" for sign, limit in limits if limit is not None)


def _mean(row: dict[str, Any]) -> Cell:
    mean = row["mean"]
    if mean is None:
        return ""
    if row["low"] is None:
        return number(mean), mean
    below, above = mean - row["low"], row["high"] - mean
    if abs(above - below) > 0.1 * (above + below):  # near the limits of a measure
        return f"{number(mean)} ({number(row['low'])} to {number(row['high'])})", mean
    return f"{number(mean)} ± {number(below, 2)}", mean


def _cell(value: Any) -> Cell:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (number(value), float(value)) if isinstance(value, int | float) else str(value)


def frame_table(frame: pl.DataFrame, caption: str) -> Markup:
    """Return a table of plain values."""
    return table(frame.columns, [list(map(_cell, row)) for row in frame.iter_rows()], caption)


def choice_section(experiment: ExperimentFolder) -> Markup | None:
    """Limits, best setting, frontier and table; None for an experiment without a choice."""
    choice = experiment.manifest.get("choice")
    if not choice:
        return None
    parts: list[Markup | None] = [element("p", _found(experiment, choice)), _best(experiment, choice)]
    if experiment.frontier is not None:
        parts.append(element("div", id="frontier"))
        shown = _shown(experiment, experiment.frontier)
        parts.append(frame_table(shown, "Every setting: which limits it keeps, and its figures"))
    return join(*parts)


def _found(experiment: ExperimentFolder, choice: dict[str, Any]) -> str:
    limits = "; ".join(f"{experiment.label(name)} {words} {number(limit)}" for name, words, limit in experiment.limits)
    table = experiment.frontier
    has_intervals = table is not None and any(table[n].count() for n in table.columns if n.startswith("low "))
    judged = " with its whole interval" if has_intervals else ""
    keep = "keeps" if choice["allowed"] == 1 else "keep"
    kept = f"Of {plural(choice['settings'], 'setting')} {choice['allowed']:,} {keep} every limit{judged}: {limits}."
    binding = _binding(experiment, choice)
    if choice.get("best"):
        return f"{kept}{binding}"
    return f"{kept}{binding} Nothing can be advised: ask for less, or spend more."


def _binding(experiment: ExperimentFolder, choice: dict[str, Any]) -> str:
    """Return the limit that decides, the setting that it keeps out, and the nearest one that keeps it."""
    binding = choice.get("binding")
    if not binding:
        return ""
    name = binding["limit"]

    def setting_in_words(row: dict[str, Any]) -> str:
        """Describe a setting with its figure."""
        return f"{experiment.setting(row)} ({number(row[f'mean {name}'])})"

    out = "it keeps out" if choice.get("best") else "it is missed even by"
    keeping = f", and the nearest that keeps it is {setting_in_words(binding['keeping'])}" if binding["keeping"] else ""
    return (
        f" What binds is the limit on {experiment.label(name)}: {out} {setting_in_words(binding['setting'])}{keeping}."
    )


def _best(experiment: ExperimentFolder, choice: dict[str, Any]) -> Markup | None:
    """Return the best setting, its figures against their limits, and its configuration to run."""
    best = choice.get("best")
    if not best:
        return None
    numbers = [
        Headline(experiment.label(name), number(best["means"][name]), "", f"limit: {words} {number(limit)}")
        for name, words, limit in experiment.limits
        if name in best["means"]
    ]
    path = experiment.folder / "best.yaml"
    configuration = None
    if path.is_file():
        text = path.read_text(encoding="utf-8")
        summary = element("summary", "Configuration of the best setting, ready to run")
        configuration = element("details", summary, listing(text, "Configuration of the best setting"))
    title = element("p", element("strong", f"Best: {experiment.setting(best['values'])}."))
    return join(title, headlines("Best setting", numbers) if numbers else None, configuration)


def _shown(experiment: ExperimentFolder, table: pl.DataFrame) -> pl.DataFrame:
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


def frontier(experiment: ExperimentFolder) -> dict[str, Any] | None:
    """Chart of the frontier: every setting by its limited measures."""
    table, choice = experiment.frontier, experiment.manifest.get("choice")
    if table is None or not choice:
        return None
    measures = []
    for name in experiment.in_order((choice.get("at_least") or {}) | (choice.get("at_most") or {})):
        if f"mean {name}" not in table.columns:
            continue
        at_least = name in (choice.get("at_least") or {})
        sides = {
            side: pack(table[f"{side} {name}"].cast(pl.Float64).fill_null(float("nan")))
            for side in ("mean", "low", "high")
        }
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
