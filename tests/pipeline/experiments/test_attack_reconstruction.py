"""The reconstruction attack of the command line: success on exact releases, none on hidden cells."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from itertools import product

import numpy as np
import polars as pl
import pytest
from scipy.stats import beta, norm

from penstock.accountants.core.training import Training
from penstock.accountants.inference.estimators import estimate
from penstock.accountants.inference.history import from_each_place, prepend_place
from penstock.accountants.inference.places import PlannedWindows, PriorPlaces
from penstock.accountants.inference.success_bounds import success_upper_bound
from penstock.accountants.inference.targets import KnownPrior
from penstock.accountants.markov import MarkovPrior, chain_prior, stationary_distribution
from penstock.evaluation.attacks.parameters import AttackListener, ReconstructionGame
from penstock.evaluation.attacks.reconstruction import SuccessBounds, planned_segments, resolve_game, tuned
from penstock.evaluation.attacks.retracing import Observed, count_correct, decode_trajectories, observe
from penstock.evaluation.attacks.summaries import binomial_limits, reconstruction_text
from penstock.mechanisms import get
from penstock.mechanisms.core.contract import Facts, Release
from penstock.mechanisms.core.events import Exact
from penstock.mechanisms.core.plugin import DataError, ParameterError, UnsupportedEvent
from penstock.mechanisms.core.run import run_mechanism
from penstock.pipeline.cli.data import learn_to_file
from penstock.pipeline.cli.main import main
from penstock.pipeline.config.run import loads
from penstock.pipeline.experiments.attack import (
    RECONSTRUCTION_SCHEMA,
    attacked_run,
    prepare_reconstruction,
    reconstruct,
)
from penstock.pipeline.output.tables import ACCOUNTS
from penstock.pipeline.sources.citibike import Citibike
from tests.tools.small_configuration import run_locally as run

CITY = """
name: retrace
seed: 3
source: {type: synthetic, n_users: 60, days: 1, from: 2024-01-01T00:00:00Z, rows: 3, columns: 3, events_per_hour: 2.0}
space: {type: grid, south: 37.74, north: 37.82, west: -122.47, east: -122.37, rows: 3, columns: 3}
windows: {type: fixed, size: 1h}
bounding: {max_cells: 1}
output: {path: unused}
"""
SMALL = ReconstructionGame(targets=6, horizon=4, tolerance=1, stretches=3, releases=4, simulated=60, bound_samples=50)
STAY = MarkovPrior([0.5, 0.5, 0.0], np.eye(3))


def configuration(mechanism, *overrides):
    return loads(CITY + f"mechanism: {mechanism}", overrides=overrides)


def success(outcome, name):
    return outcome.results.filter(pl.col("name") == name).sort("target")["value"].to_numpy()


def releases_of(mechanism, counts, n_releases, seed=1):
    counts = np.asarray(counts)
    return run_mechanism(mechanism, np.tile(counts, (n_releases, 1, 1)), Facts(n_cells=counts.shape[1]), seed)


def test_everybody_is_retraced_from_exact_counts(tmp_path):
    outcome = reconstruct(configuration("{type: raw}"), SMALL, folder=tmp_path)
    for kind in ("map", "posterior_marginals"):
        assert (success(outcome, f"{kind}_success") == 1).all()
        assert (success(outcome, f"{kind}_hits") == 1).all()
        assert (success(outcome, f"{kind}_success_made_up") == 1).all()
    assert (success(outcome, "success_upper_bound") == 1).all()
    assert success(outcome, "prior_success").mean() < 0.9


def test_nothing_is_retraced_from_nothing(tmp_path):
    outcome = reconstruct(configuration("{type: suppress_small, threshold: 1000}"), SMALL, folder=tmp_path)
    np.testing.assert_array_equal(success(outcome, "map_success"), success(outcome, "prior_success"))
    np.testing.assert_array_equal(success(outcome, "map_hits"), success(outcome, "prior_hits"))
    assert (success(outcome, "success_upper_bound") < 1).all()
    assert (success(outcome, "map_exact_hits") == 1).all()
    said = r"retraces (\d+) of 100 hours with the release, 100 from exact counts, \1 without either: "
    assert re.search(f"{said}the release adds nothing", reconstruction_text(outcome.summary))


def test_what_is_retraced_with_noise_lies_between_nothing_and_exact_counts(tmp_path):
    game = replace(SMALL, known=0.9)
    outcome = reconstruct(configuration("{type: laplace, epsilon: 4.0}"), game, folder=tmp_path)
    hits = outcome.summary["hits"]
    assert hits["without"] < hits["released"] < hits["raw"] < 1  # a tenth of the others are not known
    best = max(success(outcome, f"{kind}_exact_hits").mean() for kind in ("map", "posterior_marginals"))
    assert hits["raw"] == pytest.approx(best)
    # Without noise the release and exact counts are the same to her.
    raw = reconstruct(configuration("{type: raw}"), game, folder=tmp_path / "raw").summary["hits"]
    assert raw["released"] == raw["raw"] == pytest.approx(hits["raw"])


def test_a_gaussian_release_of_two_cells_is_read_as_often_as_it_can_be():
    """Somebody is in one of two cells: the difference of the residuals is ±1 plus noise of deviation √2 σ."""
    sigma, n = 0.8, 20_000
    releases = releases_of(get("gaussian")(sigma=sigma), [[5, 7]], n)
    way = np.array([[1]])
    guesses = decode_trajectories(["map"], STAY, observe(releases, np.array([[5, 7]])), way, PriorPlaces.of_cells(2), 1)
    rate = count_correct(guesses["map"], way, PriorPlaces.of_cells(2)).mean()
    expected = norm.cdf(1 / (np.sqrt(2) * sigma))
    reach = 4.5 * np.sqrt(expected * (1 - expected) / n)
    assert abs(rate - expected) < reach
    # the check sees an adversary who forgets to subtract the others in one cell
    wrong = decode_trajectories(["map"], STAY, observe(releases, np.array([[5, 6]])), way, PriorPlaces.of_cells(2), 1)
    assert abs(count_correct(wrong["map"], way, PriorPlaces.of_cells(2)).mean() - expected) > reach


def best_guesses(log_likelihood, prior, n_before):
    """Most likely way after the first windows, and its likeliest place in each, over all ways; by enumeration."""
    n_steps, n_places = log_likelihood.shape
    ways = np.array(list(product(range(n_places), repeat=n_steps)))
    chance = prior.initial[ways[:, 0]] * prior.transition[ways[:, :-1], ways[:, 1:]].prod(axis=1)
    chance = chance * np.exp(log_likelihood[np.arange(n_steps), ways].sum(axis=1))
    after, number = np.unique(ways[:, n_before:], axis=0, return_inverse=True)
    chance = np.bincount(number.ravel(), chance)
    marginals = np.stack([np.bincount(column, chance, n_places) for column in after.T])
    return after[chance.argmax()], marginals.argmax(axis=1)


def test_guesses_are_the_best_of_all_ways_given_all_releases_so_far():
    rng = np.random.default_rng(2)
    prior = MarkovPrior(rng.dirichlet(np.ones(4)), rng.dirichlet(np.ones(4), size=4))
    counts, ways = rng.integers(0, 9, (6, 3)), rng.integers(0, 4, (5, 6))
    releases = releases_of(get("discrete_laplace")(epsilon=1.0), counts, 3)
    observed, places = observe(releases, counts), PriorPlaces.of_cells(3)
    kinds = ("map", "posterior_marginals", "prior", "constant")
    guesses = decode_trajectories(kinds, prior, observed, ways, places, 2, 2)
    from_the_first = decode_trajectories(kinds, prior, observed, ways, places, 2)
    for person, way in enumerate(ways):
        reference = np.full((3, 6, 4), np.nan)
        reference[..., :3] = np.stack([release.values for release in releases], 1) - counts
        reference[..., :3] += way[:, None] == np.arange(3)
        log_likelihood = -np.abs(reference[:, :, None, :3] - (np.arange(4)[:, None] == np.arange(3))).sum(axis=-1)
        for release in range(3):
            for stretch in range(2):
                first = 2 + 2 * stretch
                likely = best_guesses(log_likelihood[release, : first + 2], prior, first)
                for kind, right_guess in zip(kinds, likely):
                    np.testing.assert_array_equal(guesses[kind][person, release, stretch], right_guess)
        for kind in kinds:
            np.testing.assert_array_equal(guesses[kind][person], from_the_first[kind][person, :, 1:])
            alone = estimate(kind, prior, [{0, 1, 2}] * 2, reference[:, :2], "discrete_laplace", 1.0)
            np.testing.assert_array_equal(from_the_first[kind][person, :, 0], alone)


def test_what_earlier_releases_told_beats_a_stretch_by_itself_and_stays_below_the_bound():
    """A slow walk on a line of 20 places, one random sensor: guess ten windows after twenty others."""
    prior, rng, n = chain_prior(20, 0.01), np.random.default_rng(0), 400
    sensors = rng.integers(0, 19, 30)
    residual = np.where(np.arange(19) == sensors[:, None], 0.0, np.nan)[None]
    counts, ways = np.zeros((30, 19), int), prior.sample(n, 30, rng)
    rates = {}
    for begin in (0, 20):
        seen = Observed(counts[begin:], residual[:, begin:], np.zeros((1, 30 - begin, 19)))
        places = PriorPlaces.of_cells(19)
        guesses = decode_trajectories(["map"], prior, seen, ways[:, begin:], places, 10, 20 - begin)["map"]
        rates[begin] = (count_correct(guesses, ways[:, 20:], PriorPlaces.of_cells(19)) >= 8).mean()
    coming = PlannedWindows(tuple(frozenset({int(sensor)}) for sensor in sensors[20:]))
    alone = success_upper_bound(prior, coming.sensors, 2, n_samples=200)
    messages = success_upper_bound(prior, prepend_place(coming, 20).sensors, 2, n_samples=200)
    reach = 4.5 * np.sqrt(0.25 / n)
    assert rates[20] < alone + reach
    assert (
        alone + reach < rates[0] < messages
    )  # an adversary who begins from the prior would be too weak, and that bound
    assert rates[0] + reach < messages


@pytest.mark.parametrize("start", [(0.98, 0.01, 0.01), None])
def test_the_bound_covers_the_best_attack_from_all_releases(start):
    """By enumeration of all ways, readings and guesses; from a start that the walk leaves, and from its long run."""
    overrides = ("sensors.active=one_random", "space.rows=1", "space.columns=2")
    game = ReconstructionGame(horizon=3, tolerance=1, training=3, stretches=1, simulated=0, bound_samples=0)
    plan, settings = prepare_reconstruction(configuration("{type: raw}", *overrides), game)
    matrix = np.array([[0.9, 0.05, 0.05], [0.02, 0.93, 0.05], [0.04, 0.05, 0.91]])
    prior = MarkovPrior(stationary_distribution(matrix) if start is None else start, matrix)
    nothing = Observed(np.zeros((6, 2), int), np.zeros((1, 6, 2)), np.zeros((1, 6, 2)))
    places = PriorPlaces.of_cells(2)
    planned = planned_segments(attacked_run(plan, 6), places, settings)
    reference = {
        "training": settings.training,
        "horizon": settings.horizon,
        "tolerance": 1,
        "simulated": 0,
        "n_samples": 0,
    }
    bounds = SuccessBounds(places, nothing, planned, **reference, adaptive=False, seed=0)
    bound, _ = bounds.of(prior, np.zeros(6, int), 0)
    ways = np.array(list(product(range(3), repeat=6)))
    chance = prior.initial[ways[:, 0]] * prior.transition[ways[:, :-1], ways[:, 1:]].prod(axis=1)
    active = np.column_stack([[window.active for window in plan.grid.windows(1, 6)], np.zeros((6, 1), bool)])
    readings = np.where(active[np.arange(6), ways], ways, -1)
    guesses = np.array(list(product(range(3), repeat=3)))
    hit = (ways[:, None, 3:] != guesses).sum(axis=-1) <= 1

    def best(known):
        _, number = np.unique(known, axis=0, return_inverse=True)
        weighted = chance[:, None] * hit
        return sum(weighted[number.ravel() == each].sum(axis=0).max() for each in range(number.max() + 1))

    carried, messages = best(readings), best(np.column_stack([ways[:, 2], readings[:, 3:]]))
    assert carried <= messages + 1e-12
    assert messages <= bound + 1e-12
    coming = PlannedWindows(tuple(frozenset(np.flatnonzero(window).tolist()) for window in active[3:]))
    before = MarkovPrior(prior.marginals(3)[-1], prior.transition)
    assert messages <= from_each_place(before, coming, 1) + 1e-12
    silent = from_each_place(before, PlannedWindows(coming.sensors, "pure_dp", np.zeros(3)), 1)
    assert best(ways[:, [2]]) <= silent + 1e-12 < bound
    assert best(readings[:, 3:]) < carried


@pytest.mark.parametrize("n_locations", [1, 2, 3, 10, 1000])
def test_a_guarantee_in_front_is_worth_the_place(n_locations):
    sensors = (frozenset({0}),)
    epsilon = prepend_place(PlannedWindows(sensors, "pure_dp", np.array([0.5])), n_locations).scale
    assert epsilon[0] * np.tanh(epsilon[0] / 2) >= np.log(n_locations)
    assert np.exp(epsilon[0]) >= n_locations
    rho = prepend_place(PlannedWindows(sensors, "zcdp", np.array([0.5])), n_locations).scale
    assert rho.tolist() == [np.log(n_locations), 0.5]
    assert prepend_place(PlannedWindows(sensors), n_locations).sensors == (frozenset(range(n_locations)), *sensors)


def test_what_suppression_hides_is_not_seen():
    counts, way = np.array([[1, 2, 3, 4]]), np.array([1])
    mechanism = get("suppress_small")(threshold=3)
    observed = observe(releases_of(mechanism, counts, 1), counts, mechanism.transform)
    # of the others 1, 1, 3 and 4 are there: one more would show in the last two cells only
    np.testing.assert_array_equal(observed.without_others(way), [[[np.nan, np.nan, 0, 0]]])
    crowd = np.array([3])
    np.testing.assert_array_equal(observed.without_others(crowd)[0, 0, 3], 1)


def test_repeated_windows_tell_nothing():
    counts = np.full((30, 3), 5)
    releases = releases_of(get("w_event_bd")(epsilon=1.0, w=5), counts, 2)
    observed = observe(releases, counts)
    for row, release in enumerate(releases):
        repeated = np.broadcast_to(np.asarray(release.action) != "published", 2)
        np.testing.assert_array_equal(np.isnan(observed.residual[:, row]).all(axis=1), repeated)
    assert np.isnan(observed.residual).any()
    assert not np.isnan(observed.residual).all()


def test_a_release_without_likelihood_is_refused():
    odd = Release(window=4, values=np.zeros((1, 2)), noise="laplace", scale=1.0, charge=(Exact(),))
    with pytest.raises(UnsupportedEvent, match=r"window 4 .*'laplace'"):
        observe([odd], np.zeros((1, 2)))


def test_who_is_not_counted_in_a_popular_cell_is_elsewhere():
    places = PriorPlaces.most_visited(np.array([[2, 2, 0, -1]]), n_cells=3, n_top=1)
    release = Release(window=1, values=np.array([[1.0, 0.0, 0.0]]), charge=(Exact(),))
    prior = MarkovPrior([0.9, 0.1], np.eye(2))
    guesses = decode_trajectories(["map"], prior, observe([release], np.array([[1, 0, 0]])), np.array([[0]]), places, 1)
    assert guesses["map"].tolist() == [[[[1]]]]  # not in the popular cell, hence elsewhere


def test_the_first_release_is_that_of_the_run(tmp_path, monkeypatch):
    import penstock.evaluation.attacks.reconstruction as module

    seen = []
    monkeypatch.setattr(module, "observe", lambda *a: seen.append(a) or observe(*a))
    config = configuration("{type: discrete_laplace, epsilon: 1.0}")
    reconstruct(config, SMALL, folder=tmp_path / "attack")
    run(config, tmp_path / "run")
    released = pl.read_parquet(tmp_path / "run" / "public" / "releases.parquet")
    releases, counts, _ = seen[0]
    attacked = released.filter(pl.col("window").is_between(releases[0].window, releases[-1].window))
    reference = np.stack([release.values[0] for release in releases])
    np.testing.assert_array_equal(reference.ravel(), attacked.sort("window", maintain_order=True)["value"].to_numpy())
    assert (releases[0].values[1] != reference[0]).any()
    truth = pl.read_parquet(tmp_path / "run" / "operator" / "truth.parquet").sort("window", maintain_order=True)
    first = releases[0].window
    inside = truth.filter(pl.col("window").is_between(first, releases[-1].window))
    np.testing.assert_array_equal(counts.ravel(), inside["bounded"].to_numpy())


@pytest.mark.parametrize(
    "mechanism", ["{type: discrete_laplace, epsilon: 1.0}", "{type: gaussian, sigma: 1.0}", "{type: raw}"]
)
def test_no_attack_on_made_up_ways_beats_the_bound(mechanism, tmp_path):
    config = configuration(mechanism, "sensors.active=one_random")
    outcome = reconstruct(config, SMALL, folder=tmp_path)
    bound = success(outcome, "success_upper_bound")
    made_up = outcome.results.filter(pl.col("name").str.ends_with("_made_up"))
    assert (bound < 1).any()
    for kind, rows in made_up.group_by("name"):
        rows = rows.sort("target")
        n, rate = rows["trials"].to_numpy(), rows["value"].to_numpy()
        low = np.where(rate > 0, beta.ppf(0.00005, rate * n, n - rate * n + 1), 0.0)
        assert (low <= bound).all(), kind
    # an adversary who sees every cell without noise is far beyond it, and the same check says so
    exact = reconstruct(configuration("{type: raw}"), SMALL, folder=tmp_path / "exact")
    rate = success(exact, "map_success_made_up")
    assert (beta.ppf(0.00005, rate * 60, 60 - rate * 60 + 1) > bound).any()


@pytest.mark.parametrize("n_targets", [4, 5, 6])
def test_as_many_are_attacked_as_asked_for(n_targets, tmp_path):
    game = ReconstructionGame(targets=n_targets, horizon=2, stretches=1, releases=1, simulated=0, bound_samples=0)
    outcome = reconstruct(configuration("{type: raw}"), game, folder=tmp_path)
    assert outcome.results["target"].n_unique() == n_targets == outcome.summary["game"]["n_attacked"]
    assert "made up" not in outcome.summary["groups"]


def test_the_same_seed_finds_the_same(tmp_path):
    config = configuration("{type: laplace, epsilon: 1.0}")
    done = []
    first = reconstruct(
        config, SMALL, folder=tmp_path / "a", listener=AttackListener(made=lambda *progress: done.append(progress))
    )
    assert done == [(number, 6) for number in range(7)]
    assert reconstruct(config, SMALL, folder=tmp_path / "b").results.equals(first.results)
    other = reconstruct(configuration("{type: laplace, epsilon: 1.0}", "seed=4"), SMALL, folder=tmp_path / "c")
    assert not other.results.equals(first.results)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    config = configuration("{type: laplace, epsilon: 1.0}")
    return reconstruct(config, SMALL, folder=tmp_path_factory.mktemp("whole"))


def test_the_number_of_jobs_changes_nothing(whole, tmp_path):
    config = configuration("{type: laplace, epsilon: 1.0}")
    outcome = reconstruct(config, SMALL, folder=tmp_path, n_jobs=2)
    assert outcome.results.equals(whole.results)
    assert outcome.summary == whole.summary


@pytest.mark.parametrize(("stop", "n_jobs"), [(1, 1), (4, 2)])
def test_an_interrupted_attack_goes_on(whole, tmp_path, stop, n_jobs):
    config = configuration("{type: laplace, epsilon: 1.0}")

    def interrupt(done, total):
        if done == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reconstruct(config, SMALL, folder=tmp_path, n_jobs=n_jobs, listener=AttackListener(made=interrupt))
    made = []
    outcome = reconstruct(
        config, SMALL, folder=tmp_path, listener=AttackListener(made=lambda *progress: made.append(progress))
    )
    assert outcome.n_resumed == stop
    assert made == [(number, 6) for number in range(stop, 7)]
    assert outcome.results.equals(whole.results)
    assert outcome.summary == whole.summary
    assert pl.read_parquet(tmp_path / "operator" / "attack_reconstruction.parquet").equals(whole.results)


@pytest.mark.parametrize(
    "change",
    [
        "seed=4",
        "mechanism.epsilon=2",
        "accountants=[{type: reconstruction, targets: 3, prior: {estimate: first, windows: 12, smoothing: 3}}]",
    ],
)
def test_another_attack_starts_afresh(whole, tmp_path, change):
    shutil.copytree(whole.folder / "operator", tmp_path / "operator")
    assert reconstruct(configuration("{type: laplace, epsilon: 1.0}"), SMALL, folder=tmp_path).n_resumed == 6
    other = configuration("{type: laplace, epsilon: 1.0}", change)
    assert reconstruct(other, SMALL, folder=tmp_path).n_resumed == 0


def test_a_table_of_an_earlier_version_is_not_gone_on_with(whole, tmp_path):
    (tmp_path / "operator").mkdir()
    whole.results.drop("trials").write_parquet(tmp_path / "operator" / "attack_reconstruction.parquet")
    assert reconstruct(configuration("{type: laplace, epsilon: 1.0}"), SMALL, folder=tmp_path).n_resumed == 0


def test_the_table_is_one_of_accounts(tmp_path):
    outcome = reconstruct(configuration("{type: raw}"), SMALL, folder=tmp_path)
    assert list(RECONSTRUCTION_SCHEMA)[: len(ACCOUNTS.names)] == ACCOUNTS.names
    assert pl.read_parquet(tmp_path / "operator" / "attack_reconstruction.parquet").equals(outcome.results)
    kept = json.loads((tmp_path / "operator" / "attack_reconstruction.json").read_text())
    assert kept["groups"] == outcome.summary["groups"]
    assert sorted(path.name for path in tmp_path.rglob("attack_*.*")) == sorted(path.name for path in outcome.files)


def test_smoothing_is_chosen_by_what_comes_next():
    rng = np.random.default_rng(0)
    reference = np.tile([0, 1, 2, 3], (4, 10))  # everybody goes the same round for ever
    known = KnownPrior(estimate="first", windows=40)
    regular = tuned(known, Training(trajectories=reference, users=np.arange(4)[:, None], n_cells=6, named=(0, 1)))
    assert regular.smoothing == 0.1
    wild = rng.integers(0, 6, (4, 40))  # nobody's past tells anything
    astray = tuned(known, Training(trajectories=wild, users=np.arange(4)[:, None], n_cells=6, named=(0, 1)))
    assert (astray.smoothing, astray.windows) == (100, 40)
    assert (
        tuned(
            replace(known, windows=2), Training(trajectories=reference[:, :2], users=reference[:, :1], n_cells=6)
        ).smoothing
        == 0.1
    )


def test_a_learned_prior_is_shared_by_all(tmp_path):
    config = configuration("{type: discrete_laplace, epsilon: 2.0}")
    learn_to_file(config, tmp_path / "moves.npz", n_windows=12, unseen=True)
    game = ReconstructionGame(targets=6, horizon=4, stretches=2, releases=2, learned=str(tmp_path / "moves.npz"))
    outcome = reconstruct(config, game, folder=tmp_path)
    assert np.ptp(success(outcome, "success_upper_bound")) == 0
    assert outcome.summary["game"]["prior"].startswith("as people in general move")
    smaller = configuration("{type: raw}", "space.rows=2")
    with pytest.raises(ParameterError, match="9 cells"):
        reconstruct(smaller, game, folder=tmp_path)


def test_a_model_of_the_accountant_is_the_prior_of_all(tmp_path):
    books = "accountants=[{type: reconstruction, horizon: 4, targets: 3, prior: {chain: {n: 9, tau: 0.2}, windows: 8}}]"
    outcome = reconstruct(configuration("{type: raw}", books), SMALL, folder=tmp_path)
    assert outcome.summary["game"]["prior"] == "walk on a line of 9 cells, tau = 0.2"
    assert outcome.summary["game"]["training"] == 8
    assert (success(outcome, "map_success") == 1).all()


def test_what_is_left_open_comes_from_the_accountant():
    config = configuration(
        "{type: raw}",
        "accountants=[{type: reconstruction, horizon: 3, tolerance: 1, prior: {estimate: first, windows: 9, top: 4}}]",
    )
    settings = resolve_game(ReconstructionGame(), config.accountants, 24, 9)
    assert (settings.horizon, settings.tolerance, settings.training, settings.n_segments) == (3, 1, 9, 5)
    assert settings.known.top == 4
    settings = resolve_game(ReconstructionGame(horizon=5, training=10), config.accountants, 24, 9)
    assert (settings.horizon, settings.training, settings.n_segments) == (5, 10, 2)
    settings = resolve_game(ReconstructionGame(), (), 24, 9)
    assert (settings.horizon, settings.tolerance, settings.training, settings.n_segments) == (10, 2, 12, 1)


@pytest.mark.parametrize(
    ("mechanism", "overrides", "game", "message"),
    [
        ("{type: raw}", ["bounding.max_cells=2"], {}, "max_cells: 2 .* no single trajectory to retrace"),
        ("{type: fpa, epsilon: 1.0, coefficients: 3, block: 4}", [], {}, r"\['fpa'\] .* `reconstruction` bounds"),
        ("{type: perturb_small, threshold: 3, epsilon: 1.0}", [], {}, "perturb_small"),
        ("[{type: sampling, rate: 0.5}, {type: raw}]", [], {}, "sampling"),
        ("{type: raw}", [], {"horizon": 23}, "horizon: 23 .* at most 22"),
        ("{type: raw}", ["windows.size=12h"], {}, "windows: 2 .* 3 or more"),
        ("{type: raw}", [], {"horizon": 5, "training": 20}, "training: 20 .* 2 to 19"),
        ("{type: raw}", [], {"horizon": 3, "tolerance": 3}, "every guess succeeds"),
        ("{type: raw}", [], {"releases": 10**6}, "releases: 1000000 .* at most"),
    ],
)
def test_what_cannot_be_retraced_is_refused_before_anything_is_read(mechanism, overrides, game, message):
    with pytest.raises(ParameterError, match=message):
        prepare_reconstruction(configuration(mechanism, *overrides), ReconstructionGame(**game))


def test_a_source_without_people_is_refused(tmp_path):
    config = configuration("{type: raw}")
    trips = Citibike(path=str(tmp_path), from_=config.source.from_, until=config.source.until)
    with pytest.raises(ParameterError, match=r"source: 'citibike' .* every trip is a new person"):
        prepare_reconstruction(replace(config, source=trips), SMALL)


def test_too_few_people_in_the_training_part(tmp_path):
    config = configuration("{type: raw}", "source.n_users=2")
    with pytest.raises(DataError, match="at least 3"):
        reconstruct(config, SMALL, folder=tmp_path)


def test_limits_by_hand():
    assert binomial_limits(1.0, 10) == (pytest.approx(0.025**0.1), 1.0)
    low, high = binomial_limits(0.25, 2)  # between no success and one: the limits of both
    assert (low, high) == (0.0, pytest.approx(binomial_limits(0.5, 2)[1]))


def test_the_command_plays_both_or_says_why_not(tmp_path, capsys):
    path = tmp_path / "attack.yaml"
    path.write_text(CITY + "mechanism: {type: discrete_laplace, epsilon: 2.0}")
    words = ["attack", str(path), "--targets", "3", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    shown, messages = capsys.readouterr()
    assert re.search(
        r"penstock: reconstruction: 3 of 60 .*\n(.*\n)*penstock: reconstruction: about \d+ (s|min)\n", messages
    )
    assert "privacy gain" in shown
    assert "made up" in shown
    assert str(tmp_path / "out" / "operator" / "attack_reconstruction.parquet") in shown
    assert main([*words, "--json"]) == 0
    actual = json.loads(capsys.readouterr().out)
    assert actual["left_out"] == {}
    assert actual["groups"]["everybody"]["raw"]["mean"] > 0
    assert "everybody" in reconstruction_text(actual["reconstruction"])
    wide = ["--set", "bounding.max_cells=2"]
    assert main([*words, "--json", *wide]) == 0
    assert "max_cells" in json.loads(capsys.readouterr().out)["left_out"]["reconstruction"]
    alone = [*words, "reconstruction", "--horizon", "3", "--simulated", "20", "--bound-samples", "20", "--json"]
    assert main([*alone, *wide]) == 2  # it is wanted
    assert "max_cells" in capsys.readouterr().err
    assert main(alone) == 0
    played = json.loads(capsys.readouterr().out)["reconstruction"]
    assert main([*alone, "--jobs", "2"]) == 0
    again = json.loads(capsys.readouterr().out)["reconstruction"]
    assert (played.pop("resumed"), again.pop("resumed")) == (0, 3)
    assert again == played
    assert main([*alone, "--learned", str(tmp_path / "nowhere.npz")]) == 2
    assert "`penstock learn`" in capsys.readouterr().err
    for wrong in (["membership", "--horizon", "3"], ["reconstruction", "--samples", "40"], ["pca"]):
        with pytest.raises(SystemExit) as ended:
            main([*words, *wrong])
        assert ended.value.code == 2
    assert "invalid choice: 'pca' (choose from 'membership', 'reconstruction', 'recovery')" in capsys.readouterr().err
    assert main([*words, "membership", "--attack", "membership"]) == 2
    assert "--attack: 'membership' is not allowed; it must be one of pca, statistics" in capsys.readouterr().err
