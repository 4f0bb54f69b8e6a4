"""Benchmark cases, measured against peers that must produce the same results.

A case is a call in this process or a whole program. Penstock and its peers take turns, so that whatever else the
machine does meets all of them. Of calls the least of several runs counts, of programs the median.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The Python that has the peers: penstock is measured as it is installed, without packages that it does not need.
PEERS = os.environ.get("PENSTOCK_PEERS", sys.executable)
#: What one second is in each unit.
UNITS = {"s": 1.0, "ms": 1e3, "µs": 1e6}


@dataclass(frozen=True)
class Scale:
    """The size of the benchmarks.

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
        """Return the folder of a real data set, or None if missing."""
        folder = None if self.data is None else self.data / name
        return folder if folder is not None and folder.is_dir() else None


@dataclass(frozen=True)
class Program:
    """A process measured net of another process that only starts up.

    Parameters
    ----------
    command
        The process.
    start
        The one whose time is taken off; empty: nothing is.
    """

    command: Sequence[str]
    start: Sequence[str] = ()


@dataclass(frozen=True)
class Usage:
    """Wall-clock seconds and, for a process, also CPU seconds (user and system) and peak memory in MB."""

    wall: float
    cpu: float | None = None
    memory: float | None = None

    @property
    def seconds(self) -> float:
        """CPU seconds if known, since wall time depends on other load; otherwise wall-clock seconds."""
        return self.wall if self.cpu is None else self.cpu


Work = Callable[[], Any] | Program | Usage


@dataclass(frozen=True)
class Peer:
    """Another program that computes the same result.

    Parameters
    ----------
    name
        Whom penstock is compared with.
    work
        A call or a program as penstock's own, or what it was measured to take before.
    times
        The part of the work that it does goes so many times into the whole.
    equal
        Whether penstock's result and the peer's agree; None: not to be compared.
    limit
        Target: penstock takes at most so many times as long.
    """

    name: str
    work: Work
    times: float = 1.0
    equal: Callable[[Any, Any], bool] | None = None
    limit: float | None = None


@dataclass(frozen=True)
class Benchmark:
    """A benchmark case.

    Parameters
    ----------
    what
        What it is and how large.
    ours
        Penstock's way to do it.
    peers
        Whom it is compared with.
    unit
        ``s``, ``ms`` or ``µs``, and of what: ``ms a window``.
    number
        How many of them the work is for: the figure is of one.
    runs
        Calls of which the least counts.
    at_most, megabytes
        Targets: in the unit; peak memory.
    """

    what: str
    ours: Work
    peers: Sequence[Peer] = ()
    unit: str = "s"
    number: float = 1.0
    runs: int = 1
    at_most: float | None = None
    megabytes: float | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """The result of a case compared with one of its peers.

    Parameters
    ----------
    area, what
        Heading, and what is measured.
    ours, unit
        Our figure; for whole runs the net processor time.
    whole
        Processor seconds of the whole process, where ``ours`` is net of its start.
    peer, theirs
        Whom it is compared with, in the same run, and their figure.
    wall, their_wall
        Wall seconds of processes, net as the figures are.
    memory
        Peak in MB.
    target, met
        What was aimed at, in words, and whether it was reached.
    repeats
        Runs of which the figures are the median, or of calls the least.
    """

    area: str
    what: str
    ours: float
    unit: str = "s"
    whole: float | None = None
    peer: str = ""
    theirs: float | None = None
    wall: float | None = None
    their_wall: float | None = None
    memory: float | None = None
    target: str = ""
    met: bool | None = None
    repeats: int = 1

    @property
    def ratio(self) -> float | None:
        """The ratio of our figure to the peer's."""
        return None if not self.theirs else self.ours / self.theirs


