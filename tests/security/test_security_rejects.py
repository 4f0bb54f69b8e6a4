"""Rejected rows of a deployment: sealed for the holder of the private key, or dropped."""

from __future__ import annotations

import json

import pytest
from deployments import USER, configured, leaks, planted, sections
from small_configuration import run_locally as run

from penstock.mechanisms.core.plugin import ConfigError, DataError
from penstock.pipeline.cli.main import main

hpke = pytest.importorskip("cryptography.hazmat.primitives.hpke", reason="needs penstock[crypto]")


def rejects(folder):
    return [json.loads(line) for line in (folder / "operator" / "rejects.jsonl").read_text().splitlines()]


@pytest.fixture
def sealed(tmp_path):
    assert main(["key", "pair", str(tmp_path / "reader")]) == 0
    value = sections(tmp_path)
    value["output"] |= {"rejects": "sealed", "rejects_key": str(tmp_path / "reader.pub")}
    return value


@pytest.mark.parametrize("stream", [False, True])
def test_only_the_private_key_opens_them(sealed, tmp_path, capsys, stream):
    if stream:
        sealed["source"] = {"type": "stream", "of": sealed["source"], "order": "time"}
    folder = run(configured(sealed)).folder
    assert not leaks(folder, planted(tmp_path))
    kept = rejects(folder)
    assert [(row["line"], row["raw"]) for row in kept] == [(8, None), (9, None)]
    assert len({row["sealed"] for row in kept}) == 2
    capsys.readouterr()
    assert main(["key", "open", str(tmp_path / "reader"), str(folder / "operator" / "rejects.jsonl")]) == 0
    opened = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(row["raw"].startswith(f"{USER},") and "sealed" not in row for row in opened)


def test_another_key_and_a_damaged_text_open_nothing(sealed, tmp_path, capsys):
    folder = run(configured(sealed)).folder
    path = str(folder / "operator" / "rejects.jsonl")
    assert main(["key", "pair", str(tmp_path / "other")]) == 0
    assert main(["key", "open", str(tmp_path / "other"), path]) == 1
    assert "sealed for another key" in capsys.readouterr().err
    assert main(["key", "open", str(tmp_path / "reader.pub"), path]) == 1
    (folder / "operator" / "rejects.jsonl").write_text(json.dumps({"sealed": "AAAA"}) + "\n")
    assert main(["key", "open", str(tmp_path / "reader"), path]) == 1
    (tmp_path / "reader").chmod(0o644)
    assert main(["key", "open", str(tmp_path / "reader"), path]) == 1
    assert "others may read" in capsys.readouterr().err


def test_a_pair_is_never_overwritten(tmp_path):
    from penstock.pipeline.steps.sealing import new_pair

    new_pair(tmp_path / "reader")
    assert (tmp_path / "reader").stat().st_mode & 0o077 == 0
    with pytest.raises(DataError, match="File exists"):
        new_pair(tmp_path / "reader")


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"rejects": "raw"}, r"output\.rejects: 'raw' is not allowed; it must be places or sealed in a deployment"),
        ({"rejects": "sealed"}, r"output\.rejects_key: .* given with rejects: sealed"),
        ({"rejects": "places", "rejects_key": "noise.key"}, r"rejects_key: .* left out without rejects: sealed"),
        ({"rejects": "sealed", "rejects_key": "noise.key"}, r"rejects_key: .* the \.pub file of 'penstock key pair'"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_read(tmp_path, output, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    value = sections(tmp_path)
    with pytest.raises(ConfigError, match=message):
        configured(value | {"output": value["output"] | output})


def test_a_simulation_may_keep_less(tmp_path):
    value = sections(tmp_path) | {"mode": "simulation"}
    del value["noise_key"]
    value["output"]["rejects"] = "places"
    assert [row["raw"] for row in rejects(run(configured(value)).folder)] == [None, None]
