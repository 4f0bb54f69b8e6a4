"""Run experiments: trials in worker processes, resumed where an earlier call stopped; then tables, figures, report."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from penstock.mechanisms.core.contract import MECHANISMS
from penstock.mechanisms.core.plugin import ConfigError
from penstock.pipeline.config.build import input_paths
from penstock.pipeline.config.canonical import content_digest, resolved
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.experiments import figures, results
from penstock.pipeline.experiments.attacks.membership import Game
from penstock.pipeline.experiments.config import ExperimentHeader
from penstock.pipeline.experiments.load import Experiment, Trial
from penstock.pipeline.experiments.pieces import Task, Workers, digest_of
from penstock.pipeline.experiments.trial import (
    counting_config,
    counts_name,
    read_counts,
    trial_record,
    write_counts,
    write_group_counts,
)
from penstock.pipeline.output import files
from penstock.pipeline.output.manifest import UNFIT, made_by, versions
from penstock.pipeline.reporting.page import write_report

#: Folder of the trials' results below that of the experiment; the name marks a folder as an experiment's.
RECORDS = "cells"
#: Called after every step with (trials done, trials failed, counts done).
Listener = Callable[[int, int, int], None]


def run_trials(experiment: Experiment, folder: Path, n_jobs: int, listener: Listener) -> Schedule:
    """Make missing counts and run trials without a result; a failed count fails its trials.

    Counts and results are kept in ``folder``, under the digest of everything that decides them, so that another call
    resumes.
    """
    schedule = Schedule(experiment, folder)
    plugins = sorted({name for trial in experiment.trials for name in trial.config.plugins})
    workers = Workers(min(n_jobs, max(1, schedule.n_waiting)), plugins)
    schedule.begin(workers)
    listener(len(schedule.records), 0, 0)
    for name, problem in workers.results():
        schedule.end(name, problem, workers)
        listener(len(schedule.records), len(schedule.failed), schedule.n_counts)
    return schedule


class Schedule:
    """Trials by the counts they wait for, and what came of them.

    A task is named by a trial's number or by its first file of counts. `records` and `failed` hold results and reasons
    of failure by the trial's number; `n_resumed` counts results of earlier calls, `n_counts` the counts made in this
    one.
    """

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self.measures, self.group_size = experiment.config.measures, experiment.config.group_size
        self.game = experiment.config.played
        self.records: dict[int, dict[str, Any]] = {}
        self.failed: dict[int, str] = {}
        self.n_counts = 0
        self.inputs = _Inputs()
        self.results: dict[int, Path] = {}
        self.by_counts: dict[Path, list[Trial]] = defaultdict(list)
        self.counting: dict[str, tuple[Path, ...]] = {}
        for trial in experiment.trials:
            content = self.inputs.of(trial.config)
            own = folder / RECORDS / f"{trial_name(trial, self.measures, content, self.group_size, self.game)}.json"
            self.results[trial.number] = own
            if (record := _read(own)) is not None:
                self.records[trial.number] = record
            else:
                counts = counts_name(trial.config, content, self.group_size)
                self.by_counts[folder / "counts" / f"{counts}.npz"].append(trial)
        self.n_resumed = len(self.records)

    @property
    def n_waiting(self) -> int:
        """Number of trials without a result."""
        return sum(map(len, self.by_counts.values()))

    def begin(self, workers: Workers) -> None:
        """Submit trials whose counts exist, and the tasks that make missing counts."""
        missing = {counts: trials[0].config for counts, trials in self.by_counts.items() if not counts.exists()}
        for counts in self.by_counts:
            if counts not in missing:
                self._submit(counts, workers)
        for task, written in counting_tasks(missing, self.group_size):
            self.counting[str(written[0])] = written
            workers.submit(str(written[0]), task)

    def _submit(self, counts: Path, workers: Workers) -> None:
        """Submit every trial that reads these counts."""
        for trial in self.by_counts[counts]:
            inputs = self.inputs.of(trial.config)
            task = (trial.config, counts, self.results[trial.number], self.measures, inputs, self.game)
            workers.submit(str(trial.number), (work, task))

    def end(self, name: str, problem: str | None, workers: Workers) -> None:
        """Record the end of a task; trials that waited for it are submitted, or fail with it."""
        if name.isdigit():
            number = int(name)
            if problem is None:
                self.records[number] = _read(self.results[number]) or {}
            else:
                self.failed[number] = problem
        elif problem is None:
            self.n_counts += len(self.counting[name])
            for counts in self.counting[name]:
                self._submit(counts, workers)
        else:
            failed = (trial for counts in self.counting[name] for trial in self.by_counts[counts])
            self.failed |= {trial.number: f"counting: {problem}" for trial in failed}


def counting_tasks(wanted: Mapping[Path, RunConfig], group_size: int | None) -> list[tuple[Task, tuple[Path, ...]]]:
    """Tasks that make all counts, each with the files it writes.

    ``wanted`` maps the file to write to a configuration that needs it; groups of ``group_size`` users over the same
    source are counted in one task, with one pass over the source.
    """
    if group_size is None:
        return [((write_counts, (config, path)), (path,)) for path, config in wanted.items()]
    alike: dict[str, list[tuple[RunConfig, Path]]] = defaultdict(list)
    for path, config in wanted.items():
        # The users of a source depend neither on the seed nor on the mechanism.
        seen = replace(counting_config(config), mechanism=(MECHANISMS.get("raw")(),), seed=0)
        alike[digest_of(resolved(seen, secrets=True))].append((config, path))
    return [
        ((write_group_counts, (tuple(same), group_size)), tuple(path for _, path in same)) for same in alike.values()
    ]


def work(
    config: RunConfig,
    counts: Path,
    path: Path,
    measures: tuple[str, ...],
    inputs: Mapping[str, str],
    game: Game | None = None,
) -> None:
    """Run one trial and write its result atomically."""
    record = trial_record(config, read_counts(counts), measures, game)
    files.write_json(path, record | {"counts": counts.stem, "inputs": digest_of(inputs)})


def trial_name(
    trial: Trial,
    measures: tuple[str, ...],
    inputs: Mapping[str, str],
    group_size: int | None = None,
    game: Game | None = None,
) -> str:
    """Digest of everything that decides a trial's numbers: configuration, seed, input, measures, versions and code."""
    config = resolved(trial.config, secrets=True)
    for unimportant in ("name", "output", "utility"):
        config.pop(unimportant)
    group: dict[str, Any] = {} if group_size is None else {"group_size": group_size}
    group |= {} if game is None else {"attack": asdict(game)}
    return digest_of({"config": config, "measures": measures, "inputs": inputs} | made_by() | group)


