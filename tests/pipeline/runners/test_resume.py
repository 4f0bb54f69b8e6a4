"""Kill and resume at any moment: the same outputs as an uninterrupted run."""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from penstock.mechanisms.core.noise_keys import new_key_file
from penstock.mechanisms.core.plugin import ConfigError, DataError, StateVersionError
from penstock.pipeline import INTERRUPTED
from penstock.pipeline.config.plan import Plan, ledger_path, make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.output import checkpoint
from penstock.pipeline.output.manifest import merge_outputs
from penstock.pipeline.output.registration import open_ledger
from penstock.pipeline.releasing import account, release
from penstock.pipeline.runners import beam
from penstock.pipeline.runners.local import run_stream
from tests.tools.killed_run import run_in_a_process
from tests.tools.ledgers import charges_in, ledger_of, under_nonce, under_nonces_of, with_new_ledger
from tests.tools.listeners import after_slices, interrupted
from tests.tools.small_configuration import run_locally as run

START = datetime(2024, 1, 1, tzinfo=UTC)
N_WINDOWS = 18


def write_events(path: Path, n: int = 2000, seed: int = 0) -> None:
    """Events in about the order of time, up to 20 minutes late, some rows unreadable."""
    rng = random.Random(seed)
    moments = sorted((minute + rng.uniform(0, 20), minute) for minute in (rng.uniform(-5, 370) for _ in range(n)))
    received = [(START + timedelta(minutes=minute)).isoformat() for minute, _ in moments]
    rows = [
        f"user{rng.randrange(40)},{(START + timedelta(minutes=m)).isoformat()},{rng.choice('abcz')}" for _, m in moments
    ]
    rows[100::500] = ["nobody,yesterday,a"] * len(rows[100::500])
    rows = [f"{row},{moment}" for row, moment in zip(rows, received)]
    path.write_text("\n".join(["user,time,place,received", *rows]) + "\n")


def sections(folder: Path, stream: bool, deployment: bool = False) -> dict:
    source = {
        "type": "csv",
        "path": str(folder / "events.csv"),
        "columns": {"user": "user", "time": "time", "place": "place"},
        "from": "2024-01-01T00:00:00Z",
        "until": "2024-01-01T06:00:00Z",
        "block_rows": 100,
    }
    if stream:
        if deployment:
            source["columns"] |= {"arrival": "received"}
        source = {"type": "stream", "of": source, "order": "arrival", "checkpoint": "150ms"}
    secret = {"mode": "deployment", "noise_key": str(folder / "key")} if deployment else {"seed": 3}
    return secret | {
        "name": "killed",
        "source": source,
        "space": {"type": "places", "list": ["a", "b", "c"], "elsewhere": False},
        "windows": {"type": "fixed", "size": "20m", "allowed_lateness": "5m"},
        "bounding": {"max_cells": 2},
        "landmarks": {"windows": [2, 9, 15]},
        "mechanism": {"type": "landmark_uniform", "epsilon": 4.0, "noise": "discrete_laplace"},
        "accountants": [{"type": "landmark_budget"}, {"type": "composition"}],
        "output": {"path": str(folder / "out"), "report": False, "ledger_source": "events", "ledger_budget": 1000.0},
    }


@pytest.fixture
def folder(tmp_path):
    write_events(tmp_path / "events.csv")
    new_key_file(tmp_path / "key")
    return tmp_path


def configured(value: dict):
    return loads(json.dumps(value))


def outputs(folder: Path) -> dict[str, bytes]:
    names = ["public/releases.parquet", "public/accounts.parquet", "operator/rejects.jsonl", "operator/truth.parquet"]
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


#: What is charged is on disk then, and a part of what is released.
FIRST_RELEASE = {"fatal": "/parts/releases/", "after": True}


def start(value: dict, folder: Path, *, resume: bool, out: str = "out", **kill: Any) -> int:
    """Run in a subprocess, optionally killed, and return the exit code."""
    return process_of(value, folder, resume, out, **kill)[0]


