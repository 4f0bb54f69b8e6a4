"""CSV: every row is an event or a reject with place and reason, however the file is cut."""

from __future__ import annotations

import bz2
import csv as standard_csv
import gzip
import io
import lzma
import pickle
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.mechanisms.core.plugin import DataError, ParameterError
from penstock.pipeline.sources.csv import Csv
from penstock.pipeline.sources.reading import inputs
from tests.tools.source_rows import blocks_of as read

HEADER = "user,time,latitude,longitude\n"
GOOD = "ann,2008-05-17T10:00:00Z,37.5,-122.5\n"
GOOD_EVENT = ("ann", 1_211_018_400_000, 37.5, -122.5)
STRAY = "a quote is stray, or not closed before the line end (source.quote: '' takes quotes as text)"


def events(source: Csv) -> list[tuple[object, ...]]:
    return [row for block in read(source) for row in block.frame.rows()]


def rejects(source: Csv) -> list[tuple[int, str, str]]:
    return [(r.line, r.reason, r.raw) for block in read(source) for r in block.rejects]


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


TEN_PAST = 1_704_067_800_000  # 2024-01-01T00:10:00Z


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("2024-01-01 00:10:00 UTC", TEN_PAST),
        ("2024-01-01 00:10:00.25 GMT", TEN_PAST + 250),
        ("2024-01-01t00:10:00z", TEN_PAST),
        ("2024-01-01t00:10:00.5z", TEN_PAST + 500),
        ("20240101T001000Z", TEN_PAST),
        ("20240101T001000.125Z", TEN_PAST + 125),
        ("20240101 001000", TEN_PAST),
        ("20240101T0010Z", TEN_PAST),
        ("20240101T021000+0200", TEN_PAST),
        ("2024-01-01T00:10:00,5Z", TEN_PAST + 500),
        ("2024-01-01 00:10:00,123456", TEN_PAST + 123),
        ("2024-01-01 02:10:00 +0200", TEN_PAST),
        ("2024-01-01 02:10:00 +02", TEN_PAST),
        ("2024-01-01 02:10:00 +0200 CEST", TEN_PAST),
        ("2024-01-01T02:10:00+02:00[Europe/Berlin]", TEN_PAST),
        ("2024-01-01T00:10:00Z[UTC]", TEN_PAST),
        ("2023-12-31T24:00:00Z", TEN_PAST - 600_000),
        ("2023-12-31 24:00", TEN_PAST - 600_000),
        ("2023-12-31T24:00:00.000+00:00", TEN_PAST - 600_000),
        ("20231231T240000Z", TEN_PAST - 600_000),
        ("2024-W01-1T00:10:00Z", TEN_PAST),
        ("2024W011T001000Z", TEN_PAST),
        ("2023-W52-7T24:00:00Z", TEN_PAST - 600_000),
        ("2024-W01-1", TEN_PAST - 600_000),
        ("2024-001T00:10:00Z", TEN_PAST),
        ("2024001T001000Z", TEN_PAST),
        ("2024-W01-8T00:10:00Z", None),
        ("2023-366T00:10:00Z", None),
        ("2024001", None),
        ("2023-12-31T24:00:01Z", None),
        ("2023-12-31T24:10:00Z", None),
        ("2024-01-01T25:00:00Z", None),
        ("20240101", None),
        ("2024-01-01 00:10:00 CET", None),
        ("2024-01-01 UTC", None),
        ("2024-01-01[Europe/Berlin]", None),
    ],
)
def test_spellings_of_iso(tmp_path: Path, text: str, milliseconds: int | None) -> None:
    path = write(tmp_path / "a.csv", f'user,time,place\nann,"{text}",a\n')
    assert [row[1] for row in events(Csv(path=path))] == ([] if milliseconds is None else [milliseconds])


def test_the_end_of_a_day_is_by_the_clock(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "user,time,place\nann,2024-03-30T24:00:00,a\nann,2024-03-31T24:00:00,a\n")
    first, second = (row[1] for row in events(Csv(path=path, time_zone="Europe/Berlin")))
    assert second - first == 23 * 3_600_000


def test_the_end_of_a_day_in_another_format(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "user,time,place\nann,31.12.2023 24:00:00,a\nann,31.12.2023 24:00:01,a\n")
    source = Csv(path=path, time_format="%d.%m.%Y %H:%M:%S")
    assert [row[1] for row in events(source)] == [TEN_PAST - 600_000]
    assert [why for _, why, _ in rejects(source)] == ["time is not %d.%m.%Y %H:%M:%S"]


