"""Conditional inferential loss of secret points, and the worst hypothesis: figure 2 of Meehan and Chaudhuri."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import polars as pl

from penstock.accountants.gaussian_process.interpretation import loss_table, worst_hypothesis, worst_pair
from penstock.accountants.gaussian_process.kernels import GaussianProcess
from penstock.mechanisms.core.plugin import parameter
from reproductions.study import Figures, Study, Tables

NOISE_VARIANCES = (0.1, 0.15, 0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)


class Piece(NamedTuple):
    """Half of the figure."""

    name: str


@dataclass(frozen=True, kw_only=True)
class ConditionalTrace(Study):
    """Points at unit distance, every other one secret: their loss under a smooth prior, and the worst pair of traces.

    Losses are Rényi divergences of order 2, in nats, of hypotheses at most radius 1 apart; the prior has variance 1.
    """

    aside: ClassVar[tuple[str, ...]] = ()

    points: int = parameter(10, doc="points of the trace", at_least=2)
    length_scales: tuple[float, ...] = parameter((0.5, 1.0, 2.0, 4.0), doc="length scales of the prior")
    noise_variances: tuple[float, ...] = parameter(NOISE_VARIANCES, doc="variances of the noise at each point")
    length_scale: float = parameter(2.0, doc="length scale of the worst hypothesis", above=0)
    sigma: float = parameter(1.0, doc="standard deviation of the noise that it is chosen for", above=0)

    def pieces(self, data: None) -> tuple[Piece, ...]:
        """Two."""
        return Piece("losses"), Piece("hypotheses")

    def measure(self, data: None, piece: Piece) -> Figures:
        """Columns of one table."""
        times = tuple(range(self.points))
        secret = times[::2]
        if piece.name == "losses":
            return loss_table(self.noise_variances, self.length_scales, times, secret)
        model = GaussianProcess(length_scale=self.length_scale)
        rng = np.random.default_rng(self.seed)
        trace = rng.multivariate_normal(np.zeros(len(times)), model.covariance(np.array(times)))
        direction = worst_pair(times, secret, self.sigma, self.length_scale)
        truth, hypothesis = worst_hypothesis(times, trace, secret, direction, 1.0, model)
        is_secret = np.isin(times, secret)
        # at secret points the truth is the trace itself, not the trace to rounding
        truth = np.where(is_secret, trace, truth)
        columns = {"time": times, "is_secret": is_secret, "trace": trace, "truth": truth, "hypothesis": hypothesis}
        return {name: np.asarray(column, np.float64) for name, column in columns.items()}

    def tables(self, data: None, found: Mapping[Piece, Figures]) -> Tables:
        """``conditional_losses`` by noise variance and length scale; ``conditional_hypotheses``, a row a point.

        The latter has the ``trace``, drawn from the prior, and the expected positions ``truth`` given its secret points
        and ``hypothesis`` given points at most radius 1 from them in the mean square.
        """
        points = pl.DataFrame(found[Piece("hypotheses")])
        return {
            "conditional_losses": pl.DataFrame(found[Piece("losses")]),
            "conditional_hypotheses": points.with_columns(
                pl.col("time").cast(pl.Int64), pl.col("is_secret").cast(pl.Boolean)
            ),
        }
