"""Features of the earlier attack: statistics of every cell's series, for a logistic regression."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def cell_statistics(released: NDArray[Any]) -> NDArray[np.float64]:
    """Seven statistics over the windows of every cell.

    Parameters
    ----------
    released (n_samples, n_windows, n_cells)
        Aggregates.

    Returns
    -------
    statistics (n_samples, 7·n_cells)
        Mean, median, maximum, minimum, variance, standard deviation and sum, each for all cells.

    Notes
    -----
    Pyrgelis, Troncoso, De Cristofaro, "Knock Knock, Who's There?", NDSS 2018; figure 1 of their 2020 paper compares
    the attack with principal components.

    Examples
    --------
    >>> cell_statistics(np.array([[[1], [2], [6]]])).round(2)
    array([[3.  , 2.  , 6.  , 1.  , 4.67, 2.16, 9.  ]])
    """
    variance = released.var(axis=1)
    columns = (
        released.mean(axis=1),
        np.median(released, axis=1),
        released.max(axis=1),
        released.min(axis=1),
        variance,
        np.sqrt(variance),
        released.sum(axis=1),
    )
    return np.concatenate(columns, axis=1).astype(float)
