"""Whole trace runs: rows, order, pseudonyms, shards, budget, utility, verification, deployment, configuration."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext

import numpy as np
import polars as pl
import pytest

from penstock.mechanisms.core.geometry import distance
from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.noise_keys import new_key_file
from penstock.mechanisms.core.plugin import BudgetExceeded, ConfigError
from penstock.mechanisms.core.run import PointSchedule, ReleasedTraces, collect
from penstock.pipeline.cli.run import summary
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.monitoring.verify import verify
from penstock.pipeline.releasing.ledger import Ledger
from penstock.pipeline.releasing.traces import area_of, check_budget, gather, points_of
from tests.tools.checkout import ROOT
from tests.tools.small_configuration import run_locally as run
from tests.tools.small_configuration import walk_source

STAYS = {"stay_points": {"distance": 300, "time": "5m"}}
ADAPTIVE = {"type": "landmark_adaptive", "noise": "planar_laplace", "epsilon": 2.0, "radius": 50}


@pytest.fixture
def events(tmp_path):
    """Thirty users' walks with everything that can be wrong with a row."""
    rng = np.random.default_rng(4)
    rows = []
    for user in range(30):
        n = int(rng.integers(1, 40))
        walk = np.array([39.9, 116.4]) + np.cumsum(rng.normal(0, 0.001, (n, 2)), axis=0)
        rows += [(f"u{user}", 60 * i, *point) for i, point in enumerate(walk.round(6).tolist())]
    rows += [rows[0], (rows[5][0], rows[5][1], 41.0, 117.0)]  # a duplicate row, and another place at the same time
    rows += [("far", 0, 10.0, 10.0), ("late", 9_000_000, 39.9, 116.4), ("bad", 0, 95.0, 116.4)]
    path = tmp_path / "events.csv"
    rng.shuffle(rows)
    path.write_text("user,time,lat,lon\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


def sections(path, out, **changes):
    return {
        "name": "walks",
        "seed": 3,
        "source": walk_source(path),
        "space": {"type": "grid", "south": 39, "north": 42, "west": 115, "east": 118, "rows": 1, "columns": 1},
        "windows": {"type": "timestamps"},
        "landmarks": STAYS,
        "mechanism": ADAPTIVE,
        "accountants": [{"type": "landmark_budget"}],
        "utility": ["mae"],
        "output": {"path": str(out), "report": False, "ledger_source": "events"},
    } | changes


def config(*args, **changes):
    kept = {name: value for name, value in sections(*args, **changes).items() if value is not None}
    return loads(json.dumps(kept))


def failed(folder):
    return [check.name for check in verify(folder) if not check.passed]


def test_a_budget_in_rho_is_kept_in_guard_ledger_accounts_and_verification(events, tmp_path):
    adaptive = {"type": "landmark_adaptive", "noise": "planar_gaussian", "epsilon": 2.0, "delta": 1e-6, "radius": 50}
    plan = config(events, tmp_path / "out", mechanism=adaptive)
    folder = run(plan).folder
    assert failed(folder) == []
    budget = plan.mechanism[0].budget
    points = pl.read_parquet(folder / "public" / "traces.parquet")
    is_paid = points["rho"] > 0
    assert points.filter(is_paid)["epsilon"].unique().to_list() == [math.inf]
    assert (points.filter(~is_paid)["epsilon"] == 0).all()
    rows = pl.read_parquet(folder / "public" / "accounts.parquet")
    spent = rows.filter(name="budget_spent")
    assert 0 < spent["value"].max() <= budget * (1 + 1e-9)
    assert spent["unit"].unique().to_list() == ["zCDP rho"]
    assert rows.filter(name="period_epsilon")["value"].to_list() == pytest.approx([2.0] * len(spent), rel=1e-6)
    charged = max(posting.charge.rho for posting in Ledger(folder / "operator" / "ledger").postings())
    assert points["rho"].max() <= charged == budget  # the whole run, before anything is released
    # A point that says that it cost more than the ledger holds.
    points.with_columns(rho=pl.col("rho") + budget).write_parquet(folder / "public" / "traces.parquet")
    assert {"ledger", "budget"} <= set(failed(folder))


def test_every_row_has_a_fate_and_every_point_a_release(events, tmp_path):
    result = run(config(events, tmp_path / "out"))
    rows = result.manifest["rows"]
    assert rows["rows"] == rows["used"] + rows["out_of_area"] + rows["out_of_time"] + rows["rejected"]
    assert (rows["out_of_area"], rows["out_of_time"], rows["rejected"], rows["duplicates"]) == (0, 1, 1, 2)
    assert rows["clamped"] == 1
    released = pl.read_parquet(tmp_path / "out/public/traces.parquet")
    assert len(released) == rows["used"] - 2 == result.manifest["points"]["released"]
    assert released.schema["time"] == pl.Datetime("ms", "UTC")
    assert result.manifest["users"]["users"] == 31 == released["pseudonym"].n_unique()
    assert "31, each with" in summary(result)
    assert "1 of them outside the area" in summary(result)
    assert failed(tmp_path / "out") == []


def test_releases_are_those_of_the_plain_loop(events, tmp_path):
    run(config(events, tmp_path / "out"))
    plan = make_plan(config(events, tmp_path / "out"))
    points = []
    for span in plan.config.source.spans():
        for block in plan.config.source.read(span):
            points += [piece for _, piece in points_of(block, plan.grid, plan.space, plan.keys, 1)[1]]
    traces = gather(points, plan.traces, plan.grid, plan.space)
    noise = NoiseSource(plan.keys.noise_key, configuration=plan.keys.configuration)
    schedule = PointSchedule(traces, area_of(plan.space).centre)
    expected = collect(plan.traces.mechanism, schedule, noise)
    released = pl.read_parquet(tmp_path / "out/public/traces.parquet")
    assert np.array_equal(released.select("latitude", "longitude").to_numpy(), expected.values)
    assert released["pseudonym"].cast(pl.String).to_list() == np.array(traces.pseudonyms)[traces.user_of].tolist()


def test_order_of_arrival_and_shards_change_nothing(events, tmp_path):
    run(config(events, tmp_path / "one"))
    lines = events.read_text().splitlines()
    events.write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")
    changed = sections(events, tmp_path / "three")
    changed["source"]["block_rows"] = 50
    run(loads(json.dumps(changed)), n_shards=5)
    for name in ("public/traces.parquet", "operator/truth.parquet"):
        assert pl.read_parquet(tmp_path / "one" / name).equals(pl.read_parquet(tmp_path / "three" / name))
    assert failed(tmp_path / "three") == []


def test_utility_is_the_mean_distance_in_metres(events, tmp_path):
    result = run(config(events, tmp_path / "out"))
    released, true = (
        pl.read_parquet(tmp_path / "out" / name).select("latitude", "longitude").to_numpy()
        for name in ("public/traces.parquet", "operator/truth.parquet")
    )
    assert result.manifest["utility"]["mae"] == pytest.approx(distance(released, true).mean())
    table = pl.read_parquet(tmp_path / "out/operator/utility.parquet")
    assert {"run", "landmarks", "regular"} <= set(table["scope"])
    assert table["scope"].str.starts_with("user:").sum() == 31


def test_accounts_say_what_each_user_spent(events, tmp_path):
    run(config(events, tmp_path / "out"))
    accounts = pl.read_parquet(tmp_path / "out/public/accounts.parquet").filter(pl.col("name") == "budget_spent")
    released = pl.read_parquet(tmp_path / "out/public/traces.parquet").with_columns(pl.col("pseudonym").cast(pl.String))
    landmark = pl.col("epsilon").filter(pl.col("landmark"))
    other = pl.col("epsilon").filter(~pl.col("landmark")).max().fill_null(0.0)
    expected = released.group_by("pseudonym").agg((landmark.sum() + other).alias("spent"))
    both = accounts.join(expected, left_on="subject", right_on="pseudonym")
    assert len(both) == 31
    assert both["value"].to_numpy() == pytest.approx(both["spent"].to_numpy())
    assert both["value"].max() <= 2.0 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (pl.col("epsilon") * 3, "budget"),
        (pl.lit(True).alias("landmark"), "budget"),
        (pl.col("epsilon") + 1e-6, "ledger"),
        (pl.col("time").reverse(), "order"),
    ],
)
def test_verification_notices_tampering(events, tmp_path, change, check):
    run(config(events, tmp_path / "out", landmarks={"recurring": ["00:00-00:10"]}))
    path = tmp_path / "out/public/traces.parquet"
    pl.read_parquet(path).with_columns(change).write_parquet(path)
    assert check in failed(tmp_path / "out")


