"""Conditions between sections, one small function each.

A rule names the sections it reads as its parameters; it is asked only if all of them could be built, so that one run
of the checks reports everything that can be known to be wrong. It yields a `Finding` for every violation.
"""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from accountants.core.accountant import ACCOUNTANTS, Accountant
from mechanisms.core.errors import DataError, ParameterError
from mechanisms.core.mechanism import MECHANISMS, Mechanism
from pipeline.configuration.canonical import input_paths
from pipeline.configuration.document import Mapping, Path, Problem, locate, shown
from pipeline.configuration.sections import Output
from pipeline.configuration.values import A_TIME, format_duration, format_time
from pipeline.landmarks import Landmarks
from pipeline.sensors import Sensors
from pipeline.source import Source
from pipeline.space import Space
from pipeline.window import Calendar, Windows


@dataclass(frozen=True)
class Finding:
    """A violated rule: where, which value (None: it is missing), and what would be right."""

    path: Path
    value: Any
    right: str


Rule = Callable[..., Iterator[Finding]]
RULES: list[Rule] = []

#: A hundred years of hours and a thousand times more than anybody reads.
MAX_WINDOWS = 10_000_000

MAX_CELLS = 10_000_000

#: Accountants without a theorem for an event that is in more than one window.
_NO_OVERLAP = ("landmark_budget", "temporal", "reconstruction")


def rule(function: Rule) -> Rule:
    """Register a rule."""
    RULES.append(function)
    return function


def broken_rules(root: Mapping, known: dict[str, Any]) -> list[Problem]:
    """Problems of all rules whose sections are known, on the lines they are about."""
    problems = []
    for check in RULES:
        names = inspect.signature(check).parameters
        if not set(names) <= set(known):
            continue
        for finding in check(**{name: known[name] for name in names}):
            place, node = locate(root, finding.path)
            if finding.value is None:
                text = f"missing; it must be {finding.right}"
            else:
                value = shown(node) if node is not None else repr(finding.value)
                text = f"{value} is not allowed; it must be {finding.right}"
            problems.append(Problem(place, finding.path, text))
    return problems


def _calendar(source: Source, windows: Windows) -> Calendar | None:
    """Windows of a finite run whose numbering works and is not too long; None otherwise."""
    if any(windows_can_be_numbered(source, windows)) or source.until is None:
        return None
    if source.from_ is None and windows.origin is None:
        return None
    return windows.calendar(source.from_, source.until)


@rule
def source_has_a_start(source: Source, windows: Windows) -> Iterator[Finding]:
    """Windows are numbered from the start of the source, or from their origin."""
    if source.from_ is None and windows.origin is None:
        yield Finding(("source", "from"), None, f"{A_TIME} (the first window starts there)")


@rule
def source_has_an_end(source: Source) -> Iterator[Finding]:
    """A source that ends needs to say where, so that no public number of windows is read from private data."""
    if source.until is None and not getattr(source, "endless", False):
        yield Finding(("source", "until"), None, f"{A_TIME} (the run ends there)")


@rule
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


@rule
def places_come_from_the_source(source: Source, space: Space) -> Iterator[Finding]:
    """A space can only place events by what the source tells of them."""
    offers = getattr(source, "offers", None)
    if offers is not None and not set(space.reads) <= set(offers):
        right = f"a space that reads {' and '.join(offers)}, which is all the source offers"
        yield Finding(("space", "type"), type(space).__name__, right)


@rule
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


@rule
def budget_period_holds_a_window(budget_period: int | None, windows: Windows) -> Iterator[Finding]:
    """A budget period is at least as long as a window's step."""
    if budget_period is not None and budget_period < windows.step:
        yield Finding(("budget_period",), budget_period, f"at least one window ({format_duration(windows.step)})")


@rule
def one_mechanism_releases(mechanism: tuple[Mechanism, ...]) -> Iterator[Finding]:
    """Steps on events come first; exactly one mechanism, the last, releases."""
    releasing = [i for i, one in enumerate(mechanism) if one.stages != ("events",)]
    if not releasing:
        yield Finding(("mechanism",), mechanism, "a list that ends in a mechanism on counts, such as landmark_uniform")
    for i in releasing[:-1]:
        yield Finding(("mechanism", i, "type"), "", "a step on events, since a later mechanism releases")
    if releasing and releasing[-1] != len(mechanism) - 1:
        yield Finding(("mechanism", len(mechanism) - 1, "type"), "", "before the mechanism that releases")


@rule
def landmark_mechanisms_have_landmarks(
    mechanism: tuple[Mechanism, ...], landmarks: Landmarks | None
) -> Iterator[Finding]:
    """A landmark budget cannot be divided without landmarks."""
    for i, one in enumerate(mechanism):
        if "landmark" in one.guarantee.unit and landmarks is None:
            name = MECHANISMS.name_of(type(one))
            yield Finding(
                ("landmarks",), None, f"a section with windows, times or recurring (mechanism[{i}] is {name})"
            )


