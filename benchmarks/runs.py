"""Benchmarks of whole commands: ``--help``, ``make demo``, and the pipeline against engines that only count.

Every figure is of a fresh process, since that is what a user waits for. ``penstock run`` reads, counts, bounds,
releases, accounts, writes true counts and releases, and makes the report.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl

from benchmarks.measure import Benchmark, Peer, Program, Scale, Usage, penstock, process, usage
from benchmarks.peers import bytewax, chdb_city, duckdb_city, pandas_city, pipeline_dp, polars_cabs, polars_city

CONFIGURATION = """
name: benchmark
seed: 7
source: {source}
space: {{type: grid, south: 37.74, north: 37.82, west: -122.47, east: -122.37, rows: {rows}, columns: {columns}}}
windows: {{type: fixed, size: {size}}}
bounding: {{max_cells: 2}}
landmarks: {{recurring: ["07:00-09:00", "17:00-19:00"]}}
budget_period: 1d
mechanism: {{type: landmark_uniform, epsilon: 1.0}}
accountants: [{{type: landmark_budget}}]
output: {{path: {output}{without}}}
"""

CITY = {"rows": 25, "columns": 40, "step": 600_000, "start": 1704067200000}
CABS = {"rows": 10, "columns": 10, "n_windows": 504, "step": 3600, "start": 1211155200}
WEEK = 7  # days
RELEASES_ONLY = ", truth: false, user_summaries: false, report: false"
COLUMNS = "columns: {user: user, time: time, latitude: latitude, longitude: longitude}"


def commands(scale: Scale) -> Iterator[Benchmark]:
    """Yield cases for ``penstock --help``, and for ``make demo`` in a new environment with a warm package cache."""
    yield Benchmark("`penstock --help`", Program(penstock("--help")))
    if not scale.quick and shutil.which("make"):
        make_demo(scale)  # warms the cache
        what = "`make demo` from nothing, package cache warm: environment, install, run (one run)"
        yield Benchmark(what, make_demo(scale))


def make_demo(scale: Scale) -> Usage:
    """Measure one run of ``make demo``."""
    environment = scale.folder / "demo"
    begun = time.perf_counter()
    process(["make", "demo", f"VENV={environment}"])
    taken = time.perf_counter() - begun
    shutil.rmtree(environment)
    return Usage(taken)


def city(scale: Scale, n_users: int, suffix: str = ".parquet", n_days: int = WEEK) -> Path:
    """Generate several days of a synthetic city unless they exist, with about 24 events per user per day."""
    path = scale.folder / f"city_{n_users}_{n_days}d.parquet"
    if not path.exists():
        size = ("rows=25", "columns=40", "events_per_hour=1.0", f"n_users={n_users}", f"days={n_days}")
        process(penstock("generate", str(path), *(word for setting in size for word in ("--set", setting))))
    text = path.with_suffix(suffix)
    if not text.exists():
        frame = pl.scan_parquet(path).with_columns(pl.col("time").dt.epoch("ms"))
        frame.select("user", "time", "latitude", "longitude").sink_csv(text)
    return text


def run(scale: Scale, name: str, source: str, size: str, *words: str, without: str = "", side: int = 25) -> Program:
    """Return ``penstock run`` on a configuration, measured net of ``penstock validate`` on the same file.

    Parameters
    ----------
    scale, name
        Where the configuration and its run go.
    source, size, side
        Section of the configuration; of windows; rows of cells: 25 or 10.
    words
        Of the command line.
    without
        Outputs that are left out.
    """
    path, shape = scale.folder / f"{name}.yaml", {"rows": side, "columns": 40 if side == 25 else side}
    output = scale.folder / name
    path.write_text(CONFIGURATION.format(source=source, size=size, output=output, without=without, **shape))
    return Program(penstock("run", str(path), "--quiet", *words), penstock("validate", str(path)))


def city_source(path: Path, n_days: int = WEEK) -> str:
    """Return the ``source`` section for a file of `city`."""
    kind = "parquet" if path.suffix == ".parquet" else "csv, time_format: unix_ms, user_type: integer"
    times = f"from: 2024-01-01T00:00:00Z, until: 2024-01-{n_days + 1:02}T00:00:00Z"
    return f"{{type: {kind}, path: {path}, {times}, {COLUMNS}}}"


def counting(scale: Scale) -> Iterator[Benchmark]:
    """Yield cases on ten million events, cab data, a stream, many windows, and PipelineDP with one million events."""
    n_users = 6_000 if scale.quick else 60_000
    events = "1 million events" if scale.quick else "10 million events"
    # The same number of people's events a day and a week: what each window costs is there 144 and 1,008 times.
    for users, n_days in ((n_users, WEEK), (n_users * WEEK, 1)):
        path, shape = city(scale, users, n_days=n_days), CITY | {"n_windows": 144 * n_days}
        what, source = f"{events} from Parquet, 1,000 cells, {144 * n_days:,} windows", city_source(path, n_days)
        for runner, most in (("local", 2.3), ("direct", 3.2)):
            engines = [*polars_city(path, most, **shape), *duckdb_city(path, None, **shape)]
            engines += [*chdb_city(path, **shape), *pandas_city(path, 1.0, **shape)]
            program = run(scale, path.stem, source, "10m", "--runner", runner)
            yield Benchmark(f"{what}, --runner {runner}", program, engines, megabytes=800)
        yield from as_texts(scale, path, what, n_days)
    text, shape = city(scale, n_users, ".csv"), CITY | {"n_windows": 144 * WEEK}
    engines = [*duckdb_city(text, None, **shape), *polars_city(text, **shape)]
    what = f"{events} from CSV, 1,000 cells, 1,008 windows"
    yield Benchmark(what, run(scale, f"{text.stem}_csv", city_source(text), "10m"), engines)
    if (cabs := scale.data_set("cabspotting")) is not None:
        source = f"{{type: cabspotting, path: {cabs}, from: 2008-05-19T00:00:00Z, until: 2008-06-09T00:00:00Z}}"
        what = "11 million cab positions from 537 text files, 100 cells, 504 windows"
        yield Benchmark(what, run(scale, "cabs", source, "1h", side=10), polars_cabs(cabs, 3.0, **CABS))
    yield from streaming(scale, events, n_users)
    yield from beside_pipeline_dp(scale)


def as_texts(scale: Scale, path: Path, what: str, n_days: int) -> Iterator[Benchmark]:
    """Yield cases on the same file with text instead of numeric ids, and with rows read in time order.

    On a single day people are others every five hours, so that there are many of them.
    """
    if n_days == 1:
        many = path.with_stem(f"{path.stem}_many")
        user = 5 * pl.col("user") + pl.col("time").dt.hour().cast(pl.Int64) // 5
        pl.scan_parquet(path).with_columns(user=user).sink_parquet(many)
        path = many
    texts = path.with_stem(f"{path.stem}_texts")
    names = pl.format("user-{}", pl.col("user").cast(pl.String).str.zfill(10))
    pl.scan_parquet(path).with_columns(user=names).sink_parquet(texts)
    n_ids = pl.scan_parquet(path).select(pl.col("user").n_unique()).collect().item()
    local, source = ("--runner", "local"), city_source(path, n_days)
    numbers = Peer("penstock, ids as numbers", run(scale, path.stem, source, "10m", *local), limit=1.3)
    program = run(scale, texts.stem, city_source(texts, n_days), "10m", *local)
    peers = [numbers, *polars_city(texts, **CITY, n_windows=144 * n_days)]
    yield Benchmark(f"{what}, {n_ids:,} text ids, --runner local", program, peers)
    if n_days == 1:
        return
    ordered = run(scale, f"{path.stem}_ordered", f"{source[:-1]}, disorder: 0s}}", "10m", *local)
    yield Benchmark(f"{what}, disorder: 0s, --runner local", ordered, [replace(numbers, limit=None)], megabytes=500)


def streaming(scale: Scale, events: str, n_users: int) -> Iterator[Benchmark]:
    """Yield cases on an unbounded run at full speed, and a week of one-minute windows with few events."""
    path, tenth = city(scale, n_users), city(scale, n_users // 10)
    yield Benchmark(
        f"unbounded run over {events} in the order of time, 1,008 windows released one by one",
        run(scale, f"{path.stem}_stream", f"{{type: stream, speed: max, of: {city_source(path)}}}", "10m"),
        bytewax(tenth, 10.0, **CITY, n_windows=144 * WEEK),
        unit="µs an event",
        number=pl.scan_parquet(path).select(pl.len()).collect().item(),
        at_most=1,
    )
    days = 1 if scale.quick else WEEK
    source = f"{{type: synthetic, n_users: 100, rows: 25, columns: 40, days: {days}}}"
    yield Benchmark(
        f"{days * 1440:,} windows, 1,000 cells: landmark_uniform, landmark_budget, all files but the report",
        run(scale, "windows", source, "1m", without=", report: false"),
        unit="ms a window",
        number=days * 1440,
        at_most=1,
    )


def beside_pipeline_dp(scale: Scale) -> Iterator[Benchmark]:
    """Compare counting one million events with PipelineDP, which writes no files; run once since it takes minutes."""
    path = city(scale, 600 if scale.quick else 6_000)
    events = f"{'100,000' if scale.quick else '1 million'} events from Parquet, 1,000 cells, 1,008 windows"
    peers = [replace(peer, work=usage(peer.work)) for peer in pipeline_dp(path, **CITY, n_windows=144 * WEEK)]
    for runner in ("direct", "local"):
        ours = run(scale, path.stem, city_source(path), "10m", "--runner", runner, without=RELEASES_ONLY)
        yield Benchmark(f"{events}, --runner {runner}: releases, accounts and ledger as files", ours, peers)
