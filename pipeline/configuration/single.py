"""One plug-in alone, from words of the command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mechanisms.core.errors import ConfigError
from pipeline.configuration.build import Builder
from pipeline.configuration.document import Mapping
from pipeline.configuration.overrides import apply_override
from pipeline.configuration.plugins import UNIONS
from pipeline.configuration.reader import parse


def load_plugin(base: type, name: str, settings: Iterable[str] = ()) -> Any:
    """Build one plug-in.

    Parameters
    ----------
    base
        The family's base class, for instance `Source`.
    name
        Its YAML type.
    settings
        ``key=value`` texts.

    Raises
    ------
    ConfigError
        With every problem found.
    """
    root, problems = parse("{}", "command line")
    if not isinstance(root, Mapping):
        raise ConfigError(tuple(map(str, problems)))
    for setting in (f"type={name}", *settings):
        problems += apply_override(root, setting)
    builder = Builder(UNIONS, None)
    plugin = builder.plugin(root, base, ())
    problems += builder.problems
    if problems:
        raise ConfigError(tuple(map(str, problems)))
    return plugin
