"""All cells of an experiment, in parallel and resumed where they stopped; then tables, figures, advice and a page."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mechanisms.core.errors import ConfigError
from pipeline import parts
from pipeline.configuration.canonical import content_digest, input_paths
from pipeline.configuration.run import RunConfig, resolved
from pipeline.experiments import choose, expected, figures, table
from pipeline.experiments.cell import cell_record
from pipeline.experiments.cells import Cell
from pipeline.experiments.counts import counts_name, digest_of, read_counts
from pipeline.experiments.groups import counting_tasks
from pipeline.experiments.load import Experiment
from pipeline.experiments.workers import Workers
from pipeline.manifest import UNFIT, versions
from pipeline.reporting import write_report

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
    if config.figures or config.choose:
        figures.check_installed()
    target = Path(folder or config.output or Path("runs") / "experiments" / config.name)
    _check_folder(target)
    target.mkdir(parents=True, exist_ok=True)
    progress = _run_cells(experiment, target, n_jobs or os.cpu_count() or 1, listener)
    manifest = _write(experiment, target, progress)
    write_report(target)
    return Outcome(1 if progress.failed else 0, target, manifest)


def _check_folder(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()) and not (folder / "cells").is_dir():
        raise ConfigError((f"output: {folder} holds files that no experiment wrote; choose another folder",))


def _run_cells(experiment: Experiment, folder: Path, n_jobs: int, listener: Listener) -> Progress:
    """Count what is not counted, run what has no result; a count that fails fails its cells."""
    progress, group_size = Progress(len(experiment.cells)), experiment.config.group_size
    (folder / "cells").mkdir(exist_ok=True)
    inputs = _Inputs()
    paths: dict[int, Path] = {}
    by_counts: dict[Path, list[Cell]] = defaultdict(list)
    for cell in experiment.cells:
        content = inputs.of(cell.config)
        own = cell_name(cell, experiment.config.measures, content, group_size)
        paths[cell.number] = folder / "cells" / f"{own}.json"
        if (record := _read(paths[cell.number])) is not None:
            progress.records[cell.number] = record
        else:
            by_counts[folder / "counts" / f"{counts_name(cell.config, content, group_size)}.npz"].append(cell)
    progress.n_resumed = len(progress.records)
    plugins = sorted({name for cell in experiment.cells for name in cell.config.plugins})
    workers = Workers(min(n_jobs, max(1, sum(map(len, by_counts.values())))), plugins)

    def submit(counts: Path) -> None:
        """Have every cell run that reads these counts."""
        for cell in by_counts[counts]:
            content = inputs.of(cell.config)
            task = (cell.config, counts, paths[cell.number], experiment.config.measures, content)
            workers.submit(str(cell.number), (work, task))

    for counts in filter(Path.exists, by_counts):
        submit(counts)
    missing = {counts: cells[0].config for counts, cells in by_counts.items() if not counts.exists()}
    made: dict[str, tuple[Path, ...]] = {}
    for task, written in counting_tasks(missing, group_size):
        made[str(written[0])] = written
        workers.submit(str(written[0]), task)
    listener(len(progress.records), 0, 0)
    for name, problem in workers.results():
        if name.isdigit():
            number = int(name)
            if problem is None:
                progress.records[number] = _read(paths[number]) or {}
            else:
                progress.failed[number] = problem
        elif problem is None:
            progress.n_counts += len(made[name])
            for counts in made[name]:
                submit(counts)
        else:
            failed = (cell for counts in made[name] for cell in by_counts[counts])
            progress.failed |= {cell.number: f"counting: {problem}" for cell in failed}
        listener(len(progress.records), len(progress.failed), progress.n_counts)
    return progress


def work(config: RunConfig, counts: Path, path: Path, measures: tuple[str, ...], inputs: Mapping[str, str]) -> None:
    """Run one cell and keep its result, whole."""
    record = cell_record(config, read_counts(counts), measures)
    parts.write_json(path, record | {"counts": counts.stem, "inputs": digest_of(inputs)})


def cell_name(cell: Cell, measures: tuple[str, ...], inputs: Mapping[str, str], group_size: int | None = None) -> str:
    """Digest of everything that decides a cell's numbers: configuration, seed, input, versions and measures."""
    config = resolved(cell.config, secrets=True)
    for unimportant in ("name", "output", "utility"):
        config.pop(unimportant)
    group = {} if group_size is None else {"group_size": group_size}
    return digest_of({"config": config, "measures": measures, "inputs": inputs, "versions": versions()} | group)


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


def _write(experiment: Experiment, folder: Path, progress: Progress) -> dict[str, Any]:
    """Tables, figures, claims, advice and the manifest of the cells that have ended well."""
    config = experiment.config
    results, summary = table.write_tables(experiment, progress.records, folder)
    manifest: dict[str, Any] = {
        "name": config.name,
        "question": config.question,
        "notice": UNFIT,
        "configuration": experiment.written,
        "reduced": experiment.reduced,
        "varied": list(experiment.columns),
        "measures": list(config.measures),
        "confidence": config.confidence,
        "versions": versions(),
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
    parts.write_json(folder / "experiment.json", manifest)
    return manifest
