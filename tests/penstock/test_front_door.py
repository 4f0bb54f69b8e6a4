"""`import penstock`: load, run and read a run; the transforms in another Beam pipeline."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import apache_beam as beam
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import yaml
from apache_beam.testing.util import assert_that, equal_to

import penstock
from penstock.beam import (
    IN_PROCESS,
    Account,
    CountDistinctUsers,
    EventsToBlocks,
    Release,
    ReleaseInOrder,
    ReleasesToRows,
    TallyRows,
    WriteReleases,
    make_plan,
    require_used,
)
from penstock.mechanisms import Facts
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.noise_keys import new_key_file
from penstock.mechanisms.core.plugin import ConfigError, ParameterError, UnknownPlugin
from penstock.pipeline.monitoring.verify import verify
from penstock.pipeline.releasing.ledger import LedgerExhausted
from tests.tools.checkout import ROOT, script

pages = script("docs/pages.py")
HOUR = 3_600_000
START = 1704067200000  # 2024-01-01T00:00:00Z
PEOPLE = [("ann", 0, "market"), ("bob", 0, "market"), ("ann", 0, "market"), ("cid", 2, "harbour")]


def sections(folder: Path, **changes: Any) -> dict[str, Any]:
    """Four hours, two places; exact counts unless changed."""
    rows = [f"{user},{START + hour * HOUR + 60_000},{place}" for user, hour, place in PEOPLE]
    (folder / "events.csv").write_text("\n".join(["user,time,place", *rows]) + "\n")
    source = {"type": "csv", "path": str(folder / "events.csv"), "time_format": "unix_ms"}
    return {
        "name": "front door",
        "seed": 7,
        "source": source | {"from": "2024-01-01T00:00:00Z", "until": "2024-01-01T04:00:00Z"},
        "space": {"type": "places", "list": ["harbour", "market"], "elsewhere": False},
        "windows": {"type": "fixed", "size": "1h"},
        "bounding": {"max_cells": 1},
        "mechanism": {"type": "discrete_laplace", "epsilon": 1.0},
        "accountants": [{"type": "composition"}],
        "utility": ["mae"],
        "output": {"path": str(folder / "run"), "report": False, "ledger_source": "events"},
    } | changes


def test_importing_it_imports_nothing_heavy():
    code = "import penstock, sys; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"numpy", "polars", "pyarrow", "apache_beam", "scipy", "sklearn", "yaml"}


def test_every_name_it_offers_is_there():
    assert all(getattr(penstock, name) is not None for name in penstock.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = penstock.nothing


@pytest.mark.parametrize(
    "error",
    [
        ParameterError("epsilon", -1, "a number above 0"),
        UnknownPlugin("mechanism", "rwa", ("raw",)),
        penstock.ConfigError(("run.yaml:1: first", "run.yaml:2: second")),
        penstock.BudgetExceeded(3, 1.0, 0.5, 1.2),
        LedgerExhausted(3, 1.0, 0.5, 1.2),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_a_worker_arrives_whole(error):
    arrived = pickle.loads(pickle.dumps(error))
    assert (type(arrived), str(arrived), vars(arrived)) == (type(error), str(error), vars(error))


def test_a_configuration_is_a_path_or_a_text_or_a_mapping(tmp_path):
    value = sections(tmp_path)
    path = tmp_path / "run.yaml"
    text = "\n".join(f"{key}: {json.dumps(part)}" for key, part in value.items())
    path.write_text(text)
    assert penstock.load(value) == penstock.load(text) == penstock.load(path) == penstock.load(str(path))
    assert penstock.load(value, ["seed=8"]).seed == 8
    with pytest.raises(penstock.ConfigError, match="seed"):
        penstock.load(value, ["seed=-8"])


def test_a_result_hands_out_what_a_run_wrote(tmp_path):
    result = penstock.run(sections(tmp_path), tmp_path / "elsewhere", runner="direct")
    assert (result.exit_code, result.folder) == (0, tmp_path / "elsewhere")
    assert result.manifest["rows"]["used"] == len(PEOPLE)
    assert result.releases.equals(pl.read_parquet(result.folder / "public" / "releases.parquet"))
    busy = result.truth.filter(pl.col("count") > 0)
    assert busy.select("window", "cell", "count").rows() == [(1, "market", 2), (3, "harbour", 1)]
    assert set(result.utility["metric"]) == {"bias", "mae"}
    assert set(result.accounts["side"]) <= {"public", "operator"}
    n_rows = sum(pl.read_parquet(path).height for path in result.folder.glob("*/accounts.parquet"))
    assert result.accounts.height == n_rows > 0
    with pytest.raises(penstock.DataError, match=r"traces\.parquet: this run wrote no such file"):
        _ = result.traces
    assert penstock.Result(result.folder).exit_code == 0
    assert penstock.run(sections(tmp_path), result.folder, resume=True).releases.equals(result.releases)


class Frame:
    """A data frame of some other library, by Arrow's interface alone."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.table = pa.table(columns)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


