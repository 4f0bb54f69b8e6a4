"""Brute force over length scales, for goals of conditional inferential privacy; traces that are accounted, and rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from penstock.accountants.gaussian_process.loss import conditional_inferential_loss
from penstock.mechanisms.core.run import ReleasedTraces

RADIUS, LONGEST = 40.0, 300.0
#: A class of priors, with the keys of a goal.
PRIOR: dict[str, Any] = {"length_scale": LONGEST, "variance": 1e5, "nugget": 100.0}
SECRETS = ({"secrets": "singletons"}, {"secrets": "every_other"}, {"secrets": "sliding_blocks", "width": 3})


def largest_loss(
    times: ArrayLike,
    family: Sequence[ArrayLike],
    sigma: ArrayLike | None = None,
    kernel: str = "rbf",
    scales: Iterable[float] = tuple(np.geomspace(1.0, LONGEST, 40)),
    covariance: ArrayLike | None = None,
) -> float:
    """Largest loss of any secret at any of many length scales."""
    prior = {"kernel": kernel, "variance": PRIOR["variance"], "nugget": PRIOR["nugget"]}
    return max(
        conditional_inferential_loss(times, secret, sigma, scale, RADIUS, 2.0, noise_covariance=covariance, **prior)[0]
        for scale in scales
        for secret in family
    )


def rows_of(rows, name):
    return [row.value for row in rows if row.name == name]


def view(mechanism, scale):
    """Two traces as they leave a mechanism; the noise is called what the mechanism calls it."""
    n = len(scale)
    return ReleasedTraces(
        users=np.array([[10], [11]]),
        starts=np.array([0, 4]),
        times=60_000 * np.arange(n),
        landmarks=np.zeros(n, bool),
        periods=np.zeros(n, int),
        epsilon=np.full(n, np.inf),
        rho=np.full(n, np.inf),
        scale=scale,
        action=np.full(n, "published"),
        values=np.zeros((n, 2)),
        repeats=np.full(n, -1),
        noise=mechanism.family.name,
        mechanism=mechanism,
    )
