"""Run the benchmarks: ``python -m benchmarks [AREA ...]``.

Figures are medians; peers run in turn with us. Whole runs, and targets that were missed, go to
``docs/performance.md``, every figure to the table beside it.
"""

from __future__ import annotations

import argparse
import compileall
import csv
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.measure import PEERS, Benchmark, Row, Scale, measured, python

#: Each area, a function of its cases, and the module with it.
AREAS = {
    "commands": "runs",
    "counting": "runs",
    "count_mechanisms": "mechanisms",
    "traces": "mechanisms",
    "noise": "mechanisms",
    "spaces": "spaces",
    "temporal": "accounting",
    "reconstruction": "accounting",
    "conditional": "accounting",
    "membership": "membership",
}
PACKAGES = ("apache-beam", "numpy", "polars", "pyarrow", "duckdb", "chdb", "pandas", "pipeline-dp", "bytewax")
PAGE = Path("docs/performance.md")
#: What cases are of where the page does not say otherwise.
USUAL = "10 million events from Parquet, 1,000 cells, "
INTRODUCTION = f"""# Performance

As `make bench` measures it and writes it here and, in full, in [performance.csv](performance.csv). Figures are
*processor seconds* (user and system): wall times depend on what else the machine does. They are *net*: `penstock run`
less `penstock validate`, and of a peer the program less the import of its library. Memory is the peak of the process.

Peers count distinct users in the form that each does best, in turn with penstock; penstock also bounds contributions,
adds noise, keeps the books, writes true counts and releases and makes the report. For files on one machine take
`--runner local`: the same bytes for less than the default, Beam in one process. Rows that do not say are of
{USUAL[:-2]}.
"""