def test_a_fraction_that_the_format_lacks_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "user;time;place\nann;01.01.2024 00:10:00,5;a\n")
    source = Csv(path=path, time_format="%d.%m.%Y %H:%M:%S", separator=";")
    [(_, reason, _)] = rejects(source)
    assert reason.endswith("with its fraction of a second it is %d.%m.%Y %H:%M:%S.%f")
    exact = replace(source, time_format=reason.rpartition(" is ")[2])
    assert [row[1] for row in events(exact)] == [TEN_PAST + 500]


@pytest.mark.parametrize(("format", "factor"), [("unix_us", 1000), ("unix_ns", 10**6)])
def test_epochs_finer_than_milliseconds_are_exact(tmp_path: Path, format: str, factor: int) -> None:
    exact = [TEN_PAST + i for i in range(1000)]
    rows = "".join(f"u,{at * factor},a\nu,{at * factor + factor - 1},a\n" for at in exact)
    path = write(tmp_path / "a.csv", "user,time,place\n" + rows)
    assert [row[1] for row in events(Csv(path=path, time_format=format))] == [at for at in exact for _ in range(2)]


@pytest.mark.parametrize(
    ("format", "factor", "reason"),
    [
        ("unix_s", 1000, "time is not Unix seconds; in milliseconds it is unix_ms"),
        ("unix_ms", 10**6, "time is not Unix milliseconds; in microseconds it is unix_us"),
        ("unix_ms", 10**9, "time is not Unix milliseconds; in nanoseconds it is unix_ns"),
    ],
)
def test_an_epoch_of_another_unit_is_named(tmp_path: Path, format: str, factor: int, reason: str) -> None:
    path = write(tmp_path / "a.csv", f"user,time,place\nu,{TEN_PAST // 1000 * factor},a\n")
    assert [why for _, why, _ in rejects(Csv(path=path, time_format=format))] == [reason]


def test_decimal_commas_and_other_encodings(tmp_path: Path) -> None:
    text = "user;time;latitude;longitude\nÄnn;1704067800,5;47,5;-8,25\nbob;1704067800;47.5;8\n"
    path = write(tmp_path / "a.csv", text.encode("cp1252"))
    source = Csv(path=path, separator=";", decimal=",", encoding="cp1252", time_format="unix_s")
    assert events(source) == [("Änn", TEN_PAST + 500, 47.5, -8.25), ("bob", TEN_PAST, 47.5, 8.0)]
    quoted = write(
        tmp_path / "q.csv", b'user,time,latitude,longitude\nann,1704067800,"47,5","-8,25"\nbob,1704067800,47,x\n'
    )
    source = Csv(path=quoted, decimal=",", time_format="unix_s")
    assert events(source) == [("ann", TEN_PAST, 47.5, -8.25)]
    with pytest.raises(ParameterError, match=r"separator: ',' .* another character than decimal"):
        Csv(path=path, decimal=",", quote="")
    for encoding in ("no such", "base64", "rot13"):
        with pytest.raises(ParameterError, match=r"encoding: .* the name of an encoding of text"):
            Csv(path=path, encoding=encoding)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-le", "shift_jis", "gb18030", "utf-8"])
def test_quotes_and_damage_are_found_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    name = "Zür" if encoding in ("latin-1", "utf-8") else "表示"
    rows = "".join(f'{name}{i},{1704067800 + i},"{name},{i}"\nbad{i},x,"{name}\n' for i in range(5_000))
    path = write(tmp_path / "a.csv", f"user,time,place\n{rows}".encode(encoding))
    source = Csv(path=path, encoding=encoding, time_format="unix_s")
    blocks = [block for span in source.spans() for block in source.read(span)]
    frame = pl.concat([block.frame for block in blocks])
    assert frame.row(4_999) == (f"{name}4999", (1704067800 + 4999) * 1000, f"{name},4999")
    assert [reject.line for block in blocks for reject in block.rejects] == list(range(3, 10_002, 2))


def test_a_day_and_an_hour_in_two_columns_are_one_time(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"user,datum,zeit,place\nann,01.05.2024,8:10 pm,x\nbob,02.05.2024,,x\n")
    columns = {"date": "datum", "time": "zeit"}
    source = Csv(path=path, columns=columns, time_format="%d.%m.%Y %I:%M %p")
    (block,) = (block for span in source.spans() for block in source.read(span))
    assert block.frame["time"].to_list() == [1714594200000]
    assert block.rejects[0].reason == "time is not %d.%m.%Y %I:%M %p"
    with pytest.raises(ParameterError, match="left out if times are unix_s"):
        Csv(path=path, columns=columns, time_format="unix_s")


