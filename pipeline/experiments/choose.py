"""Choose a mechanism for one's own data: every candidate with the asked guarantee is tried, and the best is written.

The candidates are an experiment whose base is the configuration given: its counts, trials, intervals, limits and page
are those of any other experiment. Where nothing keeps the limits on the configured grid, coarser ones follow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

from penstock.mechanisms.core.contract import MECHANISMS, ChainStep
from penstock.mechanisms.core.plugin import ConfigError, ParameterError, examples_of, parameters_of
from penstock.mechanisms.core.sensitivity import Sensitivity
from penstock.mechanisms.fast import Fast
from penstock.mechanisms.period_uniform import PeriodUniform
from penstock.pipeline.config.kinds import format_duration, parse_duration
from penstock.pipeline.config.plan import Plan, make_plan
from penstock.pipeline.config.rules import without_days
from penstock.pipeline.config.run import RunConfig, load, read_text
from penstock.pipeline.config.yaml import apply_override, parse_section, plain
from penstock.pipeline.counting.bounding import most_for_noise, most_for_share
from penstock.pipeline.counting.count import released_memberships
from penstock.pipeline.counting.presence import read_memberships
from penstock.pipeline.experiments.config import Choose
from penstock.pipeline.experiments.load import Sweep, loads_experiment
from penstock.pipeline.experiments.measures import measure
from penstock.pipeline.experiments.runner import ExperimentResult, run_experiment
from penstock.pipeline.spaces.grid import Grid
from penstock.pipeline.windows.sensors import Sensors

#: Parameters that a mechanism was published with, and the step after it.
PUBLISHED_WITH: dict[str, tuple[dict[str, str], str | None]] = {
    "fast": ({}, "kalman"),
    "pegasus": ({"smoothing": "median"}, None),
    "rescue_dp": ({}, "kalman"),
}
#: Asked for: all that a person contributes in a calendar day, as against any stretch of that length.
CALENDAR_DAY = "day"
#: Mechanisms that protect all that a person does in a budget period.
OF_A_PERIOD = (PeriodUniform, Fast)
#: Shares of all memberships that the bounds on a budget period keep which are tried.
KEPT_SHARES = (0.95, 0.99)
#: Skill from which a release beats zeros: a schedule that publishes nothing but zeros has 0.
NEARER = 0.01
#: Rank correlation (τ-b) from which a release tells of the order of the cells: that of zeros is 0.
ORDERED = 0.05


@dataclass(frozen=True)
class ReleasePurpose:
    """Purpose of a release: the measure that ranks settings, and the limits that hold unless others are given."""

    prefer: str
    at_least: dict[str, float] = field(default_factory=dict)
    at_most: dict[str, float] = field(default_factory=dict)


#: By what ``--for`` calls them. Errors are shares of the mean, which say the same on every grid.
PURPOSES = {
    "windows": ReleasePurpose("relative_mae", at_least={"skill": NEARER}),
    # Zeros name the first cells as the busiest, which they are where cells are listed by size: yet they rank none.
    "places": ReleasePurpose("hotspot_f1", at_least={"kendall_tau": ORDERED}),
    "days": ReleasePurpose("daily_relative_mae", at_most={"daily_relative_mae": 1 - NEARER}),
}
MEASURES = ("relative_mae", "mae", "skill", "pearson", "coverage", "hotspot_f1", "kendall_tau", "daily_relative_mae")
QUESTION = (
    "Which mechanism that keeps one person's contributions in {stretch} to {budget} has the smallest error on these "
    "data?"
)
SETTING = (
    "{n} candidates with the same guarantee, each at the whole budget, on the data of {file}. Choosing looks at the "
    "exact counts: the choice tells of them and is covered by no guarantee. Choose on data that are public, are not "
    "published otherwise, or are paid for."
)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Request to `choose`: what must be protected, and what a release must keep to.

    Parameters
    ----------
    protect
        How long a stretch of one person's contributions: a duration as in a configuration, ``window``, or ``day``: a
        calendar day in the time zone of the windows.
    epsilon, delta
        Budget of the stretch; with δ Gaussian noise is tried too, with 0 only Laplace noise.
    purpose
        What the release is for, out of `PURPOSES`.
    at_least, at_most
        Limits by measure; without any those of the purpose, which a release of nothing does not keep.
    prefer
        The measure that ranks what keeps the limits; None: that of the purpose.
    n_seeds
        Runs of every candidate.
    n_grids
        How many grids may be tried, each half as fine in both directions; 1: only the configured one.
    """

    protect: str = "24h"
    epsilon: float = 1.0
    delta: float = 1e-6
    purpose: str = "windows"
    at_least: dict[str, float] = field(default_factory=dict)
    at_most: dict[str, float] = field(default_factory=dict)
    prefer: str | None = None
    n_seeds: int = 3
    n_grids: int = 3

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < np.inf:
            raise ParameterError("--epsilon", self.epsilon, "a number above 0")
        if not 0 <= self.delta < 1:
            raise ParameterError("--delta", self.delta, "at least 0 and below 1")
        for name, value in (("--seeds", self.n_seeds), ("--grids", self.n_grids)):
            if value < 1:
                raise ParameterError(name, value, "at least 1")
        if self.purpose not in PURPOSES:
            raise ParameterError("--for", self.purpose, f"one of {', '.join(PURPOSES)}")
        limits = (("--at-least", self.at_least), ("--at-most", self.at_most))
        for option, names in (*limits, ("--prefer", (self.preferred,))):
            for name in names:
                try:
                    measure(name)
                except ParameterError as error:
                    raise ParameterError(option, name, error.expected) from None

    @property
    def preferred(self) -> str:
        """The measure that ranks what keeps the limits."""
        return self.prefer or PURPOSES[self.purpose].prefer

    @property
    def limits(self) -> dict[str, dict[str, float]]:
        """``at_least`` and ``at_most``; without any, those of the purpose."""
        limits = self if self.at_least or self.at_most else PURPOSES[self.purpose]
        return {"at_least": limits.at_least, "at_most": limits.at_most}

    @property
    def measures(self) -> tuple[str, ...]:
        """Measures that limit and rank."""
        return tuple(dict.fromkeys((*self.limits["at_least"], *self.limits["at_most"], self.preferred)))


