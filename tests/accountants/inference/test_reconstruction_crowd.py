"""Adversaries who do not know the whole crowd: likelihoods against enumeration of everybody's places."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from penstock.accountants.inference.crowd import UnknownCrowd, at_places, log_noise, poisson_binomial
from penstock.accountants.inference.kernel import Kernel
from penstock.accountants.inference.observation import scaled, smoothed
from penstock.accountants.inference.places import PriorPlaces, Reading
from penstock.accountants.inference.targets import KnownTargets
from penstock.accountants.markov import MarkovPrior
from penstock.evaluation.attacks.parameters import ReconstructionGame
from penstock.evaluation.attacks.retracing import Observed, UnknownPeople, decode_trajectories
from penstock.mechanisms.core.plugin import ConfigError, ParameterError
from penstock.pipeline.config.run import loads
from penstock.pipeline.experiments.attack import reconstruct
from tests.tools.reconstruction_oracle import Enumeration
from tests.tools.small_configuration import run_locally as run

FloatArray = NDArray[np.float64]


def counted(places: tuple[int, ...], n_cells: int) -> NDArray[np.intp]:
    return np.bincount(places, minlength=n_cells)[:n_cells]


def targets_of(places: PriorPlaces, n: int, crowd: UnknownCrowd | None = None) -> KnownTargets:
    return KnownTargets(users=(None,) * n, priors=(), places=places, first=0, assumption="given", crowd=crowd)


def release_given_target(presence: FloatArray, released: FloatArray, active: int, noise: str | None) -> FloatArray:
    """Pr(one sensor's reading | target in each of the cells or unseen), over all places of the unknown people."""
    n_people, n_cells = presence.shape
    unseen = 1 - presence.sum(axis=1, keepdims=True)
    everywhere = np.hstack([presence, unseen])
    result = np.zeros(n_cells + 1)
    for target in range(n_cells + 1):
        for places in itertools.product(range(n_cells + 1), repeat=n_people):
            weight = np.prod([everywhere[person, place] for person, place in enumerate(places)])
            error = released[active] - counted((*places, target), n_cells + 1)[active]
            result[target] += weight * (float(error == 0) if noise is None else np.exp(log_noise(noise, error, 0.8)))
    return result


def test_the_number_of_people_in_a_cell_is_that_of_all_their_places():
    presence = np.random.default_rng(1).dirichlet(np.ones(4), size=5)[:, :3]
    actual = np.zeros((3, 6))
    for are_there in itertools.product((0, 1), repeat=5):
        there = np.array(are_there, bool)[:, None]
        actual[np.arange(3), there.sum()] += np.where(there, presence, 1 - presence).prod(axis=0)
    np.testing.assert_allclose(poisson_binomial(presence), actual, atol=1e-15)
    np.testing.assert_allclose(poisson_binomial(presence, 2), actual[:, :3], atol=1e-15)


@pytest.mark.parametrize("noise", [None, "gaussian", "discrete_laplace", "laplace", "discrete_gaussian"])
def test_the_likelihood_of_one_sensor_is_that_of_everybody_s_places(noise):
    rng = np.random.default_rng(2)
    presence = rng.dirichlet(np.ones(4), size=4)[:, :3]
    places = PriorPlaces.of_cells(3)
    active = np.arange(3) == 1
    for _ in range(20):
        cells = tuple(rng.integers(0, 4, size=4))  # of the crowd; 3: not seen
        target = int(rng.integers(0, 4))
        error = 0 if noise is None else rng.integers(-2, 3)
        # Two further people whom the adversary knows: she subtracts them from the count that was released.
        counts = counted((*cells, target), 4)[:3]
        reading = Reading(active, noise, 0.8, np.full(3, float(error)))
        crowd = UnknownCrowd(presence, np.array([-1]))
        given = targets_of(places, 1, crowd).log_likelihood(reading, np.array([target]), np.array(cells))[0]
        truth = release_given_target(presence, counts + error, 1, noise)
        np.testing.assert_allclose(np.exp(given - given[3]), truth / truth[3], rtol=1e-10)
        # A target who is one of the crowd is left out of it.
        inside = UnknownCrowd(np.vstack([rng.dirichlet(np.ones(4))[:3], presence]), np.array([0]))
        same = targets_of(places, 1, inside).log_likelihood(reading, np.array([target]), np.array([target, *cells]))[0]
        np.testing.assert_allclose(same, given, rtol=1e-12)


def test_the_filter_is_exact_where_others_move_independently_of_where_they_were():
    rng = np.random.default_rng(3)
    prior = MarkovPrior(rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(3), size=3))
    others = rng.dirichlet(np.ones(3), size=2)
    crowd, places = UnknownCrowd(others, np.array([-1])), PriorPlaces.of_cells(2)
    places = replace(places, location=np.array([0, 1, 2, 2]), share=np.array([1.0, 1.0, 1.0, 0.0]))
    released, sensors = [1, 0, 2], [0, 2, 1]
    people = [np.where(np.arange(3) == sensor, count, 0) for count, sensor in zip(released, sensors)]
    truth = Enumeration(prior, 3)
    joint = truth.weight.copy()
    for number, path in enumerate(truth.paths):
        for step, (count, sensor) in enumerate(zip(released, sensors)):
            both = itertools.product(range(3), repeat=2)
            joint[number] *= sum(
                others[0, a] * others[1, b] for a, b in both if [a, b, path[step]].count(sensor) == count
            )
    posterior = np.array([[joint[truth.paths[:, t] == x].sum() for x in range(3)] for t in range(3)]) / joint.sum()
    observed = Observed(np.array(people), np.full((1, 3, 3), np.nan), np.zeros((1, 3, 3)))
    for step, sensor in enumerate(sensors):
        observed.residual[0, step, sensor] = 0.0
    evidence = UnknownPeople(np.array(people), crowd.log_mass[0]).evidence(observed)
    with np.errstate(divide="ignore"):
        likelihood = scaled(at_places(evidence, places))
    actual = smoothed(prior.initial, Kernel(prior.transition), likelihood)[0]
    np.testing.assert_allclose(actual, posterior, rtol=1e-10)


