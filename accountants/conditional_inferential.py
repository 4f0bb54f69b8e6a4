"""Conditional inferential privacy: the privacy loss about secret points in a released trace of correlated points.

Meehan and Chaudhuri, *Location Trace Privacy Under Conditional Priors*, 2021. The trace is a Gaussian process on each
axis, the release adds Gaussian noise, and the adversary, who knows the process, compares two hypotheses about some
secret points. Figures are Rényi divergences in nats. The functions live in ``accountants.gaussian_process``, one file
each; ``docs/conditional_inferential.md`` explains them together.

Examples
--------
Ten points, every other one secret: dependence more than doubles what independence suggests.

>>> loss, independent_loss = conditional_inferential_loss(
...     times=range(10), secret=range(0, 10, 2), sigma=1.0, length_scale=2.0, radius=1.0, order=2.0
... )
>>> round(loss / independent_loss, 2)
2.8
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from penstock.accountants.core.accountant import Accountant, AccountRow, Rows
from penstock.accountants.gaussian_process.design import designed_covariance
from penstock.accountants.gaussian_process.goal import smallest_sigma, worst_length_scale
from penstock.accountants.gaussian_process.kernels import GaussianProcess, named_family
from penstock.accountants.gaussian_process.loss import conditional_inferential_loss, worst_pair
from penstock.accountants.gaussian_process.running import TraceLossState, largest_losses, running_losses
from penstock.mechanisms.core.plugin import ParameterError, parameter
from penstock.mechanisms.core.run import ReleasedTraces
from penstock.mechanisms.core.state import State
from penstock.mechanisms.gaussian_trace import TracePrior

__all__ = [
    "ConditionalInferential",
    "conditional_inferential_loss",
    "designed_covariance",
    "smallest_sigma",
    "worst_pair",
]

ADJACENCY = "two hypotheses `radius` metres apart at each secret point; the adversary knows the Gaussian process"


@dataclass(frozen=True, kw_only=True)
class ConditionalInferential(TracePrior, Accountant):
    """Account for the privacy loss about secret points in a trace of correlated points.

    Parameters
    ----------
    radius
        How far apart the two hypotheses about a secret point may be, in metres.
    kernel, variance, period, nugget
        Of the Gaussian process that the adversary knows, the same on both axes: ``rbf``, ``matern12``, ``matern32`` or
        ``periodic``; seconds and square metres.
    length_scale
        The longest length scale that the process may have: figures are the largest over all of them. ``{exactly: …}``:
        the only one.
    secrets, width
        Which of the last points are secret together: ``singletons``, ``every_other`` or ``sliding_blocks`` of
        ``width``.
    order
        Order λ of the Rényi divergence.
    block
        Last points that are treated exactly; what lies before them is bounded. It should reach four length scales.
    every
        Write the figures after this many releases of a trace, again and again.

    **Privacy.** Rows, for each trace, provisional while it goes on: ``loss`` (of the worst secret among the last
    points, nats), ``independent_loss`` (the same if points did not depend on each other), ``ratio``, and ``interval``
    (half-width in metres within which the adversary finds the newest point with probability 0.954). For a class
    ``worst_length_scale`` says where ``loss`` is largest (found by a search that is careful, not proved; a thousandth
    is added). Unit: the secret points of one user; they never depend on positions. Meehan and Chaudhuri 2021;
    ``docs/conditional_inferential.md`` proves the bound. Only Gaussian noise on points has a theorem: anything else has
    an infinite loss, as has a trace in which secret points follow from each other to machine precision (a ``nugget``
    ends that). O(block³) for each secret and figure, a hundred times that for a class. Designed noise is accounted with
    its covariance, exactly over all releases so far in place of a block: O(n³) for n of them.

    Examples
    --------
    >>> account = ConditionalInferential(length_scale=600.0, variance=1e6, radius=50.0, every=2)
    >>> rows = account.trace_rows("x", times=np.array([0.0, 60.0]), sigma=np.array([100.0, 100.0]))
    >>> [(row.name, round(row.value, 2)) for row in rows]
    [('loss', 0.37), ('independent_loss', 0.25), ('ratio', 1.5), ('interval', 162.96), ('worst_length_scale', 600.0)]
    """

    radius: float = parameter(1.0, doc="largest distance of the hypotheses about a point", above=0, unit="metres")
    block: int = parameter(25, doc="last points that are treated exactly", at_least=1)
    every: int = parameter(1, doc="releases of a trace between two figures", at_least=1)
    stages: ClassVar[tuple[str, ...]] = ("points",)
    reads: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def examples(cls) -> tuple[ConditionalInferential, ...]:
        """Return an instance with a class of length scales and one with a periodic kernel."""
        return (
            cls(length_scale=600.0, variance=1e6, radius=50.0),
            cls(length_scale=2.0, kernel="periodic", period=3600.0, variance=1e6, secrets="every_other"),
        )

    def account_traces(self, released: ReleasedTraces) -> Rows:
        """Account for every trace separately."""
        sigma = np.where(released.action == "published", released.scale, np.inf)
        promised, factors = released.mechanism.guarantee, released.factors
        # Where earlier releases decide what follows, or a look at the points does, releases are not jointly Gaussian;
        # and noise that depends on earlier noise is that of its covariance alone.
        if released.noise != "planar_gaussian" or promised.adaptive or (factors is None and not promised.independent):
            sigma = np.where(np.isfinite(sigma), 0.0, sigma)
            factors = None
        seconds, cuts = released.times / 1000, released.starts[1:]
        rows: Rows = []
        for user, (times, scales) in enumerate(zip(np.split(seconds, cuts), np.split(sigma, cuts))):
            factor = None if factors is None else factors[user]
            rows += self.trace_rows(released.pseudonyms[user], times, scales, factor)
        return rows

    def trace_rows(self, subject: str, times: Any, sigma: Any, factor: Any = None) -> Rows:
        """Return the values along a single trace whose points are at ``times``, in seconds.

        ``sigma``: each point's noise in metres, infinite for a repetition, 0 if no bound is known. ``factor``: Cholesky
        factor of the correlated noise of the first points; none then leaves the block.
        """
        trace = TraceLossState(GaussianProcess.of(self), self.block, self.length_scales.at_most is not None)
        rows = Rows()
        state, shown = trace.start(), np.flatnonzero(np.isfinite(sigma))
        if factor is not None:
            covariance = (factor @ factor.T)[np.ix_(shown, shown)]
        for index, (time, scale) in enumerate(zip(times.tolist(), sigma.tolist()), 1):
            if factor is None:
                state = trace.after(state, time, scale)
            if index % self.every == 0 or index == len(times):
                if factor is not None:
                    n = int(np.searchsorted(shown, index))
                    state = state | {"times": times[shown[:n]], "noise_variance": covariance[:n, :n]}
                rows += self._rows(subject, index, trace, state, ended=index == len(times))
        return rows

    def _rows(self, subject: str, index: int, model: TraceLossState, state: State, ended: bool = False) -> Rows:
        broken = bool(state["broken"])
        status = "final" if ended or broken else "provisional"
        row = partial(AccountRow, subject, index, unit="nats", adjacency=ADJACENCY, status=status)
        if broken:
            return [row("loss", np.inf), row("independent_loss", np.inf)]
        n_points = len(state["times"])
        if n_points == 0:
            return [row("loss", 0.0), row("independent_loss", 0.0)]
        family = named_family(self.secrets, n_points, self.width)
        rows = []
        try:
            given = (state, model.prior, family, self.radius, self.order)
            figures = running_losses(*given)
            loss, independent = float(figures.loss.max()), float(figures.independent_loss.max())
            if model.is_class:
                loss, at = worst_length_scale(partial(largest_losses, *given), model.prior, state["times"])
                rows = [row("worst_length_scale", at, unit="1" if self.kernel == "periodic" else "seconds")]
        except ParameterError as error:
            if error.field != "nugget":
                raise
            return [row("loss", np.inf), row("independent_loss", np.inf)]
        return [
            row("loss", loss),
            row("independent_loss", independent),
            row("ratio", loss / independent, unit="1"),
            row("interval", float(figures.interval[-1]), unit="metres"),
            *rows,
        ]