def candidates(w: int | None, asked: Asked, bounds: Iterable[int] = ()) -> dict[str, dict[str, Any]]:
    """Changes of the configuration for every candidate that keeps the budget, by name.

    Every mechanism of counts with such a budget, with Laplace and, where δ is above 0, Gaussian noise: as it was
    published, and followed by `filter` where the noise of its windows is independent.

    `w`: protected are any ``w`` successive windows; None: a budget period. ``bounds``: numbers of a person's
    memberships in a period that are tried beside no such bound.
    """
    noises: dict[str, dict[str, Any]] = {"Laplace": {"epsilon": asked.epsilon, "noise": "discrete_laplace"}}
    if asked.delta:
        noises["Gaussian"] = {"epsilon": asked.epsilon, "delta": asked.delta, "noise": "discrete_gaussian"}
    by_title: dict[str, dict[str, Any]] = {}
    for name in MECHANISMS.names():
        kind = MECHANISMS.get(name)
        declared = parameters_of(kind)
        has_the_unit = "w" in declared if w is not None else issubclass(kind, OF_A_PERIOD)
        if not (has_the_unit and {"epsilon", "noise"} <= declared.keys()):
            continue
        is_independent = examples_of(kind)[0].guarantee.independent
        stretch = {"w": w} if w is not None else {}
        for noise, budget in noises.items():
            if budget["noise"] not in (declared["noise"].choices or ()):
                continue
            step = {"type": name} | stretch | budget
            for n in (None, *(bounds if w is None else ())):
                # Of a bounded period no further bound on its windows makes the noise any smaller.
                bound = {} if n is None else {"bounding.max_per_period": n, "bounding.max_cells": None}
                forms = [PUBLISHED_WITH.get(name, ({}, None)), *([({}, "filter")] if is_independent else [])]
                for parameters, after in forms:
                    title = ", ".join(
                        filter(None, (name, noise, f"n = {n}" if n else None, *parameters.values(), after))
                    )
                    by_title[title] = bound | {"mechanism": [step | parameters, *([{"type": after}] if after else [])]}
    return by_title


