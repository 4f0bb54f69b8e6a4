"""The subcommand ``plan``: the ε that keeps a goal, as the line to write into a configuration."""

from __future__ import annotations

import argparse

from penstock.pipeline import DONE
from penstock.pipeline.cli.command import Command, add_configuration, print_json


def _configure(parser: argparse.ArgumentParser) -> None:
    add_configuration(parser)
    parser.add_argument(
        "--temporal",
        type=float,
        required=True,
        metavar="GOAL",
        help="total temporal loss, in nats, that no window may pass: against every adversary of the temporal "
        "accountants, within the run or for ever on an endless stream",
    )


def _plan(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from penstock.pipeline.config.run import load
    from penstock.pipeline.config.temporal_goal import plan_epsilon

    planned = plan_epsilon(load(arguments.config, arguments.set), arguments.temporal)
    if arguments.json:
        print_json(asdict(planned))
    else:
        print(planned.line())
    return DONE


PLAN = Command("plan", "print the ε that keeps a goal, as the line to write", _configure, _plan)
