"""Places: listed, from a file, or the busiest of the data."""

import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace

import polars as pl
import pytest

from penstock.mechanisms.core.plugin import DataError, ParameterError, PenstockError
from penstock.pipeline.sources.base import EventBlock, FileSource, Span
from penstock.pipeline.spaces.places import Places
from penstock.pipeline.spaces.stations import Stations


@dataclass(frozen=True, kw_only=True)
class Listed(FileSource):
    """Blocks of places at times, from memory."""

    blocks: tuple[tuple[tuple[int, str], ...], ...] = ()

    def spans(self) -> list[Span]:
        return [Span(i, ()) for i in range(len(self.blocks))]

    def read(self, span: Span) -> Iterator[EventBlock]:
        rows = self.blocks[span.index]
        columns = {"time": [t for t, _ in rows], "user": [1] * len(rows), "place": [p for _, p in rows]}
        yield EventBlock(pl.DataFrame(columns), len(rows))

    def digests(self) -> dict[str, str]:
        return {}


SOURCE = Listed(
    from_=10,
    until=100,
    blocks=(
        (*((t, "b") for t in range(20, 25)), *((t, "early") for t in range(10))),
        (*((t, "c") for t in range(90, 95)), (99, "a"), (99, "elsewhere"), (99, "elsewhere")),
        tuple((t, "late") for t in range(100, 120)),
    ),
)


def place(space: Places, names: list[str]) -> list[int]:
    return space.place(pl.DataFrame({"place": names})).tolist()


def test_listed_places_in_their_order():
    space = Places(list_=("z", "a"))
    assert space.cells == ("z", "a")
    assert space.reads == ("place",)
    assert place(space, ["a", "z", "q", "A"]) == [1, 0, -1, -1]
    assert place(replace(space, elsewhere=True), ["a", "z", "q"]) == [1, 0, 2]
    assert replace(space, elsewhere=True).cells == ("z", "a", "elsewhere")
    assert space.geometry() == [{"cell": "z"}, {"cell": "a"}]
    assert not space.derived_from_data
    assert space.resolve(SOURCE) is space
    assert space.place(pl.DataFrame({"place": []}, schema={"place": pl.String})).shape == (0,)


def test_names_that_look_the_same_are_one_place():
    rows = pl.DataFrame({"place": ["Zu\u0308rich", " Gen\u00e8ve\u00a0", "Z\u00fcrich", None, "z\u00fcrich", "Genf"]})
    listed = Places(list_=("Z\u00fcrich", "Gene\u0300ve"), elsewhere=True)
    assert listed.place(rows).tolist() == [0, 1, 0, 2, 2, 2]
    busiest = Places(top=2, busiest=("Z\u00fcrich", "Zu\u0308rich"))
    assert busiest.place(rows).tolist() == [1, -1, 0, -1, -1, -1]


def test_the_busiest_places_of_the_run_ties_by_name():
    assert Places(top=1).resolve(SOURCE).cells == ("b",)
    assert Places(top=2).resolve(SOURCE).cells == ("b", "c")
    assert Places(top=4).resolve(SOURCE).cells == ("b", "c", "elsewhere", "a")
    assert Places(top=9).resolve(SOURCE).cells == ("b", "c", "elsewhere", "a")
    resolved = Places(top=2, elsewhere=True).resolve(SOURCE)
    assert resolved.cells == ("b", "c", "elsewhere")
    assert place(resolved, ["c", "late", "b", "elsewhere"]) == [1, 2, 0, 2]
    assert Places(top=9, elsewhere=True).resolve(SOURCE).cells == ("b", "c", "a", "elsewhere")


@dataclass(frozen=True, kw_only=True)
class Placed(Listed):
    """Add positions: each event of a place a little east of the one before."""

    def read(self, span: Span) -> Iterator[EventBlock]:
        for block in super().read(span):
            time = pl.col("time").cast(pl.Float64)
            frame = block.frame.with_columns(latitude=40 + time / 1000, longitude=time / 100)
            yield replace(block, frame=frame)


def test_the_busiest_places_are_where_their_events_are():
    source = Placed(from_=10, until=100, blocks=SOURCE.blocks)
    space = Places(top=2, elsewhere=True).resolve(source)
    assert [cell.get("point") for cell in space.geometry()] == [
        pytest.approx([0.22, 40.022]),
        pytest.approx([0.92, 40.092]),
        None,
    ]
    assert Places(top=2, elsewhere=True).resolve(replace(source, blocks=SOURCE.blocks[::-1])) == space
    assert Places(top=2).resolve(SOURCE).geometry() == [{"cell": "b"}, {"cell": "c"}]
    assert Places(top=2).resolve(replace(source, blocks=())).geometry() == []


