"""What several commands share: arguments, and how figures are printed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any


def add_configuration(parser: argparse.ArgumentParser) -> None:
    """A configuration, and changes to it."""
    parser.add_argument("config", metavar="CONFIG", help="YAML file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY.PATH=VALUE", help="change a value; may be repeated"
    )


def add_parameters(parser: argparse.ArgumentParser, of: str) -> None:
    """Parameters of a single plug-in."""
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=f"parameter of the {of}")


def print_json(value: Any) -> None:
    """Print a value for machines."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    print()


def print_figures(figures: Mapping[str, Any], as_json: bool) -> None:
    """Print named figures, for machines or one a line."""
    if as_json:
        print_json(figures)
    else:
        print("\n".join(f"{name}: {value}" for name, value in figures.items()))
