"""The running reconstruction accountant: brute force, shards, every mechanism, a whole run."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from penstock import mechanisms
from penstock.accountants.core.accountant import AccountingFacts
from penstock.accountants.core.training import Training
from penstock.accountants.correlation.adversary import Walk
from penstock.accountants.inference.places import PriorPlaces, Reading, ReleaseForecast, Releasing
from penstock.accountants.inference.targets import KnownPrior, KnownTargets, known_targets
from penstock.accountants.markov import MarkovPrior
from penstock.accountants.reconstruction import Reconstruction
from penstock.mechanisms.core.contract import Facts, Mechanism, Release
from penstock.mechanisms.core.events import Event, Exact
from penstock.mechanisms.core.plugin import DataError, ParameterError, UnsupportedEvent
from penstock.mechanisms.core.run import run_mechanism
from penstock.pipeline.counting.targets import as_counted, rows_of
from tests.tools.reconstruction_oracle import Enumeration, random_prior


def accountant_of(priors, places=None, horizon=3, tolerance=1):
    """An accountant of given priors over all cells, the last place being that of the unseen."""
    places = places or PriorPlaces.of_cells(priors[0].n_locations - 1)
    known = KnownTargets(users=(None,) * len(priors), priors=priors, places=places, first=0, assumption="given")
    section = KnownPrior(chain=Walk(n=places.n_cells), windows=2)
    accountant = Reconstruction(horizon=horizon, tolerance=tolerance, targets=len(priors), prior=section)
    return accountant, {"targets": known.users, "known": known}


def account(accountant, prepared, mechanism, facts, paths, sensors=None, seed=1):
    """Rows of every step of a run in which the targets are all the people there are."""
    n_cells, n_windows = facts.n_cells, paths.shape[1]
    counts = np.stack([np.bincount(column, minlength=n_cells + 1)[:n_cells] for column in paths.T])
    windows = facts.windows()
    if sensors is not None:
        windows = [replace(w, active=np.isin(np.arange(n_cells), list(s))) for w, s in zip(windows, sensors)]
    releases = run_mechanism(mechanism, counts, replace(facts, n_windows=None), seed, windows=windows)
    known = AccountingFacts(
        n_cells=n_cells,
        n_windows=n_windows,
        mechanism=mechanism,
        windows=lambda first, last: windows[first - 1 : last],
        training=prepared,
    )
    model, state = accountant.start(known)
    steps = []
    for release, window in zip(releases, windows):
        cells = np.where(paths[:, release.window - 1] == n_cells, -1, paths[:, release.window - 1])
        facts_of_window = {"counts": counts[release.window - 1], "target_cells": cells}
        rows, state = accountant.charge(release, window, facts_of_window, model, state)
        steps.append(rows)
    return [*steps, accountant.finish(model, state)], releases, counts


def values(rows, name, window=None):
    """Value by subject."""
    return {row.subject: row for row in rows if row.name == name and window in (None, row.window)}


def posterior_weights(prior, sensors, releases, counts, path, family, scale):
    """Every trajectory of a target with its probability given the releases and everybody else's cells."""
    truth = Enumeration(prior, len(releases))
    weight = truth.weight.copy()
    for step, (release, window) in enumerate(zip(releases, sensors)):
        for cell in window:
            others = counts[step, cell] - (path[step] == cell)
            noise = release.values[cell] - others - (truth.paths[:, step] == cell)
            if family is None:
                weight = weight * (noise == 0)
            elif family == "gaussian":
                weight = weight * np.exp(-(noise**2) / (2 * scale**2))
            else:
                weight = weight * np.exp(-np.abs(noise) / scale)
    return truth, weight / weight.sum()


