"""``penstock key`` manages noise keys without ever printing a secret."""

from __future__ import annotations

import argparse
from pathlib import Path

from penstock.pipeline import DONE
from penstock.pipeline.cli.command import Command, show


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    new = actions.add_parser("new", help="a noise key")
    rotate = actions.add_parser("rotate", help="a fresh secret for all windows from some time on")
    show = actions.add_parser("show", help="fingerprints and epochs of a noise key")
    for action in (new, rotate, show):
        action.add_argument("path", help="the key's file, readable by its owner only")
    rotate.add_argument("--from", dest="start", required=True, metavar="TIME", help="start of the epoch, with its zone")
    show.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON for machines")


def _execute(arguments: argparse.Namespace) -> int:
    _ACTIONS[arguments.action](arguments)
    return DONE


def _new(arguments: argparse.Namespace) -> None:
    from penstock.mechanisms.core.noise_keys import new_key_file

    new_key_file(Path(arguments.path))
    print(f"{arguments.path}: a new noise key; keep it secret, and keep it: losing it loses retry safety")


def _rotate(arguments: argparse.Namespace) -> None:
    from penstock.mechanisms.core.noise_keys import add_key_epoch
    from penstock.mechanisms.core.plugin import ParameterError
    from penstock.pipeline.config.kinds import parse_time

    try:
        start = parse_time(arguments.start)
    except ValueError as error:
        raise ParameterError("--from", arguments.start, str(error)) from None
    key = add_key_epoch(arguments.path, start)
    print(f"{arguments.path}: windows that start at {arguments.start} or later belong to epoch {len(key.epochs)}")


def _show(arguments: argparse.Namespace) -> None:
    from penstock.mechanisms.core.noise_keys import BEGINNING, NoiseKey
    from penstock.pipeline.windows.calendar import format_time

    key = NoiseKey.from_file(arguments.path)
    starts = [None if start == BEGINNING else format_time(start) for start in key.epochs]
    epochs = [{"from": start, "fingerprint": digits} for start, digits in zip(starts, key.fingerprints)]
    named = (
        f"epoch {n}: {row['fingerprint']} from {row['from'] or 'the beginning'}" for n, row in enumerate(epochs, 1)
    )
    show(arguments, {"key": key.fingerprint, "epochs": epochs}, [f"key {key.fingerprint}", *named])


_ACTIONS = {"new": _new, "rotate": _rotate, "show": _show}
KEY = Command("key", "make and look after the keys of a deployment; no secret is ever printed", _configure, _execute)
