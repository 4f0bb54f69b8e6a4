"""`penstock init`: guesses from a CSV file; the draft runs, and is refused as a deployment."""

from __future__ import annotations

import json
from contextlib import chdir
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import shapely

import penstock
from penstock.mechanisms.core.plugin import ConfigError, DataError, ParameterError
from penstock.pipeline import DONE, FAILED, WRONG_USE
from penstock.pipeline.cli.main import main
from penstock.pipeline.cli.run import expectations
from penstock.pipeline.config.canonical import digest
from penstock.pipeline.config.drafting.columns import UserHints
from penstock.pipeline.config.drafting.draft import draft
from penstock.pipeline.config.run import loads
from penstock.pipeline.output.rehearsal import expected_losses, rehearse
from tests.tools.citibike_files import NEW, OLD, new, old

NAMED = ["rider,lat,lon,tapped_at"] + [
    f"r{i % 7},{47.30 + i % 10 / 100},{8.50 + i % 6 / 100},2024-05-{1 + i % 2:02d} {i % 24:02d}:30:00"
    for i in range(60)
]


def written(folder: Path, lines: list[str], name: str = "taps.csv") -> str:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_a_draft_runs_and_uses_every_row(tmp_path):
    actual = draft(written(tmp_path, NAMED), "Europe/Zurich")
    config = loads(actual.text, overrides=["output.report=false"])
    assert config.source.columns == {"user": "rider", "time": "tapped_at", "latitude": "lat", "longitude": "lon"}
    assert config.looked_at_data
    result = penstock.run(config, tmp_path / "run", runner="local")
    rows = result.manifest["rows"]
    assert (rows["rows"], rows["used"]) == (60, 60)
    assert result.manifest["windows"]["planned"] == 48


def test_a_draft_on_many_files_is_called_after_their_folder(tmp_path):
    folder = tmp_path / "trips"
    folder.mkdir()
    written(folder, NAMED[:31], "may.csv")
    written(folder, [NAMED[0], *NAMED[31:]], "june.csv")
    for path in (str(folder), f"{folder}/", f"{folder}/*.csv", f"{tmp_path}/t*/*.csv"):
        named = "t" if "t*" in path else "trips"
        assert loads(draft(path).text).name == named
    with chdir(folder):
        assert main(["init", "*.csv"]) == DONE
        assert loads(Path("trips.yaml").read_text()).output.path == "runs/trips"


def test_times_are_local_to_the_zone_that_was_given(tmp_path):
    config = loads(draft(written(tmp_path, NAMED), "Europe/Zurich").text)
    # Midnights in Zurich are 22:00 UTC in May.
    assert [config.source.from_, config.source.until] == [1714514400000, 1714687200000]
    assert config.source.time_zone == config.windows.time_zone == "Europe/Zurich"


@pytest.mark.parametrize(
    ("time", "has_zone"),
    [("2024-05-01 08:00:00+02", True), ("2024-05-01T08:00-0430", True), ("2024-05-01", False)],
)
def test_times_without_a_zone_are_noted(tmp_path, time, has_zone):
    path = written(tmp_path, ["user;when;place", f"ann;{time};a", f"bob;{time.replace('01', '02', 1)};b"])
    assert any("times have no zone" in note for note in draft(path).notes) != has_zone


@pytest.mark.parametrize(
    ("times", "form"),
    [
        (["2024-05-01T08:00:00Z", "2024-05-02T09:00:00+02:00"], "iso"),
        (["1714550400", "1714636800.5"], "unix_s"),
        (["1714550400000", "1714636800000"], "unix_ms"),
        (["01.05.2024 08:00", "31.05.2024 09:00"], "%d.%m.%Y %H:%M"),
        (["25/05/2024 08:00:00", "31/05/2024 09:00:00"], "%d/%m/%Y %H:%M:%S"),
        (["05/25/2024 08:00:00", "05/31/2024 09:00:00"], "%m/%d/%Y %H:%M:%S"),
        (["Sat Jul 07 02:12:49 +0000 2012", "Sun Jul 08 02:12:49 +0000 2012"], "%a %b %d %H:%M:%S %z %Y"),
        (["Sat, 07 Jul 2012 02:12:49 GMT", "Sun, 08 Jul 2012 02:12:49 +0000"], "%a, %d %b %Y %H:%M:%S %z"),
        (["2024-05-01T8:05", "2024-05-02T9:15"], "iso"),
        (["２０２４-05-01 08:05", "２０２４-05-02 09:15"], "iso"),
        (["2024-05-01 08", "2024-05-02 09"], "iso"),
        (["7 September 2024 08:05", "9 Sept. 2024 09:15"], "%d %b %Y %H:%M"),
        (["May 25, 2024, 8:05:01 a.m.", "May 26, 2024, 9:15:01 p.m."], "%b %d, %Y, %I:%M:%S %p"),
        (["Saturday, May 25, 2024 8:05 AM", "Sunday, May 26, 2024 9:15 PM"], "%A, %b %d, %Y %I:%M %p"),
        (["Sat, 25 May 2024 08:05", "Sun, 26 May 2024 21:15"], "%A, %d %b %Y %H:%M"),
        (["2024/05/25 AM 08:05:01", "2024/05/26 PM 09:15:01"], "%Y/%m/%d %p %I:%M:%S"),
        (["31.05.2024 08:05:01,25", "01.06.2024 09:15:01,5"], "%d.%m.%Y %H:%M:%S.%f"),
        (["24/05/28 08:05", "24/05/30 09:15"], "%y/%m/%d %H:%M"),
        (["28/05/24 08:05", "30/05/24 09:15"], "%d/%m/%y %H:%M"),
        (["31-MAY-24 02.51.56.000000 PM", "01-JUN-24 02.51.56.000000 PM"], "%d-%b-%y %I.%M.%S.%f %p"),
        (["2024年5月31日14时51分56秒", "2024年6月1日14时51分56秒"], "%Y年%m月%d日 %H时%M分%S秒"),
    ],
)
def test_formats_of_times(tmp_path, times, form):
    actual = draft(written(tmp_path, ["user;when;place", f"ann;{times[0]};a", f"bob;{times[1]};b"]))
    config = loads(actual.text)
    assert config.source.time_format == form
    assert config.source.separator == ";"
    assert config.space.cells == ("a", "b", "elsewhere")