COLUMNS = {
    "user": [user for user, _, _ in PEOPLE],
    "time": [START + hour * HOUR + 60_000 for _, hour, _ in PEOPLE],
    "place": [place for _, _, place in PEOPLE],
}


@pytest.mark.parametrize(
    "frame", [pl.DataFrame(COLUMNS), pa.table(COLUMNS), Frame(COLUMNS)], ids=lambda one: type(one).__name__
)
def test_a_data_frame_may_be_the_source(tmp_path, frame):
    """A frame releases what a file with the same rows does, and can be verified."""
    value = sections(tmp_path)
    expected = penstock.run(value, runner="local").releases
    value["source"] = {k: v for k, v in value["source"].items() if k not in ("type", "path")}
    del value["output"]
    result = penstock.run(value, tmp_path / "frames" / "run", source=frame, runner="local")
    assert result.releases.equals(expected)
    assert all(check.passed for check in verify(result.folder))
    assert penstock.run(value, result.folder, source=frame, runner="local", resume=True).releases.equals(expected)


class Points:
    """A data frame with a column of points, as GeoPandas has them."""

    geometry = None

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        raise ValueError("Did not pass numpy.dtype object", "Conversion failed for column geometry with type geometry")


class Mixed:
    """A data frame of another library that Arrow cannot hold."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        raise pa.ArrowTypeError("Could not convert '1'", "Conversion failed for column user with type object")


def test_a_frame_of_geopandas_is_refused_with_the_way_to_columns(tmp_path):
    geopandas = pytest.importorskip("geopandas", reason="geopandas is not installed")
    value, times = sections(tmp_path), ["2024-01-01T00:10:00Z"]
    value["source"] = {k: v for k, v in value["source"].items() if k not in ("type", "path", "time_format")}
    value["space"] = {"type": "grid", "south": 47, "north": 48, "west": 8, "east": 9, "rows": 1, "columns": 1}
    del value["output"]
    points = geopandas.points_from_xy([8.5], [47.5], crs=4326)
    frame = geopandas.GeoDataFrame({"user": ["ann"], "time": times}, geometry=points).to_crs(2056)
    with pytest.raises(penstock.PenstockError, match=r"frame\.assign\(longitude=frame\.geometry\.to_crs\(4326\)\.x"):
        penstock.run(value, tmp_path / "run", source=frame, runner="local")
    degrees = frame.geometry.to_crs(4326)
    plain = frame.assign(longitude=degrees.x, latitude=degrees.y).drop(columns="geometry")
    assert penstock.run(value, tmp_path / "run", source=plain, runner="local").truth["count"].sum() == 1


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (Mixed(), "Conversion failed for column user"),
        (Points(), r"column geometry.*frame\.assign\(longitude=frame\.geometry\.to_crs\(4326\)\.x, .*drop"),
        (pa.table([[1], [2], ["a"], [3]], ["user", "time", "place", "time"]), "named once.*time"),
        (pl.DataFrame({"user": [object()]}, {"user": pl.Object}), "there are Python objects in it"),
        (
            pa.table({"user": [1], "time": [2], "geometry": [[{"x": 3}]]}),
            "^source: the data frame: no column",
        ),
    ],
    ids=["mixed", "points", "a name twice", "objects", "nested"],
)
def test_a_data_frame_that_no_file_can_hold_is_refused(tmp_path, frame, message):
    value = sections(tmp_path)
    value["source"] = {k: v for k, v in value["source"].items() if k not in ("type", "path")}
    del value["output"]
    with pytest.raises(penstock.PenstockError, match=f"(?s){message}"):
        penstock.run(value, tmp_path / "run", source=frame, runner="local")


def test_the_events_of_a_run_that_stays_are_not_replaced(tmp_path):
    """A run that is continued has the events that it began with, and nothing replaces a deployment."""
    new_key_file(tmp_path / "noise.key")
    value = sections(tmp_path, mode="deployment", noise_key=str(tmp_path / "noise.key"))
    del value["seed"], value["utility"]
    value["source"] = {k: v for k, v in value["source"].items() if k not in ("type", "path")}
    value["output"] = {"path": "unused", "ledger_source": "rides"}
    other = pl.DataFrame(COLUMNS)[:-1]
    out = tmp_path / "run"
    penstock.run(value, out, source=pl.DataFrame(COLUMNS), runner="local")
    events = Path(f"{out}.events.parquet").read_bytes()
    for resume in (True, False):
        with pytest.raises(ParameterError, match=r"the data frame that the run in .* began with"):
            penstock.run(value, out, source=other, runner="local", resume=resume)
    assert Path(f"{out}.events.parquet").read_bytes() == events
    assert all(check.passed for check in verify(out))


def test_a_resumed_run_takes_what_resume_takes_on_the_command_line(tmp_path):
    def streamed(speed: str, **changes: Any) -> dict[str, Any]:
        value = sections(tmp_path, **changes)
        recorded, times = dict(value["source"]), ("from", "until")
        when = {name: recorded.pop(name) for name in times}
        return value | {"source": {"type": "stream", "of": recorded, "speed": speed, **when}}

    first = penstock.run(streamed("max")).releases
    again = penstock.run(streamed("1000000x"), resume=True)
    assert again.exit_code == 0
    assert again.releases.equals(first)
    other = streamed("max", windows={"type": "fixed", "size": "2h"})
    with pytest.raises(ConfigError, match=r"has another configuration \(windows.size\)"):
        penstock.run(other, resume=True)


def test_what_is_no_data_frame_is_refused(tmp_path):
    value = sections(tmp_path)
    with pytest.raises(ParameterError, match=r"source: 'list' .* a data frame of pandas"):
        penstock.run(value, tmp_path / "run", source=[1, 2])
    with pytest.raises(ParameterError, match="out: None is not allowed; it must be a folder"):
        penstock.run(value, source=pl.DataFrame(COLUMNS))
    with pytest.raises(ParameterError, match=r"config: 'DataFrame' .* run.config, out, source=frame"):
        penstock.run(pl.DataFrame(COLUMNS))
    with pytest.raises(ParameterError, match="not a loaded configuration"):
        penstock.run(penstock.load(value), tmp_path / "run", source=pl.DataFrame(COLUMNS))


def test_a_result_draws_itself(tmp_path):
    box = {"type": "grid", "south": 37.74, "north": 37.82, "west": -122.47, "east": -122.37, "rows": 2, "columns": 2}
    source = {"type": "synthetic", "n_users": 30, "from": "2024-01-01T08:00:00Z", "until": "2024-01-01T11:00:00Z"}
    result = penstock.run(sections(tmp_path, space=box, source=source), tmp_path / "drawn", runner="local")
    drawings = [result.plot(), result.plot("r01c01"), result.map(), result.map(2)]
    shown = [ElementTree.fromstring(drawing.svg) for drawing in drawings]
    texts = [" ".join(part.text or "" for part in drawing.iter()) for drawing in shown]
    assert "People in r01c01, window by window" in texts[1]
    assert "window 2 from 2024-01-01 09:00" in texts[3]
    (areas,) = drawings[3].figure.axes[0].collections
    values = result.releases.filter(pl.col("window") == 2)["value"]
    assert areas.get_array().tolist() == values.to_list()
    assert [len(path) for path in areas.get_paths()] == [5, 5, 5, 5]
    line = drawings[1].figure.axes[0].get_lines()[-1]
    assert line.get_ydata().tolist() == result.releases.filter(pl.col("cell") == "r01c01")["value"].to_list()
    page = result._repr_html_()
    assert "One person loses at most" in page
    assert "people on average" in page
    assert "<svg" in page
    assert drawings[0].save(tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(ParameterError, match="a cell of the run, such as 'r00c00'"):
        result.plot("nowhere")
    with pytest.raises(ParameterError, match="a window of the run, from 1 to 3"):
        result.map(9)


def test_without_matplotlib_drawings_name_the_extra(tmp_path, without):
    without("matplotlib.figure")
    result = penstock.run(sections(tmp_path), runner="local")
    with pytest.raises(penstock.PenstockError, match=r"pip install 'penstock\[plot\]'"):
        result.plot()
    assert "people on average" in result._repr_html_()


def test_cells_without_a_place_have_no_map(tmp_path):
    result = penstock.run(sections(tmp_path), runner="local")
    with pytest.raises(penstock.DataError, match="no place on a map"):
        result.map()


def test_an_array_is_released_as_by_the_loop():
    counts = np.arange(6).reshape(2, 3)  # two windows, three cells
    given = penstock.release(counts, "discrete_laplace", max_cells=2, epsilon=0.5, seed=3)
    loop = penstock.mechanisms.run_mechanism(
        penstock.mechanisms.get("discrete_laplace")(epsilon=0.5), counts, Facts(n_cells=3, max_cells=2), seed=3
    )
    assert given.values.tolist() == [one.values.tolist() for one in loop]
    assert given.epsilon.tolist() == [0.5, 0.5]
    with pytest.raises(ParameterError, match="built already"):
        penstock.release(counts, penstock.mechanisms.get("raw")(), max_cells=1, epsilon=1.0)


def test_an_array_goes_through_the_steps_of_a_configuration(tmp_path):
    """Steps by name, mapping or built; what it costs is summed as in a run, and its repr is one line."""
    noisy = {"type": "discrete_laplace", "epsilon": 0.5}
    steps = [{"type": "filter", "slots": 6}, {"type": "suppress_small", "threshold": 3}]
    counts = np.random.default_rng(0).poisson(20, (48, 5))
    given = penstock.release(counts, [noisy, *steps], max_cells=1, seed=3)
    get = penstock.mechanisms.get
    built = [get("discrete_laplace")(epsilon=0.5), get("filter")(slots=6), get("suppress_small")(threshold=3)]
    expected = penstock.mechanisms.run_mechanism(Chain.of(built), counts, Facts(n_cells=5), seed=3)
    assert np.array_equal(given.values, [one.values for one in expected])
    assert np.array_equal(penstock.release(counts, built, max_cells=1, seed=3).values, given.values)
    assert np.isfinite(given.margin).all()
    assert given.margin.shape == given.values.shape
    assert 0.8 < given.summary["coverage"] <= 1
    assert given.loss == {"release": 0.5, "day": 12.0, "run": 24.0}
    assert penstock.release(counts, [noisy], max_cells=1, windows_per_day=12).loss["day"] == 6.0
    message = "Released(48 windows × 5 cells, discrete_laplace → filter → suppress_small, ε = 0.5 a window, 24 in all)"
    assert repr(given) == message
    gaussian = penstock.release(counts, "discrete_gaussian", max_cells=1, rho=0.125)
    assert "at δ = 1e-06)" in repr(gaussian)
    assert "no bound on ε" in repr(penstock.release(counts, "raw", max_cells=1))
    run = penstock.run(sections(tmp_path, mechanism=[noisy, {"type": "filter"}]), runner="local")
    bounded_counts = run.truth.pivot("cell", index="window", values="bounded").drop("window").to_numpy()
    assert penstock.release(bounded_counts, [noisy, "filter"], max_cells=1).loss == run.manifest["loss"]


def test_a_released_array_draws_itself():
    counts = np.random.default_rng(0).poisson([[3, 40]], (48, 2))
    released = penstock.release(counts, "discrete_laplace", max_cells=1, epsilon=0.5)
    page = released._repr_html_()
    assert "<strong>discrete_laplace</strong>: Wrong by" in page
    assert "One person loses at most ε = 12 by a day (even odds become over 99.9 %), 24 by the whole run" in page
    assert released.plot().svg == released.plot(1).svg != released.plot(0).svg
    assert released.plot(1).svg in page
    ElementTree.fromstring(released.plot().svg)
    with pytest.raises(ParameterError, match=r"cell: 2 .* a cell from 0 to 1"):
        released.plot(2)


def test_another_beam_pipeline_releases_its_events(tmp_path):
    """Events of a run in another order give the rows that the run wrote."""
    value = sections(tmp_path)
    expected = penstock.run(value).releases
    plan = make_plan(penstock.load(value), tmp_path / "own")
    events = [{"user": user, "time": START + hour * HOUR + 60_000, "place": place} for user, hour, place in PEOPLE]
    with beam.Pipeline(runner=IN_PROCESS) as pipeline:
        blocks = pipeline | beam.Create(events[::-1]) | EventsToBlocks()
        counted = blocks | CountDistinctUsers(plan)
        released = counted["counts"] | ReleaseInOrder(plan)
        written = released["releases"] | WriteReleases(plan)
        _ = written | Account(plan)
        _ = (counted["rows"], released["rows"]) | TallyRows(plan)
        rows = written | ReleasesToRows(plan) | beam.Map(lambda row: (row["window"], row["cell"], row["value"]))
        assert_that(rows, equal_to(expected.select("window", "cell", "value").rows()))


NO_TIME = "time is no datetime, ISO 8601 text or whole number of milliseconds since 1970, but of type "


def test_one_transform_releases_what_a_run_does(tmp_path):
    """Events as people have them; what cannot be read is an output, and in the folder of the run."""
    value = sections(tmp_path)
    expected = penstock.run(value).releases
    first = datetime(2024, 1, 1, 0, 1, tzinfo=UTC)
    events = [
        {"user": "ann", "time": "2024-01-01T01:01:00+01:00", "place": "market"},
        {"user": "bob", "time": first, "place": "market", "further": 1},
        beam.Row(user="ann", time=first.replace(tzinfo=None), place="market"),
        {"user": "cid", "time": START + 2 * HOUR + 60_000, "place": "harbour"},
        {"user": None, "time": START, "place": "harbour"},
        {"user": "dan", "time": "yesterday", "place": "harbour"},
        {"user": "eve", "time": START},
        {"user": True, "time": float("nan"), "place": 7},
    ]
    folder = tmp_path / "own"
    with beam.Pipeline(runner=IN_PROCESS) as pipeline:
        made = pipeline | beam.Create(events) | Release(penstock.load(value), folder)
        rows = made["rows"] | beam.Map(lambda row: (row["window"], row["cell"], row["value"]))
        assert_that(rows, equal_to(expected.select("window", "cell", "value").rows()))
        reasons = made["rejects"] | beam.Map(lambda row: row["reason"])
        missing = "user is missing (or is no integer)"
        assert_that(
            reasons, equal_to([missing, "time is not ISO 8601", "place is empty", NO_TIME + "float"]), "reasons"
        )
        outcomes = {"rows": 8, "used": 4, "late": 0, "out_of_area": 0, "out_of_time": 0, "rejected": 4}
        assert_that(made["outcomes"], equal_to([outcomes]), "outcomes")
    kept = [path.read_text().splitlines() for path in folder.rglob("*") if path.is_file() and "rejects" in str(path)]
    assert sum(map(len, kept)) == 4


def test_rejects_of_a_deployment_hold_no_row(tmp_path):
    """Neither the output nor an error says who was where; files are the operator's, whatever the umask."""
    value = sections(tmp_path, mode="deployment", noise_key=str(tmp_path / "noise.key"))
    del value["seed"], value["utility"]
    new_key_file(tmp_path / "noise.key")
    events = [
        {"user": "ann", "time": START, "place": "market"},
        {"user": "secret-person", "time": "yesterday", "place": "secret-place"},
    ]
    folder = tmp_path / "own"
    before = os.umask(0o022)
    try:
        with beam.Pipeline(runner=IN_PROCESS) as pipeline:
            made = pipeline | beam.Create(events) | Release(penstock.load(value), folder)
            rows = made["rejects"] | beam.Map(lambda row: (row["reason"], row["raw"]))
            assert_that(rows, equal_to([("time is not ISO 8601", None)]))
    finally:
        os.umask(before)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not any(b"secret-" in path.read_bytes() for path in files)
    assert {path.stat().st_mode & 0o077 for path in files if "operator" in path.parts} == {0}
    with pytest.raises(penstock.DataError, match="not a tuple") as caught:
        EventsToBlocks()._block([("secret-person", START)])
    assert "secret" not in str(caught.value)


