"""``penstock key``: noise keys for deployment."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.exit_codes import DONE

HELP = "make a noise key for deployment"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("action", choices=("new",))
    parser.add_argument("path", help="file to write, readable by its owner only")


def execute(arguments: argparse.Namespace) -> int:
    """Make the key; what is in it is never printed."""
    from mechanisms.core.noise import new_key_file

    new_key_file(Path(arguments.path))
    print(f"{arguments.path}: a new noise key; keep it secret, and keep it: losing it loses retry safety")
    return DONE
