"""Sets of landmarks with a chosen shape in time, for experiments."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.errors import ParameterError

#: Centres of the truncated normals, as fractions of the series; none: uniform.
SHAPES: dict[str, tuple[float, ...]] = {
    "left_skewed": (0.75,),
    "symmetric": (0.5,),
    "right_skewed": (0.25,),
    "bimodal": (0.0, 1.0),
    "uniform": (),
}
#: The scale of every normal is the length of the series over this constant.
SCALE_DIVISOR = 10.0


def landmark_distribution(
    kind: str, n_windows: int, n_landmarks: int, seed: int, scale_divisor: float = SCALE_DIVISOR
) -> NDArray[np.bool_]:
    """Sample a set of landmarks, without replacement, from a distribution over the series.

    Parameters
    ----------
    kind
        ``left_skewed`` (landmarks towards the end), ``symmetric`` (in the middle), ``right_skewed`` (at the
        beginning), ``bimodal`` (at both ends) or ``uniform``.
    n_windows
        Length of the series.
    n_landmarks
        How many landmarks, from 0 to ``n_windows``.
    seed
        The same seed gives the same set.
    scale_divisor
        Standard deviation of the normals is ``n_windows / scale_divisor``.

    Returns
    -------
    Mask of the landmarks, shape (n_windows,).

    Raises
    ------
    ParameterError
        If the kind is unknown or a number out of range.

    Notes
    -----
    O(n log n). A window's weight is the density at its middle of the normals truncated to the series. Adding Gumbel
    noise to the log-weights and keeping the largest is drawing one landmark after the other, without replacement,
    with probability proportional to weight (Efraimidis, Spirakis 2006), and never underflows. Katsomallos et al. 2022,
    evaluation section; the paper does not state its constant.

    Examples
    --------
    >>> landmarks = landmark_distribution("right_skewed", 100, 20, seed=1)
    >>> int(landmarks.sum()), bool(landmarks[:50].sum() > landmarks[50:].sum())
    (20, True)
    """
    if kind not in SHAPES:
        raise ParameterError("kind", kind, "one of " + ", ".join(SHAPES))
    if n_windows < 1:
        raise ParameterError("n_windows", n_windows, "a whole number of at least 1")
    if not 0 <= n_landmarks <= n_windows:
        raise ParameterError("n_landmarks", n_landmarks, f"a whole number from 0 to n_windows ({n_windows})")
    if not scale_divisor > 0:
        raise ParameterError("scale_divisor", scale_divisor, "a number above 0")
    log_weight = np.zeros(n_windows)
    if SHAPES[kind]:
        centres = np.array(SHAPES[kind])[:, None]
        middles = (np.arange(n_windows) + 0.5) / n_windows
        log_weight = np.logaddexp.reduce(-((middles - centres) ** 2) * scale_divisor**2 / 2, axis=0)
    keys = log_weight + np.random.default_rng(seed).gumbel(size=n_windows)
    landmarks = np.zeros(n_windows, bool)
    landmarks[np.argsort(keys)[n_windows - n_landmarks :]] = True
    return landmarks
