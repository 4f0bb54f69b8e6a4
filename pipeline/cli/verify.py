"""``penstock verify``: whether the files of a run agree with each other."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.cli.common import print_json
from pipeline.exit_codes import DONE, FAILED

HELP = "check a run's folder: row equation, ledger, windows, digests"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("folder", metavar="DIR")


def execute(arguments: argparse.Namespace) -> int:
    """Print every check; failed if one of them did not pass."""
    from dataclasses import asdict

    from pipeline.output.verify import verify

    checks = verify(Path(arguments.folder))
    if arguments.json:
        print_json([asdict(check) for check in checks])
    else:
        for check in checks:
            print(f"{'ok    ' if check.passed else 'WRONG '} {check.name}: {check.detail}")
    return DONE if all(check.passed for check in checks) else FAILED
