"""Loss against noise for several length scales: the data of a figure.

Meehan and Chaudhuri, *Location Trace Privacy Under Conditional Priors*, 2021, figure 2a.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accountants.gaussian_process.kernels import Array
from accountants.gaussian_process.loss import conditional_inferential_loss
from mechanisms.core.errors import ParameterError


def loss_table(
    noise_variances: ArrayLike = tuple(np.linspace(0.1, 4.0, 40)),
    length_scales: Sequence[float] = (0.5, 1.0, 2.0, 4.0),
    times: ArrayLike = tuple(range(10)),
    secret: ArrayLike = (0, 2, 4, 6, 8),
    radius: float = 1.0,
    order: float = 2.0,
    kernel: str = "rbf",
    variance: float = 1.0,
    nugget: float = 0.0,
) -> dict[str, NDArray[np.float64]]:
    """Table of the loss by noise variance and length scale; by default the paper's ten points, every other secret.

    Parameters
    ----------
    noise_variances
        Variances σ² of white noise, each above 0.
    length_scales
        Length scales of the prior.
    times, secret, radius, order, kernel, variance, nugget
        As in `conditional_inferential_loss`; radius² and noise variances in the unit of ``variance``.

    Returns
    -------
    dict of arrays
        Columns of equal length, one row for each pair: ``noise_variance``, ``length_scale``, ``loss``,
        ``independent_loss`` and ``ratio``.

    Raises
    ------
    ParameterError
        If a noise variance is not above 0, or as `conditional_inferential_loss`.

    Examples
    --------
    At correlation 0.6 between neighbours the loss is more than half above what independence suggests:

    >>> loss_table([0.25], [1.0])["ratio"].round(2)
    array([1.65])
    """
    variances: Array = np.atleast_1d(np.asarray(noise_variances, dtype=np.float64))
    if not (variances > 0).all():
        raise ParameterError("noise_variances", noise_variances, "numbers above 0")
    pairs = [(noise, length_scale) for length_scale in length_scales for noise in variances]
    losses = np.array(
        [
            conditional_inferential_loss(
                times, secret, np.sqrt(noise), length_scale, radius, order, kernel, variance, nugget=nugget
            )
            for noise, length_scale in pairs
        ]
    )
    noise_variance, length_scale = np.array(pairs).T
    return {
        "noise_variance": noise_variance,
        "length_scale": length_scale,
        "loss": losses[:, 0],
        "independent_loss": losses[:, 1],
        "ratio": losses[:, 0] / losses[:, 1],
    }
