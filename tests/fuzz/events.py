"""Fuzz targets that read events: files, archives and messages, each row an event or a counted reject."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import io
import json
import lzma
import random
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from penstock.mechanisms.core.plugin import PenstockError
from penstock.pipeline.sources.base import Source
from penstock.pipeline.sources.cabspotting import Cabspotting
from penstock.pipeline.sources.citibike import Citibike
from penstock.pipeline.sources.csv import Csv
from penstock.pipeline.sources.foursquare import Foursquare
from penstock.pipeline.sources.geolife import Geolife
from penstock.pipeline.sources.gowalla import Gowalla
from penstock.pipeline.sources.parquet import Parquet
from penstock.pipeline.sources.reading.inputs import open_inputs
from penstock.pipeline.sources.tdrive import Tdrive
from tests.fuzz.mutation import mutated

CSV = """user,time,latitude,longitude,place
ann,2024-01-01T10:00:00Z,37.75,-122.45,"a, b"
bob,2024-01-01T10:00:00+01:00,37.75,-122.45,"c""d
e"
7,2024-01-01 10:00:00.5,37.75,-122.45,f
"""

PLT = "Geolife\r\nWGS 84\r\nAltitude\r\n3\r\n0,2\r\n0\r\n39.5,116.25,0,-777,39744.1,2008-10-23,02:53:04\r\n"

FILES: dict[str, tuple[type[Source], str, str]] = {
    "csv": (Csv, "events.csv", CSV),
    "cabspotting": (Cabspotting, "new_abc.txt", "37.75 -122.39 0 1213084687\n37.75 -122.39 1 1213084659\n"),
    "geolife": (Geolife, "017/Trajectory/a.plt", PLT),
    "tdrive": (Tdrive, "7.txt", "7,2008-02-02 16:06:08,116.5,39.75\n7,2008-02-02 16:16:08,0.0,0.0\n"),
    "gowalla": (Gowalla, "x_totalCheckins.txt", "0\t2010-10-12T00:21:28Z\t40.5\t-73.75\t23261\n"),
    "foursquare": (
        Foursquare,
        "dataset_TSMC2014_NYC.txt",
        "470\t49b\t4bf\tCaf\t40.5\t-74.25\t-240\tTue Apr 03 18:00:09 +0000 2012\n",
    ),
    "citibike": (
        Citibike,
        "a-tripdata.csv",
        "ride_id,started_at,ended_at,start_station_id,end_station_id,start_lat,start_lng,end_lat,end_lng\n"
        "A,2021-11-07 01:55:00,2021-11-07 01:05:00,1,2,40.7,-74.1,40.8,-74.2\n",
    ),
}


def rows(random_: random.Random, folder: Path) -> None:
    """Text in the format of every source: each row an event or a reject."""
    kind, name, text = FILES[random_.choice(sorted(FILES))]
    path = folder / "in" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(mutated(text.encode(), random_))
    read(kind(path=str(path), block_rows=random_.choice([1, 3, 1000])))


def archives(random_: random.Random, folder: Path) -> None:
    """Damaged and hostile archives and compressed files, nested ones too: no member from outside, no explosion."""
    path = folder / "in.bin"
    data = _packed(random_, CSV.encode() * random_.choice([1, 40]))
    path.write_bytes(data if random_.random() < 0.2 else mutated(data, random_, 6, longest=1 << 20))
    try:
        for name, stream in open_inputs([str(path)], ("*.csv",)):
            assert ".." not in name.replace("\\", "/").split("!")[-1].split("/")
            while stream.read(1 << 16):
                pass
    except PenstockError as error:
        hold(str(error).isprintable(), error)
    read(Csv(path=str(path)))


def _packed(random_: random.Random, data: bytes, depth: int = 0) -> bytes:
    kind = random_.randrange(8)
    if kind == 0:
        data = gzip.compress(data)
    elif kind == 1:
        data = lzma.compress(data)
    elif kind == 2:
        data = bz2.compress(data)
    elif kind == 3:
        data = gzip.compress(b"x" * random_.choice([1 << 10, 1 << 22]))
    else:
        data = (_tar if kind % 2 else _zip)(random_, data)
    return _packed(random_, data, depth + 1) if depth < 2 and random_.random() < 0.3 else data


def _name(random_: random.Random) -> str:
    plain = random_.choice(
        ["a.csv", "b/a.csv", "../a.csv", "/etc/a.csv", "C:\\a.csv", "..\\a.csv", "a.csv.gz", ".a.csv"]
    )
    return plain + random_.choice(["", "", "", "\0", "\u202e", "é"])


def _tar(random_: random.Random, data: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=random_.choice(["w", "w:gz"])) as archive:
        for _ in range(random_.randint(0, 4)):
            member = tarfile.TarInfo(_name(random_))
            member.type = random_.choice(
                [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE]
            )
            member.linkname = random_.choice(["/etc/passwd", "a.csv", "../../x"])
            member.size = len(data) if member.type == tarfile.REGTYPE else 0
            member.pax_headers = {"comment": "x" * random_.choice([1, 5000])} if random_.random() < 0.2 else {}
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _zip(random_: random.Random, data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(
        out, "w", random_.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
    ) as archive:
        for _ in range(random_.randint(0, 4)):
            archive.writestr(zipfile.ZipInfo(_name(random_)), data)
    changed = bytearray(out.getvalue())
    if random_.random() < 0.3 and (at := changed.find(b"PK\1\2")) >= 0:  # sizes that are lies, methods that are none
        struct.pack_into("<I", changed, at + random_.choice([8, 10, 20, 24]), random_.getrandbits(32))
    return bytes(changed)


def parquet(random_: random.Random, folder: Path) -> None:
    """Damaged Parquet."""
    import polars as pl

    whole = folder / "whole.parquet"
    if not whole.exists():
        frame = {
            "user": ["a", "b"],
            "time": [0, 1],
            "latitude": [1.0, 2.0],
            "longitude": [1.0, 2.0],
            "place": ["x", "y"],
        }
        pl.DataFrame(frame).write_parquet(whole)
    path = folder / "in.parquet"
    path.write_bytes(mutated(whole.read_bytes(), random_))
    read(Parquet(path=str(path), time_format="unix_ms"))


def hold(is_right: bool, error: PenstockError) -> None:
    """Fail unless what an error says is right."""
    if not is_right:
        raise AssertionError(f"a bad message: {error!r}")


def read(source: Source) -> None:
    """Read everything; rows are counted, and errors are the project's own."""
    try:
        for span in source.spans():
            for block in source.read(span):
                assert block.n_rows == block.frame.height + len(block.rejects)
                assert block.frame.null_count().sum_horizontal().item() == 0
    except PenstockError as error:
        hold(bool(str(error)), error)


