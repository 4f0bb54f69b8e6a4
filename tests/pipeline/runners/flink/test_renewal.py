"""Renewal of Flink jobs, with and without a savepoint."""

from __future__ import annotations

import os
import signal
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
from apache_beam.runners.runner import PipelineState

from penstock.pipeline import atomic
from penstock.pipeline.output import files
from penstock.pipeline.output.checkpoint import MARK
from penstock.pipeline.runners.beam import jobs
from penstock.pipeline.runners.flink import runner
from penstock.pipeline.runners.flink.renewal import MIN_TURNS, TURNS, Renewal

JOB = "a" * 32
NOW = TURNS * 7 // 5


class InACycle:
    """Object that no count of references frees."""

    itself: object


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "operator" / "checkpoint" / "flink" / JOB).mkdir(parents=True)
    return SimpleNamespace(folder=tmp_path, streaming=True)


def renewal_of(plan, ask=None):
    turns(plan, 0, NOW)  # of the job before
    return Renewal(plan, "http://flink", ask=ask, interval=0.0)


@pytest.fixture
def own(plan):
    return renewal_of(plan)


def turns(plan, reader: int, n_turns: int) -> None:
    atomic.write_json(
        files.parts_folder(plan, files.READERS) / f"{reader:03d}.json", {"turns": n_turns, "watermark": 0}
    )


def release(plan, window: int) -> None:
    path = files.parts_folder(plan, "releases") / f"{files.part_name(window, window)}.parquet"
    atomic.write_first(path, b"")


def test_a_job_is_renewed_when_a_window_has_just_ended(plan, own):
    assert not own.is_due()  # those of the job before do not count
    turns(plan, 0, TURNS - 1)
    release(plan, 1)
    assert not own.is_due()
    turns(plan, 0, TURNS)
    assert [own.is_due(), own.is_due()] == [False, False]  # in the middle of a window
    release(plan, 2)
    assert own.is_due()


def test_near_the_limit_it_waits_for_no_window(plan, own):
    turns(plan, 0, NOW - 1)
    assert [own.is_due(), own.is_due()] == [False, False]
    turns(plan, 0, NOW)
    assert own.is_due()


@pytest.mark.parametrize(("n_readers", "most"), [(2, TURNS // 2), (4, MIN_TURNS), (16, MIN_TURNS)])
def test_readers_that_may_share_a_slot_share_its_turns(plan, own, n_readers, most):
    for reader in range(n_readers):
        turns(plan, reader, 1)
    turns(plan, 0, most - n_readers)
    release(plan, 1)
    assert not own.is_due()
    turns(plan, 0, most)
    assert not own.is_due()
    release(plan, 2)
    assert own.is_due()
    # With up to four in one slot all names that a job could ever leave are fewer than the limit.
    assert n_readers > 4 or most * 1.4 * n_readers < 32_767


@pytest.mark.parametrize(
    ("operation", "stopped"), [({"location": "file:/kept/savepoint-1"}, True), ({"failure-cause": {}}, False)]
)
def test_a_job_goes_on_where_there_is_no_savepoint(plan, operation, stopped):
    asked = []

    def ask(address: str, method: str = "GET", body=None):
        asked.append((address, body))
        if method == "POST":
            return {"request-id": "7"}
        if address.endswith("/7"):
            return {"status": {"id": "COMPLETED"}, "operation": operation}
        return {"state": "RUNNING"}

    own = renewal_of(plan, ask)
    assert own.stop() is stopped
    target = {"targetDirectory": (plan.folder / "operator" / "checkpoint" / "flink").as_uri(), "drain": False}
    assert (f"http://flink/jobs/{JOB}/stop", target) in asked
    turns(plan, 0, NOW)
    assert own.is_due() is stopped  # otherwise it is tried again in a minute


@pytest.mark.parametrize("answer", [OSError("refused"), {"state": "RESTARTING"}])
def test_a_job_that_is_not_there_is_not_renewed(plan, answer):
    def ask(*_, **__):
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert renewal_of(plan, ask).stop() is False


def test_a_flink_that_answers_too_late_may_stop_the_job_all_the_same(plan):
    def ask(address: str, method: str = "GET", body=None):
        if method == "POST":
            raise TimeoutError("timed out")
        return {"state": "RUNNING"}

    own = renewal_of(plan, ask)
    assert own.stop() is False
    assert own.was_asked


def test_a_renewed_run_goes_on_from_the_savepoint_and_drops_the_one_before(tmp_path, submitted, fetched):
    """Each job begins at the latest savepoint; one that no job needs any more is removed, as are its readers."""
    plan = files_plan(tmp_path)
    folder, outcomes, seen = tmp_path / "operator" / "checkpoint" / "flink", iter("rre"), []
    readers = []

    def run_job(plan, *_):
        assert not any(reader() for reader in readers)
        reader = InACycle()
        reader.itself = reader
        readers.append(weakref.ref(reader))
        latest = runner.latest_checkpoint(plan)
        seen.append((plan.resumed, latest and latest.name))
        outcome = {"r": "renewed", "e": "ended"}[next(outcomes)]
        if outcome == "renewed":
            made = folder / f"savepoint-{len(seen)}"
            made.mkdir(parents=True)
            (made / "_metadata").write_bytes(b"")
        return outcome

    submitted(run_job)
    assert runner.run(plan) is True
    assert seen == [(False, None), (True, "savepoint-1"), (True, "savepoint-2")]
    assert [path.name for path in folder.glob("savepoint-*")] == ["savepoint-2"]


def files_plan(folder: Path):
    from penstock.pipeline.config.plan import make_plan
    from penstock.pipeline.runners.beam import distributed
    from tests.tools.small_configuration import published

    return distributed(make_plan(published(folder, sinks="report: false", streamed=True), folder))


def test_the_driver_leaves_a_job_that_was_stopped_to_be_renewed(tmp_path):
    plan = files_plan(tmp_path)
    atomic.write_json(plan.folder / "operator" / MARK, {})
    job = SimpleNamespace(state=PipelineState.RUNNING, cancel=lambda: setattr(job, "state", PipelineState.CANCELLED))
    tries = iter([False, True])
    due = SimpleNamespace(is_due=lambda: True, stop=lambda: next(tries), was_asked=False)
    assert jobs._watch(plan, job, "Flink", None, due) == "renewed"
    assert list(tries) == []
    due.was_asked, job.state = True, PipelineState.DONE  # it has given up waiting, and Flink has not
    assert jobs._watch(plan, job, "Flink", None, due) == "renewed"
    # A signal that comes while the savepoint is made ends the run.
    job.state = PipelineState.RUNNING
    due.stop = lambda: os.kill(os.getpid(), signal.SIGTERM) or True
    assert jobs._watch(plan, job, "Flink", None, due) == "stopped"
