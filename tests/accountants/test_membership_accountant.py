"""The running membership attack: learning equal to river's, and detection exactly where it is possible."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from river import linear_model, optim, preprocessing
from scipy.stats import hypergeom

from penstock.accountants.core.accountant import AccountingFacts
from penstock.accountants.core.training import Training
from penstock.accountants.correlation.adversary import Walk
from penstock.accountants.membership import Membership
from penstock.accountants.online_attack import Groups, draw_groups, learn, logits, start_learner
from penstock.mechanisms import get
from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.plugin import ConfigError, ParameterError, UnsupportedEvent
from penstock.mechanisms.core.run import run_mechanism
from penstock.pipeline.config.run import loads
from tests.tools.small_configuration import run_locally as run

CITY = """
name: running attack
seed: 3
source: {type: synthetic, n_users: 60, days: 1, from: 2024-01-01T00:00:00Z, rows: 3, columns: 3, events_per_hour: 2.0}
space: {type: grid, south: 37.74, north: 37.82, west: -122.47, east: -122.37, rows: 3, columns: 3}
windows: {type: fixed, size: 1h}
bounding: {max_cells: 1}
mechanism: {type: discrete_laplace, epsilon: 1.0}
accountants: [{type: membership, windows: 20, targets: 3, samples: 60, known: 30}]
output: {path: unused}
"""


def test_the_attack_learns_exactly_as_river_does():
    rng = np.random.default_rng(0)
    scaler = preprocessing.StandardScaler()
    model = linear_model.LogisticRegression(optim.SGD(0.05), intercept_lr=0.05)
    state = start_learner(4)
    for _ in range(5):
        features = rng.normal(3.0, [1.0, 2.0, 5.0, 0.0], (30, 4))  # the last one never varies
        labels = rng.random(30) < 0.5
        state = learn(features, labels, 0.05, state)
        rows = [dict(enumerate(row)) for row in features.tolist()]
        for row in rows:
            scaler.learn_one(row)
        for row, label in zip(rows, labels.tolist()):
            model.learn_one(scaler.transform_one(row), label)
        np.testing.assert_allclose(state["weights"], [model.weights[i] for i in range(4)], atol=1e-12)
        np.testing.assert_allclose(state["intercept"], model.intercept, atol=1e-12)
        expected = [model.predict_proba_one(scaler.transform_one(row))[True] for row in rows]
        np.testing.assert_allclose(1 / (1 + np.exp(-logits(features, state))), expected, atol=1e-12)


def test_huge_counts_do_not_overflow():
    state = learn(np.array([[1e100], [-1e100]] * 20), np.array([True, False] * 20), 100.0, start_learner(1))
    assert np.isfinite(logits(np.array([[1.0]]), state)).all()


@pytest.fixture
def training():
    trajectories = np.random.default_rng(0).integers(-1, 5, (40, 12))
    return Training(trajectories=trajectories, users=np.arange(40)[:, None], n_cells=5)


def test_groups_are_balanced_and_counted_by_hand(training):
    groups = draw_groups(training, n_targets=3, n_known=20, group_size=7, n_samples=30, seed=1)
    assert len(groups) == 3
    for one in groups:
        assert (one.members.sum(axis=1) == 7).all()
        assert one.labels.sum() == 15
        assert one.labels[: one.n_train].sum() == one.n_train / 2 == 12
        for row, members in enumerate(one.members):
            cells = one.trajectories[members, 4]
            expected = np.bincount(cells[cells >= 0], minlength=5)
            np.testing.assert_array_equal(one.counts(5, 5)[row], expected)
    alone = draw_groups(training, n_targets=1, n_known=20, group_size=7, n_samples=30, seed=1)
    np.testing.assert_array_equal(alone[0].members, groups[0].members)


def test_only_people_who_are_seen_become_targets(training):
    trajectories = np.full((40, 12), -1)
    trajectories[[3, 9], 5] = 2
    seen = replace(training, trajectories=trajectories)
    groups = draw_groups(seen, n_targets=10, n_known=20, group_size=None, n_samples=30, seed=0)
    assert len(groups) == 2
    assert all((one.trajectories[0] >= 0).any() for one in groups)


def last_areas(mechanism, n_windows=60, **changes):
    """AUC of all evidence at the end of a run, for each target."""
    settings = {"people": Walk(n=6, tau=0.2), "windows": n_windows, "targets": 4, "samples": 200, "known": 20}
    accountant = Membership(**settings | changes)
    counts = np.zeros((n_windows, 6), int)
    facts = Facts(n_cells=6, n_windows=n_windows)
    releases = run_mechanism(mechanism, counts, facts)
    model, state = accountant.start(AccountingFacts(n_cells=6, n_windows=n_windows, mechanism=mechanism))
    for release, window in zip(releases, facts.windows()):
        _, state = accountant.charge(release, window, {}, model, state)
    return [row.value for row in accountant.finish(model, state)]


def test_who_moves_is_found_and_noise_hides_them():
    actual = last_areas(get("raw")())
    hidden = last_areas(get("discrete_laplace")(epsilon=0.001))
    assert np.mean(actual) > 0.95
    assert abs(np.mean(hidden) - 0.5) < 0.15


def test_evidence_adds_up_to_what_is_possible():
    """Nobody moves: all that groups tell is one count each, and the best attack is its likelihood."""
    accountant = Membership(people=Walk(n=6, tau=0.01), windows=30, targets=1, samples=4000, known=20)
    groups = accountant.prepare(None)["groups"][0]
    n_together = int((groups.trajectories[:, 0] == groups.trajectories[0, 0]).sum()) - 1
    others = np.arange(n_together + 1)
    without, given = hypergeom.pmf(others, 19, n_together, 10), hypergeom.pmf(others, 19, n_together, 9)
    # Pr[1 + given > without] + ½ Pr[equal]: likelihood ratios of the count are monotone in it.
    more = (others[:, None] + 1 > others) + 0.5 * (others[:, None] + 1 == others)
    best = given @ more @ without
    actual = last_areas(get("raw")(), 30, people=Walk(n=6, tau=0.01), targets=1, samples=4000)[0]
    assert actual == pytest.approx(best, abs=0.06)


def test_features_are_the_cells_and_that_of_the_target():
    groups = Groups(0, np.array([[1, -1], [0, 0]]), np.array([[True, False], [False, True], [True, True]]), 2)
    values = np.array([[1.0, 5.0], [3.0, 7.0], [8.0, 8.0]])
    assert groups.features(values, 1).tolist() == [[-1, -1, -1], [1, 1, 1], [6, 2, 2]]
    assert groups.features(values, 2)[:, 2].tolist() == [0, 0, 0]


def test_what_is_suppressed_whole_is_a_guess():
    assert last_areas(get("suppress_small")(threshold=100)) == [0.5] * 4


def test_a_target_does_not_depend_on_the_others():
    accountant = Membership.examples()[0]
    prepared = accountant.prepare(None)
    facts = AccountingFacts(n_cells=5, n_windows=12, mechanism=get("discrete_laplace")(epsilon=1.0))
    releases = run_mechanism(facts.mechanism, np.zeros((12, 5), int))
    windows = Facts(n_cells=5, n_windows=12).windows()

    def rows_of(training):
        model, state = accountant.start(replace(facts, training=training))
        rows = []
        for release, window in zip(releases, windows):
            made, state = accountant.charge(release, window, {}, model, state)
            rows += made
        return rows

    together = rows_of(prepared)
    parts = [row for part in accountant.shards(prepared) for row in rows_of(part)]
    assert sorted(together, key=str) == sorted(parts, key=str)
    assert len({row.subject for row in together}) == 2


def test_after_the_attacked_windows_nothing_is_said():
    accountant = Membership(people=Walk(n=4), windows=2, targets=1, samples=20, known=10)
    mechanism = get("raw")()
    model, state = accountant.start(AccountingFacts(n_cells=4, mechanism=mechanism))
    windows = Facts(n_cells=4, n_windows=3).windows()
    n_rows = []
    for release, window in zip(run_mechanism(mechanism, np.zeros((3, 4), int)), windows):
        rows, state = accountant.charge(release, window, {}, model, state)
        n_rows.append(len(rows))
    assert n_rows == [2, 2, 0]


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": (get("sampling")(rate=0.5), get("raw")())},
        {"steps": (), "mechanism": get("fpa").examples()[0]},
    ],
)
def test_what_cannot_be_followed_is_refused(changes):
    facts = AccountingFacts(n_cells=5, n_windows=12, mechanism=get("raw")())
    with pytest.raises(UnsupportedEvent, match="membership"):
        Membership.examples()[0].start(replace(facts, **changes))


def test_arguments_are_checked(training):
    with pytest.raises(ParameterError, match=r"people\.n"):
        Membership(people=Walk(n=3), windows=2).start(AccountingFacts(n_cells=4, mechanism=get("raw")()))
    with pytest.raises(ParameterError, match="people"):
        Membership().prepare(None)
    with pytest.raises(ParameterError, match="group_size"):
        Membership(windows=12, known=20, group_size=20).prepare(training)


def test_fewer_people_than_requested_are_reported(training):
    enough = Membership(windows=12, targets=3, known=40).prepare(training)
    assert enough["warnings"] == ()
    few = Membership(windows=12, targets=50, known=100).prepare(training)
    assert few["warnings"] == (
        "targets: 40 in place of 50, for there are no more people in the first 12 windows",
        "known: 40 in place of 100, for there are no more people in the first 12 windows",
    )
    assert len(few["groups"]) == 40


def test_the_manifest_warns_of_fewer_people(tmp_path):
    run(loads(CITY, overrides=["accountants[0].known=80"]), tmp_path)
    (books,) = json.loads((tmp_path / "operator" / "manifest.json").read_text())["accounts"]
    (warning,) = books["warnings"]
    assert warning.startswith("known: ")
    assert "in place of 80" in warning


def test_a_run_keeps_the_accounts_for_the_operator_only(tmp_path):
    result = run(loads(CITY), tmp_path)
    assert result.exit_code == 0
    rows = pl.read_parquet(tmp_path / "operator" / "accounts.parquet")
    areas = rows.filter(pl.col("name") == "membership_auc", pl.col("window").is_not_null())
    assert sorted(areas["subject"].unique()) == ["target 0", "target 1", "target 2"]
    assert areas["window"].unique().sort().to_list() == list(range(1, 21))
    assert areas["value"].is_between(0, 1).all()
    public = (tmp_path / "public" / "manifest.json").read_text()
    assert "membership" not in json.dumps(json.loads(public)["accounts"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("mechanism=[{type: sampling, rate: 0.5}, {type: raw}]", "left to penstock attack"),
        ("mechanism={type: fpa, epsilon: 1.0, coefficients: 3, block: 4}", "left to penstock attack"),
    ],
)
def test_what_is_not_followed_is_refused_before_a_run(change, message):
    with pytest.raises(ConfigError, match=message):
        loads(CITY, overrides=[change])
