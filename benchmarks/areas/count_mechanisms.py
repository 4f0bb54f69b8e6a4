"""Cost of a window of every mechanism on counts, beside plain NumPy doing the same arithmetic in the same run.

    python -m benchmarks count_mechanisms

Every figure is the least of several repeats, so that a busy machine
matters little. The peer draws from NumPy's own generator: no key, no state, no charge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Row, Settings, seconds
from penstock.mechanisms import get, names
from penstock.mechanisms.adaptive_ranges import AdaptiveRanges
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.run import run_mechanism
from penstock.mechanisms.discrete_gaussian import DiscreteGaussian
from penstock.mechanisms.filter import Filter
from penstock.mechanisms.fpa import Fpa
from penstock.mechanisms.kalman import Kalman
from penstock.mechanisms.suppress_unpopular import SuppressUnpopular

N_WINDOWS, N_CELLS, REPEATS = 336, 1000, 5
COUNTS = np.random.default_rng(1).poisson(20, (N_WINDOWS, N_CELLS))
FACTS = Facts(n_cells=N_CELLS, max_cells=2, landmarks=(5, 10, 20))
WEEK = 168
FILTERED = "discrete_gaussian, filter"


def least(function: Callable[[], Any]) -> float:
    """Milliseconds a window, least of several runs."""
    return 1000 * seconds(function, REPEATS) / N_WINDOWS


def plain_laplace() -> NDArray[np.float64]:
    """Each window's counts plus Laplace noise."""
    rng = np.random.default_rng(1)
    return np.array([window + rng.laplace(scale=2.0, size=N_CELLS) for window in COUNTS])


def plain_fourier() -> NDArray[np.float64]:
    """The fast transform of each block, noise on 12 complex coefficients, and back."""
    rng, blocks = np.random.default_rng(1), []
    for first in range(0, N_WINDOWS, WEEK):
        spectrum = np.fft.rfft(COUNTS[first : first + WEEK], axis=0)
        kept = np.zeros_like(spectrum)
        shape = (12, N_CELLS)
        kept[:12] = spectrum[:12] + rng.laplace(size=shape) + 1j * rng.laplace(size=shape)
        blocks.append(np.fft.irfft(kept, n=WEEK, axis=0))
    return np.concatenate(blocks)


def rows(settings: Settings) -> list[Row]:
    """Milliseconds a window of every mechanism, beside the peer's."""
    laplace, fourier = least(plain_laplace), least(plain_fourier)
    apart = ("adaptive_ranges", "fpa", "suppress_unpopular", "filter", "kalman")
    cases = {
        name: (get(name).examples()[0], laplace)
        for name in names()
        if "counts" in get(name).stages and name not in apart
    }
    # Alone they hand on what they get: they work on noise.
    cases[FILTERED] = (Chain.of([DiscreteGaussian(sigma=10.0), Filter()]), laplace)
    cases["discrete_gaussian, kalman"] = (Chain.of([DiscreteGaussian(sigma=10.0), Kalman()]), laplace)
    cases["fpa, 23 of 168 coefficients"] = (Fpa(epsilon=1.0, coefficients=23, block=WEEK), fourier)
    cases["fpa, all of 168"] = (Fpa(epsilon=1.0, coefficients=WEEK, block=WEEK), fourier)
    cases["adaptive_ranges, block of 168"] = (AdaptiveRanges(parts=4, block=WEEK), laplace)
    cases["suppress_unpopular, block of 168"] = (SuppressUnpopular(fraction=0.2, block=WEEK), laplace)
    found = []
    for name, (mechanism, peer) in cases.items():
        took = least(lambda mechanism=mechanism: run_mechanism(mechanism, COUNTS, FACTS))  # type: ignore[misc]
        row = Row(
            area="count_mechanisms",
            what=f"{name}, {N_CELLS:,} cells",
            ours=took,
            unit="ms a window",
            peer="plain NumPy, no key, state or charge",
            theirs=peer,
            target="at most 1 ms a window" if name == FILTERED else "",
            met=took <= 1 if name == FILTERED else None,
        )
        found.append(row)
    return found
