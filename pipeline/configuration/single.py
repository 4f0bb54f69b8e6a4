"""One plug-in alone, from words of the command line or from a manifest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mechanisms.core.errors import ConfigError
from pipeline.configuration.build import Builder
from pipeline.configuration.document import Mapping, Place, nodes
from pipeline.configuration.overrides import apply_override
from pipeline.configuration.plugins import UNIONS, add_folder
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


def read_plugin(base: type, configuration: dict[str, Any], key: str) -> Any:
    """Build one plug-in of a configuration that a manifest holds, whatever has become of the other sections.

    Parameters
    ----------
    base
        As in `load_plugin`.
    configuration
        As `pipeline.configuration.canonical.resolved` returns it.
    key
        Where the plug-in's section is.

    Raises
    ------
    ConfigError
        With every problem found, for instance that a file of the section is gone.
    """
    for folder in configuration.get("plugins") or ():
        add_folder(folder)
    builder = Builder(UNIONS, None)
    plugin = builder.plugin(nodes(configuration.get(key), Place("manifest.json")), base, (key,))
    if builder.problems:
        raise ConfigError(tuple(map(str, builder.problems)))
    return plugin