def test_times_of_events_may_be_of_numpy_or_whole_floats():
    times = [
        float(START),
        np.float64(START),
        np.int64(START),
        np.datetime64(START, "ms"),
        date(2024, 1, 1),
        np.datetime64(START * 10**6, "ns"),
    ]
    unread = [START + 0.5, float("inf"), float("nan"), True, np.datetime64("NaT"), None]
    given = [{"user": "ann", "time": time, "place": "a"} for time in (*times, *unread)]
    block = EventsToBlocks()._block(given).block
    assert block.frame["time"].to_list() == [START] * len(times)
    kinds = [NO_TIME + kind for kind in ("float", "float", "float", "bool", "datetime64")]
    assert [reject.reason for reject in block.rejects] == [*kinds, "time cannot be read"]
    skipped = [{"user": "ann", "time": "2024-03-31T02:30:00", "place": "a"}]
    [reject] = EventsToBlocks(time_zone="Europe/Zurich")._block(skipped).block.rejects
    assert reject.reason == "local time does not exist in Europe/Zurich (clocks went forward)"


def test_users_are_text_unless_they_are_declared_whole_numbers():
    given = [{"user": user, "time": START, "place": "a"} for user in (7, "7", 7.0, np.int32(8), 2**64)]
    assert EventsToBlocks()._block(given).block.frame["user"].to_list() == ["7", "7", "8", str(2**64)]
    assert EventsToBlocks(user_type="integer")._block(given).block.frame["user"].to_list() == [7, 8]