@pytest.mark.parametrize(
    ("header", "people"),
    [("bike,usertype", "bike"), ("passenger_count,member_casual", ""), ("bike,VendorID", "bike")],
)
def test_what_kind_people_are_is_not_who_they_are(tmp_path, header, people):
    lines = [f"{i % 40},{i * 7 % 3},2024-05-{1 + i % 2:02d} {i % 24:02d}:30:00Z,stop {i % 5}" for i in range(200)]
    if not people:
        lines = [line.partition(",")[2].replace(",", f",{i % 2},", 1) for i, line in enumerate(lines)]
    actual = draft(written(tmp_path, [f"{header},time,stop", *lines]))
    assert loads(actual.text).source.columns["user"] == people


def test_days_that_could_be_months_are_read_as_those_that_are_close_together(tmp_path):
    lines = [f"u{i % 7},0{5 + i % 3}/06/2024 0{1 + i % 9}:10 AM,stop {i % 5}" for i in range(60)]
    actual = draft(written(tmp_path, ["card,time,stop", *lines]))
    assert loads(actual.text).source.time_format == "%d/%m/%Y %I:%M %p"
    other = draft(
        written(tmp_path, ["card,time,stop", *(line[:3] + line[6:9] + line[3:6] + line[9:] for line in lines)])
    )
    assert loads(other.text).source.time_format == "%m/%d/%Y %I:%M %p"
    assert any("day and month cannot be told apart" in note for note in actual.notes)
    hints = UserHints(time_format="%d/%m/%Y %I:%M %p")
    told = draft(written(tmp_path, ["card,time,stop", *lines]), stated=hints)
    assert not any("cannot be told apart" in note for note in told.notes)


def test_a_file_without_a_header_is_told_by_its_values(tmp_path):
    lines = [f"{i % 3}\t2010-10-{1 + i % 9:02d}T00:21:28Z\t-97.{100 + i}\t30.{200 + i}\t{400 + i}" for i in range(20)]
    actual = draft(written(tmp_path, lines))
    config = loads(actual.text)
    expected = {"user": "column_1", "time": "column_2", "latitude": "column_4", "longitude": "column_3"}
    assert config.source.columns.items() >= expected.items()
    assert (config.source.header, config.source.separator) == (False, "\t")
    assert any("no header" in note for note in actual.notes)
    assert "what 1d may cost one person (if column_1 says who it is), in nats" in actual.text


def test_strays_do_not_stretch_the_area_and_the_time(tmp_path):
    lines = [NAMED[0], *NAMED[1:] * 10, "x,0.0,0.0,2003-01-01 00:00:00"]
    config = loads(draft(written(tmp_path, lines)).text)
    assert (config.space.south, config.space.east) == (47.3, 8.56)
    assert config.source.until - config.source.from_ == 2 * 86_400_000


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["user,time,place"], "has a header and no rows"),
        (["nothing"], "no comma, semicolon, tab or bar"),
        ([""], "has no rows to look at"),
        (['{"type": "FeatureCollection", "features": []}'], "has no objects in a list"),
    ],
)
def test_a_file_that_is_no_table_is_reported(tmp_path, lines, expected):
    with pytest.raises(DataError, match=expected):
        draft(written(tmp_path, lines))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["user,lat,lon", "ann,47.1,8.1"], "no column holds times that can be read: write it, and time_format"),
        (["user,time", "ann,2024-01-01T00:00:00Z"], "no column holds latitude and longitude, or names a place"),
        (
            ["user,time,latE7,lngE7", "ann,2024-01-01T00:00:00Z,471000000,81000000"],
            "lngE7 may be degrees times ten million",
        ),
        (
            ["user,time,lng,lat", "ann,2024-01-01T00:00:00Z,1038000000,13500000"],
            "lat and lng may be degrees times ten mill",
        ),
        (
            ["user,time,east,north", "ann,2024-01-01T00:00:00Z,2600000,1200000"],
            "north may be metres of a national grid",
        ),
        (["user,time,geom", "ann,2024-01-01T00:00:00Z,47.37 8.54"], "geom does not hold decimal degrees"),
        (["user,time,x,y", "ann,2024-01-01T00:00:00Z,2683000,1247000"], "y and x may be metres of a national grid"),
        (["user,time,lat,lon", "ann,2024-01-01T00:00:00Z,47°22' N,8°33' E"], "lat does not hold decimal degrees"),
        (["user,time,lat,lon", "ann,08:10:00,47.1,8.1"], "time holds times of day, and no column holds the day"),
    ],
)
def test_what_cannot_be_guessed_is_to_be_written(tmp_path, working_folder, capsys, lines, expected):
    assert main(["init", written(tmp_path, lines)]) == DONE
    message = capsys.readouterr().out
    assert expected in message
    assert "wrote taps.yaml; write what is marked FIXME in it" in message
    with pytest.raises(ConfigError, match=r"there is no column 'FIXME'"):
        loads((tmp_path / "taps.yaml").read_text())


