"""``penstock list``: what a configuration can be made of."""

from __future__ import annotations

import argparse

from pipeline.commands.common import print_json
from pipeline.exit_codes import DONE

HELP = "list mechanisms, accountants, sources, spaces, windows and metrics"
KINDS = ("mechanisms", "accountants", "sources", "spaces", "windows", "metrics")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("kind", nargs="?", choices=KINDS, help="only these")
    parser.add_argument("--markdown", action="store_true", help="as the tables of the README")


def execute(arguments: argparse.Namespace) -> int:
    """Print one kind, or all."""
    from pipeline import catalogue

    kinds = (arguments.kind,) if arguments.kind else KINDS
    if arguments.json:
        print_json({kind: catalogue.entries(kind) for kind in kinds})
    elif arguments.markdown:
        print("\n\n".join(catalogue.markdown(kind) for kind in kinds))
    else:
        print("\n\n".join(catalogue.text(kind) for kind in kinds))
    return DONE
