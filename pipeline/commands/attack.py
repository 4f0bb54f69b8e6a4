"""``penstock attack``: what an adversary learns from a release."""

from __future__ import annotations

import argparse
import sys

from pipeline.commands.common import add_configuration, print_json
from pipeline.exit_codes import DONE

HELP = "simulate membership inference against what a configuration releases"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_configuration(parser)
    add = parser.add_argument
    add("--targets", type=int, metavar="N", help="people attacked, a third of each mobility group (30)")
    add("--samples", type=int, metavar="N", help="labelled aggregates of each target (1000)")
    add("--prior", help="subset (default), same_groups or different_groups")
    add("--attack", help="pca (default) or statistics")
    add("--known", type=float, metavar="SHARE", help="people whom the adversary knows (0.2)")
    add("--challenges", help="groups of people whom she knows (known, default) or does not know (others)")
    add("--group-size", type=int, metavar="N", help="people in an aggregate (half of the known, ≤ 100)")
    add("--observation", type=int, metavar="N", help="windows that the adversary trains on")
    add("--inference", type=int, metavar="N", help="windows of a challenge (168, or what fits)")
    add("--components", type=int, metavar="N", help="principal components at most (600)")
    add("--out", metavar="DIR", help="write here instead of output.path")
    add("--jobs", type=int, default=1, metavar="N", help="targets at a time; memory grows with it (1)")
    add("--quiet", action="store_true", help="no progress and no table")


def execute(arguments: argparse.Namespace) -> int:
    """Play the game and show who is at risk."""
    from dataclasses import fields

    from mechanisms.core.errors import ParameterError
    from pipeline.attack import Game, attack
    from pipeline.attack_summary import as_text, show_attacks
    from pipeline.configuration.run import load

    if arguments.jobs < 1:
        raise ParameterError("--jobs", arguments.jobs, "a number at least 1")
    given = {field.name: getattr(arguments, field.name) for field in fields(Game)}
    game = Game(**{name: value for name, value in given.items() if value is not None})
    config = load(arguments.config, arguments.set)
    quiet = arguments.quiet or arguments.json
    with show_attacks(enabled=not quiet and sys.stderr.isatty()) as listener:
        outcome = attack(config, game, folder=arguments.out, n_jobs=arguments.jobs, listener=listener)
    if arguments.json:
        print_json({"folder": str(outcome.folder), "resumed": outcome.n_resumed, **outcome.summary})
    elif not arguments.quiet:
        print(as_text(outcome.summary))
        print("\n".join(f"  {path}" for path in sorted((outcome.folder / "operator").glob("attack.*"))))
    return DONE