#: Headings of user, time (or date and time) and place; times as they are written under them; encoding; drafted format.
LANGUAGES = {
    "German": (
        "Kartennummer;Datum;Uhrzeit;Haltestelle",
        "01.05.2024;8:10",
        "cp1252",
        "%d.%m.%Y %H:%M",
    ),
    "French": ("Abonné;Horodatage;Arrêt", "21/05/2024 8h10", "latin-1", "%d/%m/%Y %Hh%M"),
    "Spanish": ("tarjeta;fecha_hora;estación", "2024-05-01 08:10", "utf-8", "iso"),
    "Portuguese": (
        "cartão;data;hora;paragem",
        "21-05-2024;08:10",
        "utf-8-sig",
        "%d-%m-%Y %H:%M",
    ),
    "Italian": ("tessera;data_ora;fermata", "21/05/2024 08.10", "utf-8", "%d/%m/%Y %H.%M"),
    "Dutch": ("gebruiker;tijdstip;halte", "21-05-2024 08:10:11", "utf-8", "%d-%m-%Y %H:%M:%S"),
    "Russian": (
        "номер карты;дата;время;остановка",
        "21.05.24;08:10",
        "cp1251",
        "%d.%m.%y %H:%M",
    ),
    "Arabic": ("المستخدم;الوقت;المحطة", "2024-05-01 08:10", "cp1256", "iso"),
    "Chinese": ("用户;时间;车站", "2024/05/01 08:10", "gb18030", "%Y/%m/%d %H:%M"),
    "Japanese": ("利用者;日時;駅", "2024年5月1日 08:10", "shift_jis", "%Y年%m月%d日 %H:%M"),
    "American": (
        "Rider;Start Date;Start Time;Station",
        "05/21/2024;8:10 PM",
        "utf-16",
        "%m/%d/%Y %I:%M %p",
    ),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_headings_of_many_languages_are_read_in_their_encodings(tmp_path, language):
    header, time, encoding, form = LANGUAGES[language]
    parts = ["user", *(["date"] if ";" in time else []), "time", "place"]
    path = tmp_path / "taps.csv"
    rows = "".join(f"K{i % 9};{time};{'AB'[i % 2]}\n" for i in range(30))
    path.write_bytes(f"{header}\n{rows}".encode(encoding))
    actual = draft(str(path))
    source = loads(actual.text).source
    columns = {part: name for part, name in source.columns.items() if name}
    assert columns == dict(zip(parts, header.split(";"), strict=True))
    assert source.time_format == form
    assert not any("by its values" in note for note in actual.notes)
    assert sum(block.frame.height for span in source.spans() for block in source.read(span)) == 30


def test_a_large_file_is_read_in_its_encoding(tmp_path):
    path = tmp_path / "taps.csv"
    rows = "".join(f"Müller{i % 99};2024-05-01 08:{i % 60:02d};Zürich\n" for i in range(12_000))
    path.write_bytes(f"Kunde;Zeit;Ort\n{rows}".encode("cp1252"))
    actual = draft(str(path))
    assert loads(actual.text).source.encoding == "cp1252"
    assert not any("cannot be read" in note for note in actual.notes)


def test_positions_are_told_by_name_or_range_and_never_by_their_order(tmp_path):
    def drafted(header: str, *positions: str) -> tuple[dict[str, str], str]:
        rows = [f"u{i % 9},2024-05-01 08:{i % 60:02d},{positions[i % len(positions)]}" for i in range(60)]
        actual = draft(written(tmp_path, [f"user,time,{header}", *rows]))
        columns = loads(actual.text).source.columns
        return {part: columns[part] for part in ("latitude", "longitude")}, " ".join(actual.notes)

    china, zurich = ("116.3912,39.9123", "116.4912,39.9423"), ("47.3712,8.5123", "47.3912,8.5423")
    assert drafted("经度,纬度", *china)[0] == {"latitude": "纬度", "longitude": "经度"}
    assert drafted("y,x", *zurich)[0] == {"latitude": "y", "longitude": "x"}
    columns, notes = drafted("a,b", *china)
    assert columns == {"latitude": "b", "longitude": "a"}
    assert "a holds values beyond 90, so the other one is the latitude" in notes
    columns, notes = drafted("lat,lon", *china)
    assert columns == {"latitude": "lon", "longitude": "lat"}
    # One value decides where none else does; where none does, nothing runs until it is said.
    assert drafted("a,b", *zurich, *zurich, "103.8512,1.3123")[0] == {"latitude": "b", "longitude": "a"}
    for order in ("a,b", "b,a"):
        first, second = order.split(",")
        rows = [f"u{i % 9},2024-05-01 08:{i % 60:02d},{zurich[i % 2]}" for i in range(60)]
        path = written(tmp_path, [f"user,time,{order}", *rows])
        actual = draft(path)
        first_reading = f"--latitude {first} reads them as 47.38° north, 8.527° east"
        assert f"{first_reading}; --latitude {second} as 8.527° north, 47.38° east" in " ".join(actual.notes)
        with pytest.raises(ConfigError, match="there is no column 'FIXME' for latitude"):
            loads(actual.text)
        for latitude, longitude in ((first, second), (second, first)):
            columns = loads(draft(path, stated=UserHints({"latitude": latitude})).text).source.columns
            assert (columns["latitude"], columns["longitude"]) == (latitude, longitude)


def test_a_point_is_drafted_as_one_column_whatever_it_is_called(tmp_path):
    points = shapely.points([[8.50 + i % 6 / 100, 47.30 + i % 10 / 100] for i in range(60)])
    coded = shapely.set_srid(points, 4326)
    binary = pl.Series(shapely.to_wkb(points).tolist())
    spellings = {
        "text": [point.wkt for point in points],
        "height": [point.wkt.replace("POINT (", "Point Z(").replace(")", " 408)") for point in points],
        "code": ["SRID=4326;" + point.wkt for point in points],
        "hexadecimal": shapely.to_wkb(coded, hex=True, include_srid=True).tolist(),
        "big_endian": [text.lower() for text in shapely.to_wkb(coded, hex=True, include_srid=True, byte_order=0)],
    }
    header, *rows = NAMED
    base = pl.DataFrame([row.split(",") for row in rows], header.split(","), orient="row").drop("lat", "lon")
    for name, values in {**spellings, "binary": binary}.items():
        path = str(tmp_path / f"{name}.{'parquet' if name == 'binary' else 'csv'}")
        frame = base.with_columns(pl.Series("where_it_was", values))
        frame.write_parquet(path) if name == "binary" else frame.write_csv(path)
        actual = draft(path)
        source = loads(actual.text, overrides=["output.report=false"]).source
        assert source.columns["point"] == "where_it_was"
        assert actual.notes[2] == "point from where_it_was: by its values, not by its name: points, longitude first"
        frames = [block.frame for span in source.spans() for block in source.read(span)]
        assert pl.concat(frames).select("latitude", "longitude").rows() == [(p.y, p.x) for p in points]


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ("SRID=3857;POINT(9 8)", "point is in EPSG:3857, not in longitude and latitude (WGS 84)"),
        ("POINT(47.3 108.5)", "latitude is beyond ±90 degrees in a point: longitude comes first there"),
    ],
)
def test_points_that_cannot_be_read_are_reported(tmp_path, point, expected):
    path = written(tmp_path, ["user,time,geom", *(f"{name},2024-01-01T00:00:00Z,{point}" for name in ("ann", "bob"))])
    assert f"none of 2 rows could be read as drafted ({expected})" in " ".join(draft(path).notes)