def test_the_day_of_a_time_is_in_the_name_of_its_file_or_folder(tmp_path: Path) -> None:
    for name in ("2024-05-01.csv", "taps_20240502.csv.gz", "day=2024-05-03/a.csv", "2024/05/04/a.csv"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = b"user,time,place\nann,8:10,x\nbob,,x\n"
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    source = Csv(path=str(tmp_path), columns={"date": "file name"}, time_zone="Europe/Zurich")
    times = sorted(time for block in read(source) for time in block.frame["time"])
    assert times == [1_714_543_800_000 + day * 86_400_000 for day in range(4)]
    assert [reject.line for block in read(source) for reject in block.rejects] == [3] * 4
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("2024-05-01.csv", text)
        packed.writestr("2024-05-02.csv", text)
    zipped = replace(source, path=str(archive))
    assert [time for block in read(zipped) for time in block.frame["time"]] == times[:2]
    # A column of that name holds the day, as any other does.
    named = write(tmp_path / "2024-06-01.csv", b"user,time,place,file name\nann,8:10,x,2024-05-01\n")
    assert events(replace(source, path=named))[0][1] == times[0]


@pytest.mark.parametrize("name", ["taps.csv", "2024-13-01.csv", "01-05-2024.csv", "2024-05-01_2024-05-02.csv"])
def test_a_name_that_holds_no_day_is_refused_with_one_that_does(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, b"user,time,place\nann,8:10,x\n")
    with pytest.raises(DataError, match=rf"{name}: its name holds .* day.*takes one such as 2026-11-28\.csv"):
        read(Csv(path=path, columns={"date": "file name"}))


def test_a_point_that_is_none_is_rejected_with_the_reason(tmp_path: Path) -> None:
    reasons = {
        "POINT(-122.5 37.5)": None,
        "srid=4326; point zm (-122.5 37.5 1 2)": None,
        "0101000020E61000000000000000A05EC00000000000C04240": None,
        "POINT EMPTY": "point is none",
        "LINESTRING (8 47, 9 48)": "point is none",
        "MULTIPOINT (8 47)": "point is none",
        "0101000020E6100000": "point is none",
        "8.5 47.4": "point is none",
        "": "point is none",
        "POINT (37.5 -122.5)": "latitude is beyond ±90 degrees in a point: longitude comes first there",
        "POINT (-222.5 37.5)": "longitude out of range",
        "SRID=2056;POINT (2600000 1200000)": "point is in EPSG:2056",
        "010100002011190000000000000000F03F000000000000F03F": "point is in EPSG:6417",
    }
    lines = [f'ann;2008-05-17T10:00:00Z;"{point}"\n' for point in reasons]
    path = write(tmp_path / "a.csv", "user;time;where\n" + "".join(lines))
    source = Csv(path=path, separator=";", columns={"point": "where"})
    assert events(source) == [GOOD_EVENT[:2] + GOOD_EVENT[2:]] * 3
    expected = [(number, reason) for number, reason in enumerate(reasons.values(), 2) if reason]
    for (line, reason, _), (number, begin) in zip(rejects(source), expected, strict=True):
        assert line == number
        assert reason.startswith(begin)
    with pytest.raises(ParameterError, match="left out if latitude and longitude have columns"):
        Csv(path=path, columns={"point": "where", "latitude": "lat"})
    # What a space does not look at makes no reject.
    assert len(events(replace(source, columns={"point": "where", "place": "user"}).reading(["place"]))) == len(reasons)


def test_without_users_each_row_is_one_of_its_own(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"time,place\n2024-05-01,x\n2024-05-01,x\n")
    source = Csv(path=path, columns={"user": ""})
    (block,) = (block for span in source.spans() for block in source.read(span))
    assert (source.has_people, block.frame["user"].n_unique()) == (False, 2)


def test_numbers_and_times_may_have_blanks_around_them(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.csv", "user,time,latitude,longitude\n7 , 17.05.2008 10:00 ,37.5 ,\u2212122.5\u00a0\n8,x,1,1\n"
    )
    source = Csv(path=path, time_format="%d.%m.%Y %H:%M", user_type="integer")
    assert events(source) == [(7, *GOOD_EVENT[1:])]
    comma = write(
        tmp_path / "b.csv", "user;time;latitude;longitude\nann;1211018400 ;37,5 ; -122,5\nbob;1211018400;3.7 ;1,5\n"
    )
    german = Csv(path=comma, separator=";", decimal=",", time_format="unix_s")
    assert events(german) == [GOOD_EVENT]
    assert rejects(german) == [(3, "latitude is not a finite number", "bob;1211018400;3.7 ;1,5")]


def test_plain_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", HEADER + GOOD + "bob,2008-05-17T12:00:00+02:00,-90,180\n")
    (block,) = read(Csv(path=path))
    assert block.frame.schema == {"user": pl.String, "time": pl.Int64, "latitude": pl.Float64, "longitude": pl.Float64}
    assert block.frame.rows() == [GOOD_EVENT, ("bob", 1_211_018_400_000, -90.0, 180.0)]
    assert block.n_rows == 2
    assert block.rejects == ()


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (",2008-05-17T10:00:00Z,37.5,-122.5", "user is missing"),
        ("ann,,37.5,-122.5", "time is not ISO 8601"),
        ("ann,2008-02-30T10:00:00Z,37.5,-122.5", "time is not ISO 8601"),
        ("ann,yesterday,37.5,-122.5", "time is not ISO 8601"),
        ("ann,10000-01-01T00:00:00Z,37.5,-122.5", "time is not ISO 8601"),
        ("ann,2008-05-17T10:00:00Z,,-122.5", "latitude is not a finite number"),
        ("ann,2008-05-17T10:00:00Z,nan,-122.5", "latitude is not a finite number"),
        ("ann,2008-05-17T10:00:00Z,37.5,inf", "longitude is not a finite number"),
        ("ann,2008-05-17T10:00:00Z,100.17,-122.5", "latitude out of range"),
        ("ann,2008-05-17T10:00:00Z,400.17,-122.5", "latitude is no number of degrees"),
        ("ann,2008-05-17T10:00:00Z,37.5,-180.001", "longitude out of range"),
        ("ann,2008-05-17T10:00:00Z,north,-122.5", "latitude is not a finite number"),
        ("ann,2008-05-17T10:00:00Z,37.5", "3 fields instead of 4"),
        ("ann,2008-05-17T10:00:00Z,37.5,-122.5,1", "5 fields instead of 4"),
        ("   ", "1 fields instead of 4"),
        ('a"nn,2008-05-17T10:00:00Z,37.5,-122.5', STRAY),
        ('"ann,2008-05-17T10:00:00Z,37.5,-122.5', STRAY),
        ('"ann" ,2008-05-17T10:00:00Z,37.5,-122.5', STRAY),
    ],
)
def test_a_bad_row_is_kept_with_file_line_and_reason(tmp_path: Path, row: str, reason: str) -> None:
    path = write(tmp_path / "a.csv", HEADER + GOOD + "\n" + row + "\n" + GOOD)
    (block,) = read(Csv(path=path))
    assert block.n_rows == 3
    assert block.frame.rows() == [GOOD_EVENT, GOOD_EVENT]
    (reject,) = block.rejects
    assert (reject.file, reject.line, reject.raw) == (path, 4, row)
    assert reject.reason.startswith(reason)


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        (b"user;time;latitude;longitude\n", 'is source.separator: ";"?'),
        (b"user\ttime\tlatitude\tlongitude\n", r'is source.separator: "\t"?'),
        ((HEADER + GOOD + "\n").encode("utf-16"), "is UTF-16, which source.encoding: utf-16 reads"),
    ],
)
def test_another_separator_or_encoding_is_named(tmp_path: Path, text: bytes, cure: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(text)
    with pytest.raises(DataError) as caught:
        read(Csv(path=str(path)))
    assert cure in str(caught.value)


@pytest.mark.parametrize("content", [b"\x7fELF\x02\x00\x00user,time", b"user,ti\rme,latitude\n"])
def test_a_file_that_is_not_text_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "events.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"events\.csv, line 1: is not text; is it a CSV file"):
        rejects(Csv(path=str(path)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"user,time\rann,x\r", "lines end with a carriage return alone"),
        (b"PAR1\x15\x04", "is Parquet, which source.type: parquet reads"),
        (b'[{"user": 1}]\n', "is Json, which source.type: json reads"),
    ],
)
def test_a_file_of_another_kind_is_recognised_by_its_first_bytes(tmp_path: Path, content: bytes, said: str) -> None:
    path = write(tmp_path / "events.csv", content)
    with pytest.raises(DataError, match=said):
        rejects(Csv(path=path))


