"""How well an attack does, and how much a defense takes away from it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accountants.online_attack.areas import area_under_curve, auc_interval
from mechanisms.core.errors import ParameterError

__all__ = ["area_under_curve", "auc_interval", "privacy_gain", "privacy_loss"]


def privacy_loss(auc: ArrayLike) -> NDArray[np.float64] | float:
    """How far an adversary is above guessing: AUC − ½.

    >>> privacy_loss(0.75)
    0.25
    """
    loss = np.asarray(auc, dtype=float) - 0.5
    return float(loss) if loss.ndim == 0 else loss


def privacy_gain(auc: ArrayLike, auc_defended: ArrayLike) -> NDArray[np.float64] | float:
    """How much of the privacy loss a defense removes.

    Parameters
    ----------
    auc, auc_defended
        Areas under the curve of the attack on raw and on defended aggregates; numbers, or arrays that broadcast.

    Returns
    -------
    gain
        (auc − auc_defended)/(auc − ½) where auc > auc_defended ≥ ½, else 0: in [0, 1]. An area below ½ by chance
        therefore counts as no gain, as in the source; clip `auc_defended` at ½ for the other reading.

    Notes
    -----
    Pyrgelis, Troncoso, De Cristofaro, POMACS 2020, equation 1.

    Examples
    --------
    >>> privacy_gain(1.0, [0.5, 0.75, 1.0])
    array([1. , 0.5, 0. ])
    """
    raw, defended = np.broadcast_arrays(np.asarray(auc, dtype=float), np.asarray(auc_defended, dtype=float))
    for field, areas in (("auc", raw), ("auc_defended", defended)):
        if not ((areas >= 0) & (areas <= 1)).all():
            raise ParameterError(field, areas, "0 to 1")
    useful = (raw > defended) & (defended >= 0.5)
    gain = np.divide(raw - defended, raw - 0.5, out=np.zeros(raw.shape), where=useful)
    return float(gain) if gain.ndim == 0 else gain