def test_columns_of_coordinates_go_before_a_point(tmp_path):
    rows = [NAMED[0] + ",geom", *(f"{row},POINT (1 2)" for row in NAMED[1:])]
    assert loads(draft(written(tmp_path, rows)).text).source.columns.get("point") is None


def test_the_day_of_a_time_may_be_in_the_names_of_files(tmp_path):
    folder = tmp_path / "taps"
    folder.mkdir()
    for day in (28, 29):
        rows = [f"r{i % 7},{i % 24}:30,{'AB'[i % 2]}" for i in range(48)]
        written(folder, ["rider,tapped_at,stop", *rows], f"2026-11-{day}.csv")
    actual = draft(str(folder), "Europe/Zurich")
    config = loads(actual.text, overrides=["output.report=false"])
    assert config.source.columns["date"] == "file name"
    assert "date from file name: by its values, not by its name: it holds days" in actual.notes
    result = penstock.run(config, tmp_path / "run", runner="local")
    assert (result.manifest["rows"]["used"], result.manifest["windows"]["planned"]) == (96, 48)
    # A day that a column holds goes before that of the name; without times of day there is none to go before.
    rows = [f"r{i % 7},2024-05-01,{i % 24}:30,{'AB'[i % 2]}" for i in range(48)]
    columns = loads(draft(written(folder, ["rider,day,at,stop", *rows], "2026-11-30.txt")).text).source.columns
    assert columns["date"] == "day"
    assert "no column holds times that can be read" in " ".join(
        draft(written(folder, ["rider,stop", "ann,a", "bob,b"], "2026-12-01.txt")).notes
    )


#: Headings of a user, a day, a time of day, a latitude, a longitude; of a card and a stop.
HEADINGS = {
    "English": ("user,date,time,latitude,longitude", "card number,stop"),
    "Chinese": ("用户编号,日期,时间,纬度,经度", "卡号,站点名称"),
    "Hindi": ("उपयोगकर्ता,दिनांक,समय,अक्षांश,देशांतर", "कार्ड संख्या,स्टेशन का नाम"),
    "Spanish": ("usuario,fecha,hora,latitud,longitud", "nº de tarjeta,parada"),
    "French": ("utilisateur,date,heure,latitude,longitude", "n° de carte,arrêt"),
    "Arabic": ("رقم المستخدم,التاريخ,الوقت,خط العرض,خط الطول", "رقم البطاقة,اسم المحطة"),
    "Bengali": ("ব্যবহারকারী,তারিখ,সময়,অক্ষাংশ,দ্রাঘিমাংশ", "কার্ড নম্বর,স্টেশনের নাম"),
    "Portuguese": ("utilizador,data,hora,latitude,longitude", "número do cartão,paragem"),
    "Russian": ("пользователь,дата,время,широта,долгота", "номер карты,остановка"),
    "Urdu": ("صارف,تاریخ,وقت,عرض بلد,طول بلد", "کارڈ نمبر,اسٹیشن کا نام"),
    "Indonesian": ("pengguna,tanggal,waktu,lintang,bujur", "nomor kartu,stasiun"),
    "German": ("Nutzer,Datum,Uhrzeit,Breitengrad,Längengrad", "Kartennummer,Haltestelle"),
    "Japanese": ("利用者番号,日付,時刻,緯度,経度", "カード番号,駅名"),
    "Korean": ("사용자 번호,날짜,시간,위도,경도", "카드번호,정류장명"),
    "Italian": ("utente,data,ora,latitudine,longitudine", "tessera,fermata"),
    "Dutch": ("gebruiker,datum,tijd,breedtegraad,lengtegraad", "kaartnummer,halte"),
}