def measured(area: str, case: Benchmark, repeats: int) -> list[Row]:
    """Measure a case: one row per peer, or one row if there are none. Raise `AssertionError` if results differ."""
    ours, *of_peers = _in_turn([case.ours, *(peer.work for peer in case.peers)], case.runs, repeats)
    for peer, (_, _, result) in zip(case.peers, of_peers):
        if peer.equal is not None and not peer.equal(ours[2], result):
            raise AssertionError(f"{case.what}: {peer.name} gives another result")
    net, whole, _ = ours
    factor = UNITS[case.unit.split()[0]] / case.number
    alone = Row(
        area=area,
        what=case.what,
        ours=factor * net.seconds,
        unit=case.unit,
        whole=whole.seconds if isinstance(case.ours, Program) and case.ours.start else None,
        wall=None if net.cpu is None else net.wall,
        memory=net.memory,
        repeats=repeats if isinstance(case.ours, Program) else case.runs,
    )
    own_targets = []
    if case.at_most is not None:
        own_targets.append((f"at most {case.at_most:g} {case.unit}", alone.ours <= case.at_most))
    if case.megabytes is not None:
        own_targets.append((f"under {case.megabytes:g} MB", (whole.memory or 0.0) < case.megabytes))
    if not case.peers:
        return [_beside(alone, own_targets)]
    rows: list[Row] = []
    for peer, (their_net, _, _) in zip(case.peers, of_peers):
        theirs = peer.times * their_net.seconds
        targets = [] if peer.limit is None else [(_times(peer), net.seconds <= peer.limit * theirs)]
        their_wall = None if their_net.cpu is None else their_net.wall
        peer_facts = {"peer": peer.name, "theirs": factor * theirs, "their_wall": their_wall}
        rows.append(_beside(alone, targets if rows else targets + own_targets, **peer_facts))
    return rows


def _times(peer: Peer) -> str:
    """Describe the limit relative to a peer in words."""
    assert peer.limit is not None
    name = peer.name.partition(",")[0]
    return f"at most {peer.limit:g} × {name}" if peer.limit >= 1 else f"at least {1 / peer.limit:g} times faster"


def _beside(row: Row, targets: Sequence[tuple[str, bool]], **peer: Any) -> Row:
    words = {"target": ", ".join(words for words, _ in targets), "met": all(met for _, met in targets)}
    return Row(**vars(row) | (words if targets else {}) | peer)


def _in_turn(works: Sequence[Work], runs: int, repeats: int) -> list[tuple[Usage, Usage, Any]]:
    """Return net usage, total usage and result of each piece of work, run in round-robin order."""
    turns = [[_once(work) for work in works] for _ in range(repeats if isinstance(works[0], Program) else runs)]
    summaries = []
    for work, (net, whole, results) in zip(works, (zip(*of_one) for of_one in zip(*turns))):
        middle = median if isinstance(work, Program) else least
        summaries.append((middle(net), middle(whole), results[-1]))
    return summaries


def _once(work: Work) -> tuple[Usage, Usage, Any]:
    if isinstance(work, Usage):
        return work, work, None
    if isinstance(work, Program):
        whole = process(work.command)
        return (_less(whole, process(work.start)) if work.start else whole), whole, None
    begun, used = time.perf_counter(), time.process_time()
    result = work()
    spent = Usage(time.perf_counter() - begun, time.process_time() - used)
    return spent, spent, result


def _less(whole: Usage, start: Usage) -> Usage:
    cpu = max((whole.cpu or 0.0) - (start.cpu or 0.0), 1e-9)
    return Usage(max(whole.wall - start.wall, 1e-9), cpu, whole.memory)


def usage(work: Work) -> Usage:
    """Run the work once and return its net usage."""
    return _once(work)[0]


def process(command: Sequence[str]) -> Usage:
    """Run a command to completion; raise `CalledProcessError` with its output on failure."""
    begun = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert child.stderr is not None
    messages = child.stderr.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - begun
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, list(command), stderr=messages.decode(errors="replace"))
    return Usage(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def median(usages: Sequence[Usage]) -> Usage:
    """Return the median of every usage figure."""
    return Usage(*(statistics.median(getattr(usage, name) for usage in usages) for name in ("wall", "cpu", "memory")))


def least(usages: Sequence[Usage]) -> Usage:
    """Return the usage with the fewest seconds."""
    return min(usages, key=lambda usage: usage.seconds)


def penstock(*words: str) -> list[str]:
    """Return the command line that runs penstock from this installation."""
    return [sys.executable, "-m", "penstock.pipeline.cli.main", *words]


def python(code: str, interpreter: str = sys.executable) -> list[str]:
    """Return a command that runs Python code in a separate process."""
    return [interpreter, "-c", code]


def has(module: str) -> bool:
    """Return whether a module is installed for the peers' Python."""
    return subprocess.run(python(f"import {module}", PEERS), capture_output=True, check=False).returncode == 0
