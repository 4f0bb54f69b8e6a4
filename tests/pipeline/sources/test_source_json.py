"""JSON: lists in documents, objects a line, paths to values, rejects with the number of their object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.sources.json import Json
from tests.tools.source_rows import blocks_of

MOMENT = 1_714_521_600_000
TRIP = {"trip_id": "a", "start_time": MOMENT, "start_location": {"lat": 38.2, "lng": -85.8}}
COLUMNS = {"user": "", "time": "start_time", "latitude": "start_location.lat", "longitude": "start_location.lng"}


def read(path: Path, content: str, **settings: Any) -> tuple[list[tuple[Any, ...]], list[tuple[int, str]]]:
    """Rows of a file and its rejects."""
    path.write_text(content, encoding="utf-8")
    blocks = blocks_of(Json(path=str(path), **settings))
    rejects = [(reject.line, reject.reason) for block in blocks for reject in block.rejects]
    return [row for block in blocks for row in block.frame.rows()], rejects


@pytest.mark.parametrize(
    "content",
    [
        json.dumps({"version": "2.0.0", "trips": [TRIP, TRIP]}),
        json.dumps({"version": "2.0.0", "data": {"trips": [TRIP, TRIP]}}, indent=2),
        json.dumps([TRIP, TRIP]),
        "".join(json.dumps(TRIP) + "\n\n" for _ in range(2)),
    ],
)
def test_the_same_trips_in_every_shape(tmp_path, content):
    rows, rejects = read(tmp_path / "t.json", content, columns=COLUMNS, time_format="unix_ms")
    assert rows == [(MOMENT, 38.2, -85.8, "t.json:1"), (MOMENT, 38.2, -85.8, "t.json:2")]
    assert rejects == []


def test_a_point_and_a_day_in_the_name_are_read_as_in_other_files(tmp_path):
    content = json.dumps([{"user": 7, "time": "00:00", "geom": "POINT (-85.8 38.2)"}, {"user": 7, "time": "00:00"}])
    columns = {"point": "geom", "date": "file name"}
    rows, rejects = read(tmp_path / "2024-05-01.json", content, columns=columns)
    assert rows == [("7", MOMENT, 38.2, -85.8)]
    assert rejects == [(2, "latitude is not a finite number")]


def test_a_path_may_lead_through_lists_from_either_end(tmp_path):
    route = {"features": [{"geometry": {"coordinates": [-85.8, 38.2 + i]}} for i in range(3)]}
    columns = {
        "user": "trip_id",
        "latitude": "route.features.-1.geometry.coordinates.1",
        "longitude": "route.features.0.geometry.coordinates.0",
    }
    content = json.dumps([{"trip_id": 7, "time": "2024-05-01T00:00:00Z", "route": route}])
    assert read(tmp_path / "t.json", content, columns=columns)[0] == [("7", MOMENT, 40.2, -85.8)]


def test_every_object_is_an_event_or_a_reject(tmp_path):
    good = {"user": "u", "time": "2024-05-01T00:00:00Z", "latitude": "47.5 ", "longitude": 8.5}
    changes: list[dict[str, Any]] = [{}, {"user": None}, {"latitude": True}, {"latitude": 1e400}, {"time": MOMENT}]
    lines = [json.dumps(good | change) for change in changes] + ["{", "[1]", json.dumps(good | {"user": "\ud800"})]
    rows, rejects = read(tmp_path / "t.jsonl", "\n".join(lines), time_zone="Europe/Zurich")
    assert rows == [("u", MOMENT, 47.5, 8.5)]
    assert rejects == [
        (2, "user is missing (or is no integer)"),
        (3, "latitude is not a finite number"),
        (4, "latitude is not a finite number"),
        (5, "time is not ISO 8601"),
        (6, "not a JSON object"),
        (7, "not a JSON object"),
        (8, "user is missing (or is no integer)"),
    ]


@pytest.mark.parametrize(
    ("content", "settings", "said"),
    [
        ('{"a": [{"x": 1}], "b": {"c": [{"x": 1}]}}', {}, r"must say which list .* \(lists: a, b.c\)"),
        ('{"a": [{"x": 1}]}', {"records": "b"}, r"\(lists: a\)"),
        ('{"a": [', {}, "neither a JSON document nor an object a line"),
        ("[" * 100_000, {}, "neither a JSON document nor an object a line"),
        (json.dumps([TRIP]), {"columns": COLUMNS | {"time": "end_time"}}, "no column 'end_time' for time"),
    ],
)
def test_unreadable_documents_are_reported(tmp_path, content, settings, said):
    with pytest.raises(DataError, match=said):
        read(tmp_path / "t.json", content, **settings)
