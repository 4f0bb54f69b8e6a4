"""Beam metrics of a run, in the namespace ``penstock``: the runner collects them from its workers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from apache_beam.metrics.metric import Metrics

from penstock.pipeline.monitoring.metrics import REGISTRY, Measure


def report_to_beam() -> None:
    """Forward what this process records to Beam too; called in the set-up of every step."""
    REGISTRY.forward = _update


def _update(measure: Measure, amount: float, value: str) -> None:
    if measure.beam is not None:
        _updater(measure, value)(round(amount * measure.per_unit))


@cache
def _updater(measure: Measure, value: str) -> Callable[[int], None]:
    """The method of Beam's metric that takes a number."""
    name = measure.beam_name(value)
    updater: Callable[[int], None]
    if measure.kind == "counter":
        updater = Metrics.counter("penstock", name).inc
    elif measure.kind == "gauge":
        updater = Metrics.gauge("penstock", name).set
    else:
        updater = Metrics.distribution("penstock", name).update
    return updater
