"""Base classes for graph steps, with the plan sent to workers, error reporting, metrics and common deadlines."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, TypeVar

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.typehints.native_type_compatibility import convert_to_beam_type
from apache_beam.utils.timestamp import Timestamp

from penstock.pipeline.config.plan import Plan
from penstock.pipeline.monitoring.metrics import Listener, MetricDefinition, current_listeners, listening
from penstock.pipeline.monitoring.redaction import redact
from penstock.pipeline.output.writer import RunWriter
from penstock.pipeline.runners.failure import is_permanent, note_failure

Result = TypeVar("Result")

#: Tag of row counts, where a step emits them beside its main output.
ROWS = "rows"
#: Milliseconds from the last deadline of a run to its end of input: engines round a watermark down to seconds.
_MARGIN = 4000


class PlanTransform(beam.PTransform[Any, Any]):  # type: ignore[misc]
    """Base class for transforms that hold the run's plan."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan


class Step(beam.DoFn):  # type: ignore[misc]
    """Base class for steps that hold the run's plan.

    The plan of a deployment travels without its noise key; `setup` reads the key on the worker. Unpickling a step reads
    no file.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.audience = plan, current_listeners()

    def __getstate__(self) -> dict[str, Any]:
        # As bytes: that a plug-in of the plan is not installed on a worker is then an error of the step.
        is_packed = isinstance(self.plan, tuple)
        return self.__dict__ | {"plan": self.plan if is_packed else (self.plan.folder, pickle.dumps(self.plan))}

    def setup(self) -> None:
        """Unpack the plan, read the noise key if it was not sent along, and call `prepare`."""
        packed: Any = self.plan
        if isinstance(packed, tuple):
            folder, data = packed
            try:
                self.plan = pickle.loads(data).with_noise_key()
            except Exception as error:  # a plug-in that is not installed; no noise key, or another one
                note_failure(folder, error)
                raise
        self.prepare()

    def prepare(self) -> None:
        """Create members that cannot be pickled."""

    def with_listeners(self, report: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function and report its metrics to this process's listeners and to Beam."""
        with listening(*self.audience.listeners, BeamMetrics()):
            return report(*arguments)


class WritingStep(Step):
    """Base class for steps that write to the run's folder."""

    def prepare(self) -> None:
        """Create the writer."""
        self.writer = RunWriter(self.plan)


def redacted(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of a `Step` so that permanent errors reach the driver and, in a deployment, all errors are
    redacted.

    >>> from types import SimpleNamespace
    >>> class Parse:
    ...     plan = SimpleNamespace(config=SimpleNamespace(mode="deployment"))
    ...     @redacted
    ...     def process(self, row):
    ...         yield float(row)
    >>> list(Parse().process("51.4778, home"))
    Traceback (most recent call last):
    pipeline.monitoring.redaction.UnforeseenError: ValueError at ...; a deployment does not repeat its words, ...
    """

    @wraps(method)
    def generator(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        with _reporting(self.plan):
            yield from method(self, *args, **kwargs)

    @wraps(method)
    def method_(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _reporting(self.plan):
            return method(self, *args, **kwargs)

    return generator if inspect.isgeneratorfunction(method) else method_


@contextmanager
def _reporting(plan: Plan) -> Iterator[None]:
    """Redact the error in a deployment, and record it if it is permanent."""
    try:
        yield
    except Exception as error:
        reported = redact(error) if plan.config.mode == "deployment" else error
        if is_permanent(error):
            note_failure(plan.folder, reported)
        if reported is error:
            raise
        raise reported from None


def final_at(plan: Plan, group: int) -> int:
    """Return when a group's last window becomes final, in milliseconds since 1970, rounded up to a `whole_second`."""
    last = group * plan.batching.group + plan.batching.windows_of(group)
    return -whole_second(-plan.grid.deadline(last))


def last_due(plan: Plan, group: int) -> int:
    """Return the last group that is final once ``group`` is counted. For finite input, this is the run's last group."""
    return group if plan.streaming else plan.batching.n_groups - 1


def end_of_input(plan: Plan) -> int | None:
    """Return the watermark in milliseconds at the end of the input, or None if the run is endless."""
    over = plan.grid.over
    return None if over is None else over + _MARGIN


def whole_second(instant: int) -> int:
    """Round a time in milliseconds down to a whole second, as Flink does with the watermarks of splittable steps.

    >>> whole_second(1999), whole_second(2000), -whole_second(-1001)
    (1000, 2000, 2000)
    """
    return instant // 1000 * 1000


def timestamp(instant: int) -> Timestamp:
    """Return the Beam timestamp for a time in milliseconds."""
    return Timestamp(micros=1000 * instant)


def typed(collection: Any, kind: Any) -> Any:
    """Declare the type of a tagged output, which Beam does not infer, so that all keys are encoded with the same
    coder.
    """
    collection.element_type = convert_to_beam_type(kind)
    return collection


@dataclass(frozen=True)
class BeamMetrics(Listener):
    """Metrics reported to Beam, whose runner aggregates them across workers."""

    def record(self, measure: MetricDefinition, amount: float, value: str = "") -> None:
        """Report a metric to Beam as a whole number of units."""
        if measure.beam is not None:
            _updater(measure, value)(round(amount * measure.per_unit))


@cache
def _updater(measure: MetricDefinition, value: str) -> Callable[[int], None]:
    """Return the function that updates the Beam metric for a metric definition."""
    make: Any = {"counter": Metrics.counter, "gauge": Metrics.gauge}.get(measure.kind, Metrics.distribution)
    made: Any = make("penstock", measure.beam_name(value))
    updater: Callable[[int], None] = getattr(made, {"counter": "inc", "gauge": "set"}.get(measure.kind, "update"))
    return updater
