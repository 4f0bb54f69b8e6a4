"""Orientation of arrays: public functions take cells × windows, or windows × cells if asked to."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.evaluation.membership import membership_auc, mobility_features
from penstock.evaluation.utility import METRICS
from penstock.mechanisms.core.plugin import ParameterError

RNG = np.random.default_rng(4)
TRUTH = RNG.integers(0, 9, (6, 6)).astype(float)
RELEASED = TRUTH + RNG.integers(0, 4, (6, 6))
#: As many windows as cells, so that no shape tells them apart.
BINARY = RNG.random((20, 6, 6)) < 0.3
WEEKEND = np.arange(6) > 3
GAME = {"group_size": 6, "observation": 6, "inference": 6, "n_samples": 80, "n_components": 9, "seed": 1}


def turn(array):
    return array.swapaxes(-1, -2)


FUNCTIONS = {
    name: lambda turned, one=one, **axes: one.function(turned(TRUTH), turned(RELEASED), **axes)
    for name, one in METRICS.items()
} | {
    "membership_auc": lambda turned, **axes: membership_auc(turned(BINARY), 3, **GAME, **axes),
    "mobility_features": lambda turned, **axes: np.stack(
        list(mobility_features(turned(BINARY), WEEKEND, **axes).values())
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_square_array_is_taken_as_is_said(name):
    function = FUNCTIONS[name]
    actual = function(np.asarray, axes="windows_cells")
    np.testing.assert_allclose(function(turn), actual, atol=1e-9)
    np.testing.assert_allclose(function(turn, axes="cells_windows"), actual, atol=1e-9)
    with pytest.raises(ParameterError, match="axes: 'rows' is not allowed; it must be windows_cells or cells_windows"):
        function(turn, axes="rows")


@pytest.mark.parametrize("name", ["skill_last", "mobility_features"])
def test_the_orientation_matters(name):
    """Else the test above would say nothing."""
    assert not np.allclose(FUNCTIONS[name](np.asarray), FUNCTIONS[name](turn))
