"""``penstock generate``: a synthetic city as a Parquet file."""

from __future__ import annotations

import argparse

from pipeline.cli.common import add_parameters
from pipeline.cli.convert import write_events

HELP = "write a synthetic city as Parquet"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("target", help="Parquet file to write")
    add_parameters(parser, of="city")


def execute(arguments: argparse.Namespace) -> int:
    """Generate the city, and say what is in it."""
    return write_events(arguments, "synthetic", arguments.set)
