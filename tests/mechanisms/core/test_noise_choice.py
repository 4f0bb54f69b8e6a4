"""``noise: auto``: which family a schedule gets, by public facts alone."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.mechanisms import get
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.run import choose_noise, run_mechanism

LAPLACE, GAUSSIAN = "discrete_laplace", "discrete_gaussian"
SCHEDULES = {
    "period_uniform": {},
    "fast": {"publications": 4},
    "landmark_uniform": {},
    "landmark_skip": {},
    "landmark_adaptive": {},
    "rescue_dp": {"w": 4},
    "w_event_uniform": {"w": 4},
    "w_event_sample": {"w": 4},
    "w_event_bd": {"w": 4},
    "w_event_ba": {"w": 4},
}


def day(n: int = 1, **changes: object) -> Facts:
    facts = {"n_cells": 500, "max_cells": n, "n_windows": 24, "landmarks": (8, 9, 18)} | changes
    return Facts(**facts)  # type: ignore[arg-type]


def chosen(name: str, facts: Facts, **parameters: object) -> str:
    schedule = get(name)(**{"delta": 1e-6} | SCHEDULES[name] | parameters)
    return choose_noise(schedule, facts, facts.windows()).schedule.noise


@pytest.mark.parametrize("name", SCHEDULES)
def test_without_a_delta_it_is_laplace_and_with_a_rho_gaussian(name):
    kind, given = get(name), SCHEDULES[name]
    assert kind(epsilon=1.0, **given) == kind(epsilon=1.0, noise=LAPLACE, **given)
    assert kind(rho=0.5, **given) == kind(rho=0.5, noise=GAUSSIAN, **given)
    assert kind(epsilon=1.0, noise="auto", **given).candidates == (kind(epsilon=1.0, **given),)


@pytest.mark.parametrize(("epsilon", "most"), [(1.0, 9), (2.0, 10), (5.0, 13), (10.0, 16)])
def test_pure_noise_is_chosen_up_to_the_bound_at_which_its_variance_is_smaller(epsilon, most):
    of = [chosen("period_uniform", day(500, max_per_period=n), epsilon=epsilon) for n in range(1, 30)]
    assert of == [LAPLACE] * most + [GAUSSIAN] * (29 - most)


def test_what_counts_is_the_noise_of_a_publication_and_not_the_unit():
    # All of ε goes into one window of four, and what a person does there is one membership.
    assert chosen("w_event_sample", day(4), epsilon=1.0, w=24) == LAPLACE
    assert chosen("w_event_uniform", day(4), epsilon=1.0, w=24) == GAUSSIAN
    assert chosen("landmark_skip", day(4), epsilon=1.0) == LAPLACE
    assert chosen("landmark_uniform", day(4), epsilon=1.0) == GAUSSIAN


def test_the_ledger_decides_by_its_measure_and_delta_is_spent_by_gaussian_noise_only():
    facts = day(500, max_per_period=3)
    schedule = get("period_uniform")(epsilon=1.0, delta=1e-6)
    measures = (None, "epsilon", "rho", "gaussian")
    free, in_epsilon, in_rho, exact = (choose_noise(schedule, facts, facts.windows(), measure) for measure in measures)
    assert [c.schedule.noise for c in (free, in_epsilon, in_rho, exact)] == [LAPLACE, LAPLACE, GAUSSIAN, GAUSSIAN]
    assert [c.schedule.delta for c in (free, in_rho)] == [None, 1e-6]
    assert [c.schedule.accounting for c in (free, in_rho, exact)] == [None, "rho", "gaussian"]
    assert [round(deviation, 2) for deviation in free.deviations.values()] == [4.22, 7.85, 7.45]
    assert free.words == (
        "Laplace noise: standard deviation 4.22 in a count, 7.85 with Gaussian noise by ρ, 7.45 with Gaussian noise by "
        "its exact ε; the promise is a pure ε, no δ is spent."
    )
    assert in_rho.words.startswith("Gaussian noise by ρ, the measure of the ledger: standard deviation 7.85")
    assert in_rho.words.endswith("δ = 1e-06 is spent.")
    assert free.schedule.guarantee.words.statement == "ε-differential privacy per budget period, with ε = 1 nats"


def test_until_the_bounds_are_known_the_promise_is_that_of_gaussian_noise():
    waiting = get("period_uniform")(epsilon=1.0, delta=1e-6)
    assert waiting.guarantee == get("period_uniform")(epsilon=1.0, delta=1e-6, noise=GAUSSIAN).guarantee


@pytest.mark.parametrize(("n", "family"), [(2, LAPLACE), (40, GAUSSIAN)])
@pytest.mark.parametrize("after", [(), ("filter",)])
def test_a_plain_run_releases_what_the_named_noise_would(n, family, after):
    counts, facts = np.full((24, 500), 7), day(500, max_per_period=n)
    budget = {"epsilon": 1.0} | ({} if family == LAPLACE else {"delta": 1e-6})

    def values(**given: object) -> list[np.ndarray]:
        steps = [get("period_uniform")(**given), *(get(name)() for name in after)]
        return [release.values for release in run_mechanism(Chain.of(steps), counts, facts, seed=3)]

    assert np.array_equal(values(epsilon=1.0, delta=1e-6), values(noise=family, **budget))


def test_replicas_choose_as_one_run_does():
    counts = np.zeros((3, 24, 500), int)
    made = run_mechanism(get("period_uniform")(epsilon=1.0, delta=1e-6), counts, day(500, max_per_period=2), seed=3)
    assert {release.noise for release in made} == {LAPLACE}
