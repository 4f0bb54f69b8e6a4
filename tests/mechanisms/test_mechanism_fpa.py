"""Fourier perturbation: transform, sensitivity against every possible block, and released blocks."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from penstock.accountants.core.charges import concentrated_rho, pure_epsilon
from penstock.mechanisms import get
from penstock.mechanisms.core import events
from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.fourier import complex_basis, l1_sensitivity, l2_sensitivity, real_basis
from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.run import run_mechanism

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


@pytest.mark.parametrize("n", [5, 8, 24])
def test_complex_coefficients_invert_to_the_low_pass(n):
    block = counts_of(n)
    for k in range(1, n // 2 + 2):
        basis, inverse = complex_basis(n, k)
        np.testing.assert_allclose(inverse @ (basis @ block), low_pass(block, k), atol=1e-9)


@pytest.mark.parametrize(
    "parameters",
    [
        {"epsilon": np.inf, "coefficients": 7},
        {"rho": np.inf, "coefficients": 7, "noise": "gaussian"},
        {"epsilon": np.inf, "coefficients": 4, "calibration": "paper"},
        {"epsilon": np.inf, "coefficients": 7, "choice": 0.5},
    ],
)
def test_without_noise_it_is_the_low_pass_projection(parameters):
    counts = counts_of(48)
    releases = run_mechanism(Fpa(block=24, **parameters), counts)
    expected = np.concatenate([low_pass(counts[:24], 4), low_pass(counts[24:], 4)])
    np.testing.assert_allclose([r.values for r in releases], expected, atol=1e-9)


def test_half_a_spectrum_would_be_far_from_it():
    """What public code does, and this does not: an error of about 10 on a mean of 50 without any noise."""
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
        assert l1 <= l1_sensitivity(basis, c, w, u) * (1 + 1e-12)
        assert l2 <= l2_sensitivity(basis, c, w) * (1 + 1e-12)
        if k == n:  # all coefficients together keep the norm
            assert l2_sensitivity(basis, c, w) == pytest.approx(l2, rel=0.05)


def test_the_bound_by_cells_is_exact_for_one_cell():
    for k in (1, 2, 3, 5):
        exact = max(np.abs(real_basis(5, k) @ block).sum() for block in blocks(5, 1, 1, 5, 1))
        assert l1_sensitivity(real_basis(5, k), 1, 5, 1) == pytest.approx(exact)


def test_many_coefficients_are_bounded_from_above():
    rng = np.random.default_rng(3)
    basis = real_basis(40, 21)
    bound = l1_sensitivity(basis, 1, 20, 1)
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
    assert l1_sensitivity(real_basis(168, 24), 1, 168, 78) == pytest.approx(281, abs=0.5)


def worth(parameters, facts):
    [first, *_] = run_mechanism(Fpa(**parameters), np.zeros((facts.n_windows, facts.n_cells), int), facts)
    return pure_epsilon(first.charge)


def test_the_papers_calibration_is_priced_at_what_it_is_worth():
    facts = Facts(n_cells=1, n_windows=168)
    paper = {"epsilon": 0.7, "coefficients": 12, "block": 168, "calibration": "paper"}
    assert worth(paper, facts) <= 0.7 * (1 + 1e-12)
    # One coefficient of one cell: its bound is met by a user who is there all the time.
    one = {"epsilon": 0.7, "coefficients": 1, "block": 168, "calibration": "paper"}
    assert worth(one, facts) == pytest.approx(0.7)
    assert worth(one | {"transform": "unnormalised"}, facts) == pytest.approx(0.7 * np.sqrt(168))
    assert worth(paper | {"transform": "unnormalised"}, facts) == pytest.approx(worth(paper, facts) * np.sqrt(168))
    assert worth(paper | {"measured_sensitivity": 3.0}, facts) == np.inf


def test_only_the_sound_calibration_states_a_guarantee():
    parameters = {"epsilon": 0.7, "coefficients": 12, "block": 168}
    assert Fpa(**parameters).stated_guarantee == Fpa.guarantee
    assert not Fpa(**parameters, calibration="paper").stated_guarantee.exists


def test_many_cells_make_the_papers_calibration_worth_less():
    paper = {"epsilon": 0.7, "coefficients": 1, "block": 8, "calibration": "paper"}
    wide = Facts(n_cells=4, max_cells=4, n_windows=8)
    exact = np.abs(complex_basis(8, 1)[0] @ np.ones((8, 4))).sum() * 0.7 / np.sqrt(4 * 8)
    assert worth(paper, wide) == pytest.approx(exact)
    assert exact > 0.7


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


def test_the_number_of_coefficients_is_chosen_by_the_exponential_mechanism():
    """Frequencies of the choice against the probabilities that its definition gives."""
    n, n_replicas = 8, 4000
    counts = np.rint(30 + 6 * np.cos(2 * np.pi * np.arange(n) / n)).astype(int)[:, None]
    mechanism, facts = Fpa(epsilon=6.0, coefficients=5, block=n, choice=0.5), Facts(n_cells=1)
    releases = run_mechanism(mechanism, np.broadcast_to(counts, (n_replicas, n, 1)).copy(), facts, seed=4)
    scales = np.asarray(releases[0].scale)[:, 0]
    numbers = [1, 3, 5]
    each = np.array([l1_sensitivity(real_basis(n, k), 1, n, 1) / 3.0 for k in numbers])
    cut_off = [np.linalg.norm(counts - real_basis(n, k).T @ (real_basis(n, k) @ counts)) for k in numbers]
    score = -(np.array(cut_off) + np.sqrt(2 * np.array(numbers)) * each) / np.sqrt(n)
    probabilities = np.exp(3.0 * score / 2)
    found = [(np.isclose(scales, scale)).sum() for scale in each]
    assert sum(found) == n_replicas
    assert stats.chisquare(found, n_replicas * probabilities / probabilities.sum()).pvalue > 1e-6
    assert stats.chisquare(found, n_replicas * probabilities**2 / (probabilities**2).sum()).pvalue < 1e-6
    assert releases[0].charge[0] == events.Block(events.PureDP(3.0), 1, 8)
    assert pure_epsilon(releases[0].charge) == pytest.approx(6.0)


def test_the_choice_is_paid_for_in_either_currency():
    for parameters, price, budget in (
        ({"epsilon": 2.0}, pure_epsilon, 2.0),
        ({"rho": 0.3, "noise": "gaussian"}, concentrated_rho, 0.3),
    ):
        mechanism = Fpa(coefficients=3, block=4, choice=0.2, **parameters)
        releases = run_mechanism(mechanism, counts_of(4))
        assert price(releases[0].charge) == pytest.approx(budget)


def test_one_user_moves_the_score_by_no_more_than_it_is_divided_by():
    rng = np.random.default_rng(5)
    for block in blocks(4, 2, 1, 3, 2):
        base = rng.integers(0, 6, (4, 2))
        for k in (1, 3):
            rest = np.eye(4) - real_basis(4, k).T @ real_basis(4, k)
            moved = abs(np.linalg.norm(rest @ (base + block)) - np.linalg.norm(rest @ base))
            assert moved <= np.sqrt(1 * 3) + 1e-12


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"epsilon": None}, "epsilon"),
        ({"rho": 1.0}, "rho"),
        ({"noise": "gaussian"}, "rho"),
        ({"coefficients": 9}, "coefficients"),
        ({"noise": "discrete_laplace", "choice": 0.1}, "choice"),
        ({"calibration": "paper", "coefficients": 6}, "coefficients"),
        ({"calibration": "paper", "epsilon": None, "rho": 1.0, "noise": "gaussian"}, "noise"),
        ({"transform": "unnormalised"}, "transform"),
        ({"measured_sensitivity": 1.0}, "measured_sensitivity"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(changes, field):
    with pytest.raises(ParameterError) as caught:
        Fpa(**{"epsilon": 1.0, "coefficients": 3, "block": 8} | changes)
    assert caught.value.field == field
