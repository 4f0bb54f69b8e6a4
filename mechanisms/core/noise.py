"""Keyed noise for counts and traces that is safe to retry.

The same step on the same input draws the same noise, any other step independent noise. Fresh noise on a retry would let
retries be averaged until the noise is gone; noise keyed by name alone would be reused for different data, whose
difference is then exact. So every draw is a function of a secret key *and* of everything that may influence the
release: configuration, stream, window, step, input and state. In a deployment the key also has the nonce of the run:
a second run is a second release, and equal input in two runs must not show as equal noise.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.draws import Noise
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.samplers.siphash import keyed_hash

#: Types that are hashed as they are.
_CANONICAL = (np.dtype("<i8"), np.dtype("<f8"))
_bytes = np.ndarray.tobytes


@dataclass(frozen=True)
class NoiseSource:
    """The source of all noise in one configuration and stream.

    Parameters
    ----------
    key
        The secret; its epoch is chosen by each window's start.
    configuration
        Digest of everything in the resolved configuration that affects values.
    stream
        Name of the stream.
    exact
        No real-valued noise. None: in deployment yes, in simulation no. False with a deployment key allows real-valued
        noise, which is open to floating-point attacks (Mironov, CCS 2012).

    Examples
    --------
    >>> import numpy as np
    >>> source = NoiseSource(NoiseKey.from_seed(7), configuration=b"")
    >>> counts = np.array([3, 0, 5])
    >>> first = source.at(0, 3_600_000, "step", counts, {}).discrete_laplace(2.0, 3)
    >>> again = source.at(0, 3_600_000, "step", counts, {}).discrete_laplace(2.0, 3)
    >>> bool((first == again).all())
    True
    """

    key: NoiseKey
    configuration: bytes = field(kw_only=True)
    stream: str = field(default="", kw_only=True)
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
        """Return the noise of one step.

        Parameters
        ----------
        window_start, window_end
            Milliseconds since 1970 UTC.
        step
            What is drawn for, for instance ``"step"`` or ``"finish"``.
        counts, state
            The input of the step and the state before it, which includes everything else the release depends on.
        n_replicas
            None, or the length of the leading axis of `counts` and of every state array. Replica r's noise depends on
            r, ``counts[r]`` and the states' entries r only; replica 0 draws what a run without replicas does.

        Notes
        -----
        Costs about 10 µs, and when something is drawn 1 µs per kilobyte of input and state and 2 µs per replica;
        neither may be changed before that.
        """
        span = b"".join(int(time).to_bytes(8, "little", signed=True) for time in (window_start, window_end))
        context = (b"penstock noise 1", self.configuration, self.stream.encode(), span, step.encode())
        secret = self.key.subkey("noise", int(window_start))
        check_inputs(counts, state, n_replicas)
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
        """Return the noise of one timestamp of many users' traces, with one row per user.

        A draw is bound to the user, the time, the point and the user's state: a retried step draws the same noise, any
        other step or user independent noise. Unlike the noise of counts it is real-valued, in a deployment too;
        published points are rounded to a public raster, so that its low bits do not leave (see
        `mechanisms.core.geometry`).

        Parameters
        ----------
        index
            Position in the traces.
        users
            Identity of each user, shape (n_users, n_words).
        times, points
            Milliseconds since 1970 UTC, shape (n_users,), which choose the epoch of the key, and degrees, shape
            (n_users, 2).
        state
            State of the mechanism before the step; the leading axis of every array is the user.

        Raises
        ------
        ParameterError
            If an array does not have one entry for each user.

        Examples
        --------
        >>> source = NoiseSource(NoiseKey.from_seed(7), configuration=b"")
        >>> users, times, points = np.array([[4], [5]]), np.array([0, 0]), np.zeros((2, 2))
        >>> both = source.at_points(1, users, times, points, {}).gaussian(1.0, (2,))
        >>> alone = source.at_points(1, users[1:], times[1:], points[1:], {}).gaussian(1.0, (1,))
        >>> bool(both[1] == alone[0]), bool(both[0] == both[1])
        (True, False)

        Notes
        -----
        About 2 µs a user, and 2 µs more for every draw.
        """
        arrays = {"users": users, "times": times, "points": points, **{f"state.{k}": state[k] for k in sorted(state)}}
        n_users = len(users)
        for name, array in arrays.items():
            if array.ndim == 0 or len(array) != n_users:
                raise ParameterError(name, array.shape, f"{n_users} long on its first axis, one entry for each user")
        context = (b"penstock trace noise 1", self.configuration, int(index).to_bytes(8, "little"))
        prefix = _prefix(context, arrays, 1)
        secrets = self._secrets(times)
        rows = _rows(list(arrays.values()), n_users)
        seeds = [hmac.digest(secret, prefix + row, "sha256") for secret, row in zip(secrets, rows)]
        return Noise(tuple(seeds), n_users, exact=False)

    def _secrets(self, times: NDArray[np.int64]) -> list[bytes]:
        """Return the noise subkey of each point."""
        epochs = np.searchsorted(np.asarray(self.key.epochs), times, "right")
        _, first, inverse = np.unique(epochs, return_index=True, return_inverse=True)
        subkeys = [self.key.subkey("noise", int(times[row])) for row in first]
        return [subkeys[i] for i in inverse]

    def membership_hashes(self, *columns: NDArray[Any]) -> NDArray[np.uint64]:
        """Return uniform 64-bit hashes for sampling memberships, independent between configurations.

        Parameters
        ----------
        columns
            What is kept or dropped as one, integers of shape (n,): the words of the user's identity, the *start* of
            the window in milliseconds (its number would repeat in every run), and the cell where it matters.

        Examples
        --------
        >>> source = NoiseSource(NoiseKey.from_seed(7), configuration=b"")
        >>> users, starts = np.arange(3), np.array([0, 0, 3_600_000])
        >>> source.membership_hashes(users, starts).shape
        (3,)
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
    """Return the HMAC-SHA256 of context, input and state: one 32-byte seed per replica (for None, that of replica
    0).
    """
    # One canonical message per replica: with replicas the leading axis of `counts` and of every state array.
    arrays = [_canonical(counts), *(_canonical(state[name]) for name in sorted(state))]
    names = ["counts", *sorted(state)]
    n_axes = 0 if n_replicas is None else 1
    prefix = _prefix(context, dict(zip(names, arrays)), n_axes)
    if n_replicas is None:
        return (hmac.digest(key, b"".join([prefix, bytes(8), *map(_bytes, arrays)]), "sha256"),)
    rows = _rows([array for array in arrays if array.size], n_replicas)
    return tuple(
        hmac.digest(key, prefix + number.to_bytes(8, "little") + row, "sha256") for number, row in enumerate(rows)
    )


