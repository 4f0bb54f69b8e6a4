"""How things are measured: whole processes and single calls, ours and a peer's in turn, medians of several runs."""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The Python that has the peers: penstock is measured as it is installed, without packages that it does not need.
PEERS = os.environ.get("PENSTOCK_PEERS", sys.executable)


@dataclass(frozen=True)
class Settings:
    """What to measure with.

    Parameters
    ----------
    folder
        For made-up data and outputs.
    data
        Folder of the unpacked real data sets, or None.
    repeats
        Runs of which the median counts.
    quick
        A tenth of the size, without the cases that take minutes.
    """

    folder: Path
    data: Path | None = None
    repeats: int = 3
    quick: bool = False

    def data_set(self, name: str) -> Path | None:
        """Folder of one real data set, if it is there."""
        found = None if self.data is None else self.data / name
        return found if found is not None and found.is_dir() else None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table.

    Parameters
    ----------
    area, what
        Heading, and what is measured.
    ours, unit
        Our figure; for whole runs the net time.
    whole
        Seconds of the whole process, where ``ours`` is net of what ``penstock validate`` takes.
    peer, theirs
        Whom it is compared with, in the same run, and their figure.
    cpu, their_cpu
        Processor seconds, user and system, net as the times are.
    memory
        Peak in MB.
    target, met
        What was aimed at, in words, and whether it was reached.
    """

    area: str
    what: str
    ours: float
    unit: str = "s"
    whole: float | None = None
    peer: str = ""
    theirs: float | None = None
    cpu: float | None = None
    their_cpu: float | None = None
    memory: float | None = None
    target: str = ""
    met: bool | None = None

    @property
    def ratio(self) -> float | None:
        """Our figure over the peer's."""
        return None if not self.theirs else self.ours / self.theirs


@dataclass(frozen=True)
class Sample:
    """Wall and processor seconds, and peak memory in MB, of one process."""

    wall: float
    cpu: float
    memory: float

    def __sub__(self, other: Sample) -> Sample:
        return Sample(max(self.wall - other.wall, 1e-9), max(self.cpu - other.cpu, 1e-9), self.memory)


def process(command: Sequence[str]) -> Sample:
    """Run a command to its end; raises `CalledProcessError` with what it said if it fails."""
    begun = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert child.stderr is not None
    said = child.stderr.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - begun
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, list(command), stderr=said.decode(errors="replace"))
    return Sample(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def alternating(commands: Mapping[str, Sequence[str]], n_runs: int) -> dict[str, Sample]:
    """Medians of every command's runs; they take turns, so that what else the machine does meets all of them."""
    samples: dict[str, list[Sample]] = {name: [] for name in commands}
    for _ in range(n_runs):
        for name, command in commands.items():
            samples[name].append(process(command))
    return {name: median(found) for name, found in samples.items()}


def median(samples: Sequence[Sample]) -> Sample:
    """Median of each figure."""
    return Sample(*(statistics.median(getattr(s, name) for s in samples) for name in ("wall", "cpu", "memory")))


def seconds(call: Callable[[], Any], n_runs: int = 1) -> float:
    """Wall seconds of a call, the least of several runs: what else the machine does matters little."""
    best = math.inf
    for _ in range(n_runs):
        begun = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begun)
    return best


def penstock(*words: str) -> list[str]:
    """The command line of this installation."""
    return [sys.executable, "-m", "penstock.pipeline.cli.main", *words]


def python(code: str, interpreter: str = sys.executable) -> list[str]:
    """A program of a few lines in a process of its own."""
    return [interpreter, "-c", code]


def net_of_start(
    config: Path, peers: Mapping[str, tuple[str, str]], n_runs: int, *words: str
) -> dict[str, tuple[Sample, Sample]]:
    """Net and whole figures of ``penstock run`` on a configuration and of peers.

    Net of ``penstock validate`` of the same file, and of importing the peer. ``peers``: code, and code that imports;
    ``words``: of the command line of the run.
    """
    commands = {"penstock": penstock("run", str(config), "--quiet", *words), "start": penstock("validate", str(config))}
    for name, (code, imports) in peers.items():
        commands |= {name: python(code, PEERS), f"{name} start": python(imports, PEERS)}
    found = alternating(commands, n_runs)
    net = {"penstock": (found["penstock"] - found["start"], found["penstock"])}
    return net | {name: (found[name] - found[f"{name} start"], found[name]) for name in peers}
