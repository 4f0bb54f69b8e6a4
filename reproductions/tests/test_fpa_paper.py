"""Plug-in `fpa_paper`: the transform, its price, and what the one-sided inverse of public code shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock.accountants.core.charges import pure_epsilon
from penstock.mechanisms import get
from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.run import run_mechanism
from penstock.pipeline.config.sections import add_folder
from penstock.testing import Subject, checks_for
from tests.tools.plugin_checks import failing

ONE = {"epsilon": 0.7, "coefficients": 1, "block": 168}
MANY = ONE | {"coefficients": 12}


@pytest.fixture(scope="module")
def paper():
    """Register the plug-in, and return its class."""
    add_folder(str(Path(__file__).parents[1] / "plugins"))
    return get("fpa_paper")


def counts_of(n_windows):
    return np.random.default_rng(1).poisson(50, (n_windows, 3))


def spectrum_of(block, kept):
    spectrum = np.fft.fft(block, axis=0)
    spectrum[kept:] = 0
    return spectrum


@pytest.mark.parametrize("n", [5, 8, 24])
def test_without_noise_it_is_the_low_pass_projection(paper, n):
    counts = counts_of(2 * n)
    for k in range(1, n // 2 + 2):
        releases = run_mechanism(paper(epsilon=np.inf, coefficients=k, block=n), counts)
        halves = [np.fft.irfft(spectrum_of(half, k)[: n // 2 + 1], n=n, axis=0) for half in (counts[:n], counts[n:])]
        np.testing.assert_allclose([r.values for r in releases], np.concatenate(halves), atol=1e-9)


def test_one_sided_it_is_what_public_code_does(paper):
    counts = counts_of(24)
    exact = paper(epsilon=np.inf, coefficients=6, block=24, inverse="one_sided")
    shown = np.fft.ifft(spectrum_of(counts, 6), axis=0).real
    np.testing.assert_allclose([r.values for r in run_mechanism(exact, counts)], shown, atol=1e-9)
    held = paper(epsilon=0.1, coefficients=6, block=24, inverse="one_sided", most=60)
    values = np.array([r.values for r in run_mechanism(held, counts)])
    assert (values == np.rint(values)).all()
    assert (values.min(), values.max()) == (0, 60)


@pytest.fixture
def worth(paper):
    def priced(parameters, facts):
        [first, *_] = run_mechanism(paper(**parameters), np.zeros((facts.n_windows, facts.n_cells), int), facts)
        return pure_epsilon(first.charge)

    return priced


def test_it_is_priced_at_what_it_is_worth(paper, worth):
    facts = Facts(n_cells=1, n_windows=168)
    assert worth(MANY, facts) <= 0.7 * (1 + 1e-12)
    # One coefficient of one cell: its bound is met by a user who is there all the time.
    assert worth(ONE, facts) == pytest.approx(0.7)
    assert worth(ONE | {"transform": "unnormalised"}, facts) == pytest.approx(0.7 * np.sqrt(168))
    assert worth(MANY | {"transform": "unnormalised"}, facts) == pytest.approx(worth(MANY, facts) * np.sqrt(168))
    assert worth(MANY | {"measured_sensitivity": 3.0}, facts) == np.inf
    assert worth(MANY | {"inverse": "one_sided"}, facts) == worth(MANY, facts), "an inverse reads the release alone"
    assert not paper(**MANY).guarantee.exists


def test_many_cells_make_it_worth_less(worth):
    wide = Facts(n_cells=4, max_cells=4, n_windows=8)
    exact = 4 * 8 / np.sqrt(8) * 0.7 / np.sqrt(4 * 8)
    assert worth(ONE | {"block": 8}, wide) == pytest.approx(exact)
    assert exact > 0.7


def test_more_coefficients_than_half_the_spectrum_has_are_refused(paper):
    with pytest.raises(ParameterError, match="coefficients"):
        paper(epsilon=1.0, coefficients=6, block=8)


@pytest.mark.parametrize("number", range(3))
def test_it_keeps_the_contract(paper, number):
    example = paper.examples()[number]
    assert failing(Subject(example), checks_for(example)) == {}
