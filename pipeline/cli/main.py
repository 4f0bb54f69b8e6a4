"""The ``penstock`` command: reads the words, calls what stands in `pipeline.cli.main`, turns errors into messages."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, Protocol

from pipeline.cli import attack, convert, experiment, generate, key, learn, report, run, schema, validate, verify
from pipeline.cli import list as listing
from pipeline.cli.common import print_json
from pipeline.exit_codes import DONE, FAILED, INTERRUPTED, WRONG_USE

# The commands of ``penstock``: one file each, light to import; what is heavy is imported when a command runs.


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


def script() -> NoReturn:
    """Be the ``penstock`` command: the process ends with what `main` returns."""
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv
        The words; None: those of the process.

    Returns
    -------
    0 done, 1 failed, 2 wrong use, 3 stopped by a budget, 4 interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    words, beam_options = _split_beam(words)
    arguments = _parser().parse_args(words)
    arguments.beam_options = beam_options
    from mechanisms.core.plugin import ConfigError, ParameterError, PenstockError, UnknownPlugin

    try:
        return COMMANDS[arguments.command].execute(arguments)
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python must not try to flush the rest at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except BaseException as error:
        if _is_interrupt(error):
            return _fail(arguments, KeyboardInterrupt("interrupted"), INTERRUPTED)
        if isinstance(error, (ConfigError, ParameterError, UnknownPlugin)):
            return _fail(arguments, error, WRONG_USE)
        if isinstance(error, (PenstockError, OSError)):
            return _fail(arguments, error, FAILED)
        raise


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C is at the bottom of an error: where it strikes in a class that is being made, Python wraps it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _split_beam(words: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock",
        description="Release counts of people from a stream of location events, and keep the books on what it cost.",
    )
    parser.add_argument("--version", action="version", version=f"penstock {_version()}")
    subparsers = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for name, command in COMMANDS.items():
        sub = subparsers.add_parser(name, help=command.HELP, description=command.HELP)
        sub.add_argument("--json", action="store_true", help="print JSON for machines")
        command.configure(sub)
    return parser


def _fail(arguments: argparse.Namespace, error: BaseException, code: int) -> int:
    problems = getattr(error, "problems", (str(error),))
    if getattr(arguments, "json", False):
        print_json({"exit_code": code, "error": type(error).__name__, "problems": list(problems)})
    for problem in problems:
        print(f"penstock: {problem}", file=sys.stderr)
    return code


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("penstock")
    except metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    script()