@pytest.mark.parametrize(("excess", "is_refused"), [(-1e-6, False), (0.0, False), (1e-6, True), (0.9, True)])
def test_traces_that_cost_more_than_the_budget_do_not_leave(events, tmp_path, excess, is_refused):
    """Two users: the second's landmarks and dearest other point cost the budget, and then some."""
    plan = make_plan(config(events, tmp_path / "out"))
    epsilon = np.array([2.0, 0.5, 1.0 + excess, 0.5, 0.25])
    seen = ReleasedTraces(
        users=np.array([[10], [11]]),
        starts=np.array([0, 1]),
        times=np.arange(5),
        landmarks=np.array([False, True, False, True, False]),
        periods=np.zeros(5, np.int64),
        epsilon=epsilon,
        rho=np.zeros(5),
        scale=np.ones(5),
        action=np.full(5, "published"),
        values=np.zeros((5, 2)),
        repeats=np.full(5, -1),
        noise="planar_laplace",
        mechanism=plan.traces.mechanism,
    )
    with pytest.raises(BudgetExceeded, match="window 4") if is_refused else nullcontext():
        check_budget(seen)


def test_budget_periods_renew_the_budget(events, tmp_path):
    changed = {"landmarks": {"windows": [1, 2, 15]}, "budget_period": "10m"}
    run(config(events, tmp_path / "out", mechanism=ADAPTIVE | {"type": "landmark_uniform"}, **changed))
    released = pl.read_parquet(tmp_path / "out/public/traces.parquet")
    period = released["time"].dt.epoch("ms") // 600_000
    shares = (
        released.with_columns(period=period)
        .group_by("pseudonym", "period")
        .agg(
            pl.col("epsilon").n_unique().alias("shares"), pl.col("epsilon").first(), pl.len(), pl.col("landmark").sum()
        )
    )
    assert (shares["shares"] == 1).all()
    n = np.minimum(shares["landmark"].to_numpy() + 1, shares["len"].to_numpy())
    assert shares["epsilon"].to_numpy() == pytest.approx(2.0 / n)
    assert failed(tmp_path / "out") == []


