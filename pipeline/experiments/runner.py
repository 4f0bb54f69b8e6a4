"""Run experiments: run trials in worker processes, resume interrupted ones, and write tables, figures and a report."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from penstock.evaluation.attacks.parameters import Game
from penstock.mechanisms.core.plugin import ConfigError
from penstock.pipeline import atomic
from penstock.pipeline.config.build import input_paths
from penstock.pipeline.config.canonical import content_digest, resolved
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.experiments import figures, results
from penstock.pipeline.experiments.config import ExperimentConfig, ExperimentHeader
from penstock.pipeline.experiments.load import Planned, Sweep
from penstock.pipeline.experiments.measures import trial_record
from penstock.pipeline.experiments.pieces import Made, Piece, Record, RecordFolder, digest_of, run_pieces
from penstock.pipeline.experiments.trial import People, read_people, reading_config, write_people
from penstock.pipeline.output.manifest import SIMULATION_NOTICE, made_by, versions
from penstock.pipeline.reporting.page import write_report

#: Folder of the trials' results below that of the experiment; the name marks a folder as an experiment's.
RECORDS = "cells"
#: Folder of the people that trials share.
PEOPLE = "people"
#: Called after every step with (trials done, trials failed, sources read).
Listener = Callable[[int, int, int], None]


def run_trials(experiment: Sweep, folder: Path, n_jobs: int, listener: Listener) -> Made:
    """Run every trial that has no result yet, reading shared people only once.

    Results and people are kept in ``folder``, under the digest of everything that decides them, so that another call
    resumes. Trials whose people cannot be read fail with them.
    """
    inputs, config = _Inputs(), experiment.config
    plugins = sorted({name for trial in experiment.trials for name in trial.config.plugins})
    trials, reading = [], dict[str, Piece]()
    for trial in experiment.trials:
        content = inputs.of(trial.config)
        shared = reading_config(trial.config)
        decides = [resolved(shared, secrets=True), content, made_by()]
        name = digest_of(decides)
        path = folder / PEOPLE / f"{name}.parquet"
        reading.setdefault(name, Piece(decides, write_people, (shared, path)))
        provenance = {"people": name, "inputs": digest_of(content)}
        arguments = (trial.config, path, config.measures, config.group_size, config.played, provenance)
        trials.append((name, Piece(trial_decides(trial, config, content), run_one, arguments)))
    kept = RecordFolder(folder / RECORDS)
    done = [kept.read(piece.decides) is not None for _, piece in trials]
    listener(sum(done), 0, 0)
    wanted = list(dict.fromkeys(name for (name, _), is_done in zip(trials, done) if not is_done))
    n_done = sum(done)
    read = run_pieces(
        [reading[name] for name in wanted],
        folder / PEOPLE,
        n_jobs,
        lambda made, failed: listener(n_done, 0, made),
        plugins,
    )
    unread = {wanted[number]: problem for number, problem in read.failed.items()}
    runnable = [number for number, (name, _) in enumerate(trials) if done[number] or name not in unread]
    failed = {
        number: f"reading: {unread[name]}" for number, (name, _) in enumerate(trials) if number not in set(runnable)
    }
    n_read = len(read.records) - read.n_resumed
    made = run_pieces(
        [trials[number][1] for number in runnable],
        folder / RECORDS,
        n_jobs,
        lambda made, wrong: listener(made, wrong + len(failed), n_read),
        plugins,
    )
    failed |= {runnable[number]: problem for number, problem in made.failed.items()}
    return Made({runnable[number]: record for number, record in made.records.items()}, failed, made.n_resumed)


def run_one(
    config: RunConfig,
    path: Path,
    measures: tuple[str, ...],
    group_size: int | None,
    game: Game | None,
    provenance: Mapping[str, str],
) -> Record:
    """Run one trial with the people read from a file."""
    return trial_record(config, _people(path), measures, group_size, game) | dict(provenance)


@lru_cache(maxsize=1)
def _people(path: Path) -> People:
    """Return the people in a file, and cache them for the next trial."""
    return read_people(path)


def trial_decides(trial: Planned, config: ExperimentConfig, inputs: Mapping[str, str]) -> dict[str, Any]:
    """Return the inputs that determine a trial's numbers: configuration, seed, data, measures, versions and code."""
    written = resolved(trial.config, secrets=True)
    for ignored in ("name", "output", "utility"):
        written.pop(ignored)
    game = None if config.played is None else asdict(config.played)
    decisive = {"config": written, "measures": config.measures, "group_size": config.group_size, "attack": game}
    return decisive | {"inputs": inputs} | made_by()


class _Inputs:
    """The digests of the inputs of configurations. Each source and file is read only once."""

    def __init__(self) -> None:
        self._sources: dict[str, dict[str, str]] = {}
        self._files: dict[str, str] = {}

    def of(self, config: RunConfig) -> dict[str, str]:
        """Return, by name, the SHA-256 of the source's files and of the other files that the configuration names."""
        source = json.dumps(resolved(config)["source"], sort_keys=True)
        if source not in self._sources:
            self._sources[source] = config.source.digests()
        others = set(input_paths(config)) - set(input_paths(config.source))
        for path in others - self._files.keys():
            self._files[path] = content_digest(path)
        return self._sources[source] | {path: self._files[path] for path in sorted(others)}


