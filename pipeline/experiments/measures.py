"""Measures of a trial: utility metrics, accounts, shares of actions, and any function by name."""

from __future__ import annotations

import importlib
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.core.accountant import ACCOUNTANTS, AccountRow
from penstock.accountants.core.charges import pure_epsilon
from penstock.evaluation.attacks.defenses import random_guess
from penstock.evaluation.attacks.recovery import Recovery
from penstock.evaluation.metrics import Metric
from penstock.evaluation.utility import METRICS
from penstock.mechanisms.core.concentrated import epsilon_of
from penstock.mechanisms.core.contract import Release
from penstock.mechanisms.core.events import Block
from penstock.mechanisms.core.geometry import distance
from penstock.mechanisms.core.plugin import DataError, ParameterError, nearest
from penstock.mechanisms.core.run import ReleasedTraces
from penstock.mechanisms.core.schedules import DELTA, BudgetSchedule
from penstock.mechanisms.core.traces import Traces
from penstock.pipeline.config.plan import Plan
from penstock.pipeline.experiments.attacks.measures import (
    GAIN,
    RECOVERY,
    RECOVERY_FIGURES,
    Attacked,
    attack_and_figure,
    recovered,
    recovery_figure,
)
from penstock.pipeline.experiments.attacks.membership import Game
from penstock.pipeline.output.worth import interval_coverage

SUMMARIES: dict[str, Callable[[NDArray[np.float64]], float]] = {
    "max": lambda values: float(values.max()),
    "min": lambda values: float(values.min()),
    "mean": lambda values: float(values.mean()),
}


@dataclass(frozen=True)
class TrialRun:
    """A finished trial, from which its measures are computed.

    Parameters
    ----------
    plan
        The run.
    true_counts, values
        True counts before bounding and released values, shape (n_windows, n_cells); both 0 where nothing was released.
    releases
        In order of window.
    accounts
        Rows of every accountant by its name.
    seed
        Of the trial; attacks derive theirs from it.
    deviations
        Standard deviations of the released values, of their shape; NaN where none is stated.
    n_people
        Size of the random group; None: everybody is counted.
    game
        What attacks on membership play.
    """

    plan: Plan
    true_counts: NDArray[np.float64]
    values: NDArray[np.float64]
    releases: Sequence[Release]
    accounts: Mapping[str, Sequence[AccountRow]]
    seed: int
    deviations: NDArray[np.float64] = field(default_factory=lambda: np.full((1, 1), np.nan))
    n_people: int | None = None
    game: Game = field(default_factory=Game)

    @cached_property
    def days(self) -> NDArray[np.datetime64]:
        """Local date of each released window; NaT unless all of the date's windows were released."""
        return self.plan.calendar.whole_days(np.array([release.window for release in self.releases], np.int64))

    @cached_property
    def attacked(self) -> Attacked:
        """Attacks on membership in what it releases."""
        return Attacked(self.plan, self.game)

    @cached_property
    def recovered(self) -> Recovery:
        """Trajectories recovered from what it releases."""
        return recovered(self.plan, self.values, [release.window for release in self.releases], self.seed)

    @property
    def truth(self) -> NDArray[np.float64]:
        """`true_counts` as earlier versions had them, (n_cells, n_windows)."""
        return _as_before("truth", "true_counts", self.true_counts)

    @property
    def released(self) -> NDArray[np.float64]:
        """`values` as earlier versions had them, (n_cells, n_windows)."""
        return _as_before("released", "values", self.values)

    @property
    def deviation(self) -> NDArray[np.float64]:
        """`deviations` as earlier versions had them, (n_cells, n_windows)."""
        return _as_before("deviation", "deviations", self.deviations)


def _as_before(old: str, new: str, array: NDArray[np.float64]) -> NDArray[np.float64]:
    text = f"{old} is (n_cells, n_windows), as in earlier versions; take {new}, which is (n_windows, n_cells)"
    warnings.warn(text, FutureWarning, stacklevel=3)
    return array.T


@dataclass(frozen=True)
class TraceRun:
    """A finished trial on traces, from which its measures are computed.

    Parameters
    ----------
    plan
        The run.
    traces, released
        True points, in the area, and what was released of each.
    accounts, seed
        As in `TrialRun`.
    """

    plan: Plan
    traces: Traces
    released: ReleasedTraces
    accounts: Mapping[str, Sequence[AccountRow]]
    seed: int

    @property
    def errors(self) -> NDArray[np.float64]:
        """Metres between each true point and what was released of it."""
        return distance(self.traces.points, self.released.values)


#: A finished trial.
Finished = TrialRun | TraceRun