def test_what_one_transform_cannot_release_is_refused_by_name(tmp_path):
    config = penstock.load(sections(tmp_path))
    with pytest.raises(ParameterError, match=r"EventsToBlocks\.user_type: 'text'"):
        Release(config, tmp_path / "own", user_type="text")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"Release\.config: 'str' .* what penstock.load returns"):
        Release("run.yaml")  # type: ignore[arg-type]
    grid = {"type": "grid", "south": 37.74, "north": 37.82, "west": -122.47, "east": -122.37, "rows": 2, "columns": 2}
    source = {"type": "synthetic", "from": "2024-01-01T00:00:00Z", "until": "2024-01-01T02:00:00Z"}
    noise = {"type": "planar_laplace", "epsilon": 1.0, "radius": 100.0}
    windows = {"type": "timestamps"}
    changes: dict[str, Any] = {
        "space": grid,
        "source": source,
        "mechanism": noise,
        "windows": windows,
        "accountants": [],
    }
    traces = sections(tmp_path, **changes)
    del traces["bounding"]
    with pytest.raises(ParameterError, match="ReleaseTraces is for traces"):
        Release(penstock.load(traces), tmp_path / "own")
    changes = {"space": grid, "source": {"type": "stream", "of": source}}
    with pytest.raises(ParameterError, match=r"Release\.config\.source\.type: 'stream' .* finite input"):
        Release(penstock.load(sections(tmp_path, **changes)), tmp_path / "own")
    with (
        pytest.raises(Exception, match="an event is a mapping with user, time and place; not"),
        beam.Pipeline(runner=IN_PROCESS) as pipeline,
    ):
        _ = pipeline | beam.Create([("ann", START)]) | EventsToBlocks()
    reason = "no row could be used .*1 rejected, most of them since place is empty"
    with pytest.raises(Exception, match=reason), beam.Pipeline(runner=IN_PROCESS) as pipeline:
        _ = pipeline | beam.Create([{"user": "ann", "time": START}]) | Release(config, tmp_path / "nobody")


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("place", "allow_empty"), [("market", False), ("elsewhere", False), ("elsewhere", True)])
def test_another_beam_pipeline_counts_nobody_only_if_allowed(tmp_path, place, allow_empty, whole):
    config = penstock.load(sections(tmp_path) | {"allow_empty": allow_empty})

    def go() -> None:
        with beam.Pipeline(runner=IN_PROCESS) as pipeline:
            events = pipeline | beam.Create([{"user": "ann", "time": START, "place": place}])
            if whole:
                _ = events | Release(config, tmp_path / "own")
                return
            plan = make_plan(config, tmp_path / "own")
            counted = events | EventsToBlocks() | CountDistinctUsers(plan)
            released = counted["counts"] | ReleaseInOrder(plan)
            _ = (
                (counted["rows"], released["rows"])
                | TallyRows(plan)
                | beam.Map(require_used if place == "market" else len)
            )

    if place == "market" or allow_empty:
        go()
    else:
        with pytest.raises(Exception, match=r"no row could be used \(1 rows, 0 late, 1 out of area"):
            go()


