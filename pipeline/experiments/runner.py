"""Run experiments: execute trials in worker processes, resume interrupted experiments, and write tables, figures and
a report.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.evaluation.attacks.parameters import Game
from penstock.mechanisms.core.plugin import ConfigError
from penstock.pipeline import atomic
from penstock.pipeline.config.build import input_paths
from penstock.pipeline.config.canonical import content_digest, resolved
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.experiments import figures, results
from penstock.pipeline.experiments.config import ExperimentHeader
from penstock.pipeline.experiments.load import Sweep
from penstock.pipeline.experiments.measures import trial_record
from penstock.pipeline.experiments.pieces import Piece, PieceResults, Record, RecordFolder, digest_of, run_missing
from penstock.pipeline.experiments.trial import read_people, reading_config, write_people
from penstock.pipeline.output.manifest import SIMULATION_NOTICE, software_versions, versions
from penstock.pipeline.reporting.page import write_report

#: Folder of the trials' results below that of the experiment; the name marks a folder as an experiment's.
RECORDS = "cells"
#: Folder of the people that trials share.
PEOPLE = "people"
#: Called after every step with (trials done, trials failed, sources read).
Listener = Callable[[int, int, int], None]


def run_trials(experiment: Sweep, folder: Path, n_jobs: int, listener: Listener) -> PieceResults:
    """Run every trial that has no stored result. People shared by several trials are read only once.

    Results and people are kept in ``folder``, under the digest of everything that decides them, so that another call
    resumes. Trials whose people cannot be read fail with them.
    """
    config, digests = experiment.config, dict[str, dict[str, str]]()
    plugins = sorted({name for trial in experiment.trials for name in trial.config.plugins})
    kept, trials, reading = RecordFolder(folder / RECORDS), list[tuple[str, Piece]](), dict[str, Piece]()
    for trial in experiment.trials:
        content = _input_digests(trial.config, digests)
        shared = reading_config(trial.config)
        decides = [resolved(shared, secrets=True), content, software_versions()]
        name = digest_of(decides)
        path = folder / PEOPLE / f"{name}.parquet"
        reading.setdefault(name, Piece(decides, write_people, (shared, path)))
        provenance = {"people": name, "inputs": digest_of(content)}
        arguments = (trial.config, path, config.measures, config.group_size, config.played, provenance)
        written = resolved(trial.config, secrets=True)
        for ignored in ("name", "output", "utility"):
            written.pop(ignored)
        game = None if config.played is None else asdict(config.played)
        decisive = {"config": written, "measures": config.measures, "group_size": config.group_size, "attack": game}
        trials.append((name, Piece(decisive | {"inputs": content} | software_versions(), run_one, arguments)))
    done = [kept.read(piece.decides) is not None for _, piece in trials]
    n_done = sum(done)
    listener(n_done, 0, 0)
    wanted = list(dict.fromkeys(name for (name, _), is_done in zip(trials, done) if not is_done))
    pieces = [reading[name] for name in wanted]
    read = run_missing(pieces, folder / PEOPLE, n_jobs, lambda made, failed: listener(n_done, 0, made), plugins)
    unread = {wanted[number]: f"reading: {problem}" for number, problem in read.failed.items()}
    failed = {n: unread[name] for n, (name, _) in enumerate(trials) if not done[n] and name in unread}
    runnable = [number for number in range(len(trials)) if number not in failed]
    made = run_missing(
        [trials[number][1] for number in runnable],
        folder / RECORDS,
        n_jobs,
        lambda made, wrong: listener(made, wrong + len(failed), len(read.records) - read.n_resumed),
        plugins,
    )
    failed |= {runnable[number]: problem for number, problem in made.failed.items()}
    return PieceResults({runnable[number]: record for number, record in made.records.items()}, failed, made.n_resumed)


def run_one(
    config: RunConfig,
    path: Path,
    measures: tuple[str, ...],
    group_size: int | None,
    game: Game | None,
    provenance: Mapping[str, str],
) -> Record:
    """Run a single trial with people read from a file."""
    return trial_record(config, read_people(path), measures, group_size, game) | dict(provenance)


def _input_digests(config: RunConfig, known: dict[str, dict[str, str]]) -> dict[str, str]:
    """Return the SHA-256 digest of every file named in a configuration, reusing the digests in ``known``."""
    source = json.dumps(resolved(config)["source"], sort_keys=True)
    if source not in known:
        known[source] = config.source.digests()
    others = sorted(set(input_paths(config)) - set(input_paths(config.source)))
    known |= {path: {path: content_digest(path)} for path in others if path not in known}
    return known[source] | {path: known[path][path] for path in others}


@dataclass(frozen=True)
class ExperimentResult:
    """An experiment's result: its output folder and the contents of ``experiment.json``."""

    #: 0 done; 1 if any trial failed.
    exit_code: int
    folder: Path
    manifest: dict[str, Any]