@dataclass(frozen=True)
class ExperimentResult:
    """The result of an experiment: its output folder and the content of ``experiment.json``."""

    #: 0 done; 1 if any trial failed.
    exit_code: int
    folder: Path
    manifest: dict[str, Any]


def run_experiment(
    experiment: Sweep,
    folder: str | Path | None = None,
    n_jobs: int | None = None,
    listener: Listener = lambda done, failed, n_read: None,
) -> ExperimentResult:
    """Run every trial that has no result yet, then write tables, figures, advice and the report.

    Parameters
    ----------
    experiment
        As `load_experiment` returns it.
    folder
        Where to write; None: the file's ``output``, or runs/experiments/<name>.
    n_jobs
        Processes at a time; None: one for each processor.
    listener
        Called after every step.

    Raises
    ------
    ConfigError
        The folder holds files of something else.
    DataError
        The input cannot be read at all.
    """
    config = experiment.config
    target = begin(config, folder)
    ended = run_trials(experiment, target, n_jobs or os.cpu_count() or 1, listener)
    return finish(target, _write(experiment, target, ended))


def begin(config: ExperimentHeader, folder: str | Path | None) -> Path:
    """Create and return the output folder of an experiment."""
    target = Path(folder or config.output or Path("runs") / "experiments" / config.name)
    if target.exists() and any(target.iterdir()) and not (target / RECORDS).is_dir():
        raise ConfigError((f"output: {target} holds files that no experiment wrote; choose another folder",))
    (target / RECORDS).mkdir(parents=True, exist_ok=True)
    return target


def heading(config: ExperimentHeader, written: dict[str, Any], reduced: bool) -> dict[str, Any]:
    """Return the first keys of the manifest. ``written`` is the whole experiment file as plain values."""
    return {
        "name": config.name,
        "question": config.question,
        "notice": SIMULATION_NOTICE,
        "configuration": written,
        "reduced": reduced,
        "versions": versions(),
    }


def finish(folder: Path, manifest: dict[str, Any]) -> ExperimentResult:
    """Write the manifest and the report."""
    atomic.write_json(folder / "experiment.json", manifest)
    write_report(folder)
    return ExperimentResult(1 if manifest["failed"] else 0, folder, manifest)


def _write(experiment: Sweep, folder: Path, ended: Made) -> dict[str, Any]:
    """Write the tables, figures, claims and advice of the completed trials, and return the manifest."""
    config = experiment.config
    table, summary = results.write_tables(experiment, ended.records, folder)
    manifest: dict[str, Any] = heading(config, experiment.written, experiment.reduced) | {
        "varied": list(experiment.columns),
        "measures": list(config.measures),
        "confidence": results.CONFIDENCE,
        "inputs": sorted({record["inputs"] for record in ended.records.values()}),
        "cells": len(experiment.trials),
        "resumed": ended.n_resumed,
        "failed": [
            {"values": trial.values, "seed": trial.seed, "problem": ended.failed[trial.number]}
            for trial in experiment.trials
            if trial.number in ended.failed
        ],
    }
    if ended.records:
        manifest["figures"] = figures.write_figures(config, table, summary, folder)
        manifest["expected"] = results.write_expected(config, table, folder)
        if config.choose:
            choice, frontier = results.write_choice(experiment, summary, folder)
            manifest["choice"] = choice | {"chart": figures.draw_frontier(config, summary, frontier, folder)}
        if (config.figures or config.choose) and not figures.installed():
            manifest["not_drawn"] = figures.NOT_DRAWN
    return manifest


def summary(outcome: ExperimentResult) -> str:
    """Summarise the result of an experiment in a few lines: trials, claims, choice and files."""
    manifest = outcome.manifest
    n_failed = len(manifest["failed"])
    lines = [
        f"trials    {manifest['cells']:,}: {manifest['cells'] - n_failed:,} done ({manifest['resumed']:,} of them "
        f"before), {n_failed:,} failed",
    ]
    for failure in manifest["failed"]:
        values = ", ".join(f"{name}={value}" for name, value in failure["values"].items())
        lines.append(f"FAILED    {values} seed={failure['seed']}: {failure['problem']}")
    for claim in manifest.get("expected", ()):
        value = "" if claim["value"] is None else f" ({claim['value']:.4g})"
        lines.append(f"{claim['verdict']:17} {claim['says']}{value}")
    if choice := manifest.get("choice"):
        lines.append(_choice(choice))
    if "not_drawn" in manifest:
        lines.append(f"figures   not drawn: {manifest['not_drawn']}")
    lines.append("open")
    for pattern in (
        "report.html",
        "results.parquet",
        "summary.csv",
        "expected.csv",
        "frontier.csv",
        "best.yaml",
        "figures/*",
    ):
        lines += [f"  {path}" for path in sorted(outcome.folder.glob(pattern))]
    return "\n".join(lines)


def _choice(choice: Mapping[str, Any]) -> str:
    if choice["best"] is None:
        return f"chosen    nothing: none of {choice['settings']:,} settings keeps all limits"
    values = ", ".join(f"{name}={value}" for name, value in choice["best"]["values"].items())
    words = results.best_in_words(choice["best"])
    return f"chosen    {values}: {words} ({choice['allowed']:,} of {choice['settings']:,} settings keep all limits)"
