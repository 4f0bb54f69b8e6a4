"""Reconstruction bounds and attacks on a simulated chain: figures 5 and 7 of Koga, Meehan and Chaudhuri."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from penstock.mechanisms.core.plugin import parameter
from reproductions.koga import SIGMAS, Swept, chain_figures, gaps_to_best_attack, sweep_table
from reproductions.study import Figures, Study, Tables


@dataclass(frozen=True, kw_only=True)
class ReconstructionChain(Study):
    """Sweep the chain size, number of windows, tolerance and noise."""

    not_decisive: ClassVar[tuple[str, ...]] = ("locations", "windows", "tolerance", "sizes", "lengths", "sigmas")

    locations: int = parameter(100, doc="places of the chain, where they are not swept", at_least=2)
    windows: int = parameter(10, doc="windows guessed, where they are not swept", at_least=1)
    tolerance: int = parameter(5, doc="windows that may be guessed wrong, where they are not swept", at_least=0)
    tau: float = parameter(0.1, doc="of the chain: how readily it moves", above=0)
    sizes: tuple[int, ...] = parameter((10, 20, 50, 100, 200), doc="swept numbers of places")
    lengths: tuple[int, ...] = parameter((2, 4, 6, 8, 10, 12, 14, 16, 18, 20), doc="swept numbers of windows")
    sigmas: tuple[float, ...] = parameter(SIGMAS, doc="swept standard deviations of Gaussian noise, beside raw counts")
    draws: int = parameter(3, doc="schedules of one sensor a window, averaged over", at_least=1)
    trajectories: int = parameter(2000, doc="trajectories attacked for each schedule", at_least=1)
    samples: int = parameter(500, doc="readings that the first-moment bound is sampled from", at_least=1)

    def pieces(self, data: None) -> tuple[Swept, ...]:
        """Return every point of all sweeps."""
        n, t, s = self.locations, self.windows, self.tolerance
        return (
            *(Swept("locations", size, size, t, s, 0.0) for size in self.sizes),
            *(Swept("right windows", t - wrong, n, t, wrong, 0.0) for wrong in range(t - 1, -1, -1)),
            *(Swept("windows, half of them right", length, n, length, length // 2, 0.0) for length in self.lengths),
            *(Swept("windows, two of them right", length, n, length, length - 2, 0.0) for length in self.lengths),
            *(Swept("sigma", sigma, n, t, s, sigma) for sigma in (0.0, *self.sigmas)),
        )

    def measure(self, data: None, piece: Swept) -> Figures:
        """Compute the bounds and attacks at one point of a sweep."""
        return chain_figures(piece, self.tau, self.draws, self.trajectories, self.samples, self.seed)

    def tables(self, data: None, measured: Mapping[Swept, Figures]) -> Tables:
        """Return the sweeps with their figure numbers, and the margin of each bound over the best attack."""
        table = sweep_table(({}, piece, figures) for piece, figures in measured.items())
        figure = pl.when(pl.col("sweep") == "sigma").then(7).otherwise(5).alias("figure")
        return {
            "reconstruction_chain": table.select(figure, pl.all()),
            "reconstruction_chain_ratio": gaps_to_best_attack(table).select(figure, pl.all()),
        }