def suggested_bounds(plan: Plan, n_windows: int, step: ChainStep) -> dict[str, int]:
    """``bounding.max_per_period`` that suits the first windows of a simulation.

    The keys are ``95`` and ``99``, percents of the memberships that it keeps, and, for `PeriodUniform`, ``for_noise``:
    `most_for_noise` under its noise.

    None where there can be no such bound: of traces, an endless source, or switched sensors.
    """
    free = replace(plan, bounds=replace(plan.bounds, max_per_period=None))
    if plan.on_points or plan.config.mode != "simulation" or plan.grid.calendar.n_windows is None:
        return {}
    if plan.config.sensors != Sensors():
        return {}
    memberships = released_memberships(read_memberships(free, n_windows), free)
    period = plan.grid.periods_of(memberships.window) if len(memberships) else memberships.window
    suggested = {f"{100 * share:.0f}": most_for_share(memberships, period, share) for share in KEPT_SHARES}
    if isinstance(step, PeriodUniform):
        schedules = step.candidates

        def deviation(n: int) -> float:
            """Standard deviation of the noise for a bound of n memberships."""
            moved = Sensitivity(n, n)
            return min(float(s.family.standard_deviation(s.scale(s.budget, moved))) for s in schedules)

        suggested["for_noise"] = most_for_noise(memberships, period, n_windows * plan.grid.n_cells, deviation)
    return suggested


