"""The cells of an experiment: for every setting and seed a configuration that has been checked."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accountants.core.accountant import ACCOUNTANTS
from mechanisms.core.errors import ConfigError
from pipeline.configuration.document import Mapping, Node, Problem, Scalar, locate
from pipeline.configuration.overrides import write
from pipeline.configuration.run import RunConfig, from_document
from pipeline.experiments.config import ExperimentConfig
from pipeline.experiments.grid import Grid, Setting
from pipeline.experiments.measures import Measure, measure

BASE = "base"


@dataclass(frozen=True)
class Cell:
    """One run of an experiment.

    Parameters
    ----------
    number
        Its place in the order of the grid, from 0.
    values
        What varies, as tables show it.
    seed
        Of its noise.
    config
        Its whole configuration.
    """

    number: int
    values: dict[str, Any]
    seed: int
    config: RunConfig


def raise_all(problems: list[Problem]) -> None:
    """Raise `ConfigError` with every problem in the order of the lines, if there is one."""
    if problems:
        in_order = sorted(problems, key=lambda p: float("inf") if p.place.line is None else p.place.line)
        raise ConfigError(tuple(dict.fromkeys(map(str, in_order))))


def spell_out(root: Mapping, config: ExperimentConfig, grid: Grid, folder: Path | None) -> tuple[Cell, ...]:
    """A checked configuration for every setting and seed."""
    base = root.items[BASE]
    problems: list[Problem] = []
    texts: list[str] = []
    measures = [measure(name) for name in config.measures]
    cells: list[Cell] = []
    for setting in grid.settings():
        found = _checked(base, setting, folder, problems, texts)
        if found is None:
            continue
        problems += _cannot_run(root, found, measures)
        for seed in config.seed_list:
            cells.append(Cell(len(cells), setting.values, seed, replace(found, seed=seed)))
    raise_all(problems)
    if texts:
        raise ConfigError(tuple(dict.fromkeys(texts)))
    return tuple(cells)


def _checked(
    base: Node, setting: Setting, folder: Path | None, problems: list[Problem], texts: list[str]
) -> RunConfig | None:
    """The configuration of one setting; what is wrong with it is added to the lists."""
    document = copy.deepcopy(base)
    wrong = [problem for change in setting.changes if (problem := change.apply(document))]
    problems += wrong
    if wrong or not isinstance(document, Mapping):
        return None
    mode, place = document.items.get("mode"), document.place
    if isinstance(mode, Scalar) and mode.value == "deployment":
        text = "'deployment' is not allowed; it must be simulation, for an experiment compares with the truth"
        problems.append(Problem(mode.place, (BASE, "mode"), text))
        return None
    if "output" not in document.items:
        write(document, ("output", "path"), Scalar(place, "unused", "unused"))  # an experiment has its own folder
    try:
        return from_document(document, folder)
    except ConfigError as error:
        texts += error.problems
        return None


def _cannot_run(root: Mapping, config: RunConfig, measures: list[Measure]) -> list[Problem]:
    """Why a valid configuration cannot be a cell."""
    problems = []
    base = root.items[BASE]
    if not any("counts" in mechanism.stages for mechanism in config.mechanism):
        place, _ = locate(base, ("mechanism",))
        problems.append(Problem(place, (BASE, "mechanism"), "an experiment compares counts; it must release counts"))
    names = [ACCOUNTANTS.name_of(type(accountant)) for accountant in config.accountants]
    for i, one in enumerate(measures):
        if one.accountant is not None and one.accountant not in names:
            place, _ = locate(root, ("measures", i))
            kept = ", ".join(names) or "there is none"
            text = f"no accountant {one.accountant} in every cell; it must be one of the run's: {kept}"
            problems.append(Problem(place, ("measures", i), text))
    return problems
