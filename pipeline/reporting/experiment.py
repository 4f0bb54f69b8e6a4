"""What the page of an experiment shows: the question, the figures, claims beside findings, and every result."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from mechanisms.core.errors import DataError
from pipeline.reporting.markup import Cell, Html, element, join, table
from pipeline.reporting.provenance import definitions, listing, type_first
from pipeline.reporting.warnings import Notice
from pipeline.reporting.words import number, phrase, plural

MANIFEST = "experiment.json"
#: Content types of the figures that fit into the page.
PICTURES = {".svg": "image/svg+xml", ".png": "image/png"}
MOST_FAILED = 20
VARIANT = "variant"


def is_experiment(folder: Path) -> bool:
    """Whether an experiment wrote this folder."""
    return (folder / MANIFEST).is_file()


@dataclass(frozen=True)
class Experiment:
    """One experiment, read where it is asked for.

    Parameters
    ----------
    folder
        What ``penstock experiment`` wrote.
    """

    folder: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Its manifest."""
        try:
            value: dict[str, Any] = json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"{self.folder / MANIFEST}: not JSON ({error})") from error
        return value

    @cached_property
    def summary(self) -> pl.DataFrame:
        """Mean and interval of every setting and measure."""
        path = self.folder / "summary.parquet"
        if not path.is_file():
            raise DataError(f"{path}: is missing; run the experiment again, it resumes where it stopped")
        return pl.read_parquet(path)

    @property
    def labels(self) -> dict[str, str]:
        """What people read in place of names."""
        return self.manifest["configuration"].get("labels") or {}

    def label(self, name: str) -> str:
        """What people read in place of the name of a measure or of something that varies."""
        return self.labels.get(name, phrase(name))

    def setting(self, values: dict[str, Any]) -> str:
        """A setting in words, in the order in which the experiment names what varies."""
        varied = [name for name in self.manifest["varied"] if name in values]
        shown = [str(values[n]) if n == VARIANT else f"{self.label(n)} {_text(values[n])}" for n in varied]
        return ", ".join(shown) or "the only setting"

    def in_order(self, names: Iterable[str]) -> list[str]:
        """Measures in the order of the experiment; a manifest keeps its keys sorted."""
        order = self.manifest.get("measures", [])
        return sorted(names, key=lambda name: order.index(name) if name in order else len(order))

    def verdict(self) -> Html:
        """The question, what a full run has shown, and how far this one is complete."""
        manifest = self.manifest
        told = manifest["configuration"].get("setting")
        return join(
            element("p", " ".join(str(manifest["question"]).split()), class_="standfirst"),
            element("p", " ".join(str(told).split())) if told else None,
            element("p", self._ran()),
        )

    def _ran(self) -> str:
        n_failed, n_cells, names = len(self.manifest.get("failed", [])), self.manifest["cells"], self.manifest["varied"]
        settings = self.summary.select(names).n_unique() if names else 1
        varied = f", by {', '.join(map(self.label, names))}" if names else ""
        return f"{n_cells - n_failed:,} of {plural(n_cells, 'run')} ended well: {plural(settings, 'setting')}{varied}."

    def warnings(self) -> list[Notice]:
        """Failed runs, a reduced size, and that nothing here may be published as data."""
        found = [Notice("caution", "unfit for publication", str(self.manifest["notice"]))]
        if self.manifest.get("reduced"):
            text = (
                "The words above describe the full size; sizes, settings and limits of this run are smaller or fewer."
            )
            found.append(Notice("note", "reduced size", text))
        failed = self.manifest.get("failed", [])
        if failed:
            shown = [f"{self.setting(cell['values'])}, seed {cell['seed']}: {cell['problem']}" for cell in failed]
            more = f" and {len(failed) - MOST_FAILED:,} more" if len(failed) > MOST_FAILED else ""
            found.insert(
                0, Notice("danger", f"{plural(len(failed), 'failed run')}", "; ".join(shown[:MOST_FAILED]) + more)
            )
        return found

    def figures(self) -> Html | None:
        """All figures, in the page itself."""
        return join(*(self._picture(figure["file"], figure["title"]) for figure in self._figures)) or None

    @property
    def _figures(self) -> list[dict[str, Any]]:
        """Figures whose pictures are there and fit into the page."""
        found = self.manifest.get("figures", [])
        paths = [self.folder / figure["file"] for figure in found]
        return [figure for figure, path in zip(found, paths) if path.suffix in PICTURES and path.is_file()]

    def _picture(self, name: str, title: str) -> Html:
        path = self.folder / name
        content = base64.b64encode(path.read_bytes()).decode("ascii")
        image = element("img", alt=title, src=f"data:{PICTURES[path.suffix]};base64,{content}")
        return element("figure", element("figcaption", element("h3", title)), image, class_="picture")

    def as_json(self) -> dict[str, Any]:
        """The part that the page's script needs: the data of every figure."""
        found = []
        for figure in self._figures:
            path = self.folder / figure["data"] if figure.get("data") else None
            table = pl.read_csv(path) if path and path.is_file() else pl.DataFrame()
            rows = [[value if isinstance(value, int) else _text(value) for value in row] for row in table.iter_rows()]
            found.append({"title": figure["title"], "columns": table.columns, "rows": rows})
        return {"kind": "experiment", "name": self.manifest["name"], "figures": found}

    def expected(self) -> Html | None:
        """Claims of papers beside what came out."""
        claims = self.manifest.get("expected")
        if not claims:
            return None
        rows = [
            [
                claim["says"],
                claim["source"],
                claim.get("number", ""),
                _allowed(claim),
                _cell(claim["value"]),
                "" if claim.get("low") is None else f"{number(claim['low'])} to {number(claim['high'])}",
                claim["verdict"],
            ]
            for claim in claims
        ]
        heads = ["Expected", "By whom", "Number", "Allowed", "Found", "Interval", "Verdict"]
        return table(heads, rows, "Claims, and what came out")

    def results(self) -> Html | None:
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
        rows = [[*map(_cell, setting), *(own.get(name, "") for name in measures)] for setting, own in settings.items()]
        percent = f"{self.manifest.get('confidence', 0.95):.0%}"
        return table([*map(self.label, varied), *heads], rows, f"Means over seeds, ± half of their {percent} interval")

    def provenance(self) -> Html:
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


