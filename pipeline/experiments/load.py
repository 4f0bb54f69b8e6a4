"""Load and check an experiment file: every problem is reported with its line before a trial runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from penstock.pipeline.config.build import FAILED, Builder, find
from penstock.pipeline.config.run import read_text
from penstock.pipeline.config.yaml import Mapping, Problem, Scalar, apply_override, parse, parse_section, plain, shown
from penstock.pipeline.experiments.config import ExperimentConfig, wrong_names
from penstock.pipeline.experiments.grid import BASE, SECTIONS, Grid, Trial, raise_all, spell_out

REDUCED = "reduced"
#: Keys that name the input: for an override, then where the file may hold them.
READ_FROM = (("base.source.path", "set", "source"), ("base.source.path", BASE, "source"), ("study.path", "study"))
A_BASE = "a section as in a run's configuration, or the file of one"


@dataclass(frozen=True)
class Experiment:
    """A loaded sweep with all its trials."""

    config: ExperimentConfig
    #: Names of what varies, in the order of the tables.
    columns: tuple[str, ...]
    #: The seed varies fastest.
    trials: tuple[Trial, ...]
    #: The whole file as plain values after all changes, for provenance.
    written: dict[str, Any]
    reduced: bool = False


def load_experiment(path: str | Path, overrides: Iterable[str] = (), reduced: bool = False) -> Experiment:
    """Load an experiment file.

    Parameters
    ----------
    path
        The YAML file.
    overrides
        ``key.path=value`` texts, applied last: ``base.source.path=…``, ``seeds=3``.
    reduced
        Whether the section ``reduced`` replaces the full size.

    Raises
    ------
    ConfigError
        With every problem found, one line each.
    """
    return loads_experiment(read_text(path), str(path), Path(path).parent, overrides, reduced)


class Input(NamedTuple):
    """Input of an experiment: the key that names it, its path, and whether it exists."""

    key: str
    path: str
    there: bool


def input_of(path: str | Path, reduced: bool = False) -> Input | None:
    """Input of a sweep or a study; None where it reads nothing. Errors are left to `load_experiment`."""
    root, problems = parse(read_text(path), str(path))
    if not isinstance(root, Mapping):
        return None
    folder = _include_base(root, Path(path).parent, problems)
    if reduced:
        reduce(root, problems)
    for key, *steps in READ_FROM:
        section: Any = plain(root)
        for step in steps:
            section = section.get(step) if isinstance(section, dict) else None
        if isinstance(section, dict):
            found = section.get("path")
            return Input(key, found, find(found, folder) is not None) if isinstance(found, str) else None
    return None


def loads_experiment(
    text: str,
    name: str = "<string>",
    folder: Path | None = None,
    overrides: Iterable[str] = (),
    reduced: bool = False,
) -> Experiment:
    """Load an experiment from YAML text; the arguments are those of `load_experiment`.

    >>> loads_experiment("name: x\\nmeasures: [mea]\\ngrid: {a: 3}", "e.yaml")
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.ConfigError: ...
    """
    overrides = tuple(overrides)
    root, problems = parse_section(text, name, "an experiment")
    base_folder = _include_base(root, folder, problems)
    if reduced:
        reduce(root, problems)
    for override in overrides:
        problems += apply_override(root, override)
    written = plain(root)
    builder = Builder({}, folder)
    known = (BASE, REDUCED, *SECTIONS)
    values = builder.values(root, ExperimentConfig, (), known)
    config = builder.construct(root, ExperimentConfig, values, ())
    grid = Grid(root)
    problems += builder.problems + grid.problems
    if config is not FAILED:
        problems += wrong_names(root, config, grid.columns)
    raise_all(problems)
    trials = spell_out(root, config, grid, base_folder)
    if any(map(_changes_the_setting, overrides)):  # the file's words would be about other data
        config, written = replace(config, setting=None, conclusion=None), written | {"setting": CHANGED}
    return Experiment(config, grid.columns, trials, written, reduced)


#: What stands in place of the file's words about its conditions where others were set.
CHANGED = "The conditions were changed on the command line; the configuration below has them."


def _changes_the_setting(override: str) -> bool:
    """Whether a change on the command line makes the file's description of its conditions wrong.

    >>> [_changes_the_setting(text) for text in ("base.source.type=csv", "base.source.path=data/x", "seeds=3")]
    [True, False, False]
    """
    key = override.partition("=")[0].strip()
    return key.split(".")[0] in (BASE, *SECTIONS) and not key.endswith(".path")


def _include_base(root: Mapping, folder: Path | None, problems: list[Problem]) -> Path | None:
    """Replace the file name under ``base`` by its content; return the folder of its relative paths."""
    node = root.items.get(BASE)
    if isinstance(node, Mapping):
        return folder
    if node is None:
        problems.append(Problem(root.place, (BASE,), f"missing; it must be {A_BASE}"))
        return folder
    found = find(node.value, folder) if isinstance(node, Scalar) and isinstance(node.value, str) else None
    if found is None:
        problems.append(Problem(node.place, (BASE,), f"{shown(node)} is not allowed; it must be {A_BASE}"))
        return folder
    document, wrong = parse(read_text(found), found)
    problems += wrong
    if isinstance(document, Mapping):
        root.items[BASE] = document
    elif not wrong:
        problems.append(Problem(node.place, (BASE,), f"{shown(node)} holds no section; it must be {A_BASE}"))
    return Path(found).parent


def reduce(root: Mapping, problems: list[Problem]) -> None:
    """Apply the keys under ``reduced`` to the experiment; sections are merged key by key."""
    changes = root.items.get(REDUCED)
    if not isinstance(changes, Mapping):
        text = "missing; it must be a section with what a reduced run changes"
        problems.append(Problem(root.place if changes is None else changes.place, (REDUCED,), text))
        return
    for key, node in changes.items.items():
        below = root.items.get(key)
        if isinstance(node, Mapping) and isinstance(below, Mapping):
            below.items.update(node.items)
            below.keys.update(node.keys)
        else:
            root.items[key], root.keys[key] = node, changes.keys[key]
