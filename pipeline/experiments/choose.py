"""Choose a mechanism for given data by trying every candidate with the requested guarantee and writing the best
configuration.

The candidates are an experiment whose base is the configuration given: its counts, trials, intervals, limits and page
are those of any other experiment. With a limit on an adversary's advantage another experiment attacks them first.
Where nothing keeps the limits on the configured grid, coarser ones follow.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

from penstock.evaluation.attacks.parameters import Game
from penstock.mechanisms.core.contract import MECHANISMS, ChainStep
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import (
    Checked,
    ConfigError,
    ParameterError,
    parameter,
    parameters_of,
)
from penstock.mechanisms.core.schedules import AUTO, BudgetSchedule
from penstock.mechanisms.core.sensitivity import Sensitivity
from penstock.mechanisms.core.unit import WINDOW
from penstock.mechanisms.fast import Fast
from penstock.mechanisms.period_uniform import PeriodUniform
from penstock.mechanisms.w_event_uniform import WEventUniform
from penstock.pipeline.atomic import write_json
from penstock.pipeline.config.kinds import format_duration, parse_duration
from penstock.pipeline.config.plan import Plan, make_plan, outline
from penstock.pipeline.config.rules import check_accountant_support, daily_metrics_flaw
from penstock.pipeline.config.run import RunConfig, load, read_text
from penstock.pipeline.config.yaml import apply_override, parse_section, plain
from penstock.pipeline.counting.bounding import quota_for_noise, quota_for_share
from penstock.pipeline.counting.count import released_memberships
from penstock.pipeline.experiments.config import Choose
from penstock.pipeline.experiments.load import Sweep, loads_experiment
from penstock.pipeline.experiments.measures import measure
from penstock.pipeline.experiments.runner import ExperimentResult, run_experiment
from penstock.pipeline.run import check_input
from penstock.pipeline.spaces.grid import Grid
from penstock.pipeline.windows.sensors import Sensors

#: Parameters that a mechanism was published with, and the step after it.
PUBLISHED_WITH: dict[str, tuple[dict[str, str], str | None]] = {
    "fast": ({}, "kalman"),
    "pegasus": ({"smoothing": "median"}, None),
    "rescue_dp": ({}, "kalman"),
}
#: Title of the filter with the parameters that the configuration gives it.
CONFIGURED = "filter as configured"
#: ChoiceRequest for: all that a person contributes in a calendar day, as against any stretch of that length.
CALENDAR_DAY = "day"
#: Mechanisms that protect all that a person does in a budget period.
PERIOD_MECHANISMS = (PeriodUniform, Fast)
#: Keys that bound a budget period: each candidate sets them anew.
PERIOD_BOUND = ("max_per_period", "pace")
#: Shares of all memberships that the bounds on a budget period keep which are tried.
KEPT_SHARES = (0.95, 0.99)
#: An adversary's advantage, and her game: the people who are in most counts, told apart by LiRA.
ADVANTAGE = "attack/lira/advantage"
GAME: dict[str, Any] = {"whom": "exposed", "targets": 6, "samples": 400}
#: Values of aggregates that an attack makes and weighs in a second of one processor, about.
VALUES_A_SECOND = 3.5e6
#: Injected events have this many standard deviations of the noise of a candidate that shares its budget evenly, and
#: releases whose error is no larger than the least one's times this are compared by how many of them they show.
EVENT, NEARLY_AS_GOOD = 8.0, 1.1
#: Skill from which a release beats zeros: a schedule that publishes nothing but zeros has 0.
NEARER = 0.01
#: Rank correlation (τ-b) from which a release tells of the order of the cells: that of zeros is 0.
ORDERED = 0.05


@dataclass(frozen=True)
class ReleasePurpose:
    """The purpose of a release, with its metric for ranking settings and its default limits."""

    prefer: str
    at_least: dict[str, float] = field(default_factory=dict)
    at_most: dict[str, float] = field(default_factory=dict)


#: By what ``--for`` calls them. Errors are shares of the mean, which say the same on every grid.
PURPOSES = {
    "windows": ReleasePurpose("relative_mae", at_least={"skill": NEARER}),
    # Zeros name the first cells as the busiest, which they are where cells are listed by size: yet they rank none.
    "places": ReleasePurpose("hotspot_f1", at_least={"kendall_tau": ORDERED}),
    "days": ReleasePurpose("daily_relative_mae", at_most={"daily_relative_mae": 1 - NEARER}),
    # The errors decide which candidates are compared by the events that they show.
    "events": ReleasePurpose("relative_mae", at_least={"skill": NEARER}),
    "forecast": ReleasePurpose("forecast_error", at_least={"skill": NEARER}),
}
MEASURES = (
    *("relative_mae", "mae", "skill", "pearson", "coverage", "hotspot_f1", "kendall_tau", "daily_relative_mae"),
    "forecast_error",
)
ATTACKED = "How well does an adversary tell whether one of the people in most counts is in what a candidate releases?"
SETTING = (
    "{n} candidates with the same guarantee, each at the whole budget, on the data of {file}. Choosing looks at the "
    "exact counts: the choice tells of them and is covered by no guarantee. Choose on data that are public, are not "
    "published otherwise, or are paid for."
)


@dataclass(frozen=True, kw_only=True)
class ChoiceRequest(Checked):
    """A request to `choose`, including the unit to protect and limits on the release.

    ``at_least``, ``at_most``: limits by measure; without any those of the purpose, which a release of nothing does not
    keep.
    """

    protect: str | None = parameter(
        None,
        doc="any stretch of a person's contributions of a duration, window, or day: a calendar day; unset: the windows "
        "or the calendar day that the configuration's first step protects, or 24h",
    )
    epsilon: float | None = parameter(
        None,
        above=0,
        below=math.inf,
        doc="budget of the stretch, in nats; unset: that of the configuration if it has one for the stretch, or 1",
    )
    delta: float | None = parameter(
        None, at_least=0, below=1, doc="δ of Gaussian noise; 0: only Laplace noise; unset: as configured, or 1e-06"
    )
    advantage: float | None = parameter(
        None,
        above=0,
        at_most=1,
        doc="refuse what gives an adversary (LiRA) a larger advantage over the most exposed people; unset: no attack",
    )
    purpose: str = parameter(
        "windows",
        key="for",
        choices=tuple(PURPOSES),
        doc="use of the release: counts of windows, the busiest places, daily totals, sudden crowds, a forecast",
    )
    at_least: dict[str, float] = field(default_factory=dict)
    at_most: dict[str, float] = field(default_factory=dict)
    prefer: str | None = parameter(
        None, doc="measure that ranks what keeps the limits; unset: that of --for, such as relative_mae"
    )
    n_seeds: int = parameter(3, key="seeds", at_least=1, doc="runs of every candidate")
    n_grids: int = parameter(3, key="grids", at_least=1, doc="grids at most, each half as fine; 1: as configured")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.purpose == "events" and self.prefer is not None:
            raise ParameterError("prefer", self.prefer, "left out with --for events, which ranks by the events shown")
        named = {"at-least": self.at_least, "at-most": self.at_most, "prefer": (self.preferred,)}
        for option, name in ((option, name) for option, names in named.items() for name in names):
            try:
                measure(name)
            except ParameterError as error:
                raise ParameterError(option, name, error.expected) from None

    def of(self, config: RunConfig) -> ChoiceRequest:
        """Return the request with unset values (the stretch, ε and δ) filled in from ``config`` or by default."""
        step, stretch = config.mechanism[0], None
        if step.guarantee.unit == WINDOW:
            stretch = "window"
        elif step.guarantee.unit.kind == "stretch":
            stretch = format_duration(step.guarantee.unit.length * config.windows.size)
        elif isinstance(step, PERIOD_MECHANISMS) and config.budget_period == parse_duration("1d"):
            stretch = CALENDAR_DAY
        protect = self.protect or stretch or "24h"
        usual: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
        if stretch and n_windows(config, protect) == n_windows(config, stretch):
            of_step = {name: getattr(step, name, None) for name in usual}
            usual |= {name: value for name, value in of_step.items() if value is not None and math.isfinite(value)}
        usual |= {name: given for name in usual if (given := getattr(self, name)) is not None}
        return replace(self, protect=protect, **usual)

    @property
    def question(self) -> str:
        """The stretch to protect and its budget."""
        stretch = {CALENDAR_DAY: "a calendar day", "window": "a window"}.get(str(self.protect), f"any {self.protect}")
        delta = f" (δ = {self.delta:g})" if self.delta else ""
        return f"ε = {self.epsilon:g}{delta} for all that a person does in {stretch}"

    @property
    def preferred(self) -> str:
        """The metric for ranking the settings that are within the limits."""
        return self.prefer or PURPOSES[self.purpose].prefer

    @property
    def limits(self) -> dict[str, dict[str, float]]:
        """The limits from ``at_least`` and ``at_most``, or the purpose's defaults if neither is given."""
        limits = self if self.at_least or self.at_most else PURPOSES[self.purpose]
        return {"at_least": limits.at_least, "at_most": limits.at_most}

    @property
    def measures(self) -> tuple[str, ...]:
        """The metrics required for limits and ranking."""
        return tuple(dict.fromkeys((*self.limits["at_least"], *self.limits["at_most"], self.preferred)))


