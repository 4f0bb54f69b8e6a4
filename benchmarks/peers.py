"""Programs in other engines that count distinct users per cell and window."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.measure import PEERS, Peer, Program, has, python


def engine(name: str, module: str, code: str, limit: float | None = None) -> list[Peer]:
    """Return a counting peer, measured net of importing its library, or no peer without the library."""
    work = Program(python(code, PEERS), python(f"import {module}", PEERS))
    return [Peer(f"{name}, counting only", work, limit=limit)] if has(module) else []


_POLARS = """
import polars as pl
row = ((pl.col("latitude") - 37.74) / (37.82 - 37.74) * {rows}).cast(pl.Int64)
column = ((pl.col("longitude") + 122.47) / (-122.37 + 122.47) * {columns}).cast(pl.Int64)
n = {n_windows} * {rows} * {columns}
place = (pl.col("t") - {start}) // {step} * ({rows} * {columns}) + row * {columns} + column
inside = (
    pl.col("latitude").is_between(37.74, 37.82, "left"), pl.col("longitude").is_between(-122.47, -122.37, "left"),
    pl.col("t").is_between({start}, {start} + {n_windows} * {step}, "left"),
)
frame = {read}.filter(*inside)
if frame.collect_schema()["user"] == pl.Int64:
    distinct = frame.select(key=pl.col("user") * n + place).unique().select(place=pl.col("key") % n)
else:
    distinct = frame.select("user", place=place).unique().select("place")
distinct.group_by("place").len().collect(engine="streaming")
"""

_DUCKDB = '''
import duckdb
duckdb.sql("set enable_progress_bar = false")
duckdb.sql("""
    select w, c, count(*) n from (
        select distinct "user", (t - {start}) // {step} w,
            floor((latitude - 37.74) / (37.82 - 37.74) * {rows})::int * {columns}
                + floor((longitude + 122.47) / (-122.37 + 122.47) * {columns})::int c
        from ({read}) where latitude between 37.74 and 37.82 and longitude between -122.47 and -122.37
            and t >= {start} and t < {start} + {n_windows} * {step}
    ) group by all
