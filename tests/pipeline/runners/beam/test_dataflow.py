"""Requirements of managed runners: a source distribution for workers, and a portable graph."""

from __future__ import annotations

import base64
import bz2
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apache_beam as beam
import grpc
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc, beam_runner_api_pb2
from apache_beam.transforms.environments import Environment

from penstock.mechanisms.core.noise_keys import new_key_file
from penstock.mechanisms.core.plugin import ConfigError, PenstockError
from penstock.pipeline.cli.main import main
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.runners.beam.graph import build
from tests.tools.checkout import ROOT

PACKAGES = ("penstock",)
FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE", "constraints.txt")
IMAGE = "apache/beam_python3.11_sdk:2.77.0"


def copy_of_the_project(folder: Path) -> Path:
    """Copy the sources without build artefacts."""
    left_out = shutil.ignore_patterns("__pycache__", ".*")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=left_out)
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    """The source distribution, made as Beam makes it for ``--setup_file``."""
    project = copy_of_the_project(tmp_path_factory.mktemp("project"))
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(target)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    (actual,) = target.glob("*.tar.gz")
    return actual


@pytest.fixture(scope="module")
def clean(sdist, tmp_path_factory) -> Path:
    """Create an environment with the distribution alone."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "-q", "--python", str(python), "install", "--no-deps", str(sdist)]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode and re.search("connection|No matching distribution", done.stderr, re.IGNORECASE):
        pytest.skip("a package index is needed to build in a clean environment")
    assert done.returncode == 0, done.stderr
    (site,) = (folder / "lib").glob("python*/site-packages")
    # A plain path: what is installed there in development mode is not found through it.
    (site / "dependencies.pth").write_text(str(Path(beam.__file__).parent.parent) + "\n")
    return python


def say(python: Path, code: str, folder: Path) -> str:
    return talk([str(python), "-c", code], folder).strip()


def talk(command: list[str], folder: Path) -> str:
    """Run a command in an isolated environment and return its output."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=folder, env=inherited, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def configuration(folder: Path, out: str = "out", **changes: object) -> dict:
    source = {"type": "synthetic", "n_users": 40, "days": 1, "seed": 5, "rows": 2, "columns": 2}
    return {
        "name": "portable",
        "seed": 3,
        "source": source | {"from": "2024-01-01T00:00:00Z"},
        "space": {"type": "grid", "south": 37.74, "north": 37.82, "west": -122.47, "east": -122.37, "rows": 2}
        | {"columns": 2},
        "windows": {"type": "fixed", "size": "1h"},
        "bounding": {"max_cells": 2},
        "landmarks": {"windows": [2, 9]},
        "mechanism": {"type": "landmark_uniform", "epsilon": 4.0, "noise": "discrete_laplace"},
        "accountants": [{"type": "landmark_budget"}],
        "output": {"path": str(folder / out), "ledger_source": "events"},
    } | changes


