"""Exact samplers: enclosures, rounded tails, lazily drawn bits, decisions at the boundary."""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from penstock.mechanisms.core.noise_checks import noise_matches
from penstock.mechanisms.core.samplers import exact, fast
from penstock.mechanisms.core.samplers.bits import Bits, Words
from penstock.mechanisms.core.samplers.exact import (
    InversionTable,
    exponential_interval,
    gaussian_thresholds,
    geometric_thresholds,
    laplace_thresholds,
)

LEAST_P = 1e-4
BITS = Bits((b"seed of these tests".ljust(32),))


@pytest.mark.parametrize("exponent", ["1/3", "1", "40", "1/1000000007", "123456789/1000"])
@pytest.mark.parametrize("bits", [8, 64, 300])
def test_exponentials_are_enclosed(exponent: str, bits: int) -> None:
    value = Fraction(exponent)
    with localcontext(Context(prec=200)):
        true = (-Decimal(value.numerator) / Decimal(value.denominator)).exp() * 2**bits
    low, high = exponential_interval(value, bits)
    assert low <= true <= high
    assert high - low <= 4


@pytest.mark.parametrize("modulus", [None, 16])
@pytest.mark.parametrize("scale", [0.2, 3.7, 41.0])
def test_geometric_tails_are_rounded_down_exactly(scale: float, modulus: int | None) -> None:
    tails = geometric_thresholds(1 / Fraction(scale), modulus, 100)
    with localcontext(Context(prec=150)):
        a = (-1 / Decimal(scale)).exp()
        last = 0 if modulus is None else a**modulus
        assert tails == [int((a**m - last) / (1 - last) * 2**100) for m in range(1, len(tails) + 1)]
    assert (tails[-1] == 0) if modulus is None else len(tails) == modulus - 1


@pytest.mark.parametrize("scale", [0.05, 1.0, 24.0])
def test_laplace_tails_are_rounded_down_exactly(scale: float) -> None:
    tails = laplace_thresholds(1 / Fraction(scale), 100)
    with localcontext(Context(prec=150)):
        a = (-1 / Decimal(scale)).exp()
        assert tails == [int(2 * a**m / (1 + a) * 2**100) for m in range(1, len(tails) + 1)]
    assert tails[-1] == 0


@pytest.mark.parametrize("sigma", [0.1, 1.0, 5.3])
def test_gaussian_tails_are_rounded_down_exactly(sigma: float) -> None:
    tails = gaussian_thresholds(Fraction(sigma) ** 2, 80)
    with localcontext(Context(prec=150)):
        weights = [(-(Decimal(k) ** 2) / (2 * Decimal(sigma) ** 2)).exp() for k in range(int(40 * sigma) + 20)]
        total = 2 * sum(weights) - 1
        assert tails == [int(2 * sum(weights[m:]) / total * 2**80) for m in range(1, len(tails) + 1)]
    assert tails[-1] == 0


def test_inversion_counts_every_word_and_leaves_few_undecided() -> None:
    """Over all 2**12 words, each value's share differs from its probability by undecided words only."""
    bits, scale = 12, 3.0
    table = InversionTable(lambda n: geometric_thresholds(1 / Fraction(scale), None, n), bits)
    words = Words(np.arange(2**bits, dtype="<u4") << (32 - bits), BITS, b"", np.array([2**bits]))
    seen = np.bincount(table.invert(words, slice(None)), minlength=40)
    a = math.exp(-1 / scale)
    expected = 2**bits * (1 - a) * a ** np.arange(seen.size)
    assert np.abs(seen - expected).max() <= 2


@pytest.mark.parametrize("bits", [1, 3])
def test_lazy_bits_complete_a_coarse_table(bits: int) -> None:
    """With a table of so few bits nearly every draw needs more, and the distribution stays."""
    table = InversionTable(lambda n: geometric_thresholds(Fraction(1, 2), None, n), bits)
    words = [BITS.words(block, 10_000, "<u4") for block in range(2)]
    assert (
        noise_matches(
            table.invert(words[0], slice(None)) - table.invert(words[1], slice(None)), "discrete_laplace", 2.0
        )
        > LEAST_P
    )


def test_undecided_values_take_their_own_bits() -> None:
    """Lengthening is addressed by place: a subset of the words gives the same values."""
    table = InversionTable(lambda n: geometric_thresholds(Fraction(1, 5), None, n), bits=2)
    words = BITS.words(0, 300, "<u4")
    some = np.array([5, 17, 250])
    assert (table.invert(words, some) == table.invert(words, slice(None))[some]).all()


def test_simulated_integers_do_not_depend_on_the_accuracy_of_logarithms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deciding every draw in decimal arithmetic changes nothing."""
    words, scale = BITS.words(0, 200), np.array([37.5])
    quick = fast.laplace_magnitude(words, scale)
    gaussian = fast.discrete_gaussian(BITS, 40, np.array([1500.0]))
    monkeypatch.setattr(fast, "TRUST", 2.0)
    assert (fast.laplace_magnitude(words, scale) == quick).all()
    assert (fast.discrete_gaussian(BITS, 40, np.array([1500.0])) == gaussian).all()


def test_words_next_to_a_threshold_are_decided_like_the_exact_table() -> None:
    tails = np.array(laplace_thresholds(1 / Fraction(1000.0), 63)[:1500], dtype=np.uint64)
    magnitudes = np.arange(1, 1501)
    for step, expected in ((-1, magnitudes), (1, magnitudes - 1)):
        words = Words((tails + np.uint64(step % 2**64)) << np.uint64(1), BITS, b"", np.array([1500]))
        assert (fast.laplace_magnitude(words, np.array([1000.0])) == expected).all()


def test_acceptance_next_to_its_probability_is_decided_like_in_rational_arithmetic() -> None:
    candidates, sigmas = np.arange(0, 3000, 7), np.full(429, 1500.5)
    exponents = [exact.gaussian_exponent(y, 1500.5, 1501.0) for y in candidates.tolist()]
    for step in (-9, 9):
        likely = [exponential_interval(exponent, 64)[0] + step for exponent in exponents]
        words = Words(np.array(likely, dtype="<u8"), BITS, b"", np.array([429]))
        proposals = np.full(429, 1501.0)
        decided = exact.accept_exactly(words, candidates, sigmas, proposals)
        assert (decided == (step < 0)).all()
        assert (fast.accept(words, candidates, sigmas, proposals) == decided).all()


@pytest.mark.parametrize("word", [0, 1, 2**63, 2**64 - 1])
def test_extreme_words_are_decided(word: int) -> None:
    words = Words(np.array([word], dtype="<u8"), BITS, b"", np.array([1]))
    value = int(fast.laplace_magnitude(words, np.array([1000.0]))[0])
    parts = ((word // 2 + 1) / 2**63, word // 2 / 2**63)
    least, most = (0.5 - 1000.0 * math.log(x) if x else math.inf for x in parts)
    assert math.floor(least - 0.01) <= value <= most + 0.01


def test_large_sigma_is_decided_in_rational_arithmetic() -> None:
    assert exact.gaussian_exponent(0, 2.0, 3.0) == Fraction(2, 9)
    words = Words(
        np.array([int(2**64 * math.exp(-2 / 9)) + shift for shift in (-5000, 5000)], "<u8"), BITS, b"", np.array([2])
    )
    candidates, sigmas = np.zeros(2, dtype=np.int64), np.full(2, 2.0)
    assert exact.accept_exactly(words, candidates, sigmas, sigmas + 1).tolist() == [True, False]
