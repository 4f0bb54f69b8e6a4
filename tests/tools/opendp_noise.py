"""Discrete noise from OpenDP's exact samplers, as an independent oracle."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def opendp_noise(family: str, scale: float, n: int) -> NDArray[np.int64]:
    """`n` draws of the discrete ``"laplace"`` or ``"gaussian"`` distribution."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    metric = dp.l1_distance(T=int) if family == "laplace" else dp.l2_distance(T=float)
    make = dp.m.make_laplace if family == "laplace" else dp.m.make_gaussian
    draw = make(dp.vector_domain(dp.atom_domain(T=int)), metric, scale=scale)
    return np.array(draw([0] * n), dtype=np.int64)