def test_a_reject_that_is_not_utf8_does_not_merge_two_users(tmp_path: Path) -> None:
    rows = b"\xff,2008-05-17T10:00:00Z,1,1\n\xfe,2008-05-17T10:00:00Z,1,1\nJos\xc3\xa9,2008-05-17T10:00:00Z,1,1\n"
    source = Csv(path=write(tmp_path / "a.csv", HEADER.encode() + rows))
    assert [row[0] for row in events(source)] == ["José"]
    assert [(line, why) for line, why, _ in rejects(source)] == [(2, "not valid UTF-8"), (3, "not valid UTF-8")]


def test_integer_users(tmp_path: Path) -> None:
    text = (
        HEADER
        + "007,2008-05-17T10:00:00Z,1,1\nx,2008-05-17T10:00:00Z,1,1\n99999999999999999999,2008-05-17T10:00:00Z,1,1\n"
    )
    source = Csv(path=write(tmp_path / "a.csv", text), user_type="integer")
    assert [row[0] for row in events(source)] == [7]
    assert [line for line, _, _ in rejects(source)] == [3, 4]
    assert [row[0] for row in events(Csv(path=source.path))] == ["007", "x", "99999999999999999999"]


@pytest.mark.parametrize("n_fields_of_long_row", [5, 6])
def test_a_long_row_cannot_hide_behind_a_short_one(tmp_path: Path, n_fields_of_long_row: int) -> None:
    """The total of separators is as it should be, and the last column is not even read."""
    surplus = ",x" * (n_fields_of_long_row - 5)
    text = "user,time,latitude,longitude,note\n" + GOOD.strip() + "\n" + GOOD.strip() + ",n,n" + surplus + "\n"
    source = Csv(path=write(tmp_path / "a.csv", text))
    assert [line for line, _, _ in rejects(source)] == [2, 3]