@pytest.mark.parametrize("language", HEADINGS)
def test_every_part_is_told_by_its_name_in_many_languages(tmp_path, language):
    parts = ("user", "date", "time", "latitude", "longitude")
    header, stops = HEADINGS[language]
    # The other way round than usual: what is told by values takes the first column of those that fit.
    names = header.split(",")[::-1]
    rows = [f"{8.5 + i % 6 / 1000:.3f},{47.3 + i % 9 / 1000:.3f},8:{i % 60:02d},2024-05-01,{i % 7}" for i in range(60)]
    actual = draft(written(tmp_path, ["n," + ",".join(names), *(f"{i % 11}," + row for i, row in enumerate(rows))]))
    columns = {part: name for part, name in loads(actual.text).source.columns.items() if name}
    assert columns == dict(zip(parts, names[::-1], strict=True))
    card, stop = stops.split(",")
    rows = [f"{i % 11},x{i % 3},2024-05-01 08:{i % 60:02d},{'AB'[i % 2]},{i % 7}" for i in range(60)]
    actual = draft(written(tmp_path, [f"n,k,{names[2]},{stop},{card}", *rows]))
    columns = {part: name for part, name in loads(actual.text).source.columns.items() if name}
    assert columns == {"user": card, "time": names[2], "place": stop}
    assert not any("by its values" in note for note in actual.notes)


def test_who_is_not_said(tmp_path):
    rows = [f"2024-05-01 {i % 24:02d}:30:00,{47.30 + i % 10 / 100},{8.50 + i % 6 / 100}" for i in range(60)]
    actual = draft(written(tmp_path, ["time,lat,lon", *rows]))
    assert (
        "user from no column: no column says who it is, so each row is taken for a person of its own" in actual.notes[2]
    )
    config = loads(actual.text, overrides=["output.report=false"])
    assert not config.source.has_people
    assert any(line.startswith("CAUTION   rows of this source belong to no person") for line in expectations(config))
    assert any(line.startswith("expect") and " trips on average" in line for line in expectations(config))
    assert penstock.run(config, tmp_path / "run", runner="local").manifest["users"]["users"] == 60


@pytest.mark.parametrize("header", [OLD, NEW])
def test_trips_of_bikes_are_no_people(tmp_path, header):
    times = [f"2024-05-0{1 + i % 7} {i % 24:02d}:{m}:00" for i in range(60) for m in ("10", "20")]
    trips = zip(times[::2], times[1::2], strict=True)
    rows = [old(*trip, 600) if header == OLD else new(f"R{i}", *trip) for i, trip in enumerate(trips)]
    path = tmp_path / "202405-citibike-tripdata.csv"
    path.write_text(header + "".join(rows))
    for where in (path, tmp_path):
        drafted = draft(str(where))
        config = loads(drafted.text, overrides=["output.report=false"])
        assert (type(config.source).__name__, config.source.has_people) == ("Citibike", False)
        assert config.windows.time_zone == "America/New_York"
        assert "# CHECK: user from no column: rows are trips, and none says who rode" in drafted.text
        assert "may cost one trip" in drafted.text
        assert any(line.startswith("loss      One trip loses at most ε = 2 by a day") for line in expectations(config))
    assert penstock.run(config, tmp_path / "run", runner="local").manifest["rows"]["used"] == 120
    # Other cities have the same columns, and clocks of their own.
    path.write_text(header + "".join(rows).replace("-74.", "-87."))
    source = loads(draft(str(path), "America/Chicago").text).source
    assert (type(source).__name__, source.time_zone, source.has_people) == ("Csv", "America/Chicago", False)
    assert loads(
        draft(str(path), stated=UserHints({"user": "rideable_type" if header == NEW else "bikeid"})).text
    ).source.has_people


