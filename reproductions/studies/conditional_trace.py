"""Conditional inferential loss about secret points, and the worst hypothesis: figure 2 of Meehan and Chaudhuri."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from penstock.accountants.gaussian_process.kernels import Array, GaussianProcess, secret_indices
from penstock.accountants.gaussian_process.loss import conditional_inferential_loss, conditional_response, worst_pair
from penstock.mechanisms.core.plugin import parameter
from reproductions.study import Figures, Study, Tables

NOISE_VARIANCES = (0.1, 0.15, 0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)


#: Points of which a shorter length scale tells more than the longest: times, secret indices, σ, length scales.
TIMES, SECRET, SIGMA = (0.61, 0.90, 4.62, 6.95, 8.31, 8.34), (0, 1, 3, 4), 0.83
CLASS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 15.0)


class Half(NamedTuple):
    """One half of the figure, or the losses over a class of length scales."""

    name: str


@dataclass(frozen=True, kw_only=True)
class ConditionalTrace(Study):
    """Compute the loss about every other point of a trace under a smooth prior, and the worst pair of traces.

    Losses are Rényi divergences of order 2, in nats, of hypotheses at most radius 1 apart; the prior has variance 1.
    """

    points: int = parameter(10, doc="points of the trace", at_least=2)
    length_scales: tuple[float, ...] = parameter((0.5, 1.0, 2.0, 4.0), doc="length scales of the prior")
    noise_variances: tuple[float, ...] = parameter(NOISE_VARIANCES, doc="variances of the noise at each point")
    length_scale: float = parameter(2.0, doc="length scale of the worst hypothesis", above=0)
    sigma: float = parameter(1.0, doc="standard deviation of the noise that it is chosen for", above=0)

    def pieces(self, data: None) -> tuple[Half, ...]:
        """Return the two halves of the figure and the class of length scales."""
        return Half("losses"), Half("hypotheses"), Half("class")

    def measure(self, data: None, piece: Half) -> Figures:
        """Compute the columns of one table."""
        times = tuple(range(self.points))
        secret = times[::2]
        if piece.name == "class":
            return loss_table([SIGMA**2], CLASS, TIMES, SECRET)
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

    def tables(self, data: None, figures: Mapping[Half, Figures]) -> Tables:
        """Return three tables: ``conditional_losses`` by noise variance and length scale, ``conditional_class`` with
        the same columns, and ``conditional_hypotheses`` with one row per point.

        The last has the ``trace``, drawn from the prior, and the expected positions ``truth`` given its secret points
        and ``hypothesis`` given points at most radius 1 from them in the mean square.
        """
        points = pl.DataFrame(figures[Half("hypotheses")])
        return {
            "conditional_losses": pl.DataFrame(figures[Half("losses")]),
            "conditional_class": pl.DataFrame(figures[Half("class")]),
            "conditional_hypotheses": points.cast({"time": pl.Int64, "is_secret": pl.Boolean}),
        }


def loss_table(
    noise_variances: Sequence[float], length_scales: Sequence[float], times: Sequence[float], secret: Sequence[int]
) -> Figures:
    """Tabulate the loss by noise variance and length scale, at radius 1 and order 2.

    At correlation 0.6 between neighbours the loss is more than half above what independence suggests:

    >>> loss_table([0.25], [1.0], range(10), range(0, 10, 2))["ratio"].round(2)
    array([1.65])
    """
    pairs = np.array([(noise, length_scale) for length_scale in length_scales for noise in noise_variances])
    loss, independent = np.array(
        [
            conditional_inferential_loss(times, secret, np.sqrt(noise), length_scale, radius=1.0, order=2.0)
            for noise, length_scale in pairs
        ]
    ).T
    key = {"noise_variance": pairs[:, 0], "length_scale": pairs[:, 1]}
    return {**key, "loss": loss, "independent_loss": independent, "ratio": loss / independent}


def worst_hypothesis(
    times: ArrayLike, trace: ArrayLike, secret: ArrayLike, direction: ArrayLike, radius: float, model: GaussianProcess
) -> tuple[Array, Array]:
    """Return the prior's completion of the true secret points, and of the worst hypothesis about them.

    At secret points they are the two values, elsewhere the conditional means: where the two differ is what the public
    points give away. ``direction``: from `worst_pair`; the hypothesis is radius·sqrt(n_secret) away in all.

    >>> model = GaussianProcess(length_scale=1.0)
    >>> truth, hypothesis = worst_hypothesis([0.0, 1.0], [0.0, 0.0], [0], [1.0], 2.0, model)
    >>> (hypothesis - truth).round(4)
    array([2.    , 1.2131])
    """
    points, positions = np.asarray(times, dtype=np.float64), np.asarray(trace, dtype=np.float64)
    indices = secret_indices(secret, len(points))
    shift = np.asarray(direction, dtype=np.float64) * radius * np.sqrt(len(indices))
    mean = conditional_response(model.covariance(points), indices).mean
    truth = mean @ positions[indices]
    return truth, truth + mean @ shift