def test_quotes(tmp_path: Path) -> None:
    text = (
        "user,note,time,latitude,longitude\r\n"
        '"a,nn","two, one ""quoted""","2008-05-17T10:00:00Z","37.5",-122.5\r\n'
        'bob,"",2008-05-17T10:00:00Z,37.5,-122.5\r\nbad,2008-05-17T10:00:00Z\r\n'
    )
    source = Csv(path=write(tmp_path / "a.csv", text))
    assert [row[0] for row in events(source)] == ["a,nn", "bob"]
    assert rejects(source) == [(4, "2 fields instead of 5", "bad,2008-05-17T10:00:00Z")]


@pytest.mark.parametrize(
    "closing", ['"\n', 'x",2008-05-17T10:00:00Z,37.5,-122.5\n', "x,2008-05-17T10:00:00Z,37.5,-122.5\n"]
)
def test_no_line_decides_how_another_is_read(tmp_path: Path, closing: str) -> None:
    """Two lines of one person with a quote each, which a parser of records would close around everybody between."""
    text = HEADER + GOOD + '"mallory\n' + GOOD * 20 + closing + GOOD
    source = Csv(path=write(tmp_path / "a.csv", text))
    sound = 1 if closing.startswith("x,") else 0
    assert len(events(source)) == 22 + sound
    assert [line for line, _, _ in rejects(source)] == [3, 24][: 2 - sound]
    assert sum(block.n_rows for span in source.spans() for block in source.read(span)) == text.count("\n") - 1


def test_a_stray_quote_costs_its_own_line_only(tmp_path: Path) -> None:
    text = HEADER + GOOD + '"' + GOOD + GOOD * 5000 + 'x"' + GOOD + GOOD
    source = Csv(path=write(tmp_path / "a.csv", text), block_rows=700)
    assert len(events(source)) == 5002
    assert [line for line, _, _ in rejects(source)] == [3, 5004]
    assert len(events(Csv(path=source.path, quote=""))) == 5004


