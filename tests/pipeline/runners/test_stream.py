"""Streams release what a finite run over the same accepted events does, at any speed and batch size."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from penstock.mechanisms.core.plugin import ConfigError, DataError
from penstock.pipeline.monitoring.metrics import ROWS, WINDOWS, listening
from tests.tools.listeners import CallbackListener
from tests.tools.small_configuration import grid

START = datetime(2024, 1, 1, tzinfo=UTC)
COLUMNS = {"user": "user", "time": "time", "place": "place"}


def at(minutes: float) -> str:
    return (START + timedelta(minutes=minutes)).isoformat()


def made_up_events(n: int, seed: int = 0) -> list[tuple[str, str, str]]:
    """Events of 40 users at three places and one unknown place, some before and after the run, in any order."""
    rng = random.Random(seed)
    return [(f"user{rng.randrange(40)}", at(rng.uniform(-30, 420)), rng.choice("abcz")) for _ in range(n)]


def stream_of(path: Path | str, **options) -> dict:
    of = {
        "type": "csv",
        "path": str(path),
        "columns": COLUMNS,
        "from": "2024-01-01T00:00:00Z",
        "until": "2024-01-01T06:00:00Z",
    }
    return {"type": "stream", "of": of | options.pop("of", {}), **options}


@pytest.fixture
def stream_run(small_run, tmp_path):
    """A small run of events as a stream."""

    def go(events, out="stream", source=None, **changes):
        path = tmp_path / f"{out}.csv"
        path.write_text("\n".join(["user,time,place", *(",".join(event) for event in events)]) + "\n")
        return small_run(events, out, source=stream_of(path, **(source or {})), **changes)

    return go


def released(result) -> bytes:
    return (result.folder / "public" / "releases.parquet").read_bytes()


def windows_of(events, lateness=0.0, disorder=0.0):
    """Events that a stream accepts, by the definition: row for row, in order of arrival."""
    reached, accepted, late = float("-inf"), [], 0
    for user, time_, place in events:
        minute = (datetime.fromisoformat(time_) - START) / timedelta(minutes=1)
        if 0 <= minute < 360:
            end = 60 * (minute // 60 + 1)
            if place in "abc":
                is_late = end + lateness <= reached - disorder
                late += is_late
                if not is_late:
                    accepted.append((user, time_, place))
            reached = max(reached, minute)
    return accepted, late


def test_a_stream_releases_what_a_finite_run_does(small_run, stream_run):
    events = made_up_events(2000)
    finite, stream = small_run(events, "finite"), stream_run(events)
    assert released(stream) == released(finite)
    for name in ("public/accounts.parquet", "operator/truth.parquet"):
        assert (stream.folder / name).read_bytes() == (finite.folder / name).read_bytes()
    rows = {key: n for key, n in finite.manifest["rows"].items() if key != "users"}
    assert stream.manifest["rows"] == rows
    assert stream.exit_code == 0
    assert not (stream.folder / "operator" / "checkpoint").exists()


@pytest.mark.parametrize("source", [{"block_rows": 37}, {"speed": "10000x"}, {"checkpoint": 0, "block_rows": 300}])
def test_neither_slices_nor_speed_nor_checkpoints_matter(stream_run, small_run, source):
    events = made_up_events(600)
    assert released(stream_run(events, source=source)) == released(small_run(events, "finite"))


@pytest.mark.parametrize("lateness", [0, 25])
@pytest.mark.parametrize("disorder", [0, 15])
@pytest.mark.parametrize("block_rows", [1, 100000])
def test_late_rows_are_decided_by_the_order_of_arrival(stream_run, small_run, lateness, disorder, block_rows):
    rng = random.Random(5)
    arrivals = sorted((minute + rng.uniform(0, 90), minute) for minute in (rng.uniform(-30, 420) for _ in range(120)))
    events = [(f"user{rng.randrange(40)}", at(minute), rng.choice("abcz")) for _, minute in arrivals]
    accepted, late = windows_of(events, lateness, disorder)
    assert 0 < late < len(accepted)
    windows = {"type": "fixed", "size": "1h", "allowed_lateness": f"{lateness}m"}
    source = {"order": "arrival", "disorder": f"{disorder}m", "block_rows": block_rows}
    stream = stream_run(events, source=source, windows=windows)
    assert released(stream) == released(small_run(accepted, "finite", windows=windows))
    rows = stream.manifest["rows"]
    assert (rows["late"], rows["used"]) == (late, len(accepted))


def test_windows_without_events_are_released(stream_run, small_run):
    events = [("u", at(5), "a"), ("v", at(301), "b")]
    stream = stream_run(events, mechanism={"type": "raw"})
    frame = pl.read_parquet(stream.folder / "public" / "releases.parquet")
    assert frame.height == 6 * 3
    assert frame.filter(pl.col("value") > 0).select("window", "cell").cast({"cell": pl.String}).rows() == [
        (1, "a"),
        (6, "b"),
    ]
    assert released(stream) == released(small_run(events, "finite", mechanism={"type": "raw"}))


def test_a_stream_with_hardly_any_usable_row_releases_every_window(stream_run):
    events = [("u", at(3), "z"), ("u", "yesterday", "a"), ("u", at(4), "a")]
    stream = stream_run(events, mechanism={"type": "raw"})
    values = pl.read_parquet(stream.folder / "public" / "releases.parquet")["value"]
    assert sorted(values) == [0.0] * 17 + [1.0]
    assert stream.manifest["rows"]["rejected"] == 1
    rejects = (stream.folder / "operator" / "rejects.jsonl").read_text().splitlines()
    assert [json.loads(line)["line"] for line in rejects] == [3]


@pytest.mark.parametrize("keep", ["first", "most_frequent"])
def test_bounding_by_marks_survives_merging(stream_run, small_run, keep):
    events = made_up_events(600)
    bounding = {"max_cells": 1, "keep": keep}
    windows = {"type": "fixed", "size": "1h", "allowed_lateness": "7h"}  # all windows are open together
    stream = stream_run(events, source={"block_rows": 1}, bounding=bounding, windows=windows)
    assert released(stream) == released(small_run(events, "finite", bounding=bounding, windows=windows))


def test_a_budget_that_is_too_small_stops_the_stream(stream_run):
    result = stream_run(
        made_up_events(300),
        source={"block_rows": 20},
        landmarks={"windows": [1, 3]},
        mechanism={"type": "laplace", "epsilon": 1.0},
        accountants=[{"type": "landmark_budget", "budget": 2.0}],
    )
    assert result.exit_code == 3
    frame = pl.read_parquet(result.folder / "public" / "releases.parquet")
    assert frame["window"].unique().sort().to_list() == [1, 2]


def test_a_source_that_cannot_be_read_fails_the_stream(small_run, tmp_path, monkeypatch):
    from penstock.pipeline.sources.csv import Csv

    (tmp_path / "bad.csv").write_text("user,time,place\n" + f"u,{at(1)},a\n")
    monkeypatch.setattr(Csv, "spans_from", lambda *_: (_ for _ in ()).throw(DataError("the disk is gone")))
    with pytest.raises(DataError, match="the disk is gone"):
        small_run([("u", at(1), "a")], source=stream_of(tmp_path / "bad.csv", order="arrival"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"speed": "fast"}, "a positive factor such as 60x"),
        ({"speed": "0x"}, "a positive factor such as 60x"),
        ({"order": "shuffled"}, "one of time, arrival"),
        ({"disorder": "-1s"}, "disorder"),
    ],
)
def test_wrong_parameters_are_explained(stream_run, change, message):
    with pytest.raises(ConfigError, match=message):
        stream_run([("u", at(1), "a")], source=change)


def test_idle_time_fires_windows_before_the_next_event(stream_run, small_run):
    """At 3600 times real time five idle hours take five seconds, in which windows must not wait."""
    seen = []
    events = [("u", at(5), "a"), ("v", at(310), "b")]
    with listening(CallbackListener(lambda measure, amount: seen.append((measure, amount)))):
        stream = stream_run(events, source={"speed": "3600x"})
    rows = [number for number, (measure, _) in enumerate(seen) if measure is ROWS]
    assert sum(amount for measure, amount in seen[: rows[1]] if measure is WINDOWS) >= 2
    assert released(stream) == released(small_run(events, "finite"))


ENDLESS = {
    "name": "endless",
    "seed": 3,
    "source": {
        "type": "stream",
        "of": {"type": "synthetic", "n_users": 100, "endless": True},
        "speed": "max",
    },
    "space": grid(2),
    "windows": {"type": "fixed", "size": "1h", "allowed_lateness": "15m"},
    "landmarks": {"recurring": ["07:00-09:00"], "max_per_period": 2},
    "budget_period": "1d",
    "mechanism": {"type": "landmark_uniform", "epsilon": 1.0},
    "accountants": [{"type": "landmark_budget"}],
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_endless_stream_is_stopped_cleanly(tmp_path, number):
    config = tmp_path / "endless.yaml"
    config.write_text(json.dumps(ENDLESS | {"output": {"path": str(tmp_path / "out")}}))
    command = [sys.executable, "-m", "penstock.pipeline.cli.main", "run", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    parts = tmp_path / "out" / "public" / "parts" / "releases"
    deadline = time.monotonic() + 180
    while len(list(parts.glob("*.parquet"))) < 1 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    os.kill(process.pid, number)
    out, errors = process.communicate(timeout=180)
    assert process.returncode == 4, errors
    assert "--resume" in out
    frame = pl.read_parquet(tmp_path / "out" / "public" / "releases.parquet")
    windows = frame["window"].unique().sort().to_list()
    assert windows == list(range(1, len(windows) + 1))
    assert windows
    manifest = json.loads((tmp_path / "out" / "operator" / "manifest.json").read_text())
    assert manifest["rows"]["late"] == 0 < manifest["rows"]["used"]
    assert manifest["windows"]["planned"] is None
