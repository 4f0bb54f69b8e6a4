"""Neighbouring traces: a moved point changes one released point by no more than it moved."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from penstock.mechanisms.core.geometry import EARTH_RADIUS, distance, mean_points, moved, within
from penstock.mechanisms.core.plugin import StateVersionError
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.releasing.traces import area_of, gather, points_of
from penstock.pipeline.run import run
from penstock.pipeline.sources.base import EventBlock
from tests.tools.small_configuration import walk_source

#: Released points are rounded to a millionth of a degree, 11 cm.
RASTER = 0.16
BOX = {"type": "grid", "south": 39.8, "north": 40.0, "west": 116.3, "east": 116.5, "rows": 2, "columns": 2}


def configuration(path, out, space=BOX, **changes):
    sections = {
        "name": "neighbours",
        "seed": 3,
        "source": walk_source(path),
        "space": space,
        "windows": {"type": "timestamps"},
        "mechanism": {"type": "gaussian_trace", "sigma": 0.0},
        "output": {"path": str(out), "report": False},
    }
    return loads(json.dumps(sections | changes))


def released(rows, folder, **changes):
    """Released points of a run without noise."""
    folder.mkdir()
    path = folder / "events.csv"
    path.write_text("user,time,lat,lon\n" + "".join(f"{u},{t},{y:.7f},{x:.7f}\n" for u, t, y, x in rows))
    run(configuration(path, folder / "out", **changes), runner="local")
    return pl.read_parquet(folder / "out/public/traces.parquet")


@pytest.mark.parametrize(
    ("row", "to"),
    [
        (1, (40.00001, 116.4)),  # over the area's edge, 2.2 m
        (1, (39.99999, 116.4)),
        (1, (40.3, 116.4)),  # over the edge of the circle around it
        (1, (-39.9, -63.6)),  # the other side of the world
        (3, (39.9002, 116.31)),  # 22 m further north than the other point of its instant
        (3, (39.9001, 116.41)),  # onto that point
    ],
)
def test_the_audited_cases_move_one_point_by_no_more_than_they_moved(tmp_path, row, to):
    rows = [
        ("a", 0, 39.9, 116.4),
        ("a", 60, 39.99999, 116.4),
        ("a", 120, 39.9001, 116.41),
        ("a", 120, 39.9, 116.31),
        ("a", 180, 39.85, 116.4),
        ("b", 60, 39.9, 116.4),
    ]
    changed = list(rows)
    changed[row] = (*rows[row][:2], *to)
    one, other = (released(given, tmp_path / name) for name, given in (("one", rows), ("other", changed)))
    assert one.drop("latitude", "longitude").equals(other.drop("latitude", "longitude"))
    assert len(one) == 5
    moves = distance(*(frame.select("latitude", "longitude").to_numpy() for frame in (one, other)))
    assert (moves > RASTER).sum() <= 1
    assert moves.max() <= distance(np.array(rows[row][2:]), np.array(to)) + RASTER


def traces_of_rows(plan, users, times, points):
    frame = pl.DataFrame({"user": users, "time": times, "latitude": points[:, 0], "longitude": points[:, 1]})
    counts, pieces = points_of(EventBlock(frame, len(frame), ()), plan.grid, plan.space, plan.keys, 1)
    return counts, gather([piece for _, piece in pieces], plan.traces, plan.grid, plan.space)


SPACES = {
    "box": BOX,
    "one cell": {"type": "grid", "south": 59, "north": 71, "west": 5, "east": 31, "rows": 1, "columns": 1},
    "half the world": {"type": "grid", "south": -60, "north": 80, "west": -170, "east": 170, "rows": 1, "columns": 1},
}


@pytest.mark.parametrize("space", SPACES)
def test_brute_force_over_moved_points(tmp_path, space):
    (tmp_path / "none.csv").write_text("user,time,lat,lon\n")
    plan = make_plan(configuration(tmp_path / "none.csv", tmp_path / "out", SPACES[space]))
    area = area_of(plan.space)
    rng = np.random.default_rng(5)
    reach = min(area.radius, np.pi / 2 * EARTH_RADIUS)
    for _ in range(300):
        n = int(rng.integers(2, 12))
        # Close around the edge of the area, and anywhere; few instants, so that many rows share one.
        far = reach * rng.choice([rng.random(), 1 + 1e-6 * rng.normal(), 2 * rng.random()], n)
        angle = rng.uniform(0, 2 * np.pi, n)
        points = moved(np.array(area.centre), far[:, None] * np.column_stack([np.cos(angle), np.sin(angle)]))
        users, times = rng.integers(0, 2, n).astype(str), 1000 * rng.integers(0, 4, n)
        changed, step = points.copy(), 10 ** rng.uniform(-1, 7.3)
        towards = rng.uniform(0, 2 * np.pi)
        row = int(rng.integers(n))
        changed[row] = moved(points[row], step * np.array([np.cos(towards), np.sin(towards)]))
        length = float(distance(points[row], changed[row]))
        (_, one), (counts, other) = (traces_of_rows(plan, users, times, given) for given in (points, changed))
        for name in ("users", "starts", "times", "landmarks", "periods"):
            assert np.array_equal(getattr(one, name), getattr(other, name))
        moves = distance(one.points, other.points)
        assert (moves > 0).sum() <= 1
        assert moves.max() <= length * (1 + 1e-6) + 1e-6
        assert counts.rows == counts.used
        if area.radius < np.pi / 2 * EARTH_RADIUS:
            assert distance(other.points, np.array(area.centre)).max() <= area.radius + 1e-3


def test_all_rows_of_an_instant_may_move():
    rng = np.random.default_rng(1)
    for _ in range(500):
        points = np.column_stack([rng.uniform(-90, 90, 4), rng.uniform(-180, 180, 4)])
        step = 10 ** rng.uniform(0, 6)
        angle = rng.uniform(0, 2 * np.pi, 4)
        changed = moved(points, step * np.column_stack([np.cos(angle), np.sin(angle)]))
        means = (mean_points(given, np.array([0]), (30.0, 20.0)) for given in (points, changed))
        assert float(distance(*means)[0]) <= step * (1 + 1e-6)


def test_a_mean_near_the_middle_is_the_mean():
    points = np.array([[39.9, 116.3], [39.95, 116.45], [39.85, 116.4]])
    (mean,) = mean_points(points, np.array([0]), (39.9, 116.4))
    assert distance(mean, points.mean(axis=0)) < 5.0
    (same,) = mean_points(np.tile(points[1], (3, 1)), np.array([0]), (39.9, 116.4))
    assert distance(same, points[1]) < 5e-3


def test_latitude_and_longitude_cut_off_would_not_do_but_the_circle_does():
    north = np.array([[60.0, 10.0], [60.0, 10.1]])
    cut = np.column_stack([np.minimum(north[:, 0], 50.0), north[:, 1]])
    assert distance(cut[0], cut[1]) > 1.2 * distance(north[0], north[1])
    circle = within(north, (50.0, 10.0), 1000.0)
    assert distance(circle[0], circle[1]) <= distance(north[0], north[1])
    assert distance(circle, np.array([50.0, 10.0])) == pytest.approx([1000.0, 1000.0])


def test_a_run_that_another_version_began_is_not_continued(tmp_path):
    released([("a", 0, 39.9, 116.4)], tmp_path / "run")
    config = configuration(tmp_path / "run/events.csv", tmp_path / "run/out")
    mark = tmp_path / "run/out/operator/run.json"
    actual = json.loads(mark.read_text())
    actual.pop("traces")
    mark.write_text(json.dumps(actual))
    with pytest.raises(StateVersionError, match="start it again without --resume"):
        run(config, resume=True)
