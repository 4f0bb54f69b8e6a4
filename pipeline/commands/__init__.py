"""The commands of ``penstock``: one file each, light to import; what is heavy is imported when a command runs."""

from __future__ import annotations

import argparse
from typing import Protocol

from pipeline.commands import attack, convert, experiment, generate, key, learn, report, run, schema, validate, verify
from pipeline.commands import list as listing


class Command(Protocol):
    """What the file of a command holds."""

    #: One line for ``--help``.
    HELP: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""

    def execute(self, arguments: argparse.Namespace) -> int:
        """Do it; returns the exit code."""


#: In the order of ``--help``.
COMMANDS: dict[str, Command] = {
    "run": run,
    "validate": validate,
    "experiment": experiment,
    "attack": attack,
    "list": listing,
    "schema": schema,
    "convert": convert,
    "generate": generate,
    "learn": learn,
    "report": report,
    "verify": verify,
    "key": key,
}