@pytest.mark.parametrize(
    ("name", "options", "family", "scale"),
    [
        ("raw", {}, None, 0.0),
        ("discrete_laplace", {"epsilon": 0.8}, "laplace", 1.25),
        ("gaussian", {"sigma": 0.9}, "gaussian", 0.9),
    ],
)
def test_realised_risk_against_every_trajectory(name, options, family, scale):
    rng = np.random.default_rng(3)
    priors = tuple(random_prior(rng, 4, stationary=False) for _ in range(5))
    paths = np.concatenate([prior.sample(1, 4, rng) for prior in priors])
    sensors = [{0, 2}, {1}, set(), {0, 1, 2}]
    accountant, prepared = accountant_of(priors)
    facts = Facts(n_cells=3, n_windows=4)
    steps, releases, counts = account(accountant, prepared, mechanisms.get(name)(**options), facts, paths, sensors)
    for last in range(1, 5):
        actual = values(steps[last - 1], "realised_risk")
        for target, prior in enumerate(priors):
            truth, posterior = posterior_weights(
                prior, sensors[:last], releases[:last], counts, paths[target], family, scale
            )
            kept = truth.paths[:, max(0, last - 3) :]
            guesses = np.unique(kept, axis=0)
            exact = max(posterior[(kept != guess).sum(axis=1) <= 1].sum() for guess in guesses)
            if last > 1:
                row = actual[f"target {target + 1}"]
                assert row.low - 1e-9 <= exact <= row.high + 1e-9
                assert row.value == row.high
                assert row.status == "provisional"
    truth, posterior = posterior_weights(priors[0], sensors, releases, counts, paths[0], family, scale)
    for window in (1, 2, 3, 4):  # the first two left the horizon before the end, the last two at it
        rows = steps[2] if window == 1 else steps[3] if window == 2 else steps[4]
        shown = 3 if window == 1 else 4
        truth, posterior = posterior_weights(
            priors[0], sensors[:shown], releases[:shown], counts, paths[0], family, scale
        )
        likeliest = np.bincount(truth.paths[:, window - 1], posterior, 4).max()
        assert values(rows, "place_known", window)["target 1"].value == pytest.approx(likeliest, abs=1e-9)


def test_bounds_hold_whatever_was_released_before():
    """Exact success of the best attack on the coming windows, given the past, for every past that can be."""
    rng = np.random.default_rng(4)
    for _ in range(6):
        prior = random_prior(rng, 3, stationary=False)
        sensors = [{int(rng.integers(2))} for _ in range(5)]
        accountant, prepared = accountant_of((prior,))
        pasts = set()
        for path in itertools.product(range(3), repeat=2):
            steps, _, _ = account(
                accountant,
                prepared,
                mechanisms.get("raw")(),
                Facts(n_cells=2, n_windows=5),
                np.array([[*path, 0, 0, 0]]),
                sensors,
            )
            truth = Enumeration(prior, 2)
            seen = truth.raw_readings(sensors[:2])
            same = seen == seen[np.flatnonzero((truth.paths == path).all(axis=1))[0]]
            if truth.weight[same].sum() == 0 or seen[same][0] in pasts:
                continue
            pasts.add(seen[same][0])
            last = np.bincount(truth.paths[same, 1], truth.weight[same], 3)
            start = last / last.sum() @ prior.transition
            future = Enumeration(MarkovPrior(start, prior.transition), 3)
            exact = future.best_success(future.raw_channel(sensors[2:]), 1)
            rows = steps[2]
            for name in ("loose_bound", "tight_bound", "leakage_bound", "best_bound"):
                assert values(rows, name)["target 1"].value >= exact * (1 - 1e-9)
            assert values(rows, "success_prior")["target 1"].value >= future.ball(1) * (1 - 1e-9)
            information = future.information(future.raw_channel(sensors[2:]))
            assert values(rows, "information")["target 1"].value >= information - 1e-9


def test_a_bound_from_the_prior_alone_would_understate():
    stays = MarkovPrior([0.5, 0.5, 0.0], [[0.99, 0.01, 0], [0.01, 0.99, 0], [0, 0, 1]])
    accountant, prepared = accountant_of((stays,), tolerance=0)
    dark = [{0}, set(), set(), set()]
    steps, _, _ = account(
        accountant, prepared, mechanisms.get("raw")(), Facts(n_cells=2, n_windows=4), np.array([[0, 0, 0, 0]]), dark
    )
    assert values(steps[1], "best_bound")["target 1"].value > 0.95 > 0.5


