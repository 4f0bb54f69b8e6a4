"""Dataflow's Flex Template: metadata by the service's rules, launcher, image."""

from __future__ import annotations

import json
import re
from types import ModuleType
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner

from penstock.pipeline.runners.beam import service
from tests.tools.checkout import ROOT, script
from tests.tools.subscription import CONFIG, connector

FLEX = ROOT / "deploy" / "flex"
METADATA = json.loads((FLEX / "metadata.json").read_text(encoding="utf-8"))
#: Fields of google.dataflow.v1beta3.TemplateMetadata and ParameterMetadata, and some of ParameterType.
FIELDS = {
    "name",
    "description",
    "parameters",
    "streaming",
    "supportsAtLeastOnce",
    "supportsExactlyOnce",
    "defaultStreamingMode",
}
REQUIRED = {"name", "label", "helpText"}
OPTIONAL = {"isOptional", "regexes", "paramType", "customMetadata", "groupName", "parentName", "parentTriggerValues"}
OPTIONAL |= {"enumOptions", "defaultValue", "hiddenUi"}
TYPES = {"TEXT", "GCS_READ_FILE", "PUBSUB_SUBSCRIPTION", "PUBSUB_TOPIC", "BIGQUERY_TABLE", "BOOLEAN", "ENUM", "NUMBER"}
#: Values that a parameter takes, and that it does not.
VALUES = {
    "config": (
        ["gs://bucket/footfall.yaml", "/template/footfall.yaml"],
        ["footfall.yaml", "gs://bucket", "http://x/y"],
    ),
    "output_path": (["/mnt/penstock/footfall"], ["gs://bucket/run", "runs/footfall", "/"]),
    "subscription": (["projects/city-1/subscriptions/events"], ["events", "projects/city-1/topics/events"]),
}


@pytest.fixture(scope="module")
def launcher() -> ModuleType:
    return script("deploy/flex/launch.py")


def test_metadata_keep_to_the_rules_of_the_service():
    assert {"name", "parameters"} <= METADATA.keys() <= FIELDS
    assert METADATA["streaming"] is True
    for parameter in METADATA["parameters"]:
        assert REQUIRED <= parameter.keys() <= REQUIRED | OPTIONAL
        assert re.fullmatch("[a-z][a-z0-9_]*", parameter["name"])  # as Python's options are called
        assert parameter["paramType"] in TYPES
        assert all(isinstance(parameter[field], str) and parameter[field] for field in REQUIRED)


@pytest.mark.parametrize("parameter", METADATA["parameters"], ids=lambda parameter: parameter["name"])
def test_patterns_of_parameters_take_what_is_right(parameter):
    right, wrong = VALUES[parameter["name"]]
    for pattern in parameter["regexes"]:
        assert not re.search(r"\\[dwsb]|\(\?|[*+?]\?", pattern), "no POSIX regular expression"
        assert [value for value in right if not re.search(pattern, value)] == []
        assert [value for value in wrong if re.search(pattern, value)] == []


def test_parameters_are_those_of_the_launcher(launcher):
    names = {parameter["name"]: parameter.get("isOptional", False) for parameter in METADATA["parameters"]}
    assert names == {"config": False, **dict.fromkeys(launcher.OVERRIDES, True)}


def test_the_image_has_what_the_template_wants():
    text = (FLEX / "Dockerfile").read_text(encoding="utf-8")
    assert "ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/template/launch.py" in text
    assert "COPY deploy/flex/launch.py /template/launch.py" in text
    path = "/opt/google/dataflow/python_template_launcher"
    assert f"COPY --from=launcher {path} {path}" in text
    worker = (FLEX.parent / "Dockerfile").read_text(encoding="utf-8")
    (version,) = set(re.findall(r"beam_python3\.11_sdk:([0-9.]+)", worker))
    assert f"'apache-beam[gcp]=={version}'" in text
    assert "python311-template-launcher-base" in text


@pytest.fixture
def submitted(monkeypatch) -> list[Any]:
    """Options of every job that is submitted; nobody may look at a job again."""
    actual: list[Any] = []

    class Pipeline(beam.Pipeline):
        def __init__(self, runner: str, options: Any) -> None:
            super().__init__(runner=BundleBasedDirectRunner(), options=options)
            assert runner == "dataflow"

        def run(self, *_: Any) -> None:
            actual.append(self.options.get_all_options(drop_default=True))

    monkeypatch.setattr(service.beam, "Pipeline", Pipeline)
    monkeypatch.setattr("penstock.pipeline.runners.beam.pubsub.connector_of", connector)
    return actual


def test_the_launcher_submits_and_ends(tmp_path, launcher, submitted):
    (tmp_path / "run.yaml").write_text(CONFIG.replace("PATH", str(tmp_path / "elsewhere")))
    arguments = [f"--config={tmp_path / 'run.yaml'}", f"--output_path={tmp_path / 'run'}"]
    options = ["--runner=DataflowRunner", "--project=city-1", "--template_location=gs://bucket/job_object"]
    assert launcher.main([*arguments, *options]) == 0
    assert launcher.main([*arguments, *options, "--update"]) == 0
    assert [job.get("update", False) for job in submitted] == [False, True]
    assert {(job["job_name"], job["streaming"], job["project"]) for job in submitted} == {
        ("subscribed", True, "city-1")
    }
    assert (tmp_path / "run" / "operator" / "run.json").exists()
    assert not (tmp_path / "elsewhere").exists()


def test_the_launcher_says_what_is_wrong(tmp_path, launcher, submitted, capsys):
    text = CONFIG.replace("PATH", str(tmp_path / "run"))
    (tmp_path / "finite.yaml").write_text(
        text.replace("type: pubsub", "type: synthetic")
        .replace("  subscription: projects/city-1/subscriptions/events\n", "")
        .replace("  columns: {place: stop}\n", "")
        .replace(
            "{type: places, list: [a, b], elsewhere: false}",
            "{type: grid, south: 37.74, north: 37.82, west: -122.47, east: -122.37, rows: 2, columns: 2}",
        )
    )
    for name, words in (("finite", "must be pubsub"), ("nowhere", "cannot be read")):
        assert launcher.main([f"--config={tmp_path / name}.yaml"]) == 2
        assert words in capsys.readouterr().err
    assert not submitted
