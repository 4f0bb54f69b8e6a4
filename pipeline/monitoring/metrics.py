"""Metrics of a run: definitions, values and the exposition in Prometheus' text format."""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from pipeline.monitoring import logs

if TYPE_CHECKING:
    from pipeline.steps.ingest import Fate
    from pipeline.steps.release import Batch


# What is measured of a run, and who may see it.
#
# A measure is either *public*, a function of the configuration and of what has been released, or it is the operator's.
# Rows by their fate are exact counts of private events: who reads them often enough can subtract a window's noise away.
# So they are never split by cell, window or user, and are served to this machine only (`pipeline.monitoring.server`).


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


# Values of the measures of a run while it goes on: here, in Beam, and as Prometheus text.


class Registry:
    """Values of all measures in this process.

    Examples
    --------
    >>> registry = Registry()
    >>> registry.add(WINDOWS, 2, "published")
    >>> registry.value(WINDOWS, "published")
    2.0
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forget everything, for the next run of this process."""
        with self._lock:
            counters = (measure for measure in MEASURES if measure.kind == "counter")
            self._values: dict[tuple[str, str], float] = {
                (measure.name, value): 0.0 for measure in counters for value in measure.values or ("",)
            }
            self._observed: dict[str, list[int]] = defaultdict(lambda: [0] * (len(SECONDS) + 1))

    def add(self, measure: Measure, amount: float, value: str = "") -> None:
        """Let a counter grow."""
        with self._lock:
            key = (measure.name, value)
            self._values[key] = self._values.get(key, 0.0) + amount

    def set(self, measure: Measure, level: float, value: str = "") -> None:
        """Set a gauge, or what somebody else has counted."""
        with self._lock:
            self._values[measure.name, value] = float(level)

    def observe(self, measure: Measure, amount: float) -> None:
        """Add to a histogram."""
        with self._lock:
            place = next((i for i, end in enumerate(SECONDS) if amount <= end), len(SECONDS))
            self._observed[measure.name][place] += 1
            key = (measure.name, "")
            self._values[key] = self._values.get(key, 0.0) + amount

    def value(self, measure: Measure, value: str = "") -> float | None:
        """One value; None where nothing has been said yet."""
        with self._lock:
            return self._values.get((measure.name, value))

    def total(self, measure: Measure) -> float:
        """Sum over all values of the label."""
        with self._lock:
            return sum(amount for (name, _), amount in self._values.items() if name == measure.name)

    def exposition(self, with_operator: bool) -> str:
        """All measures in Prometheus' text format 0.0.4; the operator's only where asked for."""
        lines: list[str] = []
        with self._lock:
            for measure in MEASURES:
                own = [(value, amount) for (name, value), amount in self._values.items() if name == measure.name]
                if own and (measure.public or with_operator):
                    lines += [
                        f"# HELP penstock_{measure.name} {measure.doc}",
                        f"# TYPE penstock_{measure.name} {measure.kind}",
                        *_samples(measure, own, self._observed[measure.name]),
                    ]
        return "\n".join(lines) + "\n"


def _samples(measure: Measure, own: Iterable[tuple[str, float]], observed: list[int]) -> list[str]:
    name = f"penstock_{measure.name}"
    if measure.kind != "histogram":
        return [
            f'{name}{{{measure.label}="{value}"}} {_number(amount)}' if measure.label else f"{name} {_number(amount)}"
            for value, amount in own
        ]
    lines, so_far = [], 0
    for end, n in zip((*map(_number, SECONDS), "+Inf"), observed):
        so_far += n
        lines.append(f'{name}_bucket{{le="{end}"}} {so_far}')
    return [*lines, *(f"{name}_sum {_number(amount)}" for _, amount in own), f"{name}_count {so_far}"]


def _number(amount: float) -> str:
    return str(int(amount)) if amount == int(amount) else repr(amount)


#: What this process knows: of a local run everything, of a run on a cluster what its own workers did.
REGISTRY = Registry()


def begin() -> None:
    """Forget what an earlier run of this process has measured."""
    REGISTRY.clear()


def read_rows(fate: Fate) -> None:
    """Rows have been read; called by the steps of a graph, once for a block."""
    amounts = {name: getattr(fate, name) for name in ("used", "late", "out_of_area", "out_of_time")}
    for value, amount in (amounts | {"rejected": sum(fate.rejected.values())}).items():
        if amount:
            _add(ROWS, amount, value)


def released(batch: Batch, last_end: int) -> None:
    """A batch of releases is about to leave; ``last_end``: end of its last window, in milliseconds since 1970."""
    if not batch.releases:
        return
    for release in batch.releases:
        _add(WINDOWS, 1, str(release.action))
    for charge in batch.charges:
        if charge.epsilon != float("inf"):
            _add(EPSILON, charge.epsilon)
    if batch.budget_left is not None:
        _set(BUDGET_LEFT, batch.budget_left)
    _set(LAST_WINDOW, batch.releases[-1].window)
    _set(LAST_WINDOW_END, last_end / 1000)
    first, last = batch.releases[0].window, batch.releases[-1].window
    logs.event("windows released", first=first, last=last, budget_left=batch.budget_left)


def released_points(n: int) -> None:
    """Points of traces have been released."""
    _add(POINTS, n)


def written(final_at: float | None) -> None:
    """Releases are on disk; ``final_at``: when their last window became final, in seconds since 1970 (streams)."""
    if final_at is not None:
        delay = max(0.0, time.time() - final_at)
        REGISTRY.observe(RELEASE_DELAY, delay)
        _tell_beam(RELEASE_DELAY, delay)


def reached(time_of_event: int) -> None:
    """A local stream has come to an event at a time, in milliseconds since 1970."""
    if time_of_event > 0:
        REGISTRY.set(LATEST_EVENT, time_of_event / 1000)


def checkpoint_written(n_bytes: int) -> None:
    """A local stream has been written down."""
    REGISTRY.set(CHECKPOINT, time.time())
    REGISTRY.set(CHECKPOINT_BYTES, n_bytes)
    logs.event("checkpoint written", bytes=n_bytes)


def _add(measure: Measure, amount: float, value: str = "") -> None:
    REGISTRY.add(measure, amount, value)
    _tell_beam(measure, amount, value)


def _set(measure: Measure, level: float) -> None:
    REGISTRY.set(measure, level)
    _tell_beam(measure, level)


def _tell_beam(measure: Measure, amount: float, value: str = "") -> None:
    """Keep the same measure in Beam's own metrics, which the runner of a cluster collects.

    Where Beam is not there (yet) nobody would collect them; to import it here could wait for an import elsewhere.
    """
    own = getattr(sys.modules.get("apache_beam.metrics.metric"), "Metrics", None)
    if own is not None:
        metric, tell = _beam_metric(own, measure, value)
        getattr(metric, tell)(round(amount * measure.per_unit))


@cache
def _beam_metric(metrics: Any, measure: Measure, value: str) -> tuple[Any, str]:
    """Beam's metric, and the method that tells it a number."""
    kinds = {"counter": ("counter", "inc"), "gauge": ("gauge", "set"), "histogram": ("distribution", "update")}
    factory, tell = kinds[measure.kind]
    return getattr(metrics, factory)("penstock", "_".join(filter(None, (measure.beam, value)))), tell
