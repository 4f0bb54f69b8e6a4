"""``penstock validate``: every error of a configuration at once."""

from __future__ import annotations

import argparse

from pipeline.cli.common import add_configuration, print_json
from pipeline.exit_codes import DONE

HELP = "check a configuration; every error at once, nothing runs"
configure = add_configuration


def execute(arguments: argparse.Namespace) -> int:
    """Load the configuration, which raises what is wrong with it."""
    from pipeline.config.canonical import resolved
    from pipeline.config.run import load

    config = load(arguments.config, arguments.set)
    if arguments.json:
        print_json({"valid": True, "configuration": resolved(config)})
    else:
        print(f"{arguments.config}: a valid configuration")
    return DONE
