"""One configuration releases the same bytes whatever runs it, in one go or killed and resumed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from small_configuration import made_up_events, small_sections

from pipeline.config.run import RunConfig, loads
from pipeline.exit_codes import DONE
from pipeline.output.writer import RunWriter
from pipeline.run import Result, run
from pipeline.steps.release import Batch

START = datetime(2024, 1, 1, tzinfo=UTC)
N_WINDOWS = 12
#: Files that a run must make alike.
FILES = (
    "public/releases.parquet",
    "public/accounts.parquet",
    "operator/accounts.parquet",
    "operator/truth.parquet",
    "operator/rejects.jsonl",
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
    """The same events in the order of time as a stream, as fast as it goes, with a checkpoint after every slice."""
    from pipeline.sources.stream import Stream

    return run(replace(config, source=Stream(of=config.source, block_rows=100, checkpoint=0)), folder, resume=resume)


RUNNERS = (local_shards, direct, direct_shards, stream)

#: What is changed in the configuration of a case.
CASES: dict[str, dict[str, Any]] = {
    "landmarks": {},
    "sliding": {
        "windows": {"type": "sliding", "size": "1h", "period": "30m"},
        "landmarks": None,
        "mechanism": {"type": "discrete_laplace", "epsilon": 1.0},
        "accountants": [{"type": "composition"}],
    },
    "w_event": {"landmarks": None, "mechanism": {"type": "w_event_ba", "epsilon": 1.0, "w": 3}},
    "fpa block": {
        "landmarks": None,
        "mechanism": {"type": "fpa", "epsilon": 1.0, "coefficients": 2, "block": 4},
        "accountants": [{"type": "composition"}],
    },
    "landmark_adaptive": {"mechanism": {"type": "landmark_adaptive", "epsilon": 2.0}},
    "bounded by hash": {"bounding": {"max_cells": 1, "keep": "hash"}},
    "bounded by first": {"bounding": {"max_cells": 1, "keep": "first"}},
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
}


def write_events(path: Path, n: int = 1500, seed: int = 0) -> None:
    """Events in the order of time, two hours empty; some outside the run, at an unknown place or unreadable."""
    rng = random.Random(seed)
    minutes = sorted(m for m in (rng.uniform(-30, 60 * N_WINDOWS + 60) for _ in range(n)) if not 300 < m < 420)
    rows = [
        f"user{rng.randrange(30)},{(START + timedelta(minutes=m)).isoformat()},{rng.choice('abcz')}" for m in minutes
    ]
    rows[50::400] = ["nobody,yesterday,a"] * len(rows[50::400])
    path.write_text("\n".join(["user,time,place", *rows]) + "\n")


@pytest.fixture(params=CASES)
def config(request: pytest.FixtureRequest, tmp_path: Path) -> RunConfig:
    """A case's configuration over its own copy of the events."""
    write_events(tmp_path / "events.csv")
    sections = {
        "name": "identity",
        "seed": 3,
        "source": {
            "type": "csv",
            "path": str(tmp_path / "events.csv"),
            "columns": {"user": "user", "time": "time", "place": "place"},
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
        "output": {"path": str(tmp_path / "unused"), "report": False},
    } | CASES[request.param]
    return loads(json.dumps({name: value for name, value in sections.items() if value is not None}))


def left_by(result: Result) -> dict[str, Any]:
    """Everything that has to be alike, and the row equation."""
    assert result.exit_code == DONE
    files = {name: (result.folder / name).read_bytes() for name in FILES if (result.folder / name).exists()}
    return files | {"rows": result.manifest["rows"]}


class Killed(RuntimeError):
    """Stands for the end of the process; Beam raises an error of the same kind."""


@pytest.mark.parametrize("killed", [False, True], ids=["in one go", "killed and resumed"])
@pytest.mark.parametrize("runner", RUNNERS, ids=lambda runner: runner.__name__)
def test_every_runner_leaves_what_the_plain_loop_leaves(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runner: Runner, killed: bool
) -> None:
    expected = left_by(local(config, tmp_path / "expected", False))
    if killed:
        with monkeypatch.context() as fatal:
            write = RunWriter.releases

            def die_after(self: RunWriter, batch: Batch, final_at: float | None = None) -> None:
                write(self, batch, final_at)
                raise Killed

            fatal.setattr(RunWriter, "releases", die_after)
            with pytest.raises(RuntimeError):
                runner(config, tmp_path / "out", False)
    assert left_by(runner(config, tmp_path / "out", killed)) == expected


def test_the_plain_loop_resumes_too(tmp_path: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = left_by(local(config, tmp_path / "expected", False))
    with monkeypatch.context() as fatal:
        fatal.setattr(RunWriter, "accounts", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            local(config, tmp_path / "out", False)
    assert left_by(local(config, tmp_path / "out", True)) == expected


NO_BEAM = """
import sys
from pipeline.cli.main import main

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
