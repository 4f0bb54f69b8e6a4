"""Streams go only to engines behind an endpoint that were shown to hold the minimum of their readers' watermarks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

from penstock.mechanisms.core.plugin import ConfigError, DataError
from penstock.pipeline.cli.main import main
from penstock.pipeline.config.run import loads
from penstock.pipeline.run import run
from penstock.pipeline.runners import beam
from penstock.pipeline.runners.beam import IN_PROCESS, engine
from penstock.pipeline.runners.flink.jars import folder_of, server, versions
from penstock.pipeline.runners.flink.jobs import job_server

FLINK, SPARK = (
    "org.apache.beam.runners.flink.FlinkPipelineOptions",
    "org.apache.beam.runners.spark.SparkPipelineOptions",
)
PLAIN = "org.apache.beam.sdk.options.PipelineOptions"
PRISM = os.environ.get("PRISM") or shutil.which("prism")


class Service(beam_job_api_pb2_grpc.JobServiceServicer):
    """A job service that describes options of some interfaces, and does not know a job."""

    def __init__(self) -> None:
        self.groups: list[str] = []
        self.unknown_job = ""
        self.options: dict[str, Any] = {}

    def DescribePipelineOptions(self, request, context):
        options = [beam_job_api_pb2.PipelineOptionDescriptor(name="a", group=group) for group in self.groups]
        return beam_job_api_pb2.DescribePipelineOptionsResponse(options=options)

    def Prepare(self, request, context):
        self.options = dict(request.pipeline_options)
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "that was all")

    def GetState(self, request, context):
        context.abort(grpc.StatusCode.UNKNOWN, self.unknown_job.format(request.job_id))


@pytest.fixture
def service():
    server, servicer = grpc.server(ThreadPoolExecutor(2)), Service()
    beam_job_api_pb2_grpc.add_JobServiceServicer_to_server(servicer, server)
    servicer.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield servicer
    server.stop(None)


def text_of(folder: Path) -> str:
    space = {"type": "grid", "south": 37.74, "north": 37.82, "west": -122.47, "east": -122.37, "rows": 2, "columns": 2}
    value = {
        "name": "engines",
        "seed": 1,
        "source": {"type": "stream", "of": {"type": "synthetic", "n_users": 9, "days": 1, "seed": 7}},
        "space": space,
        "windows": {"type": "fixed", "size": "1h"},
        "mechanism": {"type": "discrete_laplace", "epsilon": 1.0},
        "output": {"path": str(folder), "report": False},
    }
    return json.dumps(value)


def configured(folder: Path):
    return loads(text_of(folder))


def finite(folder: Path):
    config = configured(folder)
    return replace(config, source=config.source.of)


@pytest.mark.parametrize(
    ("groups", "unknown_job", "name"),
    [
        ([PLAIN, FLINK], "", "Flink"),
        ([PLAIN, SPARK], "", "Spark"),
        ([FLINK, SPARK], "", "Flink or Spark"),  # which of them runs the job it does not say
        ([PLAIN], "no such job", "unknown"),
        ([], "job with id {} not found", "Prism"),
        ([], "Exception calling application: {}", "unknown"),
    ],
)
def test_an_engine_that_was_never_shown_to_hold_watermarks_is_refused_by_name(
    service, tmp_path, groups, unknown_job, name
):
    service.groups, service.unknown_job = groups, unknown_job
    assert engine.engine_behind(service.endpoint) == name
    options = [f"--job_endpoint={service.endpoint}"]
    if name == "Flink":
        assert engine.unverified_engine(options, is_allowed=False) is None
        return
    with pytest.raises(ConfigError, match=f"the engine behind it is {name}, which was never shown"):
        run(configured(tmp_path / "out"), runner="flink", beam_options=options)
    assert not (tmp_path / "out").exists()


def test_an_unverified_engine_stands_in_the_manifests(service, tmp_path, monkeypatch, caplog):
    service.unknown_job = "job with id {} not found"

    def interrupted(*_):
        return "interrupted"

    monkeypatch.setattr(beam, "run", interrupted)
    options = [f"--job_endpoint={service.endpoint}"]
    result = run(configured(tmp_path / "out"), runner="flink", beam_options=options, unverified_engine=True)
    for side in ("public", "operator"):
        manifest = json.loads((tmp_path / "out" / side / "manifest.json").read_text())
        assert manifest["engine"].startswith("Prism, unverified: it was never shown to hold the minimum")
    assert result.exit_code == 4
    assert "UNVERIFIED ENGINE: Prism, unverified" in caplog.text
    # What was released there stays so, wherever the run goes on.
    service.groups = [FLINK]
    run(configured(tmp_path / "out"), runner="flink", beam_options=options, resume=True)
    assert "Prism, unverified" in (tmp_path / "out" / "public" / "manifest.json").read_text()


@pytest.mark.parametrize("runner", ["flink", "PortableRunner"])
def test_prism_behind_an_endpoint_is_told_to_leave_keys_whole(service, tmp_path, runner):
    """Splitting keys loses their state; see `penstock.pipeline.runners.prism`."""
    service.unknown_job = "job with id {} not found"
    workers = "LOOPBACK" if runner == "flink" else "DOCKER"
    options = [f"--job_endpoint={service.endpoint}", f"--environment_type={workers}", "--experiments=of_ones_own"]
    config = configured(tmp_path / "out")
    if runner != "flink":
        config = finite(tmp_path / "out")  # which such runners take
    with pytest.raises(grpc.RpcError, match="that was all"):
        run(config, runner=runner, beam_options=options, unverified_engine=True)
    experiments = set(service.options["beam:option:experiments:v1"])
    assert {"of_ones_own", "prism_disable_sdf_split"} <= experiments


@pytest.mark.parametrize("name", ["SparkRunner", "SwitchingDirectRunner", "InteractiveRunner", IN_PROCESS, "Flink"])
def test_runners_that_open_ports_are_refused_by_name(tmp_path, name):
    with pytest.raises(ConfigError, match=f"--runner {name}: it must be one of direct, local, flink, prism, dataflow"):
        run(finite(tmp_path / "out"), runner=name)
    assert not (tmp_path / "out").exists()


def test_beams_names_stand_for_what_is_started_here(tmp_path):
    assert run(finite(tmp_path / "out"), runner="DirectRunner").exit_code == 0
    with pytest.raises(ConfigError, match="--prism_location"):
        run(finite(tmp_path / "other"), runner="PrismRunner", beam_options=[f"--prism_location={tmp_path}/none"])


@pytest.mark.parametrize("option", ["--job_endpoint=embed", "--environment_type=LOOPBACK"])
def test_workers_of_beam_that_listen_everywhere_are_refused(tmp_path, option):
    with pytest.raises(ConfigError, match=f"--runner PortableRunner: .*{option} .*open ports to the network"):
        run(finite(tmp_path / "out"), runner="PortableRunner", beam_options=["--job_endpoint=localhost:1", option])


def test_an_endpoint_that_does_not_answer_is_reported():
    with pytest.raises(DataError, match="no job service answers at localhost:1"):
        engine.engine_behind("localhost:1", seconds=0.5)


@pytest.mark.integration
@pytest.mark.skipif(not any(folder_of(version).exists() for version in versions()), reason="no jars of Flink")
def test_the_job_server_of_flink_is_known(tmp_path):
    with job_server("[local]", tmp_path, server()[1]) as endpoint:
        assert engine.engine_behind(endpoint) == "Flink"


@pytest.mark.integration
@pytest.mark.skipif(PRISM is None, reason="no Prism: $PRISM names its binary, or it is on the PATH")
def test_prism_is_refused(tmp_path, capsys):
    port = "8973"
    prism = subprocess.Popen([str(PRISM), f"--job_port={port}", "--serve_http=false"], stderr=subprocess.DEVNULL)
    try:
        time.sleep(1)
        path = tmp_path / "run.json"
        path.write_text(text_of(tmp_path / "out"))
        words = ["run", str(path), "--runner", "flink", "--quiet", "--", f"--job_endpoint=localhost:{port}"]
        assert main(words) == 2
        assert "the engine behind it is Prism" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
    finally:
        prism.kill()
        prism.wait()
