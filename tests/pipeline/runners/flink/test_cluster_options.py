"""Options submitted to Flink, and errors for missing ones; without Flink."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from penstock.mechanisms.core.plugin import ConfigError, DataError, StateVersionError
from penstock.pipeline.config.plan import Plan, make_plan
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.counting.ingest import RowCounts
from penstock.pipeline.output import checkpoint
from penstock.pipeline.output.writer import RunWriter
from penstock.pipeline.run import run
from penstock.pipeline.runners.beam import BLOCK_ROWS, check_graph, distributed
from penstock.pipeline.runners.beam.graph import check_complete
from penstock.pipeline.runners.flink import jars
from penstock.pipeline.runners.flink import runner as flink_runner
from penstock.pipeline.runners.flink.jobs import (
    checkpoints_folder,
    initial_version,
    latest_checkpoint,
    mark_job,
)
from penstock.pipeline.runners.flink.runner import options_of
from penstock.pipeline.sources.stream import Stream
from tests.tools.small_configuration import published

prepare = partial(checkpoint.prepare, check_engine=check_graph)
streamed = partial(published, sinks="report: false", streamed=True)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A cluster's plan."""
    return distributed(make_plan(streamed(tmp_path), tmp_path), 3)


def test_defaults_stand_for_what_is_not_given(plan: Plan) -> None:
    actual = options_of(plan, "localhost:1", ["--parallelism", "7", "--state_backend=rocksdb"])
    assert {"--streaming", "--job_endpoint=localhost:1"} <= set(actual)
    assert "--checkpointing_interval=5000" in actual
    assert "--finish_bundle_before_checkpointing" in actual
    assert not any(word.startswith(("--parallelism=", "--state_backend=filesystem")) for word in actual)
    assert actual[-3:] == ["--parallelism", "7", "--state_backend=rocksdb"]


@pytest.mark.parametrize(("runner", "option"), [("direct", "direct_num_workers"), ("flink", "parallelism")])
def test_what_beam_cannot_parse_is_refused_before_the_folder_is_touched(
    tmp_path: Path, runner: str, option: str
) -> None:
    config, folder = streamed(tmp_path / "run"), tmp_path / "run"
    with pytest.raises(ConfigError, match=f"options of Beam: argument --{option}: invalid int value: 'many'"):
        run(config, runner=runner, beam_options=[f"--{option}=many"])
    assert not folder.exists()


@pytest.mark.parametrize("mode", ["multi_processing", "multi_threading"])
def test_workers_of_the_in_process_runner_that_listen_on_all_interfaces_are_refused(tmp_path: Path, mode: str) -> None:
    config, folder = published(tmp_path / "run", "report: false"), tmp_path / "run"
    with pytest.raises(ConfigError, match=f"--direct_running_mode={mode}: opens ports .*leave it out"):
        run(config, runner="direct", beam_options=[f"--direct_running_mode={mode}"])
    assert not folder.exists()


@pytest.mark.parametrize(
    ("runner", "reason"),
    [("dataflow", "Missing required option: project."), ("nonsense", "it must be one of direct, local")],
)
def test_what_a_runner_refuses_is_refused_before_the_folder_is_touched(
    tmp_path: Path, runner: str, reason: str
) -> None:
    folder = tmp_path / "run"
    config = published(folder, "report: false")
    run(config, runner="local")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=rf"--runner {runner}: {reason}"):
        run(config, runner=runner)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_external_workers_have_an_address(plan: Plan) -> None:
    given = ["--environment_type=EXTERNAL"]
    assert "--environment_config=localhost:50000" in options_of(plan, "e", given)
    given.append("--environment_config=host:1")
    assert "--environment_config=localhost:50000" not in options_of(plan, "e", given)


@pytest.mark.parametrize("published", ["installed", "tested", "none"])
@pytest.mark.usefixtures("java")
def test_the_runner_of_the_installed_beam_is_preferred(published: str) -> None:
    installed, tested = jars.versions()
    there = {"installed": (installed, tested), "tested": (tested,), "none": ()}[published]

    def copy(folder: Path, version: str) -> None:
        if version not in there:
            raise DataError(f"no {version}")
        (folder / "jars").mkdir()
        (folder / "jars" / f"beam-runners-flink-{version}.jar").write_bytes(b"")

    if not there:
        with pytest.raises(DataError, match=f"no {tested}"):
            jars.fetch(copy=copy)
        return
    assert jars.fetch(copy=copy, digests={}) == jars.folder_of(there[0])
    assert jars.version() == there[0]