@pytest.mark.parametrize("noise", ["raw", "laplace"])
def test_any_shards_and_blocks_give_the_same_bits(noise):
    rng = np.random.default_rng(5)
    sizes = [3, 6, 6, 2, 6, 5, 6] * 10  # in blocks of up to 64
    priors = []
    for size in sizes:  # with supports of different sizes
        prior = random_prior(rng, size)
        matrix = np.eye(6)
        matrix[:size, :size] = prior.transition
        priors.append(MarkovPrior(np.append(prior.initial, np.zeros(6 - size)), matrix))
    paths = np.concatenate([prior.sample(1, 12, rng) for prior in priors])
    mechanism = mechanisms.get(noise)(**({"epsilon": 1.0} if noise == "laplace" else {}))
    facts = Facts(n_cells=5, n_windows=12)

    def rows_in(shard):
        accountant, prepared = accountant_of(tuple(priors), horizon=9, tolerance=2)
        accountant = replace(accountant, shard=shard)
        actual, first = [], 0
        whole = np.stack([np.bincount(column, minlength=6)[:5] for column in paths.T])
        for part in accountant.shards(prepared):
            target_paths = paths[first : first + len(part["targets"])]
            first += len(target_paths)
            steps, _, _ = shard_rows(accountant, part, mechanism, facts, target_paths, whole)
            actual += [row for rows in steps for row in rows]
        return sorted(actual, key=lambda row: (row.subject, row.window or 0, row.name, row.status))

    def shard_rows(accountant, part, mechanism, facts, target_paths, whole):
        releases = run_mechanism(mechanism, whole, facts, seed=1)
        windows = facts.windows()
        known = AccountingFacts(
            n_cells=5, n_windows=12, mechanism=mechanism, training=part, windows=lambda a, b: windows[a - 1 : b]
        )
        model, state = accountant.start(known)
        steps = []
        for release, window in zip(releases, windows):
            cells = target_paths[:, window.index - 1]
            private = {"counts": whole[window.index - 1], "target_cells": np.where(cells == 5, -1, cells)}
            rows, state = accountant.charge(release, window, private, model, state)
            steps.append(rows)
        return [*steps, accountant.finish(model, state)], releases, whole

    together = rows_in(100)
    assert len({row.subject for row in together}) == 70
    for shard in (9, 64):
        assert rows_in(shard) == together


def forecast_of(mechanism, facts, horizon=4, steps=()):
    windows = facts.windows()
    places = PriorPlaces.of_cells(facts.n_cells)
    return ReleaseForecast(places, horizon, Releasing(mechanism, steps), facts, lambda a, b: windows[a - 1 : b])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("laplace", {"epsilon": 0.5}),
        ("discrete_gaussian", {"sigma": 2.0}),
        ("landmark_uniform", {"epsilon": 2.0}),
        ("landmark_skip", {"epsilon": 1.0}),
        ("w_event_uniform", {"epsilon": 1.0, "w": 3}),
        ("w_event_sample", {"epsilon": 1.0, "w": 3}),
    ],
)
def test_the_forecast_is_what_will_be_released(name, options):
    facts = Facts(n_cells=3, n_windows=12, landmarks=(3, 4, 9, 11), budget_period=6)
    mechanism = mechanisms.get(name)(**options)
    releases = run_mechanism(mechanism, np.full((12, 3), 50), facts, seed=2)
    forecast = forecast_of(mechanism, facts)
    state = forecast.start()
    for index in range(1, 13):
        coming = forecast.coming(index, state)
        assert len(coming.sensors) == 4
        for ahead, sensors in enumerate(coming.sensors):
            if index + ahead > 12:
                assert not sensors
                continue
            release = releases[index + ahead - 1]
            assert bool(sensors) == (release.repeats is None)
            if sensors:
                assert coming.noise == release.noise
                assert coming.scale[ahead] == pytest.approx(float(release.scale))
        state = forecast.after(index, state)


