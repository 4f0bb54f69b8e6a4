"""``noise: auto`` in runs: the chosen family, the ledger's measure, and the messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from penstock.mechanisms.core.concentrated import gaussian_of, rho_of
from penstock.mechanisms.core.plugin import ConfigError
from penstock.pipeline import DONE, STOPPED
from penstock.pipeline.cli.main import main
from penstock.pipeline.config.canonical import digest
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.monitoring.verify import verify
from penstock.pipeline.releasing.ledger import Ledger
from tests.tools.deployments import configured, sections
from tests.tools.small_configuration import run_locally as run


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
    assert manifest["noise_choice"].startswith("Laplace noise: standard deviation 4.22 in a count")
    assert manifest["configuration"]["mechanism"][0]["noise"] == "discrete_laplace"
    assert manifest["guarantee"][0]["measure"] == "epsilon"
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(deployment(tmp_path, out="other", delta=1e-6)))
    assert main(["validate", str(path)]) == 0
    assert "noise     Laplace noise, the measure of the ledger: " in capsys.readouterr().out


def test_a_budget_of_the_ledger_needs_noise_that_is_named(tmp_path):
    value = deployment(tmp_path, delta=1e-6)
    value["output"]["ledger_budget"] = 2.0
    with pytest.raises(ConfigError, match=r"output\.ledger_budget.*noise: auto"):
        loads(json.dumps(value))


def test_a_ledger_of_gaussian_noise_takes_no_other(tmp_path):
    gaussian = {"noise": "discrete_gaussian", "delta": 1e-6}
    first = run(configured(deployment(tmp_path, n=24, **gaussian)))
    terms = next(Ledger(tmp_path / "ledger").entries()).values["terms"]
    assert (terms["measure"], terms["budget"]) == ("gaussian", gaussian_of(1.0, 1e-6))
    [paid] = [posting.charge for posting in Ledger(tmp_path / "ledger").postings() if posting.charge.rho]
    assert paid.gaussian == pytest.approx(terms["budget"])
    assert paid.rho < paid.gaussian
    assert verify(first.folder)[0].passed
    another = deployment(tmp_path, out="laplace", n=3)
    with pytest.raises(ConfigError, match="another measure"):
        run(configured(another))
    adaptive = deployment(tmp_path, out="fast", n=24, **gaussian)
    adaptive["mechanism"] |= {"type": "fast", "publications": 4}
    with pytest.raises(ConfigError, match="another measure"):
        run(configured(adaptive))
    with pytest.raises(ConfigError, match="another measure"):
        run(configured(deployment(tmp_path, out="rho", n=24, accounting="rho", **gaussian)))
    again = run(configured(deployment(tmp_path, out="again", n=24, **gaussian)))
    assert again.exit_code == STOPPED  # all of the day is spent


def test_a_ledger_in_rho_keeps_to_the_scale_by_rho(tmp_path):
    gaussian = {"noise": "discrete_gaussian", "delta": 1e-6}
    run(configured(deployment(tmp_path, n=24, accounting="rho", **gaussian)))
    later = make_plan(configured(deployment(tmp_path, out="later", n=24, **gaussian)))
    assert later.chain.reader.accounting == "rho"
    stated = deployment(tmp_path, out="stated", n=24, **gaussian)
    stated["output"] |= {"ledger": str(tmp_path / "other"), "ledger_budget": rho_of(1.0, 1e-6)}
    assert make_plan(configured(stated)).chain.reader.accounting == "rho"


def test_runs_that_share_a_ledger_of_gaussian_noise_are_charged_together(tmp_path):
    # A day of which the first run takes the morning; a second, narrower one has what is left of its own days only.
    gaussian = {"noise": "discrete_gaussian", "delta": 1e-6}
    value = deployment(tmp_path, n=24, **gaussian)
    value["mechanism"] |= {"type": "w_event_uniform", "w": 6}
    value["bounding"] = {"max_cells": 4}
    del value["budget_period"]
    first = run(configured(value))
    other = value | {"output": value["output"] | {"path": str(tmp_path / "other")}}
    other["mechanism"] = value["mechanism"] | {"epsilon": 0.5}
    second = run(configured(other))
    assert (first.exit_code, second.exit_code) == (DONE, STOPPED)
    table = [posting.charge.gaussian for posting in Ledger(tmp_path / "ledger").postings()]
    assert sum(table) <= gaussian_of(1.0, 1e-6) * (1 + 1e-9)
