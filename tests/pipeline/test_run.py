"""Whole runs on small synthetic input: releases do not depend on how input arrives."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from penstock.mechanisms.core.plugin import DataError
from tests.tools.small_configuration import START, made_up_events


def releases(result) -> pl.DataFrame:
    return pl.read_parquet(result.folder / "public" / "releases.parquet")


def in_run(events):
    for user, time, place in events:
        hour = (datetime.fromisoformat(time) - START) / timedelta(hours=1)
        if 0 <= hour < 6 and place in "abc":
            yield user, int(hour) + 1, place


def test_truth_is_the_number_of_distinct_users(small_run):
    events = made_up_events(2000)
    result = small_run(events)
    truth = pl.read_parquet(result.folder / "operator" / "truth.parquet").with_columns(pl.col("cell").cast(pl.String))
    expected = {(w, p): len({u for u, v, q in in_run(events) if (v, q) == (w, p)}) for w in range(1, 7) for p in "abc"}
    assert {(w, c): n for w, c, n in truth.select("window", "cell", "count").iter_rows()} == expected


def test_every_row_has_one_outcome(small_run):
    events = [*made_up_events(500), ("", START.isoformat(), "a"), ("u", "yesterday", "a")]
    manifest = small_run(events).manifest
    rows, used = manifest["rows"], list(in_run(events[:500]))
    assert rows["rows"] == 502
    assert rows["rejected"] == 2
    assert rows["used"] == len(used)
    assert rows["duplicates"] == len(used) - len(set(used))
    timely = [e for e in events[:500] if 0 <= (datetime.fromisoformat(e[1]) - START) / timedelta(hours=1) < 6]
    assert rows["out_of_time"] == 500 - len(timely)
    assert rows["out_of_area"] == sum(place == "z" for _, _, place in timely)
    assert rows["late"] == 0


def test_rejects_are_kept_with_file_line_and_reason(small_run):
    result = small_run([("u", START.isoformat(), "a"), ("u", "yesterday", "a")])
    rejects = [json.loads(line) for line in (result.folder / "operator" / "rejects.jsonl").read_text().splitlines()]
    assert [(Path(r["file"]).name, r["line"]) for r in rejects] == [("events.csv", 3)]
    assert "yesterday" in rejects[0]["raw"]
    assert "time" in rejects[0]["reason"]


def test_releases_do_not_depend_on_order_slices_or_shards(small_run, tmp_path):
    events = made_up_events(3000)
    plain = releases(small_run(events, "plain"))
    shuffled = random.Random(1).sample(events, len(events))
    assert releases(small_run(shuffled, "shuffled")).equals(plain)
    assert releases(small_run(events, "sharded", n_shards=7)).equals(plain)
    folder = tmp_path / "slices"
    folder.mkdir()
    for part in range(5):
        lines = ["user,time,place", *(",".join(e) for e in shuffled[part::5])]
        (folder / f"{part}.csv").write_text("\n".join(lines) + "\n")
    sliced = small_run(str(folder / "*.csv"), "sliced")
    assert releases(sliced).equals(plain)
    source = sliced.manifest["configuration"]["source"] | {"block_rows": 17}
    assert releases(small_run(str(folder / "*.csv"), "blocks", source=source)).equals(plain)


@pytest.mark.parametrize("keep", ["hash", "first", "last", "most_frequent"])
def test_bounding_does_not_depend_on_order_or_shards(small_run, keep):
    events = made_up_events(2000)
    bounding = {"max_cells": 1, "keep": keep}
    raw = {"type": "raw"}
    one = releases(small_run(events, "one", bounding=bounding, mechanism=raw))
    shuffled = random.Random(2).sample(events, len(events))
    assert releases(small_run(shuffled, "two", n_shards=3, bounding=bounding, mechanism=raw)).equals(one)
    present = {(u, w) for u, w, _ in in_run(events)}
    assert one["value"].sum() == len(present)


def test_empty_windows_and_cells_are_released(small_run):
    frame = releases(small_run([("u", START.isoformat(), "a")], mechanism={"type": "raw"}))
    assert frame.height == 6 * 3
    assert frame["value"].to_list() == [1.0] + [0.0] * 17


def test_a_run_without_any_usable_row_releases_nothing(small_run):
    with pytest.raises(DataError, match="nothing of the input can be used, and nothing was released"):
        small_run([("u", START.isoformat(), "z")], mechanism={"type": "raw"})


def test_the_same_run_twice_is_byte_identical(small_run):
    events = made_up_events(300)
    one = (small_run(events).folder / "public" / "releases.parquet").read_bytes()
    two = (small_run(events).folder / "public" / "releases.parquet").read_bytes()
    assert one == two


def test_another_seed_gives_other_noise(small_run):
    events = made_up_events(300)
    one, two = releases(small_run(events, "one")), releases(small_run(events, "two", seed=4))
    assert not one["value"].equals(two["value"])


def test_one_event_more_changes_the_noise_of_its_window_only(small_run):
    events = made_up_events(300)
    extra = [*events, ("somebody", (START + timedelta(hours=3, minutes=5)).isoformat(), "b")]
    raw = {"type": "raw"}
    difference = releases(small_run(extra, "one"))["value"] - releases(small_run(events, "two"))["value"]
    exact = releases(small_run(extra, "r1", mechanism=raw))["value"]
    exact -= releases(small_run(events, "r2", mechanism=raw))["value"]
    noise = (difference - exact).to_numpy().reshape(6, 3)
    assert (noise[:3] == 0).all()
    assert (noise[3] != 0).any()


def test_a_budget_that_is_too_small_stops_the_run(small_run):
    result = small_run(
        made_up_events(300),
        landmarks={"windows": [1, 3]},
        mechanism={"type": "laplace", "epsilon": 1.0},
        accountants=[{"type": "landmark_budget", "budget": 2.0}],
    )
    assert result.exit_code == 3
    assert releases(result)["window"].unique().sort().to_list() == [1, 2]
    assert "exceeds the budget 2" in result.manifest["exit"]["reason"]


def test_a_run_can_go_on_with_refused_windows(small_run):
    result = small_run(
        made_up_events(300),
        landmarks={"windows": [1, 3]},
        mechanism={"type": "laplace", "epsilon": 1.0},
        accountants=[{"type": "landmark_budget", "budget": 2.0}],
        on_exhausted="repeat",
    )
    frame = releases(result).with_columns(pl.col("action").cast(pl.String))
    by_window = frame.group_by("window", maintain_order=True).first()
    # One landmark and one other window fit into 2; the second landmark does not, regular windows still do.
    assert by_window["action"].to_list() == ["published", "published", "refused", "published", "published", "published"]
    assert by_window["epsilon"].to_list() == [1.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    assert by_window["repeats"].to_list() == [None, None, 2, None, None, None]
    shown = frame.filter(pl.col("window") == 3)["value"].to_list()
    assert shown == frame.filter(pl.col("window") == 2)["value"].to_list()
    assert result.exit_code == 0


def test_inactive_sensors_have_no_rows_and_lower_the_sensitivity(small_run):
    result = small_run(
        made_up_events(300), sensors={"active": "one_random"}, mechanism={"type": "laplace", "epsilon": 1}
    )
    frame = releases(result)
    assert frame.height == 6
    assert frame["scale"].to_list() == [1.0] * 6


def test_accounts_add_up(small_run):
    accounts = pl.read_parquet(small_run(made_up_events(300)).folder / "public" / "accounts.parquet")
    loss = accounts.filter(pl.col("name") == "budget_spent")["value"].to_list()
    assert loss == pytest.approx([1.0, 2.0, 2.0, 3.0, 3.0, 3.0])
    assert set(accounts["unit"]) == {"nats"}


def test_manifests_say_what_the_files_are(small_run):
    result = small_run(made_up_events(300))
    public = json.loads((result.folder / "public" / "manifest.json").read_text())
    assert "unfit for publication" in public["notice"]
    assert public["guarantee"][0]["mechanism"] == "landmark_uniform"
    assert not (result.folder / "public" / "parts").exists()
    assert not (result.folder / "operator" / "parts").exists()


def test_a_folder_with_foreign_files_is_left_alone(small_run, tmp_path):
    from penstock.mechanisms.core.plugin import ConfigError

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="holds files that no run wrote"):
        small_run(made_up_events(10))
    assert (tmp_path / "out" / "thesis.tex").exists()


def test_the_demo_needs_no_file_and_ends_with_its_report(tmp_path, capsys):
    from penstock.pipeline.cli.main import main

    assert main(["demo", "--out", str(tmp_path / "demo")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"report    {tmp_path / 'demo' / 'report.html'}"
    assert (tmp_path / "demo" / "report.html").is_file()
