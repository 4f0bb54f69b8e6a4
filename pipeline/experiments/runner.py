"""Run an experiment trial by trial, in worker processes, resuming where it stopped."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mechanisms.core.plugin import ConfigError
from pipeline.config.build import input_paths
from pipeline.config.canonical import content_digest, resolved
from pipeline.config.run import RunConfig
from pipeline.experiments import choose, figures
from pipeline.experiments import results as expected
from pipeline.experiments import results as table
from pipeline.experiments.config import Heading
from pipeline.experiments.grid import Cell
from pipeline.experiments.load import Experiment
from pipeline.experiments.trial import cell_record, counting_tasks, counts_name, digest_of, read_counts
from pipeline.experiments.workers import Workers
from pipeline.output import files
from pipeline.output.manifest import UNFIT, made_by, versions
from pipeline.reporting.page import write_report

# Cells of an experiment on their way to results: what several of them count is counted once, before they run.


#: Called after every step with (cells done, cells failed, counts done).
Listener = Callable[[int, int, int], None]


@dataclass
class Progress:
    """How far an experiment is.

    Parameters
    ----------
    n_cells, n_resumed
        Cells in all, and those whose result was there already.
    records
        Result of every finished cell by its number.
    failed
        Why a cell failed, by its number.
    n_counts
        Counts made in this run.
    """

    n_cells: int
    n_resumed: int = 0
    records: dict[int, dict[str, Any]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    n_counts: int = 0


def run_cells(experiment: Experiment, folder: Path, n_jobs: int, listener: Listener) -> Progress:
    """Count what is not counted, run what has no result; a count that fails fails its cells.

    Parameters
    ----------
    experiment
        As `load_experiment` returns it.
    folder
        Where counts and results are kept, and found again.
    n_jobs
        Processes at a time.
    listener
        Hears of every cell and count that ends.
    """
    (folder / "cells").mkdir(exist_ok=True)
    runs = _Runs(experiment, folder)
    plugins = sorted({name for cell in experiment.cells for name in cell.config.plugins})
    workers = Workers(min(n_jobs, max(1, runs.n_waiting)), plugins)
    runs.begin(workers)
    progress = runs.progress
    listener(len(progress.records), 0, 0)
    for name, problem in workers.results():
        runs.end(name, problem, workers)
        listener(len(progress.records), len(progress.failed), progress.n_counts)
    return progress


class _Runs:
    """Which cells wait for which counts; tasks are named by the number of a cell, or by the first file of counts."""

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self.measures, self.group_size = experiment.config.measures, experiment.config.group_size
        self.progress = Progress(len(experiment.cells))
        self.inputs = _Inputs()
        self.results: dict[int, Path] = {}
        self.by_counts: dict[Path, list[Cell]] = defaultdict(list)
        self.counting: dict[str, tuple[Path, ...]] = {}
        for cell in experiment.cells:
            content = self.inputs.of(cell.config)
            own = folder / "cells" / f"{cell_name(cell, self.measures, content, self.group_size)}.json"
            self.results[cell.number] = own
            if (record := _read(own)) is not None:
                self.progress.records[cell.number] = record
            else:
                counts = counts_name(cell.config, content, self.group_size)
                self.by_counts[folder / "counts" / f"{counts}.npz"].append(cell)
        self.progress.n_resumed = len(self.progress.records)

    @property
    def n_waiting(self) -> int:
        """Cells without a result."""
        return sum(map(len, self.by_counts.values()))

    def begin(self, workers: Workers) -> None:
        """Submit what can be done at once: cells whose counts are there, and counts that are not."""
        missing = {counts: cells[0].config for counts, cells in self.by_counts.items() if not counts.exists()}
        for counts in self.by_counts:
            if counts not in missing:
                self._submit(counts, workers)
        for task, written in counting_tasks(missing, self.group_size):
            self.counting[str(written[0])] = written
            workers.submit(str(written[0]), task)

    def _submit(self, counts: Path, workers: Workers) -> None:
        """Every cell that reads these counts."""
        for cell in self.by_counts[counts]:
            task = (cell.config, counts, self.results[cell.number], self.measures, self.inputs.of(cell.config))
            workers.submit(str(cell.number), (work, task))

    def end(self, name: str, problem: str | None, workers: Workers) -> None:
        """Note how a task has ended; cells that waited for it are submitted, or fail with it."""
        if name.isdigit():
            number = int(name)
            if problem is None:
                self.progress.records[number] = _read(self.results[number]) or {}
            else:
                self.progress.failed[number] = problem
        elif problem is None:
            self.progress.n_counts += len(self.counting[name])
            for counts in self.counting[name]:
                self._submit(counts, workers)
        else:
            failed = (cell for counts in self.counting[name] for cell in self.by_counts[counts])
            self.progress.failed |= {cell.number: f"counting: {problem}" for cell in failed}


def work(config: RunConfig, counts: Path, path: Path, measures: tuple[str, ...], inputs: Mapping[str, str]) -> None:
    """Run one cell and keep its result, whole."""
    record = cell_record(config, read_counts(counts), measures)
    files.write_json(path, record | {"counts": counts.stem, "inputs": digest_of(inputs)})


def cell_name(cell: Cell, measures: tuple[str, ...], inputs: Mapping[str, str], group_size: int | None = None) -> str:
    """Digest of everything that decides a cell's numbers: configuration, seed, input, measures, versions and code."""
    config = resolved(cell.config, secrets=True)
    for unimportant in ("name", "output", "utility"):
        config.pop(unimportant)
    group = {} if group_size is None else {"group_size": group_size}
    return digest_of({"config": config, "measures": measures, "inputs": inputs} | made_by() | group)


