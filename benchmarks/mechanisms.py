"""Benchmarks of mechanisms and noise against plain NumPy and OpenDP in the same run.

NumPy's own generator has no key, no state and no charge.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Benchmark, Peer, Program, Scale, penstock
from penstock.mechanisms import get, names
from penstock.mechanisms.adaptive_ranges import AdaptiveRanges
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.contract import Facts, Mechanism
from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.run import run_mechanism, run_traces
from penstock.mechanisms.core.samplers.siphash import keyed_hash
from penstock.mechanisms.discrete_gaussian import DiscreteGaussian
from penstock.mechanisms.filter import Filter
from penstock.mechanisms.fpa import Fpa
from penstock.mechanisms.kalman import Kalman
from penstock.mechanisms.suppress_unpopular import SuppressUnpopular

N_WINDOWS, N_CELLS, WEEK = 336, 1000, 168
COUNTS = np.random.default_rng(1).poisson(20, (N_WINDOWS, N_CELLS))
FACTS = Facts(n_cells=N_CELLS, max_cells=2, landmarks=(5, 10, 20))
FILTERED = "discrete_gaussian, filter"
N_USERS, N_POINTS, N_ALONE = 8000, 150_000, 200
SOURCE = NoiseSource(NoiseKey.from_seed(7), configuration=bytes(32))


def plain_laplace() -> NDArray[np.float64]:
    """Add Laplace noise to each window's counts."""
    rng = np.random.default_rng(1)
    return np.array([window + rng.laplace(scale=2.0, size=N_CELLS) for window in COUNTS])


def plain_fourier() -> NDArray[np.float64]:
    """Apply the fast Fourier transform to each block, add noise to 12 complex coefficients, and transform back."""
    rng, blocks = np.random.default_rng(1), []
    for first in range(0, N_WINDOWS, WEEK):
        spectrum = np.fft.rfft(COUNTS[first : first + WEEK], axis=0)
        kept = np.zeros_like(spectrum)
        shape = (12, N_CELLS)
        kept[:12] = spectrum[:12] + rng.laplace(size=shape) + 1j * rng.laplace(size=shape)
        blocks.append(np.fft.irfft(kept, n=WEEK, axis=0))
    return np.concatenate(blocks)


def count_mechanisms(scale: Scale) -> Iterator[Benchmark]:
    """Yield one single-window case per count mechanism, compared with the same arithmetic in plain NumPy."""
    apart = ("adaptive_ranges", "fpa", "suppress_unpopular")
    examples = {name: get(name).examples()[0] for name in names() if name not in apart}
    mechanisms: dict[str, Any] = {
        name: one for name, one in examples.items() if isinstance(one, Mechanism) and not one.guarantee.on_points
    }
    # Alone they hand on what they get: they work on noise.
    mechanisms |= {
        FILTERED: Chain.of([DiscreteGaussian(sigma=10.0), Filter()]),
        "discrete_gaussian, kalman": Chain.of([DiscreteGaussian(sigma=10.0), Kalman()]),
        "fpa, 23 of 168 coefficients": Fpa(epsilon=1.0, coefficients=23, block=WEEK),
        "fpa, all of 168": Fpa(epsilon=1.0, coefficients=WEEK, block=WEEK),
        "adaptive_ranges, block of 168": AdaptiveRanges(parts=4, block=WEEK),
        "suppress_unpopular, block of 168": SuppressUnpopular(fraction=0.2, block=WEEK),
    }
    for name, mechanism in mechanisms.items():
        plain = plain_fourier if name.startswith("fpa") else plain_laplace
        yield Benchmark(
            f"{name}, {N_CELLS:,} cells",
            partial(run_mechanism, mechanism, COUNTS, FACTS),
            [Peer("plain NumPy, no key, state or charge", plain)],
            unit="ms a window",
            number=N_WINDOWS,
            runs=5,
            at_most=1 if name == FILTERED else None,
        )


