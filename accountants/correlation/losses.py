"""Backward, forward and total temporal privacy loss of a finite series of releases."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from accountants.correlation.hull import Array
from accountants.correlation.leakage_function import Correlation, LeakageFunction, leakage_function
from mechanisms.core.errors import ParameterError


def temporal_privacy_loss(
    epsilons: ArrayLike, backward: Correlation = None, forward: Correlation = None
) -> tuple[Array, Array, Array]:
    """Loss at each release about the value at that time, given all releases and what neighbours in time tell.

    BPL_1 = eps_1, BPL_t = L_B(BPL_{t-1}) + eps_t; FPL_T = eps_T, FPL_t = L_F(FPL_{t+1}) + eps_t;
    TPL_t = BPL_t + FPL_t - eps_t.

    Parameters
    ----------
    epsilons
        Pure epsilon of each release *for replacing one person's value* (twice that of add/remove), in nats, time
        last: shape (..., n_releases). 0 where nothing new was released, infinite where there is no guarantee.
    backward, forward
        Previous given now and next given now: matrices or `LeakageFunction`; None where the adversary knows none.

    Returns
    -------
    tuple of Array
        Backward, forward and total loss, each of the shape of `epsilons`, in nats; infinite, never NaN.

    Notes
    -----
    Two evaluations of a leakage function a release. Leading axes are independent series.

    Source: Cao et al., ICDE 2017, Equations 11 to 13 and Theorem 1.

    Examples
    --------
    >>> matrix = [[0.8, 0.2], [0.0, 1.0]]
    >>> backward, forward, total = temporal_privacy_loss(np.full(10, 0.1), matrix, matrix)
    >>> backward.round(2)
    array([0.1 , 0.18, 0.25, 0.3 , 0.35, 0.39, 0.42, 0.45, 0.48, 0.5 ])
    >>> total.round(2)
    array([0.5 , 0.56, 0.6 , 0.62, 0.64, 0.64, 0.62, 0.6 , 0.56, 0.5 ])
    """
    charges = checked_epsilons(epsilons)
    passed_on = leaked(charges, leakage_function(backward))
    passed_back = leaked(charges[..., ::-1], leakage_function(forward))[..., ::-1]
    # Adding what leaked in, instead of subtracting epsilon once, keeps infinite charges from becoming NaN.
    return passed_on + charges, passed_back + charges, passed_on + charges + passed_back


def checked_epsilons(epsilons: ArrayLike) -> Array:
    """Charges as an array of at least one dimension; refuses negative ones and NaN."""
    charges = np.atleast_1d(np.asarray(epsilons, dtype=float))
    if not (charges >= 0).all():
        raise ParameterError("epsilons", float(charges[~(charges >= 0)].flat[0]), "losses of at least 0 nats")
    return charges


def leaked(charges: Array, leakage: LeakageFunction) -> Array:
    """What the releases before each release tell about the value at its time: L(loss of the release before).

    Shape (..., n_releases), as `charges`; entry 0 is 0. The loss itself is this plus the charge.
    """
    result = np.zeros_like(charges)
    if charges.ndim > 1:
        for t in range(1, charges.shape[-1]):
            result[..., t] = leakage(result[..., t - 1] + charges[..., t - 1])
        return result
    incoming = 0.0
    values = [incoming]
    for charge in charges[:-1].tolist():
        incoming = leakage(incoming + charge)
        values.append(incoming)
    return np.array(values[: len(charges)])
