"""Temporal loss in whole runs: known figures, planned budgets, public rows, refusals."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
import yaml

from penstock.accountants.correlation.landmark_losses import landmark_temporal_privacy_loss
from penstock.accountants.correlation.leakage import LeakageFunction, temporal_privacy_loss
from penstock.mechanisms.core.plugin import ConfigError, PenstockError
from penstock.pipeline.cli.main import main
from penstock.pipeline.config.goals import plan_temporal
from penstock.pipeline.config.run import loads
from tests.tools.small_configuration import run_locally as run

MATRIX = np.array([[0.8, 0.2], [0.0, 1.0]])


@pytest.fixture
def sections(tmp_path):
    """A made-up city of ten hours, released with 0.05 an hour: 0.1 for replacing a person's cell."""
    np.savetxt(tmp_path / "matrix.csv", MATRIX, delimiter=",")
    both = {"forward": str(tmp_path / "matrix.csv"), "backward": str(tmp_path / "matrix.csv")}

    def make(**changes):
        return {
            "name": "ten-steps",
            "source": {"type": "synthetic", "mobility": "markov", "n_users": 60, "rows": 3, "columns": 3}
            | {"min_events": 1, "from": "2024-01-01T00:00:00Z", "until": "2024-01-01T10:00:00Z"},
            "space": {"type": "grid", "south": 37.74, "north": 37.82, "west": -122.47, "east": -122.37}
            | {"rows": 3, "columns": 3},
            "windows": {"type": "fixed", "size": "1h"},
            "bounding": {"max_cells": 2},
            "mechanism": {"type": "discrete_laplace", "epsilon": 0.05},
            "accountants": [{"type": "temporal", "correlation": both, "goal": 1.0}],
            "output": {"path": str(tmp_path / "out"), "report": False, "ledger_source": "events"},
        } | changes

    return make


def load(given):
    return loads(json.dumps(given))


def accounts(result, side):
    return pl.read_parquet(result.folder / side / "accounts.parquet")


def final(table, name):
    chosen = table.filter((pl.col("name") == name) & (pl.col("status") == "final") & pl.col("window").is_not_null())
    return chosen.sort("window")["value"].to_numpy()


def manifest(result, side):
    return json.loads((result.folder / side / "manifest.json").read_text())


def test_the_ten_step_example_through_a_whole_run(sections):
    result = run(load(sections()))
    table = accounts(result, "public")
    expected = [0.10, 0.18, 0.25, 0.30, 0.35, 0.39, 0.42, 0.45, 0.48, 0.50]
    assert final(table, "backward_loss").round(2).tolist() == expected
    assert final(table, "forward_loss").round(2).tolist() == expected[::-1]
    total = [0.50, 0.56, 0.60, 0.62, 0.64, 0.64, 0.62, 0.60, 0.56, 0.50]
    assert final(table, "total_loss").round(2).tolist() == total
    exact = temporal_privacy_loss(np.full(10, 0.1), MATRIX, MATRIX)[2]
    np.testing.assert_allclose(final(table, "total_loss"), exact, rtol=1e-9)
    for side in ("public", "operator"):
        (books,) = manifest(result, side)["accounts"]
        assert books["accountant"] == "temporal"
        figures = books["everybody"]
        assert figures["largest_total_loss"] == pytest.approx(exact.max())
        assert figures["in_window"] in (5, 6)
        assert figures["goal_kept"]
        leakage = LeakageFunction(MATRIX)
        assert figures["supremum_if_it_went_on"] == pytest.approx(2 * leakage.supremum(0.1) - 0.1)


def test_landmark_losses_of_a_run_equal_the_batch_figure(sections):
    changes = {"landmarks": {"windows": [2, 7]}, "mechanism": {"type": "landmark_uniform", "epsilon": 0.6}}
    result = run(load(sections(**changes)))
    releases = pl.read_parquet(result.folder / "public" / "releases.parquet")
    spent = releases.group_by("window").first().sort("window")["epsilon"].to_numpy()
    mask = np.isin(np.arange(1, 11), [2, 7])
    expected = landmark_temporal_privacy_loss(2 * spent, mask, MATRIX, MATRIX).max()
    (books,) = manifest(result, "public")["accounts"]
    assert books["everybody"]["largest_landmark_loss"] == pytest.approx(expected, rel=1e-9)


def test_every_accountant_has_its_figures_in_the_manifest(sections):
    result = run(load(sections(accountants=[{"type": "landmark_budget"}, {"type": "composition"}])))
    budget, composition = manifest(result, "public")["accounts"]
    assert budget["largest_period_loss"] == pytest.approx(0.05)
    assert composition["user_epsilon"] == pytest.approx(0.5)
    assert composition["event_epsilon"] == pytest.approx(0.05)


def test_infinite_figures_are_written_as_text(sections):
    result = run(load(sections(mechanism={"type": "discrete_gaussian", "rho": 0.1})))
    text = (result.folder / "public" / "manifest.json").read_text()
    assert "Infinity" not in text
    assert json.loads(text)["accounts"][0]["everybody"]["largest_total_loss"] == "inf"


def test_an_estimated_account_is_for_the_operator_only(sections):
    temporal = {"type": "temporal", "correlation": {"estimate": "first", "windows": 6}}
    result = run(load(sections(accountants=[temporal, {"type": "composition"}])))
    assert set(accounts(result, "public")["accountant"]) == {"composition"}
    assert set(accounts(result, "operator")["accountant"]) == {"temporal"}
    assert [books["accountant"] for books in manifest(result, "public")["accounts"]] == ["composition"]
    assert [books["accountant"] for books in manifest(result, "operator")["accounts"]] == ["temporal", "composition"]