def test_the_source_distribution_is_complete(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for package in PACKAGES:
        files = [path for path in (ROOT / package).rglob("*") if path.is_file()]
        wanted = {str(path.relative_to(ROOT)) for path in files if not re.search(r"__pycache__|/\.", str(path))}
        assert wanted <= names, sorted(wanted - names)
    assert {"README.md", "LICENSE", "setup.py", "constraints.txt"} <= names
    assert "penstock/pipeline/reporting/templates/page.html" in names


def test_the_package_installs_and_works_in_a_clean_environment(clean, tmp_path):
    where = say(clean, "import penstock; print(penstock.__file__)", tmp_path)
    assert where.startswith(str(clean.parent.parent))
    command = str(clean.parent / "penstock")
    assert "landmark_uniform" in talk([command, "list"], tmp_path)
    (tmp_path / "run.yaml").write_text(json.dumps(configuration(tmp_path)))
    talk([command, "run", "run.yaml", "--quiet"], tmp_path)
    assert "<title>" in (tmp_path / "out" / "report.html").read_text()


def test_workers_of_a_clean_environment_release_the_same(clean, tmp_path, monkeypatch):
    """Beam's own entry point of a worker, started as its container starts it, unpickles and runs the whole graph."""
    from apache_beam.runners.portability.local_job_service import LocalJobServicer

    from penstock.pipeline.run import run

    there = tmp_path / "there"
    config = configuration(tmp_path, "there")
    work = f"{clean} -m apache_beam.runners.worker.sdk_worker_main"
    service = LocalJobServicer(str(tmp_path / "staged"))
    endpoint = f"--job_endpoint=localhost:{service.start_grpc_server()}"
    options = [endpoint, "--environment_type=beam:env:harness_subprocess_python:v1"]
    monkeypatch.chdir(tmp_path)
    for name in ("PYTHONPATH", "PYTHONHOME"):
        monkeypatch.delenv(name, raising=False)
    result = run(loads(json.dumps(config)), there, "PortableRunner", [*options, f"--environment_config={work}"])
    service.stop()
    here = run(loads(json.dumps(config)), tmp_path / "here")
    for name in ("public/releases.parquet", "public/accounts.parquet", "operator/truth.parquet"):
        assert (there / name).read_bytes() == (here.folder / name).read_bytes(), name
    assert result.manifest["rows"] == here.manifest["rows"]


#: Some steps of the graph, by name.
GRAPH = {
    "ReadEvents/ReadSpans",
    "CountDistinctUsers/FindContributions",
    "CountDistinctUsers/CountWhenFinal",
    "ReleaseInOrder/Release",
    "WriteReleases/Write",
    "Account/AccountInOrder",
    "TallyRows/Tally",
}
#: What every portable runner understands.
STANDARD = {
    "beam:transform:impulse:v1",
    "beam:transform:pardo:v1",
    "beam:transform:group_by_key:v1",
    "beam:transform:flatten:v1",
    "beam:transform:combine_per_key:v1",
}


#: Coders of values that a runner passes on without a look.
PYTHON_ONLY = {"beam:coder:pickled_python:v1", "beam:coder:tuple:v1"}


def graph_of(folder: Path, **changes: object) -> beam_runner_api_pb2.Pipeline:
    config = loads(json.dumps(configuration(folder, **changes)))
    options = PipelineOptions(["--environment_type=DOCKER", f"--environment_config={IMAGE}"])
    pipeline = beam.Pipeline(options=options)
    build(pipeline, make_plan(config, folder / "out", n_shards=2))
    environment = Environment.from_options(options.view_as(PortableOptions))
    return pipeline.to_runner_api(default_environment=environment)


def leaves(graph: beam_runner_api_pb2.Pipeline) -> dict[str, str]:
    """URN of every transform that is made of no others and does something."""
    actual = {}
    for each in graph.components.transforms.values():
        passes_through = set(each.outputs.values()) <= set(each.inputs.values())
        if not each.subtransforms and not (passes_through and each.outputs):
            actual[each.unique_name] = each.spec.urn
    return actual


def test_the_graph_is_portable(tmp_path):
    graph = graph_of(tmp_path)
    actual = leaves(graph)
    composites = {each.spec.urn for each in graph.components.transforms.values()}
    assert set(actual.values()) <= STANDARD, set(actual.values()) - STANDARD
    assert not [urn for urn in composites if "test_stream" in urn or "fn_api" in urn]
    assert {environment.urn for environment in graph.components.environments.values()} == {"beam:env:docker:v1"}
    coders = {coder.spec.urn for coder in graph.components.coders.values()}
    assert coders <= beam_standard_coders() | PYTHON_ONLY, coders - beam_standard_coders()
    assert "beam:requirement:pardo:stateful:v1" in graph.requirements


def beam_standard_coders() -> set[str]:
    enum = beam_runner_api_pb2.StandardCoders.Enum
    options = enum.DESCRIPTOR.values
    return {value.GetOptions().Extensions[beam_runner_api_pb2.beam_urn] for value in options}


def test_keys_of_the_graph_have_the_same_bytes_everywhere(tmp_path):
    """A pickled key could differ from process to process, and its values be taken apart."""
    components = graph_of(tmp_path).components
    for transform in components.transforms.values():
        keyed = transform.spec.urn == "beam:transform:group_by_key:v1"
        if transform.spec.urn == "beam:transform:pardo:v1":
            payload = beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)
            keyed = bool(payload.state_specs or payload.timer_family_specs)
        if keyed:
            (collection,) = transform.inputs.values()
            coder = components.coders[components.pcollections[collection].coder_id]
            assert coder.spec.urn == "beam:coder:kv:v1", transform.unique_name
            assert "pickled" not in urns(components, coder.component_coder_ids[0]), transform.unique_name


def urns(components: beam_runner_api_pb2.Components, coder_id: str) -> str:
    coder = components.coders[coder_id]
    return " ".join([coder.spec.urn, *(urns(components, part) for part in coder.component_coder_ids)])


def deployed(folder: Path) -> dict[str, object]:
    new_key_file(folder / "key")
    return {"mode": "deployment", "noise_key": str(folder / "key"), "seed": None}


def steps_of(graph: beam_runner_api_pb2.Pipeline) -> list[bytes]:
    """Everything that the steps of the graph take along, without the compression that Beam pickles with."""
    actual = []
    for transform in graph.components.transforms.values():
        if transform.spec.urn == "beam:transform:pardo:v1":
            payload = beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)
            actual.append(bz2.decompress(base64.b64decode(payload.do_fn.payload)))
    return actual


def holding(graph: beam_runner_api_pb2.Pipeline, secrets: tuple[bytes, ...]) -> int:
    return sum(any(secret in step for secret in secrets) for step in steps_of(graph))


def test_the_graph_of_a_deployment_holds_no_secret(tmp_path):
    def secrets_of(**changes: object) -> tuple[bytes, ...]:
        plan = make_plan(loads(json.dumps(configuration(tmp_path, **changes))), tmp_path / "out")
        return (*plan.keys.noise_key._secrets, plan.keys.users or b"none", plan.keys.pseudonyms, plan.keys.bounding)

    # In a simulation everybody may know: so the search finds something.
    assert holding(graph_of(tmp_path), secrets_of()) > 5
    changes = deployed(tmp_path)
    assert holding(graph_of(tmp_path, **changes), secrets_of(**changes)) == 0