@pytest.mark.parametrize("noise", [None, "discrete_laplace"])
def test_one_who_knows_everybody_is_one_without_an_unknown_crowd(noise):
    rng = np.random.default_rng(4)
    places, active = PriorPlaces.of_cells(5), np.array([True, False, True, True, True])
    reading = Reading(active, noise, 1.5, rng.integers(-2, 3, size=5).astype(float) if noise else None)
    cells, nobody = np.array([0, 1, 4, 5]), np.zeros(0, np.intp)
    before = targets_of(places, 4).log_likelihood(reading, cells, nobody)
    crowd = UnknownCrowd(np.zeros((0, 5)), np.full(4, -1))
    given = targets_of(places, 4, crowd).log_likelihood(reading, cells, nobody)
    tops = [values.max(axis=1, keepdims=True) for values in (given, before)]
    np.testing.assert_allclose(given - tops[0], before - tops[1], atol=1e-12)


CITY = """
name: crowd
seed: 3
source: {type: synthetic, n_users: 40, days: 1, from: 2024-01-01T00:00:00Z, rows: 2, columns: 2, events_per_hour: 2.0}
space: {type: grid, south: 37.74, north: 37.82, west: -122.47, east: -122.37, rows: 2, columns: 2}
windows: {type: fixed, size: 1h}
bounding: {max_cells: 1}
mechanism: {type: raw}
output: {path: unused, report: false}
accountants:
- {type: reconstruction, horizon: 4, tolerance: 1, targets: 9, prior: {estimate: first, windows: 12}}
"""


def accounts(tmp_path, *overrides):
    config = loads(CITY, overrides=[f"output.path={tmp_path}", *overrides])
    return pl.read_parquet(run(config).folder / "operator" / "accounts.parquet")


def test_the_accountant_says_what_one_who_knows_half_the_crowd_believes(tmp_path):
    whole, half = (accounts(tmp_path / name, f"accountants.0.known={known}") for name, known in (("1", 1), ("2", 0.5)))
    known = {name: frame.filter(pl.col("name") == "place_known") for name, frame in (("whole", whole), ("half", half))}
    assert known["whole"]["value"].min() == pytest.approx(1)
    assert 0.4 < known["half"]["value"].mean() < 0.95
    assert known["half"]["adjacency"].str.contains("50% of everybody else's cells known").all()
    bounds = [
        frame.filter(pl.col("name").str.ends_with("_bound") & (pl.col("window") == 1)).sort("subject", "name")
        for frame in (whole, half)
    ]
    assert bounds[0].equals(bounds[1])  # of an adversary who knows everybody, whatever is known
    parts = accounts(tmp_path / "3", "accountants.0.known=0.5", "accountants.0.shard=2")
    order = ["subject", "name", "window", "status"]
    assert parts.sort(order).equals(half.sort(order))


def test_who_knows_less_of_the_crowd_retraces_fewer(tmp_path):
    rates = []
    for known in (1.0, 0.6, 0.0):
        game = ReconstructionGame(targets=9, releases=1, simulated=0, bound_samples=0, known=known)
        outcome = reconstruct(loads(CITY), game, folder=tmp_path / str(known))
        named = outcome.results.group_by("name").agg(pl.col("value").mean())
        rates.append(dict(named.iter_rows())["posterior_marginals_hits"])
        assert outcome.summary["game"]["known"] == known
    assert rates[0] == 1
    assert rates[0] > rates[1] + 0.05
    assert rates[1] > rates[2]


def test_a_guess_without_the_crowd_comes_from_the_release_alone():
    """Two people are counted; one of them may be the target: the more likely the other is there, the less it says."""
    stay = MarkovPrior([0.5, 0.5], np.eye(2))
    observed = Observed(np.array([[1, 0]]), np.zeros((1, 1, 2)), np.zeros((1, 1, 2)))
    for chance, guessed in ((0.9, 1), (0.1, 0)):
        crowd = UnknownCrowd(np.array([[chance, 0.0]]), np.array([-1]))
        not_known = UnknownPeople(np.array([[1, 0]]), crowd.log_mass[0])
        guesses = decode_trajectories(
            ["map"],
            stay,
            observed,
            np.array([[0]]),
            PriorPlaces(np.array([0, 1, 1]), np.array([1, 0.5, 0.5])),
            1,
            0,
            not_known,
        )
        assert guesses["map"].ravel().tolist() == [guessed]


def test_a_share_of_the_crowd_needs_people_to_draw_from():
    with pytest.raises((ConfigError, ParameterError), match="known"):
        loads(CITY, overrides=["accountants.0.known=1.5"])
    named = "accountants.0={type: reconstruction, targets: [1], known: 0.5, prior: {chain: {n: 4}}}"
    with pytest.raises(ParameterError, match=r"prior\.windows"):
        run(loads(CITY, overrides=[named]))
