"""The noise of one step, in every family that mechanisms draw from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.samplers import integers, reals
from penstock.mechanisms.core.samplers.bits import Bits

#: Integer noise of a larger scale is refused: sums with counts must stay far inside 64 bits.
LARGEST_SCALE = 2.0**40
#: Smallest scale of noise, none apart; the square of its ratio to a count is a float.
SMALLEST_SCALE = 2.0**-100


class Noise:
    """The noise of one step. Each call draws from its own sub-stream, numbered in the order of calls.

    Shapes are those of the result; with replicas their leading axis is the replica. Scales broadcast to the shape:
    a number, one per replica as shape (n_replicas, 1), or one per cell. A scale of 0 gives zeros without a draw; an
    infinite, negative or undefined one is a `ParameterError`.
    """

    def __init__(
        self, seeds: Sequence[bytes] | Callable[[], Sequence[bytes]], n_replicas: int | None, exact: bool
    ) -> None:
        self._given, self._n_replicas, self._n_calls = seeds, n_replicas, 0
        self.exact = exact

    @cached_property
    def _seeds(self) -> Sequence[bytes]:
        # Most windows of a block draw nothing; their seeds need not be worked out.
        return self._given() if callable(self._given) else self._given

    def of_replica(self, number: int) -> Noise:
        """Return the noise that a run with only this replica would draw."""
        return Noise((self._seeds[number],), None, self.exact)

    def uniform(self, shape: Any) -> NDArray[np.float64]:
        """Draw uniform multiples of 2**-53 in [0, 1)."""
        bits, shape, n = self._call(shape)
        return reals.uniform(bits.words(0, n)).reshape(shape)

    def discrete_laplace(self, scale: ArrayLike, shape: Any) -> NDArray[np.int64]:
        """Draw integers with P(z) ∝ exp(-abs(z) / scale), ε-private at scale L1 sensitivity / ε (Ghosh et al. 2009)."""
        return self._integer("scale", scale, shape, integers.discrete_laplace)

    def discrete_gaussian(self, sigma: ArrayLike, shape: Any) -> NDArray[np.int64]:
        """Draw integers with P(z) ∝ exp(-z² / (2 sigma²)) (Canonne, Kamath, Steinke 2020)."""
        return self._integer("sigma", sigma, shape, integers.discrete_gaussian)

    def laplace(self, scale: ArrayLike, shape: Any) -> NDArray[np.float64]:
        """Draw real numbers with density ∝ exp(-abs(z) / scale). Not allowed in exact mode."""
        bits, shape, n, scales = self._real("laplace", "scale", scale, shape)
        words = bits.words(0, n)
        signs = 1.0 - 2.0 * (words.values & np.uint64(1))  # a bit that the magnitude does not use
        return (scales * signs * reals.exponential(words)).reshape(shape)

    def gaussian(self, sigma: ArrayLike, shape: Any) -> NDArray[np.float64]:
        """Draw normal variables with standard deviation `sigma`. Not allowed in exact mode."""
        bits, shape, n, sigmas = self._real("gaussian", "sigma", sigma, shape)
        return (sigmas * reals.gaussian(bits.words(0, n))).reshape(shape)

    def planar_laplace(self, epsilon: ArrayLike, shape: Any) -> NDArray[np.float64]:
        """Draw steps (east, north) in metres with density ∝ exp(-epsilon · length), shape (*shape, 2).

        The radius is Gamma(2, 1/epsilon), the sum of two exponentials, and the angle uniform; `epsilon` is per metre,
        and an infinite one gives zeros. Refused in exact mode.

        Source: Andrés, Bordenabe, Chatzikokolakis, Palamidessi, "Geo-indistinguishability", CCS 2013.
        """
        with np.errstate(divide="ignore"):
            scale = 1.0 / np.asarray(epsilon, dtype=np.float64)
        bits, shape, n, scales = self._real("planar_laplace", "epsilon", scale, shape)
        radii = scales * (reals.exponential(bits.words(0, n)) + reals.exponential(bits.words(1, n)))
        angles = 2 * np.pi * reals.uniform(bits.words(2, n))
        return np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=-1).reshape(*shape, 2)

    def _integer(self, name: str, scale: ArrayLike, shape: Any, sampler: Any) -> NDArray[np.int64]:
        bits, shape, n = self._call(shape)
        scales = _scales(name, scale, shape)
        largest = scales.max(initial=0.0)
        if not n or largest == 0:
            return np.zeros(shape, dtype=np.int64)
        if largest > LARGEST_SCALE:
            raise ParameterError(name, scale, "at most 2**40")
        # Cells without noise draw too, so that a replica's draws never depend on another's scale.
        positive = scales > 0
        return np.where(positive, sampler(bits, n, np.where(positive, scales, 1.0)), 0).reshape(shape)

    def _real(
        self, family: str, name: str, scale: ArrayLike, shape: Any
    ) -> tuple[Bits, tuple[int, ...], int, NDArray[np.float64]]:
        if self.exact:
            raise ParameterError(
                "noise",
                family,
                "discrete_laplace or discrete_gaussian in exact mode: the low bits of real-valued noise give the data "
                "away (Mironov 2012); NoiseSource(..., exact=False) allows it all the same",
            )
        bits, shape, n = self._call(shape)
        return bits, shape, n, _scales(name, scale, shape)

    def _call(self, shape: Any) -> tuple[Bits, tuple[int, ...], int]:
        """Return the sub-stream of this call, the shape as a tuple, and the number of values in each row."""
        shape = tuple([int(n) for n in shape]) if np.ndim(shape) else (int(shape),)
        if self._n_replicas is not None and shape[:1] != (self._n_replicas,):
            raise ParameterError("shape", shape, f"{self._n_replicas} long on its first axis, the replicas")
        self._n_calls += 1
        n_values = math.prod(shape)
        return Bits(self._seeds).fork(self._n_calls), shape, n_values // max(len(self._seeds), 1)


def _scales(name: str, scale: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the scales as a flat array with one scale for all values, shape (1,), or one scale per value."""
    array = np.asarray(scale, dtype=np.float64)
    if not ((array >= 0) & (array < np.inf)).all():
        raise ParameterError(name, scale, "finite and not negative")
    if array.size == 1:
        return array.reshape(1)
    try:
        return np.broadcast_to(array, shape).reshape(-1)
    except ValueError:
        raise ParameterError(name, array.shape, f"one number or a shape that broadcasts to {shape}") from None
