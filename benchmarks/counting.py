"""The whole pipeline beside engines that only count: distinct users per cell and window of the same files.

Every figure is the wall time of a fresh process, since that is what a user waits for; ``net`` takes off what
``penstock validate`` (or, for a peer, importing it) needs. Run ``python -m benchmarks.counting [--cabs FOLDER]``.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CITY = ["n_users=60000", "rows=25", "columns=40", "events_per_hour=1.0"]
SOUTH, NORTH, WEST, EAST = 37.74, 37.82, -122.47, -122.37

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
output: {{path: {output}}}
"""

POLARS = """
import polars as pl
frame = {read}
frame.with_columns(
    w=(pl.col("t") - {start}) // {step},
    c=((pl.col("latitude") - 37.74) / (37.82 - 37.74) * {rows}).floor() * {columns}
      + ((pl.col("longitude") + 122.47) / (-122.37 + 122.47) * {columns}).floor(),
).filter(
    pl.col("latitude").is_between(37.74, 37.82), pl.col("longitude").is_between(-122.47, -122.37),
    pl.col("w").is_between(0, {n_windows} - 1),
).select("user", "w", "c").unique().group_by("w", "c").len().collect()
"""

DUCKDB = """
import duckdb
duckdb.sql('''
    select (t - {start}) // {step} w,
        floor((latitude - 37.74) / (37.82 - 37.74) * {rows}) * {columns}
            + floor((longitude + 122.47) / (-122.37 + 122.47) * {columns}) c,
        count(distinct "user") n
    from ({read}) where latitude between 37.74 and 37.82 and longitude between -122.47 and -122.37
        and t >= {start} and t < {start} + {n_windows} * {step}
    group by all
''').fetchall()
"""


def timed(command: list[str], n_runs: int) -> tuple[float, float]:
    """Median wall seconds of a command, and the peak memory in MB of the largest process so far."""
    seconds = []
    for _ in range(n_runs):
        begun = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def penstock(*words: str) -> list[str]:
    return [sys.executable, "-m", "pipeline.cli", *words]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def compare(title: str, config: Path, peers: dict[str, tuple[str, str]], n_runs: int) -> list[dict[str, object]]:
    """Rows of one comparison: penstock first, then each peer (its code, and code that only imports it)."""
    wall, memory = timed(penstock("run", str(config), "--quiet"), n_runs)
    start, _ = timed(penstock("validate", str(config)), n_runs)
    rows: list[dict[str, object]] = [
        {"what": title, "who": "penstock", "wall_s": wall, "net_s": wall - start, "peak_mb": memory}
    ]
    for name, (code, import_only) in peers.items():
        peer, _ = timed(python(code), n_runs)
        idle, _ = timed(python(import_only), n_runs)
        net = peer - idle
        rows.append(
            {"what": title, "who": name, "wall_s": peer, "net_s": net, "penstock_net_ratio": (wall - start) / net}
        )
    return rows


def city(folder: Path, n_runs: int) -> list[dict[str, object]]:
    """Ten million synthetic events, 1,000 cells, ten-minute windows, from Parquet."""
    path = folder / "city.parquet"
    subprocess.run(
        [*penstock("generate", str(path)), *(word for setting in CITY for word in ("--set", setting))], check=True
    )
    columns = "{user: user, time: time, latitude: latitude, longitude: longitude}"
    times = "from: 2024-01-01T00:00:00Z, until: 2024-01-08T00:00:00Z"
    config = folder / "city.yaml"
    source = f"{{type: parquet, path: {path}, {times}, columns: {columns}}}"
    config.write_text(CONFIGURATION.format(source=source, rows=25, columns=40, size="10m", output=folder / "city"))
    shape = {"rows": 25, "columns": 40, "n_windows": 1008, "step": 600_000, "start": 1704067200000}
    scan = f'pl.scan_parquet("{path}").with_columns(t=pl.col("time").dt.epoch("ms"))'
    query = f"select *, epoch_ms(time) t from read_parquet(''{path}'')".replace("''", '"')
    peers = {
        "polars": (POLARS.format(read=scan, **shape), "import polars"),
        "duckdb": (DUCKDB.format(read=query.replace('"', "'"), **shape).replace("'''", '"""'), "import duckdb"),
    }
    return compare("10 million events from Parquet", config, peers, n_runs)


def cabs(folder: Path, data: Path, n_runs: int) -> list[dict[str, object]]:
    """The cab data from its text files."""
    config = folder / "cabs.yaml"
    times = "from: 2008-05-19T00:00:00Z, until: 2008-06-09T00:00:00Z"
    source = f"{{type: cabspotting, path: {data}, {times}}}"
    config.write_text(CONFIGURATION.format(source=source, rows=10, columns=10, size="1h", output=folder / "cabs"))
    shape = {"rows": 10, "columns": 10, "n_windows": 504, "step": 3600, "start": 1211155200}
    scan = (
        f'pl.scan_csv("{data}/new_*.txt", separator=" ", has_header=False, include_file_paths="user", '
        'new_columns=["latitude", "longitude", "occupied", "t"])'
    )
    query = (
        "select column0 latitude, column1 longitude, column3 t, filename as user "
        f"from read_csv('{data}/new_*.txt', delim=' ', header=false, filename=true)"
    )
    peers = {
        "polars": (POLARS.format(read=scan, **shape), "import polars"),
        "duckdb": (DUCKDB.format(read=query, **shape).replace("'''", '"""'), "import duckdb"),
    }
    return compare("cab data from 537 text files", config, peers, n_runs)


def main() -> None:
    """Print the table, and as JSON where a file is named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cabs", type=Path, help="folder of the cab text files")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        rows = city(Path(name), arguments.runs)
        if arguments.cabs:
            rows += cabs(Path(name), arguments.cabs.resolve(), arguments.runs)
    for row in rows:
        print("  ".join(f"{k}={v:.2f}" if isinstance(v, float) else f"{v}" for k, v in row.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
