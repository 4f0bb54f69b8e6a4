"""All cells of an experiment, in parallel and resumed where they stopped; then tables, figures, advice and a page."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mechanisms.core.errors import ConfigError
from pipeline import parts
from pipeline.experiments import choose, expected, figures, table
from pipeline.experiments.cell_runs import Listener, Progress, run_cells
from pipeline.experiments.config import Heading
from pipeline.experiments.load import Experiment
from pipeline.manifest import UNFIT, versions
from pipeline.reporting import write_report


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
    parts.write_json(folder / "experiment.json", manifest)
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