def test_a_block_is_charged_once_and_only_where_it_is_seen():
    facts = Facts(n_cells=3, n_windows=12, max_windows=2, max_block_cells=2)
    mechanism = mechanisms.get("fpa")(epsilon=1.0, coefficients=2, block=4)
    forecast = forecast_of(mechanism, facts, horizon=5)
    state = forecast.start()
    charges = []
    for index in range(1, 9):
        coming = forecast.coming(index, state)
        assert coming.noise == "pure_dp"
        charges.append(coming.scale.round(9).tolist())
        state = forecast.after(index, state)
    assert charges[0] == [1, 0, 0, 0, 1]
    assert charges[2] == [1, 0, 1, 0, 0]
    assert charges[4] == [1, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("w_event_bd", {"epsilon": 1.0, "w": 2}, [1, 0, 1, 0]),
        ("w_event_ba", {"epsilon": 1.0, "w": 4}, [1, 0, 0, 0]),
        ("landmark_adaptive", {"epsilon": 1.0}, [1, 1, 0, 0]),
    ],
)
def test_adaptive_mechanisms_are_bounded_over_all_paths(name, options, expected):
    facts = Facts(n_cells=3, n_windows=12, landmarks=(3, 4, 9, 11))
    forecast = forecast_of(mechanisms.get(name)(**options), facts)
    coming = forecast.coming(1, forecast.start())
    assert coming.noise == "pure_dp"
    assert coming.scale.tolist() == expected
    # whatever was spent: the same again later
    assert forecast.coming(1, forecast.after(1, forecast.start())).scale.tolist() == expected


def test_what_follows_is_bounded_by_the_noise_and_what_merges_counts_by_raw_counts():
    facts = Facts(n_cells=3, n_windows=8)
    noise, small = mechanisms.get("laplace")(epsilon=1.0), mechanisms.get("suppress_small")(threshold=2)
    after = forecast_of(noise, facts, steps=(noise, small))
    # What follows the noise tells no more than the noise, but its releases have another likelihood.
    assert after.coming(1, after.start()).noise == "laplace"
    merged = forecast_of(noise, facts, steps=(mechanisms.get("temporal_generalization")(windows=2), noise))
    assert merged.coming(1, merged.start()).noise is None
    release = run_mechanism(noise, np.full((1, 3), 5), replace(facts, n_windows=1), seed=1)[0]
    for steps, known in (((), "laplace"), ((noise, small), None)):
        reading, active = Releasing(noise, steps).reading(release, np.full(3, 5.0))
        assert reading.noise == known
        assert active.all()
    assert mechanisms.get("raw")().guarantee.adaptive is False


def test_a_decision_that_read_the_counts_is_no_repetition():
    counts = np.full((6, 4), 30)
    for name, hidden in (("w_event_sample", True), ("w_event_bd", False)):
        mechanism = mechanisms.get(name)(epsilon=1.0, w=3)
        releases = run_mechanism(mechanism, counts, Facts(n_cells=4), seed=1)
        repeated = [release for release in releases if str(release.action) == "repeated"]
        assert repeated
        for release in repeated:
            assert (Releasing(mechanism).reading(release, counts[0].astype(float))[0] is None) == hidden


def test_every_mechanism_can_be_accounted():
    rng = np.random.default_rng(7)
    for name in mechanisms.names():
        mechanism = mechanisms.get(name).examples()[0]
        if not isinstance(mechanism, Mechanism) or mechanism.guarantee.on_points:
            continue
        prior = random_prior(rng, 6, stationary=True)
        facts = Facts(n_cells=5, n_windows=12, max_windows=4, max_block_cells=4, landmarks=(3, 4, 9))
        accountant, prepared = accountant_of((prior, prior))
        steps, _, _ = account(accountant, prepared, mechanism, facts, prior.sample(2, 12, rng))
        rows = [row for rows in steps for row in rows]
        assert {row.status for row in steps[-1]} == {"final"}
        assert all(0 <= row.value <= 1 for row in rows if row.unit == "probability"), name
        risk = values(steps[-1], "realised_risk")["target 1"]
        assert risk.low <= risk.high