def process_of(value: dict, folder: Path, resume: bool, out: str, **kill: Any) -> tuple[int, str]:
    """Run in a subprocess and return exit code and output."""
    config = folder / "run.yaml"
    config.write_text(json.dumps(value))
    message = folder / "said.txt"
    code = run_in_a_process(config, folder / out, resume, message, **kill)
    assert code in (0, -signal.SIGKILL), message.read_text()
    return code, message.read_text()


def killed_often(folder: Path, value: dict, n_kills: int, seed: int) -> Iterator[tuple[Any, Path]]:
    """Kill and resume runs at random writes and moments; yield an undisturbed one beside every one that ended.

    ``PENSTOCK_MINUTES`` says when enough has been killed, if not as often as wished.
    """
    until = time.monotonic() + 60 * float(os.environ.get("PENSTOCK_MINUTES", "inf"))
    rng, out = random.Random(seed), folder / "out"
    n_writes, seconds = process_of(value, folder, False, "counted")[1].split()[-2:]
    alone, actual, ends = None, [], 0
    while True:
        resume = (out / "operator" / "run.json").exists()
        share = rng.choice((1, 1 / 3))  # of the time of a whole run: one that lives for long, or one of many
        if len(actual) >= n_kills or time.monotonic() >= until:
            kill: dict[str, Any] = {}
        elif rng.random() < 0.5:
            kill = {"fatal": rng.randint(1, int(share * int(n_writes))), "after": rng.random() < 0.5}
        else:
            kill = {"seconds": rng.uniform(0, share * float(seconds))}
        if start(value, folder, resume=resume, **kill) != 0:
            actual.append(n_charged(out))
            continue
        ends += 1
        if alone is None or value.get("mode") == "deployment":  # which draws another nonce for each run
            alone = left_alone(value, out)
        yield alone, out
        print(f"seed {seed}: {len(actual)} kills, {ends} runs that ended like those left alone", flush=True)
        if not kill:
            break
        shutil.rmtree(out)
    parts = np.histogram(actual, [0, 1, N_WINDOWS / 2, N_WINDOWS, N_WINDOWS + 1, N_WINDOWS + 2])[0]
    print(f"killed before a charge, in both halves of the charges, with all of them, merged: {parts.tolist()}")


def n_charged(out: Path) -> int:
    """Windows in the ledger; all of them, and one more, once their releases are merged."""
    if (out / "public" / "releases.parquet").exists():
        return N_WINDOWS + 1
    return len(charges_in(out))


def left_alone(value: dict, out: Path):
    """The run in a folder as it would have been without a kill: with the same nonces, which only a deployment has."""
    drawn = bytes.fromhex(json.loads((out / "operator" / "run.json").read_text())["nonce"])
    assert bool(drawn) == (value.get("mode") == "deployment")
    alone = out.with_name("alone")
    shutil.rmtree(alone, ignore_errors=True)
    with under_nonces_of(out):
        return run(configured(with_new_ledger(value, f"alone-{secrets.token_hex(4)}")), alone)


def compare(alone, out: Path) -> None:
    """Everything but the outputs: rows, charges, and what no longer is there."""
    manifest = json.loads((out / "operator" / "manifest.json").read_text())
    assert manifest["rows"] == alone.manifest["rows"]
    charges = charges_in(out)
    assert [charge.window for charge in charges] == list(range(1, N_WINDOWS + 1))
    assert charges == charges_in(alone.folder)
    assert not list(out.rglob("*.tmp"))
    assert not (out / "operator" / "checkpoint").exists()


@pytest.mark.parametrize(("stream", "deployment", "n_kills"), [(True, True, 3), (False, True, 2)])
def test_killed_runs_end_like_others(folder, stream, deployment, n_kills):
    for alone, out in killed_often(folder, sections(folder, stream, deployment), n_kills, seed=n_kills):
        assert outputs(out) == outputs(alone.folder)
        compare(alone, out)