@pytest.mark.parametrize("version", [1, 2])
def test_trips_of_mds_begin_where_and_when_they_do_and_have_no_rider(tmp_path, version):
    def trip(i: int) -> dict[str, Any]:
        """Trip of a vehicle; keys in the order of the alphabet, ends first."""
        begin = 1_714_521_600_000 + 60_000 * i
        points = [(begin, 38.2 + i / 1000, -85.8), (begin + 600_000, 38.9, -85.1)]
        known = {"device_id": f"d{i % 7}", "end_time": begin + 600_000, "provider_id": "p", "start_time": begin}
        if version == 2:
            ends = {"start": points[0], "end": points[1]}
            known |= {f"{end}_location": {"lat": lat, "lng": lng} for end, (_, lat, lng) in ends.items()}
        else:
            features = [
                {"properties": {"timestamp": at}, "geometry": {"type": "Point", "coordinates": [lng, lat]}}
                for at, lat, lng in points
            ]
            known["route"] = {"type": "FeatureCollection", "features": features}
        return dict(sorted({**known, "trip_id": str(i)}.items()))

    trips = {"trips": [trip(i) for i in range(60)]}
    document = {"version": f"{version}.0.0", **(trips if version == 2 else {"data": trips})}
    drafted = draft(written(tmp_path, [json.dumps(document)]))
    assert "# CHECK: user from no column: rows are trips, and none says who rode" in drafted.text
    source = loads(drafted.text).source
    (block,) = (block for span in source.spans() for block in source.read(span))
    assert not source.has_people
    assert block.frame.select("time", "latitude", "longitude").row(-1) == (1_714_525_140_000, 38.259, -85.8)


def test_an_id_may_be_of_anything(tmp_path):
    for name, is_said in (("id", True), ("trip_id", True), ("ID", True), ("user_id", False), ("deviceId", False)):
        drafted = draft(written(tmp_path, [NAMED[0].replace("rider", name), *NAMED[1:]]))
        message = f"user from {name}: an id may be of a trip, a row or a place, too: it has 7 values in 60 rows"
        assert (message in drafted.notes) == is_said
        assert drafted.one == (f"person (if {name} says who it is)" if is_said else "person")
        assert drafted.notes[0].startswith(f"columns: user from {name}")
        assert "?." not in drafted.text


def test_days_without_hours_make_windows_of_days(tmp_path):
    rows = [f"K{i % 9},{1 + i % 28:02d}.05.2024,A" for i in range(60)]
    actual = draft(written(tmp_path, ["card,day,stop", *rows]))
    config = loads(actual.text)
    assert (config.source.time_format, config.windows.size) == ("%d.%m.%Y", 86_400_000)
    assert "time from day: it holds days without times of day: windows are days at least" in actual.notes


def test_parquet_is_drafted(tmp_path):
    times = [datetime(2024, 5, 1 + i % 20, i % 24) for i in range(60)]
    frame = pl.DataFrame(
        {"rider": [i % 7 for i in range(60)], "at": times, "tags": [["a"]] * 60, "stop": ["A", "B"] * 30}
    )
    frame.write_parquet(tmp_path / "taps.parquet")
    for path in (tmp_path / "taps.parquet", tmp_path):
        actual = draft(str(path))
        config = loads(actual.text, overrides=["output.report=false"])
        assert type(config.source).__name__ == "Parquet"
        assert config.source.columns["user"] == "rider"
    assert penstock.run(config, tmp_path / "run", runner="local").manifest["rows"]["used"] == 60


def test_names_of_columns_write_no_keys(tmp_path):
    names = ["ride_id\nplugins: evil", "ride_id\u2028plugins: evil", "ride_id\x85plugins: evil"]
    for name in names:
        at = [f"2024-05-01T{i % 24:02d}:00:00Z" for i in range(60)]
        frame = pl.DataFrame({name: [f"r{i}" for i in range(60)], "at": at, "stop": ["A", "B"] * 30})
        frame.write_parquet(tmp_path / "rides.parquet")
        drafted = draft(str(tmp_path / "rides.parquet"))
        assert "# CHECK: nearly every row has another ride_id plugins: evil: is it a trip" in drafted.text
        assert loads(drafted.text).source.columns["user"] == name


@pytest.mark.parametrize("stop", ['Halt "Nord", unten', '"Nord" unten', '12" Gleis'])
def test_quotes_inside_of_fields_are_text(tmp_path, stop):
    rows = [f"r{i % 7};2024-05-01 {i % 24:02d}:30:00;{stop}" for i in range(60)]
    config = loads(draft(written(tmp_path, ["rider;tapped_at;stop", *rows])).text, overrides=["output.report=false"])
    assert config.source.quote == ""
    assert penstock.run(config, tmp_path / "run", runner="local").manifest["rows"]["used"] == 60
    around = [f'r{i % 7};2024-05-01 {i % 24:02d}:30:00;"a;b ""c"""' for i in range(60)]
    assert loads(draft(written(tmp_path, ["rider;tapped_at;stop", *around])).text).source.quote == '"'


def test_unreadable_rows_are_reported_with_the_most_frequent_reason(tmp_path):
    rows = [f"r{i % 7},2024-05-01 {i % 24:02d}:30:00,North," for i in range(60)]
    unread = draft(written(tmp_path, ["rider,tapped_at,station", *rows]))
    assert unread.notes[-1].startswith("none of 60 rows could be read as drafted (4 fields instead of 3): from")
    some = draft(written(tmp_path, [*NAMED, "r1,47.3,8.5", "r1,47.3,8.5", "r1,47.3,8.5,soon"]))
    assert "3 of 63 rows cannot be read, and will be rejected: 3 fields instead of 4" in some.notes


