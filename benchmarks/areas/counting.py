"""The whole pipeline beside engines that only count: distinct users per cell and window of the same files.

    python -m benchmarks counting [--data FOLDER]

Every figure is of a fresh process, since that is what a user waits for. ``penstock run`` reads, counts, bounds,
releases, accounts, writes true counts and releases, and makes the report.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.measure import Row, Sample, Settings, net_of_start, penstock, process

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
COLUMNS = "columns: {user: user, time: time, latitude: latitude, longitude: longitude}"


def city(settings: Settings, n_users: int, kind: str = "parquet", n_days: int = WEEK) -> Path:
    """Some days of a made-up city, about 24 events a user and day; made once."""
    path = settings.folder / f"city_{n_users}_{n_days}d.parquet"
    if not path.exists():
        size = ("rows=25", "columns=40", "events_per_hour=1.0", f"n_users={n_users}", f"days={n_days}")
        process(penstock("generate", str(path), *(word for setting in size for word in ("--set", setting))))
    if kind == "parquet":
        return path
    text = path.with_suffix(".csv")
    if not text.exists():
        import polars as pl

        frame = pl.scan_parquet(path).with_columns(pl.col("time").dt.epoch("ms"))
        frame.select("user", "time", "latitude", "longitude").sink_csv(text)
    return text


def city_config(
    settings: Settings, path: Path, streamed: bool = False, only_releases: bool = False, n_days: int = WEEK
) -> Path:
    """A configuration over a file of `city`; ``only_releases``: without what is for the operator's eyes."""
    kind = "parquet" if path.suffix == ".parquet" else "csv, time_format: unix_ms, user_type: integer"
    times = f"from: 2024-01-01T00:00:00Z, until: 2024-01-{n_days + 1:02}T00:00:00Z"
    source = f"{{type: {kind}, path: {path}, {times}, {COLUMNS}}}"
    name = f"{path.stem}_{path.suffix[1:]}"
    if streamed:
        source, name = f"{{type: stream, speed: max, of: {source}}}", f"{name}_stream"
    without = ", truth: false, user_summaries: false, report: false" if only_releases else ""
    name += "_only" if only_releases else ""
    config, shape = settings.folder / f"{name}.yaml", {"rows": 25, "columns": 40, "size": "10m"}
    config.write_text(CONFIGURATION.format(source=source, output=settings.folder / name, without=without, **shape))
    return config


@dataclass(frozen=True)
class Target:
    """At most so many times an engine's net time, and less than so many MB."""

    times: float
    megabytes: float = math.inf

    def words(self, engine: str) -> str:
        """The target as the table says it."""
        limit = "" if math.isinf(self.megabytes) else f", under {self.megabytes:g} MB"
        return f"at most {self.times:g} × {engine}{limit}"

    def is_met(self, ours: float, theirs: float, memory: float) -> bool:
        """Whether a run reaches it."""
        return ours <= self.times * theirs and memory < self.megabytes


def figures(what: str, net: Sample, whole: Sample) -> dict[str, Any]:
    """What every row says of a run: its net time, and the time, processor time and memory of its process."""
    return {
        "area": "counting",
        "what": what,
        "ours": net.wall,
        "whole": whole.wall,
        "cpu": net.cpu,
        "memory": whole.memory,
    }


def compared(
    what: str,
    config: Path,
    engines: Sequence[peers.Engine],
    targets: dict[str, Target],
    settings: Settings,
    *words: str,
) -> list[Row]:
    """A row for each engine; ``words``: of the command line of ``penstock run``."""
    programs = {engine.name: (engine.code, engine.imports) for engine in engines}
    found = net_of_start(config, programs, settings.repeats, *words)
    ours, whole = found["penstock"]
    rows = []
    for engine in engines:
        theirs, _ = found[engine.name]
        target = targets.get(engine.name)
        row = Row(
            **figures(what, ours, whole),
            peer=f"{engine.name}, counting only",
            theirs=theirs.wall,
            their_cpu=theirs.cpu,
            target=target.words(engine.name) if target else "",
            met=target.is_met(ours.wall, theirs.wall, whole.memory) if target else None,
        )
        rows.append(row)
    return rows


def rows(settings: Settings) -> Iterator[Row]:
    """Files of ten million events, the cab data, PipelineDP on one million, a stream, and many windows."""
    n_users = 6_000 if settings.quick else 60_000
    events = "1 million events" if settings.quick else "10 million events"
    # The same number of people's events a day and a week: what each window costs is there 144 and 1,008 times.
    for users, n_days in ((n_users, WEEK), (n_users * WEEK, 1)):
        yield from city_rows(settings, events, "parquet", users, n_days)
        yield from city_rows(settings, events, "parquet", users, n_days, "--runner", "local")
    yield from city_rows(settings, events, "csv", n_users, WEEK)
    cabs = settings.data_set("cabspotting")
    if cabs is not None:
        yield from cab_rows(settings, cabs)
    yield stream_row(settings, n_users, events)
    yield windows_row(settings)
    yield from pipeline_dp_rows(settings)


