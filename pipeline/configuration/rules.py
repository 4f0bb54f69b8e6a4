"""Conditions between sections that hold in every run, one small function each."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from dataclasses import replace

from accountants.core.accountant import Accountant
from mechanisms.core.errors import DataError, ParameterError
from mechanisms.core.mechanism import MECHANISMS, Mechanism
from pipeline.configuration import chain_rules
from pipeline.configuration.canonical import input_paths
from pipeline.configuration.rule import Finding, Rule
from pipeline.configuration.sections import Output
from pipeline.configuration.values import A_DURATION, A_TIME, format_duration, format_time
from pipeline.landmarks import Landmarks
from pipeline.sensors import Sensors
from pipeline.source import LiveSource, Source
from pipeline.space import Space
from pipeline.window import Calendar, Windows

#: Ten million hours are 1,100 years; ten million cells are 80 MB a window.
MAX_WINDOWS = 10_000_000
MAX_CELLS = 10_000_000
_FIRST_ROWS = 1_000


def _calendar(source: Source, windows: Windows) -> Calendar | None:
    """Windows of a finite run whose numbering works and is not too long; None otherwise."""
    if any(windows_can_be_numbered(source, windows)) or source.until is None:
        return None
    if source.from_ is None and windows.origin is None:
        return None
    return windows.calendar(source.from_, source.until)


def source_has_a_start(source: Source, windows: Windows) -> Iterator[Finding]:
    """Windows are numbered from the start of the source, or from their origin."""
    if source.from_ is None and windows.origin is None:
        yield Finding(("source", "from"), None, f"{A_TIME} (the first window starts there)")


def source_has_an_end(source: Source) -> Iterator[Finding]:
    """A source that ends needs to say where, so that no public number of windows is read from private data."""
    if source.until is None and not getattr(source, "endless", False):
        yield Finding(("source", "until"), None, f"{A_TIME} (the run ends there)")


def cells_can_be_listed(space: Space) -> Iterator[Finding]:
    """The list of cells fits in memory, and a file that holds it can be read."""
    n_cells = getattr(space, "rows", 1) * getattr(space, "columns", 1)
    if n_cells > MAX_CELLS:
        yield Finding(("space",), space, f"of at most {MAX_CELLS:,} cells ({n_cells:,} here)")
    elif input_paths(space):
        try:
            len(space.cells)
        except DataError as error:
            yield Finding(("space", "file"), input_paths(space)[0], f"a list of cells ({error})")


def places_come_from_the_source(source: Source, space: Space) -> Iterator[Finding]:
    """The input can be read, and tells what the space places events by; one small block is looked at."""
    if not input_paths(source):
        return
    little = replace(source, block_rows=_FIRST_ROWS)
    try:
        span = next(iter(little.spans()), None)
        block = None if span is None else next(iter(little.read(span)), None)
    except DataError as error:
        yield Finding(("source",), source, f"a source that can be read ({error})")
        return
    offers = () if block is None else block.frame.columns
    missing = [column for column in space.reads if column not in offers]
    if block is not None and missing:
        there = " and ".join(name for name in ("latitude", "longitude", "place") if name in offers)
        right = f"a space that reads {there}: the source has no {' and no '.join(missing)}"
        yield Finding(("space", "type"), "", right)


def windows_can_be_numbered(source: Source, windows: Windows) -> Iterator[Finding]:
    """A finite run has a first window, and not so many that its files would burst."""
    if source.until is None or (source.from_ is None and windows.origin is None):
        return
    try:
        n_windows = windows.calendar(source.from_, source.until).n_windows
    except ParameterError as error:
        yield Finding(("windows", error.field), error.value, error.expected)
        return
    if n_windows is not None and n_windows > MAX_WINDOWS:
        yield Finding(("windows", "size"), windows.size, f"so long that there are at most {MAX_WINDOWS:,} windows")


def budget_period_holds_a_window(budget_period: int | None, windows: Windows) -> Iterator[Finding]:
    """A budget period is at least as long as a window's step."""
    if budget_period is not None and budget_period < windows.step:
        yield Finding(("budget_period",), budget_period, f"at least one window ({format_duration(windows.step)})")


def landmark_mechanisms_have_landmarks(
    mechanism: tuple[Mechanism, ...], landmarks: Landmarks | None, windows: Windows
) -> Iterator[Finding]:
    """A landmark budget is divided over landmarks, and protects an event that is in one window."""
    for i, one in _landmark_mechanisms(mechanism):
        if landmarks is None:
            right = f"a section with windows, times or recurring (mechanism[{i}] is {MECHANISMS.name_of(type(one))})"
            yield Finding(("landmarks",), None, right)
        if windows.step < windows.size:
            yield Finding(("mechanism", i, "type"), "", "a mechanism for overlapping windows, such as discrete_laplace")


def endless_landmarks_have_a_period(
    source: Source, mechanism: tuple[Mechanism, ...], budget_period: int | None
) -> Iterator[Finding]:
    """On an endless stream a landmark budget must be renewed."""
    if getattr(source, "endless", False) and budget_period is None and any(_landmark_mechanisms(mechanism)):
        yield Finding(("budget_period",), None, f"{A_DURATION} (the source is endless, the landmark budget is not)")


