"""Files of a deployment contain no user id, coordinate, secret or truth."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

import polars as pl
import pytest

from penstock.mechanisms.core.plugin import ConfigError
from penstock.pipeline.config.canonical import digest, values_digest
from penstock.pipeline.config.run import loads
from penstock.pipeline.monitoring.verify import verify
from penstock.pipeline.reporting.paper import write_for_paper
from tests.tools import deployments
from tests.tools.ledgers import ledger_of
from tests.tools.small_configuration import run_locally as run

PLANTED = (deployments.USER, str(deployments.LATITUDE), str(deployments.LONGITUDE))


@pytest.fixture
def deployment(tmp_path: Path):
    """The noise key and the sections of a deployment."""
    return tmp_path / "noise.key", deployments.sections(tmp_path)


def test_planted_facts_are_in_no_file_and_no_log(deployment, caplog):
    key, sections = deployment
    caplog.set_level(logging.DEBUG)
    folder = run(loads(json.dumps(sections))).folder
    secret = json.loads(key.read_text())["epochs"][0]["secret"]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"releases.parquet", "manifest.json", "ledger.head", "rejects.jsonl"}
    for path in files:
        text = path.read_bytes()
        if path.suffix == ".parquet":
            text += pl.read_parquet(path).write_csv().encode()
        for fact in (*PLANTED, secret):
            assert fact.encode() not in text, (path, fact)
    assert not any(fact in caplog.text for fact in (*PLANTED, secret))
    assert not (folder / "operator" / "truth.parquet").exists()
    assert not (folder / "operator" / "utility.parquet").exists()
    # The same facts are found where a simulation keeps rejected rows: the search above can fail.
    rejects = [json.loads(line) for line in (folder / "operator" / "rejects.jsonl").read_text().splitlines()]
    assert [(reject["line"], reject["raw"]) for reject in rejects] == [(8, None), (9, None)]


def test_a_simulation_of_the_same_does_keep_them(deployment, tmp_path):
    _, sections = deployment
    del sections["noise_key"]
    folder = run(loads(json.dumps(sections | {"mode": "simulation"}))).folder
    assert PLANTED[0] in (folder / "operator" / "rejects.jsonl").read_text()
    assert (folder / "operator" / "truth.parquet").exists()
    assert "unfit" in (folder / "public" / "manifest.json").read_text()


def test_a_deployment_verifies_and_is_never_overwritten(deployment):
    _, sections = deployment
    config = loads(json.dumps(sections))
    folder = run(config).folder
    assert all(check.passed for check in verify(folder))
    before = ledger_of(folder).read_bytes()
    with pytest.raises(ConfigError, match="holds an earlier run; choose another folder"):
        run(config)
    assert ledger_of(folder).read_bytes() == before


def test_released_values_are_whole_numbers(deployment):
    _, sections = deployment
    values = pl.read_parquet(run(loads(json.dumps(sections))).folder / "public" / "releases.parquet")["value"]
    assert (values == values.round()).all()


def test_the_public_manifest_names_neither_source_nor_key(deployment):
    key, sections = deployment
    folder = run(loads(json.dumps(sections))).folder
    public = (folder / "public" / "manifest.json").read_text()
    assert "events.csv" not in public
    assert str(key) not in public


def test_public_files_confirm_no_guess_of_the_source(deployment):
    _, sections = deployment
    config = loads(json.dumps(sections))
    folder = run(config).folder
    manifest = folder / "public" / "manifest.json"
    guess = digest(config).hex()
    assert guess in (folder / "operator" / "manifest.json").read_text()  # the search below can fail
    public = [path.read_bytes() for path in (folder / "public").rglob("*") if path.is_file()]
    assert not any(guess[:32].encode() in text or digest(config)[:16] in text for text in public)
    shown = json.loads(manifest.read_text())
    text = json.dumps(shown["configuration"], sort_keys=True, separators=(",", ":"))
    assert shown["configuration_digest"] == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("repaired", [False, True])
def test_verify_notices_another_public_configuration(deployment, repaired):
    """Also where its digest was made anew, since the operator's configuration says what is shown."""
    _, sections = deployment
    folder = run(loads(json.dumps(sections))).folder
    manifest = folder / "public" / "manifest.json"
    shown = json.loads(manifest.read_text())
    shown["configuration"]["mechanism"][0]["epsilon"] = 9.0
    if repaired:
        shown["configuration_digest"] = values_digest(shown["configuration"]).hex()
    manifest.write_text(json.dumps(shown))
    [wrong] = [check for check in verify(folder) if not check.passed]
    assert (wrong.name, wrong.detail.split("; ")[1]) == (
        "configuration digest",
        "wrong: the public one (earlier versions made another)",
    )


def test_what_is_cited_of_a_deployment_confirms_no_guess_of_the_source_either(deployment):
    _, sections = deployment
    config = loads(json.dumps(sections))
    folder = run(config).folder
    public = json.loads((folder / "public" / "manifest.json").read_text())["configuration_digest"]
    for path in write_for_paper(folder):
        text = path.read_text()
        assert public in text
        assert digest(config).hex() not in text


def test_the_membership_game_is_for_simulations(deployment):
    _, sections = deployment
    with pytest.raises(ConfigError, match=r"accountants\[1\]\.type.*left out in a deployment"):
        loads(json.dumps(sections | {"accountants": [{"type": "landmark_budget"}, {"type": "membership"}]}))
