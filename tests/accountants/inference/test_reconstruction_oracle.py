"""The oracle of the reconstruction tests, on a case done by hand."""

from __future__ import annotations

import pytest
from scipy.special import entr

from penstock.accountants.markov import MarkovPrior
from tests.tools.reconstruction_oracle import Enumeration


def test_the_oracle_knows_a_case_done_by_hand() -> None:
    truth = Enumeration(MarkovPrior([0.75, 0.25], [[0.5, 0.5], [0.0, 1.0]]), 2)
    assert truth.entropy() == pytest.approx(entr([0.375, 0.375, 0.25]).sum())
    # guess (0, 1): right about (0, 1), one wrong for (0, 0) and (1, 1)
    assert truth.ball(0) == pytest.approx(0.375)
    assert truth.ball(1) == pytest.approx(1.0)
    # the reading "at 1 in window 2" has probability .625 and leaves (0, 1) or (1, 1)
    channel = truth.raw_channel([set(), {1}])
    assert truth.information(channel) == pytest.approx(entr([0.375, 0.625]).sum())
    assert truth.best_success(channel, 0) == pytest.approx(0.75)