def run_experiment(
    experiment: Sweep,
    folder: str | Path | None = None,
    n_jobs: int | None = None,
    listener: Listener = lambda done, failed, n_read: None,
    kept: Path | None = None,
) -> ExperimentResult:
    """Run every trial that has no stored result, then write tables, figures, advice and the report.

    ``folder``: where to write; None: the file's ``output``, or runs/experiments/<name>. ``n_jobs``: processes at a
    time; None: one for each processor. ``kept``: folder of the trials' results; None: the same. Raises `ConfigError` if
    the folder holds files of something else, `DataError` if the input cannot be read at all.
    """
    target = begin(experiment.config, folder)
    ended = run_trials(experiment, kept or target, n_jobs or os.cpu_count() or 1, listener)
    manifest = _write(experiment, target, ended)
    atomic.write_json(target / "experiment.json", manifest)
    write_report(target)
    return ExperimentResult(1 if manifest["failed"] else 0, target, manifest)


def begin(config: ExperimentHeader, folder: str | Path | None) -> Path:
    """Create an experiment's output folder and return its path."""
    target = Path(folder or config.output or Path("runs") / "experiments" / config.name)
    if target.exists() and any(target.iterdir()) and not (target / RECORDS).is_dir():
        raise ConfigError((f"output: {target} holds files that no experiment wrote; choose another folder",))
    (target / RECORDS).mkdir(parents=True, exist_ok=True)
    return target


def heading(config: ExperimentHeader, written: dict[str, Any], reduced: bool) -> dict[str, Any]:
    """Return the manifest's leading keys. ``written`` is the whole experiment file as plain values."""
    words = {"name": config.name, "question": config.question, "notice": SIMULATION_NOTICE}
    return words | {"configuration": written, "reduced": reduced, "versions": versions()}


def _write(experiment: Sweep, folder: Path, ended: PieceResults) -> dict[str, Any]:
    """Write the tables, figures, claims and advice for the completed trials, and return the manifest."""
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
            manifest["choice"] = results.write_choice(experiment, summary, folder)
        if config.figures and not figures.installed():
            manifest["not_drawn"] = figures.NOT_DRAWN
    return manifest


def summary(outcome: ExperimentResult) -> str:
    """Summarise an experiment's result in a few lines: trials, claims, choice and files."""
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
        chosen = f"nothing: none of {choice['settings']:,} settings keeps all limits"
        if choice["best"]:
            values = ", ".join(f"{name}={value}" for name, value in choice["best"]["values"].items())
            kept = f"{choice['allowed']:,} of {choice['settings']:,} settings keep all limits"
            chosen = f"{values}: {results.describe_best(choice['best'])} ({kept})"
        lines.append(f"chosen    {chosen}")
    if "not_drawn" in manifest:
        lines.append(f"figures   not drawn: {manifest['not_drawn']}")
    lines.append("open")
    names = ("report.html", "results.parquet", "summary.csv", "expected.csv", "frontier.csv", "best.yaml", "figures/*")
    for pattern in names:
        lines += [f"  {path}" for path in sorted(outcome.folder.glob(pattern))]
    return "\n".join(lines)
