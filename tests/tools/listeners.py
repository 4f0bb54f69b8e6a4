"""Stop, kill or watch runs at the points that their metrics tell of."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.pipeline.monitoring.metrics import LATEST_EVENT, Listener, MetricDefinition, listening
from penstock.pipeline.output.writer import RunWriter


class CallbackListener(Listener):
    """Pass every figure of a run to a function, which may raise."""

    def __init__(self, call: Callable[[MetricDefinition, float], None]) -> None:
        self._call = call

    def record(self, measure: MetricDefinition, amount: float, value: str = "") -> None:
        self._call(measure, amount)


@contextmanager
def after_slices(call: Callable[[int, float], None]) -> Iterator[None]:
    """Call a function after every slice of a local stream: with how many there were, and the latest time."""
    n_slices = 0

    def count_slice(measure: MetricDefinition, amount: float) -> None:
        nonlocal n_slices
        if measure is LATEST_EVENT:
            n_slices += 1
            call(n_slices, amount)

    with listening(CallbackListener(count_slice)):
        yield


@contextmanager
def interrupted(when: Callable[[int, float], bool]) -> Iterator[None]:
    """Press Ctrl-C after the first slice for which ``when`` holds."""
    pressed = False

    def press(n_slices: int, latest: float) -> None:
        nonlocal pressed
        if not pressed and when(n_slices, latest):
            pressed = True
            os.kill(os.getpid(), signal.SIGINT)

    with after_slices(press):
        yield


@contextmanager
def after_writes(call: Callable[[RunWriter, Any], None]) -> Iterator[None]:
    """Call a function after every write of releases or points, which may raise as where a run is killed."""
    with pytest.MonkeyPatch.context() as patch:
        for write in (RunWriter.releases, RunWriter.traces):

            def writing(writer: RunWriter, written: Any, *rest: Any, write: Any = write, **named: Any) -> None:
                write(writer, written, *rest, **named)
                call(writer, written)

            patch.setattr(RunWriter, write.__name__, writing)
        yield