def test_what_the_data_decides_stays_marked_as_such():
    assert Places(top=2).derived_from_data
    assert Places(top=2).resolve(SOURCE).derived_from_data
    with pytest.raises(PenstockError, match="resolve"):
        _ = Places(top=2).cells
    assert Places(top=2).resolve(Listed(blocks=SOURCE.blocks)).cells == ("late", "early")


def test_the_order_of_the_blocks_does_not_matter():
    backwards = replace(SOURCE, blocks=SOURCE.blocks[::-1])
    assert Places(top=4).resolve(backwards).cells == Places(top=4).resolve(SOURCE).cells


def test_a_file_of_names(tmp_path):
    file = tmp_path / "places.txt"
    file.write_text("\ufeffharbour\n old town \n\nmarket, north\n", encoding="utf-8")
    space = Places(file=str(file))
    assert space.cells == ("harbour", "old town", "market, north")
    assert place(space, ["market, north", "harbour"]) == [2, 0]
    assert not space.derived_from_data


def test_a_csv_file_with_points_for_maps(tmp_path):
    file = tmp_path / "places.csv"
    file.write_text("id,place,latitude,longitude\r\n7,007,37.5,-122\r\n8,b,-10,20.25\r\n", newline="")
    space = Places(file=str(file), elsewhere=True)
    assert space.cells == ("007", "b", "elsewhere")
    assert space.geometry() == [
        {"cell": "007", "point": [-122.0, 37.5]},
        {"cell": "b", "point": [20.25, -10.0]},
        {"cell": "elsewhere"},
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('place\na\n""\n', "places.csv:3: place is empty"),
        ("place\nb\u00e9\nbe\u0301 \n", "listed once only .it is 'bé'"),
        ("place\na\nb\na\n", "list: 'a' is not allowed; it must be listed once only"),
        ("place,latitude,longitude\na,1,2\nb,91,2\n", "places.csv:3: latitude '91' must be a number from -90 to 90"),
        ("place,latitude,longitude\na,1,x\n", "places.csv:2: longitude 'x'"),
        ("place,latitude,longitude\na,1,\n", "places.csv:2: longitude None"),
        ("place,latitude,longitude\na,nan,1\n", "places.csv:2: latitude 'nan'"),
        ("place,other\na,1,2,3\n", "places.csv"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, text, message):
    file = tmp_path / "places.csv"
    file.write_text(text)
    space = Places(file=str(file))
    with pytest.raises(DataError, match=message):
        _ = (space.cells, space.geometry())


STOPS = """stop_id,stop_name,stop_lat,stop_lon,location_type,parent_station
8501:1,"Genève, gare",46.21,6.14,0,8501
8501:2,"Genève, gare",46.22,6.15,,8501
8502:1,Nyon,46.38,6.24,,
8501,"Genève, gare",46.215,6.145,1,
8501:x,,,,3,8501
"""
BIKES = {"station_id": 7, "name": [{"text": "Quai", "language": "fr"}], "lat": 46.2, "lon": 6.1}


def test_stops_of_a_gtfs_feed_are_places_by_identifier_or_name(tmp_path):
    file, feed = tmp_path / "stops.txt", tmp_path / "feed.zip"
    file.write_text(STOPS, encoding="utf-8-sig")
    with zipfile.ZipFile(feed, "w") as archive:
        archive.write(file, "stops.txt")
    space = Places(file=str(feed))
    assert space.cells == ("8501:1", "8501:2", "8502:1", "8501")
    assert space.geometry()[2] == {"cell": "8502:1", "name": "Nyon", "point": [6.24, 46.38]}
    assert Places(file=str(file), column="stop_name").cells == ("Genève, gare", "Nyon")
    stations = Stations(file=str(file), radius=200.0)
    assert stations.cells == ("Genève, gare (8501:1)", "Genève, gare (8501:2)", "Nyon")
    first, rest = STOPS.split("\n", 1)
    with zipfile.ZipFile(feed, "w") as archive:
        archive.writestr("STOPS.TXT", f"{first.upper()}\n{rest}")
    assert Places(file=str(feed)).cells == space.cells
    with pytest.raises(DataError, match=r"have no column 'name_of_stop' \(they have stop_id, stop_name"):
        _ = Places(file=str(file), column="name_of_stop").cells


def test_a_zip_of_several_feeds_or_text_of_another_encoding_is_refused(tmp_path):
    feed, file = tmp_path / "feeds.zip", tmp_path / "stops.txt"
    with zipfile.ZipFile(feed, "w") as archive:
        archive.writestr("bus/stops.txt", STOPS)
        archive.writestr("tram/stops.txt", STOPS)
    with pytest.raises(DataError, match=r"is a zip with 2 files stops\.txt, so several GTFS feeds; give a file"):
        _ = Places(file=str(feed)).cells
    file.write_text(STOPS, encoding="cp1252")
    with pytest.raises(DataError, match=r"stops\.txt: is not UTF-8 text; save it as UTF-8"):
        _ = Places(file=str(file)).cells


def test_stations_of_a_gbfs_feed(tmp_path):
    file = tmp_path / "station_information.json"
    file.write_text(json.dumps({"data": {"stations": [BIKES, BIKES | {"station_id": "b"}]}}))
    assert Places(file=str(file)).cells == ("7", "b")
    assert Stations(file=str(file), radius=9.0).cells == ("Quai (7)", "Quai (b)")
    file.write_text(json.dumps({"data": {"stations": [{"station_id": "7", "num_bikes_available": 3}]}}))
    with pytest.raises(DataError, match=r"is JSON, but not station_information\.json .*'lat'"):
        _ = Places(file=str(file)).cells


def test_areas_are_refused(tmp_path):
    ring = [[0, 0], [1, 0], [1, 1], [0, 0]]
    shape = {"type": "Polygon", "coordinates": [ring]}
    feature = {"type": "Feature", "properties": {"quartier": "Pâquis"}, "geometry": shape}
    file = tmp_path / "areas.geojson"
    file.write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    with pytest.raises(DataError, match="is GeoJSON; areas make a space of type: zones"):
        _ = Places(file=str(file)).cells


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("id,name,lat,lon\n1,a,47.1,8.2\n2,b,47.2,8.3\n", r"a table of 4 columns \(id,name,lat,lon\)"),
        ("name;kind\na;x\nb;y\n", r"a table of 2 columns \(name;kind\)"),
        ("a,7\nb,8\n", r"a table of 2 columns \(a,7\)"),
        ('["a", "b"]', r"is JSON, but not station_information\.json"),
        ("{a: 1}", "looks like JSON, and is not"),
        (
            "card,at,stop\na,2024-01-01T08:00Z,North\nb,2024-01-01T09:00Z,South\n",
            r"a table of 3 columns \(card,at,stop\)",
        ),
        ("name: a\nspace:\n  type: places\n", r"a document \(name: a\)"),
        ("<html>\nNorth\n</html>\n", r"a document \(<html>\)"),
        ("PAR1", "is Parquet; areas in GeoParquet make a space of type: zones"),
    ],
)
def test_lines_of_a_table_are_no_names_of_places(tmp_path, text, seen):
    file = tmp_path / "places.txt"
    file.write_text(text)
    with pytest.raises(DataError, match=seen):
        _ = Places(file=str(file)).cells
    file.write_text("Road, Town, Country\nStreet: north, Village, Country\n")
    assert len(Places(file=str(file)).cells) == 2
    assert Places(file=str(file)).column is None


