"""``penstock experiment``: run a sweep, or a study of an attack, from one YAML file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from penstock.pipeline.cli.command import Command, add_configuration, add_quiet, print_json, progress_bar


def _configure(parser: argparse.ArgumentParser) -> None:
    add_configuration(parser)
    parser.add_argument("--out", metavar="DIR", help="write here instead of output, or runs/experiments/<name>")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes at a time (default: one a processor)")
    # Saved tables stand for full runs.
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--reduced", action="store_true", help="at the size that stands under reduced")
    size.add_argument("--save", metavar="DIR", help="also copy the small tables of a full run there")
    add_quiet(parser)


def _execute(arguments: argparse.Namespace) -> int:
    from penstock.mechanisms.core.plugin import ParameterError
    from penstock.pipeline.experiments.results import save
    from penstock.pipeline.experiments.runner import summary
    from penstock.pipeline.experiments.study import ready

    if arguments.jobs is not None and arguments.jobs < 1:
        raise ParameterError("--jobs", arguments.jobs, "a number at least 1")
    experiment = ready(arguments.config, arguments.set, arguments.reduced)
    quiet = arguments.quiet or arguments.json
    with progress_bar("trials", enabled=not quiet and sys.stderr.isatty()) as show:

        def listener(done: int, failed: int, counts: int) -> None:
            """Show progress, with what is counted and what failed."""
            numbers = ((counts, "counted"), (failed, "failed"))
            show(
                done + failed, experiment.n_steps, " · ".join(f"{number} {what}" for number, what in numbers if number)
            )

        outcome = experiment.run(arguments.out, arguments.jobs, listener)
    if arguments.save:
        save(outcome.folder, Path(arguments.save))
    if arguments.json:
        print_json({"exit_code": outcome.exit_code, "folder": str(outcome.folder), **outcome.manifest})
    elif not arguments.quiet:
        print(summary(outcome))
    return outcome.exit_code


EXPERIMENT = Command(
    "experiment",
    "run a sweep (grid × seeds to one table, figures and advice) or a study of an attack",
    _configure,
    _execute,
)
