"""Events of a Pub/Sub subscription: decoding, lateness by publication, supported runners."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apache_beam as beam
import polars as pl
import pyarrow.parquet as pq
import pytest
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.runner import PipelineState

from penstock.mechanisms.core.noise_keys import new_key_file
from penstock.mechanisms.core.plugin import ConfigError, DataError, MissingLibrary
from penstock.pipeline import INTERRUPTED
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import RunConfig, loads
from penstock.pipeline.output import manifest
from penstock.pipeline.output.checkpoint import plan_in_folder
from penstock.pipeline.run import run
from penstock.pipeline.runners.beam import distributed, service
from penstock.pipeline.runners.beam.graph import ReleaseWhenDue, build
from penstock.pipeline.runners.beam.pubsub import DecodeMessages, ReadMessages
from penstock.pipeline.runners.beam.step import timestamp
from penstock.pipeline.sources.kafka import Kafka
from penstock.pipeline.sources.reading.kafka import block_of
from tests.tools.stream_graph import STEPS as GRAPH_STEPS
from tests.tools.subscription import CONFIG, EVENTS, connector, messages, text_of


def configured(folder: Path, text: str = CONFIG, **changes: str) -> RunConfig:
    return loads(text.replace("PATH", str(folder)), overrides=[f"{k}={v}" for k, v in changes.items()])


def plan_in(folder: Path, **changes: str) -> Any:
    (folder / "operator").mkdir(parents=True)
    return distributed(make_plan(configured(folder, **changes), folder), 2)


def executed(plan: Any) -> dict[str, Any]:
    """The row equation, once the graph has run over the messages."""
    pipeline = beam.Pipeline(runner=BundleBasedDirectRunner())
    build(pipeline, plan, ReadMessages(plan, connector(plan)))
    pipeline.run().wait_until_finish()
    manifest.merge_outputs(plan)
    return manifest.row_equation(plan)


def test_messages_are_counted_late_and_rejected_by_their_publication(tmp_path):
    plan = plan_in(tmp_path / "run")
    equation = executed(plan)
    reasons = equation.pop("rejected_by_reason")
    assert equation == {
        "rows": 11,
        "used": 5,
        "late": 1,
        "out_of_area": 1,
        "out_of_time": 1,
        "rejected": 3,
        "duplicates": 1,
    }
    assert sorted(reasons.values()) == [1, 1, 1]
    assert {"not valid JSON", "time is later than its message was sent"} <= reasons.keys()
    truth = pq.read_table(tmp_path / "run" / "operator" / "truth.parquet").to_pylist()
    counts = {(row["window"], row["cell"]): row["count"] for row in truth if row["count"]}
    assert counts == {(1, "a"): 2, (1, "b"): 1, (3, "b"): 1}
    rejects = [json.loads(line) for line in (tmp_path / "run" / "operator" / "rejects.jsonl").read_text().splitlines()]
    assert sorted(reject["file"] for reject in rejects) == ["1005", "1006", "1008"]


def test_the_releases_are_those_of_a_finite_run_of_the_same_rows(tmp_path):
    plan = plan_in(tmp_path / "run")
    executed(plan)
    sound = [event for minute, event in EVENTS if isinstance(event, tuple) and minute != 65 and event[1] != "noon"]
    lines = [f"{user},{text_of(minute)},{place}" for user, minute, place in sound]
    (tmp_path / "events.csv").write_text("\n".join(["user,time,place", *lines]) + "\n")
    text = CONFIG.replace("type: pubsub", "type: csv").replace("columns: {place: stop}", "")
    text = text.replace("subscription: projects/city-1/subscriptions/events", f"path: {tmp_path}/events.csv")
    run(configured(tmp_path / "finite", text), runner="local")
    both = [pq.read_table(tmp_path / name / "public" / "releases.parquet") for name in ("run", "finite")]
    assert both[0].equals(both[1])


def decoded(plan: Any, some: list[tuple[int, PubsubMessage]]) -> list[Any]:
    step = DecodeMessages(plan)
    step.setup()
    step.start_bundle()
    actual = [value for instant, message in some for value in step.process(message, timestamp(instant))]
    return [value.value for value in [*actual, *step.finish_bundle()]]


def test_blocks_are_those_of_a_topic_of_kafka(tmp_path):
    plan = plan_in(tmp_path / "run")
    topic = Kafka(brokers="localhost:1", topic="events", columns={"place": "stop"})
    stamped = [
        SimpleNamespace(value=lambda m=m: m.data, timestamp=lambda at=at: (2, at), offset=lambda i=i: i)
        for i, (at, m) in enumerate(messages())
    ]
    other = block_of(topic, 0, stamped)
    actual = decoded(plan, messages())
    frames = pl.concat([named.block.frame for named in actual if named.block.frame.height])
    assert frames.equals(other.frame.drop("arrival"))
    reasons = sorted(reject.reason for named in actual for reject in named.block.rejects)
    assert reasons == sorted(reject.reason for reject in other.rejects)


def test_a_repeated_bundle_keeps_every_reject_under_the_name_of_its_message(tmp_path):
    plan = plan_in(tmp_path / "run")
    names = [{n.name for n in decoded(plan, some) if n.block.rejects} for some in (messages(), messages()[4:])]
    assert names[0] == names[1] == {"rejected/1005", "rejected/1006", "rejected/1008"}


def test_lateness_is_the_rows_own(tmp_path):
    plan = plan_in(tmp_path / "run")
    (late,) = [named for named in decoded(plan, messages()[4:5]) if named.block.frame.height]
    (in_time,) = [named for named in decoded(plan, messages()[3:4]) if named.block.frame.height]
    assert (late.closed.tolist(), in_time.closed) == ([1], None)


def test_a_deployment_sends_no_user_on(tmp_path):
    new_key_file(tmp_path / "noise.key")
    plan = plan_in(tmp_path / "run", mode="deployment", seed="null", noise_key=str(tmp_path / "noise.key"))
    frame = next(named.block.frame for named in decoded(plan, messages()) if named.block.frame.height)
    assert frame.schema["user"] == pl.Binary
    assert "place" not in frame.columns


def test_a_worker_that_does_not_see_the_folder_of_a_deployment_releases_nothing(tmp_path):
    new_key_file(tmp_path / "noise.key")
    changes = {"mode": "deployment", "seed": "null", "noise_key": str(tmp_path / "noise.key")}
    plan = distributed(plan_in_folder(configured(tmp_path / "run", **changes)))
    step = pickle.loads(pickle.dumps(ReleaseWhenDue(plan)))
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    with pytest.raises(DataError, match="holds no run, so nothing is released here"):
        step.setup()
    shutil.move(tmp_path / "elsewhere", tmp_path / "run")
    step.setup()


@pytest.mark.parametrize("runner", ["direct", "local", "flink"])
def test_runners_without_the_connector_are_refused_by_name(tmp_path, runner):
    with pytest.raises(ConfigError, match=rf"--runner {runner}: source\.type: pubsub is read by Beam's connector"):
        run(configured(tmp_path / "run"), runner=runner)


def test_other_settings_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="projects/PROJECT/subscriptions/SUBSCRIPTION"):
        configured(tmp_path, **{"source.subscription": "events"})
    with pytest.raises(ConfigError, match="disorder"):
        configured(tmp_path, **{"source.disorder": "1s"})
    with pytest.raises(ConfigError, match="schema"):
        configured(tmp_path, **{"source.format": "avro"})


def test_the_missing_library_is_named(tmp_path, without):
    without("google.cloud.pubsub")
    with pytest.raises(MissingLibrary, match=r"apache-beam\[gcp\]"):
        build(beam.Pipeline(runner=BundleBasedDirectRunner()), plan_in(tmp_path / "run"))


class Job:
    """A job of a service: what happens at each look at it."""

    def __init__(self, states: list[str]) -> None:
        self.states, self.cancelled = states, False

    @property
    def state(self) -> str:
        return self.states.pop(0)

    def cancel(self) -> None:
        self.cancelled = True


@pytest.fixture
def submitted(tmp_path, monkeypatch) -> Any:
    """Runs a configuration as a job with these states; gives the job, its options and how the run ended."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr(service, "PATIENCE", 0)

    class Pipeline(beam.Pipeline):
        def __init__(self, runner: str, options: Any) -> None:
            super().__init__(runner=BundleBasedDirectRunner())
            seen["options"] = options

        def run(self, *_: Any) -> Any:
            if seen["executes"]:
                super().run().wait_until_finish()
            return seen["job"]

    monkeypatch.setattr(service.beam, "Pipeline", Pipeline)
    monkeypatch.setattr("penstock.pipeline.runners.beam.pubsub.connector_of", connector)

    def submit(states: list[str], executes: bool, **how: Any) -> dict[str, Any]:
        seen.update(job=Job(states), executes=executes)
        seen["result"] = run(configured(tmp_path / "run"), runner="dataflow", beam_options=["--project=city"], **how)
        return seen

    return submit


