"""Definition of subcommands, and the arguments and output formats that they share."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Command:
    """A subcommand of ``penstock``."""

    name: str  # the word on the command line
    help: str  # one line for ``--help``
    configure: Callable[[argparse.ArgumentParser], None]  # adds the command's arguments to its parser
    # Runs the command with its parsed arguments and returns the exit code (`penstock.pipeline`). Heavy modules are
    # imported here, so that ``penstock --help`` starts fast.
    execute: Callable[[argparse.Namespace], int]


def add_configuration(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the configuration file and ``--set``."""
    parser.add_argument("config", metavar="CONFIG", help="YAML file")
    text = "change a value, or remove it with nothing after =; may be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="KEY.PATH=VALUE", help=text)


def add_fields(parser: argparse.ArgumentParser, kind: type) -> None:
    """Add one command-line option for each key of a dataclass. Use `from_arguments` to read the options back."""
    from penstock.pipeline.config.build import alternatives, fields_of

    for field in fields_of(kind):
        choices = f": {', '.join(field.declared.choices)}" if field.declared.choices else ""
        default = "" if field.default in (None, False) else f" ({field.default})"
        hint, text = alternatives(field.hint)[0], field.declared.doc + choices + default
        form: dict[str, Any] = {"type": hint, "metavar": field.key[0].upper()}
        form = {"action": "store_true"} if hint is bool else form
        parser.add_argument(f"--{field.key.replace('_', '-')}", dest=field.name, help=text, **form)


def from_arguments(kind: Any, arguments: argparse.Namespace) -> Any:
    """Build a dataclass from the parsed options. Raise a `ParameterError` that names an invalid option."""
    from dataclasses import fields

    from penstock.mechanisms.core.plugin import ParameterError

    given = {field.name: getattr(arguments, field.name, None) for field in fields(kind)}
    try:
        return kind(**{name: value for name, value in given.items() if value is not None})
    except ParameterError as error:
        raise ParameterError(f"--{error.field.replace('_', '-')}", error.value, error.expected) from None


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add the ``-q`` and ``--quiet`` options, which suppress everything except errors."""
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress and no summary")


def add_removed(parser: argparse.ArgumentParser, option: str, advice: str) -> None:
    """Add an option that has been removed, so that using it fails with a message that suggests a replacement."""

    class Removed(argparse.Action):
        def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
            parser.error(f"{option} was removed; {advice}")

    parser.add_argument(option, action=Removed, nargs="?", help=argparse.SUPPRESS)


def add_jobs(parser: argparse.ArgumentParser, of: str = "processes at a time (default: one a processor)") -> None:
    """Add the ``--jobs`` option, whose default is None."""
    parser.add_argument("--jobs", type=_positive_int, metavar="N", help=of)


def _positive_int(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not allowed; it must be a number at least 1")
    return int(text)


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the folder of a finished run or experiment."""
    parser.add_argument("folder", metavar="DIR")


#: Words that begin a line, and their colours on a terminal.
_COLOURS = {"CAUTION": "33", "WARNING": "31", "STOPPED": "31"}


def print_lines(lines: str) -> None:
    """Print lines of text. Warnings are coloured on a terminal, unless NO_COLOR is set or TERM is dumb."""
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        for word, colour in _COLOURS.items():
            lines = re.sub(rf"^{word}\b", f"\033[{colour}m{word}\033[0m", lines, flags=re.MULTILINE)
    print(lines, flush=True)


def print_json(value: Any) -> None:
    """Print a value as JSON. Infinite numbers, which JSON lacks, become text ("Infinity"), and NaN becomes null."""

    def finite(part: Any) -> Any:
        """Return a part of the value with infinite numbers and NaN replaced."""
        if isinstance(part, Mapping):
            return {name: finite(item) for name, item in part.items()}
        if isinstance(part, list | tuple):
            return [finite(item) for item in part]
        if isinstance(part, float) and not math.isfinite(part):
            return None if math.isnan(part) else json.dumps(part)
        return part

    json.dump(finite(value), sys.stdout, indent=2, ensure_ascii=False, allow_nan=False)
    print()


def show(arguments: argparse.Namespace, value: Any, lines: Iterable[str]) -> None:
    """Print the value as JSON if ``--json`` was given; otherwise print the lines, unless ``--quiet`` was given."""
    if arguments.json:
        print_json(value)
    elif not getattr(arguments, "quiet", False):
        print_lines("\n".join(lines))


def show_figures(arguments: argparse.Namespace, figures: Mapping[str, Any]) -> None:
    """Print named values, one per line or as JSON."""
    show(arguments, figures, (f"{name}: {figure}" for name, figure in figures.items()))


def format_seconds(seconds: float) -> str:
    """Format a duration in seconds, or in minutes if it is at least 100 seconds."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def print_forecast(task: str, seconds: float) -> None:
    """Print the expected duration of a task to standard error."""
    print(f"penstock: {task}: about {format_seconds(max(seconds, 1.0))}", file=sys.stderr, flush=True)


@contextmanager
def progress_bar(unit: str, enabled: bool, piped: bool = False) -> Iterator[Callable[[int, int | None, str], None]]:
    """Show progress as a bar, or lines if piped. Yield a callback that takes the steps done, the total and a remark."""
    if not enabled:
        yield lambda done, total, remark: None
        return
    if piped:
        tenths = -1

        def line(done: int, total: int | None, remark: str) -> None:
            nonlocal tenths
            now = 10 * done // (total or 1)
            if now != tenths:
                tenths = now
                print(f"{done} of {total} {unit}" + (f" · {remark}" if remark else ""), file=sys.stderr, flush=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn(f"{unit}{{task.description}}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, remark: bar.update(task, completed=done, total=total, description=f" {remark}")