@pytest.mark.parametrize("deployment", [True, False])
def test_a_run_that_is_killed_before_it_has_its_mark_is_begun_anew(folder, deployment):
    value, out = sections(folder, False, deployment), folder / "out"
    assert start(value, folder, resume=False, fatal=1) == -signal.SIGKILL
    assert not (out / "operator" / "run.json").exists()
    with pytest.raises(ConfigError, match="holds no run to continue; leave --resume out to start one"):
        run(configured(value), resume=True)
    assert start(value, folder, resume=False) == 0
    alone = left_alone(value, out)
    assert outputs(out) == outputs(alone.folder)
    compare(alone, out)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("public/releases.parquet", "holds an earlier run; choose another folder"),
        ("public/parts/releases/000000000001.parquet", "holds an earlier run"),
        ("operator/ledger", "holds an earlier run"),
        ("operator/run.json", "holds an earlier run; continue it with --resume, or choose another folder"),
        ("operator/.ledger.json.0a1b2c3d.tmp", "holds an earlier run"),
        ("report.html", "holds an earlier run"),
        ("notes.txt", "holds files that no run wrote"),
    ],
)
def test_a_deployment_begins_in_no_folder_with_anything_but_what_comes_before_a_mark(folder, name, reason):
    for side in ("public", "operator"):
        (folder / "out" / side).mkdir(parents=True)
    actual = folder / "out" / name
    actual.parent.mkdir(parents=True, exist_ok=True)
    actual.write_text("kept")
    with pytest.raises(ConfigError, match=reason):
        run(configured(sections(folder, stream=False, deployment=True)))
    assert [path.read_text() for path in (folder / "out").rglob("*") if path.is_file()] == ["kept"]


def wait_for_a_checkpoint(process: subprocess.Popen, current: Path) -> None:
    """Until the process has written one, or has ended."""
    before = current.stat().st_mtime_ns if current.exists() else 0
    while process.poll() is None and (not current.exists() or current.stat().st_mtime_ns == before):
        time.sleep(0.01)


