"""Fuzz targets: each takes a generator and a folder, and raises only for faults of the project.

An input that somebody else may have written is read or refused with an error of the project's own family, in bounded
time and memory, and rows are events or counted rejects. Anything else is a fault.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.mechanisms.core.noise_keys import NoiseKey, NoiseKeyError
from penstock.mechanisms.core.plugin import PenstockError
from penstock.mechanisms.core.state import decode_state, encode_state
from penstock.pipeline.config.run import loads
from penstock.pipeline.experiments.load import loads_experiment
from tests.fuzz.events import archives, hold, messages, parquet, rows
from tests.fuzz.mutation import WORDS, mutated
from tests.fuzz.neighbours import neighbours

Target = Callable[[random.Random, Path], None]

CONFIGURATION = """\
name: fuzzed
source: {type: csv, path: events.csv, columns: {user: user}, from: 2024-01-01T00:00:00Z, until: 2024-01-02T00:00:00Z}
space: {type: grid, south: 37.7, north: 37.8, west: -122.5, east: -122.4, rows: 4, columns: 4}
windows: {type: fixed, size: 1h, allowed_lateness: 10m, time_zone: Europe/Zurich}
bounding: {max_cells: 2, keep: hash}
landmarks: {windows: [1, 5], recurring: ["Mon-Fri 07:00-09:00"], times: [2024-01-01T12:00:00Z]}
budget_period: 1d
mechanism:
  - {type: sampling, rate: 0.8}
  - &m {type: fpa, epsilon: 1.0, coefficients: 3, block: 24}
accountants: [{type: composition, w: 3}, {type: landmark_budget},
  {type: temporal, correlation: {matrix: [[0.9, 0.1], [0.2, 0.8]]}}]
utility: [mae]
output: {path: out}
"""
EXPERIMENT = """\
name: e
question: which?
base: {name: x}
set: {bounding.max_cells: 1}
variants: {a: {mechanism: {type: raw}}, b: }
grid: {"mechanism[0].epsilon": [1, 3, 9], seed: [1, 2], space: [{rows: 1}, {rows: 2}]}
measures: [mae, composition/user_epsilon/max]
expected: [{says: x, source: y, measure: mae, at_most: 1, where: {variant: a}}]
"""


def configuration(random_: random.Random, folder: Path) -> None:
    """YAML of runs and experiments, overrides among it."""
    text = mutated((CONFIGURATION if random_.random() < 0.7 else EXPERIMENT).encode(), random_)
    reader = loads if text.startswith(b"name: f") else loads_experiment
    overrides = [mutated(b"mechanism[1].epsilon=2", random_, 3).decode("utf-8", "replace")]
    try:
        reader(
            text.decode("utf-8", "replace"), "fuzz.yaml", folder, overrides=overrides if random_.random() < 0.3 else ()
        )
    except PenstockError as error:
        hold(all(problem.isprintable() for problem in getattr(error, "problems", ())), error)


def state(random_: random.Random, folder: Path) -> None:
    """Damaged checkpoints: another array or an error, never code that runs."""
    import numpy as np

    whole = encode_state("checkpoint", 1, {"a": np.arange(5), "b": np.zeros((2, 3)), "c": np.asarray(True)})
    try:
        decode_state(mutated(whole, random_), "checkpoint", 1)
    except PenstockError:
        return


def keys(random_: random.Random, folder: Path) -> None:
    """Fuzz key files; no message may quote a key."""
    secret = random_.randbytes(32).hex()
    whole = json.dumps({"format": "penstock noise key", "version": 1, "epochs": [{"start_ms": None, "secret": secret}]})
    path = folder / "key"
    path.write_bytes(mutated(random_.choice([secret, whole]).encode(), random_))
    path.chmod(0o600)
    try:
        NoiseKey.from_file(path)
    except NoiseKeyError as error:
        hold(secret[:16] not in str(error), error)


def zones(random_: random.Random, folder: Path) -> None:
    """Files of zones, GeoJSON and GeoParquet: places in a zone or in none, or an error in words."""
    import polars as pl

    from penstock.pipeline.spaces.zones import Zones

    squares = [[[[x, 0], [x + 1, 0], [x + 1, 1], [x, 1], [x, 0]]] for x in (0, 1)]
    shapes = [{"type": "Polygon", "coordinates": squares[0]}, {"type": "MultiPolygon", "coordinates": squares[1:] * 2}]
    if random_.random() < 0.7:
        path = folder / "zones.geojson"
        features = [{"type": "Feature", "properties": {"name": i}, "geometry": one} for i, one in enumerate(shapes)]
        path.write_bytes(mutated(json.dumps({"type": "FeatureCollection", "features": features}).encode(), random_))
    else:
        path = folder / "zones.parquet"
        polygons = [struct.pack("<BIII10d", 1, 3, 1, len(ring), *chain.from_iterable(ring)) for (ring,) in squares]
        column = {"encoding": "WKB", "geometry_types": []}
        metadata = {"version": "1.1.0", "primary_column": "geometry", "columns": {"geometry": column}}
        table = pa.table({"name": ["a", "b"], "geometry": [mutated(polygons[0], random_), polygons[1]]})
        reported = mutated(json.dumps(metadata).encode(), random_) if random_.random() < 0.3 else json.dumps(metadata)
        pq.write_table(table.replace_schema_metadata({b"geo": reported}), path)
    points = pl.DataFrame({"latitude": [0.5, 2.0, 0.0], "longitude": [0.5, 0.5, 1.0]})
    try:
        read = Zones(path=str(path), name="name")
        assert set(read.place(points).tolist()) <= {-1, *range(len(read.cells))}
    except PenstockError as error:
        hold(str(error).isprintable(), error)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on")], attrs


def report(random_: random.Random, folder: Path) -> None:
    """Names that come from outside end up as text in the report: no tag and no script of theirs."""
    from penstock.pipeline.reporting.markup import Table, templates

    hostile = mutated(b"<script>alert(1)</script><img src=x onerror=alert(1)>\"'&", random_).decode("utf-8", "replace")
    parts = templates().get_template("parts.html").module
    rows = [[hostile, random_.choice(WORDS).decode("latin-1")]]
    parser = _Tags()
    parser.feed(parts.table(Table([hostile, "b"], rows, hostile)) + parts.listing(hostile, hostile))
    assert not {"script", "img", "svg", "iframe"} & set(parser.seen)


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (configuration, rows, archives, parquet, messages, zones, state, keys, report, neighbours)
}
#: What is fed with hostile input; a round of the others is a whole run.
HOSTILE = [name for name in TARGETS if name != "neighbours"]
