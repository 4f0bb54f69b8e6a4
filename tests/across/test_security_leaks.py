"""Leak search: no user id, coordinate or secret in files or logs of a deployment, however it ends."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.cli.main import main
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.counting.ingest import CELL
from penstock.pipeline.counting.users import user_codes
from penstock.pipeline.run import run
from penstock.pipeline.runners.shared import ingestion
from penstock.pipeline.sources.base import EventBlock, Reject
from tests.tools.deployments import LATITUDE, LONGITUDE, NUMBER, USER, configured, leaks, planted, sections
from tests.tools.ledgers import with_new_ledger
from tests.tools.listeners import after_slices


def stream_of(value: dict, **changes) -> dict:
    return value | {"source": {"type": "stream", "of": value["source"], "checkpoint": "1ms", **changes}}


@pytest.fixture
def remains(tmp_path, caplog, capfd):
    """Facts about people in a run's folder, its debug log or its output, with the place of each."""
    caplog.set_level(logging.DEBUG)

    def search(folder: Path) -> list[tuple[str, bytes]]:
        facts, printed = planted(tmp_path), capfd.readouterr()
        text = (caplog.text + printed.out + printed.err).encode()
        in_files = [(Path(path).name, fact) for path, fact in leaks(folder, facts)]
        return in_files + [("output", fact) for fact in facts if fact in text]

    return search


@pytest.mark.parametrize("user", [USER, NUMBER])
@pytest.mark.parametrize("kind", ["files", "stream by time", "stream as it comes"])
def test_nothing_is_left_of_a_person(tmp_path, remains, user, kind):
    value = sections(tmp_path, user)
    if kind != "files":
        value = stream_of(value, order="time" if kind == "stream by time" else "arrival")
        value["allow_no_guarantee"] = True

    def search(*_):
        assert remains(tmp_path / "out") == []

    with after_slices(search):  # what is on disk only for a while is searched too
        assert remains(run(configured(value)).folder) == []


def test_the_search_finds_what_a_simulation_keeps(tmp_path):
    value = sections(tmp_path) | {"mode": "simulation"}
    del value["noise_key"]
    folder = run(configured(value)).folder
    assert {fact for _, fact in leaks(folder, planted(tmp_path))} >= {USER.encode(), str(LATITUDE).encode()}


def test_the_search_finds_spools_and_binary_numbers(tmp_path):
    frame = pl.DataFrame({"user": [NUMBER], "time": [0], "latitude": [LATITUDE], "longitude": [LONGITUDE]})
    sections(tmp_path)
    (tmp_path / "out").mkdir()
    frame.write_ipc(tmp_path / "out" / "spool.arrow")
    assert len(leaks(tmp_path / "out", planted(tmp_path))) == 3


def test_a_run_that_fails_says_nothing_of_people(tmp_path, remains, monkeypatch, capfd):
    (tmp_path / "run.yaml").write_text(json.dumps(sections(tmp_path)))

    def broken(*block_and_plan):
        raise ValueError(f"cannot use {USER} at {LATITUDE}")

    # Where rows are counted: the look at the input, before anything is written, has passed.
    monkeypatch.setattr("penstock.pipeline.counting.count.classify_rows", broken)
    assert main(["run", str(tmp_path / "run.yaml"), "--log", "json"]) == 1
    assert main(["run", str(tmp_path / "run.yaml"), "--resume"]) == 1
    assert "ValueError at across/test_security_leaks.py" in (message := capfd.readouterr()).err
    assert not [fact for fact in planted(tmp_path) if fact in message.err.encode()]
    assert remains(tmp_path / "out") == []


def test_a_stream_that_is_interrupted_and_resumed(tmp_path, remains):
    value = stream_of(sections(tmp_path), order="time")

    def fail(*_):
        raise DataError("the disk is gone")

    with after_slices(fail), pytest.raises(DataError):
        run(configured(value))
    assert remains(tmp_path / "out") == []
    assert run(configured(value), resume=True).exit_code == 0
    assert remains(tmp_path / "out") == []


def test_traces_of_users_who_are_named_by_their_files(tmp_path, remains):
    value = sections(tmp_path)
    taxis = tmp_path / "taxis"
    taxis.mkdir()
    rows = [f"2024-01-01 {hour + 8:02d}:10:00,{LONGITUDE},{LATITUDE}" for hour in range(6)]
    lines = [f"{NUMBER},{row}" for row in rows] + [f"{NUMBER},never,{LONGITUDE},{LATITUDE}"]
    (taxis / f"{NUMBER}.txt").write_text("\n".join(lines) + "\n")
    value["source"] = {"type": "tdrive", "path": str(taxis), **{k: value["source"][k] for k in ("from", "until")}}
    value |= {"windows": {"type": "timestamps"}, "mechanism": {"type": "planar_laplace", "epsilon": 1, "radius": 50}}
    del value["bounding"], value["landmarks"]
    folder = run(configured(value)).folder
    assert remains(folder) == []
    (reject,) = [json.loads(line) for line in (folder / "operator" / "rejects.jsonl").read_text().splitlines()]
    assert reject["file"].startswith("file:")
    assert pl.read_parquet(folder / "public" / "traces.parquet").height == 6


@pytest.mark.parametrize("user", [USER, NUMBER])
def test_digests_are_those_that_counting_makes_itself(tmp_path, user):
    plan = make_plan(configured(sections(tmp_path, user)))
    frame = pl.DataFrame(
        {"user": [user, user], "time": [0, 1], "latitude": [LATITUDE, 0.0], "longitude": [LONGITUDE, 0.0]}
    )
    rejects = (Reject("events.csv", 7, "time is not ISO 8601", f"{user},never"),)
    once = ingestion(plan)(EventBlock(frame, 3, rejects))
    assert once.frame.columns == ["time", "user", CELL]
    assert once.frame[CELL].to_list() == [2, -1]
    assert (once.rejects[0].raw, once.rejects[0].line) == (None, 7)
    tables = [user_codes(users, plan.keys.users)[1] for users in (frame["user"], once.frame["user"])]
    np.testing.assert_array_equal(*tables)
    twice = ingestion(plan)(once)
    assert twice.frame.equals(once.frame)
    assert twice.rejects == once.rejects


@pytest.mark.usefixtures("one_nonce")
def test_a_stream_of_a_deployment_releases_what_its_files_do(tmp_path):
    value = sections(tmp_path, allow_no_guarantee=True)
    released = [
        pl.read_parquet(
            run(configured(with_new_ledger(one, name)), tmp_path / name).folder / "public" / "releases.parquet"
        )
        for name, one in (("a", value), ("b", stream_of(value, order="time")), ("c", stream_of(value, order="arrival")))
    ]
    assert released[0].equals(released[1])
    assert released[0].equals(released[2])