class _Inputs:
    """Digests of what configurations read, each source and file read once."""

    def __init__(self) -> None:
        self._sources: dict[str, dict[str, str]] = {}
        self._files: dict[str, str] = {}

    def of(self, config: RunConfig) -> dict[str, str]:
        """SHA-256 by name: of the source's files, and of other files that the configuration names."""
        source = json.dumps(resolved(config)["source"], sort_keys=True)
        if source not in self._sources:
            self._sources[source] = config.source.digests()
        others = set(input_paths(config)) - set(input_paths(config.source))
        for path in others - self._files.keys():
            self._files[path] = content_digest(path)
        return self._sources[source] | {path: self._files[path] for path in sorted(others)}


def _read(path: Path) -> dict[str, Any] | None:
    """A kept result; None where there is none, or it is not whole."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and "measures" in record else None


# All cells of an experiment, in parallel and resumed where they stopped; then tables, figures, advice and a page.


class Asked(Protocol):
    """An experiment of any kind, as it is asked for."""

    @property
    def config(self) -> Heading:
        """What is shown, and how."""

    @property
    def written(self) -> dict[str, Any]:
        """The whole file as plain values after all changes, for provenance."""

    @property
    def reduced(self) -> bool:
        """Whether it runs at its reduced size."""


@dataclass(frozen=True)
class Outcome:
    """How an experiment ended.

    Parameters
    ----------
    exit_code
        0 done; 1 if any cell failed.
    folder
        Where the files are.
    manifest
        What ``experiment.json`` holds.
    """

    exit_code: int
    folder: Path
    manifest: dict[str, Any]


def run_experiment(
    experiment: Experiment,
    folder: str | Path | None = None,
    n_jobs: int | None = None,
    listener: Listener = lambda done, failed, counts: None,
) -> Outcome:
    """Run every cell that has no result yet, then write tables, figures, advice and the page that shows them.

    Parameters
    ----------
    experiment
        As `load_experiment` returns it.
    folder
        Where to write; None: the file's ``output``, or runs/experiments/<name>.
    n_jobs
        Processes at a time; None: one for each processor.
    listener
        Hears of every cell that ends.

    Raises
    ------
    ConfigError
        Figures are asked for and the plotting library is not installed.
    DataError
        The input cannot be read at all.
    """
    config = experiment.config
    target = begin(config, folder, draws=bool(config.figures or config.choose))
    progress = run_cells(experiment, target, n_jobs or os.cpu_count() or 1, listener)
    return finish(target, _write(experiment, target, progress))


def begin(config: Heading, folder: str | Path | None, draws: bool) -> Path:
    """The folder that an experiment of any kind writes, there; ``draws``: whether it needs the plotting library."""
    if draws:
        figures.check_installed()
    target = Path(folder or config.output or Path("runs") / "experiments" / config.name)
    _check_folder(target)
    (target / "cells").mkdir(parents=True, exist_ok=True)
    return target


def heading(experiment: Asked) -> dict[str, Any]:
    """What the manifest of every kind of experiment begins with."""
    return {
        "name": experiment.config.name,
        "question": experiment.config.question,
        "notice": UNFIT,
        "configuration": experiment.written,
        "reduced": experiment.reduced,
        "versions": versions(),
    }


def finish(folder: Path, manifest: dict[str, Any]) -> Outcome:
    """Write the manifest and the page that shows everything."""
    files.write_json(folder / "experiment.json", manifest)
    write_report(folder)
    return Outcome(1 if manifest["failed"] else 0, folder, manifest)


def _check_folder(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()) and not (folder / "cells").is_dir():
        raise ConfigError((f"output: {folder} holds files that no experiment wrote; choose another folder",))


def _write(experiment: Experiment, folder: Path, progress: Progress) -> dict[str, Any]:
    """Tables, figures, claims, advice and the manifest of the cells that have ended well."""
    config = experiment.config
    results, summary = table.write_tables(experiment, progress.records, folder)
    manifest: dict[str, Any] = heading(experiment) | {
        "varied": list(experiment.columns),
        "measures": list(config.measures),
        "confidence": config.confidence,
        "inputs": sorted({record["inputs"] for record in progress.records.values()}),
        "cells": progress.n_cells,
        "resumed": progress.n_resumed,
        "counted": progress.n_counts,
        "failed": [
            {"values": cell.values, "seed": cell.seed, "problem": progress.failed[cell.number]}
            for cell in experiment.cells
            if cell.number in progress.failed
        ],
    }
    if progress.records:
        manifest["figures"] = figures.write_figures(config, results, summary, folder)
        manifest["expected"] = expected.write_expected(config, results, experiment.columns, folder)
        if config.choose:
            manifest["choice"] = choose.write_choice(experiment, summary, folder)
    return manifest


# What a person sees of an experiment: one line while it goes on, a summary at its end.


@contextmanager
def show_cells(n_cells: int, enabled: bool) -> Iterator[Listener]:
    """A progress bar over all cells on standard error, and the listener that moves it."""
    if not enabled:
        yield lambda done, failed, counts: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("cells · {task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("begun", total=n_cells)

        def listener(done: int, failed: int, counts: int) -> None:
            """Move the bar."""
            words = [f"{number} {what}" for number, what in ((counts, "counted"), (failed, "failed")) if number]
            bar.update(task, completed=done + failed, description=" · ".join(words))

        yield listener


def summary(outcome: Outcome) -> str:
    """The end of an experiment in a few lines: cells, claims, choice, files."""
    manifest = outcome.manifest
    n_failed = len(manifest["failed"])
    lines = [
        f"cells     {manifest['cells']:,}: {manifest['cells'] - n_failed:,} done ({manifest['resumed']:,} of them "
        f"before), {n_failed:,} failed" + (f"; {manifest['counted']:,} counts made" if "counted" in manifest else ""),
    ]
    for failure in manifest["failed"]:
        values = ", ".join(f"{name}={value}" for name, value in failure["values"].items())
        lines.append(f"FAILED    {values} seed={failure['seed']}: {failure['problem']}")
    for claim in manifest.get("expected", ()):
        value = "" if claim["value"] is None else f" ({claim['value']:.4g})"
        lines.append(f"{claim['verdict']:17} {claim['says']}{value}")
    if choice := manifest.get("choice"):
        lines.append(_choice(choice))
    lines.append("open")
    for pattern in (
        "report.html",
        "results.parquet",
        "summary.csv",
        "expected.csv",
        "frontier.csv",
        "best.yaml",
        *manifest.get("tables", ()),
        "figures/*",
    ):
        lines += [f"  {path}" for path in sorted(outcome.folder.glob(pattern))]
    return "\n".join(lines)


def _choice(choice: dict) -> str:  # type: ignore[type-arg]
    if choice["best"] is None:
        return f"chosen    nothing: none of {choice['settings']:,} settings keeps all limits"
    values = ", ".join(f"{name}={value}" for name, value in choice["best"]["values"].items())
    means = ", ".join(f"{name} {value:.4g}" for name, value in choice["best"]["means"].items())
    return f"chosen    {values}: {means} ({choice['allowed']:,} of {choice['settings']:,} settings keep all limits)"
