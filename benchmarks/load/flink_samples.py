"""What a run on Flink takes while it runs: memory and processor by kind of process, checkpoints, progress."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.load.common import resident

if TYPE_CHECKING:
    from flink_cluster import FlinkCluster

N_PARTS = 5


@dataclass(frozen=True)
class Sample:
    """One look at a run.

    Parameters
    ----------
    at
        Time of the day, in seconds.
    memory
        Resident, in MB, by kind of process.
    processor
        Seconds that each process has used until now, by its kind and number.
    rows
        That the run has counted.
    released
        Windows in the ledger.
    checkpoint
        Bytes and milliseconds of the latest one of Flink's; None before the first.
    """

    at: float
    memory: dict[str, float]
    processor: dict[tuple[str, int], float]
    rows: int
    released: int
    checkpoint: tuple[int, int] | None


def take(cluster: FlinkCluster, driver: Sequence[int], folder: Path) -> Sample:
    """Look at a run whose files are in a folder."""
    processes = cluster.processes() | {"driver and job server": list(driver)}
    operator, rows = folder / "operator", 0
    with contextlib.suppress(OSError, ValueError):
        rows = json.loads((operator / "parts" / "row_counts" / "cluster.json").read_text())["used"]
    released = 0
    with contextlib.suppress(OSError):
        released = (operator / "ledger").read_bytes().count(b"\n")
    return Sample(
        time(),
        {kind: sum(map(resident, pids)) for kind, pids in processes.items()},
        {(kind, pid): processor(pid) for kind, pids in processes.items() for pid in pids},
        rows,
        released,
        checkpoint(cluster),
    )


def checkpoint(cluster: FlinkCluster) -> tuple[int, int] | None:
    """Bytes and milliseconds of the latest checkpoint of the job that runs."""
    with contextlib.suppress(OSError, LookupError):
        latest = cluster.rest(f"/jobs/{cluster.jobs()[0]}/checkpoints")["latest"]["completed"]
        return latest and (int(latest["state_size"]), int(latest["end_to_end_duration"]))
    return None


def processor(pid: int) -> float:
    """Seconds of the processor that a process has used."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def events_per_second(samples: Sequence[Sample]) -> dict[str, int]:
    """Events that were counted between the first tenth and the last, and all until their last window was released."""
    rows = np.maximum.accumulate([sample.rows for sample in samples])  # a run that has ended removes its parts
    at = np.asarray([sample.at for sample in samples])
    first, tenth, most = (int(np.argmax(rows >= part * rows[-1])) for part in (1e-9, 0.1, 0.9))
    done = next(i for i, sample in enumerate(samples) if sample.released == samples[-1].released)
    counted = (rows[most] - rows[tenth]) / max(at[most] - at[tenth], 0.5)
    released = (rows[-1] - rows[first]) / max(at[done] - at[first], 0.5)
    return {"events per second, counted": round(counted), "and released": round(released)}


def processor_seconds(samples: Sequence[Sample]) -> dict[str, float]:
    """Seconds of the processor by kind of process, those that have ended meanwhile included."""
    first, used = dict(samples[0].processor), dict[tuple[str, int], float]()
    for sample in samples:
        used |= {process: max(seconds, used.get(process, 0.0)) for process, seconds in sample.processor.items()}
    found: dict[str, float] = {}
    for (kind, pid), seconds in used.items():
        found[kind] = found.get(kind, 0.0) + seconds - first.get((kind, pid), 0.0)
    return {kind: round(seconds, 1) for kind, seconds in found.items()}


def cores(samples: Sequence[Sample]) -> dict[str, float]:
    """Processors that each kind of process kept busy."""
    seconds = samples[-1].at - samples[0].at
    return {kind: round(used / seconds, 3) for kind, used in processor_seconds(samples).items()}


def most(samples: Sequence[Sample]) -> dict[str, Any]:
    """The most that each kind of process took, and checkpoints at their largest and longest."""
    kinds = samples[-1].memory
    checkpoints = [sample.checkpoint for sample in samples if sample.checkpoint]
    size, duration = np.max(checkpoints, axis=0).tolist() if checkpoints else (0, 0)
    return {
        "most memory (MB)": {kind: round(max(sample.memory[kind] for sample in samples)) for kind in kinds},
        "largest checkpoint (kB)": size // 1000,
        "longest checkpoint (ms)": duration,
    }


def by_fifths(samples: Sequence[Sample]) -> dict[str, Any]:
    """Memory, checkpoints and seconds when each fifth of the windows had been released."""
    whole = samples[-1].released
    ends = [next(s for s in samples if s.released >= part * whole / N_PARTS) for part in range(1, N_PARTS + 1)]
    begun = next(sample.at for sample in samples if sample.released)
    kinds = [kind for kind in samples[-1].memory if not kind.startswith("driver")]
    return {
        "memory by fifths (MB)": {kind: [round(sample.memory[kind]) for sample in ends] for kind in kinds},
        "checkpoints by fifths (kB)": [sample.checkpoint[0] // 1000 if sample.checkpoint else None for sample in ends],
        "seconds by fifths": [round(sample.at - begun, 1) for sample in ends],
    }
