"""Noise keys on disk: permissions and rotation."""

from __future__ import annotations

import json
import os

import polars as pl
import pytest

from penstock.mechanisms.core.noise_keys import NoiseKey, NoiseKeyError, add_key_epoch, new_key_file
from penstock.mechanisms.core.plugin import ConfigError, DataError
from penstock.pipeline.cli.main import main
from tests.tools.deployments import configured, sections
from tests.tools.ledgers import charges_in, under_nonces_of, with_new_ledger
from tests.tools.listeners import after_slices
from tests.tools.small_configuration import run_locally as run

HOUR = 3_600_000
THREE = 1_704_067_200_000 + 3 * HOUR


@pytest.fixture
def key(tmp_path):
    new_key_file(tmp_path / "noise.key")
    return tmp_path / "noise.key"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a noise key"),
        ("abcd" * 15, "not a noise key"),
        ("abcd" * 17, "not a noise key"),
        ("00" * 32, "not a noise key"),
        ("ab" * 32, "not a noise key"),
        ("zz" * 32, "not a noise key"),
        ("{}", "not a noise key"),
        ('{"format": "penstock noise key", "version": 1, "epochs": []}', "not a noise key"),
        ("[" * 100_000, "not a noise key"),
        ("x" * (2 << 20), "longer than any"),
    ],
)
def test_what_is_no_key_is_refused_without_quoting_it(key, text, message):
    key.write_text(text)
    with pytest.raises(NoiseKeyError, match=message) as caught:
        NoiseKey.from_file(key)
    assert not text or text[:8] not in str(caught.value).replace(str(key), "")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o660, 0o644])
def test_a_key_that_others_may_touch_is_refused(key, mode):
    key.chmod(mode)
    with pytest.raises(NoiseKeyError, match=f"others may read this key .mode {mode:04o}"):
        NoiseKey.from_file(key)


def test_links_are_followed_and_their_target_is_judged(key, tmp_path):
    (tmp_path / "link").symlink_to(key)
    assert NoiseKey.from_file(tmp_path / "link") == NoiseKey.from_file(key)
    key.chmod(0o644)
    with pytest.raises(NoiseKeyError, match="others may read"):
        NoiseKey.from_file(tmp_path / "link")


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero", tmp_path / "missing"):
        with pytest.raises(NoiseKeyError):
            NoiseKey.from_file(path)


