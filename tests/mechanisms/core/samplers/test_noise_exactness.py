"""Exact integer noise: error of proposals, enclosures, rounded tails, lazily drawn bits, decisions at the boundary."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from penstock.mechanisms.core import portable
from penstock.mechanisms.core.samplers import integers
from penstock.mechanisms.core.samplers.bits import Bits, Words
from penstock.mechanisms.core.samplers.integers import GaussianTable, exponential_interval, gaussian_tails
from penstock.testing import noise_matches

MIN_P = 1e-4
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


def test_proposals_are_as_right_as_their_proof_says() -> None:
    """Logarithm and exponential within 2**-48 of their value: near 1, at the cut of the mantissa, far out."""
    rng = np.random.default_rng(1)
    cut = [math.nextafter(math.sqrt(0.5), 0), math.sqrt(0.5), math.nextafter(math.sqrt(0.5), 1)]
    near_1 = 1 - 2.0 ** -rng.uniform(1, 53, 500)
    x = np.concatenate([rng.random(1000), near_1, 2.0 ** rng.uniform(-54, 300, 500), cut])
    exponents = np.concatenate([2 * rng.random(1000), 700 * rng.random(500), 2.0 ** -rng.uniform(1, 60, 500)])
    exponents *= rng.choice([-1, 1], len(exponents))
    with localcontext(Context(prec=60)):
        logarithms = [Decimal(value).ln() for value in x.tolist()]
        exponentials = [Decimal(value).exp() for value in exponents.tolist()]
        for proposed, true in (
            (portable.log(x), logarithms),
            (portable.exp(exponents), exponentials),
            (portable.expm1(exponents), [one - 1 for one in exponentials]),
        ):
            errors = [abs(Decimal(value) / right - 1) for value, right in zip(proposed.tolist(), true)]
            assert max(errors) < Decimal(2) ** -50


@pytest.mark.parametrize("sigma", [0.1, 1.0, 5.3])
def test_gaussian_tails_are_rounded_down_exactly(sigma: float) -> None:
    tails = gaussian_tails(Fraction(sigma) ** 2, 80)
    with localcontext(Context(prec=150)):
        weights = [(-(Decimal(k) ** 2) / (2 * Decimal(sigma) ** 2)).exp() for k in range(int(40 * sigma) + 20)]
        total = 2 * sum(weights) - 1
        assert tails == [int(2 * sum(weights[m:]) / total * 2**80) for m in range(1, len(tails) + 1)]
    assert tails[-1] == 0


def test_inversion_counts_every_word_and_leaves_few_undecided() -> None:
    """Over all 2**12 words, each value's share differs from its probability by undecided words only."""
    bits, sigma = 12, 3.0
    words = Words(np.arange(2**bits, dtype="<u4") << (32 - bits), BITS, b"", np.array([2**bits]))
    seen = np.bincount(GaussianTable(Fraction(9), bits).invert(words, slice(None)), minlength=40)
    weights = np.exp(-(np.arange(seen.size) ** 2) / (2 * sigma**2)) * np.where(np.arange(seen.size), 2, 1)
    assert np.abs(seen - 2**bits * weights / weights.sum()).max() <= 2


@pytest.mark.parametrize("bits", [1, 3])
def test_lazy_bits_complete_a_coarse_table(bits: int) -> None:
    """With a table of so few bits nearly every draw needs more, and the distribution stays."""
    words = BITS.words(0, 3_000, "<u4")
    signs = 1 - 2 * (words.values & 1).astype(np.int64)
    drawn = signs * GaussianTable(Fraction(4), bits).invert(words, slice(None))
    assert noise_matches(drawn, "discrete_gaussian", 2.0) > MIN_P


def test_undecided_values_take_their_own_bits() -> None:
    """Lengthening is addressed by place: a subset of the words gives the same values."""
    table = GaussianTable(Fraction(25), bits=2)
    words = BITS.words(0, 300, "<u4")
    some = np.array([5, 17, 250])
    assert (table.invert(words, some) == table.invert(words, slice(None))[some]).all()


