"""Metrics of a trial (``measures``): utility metrics, account values, fractions of actions, and any named function."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.core.accountant import ACCOUNTANTS
from penstock.accountants.core.charges import pure_epsilon
from penstock.evaluation.attacks.defenses import random_guess
from penstock.evaluation.attacks.membership import ADVANTAGE, GAIN, RECOVERY, RECOVERY_FIGURES, attack_and_figure
from penstock.evaluation.attacks.parameters import Game
from penstock.evaluation.metrics import Metric
from penstock.evaluation.utility import metric_called, metric_names
from penstock.mechanisms.core.concentrated import epsilon_at
from penstock.mechanisms.core.contract import ACTIONS
from penstock.mechanisms.core.events import Block
from penstock.mechanisms.core.geometry import distance
from penstock.mechanisms.core.guarantee import DELTA
from penstock.mechanisms.core.plugin import DataError, ParameterError, nearest
from penstock.mechanisms.core.schedules import BudgetSchedule
from penstock.pipeline.config.canonical import digest
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.experiments.attack import positions_of
from penstock.pipeline.experiments.pieces import Record
from penstock.pipeline.experiments.trial import People, Trial, run_trial
from penstock.pipeline.output.manifest import versions
from penstock.pipeline.output.utility_summary import interval_coverage
from penstock.pipeline.releasing.account import writable

SUMMARIES: dict[str, Callable[[NDArray[np.float64]], Any]] = {"max": np.max, "min": np.min, "mean": np.mean}


@dataclass(frozen=True)
class TrialMeasure:
    """A metric of a completed trial."""

    name: str  # its name in the experiment's file
    compute: Callable[[Trial], float]
    unit: str | None = ""  # "" for a pure number; None: the unit of the account rows
    higher_is_better: bool | None = None  # None if it is unknown
    accountant: str | None = None  # the accountant that the trial's configuration must have
    # the least and the largest value there can be, where both are finite and known beforehand
    limits: tuple[float, float] | None = None
    daily: bool = False  # whether it is of the totals of days, which windows must add up to


#: Limits of figures of these units.
SHARE = (0.0, 1.0)
LIMITS = {"probability": SHARE, "share": SHARE, "area under the curve": SHARE}


def _require_counts(trial: Trial) -> Trial:
    if trial.view == "points":
        raise DataError("traces have the measures mae, share_…, epsilon_stated, accountant/name and module:function")
    return trial


def _utility(metric: Metric, is_guess: bool, trial: Trial) -> float:
    """Return a utility metric of the release or of a random guess."""
    if trial.view == "points" and metric.name == "mae" and not is_guess:
        return float(distance(trial.truth, trial.released).mean())
    truth, values = _require_counts(trial).truth, trial.released
    if is_guess:
        values = random_guess(truth, trial.seed, trial.group_size)
    if not metric.daily:
        return metric.mean(truth, values)
    if np.isnat(trial.days).all():
        zone = trial.plan.config.windows.time_zone
        raise DataError(f"measure {metric.name}: no calendar day ({zone}) is released as a whole")
    return metric.mean(truth, values, days=trial.days)


def _of_intervals(name: str, trial: Trial) -> float:
    """Return a score of the 95 % intervals published with the release, or NaN if there are none."""
    figures = interval_coverage(_require_counts(trial).truth, trial.released, trial.deviations)
    return figures.get(name, math.nan)


def _epsilon_in(n_windows: int, trial: Trial) -> float:
    """Return the largest ε spent in any ``n_windows`` consecutive windows. This w-event sum requires no accountant."""
    charges = _require_counts(trial).charges
    if any(isinstance(event, Block) for charge in charges for event in charge):
        text = "charges of blocks have no place in single windows; use composition"
        raise DataError(f"measure epsilon_in_{n_windows}: {text}")
    spent = np.zeros(trial.windows[-1])
    spent[trial.windows - 1] = [pure_epsilon(charge) for charge in charges]
    return float(np.convolve(spent, np.ones(min(n_windows, len(spent))), "valid").max())


def _epsilon_stated(trial: Trial) -> float:
    """Return the ε that a schedule guarantees for its unit, whatever happens during the run."""
    schedules = [step for step in trial.plan.config.mechanism if isinstance(step, BudgetSchedule)]
    if len(schedules) != 1:
        raise DataError("measure epsilon_stated: needs a landmark or w-event mechanism; use accountant/name")
    [schedule] = schedules
    return epsilon_at(schedule.family.measure, schedule.budget, schedule.delta or DELTA)


def _figure(accountant: str, name: str, summary: str | None, trial: Trial) -> float:
    """Return an account value, either summarised over all windows and subjects or as the largest in the last window."""
    rows = [row for row in trial.accounts[accountant] if row.name == name]
    if not rows:
        known = ", ".join(sorted({row.name for row in trial.accounts[accountant]})) or "none"
        text = f"{accountant}/{name}" + (f"/{summary}" if summary else "")
        raise DataError(f"measure {text}: the accountant gave no such figure; it gave {known}")
    if summary:
        return float(SUMMARIES[summary](np.array([row.value for row in rows], np.float64)))
    last = max(math.inf if row.window is None else row.window for row in rows)
    return float(max(row.value for row in rows if (math.inf if row.window is None else row.window) == last))


def _attack_figure(attack: str, figure: str, trial: Trial) -> float:
    if attack == RECOVERY:
        return recovery_figure(_require_counts(trial), figure)
    return _require_counts(trial).attacked.figure(attack, figure)


def recovery_figure(trial: Trial, figure: str) -> float:
    """Return one of the values in `RECOVERY_FIGURES`. Distances require cells with coordinates."""
    if figure == "distance" and positions_of(trial.plan.space) is None:
        expected = "one whose cells have a place, for attack/recovery/distance"
        raise ParameterError("space", type(trial.plan.space).__name__.lower(), expected)
    recovery = trial.recovered
    return float(getattr(recovery if figure in ("baseline", "gain") else recovery.recovered, figure))


def _share_of(action: str) -> TrialMeasure:
    return TrialMeasure(f"share_{action}", lambda trial: float((trial.actions == action).mean()), limits=SHARE)


#: Measures by short name; others are metrics, ``epsilon_in_N``, ``accountant/name`` or ``module:function``.
MEASURES: dict[str, TrialMeasure] = {
    one.name: one
    for one in (
        *map(_share_of, ACTIONS),
        TrialMeasure("coverage", partial(_of_intervals, "coverage"), limits=SHARE),
        TrialMeasure("interval_width", partial(_of_intervals, "interval_width"), "people", higher_is_better=False),
        TrialMeasure("interval_score", partial(_of_intervals, "interval_score"), "people", higher_is_better=False),
        TrialMeasure("share_landmarks", lambda trial: float(trial.landmarks.mean()), limits=SHARE),
        TrialMeasure("epsilon_stated", _epsilon_stated, "nats", higher_is_better=False),
        TrialMeasure(
            *("epsilon_sum", lambda trial: float(sum(map(pure_epsilon, _require_counts(trial).charges))), "nats"),
            higher_is_better=False,
        ),
    )
}

_EVENT = re.compile(r"event_(recall|alarms|error)_([1-9]\d{0,6})")
_SPENT_IN = re.compile(r"epsilon_in_([1-9]\d{0,6})")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def measure(text: str) -> TrialMeasure:
    """Return the metric with a given name. Raises `ParameterError` if it does not exist.

    It is a metric, or ``guess_`` and a metric; a name out of `MEASURES`; ``epsilon_in_24``: the most spent in any 24
    successive windows; ``event_recall_200`` (``alarms``, ``error``): injected events of 200 people that are shown (with
    an alarm; their error); ``accountant/name``: the figure of the whole run, else that of its last window, of several
    subjects the largest; ``accountant/name/max`` (or min, mean): over all windows and subjects; ``attack/lira/auc``: an
    attack on membership, or ``attack/recovery/accuracy`` on trajectories; ``module:function``: a function of a `Trial`.

    >>> measure("mae").unit, measure("landmark_budget/period_loss/max").accountant
    ('people', 'landmark_budget')
    >>> measure("mea")
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.ParameterError: measures: 'mea' is not allowed; ...
    """
    if text in MEASURES:
        return MEASURES[text]
    is_guess = text.startswith("guess_")  # the baseline that any mechanism must beat
    if metric := metric_called(text.removeprefix("guess_") if is_guess else text):
        compute = partial(_utility, metric, is_guess)
        return TrialMeasure(
            text, compute, metric.unit, metric.higher_is_better, limits=metric.bounds, daily=metric.daily
        )
    better: bool | None
    limits: tuple[float, float] | None
    if spent_in := _SPENT_IN.fullmatch(text):
        return TrialMeasure(text, partial(_epsilon_in, int(spent_in[1])), "nats", higher_is_better=False)
    if of_events := _EVENT.fullmatch(text):
        figure, size = of_events[1], int(of_events[2])
        better, limits = (False, None) if figure == "error" else (True, SHARE)
        return TrialMeasure(
            *(text, lambda trial: float(getattr(_require_counts(trial).with_events(size), figure)), "", better),
            limits=limits,
        )
    if text.startswith("attack/"):
        attack, figure = attack_and_figure(text)
        unit, better, limits = "", figure == GAIN, (-1.0, 1.0) if figure == ADVANTAGE else SHARE
        if attack == RECOVERY:
            unit, better = RECOVERY_FIGURES[figure], {"baseline": None, "distance": True}.get(figure, False)
            limits = SHARE if figure in ("accuracy", "baseline") else None
        return TrialMeasure(text, partial(_attack_figure, attack, figure), unit, better, limits=limits)
    if "/" in text:
        return _account(text)
    if _FUNCTION.fullmatch(text):
        module, _, name = text.partition(":")
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            expected = f"a function that can be imported ({error}); PYTHONPATH=. finds modules of this folder"
            raise ParameterError("measures", text, expected) from None
        if not callable(function):
            raise ParameterError("measures", text, "a function")
        return TrialMeasure(text, lambda trial: float(function(trial)))
    names = (*metric_names(), *MEASURES)
    near = nearest(text, names)
    hint = f" (did you mean {near!r}?)" if near else ""
    other = "epsilon_in_24, event_recall_200, accountant/name, attack/name/figure or module:function"
    expected = f"one of {', '.join(names)}; or {other}{hint}"
    raise ParameterError("measures", text, expected)


def _account(text: str) -> TrialMeasure:
    accountant, name, *summary = text.split("/")
    if accountant not in ACCOUNTANTS.names():
        expected = f"accountant/name, the accountant out of {', '.join(ACCOUNTANTS.names())}"
        raise ParameterError("measures", text, expected)
    if not name or len(summary) > 1 or (summary and summary[0] not in SUMMARIES):
        raise ParameterError("measures", text, "accountant/name or accountant/name/max (or min, mean)")
    compute = partial(_figure, accountant, name, summary[0] if summary else None)
    return TrialMeasure(text, compute, None, accountant=accountant)


def unit_of(measure: TrialMeasure, trial: Trial) -> str:
    """Return a metric's unit, looking it up in the account rows if necessary."""
    if measure.name == "mae" and trial.view == "points":
        return "metres"
    if measure.unit is not None or measure.accountant is None:
        return measure.unit or ""
    name = measure.name.split("/")[1]
    return next((row.unit for row in trial.accounts[measure.accountant] if row.name == name), "")


def trial_record(
    config: RunConfig,
    people: People,
    names: Sequence[str],
    group_size: int | None = None,
    game: Game | None = None,
) -> Record:
    """Return all metrics of a trial with their units and provenance, ready to be stored as JSON."""
    wanted = [measure(name) for name in names]
    # Accounts cost more than releases; only a function may read some that no measure names.
    read = None if any(":" in name for name in names) else {one.accountant for one in wanted if one.accountant}
    trial = run_trial(config, people, read, group_size, game)
    return {
        "measures": [
            {"measure": name, "value": writable(one.compute(trial)), "unit": unit_of(one, trial)}
            for name, one in zip(names, wanted)
        ],
        "configuration": digest(config).hex(),
        "seed": config.seed,
        "versions": versions(),
    }
