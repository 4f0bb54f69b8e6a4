"""Fourier perturbation: transform, sensitivity against every possible block, and released blocks."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from penstock.accountants.core.charges import concentrated_rho, pure_epsilon
from penstock.mechanisms import get
from penstock.mechanisms.core.concentrated import rho_of
from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.run import run_mechanism
from penstock.mechanisms.core.sensitivity import of_transform
from penstock.mechanisms.fpa import real_basis

Fpa = get("fpa")


def counts_of(n_windows, n_cells=3, seed=1):
    return np.random.default_rng(seed).poisson(50, (n_windows, n_cells))


def low_pass(block, n_frequencies):
    spectrum = np.fft.rfft(block, axis=0)
    spectrum[n_frequencies:] = 0
    return np.fft.irfft(spectrum, n=len(block), axis=0)


@pytest.mark.parametrize("n", [1, 2, 5, 8, 24, 168])
def test_rows_are_orthonormal(n):
    for k in {1, max(1, n // 2), n}:
        basis = real_basis(n, k)
        np.testing.assert_allclose(basis @ basis.T, np.eye(k), atol=1e-12)


@pytest.mark.parametrize(
    "parameters",
    [
        {"epsilon": np.inf, "coefficients": 7},
        {"rho": np.inf, "coefficients": 7, "noise": "gaussian"},
    ],
)
def test_without_noise_it_is_the_low_pass_projection(parameters):
    counts = counts_of(48)
    releases = run_mechanism(Fpa(block=24, **parameters), counts)
    expected = np.concatenate([low_pass(counts[:24], 4), low_pass(counts[24:], 4)])
    np.testing.assert_allclose([r.values for r in releases], expected, atol=1e-9)


def test_half_a_spectrum_would_be_far_from_it():
    """Public code errs by about 10 on a mean of 50 without any noise; this does not."""
    series = 50 + 20 * np.sin(2 * np.pi * np.arange(168) / 24)
    kept = np.zeros(168, complex)
    kept[:24] = np.fft.fft(series)[:24]
    assert np.abs(np.abs(np.fft.ifft(kept)) - series).mean() > 5
    releases = run_mechanism(Fpa(epsilon=np.inf, coefficients=24, block=168), np.rint(series).astype(int)[:, None])
    assert np.abs(np.array([r.values[0] for r in releases]) - series).mean() < 0.5


def test_integer_noise_works_on_nearly_the_same_projection():
    counts = counts_of(24)
    releases = run_mechanism(Fpa(epsilon=np.inf, coefficients=7, block=24, noise="discrete_laplace"), counts)
    np.testing.assert_allclose([r.values for r in releases], low_pass(counts, 4), atol=0.01)


def blocks(n_windows, n_cells, c, w, u):
    """Every 0/1 block of one user within the bounds."""
    for bits in product((0, 1), repeat=n_windows * n_cells):
        block = np.array(bits).reshape(n_windows, n_cells)
        if block.sum(1).max() <= c and (block.sum(1) > 0).sum() <= w and (block.sum(0) > 0).sum() <= u:
            yield block


BOUNDS = [(4, 3, 1, 4, 3), (4, 3, 2, 4, 3), (4, 3, 2, 3, 2), (4, 3, 1, 4, 1), (3, 4, 2, 2, 4), (5, 2, 1, 3, 2)]


@pytest.mark.parametrize(("n", "n_cells", "c", "w", "u"), BOUNDS)
@pytest.mark.parametrize("integer", [False, True])
def test_sensitivity_covers_every_block(n, n_cells, c, w, u, integer):
    for k in range(1, n + 1):
        basis = real_basis(n, k)
        basis = np.rint(basis * 64) if integer else basis
        coefficients = [basis @ block for block in blocks(n, n_cells, c, w, u)]
        l1 = max(np.abs(x).sum() for x in coefficients)
        l2 = max(np.sqrt((x**2).sum()) for x in coefficients)
        moved = of_transform(basis, c, w, u)
        assert l1 <= moved.l1 * (1 + 1e-12)
        assert l2**2 <= moved.l2_squared * (1 + 1e-12)
        if k == n:  # all coefficients together keep the norm
            assert moved.l2_squared == pytest.approx(l2**2, rel=0.1)


def test_the_bound_by_cells_is_exact_for_one_cell():
    for k in (1, 2, 3, 5):
        exact = max(np.abs(real_basis(5, k) @ block).sum() for block in blocks(5, 1, 1, 5, 1))
        assert of_transform(real_basis(5, k), 1, 5, 1).l1 == pytest.approx(exact)


def test_the_bound_on_many_coefficients_is_exact_for_differences_of_pairs():
    """Ones at every first window of 13 pairs: a coefficient each."""
    differences = np.kron(np.eye(13), [[1.0, -1.0]])
    assert of_transform(differences, 1, 26, 1).l1 == pytest.approx(13)


def test_many_coefficients_are_bounded_from_above():
    rng = np.random.default_rng(3)
    basis = real_basis(40, 21)
    bound = of_transform(basis, 1, 20, 1).l1
    for _ in range(2000):
        block = np.zeros(40)
        block[rng.permutation(40)[:20]] = 1
        for _ in range(5):  # climb: the best block for these signs, the signs of that block
            x = np.sign(basis @ block) @ basis
            block = np.zeros(40)
            best = np.argsort(x)[-20:]
            block[best[x[best] > 0]] = 1
        assert np.abs(basis @ block).sum() <= bound


def test_the_second_bound_halves_the_first_on_a_week():
    assert np.sqrt(24 * 78 * 168) == pytest.approx(561, abs=0.5)
    assert of_transform(real_basis(168, 24), 1, 168, 78).l1 == pytest.approx(281, abs=0.5)


def test_a_block_is_charged_once_and_available_when_it_is_over():
    facts = Facts(n_cells=3, n_windows=12, max_windows=4, landmarks=(2, 7))
    releases = run_mechanism(Fpa(epsilon=1.0, coefficients=3, block=5), counts_of(12), facts)
    assert [r.window for r in releases] == list(range(1, 13))
    spans = [(e.first, e.last) for r in releases for e in r.charge]
    assert spans == [(1, 5), (6, 10), (11, 12)]
    assert [bool(r.charge) for r in releases] == [i in (0, 5, 10) for i in range(12)]
    hour = 3_600_000
    assert [r.available_at // hour for r in releases] == [5] * 5 + [10] * 5 + [12] * 2
    assert [r.window for r in releases if r.landmark] == [2, 7]
    assert all(pure_epsilon(r.charge) == pytest.approx(1.0) for r in releases if r.charge)


def test_a_block_with_an_unannounced_end_is_still_released():
    mechanism, facts = Fpa(epsilon=np.inf, coefficients=5, block=5), Facts(n_cells=1)
    source, state = NoiseSource(NoiseKey.from_seed(1), configuration=b""), mechanism.start(facts)
    for window in facts.windows(3):
        made, state = mechanism.step(window, np.array([window.index]), state, source.at(0, 1, "s", np.zeros(1), state))
        assert made == []
    owed = mechanism.finish(state, source.at(0, 1, "f", np.zeros(1), state))
    np.testing.assert_allclose([r.values[0] for r in owed], [1, 2, 3])
    assert owed[0].charge[0].last == 3


def test_a_block_can_begin_late():
    """Windows that were refused count as empty, and the block's border stays where users were bounded."""
    mechanism, facts = Fpa(epsilon=np.inf, coefficients=4, block=4), Facts(n_cells=1, n_windows=8)
    source, state = NoiseSource(NoiseKey.from_seed(1), configuration=b""), mechanism.start(facts)
    releases = []
    for window in facts.windows()[2:]:
        announced = mechanism.worst_charge(window, state)
        assert bool(announced) == (window.index in (3, 5))
        made, state = mechanism.step(window, np.array([7]), state, source.at(0, 1, "s", np.zeros(1), state))
        releases += made
    assert [r.window for r in releases] == [3, 4, 5, 6, 7, 8]
    np.testing.assert_allclose([r.values[0] for r in releases], 7)