def _prefix(context: Sequence[bytes], arrays: Mapping[str, NDArray[Any]], n_axes: int) -> bytes:
    """Return the common start of each row's message: context, shapes and types. It tells apart arrays with equal
    bytes.
    """
    described = [f"{name}:{array.dtype.str}:{array.shape[n_axes:]}".encode() for name, array in arrays.items()]
    return b"".join([len(part).to_bytes(8, "little") + part for part in (*context, *described)])


def _rows(arrays: Sequence[NDArray[Any]], n_rows: int) -> list[bytes]:
    """Return the bytes of each row of arrays with ``n_rows`` on the leading axis, concatenated array by array."""
    if not arrays:
        return [b""] * n_rows
    columns = [np.ascontiguousarray(array).reshape(n_rows, -1).view(np.uint8) for array in arrays]
    data = np.concatenate(columns, axis=1)
    width, raw = data.shape[1], data.tobytes()
    return [raw[row * width : (row + 1) * width] for row in range(n_rows)]


def check_inputs(counts: NDArray[Any], state: Mapping[str, NDArray[Any]], n_replicas: int | None) -> None:
    """Raise `ParameterError` if an array holds objects, or if the length of its leading axis is not ``n_replicas``."""
    for name, value in {"counts": counts, **state}.items():
        array = np.asarray(value)
        if array.dtype.kind == "O":
            raise ParameterError(name, "an object array", "an array of numbers, text or times")
        if n_replicas is not None and (array.ndim == 0 or array.shape[0] != n_replicas):
            raise ParameterError(name, array.shape, f"{n_replicas} long on its first axis, one entry for each replica")


def _canonical(value: Any) -> NDArray[Any]:
    """Return a canonical array for hashing. Integers of any width become equal; text and datetimes keep their bytes."""
    array = np.asarray(value)
    if array.dtype in _CANONICAL:
        return array
    if array.dtype.kind in "ib" or (array.dtype.kind == "u" and array.dtype.itemsize < 8):
        return array.astype("<i8", copy=False)
    return array.astype(array.dtype.newbyteorder("<"), copy=False)
