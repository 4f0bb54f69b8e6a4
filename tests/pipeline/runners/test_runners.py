"""Byte identity of one configuration over all runners, in one go or killed and resumed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polars as pl
import pytest

from penstock.mechanisms.core.plugin import ConfigError, PenstockError
from penstock.pipeline import DONE
from penstock.pipeline.config.canonical import digest
from penstock.pipeline.config.plan import Plan
from penstock.pipeline.config.run import RunConfig, loads
from penstock.pipeline.output.writer import RunWriter
from penstock.pipeline.reporting.result import Result
from penstock.pipeline.run import run
from penstock.pipeline.runners.beam import jobs
from penstock.pipeline.runners.beam.graph import has_ended
from penstock.pipeline.runners.flink.jars import server
from penstock.pipeline.runners.flink.jobs import job_server, latest_checkpoint
from penstock.pipeline.sources.stream import Stream
from tests.integration.flink_runs import needs_flink
from tests.tools.ledgers import charges_in
from tests.tools.listeners import after_writes
from tests.tools.small_configuration import made_up_events, small_sections

START = datetime(2024, 1, 1, tzinfo=UTC)
N_WINDOWS = 12
#: Files that a run must make alike.
FILES = (
    "public/releases.parquet",
    "public/traces.parquet",
    "public/accounts.parquet",
    "operator/accounts.parquet",
    "operator/truth.parquet",
    "operator/rejects.jsonl",
    "operator/utility.parquet",
    "operator/ledger",
)

#: Runs a finite configuration into a folder; the last argument says whether to go on with what is there.
Runner = Callable[[RunConfig, Path, bool], Result]


def local(config: RunConfig, folder: Path, resume: bool) -> Result:
    """The plain loop over finite input: what all others are compared with."""
    return run(config, folder, runner="local", resume=resume)


def local_shards(config: RunConfig, folder: Path, resume: bool) -> Result:
    """The plain loop, users split into three shards."""
    return run(config, folder, runner="local", n_shards=3, resume=resume)


def direct(config: RunConfig, folder: Path, resume: bool) -> Result:
    """Beam's in-process runner."""
    return run(config, folder, runner="direct", resume=resume)


def direct_shards(config: RunConfig, folder: Path, resume: bool) -> Result:
    """Beam's in-process runner, users split into three shards."""
    return run(config, folder, runner="direct", n_shards=3, resume=resume)


def stream(config: RunConfig, folder: Path, resume: bool) -> Result:
    """Replay the same events as a stream, with a checkpoint after every slice."""
    return run(replace(config, source=Stream(of=config.source, block_rows=100, checkpoint=0)), folder, resume=resume)


RUNNERS = (local_shards, direct, direct_shards, stream)