def test_what_is_stated_is_not_guessed(tmp_path, working_folder):
    rows = [f"{i % 7},{i % 5},01/05/2024 08:{i % 60:02d},B{i % 2},{i}" for i in range(60)]
    path = written(tmp_path, ["rider,conductor,started,stop,n", *rows])
    options = ["--user", "conductor", "--time", "started", "--time-format", "%m/%d/%Y %H:%M", "--place", "stop"]
    assert main(["init", path, *options]) == DONE
    source = loads((tmp_path / "taps.yaml").read_text()).source
    assert source.columns["user"] == "conductor"
    assert source.time_format == "%m/%d/%Y %H:%M"
    assert main(["init", path, "--out", "b.yaml", "--user", ""]) == DONE
    assert loads((tmp_path / "b.yaml").read_text()).source.columns["user"] == ""
    assert main(["init", path, "--out", "c.yaml", "--user", "nobody"]) == WRONG_USE
    assert not (tmp_path / "c.yaml").exists()


def test_stops_are_the_cells(tmp_path):
    stops = tmp_path / "stops.txt"
    stops.write_text("stop_id,stop_name,stop_lat,stop_lon\n1,North,47.30,8.50\n2,South,47.31,8.51\n")
    space = loads(draft(written(tmp_path, NAMED), stops=str(stops)).text).space
    assert (type(space).__name__, space.cells, space.radius) == ("Stations", ("North", "South"), 250.0)
    for names, column in ((["1", "2"], None), (["North", "South"], "stop_name")):
        rows = [f"r{i % 7},2024-05-01 08:{i % 60:02d},{names[i % 2]}" for i in range(60)]
        actual = draft(written(tmp_path, ["rider,at,stop", *rows], "b.csv"), stops=str(stops))
        space = loads(actual.text).space
        assert (space.column, space.cells) == (column, (*names, "elsewhere"))
        assert not any("change space" in note for note in actual.notes)


def test_doubts_are_said(tmp_path):
    lines = ["trip_id,when,place", *(f"t{i},0{1 + i % 9}/0{1 + i % 8}/2024 08:00,a" for i in range(30))]
    notes = " ".join(draft(written(tmp_path, lines)).notes)
    assert "is it a trip or a row, and not a person?" in notes
    assert "day and month cannot be told apart" in notes
    assert "read as UTC" in notes
    assert "taken for a person" in " ".join(
        draft(written(tmp_path, [NAMED[0].replace("rider", "bikeid"), *NAMED[1:]])).notes
    )


def test_a_kind_of_people_is_not_a_person(tmp_path):
    rows = [f"2024-05-01 {i % 24:02d}:00:00,{i % 5},{['Subscriber', 'Customer'][i % 2]}" for i in range(1200)]
    bikes = [f"{row},{17_000 + i % 300}" for i, row in enumerate(rows)]
    actual = draft(written(tmp_path, ["starttime,station,usertype,bikeid", *bikes]))
    assert actual.notes[0] == "columns: user from bikeid, time from starttime, place from station"
    actual = draft(written(tmp_path, ["starttime,station,usertype", *rows]))
    assert actual.notes[0] == "columns: no user, time from starttime, place from station"
    actual = draft(written(tmp_path, ["starttime,station,client", *rows]))
    assert "client has 2 values in 1,200 rows: is it a kind of people, and not a person?" in actual.notes


def test_a_draft_is_not_deployed_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "00" * 32)
    text = draft(written(tmp_path, NAMED)).text
    changes = ["mode=deployment", "seed=", "noise_key=env:SOME_KEY", "output.ledger_source=taps"]
    with pytest.raises(ConfigError, match=r"looked_at_data: true is not allowed.*decide what is marked LOOKED"):
        loads(text, overrides=changes)
    assert loads(text, overrides=[*changes, "looked_at_data="]).mode == "deployment"


def test_the_mark_changes_no_release(tmp_path):
    text = draft(written(tmp_path, NAMED)).text
    assert digest(loads(text)) == digest(loads(text, overrides=["looked_at_data="]))


def test_the_command_writes_a_new_file_only(tmp_path, working_folder, capsys):
    path = written(tmp_path, NAMED, "2024.csv")
    assert main(["init", path]) == DONE
    assert "wrote 2024.yaml" in capsys.readouterr().out
    assert main(["validate", "2024.yaml"]) == DONE
    assert main(["init", path]) == FAILED
    assert "is there already" in capsys.readouterr().err
    assert main(["init", path, "--out", "other.yaml", "--json"]) == DONE
    assert json.loads(capsys.readouterr().out)["file"] == "other.yaml"
    assert main(["init", path, "--time-zone", "Nowhere", "--out", "new.yaml"]) == WRONG_USE


def test_events_far_apart_are_drafted_over_the_densest_region(tmp_path):
    paris = [
        f"p{i % 40},{48.85 + i % 9 / 100},{2.35 + i % 7 / 100},2024-05-{1 + i % 9:02d} 10:30:00" for i in range(800)
    ]
    world = [f"w{i},{-60 + i / 2},{-170 + i},2024-05-{1 + i % 9:02d} 11:30:00" for i in range(200)]
    actual = draft(written(tmp_path, [NAMED[0], *paris, *world]))
    space = loads(actual.text).space
    assert (space.south, space.north, space.west, space.east) == (48.85, 48.94, 2.35, 2.42)
    assert "the cells are the densest region, with 80 % of the events: change space for others" in actual.notes


def test_cells_and_windows_are_as_fine_as_the_noise_allows(tmp_path):
    rows = [
        f"r{i},{47.30 + i % 10 / 100},{8.50 + i % 6 / 100},2024-05-{1 + i % 20:02d} {i % 24:02d}:30:00"
        for i in range(3000)
    ]
    few, many = (loads(draft(written(tmp_path, [NAMED[0], *rows[:n]], f"{n}.csv")).text) for n in (600, 3000))
    assert few.windows.size == many.windows.size == 86_400_000
    assert len(few.space.cells) < len(many.space.cells)
    # A person is in one cell of one day: Laplace noise of mean size 1/2, of which a count is at least 1.5 times.
    assert min(few.typical_count, many.typical_count) >= 0.75