def test_a_resumed_run_goes_on_from_the_latest_whole_checkpoint(tmp_path: Path, plan: Plan) -> None:
    folder = checkpoints_folder(plan)
    for job, number, whole in (("a", 7, True), ("b", 1, True), ("b", 2, False)):
        made = folder / job / f"chk-{number}"
        made.mkdir(parents=True)
        if whole:
            (made / "_metadata").write_bytes(b"")
    assert latest_checkpoint(plan) == folder / "b" / "chk-1"
    assert not any("savepoint" in word for word in options_of(plan, "e", []))
    resumed = distributed(make_plan(plan.config, tmp_path, resumed=True))
    assert f"--savepoint_path={(folder / 'b' / 'chk-1').as_uri()}" in options_of(resumed, "e", [])
    # How far a job can be spread out is its checkpoint's to say.
    assert "--max_parallelism=16" in options_of(plan, "e", [])
    assert "--max_parallelism=40" in options_of(plan, "e", ["--parallelism=40"])
    assert not any("max_parallelism" in word for word in options_of(resumed, "e", []))


@pytest.mark.usefixtures("fetched")
@pytest.mark.parametrize("option", ["--job_endpoint=localhost:8099", "--flink_conf_dir=/etc/flink"])
def test_an_embedded_flink_that_would_begin_anew_is_refused(tmp_path: Path, plan: Plan, option: str) -> None:
    """Beam passes a checkpoint on to clusters alone; another configuration than penstock's names none."""
    resumed = distributed(make_plan(plan.config, tmp_path, resumed=True))
    made = checkpoints_folder(plan) / ("a" * 32) / "chk-1"
    made.mkdir(parents=True)
    (made / "_metadata").write_bytes(b"")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=f"embedded Flink with {option.partition('=')[0]} restores no checkpoint"):
        flink_runner.check_ready(resumed, [option])
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("fetched")
def test_an_embedded_flink_is_told_its_checkpoint(
    tmp_path: Path, plan: Plan, submitted: Callable[..., list[object]]
) -> None:
    given = submitted()
    resumed = distributed(make_plan(plan.config, tmp_path, resumed=True))
    made = checkpoints_folder(plan) / ("a" * 32) / "chk-1"
    made.mkdir(parents=True)
    flink_runner.run(resumed)
    (made / "_metadata").write_bytes(b"")
    flink_runner.run(resumed)
    flink_runner.run(resumed, ["--flink_master=localhost:8081"])
    assert given == [None, made.as_uri(), None]


def test_a_runner_that_would_drop_the_readers_of_a_job_is_refused(tmp_path: Path, plan: Plan) -> None:
    """Releases with https://github.com/apache/beam/pull/39191 read no readers that those before have left."""
    resumed = distributed(make_plan(plan.config, tmp_path, resumed=True))
    mark_job(plan, "2.62.0")
    mark_job(plan, "2.77.0")  # begun anew
    with pytest.raises(StateVersionError, match=r"runner 2\.77\.0, and Beam's Flink runner 2\.62\.0 may lose"):
        mark_job(resumed, "2.62.0")
    assert initial_version(resumed) == "2.77.0"


@pytest.mark.parametrize(
    ("runners", "words"),
    [
        (("", "2.62.0"), r"on a service such as Dataflow, and Beam's Flink runner 2\.62\.0 may lose what it had read"),
        (("2.62.0", ""), r"on Beam's Flink runner 2\.62\.0, and a service such as Dataflow may lose what it had read"),
    ],
)
def test_a_job_of_a_service_does_not_go_on_on_flink_or_the_other_way(
    tmp_path: Path, plan: Plan, runners: tuple[str, str], words: str
) -> None:
    mark_job(plan, runners[0])
    with pytest.raises(StateVersionError, match=words):
        mark_job(distributed(make_plan(plan.config, tmp_path, resumed=True)), runners[1])


