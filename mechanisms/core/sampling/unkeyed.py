"""OpenDP's exact samplers as an optional source: independent evidence, but not keyed and so not retry-safe."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mechanisms.core.errors import PenstockError
from mechanisms.core.noise_draws import Noise
from mechanisms.core.sampling.exact import groups_of

_FAMILIES = {"laplace": "make_laplace", "gaussian": "make_gaussian"}


class UnkeyedNoise(Noise):
    """Noise whose discrete families come from the ``opendp`` package (extra ``opendp``) and its own generator.

    A second call gives other noise whatever the key: use it to check a release, not to run a stream that may retry.
    """

    def discrete_laplace(self, scale: ArrayLike, shape: Any) -> NDArray[np.int64]:
        """Integers with P(z) ∝ exp(-abs(z) / scale), drawn afresh."""
        return self._integer("scale", scale, shape, lambda _, n, scales: self._draw("laplace", n, scales))

    def discrete_gaussian(self, sigma: ArrayLike, shape: Any) -> NDArray[np.int64]:
        """Integers with P(z) ∝ exp(-z² / (2 sigma²)), drawn afresh."""
        return self._integer("sigma", sigma, shape, lambda _, n, sigmas: self._draw("gaussian", n, sigmas))

    def _draw(self, family: str, n_per_row: int, scales: NDArray[np.float64]) -> NDArray[np.int64]:
        result = np.zeros(n_per_row * len(self._seeds), dtype=np.int64)
        for scale, where in groups_of(scales):
            result[where] = opendp_noise(family, scale, result[where].size)
        return result


def opendp_noise(family: str, scale: float, n: int) -> NDArray[np.int64]:
    """`n` draws of the discrete ``"laplace"`` or ``"gaussian"`` distribution from OpenDP.

    Raises
    ------
    PenstockError
        If the package is not installed.
    """
    try:
        import opendp.prelude as dp
    except ImportError:
        raise PenstockError("source: opendp is not installed; install penstock[opendp] or use source: keyed") from None
    dp.enable_features("contrib")
    metric = dp.l1_distance(T=int) if family == "laplace" else dp.l2_distance(T=float)
    space = dp.vector_domain(dp.atom_domain(T=int)), metric
    draw = getattr(dp.m, _FAMILIES[family])(*space, scale=scale)
    return np.array(draw([0] * n), dtype=np.int64)