def test_a_folder_where_everybody_may_replace_the_key_is_refused(key, tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(NoiseKeyError, match="everybody may replace"):
        NoiseKey.from_file(key)
    tmp_path.chmod(0o1777)  # as /tmp: only the owner of a file may remove it
    assert NoiseKey.from_file(key)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_key_of_another_user_is_refused(key):
    os.chown(key, 12345, -1)
    with pytest.raises(NoiseKeyError, match="another user owns"):
        NoiseKey.from_file(key)


def test_a_key_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_KEY", bytes(range(32)).hex())
    value = sections(tmp_path) | {"noise_key": "env:PENSTOCK_KEY"}
    assert run(configured(value)).exit_code == 0
    monkeypatch.setenv("PENSTOCK_KEY", "short")
    with pytest.raises(NoiseKeyError, match="environment variable PENSTOCK_KEY"):
        run(configured(value), tmp_path / "other")


def test_a_new_key_never_replaces_one(key):
    before = key.read_bytes()
    with pytest.raises(NoiseKeyError, match="File exists"):
        new_key_file(key)
    assert key.read_bytes() == before
    assert [path.name for path in key.parent.iterdir()] == ["noise.key"]


def values(folder):
    return pl.read_parquet(folder / "public" / "releases.parquet").sort("window", "cell")


@pytest.mark.usefixtures("one_nonce")
def test_rotation_changes_no_window_before_its_epoch_and_every_one_after(tmp_path):
    value = sections(tmp_path) | {
        "space": {"type": "grid", "south": 37.7, "north": 37.8, "west": -122.5, "east": -122.4}
    }
    value["space"] |= {"rows": 6, "columns": 6}
    before = values(run(configured(value), tmp_path / "a").folder)
    add_key_epoch(tmp_path / "noise.key", THREE)
    folder = run(configured(with_new_ledger(value, "b")), tmp_path / "b").folder
    after = values(folder)
    assert before.filter(pl.col("window") <= 3).equals(after.filter(pl.col("window") <= 3))
    for window in (4, 5, 6):
        assert not before.filter(pl.col("window") == window).equals(after.filter(pl.col("window") == window))
    epochs = json.loads((folder / "operator" / "manifest.json").read_text())["noise"]["epochs"]
    key = NoiseKey.from_file(tmp_path / "noise.key")
    assert [row["fingerprint"] for row in epochs] == list(key.fingerprints)
    assert [(row["epoch"], row["from"], row["first_window"]) for row in epochs] == [
        (1, None, 1),
        (2, "2024-01-01T03:00:00Z", 4),
    ]
    assert "fingerprint" not in (folder / "public" / "manifest.json").read_text()


def test_epochs_between_windows_and_after_the_end(tmp_path):
    value = sections(tmp_path)
    for start in (THREE + 1, THREE + 2, THREE + 30 * HOUR):
        add_key_epoch(tmp_path / "noise.key", start)
    folder = run(configured(value)).folder
    epochs = json.loads((folder / "operator" / "manifest.json").read_text())["noise"]["epochs"]
    assert [row["first_window"] for row in epochs] == [1, 5, 5, None]


@pytest.fixture
def interrupted(tmp_path):
    """A stream that failed after some windows had been released."""
    value = sections(tmp_path)
    value["source"] = {"type": "stream", "of": value["source"], "order": "time", "checkpoint": "1ms"}
    value["source"]["of"]["block_rows"] = 1

    def fail(n_slices, _):
        if n_slices == 4:
            raise DataError("the disk is gone")

    with after_slices(fail), pytest.raises(DataError):
        run(configured(value))
    assert charges_in(tmp_path / "out")
    return value


def test_a_run_goes_on_with_a_key_that_has_a_later_epoch(interrupted, tmp_path):
    add_key_epoch(tmp_path / "noise.key", THREE + 2 * HOUR)
    assert run(configured(interrupted), resume=True).exit_code == 0
    # All of it is what a run from the beginning with the longer key and the same nonces releases.
    with under_nonces_of(tmp_path / "out"):
        other = run(configured(with_new_ledger(interrupted, "other")), tmp_path / "other").folder
    assert values(tmp_path / "out").equals(values(other))


def test_a_run_never_goes_on_with_another_key_or_an_epoch_that_has_begun(interrupted, tmp_path):
    kept = (tmp_path / "noise.key").read_bytes()
    add_key_epoch(tmp_path / "noise.key", THREE - 3 * HOUR)
    with pytest.raises(ConfigError, match=r"has released windows up to .* begin it after what has been released"):
        run(configured(interrupted), resume=True)
    (tmp_path / "noise.key").unlink()
    new_key_file(tmp_path / "noise.key")
    with pytest.raises(ConfigError, match="began with another noise key"):
        run(configured(interrupted), resume=True)
    (tmp_path / "noise.key").write_bytes(kept)
    assert run(configured(interrupted), resume=True).exit_code == 0


def test_a_worker_takes_neither_another_key_nor_epochs_that_came_later(tmp_path):
    path = tmp_path / "noise.key"
    began = new_key_file(path).fingerprints
    add_key_epoch(path, THREE)
    actual = NoiseKey.from_file(path)
    assert actual.fingerprints != began
    assert actual.limited_to(began).fingerprints == began
    assert actual.for_run(b"nonce").limited_to(began).nonce == b"nonce"
    assert actual.limited_to(began).subkey("noise", THREE) != actual.subkey("noise", THREE)
    with pytest.raises(NoiseKeyError, match="not the noise key that the run began with"):
        new_key_file(tmp_path / "other.key").limited_to(began)
    with pytest.raises(NoiseKeyError):
        actual.limited_to(())


def test_the_command_rotates_and_shows_without_telling(key, capsys):
    assert main(["key", "rotate", str(key), "--from", "2024-01-01T03:00:00Z"]) == 0
    assert main(["key", "show", str(key)]) == 0
    assert main(["key", "show", str(key), "--json"]) == 0
    text_of_error = capsys.readouterr().out
    assert "epoch 2" in text_of_error
    assert "2024-01-01T03:00:00Z" in text_of_error
    assert not [row for row in json.loads(key.read_text())["epochs"] if row["secret"] in text_of_error]
    assert main(["key", "rotate", str(key), "--from", "2024-01-01T02:00:00Z"]) == 2
    assert main(["key", "rotate", str(key), "--from", "tomorrow"]) == 2
