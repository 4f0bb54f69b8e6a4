"""``penstock report``: the page of a run or of an experiment, again."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.cli.common import print_json
from pipeline.exit_codes import DONE

HELP = "write report.html from the files of a run or of an experiment"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("folder", metavar="DIR")


def execute(arguments: argparse.Namespace) -> int:
    """Write the page and say where it is."""
    from pipeline.reporting.page import write_report

    path = write_report(Path(arguments.folder))
    if arguments.json:
        print_json({"report": str(path)})
    else:
        print(path)
    return DONE