def candidates(
    w: int | None, asked: ChoiceRequest, bounds: Iterable[int] = (), configured: dict[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """Return each candidate's configuration changes by name. The candidates are all mechanisms of counts that support
    the budget, both as published and, if the noise is independent across windows, followed by `filter`.

    `w`: protected are any ``w`` successive windows; None: a budget period. ``bounds``: numbers of a person's
    memberships in a period that are tried beside no bound. ``configured``: a filter with parameters, tried too.
    """
    budget: dict[str, Any] = {"epsilon": asked.epsilon} | ({"delta": asked.delta} if asked.delta else {})
    noises = {"Laplace": {"epsilon": asked.epsilon, "noise": "discrete_laplace"}}
    if asked.delta:
        noises["Gaussian"] = budget | {"noise": "discrete_gaussian"}
    filters = {"filter": {"type": "filter"}} | ({CONFIGURED: configured} if configured else {})
    steps: dict[str | None, dict[str, Any]] = {"kalman": {"type": "kalman"}, **filters}
    by_title: dict[str, dict[str, Any]] = {}
    for name in MECHANISMS.names():
        kind = MECHANISMS.get(name)
        declared = parameters_of(kind)
        has_the_unit = "w" in declared if w is not None else issubclass(kind, PERIOD_MECHANISMS)
        if not (has_the_unit and {"epsilon", "noise"} <= declared.keys()):
            continue
        is_independent = kind.examples()[0].guarantee.independent
        choices = declared["noise"].choices or ()
        offered = {None: budget} if AUTO in choices else {k: v for k, v in noises.items() if v["noise"] in choices}
        forms = [PUBLISHED_WITH.get(name, ({}, None)), *(({}, one) for one in filters if is_independent)]
        for (noise, of_noise), n, (parameters, after) in product(offered.items(), (None, *bounds), forms):
            step = {"type": name} | ({} if w is None else {"w": w}) | of_noise | parameters
            # Of a bounded period no further bound on its windows makes the noise any smaller.
            bound = {} if n is None else {"bounding.max_per_period": n, "bounding.max_cells": None}
            title = ", ".join(filter(None, (name, noise, f"n = {n}" if n else None, *parameters.values(), after)))
            by_title[title] = bound | {"mechanism": [step, *([steps[after]] if after else [])]}
    return by_title


def attack_on(experiment: Sweep, path: str | Path, maximum: float) -> Sweep:
    """Return a sweep that attacks each distinct release among the candidates once, before post-processing.

    Who sees the noisy counts themselves can tell at least as much as who sees what was made of them.
    """
    variants: dict[str, dict[str, Any]] = {}
    for title, changes in experiment.written["variants"].items():
        variants.setdefault(noisy(title, changes), changes | {"mechanism": changes["mechanism"][:1]})
    document = experiment.written | {"name": f"{experiment.config.name}-advantage", "question": ATTACKED}
    document |= {"measures": [ADVANTAGE], "attack": GAME, "choose": {"at_most": {ADVANTAGE: maximum}}}
    return with_variants(document, path, variants)


def noisy(title: str, changes: dict[str, Any]) -> str:
    """Return the part of a candidate's name that precedes the post-processing."""
    return title.rpartition(", ")[0] if len(changes["mechanism"]) > 1 else title


def describe_cost(attack: Sweep) -> str:
    """Describe the number of people to attack and the expected duration."""
    grid, game = make_plan(attack.trials[0].config).grid, Game(**GAME)
    n_values = game.samples * GAME["targets"] * game.periods(grid.n_windows)[0][1] * grid.n_cells
    minutes = len(attack.trials) * n_values / VALUES_A_SECOND / 60
    return f"attack on {game.targets} people: about {minutes:.1f} minutes of one processor"


def event_size(experiment: Sweep) -> int:
    """Return the size of an injected event, which is `EVENT` times the smallest constant noise's standard deviation."""
    minimum = np.inf
    for config in {trial.values["variant"]: trial.config for trial in experiment.trials}.values():
        if isinstance(config.mechanism[0], PeriodUniform | WEventUniform):
            plan = make_plan(replace(config, accountants=()))
            step, windows = plan.config.mechanism[0], plan.grid.windows(1, plan.chain.bounding_windows)
            assert isinstance(step, BudgetSchedule)
            minimum = min(minimum, step.deviation(plan.chain.coarse(plan.facts()), windows))
    return max(1, round(EVENT * minimum))


def suggested_bounds(plan: Plan, n_windows: int, step: ChainStep) -> dict[str, int]:
    """Suggest values of ``bounding.max_per_period`` based on the first windows of a simulation, if the data allow it.

    The keys end in ``95`` and ``99``, percents of the memberships that it keeps, and, for `PeriodUniform`, in
    ``for_noise``: `quota_for_noise` under its noise.
    """
    free, grid = replace(plan.bounds, max_per_period=None), plan.grid
    is_bounded = not plan.on_points and plan.grid.calendar.n_windows is not None and plan.config.sensors == Sensors()
    if not is_bounded or plan.config.mode != "simulation":
        return {}
    people = plan.people.memberships(n_windows)
    kept = released_memberships(people, plan.chain, grid, free, plan.keys)
    period = grid.periods_of(kept.window) if len(kept) else kept.window
    suggested = {f"max_per_period_{100 * share:.0f}": quota_for_share(kept, period, share) for share in KEPT_SHARES}
    if isinstance(step, PeriodUniform):
        schedules = step.candidates

        def deviation(n: int) -> float:
            """Return the standard deviation of the noise if n memberships are allowed."""
            moved = Sensitivity(n, n)
            return min(float(s.family.standard_deviation(s.scale(s.budget, moved))) for s in schedules)

        n_counts = n_windows * plan.grid.n_cells
        suggested["max_per_period_for_noise"] = quota_for_noise(kept, period, n_counts, deviation)
    return suggested


def grids(config: RunConfig, n: int) -> Iterator[dict[str, int]]:
    """Yield the configuration changes for each grid, from the configured grid to the coarsest."""
    yield {}
    if isinstance(config.space, Grid):
        rows, columns = config.space.rows, config.space.columns
        for _ in range(n - 1):
            if rows == columns == 1:
                return
            rows, columns = -(-rows // 2), -(-columns // 2)
            yield {"space.rows": rows, "space.columns": columns}


def experiment_of(path: str | Path, overrides: Iterable[str], asked: ChoiceRequest, changes: dict[str, int]) -> Sweep:
    """Return the experiment that tries all candidates on a single grid."""
    config = load(path, overrides)
    if config.mode == "deployment":
        text = "mode: 'deployment' is not allowed; it must be simulation, for choosing looks at the exact counts"
        raise ConfigError((f"{path}: {text}",))
    if any(step.guarantee.on_points for step in config.mechanism):
        raise ConfigError((f"{path}: traces are not counted; choose is for counts",))
    asked = asked.of(config)
    w = n_windows(config, str(asked.protect))
    if w is None and not make_plan(replace(config, accountants=())).grid.aligns_with_days:
        expected = "a duration, or windows must divide a calendar day (outside UTC also the hour that clocks change by)"
        raise ParameterError("--protect", asked.protect, expected)
    root, _ = parse_section(read_text(path), str(path), "a run")
    for override in overrides:
        apply_override(root, override)
    no_days = daily_metrics_flaw(config.source, config.windows)
    daily = next((name for name in asked.measures if measure(name).daily), None)
    if no_days and daily:
        purpose = PURPOSES[asked.purpose]
        needs_days = daily in (purpose.prefer, *purpose.at_least, *purpose.at_most)
        raise ParameterError("--for" if needs_days else "measures", asked.purpose if needs_days else daily, no_days)
    usual = (name for name in MEASURES if not (no_days and measure(name).daily))
    set_first = {"landmarks": None, "budget_period": "1d" if w is None else None} | changes
    set_first |= {f"bounding.{key}": None for key in PERIOD_BOUND if getattr(config.bounding, key) is not None}
    document = {
        "name": f"choose-{config.name}",
        "question": f"Which mechanism has the smallest error here with {asked.question}?",
        "base": plain(root),
        "set": set_first,
        "seeds": asked.n_seeds,
        "measures": list(dict.fromkeys((*usual, *asked.measures))),
        "choose": asked.limits | {"prefer": asked.preferred},
    }
    steps = document["base"]["mechanism"]
    filters = [step for step in (steps if isinstance(steps, list) else [steps]) if step["type"] == "filter"]
    configured = next((step for step in filters if len(step) > 1), None)
    listed = document["base"].get("accountants") or []
    listed = listed if isinstance(listed, list) else [listed]

    def tried(bounds: Iterable[int] = ()) -> Sweep:
        """Return the experiment on all candidates, each with the accountants that have a theorem for it."""
        variants = candidates(w, asked, bounds, configured)
        for changes in variants.values():
            step = MECHANISMS.get(changes["mechanism"][0]["type"]).examples()[0]
            bounding = replace(config.bounding, max_per_period=changes.get("bounding.max_per_period"), pace=None)
            flaws = [check_accountant_support((step,), (entry,), bounding) for entry in config.accountants]
            kept = [one for one, wrong in zip(listed, flaws) if not any(wrong)]
            if len(kept) < len(listed):
                changes["accountants"] = kept or [{"type": "composition"}]
        return with_variants(document, path, variants)

    experiment = tried()
    if w is None:
        first = experiment.trials[0].config
        plan = make_plan(replace(first, accountants=(), bounding=replace(first.bounding, max_cells=None)))
        step = PeriodUniform(epsilon=asked.epsilon, delta=asked.delta or None)
        bounds = suggested_bounds(plan, plan.grid.calendar.n_windows or 0, step)
        experiment = tried(sorted(set(bounds.values())))
    return experiment


def with_variants(document: dict[str, Any], path: str | Path, variants: dict[str, Any]) -> Sweep:
    """Return an experiment document with variants added, its paths relative to the configuration's folder."""
    setting = SETTING.format(n=len(variants), file=Path(path).name)
    text = yaml.safe_dump(document | {"setting": setting, "variants": variants}, sort_keys=False, allow_unicode=True)
    return loads_experiment(text, str(path), Path(path).parent)


def n_windows(config: RunConfig, protect: str) -> int | None:
    """Return the number of windows (at least one) in the period to protect, or None for a calendar day.

    Raises `ParameterError` if it is no duration, or not a whole number of windows.
    """
    size = config.windows.size
    if protect == CALENDAR_DAY:
        return None
    if protect == "window":
        return 1
    try:
        duration = parse_duration(protect)
    except (ParameterError, ValueError):
        duration = 0
    if duration <= 0 or duration % size:
        expected = f"window, {CALENDAR_DAY}, or a duration that is a multiple of {format_duration(size)}"
        raise ParameterError("--protect", protect, expected)
    return duration // size


@dataclass(frozen=True)
class Choice:
    """The outcome of `choose`."""

    folder: Path  # where everything is
    ranking: pl.DataFrame  # every candidate on the last grid that was tried, best first: `frontier`'s columns
    choice: dict[str, Any]  # that of the experiment's manifest: limits, best, what binds, the nearest candidate
    tried: tuple[str, ...]  # the grids that were tried, in order
    failed: int  # trials that failed
    # releases that were attacked on the last grid: ``variant``, ``mean``, ``low``, ``high``, and whether they were
    # ``refused``; none without a limit on the advantage
    attacked: tuple[dict[str, Any], ...] = ()
    suffix: str = ""  # of the names of its files and folders: empty for a folder's first question
    problems: tuple[str, ...] = ()  # why trials failed, each once

    @property
    def best(self) -> Path:
        """The configuration file of the best candidate, which does not exist if no candidate meets all limits."""
        return self.folder / f"best{self.suffix}.yaml"

    @property
    def report(self) -> Path:
        """The report page for the last grid."""
        return self.folder / f"grid-{len(self.tried)}{self.suffix}" / "report.html"


def choose(
    path: str | Path,
    asked: ChoiceRequest,
    folder: str | Path | None = None,
    overrides: Iterable[str] = (),
    n_jobs: int = 1,
    begun: Callable[[str, int], None] = lambda what, n_trials: None,
    listener: Callable[[int, int, int], None] = lambda done, failed, n_read: None,
) -> Choice:
    """Rank all candidates on a configuration's data and write the best one as a configuration file.

    ``path``, ``overrides``: the configuration, whose mechanism is replaced. ``folder``: where to write an experiment's
    folder for each grid, ``choice.json`` and, if a candidate keeps all limits, ``best.yaml``; a second question leaves
    those and writes ``grid-1-2``, ``choice-2.json`` and ``best-2.yaml``, from trials kept for the first where they are
    the same. None: runs/choose/<name>. ``begun`` and ``listener`` are
    called before each experiment with what it is and its trials, and after every step. Raises `ConfigError` if the
    configuration is wrong or a deployment.
    """
    overrides = tuple(overrides)
    config = load(path, overrides)
    asked = asked.of(config)
    check_input(outline(config, NoiseKey.from_seed(0)))
    target = Path(folder or Path("runs") / "choose" / config.name)
    target.mkdir(parents=True, exist_ok=True)
    question, suffix, number = json.loads(json.dumps(asdict(asked))), "", 1
    # The files of a second question in the folder end in -2, of a third in -3.
    while (answer := target / f"choice{suffix}.json").is_file() and json.loads(answer.read_text(encoding="utf-8"))[
        "asked"
    ] != question:
        suffix, number = f"-{number + 1}", number + 1
    if not answer.is_file():  # of a choice that is broken off, too, the names are taken
        write_json(answer, {"asked": question})
    (target / f"best{suffix}.yaml").unlink(missing_ok=True)
    tried: list[str] = []
    for changes in grids(config, asked.n_grids):
        grid = "x".join(map(str, changes.values())) or "as configured"
        tried.append(grid)
        kept, outcome = target / f"grid-{len(tried)}", None
        grid_folder = target / f"{kept.name}{suffix}"
        experiment = experiment_of(path, overrides, asked, changes)
        variants = experiment.written["variants"]
        attacked: tuple[dict[str, Any], ...] = ()
        problems: list[str] = []
        size = event_size(experiment) if asked.purpose == "events" else 0  # of all, also of those refused below
        if asked.advantage is not None:
            attack = attack_on(experiment, path, asked.advantage)
            begun(f"grid {grid}, {describe_cost(attack)}", len(attack.trials))
            advantages = [of.with_name(f"{of.name}-advantage") for of in (grid_folder, kept)]
            result = run_experiment(attack, advantages[0], n_jobs, listener, advantages[1])
            problems += [failure["problem"] for failure in result.manifest["failed"]]
            attacked = _attack_results(attack, result.folder)
            refused = {one["variant"] for one in attacked if one["refused"]}
            variants = {title: one for title, one in variants.items() if noisy(title, one) not in refused}
            experiment = with_variants(experiment.written, path, variants) if variants else experiment
        if variants:
            if asked.purpose == "events":
                events = [f"event_{figure}_{size}" for figure in ("recall", "alarms", "error")]
                measures = [*experiment.written["measures"], *events]
                experiment = with_variants(experiment.written | {"measures": measures}, path, variants)
            begun(f"grid {grid}", len(experiment.trials))
            outcome = run_experiment(experiment, grid_folder, n_jobs, listener, kept)
            if asked.purpose == "events" and (best := outcome.manifest.get("choice", {}).get("best")):
                # What is nearly as accurate as the best is ranked by the injected events that it shows.
                least, limits = best["intervals"]["relative_mae"][1] or best["means"]["relative_mae"], asked.limits
                maximum = min(NEARLY_AS_GOOD * least, limits["at_most"].get("relative_mae", np.inf))
                at_most = limits["at_most"] | {"relative_mae": maximum}
                limited = {"choose": limits | {"at_most": at_most, "prefer": events[0]}}
                experiment = with_variants(experiment.written | limited, path, variants)
                outcome = run_experiment(experiment, grid_folder, n_jobs, kept=kept)
            problems += [failure["problem"] for failure in outcome.manifest["failed"]]
            if outcome.manifest.get("choice", {}).get("best"):
                (target / f"best{suffix}.yaml").write_bytes((grid_folder / "best.yaml").read_bytes())
                break
    ranking, choice = _rank(outcome, asked)
    written = {"grids": tried, "choice": choice, "failed": len(problems), "attacked": attacked, "asked": question}
    write_json(answer, written)
    return Choice(
        target, ranking, choice, tuple(tried), len(problems), attacked, suffix, tuple(dict.fromkeys(problems))
    )


def _frontier(folder: Path) -> pl.DataFrame:
    path = folder / "frontier.parquet"
    return pl.read_parquet(path) if path.is_file() else pl.DataFrame()


def _attack_results(attack: Sweep, folder: Path) -> tuple[dict[str, Any], ...]:
    """Return each attacked release's result, marked as refused if it or a failed trial disqualifies the release."""
    rows = {row["variant"]: row for row in _frontier(folder).iter_rows(named=True)}
    names = dict.fromkeys(trial.values["variant"] for trial in attack.trials)
    return tuple(
        {"variant": name}
        | {side: rows.get(name, {}).get(f"{side} {ADVANTAGE}") for side in ("mean", "low", "high")}
        | {"refused": not rows.get(name, {}).get("allowed", False)}
        for name in names
    )


def _rank(outcome: ExperimentResult | None, asked: ChoiceRequest) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Return the table of candidates, best first (empty if nothing was run), and the choice for the manifest."""
    if outcome is None:
        return pl.DataFrame(), {**asked.limits, "prefer": asked.preferred, "settings": 0, "best": None, "binding": None}
    choice, table = outcome.manifest.get("choice") or {}, _frontier(outcome.folder)
    if len(table):
        limits = Choose(**{name: choice[name] for name in ("at_least", "at_most", "prefer")})
        by = [pl.col("best"), pl.col("allowed"), pl.col(f"mean {limits.preferred}")]
        descending = [True, True, limits.is_higher_better(limits.preferred)]
        table = table.sort(by, descending=descending, nulls_last=True, maintain_order=True)
    return table, choice
