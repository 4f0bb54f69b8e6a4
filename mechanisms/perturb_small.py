"""Perturb small counts: add noise only to counts below a crowd size."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.mechanisms.core.noise_family import families
from penstock.mechanisms.core.plugin import parameter
from penstock.mechanisms.crowd_blending import CrowdBlending


@dataclass(frozen=True, kw_only=True)
class PerturbSmall(CrowdBlending):
    """Add Laplace noise with scale 1/ε to counts below a threshold and release all other counts exactly.

    Parameters
    ----------
    threshold
        k: the smallest count that is shown without noise.
    epsilon
        ε of the noise on each smaller count, in nats.
    noise
        ``discrete_laplace`` (integers, the default) or ``laplace``.

    **Privacy.** None: no differential privacy, since counts from k on are exact. It is (k, ε)-crowd-blending for a user
    who is in one count only (Gehrke, Hay, Lui, Pass 2012): the user shares the count with k − 1 others, or the count is
    noisy. Behind `sampling` of people it is differentially private for one count (the same paper, theorem on
    zero-knowledge privacy; the crowd_blending accountant has the figures).

    Notes
    -----
    Time O(n_cells) a window, no state. Every cell draws, so that time tells nothing; the published scale is that of a
    small count, in every cell.

    Examples
    --------
    >>> import numpy as np
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> run_mechanism(PerturbSmall(threshold=5, epsilon=1.0), np.array([[40, 50]]), seed=1)[0].values
    array([40., 50.])
    """

    epsilon: float = parameter(doc="budget of the noise on each smaller count", above=0, unit="nats")

    @classmethod
    def examples(cls) -> tuple[PerturbSmall, ...]:
        """Return one instance per noise family, with a threshold that is above many counts."""
        return tuple(cls(threshold=5_000, epsilon=1.0, noise=family) for family in families("counts", "epsilon"))
