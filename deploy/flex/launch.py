"""Submit a configuration as a streaming job of Dataflow: what its Flex Template starts, with the options of the job."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from apache_beam.io.filesystems import FileSystems

from penstock.mechanisms.core.plugin import ConfigError, PenstockError
from penstock.pipeline import DONE, INTERRUPTED
from penstock.pipeline.config.run import RunConfig, loads
from penstock.pipeline.run import run

#: Parameters of the template, and the keys of the configuration that they replace.
OVERRIDES = {"output_path": "output.path", "subscription": "source.subscription"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Submit a job and end: Dataflow starts it once this has, and a template must not wait for it."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--config", required=True, help="the YAML file: gs://, or a path in the image")
    for name, key in OVERRIDES.items():
        parser.add_argument(f"--{name}", help=f"in place of {key}")
    parser.add_argument("--runner", default="DataflowRunner", help="set by the template")
    own, beam_options = parser.parse_known_args(arguments)
    try:
        config = configured(own)
        result = run(config, runner=own.runner, beam_options=beam_options, resume="--update" in beam_options)
    except PenstockError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    # Submitted, and not waited for.
    return DONE if result.exit_code == INTERRUPTED else result.exit_code


def configured(own: argparse.Namespace) -> RunConfig:
    """The configuration, with the parameters of the template; raises `ConfigError` for one that does not stream."""
    try:
        with FileSystems.open(own.config) as file:
            text = file.read().decode()
    except (OSError, ValueError) as error:
        raise ConfigError((f"{own.config}: cannot be read ({error})",)) from None
    overrides = [f"{key}={value}" for name, key in OVERRIDES.items() if (value := getattr(own, name))]
    config = loads(text, name=own.config, overrides=overrides)
    if not getattr(config.source, "on_services", False):
        raise ConfigError((f"{own.config}: source.type: the template streams, so it must be pubsub or folder",))
    return config


if __name__ == "__main__":
    sys.exit(main())