def test_an_open_quote_in_one_file_does_not_swallow_the_next(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", HEADER + GOOD + '"ann,2008')
    write(tmp_path / "b.csv", HEADER + '"bob, jr",2008-05-17T10:00:00Z,1,1\n')
    source = Csv(path=str(tmp_path))
    assert [row[0] for row in events(source)] == ["ann", "bob, jr"]
    assert [line for line, _, _ in rejects(source)] == [3]


@pytest.mark.parametrize(
    ("options", "value", "expected"),
    [
        ({}, "2008-05-17 10:00:00.250", 1_211_018_400_250),
        ({}, "2008-05-17T10:00", 1_211_018_400_000),
        ({"time_zone": "Asia/Shanghai"}, "2008-05-17 18:00:00", 1_211_018_400_000),
        ({"time_zone": "Asia/Shanghai"}, "2008-05-17T10:00:00Z", 1_211_018_400_000),
        ({"time_format": "unix_s"}, "1211018400", 1_211_018_400_000),
        ({"time_format": "unix_s"}, "1211018400.25", 1_211_018_400_250),
        ({"time_format": "unix_ms"}, "1211018400250", 1_211_018_400_250),
        ({"time_format": "%d/%m/%Y %H:%M:%S"}, "17/05/2008 10:00:00", 1_211_018_400_000),
        ({"time_format": "%a %b %d %H:%M:%S %z %Y"}, "Sat May 17 12:00:00 +0200 2008", 1_211_018_400_000),
        ({"time_format": "%Y-%m-%d %H:%M:%S,%f", "separator": ";"}, "2008-05-17 10:00:00,25", 1_211_018_400_250),
        ({"time_format": "%Y-%m-%d %H:%M:%S,%f"}, "2008-05-17 10:00:00", 1_211_018_400_000),
        ({"time_format": "%Y%m%d%H%M%S%f"}, "20080517100000250", 1_211_018_400_250),
        ({"time_format": "%Y%m%d%H%M%S%f"}, "20080517100000250999", 1_211_018_400_250),
        # The clocks went back at 2:00 EDT: the first of the two half past ones is meant.
        ({"time_zone": "America/New_York"}, "2020-11-01 01:30:00", 1_604_208_600_000),
        ({"time_zone": "America/New_York"}, "2020-11-01T01:30:00-05:00", 1_604_212_200_000),
    ],
)
def test_times(tmp_path: Path, options: dict[str, Any], value: str, expected: int) -> None:
    separator = options.get("separator", ",")
    path = write(tmp_path / "a.csv", HEADER.replace(",", separator) + separator.join(("ann", value, "1", "1\n")))
    assert [row[1] for row in events(Csv(path=path, **options))] == [expected]


def test_every_row_has_the_offset_that_is_written_in_it(tmp_path: Path) -> None:
    """Around the hour in which clocks went forward in Zurich, where times without an offset are local."""
    rows = {
        "2024-03-31T01:30:00+01:00": 1_711_845_000_000,
        "2024-03-31T03:30:00+02:00": 1_711_848_600_000,
        "2024-03-31 03:30:00+02": 1_711_848_600_000,
        "2024-03-31 03:30+0200": 1_711_848_600_000,
        "2024-03-31T03:30:00": 1_711_848_600_000,
        "2024-03-30T21:00:00.250-04:30": 1_711_848_600_250,
        "2024-03-31T01:30:00Z": 1_711_848_600_000,
        "2024-03-31T01:30:00": 1_711_845_000_000,
        "2024-03-31": 1_711_839_600_000,
    }
    path = write(tmp_path / "a.csv", HEADER + "".join(f"ann,{text},1,1\n" for text in rows))
    assert [row[1] for row in events(Csv(path=path, time_zone="Europe/Zurich"))] == list(rows.values())


def test_a_local_time_that_was_skipped_is_rejected(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", HEADER + "ann,2020-03-08 02:30:00,1,1\nann,nonsense,1,1\n")
    reasons = [why for _, why, _ in rejects(Csv(path=path, time_zone="America/New_York"))]
    assert reasons == ["local time does not exist in America/New_York (clocks went forward)", "time is not ISO 8601"]


def test_columns_by_name_and_by_position(tmp_path: Path) -> None:
    mapping = {"user": "rider", "time": "at", "place": "stop"}
    named = write(
        tmp_path / "a.csv", "stop;x;rider;at\ncity hall;;ann;2008-05-17T10:00:00Z\n;;ann;2008-05-17T10:00:00Z\n"
    )
    source = Csv(path=named, separator=";", columns=mapping)
    assert events(source) == [("ann", 1_211_018_400_000, "city hall")]
    assert rejects(source)[0][:2] == (3, "place is empty")
    bare = write(tmp_path / "b.tsv", "1.5\tann\t2008-05-17T10:00:00Z\t2.5\n")
    positions = {"user": "column_2", "time": "column_3", "latitude": "column_1", "longitude": "column_4"}
    assert events(Csv(path=bare, separator="\t", header=False, columns=positions)) == [
        ("ann", 1_211_018_400_000, 1.5, 2.5)
    ]


@pytest.mark.parametrize(
    ("header", "columns", "message"),
    [
        ("user,latitude,longitude", {}, "no column is named as time.*columns: user, latitude, longitude"),
        ("user,time,latitude", {}, "no column is named as longitude"),
        ("user,time", {}, "latitude and longitude, or place"),
        ("a,time,place", {"user": "b"}, "there is no column 'b' for user .columns: a, time, place"),
        ("user,user,time,place", {}, "'user' for user is there more than once"),
        ("", {}, "no column"),
    ],
)
def test_missing_columns_name_the_file_and_what_there_is(
    tmp_path: Path, header: str, columns: dict[str, str], message: str
) -> None:
    path = write(tmp_path / "some.csv", header + "\n1,2,3,4\n")
    with pytest.raises(DataError, match=message) as caught:
        read(Csv(path=path, columns=columns))
    assert path in str(caught.value)


def test_no_file_of_a_folder_is_left_out_for_the_case_of_its_name(tmp_path: Path) -> None:
    for name in ("a.csv", "B.CSV", "c.Txt"):
        write(tmp_path / name, f"user,time,place\n{name},2024-01-01T00:00:00Z,x\n")
    with zipfile.ZipFile(tmp_path / "Z.ZIP", "w") as archive:
        archive.writestr("D.CSV", "user,time,place\nd,2024-01-01T00:00:00Z,x\n")
    users = [user for block in read(Csv(path=str(tmp_path))) for user in block.frame["user"].to_list()]
    assert users == ["B.CSV", "a.csv", "c.Txt"]
    (block,) = read(Csv(path=str(tmp_path / "Z.ZIP")))
    assert block.frame["user"].to_list() == ["d"]


def test_missing_files(tmp_path: Path) -> None:
    write(tmp_path / "notes.md", "")
    with pytest.raises(DataError, match=r"no such file or directory"):
        Csv(path=str(tmp_path / "nothing")).spans()
    with pytest.raises(DataError, match=r"no file named like \*.csv.*found: notes.md"):
        Csv(path=str(tmp_path)).spans()
    with pytest.raises(DataError, match="no file matches"):
        Csv(path=str(tmp_path / "*.csv")).spans()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"columns": {"usr": "a"}}, "columns"),
        ({"time_format": "iso8601"}, "time_format"),
        ({"time_format": "%H:%M"}, "time_format"),
        ({"time_format": "%Y-%m-%d %H:%M %Z"}, "time_format"),
        ({"time_zone": "Mars/Olympus"}, "time_zone"),
        ({"separator": ""}, "separator"),
        ({"separator": "||"}, "separator"),
        ({"separator": '"'}, "separator"),
        ({"quote": "''"}, "quote"),
        ({"user_type": "float"}, "user_type"),
        ({"block_rows": 0}, "block_rows"),
    ],
)
def test_wrong_parameters_name_the_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ParameterError) as caught:
        Csv(path="a.csv", **options)
    assert caught.value.field == field