def test_a_column_of_another_heading_names_the_places(tmp_path):
    file = tmp_path / "pois.csv"
    file.write_text("poi,latitude,longitude\na,1,2\n")
    assert Places(file=str(file), column="poi").geometry() == [{"cell": "a", "point": [2.0, 1.0]}]
    assert Stations(file=str(file), column="poi", radius=1.0).cells == ("a",)
    with pytest.raises(ParameterError, match=r"column: .poi. .* left out if there is no file"):
        Places(top=1, column="poi")


def test_a_missing_or_binary_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nothing\.txt"):
        _ = Places(file=str(tmp_path / "nothing.txt")).cells
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"binary\.txt"):
        _ = Places(file=str(tmp_path / "binary.txt")).cells


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "list: .* given, unless there is file or top"),
        ({"list_": ("a",), "top": 1}, "top: 1 .* left out if list is given"),
        ({"top": 0}, "top: 0"),
        ({"list_": ("a", "a")}, "list: 'a' .* once"),
        ({"list_": ("a", "")}, "list: '' .* not empty"),
        ({"list_": ("elsewhere",), "elsewhere": True}, "list: 'elsewhere'"),
    ],
)
def test_contradictions_are_refused(values, message):
    with pytest.raises(ParameterError, match=message):
        Places(**values)
