"""Jobs that a run has on a cluster of Flink, ended through its REST service: a job server only lets go of them."""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.error
import urllib.request
from typing import Any

from pipeline import logs
from pipeline.cluster.plans import checkpoints_folder
from pipeline.plan import Plan

_JOB = re.compile("[0-9a-f]{32}")
_OVER = ("CANCELED", "FINISHED", "FAILED")
#: Seconds that jobs have to end in, between two looks, and for an answer.
_PATIENCE, _PAUSE, _ANSWER = 60.0, 0.2, 10.0


def cancel_jobs(plan: Plan, master: str) -> bool:
    """Cancel what a run still has on a cluster, and wait until it writes nothing more; checkpoints stay.

    Those in the folder of the run are its own, and no others are touched.

    Parameters
    ----------
    plan
        The run.
    master
        Host and port of the job manager's REST service; nothing is done for an embedded Flink, ``[local]``.

    Returns
    -------
    Whether none is left as far as the cluster can tell; otherwise a line of the log says so.
    """
    service = service_of(master)
    if service is None:
        return True
    deadline = time.monotonic() + _PATIENCE
    try:
        left = [job for job in own_jobs(plan) if _state(service, job) not in _OVER]
        for job in left:
            ask(f"{service}/jobs/{job}?mode=cancel", "PATCH")
        while left and time.monotonic() < deadline:
            time.sleep(_PAUSE)
            left = [job for job in left if _state(service, job) not in _OVER]
    except OSError as error:
        logs.problem("the cluster did not answer when its jobs were to be cancelled", error=type(error).__name__)
        return False
    if left:
        logs.problem("jobs of this run go on in the cluster: cancel them there", jobs=left)
    return not left


def own_jobs(plan: Plan) -> list[str]:
    """Jobs that a run has or had: Flink names the folders of checkpoints after them."""
    return [path.name for path in checkpoints_folder(plan).glob("*") if _JOB.fullmatch(path.name)]


def service_of(master: str) -> str | None:
    """Address of a job manager's REST service; an embedded Flink has none.

    >>> service_of("localhost:8081"), service_of("https://flink"), service_of("[local]")
    ('http://localhost:8081', 'https://flink', None)
    """
    if master.startswith("["):
        return None
    return master if "://" in master else f"http://{master}"


def ask(address: str, method: str = "GET", seconds: float = _ANSWER) -> Any:
    """What the service says; nothing where it knows no such job, or has ended it meanwhile; else an `OSError`."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method=method), timeout=seconds) as answer:
            return json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        if error.code in (404, 409):
            return {}
        raise
    except http.client.HTTPException as error:
        raise OSError(f"{type(error).__name__}: the service broke off") from None


def _state(service: str, job: str) -> str:
    """What a job does; one that the cluster does not know is over."""
    return str(ask(f"{service}/jobs/{job}").get("state", "CANCELED"))
