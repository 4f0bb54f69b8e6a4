"""Input without a usable row ends a run before any release, unless a deployment allows empty input."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.cli.main import main
from penstock.pipeline.reporting.page import write_report
from penstock.pipeline.run import run
from tests.tools.deployments import configured, sections

HEAD = "user,time,latitude,longitude\n"
IN_TIME, IN_AREA = "2024-01-01T00:10:00Z", "37.75,-122.45"
#: Input, what is changed of the source, and what is said.
USELESS = {
    "header only": (HEAD, {}, "The input has no rows"),
    "swapped, out of range": (f"{HEAD}a,{IN_TIME},-122.45,37.75\n", {}, "probably swapped"),
    "metres": (f"{HEAD}a,{IN_TIME},5300122.45,600037.75\n", {}, "Metres of a map projection"),
    "wrong sign": (f"{HEAD}a,{IN_TIME},37.75,122.45\n", {}, "lost their sign"),
    "another area": (
        f"{HEAD}a,{IN_TIME},51.5,0.1\n",
        {},
        "rows were in no cell. Is the space where the events are?",
    ),
    "another year": (f"{HEAD}a,2023-01-01T00:10:00Z,{IN_AREA}\n", {}, "in the year of the events"),
    "another zone": (f"{HEAD}a,2024-01-01T08:10:00Z,{IN_AREA}\n", {}, "of another time zone"),
    "another format": (
        f"{HEAD}a,01.01.2024 00:10,{IN_AREA}\n",
        {},
        "is not ISO 8601. The times are probably of another",
    ),
    "skipped by clocks": (
        f"{HEAD}a,2024-03-31T02:10:00,{IN_AREA}\n",
        {"time_zone": "Europe/Zurich"},
        "Local times that never existed: is source.time_zone right?",
    ),
    "seconds": (
        f"{HEAD}a,1704067800,{IN_AREA}\n",
        {"time_format": "unix_ms"},
        "The times are of 1970: seconds read as milliseconds",
    ),
}


def value_of(folder: Path, text: str, mode: str, **source: object) -> dict:
    value = sections(folder)
    (folder / "events.csv").write_text(text)
    value["source"] |= source
    if mode == "simulation":
        value |= {"mode": mode, "noise_key": None}
    return value


@pytest.mark.parametrize("name", USELESS)
def test_a_deployment_that_may_be_empty_releases_as_with_one_persons_row(tmp_path, capsys, name):
    text, source, cure = USELESS[name]
    for folder, rows in (("without", text), ("with", f"{HEAD}a,{IN_TIME},{IN_AREA}\n")):
        path = tmp_path / folder / "run.json"
        path.parent.mkdir()
        value = value_of(path.parent, rows, "deployment", **(source if folder == "without" else {}))
        path.write_text(json.dumps(value | {"allow_empty": True}))
        assert main(["run", str(path), "--runner", "local"]) == 0
        message = capsys.readouterr().err
        assert (cure in message) == ("nothing of the input can be used" in message) == (folder == "without")
    one, other = (pl.read_parquet(tmp_path / name / "out/public/releases.parquet") for name in ("without", "with"))
    assert one.drop("value").equals(other.drop("value"))


@pytest.mark.parametrize("mode", ["simulation", "deployment"])
@pytest.mark.parametrize("name", USELESS)
def test_nothing_is_released_where_no_row_can_be_used(tmp_path, capsys, name, mode):
    text, source, cure = USELESS[name]
    path = tmp_path / "run.json"
    path.write_text(json.dumps(value_of(tmp_path, text, mode, **source)))
    assert main(["run", str(path), "--runner", "local"]) == 1
    message = capsys.readouterr().err
    assert main(["validate", str(path)]) == 1  # accepts nothing that a run refuses
    assert capsys.readouterr() == ("", message)
    assert "nothing of the input can be used, and nothing was released" in message
    assert cure in message
    assert ("allow_empty: true releases empty counts" in message) == (mode == "deployment")
    assert not any(value in message for value in ("122.45", "0.1", "2023", "08:10"))
    assert not [file for file in (tmp_path / "out").rglob("*") if file.is_file()]


@pytest.mark.parametrize(("mode", "allowed"), [("deployment", False), ("deployment", True), ("simulation", False)])
def test_validate_says_what_a_deployment_tells_where_no_row_can_be_used(tmp_path, capsys, mode, allowed):
    path = tmp_path / "run.json"
    value = value_of(tmp_path, f"{HEAD}a,{IN_TIME},{IN_AREA}\n", mode) | ({"allow_empty": True} if allowed else {})
    path.write_text(json.dumps(value))
    assert main(["validate", str(path)]) == 0
    messages = "a run in which no row can be used ends with an error and releases nothing, which tells those who wait"
    assert (messages in " ".join(capsys.readouterr().out.split())) == (mode == "deployment" and not allowed)


def test_swapped_coordinates_inside_the_range_are_recognised(tmp_path):
    value = value_of(tmp_path, f"{HEAD}a,{IN_TIME},8.55,47.35\n", "simulation")
    value["space"] |= {"south": 47.3, "north": 47.4, "west": 8.5, "east": 8.6}
    with pytest.raises(DataError, match=r"probably swapped: exchange them in source.columns\."):
        run(configured(value), runner="local")


def test_swapped_coordinates_of_zones_are_recognised(tmp_path):
    value = value_of(tmp_path, f"{HEAD}a,{IN_TIME},47.35,8.55\n", "simulation")
    ring = [[47.3, 8.5], [47.4, 8.5], [47.4, 8.6], [47.3, 8.5]]
    zone = {"type": "Feature", "properties": {"n": "a"}, "geometry": {"type": "Polygon", "coordinates": [ring]}}
    file = tmp_path / "zones.geojson"
    file.write_text(json.dumps({"type": "FeatureCollection", "features": [zone]}))
    value["space"] = {"type": "zones", "path": str(file), "name": "n"}
    with pytest.raises(DataError, match=r"exchange them in source\.columns, or in .*zones\.geojson"):
        run(configured(value), runner="local")


def test_swapped_coordinates_may_be_those_of_the_stations(tmp_path):
    value, file = value_of(tmp_path, f"{HEAD}a,{IN_TIME},47.35,8.55\n", "simulation"), tmp_path / "stops.txt"
    file.write_text("stop_id,stop_lat,stop_lon\na,8.55,47.35\n")
    value["space"] = {"type": "stations", "file": str(file), "radius": 500}
    with pytest.raises(DataError, match=r"exchange them in source\.columns, or in .*stops\.txt"):
        run(configured(value), runner="local")


def test_of_a_part_of_the_input_the_part_counts(tmp_path):
    rows = f"a,2023-01-01T00:10:00Z,{IN_AREA}\n" * 9 + f"a,{IN_TIME},37.75,122.45\n"
    with pytest.raises(DataError, match="1 of 10 rows were in no cell"):
        run(configured(value_of(tmp_path, HEAD + rows, "deployment")), runner="local")


def test_an_earlier_run_stays_where_the_next_can_use_nothing(tmp_path):
    folder = run(configured(value_of(tmp_path, f"{HEAD}a,{IN_TIME},{IN_AREA}\n", "simulation")), runner="local").folder
    before = (folder / "public" / "releases.parquet").read_bytes()
    with pytest.raises(DataError, match="nothing was released"):
        run(configured(value_of(tmp_path, HEAD, "simulation")), runner="local")
    assert (folder / "public" / "releases.parquet").read_bytes() == before


@pytest.mark.parametrize("runner", ["local", "direct"])
def test_one_usable_row_at_the_end_is_enough(tmp_path, runner):
    rows = f"a,{IN_TIME},51.5,0.1\n" * 3000 + f"a,{IN_TIME},{IN_AREA}\n"
    result = run(configured(value_of(tmp_path, HEAD + rows, "deployment")), runner=runner)
    assert result.exit_code == 0
    assert result.manifest["rows"]["used"] == 1


@pytest.mark.parametrize("n_used", [1, 5])
def test_half_of_the_rows_lost_is_the_last_line_and_on_the_operators_page(tmp_path, capsys, n_used):
    rows = f"a,{IN_TIME},37.75,122.45\n" * (10 - n_used) + f"b,{IN_TIME},{IN_AREA}\n" * n_used
    path = tmp_path / "run.json"
    path.write_text(json.dumps(value_of(tmp_path, HEAD + rows, "deployment")))
    assert main(["run", str(path), "--runner", "local"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    message = f"{10 - n_used} of 10 rows were in no cell. Longitudes have probably lost their sign: west is negative."
    assert last == f"WARNING   half of the rows or more were not used: {message}"
    private, public = (page.read_text() for page in write_report(tmp_path / "out"))
    assert f"Danger: half of the rows or more were not used.</strong> {message}" in private
    assert "not used" not in public


@pytest.mark.parametrize(("n_area", "message"), [(1, None), (2, "2 of 4 rows were in no cell.")])
def test_of_a_run_on_a_part_of_its_input_only_the_rows_of_the_part_can_be_lost(tmp_path, n_area, message):
    rows = f"a,2023-01-01T00:10:00Z,{IN_AREA}\n" * 16 + f"a,{IN_TIME},51.5,0.1\n" * n_area
    result = run(
        configured(value_of(tmp_path, HEAD + rows + f"a,{IN_TIME},{IN_AREA}\n" * (4 - n_area), "simulation")),
        runner="local",
    )
    assert message in result.manifest["unused"] if message else "unused" not in result.manifest


def test_a_stream_that_cannot_be_looked_at_before_is_warned_of_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("penstock.pipeline.runners.local.is_recorded", lambda source: False)
    value = value_of(tmp_path, HEAD + f"a,{IN_TIME},37.75,122.45\n" * 3000 + f"a,{IN_TIME},{IN_AREA}\n", "simulation")
    value["source"] = {"type": "stream", "of": value["source"] | {"block_rows": 500}}
    path = tmp_path / "run.json"
    path.write_text(json.dumps(value))
    assert main(["run", str(path), "--runner", "local"]) == 0
    message = capsys.readouterr().err
    assert message.count("no row was usable so far. 1,000 of 1,000 rows were in no cell. Longitudes have probably") == 1