@dataclass(frozen=True)
class Measure:
    """One number of a finished trial."""

    name: str  # its name in the experiment's file
    compute: Callable[[Finished], float]  # finished trial → the number
    unit: str | None = ""  # "" for a pure number; None: the unit of the account rows
    higher_is_better: bool | None = None  # None where it is unknown
    accountant: str | None = None  # the accountant that the trial's configuration must have
    # the least and the largest value there can be, where both are finite and known beforehand
    limits: tuple[float, float] | None = None
    daily: bool = False  # whether it is of the totals of days, which windows must add up to

    @property
    def is_function(self) -> bool:
        """Whether it is ``module:function``, which may read everything of a trial."""
        return ":" in self.name


#: Limits of figures of these units.
SHARE = (0.0, 1.0)
LIMITS = {"probability": SHARE, "share": SHARE, "area under the curve": SHARE}


def _of_counts(run: Finished) -> TrialRun:
    if isinstance(run, TraceRun):
        raise DataError("traces have the measures mae, share_…, epsilon_stated, accountant/name and module:function")
    return run


def _worth(metric: Metric, run: Finished) -> float:
    if isinstance(run, TraceRun) and metric.name == "mae":
        return float(run.errors.mean())
    counted = _of_counts(run)
    return _score(metric, counted, counted.values)


def _worth_of_guess(metric: Metric, run: Finished) -> float:
    """A metric of a random guess: the baseline that any mechanism must beat."""
    counted = _of_counts(run)
    return _score(metric, counted, random_guess(counted.true_counts, counted.seed, counted.n_people))


def _score(metric: Metric, run: TrialRun, values: NDArray[np.float64]) -> float:
    if not metric.daily:
        return metric.mean(run.true_counts, values)
    if np.isnat(run.days).all():
        raise DataError(f"measure {metric.name}: no calendar day ({run.plan.time_zone}) is released as a whole")
    return metric.mean(run.true_counts, values, days=run.days)


def _of_intervals(name: str, run: Finished) -> float:
    """A figure of the stated 95 % intervals; NaN where none is stated."""
    counted = _of_counts(run)
    return interval_coverage(counted.true_counts, counted.values, counted.deviations).get(name, math.nan)


def _share(action: str, run: Finished) -> float:
    if isinstance(run, TraceRun):
        return float((run.released.action == action).mean())
    return float(np.mean([release.action == action for release in run.releases]))


def _share_of_landmarks(run: Finished) -> float:
    if isinstance(run, TraceRun):
        return float(run.traces.landmarks.mean())
    return float(np.mean([release.landmark for release in run.releases]))


def _epsilon(run: Finished) -> float:
    return float(sum(pure_epsilon(release.charge) for release in _of_counts(run).releases))


def _epsilon_in(n_windows: int, finished: Finished) -> float:
    """The largest ε spent in that many successive windows: a realised w-event sum without an accountant."""
    run = _of_counts(finished)
    if any(isinstance(event, Block) for release in run.releases for event in release.charge):
        text = "charges of blocks have no place in single windows; use composition"
        raise DataError(f"measure epsilon_in_{n_windows}: {text}")
    spent = np.zeros(run.releases[-1].window)
    for release in run.releases:
        spent[release.window - 1] = pure_epsilon(release.charge)
    return float(np.convolve(spent, np.ones(min(n_windows, len(spent))), "valid").max())


def _epsilon_stated(run: Finished) -> float:
    """The ε that a schedule guarantees for its own unit, independent of what this run spent."""
    schedules = [step for step in run.plan.config.mechanism if isinstance(step, BudgetSchedule)]
    if len(schedules) != 1:
        raise DataError("measure epsilon_stated: needs a landmark or w-event mechanism; use accountant/name")
    [one] = schedules
    return epsilon_of(one.budget, one.delta or DELTA) if one.concentrated else one.budget


def _figure(accountant: str, name: str, summary: str | None, run: Finished) -> float:
    """An account value: a summary over all windows and subjects, or the largest of the last window."""
    rows = [row for row in run.accounts[accountant] if row.name == name]
    if not rows:
        known = ", ".join(sorted({row.name for row in run.accounts[accountant]})) or "none"
        text = f"{accountant}/{name}" + (f"/{summary}" if summary else "")
        raise DataError(f"measure {text}: the accountant gave no such figure; it gave {known}")
    if summary:
        return SUMMARIES[summary](np.array([row.value for row in rows], np.float64))
    last = max(math.inf if row.window is None else row.window for row in rows)
    final = [row.value for row in rows if (math.inf if row.window is None else row.window) == last]
    return float(max(final))


def _attacked(attack: str, figure: str, run: Finished) -> float:
    return _of_counts(run).attacked.figure(attack, figure)


def _recovered(figure: str, run: Finished) -> float:
    counted = _of_counts(run)
    return recovery_figure(counted.recovered, figure, counted.plan)


def _called(function: Callable[[Finished], Any], run: Finished) -> float:
    return float(function(run))


