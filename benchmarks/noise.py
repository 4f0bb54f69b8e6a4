"""Cost of a window of noise, beside peers in the same run: NumPy's generator and OpenDP's exact samplers.

Run ``python -m benchmarks.noise``; every figure is the least of several repeats, so that a busy machine matters little.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import seconds
from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.samplers.integers import gaussian_magnitude
from penstock.mechanisms.core.samplers.siphash import keyed_hash

N_CELLS = 1000
COUNTS = np.arange(N_CELLS)
KEY = NoiseKey.from_seed(7)


def microseconds(call: Callable[[], Any], n_repeats: int = 200) -> float:
    """Shortest time of a call, in µs."""
    return 1e6 * seconds(call, n_repeats)


def window(family: str, scale: float) -> Callable[[], Any]:
    """Draw the noise of one window of `N_CELLS` cells from a keyed source."""
    source = NoiseSource(KEY, configuration=bytes(32))
    return lambda: getattr(source.at(0, 1, "step", COUNTS, {}), family)(scale, N_CELLS)


def opendp_window(family: str, scale: float) -> float | None:
    """Shortest time of OpenDP's noise for as many cells, in µs; None without OpenDP."""
    try:
        import opendp.prelude as dp

        dp.enable_features("contrib")
        metric, make = (
            (dp.l1_distance(T=int), dp.m.make_laplace)
            if family == "discrete_laplace"
            else (dp.l2_distance(T=float), dp.m.make_gaussian)
        )
        draw = make(dp.vector_domain(dp.atom_domain(T=int)), metric, scale=scale)
        return microseconds(lambda: np.array(draw([0] * N_CELLS), dtype=np.int64), 20)
    except Exception as error:
        print(f"(no OpenDP: {error})")
        return None


def discrete_rows() -> list[tuple[Any, ...]]:
    """Integer noise, and OpenDP over it, by family and scale."""
    rows = []
    for family in ("discrete_laplace", "discrete_gaussian"):
        for scale in (1.0, 10.0, 100.0, 1000.0, 1e5):
            ours, peer = microseconds(window(family, scale)), opendp_window(family, scale)
            rows.append((family, f"{scale:g}", ours, "" if peer is None else f"{peer / ours:.0f}"))
    return rows


def real_rows() -> list[tuple[Any, ...]]:
    """Real-valued keyed noise beside NumPy's generator."""
    generator = np.random.default_rng(7)
    peers = {
        "laplace": lambda: generator.laplace(scale=3.0, size=N_CELLS),
        "gaussian": lambda: generator.normal(scale=3.0, size=N_CELLS),
    }
    rows = []
    for family, peer in peers.items():
        ours, theirs = microseconds(window(family, 3.0)), microseconds(peer)
        rows.append((family, ours, theirs, f"{ours / theirs:.1f}"))
    return rows


def gaussian_table(sigma: float) -> None:
    """Make the table of discrete Gaussian noise of a scale anew."""
    _ = gaussian_magnitude.__wrapped__(sigma).ascending


def table_rows() -> list[tuple[Any, ...]]:
    """Time to make the table of a new sigma."""
    return [(f"{s:g}", microseconds(partial(gaussian_table, s), 5)) for s in (1.0, 10.0, 100.0, 1000.0)]


def step(counts: NDArray[np.int64], n_replicas: int | None) -> None:
    """Draw the noise of one window, for all replicas at once."""
    source = NoiseSource(KEY, configuration=bytes(32))
    source.at(0, 1, "step", counts, {}, n_replicas).discrete_laplace(3.0, counts.shape)


def replica_rows() -> list[tuple[Any, ...]]:
    """Replicas drawn together, against one after the other."""
    rows = []
    for n_replicas, n_cells in ((1000, 100), (100, 1000)):
        counts = np.zeros((n_replicas, n_cells), dtype=np.int64)
        together = microseconds(partial(step, counts, n_replicas), 20)
        alone = microseconds(partial(step, counts[0], None))
        rows.append((f"{n_replicas} x {n_cells}", together, f"{n_replicas * alone / together:.1f}"))
    return rows


def hash_rows() -> list[tuple[Any, ...]]:
    """Keyed hashes of rows, against `hashlib.blake2b`."""
    columns, key = np.arange(3 * 100_000).reshape(3, -1), bytes(32)
    ours = microseconds(lambda: keyed_hash(key, *columns), 10)
    rows = [row.tobytes() for row in columns.T]
    theirs = microseconds(lambda: [hashlib.blake2b(row, key=key, digest_size=8).digest() for row in rows], 5)
    return [("3 columns", ours / 1e5, theirs / 1e5, f"{theirs / ours:.1f}")]


def table(title: str, head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    """Print a table in Markdown."""
    print(f"\n{title}\n")
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row) + " |")


if __name__ == "__main__":
    table(
        f"A keyed window of {N_CELLS} cells, integer noise (µs)",
        ("family", "scale", "keyed", "OpenDP / keyed"),
        discrete_rows(),
    )
    table(f"Real-valued noise, {N_CELLS} cells (µs)", ("family", "keyed", "NumPy generator", "ratio"), real_rows())
    table("Making the table of a new sigma, discrete_gaussian (µs)", ("sigma", "table"), table_rows())
    table("Replicas x cells, simulation (µs)", ("size", "together", "one by one / together"), replica_rows())
    table("Keyed hash (µs a row)", ("rows", "keyed_hash", "hashlib.blake2b", "ratio"), hash_rows())
