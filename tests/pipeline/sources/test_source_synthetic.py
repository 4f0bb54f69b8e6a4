"""The synthetic source: the same rows for any cut, order of arrival, checked parameters."""

from __future__ import annotations

import dataclasses
import pickle
from itertools import islice
from typing import Any

import numpy as np
import polars as pl
import pytest

from penstock.mechanisms.core.plugin import DataError, ParameterError
from penstock.pipeline.sources.synthetic import DEFAULT_START, Commuters, MarkovPeople, Synthetic

HOUR = 3_600_000


def rows(source: Synthetic) -> pl.DataFrame:
    return pl.concat(block.frame for span in source.spans() for block in source.read(span))


@pytest.mark.parametrize("mobility", ["commuter", "markov"])
def test_the_same_rows_however_they_are_cut(mobility: str) -> None:
    source = Synthetic(n_users=40, days=3.4, seed=9, mobility=mobility)
    whole = rows(source)
    for block_rows in (1, 50, 700):
        other = dataclasses.replace(source, block_rows=block_rows)
        blocks = [block for span in other.spans() for block in other.read(span)]
        assert all(block.n_rows <= max(2, 1.5 * block_rows) for block in blocks)
        assert pl.concat(block.frame for block in blocks).equals(whole)
        assert other.digests() == source.digests()


def test_columns_order_and_range() -> None:
    source = Synthetic(n_users=100, days=2, seed=3)
    frame = rows(source)
    assert frame.schema == {
        "user": pl.Int64,
        "time": pl.Int64,
        "latitude": pl.Float64,
        "longitude": pl.Float64,
        "place": pl.String,
    }
    assert (source.from_, source.until) == (DEFAULT_START, DEFAULT_START + 48 * HOUR)
    assert frame["time"].is_sorted()
    assert frame["time"].is_between(DEFAULT_START, DEFAULT_START + 48 * HOUR, closed="left").all()
    assert frame.height == pytest.approx(100 * 48, rel=0.1)


def test_an_unfinished_last_step() -> None:
    source = Synthetic(n_users=300, from_=DEFAULT_START, until=DEFAULT_START + HOUR // 3, seed=3)
    assert rows(source)["time"].max() < DEFAULT_START + HOUR // 3  # type: ignore[operator]


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_the_share_of_duplicates(share: float) -> None:
    frame = rows(Synthetic(n_users=500, days=2, seed=3, duplicates=share))
    n_repeats = frame.height - frame.unique().height
    assert n_repeats / (frame.height - n_repeats) == pytest.approx(share, abs=0.01)


def test_markov_counts_everybody_once_in_every_window() -> None:
    source = Synthetic(n_users=50, days=1, seed=3, mobility="markov", min_events=1, events_per_hour=2.0)
    windows = rows(source).with_columns(window=(pl.col("time") - DEFAULT_START) // HOUR)
    per_window = windows.group_by("window", "user").agg(pl.col("place").n_unique())
    assert per_window.height == 24 * 50
    assert per_window["place"].unique().to_list() == [1]
    places = windows.unique(["window", "user"]).sort("window", "user")["place"].str.strip_prefix("place_").cast(int)
    assert isinstance(source.city, MarkovPeople)
    truth = np.array(list(source.city.locations(0, 24)))
    np.testing.assert_array_equal(places.to_numpy().reshape(24, 50), truth)


def test_an_endless_city_is_streamed_only() -> None:
    source = Synthetic(n_users=20, endless=True, seed=3)
    with pytest.raises(DataError, match="endless"):
        source.spans()
    first = pl.concat(block.frame for span in islice(source.spans_from(0), 2) for block in source.read(span))
    assert first.height > 0
    finite = rows(Synthetic(n_users=20, days=7, seed=3))
    assert finite.head(first.height).equals(first)
    later = next(source.read(next(source.spans_from(50_000)))).frame
    assert later["time"].min() >= DEFAULT_START + 50_000 * 24 * HOUR  # type: ignore[operator]


def test_seeds_differ_and_parameters_decide_the_digest() -> None:
    one, two = Synthetic(n_users=20, seed=1), Synthetic(n_users=20, seed=2)
    assert not rows(one).equals(rows(two))
    assert one.digests() != two.digests()


def test_the_city_is_there_to_be_compared_with() -> None:
    assert isinstance(Synthetic().city, Commuters)
    source = pickle.loads(pickle.dumps(Synthetic(mobility="markov", rows=2, columns=3)))
    assert source.city.transition.shape == (6, 6)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"n_users": 0}, "n_users"),
        ({"rows": 0}, "rows"),
        ({"rows": 1, "columns": 2}, "rows"),
        ({"mobility": "markov", "rows": 100, "columns": 100}, "rows"),
        ({"mobility": "teleport"}, "mobility"),
        ({"seed": -1}, "seed"),
        ({"step": 7 * 60_000}, "step"),
        ({"step": 2 * HOUR}, "step"),
        ({"south": 10.0, "north": 5.0}, "north"),
        ({"west": 10.0, "east": 10.0}, "east"),
        ({"events_per_hour": 0.0}, "events_per_hour"),
        ({"min_events": 2}, "events_per_hour"),
        ({"events_per_hour": 1e6}, "events_per_hour"),
        ({"duplicates": 1.5}, "duplicates"),
        ({"until": DEFAULT_START + HOUR, "days": 3.0}, "days"),
        ({"until": DEFAULT_START}, "until"),
        ({"endless": True, "days": 3.0}, "endless"),
    ],
)
def test_wrong_parameters_name_the_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ParameterError) as caught:
        Synthetic(**options)
    assert caught.value.field == field
