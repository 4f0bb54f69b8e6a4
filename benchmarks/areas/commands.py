"""What a person waits for at the command line: the help, and the whole of ``make demo``."""

from __future__ import annotations

import shutil
import time

from benchmarks.measure import Row, Settings, median, penstock, process


def rows(settings: Settings) -> list[Row]:
    """``penstock --help``, and ``make demo`` in a new environment, its package cache warm."""
    shown = median([process(penstock("--help")) for _ in range(max(5, settings.repeats))])
    area = "commands"
    found = [
        Row(
            area=area,
            what="`penstock --help`",
            ours=shown.wall,
            cpu=shown.cpu,
            memory=shown.memory,
        )
    ]
    if not settings.quick and shutil.which("make"):
        demo(settings, 0)  # warms the cache
        what = "`make demo` from nothing, package cache warm: environment, install, run (one run)"
        found.append(Row(area=area, what=what, ours=demo(settings, 1)))
    return found


def demo(settings: Settings, number: int) -> float:
    """Seconds of one ``make demo``."""
    environment = settings.folder / f"demo_{number}"
    begun = time.perf_counter()
    process(["make", "demo", f"VENV={environment}"])
    taken = time.perf_counter() - begun
    shutil.rmtree(environment)
    return taken
