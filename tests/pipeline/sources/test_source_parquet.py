"""Parquet: types of every column, spans by row groups, rejects with their row."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.counting.targets import rows_of
from penstock.pipeline.counting.users import user_codes
from penstock.pipeline.sources.parquet import TOO_LARGE, Parquet
from tests.tools.source_rows import blocks_of as read

MOMENT = datetime(2008, 5, 17, 10, tzinfo=UTC)
MILLISECONDS = 1_211_018_400_000


def frame(n: int = 2, **columns: Any) -> pl.DataFrame:
    return pl.DataFrame(
        {"user": range(n), "time": [MOMENT] * n, "latitude": [1.5] * n, "longitude": [2.5] * n} | columns
    )


def write(path: Path, table: pl.DataFrame, row_group: int = 1000) -> str:
    table.write_parquet(path, row_group_size=row_group)
    return str(path)


def test_plain_rows_and_projection(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", frame(other=["x", "y"]))
    (block,) = read(Parquet(path=path))
    assert block.frame.schema == {"user": pl.Int64, "time": pl.Int64, "latitude": pl.Float64, "longitude": pl.Float64}
    assert block.frame.rows() == [(0, MILLISECONDS, 1.5, 2.5), (1, MILLISECONDS, 1.5, 2.5)]


@pytest.mark.parametrize(
    ("users", "expected"),
    [
        (pl.Series([3, 4], dtype=pl.UInt8), [3, 4]),
        (pl.Series([3.0, 4.0]), [3, 4]),
        (pl.Series(["a", "é"]), ["a", "é"]),
        (pl.Series(["a", "b"], dtype=pl.Categorical), ["a", "b"]),
    ],
)
def test_types_of_users(tmp_path: Path, users: pl.Series, expected: list[object]) -> None:
    (block,) = read(Parquet(path=write(tmp_path / "a.parquet", frame(user=users))))
    assert block.frame["user"].to_list() == expected


@pytest.mark.parametrize(
    ("times", "options"),
    [
        (pl.Series([MOMENT], dtype=pl.Datetime("ns", "UTC")), {}),
        (pl.Series([MOMENT]).dt.convert_time_zone("Asia/Tokyo"), {}),
        (pl.Series([datetime(2008, 5, 17, 10)]), {}),
        (pl.Series([datetime(2008, 5, 17, 12)]), {"time_zone": "Europe/Zurich"}),
        (pl.Series([MILLISECONDS // 1000], dtype=pl.Int32), {"time_format": "unix_s"}),
        (pl.Series([MILLISECONDS]), {"time_format": "unix_ms"}),
        (pl.Series([MILLISECONDS * 1000 + 999]), {"time_format": "unix_us"}),
        (pl.Series([MILLISECONDS * 1_000_000 + 999_999]), {"time_format": "unix_ns"}),
        (pl.Series(["2008-05-17T10:00:00Z"]), {}),
    ],
)
def test_types_of_times(tmp_path: Path, times: pl.Series, options: dict[str, Any]) -> None:
    (block,) = read(Parquet(path=write(tmp_path / "a.parquet", frame(1, time=times)), **options))
    assert block.frame["time"].to_list() == [MILLISECONDS]


def test_numbers_in_another_unit_are_reported_with_the_unit(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", frame(1, time=pl.Series([MILLISECONDS * 1_000_000])))
    (block,) = read(Parquet(path=path, time_format="unix_ms"))
    assert [one.reason for one in block.rejects] == ["time is not Unix milliseconds; in nanoseconds it is unix_ns"]


def test_times_that_a_column_rounds_to_minutes_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", frame(1, time=pl.Series([MILLISECONDS / 1000], dtype=pl.Float32)))
    with pytest.raises(DataError, match="times are 32-bit floats, which hold Unix times to minutes at best"):
        read(Parquet(path=path, time_format="unix_s"))


@pytest.mark.parametrize("srid", [0, 4326])
def test_points_are_binary_or_text(tmp_path: Path, srid: int) -> None:
    points = shapely.set_srid(shapely.points([2.5, 181.0, -2.5], [1.5, 1.5, 91.0]), srid)
    binary = [*shapely.to_wkb(points, include_srid=srid > 0).tolist(), b"none", None]
    digits = [value and value.hex() for value in binary]
    text = ["POINT (2.5 1.5)", "POINT (181 1.5)", "POINT (-2.5 91)", "none", None]
    for values in (binary, digits, text):
        path = write(
            tmp_path / "a.parquet", frame(5).drop("latitude", "longitude").with_columns(geometry=pl.Series(values))
        )
        (block,) = read(Parquet(path=path, columns={"point": "geometry"}))
        assert block.frame.rows() == [(0, MILLISECONDS, 1.5, 2.5)]
        reasons = [reject.reason.split(" in a ")[0].split(" as ")[0] for reject in block.rejects]
        out, missing = "latitude is beyond ±90 degrees", "latitude is not a finite number"
        assert reasons == ["longitude out of range", out, "point is none", missing]
    path = write(tmp_path / "a.parquet", frame(5).with_columns(geometry=pl.Series(binary)))
    with pytest.raises(DataError, match=r"column 'geometry' for place: .* is neither a number nor text"):
        read(Parquet(path=path, columns={"place": "geometry"}))


def test_a_time_of_day_is_joined_to_the_day_in_the_name(tmp_path: Path) -> None:
    clocks = [time(10), time(10, 0, 0, 250_000)]
    path = write(tmp_path / "taps-2008-05-17.parquet", frame(time=clocks))
    (block,) = read(Parquet(path=path, columns={"date": "file name"}))
    assert block.frame["time"].to_list() == [MILLISECONDS, MILLISECONDS + 250]


def test_old_timestamps_beyond_nanoseconds_do_not_wrap(tmp_path: Path) -> None:
    times = [datetime(2008, 5, 17, 10), datetime(2600, 1, 1), datetime(1500, 1, 1), datetime(9999, 12, 31)]
    path = tmp_path / "a.parquet"
    table = frame(4).drop("time").to_arrow().append_column("time", pa.array(times, pa.timestamp("us")))
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    (block,) = read(Parquet(path=str(path)))
    wanted = [int((one - datetime(1970, 1, 1)).total_seconds() * 1000) for one in times]
    assert block.frame["time"].to_list() == wanted


def test_floats_that_several_identifiers_share_are_no_users(tmp_path: Path) -> None:
    users = pl.Series([7.0, 2.0**53 - 1, 2.0**53, float(2**53 + 2), 1.5])
    (block,) = read(Parquet(path=write(tmp_path / "a.parquet", frame(5, user=users))))
    assert block.frame["user"].to_list() == [7, 2**53 - 1]
    assert len(block.rejects) == 3


@pytest.mark.parametrize(
    "kind", [pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.date64(), pa.timestamp("ns", "Mars/X")]
)
def test_times_that_no_calendar_holds_are_rejected_as_they_stand(tmp_path: Path, kind: pa.DataType) -> None:
    day = 86_400_000 * {"timestamp[us, tz=UTC]": 1000, "timestamp[ns, tz=Mars/X]": 10**6}.get(str(kind), 1)
    far = (2**61 // day) * day
    table = frame(2).drop("time").to_arrow().append_column("time", pa.array([far, day], kind))
    pq.write_table(
        table.append_column("place", pa.array(["a", "a" if "ns" not in str(kind) else ""])), tmp_path / "a.parquet"
    )
    (block,) = read(Parquet(path=str(tmp_path)))
    if "ns" in str(kind):  # nanoseconds end in 2262: only the place is wrong, and the zone of the time is of no matter
        assert block.frame["time"].to_list() == [far // 10**6]
    else:
        assert block.frame["time"].to_list() == [86_400_000]
    assert len(block.rejects) == 1


def test_whole_numbers_of_few_digits_are_users_whatever_holds_them(tmp_path: Path) -> None:
    single = pl.Series([7.0, 2.0**24 - 1, 2.0**24], dtype=pl.Float32)
    (block,) = read(Parquet(path=write(tmp_path / "a.parquet", frame(3, user=single))))
    assert block.frame["user"].to_list() == [7, 2**24 - 1]
    decimal = frame(2).drop("user").to_arrow().append_column("user", pa.array([7, 8]).cast(pa.decimal128(38, 0)))
    pq.write_table(decimal, tmp_path / "a.parquet")
    (block,) = read(Parquet(path=str(tmp_path)))
    assert block.frame["user"].to_list() == [7, 8]


def test_a_date_is_its_midnight(tmp_path: Path) -> None:
    (block,) = read(Parquet(path=write(tmp_path / "a.parquet", frame(1, time=[date(1970, 1, 2)]))))
    assert block.frame["time"].to_list() == [86_400_000]


def test_bad_rows_are_rejected_with_their_row(tmp_path: Path) -> None:
    nan, good = float("nan"), 1.0
    table = frame(
        7,
        user=pl.Series([None, 2.5, 1.0, 1.0, 1.0, 1.0, 9.0]),
        time=[MOMENT, MOMENT, None, MOMENT, MOMENT, MOMENT, MOMENT],
        latitude=[good, good, good, None, 91.0, nan, good],
    )
    for block_rows in (2, 3, 100):
        blocks = read(Parquet(path=write(tmp_path / "a.parquet", table, row_group=4), block_rows=block_rows))
        assert [row[0] for block in blocks for row in block.frame.rows()] == [9]
        actual = [(reject.line, reject.reason) for block in blocks for reject in block.rejects]
        missing = "user is missing (or is no integer)"
        assert actual == [
            (1, missing),
            (2, missing),
            (3, "time cannot be read"),
            (4, "latitude is not a finite number"),
            (5, "latitude out of range"),
            (6, "latitude is not a finite number"),
        ]
        assert "'latitude': 91.0" in next(r.raw for b in blocks for r in b.rejects if r.line == 5)


@pytest.mark.parametrize(
    ("users", "kept"),
    [
        (pl.Series([2.0**53, 1e19, 7.0]), [7]),
        (pl.Series([2.0**24, 2.0**30, 7.0], dtype=pl.Float32), [7]),
        (pl.Series([2**63, 2**64 - 1, 2**63 - 1], dtype=pl.Int128).cast(pl.Decimal(38, 0)), [2**63 - 1]),
    ],
)
def test_an_integer_that_is_too_large_is_called_so(tmp_path: Path, users: pl.Series, kept: list[int]) -> None:
    (block,) = read(Parquet(path=write(tmp_path / "a.parquet", frame(3, user=users))))
    assert block.frame["user"].to_list() == kept
    assert [(reject.line, reject.reason) for reject in block.rejects] == [(1, TOO_LARGE), (2, TOO_LARGE)]


def test_unsigned_ids_are_told_apart_over_all_64_bits_and_can_be_named(tmp_path: Path) -> None:
    ids = [7, 2**63 - 1, 2**63, 2**64 - 1]
    (block,) = read(Parquet(path=write(tmp_path / "a.parquet", frame(4, user=pl.Series(ids, dtype=pl.UInt64)))))
    codes, table = user_codes(block.frame["user"], None)
    assert not block.rejects
    assert len(set(codes.tolist())) == 4
    assert [table[row].tolist() for row in rows_of(table, ids, None)] == [[7], [2**63 - 1], [-(2**63)], [-1]]


@pytest.mark.parametrize("kind", [pl.String, pl.Categorical, pl.Datetime("us"), pl.Datetime("ns")])
def test_a_local_time_that_never_existed_is_called_so(tmp_path: Path, kind: Any) -> None:
    texts = pl.Series(["2024-03-31 02:30:00", "2024-03-31 03:30:00", "at noon" if kind == pl.String else None])
    times = texts.str.to_datetime().cast(kind) if isinstance(kind, pl.Datetime) else texts.cast(kind)
    path = write(tmp_path / "a.parquet", frame(3, time=times))
    (block,) = read(Parquet(path=path, time_zone="Europe/Zurich"))
    skipped = "local time does not exist in Europe/Zurich (clocks went forward)"
    other = "time is not ISO 8601" if kind == pl.String else "time cannot be read"
    assert [(reject.line, reject.reason) for reject in block.rejects] == [(1, skipped), (3, other)]


def test_spans_follow_row_groups_and_join_small_files(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", frame(100), row_group=10)
    for name in "bcd":
        write(tmp_path / f"{name}.parquet", frame(10))
    source = Parquet(path=str(tmp_path), block_rows=25)
    spans = source.spans()
    assert [span.index for span in spans] == list(range(len(spans)))
    assert [(span.start, span.stop) for span in spans if span.stop] == [(i, i + 20) for i in range(0, 100, 20)]
    assert [len(span.files) for span in spans if span.stop is None] == [2, 1]
    assert sum(block.n_rows for block in read(source)) == 130


def test_wrong_files(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match=r"bad.parquet: cannot be read as Parquet"):
        Parquet(path=str(tmp_path)).spans()
    wrong: list[tuple[str, list[Any], str]] = [
        ("user", [b"x", b"y"], "user.*neither a number nor text"),
        ("time", [1, 2], "unix_us or unix_ns"),
        ("time", [True, False], "neither timestamps nor"),
        ("latitude", [[1.0], [2.0]], "'latitude' for latitude: .*list.* is neither a number nor text nor a time"),
    ]
    for column, values, message in wrong:
        path = write(tmp_path / "a.parquet", frame().with_columns(pl.Series(column, values)))
        with pytest.raises(DataError, match=message):
            read(Parquet(path=path))
    with pytest.raises(DataError, match=r"no column is named as time.*columns: user, latitude, longitude"):
        read(Parquet(path=write(tmp_path / "a.parquet", frame().drop("time"))))


def test_files_that_disagree_about_users(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", frame())
    write(tmp_path / "b.parquet", frame(user=["x", "y"]))
    with pytest.raises(DataError, match=r"a.parquet and .*b.parquet: users are of different types"):
        Parquet(path=str(tmp_path)).spans()


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table(frame(0, user=pl.Series([], dtype=pl.Int64), time=pl.Series([], dtype=pl.Datetime("ms", "UTC")))), path
    )
    assert sum(block.n_rows for block in read(Parquet(path=str(path)))) == 0


@settings(max_examples=60, deadline=None)
@given(
    latitudes=st.lists(st.one_of(st.none(), st.floats(width=32)), max_size=40),
    row_group=st.integers(1, 20),
    block_rows=st.integers(1, 30),
)
def test_rows_do_not_depend_on_block_rows(
    tmp_path_factory: pytest.TempPathFactory, latitudes: list[float | None], row_group: int, block_rows: int
) -> None:
    n = len(latitudes)
    table = frame(n, latitude=pl.Series(latitudes, dtype=pl.Float64), user=pl.Series(range(n), dtype=pl.Int64)).cast(
        {"time": pl.Datetime("us", "UTC"), "longitude": pl.Float64}
    )
    path = write(tmp_path_factory.mktemp("p") / "a.parquet", table, row_group)
    blocks = read(Parquet(path=path, block_rows=block_rows))
    assert sum(block.n_rows for block in blocks) == n
    sound = [i for i, value in enumerate(latitudes) if value is not None and -90 <= value <= 90]
    assert [row[0] for block in blocks for row in block.frame.rows()] == sound
    assert [reject.line - 1 for block in blocks for reject in block.rejects] == sorted(set(range(n)) - set(sound))