@rule
def landmarks_are_in_the_run(landmarks: Landmarks | None, source: Source, windows: Windows) -> Iterator[Finding]:
    """Listed landmark windows and times are in the run."""
    calendar = _calendar(source, windows)
    if landmarks is None or calendar is None or calendar.n_windows is None:
        return
    n_windows = calendar.n_windows
    for i, index in enumerate(landmarks.windows):
        if index > n_windows:
            yield Finding(("landmarks", "windows", i), index, f"a window of the run, from 1 to {n_windows}")
    for i, entry in enumerate(landmarks.times):
        if not Landmarks(times=(entry,)).count(calendar):
            begin, end = format_time(calendar.start(1)), format_time(calendar.end(n_windows))
            yield Finding(("landmarks", "times", i), entry, f"in the run, between {begin} and {end}")


@rule
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


@rule
def accountants_are_different(accountants: tuple[Accountant, ...]) -> Iterator[Finding]:
    """Two equal accountants would write every row twice."""
    for i, one in enumerate(accountants):
        if one in accountants[:i]:
            yield Finding(("accountants", i, "type"), "", f"different from accountants[{accountants.index(one)}]")


@rule
def overlapping_windows_are_accounted(accountants: tuple[Accountant, ...], windows: Windows) -> Iterator[Finding]:
    """Some theorems hold only where an event is in one window."""
    for i, one in enumerate(accountants):
        if windows.step < windows.size and ACCOUNTANTS.name_of(type(one)) in _NO_OVERLAP:
            yield Finding(("accountants", i, "type"), "", "an accountant for overlapping windows, such as composition")


@rule
def output_is_not_an_input(output: Output, source: Source, space: Space, sensors: Sensors) -> Iterator[Finding]:
    """A run never writes where it reads."""
    inputs = {os.path.realpath(path) for section in (source, space, sensors) for path in input_paths(section)}
    if os.path.realpath(output.path) in inputs:
        yield Finding(("output", "path"), output.path, "another folder than the inputs")
    elif os.path.exists(output.path) and not os.path.isdir(output.path):
        yield Finding(("output", "path"), output.path, "a folder, not an existing file")


@rule
def key_follows_mode(mode: str, seed: int | None, noise_key: str | None) -> Iterator[Finding]:
    """A seed makes noise that anybody can undo; only a secret key protects a deployment."""
    if mode == "deployment" and seed is not None:
        yield Finding(("seed",), seed, "left out in a deployment (whoever knows the seed can remove the noise)")
    if mode == "deployment" and noise_key is None:
        right = "the path of a key file or env:NAME in a deployment ('penstock key new' makes one)"
        yield Finding(("noise_key",), None, right)
    if mode == "simulation" and noise_key is not None:
        yield Finding(("noise_key",), noise_key, "left out in a simulation, whose noise comes from the seed")


@rule
def key_stays_out_of_the_output(noise_key: str | None, output: Output) -> Iterator[Finding]:
    """What lies in the output folder may be handed on."""
    if noise_key is None or noise_key.startswith("env:"):
        return
    folder = os.path.realpath(output.path)
    if os.path.commonpath([folder, os.path.realpath(noise_key)]) == folder:
        yield Finding(("noise_key",), noise_key, "a file outside the output folder")


@rule
def deployed_cells_are_public(mode: str, space: Space) -> Iterator[Finding]:
    """A cell list taken from private data tells of it."""
    if mode == "deployment" and space.derived_from_data:
        yield Finding(("space",), space, "a list of places from elsewhere, not the most visited of the private data")


@rule
def deployed_mechanisms_have_a_guarantee(
    mode: str, mechanism: tuple[Mechanism, ...], allow_no_guarantee: bool
) -> Iterator[Finding]:
    """A deployment releases through a mechanism with a guarantee, unless that is waived in so many words."""
    for i, one in enumerate(mechanism):
        if mode == "deployment" and not allow_no_guarantee and not one.guarantee.exists and one.stages != ("events",):
            right = "a mechanism with a guarantee in a deployment (or set allow_no_guarantee: true)"
            yield Finding(("mechanism", i, "type"), "", right)


@rule
def deployed_noise_is_exact(mode: str, mechanism: tuple[Mechanism, ...]) -> Iterator[Finding]:
    """Floating-point noise carries traces of the count (Mironov 2012)."""
    for i, one in enumerate(mechanism):
        family = getattr(one, "noise", None)
        if mode == "deployment" and family in ("laplace", "gaussian") and "counts" in one.stages:
            key = "type" if MECHANISMS.name_of(type(one)) == family else "noise"
            yield Finding(("mechanism", i, key), family, f"discrete_{family} in a deployment")


@rule
def deployed_calibration_is_sound(mode: str, mechanism: tuple[Mechanism, ...]) -> Iterator[Finding]:
    """The papers' calibrations are for comparison."""
    for i, one in enumerate(mechanism):
        if mode == "deployment" and getattr(one, "calibration", None) == "paper":
            yield Finding(("mechanism", i, "calibration"), "paper", "sound in a deployment")


@rule
def deployment_keeps_no_truth(mode: str, utility: tuple[str, ...]) -> Iterator[Finding]:
    """Utility compares with the truth, which a deployment does not keep."""
    if mode == "deployment" and utility:
        yield Finding(("utility",), utility, "left out in a deployment, which keeps no true counts")


@rule
def deployed_rows_are_people(mode: str, source: Source) -> Iterator[Finding]:
    """Where a row is no person, no guarantee for people can be given."""
    if mode == "deployment" and not source.has_people:
        yield Finding(("source", "type"), "", "a source whose rows belong to people, in a deployment")
