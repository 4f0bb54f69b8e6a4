"""The nonce of a run: fresh noise and a second charge for a new run; identical repetition on resumption."""

from __future__ import annotations

import json
import pickle
import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from penstock.beam import make_plan as make_own_plan
from penstock.mechanisms.core.noise_keys import NoiseKey, NoiseKeyError, add_key_epoch, new_key_file
from penstock.mechanisms.core.plugin import ConfigError, StateVersionError
from penstock.pipeline import DONE
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.output import registration
from penstock.pipeline.output.writer import RunWriter
from penstock.pipeline.releasing.ledger import Ledger
from penstock.pipeline.reporting.result import Result
from tests.tools.deployments import configured, sections
from tests.tools.ledgers import charges_in, ledger_of, with_new_ledger
from tests.tools.listeners import after_writes
from tests.tools.small_configuration import run_locally as run

N_HOURS = 6
TRACES: dict[str, Any] = {
    "windows": {"type": "timestamps"},
    "landmarks": None,
    "bounding": None,
    "accountants": [],
    "mechanism": {"type": "planar_laplace", "epsilon": 0.01},
}


def deployed(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """A deployment over forty people in every cell, without landmarks, so that every window is worth comparing."""
    value = sections(tmp_path, **changes)
    lines = [
        f"u{i},2024-01-01T{hour:02d}:{i:02d}:00Z,{37.72 + 0.05 * (i % 2)},{-122.48 + 0.05 * (i % 3 // 2)}"
        for hour in range(N_HOURS)
        for i in range(40)
    ]
    (tmp_path / "events.csv").write_text("\n".join(["user,time,latitude,longitude", *lines]) + "\n")
    window_rows = {"landmarks": None, "mechanism": {"type": "discrete_laplace", "epsilon": 0.2}}
    window_rows = window_rows | {"accountants": [{"type": "composition"}]} | changes
    return {name: part for name, part in (value | window_rows).items() if part is not None}


def noise_by_window(result: Result) -> list[tuple[float, ...]]:
    """Values of each window: the counts are the same in every run of these tests, unless one person is left out."""
    frame = pl.read_parquet(result.folder / "public" / "releases.parquet")
    return [tuple(window_rows["value"]) for _, window_rows in frame.group_by("window", maintain_order=True)]


def test_a_key_for_a_run_is_another_key_with_the_same_fingerprint():
    key = NoiseKey.from_seed(1)
    one, other = key.for_run(b"1"), key.for_run(b"2")
    for purpose in ("noise", "hash", "sampling", "pseudonym", "ledger"):
        assert len({each.subkey(purpose) for each in (key, one, other)}) == 3
    assert one != other
    assert one.fingerprint == key.fingerprint
    assert one.limited_to(key.fingerprints).subkey("noise") == one.subkey("noise")


class Book:
    """A ledger that allows all, and says under which nonce each window is made."""

    def __init__(self, nonces: list[str]) -> None:
        self.nonces = nonces

    def nonce(self, window: int) -> str:
        return self.nonces[window - 1]

    def check(self, charge: Any) -> None:
        pass

    charge = check


def test_every_window_has_the_noise_of_the_nonce_that_its_ledger_names(tmp_path):
    """A copy that was renewed draws other noise from there on, and what is charged is made again under its own."""
    config, counts = configured(deployed(tmp_path)), np.full((3, 4), 10)
    nonces = [bytes([number] * 16) for number in (1, 2)]
    alone = [make_plan(config, nonce=nonce).release_loop() for nonce in nonces]
    values = [[r.values.tolist() for r in one.advance(one.start(), 1, counts)[0].releases] for one in alone]
    assert all(one != other for one, other in zip(*values))
    for loop in alone:
        for nonce, window_rows in zip(nonces, values):
            batch, _ = loop.advance(loop.start(), 1, counts[:1], Book([nonce.hex()]))
            assert [release.values.tolist() for release in batch.releases] == window_rows[:1]


def test_two_runs_differ_in_every_window_and_are_both_charged(tmp_path):
    """The equality oracle: without a person, the windows that stay the same are those where the person never was."""
    value = deployed(tmp_path)
    value["output"] |= {"ledger": str(tmp_path / "ledger"), "ledger_budget": 1.0}
    first = run(configured(value), tmp_path / "first")
    events = (tmp_path / "events.csv").read_text().splitlines()
    (tmp_path / "events.csv").write_text("\n".join(e for e in events if not e.startswith("u7,2024-01-01T03")) + "\n")
    second = run(configured(value), tmp_path / "second")
    windows = list(zip(noise_by_window(first), noise_by_window(second)))
    assert len(windows) == N_HOURS
    assert all(one != other for one, other in windows)
    charges = charges_in(tmp_path / "ledger")
    assert [charge.window for charge in charges] == [*range(1, N_HOURS + 1)] * 2
    assert len({charge.data for charge in charges}) == 2 * N_HOURS


def test_two_hosts_with_one_key_configuration_and_path_publish_different_vectors(tmp_path):
    hosts = [tmp_path / "one", tmp_path / "other"]
    new_key_file(tmp_path / "noise.key")
    for host in hosts:
        host.mkdir()
        shutil.copy(tmp_path / "noise.key", host)
        with chdir(host):
            assert run(configured(deployed(Path()))).exit_code == DONE
    folders = [Result(host / "out") for host in hosts]
    digests = {json.loads((f.folder / "public/manifest.json").read_text())["configuration_digest"] for f in folders}
    assert len(digests) == 1
    assert all(one != other for one, other in zip(*map(noise_by_window, folders)))


def test_trace_pseudonyms_are_another_runs_own(tmp_path):
    value = deployed(tmp_path, **TRACES)
    names = []
    for out in ("one", "other"):
        folder = run(configured(value), tmp_path / out).folder
        names.append(set(pl.read_parquet(folder / "public" / "traces.parquet")["pseudonym"].cast(pl.String)))
    assert len(names[0]) == len(names[1]) == 40
    assert not names[0] & names[1]


def parts_of(folder: Path) -> dict[Path, bytes]:
    """Released parts of a run so far."""
    return {p: p.read_bytes() for p in folder.rglob("*.parquet") if p.parent.name in ("releases", "traces")}


@pytest.mark.parametrize("runner", ["local", "direct"])
@pytest.mark.parametrize("changes", [{}, TRACES], ids=["counts", "traces"])
def test_a_killed_run_goes_on_with_its_nonce(tmp_path, monkeypatch, runner, changes):
    value, written = deployed(tmp_path, **changes), []

    def die(_: RunWriter, batch: Any) -> None:
        written.append(batch)
        raise RuntimeError("killed")

    with after_writes(die), pytest.raises(Exception, match=r"RuntimeError|killed"):
        run(configured(value), runner=runner)
    assert written
    parts = parts_of(tmp_path / "out")
    charges = list(Ledger(ledger_of(tmp_path / "out")).postings())
    nonce = json.loads((tmp_path / "out/operator/run.json").read_text())["nonce"]
    assert parts
    assert charges
    assert len(bytes.fromhex(nonce)) == 32
    monkeypatch.setattr("penstock.pipeline.run.outcome.clear_parts", lambda plan: None)
    for part in parts:
        part.unlink()
    assert run(configured(value), runner=runner, resume=True).exit_code == DONE
    assert parts.items() <= parts_of(tmp_path / "out").items()
    assert list(Ledger(ledger_of(tmp_path / "out")).postings())[: len(charges)] == charges
    assert json.loads((tmp_path / "out/operator/run.json").read_text())["nonce"] == nonce


@pytest.mark.parametrize("changes", [{}, TRACES], ids=["counts", "traces"])
@pytest.mark.usefixtures("one_nonce")
def test_every_runner_releases_the_same_under_one_nonce(tmp_path, changes):
    value, actual = deployed(tmp_path, **changes), []
    runners: list[dict[str, Any]] = [{"runner": "local"}, {"runner": "local", "n_shards": 3}, {}, {"n_shards": 3}]
    for number, options in enumerate(runners):
        folder = run(configured(with_new_ledger(value, f"source{number}")), tmp_path / str(number), **options).folder
        actual.append((folder / f"public/{'traces' if changes else 'releases'}.parquet").read_bytes())
    if not changes:
        value["source"] = {"type": "stream", "of": value["source"]}
        folder = run(configured(with_new_ledger(value, "stream")), tmp_path / "s").folder
        actual.append((folder / "public/releases.parquet").read_bytes())
    assert len(set(actual)) == 1


def test_the_nonce_travels_with_the_plan_to_workers(tmp_path):
    plan = make_plan(configured(deployed(tmp_path)), nonce=b"of this run")
    worker = pickle.loads(pickle.dumps(plan)).with_noise_key()
    assert worker.keys.noise_key == plan.keys.noise_key
    assert worker.keys.users == plan.keys.users
    assert worker.keys.noise_key != make_plan(configured(deployed(tmp_path)), nonce=b"of another").keys.noise_key


def test_a_plan_that_is_opened_takes_neither_another_key_nor_epochs_that_came_later(tmp_path):
    plan = make_plan(configured(deployed(tmp_path)), nonce=b"of this run")
    sent, path = pickle.dumps(plan), tmp_path / "noise.key"
    add_key_epoch(path, 1_704_078_000_000)
    assert NoiseKey.from_file(path).fingerprints != plan.keys.noise_key.fingerprints
    assert pickle.loads(sent).with_noise_key().keys.noise_key == plan.keys.noise_key
    path.unlink()
    new_key_file(path)
    with pytest.raises(NoiseKeyError, match="not the noise key that the run began with"):
        pickle.loads(sent).with_noise_key()


def test_another_beam_pipeline_has_the_nonce_of_its_folder(tmp_path):
    config = configured(deployed(tmp_path))
    one, again = (make_own_plan(config, tmp_path / "one") for _ in range(2))
    assert one.keys.noise_key == again.keys.noise_key
    assert one.keys.noise_key != make_own_plan(config, tmp_path / "other").keys.noise_key
    with pytest.raises(ConfigError, match="under the nonce of its run only"):
        registration.open_ledger(make_plan(config, tmp_path / "none"))


def test_a_simulation_has_no_nonce(tmp_path):
    value = deployed(tmp_path, mode="simulation", seed=3, noise_key=None)
    one, other = (run(configured(value), tmp_path / out) for out in ("one", "other"))
    assert noise_by_window(one) == noise_by_window(other)
    assert json.loads((one.folder / "operator/run.json").read_text())["nonce"] == ""


def test_a_folder_of_the_version_before_is_not_gone_on_with(tmp_path):
    value = deployed(tmp_path)
    folder = run(configured(value)).folder
    (folder / "operator" / "manifest.json").unlink()
    mark = folder / "operator" / "run.json"
    mark.write_text(json.dumps({k: v for k, v in json.loads(mark.read_text()).items() if k != "nonce"}))
    before = ledger_of(folder).read_bytes()
    with pytest.raises(StateVersionError, match="an earlier version of penstock began the run"):
        run(configured(value), resume=True)
    assert ledger_of(folder).read_bytes() == before
