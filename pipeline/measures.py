"""What is measured of a run, and who may see it.

A measure is either *public*, a function of the configuration and of what has been released, or it is the operator's.
Rows by their fate are exact counts of private events: who reads them often enough can subtract a window's noise away.
So they are never split by cell, window or user, and are served to this machine only (`pipeline.metrics_server`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Upper ends of the classes of a histogram, in seconds.
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(frozen=True)
class Measure:
    """One thing that is measured.

    Parameters
    ----------
    name
        In Prometheus, after ``penstock_``.
    kind
        A counter only grows; a histogram has the classes `SECONDS`.
    doc
        What it is, in a line.
    public
        Whether it follows from public facts and releases alone, so that anybody may see it.
    label, values
        What it is split by, and the values that are there from the beginning.
    beam, per_unit
        Name in Beam, which knows whole numbers only, and how many of them are one; None: not in Beam.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    doc: str
    public: bool
    label: str | None = None
    values: tuple[str, ...] = ()
    beam: str | None = None
    per_unit: int = 1


ROWS = Measure(
    "rows_total",
    "counter",
    "Rows read, by what became of them.",
    public=False,
    label="fate",
    values=("used", "late", "out_of_area", "out_of_time", "rejected"),
    beam="rows",
)
POINTS = Measure("points_total", "counter", "Points of traces released.", public=False, beam="points")
WINDOWS = Measure(
    "windows_total",
    "counter",
    "Windows released, by action.",
    public=True,
    label="action",
    values=("published", "repeated", "suppressed", "refused"),
    beam="windows",
)
EPSILON = Measure(
    "epsilon_total",
    "counter",
    "Sum of the ε of all releases of this process.",
    public=True,
    beam="epsilon_millionths",
    per_unit=1_000_000,
)
BUDGET_LEFT = Measure(
    "budget_left",
    "gauge",
    "ε that the current budget period has left.",
    public=True,
    beam="budget_left_millionths",
    per_unit=1_000_000,
)
LAST_WINDOW = Measure("last_window", "gauge", "Number of the latest window released.", public=True, beam="last_window")
LAST_WINDOW_END = Measure(
    "last_window_end_seconds",
    "gauge",
    "End of the latest window released, in seconds since 1970.",
    public=True,
    beam="last_window_end_seconds",
)
LATEST_EVENT = Measure(
    "latest_event_seconds", "gauge", "Latest event of a local stream, in seconds since 1970.", public=False
)
RELEASE_DELAY = Measure(
    "release_delay_seconds",
    "histogram",
    "Time from a window being final to its release being written; streams only.",
    public=False,
    beam="release_delay_milliseconds",
    per_unit=1000,
)
CHECKPOINT = Measure(
    "last_checkpoint_seconds", "gauge", "When a stream was last written down, in seconds since 1970.", public=False
)
CHECKPOINT_BYTES = Measure(
    "checkpoint_bytes", "gauge", "Size of the latest checkpoint: what open windows take.", public=False
)
MEASURES = (
    *(ROWS, POINTS, WINDOWS, EPSILON, BUDGET_LEFT, LAST_WINDOW, LAST_WINDOW_END),
    *(LATEST_EVENT, RELEASE_DELAY, CHECKPOINT, CHECKPOINT_BYTES),
)
