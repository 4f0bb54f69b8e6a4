"""Cells of an experiment on their way to results: what several of them count is counted once, before they run."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline import parts
from pipeline.configuration.canonical import content_digest, input_paths
from pipeline.configuration.run import RunConfig, resolved
from pipeline.experiments.cell import cell_record
from pipeline.experiments.cells import Cell
from pipeline.experiments.counts import counts_name, digest_of, read_counts
from pipeline.experiments.groups import counting_tasks
from pipeline.experiments.load import Experiment
from pipeline.experiments.workers import Workers
from pipeline.manifest import made_by

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
    parts.write_json(path, record | {"counts": counts.stem, "inputs": digest_of(inputs)})


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