@pytest.mark.parametrize("scale", [0.3, 37.5, 4000.0])
def test_no_draw_depends_on_double_precision(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deciding every draw in decimal and rational arithmetic changes nothing."""
    words, scales, sigmas = BITS.words(0, 200), np.array([scale]), np.array([1500.0])
    quick, gaussian = integers.laplace_magnitude(words, scales), integers.discrete_gaussian(BITS, 40, sigmas)
    monkeypatch.setattr(integers, "RELATIVE_ERROR", 2.0)
    assert (integers.laplace_magnitude(words, scales) == quick).all()
    assert (integers.discrete_gaussian(BITS, 40, sigmas) == gaussian).all()


def laplace_tails(scale: float, n: int) -> list[int]:
    """The first n tails 2 a**m / (1 + a), a = exp(-1 / scale), times 2**63 and rounded down."""
    with localcontext(Context(prec=150)):
        a = (-1 / Decimal(scale)).exp()
        return [int(2 * a**m / (1 + a) * 2**63) for m in range(1, n + 1)]


def next_to_laplace_tails() -> None:
    """Check the words just below and just above each of the first tails."""
    tails = np.array(laplace_tails(1000.0, 1500), dtype=np.uint64)
    magnitudes = np.arange(1, 1501)
    for step, expected in ((-1, magnitudes), (1, magnitudes - 1)):
        words = Words((tails + np.uint64(step % 2**64)) << np.uint64(1), BITS, b"", np.array([1500]))
        assert (integers.laplace_magnitude(words, np.array([1000.0])) == expected).all()


def next_to_acceptance() -> None:
    """Check the words just below and just above the probabilities of acceptance."""
    candidates, sigmas, proposals = np.arange(0, 3000, 7), np.full(429, 1500.5), np.full(429, 1501.0)
    exponents = [integers.gaussian_exponent(y, 1500.5, 1501.0) for y in candidates.tolist()]
    for step in (-9, 9):
        likely = [exponential_interval(exponent, 64)[0] + step for exponent in exponents]
        words = Words(np.array(likely, dtype="<u8"), BITS, b"", np.array([429]))
        assert (integers.accept(words, candidates, sigmas, proposals) == (step < 0)).all()


def in_doubles(words: Words, index: int, scale: float) -> int:
    """A magnitude decided in double precision."""
    u = (int(words.values[index]) >> 1) / 2**63
    return math.floor(-scale * (math.log1p(math.expm1(-1 / scale) / 2) + math.log(u)))


def below_in_doubles(prefix: int, exponent: Fraction, *_: object) -> bool:
    """An acceptance decided in double precision."""
    return prefix / 2**64 < math.exp(-float(exponent))


@pytest.mark.parametrize(
    ("check", "decision", "doubles"),
    [
        (next_to_laplace_tails, "_decided_magnitude", in_doubles),
        (next_to_acceptance, "is_below_exponential", below_in_doubles),
    ],
)
def test_words_next_to_a_decision_are_decided_exactly(
    check: Callable[[], None], decision: str, doubles: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a sampler that decides there in double precision is caught."""
    check()
    monkeypatch.setattr(integers, decision, doubles)
    with pytest.raises(AssertionError):
        check()


def test_a_sampler_that_trusts_its_proposals_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integers, "RELATIVE_ERROR", 0.0)
    with pytest.raises(AssertionError):
        next_to_acceptance()


def test_a_sampler_of_another_shift_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the halves of 0 on either side: a geometric magnitude."""
    monkeypatch.setattr(integers, "_shift_of_one", lambda scale: 0.0)
    with pytest.raises(AssertionError):
        next_to_laplace_tails()


@pytest.mark.parametrize("word", [0, 1, 2**63, 2**64 - 1])
def test_extreme_words_are_decided(word: int) -> None:
    words = Words(np.array([word], dtype="<u8"), BITS, b"", np.array([1]))
    value = int(integers.laplace_magnitude(words, np.array([1000.0]))[0])
    parts = ((word // 2 + 1) / 2**63, word // 2 / 2**63)
    least, most = (0.5 - 1000.0 * math.log(x) if x else math.inf for x in parts)
    assert math.floor(least - 0.01) <= value <= most + 0.01


def test_acceptance_has_the_probability_of_algorithm_3() -> None:
    assert integers.gaussian_exponent(0, 2.0, 3.0) == Fraction(2, 9)
    words = Words(
        np.array([int(2**64 * math.exp(-2 / 9)) + shift for shift in (-5000, 5000)], "<u8"), BITS, b"", np.array([2])
    )
    candidates, sigmas = np.zeros(2, dtype=np.int64), np.full(2, 2.0)
    assert integers.accept(words, candidates, sigmas, sigmas + 1).tolist() == [True, False]
