"""Rules that span several configuration sections."""

from __future__ import annotations

import difflib
import inspect
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.accountants.core.accountant import Accountant
from penstock.accountants.landmark_budget import LandmarkBudget
from penstock.evaluation.utility import METRICS
from penstock.mechanisms.core.chain import Chain, misplaced
from penstock.mechanisms.core.contract import MECHANISMS, ChainStep, Generalization, amounts
from penstock.mechanisms.core.noise import LARGEST_SCALE, SMALLEST_SCALE
from penstock.mechanisms.core.noise_family import NOISE_FAMILIES, families
from penstock.mechanisms.core.plugin import DataError, ParameterError
from penstock.mechanisms.core.schedules import LandmarkSchedule
from penstock.mechanisms.core.sensitivity import of_cells
from penstock.mechanisms.core.unit import LANDMARKS, PERIOD
from penstock.mechanisms.spatial_generalization import SpatialGeneralization
from penstock.pipeline.config.build import FAILED, fields_of, input_paths
from penstock.pipeline.config.kinds import EXPECTED_DURATION, EXPECTED_TIME, format_duration
from penstock.pipeline.config.sections import Output
from penstock.pipeline.config.yaml import Mapping, Path, Problem, locate, shown
from penstock.pipeline.counting.bounding import Bounding
from penstock.pipeline.sources.base import LiveSource, Source
from penstock.pipeline.spaces.base import MAX_CELLS, Space, UnknownColumnError
from penstock.pipeline.windows.base import Windows
from penstock.pipeline.windows.calendar import Calendar, format_time
from penstock.pipeline.windows.landmarks import Landmarks
from penstock.pipeline.windows.sensors import Sensors

# A rule is a function whose parameters name the sections that it reads; it yields a `Finding` for every violation. It
# runs only if all of these sections could be built, so that one pass reports every problem that can be detected.


@dataclass(frozen=True)
class Finding:
    """A violation of a rule: the location, the actual value (None if missing) and the expected value.

    ``is_whole``: ``expected`` says by itself what is wrong, and what would be right.
    """

    path: Path
    value: Any
    expected: str
    is_whole: bool = False


Findings = Iterator[Finding]
Rule = Callable[..., Findings]
Steps = tuple[ChainStep, ...]
Accountants = tuple[Accountant, ...]
#: All rules, in the order in which findings on one line are reported.
RULES: list[Rule] = []


def rule(check: Rule) -> Rule:
    """Register a function as a rule."""
    RULES.append(check)
    return check


def broken_rules(rules: Iterable[Rule], root: Mapping, known: dict[str, Any]) -> list[Problem]:
    """Check every rule whose sections could be built and return each problem with its line."""
    problems = []
    for check in rules:
        names = inspect.signature(check).parameters
        if any(known.get(name, FAILED) is FAILED for name in names):
            continue
        for finding in check(**{name: known[name] for name in names}):
            place, node = locate(root, finding.path)
            if finding.is_whole:
                text = finding.expected
            elif finding.value is None:
                text = f"missing; it must be {finding.expected}"
            else:
                value = shown(node) if node is not None else repr(finding.value)
                text = f"{value} is not allowed; it must be {finding.expected}"
            problems.append(Problem(place, finding.path, text))
    return problems


# Rules that hold in every run.

#: Ten million hours are 1,100 years; ten million cells are 80 MB a window.
MAX_WINDOWS = 10_000_000


def _calendar(source: Source, windows: Windows) -> Calendar | None:
    """Return the windows of a finite run, or None if there are too many or they cannot be numbered."""
    if source.until is None or any(check_window_numbers(source, windows)):
        return None
    return windows.calendar(source.from_, source.until)


def n_windows_of(source: Source, windows: Windows) -> int | None:
    """Return the number of windows in a finite run, or None if it cannot be determined."""
    calendar = _calendar(source, windows)
    return None if calendar is None else calendar.n_windows


@rule
def check_window_numbers(source: Source, windows: Windows) -> Findings:
    """Reject a run that has too many windows or cannot number them from the start of the source or an origin."""
    if source.from_ is None and windows.origin is None:
        yield Finding(("source", "from"), None, f"{EXPECTED_TIME} (the first window starts there)")
    elif source.until is not None:
        try:
            n_windows = windows.calendar(source.from_, source.until).n_windows
        except ParameterError as error:
            yield Finding(("windows", error.field), error.value, error.expected)
            return
        if n_windows is not None and n_windows > MAX_WINDOWS:
            yield Finding(("windows", "size"), windows.size, f"so long that there are at most {MAX_WINDOWS:,} windows")