def test_a_runner_of_unknown_version_is_noted_and_not_taken_for_a_known_one(
    tmp_path: Path, plan: Plan, submitted: Callable[..., list[object]]
) -> None:
    submitted()
    flink_runner.run(plan, ["--job_endpoint=one:8099", "--flink_master=one:8081"])
    made = checkpoints_folder(plan) / ("a" * 32) / "chk-1"
    made.mkdir(parents=True)
    (made / "_metadata").write_bytes(b"")
    resumed = distributed(make_plan(plan.config, tmp_path, resumed=True))
    flink_runner.run(resumed, ["--job_endpoint=two:8099", "--flink_master=two:8081"])
    assert initial_version(resumed) == "of unknown version"
    with pytest.raises(StateVersionError, match=r"of unknown version, and Beam's Flink runner 2\.77\.0 may lose"):
        flink_runner.run(resumed, ["--flink_job_server_jar=/opt/job-server-2.77.0.jar"])


@pytest.mark.parametrize(
    ("version", "options", "cautions"),
    [
        ("2.62.0", [], 0),  # it is renewed
        ("2.62.0", ["--flink_conf_dir=/etc/flink"], 1),
        ("2.62.0", ["--flink_master=one:8081", "--state_backend_storage_path=file:///elsewhere"], 1),
        ("2.77.0", ["--flink_conf_dir=/etc/flink"], 0),
    ],
)
def test_the_end_of_a_stream_that_cannot_be_renewed_is_announced_and_explained(
    plan: Plan,
    submitted: Callable[..., list[object]],
    caplog: pytest.LogCaptureFixture,
    version: str,
    options: list[str],
    cautions: int,
) -> None:
    def fails(plan: Plan, *_: object) -> bool:
        log = checkpoints_folder(plan) / "job_server" / "job_server.log"
        log.parent.mkdir(parents=True)
        log.write_text("java.lang.IllegalStateException: Too many states: 32768. Currently at most 32767 are\n")
        raise DataError("Flink has lost the job")

    submitted(fails)
    jar = f"--flink_job_server_jar=/opt/beam-runners-flink-1.19-job-server-{version}.jar"
    with pytest.raises(DataError, match="begin another run on the same ledger"):
        flink_runner.run(plan, [jar, *options])
    assert caplog.text.count("32,767 of them in one slot") == cautions


@pytest.mark.usefixtures("fetched")
def test_a_savepoint_that_is_not_the_runs_or_not_whole_is_refused(tmp_path: Path, plan: Plan) -> None:
    """In the job it would fail for minutes, or go on with the windows of another run."""
    resumed, other = (distributed(make_plan(plan.config, tmp_path / name, resumed=True)) for name in ("run", "other"))
    mark_job(other, "2.62.0")
    savepoints = [checkpoints_folder(one) / "savepoint-1" for one in (resumed, other)] + [tmp_path / "kept"]
    for made in savepoints:
        made.mkdir(parents=True)
        (made / "_metadata").write_bytes(b"")
    options = [[f"--savepoint_path={made.as_uri()}"] for made in savepoints]
    for of_the_run in (options[0], options[2], [f"--savepoint_path={tmp_path / 'unseen'}"]):
        flink_runner.check_ready(resumed, of_the_run)
    with pytest.raises(ConfigError, match=r"was made by the run in .*other, not by this"):
        flink_runner.check_ready(resumed, options[1])
    with pytest.raises(ConfigError, match="--savepoint_path: goes with --resume"):
        flink_runner.check_ready(plan, options[0])
    (savepoints[0] / "_metadata").unlink()
    with pytest.raises(ConfigError, match="savepoint-1 has no _metadata"):
        flink_runner.check_ready(resumed, options[0])


@pytest.mark.parametrize(
    "printed",
    ["NullPointerException: No receiver found for timer ref_Count-_10 ts-due", "StateMigrationException: For"],
)
def test_a_checkpoint_of_other_steps_is_named_as_the_reason(
    plan: Plan, submitted: Callable[..., list[object]], printed: str
) -> None:
    def fails(plan: Plan, *_: object) -> bool:
        with (checkpoints_folder(plan) / "job_server" / "job_server.log").open("a") as log:
            log.write(f"Caused by: java.lang.{printed}\n")
        raise DataError("Flink has lost the job")

    log = checkpoints_folder(plan) / "job_server" / "job_server.log"
    log.parent.mkdir(parents=True)
    log.write_text("Too many states: of the job before\n")
    submitted(fails)
    with pytest.raises(DataError, match="made by another version of penstock, of Beam or of its runner"):
        flink_runner.run(plan, ["--flink_job_server_jar=/opt/job-server-2.62.0.jar"])


