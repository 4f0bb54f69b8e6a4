"""Prometheus metrics of a run: what is measured, who may see it, and the functions that record it.

A measure is *public* if it is a function of the configuration and of the releases; otherwise it is the operator's. Rows
by outcome are exact counts of private events: repeated readings would subtract the noise of a window. They are never
split by cell, window or user, and are served to this machine only (`penstock.pipeline.monitoring.server`).
"""

from __future__ import annotations

import collections
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from penstock.mechanisms.core.contract import ACTIONS
from penstock.pipeline.monitoring import logs

if TYPE_CHECKING:
    from penstock.pipeline.counting.ingest import RowCounts
    from penstock.pipeline.releasing.release import Batch


#: Upper bounds of a histogram's buckets, in seconds.
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(frozen=True)
class Measure:
    """Definition of one metric."""

    name: str  # in Prometheus, after penstock_
    kind: Literal["counter", "gauge", "histogram"]
    doc: str
    public: bool
    beam: str | None = None  # name in Beam, whose metrics are integers; None: not reported to Beam
    per_unit: int = 1  # Beam's units in one
    label: str | None = None
    values: tuple[str, ...] = ()  # all values of the label

    def beam_name(self, value: str = "") -> str:
        """Name in Beam of one value of the label, such as ``rows_used``."""
        return "_".join(filter(None, (self.beam, value)))


_OUTCOMES = ("used", "late", "out_of_area", "out_of_time", "rejected")
ROWS = Measure(
    "rows_total", "counter", "Rows read, by what became of them.", False, "rows", label="fate", values=_OUTCOMES
)
POINTS = Measure("points_total", "counter", "Points of traces released.", False, "points")
WINDOWS = Measure(
    "windows_total",
    "counter",
    "Windows released, by action.",
    True,
    "windows",
    label="action",
    values=ACTIONS,
)
EPSILON = Measure(
    "epsilon_total",
    "counter",
    "Sum of the ε of this process's releases.",
    True,
    "epsilon_millionths",
    1_000_000,
)
BUDGET_LEFT = Measure(
    "budget_left",
    "gauge",
    "ε that the current budget period has left.",
    True,
    "budget_left_millionths",
    1_000_000,
)
LAST_WINDOW = Measure(
    "last_window",
    "gauge",
    "Number of the latest window released.",
    True,
    "last_window",
)
_END = "last_window_end_seconds"
LAST_WINDOW_END = Measure(_END, "gauge", "End of the latest window released, in seconds since 1970.", True, _END)
LATEST_EVENT = Measure(
    "latest_event_seconds",
    "gauge",
    "Clock of a local stream: its latest arrival or event, in seconds since 1970.",
    False,
)
WATERMARK = Measure(
    "watermark_seconds", "gauge", "Watermark of a local stream, in seconds since 1970: windows end by it.", False
)
DUE = Measure("windows_due", "gauge", "Windows of a local stream that are final and not released yet.", False)
RELEASE_DELAY = Measure(
    "release_delay_seconds",
    "histogram",
    "Time from a window being final to its release being written; streams only.",
    False,
    "release_delay_milliseconds",
    1000,
)
CHECKPOINT = Measure(
    "last_checkpoint_seconds", "gauge", "When a stream was last written down, in seconds since 1970.", False
)
CHECKPOINT_BYTES = Measure("checkpoint_bytes", "gauge", "Size of the latest checkpoint: what open windows take.", False)
PERIODS_CLOSED = Measure(
    "periods_closed_total",
    "counter",
    "Budget periods that a shard of users no longer counts in: an engine went back behind a release.",
    False,
    "periods_closed",
)
MEASURES = (
    *(ROWS, POINTS, WINDOWS, EPSILON, BUDGET_LEFT, LAST_WINDOW, LAST_WINDOW_END),
    *(LATEST_EVENT, WATERMARK, DUE, RELEASE_DELAY, CHECKPOINT, CHECKPOINT_BYTES, PERIODS_CLOSED),
)