@rule
def check_key_mode(mode: str, noise_key: str | None) -> Findings:
    """Reject a noise key in a simulation because its noise is derived from the seed."""
    if mode == "simulation" and noise_key is not None:
        yield Finding(("noise_key",), noise_key, "left out in a simulation, whose noise comes from the seed")


@rule
def check_source_end(source: Source) -> Findings:
    """Require a finite source to state its end because the public number of windows must not depend on private data."""
    if source.until is None and not getattr(source, "endless", False):
        yield Finding(("source", "until"), None, f"{EXPECTED_TIME} (the run ends there)")


@rule
def check_cell_list(space: Space) -> Findings:
    """Check that the list of cells fits in memory and that the file listing them, if there is one, is readable."""
    n_cells = getattr(space, "rows", 1) * getattr(space, "columns", 1)
    if n_cells > MAX_CELLS:
        yield Finding(("space",), space, f"of at most {MAX_CELLS:,} cells ({n_cells:,} here)")
    elif input_paths(space):
        try:
            len(space.cells)
        except UnknownColumnError as error:
            yield Finding(("space", "name"), space.name, f"what names the zones ({error})")  # type: ignore[attr-defined]
        except DataError as error:
            key = next(field.key for field in fields_of(type(space)) if field.declared.kind == "path")
            yield Finding(("space", key), input_paths(space)[0], f"a file that cells can be read from ({error})")


@rule
def check_place_columns(source: Source, space: Space) -> Findings:
    """Check, using one small block, that the source provides the columns required by the space."""
    if isinstance(source.recorded, LiveSource) or not input_paths(source):
        return  # what comes later cannot be looked at
    little = replace(source, block_rows=1_000).from_start()
    try:
        span = next(iter(little.spans()), None)
        block = None if span is None else next(iter(little.read(span)), None)
    except DataError as error:
        inside = ("source", "of") if hasattr(source, "of") else ("source",)
        key = next((field.key for field in fields_of(type(source.recorded)) if field.declared.kind == "path"), "path")
        yield Finding((*inside, key), source, str(error), is_whole=True)
        return
    offers = () if block is None else block.frame.columns
    missing = [column for column in space.reads if column not in offers]
    if block is not None and missing:
        offered = " and ".join(name for name in ("latitude", "longitude", "place") if name in offers)
        expected = f"a space that reads {offered}: the source has no {' and no '.join(missing)}"
        yield Finding(("space", "type"), "", expected)


@rule
def check_time_spans(budget_period: int | None, windows: Windows, output: Output, source: Source) -> Findings:
    """Check that periods are at least one window, ledger spans are whole windows and delays are less than a window."""
    if budget_period is not None and budget_period < windows.size:
        yield Finding(("budget_period",), budget_period, f"at least one window ({format_duration(windows.size)})")
    span = output.ledger_span
    if span is not None and not windows.per_event and span % windows.size:
        expected = f"a number of windows, such as {format_duration(-(-span // windows.size) * windows.size)}"
        yield Finding(("output", "ledger_span"), format_duration(span), expected)
    if output.delay and not isinstance(source, LiveSource):
        yield Finding(("output", "delay"), format_duration(output.delay), "left out if the source is no stream")
    elif output.delay and output.delay >= windows.size / (source.factor or 1):  # type: ignore[attr-defined]
        expected = "shorter than from one window to the next, in the time that passes while the stream runs"
        yield Finding(("output", "delay"), format_duration(output.delay), expected)


@rule
def check_landmarks_given(mechanism: Steps, landmarks: Landmarks | None) -> Findings:
    """Reject a landmark mechanism if no landmarks are configured."""
    for i, step in enumerate(mechanism):
        if step.guarantee.unit == LANDMARKS and landmarks is None:
            name = MECHANISMS.name_of(type(step))
            expected = f"a section with windows, times or recurring (mechanism[{i}] is {name})"
            yield Finding(("landmarks",), None, expected)


@rule
def check_endless_budgets(source: Source, mechanism: Steps, budget_period: int | None) -> Findings:
    """Require a budget period in an endless run if the mechanism has a landmark budget or protects whole periods."""
    if budget_period is not None:
        return
    if getattr(source, "endless", False) and any(step.guarantee.unit == LANDMARKS for step in mechanism):
        expected = f"{EXPECTED_DURATION} (the source is endless, the landmark budget is not)"
        yield Finding(("budget_period",), None, expected)
    if source.until is None and any(step.guarantee.unit == PERIOD for step in mechanism):
        expected = f"{EXPECTED_DURATION}, on an endless run of a mechanism that protects periods"
        yield Finding(("budget_period",), None, expected)


