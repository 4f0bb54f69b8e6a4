"""A run cancels its own jobs on a cluster, and no others."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

from penstock.pipeline.runners.flink.jobs import cancel_jobs, checkpoints_folder

OWN, ENDED, FORGOTTEN, FOREIGN = (letter * 32 for letter in "abcd")


@pytest.fixture
def service() -> Iterator[SimpleNamespace]:
    """A job manager that needs two looks to cancel a job."""
    states = {OWN: ["RUNNING", "CANCELLING", "CANCELED"], ENDED: ["FINISHED"], FOREIGN: ["RUNNING"]}
    cancelled: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = states.get(self.path.removeprefix("/jobs/"))
            self.send_response(200 if known else 404)
            self.end_headers()
            if known:
                self.wfile.write(json.dumps({"state": known.pop(0) if len(known) > 1 else known[0]}).encode())

        def do_PATCH(self) -> None:
            cancelled.append(self.path)
            self.send_response(202)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield SimpleNamespace(master=f"127.0.0.1:{server.server_port}", states=states, cancelled=cancelled)
        server.shutdown()


def plan_with(tmp_path, *jobs):
    plan = SimpleNamespace(folder=tmp_path)
    for job in (*jobs, "job_server"):
        (checkpoints_folder(plan) / job).mkdir(parents=True)
    return plan


def test_own_jobs_are_cancelled_and_waited_for(service, tmp_path):
    assert cancel_jobs(plan_with(tmp_path, OWN, ENDED, FORGOTTEN), service.master)
    assert service.cancelled == [f"/jobs/{OWN}?mode=cancel"]
    assert service.states[OWN] == ["CANCELED"]


def test_a_job_that_does_not_end_is_reported(service, tmp_path):
    service.states[OWN] = ["RUNNING"]
    assert not cancel_jobs(plan_with(tmp_path, OWN), f"http://{service.master}", seconds=0.3)


def test_a_cluster_out_of_reach_and_an_embedded_one(tmp_path):
    plan = plan_with(tmp_path, OWN)
    assert not cancel_jobs(plan, "127.0.0.1:1")
    assert cancel_jobs(plan, "[local]")