def deployment(tmp_path, events, **changes):
    key = tmp_path / "noise.key"
    if not key.exists():
        new_key_file(key)
    changes = {"mode": "deployment", "seed": None, "noise_key": str(key), "utility": None} | changes
    return sections(events, tmp_path / "out", **({"landmarks": {"recurring": ["00:00-00:10"]}} | changes))


def test_a_deployment_keeps_no_truth_and_its_pseudonyms_hang_on_the_key(events, tmp_path):
    run(loads(json.dumps({k: v for k, v in deployment(tmp_path, events).items() if v is not None})))
    files = {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert not files & {"truth.parquet", "utility.parquet"}
    texts = [path.read_text() for path in (tmp_path / "out").rglob("*.json")]
    assert not any("u17" in text for text in texts)
    run(config(events, tmp_path / "simulated"))
    secret, known = (
        set(pl.read_parquet(tmp_path / name / "public/traces.parquet")["pseudonym"].cast(pl.String))
        for name in ("out", "simulated")
    )
    assert not secret & known


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"windows": {"type": "fixed", "size": "1h"}}, "windows.type.*timestamps"),
        ({"mechanism": {"type": "laplace", "epsilon": 1.0}}, "mechanism on points"),
        ({"utility": ["mre"]}, "utility.*mae"),
        ({"accountants": [{"type": "composition"}]}, "accountants.*traces"),
        ({"bounding": {"max_cells": 2}}, "bounding.*left out"),
        ({"mechanism": [{"type": "planar_laplace", "epsilon": 0.0}]}, "epsilon"),
        ({"space": {"type": "places", "list": ["a"]}}, "space"),
    ],
)
def test_what_makes_no_sense_for_traces_is_refused(events, tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        config(events, tmp_path / "out", **changes)


def test_stay_points_are_for_simulated_traces(events, tmp_path):
    with pytest.raises(ConfigError, match="stay_points"):
        loads(json.dumps({k: v for k, v in deployment(tmp_path, events, landmarks=STAYS).items() if v is not None}))
    counts = {"windows": {"type": "fixed", "size": "1h"}, "mechanism": {"type": "landmark_uniform", "epsilon": 1.0}}
    with pytest.raises(ConfigError, match="stay_points"):
        config(events, tmp_path / "out", utility=None, **counts)


@pytest.mark.data
@pytest.mark.slow
def test_an_hour_of_taxis(data_folder, tmp_path):
    from penstock.pipeline.config.run import load

    loaded = load(ROOT / "configs/datasets/tdrive.yaml", [f"source.path={data_folder('tdrive')}"])
    result = run(loaded, tmp_path / "out")
    assert result.manifest["rows"]["rows"] == 151_007
    assert result.manifest["users"]["users"] > 8_000
    assert failed(tmp_path / "out") == []