@rule
def check_unused_keys(
    mechanism: Steps,
    accountants: Accountants,
    bounding: Bounding,
    landmarks: Landmarks | None,
    budget_period: int | None,
) -> Findings:
    """Reject keys that are not read by any step."""
    read = {key for accountant in accountants for key in accountant.reads}
    read |= {key for step in mechanism for key in step.guarantee.unit.reads}
    read |= {"landmarks", "budget_period"} if on_points(mechanism) else set()
    text = "no {} here reads it (landmark_uniform does, for one); it must be left out"
    if landmarks is not None and "landmarks" not in read:
        yield Finding(("landmarks",), landmarks, text.format("mechanism and no accountant"), is_whole=True)
    if budget_period is not None and "budget_period" not in read and bounding.max_per_period is None:
        yield Finding(("budget_period",), budget_period, text.format("mechanism, accountant or bound"), is_whole=True)


def unused_keys(config: Any) -> tuple[str, ...]:
    """Return the keys in a run's configuration that nothing in the run reads."""
    names = inspect.signature(check_unused_keys).parameters
    return tuple(
        str(finding.path[0]) for finding in check_unused_keys(**{name: getattr(config, name) for name in names})
    )


@rule
def check_landmark_range(landmarks: Landmarks | None, source: Source, windows: Windows) -> Findings:
    """Check that all listed landmarks, whether windows or times, are within the run."""
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


@rule
def check_hidden_landmarks(
    landmarks: Landmarks | None, source: Source, windows: Windows, mechanism: Steps, budget_period: int | None
) -> Findings:
    """Reject hidden landmarks unless a schedule on counts can price them within a single budget period."""
    if landmarks is None or landmarks.hidden is None:
        return
    n_windows, path = n_windows_of(source, windows), ("landmarks", "hidden")
    is_priced = any(isinstance(step, LandmarkSchedule) for step in mechanism) and budget_period is None
    if windows.per_event or not is_priced or n_windows is None:
        expected = "left out, but for a landmark mechanism on counts in a run with an end, of one budget period"
        yield Finding(path, landmarks.hidden.number, expected)
    elif landmarks.hidden.number > n_windows:
        yield Finding((*path, "number"), landmarks.hidden.number, f"at most the {n_windows} windows of the run")


@rule
def check_sensor_names(sensors: Sensors, space: Space) -> Findings:
    """Check that all sensors are cells of the space if the cells are known before any data is read."""
    if space.derived_from_data or not (sensors.fixed or sensors.schedule) or any(check_cell_list(space)):
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


@rule
def check_duplicate_accountants(accountants: Accountants) -> Findings:
    """Reject duplicate accountants because they would write every row twice."""
    for i, entry in enumerate(accountants):
        if entry in accountants[:i]:
            yield Finding(("accountants", i, "type"), "", f"different from accountants[{accountants.index(entry)}]")


@rule
def check_training_windows(accountants: Accountants, source: Source, windows: Windows) -> Findings:
    """Check that the accountants' training windows are within the run."""
    n_windows = n_windows_of(source, windows)
    for i, accountant in enumerate(accountants):
        wanted = accountant.training_windows or 0
        if getattr(source, "endless", False) and wanted:
            yield Finding(("accountants", i, "type"), "", "one that needs no training part: the source is endless")
        elif n_windows is not None and wanted > n_windows:
            expected = f"one that learns from at most the {n_windows:,} windows of the run (here {wanted:,})"
            yield Finding(("accountants", i, "type"), "", expected)


@rule
def check_metrics(mechanism: Steps, utility: tuple[str, ...]) -> Findings:
    """Reject duplicate metrics, as well as metrics of counts if the run releases traces."""
    for i, name in enumerate(utility):
        if name in utility[:i]:
            yield Finding(("utility", i), name, "listed once only")
        if on_points(mechanism) and name != METRIC:
            yield Finding(("utility", i), name, f"{METRIC} (mean absolute error in metres), for traces")


def daily_metrics_flaw(source: Source, windows: Windows) -> str | None:
    """Return the metrics to use instead of daily ones and the reason, or None if the run contains a whole day."""
    calendar = _calendar(source, windows)
    if calendar is None or calendar.n_windows is None:
        return None
    try:
        if np.isnat(calendar.whole_days(np.arange(1, calendar.n_windows + 1))).all():
            return f"a metric of windows: no calendar day ({windows.time_zone}) is in the run as a whole"
    except ParameterError:
        return "a metric of windows: those longer than a day add up to no days"
    return None


