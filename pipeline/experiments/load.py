"""Load an experiment file into a grid and one validated configuration per trial. Every problem is reported with its
line.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.accountants.core.accountant import ACCOUNTANTS
from penstock.evaluation.attacks.membership import RECOVERY
from penstock.mechanisms.core.plugin import ConfigError, ParameterError
from penstock.pipeline.config import yaml
from penstock.pipeline.config.build import FAILED, Builder
from penstock.pipeline.config.kinds import find
from penstock.pipeline.config.rules import daily_metrics_flaw, unused_keys
from penstock.pipeline.config.run import RunConfig, add_plugins, from_document, read_text
from penstock.pipeline.config.yaml import (
    Mapping,
    Node,
    Problem,
    Scalar,
    Sequence,
    apply_override,
    key_path,
    locate,
    parse,
    parse_section,
    plain,
    shown,
    write,
)
from penstock.pipeline.experiments.attack import check_recoverable
from penstock.pipeline.experiments.config import ExperimentConfig, wrong_names
from penstock.pipeline.experiments.measures import TrialMeasure, measure

BASE = "base"
#: Sections of an experiment that define what varies.
SECTIONS = ("set", "variants", "grid")
VARIANT = "variant"
#: Columns of the result table; nothing that varies may take their names.
RESERVED = ("cell", "seed", "measure", "value", "unit", "configuration", "inputs", "people", "versions")
MAX_SETTINGS = 100_000
REDUCED = "reduced"
IS_A_RUN = (
    "{name}: is the configuration of a run, not an experiment: penstock run {name}; an experiment is a file of its own "
    "with name, question, measures, what varies (variants or grid), and base: {file} "
    "(documentation: Write an experiment)"
)
EXPECTED_BASE = "a section as in a run's configuration, or the file of one"


@dataclass(frozen=True)
class Change:
    """A change to the value at a key path."""

    key: str
    steps: yaml.Path
    node: Node
    path: yaml.Path


@dataclass(frozen=True)
class Setting:
    """A point in a grid or on one of its axes, with a value for each table column and the changes in order."""

    values: dict[str, Any]
    changes: tuple[Change, ...]


class ParameterGrid:
    """The axes defined by an experiment's ``set``, ``variants`` and ``grid``. Errors are collected in ``problems``.

    >>> from penstock.pipeline.config.yaml import parse
    >>> root, _ = parse("grid: {a: [1, 2], b.c: [x, y]}", "e.yaml")
    >>> grid = ParameterGrid(root)
    >>> [tuple(setting.values.values()) for setting in grid.settings()][:3], grid.columns
    ([(1, 'x'), (1, 'y'), (2, 'x')], ('a', 'b.c'))
    """

    def __init__(self, root: Mapping) -> None:
        self.problems: list[Problem] = []
        self.fixed: tuple[Change, ...] = ()
        axes: list[tuple[str, list[Setting]]] = []
        if (node := self._section(root, "set")) is not None:
            self.fixed = tuple(self._changes(node, ("set",)))
        if (node := self._section(root, "variants")) is not None:
            axes.append((VARIANT, self._variants(node)))
        if (node := self._section(root, "grid")) is not None:
            axes += [(change.key, self._values(change)) for change in self._changes(node, ("grid",))]
        self.axes = tuple(settings for _, settings in axes)
        self.columns = tuple(column for column, _ in axes)
        wrong = [
            f"{column} varies twice; it must be in one place" for column, n in Counter(self.columns).items() if n > 1
        ]
        wrong += [f"{name} is a column of the results and cannot vary" for name in RESERVED if name in self.columns]
        if (n_settings := math.prod(map(len, self.axes))) > MAX_SETTINGS:
            wrong.append(f"{n_settings:,} settings; there must be at most {MAX_SETTINGS:,}")
        self.problems += [Problem(root.place, (), text) for text in wrong]

    def settings(self) -> Iterator[Setting]:
        """Yield every combination of settings. The last axis varies fastest."""
        for point in itertools.product(*self.axes):
            values = {column: value for choice in point for column, value in choice.values.items()}
            yield Setting(values, self.fixed + tuple(change for choice in point for change in choice.changes))

    def _section(self, root: Mapping, name: str) -> Mapping | None:
        node = root.items.get(name)
        if node is None or isinstance(node, Mapping):
            return node
        self.problems.append(_refused(node, (name,), "a section of key paths and values"))
        return None

    def _changes(self, node: Mapping, path: yaml.Path) -> list[Change]:
        """Parse a section into changes and record a problem for each malformed key path."""
        changes = []
        for key, item in node.items.items():
            steps = key_path(key)
            if steps is None or steps[0] == "seed":
                expected = "'seed' cannot be varied here; it must be a key path of a run (seeds: is for seeds)"
                wrong = expected if steps else "not a key path such as mechanism[0].epsilon"
                self.problems.append(Problem(node.keys[key], (*path, key), wrong))
            else:
                changes.append(Change(key, steps, item, (*path, key)))
        return changes

    def _variants(self, node: Mapping) -> list[Setting]:
        settings = []
        for name, changes in node.items.items():
            if isinstance(changes, Mapping):
                settings.append(Setting({VARIANT: name}, tuple(self._changes(changes, ("variants", name)))))
            elif isinstance(changes, Scalar) and changes.value is None:
                settings.append(Setting({VARIANT: name}, ()))  # the base as it is
            else:
                self.problems.append(_refused(changes, ("variants", name), "a section of key paths and values"))
        return settings

    def _values(self, change: Change) -> list[Setting]:
        """Return the settings of a varied key. Tables show scalar values unchanged and sections as JSON."""
        if not isinstance(change.node, Sequence) or not change.node.items:
            expected = "a list of all values, such as [0.5, 1, 2]"
            self.problems.append(_refused(change.node, change.path, expected))
            return []
        settings = []
        for node in change.node.items:
            value = plain(node)
            if not isinstance(node, Scalar):
                value = json.dumps(value, sort_keys=True, ensure_ascii=False)
            settings.append(Setting({change.key: value}, (replace(change, node=node),)))
        return settings


def _refused(node: Node, path: yaml.Path, expected: str) -> Problem:
    return Problem(node.place, path, f"{shown(node)} is not allowed; it must be {expected}")


@dataclass(frozen=True)
class Planned:
    """A planned trial in a sweep: one setting with one seed."""

    #: Position in the order of the grid, from 0.
    number: int
    #: The varied values by column.
    values: dict[str, Any]
    seed: int
    config: RunConfig


def raise_all(problems: list[Problem]) -> None:
    """Raise a `ConfigError` that lists all problems in line order, if there are any."""
    if problems:
        in_order = sorted(problems, key=lambda p: float("inf") if p.place.line is None else p.place.line)
        raise ConfigError(tuple(dict.fromkeys(map(str, in_order))))


def expand_trials(
    root: Mapping, config: ExperimentConfig, grid: ParameterGrid, folder: Path | None
) -> tuple[Planned, ...]:
    """Expand a sweep into trials with validated configurations."""
    base, measures, settings = root.items[BASE], [measure(name) for name in config.measures], list(grid.settings())
    problems, texts, trials, configs = list[Problem](), list[str](), list[Planned](), list[RunConfig]()
    for setting in settings:
        document, wrong = copy.deepcopy(base), list[Problem]()
        for change in setting.changes:
            if problem := write(document, change.steps, copy.deepcopy(change.node)):
                wrong.append(Problem(change.node.place, change.path, problem.text))
        problems += wrong
        if wrong or not isinstance(document, Mapping):
            continue
        mode, place = document.items.get("mode"), document.place
        if isinstance(mode, Scalar) and mode.value == "deployment":
            text = "'deployment' is not allowed; it must be simulation, for an experiment compares with the truth"
            problems.append(Problem(mode.place, (BASE, "mode"), text))
            continue
        if "output" not in document.items:
            write(document, ("output", "path"), Scalar(place, "unused", "unused"))  # an experiment has its own folder
        try:
            checked = from_document(document, folder, is_trial=True)
        except ConfigError as error:
            texts += error.problems
            continue
        problems += _run_obstacles(root, checked, measures)
        configs.append(checked)
        for seed in range(1, config.seeds + 1):
            trials.append(Planned(len(trials), setting.values, seed, replace(checked, seed=seed)))
    if len(configs) == len(settings):  # a trial that is wrong may be the one that reads a key
        problems += _never_used(base, settings, configs)
    raise_all(problems)
    if texts:
        raise ConfigError(tuple(dict.fromkeys(texts)))
    return tuple(trials)


def _never_used(base: Node, settings: list[Setting], configs: list[RunConfig]) -> list[Problem]:
    """Report keys that are set by the base or by a change but never read by any trial."""
    by_config = [(config, set(unused_keys(config))) for config in configs]
    unread = set[str]().union(*(keys for _, keys in by_config))
    unread -= {
        key for key in unread for config, keys in by_config if key not in keys and getattr(config, key) is not None
    }
    text = "must be left out: no mechanism and no accountant of any trial reads it"
    given: list[tuple[Node, yaml.Path]] = []
    if isinstance(base, Mapping):
        given = [(node, (BASE, key)) for key, node in base.items.items()]
    given += [(change.node, change.path) for setting in settings for change in setting.changes]
    return [
        Problem(node.place, path, text)
        for node, path in given
        if str(path[-1]).partition(".")[0] in unread and plain(node) is not None
    ]


def _run_obstacles(root: Mapping, config: RunConfig, measures: list[TrialMeasure]) -> list[Problem]:
    """Return the reasons that prevent a valid configuration from running as a trial."""
    wrong: list[tuple[int, str]] = []
    names = [ACCOUNTANTS.name_of(type(accountant)) for accountant in config.accountants]
    for i, entry in enumerate(measures):
        if entry.accountant is not None and entry.accountant not in names:
            kept = ", ".join(names) or "there is none"
            wrong.append((i, f"no accountant {entry.accountant} in every trial; it must be one of the run's: {kept}"))
        if entry.daily and (expected := daily_metrics_flaw(config.source, config.windows)):
            wrong.append((i, f"{entry.name!r} is not allowed; it must be {expected}"))
        if entry.name.startswith(f"attack/{RECOVERY}/"):
            try:
                check_recoverable(config)
            except ParameterError as error:
                wrong.append((i, str(error)))
    return [Problem(locate(root, ("measures", i))[0], ("measures", i), text) for i, text in wrong]


@dataclass(frozen=True)
class Sweep:
    """A loaded sweep and its trials."""

    config: ExperimentConfig
    #: Names of what varies, in the order of the tables.
    columns: tuple[str, ...]
    #: The seed varies fastest.
    trials: tuple[Planned, ...]
    #: The whole file as plain values after all changes, for provenance.
    written: dict[str, Any]
    reduced: bool = False


def load_experiment(path: str | Path, overrides: Iterable[str] = (), reduced: bool = False) -> Sweep:
    """Load an experiment file. Raises `ConfigError` with one line per problem.

    ``overrides``: ``key.path=value`` texts, applied last: ``base.source.path=…``, ``seeds=3``. ``reduced``: whether the
    section ``reduced`` replaces the full size.
    """
    return loads_experiment(read_text(path), str(path), Path(path).parent, overrides, reduced)


def loads_experiment(
    text: str,
    name: str = "<string>",
    folder: Path | None = None,
    overrides: Iterable[str] = (),
    reduced: bool = False,
) -> Sweep:
    """Load an experiment from YAML text. The other arguments are the same as for `load_experiment`.

    >>> loads_experiment("name: x\\nmeasures: [mea]\\ngrid: {a: 3}", "e.yaml")
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.ConfigError: ...
    """
    overrides = tuple(overrides)
    root, problems = parse_section(text, name, "an experiment")
    if BASE not in root.items and root.items.keys() & {"source", "mechanism"}:
        raise ConfigError((IS_A_RUN.format(name=name, file=Path(name).name),))
    base_folder = include_base(root, folder, problems)
    if reduced:
        reduce(root, problems)
    for override in overrides:
        problems += apply_override(root, override)
    base = root.items.get(BASE)
    if isinstance(base, Mapping) and (broken := add_plugins(base, base_folder)):  # measures may be theirs
        raise_all(problems + broken)
    written = plain(root)
    builder = Builder({}, folder)
    known = (BASE, REDUCED, *SECTIONS)
    values = builder.values(root, ExperimentConfig, (), known)
    config = builder.construct(root, ExperimentConfig, values, ())
    grid = ParameterGrid(root)
    problems += builder.problems + grid.problems
    if config is not FAILED:
        problems += wrong_names(root, config, grid.columns)
    raise_all(problems)
    trials = expand_trials(root, config, grid, base_folder)
    changed = [override.partition("=")[0].strip() for override in overrides]
    if any(key.split(".")[0] in (BASE, *SECTIONS) and not key.endswith(".path") for key in changed):
        # The file's words would be about other data.
        config, written = replace(config, setting=None, conclusion=None), written | {"setting": CHANGED}
    return Sweep(config, grid.columns, trials, written, reduced)


#: What stands in place of the file's words about its conditions where others were set.
CHANGED = "The conditions were changed on the command line; the configuration below has them."


def include_base(root: Mapping, folder: Path | None, problems: list[Problem]) -> Path | None:
    """Replace the file name under ``base`` with the file's contents and return the folder for relative paths."""
    node = root.items.get(BASE)
    if isinstance(node, Mapping):
        return folder
    if node is None:
        problems.append(Problem(root.place, (BASE,), f"missing; it must be {EXPECTED_BASE}"))
        return folder
    file = find(node.value, folder) if isinstance(node, Scalar) and isinstance(node.value, str) else None
    if file is None:
        problems.append(_refused(node, (BASE,), EXPECTED_BASE))
        return folder
    document, wrong = parse(read_text(file), file)
    problems += wrong
    if isinstance(document, Mapping):
        root.items[BASE] = document
    elif not wrong:
        problems.append(Problem(node.place, (BASE,), f"{shown(node)} holds no section; it must be {EXPECTED_BASE}"))
    return Path(file).parent


def reduce(root: Mapping, problems: list[Problem]) -> None:
    """Apply the keys under ``reduced`` to the experiment, merging sections key by key."""
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
