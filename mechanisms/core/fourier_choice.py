"""How many Fourier coefficients to keep, chosen privately."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mechanisms.core.noise import Noise


def candidates(n_coefficients: int) -> NDArray[np.int64]:
    """Numbers to choose from: the odd ones, which keep sine and cosine together, and all.

    >>> candidates(6).tolist()
    [1, 3, 5, 6]
    """
    return np.unique([*range(1, n_coefficients + 1, 2), n_coefficients])


def choose_number(
    numbers: NDArray[np.int64],
    *,
    power: NDArray[np.float64],
    energy: NDArray[np.float64],
    spread: NDArray[np.float64],
    sensitivity: float,
    epsilon: float,
    noise: Noise,
) -> NDArray[np.int64]:
    """Choose by the exponential mechanism, with the norm of what is cut off plus that of the noise as the cost.

    Parameters
    ----------
    numbers
        From `candidates`, shape (m,).
    power
        Sum of squares over cells of each coefficient, shape (..., k).
    energy
        Sum of squares of all counts of the block, shape (...): with `power` it tells what is cut off.
    spread
        Norm of the noise for each number, shape (m,), public.
    sensitivity
        Largest L2 norm of one user's block. A projection moves by no more than what it projects, so this is how far
        one user moves the cost.
    epsilon
        Budget of the choice; infinite: all coefficients are kept, which cuts off least.
    noise
        One uniform number is drawn for each candidate (Gumbel's form).

    Returns
    -------
    Shape (...). McSherry and Talwar 2007, theorem 6.
    """
    leading: Any = energy.shape
    if np.isinf(epsilon):
        return np.full(leading, numbers[-1])
    kept = power.cumsum(axis=-1)[..., numbers - 1]
    cut_off = np.sqrt(np.maximum(energy[..., None] - kept, 0.0))
    score = -(cut_off + spread) * epsilon / (2 * sensitivity)
    with np.errstate(divide="ignore"):
        gumbel = -np.log(-np.log(noise.uniform(score.shape)))
    return np.asarray(numbers[np.argmax(score + gumbel, axis=-1)])
