"""The synthetic city: movement by its matrices, and any part generated alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from penstock.mechanisms.core.plugin import ParameterError
from penstock.pipeline.sources.synthetic import (
    ACTIVITY,
    ERRAND,
    HOME,
    HOUR,
    REGIMES,
    WORK,
    Commuters,
    Locations,
    MarkovPeople,
    People,
    PlaceGrid,
    Synthetic,
)

MONDAY = 1_704_067_200_000
PLACES = PlaceGrid(rows=3, columns=4, south=0.0, north=3.0, west=10.0, east=14.0, seed=5)
DEFAULTS: dict[str, Any] = {"places": PLACES, "n_users": 300, "seed": 5, "start": MONDAY, "step": HOUR}


def markov(**changes: Any) -> MarkovPeople:
    return MarkovPeople(**DEFAULTS | changes)


def commuters(**changes: Any) -> Commuters:
    return Commuters(**DEFAULTS | changes)


def walk(people: People, first: int, stop: int) -> Locations:
    return np.array(list(people.locations(first, stop)))


def p_value(before: Locations, after: Locations, matrix: NDArray[np.float64]) -> float:
    """Chance of transition counts at least as far from the matrix as these (likelihood ratio)."""
    n = len(matrix)
    seen = np.zeros((n, n))
    np.add.at(seen, (before.ravel(), after.ravel()), 1)
    expected = seen.sum(axis=1, keepdims=True) * matrix
    assert not seen[matrix == 0].any()
    used = expected > 0
    statistic = 2 * np.sum(seen[used] * np.log(np.where(seen[used] > 0, seen[used] / expected[used], 1.0)))
    freedom = sum((matrix[i] > 0).sum() - 1 for i in range(n) if seen[i].any())
    return float(stats.chi2.sf(statistic, freedom)) if freedom else 1.0


@pytest.mark.parametrize("make", [markov, commuters])
@pytest.mark.parametrize("first", [1, 3, 4, 5, 23, 28, 100, 167])
def test_any_part_equals_the_same_part_of_the_whole(make: Callable[..., People], first: int) -> None:
    people = make()
    np.testing.assert_array_equal(walk(people, first, first + 10), walk(people, 0, first + 10)[first:])


def test_the_markov_chain_follows_its_published_matrix() -> None:
    people = markov(n_users=2000, stay=0.4)
    places = walk(people, 0, 60)
    assert p_value(places[:-1], places[1:], people.transition) > 1e-4
    wrong = 0.97 * people.transition + 0.03 * np.eye(PLACES.n_places)
    assert p_value(places[:-1], places[1:], wrong) < 1e-6


def test_the_markov_chain_forgets_all_but_the_last_step() -> None:
    """Given the present, next and previous are independent: the triples follow P too, for every previous place."""
    people = markov(n_users=3000)
    places = walk(people, 0, 40)
    here = places[1:-1] == 0
    for previous in range(PLACES.n_places):
        chosen = here & (places[:-2] == previous)
        if chosen.sum() > 500:
            assert p_value(places[1:-1][chosen], places[2:][chosen], people.transition) > 1e-4


def test_the_markov_chain_starts_and_stays_in_its_initial_distribution() -> None:
    people = markov(n_users=20_000)
    assert people.initial @ people.transition == pytest.approx(people.initial, abs=1e-14)
    for index in (0, 7):
        (places,) = walk(people, index, index + 1)
        seen = np.bincount(places, minlength=PLACES.n_places)
        assert stats.chisquare(seen, people.initial * people.n_users).pvalue > 1e-4
        assert stats.chisquare(seen, np.roll(people.initial, 1) * people.n_users).pvalue < 1e-6


def test_a_city_of_one_place() -> None:
    people = markov(places=PlaceGrid(rows=1, columns=1, south=0.0, north=1.0, west=0.0, east=1.0, seed=5))
    assert people.transition.tolist() == [[1.0]]
    assert not walk(people, 0, 5).any()


def test_commuters_follow_the_matrix_of_every_regime() -> None:
    people = commuters(n_users=500)
    places = walk(people, 0, 4 * 7 * 24)
    roles = np.where(places == people.homes, HOME, np.where(places == people.works, WORK, ERRAND))
    regimes = np.array([people.regime(index) for index in range(len(places))])
    assert set(regimes) == set(REGIMES) == set(ACTIVITY)
    for regime, matrix in REGIMES.items():
        steps = np.flatnonzero(regimes[1:] == regime)
        assert p_value(roles[steps], roles[steps + 1], matrix) > 1e-4
    day = np.flatnonzero(regimes[1:] == "day")
    assert p_value(roles[day], roles[day + 1], 0.9 * REGIMES["day"] + 0.1 * np.eye(3)) < 1e-6


def test_everybody_works_elsewhere_and_activity_is_one_on_average() -> None:
    people = commuters(n_users=5000)
    assert (people.homes != people.works).all()
    assert np.mean([people.activity(index) for index in range(7 * 24)]) == pytest.approx(1.0, abs=0.01)


def test_too_few_places_for_commuters() -> None:
    with pytest.raises(ParameterError, match="three places"):
        commuters(places=PlaceGrid(rows=1, columns=2, south=0.0, north=1.0, west=0.0, east=1.0, seed=5))


def test_numbers_of_events_are_poisson_beyond_the_minimum() -> None:
    source = Synthetic(n_users=20_000, mobility="markov", events_per_hour=3.5, min_events=2, duplicates=0.0, days=1)
    people = source.city
    (locations,) = people.locations(0, 1)
    number = np.bincount(source.during(people, 0, locations)["user"].to_numpy(), minlength=people.n_users)
    assert number.min() == 2
    expected = stats.poisson.pmf(np.arange(6), 1.5) * people.n_users
    expected = np.append(expected, people.n_users - expected.sum())
    assert stats.chisquare(np.bincount(np.minimum(number - 2, 6)), expected).pvalue > 1e-4


def test_events_lie_in_the_cell_and_the_step_where_the_person_is() -> None:
    box = {"rows": 3, "columns": 4, "south": 0.0, "north": 3.0, "west": 10.0, "east": 14.0}
    source = Synthetic(n_users=300, seed=5, events_per_hour=2.0, duplicates=0.1, days=1, **box)
    for index, locations in enumerate(source.city.locations(0, 24)):
        frame = source.during(source.city, index, locations)
        events = {name: frame[name].to_numpy() for name in frame.columns}
        assert (events["place"] == locations[events["user"]]).all()
        assert (events["time"] // HOUR == MONDAY // HOUR + index).all()
        row, column = np.floor(events["latitude"]), np.floor(events["longitude"] - 10)
        assert (events["place"] == row * 4 + column).all()
