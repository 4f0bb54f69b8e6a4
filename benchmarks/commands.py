"""What a person waits for at the command line: the help, and the whole of ``make demo``."""

from __future__ import annotations

import shutil
import statistics
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
            target="under 0.3 s",
            met=shown.wall < 0.3,
        )
    ]
    if not settings.quick and shutil.which("make"):
        taken = [demo(settings, number) for number in range(settings.repeats + 1)][1:]
        took = statistics.median(taken)
        found.append(
            Row(
                area=area,
                what="`make demo` from nothing: environment, install, run",
                ours=took,
                target="under 60 s, package cache warm",
                met=took < 60,
            )
        )
    return found


def demo(settings: Settings, number: int) -> float:
    """Seconds of one ``make demo``; the first one warms the cache."""
    environment = settings.folder / f"demo_{number}"
    begun = time.perf_counter()
    process(["make", "demo", f"VENV={environment}"])
    taken = time.perf_counter() - begun
    shutil.rmtree(environment)
    return taken