@pytest.mark.parametrize("name", pages.PAGES)
def test_the_page_shows_what_happens(name):
    """Every block is run, in order; what it prints is on the page. To rewrite it: ``python docs/pages.py``."""
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert page.count("```text") >= 3
    assert pages.current(page) == page


def test_a_mapping_may_hold_what_yaml_holds_and_json_does_not(tmp_path):
    text = Path("configs/quickstart.yaml").read_text(encoding="utf-8")
    mapping = yaml.safe_load(text)
    assert any(isinstance(value, datetime) for value in mapping["source"].values())
    mapping["output"]["path"] = Path(mapping["output"]["path"])
    assert penstock.load(mapping) == penstock.load(text)
    with pytest.raises(ParameterError, match="config: 'object' is not allowed"):
        penstock.load(mapping | {"seed": object()})


@pytest.mark.parametrize(
    ("counts", "mechanism", "parameters", "message"),
    [
        ([[1, 2], [3]], "discrete_laplace", {"epsilon": 1}, "counts: 'rows of different lengths'"),
        ([[-1, 2]], "discrete_laplace", {"epsilon": 1}, "counts: -1 is not allowed; it must be counts of at least 0"),
        ([[1.0, np.inf]], "raw", {}, "counts: inf is not allowed; it must be finite"),
        ([[1.0, np.nan]], "raw", {}, "counts: 'float64' .* whole numbers"),
        ([[1.0, 2.0**53]], "raw", {}, "counts: .* less than 2⁵³"),
        ([[1, 2]], "raw", {"windows_per_day": 10**9}, "windows_per_day: 1000000000 .* at most 86,400,000"),
        ([[1, 2]], "discrete_laplace", {"epsilom": np.int64(1)}, "epsilom: .*did you mean 'epsilon'"),
        ([[1, 2]], "discrete_laplace", {}, "release: mechanism.epsilon: missing; it must be a number above 0"),
        ([[1, 2]], "discrete_laplace", {"epsilon": np.arange(2)}, "mechanism.epsilon: .* it must be a number above 0"),
        ([[1, 2]], "sampling", {"rate": 0.5}, "mechanism: 'Sampling' .* one that works on counts"),
        ([[1, 2]], 7, {}, "mechanism: 7 .* it must be a section with a type: adaptive_ranges"),
        ([[1, 2]], {"type": "laplace"}, {}, "mechanism.epsilon: missing; it must be a number above 0"),
        ([[1, 2]], [], {}, "mechanism: .* a list that begins with one"),
        ([[1, 2]], ["raw"], {"epsilon": 1}, "epsilon: .* parameters of a step stand in its mapping"),
        ([[1, 2]], [{"type": "laplace", "epsilon": -1}], {}, r"mechanism\[0\]\.epsilon: -1"),
        (
            [[1, 2]],
            ["raw", {"type": "filter", "slot": 2}],
            {},
            r"mechanism\[1\]\.slot: unknown key; did you mean 'slots'",
        ),
        ([[1, 2]], ["raw", "raw"], {}, r"mechanism\[1\]: 'raw' .* both read true counts"),
        ([[1, 2]], [{"type": "sampling", "rate": 0.5}, "raw"], {}, "mechanism: 'Sampling' .* people are counted here"),
    ],
)
def test_a_wrong_release_of_an_array_is_named(counts, mechanism, parameters, message):
    with pytest.raises((ConfigError, ParameterError), match=message):
        penstock.release(counts, mechanism, max_cells=1, **parameters)