def city_rows(settings: Settings, events: str, kind: str, n_users: int, n_days: int, *words: str) -> list[Row]:
    """A file of the made-up city beside other engines; ``words``: of the command line, for another runner."""
    path = city(settings, n_users, kind, n_days)
    shape = CITY | {"n_windows": 144 * n_days}
    engines, targets = [peers.duckdb_city(path, **shape)], dict[str, Target]()
    if words:
        targets = {"DuckDB": Target(1.5)}
    elif kind == "csv":
        engines.append(peers.polars_city(path, **shape))
    else:
        engines += [peers.polars_city(path, **shape), peers.pandas_city(path, **shape)]
        targets = {"DuckDB": Target(2.5, 800), "pandas": Target(1)}
    title = {"parquet": "Parquet", "csv": "CSV"}[kind]
    what = " ".join((f"{events} from {title}, 1,000 cells, {144 * n_days:,} windows", *words))
    config = city_config(settings, path, n_days=n_days)
    return compared(what, config, engines, targets, settings, *words)


def cab_rows(settings: Settings, data: Path) -> list[Row]:
    """The cab data from its text files."""
    config = settings.folder / "cabs.yaml"
    times = "from: 2008-05-19T00:00:00Z, until: 2008-06-09T00:00:00Z"
    source = f"{{type: cabspotting, path: {data}, {times}}}"
    output = settings.folder / "cabs"
    config.write_text(CONFIGURATION.format(source=source, rows=10, columns=10, size="1h", output=output, without=""))
    what = "11 million cab positions from 537 text files, 100 cells, 504 windows"
    return compared(what, config, [peers.polars_cabs(data, **CABS)], {"polars": Target(3)}, settings)


def stream_row(settings: Settings, n_users: int, events: str) -> Row:
    """The unbounded run as fast as it goes."""
    import polars as pl

    path = city(settings, n_users)
    config = city_config(settings, path, streamed=True)
    n_events = pl.scan_parquet(path).select(pl.len()).collect().item()
    net, whole = net_of_start(config, {}, settings.repeats)["penstock"]
    rate = n_events / net.wall / 1e6
    what = f"unbounded run over {events} in the order of time, 1,008 windows released one by one"
    return Row(
        **figures(what, net, whole) | {"ours": rate, "unit": "million events/s"},
        target="at least 1 million events/s",
        met=rate >= 1,
    )


def windows_row(settings: Settings) -> Row:
    """Windows of a minute over a week with few events: what schedules, books and files cost."""
    days = 1 if settings.quick else WEEK
    n_windows = days * 1440
    source = f"{{type: synthetic, n_users: 100, rows: 25, columns: 40, days: {days}}}"
    config, output = settings.folder / "windows.yaml", f"{settings.folder / 'windows'}, report: false"
    config.write_text(CONFIGURATION.format(source=source, rows=25, columns=40, size="1m", output=output, without=""))
    net, whole = net_of_start(config, {}, settings.repeats)["penstock"]
    each = 1000 * net.wall / n_windows
    what = f"{n_windows:,} windows, 1,000 cells: landmark_uniform, landmark_budget, all files but the report"
    return Row(
        **figures(what, net, whole) | {"ours": each, "unit": "ms a window"},
        target="at most 1 ms a window",
        met=each <= 1,
    )


def pipeline_dp_rows(settings: Settings) -> Iterator[Row]:
    """Distinct users of one million events beside PipelineDP on Beam's local runner; once, since it takes minutes."""
    path = city(settings, 600 if settings.quick else 6_000)
    engine = peers.pipeline_dp(path, **CITY, n_windows=144 * WEEK)
    if not engine.installed:
        return
    theirs, _ = net_of_start(city_config(settings, path), {engine.name: (engine.code, engine.imports)}, 1)[engine.name]
    events = f"{'100,000' if settings.quick else '1 million'} events from Parquet, 1,000 cells, 1,008 windows"
    for runner, times in (("direct", 30), ("local", 50)):
        for only_releases, what in (
            (True, "releases, accounts and ledger as files (PipelineDP writes nothing)"),
            (False, "true counts, users' summary and report as well"),
        ):
            config = city_config(settings, path, only_releases=only_releases)
            ours, whole = net_of_start(config, {}, settings.repeats, "--runner", runner)["penstock"]
            yield Row(
                **figures(f"{events}, --runner {runner}: {what}", ours, whole),
                peer="PipelineDP 0.3.1, distinct users with the same bounds, Beam's local runner (one run)",
                theirs=theirs.wall,
                their_cpu=theirs.cpu,
                target=f"at least {times} times faster than PipelineDP",
                met=theirs.wall >= times * ours.wall,
            )
