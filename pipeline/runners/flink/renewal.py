"""Renew a streaming job through a savepoint before its readers reach the number of turns that older Beam runners
survive.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from typing import Any

from penstock.pipeline.config.plan import Plan
from penstock.pipeline.monitoring import logs
from penstock.pipeline.output.files import READERS, parts_folder
from penstock.pipeline.runners.flink.jobs import ask, checkpoints_folder, own_jobs

#: Turns of one reader after which a job is renewed at the next end of a window; and of all readers, at least.
#:
#: Beam's runner names the state of a turn by its bundle and its place in it (``BundleCheckpointHandlers`` of 2.62), and
#: a job that goes on from a savepoint begins with bundle 0 again. So the names of one reader are taken again, and those
#: of several in one slot come to their number times the bundles of a job at most, whose limit is 32,767. Which readers
#: share a slot nobody tells. Up to four of them stay below the limit whatever the bundles are.
TURNS, MIN_TURNS = 10_000, 5_000
#: Part of these turns more after which it is not waited for the end of a window any longer.
_PATIENT = 0.4
#: Seconds between two looks, between two questions whether a savepoint is there, until it has to be, and after which
#: a renewal that has failed is tried again.
_INTERVAL, _PAUSE, _PATIENCE, _RETRY_INTERVAL = 1.0, 0.2, 300.0, 60.0


class Renewal:
    """Renewal of a run's job through Flink's REST service."""

    def __init__(self, plan: Plan, service: str, *, ask: Callable[..., Any] = ask, interval: float = _INTERVAL) -> None:
        self._plan, self._service, self._ask, self._interval = plan, service, ask, interval
        self._next, self._released = 0.0, ""
        #: Whether Flink was asked to stop the job, which it may do after the driver has given up waiting.
        self.was_asked = False
        shutil.rmtree(parts_folder(plan, READERS), ignore_errors=True)  # of the job before

    def is_due(self) -> bool:
        """Return whether to renew the job now: a window has just ended, or the limit is near."""
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + self._interval
        readers = parts_folder(self._plan, READERS).glob("*.json")
        n_turns = [json.loads(path.read_bytes())["turns"] for path in readers]
        maximum = max(TURNS / max(1, len(n_turns)), MIN_TURNS)
        if sum(n_turns) < maximum:
            return False
        names = (path.name for path in parts_folder(self._plan, "releases").glob("*.parquet"))
        before, self._released = self._released, max(names, default="none")
        return sum(n_turns) >= (1 + _PATIENT) * maximum or before not in ("", self._released)

    def stop(self) -> bool:
        """Stop the job with a savepoint in the run's folder. Return False if this fails and the job goes on."""
        begun = time.monotonic()
        try:
            savepoint = self._savepoint(begun + _PATIENCE)
        except (OSError, LookupError, StopIteration) as error:
            logs.problem("the job of Flink could not be renewed; it is tried again", error=str(error))
            self._next = time.monotonic() + _RETRY_INTERVAL
            return False
        seconds = round(time.monotonic() - begun, 1)
        logs.event("job of Flink stopped with a savepoint, to be renewed", savepoint=savepoint, seconds=seconds)
        return True

    def _savepoint(self, until: float) -> str:
        """Stop the job with a savepoint and return the savepoint's address."""
        states = {job: self._ask(f"{self._service}/jobs/{job}").get("state") for job in own_jobs(self._plan)}
        job = next(job for job, state in states.items() if state == "RUNNING")
        target = {"targetDirectory": checkpoints_folder(self._plan).as_uri(), "drain": False}
        self.was_asked = True  # a busy Flink may have heard of it though its answer comes too late
        request = self._ask(f"{self._service}/jobs/{job}/stop", "POST", body=target)["request-id"]
        while time.monotonic() < until:
            answer = self._ask(f"{self._service}/jobs/{job}/savepoints/{request}")
            if answer["status"]["id"] == "COMPLETED":
                return str(answer["operation"]["location"])
            time.sleep(_PAUSE)
        raise TimeoutError(f"no savepoint in {_PATIENCE:.0f} s")
