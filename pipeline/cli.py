"""The ``penstock`` command: reads the words, calls what stands in `pipeline.commands`, turns errors into messages."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from pipeline.commands import COMMANDS
from pipeline.commands.common import print_json
from pipeline.exit_codes import DONE, FAILED, WRONG_USE
from pipeline.process import prepare


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0 done, 1 failed, 2 wrong use, 3 stopped by a budget, 4 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    words, beam_options = _split_beam(words)
    arguments = _parser().parse_args(words)
    arguments.beam_options = beam_options
    prepare()
    from mechanisms.core.errors import ConfigError, ParameterError, PenstockError, UnknownPlugin

    try:
        return COMMANDS[arguments.command].execute(arguments)
    except (ConfigError, ParameterError, UnknownPlugin) as error:
        return _fail(arguments, error, WRONG_USE)
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python must not try to flush the rest at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except (PenstockError, OSError) as error:
        return _fail(arguments, error, FAILED)
    except KeyboardInterrupt:
        return _fail(arguments, RuntimeError("interrupted"), FAILED)


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
    sys.exit(main())
