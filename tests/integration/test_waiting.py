"""Retries of the Flink tests, without Flink: busy machines, failing savepoints, ports in use."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.integration import flink_runs, ports
from tests.integration.flink_runs import savepoint, wait_until


def test_who_does_not_answer_is_asked_again():
    answers = iter([TimeoutError("busy"), False, ConnectionError("busy"), True])

    def happened() -> bool:
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    assert wait_until(happened, 60)
    assert list(answers) == []


def test_who_never_answers_is_told_and_what_never_happens_is_not_awaited_for_ever():
    def refuse() -> bool:
        raise ConnectionError("nobody is there")

    with pytest.raises(ConnectionError, match="nobody is there"):
        wait_until(refuse, 0.2)
    assert not wait_until(lambda: False, 0.2)


@pytest.fixture
def asked(monkeypatch):
    """Answers to a savepoint that was asked for."""
    monkeypatch.setattr(flink_runs, "_post", lambda *_: {"request-id": "1"})

    def cluster(*answers: object) -> SimpleNamespace:
        left = iter(answers)
        return SimpleNamespace(jobs=lambda: ["job"], rest=lambda _: next(left))

    return cluster


def test_a_savepoint_is_waited_for(asked, tmp_path):
    completed = {"status": {"id": "COMPLETED"}, "operation": {"location": "file:/kept/savepoint-1"}}
    assert savepoint(asked({"status": {"id": "IN_PROGRESS"}}, completed), tmp_path) == Path("/kept/savepoint-1")


def test_a_savepoint_that_fails_says_why(asked, tmp_path):
    failure = {"class": "CheckpointException", "stack-trace": "CheckpointException: no task runs"}
    failed = {"status": {"id": "COMPLETED"}, "operation": {"failure-cause": failure}}
    with pytest.raises(AssertionError, match=r"the savepoint failed: .*no task runs"):
        savepoint(asked(failed), tmp_path)


@pytest.mark.parametrize(("anybodys", "highest"), [("20050\t60999", 20_050), ("1024\t65535", ports.DEFAULT)])
def test_free_ports_are_given_to_nobody_by_chance(tmp_path, anybodys, highest):
    (tmp_path / "range").write_text(anybodys)
    actual = ports.free_ports(50, anybodys=tmp_path / "range")
    assert len(set(actual)) == 50
    assert ports.LOWEST <= min(actual) <= max(actual) < highest
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", actual[0]))
