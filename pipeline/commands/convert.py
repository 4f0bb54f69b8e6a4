"""``penstock convert``: a data set to Parquet."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.commands.common import add_parameters, print_figures
from pipeline.exit_codes import DONE

HELP = "convert a data set in its original format to Parquet"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("type", help="source type, for instance cabspotting")
    parser.add_argument("path", help="folder, file or archive of the data set")
    parser.add_argument("target", help="Parquet file to write")
    add_parameters(parser, of="source")


def execute(arguments: argparse.Namespace) -> int:
    """Convert, and say what was kept."""
    return write_events(arguments, arguments.type, [f"path={arguments.path}", *arguments.set])


def write_events(arguments: argparse.Namespace, source_type: str, settings: list[str]) -> int:
    """Write the events of a source to ``arguments.target``."""
    from pipeline.configuration.single import load_plugin
    from pipeline.convert import convert
    from pipeline.source import Source

    source = load_plugin(Source, source_type, settings)
    print_figures(convert(source, Path(arguments.target)).as_dict(), arguments.json)
    return DONE