@rule
def check_daily_metrics(utility: tuple[str, ...], source: Source, windows: Windows) -> Findings:
    """Check that, if there are metrics of daily totals, the run contains a whole day and windows divide days evenly."""
    daily = [i for i, name in enumerate(utility) if METRICS[name].daily]
    if expected := daily_metrics_flaw(source, windows) if daily else None:
        for i in daily:
            yield Finding(("utility", i), utility[i], expected)


@rule
def check_output_path(output: Output, source: Source, space: Space, sensors: Sensors) -> Findings:
    """Reject an output folder that is also used as an input."""
    inputs = {os.path.realpath(path) for section in (source, space, sensors) for path in input_paths(section)}
    if os.path.realpath(output.path) in inputs:
        yield Finding(("output", "path"), output.path, "another folder than the inputs")
    elif os.path.exists(output.path) and not os.path.isdir(output.path):
        yield Finding(("output", "path"), output.path, "a folder, not an existing file")


@rule
def check_outlines(output: Output, space: Space, mechanism: Steps) -> Findings:
    """Check that the outlines are readable and within the map of the cells."""
    if output.outlines is None:
        return
    places = () if space.derived_from_data else space.geometry()
    rings = [ring for place in places for polygon in place.get("polygons", ()) for ring in polygon]
    rings += [place["polygon"] for place in places if "polygon" in place]
    rings += [[place["point"]] for place in places if "point" in place]
    corners = np.array([corner for ring in rings for corner in ring], np.float64).reshape(-1, 2)
    if on_points(mechanism) or not (len(corners) or space.derived_from_data):
        yield Finding(("output", "outlines"), output.outlines, "left out if cells have no place on a map")
        return
    from penstock.pipeline.spaces.polygons import read_lines  # loads shapely

    try:
        read_lines(output.outlines, corners if len(corners) else None)
    except DataError as error:
        yield Finding(("output", "outlines"), output.outlines, f"a file of lines that the maps can show ({error})")


# Rules about the steps of a release: their order, and what they need of the other sections.


@rule
def check_step_order(mechanism: Steps) -> Findings:
    """Check the order of the steps: steps on events, then a single step on true counts, then post-processing only."""
    if not mechanism:
        yield Finding(("mechanism",), mechanism, "a list that ends in a mechanism on counts, such as landmark_uniform")
    for position, expected in misplaced(mechanism):
        yield Finding(("mechanism", position, "type"), "", expected)


@rule
def check_space(mechanism: Steps, space: Space) -> Findings:
    """Check that the space provides positions for traces, and locations or named groups for coarse cells."""
    if on_points(mechanism) and "latitude" not in space.reads:
        yield Finding(("space", "type"), "", "a space that reads latitude and longitude, such as grid, for traces")
    for i, step in enumerate(mechanism):
        if isinstance(step, SpatialGeneralization) and not space.derived_from_data:
            try:
                step.groups(space.geometry())
            except ParameterError as error:
                yield Finding(("mechanism", i, error.field), error.value, error.expected)
            except DataError as error:
                yield Finding(("space",), space, str(error), is_whole=True)


@rule
def check_bounds(mechanism: Steps, bounding: Bounding, sensors: Sensors) -> Findings:
    """Check that the unit supports bounds per block or period, and that sensors fit the steps and bounds."""
    for step in mechanism:
        if isinstance(step, Generalization) and sensors != Sensors():
            name = MECHANISMS.name_of(type(step))
            yield Finding(("sensors",), sensors, f"left out: with {name} each count covers several cells or windows")
    for name in ("max_windows", "max_block_cells"):
        bound = getattr(bounding, name)
        if bound is not None and all(step.guarantee.unit.n_bounded == 1 for step in mechanism):
            yield Finding(("bounding", name), bound, "left out without a mechanism over blocks (fpa)")
    if bounding.max_per_period is None:
        return
    if all(step.guarantee.unit != PERIOD for step in mechanism):
        expected = "left out with units smaller than the budget period; type period_uniform protects all of it"
        yield Finding(("bounding", "max_per_period"), bounding.max_per_period, expected)
    if sensors != Sensors():
        yield Finding(("sensors",), sensors, "left out with bounding.max_per_period")