def _landmark_mechanisms(mechanism: tuple[Mechanism, ...]) -> Iterator[tuple[int, Mechanism]]:
    return ((i, one) for i, one in enumerate(mechanism) if one.landmark_budget is not None)


def landmarks_are_in_the_run(landmarks: Landmarks | None, source: Source, windows: Windows) -> Iterator[Finding]:
    """Listed landmark windows and times are in the run."""
    calendar = _calendar(source, windows)
    if landmarks is None or calendar is None or calendar.n_windows is None:
        return
    n_windows = calendar.n_windows
    for i, index in enumerate(landmarks.windows):
        if index > n_windows and not windows.per_event:
            yield Finding(("landmarks", "windows", i), index, f"a window of the run, from 1 to {n_windows}")
    for i, entry in enumerate(landmarks.times):
        if not Landmarks(times=(entry,)).count(calendar):
            begin, end = format_time(calendar.start(1)), format_time(calendar.end(n_windows))
            yield Finding(("landmarks", "times", i), entry, f"in the run, between {begin} and {end}")


def sensors_are_cells(sensors: Sensors, space: Space) -> Iterator[Finding]:
    """Sensors are cells of the space, where those are known without reading data."""
    if space.derived_from_data or not (sensors.fixed or sensors.schedule) or any(cells_can_be_listed(space)):
        return
    cells = set(space.cells)
    for i, cell in enumerate(sensors.fixed):
        if cell not in cells:
            near = difflib.get_close_matches(cell, space.cells, n=1) or [space.cells[0]]
            yield Finding(("sensors", "fixed", i), cell, f"a cell of the space, such as {near[0]!r}")
    if sensors.schedule is not None:
        try:
            sensors.prepare(space.cells, seed=0)
        except DataError as error:
            yield Finding(("sensors", "schedule"), sensors.schedule, f"a schedule of cells ({error})")


def accountants_are_different(accountants: tuple[Accountant, ...]) -> Iterator[Finding]:
    """Two equal accountants would write every row twice."""
    for i, one in enumerate(accountants):
        if one in accountants[:i]:
            yield Finding(("accountants", i, "type"), "", f"different from accountants[{accountants.index(one)}]")


def accountants_can_learn(accountants: tuple[Accountant, ...], source: Source, windows: Windows) -> Iterator[Finding]:
    """A training part is a part of the run."""
    calendar = _calendar(source, windows)
    n_windows = calendar.n_windows if calendar else None
    for i, one in enumerate(accountants):
        wanted = one.training_windows or 0
        if getattr(source, "endless", False) and wanted:
            yield Finding(("accountants", i, "type"), "", "one that needs no training part: the source is endless")
        elif n_windows is not None and wanted > n_windows:
            right = f"one that learns from at most the {n_windows:,} windows of the run (here {wanted:,})"
            yield Finding(("accountants", i, "type"), "", right)


def metrics_are_different(utility: tuple[str, ...]) -> Iterator[Finding]:
    """A metric is asked for once."""
    for i, name in enumerate(utility):
        if name in utility[:i]:
            yield Finding(("utility", i), name, "listed once only")


def overlapping_windows_are_accounted(accountants: tuple[Accountant, ...], windows: Windows) -> Iterator[Finding]:
    """Some theorems hold only where an event is in one window."""
    for i, one in enumerate(accountants):
        if windows.step < windows.size and not one.overlapping:
            yield Finding(("accountants", i, "type"), "", "an accountant for overlapping windows, such as composition")


def output_is_not_an_input(output: Output, source: Source, space: Space, sensors: Sensors) -> Iterator[Finding]:
    """A run never writes where it reads."""
    inputs = {os.path.realpath(path) for section in (source, space, sensors) for path in input_paths(section)}
    if os.path.realpath(output.path) in inputs:
        yield Finding(("output", "path"), output.path, "another folder than the inputs")
    elif os.path.exists(output.path) and not os.path.isdir(output.path):
        yield Finding(("output", "path"), output.path, "a folder, not an existing file")


def delayed_releases_leave_before_the_next(output: Output, source: Source, windows: Windows) -> Iterator[Finding]:
    """Whoever waits with one release makes no other meanwhile; and what is read from files leaves when it is made."""
    if not output.delay:
        return
    if not isinstance(source, LiveSource):
        yield Finding(("output", "delay"), format_duration(output.delay), "left out where the source is no stream")
    elif output.delay >= windows.step / (source.factor or 1):
        right = "shorter than from one window to the next, in the time that passes while the stream runs"
        yield Finding(("output", "delay"), format_duration(output.delay), right)


RULES: tuple[Rule, ...] = (
    source_has_a_start,
    source_has_an_end,
    cells_can_be_listed,
    places_come_from_the_source,
    windows_can_be_numbered,
    budget_period_holds_a_window,
    *chain_rules.RULES,
    landmark_mechanisms_have_landmarks,
    endless_landmarks_have_a_period,
    landmarks_are_in_the_run,
    sensors_are_cells,
    accountants_are_different,
    accountants_can_learn,
    metrics_are_different,
    overlapping_windows_are_accounted,
    output_is_not_an_input,
    delayed_releases_leave_before_the_next,
)