def _of_metric(name: str, compute: Callable[[Metric, Finished], float], metric: Metric) -> Measure:
    better = metric.higher_is_better
    return Measure(name, partial(compute, metric), metric.unit, better, limits=metric.bounds, daily=metric.daily)


#: Measures by short name; others are ``epsilon_in_N``, ``accountant/name`` or ``module:function``.
MEASURES: dict[str, Measure] = {
    one.name: one
    for one in (
        *(_of_metric(name, _worth, metric) for name, metric in METRICS.items()),
        *(_of_metric(f"guess_{name}", _worth_of_guess, metric) for name, metric in METRICS.items()),
        *(
            Measure(f"share_{action}", partial(_share, action), limits=SHARE)
            for action in ("published", "repeated", "suppressed", "refused")
        ),
        Measure("coverage", partial(_of_intervals, "coverage"), limits=SHARE),
        Measure("interval_width", partial(_of_intervals, "interval_width"), "people", higher_is_better=False),
        Measure("interval_score", partial(_of_intervals, "interval_score"), "people", higher_is_better=False),
        Measure("share_landmarks", _share_of_landmarks, limits=SHARE),
        Measure("epsilon_stated", _epsilon_stated, "nats", higher_is_better=False),
        Measure("epsilon_sum", _epsilon, "nats", higher_is_better=False),
    )
}

_SPENT_IN = re.compile(r"epsilon_in_([1-9]\d{0,6})")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def measure(text: str) -> Measure:
    """The measure of a given name.

    Parameters
    ----------
    text
        A name out of `MEASURES`; ``epsilon_in_24``: the most spent in any 24 successive windows; ``accountant/name``:
        the figure of the whole run, else that of its last window, of several subjects the largest;
        ``accountant/name/max`` (or min, mean): over all windows and subjects; ``attack/lira/auc``: an attack on
        membership, or ``attack/recovery/accuracy`` on trajectories (`attacks.measures`);
        ``module:function``: a function of a `TrialRun`, or on traces of a `TraceRun`.

    Raises
    ------
    ParameterError
        If there is no such measure.

    Examples
    --------
    >>> measure("mae").unit, measure("landmark_budget/period_loss/max").accountant
    ('people', 'landmark_budget')
    >>> measure("mea")
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.ParameterError: measures: 'mea' is not allowed; ...
    """
    if text in MEASURES:
        return MEASURES[text]
    if spent_in := _SPENT_IN.fullmatch(text):
        return Measure(text, partial(_epsilon_in, int(spent_in[1])), "nats", higher_is_better=False)
    if text.startswith("attack/"):
        attack, figure = attack_and_figure(text)
        if attack == RECOVERY:
            unit, safer = RECOVERY_FIGURES[figure], {"baseline": None, "distance": True}.get(figure, False)
            limits = SHARE if figure in ("accuracy", "baseline") else None
            return Measure(text, partial(_recovered, figure), unit, higher_is_better=safer, limits=limits)
        return Measure(text, partial(_attacked, attack, figure), "", higher_is_better=figure == GAIN, limits=SHARE)
    if "/" in text:
        return _account(text)
    if _FUNCTION.fullmatch(text):
        return Measure(text, partial(_called, _function(text)))
    near = nearest(text, MEASURES)
    hint = f" (did you mean {near!r}?)" if near else ""
    right = (
        f"one of {', '.join(MEASURES)}; or epsilon_in_24, accountant/name, attack/name/figure or module:function{hint}"
    )
    raise ParameterError("measures", text, right)


def _function(text: str) -> Callable[[Finished], Any]:
    module, _, name = text.partition(":")
    try:
        found: Callable[[Finished], Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ParameterError("measures", text, f"a function that can be imported ({error})") from None
    if not callable(found):
        raise ParameterError("measures", text, "a function")
    return found


def _account(text: str) -> Measure:
    accountant, name, *summary = text.split("/")
    if accountant not in ACCOUNTANTS.names():
        right = f"accountant/name, the accountant out of {', '.join(ACCOUNTANTS.names())}"
        raise ParameterError("measures", text, right)
    if not name or len(summary) > 1 or (summary and summary[0] not in SUMMARIES):
        raise ParameterError("measures", text, "accountant/name or accountant/name/max (or min, mean)")
    compute = partial(_figure, accountant, name, summary[0] if summary else None)
    return Measure(text, compute, None, accountant=accountant)


def unit_of(one: Measure, run: Finished) -> str:
    """Unit of a measure, where necessary that of the account rows."""
    if one.name == "mae" and isinstance(run, TraceRun):
        return "metres"
    if one.unit is not None or one.accountant is None:
        return one.unit or ""
    name = one.name.split("/")[1]
    return next((row.unit for row in run.accounts[one.accountant] if row.name == name), "")
