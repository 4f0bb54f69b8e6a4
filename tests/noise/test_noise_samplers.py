"""Samplers: stated distributions on samples of 100,000."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats

from penstock.mechanisms.core.draws import Noise
from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.noise_checks import noise_matches
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.samplers import bits
from penstock.mechanisms.core.samplers.bits import Bits, Words

N = 100_000
#: A right sampler fails one of these tests once in 10,000 seeds; the seeds are fixed.
LEAST_P = 1e-4
BITS = Bits((b"seed of these tests".ljust(32),))
DISCRETE = ("discrete_laplace", "discrete_gaussian")
REAL = ("laplace", "gaussian", "exponential", "planar_laplace")


def noise(is_exact: bool, seed: int = 7) -> Noise:
    return NoiseSource(NoiseKey.from_seed(seed), configuration=b"", exact=is_exact).at(0, 1, "step", np.zeros(1), {})


@pytest.mark.parametrize(
    ("family", "scale", "is_exact"),
    [*product(DISCRETE, (0.3, 1.0, 2.5, 30.0, 900.0), (False, True)), *product(REAL, (0.01, 3.0), (False,))],
)
def test_noise_is_told_from_noise_of_another_scale(family: str, scale: float, is_exact: bool) -> None:
    samples = getattr(noise(is_exact), family)(scale, N)
    assert noise_matches(samples, family, scale) > LEAST_P
    assert noise_matches(samples, family, 0.7 * scale) < 1e-9
    assert noise_matches(samples, family, 1.3 * scale) < 1e-9


@pytest.mark.parametrize("is_exact", [False, True])
def test_scales_per_cell(is_exact: bool) -> None:
    scales = np.array([1.0, 20.0, 600.0])
    for family in DISCRETE:
        samples = getattr(noise(is_exact), family)(scales, (20_000, 3))
        for column, scale in zip(samples.T, scales.tolist()):
            assert noise_matches(column, family, scale) > LEAST_P
            assert noise_matches(column, family, 0.7 * scale) < 1e-9


@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize(("family", "scale", "n"), [(DISCRETE[0], 2e4, N), (DISCRETE[1], 2e4, 3000)])
def test_wide_scales(family: str, scale: float, n: int, is_exact: bool) -> None:
    samples = getattr(noise(is_exact), family)(scale, n)
    assert noise_matches(samples, family, scale) > LEAST_P
    assert noise_matches(samples, family, 0.7 * scale) < 1e-9


@pytest.mark.parametrize("family", DISCRETE)
def test_opendp_draws_the_same_distribution(family: str) -> None:
    pytest.importorskip("opendp")
    from opendp_noise import opendp_noise

    theirs = opendp_noise(family.removeprefix("discrete_"), 3.0, N)
    assert noise_matches(theirs, family, 3.0) > LEAST_P
    ours = getattr(noise(True), family)(3.0, N)
    table = np.array([np.bincount(np.clip(some, -9, 9) + 9, minlength=19) for some in (ours, theirs)])
    assert stats.chi2_contingency(table).pvalue > LEAST_P


@pytest.mark.parametrize("family", DISCRETE)
def test_least_scales_give_no_noise_and_largest_fit(family: str) -> None:
    for is_exact in (False, True):
        for scale in (5e-324, 1e-200, 1e-3):
            assert not getattr(noise(is_exact), family)(scale, 100).any()
        widest = getattr(noise(is_exact), family)(2.0**40, 100)
        assert 2.0**39 < np.sqrt(np.mean(widest.astype(float) ** 2)) < 2.0**42


def test_bernoulli_follows_every_binary_digit() -> None:
    assert fast_share(0.3) == pytest.approx(0.3, abs=0.006)
    assert fast_share(1.0) == 1.0
    assert fast_share(0.0) == 0.0
    # Two digits of 32 bits decide: 2**-33 differs from 0 although no 32-bit word is below it.
    words = np.zeros(1, dtype="<u4")
    assert words[0] == np.floor(2.0**-33 * 2**32)
    draws = bits.bernoulli(_ZeroThenHalves((bytes(32),)), 1000, np.array([2.0**-33]))
    assert draws.mean() == pytest.approx(0.5, abs=0.06)


class _ZeroThenHalves(Bits):
    """Streams whose first word is always 0, as if the rare event had happened."""

    def fork(self, index: int) -> Bits:
        forked = super().fork(index)
        return _Zeros(forked.seeds, forked.path) if index == 0 else forked


class _Zeros(Bits):
    def words(self, block: int, counts: Any, dtype: str = "<u8") -> Words:
        drawn = super().words(block, counts, dtype)
        return Words(np.zeros_like(drawn.values), self, drawn.label, drawn.counts)


def fast_share(p: float) -> float:
    return float(noise(False).bernoulli(p, N).mean())


@pytest.mark.parametrize("n", [1, 7, 3 * 2**61])
def test_integers_are_uniform(n: int) -> None:
    drawn = noise(True).integers(n, N)
    assert drawn.min() >= 0
    assert drawn.max() < n
    n_bins = min(n, 7)
    if n_bins > 1:
        assert stats.chisquare(np.bincount((drawn.astype(object) * n_bins // n).astype(int))).pvalue > LEAST_P


def test_permutations_are_uniform() -> None:
    replicated = NoiseSource(NoiseKey.from_seed(7), configuration=b"").at(0, 1, "step", np.zeros((6000, 1)), {}, 6000)
    orders = replicated.permutation(3)
    assert (np.sort(orders, axis=1) == np.arange(3)).all()
    assert stats.chisquare(np.unique(orders @ [9, 3, 1], return_counts=True)[1]).pvalue > LEAST_P


def test_permutation_redraws_on_ties() -> None:
    tied = bits.permutations(_TiedFirst((bytes(32),)), 4)
    free = Bits((bytes(32),)).words(1, 4).values
    assert tied[0].tolist() == np.argsort(free).tolist()


class _TiedFirst(Bits):
    def words(self, block: int, counts: Any, dtype: str = "<u8") -> Words:
        drawn = super().words(block, counts, dtype)
        return Words(np.zeros_like(drawn.values), self, drawn.label, drawn.counts) if block == 0 else drawn


def test_blocks_and_forks_are_distinct() -> None:
    streams = [BITS, BITS.fork(0), BITS.fork(1), BITS.fork(0).fork(0)]
    drawn = {stream.words(block, 4).values.tobytes() for stream in streams for block in range(3)}
    extended = {next(stream.words(0, 4).extension(place)) for stream in streams for place in range(4)}
    assert (len(drawn), len(extended)) == (12, 16)
