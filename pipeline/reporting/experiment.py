"""What the page of an experiment shows: the advice, the figures, claims beside findings, and every result."""

from __future__ import annotations

import base64
import json
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

    def verdict(self) -> Html:
        """The question, and how far the answer is complete."""
        manifest = self.manifest
        n_failed, n_cells = len(manifest.get("failed", [])), manifest["cells"]
        settings = self.summary.select(manifest["varied"]).n_unique() if manifest["varied"] else 1
        ran = f"{n_cells - n_failed:,} of {plural(n_cells, 'run')} ended well: {plural(settings, 'setting')}"
        return join(
            element("p", " ".join(str(manifest["question"]).split()), class_="standfirst"),
            element("p", f"{ran}, with {', '.join(map(phrase, manifest['varied']))} varied."),
        )

    def warnings(self) -> list[Notice]:
        """Failed runs, and that nothing here may be published as data."""
        found = [Notice("caution", "unfit for publication", str(self.manifest["notice"]))]
        failed = self.manifest.get("failed", [])
        if failed:
            shown = [f"{_setting(cell['values'])}, seed {cell['seed']}: {cell['problem']}" for cell in failed]
            more = f" and {len(failed) - MOST_FAILED:,} more" if len(failed) > MOST_FAILED else ""
            found.insert(
                0, Notice("danger", f"{plural(len(failed), 'failed run')}", "; ".join(shown[:MOST_FAILED]) + more)
            )
        return found

    def choice(self) -> Html | None:
        """The frontier, and the best setting with its configuration."""
        choice = self.manifest.get("choice")
        if not choice:
            return None
        limits = [f"{name} at least {number(value)}" for name, value in (choice.get("at_least") or {}).items()]
        limits += [f"{name} at most {number(value)}" for name, value in (choice.get("at_most") or {}).items()]
        text = (
            f"Of {plural(choice['settings'], 'setting')} {choice['allowed']:,} keep every limit ({', '.join(limits)})."
        )
        best = choice.get("best")
        found: list[Html | None] = [element("p", text)]
        if best:
            means = ", ".join(f"{name} {number(mean)}" for name, mean in best["means"].items())
            found.append(element("p", element("strong", f"Best: {_setting(best['values'])}. "), f"Means: {means}."))
        path = self.folder / "best.yaml"
        if best and path.is_file():
            found.append(listing(path.read_text(encoding="utf-8"), "Configuration of the best setting"))
        return join(*found, self._picture(choice.get("chart"), "Frontier"), self._frontier())

    def _frontier(self) -> Html | None:
        path = self.folder / "frontier.parquet"
        if not path.is_file():
            return None
        return _frame_table(pl.read_parquet(path), "Every setting: whether it is allowed, and on the frontier")

    def figures(self) -> Html | None:
        """All figures, in the page itself."""
        pictures = [self._picture(figure["file"], figure["title"]) for figure in self.manifest.get("figures", [])]
        return join(*pictures) or None

    def _picture(self, name: str | None, title: str) -> Html | None:
        path = self.folder / name if name else None
        if path is None or path.suffix not in PICTURES or not path.is_file():
            return None
        content = base64.b64encode(path.read_bytes()).decode("ascii")
        image = element("img", alt=title, src=f"data:{PICTURES[path.suffix]};base64,{content}")
        return element("figure", element("figcaption", element("h3", title)), image, class_="picture")

    def expected(self) -> Html | None:
        """Claims of papers beside what came out."""
        claims = self.manifest.get("expected")
        return _frame_table(pl.DataFrame(claims), "Claims, and what came out") if claims else None

    def results(self) -> Html:
        """Means of all measures, one row a setting, and the whole summary."""
        varied = self.manifest["varied"]
        settings: dict[tuple[Any, ...], dict[str, Cell]] = {}
        for row in self.summary.iter_rows(named=True):
            settings.setdefault(tuple(row[name] for name in varied), {})[row["measure"]] = _mean(row)
        measures = self.summary["measure"].unique(maintain_order=True).to_list()
        units = dict(self.summary.select("measure", "unit").iter_rows())
        heads = [f"{name} ({units[name]})" if units[name] else name for name in measures]
        rows = [[*map(_cell, setting), *(own.get(name, "") for name in measures)] for setting, own in settings.items()]
        percent = f"{self.manifest.get('confidence', 0.95):.0%}"
        return table([*varied, *heads], rows, f"Means over seeds, ± half of their {percent} interval")

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


def _setting(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


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


def _frame_table(frame: pl.DataFrame, caption: str) -> Html:
    return table(frame.columns, [list(map(_cell, row)) for row in frame.iter_rows()], caption)