def test_places_elsewhere_against_direct_sums():
    """The likelihood of a place of several cells is that of its cells, weighted by how often each is meant."""
    rng = np.random.default_rng(8)
    paths = rng.integers(-1, 6, (40, 10))
    places = PriorPlaces.most_visited(paths, 6, 2)
    assert places.n_locations == 3
    assert (places.location[:-1] < 2).sum() == 2
    active = np.array([True, True, False, True, True, True])
    for noise, scale in ((None, None), ("gaussian", 0.7), ("laplace", 1.3)):
        residual = rng.normal(size=6)
        for cell in range(7):
            shown = residual + (np.arange(6) == cell)
            direct = np.zeros(3)
            for other in range(7):
                if noise is None:
                    reading, of_other = ((c if c < 6 and active[c] else None) for c in (cell, other))
                    likelihood = float(reading == of_other)
                else:
                    apart = np.where(active, shown - (np.arange(6) == other), 0.0)
                    square, size = (apart**2).sum(), np.abs(apart).sum()
                    likelihood = np.exp(-square / (2 * scale**2) if noise == "gaussian" else -size / scale)
                direct[places.location[other]] += places.share[other] * likelihood
            known = KnownTargets(users=(None,), priors=(), places=places, first=0, assumption="given")
            reading = Reading(active, noise, scale, residual)
            actual = np.exp(known.log_likelihood(reading, np.array([cell]), np.zeros(0, np.intp))[0])
            assert actual / actual.max() == pytest.approx(direct / direct.max(), rel=1e-9)


def test_priors_are_learned_from_each_persons_own_windows():
    trajectories = np.array([[0, 0, 1, 0], [2, 2, 2, -1], [-1, -1, -1, 1]])
    training = Training(trajectories=trajectories, users=np.array([[3], [5], [9]]), n_cells=4, named=(1, 0))
    section = KnownPrior(estimate="first", windows=4, min_windows=2, smoothing=0.5, towards="uniform")
    drawn = known_targets(section, 10, 0, training)
    assert drawn.users.ravel().tolist() == [3, 5]
    assert drawn.places.n_locations == 5
    assert drawn.priors[0].transition[0] == pytest.approx((np.array([1, 1, 0, 0, 0]) + 0.1) / 2.5)
    named = known_targets(section, (5, "3"), 0, training)
    assert named.users == (5, "3")
    assert named.priors[1].transition == pytest.approx(drawn.priors[0].transition)
    with pytest.raises(ParameterError, match="targets"):
        known_targets(section, (7,), 0, replace(training, named=(-1,)))
    with pytest.raises(ParameterError, match="min_windows"):
        known_targets(replace(section, min_windows=5), 3, 0, training)
    target_paths = known_targets(replace(section, towards="own"), 10, 0, training).priors[0]
    share = (np.array([3, 1, 0, 0, 0]) + 0.1) / 4.5
    assert target_paths.transition[0] == pytest.approx((np.array([1, 1, 0, 0, 0]) + 0.5 * share) / 2.5)
    assert target_paths.transition[3] == pytest.approx(share)
    population = known_targets(replace(section, towards="population", top=2), 10, 0, training)
    assert population.places.n_locations == 3
    assert all((prior.transition > 0).all() for prior in population.priors)


def test_who_is_who():
    users = np.array([[3], [5]])
    assert rows_of(users, (5, "3", 4), None) == (1, 0, -1)
    digests, index = as_counted(("anna", "7"), None)
    assert digests.shape == (3, 2)
    assert index.tolist() == [0, 1, 1]
    with pytest.raises(ParameterError, match="deployment"):
        as_counted(("anna",), b"key")