def grids(config: RunConfig, n: int) -> Iterator[dict[str, int]]:
    """Changes of the configuration for each grid, from the configured one to the coarsest."""
    yield {}
    if isinstance(config.space, Grid):
        rows, columns = config.space.rows, config.space.columns
        for _ in range(n - 1):
            if rows == columns == 1:
                return
            rows, columns = -(-rows // 2), -(-columns // 2)
            yield {"space.rows": rows, "space.columns": columns}


def experiment_of(path: str | Path, overrides: Iterable[str], asked: Asked, changes: dict[str, int]) -> Sweep:
    """The candidates over one grid, as an experiment."""
    config = load(path, overrides)
    if config.mode == "deployment":
        text = "mode: 'deployment' is not allowed; it must be simulation, for choosing looks at the exact counts"
        raise ConfigError((f"{path}: {text}",))
    if any(step.guarantee.on_points for step in config.mechanism):
        raise ConfigError((f"{path}: traces are not counted; choose is for counts",))
    w = None if asked.protect == CALENDAR_DAY else n_windows(config, asked.protect)
    if w is None and not make_plan(replace(config, accountants=())).grid.fits_days:
        right = "a duration, or windows must divide a calendar day (outside UTC also the hour that clocks change by)"
        raise ParameterError("--protect", asked.protect, right)
    root, _ = parse_section(read_text(path), str(path), "a run")
    for override in overrides:
        apply_override(root, override)
    no_days = without_days(config.source, config.windows)
    daily = [name for name in asked.measures if measure(name).daily]
    if no_days and daily:
        purpose = PURPOSES[asked.purpose]
        asked_for_days = daily[0] in (purpose.prefer, *purpose.at_least, *purpose.at_most)
        option, value = ("--for", asked.purpose) if asked_for_days else ("measures", daily[0])
        raise ParameterError(option, value, no_days)
    usual = (name for name in MEASURES if not (no_days and measure(name).daily))
    measures = list(dict.fromkeys((*usual, *asked.measures)))
    set_first = {"landmarks": None, "budget_period": "1d" if w is None else None} | changes
    if config.bounding.max_per_period is not None:
        set_first["bounding.max_per_period"] = None

    def of(variants: dict[str, dict[str, Any]]) -> Sweep:
        """The experiment over some variants."""
        budget = f"ε = {asked.epsilon:g}" + (f" (δ = {asked.delta:g})" if asked.delta else "")
        stretch = "a calendar day" if w is None else f"any {w} successive windows"
        document = {
            "name": f"choose-{config.name}",
            "question": QUESTION.format(stretch=stretch, budget=budget),
            "setting": SETTING.format(n=len(variants), file=Path(path).name),
            "base": plain(root),
            "set": set_first,
            "variants": variants,
            "seeds": asked.n_seeds,
            "measures": measures,
            "choose": asked.limits | {"prefer": asked.preferred},
        }
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        return loads_experiment(text, str(path), Path(path).parent)

    experiment = of(candidates(w, asked))
    if w is None:
        first = experiment.trials[0].config
        plan = make_plan(replace(first, accountants=(), bounding=replace(first.bounding, max_cells=None)))
        step = PeriodUniform(epsilon=asked.epsilon, delta=asked.delta or None)
        bounds = suggested_bounds(plan, plan.grid.n_windows, step) if plan.grid.calendar.n_windows else {}
        experiment = of(candidates(w, asked, sorted(set(bounds.values()))))
    return experiment


def n_windows(config: RunConfig, protect: str) -> int:
    """Windows of the protected stretch, at least one.

    Raises `ParameterError` if it is no duration, or not a whole number of windows.
    """
    size = config.windows.size
    if protect == "window":
        return 1
    try:
        duration = parse_duration(protect)
    except (ParameterError, ValueError):
        duration = 0
    if duration <= 0 or duration % size:
        right = f"window, {CALENDAR_DAY}, or a duration that is a multiple of {format_duration(size)}"
        raise ParameterError("--protect", protect, right)
    return duration // size


@dataclass(frozen=True)
class Choice:
    """Outcome of a choice."""

    folder: Path  # where everything is
    # every candidate on the last grid that was tried, best first: `frontier`'s columns and ``grid``
    ranking: pl.DataFrame
    choice: dict[str, Any]  # that of the experiment's manifest: limits, best, what binds, the nearest candidate
    tried: tuple[str, ...]  # the grids that were tried, in order
    failed: int  # trials that failed

    @property
    def report(self) -> Path:
        """The page of the last grid."""
        return _grid_folder(self.folder, len(self.tried)) / "report.html"


def choose(
    path: str | Path,
    asked: Asked,
    folder: str | Path | None = None,
    overrides: Iterable[str] = (),
    n_jobs: int = 1,
    begun: Callable[[str, Sweep], None] = lambda grid, experiment: None,
    listener: Callable[[int, int, int], None] = lambda done, failed, n_read: None,
) -> Choice:
    """Rank all candidates on the data of a configuration, and write the best as a configuration.

    Parameters
    ----------
    path, overrides
        The configuration: its source, space, windows and bounding stay; its mechanism is replaced.
    asked
        What must be protected, and the limits.
    folder
        Where to write an experiment's folder for each grid, ``choice.json`` and, if a candidate keeps all limits,
        ``best.yaml``; None: runs/choose/<name>.
    n_jobs
        Processes at a time.
    begun, listener
        Called before each grid, and after every step.

    Raises
    ------
    ConfigError
        If the configuration is wrong or a deployment.
    """
    overrides = tuple(overrides)
    config = load(path, overrides)
    target = Path(folder or Path("runs") / "choose" / config.name)
    target.mkdir(parents=True, exist_ok=True)
    (target / "best.yaml").unlink(missing_ok=True)
    tried: list[str] = []
    for changes in grids(config, asked.n_grids):
        experiment = experiment_of(path, overrides, asked, changes)
        grid = "x".join(map(str, changes.values())) or "as configured"
        tried.append(grid)
        begun(grid, experiment)
        grid_folder = _grid_folder(target, len(tried))
        outcome = run_experiment(experiment, grid_folder, n_jobs, listener)
        if outcome.manifest.get("choice", {}).get("best"):
            (target / "best.yaml").write_bytes((grid_folder / "best.yaml").read_bytes())
            break
    return _chosen(outcome, target, tuple(tried), asked)


def _grid_folder(folder: Path, number: int) -> Path:
    return folder / f"grid-{number}"


def _chosen(outcome: ExperimentResult, target: Path, tried: tuple[str, ...], asked: Asked) -> Choice:
    choice = outcome.manifest.get("choice") or {}
    path = outcome.folder / "frontier.parquet"
    table = pl.read_parquet(path) if path.is_file() else pl.DataFrame()
    if len(table):
        higher = Choose(
            at_least=asked.limits["at_least"], at_most=asked.limits["at_most"], prefer=asked.preferred
        ).is_higher_better(asked.preferred)
        by = [pl.col("best"), pl.col("allowed"), pl.col(f"mean {asked.preferred}")]
        table = table.sort(by, descending=[True, True, higher], nulls_last=True, maintain_order=True)
    failed = len(outcome.manifest["failed"])
    written = {"grids": list(tried), "choice": choice, "failed": failed, "asked": asdict(asked)}
    (target / "choice.json").write_text(json.dumps(written, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return Choice(target, table, choice, tried, failed)