def test_files_with_other_column_orders_and_odd_ends(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "\ufeff" + HEADER + GOOD.strip())
    write(tmp_path / "b.csv", "longitude,latitude,time,user\r\n-122.5,37.5,2008-05-17T10:00:00Z,ann\r\n\r\n")
    write(tmp_path / "c.csv", HEADER)
    write(tmp_path / "d.csv", HEADER.strip())
    assert events(Csv(path=str(tmp_path))) == [GOOD_EVENT, GOOD_EVENT]


def _packed(name: str, data: bytes) -> dict[str, bytes]:
    tar, tar_xz, zipped = io.BytesIO(), io.BytesIO(), io.BytesIO()
    for buffer, mode in ((tar, "w"), (tar_xz, "w:xz")):
        with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
            for member in (name, "._" + name):
                info = tarfile.TarInfo("folder/" + member)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as zip_archive:
        zip_archive.writestr("folder/" + name, data)
        zip_archive.writestr("__MACOSX/._" + name, b"junk")
    import pyarrow as pa

    return {
        "a.csv.gz": gzip.compress(data),
        "a.csv.bz2": bz2.compress(data),
        "a.csv.xz": lzma.compress(data),
        "a.csv.zst": pa.compress(data, "zstd", asbytes=True),
        "gzip_in_disguise.csv": gzip.compress(data),
        "plain_in_disguise.csv.gz": data,
        "a.tar": tar.getvalue(),
        "a.tar.xz": tar_xz.getvalue(),
        "a.zip": zipped.getvalue(),
    }


@pytest.mark.parametrize("name", list(_packed("a.csv", b"")))
def test_packed_files(tmp_path: Path, name: str) -> None:
    data = _packed("a.csv", (HEADER + GOOD * 3 + "bad\n").encode())[name]
    for path in (write(tmp_path / name, data), str(tmp_path)):
        source = Csv(path=path, block_rows=2)
        assert events(source) == [GOOD_EVENT] * 3
        assert [line for line, _, _ in rejects(source)] == [5]


@pytest.mark.parametrize("suffix", [".csv.gz", ".tar.xz", ".zip"])
def test_a_decompression_bomb_is_refused(tmp_path: Path, suffix: str) -> None:
    name = {".csv.gz": "a.csv.gz", ".tar.xz": "a.tar.xz", ".zip": "a.zip"}[suffix]
    path = write(tmp_path / name, _packed("a.csv", (HEADER + GOOD * 100_000).encode())[name])
    opened = inputs.open_inputs([path], Csv.patterns, limits=inputs.Limits(1 << 16, 20))
    with pytest.raises(DataError, match="out of proportion"):
        [stream.read() for _, stream in opened]