def killed_by_the_clock(folder: Path, n_kills: int, seed: int) -> Iterator[tuple[Any, Path]]:
    """Kill and resume loaded streams at random moments, as `killed_often` does; check the size of their state."""
    write_events(folder / "events.csv", n=30_000)
    value = sections(folder, stream=True, deployment=True)
    value["source"] |= {"speed": "2400x", "checkpoint": "100ms"}  # nine seconds
    (folder / "run.yaml").write_text(json.dumps(value))
    rng, out = random.Random(seed), folder / "out"
    command = [sys.executable, "-m", "penstock.pipeline.cli.main", "run", str(folder / "run.yaml"), "--quiet"]
    kept, kills = [], 0
    while True:
        resume = ["--resume"] if (out / "operator" / "run.json").exists() else []
        process = subprocess.Popen(command + resume, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if kills < n_kills:
            if rng.random() < 0.8:
                wait_for_a_checkpoint(process, out / "operator" / "checkpoint" / "latest")
            time.sleep(rng.uniform(0, 2))
            process.kill()
        _, errors = process.communicate()
        kept.append(sum(path.stat().st_size for path in (out / "operator" / "checkpoint").rglob("*") if path.is_file()))
        if process.returncode == 0:
            yield left_alone(value, out), out
            if kills == n_kills:
                break
            shutil.rmtree(out)
        else:
            assert process.returncode == -signal.SIGKILL, errors
            kills += 1
    print(f"{kills} kills; at most {max(kept):,} bytes of state were left")
    assert 0 < max(kept) < 40 * 3 * 10 * 40  # at most 40 people in 3 places and 10 windows, at 40 bytes


#: How often something is killed, and what draws the moments.
N_KILLS, SEED = int(os.environ.get("PENSTOCK_KILLS", "100")), int(os.environ.get("PENSTOCK_SEED", "7"))


@pytest.mark.slow
def test_a_command_that_is_killed_a_hundred_times_by_the_clock(folder):
    """One of twenty kills, at least thirty: each waits for a process to start."""
    for alone, out in killed_by_the_clock(folder, max(30, N_KILLS // 20), SEED):
        assert outputs(out) == outputs(alone.folder)
        compare(alone, out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stream", "deployment", "share"),
    [(True, False, 0.3), (True, True, 0.25), (False, False, 0.2), (False, True, 0.2)],
)
def test_runs_that_are_killed_a_hundred_times(folder, stream, deployment, share):
    """Or as often as ``PENSTOCK_KILLS`` says."""
    for alone, out in killed_often(folder, sections(folder, stream, deployment), round(share * N_KILLS), SEED):
        assert outputs(out) == outputs(alone.folder)
        compare(alone, out)


def test_a_finished_run_is_not_run_again(folder):
    value = sections(folder, stream=False)
    first = run(configured(value))
    before = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*") if path.is_file()}
    assert run(configured(value), resume=True).exit_code == 0
    assert before == {path: path.stat().st_mtime_ns for path in first.folder.rglob("*") if path.is_file()}


def test_only_the_same_configuration_is_continued(folder):
    value = sections(folder, stream=False)
    with pytest.raises(ConfigError, match="holds no run to continue"):
        run(configured(value), resume=True)
    run(configured(value))
    with pytest.raises(ConfigError, match=r"has another configuration \(seed\); continue it with"):
        run(configured(value | {"seed": 4}), resume=True)
    changed = value | {"accountants": [], "bounding": value["bounding"] | {"max_cells": 1}}
    with pytest.raises(ConfigError, match=r"has another configuration \(accountants, bounding.max_cells\)"):
        run(configured(changed), resume=True)


def test_how_fast_a_stream_is_replayed_may_change(folder):
    value = sections(folder, stream=True)
    first = run(configured(value))
    value["source"] |= {"speed": "1000000x", "checkpoint": "1m"}
    assert run(configured(value), resume=True).manifest == first.manifest
    mark = first.folder / "operator" / "run.json"
    mark.write_text(json.dumps({k: v for k, v in json.loads(mark.read_text()).items() if k != "configuration"}))
    with pytest.raises(StateVersionError, match="an earlier version of penstock began the run"):
        run(configured(value), resume=True)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "finite"])
def test_changed_input_is_noticed_before_anything_is_charged(folder, stream):
    value = sections(folder, stream)
    if stream:
        value["source"] |= {"checkpoint": "1h"}
    out = folder / "out"
    assert start(value, folder, resume=False, **FIRST_RELEASE) != 0
    charges = charges_in(out)
    assert charges
    write_events(folder / "events.csv", seed=1)
    with pytest.raises(DataError, match="is not what it was when the window was released"):
        run(configured(value), resume=True)
    assert charges_in(out) == charges


def resumed(value: dict, out: Path, check_engine: Callable[[Plan], None] | None) -> None:
    """Resume a run to its end; as if an engine kept its state, if there is a check, and the loop stood for its job."""
    config = configured(value)
    if check_engine is None:
        assert run(config, out, resume=True).exit_code == 0
        return
    config = replace(config, on_exhausted="stop")  # as the loop has it
    plan = make_plan(config, out, checkpoint.nonce_of_run(config, out, True), resumed=True)
    assert checkpoint.prepare(plan, check_engine) is None
    assert run_stream(plan) is None
    merge_outputs(plan)


IN_LOOP_AND_ON_ENGINE = pytest.mark.parametrize("check_engine", [None, beam.check_graph], ids=["loop", "engine"])


@pytest.mark.parametrize(
    ("stream", "check_engine"),
    [(True, None), (False, None), (True, beam.check_graph)],
    ids=["stream", "finite", "engine"],
)
def test_a_copied_folder_resumed_twice_spends_once_and_compares_no_inputs(folder, stream, check_engine):
    """Two copies of one folder, with different input: no window is released of both, and no noise is drawn twice."""
    value, out = sections(folder, stream, deployment=True), folder / "out"
    if stream:
        value["source"] |= {"checkpoint": "1h"}
    assert start(value, folder, resume=False, **FIRST_RELEASE) != 0
    n_before = len(charges_in(out))
    assert 0 < n_before <= N_WINDOWS
    assert {"ledger_head", "ledger_series"} <= json.loads((out / "public" / "manifest.json").read_text()).keys()
    copy = folder / "copy"
    shutil.copytree(out, copy)
    resumed(value, out, check_engine)
    ledger = ledger_of(out)
    before, parts = ledger.read_bytes(), sorted(copy.rglob("*.parquet"))
    # The same input again: what is charged is made again under its own nonce, and nothing is charged.
    again = folder / "again"
    shutil.copytree(copy, again)
    resumed(value, again, check_engine)
    assert outputs(again)["public/releases.parquet"] == outputs(out)["public/releases.parquet"]
    charged = [line for line in before.splitlines() if b'"entry"' not in line]
    assert [line for line in ledger.read_bytes().splitlines() if b'"entry"' not in line] == charged
    # Without one person: it stops at the first window that has another input, before it writes any of its batch.
    rows = (folder / "events.csv").read_text().splitlines()
    (folder / "events.csv").write_text("\n".join(row for row in rows if not row.startswith("user7,")) + "\n")
    with pytest.raises(DataError, match="is not what it was when the window was released"):
        resumed(value, copy, check_engine)
    assert sorted(copy.rglob("*.parquet")) == parts
    assert [line for line in ledger.read_bytes().splitlines() if b'"entry"' not in line] == charged


@pytest.fixture
def stopped(folder):
    """Configuration of a deployment's stream that was interrupted after four slices."""
    value = sections(folder, stream=True, deployment=True)
    value["source"]["of"] |= {"block_rows": 100}
    with interrupted(lambda n_slices, _: n_slices == 5):
        assert run(configured(value)).exit_code == INTERRUPTED
    return value


@IN_LOOP_AND_ON_ENGINE
def test_windows_that_were_not_charged_are_released_under_another_nonce(folder, stopped, check_engine):
    """A continuation draws other noise than the run would have, so that a copy of the folder cannot repeat it."""
    value = stopped
    out, n_charged = folder / "out", len(charges_in(folder / "out"))
    assert 0 < n_charged < N_WINDOWS
    resumed(value, out, check_engine)
    drawn = bytes.fromhex(json.loads((out / "operator" / "run.json").read_text())["nonce"])
    with under_nonce(drawn):
        alone = run(configured(with_new_ledger(value, "alone")), folder / "alone").folder
    first, second = (pl.read_parquet(at / "public" / "releases.parquet") for at in (out, alone))
    same = [first.filter(window=w).equals(second.filter(window=w)) for w in range(1, N_WINDOWS + 1)]
    assert all(same[:n_charged])
    assert not all(same[n_charged:])  # noise of another nonce may be that of some windows by chance


@IN_LOOP_AND_ON_ENGINE
def test_a_copy_of_folder_and_ledger_does_not_go_on_beside_the_original(folder, stopped, check_engine):
    """Neither under another name, nor in its place once the original has gone on."""
    value = stopped
    out, ledger = folder / "out", ledger_of(folder / "out")
    heads = {ledger: ledger.read_bytes(), ledger.with_suffix(".head"): ledger.with_suffix(".head").read_bytes()}
    for name in ("copy", "old"):
        shutil.copytree(out, folder / name)
    book = folder / "book"
    for path, data in heads.items():
        book.with_suffix(path.suffix).write_bytes(data)
    resumed(value, out, check_engine)
    write_events(folder / "events.csv", seed=1)
    before = outputs(folder / "copy")["public/releases.parquet"]
    for more in ({}, {"ledger_source": "renamed"}):
        copied = value | {"output": value["output"] | {"ledger": str(book)} | more}
        with pytest.raises(ConfigError, match=rf"{book} is a copy of {ledger}, which goes on counting"):
            resumed(copied, folder / "copy", check_engine)
    renamed = value | {"output": value["output"] | {"ledger": str(ledger), "ledger_source": "renamed"}}
    with pytest.raises(ConfigError, match=r"output.ledger_source: is 'renamed', and .* is the ledger of 'events'"):
        resumed(renamed, folder / "copy", check_engine)
    assert outputs(folder / "copy")["public/releases.parquet"] == before
    whole = {path: path.read_bytes() for path in heads}
    for path, data in heads.items():
        path.write_bytes(data)
    with pytest.raises(DataError, match="an older copy was put in its place"):
        resumed(value, folder / "old", check_engine)
    for path, data in whole.items():
        path.write_bytes(data)
    known = value | {"output": value["output"] | {"ledger": str(book), "new_ledger": True}}
    with pytest.raises(DataError, match="an older copy was put in its place"):
        resumed(known, folder / "copy", check_engine)


def test_a_run_that_ends_after_another_ledger_began_says_that_the_total_is_unknown(folder, stopped):
    value = stopped
    other = value | {"output": value["output"] | {"ledger": str(folder / "other"), "new_ledger": True}}
    assert start(other, folder, resume=False, out="second", **FIRST_RELEASE) != 0
    assert "total" in json.loads((folder / "second" / "public" / "manifest.json").read_text())
    assert run(configured(other), folder / "second", resume=True).exit_code == 0
    assert run(configured(value), resume=True).exit_code == 0
    for name in ("out", "second"):
        assert "total" in json.loads((folder / name / "public" / "manifest.json").read_text())


TRACES = {
    "space": {"type": "grid", "south": 37.7, "north": 37.8, "west": -122.5, "east": -122.4, "rows": 2, "columns": 2},
    "windows": {"type": "timestamps"},
    "mechanism": {"type": "planar_laplace", "epsilon": 0.01},
}


def traced(folder):
    """A deployment of the traces of three people."""
    value = sections(folder, stream=False, deployment=True) | {"on_exhausted": "stop"}
    rows = [f"user{i},2024-01-01T0{hour}:10:00Z,37.75,-122.45" for i in range(3) for hour in range(6)]
    (folder / "events.csv").write_text("\n".join(["user,time,latitude,longitude", *rows]) + "\n")
    value["source"]["columns"] = {name: name for name in ("user", "time", "latitude", "longitude")}
    value = {key: part for key, part in value.items() if key not in ("bounding", "landmarks", "accountants")} | TRACES
    value["output"].pop("ledger_budget")
    return value


def test_a_copy_of_traces_and_their_ledger_repeats_no_noise_even_acknowledged(folder):
    """Their noise is that of the first nonce, which the copy has as well."""
    value = traced(folder)
    out, copy, config = folder / "out", folder / "copy", configured(value)
    checkpoint.plan_in_folder(config, out)
    shutil.copytree(out, copy)
    for suffix in ("", ".head"):
        shutil.copy(f"{ledger_of(out)}{suffix}", f"{folder / 'copied'}{suffix}")
    value["output"] |= {"ledger": str(folder / "copied"), "new_ledger": True}
    with pytest.raises(ConfigError, match=r"copied is a copy of .*, which goes on counting"):
        checkpoint.plan_in_folder(configured(value), copy)


@pytest.mark.parametrize("on_points", [False, True], ids=["counts", "traces"])
def test_a_copy_from_before_the_first_part_repeats_no_noise_in_another_ledger(folder, on_points, caplog):
    """Counts are noised under a nonce of their own, which is said; traces, under the nonce of the folder, are not."""
    value = traced(folder) if on_points else sections(folder, stream=False, deployment=True)
    out, copy, config = folder / "out", folder / "copy", configured(value)
    checkpoint.begin(make_plan(config, out, checkpoint.nonce_of_run(config, out, False)))
    shutil.copytree(out, copy)
    (copy / "operator" / "ledger.head").unlink()
    drawn = json.loads((copy / "operator" / "run.json").read_text())["nonce"]
    config = configured(with_new_ledger(value, "renamed"))
    plan = make_plan(config, copy, checkpoint.nonce_of_run(config, copy, True), resumed=True)
    if on_points:
        with pytest.raises(DataError, match=r"does not know the run in .* the folder is a copy"):
            checkpoint.prepare(plan)
        assert not ledger_path(plan).exists()
        return
    assert checkpoint.prepare(plan) is None
    assert "THE NOISE KEY HAS CHARGED BEFORE" in caplog.text
    with open_ledger(plan).transaction() as transaction:
        assert transaction.nonce(1) != drawn


def test_an_interrupted_stream_goes_on_where_it_stopped(folder):
    value = sections(folder, stream=True)
    slices, counted = [], []
    with after_slices(lambda _, latest: slices.append(latest)):
        alone = run(configured(value), folder / "alone")
    with after_slices(lambda _, latest: counted.append(latest)), interrupted(lambda n_slices, _: n_slices == 5):
        first = run(configured(value))
    assert first.exit_code == INTERRUPTED
    released = pl.read_parquet(first.folder / "public" / "releases.parquet")["window"].unique().sort().to_list()
    assert released == list(range(1, len(released) + 1))
    assert 0 < len(released) < N_WINDOWS
    assert first.manifest["rows"]["rows"] < alone.manifest["rows"]["rows"]
    with after_slices(lambda _, latest: counted.append(latest)):
        assert run(configured(value), resume=True).exit_code == 0
    assert counted == slices  # none was counted twice
    assert outputs(first.folder) == outputs(alone.folder)
    compare(alone, first.folder)


LAYOUTS = (release, account, checkpoint)


@pytest.mark.parametrize(("module", "version"), [(module, n) for module in LAYOUTS for n in (1, 3)])
def test_a_version_that_nobody_reads_is_an_error_before_anything_is_released(folder, monkeypatch, module, version):
    value, out = sections(folder, stream=True), folder / "out"
    with monkeypatch.context() as other:
        other.setattr(module, "FORMAT", (module.FORMAT[0], version))
        with interrupted(lambda n_slices, _: n_slices == 5):
            assert run(configured(value)).exit_code == INTERRUPTED
    before = charges_in(out), outputs(out)["public/releases.parquet"]
    # This code knows version 2 alone: neither an older one nor a newer one.
    with monkeypatch.context() as other:
        other.setattr(module, "FORMAT", (module.FORMAT[0], 2))
        with pytest.raises(StateVersionError, match=f"{module.FORMAT[0]}.* has version {version}"):
            run(configured(value), resume=True)
    assert (charges_in(out), outputs(out)["public/releases.parquet"]) == before


LIMITED = """
import resource, sys

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
from penstock.pipeline.cli.main import main

sys.exit(main(["run", sys.argv[2], "--quiet"]))
"""


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "finite"])
def test_a_disk_that_takes_no_more_loses_nothing(folder, stream):
    """A limit on the size of files stands for a full disk: the ledger reaches it in the middle of the run."""
    value = sections(folder, stream, deployment=not stream)
    if stream:
        value["source"] |= {"checkpoint": "1h"}
    (folder / "run.yaml").write_text(json.dumps(value))
    words = [sys.executable, "-c", LIMITED, "3500" if stream else "5000", str(folder / "run.yaml")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    assert "File too large; nothing is lost: what was released and charged is on disk. Once" in done.stderr
    out = folder / "out"
    assert 0 < len(charges_in(out)) < N_WINDOWS
    assert start(value, folder, resume=True) == 0
    alone = left_alone(value, out)
    assert outputs(out) == outputs(alone.folder)
    compare(alone, out)
