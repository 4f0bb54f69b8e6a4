"""``penstock experiment`` runs a parameter sweep that is defined in one YAML file."""

from __future__ import annotations

import argparse
import sys

from penstock.pipeline.cli.command import (
    Command,
    add_configuration,
    add_jobs,
    add_quiet,
    add_removed,
    progress_bar,
    show,
)


def _configure(parser: argparse.ArgumentParser) -> None:
    add_configuration(parser)
    parser.add_argument("--out", metavar="DIR", help="write here instead of output, or runs/experiments/<name>")
    add_jobs(parser)
    parser.add_argument("--reduced", action="store_true", help="use the size given under reduced")
    add_removed(parser, "--save", "results are in --out DIR; those of the papers: python -m reproductions --save")
    add_quiet(parser)


def _execute(arguments: argparse.Namespace) -> int:
    from penstock.pipeline.experiments.load import load_experiment
    from penstock.pipeline.experiments.runner import run_experiment, summary

    experiment = load_experiment(arguments.config, arguments.set, arguments.reduced)
    quiet = arguments.quiet or arguments.json
    with progress_bar("trials", enabled=not quiet and sys.stderr.isatty()) as progress:

        def listener(done: int, failed: int, n_read: int) -> None:
            details = " · ".join(f"{n} {name}" for n, name in ((n_read, "read"), (failed, "failed")) if n)
            progress(done + failed, len(experiment.trials), details)

        outcome = run_experiment(experiment, arguments.out, arguments.jobs, listener)
    figures = {"exit_code": outcome.exit_code, "folder": str(outcome.folder), **outcome.manifest}
    show(arguments, figures, [summary(outcome)])
    return outcome.exit_code


EXPERIMENT = Command("experiment", "run a sweep: grid × seeds to one table, figures and advice", _configure, _execute)