def test_a_draft_protects_a_day_with_the_budget_that_was_asked_for(tmp_path):
    path = written(tmp_path, NAMED)
    config = loads(draft(path, epsilon_per_day=1.0).text)
    step = config.mechanism[0]
    assert (type(step).__name__, step.epsilon, config.budget_period) == ("PeriodUniform", 1.0, 86_400_000)
    assert config.bounding.max_per_period == 5
    assert expected_losses(rehearse(config))["day"] == 1.0  # type: ignore[index]
    assert expected_losses(rehearse(loads(draft(path).text)))["day"] == 2.0  # type: ignore[index]
    with pytest.raises(ParameterError, match="a number above 0"):
        draft(path, epsilon_per_day=0.0)


def test_decimal_commas_are_read(tmp_path):
    path = tmp_path / "taps.csv"
    rows = [f"r{i % 30};47,{300 + i % 50};8,{500 + i % 40};2024-05-01 08:{i % 60:02d}" for i in range(300)]
    path.write_text("\n".join(["rider;lat;lon;tapped_at", *rows]))
    source = loads(draft(str(path)).text).source
    assert (source.decimal, source.separator) == (",", ";")
    assert sum(block.frame.height for span in source.spans() for block in source.read(span)) == 300


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"sep=;\nrider;place;at\nann;North;2024-05-01 08:00\n", "take titles, comments or sep= above the header out"),
        (b"Taps of May\nrider;place;at\nann;North;2024-05-01 08:00\n", "no comma, semicolon, tab or bar: take titles"),
    ],
)
def test_a_file_saved_in_another_way_is_reported(tmp_path, capsys, data, message):
    path = tmp_path / "taps.csv"
    path.write_bytes(data)
    assert main(["init", str(path)]) == FAILED
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", b"\x00\xff\xfe\x9c" * 50, "a.csv: is not UTF-8 text"),
        ("z.csv", b"name,area\nx,1\n", "z.csv: there is no column 'rider' for user"),
        ("z.csv.gz", b"\x1f\x8b\x08\x00broken", "z.csv.gz: cannot be read"),
    ],
)
def test_a_file_of_a_folder_that_cannot_be_read_is_named_with_the_way_to_leave_it_out(tmp_path, name, data, message):
    written(tmp_path, NAMED, "may.csv")
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError) as caught:
        draft(str(tmp_path))
    assert message in str(caught.value)
    assert "to leave a file out, move it away, or give a pattern that only the others match" in str(caught.value)
    # The way works; and of a single file it is not said.
    assert draft(f"{tmp_path}/m*.csv").notes[0].startswith("columns: user from rider")
    with pytest.raises(DataError) as caught:
        draft(str(written(tmp_path, ["nothing"], "one.csv")))
    assert "leave" not in str(caught.value)


def test_unreadable_rows_of_another_file_are_reported_with_its_name(tmp_path):
    written(tmp_path, NAMED, "may.csv")
    written(tmp_path, [NAMED[0], *("r1,47.3,8.5,01.05.2024 08:00",) * 9], "other.csv")
    notes = " ".join(draft(str(tmp_path)).notes)
    assert "9 of 69 rows cannot be read, and will be rejected (9 of other.csv): to leave a file out" in notes


def test_several_files_are_asked_for_as_a_folder_or_a_pattern(capsys):
    assert main(["init", "may.csv", "june.csv"]) == WRONG_USE
    assert "one file, or for several a folder or a pattern in quotes" in capsys.readouterr().err


def test_json_of_columns_is_refused_as_it_would_be_one_row(tmp_path):
    path = tmp_path / "events.json"
    path.write_text(json.dumps({"user": ["a", "b"], "time": ["2024-05-01T08:00Z"] * 2, "stop": ["x", "y"]}))
    with pytest.raises(DataError, match="write one object for each row"):
        draft(str(path))


def test_text_of_four_bytes_a_letter_is_read(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text("\n".join(NAMED), encoding="utf-32")
    assert loads(draft(str(path)).text).source.encoding == "utf-32"


@pytest.mark.parametrize(
    ("lines", "note"),
    [
        (["user;local_time;utc_time;stop", "a;2024-05-01 10:00;2024-05-01T08:00Z;x"], "utc_time could be it, too"),
        (["user;time;stop", "a;45413.34;x"], "time may be days from 1900, as spreadsheets count"),
        (["user;time;stop", "a;638527639160000000;x"], "no column holds times that can be read"),
        (["user;time;lat;lon", "a;2024-05-01 08:00;47361234;8512345"], "lat and lon may be degrees times a million"),
        (["user;time;lat;lon", "a;2024-05-01 08:00;47.3 N;8.5 E"], "lat does not hold decimal degrees"),
        (
            ["rider;note;place;at", 'a;"two\nlines, ""said""";North;2024-05-01 08:00'],
            "takes quotes as text",
        ),
    ],
)
def test_columns_that_are_not_read_are_named(tmp_path, lines, note):
    actual = draft(written(tmp_path, [*lines, lines[1].replace("a;", "b;", 1)]))
    assert any(note in one for one in actual.notes), actual.notes