#: Released point by point.
TRACES: dict[str, Any] = {
    "space": {"type": "grid", "south": 37, "north": 38, "west": -123, "east": -122, "rows": 1, "columns": 1},
    "windows": {"type": "timestamps"},
    "bounding": None,
    "landmarks": None,
    "accountants": [{"type": "landmark_budget"}],
    "utility": ["mae"],
}
#: What is changed in the configuration of a case.
CASES: dict[str, dict[str, Any]] = {
    "landmarks": {},
    "w_event": {"landmarks": None, "mechanism": {"type": "w_event_ba", "epsilon": 1.0, "w": 3}},
    "fpa block": {
        "landmarks": None,
        "mechanism": {"type": "fpa", "epsilon": 1.0, "coefficients": 2, "block": 4},
        "accountants": [{"type": "composition"}],
    },
    "landmark_adaptive": {"mechanism": {"type": "landmark_adaptive", "epsilon": 2.0}},
    "budget in rho, of a sample": {
        "mechanism": [
            {"type": "sampling", "rate": 0.7},
            {"type": "landmark_adaptive", "epsilon": 4.0, "delta": 1e-6, "noise": "discrete_gaussian"},
        ],
        "accountants": [{"type": "landmark_budget"}, {"type": "composition"}],
    },
    "filter": {
        "landmarks": None,
        "mechanism": [{"type": "w_event_ba", "epsilon": 4.0, "w": 3}, {"type": "filter"}],
        "accountants": [{"type": "composition"}],
    },
    "bounded by hash": {"bounding": {"max_cells": 1, "keep": "hash"}},
    "bounded by first": {"bounding": {"max_cells": 1, "keep": "first"}},
    "bounded in windows": {
        "bounding": {"max_cells": 2, "max_per_period": 5},
        "budget_period": "5h",  # the run begins and ends within one
        "landmarks": None,
        "mechanism": {"type": "period_uniform", "epsilon": 4.0},
        "accountants": [{"type": "composition"}],
    },
    "bounded in periods": {
        "bounding": {"max_cells": 2, "max_per_period": 3, "keep": "most_frequent"},
        "budget_period": "4h",
        "mechanism": [
            {"type": "period_uniform", "epsilon": 4.0, "delta": 1e-6, "noise": "discrete_gaussian"},
            {"type": "filter"},
        ],
    },
    "bounded over the run": {
        "bounding": {"max_per_period": 9, "keep": "last"},
        "landmarks": None,
        "mechanism": {"type": "fast", "epsilon": 4.0},
        "accountants": [{"type": "composition"}],
    },
    "targets": {
        "bounding": {"max_cells": 1},
        "landmarks": None,
        "mechanism": {"type": "discrete_laplace", "epsilon": 1.0},
        "accountants": [
            {"type": "composition"},
            {"type": "temporal", "correlation": {"estimate": "first", "windows": 4}},
            {"type": "reconstruction", "targets": 3, "prior": {"estimate": "first", "windows": 4}},
        ],
    },
    "traces": TRACES | {"mechanism": {"type": "planar_laplace", "epsilon": 0.01}},
    "traces with landmarks": TRACES
    | {
        "landmarks": {"windows": [2, 7, 8], "stay_points": {"distance": 20000, "time": "10m"}},
        "mechanism": {"type": "landmark_adaptive", "noise": "planar_laplace", "epsilon": 2.0, "radius": 50},
    },
}


def write_events(path: Path, n: int = 1500, seed: int = 0) -> None:
    """Events in the order of time, two hours empty; some outside the run, at an unknown place or unreadable."""
    rng = random.Random(seed)
    minutes = sorted(m for m in (rng.uniform(-30, 60 * N_WINDOWS + 60) for _ in range(n)) if not 300 < m < 420)
    rows = [
        f"user{rng.randrange(30)},{(START + timedelta(minutes=m)).isoformat()},{rng.choice('abcz')}" for m in minutes
    ]
    # A few rows in a hundred are outside the area of `TRACES`.
    rows = [f"{row},{37 + rng.random() * 1.03:.6f},{-123 + rng.random():.6f}" for row in rows]
    # One in forty comes a second time at the same instant, somewhere else.
    rows = [each for n, row in enumerate(rows) for each in (row, row[:-1] + "9")[: 1 if n % 40 else 2]]
    rows[50::400] = ["nobody,yesterday,a,37.5,-122.5"] * len(rows[50::400])
    path.write_text("\n".join(["user,time,place,latitude,longitude", *rows]) + "\n")


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The events of all cases."""
    path = tmp_path_factory.mktemp("events") / "events.csv"
    write_events(path)
    return path


@pytest.fixture(scope="module", params=CASES)
def config(request: pytest.FixtureRequest, events: Path) -> RunConfig:
    """A case's configuration."""
    sections = {
        "name": "identity",
        "seed": 3,
        "source": {
            "type": "csv",
            "path": str(events),
            "columns": {name: name for name in ("user", "time", "place", "latitude", "longitude")},
            "from": "2024-01-01T00:00:00Z",
            "until": f"2024-01-01T{N_WINDOWS:02}:00:00Z",
            "block_rows": 300,
        },
        "space": {"type": "places", "list": ["a", "b", "c"], "elsewhere": False},
        "windows": {"type": "fixed", "size": "1h"},
        "bounding": {"max_cells": 2},
        "landmarks": {"windows": [2, 7, 8]},
        "mechanism": {"type": "landmark_uniform", "epsilon": 4.0, "noise": "discrete_laplace"},
        "accountants": [{"type": "landmark_budget"}, {"type": "composition"}],
        "output": {"path": str(events.parent / "unused"), "report": False},
    } | CASES[request.param]
    return loads(json.dumps({name: value for name, value in sections.items() if value is not None}))


