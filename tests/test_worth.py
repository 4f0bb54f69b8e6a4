"""What a run says of itself: the error to expect beforehand, and what one person can lose, whatever is configured."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from deployments import configured, sections
from report_runs import account, run_folder
from test_report import Text, page, warnings_of

from penstock.pipeline.cli.main import main
from penstock.pipeline.config.run import load
from penstock.pipeline.output.worth import DELTA, expected_noise, losses, losses_in_words, quiet_by_day
from penstock.pipeline.reporting.page import write_report
from penstock.pipeline.run import run

GRID = {"type": "grid", "south": 37.7, "north": 37.8, "west": -122.5, "east": -122.4, "rows": 20, "columns": 20}


def simulated(folder: Path, mechanism: Any, **changes: Any) -> dict[str, Any]:
    changes = {"mode": "simulation", "noise_key": None, "mechanism": mechanism} | changes
    return sections(folder) | changes


@pytest.mark.parametrize(
    ("mechanism", "expected"),
    [
        ({"type": "laplace", "epsilon": 0.5}, 2.0),
        ({"type": "gaussian", "rho": 0.02}, 5 * math.sqrt(2 / math.pi)),
        ({"type": "landmark_uniform", "epsilon": 1.0}, 2.0),
        ([{"type": "spatial_generalization", "group_size": 4}, {"type": "laplace", "epsilon": 0.5}], 2.0),
        ({"type": "fpa", "epsilon": 2.0, "coefficients": 2, "block": 6}, None),
    ],
)
def test_the_expected_error_is_that_of_the_noise(tmp_path, mechanism, expected):
    mean, most = expected_noise(configured(simulated(tmp_path, mechanism, space=GRID)))  # type: ignore[misc]
    assert most > mean > 0
    if expected is not None:
        assert mean == pytest.approx(expected, rel=0.15)


def test_the_expected_error_needs_neither_data_nor_the_key(tmp_path):
    value = sections(tmp_path)
    config = configured(value)
    (tmp_path / "events.csv").unlink()
    (tmp_path / "noise.key").unlink()
    assert expected_noise(config) is not None


def test_nothing_is_expected_without_noise(tmp_path):
    assert expected_noise(configured(simulated(tmp_path, {"type": "raw"}))) is None


@pytest.mark.parametrize("command", [["validate"], ["run", "--runner", "local"]])
def test_what_to_expect_comes_before_the_run(tmp_path, capsys, command):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(sections(tmp_path, bounding={})))
    assert main([*command, str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    expect, caution = (line for line in lines if line.startswith(("expect", "CAUTION")))
    assert expect.startswith("expect    Noise will make a count wrong by about ")
    assert caution.startswith("CAUTION   bounding.max_cells is not set: one person may count in all 4 cells")
    if command[0] == "run":
        assert lines[:2] == [expect, caution]


@pytest.mark.parametrize(
    ("typical", "said"), [(8, "; 8 are typical (typical_count): by "), (1, "zeros would be nearer")]
)
def test_the_expected_error_stands_beside_a_typical_count(tmp_path, capsys, typical, said):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(sections(tmp_path, typical_count=typical, bounding={"max_cells": 1})))
    assert main(["validate", str(path)]) == 0
    assert said in capsys.readouterr().out


def released(epsilons: list[float], rho: float = math.inf, hours: int = 12, size: int | None = None) -> pl.LazyFrame:
    start = pl.datetime_range(
        pl.datetime(2024, 1, 1, time_zone="UTC"), pl.datetime(2024, 12, 31, time_zone="UTC"), f"{hours}h", eager=True
    ).dt.cast_time_unit("ms")[: len(epsilons)]
    window = np.arange(1, len(epsilons) + 1)
    times = {"window_start": start, "window_end": start + timedelta(hours=hours if size is None else size)}
    frame = pl.DataFrame({"stream": "main", "window": window, "available_at": start} | times)
    frame = frame.with_columns(epsilon=pl.Series(epsilons), rho=pl.lit(rho))
    return pl.concat([frame, frame]).sort("window", maintain_order=True).lazy()  # two cells


def test_losses_are_sums_over_releases():
    found = losses(released([0.5, 1.0, 2.0, 0.0, 0.25]), "UTC")
    assert found == {"release": 2.0, "day": 2.0, "run": 3.75}
    # Days are those of the wall clock: from noon to noon.
    assert losses(released([0.5, 1.0, 2.0, 0.0, 0.25]), "Etc/GMT-12") == {"release": 2.0, "day": 3.0, "run": 3.75}


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (12, 3.0),  # the second day has windows 3 and 4 (2 and 1)
        (14, 2 + 2 * 0.5 + 2 * 1),  # windows 2 and 4 go beyond it, by two hours each
        (24, 2 * (0.5 + 1) + 2),  # window 3 is the day
        (25, 2 * (0.25 + 0.5 + 1 + 2)),  # all four go beyond it
    ],
)
def test_a_day_pays_for_every_release_that_shares_time_with_it(size, expected):
    found = losses(released([0.25, 0.5, 2.0, 1.0], size=size), "UTC")
    assert found == {"release": 2.0, "day": expected, "run": 3.75}


def test_a_sum_of_charges_has_the_same_bits_in_any_order():
    rows = released([0.1, 0.7, 1 / 3, 1e-3, 0.9, 0.123, 5.0, 2 / 7] * 40).collect()
    found = {tuple(losses(part.lazy(), "UTC").values()) for part in (rows, rows.reverse())}  # type: ignore[union-attr]
    assert len(found) == 1


def test_a_release_of_several_days_counts_in_each_of_them():
    assert losses(released([1.0, 0.5], hours=72), "UTC") == {"release": 1.0, "day": 2.0, "run": 1.5}
    assert losses(released([1.0, 0.5], hours=36), "UTC") == {"release": 1.0, "day": 3.0, "run": 1.5}


def test_the_windows_of_a_block_are_paid_for_once():
    rows = released([3.0, 3.0, 3.0, 2.0, 2.0]).with_columns(available_at=(pl.col("window") - 1) // 3)
    assert losses(rows, "UTC")["run"] == 5.0  # type: ignore[index]


def test_losses_without_a_pure_bound_are_those_of_rho():
    found = losses(released([math.inf] * 4, rho=0.5), "UTC")
    # Of a Gaussian with ρ = 2 in all: below Bun and Steinke's ρ + 2·√(ρ·ln(1/δ)), above ρ alone.
    assert 2.0 < found["run"] < 2.0 + 2 * math.sqrt(2.0 * math.log(1 / DELTA))  # type: ignore[index]
    assert found["release"] < found["day"] < found["run"]  # type: ignore[index]
    assert "at δ = 1e-06" in losses_in_words(found)  # type: ignore[arg-type]
    assert "no bound" in losses_in_words(losses(released([math.inf]), "UTC"))  # type: ignore[arg-type]


@pytest.mark.parametrize("accountants", [[], [{"type": "composition"}]])
def test_costs_are_on_both_pages_and_in_the_summary_whatever_is_accounted(tmp_path, capsys, accountants):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(sections(tmp_path, accountants=accountants)))
    assert main(["run", str(path), "--runner", "local"]) == 0
    said = "One person loses at most ε = 0.5 by one release, 3 by a day, 3 by the whole run"
    assert said in capsys.readouterr().out
    for written in write_report(tmp_path / "out"):
        assert said in Text(written.read_text()).text


def test_the_whole_loss_is_what_composition_says(tmp_path):
    result = run(configured(sections(tmp_path, accountants=[{"type": "composition"}])), runner="local")
    rows = pl.read_parquet(result.folder / "public" / "accounts.parquet").filter(pl.col("name") == "user_epsilon")
    assert rows["value"].max() == pytest.approx(result.manifest["loss"]["run"])


def test_a_person_of_a_trace_loses_what_the_own_points_cost():
    rows = pl.DataFrame({"pseudonym": ["a", "a", "b"], "epsilon": [1.0, 1.0, 1.5]}).with_columns(
        time=pl.datetime(2024, 1, 1, time_zone="UTC")
    )
    assert losses(rows.lazy(), "UTC") == {"release": 1.5, "day": 2.0, "run": 2.0}


def test_a_run_without_a_bound_on_cells_warns_on_its_page(tmp_path):
    unbounded = {"bounding": {"max_cells": None}}
    public = {"sensitivity": {"max_cells": 400}}
    assert "400 times what it would be" in warnings_of(
        page(run_folder(tmp_path, public=public, configuration=unbounded))
    )


@pytest.mark.parametrize(
    ("mechanism", "accountants", "idle"),
    [
        ("landmark_uniform", [], []),
        ("discrete_laplace", ["landmark_budget"], []),
        ("discrete_laplace", [], ["budget_period", "landmarks"]),
        ("discrete_laplace", ["composition"], ["budget_period", "landmarks"]),
        ("discrete_laplace", ["temporal"], ["budget_period"]),
        ("fast", [], ["landmarks"]),
    ],
)
def test_keys_that_do_nothing_are_refused(tmp_path, capsys, mechanism, accountants, idle):
    changes = {
        "budget_period": "2h",
        "landmarks": {"windows": [2, 4]},
        "mechanism": {"type": mechanism, "epsilon": 1.0},
    }
    described = [
        {"type": name} | ({"correlation": {"laplacian": {"n": 2, "s": 1.0}}} if name == "temporal" else {})
        for name in accountants
    ]
    path = tmp_path / "run.json"
    path.write_text(json.dumps(sections(tmp_path, accountants=described, **changes)))
    assert main(["validate", str(path)]) == (2 if idle else 0)
    said = capsys.readouterr().err
    assert [key for key in ("budget_period", "landmarks") if f"{path}:1: {key}: " in said] == idle
    assert said.count("here reads it (landmark_uniform does, for one); it must be left out") == len(idle)
    # An earlier version accepted them, and the noise of its runs is bound to them.
    assert load(path, accept_unread=True).budget_period == 7_200_000


@pytest.mark.parametrize(
    ("step", "read_as", "suspected"), [(1, 0, None), (1, 8, 11), (3, 9, 12), (1, -6, 21), (8, 8, None)]
)
def test_a_night_at_noon_makes_the_time_zone_suspect(step, read_as, suspected):
    """A week in which nobody is counted between midnight and six, with times that were read some hours late."""
    wall = np.arange(0, 7 * 24, step)
    counts = np.where((wall - read_as) % 24 < 6, 0.0, 50.0)[:, None]
    assert quiet_by_day(counts, wall * 3_600_000, "UTC") == suspected


def test_no_zone_is_suspected_of_days_without_a_night_or_of_few_counts():
    wall = np.arange(7 * 24)
    even, little = np.full((len(wall), 1), 50.0), np.where((wall % 24 > 9) & (wall % 24 < 16), 0.0, 1.0)[:, None]
    assert quiet_by_day(even, wall * 3_600_000, "UTC") is None
    assert quiet_by_day(little, wall * 3_600_000, "UTC") is None
    assert quiet_by_day(little * 50, wall * 3_600_000, "UTC") == 13


def test_a_wrong_time_zone_is_suspected_aloud_and_on_the_page(tmp_path, capsys):
    city = {
        "type": "synthetic",
        "seed": 1,
        "n_users": 200,
        "from": "2024-01-01T00:00:00Z",
        "until": "2024-01-03T00:00:00Z",
    }
    value = simulated(tmp_path, {"type": "raw"}, source=city, windows={"type": "fixed", "size": "1h"}, seed=1)
    value["space"] = {
        "type": "grid",
        "south": 37.74,
        "north": 37.82,
        "west": -122.47,
        "east": -122.37,
        "rows": 2,
        "columns": 2,
    }
    for zone, said in (("UTC", False), ("Asia/Tokyo", True)):
        value["windows"]["time_zone"] = zone
        path = tmp_path / "run.json"
        path.write_text(json.dumps(value))
        assert main(["run", str(path), "--runner", "local"]) == 0
        assert ("Fewest people are counted around 12:00 (Asia/Tokyo)" in capsys.readouterr().out) == said
        folder = Path(value["output"]["path"])
        assert ("Caution: another time zone" in warnings_of(page(folder))) == said


@pytest.mark.parametrize("max_cells", [1, 2])
def test_the_page_says_why_a_window_costs_twice_what_a_release_does(tmp_path, max_cells):
    """Where a person counts in one cell, another may take its place when a single event goes."""
    row = account(
        "composition",
        "event_epsilon",
        None,
        1.0,
        adjacency="add/remove one user's events in one window, or one of them",
    )
    folder = run_folder(tmp_path, accounts=(row,), configuration={"bounding": {"max_cells": max_cells}})
    assert ("the bound may then keep another cell, and two counts change" in page(folder)) == (max_cells == 1)
