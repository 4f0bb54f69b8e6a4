"""``penstock audit``: a lower bound on what one person loses, from one run, beside what is claimed."""

from __future__ import annotations

import argparse
from pathlib import Path

from penstock.pipeline import DONE, FAILED
from penstock.pipeline.cli.command import Command, add_configuration, print_json


def _configure(parser: argparse.ArgumentParser) -> None:
    add_configuration(parser)
    add = parser.add_argument
    add("--windows", type=int, metavar="N", help="windows in a row that a planted person is in (the guarantee's unit)")
    add("--runs", type=int, default=1, metavar="N", help="releases, each with people of its own: sharper (1)")
    add("--delta", type=float, default=1e-6, help="δ of a claim that is not pure (1e-6)")
    add("--confidence", type=float, default=0.95, help="probability with which the bound holds (0.95)")
    add("--seed", type=int, default=0, metavar="N", help="of coins, places and noise (0)")
    add("--out", metavar="FILE.json", help="write the figures there, too, as --json prints them")
    add("--without-data", action="store_true", help="plant people among nobody: the source is not read")


def _execute(arguments: argparse.Namespace) -> int:
    from penstock.mechanisms.core.plugin import ParameterError
    from penstock.pipeline.atomic import write_json
    from penstock.pipeline.config.run import load
    from penstock.pipeline.experiments.attacks.audit import audit

    out = Path(arguments.out) if arguments.out else None
    if out is not None and out.is_dir():
        raise ParameterError("--out", arguments.out, "a file, not a folder")
    found = audit(
        load(arguments.config, arguments.set),
        windows=arguments.windows,
        n_runs=arguments.runs,
        delta=arguments.delta,
        confidence=arguments.confidence,
        seed=arguments.seed,
        on_data=False if arguments.without_data else None,
    )
    if out is not None:
        write_json(out, found.as_dict())
    if arguments.json:
        print_json(found.as_dict())
    else:
        print(found.as_text())
    return FAILED if found.convicted else DONE


AUDIT = Command(
    "audit", "bound from below, in one run, what one person loses, and compare it with the claim", _configure, _execute
)
