"""Orientation of arrays, windows × cells; the transposed form is accepted with a warning."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.evaluation.attacks.defenses import defended_presence
from penstock.evaluation.attacks.exposure import component_loadings, mobility_features, sort_by_popularity, unicity
from penstock.evaluation.attacks.game import MembershipGame
from penstock.evaluation.attacks.targets import activity_profile
from penstock.evaluation.membership import membership_auc
from penstock.evaluation.utility import METRICS
from penstock.mechanisms import get
from penstock.mechanisms.core.plugin import ParameterError

RNG = np.random.default_rng(4)
TRUTH = RNG.integers(0, 9, (6, 6)).astype(float)
RELEASED = TRUTH + RNG.integers(0, 4, (6, 6))
#: As many windows as cells, so that no shape tells them apart.
BINARY = RNG.random((20, 6, 6)) < 0.3
WEEKEND = np.arange(6) > 3
GAME = {"group_size": 6, "observation": 6, "inference": 6, "n_samples": 80}


def loadings(binary, axes):
    return component_loadings(MembershipGame(binary, **GAME, axes=axes), 3, axes=axes)


def as_windows_cells(found):
    return found.swapaxes(-1, -2)


#: Functions of an array and its orientation; and what carries a result of the old orientation to the new one.
FUNCTIONS = {
    **{
        name: (lambda array, axes, one=one: one.function(array, turn(RELEASED, axes), axes=axes), None)
        for name, one in METRICS.items()
    },
    "scores": (lambda array, axes: METRICS["mae"].scores(array, turn(RELEASED, axes), axes=axes)[1], None),
    "MembershipGame": (lambda array, axes: MembershipGame(array, **GAME, axes=axes).attack(3).auc, None),
    "membership_auc": (
        lambda array, axes: membership_auc(array, 3, **GAME, known=None, n_components=9, seed=1, axes=axes),
        None,
    ),
    "activity_profile": (lambda array, axes: activity_profile(array, np.arange(9), axes=axes), None),
    "mobility_features": (
        lambda array, axes: np.stack(list(mobility_features(array, WEEKEND, axes=axes).values())),
        None,
    ),
    "unicity": (lambda array, axes: unicity(array, axes=axes), None),
    "defended_presence": (
        lambda array, axes: defended_presence(array, [get("temporal_generalization")(windows=2)], axes=axes),
        as_windows_cells,
    ),
    "component_loadings": (loadings, as_windows_cells),
    "sort_by_popularity": (
        lambda array, axes: sort_by_popularity(turn(TRUTH, axes), array, axes=axes)[0],
        as_windows_cells,
    ),
}


def turn(array, axes):
    return array if axes == "windows_cells" else array.swapaxes(-1, -2)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_square_array_is_taken_as_is_said_and_the_old_way_only_with_a_warning(name, recwarn):
    function, back = FUNCTIONS[name]
    array = TRUTH if name in METRICS or name == "scores" else BINARY
    found = function(array, "windows_cells")
    said = function(turn(array, "cells_windows"), "cells_windows")
    assert not [one for one in recwarn if issubclass(one.category, FutureWarning)]
    with pytest.warns(FutureWarning, match='say axes="windows_cells"'):
        unsaid = function(turn(array, "cells_windows"), None)
    for old in (said, unsaid):
        np.testing.assert_allclose(old if back is None else back(old), found, atol=1e-9)
    with pytest.raises(ParameterError, match="axes: 'rows' is not allowed; it must be windows_cells or cells_windows"):
        function(array, "rows")


@pytest.mark.parametrize("name", ["skill_last", "activity_profile", "mobility_features", "unicity"])
def test_the_orientation_matters(name):
    """Else the test above would say nothing."""
    function, _ = FUNCTIONS[name]
    array = TRUTH if name in METRICS else BINARY
    wrong = function(turn(array, "cells_windows"), "windows_cells")
    assert not np.allclose(wrong, function(array, "windows_cells"))
