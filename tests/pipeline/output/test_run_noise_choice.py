"""``noise: auto`` in runs: the same bytes as the noise that it names, a ledger's measure, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deployments import configured, sections
from small_configuration import run_locally as run

from penstock.mechanisms.core.plugin import ConfigError
from penstock.pipeline.cli.main import main
from penstock.pipeline.config.canonical import digest
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads


def deployment(folder: Path, out: str = "out", n: int = 3, **mechanism: Any) -> dict[str, Any]:
    """A deployment whose person is in at most ``n`` cells and windows of a day."""
    value = sections(
        folder,
        mechanism={"type": "period_uniform", "epsilon": 1.0} | mechanism,
        accountants=[{"type": "composition"}],
        bounding={"max_cells": 4, "max_per_period": n},
        budget_period="1d",
    )
    value["output"] = {"path": str(folder / out), "ledger_source": "events", "ledger": str(folder / "ledger")}
    return value


def test_a_run_is_that_of_a_configuration_which_names_the_noise(tmp_path):
    left = configured(deployment(tmp_path, delta=1e-6))
    named = configured(deployment(tmp_path))
    assert make_plan(left).config.mechanism == named.mechanism
    assert make_plan(left).keys.configuration == digest(named)
    assert make_plan(named).noise_choice is None


@pytest.mark.parametrize(("n", "first"), [(3, "discrete_laplace"), (24, "discrete_gaussian")])
def test_later_runs_keep_to_the_measure_of_their_ledger(tmp_path, n, first):
    result = run(configured(deployment(tmp_path, n=n, delta=1e-6)))
    released = pl.read_parquet(result.folder / "public" / "releases.parquet")
    assert set(released["noise"].cast(pl.String)) == {first}
    later = make_plan(configured(deployment(tmp_path, out="other", n=27 - n, delta=1e-6)))
    assert later.chain.reader.family.name == first
    elsewhere = deployment(tmp_path, out="other", n=27 - n, delta=1e-6)
    elsewhere["output"]["ledger"] += "2"
    assert make_plan(configured(elsewhere)).chain.reader.family.name != first


def test_the_choice_is_in_the_manifest_and_said_before_the_run(tmp_path, capsys):
    result = run(configured(deployment(tmp_path, delta=1e-6)))
    manifest = json.loads((result.folder / "public" / "manifest.json").read_text())
    assert manifest["noise_choice"].startswith("Laplace (auto): standard deviation 4.")
    assert manifest["configuration"]["mechanism"][0]["noise"] == "discrete_laplace"
    assert manifest["guarantee"][0]["measure"] == "epsilon"
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(deployment(tmp_path, out="other", delta=1e-6)))
    assert main(["validate", str(path)]) == 0
    assert "noise     Laplace (since the ledger counts in ε)" in capsys.readouterr().out


def test_a_budget_of_the_ledger_needs_noise_that_is_named(tmp_path):
    value = deployment(tmp_path, delta=1e-6)
    value["output"]["ledger_budget"] = 2.0
    with pytest.raises(ConfigError, match=r"output\.ledger_budget.*noise: auto"):
        loads(json.dumps(value))
