"""Budget of a ledger: what any one person's events may cost in all runs over one event source."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.core.charges import concentrated_rho, pure_epsilon
from penstock.accountants.landmark_budget import ROUNDING, counts_as_landmark
from penstock.mechanisms.core.contract import Window
from penstock.mechanisms.core.events import Block, Event
from penstock.mechanisms.core.plugin import BudgetExceeded, ConfigError
from penstock.pipeline.config.canonical import resolved
from penstock.pipeline.config.kinds import format_duration
from penstock.pipeline.counting.spec import STREAM
from penstock.pipeline.releasing.release import Charge, ReleaseLoop
from penstock.pipeline.windows.calendar import CLOCK_CHANGE, DAY, Calendar, format_time, wall_time
from penstock.pipeline.windows.grid import period_calendar
from penstock.pipeline.windows.landmarks import Landmarks

if TYPE_CHECKING:
    from penstock.pipeline.config.plan import Plan


#: What makes two sources of files or of topics the same one.
_PLACES = ("type", "path", "brokers", "topic")
_TIMES = ("from", "until", "block_rows")

#: Stands for the end of an endless run, in milliseconds since 1970: the year 9999.
ENDLESS = 253_370_764_800_000

#: Windows that are looked through at a time for landmarks.
_PIECE = 100_000

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


class LedgerExhausted(BudgetExceeded):
    """A release would spend more than the ledger of its event source has left; nothing was charged or released."""

    def __str__(self) -> str:
        return f"{super().__str__()} of the ledger, which all runs over its event source share"


@dataclass(frozen=True, kw_only=True)
class LandmarkWindows:
    """The landmark windows of a ledger's first configuration, at any time.

    So it is known of every window of every run whether it shares time with one, whoever has charged so far.

    Parameters
    ----------
    times, recurring
        As in `Landmarks`; listed windows as ranges of time.
    step, anchor, time_zone
        The windows, as in `Calendar`.

    Examples
    --------
    >>> hour = 3_600_000
    >>> LandmarkWindows(times=(), recurring=("07:15-08:15",), step=hour, anchor=0, time_zone="UTC").within(0, 8 * hour)
    array([[25200000., 28800000.]])
    """

    times: tuple[str, ...]
    recurring: tuple[str, ...]
    step: int
    anchor: int
    time_zone: str

    @classmethod
    def of(cls, calendar: Calendar, landmarks: Landmarks | None) -> LandmarkWindows:
        """Those of a run."""
        landmarks = landmarks or Landmarks()
        listed = [f"{format_time(calendar.start(n))}/{format_time(calendar.end(n))}" for n in landmarks.windows]
        times = (*landmarks.times, *listed)
        zone = calendar.time_zone
        return cls(
            times=times, recurring=landmarks.recurring, step=calendar.step, anchor=calendar.anchor, time_zone=zone
        )

    def within(self, begin: float, end: float) -> Floats:
        """Starts and ends of those that share time with [begin, end), in order; shape (n, 2)."""
        landmarks = Landmarks(times=self.times, recurring=self.recurring)
        found = [np.zeros((0, 2))]
        for start in range(int(begin), int(end), piece := self.step * _PIECE):  # however many other windows there are
            until = min(start + piece, int(end))
            calendar = Calendar(
                step=self.step, anchor=self.anchor, time_zone=self.time_zone, from_ms=start, until_ms=until
            )
            last = calendar.n_windows or 0
            mask = landmarks.mask(calendar, 1, last)
            found.append(np.stack([calendar.starts(1, last)[mask], calendar.ends(1, last)[mask]], axis=1))
        return np.unique(np.concatenate(found), axis=0)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a ledger is about, as its first entry states it.

    Parameters
    ----------
    source
        Name of the event source, or a digest of where its events come from.
    unit
        What the budget protects, in words.
    adjacency
        Which two inputs are compared.
    measure
        ``epsilon`` or ``rho``: which figure of a charge counts.
    budget
        Most that the unit may cost; infinite: nothing is enforced.
    span
        Length of the protected stretch of time in milliseconds, which begins where a charged window begins; 0 for
        traces, of which each run counts with what its mechanism promises, in every budget period that it meets.
    landmarks
        Whether all landmarks of a period belong to the unit, beside one stretch.
    period, period_begin, time_zone
        Budget periods of such a unit in milliseconds, from when on, and the zone of their days; None: all time is one.
    landmark_windows
        Which windows these landmarks are; None: those that were charged as such, in a ledger of an earlier version.
    person
        Column of the input that says who was there; empty: the one that the source finds. None: not stated, or the
        source has none.
    """

    source: str
    unit: str
    adjacency: str
    measure: str
    budget: float
    span: int
    landmarks: bool = False
    period: int | None = None
    period_begin: int = 0
    time_zone: str = "UTC"
    landmark_windows: LandmarkWindows | None = None
    person: str | None = None

    def entry(self) -> dict[str, Any]:
        """The entry of a ledger that states them."""
        return {"entry": "terms", **asdict(self)}

    @classmethod
    def of_entry(cls, entry: Mapping[str, Any]) -> Terms:
        """The terms that an entry states."""
        values = {name: value for name, value in entry.items() if name != "entry"}
        if values.get("landmark_windows") is not None:
            found = dict(values["landmark_windows"])
            lists = {name: tuple(found[name]) for name in ("times", "recurring")}
            values["landmark_windows"] = LandmarkWindows(**found | lists)
        return cls(**values)

    def cost(self, charge: Charge) -> float:
        """What a charge counts for where the whole window is in the unit, or wherever it says so itself."""
        return self._factor(charge) * self._figure(charge)

    def more_in_part(self, charge: Charge) -> float:
        """What it counts for in addition where only a part of the window is in the unit."""
        # The person's other events stay, and bounding may keep another of them: a replacement.
        return (self._of_replacement(charge) - self._factor(charge)) * self._figure(charge)

    def _factor(self, charge: Charge) -> float:
        is_old = not charge.run and charge.window_end - charge.window_start > self.span
        return self._of_replacement(charge) if is_old or charge.factor > 1 else 1.0

    def _of_replacement(self, charge: Charge) -> float:
        # A pure ε doubles, and with it a ρ of ε²/2 quadruples; that of Gaussian noise doubles (`charges.replaced`).
        return 4.0 if self.measure == "rho" and math.isfinite(charge.epsilon) else 2.0

    def _figure(self, charge: Charge) -> float:
        return charge.epsilon if self.measure == "epsilon" else charge.rho

    def periods(self, times: Floats) -> Floats:
        """Number of the budget period that each instant is in; those before the first one are 0."""
        if self._calendar is None:
            return np.zeros(len(times))
        return self._calendar.index(times.astype(np.int64)).astype(np.float64)

    def bounds(self, period: float) -> tuple[float, float]:
        """Where a budget period begins and ends."""
        if self._calendar is None:
            return -math.inf, math.inf
        return self._calendar.start(int(period)) if period else -math.inf, self._calendar.start(int(period) + 1)

    @cached_property
    def _calendar(self) -> Calendar | None:
        if self.period is None:
            return None
        begun = period_calendar(self.period, self.period_begin, self.time_zone)
        return replace(begun, from_ms=begun.start(1))  # all of the first day, of which its first run may have a part


