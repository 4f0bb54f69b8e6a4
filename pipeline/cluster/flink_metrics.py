"""Measures of a run whose Python workers are elsewhere: Beam's metrics, as Flink collects them beside its own.

Beam's job service tells none before a job has ended, and that of a run is cancelled.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import quote

from pipeline.cluster.jobs import ask, own_jobs, service_of
from pipeline.measures import MEASURES, Measure
from pipeline.metrics import REGISTRY
from pipeline.plan import Plan

#: Seconds between two looks: Flink asks its task managers no more often.
_INTERVAL = 10.0
#: Seconds that an answer may take, while the driver waits.
_ANSWER = 2.0
#: What a step is called, and then the measure.
_MARK = ".penstock_"


class FlinkMeasures:
    """Counters and gauges of a job, taken over into this process's own now and then.

    Parameters
    ----------
    plan
        The run.
    master
        Host and port of the job manager's REST service; an embedded Flink has none.
    """

    def __init__(self, plan: Plan, master: str) -> None:
        self._plan, self._service, self._next = plan, service_of(master), 0.0

    def look(self) -> None:
        """Take over what Flink knows, unless that was done just now; what it does not tell now it tells next time."""
        if self._service is None or time.monotonic() < self._next:
            return
        with suppress(OSError, LookupError, TypeError, ValueError):
            found: dict[str, float] = {}
            for name, total, most in self._reported(self._service):
                before = found.get(name, 0.0)
                found[name] = before + total if _MEASURES[name][0].kind == "counter" else max(before, most)
            for name, amount in found.items():
                measure, value = _MEASURES[name]
                REGISTRY.set(measure, amount / measure.per_unit, value)
        self._next = time.monotonic() + _INTERVAL

    def _reported(self, service: str) -> Iterator[tuple[str, float, float]]:
        """Name of each measure in Beam, with its sum and its largest value over parallel steps."""
        for job in own_jobs(self._plan):
            said = ask(f"{service}/jobs/{job}", seconds=_ANSWER)
            for vertex in said.get("vertices", ()) if said.get("state") == "RUNNING" else ():
                address = f"{service}/jobs/{job}/vertices/{vertex['id']}/subtasks/metrics"
                names = [metric["id"] for metric in ask(address, seconds=_ANSWER) if _name(metric["id"]) in _MEASURES]
                if names:
                    for metric in ask(f"{address}?get={quote(','.join(names))}", seconds=_ANSWER):
                        yield _name(metric["id"]), float(metric["sum"]), float(metric["max"])


def _name(identifier: str) -> str:
    """What a metric of Flink's is called in Beam; nothing for Flink's own.

    >>> _name("[3]{Replay__CountBlocks}.penstock_rows_used"), _name("numRecordsIn")
    ('rows_used', '')
    """
    return identifier.partition(_MARK)[2]


def _beam_names() -> Iterator[tuple[str, tuple[Measure, str]]]:
    for measure in MEASURES:
        if measure.beam is not None and measure.kind != "histogram":
            for value in measure.values or ("",):
                yield "_".join(filter(None, (measure.beam, value))), (measure, value)


_MEASURES = dict(_beam_names())