""").fetchnumpy()
'''

_PANDAS = """
import pandas as pd
frame = pd.read_parquet("{path}", columns=["user", "time", "latitude", "longitude"])
t = frame.time.astype("datetime64[ms, UTC]").astype("int64")
inside = frame.latitude.between(37.74, 37.82) & frame.longitude.between(-122.47, -122.37)
inside &= (t >= {start}) & (t < {start} + {n_windows} * {step})
frame, t = frame[inside], t[inside]
row = ((frame.latitude - 37.74) / (37.82 - 37.74) * {rows}).astype("int64")
column = ((frame.longitude + 122.47) / (-122.37 + 122.47) * {columns}).astype("int64")
counted = pd.DataFrame({{"user": frame.user, "w": (t - {start}) // {step}, "c": row * {columns} + column}})
counted.drop_duplicates().groupby(["w", "c"]).size()
"""

_CHDB = '''
import chdb
chdb.query("""
    select intDiv(toUnixTimestamp64Milli(time) - {start}, {step}) * {rows} * {columns}
        + toInt64(floor((latitude - 37.74) / (37.82 - 37.74) * {rows})) * {columns}
        + toInt64(floor((longitude + 122.47) / (-122.37 + 122.47) * {columns})) place, uniqExact(user)
    from file('{path}', Parquet) where latitude between 37.74 and 37.82 and longitude between -122.47 and -122.37
        and toUnixTimestamp64Milli(time) between {start} and {start} + {n_windows} * {step} - 1
    group by place
""", "Arrow")
'''

_ROWS = """
import pyarrow.parquet as pq
table = pq.read_table("{path}", columns=["user", "time", "latitude", "longitude"])
times, users = table["time"].cast("int64").to_pylist(), table["user"].to_pylist()
cells = [
    int((a - 37.74) / (37.82 - 37.74) * {rows}) * {columns} + int((b + 122.47) / (-122.37 + 122.47) * {columns})
    for a, b in zip(table["latitude"].to_pylist(), table["longitude"].to_pylist())
]
"""

_PIPELINE_DP = """
import logging
import pipeline_dp
{imports}
logging.disable(logging.WARNING)
{read}
rows = [(user, (t - {start}) // {step} * 1000 + cell) for user, t, cell in zip(users, times, cells)]
accountant = pipeline_dp.NaiveBudgetAccountant(total_epsilon=1, total_delta=1e-6)
parameters = pipeline_dp.AggregateParams(
    noise_kind=pipeline_dp.NoiseKind.LAPLACE,
    metrics=[pipeline_dp.Metrics.PRIVACY_ID_COUNT],
    max_partitions_contributed=2 * {n_windows},
    max_contributions_per_partition=1,
)
extractors = pipeline_dp.DataExtractors(
    privacy_id_extractor=lambda row: row[0], partition_extractor=lambda row: row[1], value_extractor=lambda row: 0
)
{release}
"""
_BACKENDS = {
    "its local backend": (
        "",
        """
result = pipeline_dp.DPEngine(accountant, pipeline_dp.LocalBackend()).aggregate(rows, parameters, extractors)
accountant.compute_budgets()
list(result)
""",
    ),
    "Beam's local runner": (
        """
import apache_beam as beam
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
""",
        """
engine = pipeline_dp.DPEngine(accountant, pipeline_dp.BeamBackend())
with beam.Pipeline(runner=FnApiRunner()) as pipeline:
    result = engine.aggregate(pipeline | beam.Create(rows), parameters, extractors)
    accountant.compute_budgets()
    result | beam.Map(lambda pair: None)
""",
    ),
}

_BYTEWAX = """
from datetime import datetime, timedelta, timezone
from operator import itemgetter
import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.dataflow import Dataflow
from bytewax.testing import TestingSink, TestingSource, run_main
{read}
def add(users, row):
    users.add(row[2])
    return users
begin = datetime.fromtimestamp({start} / 1000, timezone.utc)
rows = zip(map(str, cells), (datetime.fromtimestamp(t / 1000, timezone.utc) for t in times), users)
flow = Dataflow("users")
read = op.key_on("cell", op.input("rows", flow, TestingSource(rows, batch_size=10_000)), itemgetter(0))
clock = win.EventClock(ts_getter=itemgetter(1), wait_for_system_duration=timedelta(0))
windows = win.TumblingWindower(length=timedelta(milliseconds={step}), align_to=begin)
counted = win.fold_window("count", read, clock, windows, set, add, set.union).down
op.output("out", op.map("size", counted, lambda pair: (pair[0], pair[1][0], len(pair[1][1]))), TestingSink([]))
run_main(flow)
"""


def polars_city(path: Path, limit: float | None = None, **shape: int) -> list[Peer]:
    """Return Polars as a peer, on a file of the synthetic city."""
    scan = f'pl.scan_csv("{path}").with_columns(t=pl.col("time"))'
    if path.suffix == ".parquet":
        scan = f'pl.scan_parquet("{path}").with_columns(t=pl.col("time").dt.epoch("ms"))'
    return engine("polars", "polars", _POLARS.format(read=scan, **shape), limit)


def polars_cabs(folder: Path, limit: float, **shape: int) -> list[Peer]:
    """Return Polars as a peer, on the cab files."""
    scan = (
        f'pl.scan_csv("{folder}/new_*.txt", separator=" ", has_header=False, include_file_paths="user", '
        'new_columns=["latitude", "longitude", "occupied", "t"])'
    )
    return engine("polars", "polars", _POLARS.format(read=scan, **shape), limit)


def duckdb_city(path: Path, limit: float | None, **shape: int) -> list[Peer]:
    """Return DuckDB as a peer, on a file of the synthetic city."""
    query = f"select *, time t from read_csv('{path}')"
    if path.suffix == ".parquet":
        query = f"select *, epoch_ms(time) t from read_parquet('{path}')"
    return engine("DuckDB", "duckdb", _DUCKDB.format(read=query, **shape), limit)


def pandas_city(path: Path, limit: float, **shape: int) -> list[Peer]:
    """Return pandas as a peer, on a Parquet file of the synthetic city."""
    return engine("pandas", "pandas", _PANDAS.format(path=path, **shape), limit)


def chdb_city(path: Path, **shape: int) -> list[Peer]:
    """Return chDB (ClickHouse within the process) as a peer, on a Parquet file of the synthetic city."""
    return engine("chDB", "chdb", _CHDB.format(path=path, **shape))


def pipeline_dp(path: Path, **shape: int) -> list[Peer]:
    """Return PipelineDP as one peer per single-process backend, on a Parquet file of the synthetic city."""
    read = _ROWS.format(path=path, **shape)
    return [
        replace(peer, name=f"PipelineDP, {name}")
        for name, (imports, release) in _BACKENDS.items()
        for peer in engine("", "pipeline_dp", _PIPELINE_DP.format(read=read, imports=imports, release=release, **shape))
    ]


def bytewax(path: Path, times: float, **shape: int) -> list[Peer]:
    """Return Bytewax, a stream engine, as a peer on the ordered rows of a synthetic city's Parquet file."""
    code = _BYTEWAX.format(read=_ROWS.format(path=path, **shape), **shape)
    return [replace(peer, times=times) for peer in engine("bytewax", "bytewax", code)]