def test_refusals_say_why():
    accountant, prepared = accountant_of((random_prior(np.random.default_rng(1), 4),))
    with pytest.raises(UnsupportedEvent, match="max_cells"):
        accountant.start(AccountingFacts(n_cells=3, max_cells=2, training=prepared))
    with pytest.raises(ParameterError, match="prior"):
        accountant.start(AccountingFacts(n_cells=5, training=prepared))
    model, state = accountant.start(AccountingFacts(n_cells=3, training=prepared))
    window = Facts(n_cells=3, n_windows=1).windows()[0]
    release = Release(window=1, values=np.zeros(3), charge=(Exact(),))
    with pytest.raises(UnsupportedEvent, match="target_cells"):
        accountant.charge(release, window, {}, model, state)
    private = {"counts": np.zeros(3), "target_cells": np.array([-1])}
    with pytest.raises(UnsupportedEvent):
        accountant.charge(replace(release, charge=(Event(),)), window, private, model, state)
    assert not accountant.public
    with pytest.raises(ParameterError, match="windows"):
        Reconstruction(prior=KnownPrior(chain=Walk(n=3)))
    with pytest.raises(ParameterError, match="learned"):
        KnownPrior(chain=Walk(n=3), learned="x")
    with pytest.raises(DataError):
        known_targets(KnownPrior(learned=__file__), ("a",), 0, None)


def test_bounds_on_the_coming_windows_hold_from_what_was_observed():
    rng = np.random.default_rng(9)
    for _ in range(4):
        priors = tuple(random_prior(rng, 3, stationary=False) for _ in range(2))
        accountant, prepared = accountant_of(priors)
        paths = np.concatenate([prior.sample(1, 6, rng) for prior in priors])
        sensors = [{0}, {0}, {1}, {0}, {0}, {0}]
        steps, _, _ = account(
            accountant, prepared, mechanisms.get("raw")(), Facts(n_cells=2, n_windows=6), paths, sensors
        )
        for target, prior in enumerate(priors):
            belief = prior.initial
            for window in range(1, 4):
                coming = Enumeration(MarkovPrior(belief, prior.transition), 3)
                exact = coming.best_success(coming.raw_channel(sensors[window - 1 : window + 2]), 1)
                for name in ("loose_bound", "tight_bound", "leakage_bound", "best_bound"):
                    assert values(steps[window - 1], name)[f"target {target + 1}"].value >= exact * (1 - 1e-9)
                (watching,) = sensors[window - 1]
                here = paths[target, window - 1] == watching
                belief = np.where((np.arange(3) == watching) == here, belief, 0.0)
                belief = belief / belief.sum() @ prior.transition


@pytest.mark.parametrize("unseen", [False, True])
def test_a_learned_file_is_a_prior_for_everybody(tmp_path, unseen):
    from penstock.accountants.correlation.adversary import learn

    training = Training(trajectories=np.array([[0, 1, 1, -1], [1, 0, 2, 2]]), users=np.array([[1], [2]]), n_cells=3)
    learn(training, ("a", "b", "c"), smoothing=0.5, unseen=unseen).write(tmp_path / "learned.npz")
    section = KnownPrior(learned=str(tmp_path / "learned.npz"), windows=4)
    known = known_targets(section, 2, 0, training)
    assert known.places.n_cells == 3
    assert len(known.priors) == 1
    assert known.priors[0].n_locations == 4
    assert known.priors[0].initial[3] == pytest.approx(0.0) or unseen
    accountant = Reconstruction(horizon=2, tolerance=0, targets=2, prior=section)
    facts = Facts(n_cells=3, n_windows=4)
    prepared = {"targets": known.users, "known": known}
    steps, _, _ = account(accountant, prepared, mechanisms.get("raw")(), facts, np.array([[0, 1, 1, 2], [1, 0, 2, 2]]))
    assert values(steps[-1], "realised_risk")["target 2"].value == pytest.approx(1.0)


def test_means_of_groups_are_not_read_as_counts_with_noise():
    grouped = mechanisms.get("rescue_dp")(epsilon=1.0, w=3)
    assert not Releasing(grouped).adds_noise_only
    assert Releasing(replace(grouped, group_below=0.0)).adds_noise_only
