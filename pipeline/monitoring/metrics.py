"""A run's metrics and health: their definitions, visibility and recording.

A measure is *public* if it is a function of the configuration and of the releases; otherwise it is the operator's. Rows
by outcome are exact counts of private events: repeated readings would subtract the noise of a window. They are never
split by cell, window or user, and are served to this machine only (`penstock.pipeline.monitoring.server`).
"""

from __future__ import annotations

import collections
import math
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from penstock.mechanisms.core.contract import ACTIONS
from penstock.pipeline.monitoring import logs

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram

    from penstock.pipeline.counting.ingest import RowCounts
    from penstock.pipeline.releasing.release import Batch


#: Upper bounds of a histogram's buckets, in seconds.
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

#: Seconds without a heartbeat after which a stream counts as stuck; it sends several a second.
PATIENCE = 120.0


@dataclass(frozen=True)
class MetricDefinition:
    """Definition of a metric."""

    name: str  # in Prometheus, after penstock_
    kind: Literal["counter", "gauge", "histogram"]
    doc: str
    public: bool
    beam: str | None = None  # name in Beam, whose metrics are integers; None: not reported to Beam
    per_unit: int = 1  # Beam's units in one
    label: str | None = None
    values: tuple[str, ...] = ()  # all values of the label

    def beam_name(self, value: str = "") -> str:
        """Return the metric's name in Beam for one label value, such as ``rows_used``."""
        return "_".join(filter(None, (self.beam, value)))


