"""Metrics of remote workers, collected by Flink and served by the driver."""

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from urllib.parse import unquote

import pytest

from penstock.pipeline.monitoring.metrics import EPSILON, LAST_WINDOW, ROWS, WINDOWS, RunMetrics, listening
from penstock.pipeline.output.files import part_name, parts_folder
from penstock.pipeline.runners.flink.jobs import FlinkMeasures, cancel_jobs, checkpoints_folder

JOB = "a" * 32
#: By vertex: name, sum and largest value.
REPORTED = {
    "count": {"[3]{CountBlocks}.penstock_rows_used": (70, 40), "numRecordsIn": (9, 9)},
    "more": {"[3]{Other}.penstock_rows_used": (5, 5), "[3]{Other}.penstock_unheard_of": (1, 1)},
    "release": {
        "[3]{Release}.penstock_windows_published": (4, 4),
        "[3]{Release}.penstock_epsilon_millionths": (2_000_000, 2_000_000),
        "[3]{Release}.penstock_last_window": (8, 4),
    },
}


@pytest.fixture
def service() -> Iterator[SimpleNamespace]:
    """A job manager with one job, which tells what has been reported."""
    state = SimpleNamespace(state="RUNNING", asked=0, breaks_off=False)

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, wanted = unquote(self.path).partition("?get=")
            state.asked += 1
            if path == f"/jobs/{JOB}":
                message: object = {"state": state.state, "vertices": [{"id": name} for name in REPORTED]}
            else:
                metrics_of_job = REPORTED[path.split("/")[4]]
                message = [{"id": name} for name in metrics_of_job]
                if wanted:
                    message = [
                        {"id": name, "sum": metrics_of_job[name][0], "max": metrics_of_job[name][1]}
                        for name in wanted.split(",")
                    ]
            self.send_response(200)
            if state.breaks_off:
                self.send_header("Content-Length", "100000")
            self.end_headers()
            self.wfile.write(json.dumps(message).encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        state.master = f"127.0.0.1:{server.server_port}"
        yield state
        server.shutdown()


@pytest.fixture
def plan(tmp_path) -> SimpleNamespace:
    plan = SimpleNamespace(folder=tmp_path, streaming=False)
    (checkpoints_folder(plan) / JOB).mkdir(parents=True)
    return plan


@pytest.fixture
def registry() -> Iterator[RunMetrics]:
    with listening(registry := RunMetrics()):
        yield registry


def test_counters_are_summed_and_of_gauges_the_largest_counts(service, plan, registry):
    FlinkMeasures(plan, service.master).look()
    assert registry.value(ROWS, "used") == 75
    assert registry.value(WINDOWS, "published") == 4
    assert registry.value(EPSILON) == 2.0
    assert registry.value(LAST_WINDOW) == 4


def test_flink_is_not_asked_too_often(service, plan):
    measures = FlinkMeasures(plan, service.master)
    measures.look()
    asked = service.asked
    measures.look()
    assert service.asked == asked
    measures._next -= 10.0
    measures.look()
    assert service.asked > asked


def test_who_has_nothing_to_tell_is_no_failure(service, plan, registry):
    service.state = "CANCELED"
    for master in (service.master, "127.0.0.1:1", "[local]"):
        FlinkMeasures(plan, master).look()
    assert registry.value(ROWS, "used") == 0


def test_a_service_that_breaks_off_is_no_failure(service, plan, registry):
    service.breaks_off = True
    FlinkMeasures(plan, service.master).look()
    assert service.asked == 1
    assert not cancel_jobs(plan, service.master)
    assert registry.value(ROWS, "used") == 0


def test_a_release_is_as_late_as_its_file_is_after_the_end_of_its_last_window(service, plan, registry):
    """Those of the job before are not of this one."""
    plan.streaming, plan.grid = True, SimpleNamespace(deadline=lambda window: 1000 * (100 + 10 * window))
    folder = parts_folder(plan, "releases")
    folder.mkdir(parents=True)

    def written(first: int, last: int, time: float) -> None:
        (path := folder / f"{part_name(first, last)}.parquet").touch()
        os.utime(path, (time, time))

    def observed() -> dict[str, float | None]:
        name = "penstock_release_delay_seconds"
        names = {"n": f"{name}_count", "sum": f"{name}_sum"}
        return {key: registry.everything.get_sample_value(value) for key, value in names.items()}

    written(1, 1, 500.0)
    measures = FlinkMeasures(plan, service.master)
    written(2, 4, 142.5)
    written(5, 5, 149.0)  # clocks of machines differ
    measures.look()
    assert observed() == {"n": 2, "sum": 2.5}
    written(6, 6, 161.0)
    measures.look()  # too soon
    assert observed() == {"n": 2, "sum": 2.5}
    measures.delays()
    measures.delays()
    assert observed() == {"n": 3, "sum": 3.5}