@pytest.mark.parametrize("member", ["../../etc/passwd.csv", "/etc/passwd.csv"])
def test_a_member_that_points_outside_is_refused(tmp_path: Path, member: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(member, HEADER + GOOD)
    with pytest.raises(DataError, match="points outside"):
        read(Csv(path=str(tmp_path / "a.zip")))


def test_damaged_archives_are_data_errors(tmp_path: Path) -> None:
    for name in ("a.csv.gz", "a.tar.xz", "a.zip", "a.csv.zst"):
        whole = _packed("a.csv", (HEADER + "".join(f"u{i}," + GOOD[4:] for i in range(999))).encode())[name]
        path = write(tmp_path / name, whole[: len(whole) * 2 // 3])
        with pytest.raises(DataError, match=name):
            read(Csv(path=path))


@pytest.mark.parametrize("after", [[], [GOOD] * 3])
@pytest.mark.parametrize("quote", ['"', ""])
def test_a_line_without_end_is_one_rejected_row(tmp_path: Path, after: list[str], quote: str) -> None:
    """A huge row fills no memory and stops no run, or its sender would decide over others."""
    text = HEADER + GOOD + "ann,2008-05-17T10:00:00Z,37.5,-122.5" + "x" * (40 << 20) + "\n" + "".join(after)
    source = Csv(path=write(tmp_path / "a.csv", text), quote=quote)
    assert len(events(source)) == 1 + len(after)
    [(line, reason, raw)] = rejects(source)
    assert (line, "fields" in reason, raw[:15]) == (3, True, "(a line of more")


def test_digests(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "abc")
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert Csv(path=str(tmp_path)).digests() == {"a.csv": expected}
    assert Csv(path=str(tmp_path / "a.csv")).digests() == {"a.csv": expected}


def test_a_source_travels_to_workers() -> None:
    source = Csv(path="a.csv", columns={"user": "x"})
    assert pickle.loads(pickle.dumps(source)) == source


FIELD = st.one_of(
    st.sampled_from(["ann", "2008-05-17T10:00:00Z", "1.5", "-200", "nan", "", '"', '"a,b"', '"a\nb"', "é", '"x"y']),
    st.text(st.sampled_from('a1,"\n\r '), max_size=4),
)
LINE = st.one_of(
    st.just("ann,2008-05-17T10:00:00Z,1.5,2"),
    st.lists(FIELD, min_size=0, max_size=6).map(",".join),
    st.builds(lambda user: f'"{user}",2008-05-17T10:00:00Z,1,1', st.text(st.sampled_from("a\n,é "), max_size=3)),
)


@settings(max_examples=150, deadline=None)
@given(lines=st.lists(LINE, max_size=30), repeats=st.sampled_from([1, 1, 100]))
def test_rows_do_not_depend_on_block_rows(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], repeats: int
) -> None:
    path = write(tmp_path_factory.mktemp("p") / "a.csv", HEADER + ("\n".join(lines) + "\n") * repeats)
    outcomes = []
    # Blocks of a few rows, and those that hold many of the lines: few enough that each block's own cost stays small.
    for block_rows in (1_000_000, 7 if repeats == 1 else 97, 1000):
        blocks = read(Csv(path=path, block_rows=block_rows))
        assert all(block.frame.height <= block_rows for block in blocks)
        outcomes.append(([r for b in blocks for r in b.frame.rows()], [r for b in blocks for r in b.rejects]))
    assert outcomes[0] == outcomes[1] == outcomes[2]


CLEAN = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x00"), min_size=1, max_size=5)


@settings(max_examples=100, deadline=None)
@given(
    users=st.lists(CLEAN, max_size=20), quoting=st.sampled_from([standard_csv.QUOTE_MINIMAL, standard_csv.QUOTE_ALL])
)
def test_what_the_standard_library_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, users: list[str], quoting: int
) -> None:
    text = io.StringIO()
    writer = standard_csv.writer(text, quoting=quoting)  # type: ignore[arg-type]
    writer.writerow(["user", "note", "time", "place"])
    writer.writerows([user, user, "2008-05-17T10:00:00Z", user] for user in users)
    path = write(tmp_path_factory.mktemp("p") / "a.csv", text.getvalue())
    source = Csv(path=path, block_rows=3)
    assert events(source) == [(user, 1_211_018_400_000, user) for user in users]
    assert rejects(source) == []


def test_a_leap_second_is_the_first_moment_of_the_next_minute(tmp_path: Path) -> None:
    rows = [
        f"ann,{time},37.5,-122.5"
        for time in ("2016-12-31T23:59:60Z", "2017-01-01T00:59:60+01:00", "2017-01-01T00:00:00Z")
    ]
    (block,) = read(Csv(path=write(tmp_path / "a.csv", HEADER + "\n".join(rows) + "\n")))
    assert block.rejects == ()
    assert block.frame["time"].n_unique() == 1