def test_a_job_that_has_released_everything_is_cancelled(submitted):
    seen = submitted([PipelineState.RUNNING] * 5, executes=True)
    assert seen["result"].exit_code == 0
    assert seen["job"].cancelled
    assert seen["result"].manifest["rows"]["used"] == 5


def test_a_job_that_ends_by_itself_before_the_run_is_an_error(submitted):
    with pytest.raises(DataError, match=r"has ended \(FAILED\) before the run"):
        submitted([PipelineState.RUNNING, PipelineState.FAILED], executes=False)


def test_a_driver_that_stops_leaves_the_job_and_updates_it_later(submitted, monkeypatch):
    from contextlib import contextmanager

    @contextmanager
    def at_once(stop):
        stop()
        yield

    with monkeypatch.context() as patch:
        patch.setattr(service, "stopping", at_once)
        patch.setattr("penstock.pipeline.output.manifest.merge_outputs", lambda plan: None)
        patch.setattr("penstock.pipeline.run._finish", lambda plan, unfinished, clock: unfinished)
        seen = submitted([PipelineState.RUNNING], executes=False)
        assert (seen["result"], seen["job"].cancelled) == ("interrupted", False)
    seen = submitted([PipelineState.RUNNING] * 5, executes=True, resume=True)
    options = seen["options"].get_all_options(drop_default=True)
    assert options["update"]
    assert (options["streaming"], options["job_name"], options["project"]) == (True, "subscribed", "city")
    assert INTERRUPTED != seen["result"].exit_code == 0


#: Names by which an update finds the steps of a job; the later ones: tests/pipeline/runners/beam/test_cluster_graph.py.
STEPS = [
    "ReadEvents/Messages/Read",
    "ReadEvents/Messages/ParDo(_AddMetricsPassThrough)",
    "ReadEvents/Messages/Map(_from_proto_str)",
    "ReadEvents/Decode",
]


def test_a_job_can_be_updated_by_the_names_of_its_steps(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "google.cloud.pubsub", SimpleNamespace())
    pipeline = beam.Pipeline(runner=BundleBasedDirectRunner())
    build(pipeline, plan_in(tmp_path / "run"))
    steps: list[str] = []

    class Names(PipelineVisitor):  # type: ignore[misc]
        def visit_transform(self, node: AppliedPTransform) -> None:
            steps.append(node.full_label)

    pipeline.visit(Names())
    assert [name for name in steps if name.startswith("ReadEvents/")] == STEPS
    behind = {name for name in steps if not name.startswith("ReadEvents/")}
    assert behind == {name for name in GRAPH_STEPS if not name.startswith("ReadEvents/")}