def terms_of(plan: Plan) -> Terms:
    """The terms that a ledger gets from the first deployment that uses it.

    Unless the configuration states a budget and a span, they are what one run promises by itself: ε of a landmark
    mechanism in a budget period, of a w-event mechanism in w windows, of any other in what one event touches.
    """
    output, adjacency = plan.config.output, "add or remove one user's events in the unit"
    if plan.on_points:
        mechanism = plan.traces.mechanism
        guarantee = mechanism.stated_guarantee
        w, has_periods = getattr(mechanism, "w", None), mechanism.landmark_budget is not None
        length = (
            (format_duration(plan.config.budget_period) if plan.config.budget_period else "all time")
            if has_periods
            else None
        )
        sizes = "".join(f" ({name} = {size})" for name, size in (("w", w), ("period", length)) if size)
        return Terms(
            source=source_name(plan),
            unit=f"traces: {guarantee.unit}{sizes}, of positions {mechanism.metres:g} m apart",
            adjacency=guarantee.neighbours,
            measure="rho" if mechanism.concentrated else "epsilon",
            budget=promise(plan) if output.ledger_budget is None else output.ledger_budget,
            span=0,
            period=plan.config.budget_period if has_periods else None,
            period_begin=plan.grid.calendar.start(1),
            time_zone=plan.config.windows.time_zone,
        )
    kept = ReleaseLoop(plan).model
    step, landmarks = plan.grid.calendar.step, np.isfinite(kept.amount)
    reader, together = plan.chain.reader, plan.chain.together
    w = getattr(reader, "w", None)
    measure, n_steps = "epsilon", 1
    if landmarks:
        measure, budget = "rho" if kept.concentrated else "epsilon", kept.amount
    elif (period_budget := plan.chain.reader.period_budget) is not None:
        # A stretch as long as a period may meet two of them.
        span_ms = plan.config.budget_period or (plan.grid.calendar.until_ms or ENDLESS) - (
            plan.grid.calendar.from_ms or 0
        )
        n_steps = -(-span_ms // step)
        measure = "rho" if getattr(reader, "concentrated", False) else "epsilon"
        budget = (
            period_budget * (2 if plan.config.budget_period else 1) if plan.period_bound is None else own_promise(plan)
        )
    elif w is not None:
        n_steps = w * together
        measure = "rho" if getattr(reader, "concentrated", False) else "epsilon"
        budget = float(getattr(reader, "budget", np.inf))
    else:
        measure, budget = _of_one_event(plan)
    span = output.ledger_span or n_steps * step
    by_clock = (
        f" by the clock of {plan.config.windows.time_zone}"
        if step % DAY == 0 and plan.config.windows.time_zone != "UTC"
        else ""
    )
    unit = f"one user's events in {format_duration(span)}{by_clock} from the start of any charged window"
    if landmarks:
        within = (
            f"a period of {format_duration(plan.config.budget_period)}" if plan.config.budget_period else "all time"
        )
        unit += f", and in all landmarks of {within}"
    return Terms(
        source=source_name(plan),
        unit=unit,
        adjacency=adjacency,
        measure=measure,
        budget=budget if output.ledger_budget is None else output.ledger_budget,
        span=span,
        landmarks=bool(landmarks),
        period=plan.config.budget_period if landmarks else None,
        period_begin=plan.grid.calendar.start(1),
        time_zone=plan.config.windows.time_zone,
        landmark_windows=LandmarkWindows.of(plan.grid.calendar, plan.config.landmarks) if landmarks else None,
        person=_person(plan),
    )


def _person(plan: Plan) -> str | None:
    """Name of the column that says who was there, where the source has one; empty where it finds the column."""
    source = plan.config.source.recorded
    source = getattr(source, "of", source)
    columns = getattr(source, "columns", None)
    return str(columns.get("user", "")) if isinstance(columns, Mapping) else None


def promise(plan: Plan) -> float:
    """ε, or ρ, that a trace run promises for its unit: what the whole run counts for."""
    mechanism = plan.traces.mechanism
    stated = getattr(mechanism, "epsilon", np.inf)
    return float(getattr(mechanism, "budget", stated))


def own_promise(plan: Plan) -> float:
    """What a run that bounds each user's budget periods costs the unit of its ledger, whatever it releases."""
    reader, kept = plan.chain.reader, ReleaseLoop(plan).model
    if np.isfinite(kept.amount):
        # A guard in ρ says nothing of a mechanism's ε.
        own = reader.landmark_budget if kept.concentrated == getattr(reader, "concentrated", False) else None
        return float(kept.amount if own is None else min(kept.amount, own))
    if reader.period_budget is not None:
        if plan.config.budget_period is None or plan.period_bound is None:
            return float(reader.period_budget)
        # A stretch may hold the end of one period and a part of another, and what moves up behind it; between them,
        # where clocks change, a whole one.
        n_inside = -(-plan.config.budget_period // plan.grid.calendar.step) - 2
        return float(reader.period_budget * (3 + max(0, n_inside) // plan.period_bound.shortest))
    if getattr(reader, "w", None) is not None:
        return float(getattr(reader, "promised", getattr(reader, "budget", np.inf)))
    return _of_one_event(plan)[1]


def _of_one_event(plan: Plan) -> tuple[str, float]:
    """What the releases that one event touches cost at worst, in ε or, where that is infinite, in ρ."""
    first = replace(plan.grid.window(1), active=None)  # every sensor is active
    worst = plan.mechanism.worst_charge(first, plan.mechanism.start(plan.facts()))
    times = 2 if any(isinstance(event, Block) for event in worst) else 1
    moved = 1.0 if (bound := plan.period_bound) is None else bound.stretch(1) / bound.of_window
    if np.isinf(epsilon := pure_epsilon(worst)):
        return "rho", times * moved * concentrated_rho(worst)
    return "epsilon", times * moved * epsilon


def check_terms(terms: Terms, plan: Plan) -> None:
    """Raise `ConfigError` if a ledger is about another source or unit than a run, or has another stated budget."""
    own, output, found = terms_of(plan), plan.config.output, "the one that the source finds"
    differences = [
        ("event source", terms.source, own.source, "output.ledger_source names it"),
        (
            "user column",
            terms.person or found,
            own.person or found,
            "output.ledger_source names a source where both name the same people",
        )
        if terms.person is not None and own.person is not None and not output.ledger_source
        else None,
        ("unit", terms.unit, own.unit, "counts and traces need a ledger each") if 0 in (terms.span, own.span) else None,
        ("measure", terms.measure, own.measure, "traces need a ledger for each") if own.span == 0 else None,
        ("budget period", _grid(terms), _grid(own), "traces of one ledger share them") if own.span == 0 else None,
        ("budget", terms.budget, output.ledger_budget, "see output.ledger_budget") if output.ledger_budget else None,
        ("span", terms.span, output.ledger_span, "see output.ledger_span") if output.ledger_span else None,
    ]
    for what, there, here, hint in filter(None, differences):
        if there != here:
            raise ConfigError(
                (f"output.ledger: the ledger has another {what} ({there}) than the configuration ({here}); {hint}",)
            )


def _grid(terms: Terms) -> str:
    """Where budget periods begin, in words."""
    if terms.period is None:
        return "all time"
    length = format_duration(terms.period)
    if terms.period % DAY:
        return f"{length}, from {terms.period_begin % terms.period} ms after 1970 on"
    day = wall_time(terms.time_zone, terms.period_begin) % terms.period // DAY
    return f"{length} in {terms.time_zone}" + (f", from day {day} of 1970 on" if terms.period > DAY else "")


def source_name(plan: Plan) -> str:
    """Name of a run's event source, or a digest of where events come from: a path may name people."""
    if plan.config.output.ledger_source:
        return plan.config.output.ledger_source
    values = resolved(replace(plan.config, source=plan.config.source.recorded))["source"]
    if any(place in values for place in _PLACES[1:]):
        values = {name: value for name, value in values.items() if name in _PLACES}
    else:
        values = {name: value for name, value in values.items() if name not in _TIMES}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


#: Columns of `Books`.
_START, _END, _REACH, _COST, _MORE, _LANDMARK, _WINDOW, _OWN, _FIRST, _LAST = range(10)


class Books:
    """Charges of a ledger as a table, and what the unit has cost.

    Parameters
    ----------
    terms
        Of the ledger.
    run
        The run whose charges are its own; the empty text: none.
    """

    def __init__(self, terms: Terms, run: str = "") -> None:
        self.terms, self.run = terms, run
        # A row for each column, so that one of them is looked through fast.
        self._columns, self._n = np.zeros((10, 64)), 0
        self._longest = 0.0
        #: Landmark windows that were looked up, by period, and between which instants.
        self._landmarks: dict[float, tuple[float, float, Floats]] = {}
        self._own: dict[tuple[str, int], bool] = {}

    def add(self, charges: Iterable[Charge]) -> None:
        """Take in charges; of the run's own every window once."""
        rows = []
        for charge in charges:
            own = bool(self.run) and charge.run == self.run
            if own and (charge.stream, charge.window) in self._own:
                continue
            if own:
                self._own[charge.stream, charge.window] = bool(charge.data)
            rows.append(self._row(charge, own))
        if not rows:
            return
        while self._n + len(rows) > self._columns.shape[1]:
            self._columns = np.concatenate([self._columns, np.zeros_like(self._columns)], axis=1)
        added = np.array(rows, np.float64)
        added[:, [_FIRST, _LAST]] = self.terms.periods(added[:, [_FIRST, _LAST]].ravel()).reshape(-1, 2)
        self._columns[:, self._n : self._n + len(rows)] = added.T
        self._n += len(rows)
        self._longest = max(self._longest, _longest(added))

    def _row(self, charge: Charge, own: bool) -> list[float]:
        start, end = charge.window_start, charge.window_end
        reach = charge.reach or start + self.terms.span
        # A window belongs to the period in which it starts; a block of windows to all that it touches, unless it is
        # known which times are landmarks.
        last = end - 1 if end - start > self.terms.span and self.terms.landmark_windows is None else start
        cost, more = self.terms.cost(charge), self.terms.more_in_part(charge)
        more = more if np.isfinite(more) else 0.0  # its cost says it already
        return [start, end, reach, cost, more, charge.landmark, charge.window, own, start, last]

    @property
    def _table(self) -> Floats:
        """All charges, a row each."""
        return self._columns[:, : self._n].T

    def has(self, charge: Charge) -> bool:
        """Whether the run has stepped through a charge's window already; of one that was refused there is no input."""
        return self._own.get((charge.stream, charge.window), False)

    def spent(self, charge: Charge) -> float:
        """What the unit has cost wherever a charge would count, by all others and the run's own earlier windows.

        With what the charge counts for beyond its cost, where a stretch holds only a part of its window.
        """
        row = np.array(self._row(charge, own=True))
        row[[_FIRST, _LAST]] = self.terms.periods(row[[_FIRST, _LAST]])
        table = self._table
        counts = (table[:, _OWN] == 0) | (table[:, _WINDOW] < charge.window)
        row[_COST] = 0.0
        if not self.terms.landmarks:  # what is further away is in no stretch that meets the charge
            reach = max(row[_END] + self._longest, row[_REACH])
            counts &= (table[:, _START] < reach) & (table[:, _END] > row[_START] - self._longest)
            table = np.concatenate([table[counts], row[None]])
            return _dearest(table, *_meeting(table, row))
        # Periods in which a stretch, or a landmark window, may begin that shares time with the charge.
        far = max(self._far, _longest(row[None]))
        first, last = self.terms.periods(np.array([row[_START] - far, row[_END] + far])).tolist()
        counts &= (table[:, _START] < self.terms.bounds(last)[1] + far) & (table[:, _END] > self.terms.bounds(first)[0])
        table = np.concatenate([table[counts], row[None]])
        return max(self._period(table, period, row) for period in np.arange(first, last + 1))

    def _period(self, table: Floats, period: float, row: Floats | None = None) -> float:
        """Cost of all landmarks of a period and the dearest stretch that begins in it.

        Anywhere, or (``row``) wherever a new charge would count, which is in the table; 0 where it counts nowhere.
        """
        begin, end = self.terms.bounds(period)
        far = max(self._far, 0.0 if row is None else _longest(row[None]))
        table = table[(table[:, _START] < end + far) & (table[:, _END] > begin)]
        begun = table[(table[:, _FIRST] <= period) & (period <= table[:, _LAST])]
        windows = self._landmarks_of(table, begun, period)
        is_inside, is_part = _overlap(table, windows)
        starts, reaches = begun[:, _START], begun[:, _REACH]
        if row is not None and not _overlap(row[None], windows)[0][0]:
            starts, reaches = _meeting(begun, row)
            if not len(starts):
                return 0.0
        inside = float(table[is_inside, _COST].sum() + table[is_part, _MORE].sum())
        return inside + _dearest(table[~is_inside], starts, reaches)

    @property
    def _far(self) -> float:
        """How far behind its beginning a stretch or a landmark window may end."""
        rule = self.terms.landmark_windows
        return max(self._longest, 0.0 if rule is None else rule.step + CLOCK_CHANGE)

    def _landmarks_of(self, table: Floats, begun: Floats, period: float) -> Floats:
        """Starts and ends of the landmark windows of a period that charges may share time with; shape (n, 2)."""
        rule = self.terms.landmark_windows
        if rule is None:
            charged: Floats = begun[begun[:, _LANDMARK] == 1][:, [_START, _END]]
            return charged
        if not len(table):
            return np.zeros((0, 2))
        begin, end = self.terms.bounds(period)
        end += rule.step + CLOCK_CHANGE  # one that begins in the period may end in the next
        if math.isinf(begin):  # all time, or all before the first period: as far as there are charges
            begin, end = table[:, _START].min(), min(end, table[:, _END].max())
        known = self._landmarks.get(period, (begin, begin, np.zeros((0, 2))))
        for first, last in ((begin, known[0]), (known[1], end)):
            if first < last:
                # Further than is needed: the next charges come soon.
                first, last = first - (first < known[0]) * DAY, last + (last > known[1]) * DAY
                found = rule.within(first, last)
                found = np.concatenate([known[2], found[self.terms.periods(found[:, 0]) == period]])
                known = (min(first, known[0]), max(last, known[1]), found)
        self._landmarks[period] = known
        return known[2]

    def summary(self, promised: float | None = None) -> list[dict[str, Any]]:
        """Charges, what the unit has cost and the sum of all costs, by budget period or, without any, by day of UTC.

        Parameters
        ----------
        promised
            What the only run promises where it bounds each user's budget periods (`own_promise`): its unit costs that
            much from its first release on, and less than the windows of the unit do one by one.
        """
        table = self._table.copy()
        if self.terms.period is None and not self.terms.landmarks:
            table[:, _FIRST] = table[:, _LAST] = table[:, _START] // DAY
        found = []
        numbers = table[:, _FIRST]
        if self.terms.landmarks:  # landmarks of a period may go on into the next one, where alone there are charges
            numbers = np.append(numbers, np.maximum(numbers - 1, 0))
        for number in np.unique(numbers):
            own = table[(table[:, _FIRST] <= number) & (number <= table[:, _LAST])]
            if self.terms.landmarks:
                dearest = self._period(table, number)
            else:
                dearest = _dearest(table, own[:, _START], own[:, _REACH])
            if promised is not None and dearest > 0:
                dearest = promised
            if not len(own) and not dearest:
                continue
            total, begin = float(own[:, _COST].sum()), self.terms.bounds(number)[0] if self.terms.landmarks else 0
            begin = own[:, _START].min() if len(own) else max(begin, 0)
            found.append({"from": int(begin), "charges": len(own), "spent": dearest, "sum": total})
        return found


def _longest(table: Floats) -> float:
    """Length of the longest of some charges' windows and stretches."""
    return float((np.maximum(table[:, _REACH], table[:, _END]) - table[:, _START]).max())


def _meeting(table: Floats, row: Floats) -> tuple[Floats, Floats]:
    """Where the stretches begin and end that share time with a new charge, which is in the table."""
    starts, reaches = table[:, _START], table[:, _REACH]
    meets = (starts < row[_END]) & (reaches > row[_START])
    return starts[meets], reaches[meets]


def _dearest(table: Floats, starts: Floats, reaches: Floats) -> float:
    """Most that the charges in any of some stretches have cost together."""
    if not len(starts):
        return 0.0
    table = table[(table[:, _START] < reaches.max()) & (table[:, _END] > starts.min())]
    cost, more = table[:, _COST], table[:, _MORE]
    by_start, by_end = np.argsort(table[:, _START]), np.argsort(table[:, _END])
    begins, ends = table[by_start, _START], table[by_end, _END]

    def between(values: Floats, begun: Floats, ended: Floats) -> Floats:
        """Sum over the charges that begin before the one instants, less those that end by the others."""
        before = np.append(0.0, np.cumsum(values[by_start]))[np.searchsorted(begins, begun)]
        after = np.append(0.0, np.cumsum(values[by_end]))[np.searchsorted(ends, ended, "right")]
        return np.asarray(before - after)

    # Infinite costs are counted apart: they would spoil the differences of sums.
    total = between(np.where(np.isfinite(cost), cost, 0.0), reaches, starts)
    if more.any():  # windows that either end of a stretch cuts
        total = total + between(more, starts, starts) + between(more, reaches, reaches)
    n_infinite = between(np.isinf(cost).astype(np.float64), reaches, starts)
    return float(np.where(n_infinite > 0, np.inf, total).max())


def _overlap(table: Floats, windows: Floats) -> tuple[Mask, Mask]:
    """Which charges share time with any of some windows (n, 2); and which of these go beyond them."""
    if not len(windows):
        return (nowhere := np.zeros(len(table), bool)), nowhere
    windows = windows[np.argsort(windows[:, 0])]
    latest = np.maximum.accumulate(windows[:, 1])
    place = np.searchsorted(windows[:, 0], table[:, _END]) - 1
    found: Mask = (place >= 0) & (latest[place] > table[:, _START])
    # Time without a gap between windows: it begins where one of them begins after all before have ended.
    first = np.flatnonzero(np.append(True, windows[1:, 0] > latest[:-1]))
    begins, ends = windows[first, 0], latest[np.append(first[1:], len(windows)) - 1]
    around = np.searchsorted(begins, table[:, _START], "right") - 1
    whole = (around >= 0) & (ends[around] >= table[:, _END])
    return found, found & ~whole


class Limit:
    """The budget of a ledger as one run meets it.

    Parameters
    ----------
    plan
        The run.
    terms
        Of its ledger.

    Notes
    -----
    What is decided of a window is the same whenever it is repeated: its own charge settles it, and charges of others
    never become fewer.
    """

    def __init__(self, plan: Plan, terms: Terms) -> None:
        self.plan, self.terms = plan, terms
        self.n_steps = max(1, -(-terms.span // plan.grid.calendar.step))
        self._configuration = plan.keys.configuration.hex()[:32]
        self._is_alone = plan.bounds.max_per_period is not None
        self.forget()

    def forget(self) -> None:
        """Know no charge any more: the ledger will be read again."""
        self.books = Books(self.terms, self.plan.keys.run_id)

    def add(self, charges: list[Charge]) -> None:
        """Take in charges that are in the ledger."""
        self.books.add(charges)

    def check(self, window: Window, worst: tuple[Event, ...]) -> None:
        """Raise `LedgerExhausted` if the worst that a window can be charged is not there; changes nothing."""
        if not worst:
            return
        blocks = [event for event in worst if isinstance(event, Block)]
        index = min([window.index, *(block.first for block in blocks)])
        end = max([window.end, *(self.plan.grid.calendar.end(block.last) for block in blocks)])
        start = min(window.start, self.plan.grid.calendar.start(index))
        epsilon, rho = pure_epsilon(worst), concentrated_rho(worst)
        landmark = counts_as_landmark(window, worst)
        own = Charge(STREAM, index, start, end, epsilon, rho, landmark, self._configuration, "")
        self._check(self._own(own))

    def admit(self, charge: Charge) -> Charge:
        """A charge as the ledger keeps it; raises `LedgerExhausted` as `check` does."""
        charge = self._own(charge)
        self._check(charge)
        self.add([charge])
        return charge

    def _own(self, charge: Charge) -> Charge:
        calendar, span = self.plan.grid.calendar, self.terms.span
        # Steps of a day are days by the clock. A stretch that is no number of steps ends inside a window: rounded up,
        # it would hold that window whole, which costs less than a part of it.
        is_steps = span % calendar.step == 0
        reach = calendar.start(charge.window + self.n_steps) if is_steps else charge.window_start + span
        n_windows = int(calendar.index(np.array([charge.window_end - 1]))[0]) - charge.window + 1
        parts = n_windows * calendar.step > span
        # What leaves a window makes room for as many later memberships where a user's budget period is bounded.
        factor = 2.0 if parts or self._is_alone else 1.0
        return replace(charge, run=self.plan.keys.run_id, reach=reach, factor=factor)

    def _check(self, charge: Charge) -> None:
        if self._is_alone:  # its noise is fixed, and what the unit costs was held against the budget before it began
            return
        if np.isinf(self.terms.budget) or self.books.has(charge):
            return
        if cost := self.terms.cost(charge):
            spent = self.books.spent(charge)
            if not spent + cost <= self.terms.budget * (1 + ROUNDING):  # nor where sums of huge figures are no number
                raise LedgerExhausted(charge.window, spent, cost, self.terms.budget)