def traces(scale: Scale) -> Iterator[Benchmark]:
    """Yield cases on a shard's traces, batched and per user, and on a whole run over the T-Drive taxis."""
    rng = np.random.default_rng(1)
    lengths = rng.multinomial(N_POINTS - N_USERS, np.full(N_USERS, 1 / N_USERS)) + 1
    points = [np.array([39.9, 116.4]) + np.cumsum(rng.normal(0, 0.003, (n, 2)), axis=0) for n in lengths]
    landmarks = [rng.random(n) < 0.3 for n in lengths]
    users = list(range(N_USERS))

    def alone(mechanism: Any) -> list[Any]:
        """Release several users' traces one by one."""
        some = zip(points[:N_ALONE], landmarks, users)
        return [run_traces(mechanism, [trace], [mask], users=[user])[0] for trace, mask, user in some]

    for name in ("landmark_skip", "landmark_uniform", "landmark_adaptive", "w_event_bd"):
        parameters: dict[str, Any] = {"epsilon": 1.0, "noise": "planar_laplace"}
        mechanism: Any = get(name)(**parameters | ({"w": 5} if name.startswith("w_event") else {}))
        yield Benchmark(
            f"{name} on {N_POINTS:,} points of {N_USERS:,} users",
            partial(run_traces, mechanism, points, landmarks, users=users),
            [
                Peer(
                    f"the same user by user, from {N_ALONE} users",
                    partial(alone, mechanism),
                    N_USERS / N_ALONE,
                    first_equal,
                )
            ],
            runs=3,
        )
    if (taxis := scale.data_set("tdrive")) is not None:
        config = Path(__file__).parents[1] / "configs" / "datasets" / "tdrive.yaml"
        words = (str(config), "--set", f"source.path={taxis}", "--out", str(scale.folder / "tdrive"), "--quiet")
        what = "landmark_adaptive on one hour of T-Drive, from its files to the report"
        yield Benchmark(what, Program(penstock("run", *words)))


def first_equal(together: list[Any], alone: list[Any]) -> bool:
    """Return whether traces get the same values alone as in a batch of all users."""
    return all(np.array_equal(a.values, b.values) for a, b in zip(alone, together))


def noise(scale: Scale) -> Iterator[Benchmark]:
    """Yield cases on a window of keyed noise, compared with OpenDP and NumPy's generator, and on keyed hashes."""
    for family in ("discrete_laplace", "discrete_gaussian"):
        for width in (1.0, 10.0, 100.0, 1000.0, 1e5):
            what, draw = f"{family} of scale {width:g}, {N_CELLS:,} cells", partial(draw_window, family, width)
            yield Benchmark(what, draw, opendp(family, width), unit="µs", runs=20)
    generator = np.random.default_rng(7)
    for family, plain in (("laplace", generator.laplace), ("gaussian", generator.normal)):
        peer = Peer("NumPy's generator", partial(plain, scale=3.0, size=N_CELLS))
        yield Benchmark(f"{family}, {N_CELLS:,} cells", partial(draw_window, family, 3.0), [peer], unit="µs", runs=200)
    columns, key = np.arange(3 * 100_000).reshape(3, -1), bytes(32)
    rows = [row.tobytes() for row in columns.T]
    blake = Peer("hashlib.blake2b", lambda: [hashlib.blake2b(row, key=key, digest_size=8).digest() for row in rows])
    hashes = partial(keyed_hash, key, *columns)
    yield Benchmark("keyed hash of 3 columns", hashes, [blake], unit="µs a row", number=len(rows), runs=5)


def draw_window(family: str, width: float) -> NDArray[Any]:
    """Draw the noise of one window from a keyed source."""
    drawn: NDArray[Any] = getattr(SOURCE.at(0, 1, "step", COUNTS[0], {}), family)(width, N_CELLS)
    return drawn


def opendp(family: str, width: float) -> list[Peer]:
    """Return OpenDP's exact sampler for the same number of cells, or no peer without OpenDP."""
    if find_spec("opendp") is None:
        return []
    import opendp.prelude as dp

    dp.enable_features("contrib")
    metric, make = (
        (dp.l1_distance(T=int), dp.m.make_laplace)
        if family == "discrete_laplace"
        else (dp.l2_distance(T=float), dp.m.make_gaussian)
    )
    draw: Callable[[list[int]], list[int]] = make(dp.vector_domain(dp.atom_domain(T=int)), metric, scale=width)
    return [Peer("OpenDP", lambda: np.array(draw([0] * N_CELLS), dtype=np.int64))]
