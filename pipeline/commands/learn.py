"""``penstock learn``: priors and transition matrices from the beginning of a stream."""

from __future__ import annotations

import argparse

from pipeline.commands.common import add_configuration, print_figures
from pipeline.exit_codes import DONE

HELP = "learn how people move (transitions, matrices, priors) from the beginning of a stream"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_configuration(parser)
    parser.add_argument("--out", required=True, metavar="FILE", help="a .npz or .json file")
    parser.add_argument("--windows", type=int, metavar="N", help="how many windows to learn from (default: all)")
    parser.add_argument("--smoothing", type=float, default=0.1, metavar="S", help="steps added to each count")
    parser.add_argument("--unseen", action="store_true", help="not being seen is a state of its own")


def execute(arguments: argparse.Namespace) -> int:
    """Learn, and say what from."""
    from pipeline.configuration.run import load
    from pipeline.learn import learn_to_file

    config = load(arguments.config, arguments.set)
    found = learn_to_file(config, arguments.out, arguments.windows, arguments.smoothing, arguments.unseen)
    print_figures(found, arguments.json)
    return DONE
