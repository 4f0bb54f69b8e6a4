"""``penstock key`` creates and manages noise keys. It never prints a secret."""

from __future__ import annotations

import argparse
from pathlib import Path

from penstock.pipeline import DONE
from penstock.pipeline.cli.command import Command, show


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    new = actions.add_parser("new", help="create a noise key")
    rotate = actions.add_parser("rotate", help="add a secret for all windows from some time on")
    show = actions.add_parser("show", help="show fingerprints and epochs of a noise key")
    for action in (new, rotate, show):
        action.add_argument("path", type=Path, help="the key's file, readable by its owner only")
    rotate.add_argument("--from", dest="start", required=True, metavar="TIME", help="start of the epoch, with its zone")
    show.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON for machines")


def _execute(arguments: argparse.Namespace) -> int:
    from penstock.mechanisms.core.noise_keys import BEGINNING, NoiseKey, add_key_epoch, new_key_file
    from penstock.mechanisms.core.plugin import ParameterError
    from penstock.pipeline.config.kinds import parse_time
    from penstock.pipeline.windows.calendar import format_time

    path = arguments.path
    if arguments.action == "new":
        new_key_file(path)
        print(f"{path}: a new noise key; keep it secret, and keep it: losing it loses retry safety")
    elif arguments.action == "rotate":
        try:
            start = parse_time(arguments.start)
        except ValueError as error:
            raise ParameterError("--from", arguments.start, str(error)) from None
        key = add_key_epoch(path, start)
        print(f"{path}: windows that start at {arguments.start} or later belong to epoch {len(key.epochs)}")
    else:
        key = NoiseKey.from_file(path)
        starts = [None if start == BEGINNING else format_time(start) for start in key.epochs]
        epochs = [{"from": start, "fingerprint": digits} for start, digits in zip(starts, key.fingerprints)]
        lines = [f"key {key.fingerprint}"]
        for n, row in enumerate(epochs, 1):
            lines.append(f"epoch {n}: {row['fingerprint']} from {row['from'] or 'the beginning'}")
        show(arguments, {"key": key.fingerprint, "epochs": epochs}, lines)
    return DONE


KEY = Command("key", "make and look after the keys of a deployment; no secret is ever printed", _configure, _execute)
