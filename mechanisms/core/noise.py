"""Keyed noise for counts and traces, so that a retry draws the same noise again.

The same step on the same input draws the same noise, any other step independent noise. Fresh noise on a retry would let
retries be averaged until the noise is gone; noise keyed by name alone would be reused for different data, whose
difference is then exact. So every draw is a function of a secret key *and* of everything that may influence the
release: configuration, stream, window, step, input and state. In a deployment the key also has the nonce of the run:
a second run is a second release, and equal input in two runs must not show as equal noise.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.samplers import integers
from penstock.mechanisms.core.samplers.bits import Bits, Words, leading_bits, uniform
from penstock.mechanisms.core.samplers.siphash import keyed_hash

#: Integer noise of a larger scale is refused: sums with counts must stay far inside 64 bits.
LARGEST_SCALE = 2.0**40
#: Smallest scale of noise, none apart; the square of its ratio to a count is a float.
SMALLEST_SCALE = 2.0**-100


@dataclass(frozen=True)
class NoiseSource:
    """The source of all noise for one configuration and data stream.

    >>> import numpy as np
    >>> source = NoiseSource(NoiseKey.from_seed(7), configuration=b"")
    >>> counts = np.array([3, 0, 5])
    >>> first = source.at(0, 3_600_000, "step", counts, {}).discrete_laplace(2.0, 3)
    >>> again = source.at(0, 3_600_000, "step", counts, {}).discrete_laplace(2.0, 3)
    >>> bool((first == again).all())
    True
    """

    key: NoiseKey  # the secret, whose epoch is chosen by each window's start
    configuration: bytes = field(kw_only=True)  # digest of everything that affects values
    stream: str = field(default="", kw_only=True)
    # No real-valued noise. None: in deployment yes, in simulation no. False with a deployment key allows real-valued
    # noise, which is open to floating-point attacks (Mironov, CCS 2012).
    exact: bool | None = field(default=None, kw_only=True)

    def at(
        self,
        window_start: int,
        window_end: int,
        step: str,
        counts: NDArray[Any],
        state: Mapping[str, NDArray[Any]],
        n_replicas: int | None = None,
    ) -> Noise:
        """Return the noise for one step (such as ``"step"`` or ``"finish"``) between two times in milliseconds.

        ``counts`` and ``state`` are its input and the state before it, all that the release depends on; with
        ``n_replicas`` their leading axis is the replica, whose noise depends on its entries alone; replica 0 draws what
        a run without replicas does. About 10 µs, and 1 µs per kilobyte where something is drawn; neither may be changed
        before that.
        """
        span = b"".join(int(time).to_bytes(8, "little", signed=True) for time in (window_start, window_end))
        context = (b"penstock noise 1", self.configuration, self.stream.encode(), span, step.encode())
        secret = self.key.subkey("noise", int(window_start))
        for name, value in {"counts": counts, **state}.items():
            array = np.asarray(value)
            if array.dtype.kind == "O":
                raise ParameterError(name, "an object array", "an array of numbers, text or times")
            if n_replicas is not None and (array.ndim == 0 or array.shape[0] != n_replicas):
                expected = f"{n_replicas} long on its first axis, one entry for each replica"
                raise ParameterError(name, array.shape, expected)
        seeds = partial(draw_seeds, secret, context, counts, dict(state), n_replicas)
        is_exact = (not self.key.simulation) if self.exact is None else self.exact
        return Noise(seeds, n_replicas, is_exact)

    def at_points(
        self,
        index: int,
        users: NDArray[np.int64],
        times: NDArray[np.int64],
        points: NDArray[np.float64],
        state: Mapping[str, NDArray[Any]],
    ) -> Noise:
        """Return the noise for many users' traces at one timestamp, with one row per user.

        A draw is bound to the user, the time (which chooses the epoch of the key), the point and the user's state.
        Unlike the noise of counts it is real-valued, in a deployment too; published points are rounded to a public
        raster, so that its low bits do not leave (see `mechanisms.core.geometry`). ``users``: identities, shape
        (n_users, n_words).
        """
        arrays = {"users": users, "times": times, "points": points, **{f"state.{k}": state[k] for k in sorted(state)}}
        n_users = len(users)
        for name, array in arrays.items():
            if array.ndim == 0 or len(array) != n_users:
                raise ParameterError(name, array.shape, f"{n_users} long on its first axis, one entry for each user")
        context = (b"penstock trace noise 1", self.configuration, int(index).to_bytes(8, "little"))
        prefix = _prefix(context, arrays, 1)
        epochs = np.searchsorted(np.asarray(self.key.epochs), times, "right")
        _, first, epoch = np.unique(epochs, return_index=True, return_inverse=True)
        subkeys = [self.key.subkey("noise", int(times[row])) for row in first]
        rows = _rows(list(arrays.values()), n_users)
        seeds = [hmac.digest(subkeys[number], prefix + row, "sha256") for number, row in zip(epoch, rows)]
        return Noise(tuple(seeds), n_users, exact=False)

    def membership_hashes(self, *columns: NDArray[Any]) -> NDArray[np.uint64]:
        """Return uniform 64-bit hashes for sampling memberships, independent between configurations.

        ``columns``, integers of shape (n,), say what is kept or dropped as one: the words of the user's identity, the
        *start* of the window in milliseconds (its number would repeat in every run), and the cell where it matters.
        """
        context = (b"penstock sample 1", self.configuration, self.stream.encode())
        message = b"".join(len(part).to_bytes(8, "little") + part for part in context)
        return keyed_hash(hmac.digest(self.key.subkey("sampling"), message, "sha256"), *columns)


def draw_seeds(
    key: bytes,
    context: Sequence[bytes],
    counts: NDArray[Any],
    state: Mapping[str, NDArray[Any]],
    n_replicas: int | None,
) -> tuple[bytes, ...]:
    """Return one HMAC-SHA256 digest of context, input and state per replica. A single run counts as replica 0."""
    # One canonical message per replica: with replicas the leading axis of `counts` and of every state array.
    arrays = [_canonical(counts), *(_canonical(state[name]) for name in sorted(state))]
    names = ["counts", *sorted(state)]
    n_axes = 0 if n_replicas is None else 1
    prefix = _prefix(context, dict(zip(names, arrays)), n_axes)
    if n_replicas is None:
        return (hmac.digest(key, b"".join([prefix, bytes(8), *(array.tobytes() for array in arrays)]), "sha256"),)
    rows = _rows([array for array in arrays if array.size], n_replicas)
    return tuple(
        hmac.digest(key, prefix + number.to_bytes(8, "little") + row, "sha256") for number, row in enumerate(rows)
    )


def _prefix(context: Sequence[bytes], arrays: Mapping[str, NDArray[Any]], n_axes: int) -> bytes:
    """Return the prefix of every row: context, shapes and types, which distinguish arrays with the same bytes."""
    described = [f"{name}:{array.dtype.str}:{array.shape[n_axes:]}".encode() for name, array in arrays.items()]
    return b"".join([len(part).to_bytes(8, "little") + part for part in (*context, *described)])


def _rows(arrays: Sequence[NDArray[Any]], n_rows: int) -> list[bytes]:
    """Return the bytes of each row, concatenated array by array, for arrays with ``n_rows`` on the leading axis."""
    if not arrays:
        return [b""] * n_rows
    columns = [np.ascontiguousarray(array).reshape(n_rows, -1).view(np.uint8) for array in arrays]
    data = np.concatenate(columns, axis=1)
    width, raw = data.shape[1], data.tobytes()
    return [raw[row * width : (row + 1) * width] for row in range(n_rows)]


def _canonical(value: Any) -> NDArray[Any]:
    """Convert an array to canonical form for hashing. Integers get a common width; other types keep their bytes."""
    array = np.asarray(value)
    if array.dtype in (np.dtype("<i8"), np.dtype("<f8")):  # as they are
        return array
    if array.dtype.kind in "ib" or (array.dtype.kind == "u" and array.dtype.itemsize < 8):
        return array.astype("<i8", copy=False)
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


class Noise:
    """The noise for one step. Each call draws from a separate sub-stream, numbered in call order.

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
        """Draw uniform multiples of 2**-53 from [0, 1)."""
        bits, shape, n = self._call(shape)
        return uniform(bits.words(0, n)).reshape(shape)

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
        return (scales * signs * _exponential(words)).reshape(shape)

    def gaussian(self, sigma: ArrayLike, shape: Any) -> NDArray[np.float64]:
        """Draw normal variables with standard deviation `sigma`. Not allowed in exact mode."""
        bits, shape, n, sigmas = self._real("gaussian", "sigma", sigma, shape)
        from scipy.special import ndtri  # a tenth of a second that integer noise does without

        # 52 bits keep the midpoints exact, so that none rounds to 1 and becomes infinite.
        drawn: NDArray[np.float64] = ndtri((leading_bits(bits.words(0, n), 52) + 0.5) * 2.0**-52)
        return (sigmas * drawn).reshape(shape)

    def planar_laplace(self, epsilon: ArrayLike, shape: Any) -> NDArray[np.float64]:
        """Draw offsets (east, north) in metres with density ∝ exp(-epsilon · length), shape (*shape, 2).

        The radius is Gamma(2, 1/epsilon), the sum of two exponentials, and the angle uniform; `epsilon` is per metre,
        and an infinite one gives zeros. Refused in exact mode.

        Source: Andrés, Bordenabe, Chatzikokolakis, Palamidessi, "Geo-indistinguishability", CCS 2013.
        """
        with np.errstate(divide="ignore"):
            scale = 1.0 / np.asarray(epsilon, dtype=np.float64)
        bits, shape, n, scales = self._real("planar_laplace", "epsilon", scale, shape)
        radii = scales * (_exponential(bits.words(0, n)) + _exponential(bits.words(1, n)))
        angles = 2 * np.pi * uniform(bits.words(2, n))
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
        """Return this call's sub-stream, the shape as a tuple, and the number of values per row."""
        shape = tuple([int(n) for n in shape]) if np.ndim(shape) else (int(shape),)
        if self._n_replicas is not None and shape[:1] != (self._n_replicas,):
            raise ParameterError("shape", shape, f"{self._n_replicas} long on its first axis, the replicas")
        self._n_calls += 1
        n_values = math.prod(shape)
        return Bits(self._seeds).fork(self._n_calls), shape, n_values // max(len(self._seeds), 1)


def _exponential(words: Words) -> NDArray[np.float64]:
    """Draw standard exponential variables by inverting the midpoints of 2**53 equal parts of (0, 1). All are finite."""
    return np.asarray(-np.log((leading_bits(words, 53) + 0.5) * 2.0**-53))


def _scales(name: str, scale: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Flatten scales to shape (1,) if all values share one scale, otherwise to one scale per value."""
    array = np.asarray(scale, dtype=np.float64)
    if not ((array >= 0) & (array < np.inf)).all():
        raise ParameterError(name, scale, "finite and not negative")
    if array.size == 1:
        return array.reshape(1)
    try:
        return np.broadcast_to(array, shape).reshape(-1)
    except ValueError:
        raise ParameterError(name, array.shape, f"one number or a shape that broadcasts to {shape}") from None
