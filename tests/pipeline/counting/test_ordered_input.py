"""Finite input by time: windows are counted as they pass, wrong rows are named, and releases have the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from penstock.mechanisms.core.plugin import PenstockError
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.counting.contributions import HeldContributions
from penstock.pipeline.counting.users import CodeTable
from penstock.pipeline.run import run
from penstock.pipeline.runners.shared import counted, reduced
from tests.tools.small_configuration import START, small_sections

HOUR = 3_600_000


def events(user_type: str, n: int = 3000) -> pl.DataFrame:
    """Rows of six hours in the order of time, at known places."""
    rng = np.random.default_rng(5)
    user = rng.integers(0, 200, n)
    time = np.sort(rng.integers(0, 6 * HOUR, n)) + int(START.timestamp() * 1000)
    place = pl.Series(["a", "b", "c"]).gather(rng.integers(0, 3, n))
    names = pl.Series(user) if user_type == "integer" else pl.Series([f"user {i}" for i in user.tolist()])
    return pl.DataFrame({"user": names, "time": time, "place": place})


def sections(tmp_path: Path, kind: str, user_type: str, **source: object):
    actual = small_sections(tmp_path)
    times = {key: actual["source"][key] for key in ("from", "until") if key in actual["source"]}
    actual["source"] = {"type": kind, "path": str(tmp_path / "in"), "time_format": "unix_ms", **times, **source}
    if kind == "csv":
        actual["source"]["user_type"] = user_type
    return actual


def write(frames, tmp_path: Path, kind: str) -> None:
    (tmp_path / "in").mkdir(exist_ok=True)
    for number, frame in enumerate(frames):
        path = tmp_path / "in" / f"{number:02d}.{kind}"
        frame.write_csv(path) if kind == "csv" else frame.write_parquet(path, row_group_size=500)


def released(tmp_path: Path, configuration, name: str) -> bytes:
    run(loads(json.dumps(configuration)), tmp_path / name, runner="local")
    return (tmp_path / name / "public" / "releases.parquet").read_bytes()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("user_type", ["integer", "string"])
def test_releases_are_the_same_by_time(tmp_path, kind, user_type):
    frame = events(user_type)
    write(np_split(frame, 7), tmp_path, kind)
    plain = released(tmp_path, sections(tmp_path, kind, user_type), "plain")
    ordered = released(tmp_path, sections(tmp_path, kind, user_type, disorder="0s", block_rows=300), "ordered")
    assert plain == ordered
    assert not list((tmp_path / "ordered").rglob("held"))


@pytest.mark.parametrize("keep", ["hash", "first", "most_frequent"])
@pytest.mark.parametrize("user_type", ["integer", "string"])
def test_contributions_that_go_through_the_disk_are_counted_the_same(tmp_path, keep, user_type):
    write([events(user_type)], tmp_path, "csv")
    configuration = sections(tmp_path, "csv", user_type, block_rows=300)
    configuration["bounding"] = {**configuration.get("bounding", {}), "max_cells": 1, "keep": keep}
    plan = make_plan(loads(json.dumps(configuration)), tmp_path / "run")
    n_spilled, ids = 0, CodeTable(plan.keys.users)
    memory, disk = (
        HeldContributions(plan.batching.layout, keep, tmp_path / f"{n}", ids, max_bytes=n) for n in (1 << 30, 2000)
    )
    for span in plan.config.source.spans():
        for block in plan.config.source.read(span):
            for (group, shard), piece in reduced(plan, block, ids=ids)[1]:
                memory.add(group, shard, piece)
                before = size_of(tmp_path / "2000")
                disk.add(group, shard, piece)
                n_spilled += size_of(tmp_path / "2000") > before
    assert n_spilled > 3
    assert not size_of(tmp_path / f"{1 << 30}")
    for group in range(plan.batching.n_groups):
        (expected, _), (actual, _) = (counted(plan, group, store.take(group)[0], None) for store in (memory, disk))
        np.testing.assert_array_equal(actual.counts, expected.counts)
        np.testing.assert_array_equal(actual.bounded, expected.bounded)
        assert expected.bounded.sum() > 0
    disk.drop()
    assert not (tmp_path / "2000").exists()


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*"))


def test_a_file_an_hour_is_in_any_order_within(tmp_path):
    frame = events("string")
    hour = frame["time"] // HOUR
    write(
        [frame.filter(hour == one).sample(fraction=1, shuffle=True, seed=1) for one in hour.unique().sort()],
        tmp_path,
        "csv",
    )
    plain = released(tmp_path, sections(tmp_path, "csv", "string"), "plain")
    assert released(tmp_path, sections(tmp_path, "csv", "string", disorder="1h"), "hours") == plain
    with pytest.raises(PenstockError, match=r"00\.csv, line \d+: is earlier than source.disorder allows"):
        released(tmp_path, sections(tmp_path, "csv", "string", disorder="10s"), "seconds")


def test_windows_are_counted_while_rows_are_read(tmp_path, monkeypatch):
    write(np_split(events("string"), 10), tmp_path, "csv")
    steps = []
    add, take = HeldContributions.add, HeldContributions.take
    monkeypatch.setattr(HeldContributions, "add", lambda *words: (steps.append("add"), add(*words))[1])
    monkeypatch.setattr(HeldContributions, "take", lambda *words: (steps.append("take"), take(*words))[1])
    released(tmp_path, sections(tmp_path, "csv", "string", disorder="0s", block_rows=300), "ordered")
    assert steps.index("take") < len(steps) - steps[::-1].index("add") - 3


@pytest.mark.parametrize(("kind", "place"), [("csv", r"02\.csv, line 12"), ("parquet", r"02\.parquet, row 11")])
def test_a_row_out_of_order_is_named(tmp_path, kind, place):
    parts = np_split(events("string"), 3)
    early = pl.when(pl.int_range(pl.len()) == 10).then(parts[1]["time"][-2]).otherwise(pl.col("time")).alias("time")
    parts[2] = parts[2].with_columns(early)
    write(parts, tmp_path, kind)
    with pytest.raises(PenstockError, match=rf"{place}: is earlier than source.disorder allows; sort rows"):
        released(tmp_path, sections(tmp_path, kind, "string", disorder="0s", block_rows=1000), "ordered")
    assert not list((tmp_path / "ordered").rglob("releases*/*.parquet"))  # nothing was released before


def test_a_wrong_clock_out_of_the_run_spoils_nothing(tmp_path):
    frame = events("string")
    wrong = frame.head(1).with_columns(time=pl.lit(4_000_000_000_000))
    write([pl.concat([frame.head(100), wrong, frame.tail(-100)])], tmp_path, "csv")
    plain = released(tmp_path, sections(tmp_path, "csv", "string"), "plain")
    assert released(tmp_path, sections(tmp_path, "csv", "string", disorder="0s"), "ordered") == plain


def np_split(frame: pl.DataFrame, n: int) -> list[pl.DataFrame]:
    size = -(-frame.height // n)
    return list(frame.iter_slices(size))