def test_a_worker_without_the_key_says_so(tmp_path):
    config = loads(json.dumps(configuration(tmp_path, **deployed(tmp_path))))
    plan = make_plan(config, tmp_path / "out")
    assert plan.keys.users is not None  # derived before the plan travels
    data = pickle.dumps(plan)
    again = pickle.loads(data).with_noise_key()
    assert again.keys.noise_key == plan.keys.noise_key
    assert again.keys.users == plan.keys.users
    assert plan.keys.users not in data
    (tmp_path / "key").unlink()
    again = pickle.loads(data)  # reads no file
    with pytest.raises(PenstockError, match="cannot be read as a"):
        again.with_noise_key()


class Recorder(beam_job_api_pb2_grpc.JobServiceServicer):
    """A job service that accepts a pipeline, keeps it, and says that it has run."""

    def __init__(self) -> None:
        self.prepared: beam_job_api_pb2.PrepareJobRequest | None = None

    def DescribePipelineOptions(self, request, context):
        return beam_job_api_pb2.DescribePipelineOptionsResponse()

    def Prepare(self, request, context):
        self.prepared = request
        return beam_job_api_pb2.PrepareJobResponse(preparation_id="recorded")

    def Run(self, request, context):
        return beam_job_api_pb2.RunJobResponse(job_id=request.preparation_id)

    def GetStateStream(self, request, context):
        yield beam_job_api_pb2.JobStateEvent(state=beam_job_api_pb2.JobState.DONE)

    def GetMessageStream(self, request, context):
        state = beam_job_api_pb2.JobStateEvent(state=beam_job_api_pb2.JobState.DONE)
        yield beam_job_api_pb2.JobMessagesResponse(state_response=state)


@pytest.fixture
def job_service():
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", 2**28)])
    recorder = Recorder()
    beam_job_api_pb2_grpc.add_JobServiceServicer_to_server(recorder, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield recorder, f"127.0.0.1:{port}"
    finally:
        server.stop(None)


def test_a_job_service_gets_the_whole_job(job_service, tmp_path, capsys):
    """And where its workers have written elsewhere, the driver says so instead of reporting an empty run."""
    recorder, endpoint = job_service
    project = copy_of_the_project(tmp_path / "project")
    (tmp_path / "run.yaml").write_text(json.dumps(configuration(tmp_path)))
    words = ["run", str(tmp_path / "run.yaml"), "--runner", "PortableRunner", "--quiet", "--"]
    options = [f"--job_endpoint={endpoint}", "--environment_type=DOCKER", f"--environment_config={IMAGE}"]
    assert main([*words, *options, f"--setup_file={project / 'setup.py'}"]) == 1
    assert "must be one that the driver shares with all workers" in capsys.readouterr().err
    graph = recorder.prepared.pipeline
    steps = sorted(leaves(graph))
    # A step with several outputs is one transform deeper here.
    assert all(any(f"{step}/".startswith(f"{name}/") for step in steps) for name in GRAPH), steps
    (environment,) = (each for each in graph.components.environments.values() if each.urn == "beam:env:docker:v1")
    assert beam_runner_api_pb2.DockerPayload.FromString(environment.payload).container_image == IMAGE
    artifacts = [
        beam_runner_api_pb2.ArtifactStagingToRolePayload.FromString(each.role_payload).staged_name
        for each in environment.dependencies
    ]
    assert "workflow.tar.gz" in artifacts


def test_runners_that_cannot_be_used_are_explained(tmp_path):
    from penstock.pipeline.run import run

    config = loads(json.dumps(configuration(tmp_path)))
    with pytest.raises(ConfigError, match=r"--runner dataflow: (.*\n)*Missing required option: project"):
        run(config, runner="dataflow")
    with pytest.raises(ConfigError, match="--runner nonsense: it must be one of direct, local"):
        run(config, runner="nonsense")
    gcp = ["--project=project-one", "--region=europe-west4"]
    gcp += [f"--{name}_location=gs://bucket-one/{name}" for name in ("temp", "staging")]
    try:
        import apitools  # noqa: F401
    except ImportError:
        with pytest.raises(ConfigError, match=r"please install apache_beam\[gcp\]"):
            run(config, runner="dataflow", beam_options=gcp)


def test_the_container_recipe_is_of_the_pinned_versions():
    recipe = (ROOT / "deploy" / "Dockerfile").read_text()
    (base,) = re.findall("^FROM (.+)$", recipe, re.MULTILINE)
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line[1:])
    assert base == f"apache/beam_python3.11_sdk:{pinned['apache-beam']}" == IMAGE
    for source in re.findall(r"^COPY (.+) \S+$", recipe, re.MULTILINE):
        assert all((ROOT / name).exists() for name in source.split()), source
    assert not re.search("^(ENTRYPOINT|CMD)", recipe, re.MULTILINE)  # Beam's boot program stays