class _Inputs:
    """Digests of the inputs of configurations; each source and file is read once."""

    def __init__(self) -> None:
        self._sources: dict[str, dict[str, str]] = {}
        self._files: dict[str, str] = {}

    def of(self, config: RunConfig) -> dict[str, str]:
        """SHA-256 by name, of the source's files and of other files that the configuration names."""
        source = json.dumps(resolved(config)["source"], sort_keys=True)
        if source not in self._sources:
            self._sources[source] = config.source.digests()
        others = set(input_paths(config)) - set(input_paths(config.source))
        for path in others - self._files.keys():
            self._files[path] = content_digest(path)
        return self._sources[source] | {path: self._files[path] for path in sorted(others)}


def _read(path: Path) -> dict[str, Any] | None:
    """A stored result; None if it is missing or truncated."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and "measures" in record else None


@dataclass(frozen=True)
class ExperimentResult:
    """Result of an experiment: its output folder and the content of ``experiment.json``."""

    #: 0 done; 1 if any trial failed.
    exit_code: int
    folder: Path
    manifest: dict[str, Any]


def run_experiment(
    experiment: Experiment,
    folder: str | Path | None = None,
    n_jobs: int | None = None,
    listener: Listener = lambda done, failed, counts: None,
) -> ExperimentResult:
    """Run every trial without a result, then write tables, figures, advice and the report.

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
    """The first keys of the manifest; ``written``: the whole file as plain values."""
    return {
        "name": config.name,
        "question": config.question,
        "notice": UNFIT,
        "configuration": written,
        "reduced": reduced,
        "versions": versions(),
    }


def finish(folder: Path, manifest: dict[str, Any]) -> ExperimentResult:
    """Write the manifest and the report."""
    files.write_json(folder / "experiment.json", manifest)
    write_report(folder)
    return ExperimentResult(1 if manifest["failed"] else 0, folder, manifest)


def _write(experiment: Experiment, folder: Path, ended: Schedule) -> dict[str, Any]:
    """Write tables, figures, claims and advice of the finished trials; return the manifest."""
    config = experiment.config
    table, summary = results.write_tables(experiment, ended.records, folder)
    manifest: dict[str, Any] = heading(config, experiment.written, experiment.reduced) | {
        "varied": list(experiment.columns),
        "measures": list(config.measures),
        "confidence": config.confidence,
        "inputs": sorted({record["inputs"] for record in ended.records.values()}),
        "cells": len(experiment.trials),
        "resumed": ended.n_resumed,
        "counted": ended.n_counts,
        "failed": [
            {"values": trial.values, "seed": trial.seed, "problem": ended.failed[trial.number]}
            for trial in experiment.trials
            if trial.number in ended.failed
        ],
    }
    if ended.records:
        manifest["figures"] = figures.write_figures(config, table, summary, folder)
        manifest["expected"] = results.write_expected(config, table, experiment.columns, folder)
        if config.choose:
            choice, frontier = results.write_choice(experiment, summary, folder)
            manifest["choice"] = choice | {"chart": figures.draw_frontier(config, summary, frontier, folder)}
        if (config.figures or config.choose) and not figures.installed():
            manifest["not_drawn"] = figures.NOT_DRAWN
    return manifest


def summary(outcome: ExperimentResult) -> str:
    """The result of an experiment in a few lines: trials, claims, choice, files."""
    manifest = outcome.manifest
    n_failed = len(manifest["failed"])
    lines = [
        f"trials    {manifest['cells']:,}: {manifest['cells'] - n_failed:,} done ({manifest['resumed']:,} of them "
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
    found = results.best_in_words(choice["best"])
    return f"chosen    {values}: {found} ({choice['allowed']:,} of {choice['settings']:,} settings keep all limits)"
