"""The JSON Schema agrees with loading, and every shipped configuration passes both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from penstock.mechanisms.core.plugin import ConfigError
from penstock.pipeline.config.build import fields_of, input_paths
from penstock.pipeline.config.kinds import DURATION_PATTERN
from penstock.pipeline.config.run import RunConfig, load, loads
from penstock.pipeline.config.schema import json_schema
from penstock.pipeline.config.sections import UNIONS, plugins_of
from penstock.pipeline.config.yaml import parse, plain
from tests.tools.checkout import ROOT
from tests.tools.right_configuration import EVENTS, RIGHT, changed

CONFIGS = sorted((ROOT / "configs").glob("*.yaml")) + sorted((ROOT / "configs" / "datasets").glob("*.yaml"))

SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, working_folder: Path) -> Path:
    name, text = EVENTS
    (tmp_path / name).write_text(text)
    return tmp_path


def written(path: Path) -> Any:
    node, problems = parse(path.read_text(), path.name)
    assert node is not None
    assert problems == []
    return plain(node)


def test_the_schema_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(json.dumps(SCHEMA, allow_nan=False)) == SCHEMA


def test_every_key_is_there_with_its_meaning() -> None:
    assert list(SCHEMA["properties"]) == [field.key for field in fields_of(RunConfig)]
    for family in UNIONS.values():
        for name, plugin in plugins_of(family).items():
            section = SCHEMA["$defs"][f"{family.kind}.{name}"]
            assert set(section["properties"]) == {"type", *(field.key for field in fields_of(plugin))}
            assert all("description" in value for key, value in section["properties"].items() if key != "type")


#: A file of every source that a shipped configuration reads.
FIRST_ROWS = {
    "cabspotting": ("new_cab.txt", "37.75 -122.4 0 1211155200\n"),
    "geolife": ("1.plt", "header\n" * 6 + "39.9,116.4,0,492,39882.0,2009-02-04,08:00:00\n"),
    "gowalla": ("nyc_totalCheckins.txt", "7\t2010-05-01T12:00:00Z\t40.75\t-73.98\t42\n"),
    "foursquare": ("checkins.csv", "7,4b,4c,Cafe,40.75,-73.98,-240,Sat Jul 07 02:12:49 +0000 2012\n"),
    "citibike": ("JC-202003-citibike-tripdata.csv", "starttime,stoptime,start station id,end station id\n"),
    "tdrive": ("1.txt", "1,2008-02-02 16:00:00,116.4,39.9\n"),
}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configurations_are_valid(path: Path, folder: Path) -> None:
    values = written(path)
    VALIDATOR.validate(values)
    if "path" in values["source"]:
        name, text = FIRST_ROWS[values["source"]["type"]]
        (folder / values["source"]["path"]).mkdir(parents=True)
        (folder / values["source"]["path"] / name).write_text(text)
    config = load(path)
    assert config.name == path.stem.replace("_", "-")
    assert all(Path(actual).exists() for actual in input_paths(config))


def test_something_is_shipped() -> None:
    assert {path.name for path in CONFIGS} >= {"quickstart.yaml", "sf_cabs.yaml"}


def test_the_example_is_valid() -> None:
    VALIDATOR.validate(RIGHT)
    assert loads(json.dumps(RIGHT)).name == "example"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("nmae",), "x"),
        (("seed",), -1),
        (("seed",), 1.5),
        (("mode",), "production"),
        (("source", "from"), "2008-05-19T00:00:00"),
        (("source", "from"), "2008-05-19"),
        (("source", "columns"), {"user": 5}),
        (("space", "type"), "gird"),
        (("space", "nroth"), 37.8),
        (("space", "south"), 91),
        (("windows", "size"), "1 hour"),
        (("windows", "size"), 60),
        (("bounding", "keep"), "best"),
        (("bounding",), 3),
        (("landmarks", "windows"), ["x"]),
        (("mechanism", 0, "epsilon"), 0),
        (("mechanism", 0, "epsilon"), True),
        (("windows", "size"), None),
        (("utility",), [1]),
        (("output",), {}),
    ],
)
def test_the_schema_refuses_what_does_not_load(path: tuple[str | int, ...], value: Any) -> None:
    values = changed(RIGHT, path, value)
    assert not VALIDATOR.is_valid(values)
    with pytest.raises(ConfigError):
        loads(json.dumps(values))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("mechanism",), {"type": "raw"}),
        (("mechanism", 0, "epsilon"), 1),
        (("mechanism", 0, "epsilon"), "inf"),
        (("utility",), "mae"),
        (("seed",), None),
        (("landmarks", "windows"), 3),
        (("windows", "size"), "1h30m"),
    ],
)
def test_the_schema_accepts_what_loads(path: tuple[str | int, ...], value: Any) -> None:
    values = changed(RIGHT, path, value)
    assert VALIDATOR.is_valid(values)
    assert loads(json.dumps(values)).name


def test_the_duration_pattern_is_one_that_editors_understand() -> None:
    assert "(?P" not in DURATION_PATTERN
    assert "(?<" not in DURATION_PATTERN
