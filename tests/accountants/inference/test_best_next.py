"""Best next places of many targets: equal to the whole product, whatever places are left out on the way."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.accountants.inference.targets import TargetPriors
from penstock.accountants.markov import MarkovPrior, estimate_prior


def whole_product(targets, rows):
    return np.stack([(targets.transition * rows[:, level, None, :]).max(axis=2) for level in range(rows.shape[1])], 1)


@pytest.mark.parametrize("seed", range(20))
def test_small_priors_with_padding_and_impossible_moves(seed):
    rng = np.random.default_rng(seed)
    n, priors = seed + 1, []
    for _ in range(4):
        matrix = rng.dirichlet(np.full(n, 0.1), n) * (rng.random((n, n)) < 0.5) + np.eye(n) / 1000
        initial = np.eye(n)[rng.integers(0, n, 3)].sum(axis=0) / 3
        priors.append(MarkovPrior(initial, matrix / matrix.sum(axis=1, keepdims=True)))
    targets = TargetPriors.of(priors)
    rows = rng.random((4, 3, targets.locations.shape[1])) * 10.0 ** rng.integers(-8, 1, 3)[:, None]
    rows *= rng.random(rows.shape) < 0.7
    assert np.array_equal(targets.best_next(rows), whole_product(targets, rows))


@pytest.mark.parametrize("power", [0, 1, 8])
def test_people_with_few_places_of_their_own(power):
    rng = np.random.default_rng(power)
    n, priors = 60, []
    for _ in range(40):
        places = rng.choice(n, 5, replace=False)
        path = rng.choice(places, 100)
        visits = np.bincount(path, minlength=n) + 0.1 / n
        priors.append(estimate_prior(path, n, 0.1, visits / visits.sum(), "stationary"))
    targets = TargetPriors.of(priors)
    rows = rng.random((40, 4, n)) ** power
    assert np.array_equal(targets.best_next(rows), whole_product(targets, rows))