@pytest.mark.parametrize(
    "correlation", [{"chain": {"n": 5}}, {"laplacian": {"s": 0.1}}, {"estimate": "first", "windows": 6}]
)
def test_a_planned_epsilon_reaches_the_goal_and_never_passes_it(sections, correlation, tmp_path, capsys):
    given = sections(
        accountants=[{"type": "temporal", "correlation": correlation}], mechanism={"type": "laplace", "epsilon": 1.0}
    )
    (tmp_path / "run.yaml").write_text(json.dumps(given))
    assert main(["plan", str(tmp_path / "run.yaml"), "--temporal", "0.7"]) == 0
    line = capsys.readouterr().out
    assert line.endswith("  # of mechanism[0]: no window has a total temporal loss above 0.7\n")
    result = run(load(given | {"mechanism": {"type": "laplace"} | yaml.safe_load(line)}))
    (books,) = manifest(result, "operator")["accounts"]
    assert 0.7 * (1 - 1e-9) < books["everybody"]["largest_total_loss"] <= 0.7


def test_a_plan_holds_for_every_class_and_every_accountant(sections):
    classes = [{"name": name, "correlation": {"laplacian": {"s": s}}} for name, s in (("a", 1.0), ("b", 0.01))]
    together = plan_temporal(load(sections(accountants=[{"type": "temporal", "classes": classes}])), 1.0)
    alone = plan_temporal(load(sections(accountants=[{"type": "temporal", "classes": classes[1:]}])), 1.0)
    assert together == alone


def refusals(given):
    with pytest.raises(ConfigError) as caught:
        load(given)
    return [problem.removeprefix("<string>:1: ") for problem in caught.value.problems]


def why_not_planned(given, goal=1.0):
    with pytest.raises(PenstockError) as caught:
        plan_temporal(load(given), goal)
    return str(caught.value)


def test_plans_that_cannot_be_made_are_refused(sections):
    missing = "accountants: a plan needs a temporal accountant, whose correlation says what the adversary knows"
    assert why_not_planned(sections(accountants=[])) == missing
    assert why_not_planned(sections(), 0.0) == "goal: 0.0 is not allowed; it must be a finite number above 0 (nats)"
    assert why_not_planned(sections(mechanism={"type": "gaussian", "rho": 1.0})) == (
        "mechanism: gaussian cannot be planned; it must be one that spends epsilon, such as laplace"
    )
    assert refusals(sections(mechanism={"type": "laplace", "epsilon": {"temporal_goal": 1.0}})) == [
        "mechanism.epsilon: temporal_goal was removed; write the number that 'penstock plan CONFIG --temporal GOAL' "
        "prints"
    ]


def test_an_endless_stream_that_remembers_everything_has_no_plan(sections, tmp_path):
    np.save(tmp_path / "identity.npy", np.eye(2))
    identity = dict.fromkeys(("backward", "forward"), str(tmp_path / "identity.npy"))
    source = {"type": "synthetic", "endless": True}
    assert why_not_planned(sections(source=source, accountants=[{"type": "temporal", "correlation": identity}])) == (
        "accountants[0].correlation: no ε keeps an endless stream under the goal: with this correlation one window "
        "reveals the next"
    )


def test_an_accountant_learns_from_windows_of_the_run(sections):
    temporal = {"type": "temporal", "correlation": {"estimate": "first", "windows": 11}}
    refused = "accountants[0].type: 'temporal' is not allowed; it must be one that "
    endless = {"type": "synthetic", "endless": True}
    assert refusals(sections(accountants=[temporal])) == [
        refused + "learns from at most the 10 windows of the run (here 11)"
    ]
    assert refusals(sections(accountants=[temporal], source=endless)) == [
        refused + "needs no training part: the source is endless"
    ]


def test_a_deployment_plans_with_public_knowledge_only(sections, tmp_path):
    key = tmp_path / "key"
    assert main(["key", "new", str(key)]) == 0
    deployed = sections(mode="deployment", noise_key=str(key))
    estimated = [{"type": "temporal", "correlation": {"estimate": "first", "windows": 6}}]
    text = "an ε planned from people's data tells of them; a deployment plans with a public matrix or model"
    assert why_not_planned(deployed | {"accountants": estimated}) == f"accountants[0].correlation: {text}"
    assert plan_temporal(load(deployed), 1.0).value > 0
    # An estimated account of a budget that was chosen otherwise is allowed, for the operator.
    config = load(deployed | {"accountants": estimated})
    result = run(config)
    assert accounts(result, "public").is_empty()
    assert set(accounts(result, "operator")["accountant"]) == {"temporal"}
    assert manifest(result, "public")["accounts"] == []


def test_what_is_learned_can_be_used_by_another_run(sections, tmp_path, capsys):
    config, out = tmp_path / "run.yaml", tmp_path / "learned.npz"
    config.write_text(json.dumps(sections()))
    assert main(["learn", str(config), "--windows", "6", "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["states"], printed["windows"], printed["users"], printed["steps"]) == (9, 6, 60, 300)
    estimate = {"type": "temporal", "correlation": {"estimate": "first", "windows": 6}}
    learned = {"type": "temporal", "correlation": {"learned": str(out)}}
    result = run(load(sections(accountants=[estimate, learned])))
    one, other = manifest(result, "operator")["accounts"]
    assert one["everybody"]["largest_total_loss"] == other["everybody"]["largest_total_loss"]
    assert 0 < plan_temporal(load(sections(accountants=[learned])), 1.0).value < 0.5
    assert main(["learn", str(config), "--out", str(tmp_path / "learned.txt")]) == 2
    assert "out: " in capsys.readouterr().err