AVRO_FIELDS = [
    {"name": name, "type": kind}
    for name, kind in (
        ("user", "string"),
        ("time", "string"),
        ("latitude", "double"),
        ("longitude", ["null", "double"]),
    )
]

AVRO = {"type": "record", "name": "e", "fields": AVRO_FIELDS}


def messages(random_: random.Random, folder: Path) -> None:
    """Messages of a topic as JSON and Avro: each is read, or is a problem of its own."""
    from penstock.pipeline.sources.reading.payload import Layout, parser_of, read_messages

    event = {"user": "ann", "time": "2024-01-01T00:00:00Z", "latitude": 37.75, "longitude": -122.45}
    kinds = ["json", *(["avro"] if importlib.util.find_spec("fastavro") else [])]
    kind = random_.choice(kinds)
    whole = {"json": _json, "avro": _avro}[kind](event)
    values = [random_.choice([mutated(whole, random_), whole, None]) for _ in range(random_.randint(1, 4))]
    layout = Layout({name: name for name in event}, integer_users=random_.random() < 0.2)
    actual = read_messages(values, layout, parser_of(kind, json.dumps(AVRO), False))
    assert len(actual.message) == actual.frame.height
    assert not set(actual.message.tolist()) & actual.problems.keys()
    assert dict(actual.frame.schema) == layout.schema


def _json(event: dict[str, Any]) -> bytes:
    return json.dumps(event).encode()


def _avro(event: dict[str, Any]) -> bytes:
    import fastavro

    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), event)
    return out.getvalue()
