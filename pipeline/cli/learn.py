"""``penstock learn``: how people move in the first windows of a stream, as a file for others to use."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from accountants.correlation.adversary import Learned, learn
from mechanisms.core.plugin import ParameterError
from pipeline.cli.common import add_configuration, print_figures
from pipeline.config.plan import make_plan
from pipeline.config.run import RunConfig
from pipeline.exit_codes import DONE
from pipeline.steps.individuals import plan_training

# ``penstock learn``: priors and transition matrices from the beginning of a stream.


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
    from pipeline.config.run import load

    config = load(arguments.config, arguments.set)
    found = learn_to_file(config, arguments.out, arguments.windows, arguments.smoothing, arguments.unseen)
    print_figures(found, arguments.json)
    return DONE


def learn_to_file(
    config: RunConfig, path: str | Path, n_windows: int | None = None, smoothing: float = 0.1, unseen: bool = False
) -> dict[str, Any]:
    """Learn transitions, both matrices and the initial distribution, and write them.

    Parameters
    ----------
    config
        Whose source, space, windows and bounding say where people were.
    path
        A ``.npz`` or ``.json`` file.
    n_windows
        How many windows from the beginning; None: what the accountants of the configuration ask for, or all.
    smoothing
        Steps added to each count.
    unseen
        Whether not being seen is a state of its own.

    Returns
    -------
    What was learned from how much, for people to read.
    """
    if Path(path).suffix not in (".npz", ".json"):
        raise ParameterError("out", str(path), "a file that ends in .npz or .json")
    if n_windows is not None and n_windows < 2:
        raise ParameterError("windows", n_windows, "at least 2, for there to be a step")
    asked = max((accountant.training_windows or 0 for accountant in config.accountants), default=0)
    plan = make_plan(replace(config, accountants=()))
    training = plan_training(plan, n_windows or asked or plan.n_windows)
    learned: Learned = learn(training, plan.space.cells, smoothing, unseen)
    learned.write(path)
    return {"file": str(path), "states": len(learned.states), "steps": int(learned.transitions.sum()), **learned.facts}
