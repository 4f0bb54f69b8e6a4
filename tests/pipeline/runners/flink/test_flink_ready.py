"""Missing requirements of a Flink job are reported before the run begins or resumes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.mechanisms.core.plugin import ConfigError, DataError
from penstock.pipeline import atomic
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.monitoring import status
from penstock.pipeline.output import checkpoint, files
from penstock.pipeline.run import run
from penstock.pipeline.runners.beam import distributed
from penstock.pipeline.runners.flink.runner import check_ready
from penstock.pipeline.runners.shared import live_input
from penstock.pipeline.sources.reading.offsets import OffsetRange
from tests.tools.scripted_topic import NOON, Topic, source
from tests.tools.small_configuration import published


def streamed(folder: Path):
    return published(folder, sinks="report: false", streamed=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "holds no jars; fetch them with"),
        (["--flink_job_server_jar=/nowhere/job-server-2.77.0.jar"], "there is no file /nowhere/job-server-2.77.0.jar"),
    ],
)
@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.usefixtures("java")
def test_missing_jars_are_noticed_before_the_folder_is_touched(tmp_path, options, words, is_stream):
    config = published(tmp_path / "out", sinks="report: false", streamed=is_stream)
    with pytest.raises(ConfigError, match=words):
        run(config, runner="flink", beam_options=options)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def stopped(tmp_path, fetched):
    """Plan of a stream of three files that was killed before its engine wrote a checkpoint."""
    for hour in range(3):
        (tmp_path / f"{hour}.csv").write_text(f"user,time,place\nann,2024-01-01T0{hour}:30:00Z,a\n")
    value = {
        "name": "files",
        "seed": 1,
        "source": {"type": "stream", "of": {"type": "csv", "path": str(tmp_path / "*.csv")}}
        | {"from": "2024-01-01T00:00:00Z", "until": "2024-01-01T03:00:00Z"},
        "space": {"type": "places", "list": ["a"]},
        "windows": {"type": "fixed", "size": "1h"},
        "mechanism": {"type": "discrete_laplace", "epsilon": 1.0},
        "output": {"path": str(tmp_path / "out"), "report": False},
    }
    plan = distributed(make_plan(loads(json.dumps(value)), tmp_path / "out", resumed=True))
    assert plan.config.source.starts(live_input(plan)) == [{}]
    return plan


def test_a_run_without_a_checkpoint_is_not_read_anew_where_a_file_is_gone(tmp_path, stopped):
    check_ready(stopped, [])
    (tmp_path / "3.csv").write_text("user,time,place\n")
    check_ready(stopped, [])
    (tmp_path / "1.csv").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"1\.csv: is gone, or smaller than when the run began \(1 of 3 files\)"):
        check_ready(stopped, [])
    (tmp_path / "1.csv").write_text("user,time,place\n")
    with pytest.raises(DataError, match=r"1\.csv: is gone, or smaller"):
        check_ready(stopped, [])
    # From a checkpoint the engine goes on, and reads no file again that it is behind.
    made = tmp_path / "out" / "operator" / "checkpoint" / "flink" / ("a" * 32) / "chk-1"
    made.mkdir(parents=True)
    (made / "_metadata").write_bytes(b"")
    check_ready(stopped, [])


def test_a_topic_is_not_read_anew_where_its_beginning_is_gone(tmp_path, connect):
    topic = Topic([NOON] * 9, [NOON] * 9)
    connect(topic)
    topic.lost_offsets_error = lambda *place: DataError("gone {} {} {}".format(*place))
    counted = [OffsetRange(0, 0, 5, 5), OffsetRange(1, 2, 4, 2), OffsetRange(1, 6, 7, 1)]
    plan = make_plan(streamed(tmp_path), tmp_path)
    source().check_beginning(live_input(plan), counted)
    topic.deleted = 3
    with pytest.raises(DataError, match=r"gone 1 2 3|gone 0 0 3"):
        source().check_beginning(live_input(plan), counted)
    source().check_beginning(live_input(plan), [])
    assert not tmp_path.joinpath("operator").exists()


def test_a_status_tells_how_far_the_readers_of_a_cluster_have_come(tmp_path):
    plan = distributed(make_plan(streamed(tmp_path), tmp_path))
    atomic.make_folder(tmp_path / "operator")
    checkpoint.begin(plan)
    assert status.of_folder(tmp_path).watermark is None
    for reader, time in ((0, NOON), (1, NOON - 5000)):
        path = files.parts_folder(plan, files.READERS) / f"{reader:03d}.json"
        atomic.write_json(path, {"watermark": time, "turns": 7})
    atomic.write_json(files.parts_folder(plan, "row_counts") / "cluster.json", {"rows": 12, "late": 3})
    actual = status.of_folder(tmp_path)
    assert (actual.watermark, actual.rows, actual.late) == (NOON / 1000 - 5, 12, 3)
    assert (actual.state, actual.exit_code) == ("stopped", 1)