def test_gaussian_noise_depends_on_no_number_of_cells_or_coefficients():
    def scale(n_cells, k):
        facts = Facts(n_cells=n_cells, max_cells=2, n_windows=8, max_windows=3)
        mechanism = Fpa(rho=0.5, coefficients=k, block=8, noise="gaussian")
        [first, *_] = run_mechanism(mechanism, np.zeros((8, n_cells), int), facts)
        assert concentrated_rho(first.charge) == pytest.approx(0.5)
        return first.scale

    assert scale(2, 1) == pytest.approx(np.sqrt(2 * 3))
    assert scale(50, 8) == pytest.approx(scale(2, 1))


def test_noise_shrinks_with_enforced_bounds():
    def scale(**bounds):
        facts = Facts(n_cells=20, max_cells=2, n_windows=24, **bounds)
        return run_mechanism(Fpa(epsilon=1.0, coefficients=5, block=24), np.zeros((24, 20), int), facts)[0].scale

    assert scale(max_windows=3, max_block_cells=2) < scale(max_windows=3) < scale()


def test_epsilon_and_delta_are_the_largest_rho_that_keeps_to_both():
    promised = Fpa(epsilon=1.0, delta=1e-6, noise="gaussian", coefficients=3, block=8).guarantee
    assert (promised.measure, promised.amount, promised.delta) == ("rho", rho_of(1.0, 1e-6), 1e-6)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"epsilon": None}, "epsilon"),
        ({"rho": 1.0}, "rho"),
        ({"noise": "gaussian"}, "delta"),
        ({"coefficients": 9}, "coefficients"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(changes, field):
    with pytest.raises(ParameterError) as caught:
        Fpa(**{"epsilon": 1.0, "coefficients": 3, "block": 8} | changes)
    assert caught.value.field == field


def test_replicas_without_noise_are_those_of_each():
    mechanism = Fpa(epsilon=1.0, coefficients=3, block=4)
    counts = np.random.default_rng(0).poisson(9.0, (2, 10, 3))
    assert np.allclose(mechanism.without_noise(counts), [mechanism.without_noise(one) for one in counts])
