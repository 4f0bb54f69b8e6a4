"""The membership game: samples, equality with the dense computation, and results of defenses."""

from functools import partial

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from penstock.evaluation.attacks.challenge import distinguish, fit_logistic, principal_scores, privacy_gain
from penstock.evaluation.attacks.game import MembershipGame, in_threads
from penstock.evaluation.attacks.priors import game_blocks, period_windows
from penstock.evaluation.membership import membership_auc
from penstock.mechanisms.core.plugin import MissingLibrary, ParameterError

N_USERS, N_CELLS, N_WINDOWS = 40, 6, 36
GAME = {"group_size": 15, "observation": (0, 12), "inference": (0, 12), "n_samples": 300, "n_components": 100}
PAST = {**GAME, "observation": (0, 24), "inference": (24, 36), "groups": 150}


@pytest.fixture(scope="module")
def binary():
    """Users with habits: every user has own rates over cells and hours of the day, alike in all periods."""
    rng = np.random.default_rng(3)
    rates = rng.gamma(0.3, 1.0, (N_USERS, N_CELLS, 12)) * 0.3
    return (rng.random((N_USERS, N_CELLS, N_WINDOWS)) < np.tile(rates, 3)).swapaxes(1, 2)


def auc_of(binary, target, **game):
    return membership_auc(binary, target, **game, axes="windows_cells")


def identity(counts, seed):
    return counts


def laplace(scale):
    return lambda counts, seed: counts + np.random.default_rng(seed).laplace(scale=scale, size=counts.shape)


def dense_auc(game, target, standardize=True):
    """The attack in the literal way: dense aggregates, scikit-learn components, logistic regression."""
    samples, n = game.samples(target), game.samples(target).n_train
    aggregates = np.array(
        [
            game.space.binary[samples.users[members]][:, game.space.blocks[block]].sum(axis=0).ravel()
            for members, block in zip(samples.members, samples.blocks, strict=True)
        ],
        dtype=float,
    )
    if standardize:
        deviation = aggregates[:n].std(axis=0)
        aggregates /= np.where(deviation > 0, deviation, np.inf)
    rank = np.linalg.matrix_rank(aggregates[:n] - aggregates[:n].mean(axis=0))
    components = PCA(min(game.n_components, rank), svd_solver="full").fit(aggregates[:n])
    scores = components.transform(aggregates)
    model = LogisticRegression(tol=1e-8, max_iter=10000).fit(scores[:n], samples.labels[:n])
    return roc_auc_score(samples.labels[n:], model.decision_function(scores[n:]))


@pytest.mark.parametrize(
    "options",
    [
        {**GAME, "known": 0.5},
        {**GAME, "n_components": 5},
        {**GAME, "observation": (0, 24), "inference": (24, 36)},
        {**PAST, "prior": "same_groups"},
        {**PAST, "prior": "different_groups", "n_components": 20},
    ],
)
def test_user_space_equals_the_dense_route(binary, options):
    game = MembershipGame(binary, **options, seed=5)
    auc = game.attack(7).auc
    assert auc == pytest.approx(dense_auc(game, 7), abs=2e-3)
    assert auc == pytest.approx(game.attack(7, defense=identity).auc, abs=2e-3)


def test_the_comparison_would_notice_another_scaling(binary):
    game = MembershipGame(binary, **{**GAME, "n_components": 5}, seed=5)
    assert abs(game.attack(7).auc - dense_auc(game, 7, standardize=False)) > 2e-3


def test_coordinates_have_the_inner_products_of_standardised_aggregates(binary):
    game = MembershipGame(binary, **PAST, prior="different_groups")
    samples = game.samples(2)
    counts = game.space.counts(samples, np.arange(samples.labels.size)).reshape(samples.labels.size, -1)
    deviations = counts[: samples.n_train].std(axis=0)
    scaled = np.divide(counts, deviations, out=np.zeros(counts.shape), where=deviations > 0)
    points = game.space.coordinates(samples)
    np.testing.assert_allclose(points @ points.T, scaled @ scaled.T, rtol=1e-9)