@dataclass(frozen=True)
class Study(Experiment):
    """One study: an experiment whose results are tables of its own."""

    def _ran(self) -> str:
        n_failed, n_pieces = len(self.manifest["failed"]), self.manifest["cells"]
        return f"{n_pieces - n_failed:,} of {plural(n_pieces, 'piece')} ended well."

    def results(self) -> Html | None:
        """Every table."""
        tables = {name: pl.read_csv(self.folder / name) for name in self.manifest["tables"]}
        return join(*(frame_table(table, name) for name, table in tables.items())) or None


def experiment_in(folder: Path) -> Experiment:
    """The experiment that wrote a folder, of whatever kind."""
    found = Experiment(folder)
    return Study(folder) if "tables" in found.manifest else found


def _text(value: Any) -> str:
    """A value as it is written in a file: not rounded, nothing for none."""
    return "" if value is None else f"{value:.12g}" if isinstance(value, float) else str(value)


def _allowed(claim: dict[str, Any]) -> str:
    limits = (("≥", claim.get("at_least")), ("≤", claim.get("at_most")))
    return " and ".join(f"{sign} {number(limit, 6)}" for sign, limit in limits if limit is not None)


def _mean(row: dict[str, Any]) -> Cell:
    mean = row["mean"]
    if mean is None:
        return ""
    half = "" if row["low"] is None else f" ± {number(mean - row['low'], 2)}"
    return number(mean) + half, mean


def _cell(value: Any) -> Cell:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (number(value), float(value)) if isinstance(value, int | float) else str(value)


def frame_table(frame: pl.DataFrame, caption: str) -> Html:
    """A table of plain values."""
    return table(frame.columns, [list(map(_cell, row)) for row in frame.iter_rows()], caption)