class Registry:
    """Metrics of one run in this process, in two registries of Prometheus: ``everything`` and ``public``.

    A metric is registered with its first value, so that a gauge is absent until it is set; counters begin at 0.

    >>> registry = Registry()
    >>> registry.add(WINDOWS, 2, "published")
    >>> registry.value(WINDOWS, "published")
    2.0
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Start over, for the next run of this process."""
        with self._lock:
            self.everything, self.public = CollectorRegistry(), CollectorRegistry()
            self._metrics: dict[Measure, Counter | Gauge | Histogram] = {}
            #: Called with every value too: workers of Beam report it as Beam's own metric. Elsewhere None.
            self.forward: Callable[[Measure, float, str], None] | None = None
        for measure in MEASURES:
            if measure.kind == "counter":
                self._metric(measure)

    def add(self, measure: Measure, amount: float, value: str = "") -> None:
        """Increase a counter."""
        self._metric(measure, value).inc(amount)
        self._forward(measure, amount, value)

    def set(self, measure: Measure, level: float, value: str = "") -> None:
        """Set a gauge, or a counter to what the workers of a cluster have counted."""
        metric = self._metric(measure, value)
        if measure.kind == "gauge":
            metric.set(level)
            self._forward(measure, level)
            return
        growth = level - (self.value(measure, value) or 0.0)
        if growth < 0:  # the engine went back to an earlier checkpoint
            metric.reset()
            growth = level
        metric.inc(growth)

    def observe(self, measure: Measure, amount: float) -> None:
        """Add an observation to a histogram."""
        self._metric(measure).observe(amount)
        self._forward(measure, amount)

    def value(self, measure: Measure, value: str = "") -> float | None:
        """One value of a counter or gauge; None before the first."""
        labels = {measure.label: value} if measure.label else {}
        return self.everything.get_sample_value(f"penstock_{measure.name}", labels)

    def total(self, measure: Measure) -> float:
        """Sum over all values of the label."""
        return sum(self.value(measure, value) or 0.0 for value in measure.values or ("",))

    def _metric(self, measure: Measure, value: str = "") -> Any:
        """The counter, gauge or histogram of a measure, for one value of its label."""
        with self._lock:
            metric = self._metrics.get(measure)
            if metric is None:
                metric = self._metrics[measure] = _new(measure)
                self.everything.register(metric)
                if measure.public:
                    self.public.register(metric)
        return metric.labels(value) if value else metric

    def _forward(self, measure: Measure, amount: float, value: str = "") -> None:
        if self.forward is not None:
            self.forward(measure, amount, value)


def _new(measure: Measure) -> Counter | Gauge | Histogram:
    """A metric in no registry, at 0 for every value of its label."""
    name, labels = f"penstock_{measure.name}", [measure.label] if measure.label else []
    if measure.kind == "histogram":
        return Histogram(name, measure.doc, labels, buckets=SECONDS, registry=None)
    metric = (Counter if measure.kind == "counter" else Gauge)(name, measure.doc, labels, registry=None)
    for value in measure.values:
        metric.labels(value)
    return metric


#: The metrics of this process. One object for a process and not for a run, because the steps of a Beam graph are
#: unpickled in workers without a reference to it, and because the server is up before a run begins.
REGISTRY = Registry()


def begin() -> None:
    """Forget the metrics of an earlier run of this process."""
    REGISTRY.clear()


def read_rows(counts: RowCounts) -> None:
    """Count rows by outcome; called once for a block of events."""
    amounts = {name: getattr(counts, name) for name in ("used", "late", "out_of_area", "out_of_time")}
    for value, amount in (amounts | {"rejected": sum(counts.rejected.values())}).items():
        if amount:
            REGISTRY.add(ROWS, amount, value)


def released(batch: Batch, last_end: int) -> None:
    """Record a batch of releases; ``last_end``: end of its last window, in milliseconds since 1970."""
    if not batch.releases:
        return
    for action, n_windows in collections.Counter(str(release.action) for release in batch.releases).items():
        REGISTRY.add(WINDOWS, n_windows, action)
    finite = (charge.epsilon for charge in batch.charges if math.isfinite(charge.epsilon))
    REGISTRY.add(EPSILON, sum(finite))
    if batch.budget_left is not None:
        REGISTRY.set(BUDGET_LEFT, batch.budget_left)
    first, last = batch.releases[0].window, batch.releases[-1].window
    REGISTRY.set(LAST_WINDOW, last)
    REGISTRY.set(LAST_WINDOW_END, last_end / 1000)
    logs.event("windows released", first=first, last=last, budget_left=batch.budget_left)


def released_points(n: int) -> None:
    """Count released points of traces."""
    REGISTRY.add(POINTS, n)


def period_closed(period: int) -> None:
    """Record that a shard of users counts no more in a budget period."""
    REGISTRY.add(PERIODS_CLOSED, 1)
    logs.event("budget period closed", period=period)


def written(final_at: float | None) -> None:
    """Record how long ago the last window of releases now on disk became final, in seconds since 1970 (streams)."""
    if final_at is not None:
        REGISTRY.observe(RELEASE_DELAY, max(0.0, time.time() - final_at))


def reached(time_of_event: int, watermark: int) -> None:
    """Record the latest event and the watermark of a local stream, in milliseconds since 1970."""
    if time_of_event > 0:
        REGISTRY.set(LATEST_EVENT, time_of_event / 1000)
        REGISTRY.set(WATERMARK, watermark / 1000)


def due(n_windows: int) -> None:
    """Record how many windows of a local stream are final and not released yet."""
    REGISTRY.set(DUE, n_windows)


def checkpoint_written(n_bytes: int) -> None:
    """Record a checkpoint of a local stream."""
    REGISTRY.set(CHECKPOINT, time.time())
    REGISTRY.set(CHECKPOINT_BYTES, n_bytes)
    logs.event("checkpoint written", bytes=n_bytes)
