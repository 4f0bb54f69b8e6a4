"""``penstock plan`` finds a release that meets a goal, and prints it as a line of configuration."""

from __future__ import annotations

import argparse

from penstock.pipeline import DONE
from penstock.pipeline.cli.command import Command, add_configuration, print_forecast, show

#: Seconds of a plan that are told beforehand.
MIN_SECONDS_TO_WARN = 30.0


def _configure(parser: argparse.ArgumentParser) -> None:
    add_configuration(parser)
    goals = parser.add_mutually_exclusive_group(required=True)
    helps = {
        "temporal": "total temporal loss, in nats, that no window may pass, by the run's temporal accountants",
        "conditional": "loss, in nats, that no secret point of a trace may pass, by its conditional_inferential",
        "reconstruction": "largest expected share of people retraced, by the run's accountant reconstruction",
    }
    for name, text in helps.items():
        goals.add_argument(f"--{name}", type=float, metavar="GOAL", help=text)
    text = "private landmarks, numbers of windows a line each: choose public ones to hide them among"
    goals.add_argument("--landmarks", metavar="FILE", help=text)
    parser.add_argument("--among", type=int, metavar="M", help="with --landmarks: number of public landmarks")
    parser.add_argument("--epsilon", type=float, metavar="E", help="with --landmarks: loss about each from the choice")


def _plan(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from penstock.mechanisms.core.plugin import ParameterError
    from penstock.pipeline.config.goals import plan_conditional, plan_temporal
    from penstock.pipeline.config.hidden_landmarks import plan_landmarks
    from penstock.pipeline.config.reconstruction_goal import plan_reconstruction
    from penstock.pipeline.config.run import load

    config = load(arguments.config, arguments.set)
    if arguments.temporal is not None:
        planned = plan_temporal(config, arguments.temporal)
    elif arguments.landmarks is not None:
        for name in ("among", "epsilon"):
            if getattr(arguments, name) is None:
                raise ParameterError(f"--{name}", None, "given with --landmarks")
        planned = plan_landmarks(config, arguments.landmarks, arguments.among, arguments.epsilon)
    elif arguments.conditional is not None:
        planned = plan_conditional(config, arguments.conditional)
    else:
        planned = plan_reconstruction(config, arguments.reconstruction, _warn_if_slow)
    show(arguments, asdict(planned), [planned.line()])
    return DONE


def _warn_if_slow(seconds: float) -> None:
    """Print a warning to standard error if planning is expected to take a long time."""
    if seconds > MIN_SECONDS_TO_WARN:
        print_forecast("plan", seconds)


PLAN = Command("plan", "print the noise or the sensors that keep a goal, as the line to write", _configure, _plan)