def main() -> None:
    """Run benchmarks, print the figures and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("areas", nargs="*", help=f"what to measure: {', '.join(AREAS)}; default: everything")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size; writes no table")
    parser.add_argument("--repeats", type=int, default=3, help="runs that a median is taken of")
    parser.add_argument("--only", default="", metavar="WORDS", help="cases with these words in their name, again")
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("PENSTOCK_DATA"), help="folder of the unpacked real data sets"
    )
    options = parser.parse_args()
    unknown = set(options.areas) - set(AREAS)
    if unknown:
        parser.error(f"no such area: {', '.join(sorted(unknown))} (there are {', '.join(AREAS)})")
    # An installed package has its bytecode; a checkout has none where nothing may write it (PYTHONDONTWRITEBYTECODE).
    for package in ("pipeline", "mechanisms", "accountants", "evaluation"):
        compileall.compile_dir(package, quiet=1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        data = None if options.data is None else Path(options.data).resolve()
        scale = Scale(Path(folder), data, options.repeats, options.quick)
        for area in options.areas or AREAS:
            cases: Callable[[Scale], Iterator[Benchmark]] = getattr(import_module(f"benchmarks.{AREAS[area]}"), area)
            for case in (case for case in cases(scale) if options.only in case.what):
                rows += (measured_now := measured(area, case, options.repeats))
                print(*map(_line, measured_now), sep="\n", flush=True)
                if not options.quick:  # after each case: what is stopped keeps what it has measured
                    write(rows, options.repeats, bool(options.only))
    print(f"{len(rows)} figures, {sum(row.met is False for row in rows)} targets not met")


def write(rows: list[Row], repeats: int, is_part: bool = False) -> None:
    """Write the table, and its figures as JSON. Areas not measured this time, and with ``is_part`` the other cases of
    those that are, keep their previous figures.
    """
    figures = PAGE.with_suffix(".json")
    areas = json.loads(figures.read_text(encoding="utf-8"))["areas"] if figures.exists() else {}
    setting = {"machine": machine(), "versions": versions(), "repeats": repeats}
    for area in {row.area for row in rows}:
        cases: dict[str, list[dict[str, Any]]] = {}
        for row in areas[area]["rows"] if is_part and area in areas else ():
            cases.setdefault(row["what"], []).append(row)
        cases |= {now.what: [asdict(row) for row in rows if row.what == now.what] for now in rows if now.area == area}
        areas[area] = {**setting, "rows": [row for of_case in cases.values() for row in of_case]}
    areas = {area: areas[area] for area in AREAS if area in areas}
    figures.write_text(json.dumps({"areas": areas}, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    every = [Row(**row) for area in areas.values() for row in area["rows"]]
    with PAGE.with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(map(asdict, every))
    PAGE.write_text(page(areas), encoding="utf-8")


def page(areas: dict[str, dict[str, Any]]) -> str:
    """Return the page as Markdown: end-to-end runs compared with peers, and other cases that missed a target."""
    by_case: dict[str, list[Row]] = {}
    for values in areas.get("counting", {}).get("rows", ()):
        by_case.setdefault(values["what"], []).append(Row(**values))
    text = [INTRODUCTION, "|what|penstock|peers|memory MB|target missed|", "|---|---|---|---|---|"]
    text += ["|".join(("", what.removeprefix(USUAL), *_cells(rows), "")) for what, rows in by_case.items()]
    every = [row for of in areas.values() for row in (Row(**values) for values in of["rows"]) if row.met is not None]
    elsewhere = [Row(**values) for name, of in areas.items() if name != "counting" for values in of["rows"]]
    missed = [f"{row.what} ({_figure(row.ours, row.unit)}; {row.target})" for row in elsewhere if row.met is False]
    n_met = sum(bool(row.met) for row in every)
    text.append("; missed outside the table: ".join([f"\nTargets: {n_met} of {len(every)} met", *missed]) + ".\n")
    for setting in dict.fromkeys(of["machine"] for of in areas.values()):
        names = [name for name, of in areas.items() if of["machine"] == setting]
        repeats = sorted({row["repeats"] for name in names for row in areas[name]["rows"]})
        text.append(f"{', '.join(names)}: medians of {' to '.join(map(str, repeats))} runs. {setting}\n")
    text.append("Versions are in `docs/performance.json`.\n")
    return "\n".join(text)


def _cells(rows: list[Row]) -> tuple[str, ...]:
    """Format one case's table cells: penstock's figure, each peer's figure and ratio, peak memory, missed targets."""
    ours, memory = rows[0], rows[0].memory
    peers = [
        f"{_figure(row.theirs, row.unit)} {row.peer.partition(', counting')[0]} ({_ratio(row)})"
        for row in rows
        if row.theirs is not None
    ]
    missed = ", ".join(row.target for row in rows if row.met is False)
    return _figure(ours.ours, ours.unit), "; ".join(peers), "" if memory is None else f"{memory:.0f}", missed


def _line(row: Row) -> str:
    peer = "" if row.theirs is None else f"; {row.peer}: {_figure(row.theirs, row.unit)}, ratio {_ratio(row)}"
    met = {True: "met", False: "NOT met", None: "no target"}[row.met]
    return f"{row.area}: {row.what}: {_figure(row.ours, row.unit)}{peer}; {row.target} ({met})"


def _figure(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"


def _ratio(row: Row) -> str:
    if row.ratio is None:
        return ""
    return f"{row.ratio:.2f}" if row.ratio >= 0.1 else f"1/{1 / row.ratio:,.0f}"


def machine() -> str:
    """Describe the processor, cores and memory."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = os.getloadavg()[0]
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}, load {load:.0f} at the end."


def versions() -> str:
    """Describe the versions of Python and packages, including peers installed separately."""
    known = subprocess.run(
        python(_VERSIONS.format(packages=PACKAGES), PEERS), capture_output=True, text=True, check=True
    )
    return f"Versions: Python {platform.python_version()}, {known.stdout.strip()}."


_VERSIONS = """
from importlib import metadata
there = {{d.metadata["Name"].lower().replace("_", "-") for d in metadata.distributions()}}
print(", ".join(f"{{name}} {{metadata.version(name)}}" for name in {packages} if name in there))
"""


if __name__ == "__main__":
    main()
