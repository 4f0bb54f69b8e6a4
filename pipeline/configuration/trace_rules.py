"""Conditions on runs that release traces, and on what only they can have."""

from __future__ import annotations

from collections.abc import Iterator

from accountants.core.accountant import Accountant
from mechanisms.core.mechanism import Mechanism
from pipeline.configuration.rule import Finding, Rule
from pipeline.configuration.sections import Bounding
from pipeline.landmarks import Landmarks
from pipeline.space import Space
from pipeline.window import Windows

#: The one metric of traces.
METRIC = "mae"


def _on_points(mechanism: tuple[Mechanism, ...]) -> bool:
    return any(one.on_points for one in mechanism)


def traces_have_timestamps(mechanism: tuple[Mechanism, ...], windows: Windows) -> Iterator[Finding]:
    """Traces are released point by point, counts window by window."""
    if _on_points(mechanism) and not windows.per_event:
        yield Finding(("windows", "type"), "", "timestamps, since the mechanism works on points")
    if windows.per_event and not _on_points(mechanism):
        right = "a mechanism on points, such as planar_laplace, since windows are timestamps"
        yield Finding(("mechanism", len(mechanism) - 1, "type"), "", right)


def traces_need_positions(mechanism: tuple[Mechanism, ...], space: Space) -> Iterator[Finding]:
    """A trace is made of positions."""
    if _on_points(mechanism) and "latitude" not in space.reads:
        yield Finding(("space", "type"), "", "a space that reads latitude and longitude, such as grid, for traces")


def traces_are_not_counted(mechanism: tuple[Mechanism, ...], bounding: Bounding) -> Iterator[Finding]:
    """Steps on events and contribution bounds are about counts."""
    if _on_points(mechanism):
        if len(mechanism) > 1:
            yield Finding(("mechanism", 0, "type"), "", "left out: on traces the mechanism stands alone")
        if bounding != Bounding():
            yield Finding(("bounding",), bounding, "left out: it bounds contributions to counts, not traces")


def traces_are_measured_in_metres(mechanism: tuple[Mechanism, ...], utility: tuple[str, ...]) -> Iterator[Finding]:
    """The utility of traces is their mean absolute error."""
    for i, name in enumerate(utility):
        if _on_points(mechanism) and name != METRIC:
            yield Finding(("utility", i), name, f"{METRIC} (mean absolute error in metres), for traces")


def accountants_know_the_route(
    mechanism: tuple[Mechanism, ...], accountants: tuple[Accountant, ...]
) -> Iterator[Finding]:
    """An accountant has theorems for counts, for traces, or for both."""
    route = "points" if _on_points(mechanism) else "counts"
    what = {"points": "traces, such as landmark_budget", "counts": "counts, such as composition"}[route]
    for i, one in enumerate(accountants):
        if route not in one.stages:
            yield Finding(("accountants", i, "type"), "", f"an accountant for {what}")


def stay_points_are_on_traces(
    mode: str, mechanism: tuple[Mechanism, ...], landmarks: Landmarks | None
) -> Iterator[Finding]:
    """Stay points are found on each trace, from private data."""
    if landmarks is None or landmarks.stay_points is None:
        return
    if not _on_points(mechanism):
        yield Finding(("landmarks", "stay_points"), landmarks.stay_points, "left out: counts have no stay points")
    elif mode == "deployment":
        right = "left out in a deployment: where someone stays is private; give windows, times or recurring"
        yield Finding(("landmarks", "stay_points"), landmarks.stay_points, right)


RULES: tuple[Rule, ...] = (
    traces_have_timestamps,
    traces_need_positions,
    traces_are_not_counted,
    traces_are_measured_in_metres,
    accountants_know_the_route,
    stay_points_are_on_traces,
)
