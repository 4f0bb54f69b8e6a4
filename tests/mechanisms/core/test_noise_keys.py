"""Noise keys: file permissions, and separation of purposes, epochs and seeds."""

from __future__ import annotations

import json
import os
import pickle
import stat
from pathlib import Path

import numpy as np
import pytest

from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.noise_keys import NoiseKey, NoiseKeyError, add_key_epoch, new_key_file
from penstock.mechanisms.core.plugin import ParameterError

SECRET = bytes(range(32)).hex()
ROTATION = 1_700_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    new_key_file(tmp_path / "key")
    return tmp_path / "key"


def test_new_key_is_fresh_private_and_never_overwritten(tmp_path: Path, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    key = NoiseKey.from_file(path)
    assert not key.simulation
    assert new_key_file(tmp_path / "other") != key
    with pytest.raises(NoiseKeyError, match="File exists"):
        new_key_file(path)
    assert NoiseKey.from_file(path) == key


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_key_that_others_can_read_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(NoiseKeyError, match="chmod 600"):
        NoiseKey.from_file(path)
    path.chmod(0o400)
    assert not NoiseKey.from_file(path).simulation


def test_purposes_and_seeds_give_distinct_subkeys() -> None:
    purposes = ("noise", "hash", "pseudonym", "sampling")
    subkeys = {NoiseKey.from_seed(seed).subkey(purpose) for seed in (0, 1, -1, 2**70) for purpose in purposes}
    assert len(subkeys) == 16
    assert {len(subkey) for subkey in subkeys} == {32}
    assert NoiseKey.from_seed(np.int64(7)) == NoiseKey.from_seed(7)  # type: ignore[arg-type]
    for bad in (1.0, True, "7"):
        with pytest.raises(ParameterError, match="seed"):
            NoiseKey.from_seed(bad)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="purpose"):
        NoiseKey.from_seed(7).subkey("")


def test_epoch_is_chosen_by_window_start(path: Path) -> None:
    before = NoiseKey.from_file(path)
    after = add_key_epoch(path, ROTATION)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(after.epochs) == 2
    assert after.epochs[1] == ROTATION
    assert (
        after.subkey("noise", ROTATION - 1) == before.subkey("noise", ROTATION - 1) == before.subkey("noise", ROTATION)
    )
    assert after.subkey("noise", ROTATION) != before.subkey("noise", ROTATION)
    assert after.subkey("hash") == before.subkey("hash")
    assert after != before
    with pytest.raises(ParameterError, match="start_ms"):
        add_key_epoch(path, ROTATION)


def test_noise_changes_with_the_epoch(path: Path) -> None:
    before, after = NoiseKey.from_file(path), add_key_epoch(path, ROTATION)
    draws = [
        NoiseSource(key, configuration=b"")
        .at(start, start + 1, "step", np.zeros(1), {})
        .discrete_laplace(2.0**39, 4)
        .tolist()
        for key in (before, after)
        for start in (ROTATION - 1, ROTATION)
    ]
    assert draws[0] == draws[2]
    assert draws[1] != draws[3]


def test_window_before_the_first_epoch_is_refused(path: Path) -> None:
    content = json.loads(path.read_text())
    content["epochs"][0]["start_ms"] = 1000
    path.write_text(json.dumps(content))
    with pytest.raises(NoiseKeyError, match="begins at 1000 ms"):
        NoiseKey.from_file(path).subkey("noise", 999)


@pytest.mark.parametrize(
    "text",
    [
        "",
        SECRET[:-2],
        SECRET + "00",
        "not hexadecimal " + SECRET,
        "{}",
        "{" + SECRET,
        json.dumps({"format": "penstock noise key", "version": 2, "epochs": [{"start_ms": None, "secret": SECRET}]}),
        json.dumps({"format": "penstock noise key", "version": 1, "epochs": []}),
        json.dumps({"format": "penstock noise key", "version": 1, "epochs": [{"start_ms": 0, "secret": SECRET}] * 2}),
        json.dumps({"format": "penstock noise key", "version": 1, "epochs": [{"start_ms": 0, "secret": None}]}),
    ],
)
def test_malformed_key_is_refused_without_quoting_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(NoiseKeyError) as caught:
        NoiseKey.from_file(path)
    assert SECRET[:10] not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_missing_and_binary_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(NoiseKeyError, match="No such file"):
        NoiseKey.from_file(tmp_path / "absent")
    with pytest.raises(NoiseKeyError, match="cannot make a new key"):
        new_key_file(tmp_path)
    new_key_file(tmp_path / "made" / "key")
    assert (tmp_path / "made").stat().st_mode & 0o077 == 0
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe" * 16)
    path.chmod(0o600)
    with pytest.raises(NoiseKeyError, match="is not text"):
        NoiseKey.from_file(path)


def test_environment_holds_digits_or_a_file(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setenv("KEY", SECRET + "\n")
    assert NoiseKey.from_environment("KEY") == NoiseKey.from_environment("KEY")
    monkeypatch.setenv("KEY", path.read_text())
    assert NoiseKey.from_environment("KEY") == NoiseKey.from_file(path)
    monkeypatch.setenv("KEY", SECRET[:-1])
    with pytest.raises(NoiseKeyError, match="environment variable KEY"):
        NoiseKey.from_environment("KEY")
    monkeypatch.delenv("KEY")
    with pytest.raises(NoiseKeyError, match="environment variable KEY"):
        NoiseKey.from_environment("KEY")


def test_no_representation_shows_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", SECRET)
    key = NoiseKey.from_environment("KEY")
    shown = f"{key} {key!r} {key.fingerprint} {NoiseSource(key, configuration=b'')!r}"
    assert SECRET[:8] not in shown
    assert repr(bytes(range(32)))[2:20] not in shown
    assert "NoiseKey(simulation=False, epochs=1)" in shown


def test_equality_hash_and_pickle() -> None:
    key = NoiseKey.from_seed(7)
    assert key == NoiseKey.from_seed(7) == pickle.loads(pickle.dumps(key))
    assert len({key, NoiseKey.from_seed(7), NoiseKey.from_seed(8)}) == 2
    assert key != "NoiseKey"
    with pytest.raises(AttributeError):
        key.simulation = False  # type: ignore[misc]
