"""``penstock schema``: the JSON Schema of a configuration."""

from __future__ import annotations

import argparse

from pipeline.cli.common import print_json
from pipeline.exit_codes import DONE

HELP = "print the JSON Schema of a configuration, for editors"


def configure(parser: argparse.ArgumentParser) -> None:
    """The command has no arguments of its own."""


def execute(arguments: argparse.Namespace) -> int:
    """Print the schema."""
    from pipeline.config.schema import json_schema

    print_json(json_schema())
    return DONE
