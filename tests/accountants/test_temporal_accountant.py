"""The temporal accountant: rows equal the batch figures, resumption, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.accountants.core.accountant import AccountingFacts
from penstock.accountants.core.training import Training
from penstock.accountants.correlation.adversary import (
    KnownCorrelation,
    SmoothedIdentity,
    UserClass,
    Walk,
    learn,
    presence_counts,
)
from penstock.accountants.correlation.landmark_losses import landmark_temporal_privacy_loss
from penstock.accountants.correlation.leakage import LeakageFunction, temporal_privacy_loss
from penstock.accountants.markov import backward_matrix, laplacian_smoothing_matrix
from penstock.accountants.temporal import Temporal
from penstock.mechanisms import get
from penstock.mechanisms.core import events
from penstock.mechanisms.core.contract import Release, Window
from penstock.mechanisms.core.plugin import DataError, ParameterError, UnsupportedEvent
from penstock.mechanisms.core.state import decode_state, encode_state

STRONG = KnownCorrelation(laplacian=SmoothedIdentity(s=0.1))


def account(accountant, charges, landmarks=(), resume=False, first=1, **facts):
    """Rows, final state and model of releases with these charges (numbers: pure add/remove ε)."""
    facts = AccountingFacts(n_cells=2, landmarks=bool(landmarks), **({"n_windows": len(charges)} | facts))
    model, state = accountant.start(facts)
    rows = []
    for index, charge in enumerate(charges, first):
        events_made = (events.PureDP(charge),) if isinstance(charge, float) else charge
        release = Release(window=index, values=np.zeros(2), charge=events_made, landmark=index in landmarks)
        made, state = accountant.charge(release, Window(index=index, start=0, end=1), {}, model, state)
        rows += made
        if resume:
            state = decode_state(encode_state("temporal", 1, state), "temporal", 1)
    return rows + accountant.finish(model, state), state, model


def figures(rows, name, subject="everybody", status="final"):
    """Values of one figure in order of window."""
    chosen = [r for r in rows if (r.name, r.subject, r.status) == (name, subject, status) and r.window is not None]
    return np.array([r.value for r in sorted(chosen, key=lambda r: r.window)])


def last(rows, name):
    (row,) = [r for r in rows if r.name == name and r.window is None]
    return row.value


@pytest.fixture
def matrices(tmp_path):
    """Files of a random forward matrix of four states and its reversal."""
    forward = np.random.default_rng(5).dirichlet(np.full(4, 0.4), size=4)
    backward = backward_matrix(forward)
    np.save(tmp_path / "forward.npy", forward)
    np.savetxt(tmp_path / "backward.csv", backward, delimiter=",", fmt="%.17g")
    return forward, backward, str(tmp_path / "forward.npy"), str(tmp_path / "backward.csv")


def test_running_rows_equal_the_batch_figures(matrices):
    forward, backward, forward_file, backward_file = matrices
    rng = np.random.default_rng(1)
    charges = [float(c) for c in np.where(rng.random(40) < 0.3, 0.0, rng.random(40))]
    landmarks = (3, 4, 11, 30)
    accountant = Temporal(correlation=KnownCorrelation(forward=forward_file, backward=backward_file))
    rows, state, model = account(accountant, charges, landmarks)
    replaced = 2 * np.array(charges)
    for name, expected in zip(
        ("backward_loss", "forward_loss", "total_loss"), temporal_privacy_loss(replaced, backward, forward)
    ):
        np.testing.assert_allclose(figures(rows, name), expected, rtol=1e-9, atol=1e-12)
    mask = np.isin(np.arange(1, 41), landmarks)
    expected = landmark_temporal_privacy_loss(replaced, mask, backward, forward)
    assert last(rows, "largest_landmark_loss") == pytest.approx(expected.max(), rel=1e-9)
    summary = accountant.summary(model, state)["everybody"]
    total = temporal_privacy_loss(replaced, backward, forward)[2]
    assert summary["largest_total_loss"] == pytest.approx(total.max(), rel=1e-9)
    assert summary["in_window"] == total.argmax() + 1


def test_a_missing_direction_is_derived_by_bayes_rule(matrices):
    forward, backward, forward_file, _ = matrices
    derived, _, _ = account(Temporal(correlation=KnownCorrelation(forward=forward_file)), [0.3] * 10)
    expected = temporal_privacy_loss(np.full(10, 0.6), backward, forward)
    np.testing.assert_allclose(figures(derived, "total_loss"), expected[2], rtol=1e-9)


def test_provisional_rows_never_say_more_than_final_ones_nor_bound_less():
    rng = np.random.default_rng(2)
    charges = [float(c) for c in rng.random(60) * 0.2]
    rows, _, _ = account(Temporal(correlation=STRONG, largest_epsilon=0.2), charges)
    final = figures(rows, "total_loss")
    first = [r for r in rows if r.name == "total_loss" and r.status == "provisional"]
    assert len(final) == 60
    assert len(first) == 60
    for row in first:
        assert row.value <= final[row.window - 1] + 1e-9
        assert row.high >= final[row.window - 1] - 1e-9


def test_rows_older_than_the_lag_close_with_their_bound_and_state_stays_bounded():
    accountant = Temporal(correlation=STRONG, lag=5, largest_epsilon=0.1)
    charges = [0.1] * 50
    rows, _, _ = account(accountant, charges)
    exact = temporal_privacy_loss(np.full(50, 0.2), *[laplacian_smoothing_matrix(2, 0.1)] * 2)[2]
    closed = figures(rows, "total_loss")
    assert (closed >= exact - 1e-12).all()
    _, short, _ = account(accountant, charges[:10])
    _, long, _ = account(accountant, charges)
    assert len(encode_state("t", 1, long)) <= len(encode_state("t", 1, short)) + 8


def test_gaussian_noise_has_no_temporal_guarantee():
    rows, state, model = account(Temporal(correlation=STRONG), [(events.Additive("gaussian", 1.0, scale=3.0),)] * 3)
    assert figures(rows, "total_loss").tolist() == [np.inf] * 3
    assert Temporal(correlation=STRONG).summary(model, state)["everybody"]["supremum_if_it_went_on"] == np.inf


def test_epsilon_is_that_of_replacing_a_cell():
    rows, _, _ = account(Temporal(correlation=STRONG), [(events.Additive("laplace", 2.0, scale=4.0),)])
    assert figures(rows, "total_loss").tolist() == [1.0]


def test_a_block_is_one_timestamp():
    def block(charge, first, final):
        return (events.Block(events.PureDP(charge), first, final),)

    quiet = (events.Repeated(0),)
    charges = [block(0.3, 1, 3), quiet, quiet, block(0.2, 4, 6), block(0.2, 4, 6), quiet]
    rows, *_ = account(Temporal(correlation=STRONG), charges, resume=True)
    expected = temporal_privacy_loss(np.array([0.6, 0.4]), *[laplacian_smoothing_matrix(2, 0.1)] * 2)[2]
    np.testing.assert_allclose(figures(rows, "total_loss"), expected, rtol=1e-12)
    assert sorted({r.window for r in rows if r.window is not None}) == [1, 4]
    with_landmarks, _, _ = account(Temporal(correlation=STRONG), charges, landmarks=(2,))
    assert last(with_landmarks, "largest_landmark_loss") == pytest.approx(1.0)


def test_every_class_has_an_account():
    weak = KnownCorrelation(laplacian=SmoothedIdentity(n=3, s=1.0))
    both = Temporal(correlation=STRONG, classes=(UserClass(name="tourists", correlation=weak),))
    rows, _, _ = account(both, [0.2] * 8)
    for subject, correlation in (("everybody", STRONG), ("tourists", weak)):
        alone, _, _ = account(Temporal(correlation=correlation), [0.2] * 8)
        np.testing.assert_array_equal(figures(rows, "total_loss", subject), figures(alone, "total_loss"))


class Unknown(events.Event):
    """An event of no known kind."""


def test_what_it_cannot_account_is_refused_before_anything_changes():
    accountant = Temporal(correlation=STRONG, largest_epsilon=0.1)
    with pytest.raises(UnsupportedEvent, match="Unknown"):
        account(accountant, [(Unknown(),)])
    with pytest.raises(UnsupportedEvent, match=r"window 2 costs 0\.3, above the largest_epsilon of 0\.1"):
        account(accountant, [0.1, 0.3])


def test_a_budget_schedule_bounds_what_is_to_come():
    mechanism = get("laplace")(epsilon=0.1)
    accountant = Temporal(correlation=KnownCorrelation(laplacian=SmoothedIdentity(s=1.0)))
    _, _, model = account(accountant, [0.1], mechanism=mechanism)
    assert model[0].running.largest_epsilon == pytest.approx(0.2)
    rows, _, _ = account(accountant, [0.1] * 60, mechanism=mechanism)
    # Rows settle long before the end: all windows but the last few closed while the stream ran.
    before_the_end = [r for r in rows if r.name == "total_loss" and r.status == "final"][:20]
    assert [r.window for r in before_the_end] == list(range(1, 21))


@pytest.mark.parametrize("n_windows", [None, 12])
def test_the_epsilon_for_a_goal_reaches_and_keeps_it(n_windows):
    accountant = Temporal(correlation=STRONG, goal=1.0)
    model, state = accountant.start(AccountingFacts(n_cells=2, n_windows=n_windows))
    epsilon = accountant.summary(model, state)["everybody"]["epsilon_for_goal"]
    _, state, model = account(accountant, [epsilon] * 12, n_windows=n_windows)
    summary = accountant.summary(model, state)["everybody"]
    assert summary["goal_kept"]
    reached = summary["largest_total_loss"] if n_windows else summary["supremum_if_it_went_on"]
    assert 1 - 1e-9 < reached <= 1.0


def test_the_supremum_is_where_a_long_stream_ends_up():
    rows, _, _ = account(Temporal(correlation=STRONG), [0.1] * 5)
    matrix = laplacian_smoothing_matrix(2, 0.1)
    long = temporal_privacy_loss(np.full(2000, 0.2), matrix, matrix)[2].max()
    assert last(rows, "supremum") == pytest.approx(long, rel=1e-9)


def made_up_training(n_users=200, n_windows=30, n_cells=3, seed=4):
    rng = np.random.default_rng(seed)
    return Training(
        trajectories=rng.integers(-1, n_cells, (n_users, n_windows)), users=np.arange(n_users)[:, None], n_cells=n_cells
    )


def estimated(training, **changes):
    accountant = Temporal(correlation=KnownCorrelation(estimate="first", windows=20, **changes))
    return accountant, accountant.prepare(training)


def test_an_estimate_uses_the_first_windows_only_and_is_not_public():
    training = made_up_training()
    accountant, prepared = estimated(training)
    assert not accountant.public
    assert Temporal(correlation=STRONG).public
    assert accountant.training_windows == 20
    learned = learn(training.first(20), ("a", "b", "c"), smoothing=0.1)
    (known,) = prepared["adversaries"]
    np.testing.assert_allclose(known.leakage[1].vertices, LeakageFunction(learned.forward).vertices, rtol=1e-12)
    assert "smoothing 0.1" in known.assumption
    assert "200 people in 20 windows" in known.assumption


def test_presence_in_a_cell_is_counted_as_a_chain_of_two_states():
    training = made_up_training()
    path = training.trajectories
    known = (path[:, :-1] >= 0) & (path[:, 1:] >= 0)
    for cell, table in enumerate(presence_counts(learn(training, ("a", "b", "c"), 0.1).transitions)):
        before, after = path[:, :-1] == cell, path[:, 1:] == cell
        expected = [[(known & (before == i) & (after == j)).sum() for j in (False, True)] for i in (False, True)]
        np.testing.assert_array_equal(table, expected)


def test_the_loss_over_cells_is_at_least_that_of_every_cell():
    training = made_up_training()
    _, prepared = estimated(training, of="cells")
    (known,) = prepared["adversaries"]
    _, forward = known.leakage
    alpha = np.linspace(0.01, 5, 50)
    several = [LeakageFunction(pair[1])(alpha) for pair in known.pairs]
    assert len(known.pairs) == 3
    np.testing.assert_allclose(forward(alpha), np.max(several, axis=0), rtol=1e-9)


def test_not_being_seen_can_be_a_state():
    training = made_up_training()
    _, prepared = estimated(training, unseen=True)
    expected = learn(training.first(20), ("a", "b", "c"), smoothing=0.1, unseen=True)
    assert expected.states.tolist() == ["a", "b", "c", "unseen"]
    np.testing.assert_allclose(
        prepared["adversaries"][0].leakage[1].vertices, LeakageFunction(expected.forward).vertices
    )


def test_in_chains_of_more_than_twenty_states_gaps_count_in_full_and_never_less():
    charges, landmarks, matrix = [0.1] * 12, (2, 9), laplacian_smoothing_matrix(21, 0.1)
    whole, _, _ = account(
        Temporal(correlation=KnownCorrelation(laplacian=SmoothedIdentity(n=21, s=0.1))), charges, landmarks
    )
    bridged = landmark_temporal_privacy_loss(
        2 * np.array(charges), np.isin(np.arange(1, 13), landmarks), matrix, matrix
    )
    assert last(whole, "largest_landmark_loss") > bridged.max()
    # Worst with the last window: both landmarks, the gaps of six and of two in full, and what window 1 tells.
    expected = 2 * 0.2 + 6 * 0.2 + 2 * 0.2 + 0.2 + LeakageFunction(matrix)(0.2)
    assert last(whole, "largest_landmark_loss") == pytest.approx(expected)
    assert "count in full" in next(r.adjacency for r in whole if r.name == "largest_landmark_loss")


def test_learned_transitions_survive_a_file(tmp_path):
    learned = learn(made_up_training(), ("a", "b", "c"), smoothing=0.5)
    path = tmp_path / "learned.npz"
    learned.write(path)
    read = type(learned).read(path)
    for field in ("transitions", "visits", "forward", "backward", "initial"):
        np.testing.assert_allclose(getattr(read, field), getattr(learned, field), rtol=1e-15)
    assert read.states.tolist() == ["a", "b", "c"]
    assert read.facts == learned.facts
    accountant = Temporal(correlation=KnownCorrelation(learned=str(path)))
    assert not accountant.public
    assert len(figures(account(accountant, [0.1] * 3)[0], "total_loss")) == 3
    (tmp_path / "other.npz").write_bytes(b"nothing")
    with pytest.raises(DataError, match="not a file of learned transitions"):
        type(learned).read(tmp_path / "other.npz")


def test_without_smoothing_places_that_nobody_returns_to_are_read_backwards():
    path = np.array([[0, 1, 2, 2], [0, 0, 1, 1]])
    learned = learn(Training(trajectories=path, users=np.arange(2)[:, None], n_cells=3), ("a", "b", "c"), 0.0)
    np.testing.assert_allclose(learned.forward.sum(axis=1), 1)
    np.testing.assert_allclose(learned.backward.sum(axis=1), 1)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "estimate"),
        ({"estimate": "first"}, "windows"),
        ({"chain": Walk(), "windows": 3}, "windows"),
        ({"chain": Walk(), "laplacian": SmoothedIdentity(s=1.0)}, "chain"),
        ({"forward": "m.npy", "estimate": "first", "windows": 3}, "forward"),
        ({"estimate": "last", "windows": 3}, "estimate"),
        ({"estimate": "first", "windows": 3, "smoothing": -1.0}, "smoothing"),
    ],
)
def test_a_correlation_is_stated_in_exactly_one_way(given, field):
    with pytest.raises(ParameterError, match=f"^{field}: "):
        KnownCorrelation(**given)


def test_an_accountant_needs_a_correlation_and_classes_of_different_names():
    with pytest.raises(ParameterError, match=r"^correlation: "):
        Temporal()
    twice = (UserClass(name="x", correlation=STRONG),) * 2
    with pytest.raises(ParameterError, match=r"^classes\.0\.name: "):
        Temporal(classes=twice)
    with pytest.raises(ParameterError, match=r"^correlation\.estimate: "):
        UserClass(name="x", correlation=KnownCorrelation(estimate="first", windows=3))