_MILLION = 1_000_000
_OUTCOMES = ("used", "late", "out_of_area", "out_of_time", "rejected")
ROWS = MetricDefinition(
    "rows_total", "counter", "Rows read, by what became of them.", False, "rows", label="fate", values=_OUTCOMES
)
POINTS = MetricDefinition("points_total", "counter", "Points of traces released.", False, "points")
WINDOWS = MetricDefinition(
    "windows_total", "counter", "Windows released, by action.", True, "windows", label="action", values=ACTIONS
)
EPSILON = MetricDefinition(
    "epsilon_total", "counter", "Sum of the ε of this process's releases.", True, "epsilon_millionths", _MILLION
)
BUDGET_LEFT = MetricDefinition(
    "budget_left", "gauge", "ε that the current budget period has left.", True, "budget_left_millionths", _MILLION
)
LAST_WINDOW = MetricDefinition("last_window", "gauge", "Number of the latest window released.", True, "last_window")
_END = "last_window_end_seconds"
LAST_WINDOW_END = MetricDefinition(
    _END, "gauge", "End of the latest window released, in seconds since 1970.", True, _END
)
LATEST_EVENT = MetricDefinition(
    "latest_event_seconds",
    "gauge",
    "Clock of a local stream: its latest arrival or event, in seconds since 1970.",
    False,
)
WATERMARK = MetricDefinition(
    "watermark_seconds", "gauge", "Watermark of a stream, in seconds since 1970: windows end by it.", False
)
DUE = MetricDefinition("windows_due", "gauge", "Windows of a stream that are final and not released yet.", False)
RELEASE_DELAY = MetricDefinition(
    "release_delay_seconds",
    "histogram",
    "Time from a window being final to its release being written; streams only.",
    False,
    "release_delay_milliseconds",
    1000,
)
CHECKPOINT = MetricDefinition(
    "last_checkpoint_seconds", "gauge", "When a stream was last written down, in seconds since 1970.", False
)
CHECKPOINT_BYTES = MetricDefinition(
    "checkpoint_bytes", "gauge", "Size of the latest checkpoint: what open windows take.", False
)
PERIODS_CLOSED = MetricDefinition(
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


class Listener:
    """Base class for listeners to a run's events. As with `logging`, instrumented code does not refer to them."""

    def record(self, measure: MetricDefinition, amount: float, value: str = "") -> None:
        """Record a counter increment, a gauge value or a histogram observation."""

    def take_over(self, measure: MetricDefinition, level: float, value: str = "") -> None:
        """Record the value of a counter or gauge that a cluster's workers maintain."""

    def set_state(self, state: str) -> None:
        """Record the run's state: ``running``, ``draining`` (stop requested), ``ended`` or ``failed``."""

    def beat(self) -> None:
        """Record a stream's heartbeat."""


class ListenerSet:
    """A run's listeners. A pickled copy refers to the same listeners in this process and to none in any other."""

    def __init__(self, *listeners: Listener) -> None:
        self.listeners = tuple(dict.fromkeys(listeners))
        self._key = uuid.uuid4().hex
        _AUDIENCES[self._key] = self

    def __reduce__(self) -> tuple[Callable[[str], ListenerSet], tuple[str]]:
        return _audience, (self._key,)


#: Where pickled copies find theirs. It keeps none: an audience ends with its block and the steps that hold it.
_AUDIENCES: weakref.WeakValueDictionary[str, ListenerSet] = weakref.WeakValueDictionary()
#: Of the block that runs in this thread.
_AUDIENCE: ContextVar[ListenerSet | None] = ContextVar("audience", default=None)


def _audience(key: str) -> ListenerSet:
    return _AUDIENCES.get(key) or ListenerSet()


def current_listeners() -> ListenerSet:
    """Return the listeners of the current block."""
    return _AUDIENCE.get() or ListenerSet()


@contextmanager
def listening(*listeners: Listener) -> Iterator[None]:
    """Register listeners for whatever this thread runs in the block. Equal listeners are notified only once."""
    before = _AUDIENCE.set(ListenerSet(*current_listeners().listeners, *listeners))
    try:
        yield
    finally:
        _AUDIENCE.reset(before)


class RunMetrics(Listener):
    """A run's metrics in two Prometheus registries, ``everything`` and ``public``.

    A metric is registered with its first value, so that a gauge is absent until it is set; counters begin at 0.

    >>> registry = RunMetrics()
    >>> registry.record(WINDOWS, 2, "published")
    >>> registry.value(WINDOWS, "published")
    2.0
    """

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry  # loads a web server

        self._lock = threading.Lock()
        self.everything, self.public = CollectorRegistry(), CollectorRegistry()
        self._metrics: dict[MetricDefinition, Counter | Gauge | Histogram] = {}
        for measure in MEASURES:
            if measure.kind == "counter":
                self._metric(measure)

    def record(self, measure: MetricDefinition, amount: float, value: str = "") -> None:
        """Increment a counter, set a gauge or add an observation to a histogram."""
        metric = self._metric(measure, value)
        if measure.kind == "counter":
            metric.inc(amount)
        elif measure.kind == "gauge":
            metric.set(amount)
        else:
            metric.observe(amount)

    def take_over(self, measure: MetricDefinition, level: float, value: str = "") -> None:
        """Set a counter or gauge to the value reported by a cluster's workers."""
        if measure.kind == "counter":
            before = self.value(measure, value) or 0.0
            if level < before:  # the engine went back to an earlier checkpoint
                self._metric(measure, value).reset()
                before = 0.0
            level -= before
        self.record(measure, level, value)

    def value(self, measure: MetricDefinition, value: str = "") -> float | None:
        """Return the value of a counter or gauge for one label value, or None if it has not been set."""
        labels = {measure.label: value} if measure.label else {}
        return self.everything.get_sample_value(f"penstock_{measure.name}", labels)

    def total(self, measure: MetricDefinition) -> float:
        """Return the sum of a metric over all label values."""
        return sum(self.value(measure, value) or 0.0 for value in measure.values or ("",))

    def _metric(self, measure: MetricDefinition, value: str = "") -> Any:
        """Return the Prometheus counter, gauge or histogram for one label value."""
        with self._lock:
            if (metric := self._metrics.get(measure)) is None:
                from prometheus_client import Counter, Gauge, Histogram

                name, labels = f"penstock_{measure.name}", [measure.label] if measure.label else []
                if measure.kind == "histogram":
                    metric = Histogram(name, measure.doc, labels, buckets=SECONDS, registry=None)
                else:
                    kind = Counter if measure.kind == "counter" else Gauge
                    metric = kind(name, measure.doc, labels, registry=None)
                for known in measure.values:  # at 0 from the beginning
                    metric.labels(known)
                self._metrics[measure] = metric
                self.everything.register(metric)
                if measure.public:
                    self.public.register(metric)
        return metric.labels(value) if value else metric


class Health(Listener):
    """A run's liveness, readiness and state: ``starting``, ``running``, ``draining``, ``ended`` or ``failed``.

    >>> health = Health()
    >>> with listening(health), running():
    ...     health.state, health.ready
    ('running', True)
    >>> health.state, health.live, health.ready
    ('ended', True, False)
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.state = "starting"
        self._clock = clock
        self._beat: float | None = None

    def set_state(self, state: str) -> None:
        """Record the run's state. A run that has ended needs no heartbeat."""
        self.state = state
        if state == "ended":
            self._beat = None

    def beat(self) -> None:
        """Record a heartbeat. After the first one, another is expected within `PATIENCE`."""
        self._beat = self._clock()

    @property
    def live(self) -> bool:
        """Return whether the process is alive."""
        is_stalled = self._beat is not None and self._clock() - self._beat > PATIENCE
        return self.state != "failed" and not is_stalled

    @property
    def ready(self) -> bool:
        """Return whether the run is reading and releasing."""
        return self.state == "running" and self.live


# What a run tells.


def record(measure: MetricDefinition, amount: float, value: str = "") -> None:
    """Report a metric to every listener."""
    for listener in current_listeners().listeners:
        listener.record(measure, amount, value)


def take_over(measure: MetricDefinition, level: float, value: str = "") -> None:
    """Report a value maintained by a cluster's workers to every listener."""
    for listener in current_listeners().listeners:
        listener.take_over(measure, level, value)


@contextmanager
def running() -> Iterator[None]:
    """Report that a run has started on entry to the block, and that it has ended on exit."""
    set_state("running")
    try:
        yield
    except BaseException:
        set_state("failed")
        raise
    set_state("ended")


def set_state(state: str) -> None:
    """Report a change of the run's state (`Listener.set_state`)."""
    for listener in current_listeners().listeners:
        listener.set_state(state)


def beat() -> None:
    """Report that a stream is alive."""
    for listener in current_listeners().listeners:
        listener.beat()


def read_rows(counts: RowCounts) -> None:
    """Count rows by outcome. Called once per block of events."""
    amounts = {name: getattr(counts, name) for name in ("used", "late", "out_of_area", "out_of_time")}
    for value, amount in (amounts | {"rejected": sum(counts.rejected.values())}).items():
        if amount:
            record(ROWS, amount, value)


def released(batch: Batch, last_end: int) -> None:
    """Record a batch of releases. ``last_end`` is the end of the batch's last window in milliseconds since 1970."""
    if not batch.releases:
        return
    for action, n_windows in collections.Counter(str(release.action) for release in batch.releases).items():
        record(WINDOWS, n_windows, action)
    record(EPSILON, sum(charge.epsilon for charge in batch.charges if math.isfinite(charge.epsilon)))
    if batch.budget_left is not None:
        record(BUDGET_LEFT, batch.budget_left)
    first, last = batch.releases[0].window, batch.releases[-1].window
    record(LAST_WINDOW, last)
    record(LAST_WINDOW_END, last_end / 1000)
    logs.event("windows released", first=first, last=last, budget_left=batch.budget_left)


def period_closed(period: int) -> None:
    """Record that a user shard is excluded for the rest of a budget period."""
    record(PERIODS_CLOSED, 1)
    logs.event("budget period closed", period=period)


def written(final_at: float | None) -> None:
    """Record the delay from the last window's end (seconds since 1970) until a stream's releases were on disk."""
    if final_at is not None:
        record(RELEASE_DELAY, max(0.0, time.time() - final_at))


def reached(time_of_event: int, watermark: int) -> None:
    """Record the latest event time and the watermark of a local stream, both in milliseconds since 1970."""
    if time_of_event > 0:
        record(LATEST_EVENT, time_of_event / 1000)
        record(WATERMARK, watermark / 1000)


def checkpoint_written(n_bytes: int) -> None:
    """Record that a local stream wrote a checkpoint."""
    record(CHECKPOINT, time.time())
    record(CHECKPOINT_BYTES, n_bytes)
    logs.event("checkpoint written", bytes=n_bytes)