@rule
def check_noise_scales(mechanism: Steps, bounding: Bounding, space: Space) -> Findings:
    """Check that noise scales are within limits. Schedules, which divide budgets, are checked by a dry run."""
    n_cells = 1 if space.derived_from_data or any(check_cell_list(space)) else len(space.cells)
    moved = of_cells(min(bounding.max_cells or n_cells, n_cells))
    for i, step in enumerate(mechanism):
        for name, amount in amounts(step).items():
            if not isinstance(amount, int | float) or not 0 < amount < math.inf:
                continue
            family = next((NOISE_FAMILIES[one] for one in families("counts", name)), None)
            with np.errstate(over="ignore"):
                scale = amount if family is None else family.scale(float(amount), moved)
            if not SMALLEST_SCALE <= scale <= LARGEST_SCALE:
                cure = "smaller" if (scale > 1) == (name == "sigma") else "larger"
                yield Finding(("mechanism", i, name), amount, f"{cure}: noise has a scale of 2**-100 to 2**40 people")


@rule
def check_accountant_support(mechanism: Steps, accountants: Accountants, bounding: Bounding) -> Findings:
    """Reject accountants that have no theorem for the release, whether of counts or of traces."""
    route = "points" if on_points(mechanism) else "counts"
    supported = {"points": "traces, such as landmark_budget", "counts": "counts, such as composition"}[route]
    linked = next((step for step in mechanism if step.guarantee.linked), None)
    chain = Chain.of(mechanism) if mechanism and not any(misplaced(mechanism)) else None
    for i, entry in enumerate(accountants):
        key = ("accountants", i, "type")
        if route not in entry.stages:
            yield Finding(key, "", f"an accountant for {supported}")
        if bounding.max_per_period is not None and not entry.bounds_periods:  # what goes makes room in later windows
            yield Finding(key, "", "composition or landmark_budget, where bounding.max_per_period is set")
        if linked is not None and not entry.prices_links:  # a recursion over windows needs a loss of each alone
            name = MECHANISMS.name_of(type(linked))
            yield Finding(key, "", f"left out: releases of {name} read other windows, too")
        if entry.follows_groups and chain is not None and (chain.reshapes or chain.bounding_windows > 1):
            text = "left to penstock attack: it follows neither steps on events nor blocks of windows"
            yield Finding(key, "", text)


@rule
def check_landmark_measures(mechanism: Steps, accountants: Accountants) -> Findings:
    """Reject a mix of budgets in ε and budgets in ρ because they cannot be compared."""
    promised = next((step.guarantee.concentrated for step in mechanism if step.guarantee.unit == LANDMARKS), None)
    first: bool | None = None
    for i, entry in enumerate(accountants):
        if not isinstance(entry, LandmarkBudget):
            continue
        concentrated = entry.rho is not None if entry.rho is not None or entry.budget is not None else promised
        if None not in (first, concentrated) and concentrated != first:
            key, value = ("rho", entry.rho) if concentrated else ("budget", entry.budget)
            yield Finding(("accountants", i, key), value, "in the measure of the landmark_budget before it, ε or ρ")
        first = concentrated if first is None else first


# Rules about traces.

#: The one metric of traces.
METRIC = "mae"


def on_points(mechanism: Steps) -> bool:
    """Return whether a mechanism releases traces instead of counts."""
    return any(step.guarantee.on_points for step in mechanism)


@rule
def check_trace_sections(
    mechanism: Steps, windows: Windows, bounding: Bounding, typical_count: float | None
) -> Findings:
    """Reject event steps and contribution bounds in a trace release because both apply to counts."""
    if not on_points(mechanism):
        if windows.per_event:
            expected = "a mechanism on points, such as planar_laplace, since windows are timestamps"
            yield Finding(("mechanism", len(mechanism) - 1, "type"), "", expected)
        return
    if not windows.per_event:
        yield Finding(("windows", "type"), "", "timestamps, since the mechanism works on points")
    if len(mechanism) > 1:
        yield Finding(("mechanism", 0, "type"), "", "left out: on traces the mechanism stands alone")
    if bounding != Bounding():
        yield Finding(("bounding",), bounding, "left out: it bounds contributions to counts, not traces")
    if typical_count is not None:
        yield Finding(("typical_count",), typical_count, "left out: traces have no counts")


@rule
def check_count_landmarks(mechanism: Steps, landmarks: Landmarks | None) -> Findings:
    """Reject landmarks that are detected in or drawn from individual traces if the run releases counts."""
    for name, noun in (("stay_points", "stay points"), ("drawn", "points to draw from")):
        if not on_points(mechanism) and (value := getattr(landmarks, name, None)) is not None:
            yield Finding(("landmarks", name), value, f"left out: counts have no {noun}")