@pytest.mark.parametrize("n_features", [8, 60])
def test_principal_scores_are_those_of_scikit_learn(n_features):
    """Of fewer and of more features than samples."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 6)) @ rng.normal(size=(6, n_features)) + 3
    scores = principal_scores(features, 30, 5)
    expected = PCA(5, svd_solver="full").fit(features[:30]).transform(features)
    np.testing.assert_allclose(np.abs(scores), np.abs(expected), atol=1e-9)
    assert principal_scores(features, 30, 20).shape == (40, 6)  # there are no more


def test_subset_samples_are_balanced_groups_of_known_users(binary):
    samples = MembershipGame(binary, **GAME, known=0.5).samples(9)
    target = np.searchsorted(samples.users, 9)
    assert samples.users.size == 20
    assert samples.users[target] == 9
    assert samples.n_train == 240
    np.testing.assert_array_equal(samples.members.sum(axis=1), 15)
    np.testing.assert_array_equal(samples.members[:, target], samples.labels)
    assert samples.labels[:240].sum() == 120
    assert samples.labels[240:].sum() == 30


def test_groups_are_uniform(binary):
    samples = MembershipGame(binary, **{**GAME, "n_samples": 8000}).samples(0)
    without = samples.members[~samples.labels, 1:].mean(axis=0)
    with_target = samples.members[samples.labels, 1:].mean(axis=0)
    assert np.abs(without - 15 / 39).max() < 4.5 * np.sqrt(0.385 * 0.615 / 4000)
    assert np.abs(with_target - 14 / 39).max() < 4.5 * np.sqrt(0.359 * 0.641 / 4000)


def test_past_priors_reuse_or_renew_their_groups(binary):
    same = MembershipGame(binary, **PAST, prior="same_groups").samples(4)
    new = MembershipGame(binary, **PAST, prior="different_groups").samples(4)
    for samples in (same, new):
        assert samples.n_train == 300
        np.testing.assert_array_equal(samples.members[:150], samples.members[150:300])
        np.testing.assert_array_equal(np.bincount(samples.blocks), [150, 150, 150])
    np.testing.assert_array_equal(same.members[:150], same.members[300:])
    assert (new.members[:150] != new.members[300:]).any(axis=1).all()


def test_n_samples_gives_the_number_of_groups(binary):
    options = {**PAST, "groups": None, "n_samples": 90}
    assert MembershipGame(binary, **options, prior="same_groups").samples(4).labels.size == 90


def test_habits_give_a_past_participant_away(binary):
    rng = np.random.default_rng(0)
    habits = np.tile(binary[:, :12], (1, 3, 1)) & (rng.random(binary.shape) < 0.95)
    others = rng.permutation(N_USERS)
    no_habits = np.concatenate([habits[:, :24], habits[others][:, 24:]], axis=1)
    with_habits, without = (
        np.mean([auc_of(data, t, **PAST, prior="different_groups", seed=1) for t in range(6)])
        for data in (habits, no_habits)
    )
    assert with_habits > 0.85
    assert without < 0.65


def test_a_user_who_is_never_there_cannot_be_found(binary):
    absent = binary.copy()
    absent[3] = False
    aucs = [MembershipGame(absent, **GAME, seed=seed).attack(3, defense=laplace(3)).auc for seed in range(8)]
    assert np.mean(aucs) == pytest.approx(0.5, abs=4.5 * 0.075 / np.sqrt(8))


def test_noise_hides_a_member_and_more_noise_more(binary):
    raw = auc_of(binary, 5, **GAME, seed=2)
    gains = [
        np.mean([privacy_gain(raw, max(0.5, auc_of(binary, 5, **GAME, defense=laplace(b), seed=s))) for s in (2, 3, 4)])
        for b in (0.1, 2.0, 100.0)
    ]
    assert raw > 0.99
    assert gains[0] < 0.2
    assert gains[0] < gains[1] < gains[2]
    assert gains[2] > 0.7


def test_constant_releases_reveal_nothing(binary):
    for attack in ("pca", "statistics"):
        for value in (0.0, 0.1):
            defense = lambda counts, seed, value=value: np.full(counts.shape, value)  # noqa: E731
            assert auc_of(binary, 5, **GAME, defense=defense, attack=attack, seed=2) == 0.5


def test_what_never_varies_in_training_changes_nothing(binary):
    def a_few(counts, seed):
        return counts * (np.arange(N_CELLS) < 2)

    def a_few_and_constants(counts, seed):
        # Two thirds of them, and the 60 challenges differ from the training samples there.
        return np.where(np.arange(N_CELLS) < 2, counts, 9 if len(counts) == 60 else 7)

    game = MembershipGame(binary, **GAME)
    assert a_few(game.space.counts(game.samples(5), np.arange(3)), 0).any()
    alone, beside = (game.attack(5, defense=one) for one in (a_few, a_few_and_constants))
    assert 0.55 < alone.auc < 1
    assert alone == beside


def test_standardising_lets_noise_in_some_cells_hide_nothing_in_the_others(binary):
    def noise_in_half(scale):
        def defense(counts, seed):
            noisy = np.arange(N_CELLS) < 3
            return counts + np.where(noisy, np.random.default_rng(seed).laplace(scale=scale, size=counts.shape), 0)

        return defense

    game = MembershipGame(binary, **{**GAME, "n_components": 36})
    some, more = (game.attack(5, defense=noise_in_half(scale)).auc for scale in (50, 5000))
    assert some > 0.6
    assert more == pytest.approx(some, abs=0.05)


def test_an_adversary_who_knows_the_defense_is_not_fooled_by_it(binary):
    def shift(counts, seed):
        return counts[:, ::-1] * np.where(np.arange(N_CELLS) % 2, 1, -1)

    assert MembershipGame(binary, **GAME).attack(5, defense=shift).auc > 0.99


def test_statistics_attack_sees_the_series_of_each_cell_only(binary):
    def shuffle_windows(counts, seed):
        return np.random.default_rng(seed).permuted(counts, axis=1)

    game = MembershipGame(binary, **{**GAME, "n_samples": 2000})
    plain = game.attack(5, attack="statistics")
    assert plain.n_features == 7 * N_CELLS
    assert plain.low > 0.6
    # Order within a cell is invisible to every statistic.
    reversed_windows = game.attack(5, attack="statistics", defense=lambda counts, seed: counts[:, ::-1])
    assert reversed_windows.auc == pytest.approx(plain.auc, abs=1e-12)
    assert game.attack(5, attack="statistics", defense=shuffle_windows).auc == pytest.approx(plain.auc, abs=1e-12)


def test_defense_sees_integer_counts_in_the_agreed_shape_and_distinct_seeds(binary):
    seen = []

    def spy(counts, seed):
        seen.append((counts.shape, counts.dtype.kind, seed))
        return counts

    auc_of(binary, 5, **{**GAME, "n_samples": 600}, defense=spy, seed=2)
    assert sum(shape[0] for shape, _, _ in seen) == 600
    assert {shape[1:] for shape, _, _ in seen} == {(12, N_CELLS)}
    assert {kind for _, kind, _ in seen} == {"i"}
    assert len({seed for _, _, seed in seen}) == len(seen)


def test_results_depend_on_seed_and_target_only(binary):
    game = MembershipGame(binary, **GAME, seed=9)
    alone = {t: game.attack(t, defense=laplace(1)) for t in (8, 3, 5)}
    together = {r.target: r for r in in_threads(partial(game.attack, defense=laplace(1)), [3, 5, 8], 2)}
    assert alone == together
    other = MembershipGame(binary, **GAME, seed=10).attack(3, defense=laplace(1))
    assert other != alone[3]
    assert auc_of(binary, 3, **GAME, defense=laplace(1), seed=9) == alone[3].auc


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"prior": "everything"}, "prior"),
        ({"group_size": 40}, "group_size"),
        ({"group_size": 0}, "group_size"),
        ({"known": 0.01}, "known"),
        ({"known": [1, 2, 3]}, "known"),
        ({"known": [0.5, 5]}, "known"),
        ({"known": float("nan")}, "known"),
        ({"known": "everybody"}, "known"),
        ({"group_size": 2.5}, "group_size"),
        ({"n_samples": 80.5}, "n_samples"),
        ({"n_components": 2.5}, "n_components"),
        ({"seed": 0.5}, "seed"),
        ({"n_samples": 4}, "n_samples"),
        ({"n_components": 0}, "n_components"),
        ({"seed": -1}, "seed"),
        ({"attack": "guess"}, "attack"),
        ({"observation": (0, 6)}, "observation"),
        ({"observation": (30, 40)}, "observation"),
        ({"inference": []}, "inference"),
        ({"prior": "same_groups"}, "inference"),
        ({"prior": "same_groups", "groups": 1, "inference": (12, 24)}, "groups"),
        ({"defense": lambda counts, seed: counts[:, :1]}, "defense"),
        ({"defense": lambda counts, seed: counts * np.nan}, "defense"),
    ],
)
def test_bad_arguments_are_named(binary, change, field):
    with pytest.raises(ParameterError) as error:
        auc_of(binary, 5, **{**GAME, "seed": 0, **change})
    assert error.value.field == field


@pytest.mark.parametrize("bad", [np.ones((3, 4)), np.full((3, 4, 5), 2)])
def test_binary_must_be_binary(bad):
    with pytest.raises(ParameterError, match="binary"):
        auc_of(bad, 0, **GAME, seed=0)


def test_target_must_exist(binary):
    with pytest.raises(ParameterError, match="target"):
        auc_of(binary, N_USERS, **GAME, seed=0)
    with pytest.raises(ParameterError, match="a whole number"):
        auc_of(binary, 1.5, **GAME, seed=0)


def test_memory_of_defended_aggregates_is_bounded(binary, monkeypatch):
    game = MembershipGame(binary, **GAME)
    n_values = game.space.shape[0] * game.space.shape[1]
    monkeypatch.setattr("penstock.evaluation.attacks.defenses.MAX_VALUES", 100 * n_values)
    assert game.attack(1).n_train > 100  # what stays in user space has no such array
    with pytest.raises(ParameterError, match=f"n_samples: .* at most 100 where an aggregate has {n_values}"):
        game.attack(1, defense=lambda counts, seed: counts)


def test_periods_may_be_given_in_many_ways():
    for period in (slice(0, 3), range(3), (0, 3), 3, [0, 1, 2], np.array([True] * 3 + [False] * 2)):
        np.testing.assert_array_equal(period_windows(period, 5, "observation"), [0, 1, 2])
    np.testing.assert_array_equal(game_blocks(4, 2, 6, "same_groups"), [[0, 1], [2, 3], [4, 5]])
    np.testing.assert_array_equal(game_blocks(2, 2, 6, "subset"), [[0, 1]])


def test_of_more_people_than_samples_the_attack_is_the_same_by_samples():
    """Undefended aggregates are then formed, which is cheaper; scores agree with those in the space of people."""
    binary = np.random.default_rng(0).random((80, 12, 4)) < 0.2
    sizes = {"group_size": 20, "observation": 12, "inference": 12, "n_samples": 60, "seed": 1}
    game = MembershipGame(binary, **sizes)
    samples = game.samples(3)
    assert samples.users.size > samples.n_train
    labels, scores = game.scores(3)
    by_people, _ = distinguish(game.space.coordinates(samples), samples.labels, samples.n_train, n_components=600)
    np.testing.assert_allclose(scores, by_people, rtol=1e-6, atol=1e-8)
    assert labels.sum() == labels.size / 2


def test_without_scikit_learn_the_attack_names_the_extra(without):
    without("sklearn.linear_model")
    with pytest.raises(MissingLibrary, match=r"pip install 'penstock\[attacks\]'"):
        fit_logistic(np.eye(2), np.array([True, False]))