def test_blocks_of_a_stream_are_small_and_users_are_split(plan: Plan) -> None:
    assert isinstance(plan.config.source, Stream)
    assert plan.config.source.block_rows <= BLOCK_ROWS
    assert (plan.batching.n_shards, plan.streaming, plan.batching.group) == (3, True, 1)
    assert distributed(plan).config == plan.config


def test_finite_input_is_a_bounded_job(tmp_path: Path) -> None:
    finite = distributed(make_plan(published(tmp_path, "report: false"), tmp_path), 3)
    assert not finite.streaming
    actual = options_of(finite, "localhost:1", [])
    assert "--parallelism=2" in actual
    assert not any(word.startswith(("--streaming", "--checkpointing", "--state_backend")) for word in actual)


def test_a_bounded_job_that_ended_early_did_not_end_the_run(tmp_path: Path) -> None:
    """Prism said that jobs were done whose accountants had stepped through half of the windows."""
    finite = distributed(make_plan(published(tmp_path, "report: false"), tmp_path))
    with pytest.raises(DataError, match="the row counts are missing after Prism has run"):
        check_complete(finite, "Prism")
    RunWriter(finite).row_counts("cluster", RowCounts())
    with pytest.raises(DataError, match="Prism has ended the job before all windows were released and accounted"):
        check_complete(finite, "Prism")


@pytest.mark.usefixtures("java")
def test_missing_jars_are_named_with_the_command_that_fetches_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"python -m .*penstock\.pipeline\.runners\.flink\.jars"):
        run(streamed(tmp_path / "run"), runner="flink")


@pytest.mark.usefixtures("java")
def test_jars_that_were_not_tested_are_refused() -> None:
    folder = jars.folder_of(jars.versions()[0])
    folder.mkdir()
    (folder / "other.jar").write_bytes(b"other")
    with pytest.raises(DataError, match="not the ones that were tested"):
        jars.fetch(digests={jars.versions()[0]: "digest"})


def test_a_run_is_only_continued_with_its_configuration(plan: Plan) -> None:
    with pytest.raises(ConfigError, match="holds no run"):
        prepare(plan)
    checkpoint.begin(plan)
    assert prepare(plan) is None
    (plan.folder / "operator" / "manifest.json").write_text('{"exit": {"ended": true}}')
    assert prepare(plan) == {"exit": {"ended": True}}


@pytest.mark.parametrize(("mark", "graph"), [(None, 1), ("1", 1), ("999", 999)])
def test_a_job_with_the_steps_of_another_version_is_refused_with_what_to_do(
    plan: Plan, mark: str | None, graph: int
) -> None:
    checkpoint.begin(plan)
    folder = checkpoints_folder(plan)
    made = folder / ("a" * 32) / "chk-1"
    made.mkdir(parents=True)
    (made / "_metadata").write_bytes(b"")
    if mark is not None:
        (folder / "job.json").write_text(json.dumps({"graph": int(mark)}))
    what_to_do = "finish it with the version that began it, or start again in another folder"
    with pytest.raises(StateVersionError, match=rf"\(graph {graph}; .*{what_to_do}"):
        prepare(plan)
    mark_job(plan)
    assert prepare(plan) is None


def test_a_run_that_was_killed_before_it_had_a_job_goes_on(plan: Plan) -> None:
    checkpoint.begin(plan)
    checkpoints_folder(plan).mkdir(parents=True)
    (checkpoints_folder(plan) / ".job.json.1.tmp").write_text("")
    assert prepare(plan) is None


def test_a_cluster_goes_on_with_refused_rows_where_nothing_else_is_asked_for(monkeypatch, tmp_path):
    """An exception there would only start the job again."""

    def refuse(config: RunConfig, runner: str) -> None:
        """Refuse every run by what it does without a budget."""
        raise ConfigError((str(config.on_exhausted),))

    monkeypatch.setattr("penstock.pipeline.run.check_runner", refuse)
    for runner, decided in (("direct", "stop"), ("flink", "repeat")):
        for overrides, expected in (({}, decided), ({"on_exhausted": "stop"}, "stop")):
            with pytest.raises(ConfigError, match=f"^{expected}$"):
                run(streamed(tmp_path, **overrides), runner=runner)
