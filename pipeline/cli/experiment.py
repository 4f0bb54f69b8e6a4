"""``penstock experiment``: a sweep, or a study of an attack, from one YAML file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pipeline.cli.common import add_configuration, print_json

HELP = "run a sweep (grid × seeds to one table, figures and advice) or a study of an attack"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_configuration(parser)
    parser.add_argument("--out", metavar="DIR", help="write here instead of output, or runs/experiments/<name>")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes at a time (default: one a processor)")
    # A table that is saved stands for a full run.
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--reduced", action="store_true", help="at the size that stands under reduced")
    size.add_argument("--save", metavar="DIR", help="also copy the small tables of a full run there")
    parser.add_argument("--quiet", action="store_true", help="no progress and no summary")


def execute(arguments: argparse.Namespace) -> int:
    """Run every cell of a sweep, or every piece of a study."""
    from mechanisms.core.plugin import ParameterError
    from pipeline.experiments.page import save
    from pipeline.experiments.runner import show_cells, summary
    from pipeline.experiments.study import ready

    if arguments.jobs is not None and arguments.jobs < 1:
        raise ParameterError("--jobs", arguments.jobs, "a number at least 1")
    experiment = ready(arguments.config, arguments.set, arguments.reduced)
    quiet = arguments.quiet or arguments.json
    with show_cells(experiment.n_steps, enabled=not quiet and sys.stderr.isatty()) as listener:
        outcome = experiment.run(arguments.out, arguments.jobs, listener)
    if arguments.save:
        save(outcome.folder, Path(arguments.save))
    if arguments.json:
        print_json({"exit_code": outcome.exit_code, "folder": str(outcome.folder), **outcome.manifest})
    elif not arguments.quiet:
        print(summary(outcome))
    return outcome.exit_code