@pytest.fixture(scope="module")
def left_locally() -> dict[bytes, dict[str, Any]]:
    """Run a configuration in the plain loop, once per digest."""
    return {}


@pytest.fixture
def expected(
    config: RunConfig, left_locally: dict[bytes, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Run a case in the plain loop, once."""
    if (key := digest(config)) not in left_locally:
        left_locally[key] = left_by(local(config, tmp_path_factory.mktemp("expected") / "out", False))
    return left_locally[key]


def left_by(result: Result) -> dict[str, Any]:
    """Everything that has to be alike, and the row equation."""
    assert result.exit_code == DONE
    files = {name: path.read_bytes() for name in FILES if (path := result.folder / name).exists()}
    if "public/traces.parquet" in files:
        files |= whatever_the_shards(result.folder)
    return files | {"rows": result.manifest["rows"]}


def whatever_the_shards(folder: Path) -> dict[str, Any]:
    """Accounts and ledger of traces, which are kept by shard of users: sorted rows, and the largest ε of each point."""
    largest: dict[int, float] = {}
    for charge in charges_in(folder):
        largest[charge.window] = max(largest.get(charge.window, 0.0), charge.epsilon)
    rows = pl.read_parquet(folder / "public/accounts.parquet").rows()
    return {"operator/ledger": largest, "public/accounts.parquet": sorted(rows, key=str)}


class Killed(RuntimeError):
    """Stands for the end of the process; Beam raises an error of the same kind."""


#: Who is killed has done everything but resume in one go before or does so after it, so that one way of each runner
#: does for most cases.
WHOLE = ("landmarks", "traces with landmarks")
WAYS = [
    pytest.param(
        case,
        runner,
        killed,
        id=f"{case}-{runner.__name__}-{'killed and resumed' if killed else 'in one go'}",
        marks=[pytest.mark.slow] if runner is direct and case not in WHOLE else [],
    )
    for case in CASES
    for runner in RUNNERS
    for killed in (False, True)
    if case in WHOLE or killed == (runner is not direct)
]


@pytest.mark.parametrize(("config", "runner", "killed"), WAYS, indirect=["config"])
def test_every_runner_leaves_what_the_plain_loop_leaves(
    config: RunConfig,
    expected: dict[str, Any],
    tmp_path: Path,
    runner: Runner,
    killed: bool,
) -> None:
    if runner is stream and config.windows.per_event:
        with pytest.raises(ConfigError, match="finite source"):
            runner(config, tmp_path / "out", killed)
        return
    if killed:
        with after_writes(die), pytest.raises(RuntimeError):
            runner(config, tmp_path / "out", False)
    assert left_by(runner(config, tmp_path / "out", killed)) == expected


#: Cases on Flink that differ in their graphs, as finite input and as a stream, and when a run is killed.
ON_FLINK = (
    ("landmarks", False, None),
    ("targets", False, "at a release"),
    ("traces with landmarks", False, "at a release"),
    ("fpa block", True, None),
    ("landmarks", True, "behind a checkpoint"),
    ("targets", True, "behind a checkpoint"),
    ("bounded by first", True, "at its end"),
)


@pytest.fixture(scope="module")
def flink_options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Options of a run on the shared job server, with in-process Python workers."""
    with job_server("[local]", tmp_path_factory.mktemp("job_server"), server()[1]) as endpoint:
        yield [f"--job_endpoint={endpoint}"]


@needs_flink
@pytest.mark.integration
@pytest.mark.parametrize(("config", "endless", "killed"), ON_FLINK, indirect=["config"], ids=lambda value: str(value))
def test_flink_leaves_what_the_plain_loop_leaves(
    config: RunConfig,
    expected: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flink_options: list[str],
    endless: bool,
    killed: str | None,
) -> None:
    if endless:
        # Behind a checkpoint: the stream takes some seconds. Without a word it takes none, and no checkpoint is made.
        behind = killed == "behind a checkpoint"
        config = replace(config, source=Stream(of=config.source, speed="9000x" if behind else "max", block_rows=100))
        # A checkpoint is restored by a job server of the run alone: the one of all of them has another configuration.
        flink_options = [*([] if behind else flink_options), f"--checkpointing_interval={200 if behind else 3_600_000}"]

    def on_flink(resume: bool) -> Result:
        return run(config, tmp_path / "out", "flink", flink_options, resume=resume)

    if killed:
        with monkeypatch.context() as fatal:
            if killed == "at its end":
                fatal.setattr(jobs, "has_ended", fatally_ended)
            writes = nullcontext() if killed == "at its end" else after_writes(partial(die_on_flink, endless))
            with writes, pytest.raises(PenstockError, match="killed"):
                on_flink(resume=False)
    if killed == "at its end":
        cancel_on_the_way(monkeypatch)
    assert left_by(on_flink(resume=killed is not None)) == expected


def die_on_flink(behind_a_checkpoint: bool, writer: RunWriter, written: Any) -> None:
    """Fail permanently after a checkpoint, or at the last window."""
    is_last = not behind_a_checkpoint or written.releases[-1].window == writer.plan.grid.n_windows
    if is_last or latest_checkpoint(writer.plan) is not None:
        raise PenstockError("killed")


def fatally_ended(plan: Plan) -> bool:
    """Die just when everything has been done."""
    if has_ended(plan):
        raise PenstockError("killed")
    return False


def cancel_on_the_way(patch: pytest.MonkeyPatch) -> None:
    """Let the driver cancel a job that has gone back behind its end when it has written down its first row counts."""
    gone_back, cancelled, write = threading.Event(), threading.Event(), RunWriter.memberships

    def memberships(writer: RunWriter, name: str, n_memberships: int) -> None:
        if cancelled.is_set() or not gone_back.is_set():
            write(writer, name, n_memberships)
        gone_back.set()

    def ended(plan: Plan) -> bool:
        if gone_back.is_set() and has_ended(plan):
            cancelled.set()
        return cancelled.is_set()

    patch.setattr(RunWriter, "memberships", memberships)
    patch.setattr(jobs, "has_ended", ended)


def die(*_: Any) -> None:
    """Stand for the end of the process."""
    raise Killed


def test_the_plain_loop_resumes_too(config: RunConfig, expected: dict[str, Any], tmp_path: Path) -> None:
    with patch.object(RunWriter, "accounts", die), pytest.raises(Killed):
        local(config, tmp_path / "out", False)
    assert left_by(local(config, tmp_path / "out", True)) == expected


NO_BEAM = """
import sys
from penstock.pipeline.cli.main import main

for words in sys.argv[2:]:
    assert main(["run", sys.argv[1], "--quiet", *words.split()]) == 0
assert not [name for name in sys.modules if name.partition(".")[0] == "apache_beam"]
"""


def test_the_plain_loop_needs_no_beam(tmp_path: Path) -> None:
    sections = small_sections(tmp_path, made_up_events(100))
    config = tmp_path / "run.json"
    config.write_text(json.dumps(sections))
    command = [sys.executable, "-c", NO_BEAM, str(config), f"--out {tmp_path}/finite --runner local"]
    subprocess.run(command, check=True)
    config.write_text(json.dumps(sections | {"source": {"type": "stream", "of": sections["source"]}}))
    subprocess.run([*command[:-1], f"--out {tmp_path}/stream"], check=True)
    one, other = (tmp_path / name / "public" / "releases.parquet" for name in ("finite", "stream"))
    assert one.read_bytes() == other.read_bytes()
