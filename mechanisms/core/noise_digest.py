"""What a draw is bound to: one canonical message per replica over everything that may influence a release."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.errors import ParameterError

#: Types that are as they should be.
_CANONICAL = (np.dtype("<i8"), np.dtype("<f8"))
_bytes = np.ndarray.tobytes


def draw_seeds(
    key: bytes,
    context: Sequence[bytes],
    counts: NDArray[Any],
    state: Mapping[str, NDArray[Any]],
    n_replicas: int | None,
) -> tuple[bytes, ...]:
    """HMAC-SHA256 of the context, the input and the state: one 32-byte seed per replica.

    Parameters
    ----------
    key
        The noise subkey of the window's epoch.
    context
        Byte strings that say which draw this is.
    counts, state
        Input and state; with replicas each array's leading axis is the replica.
    n_replicas
        None: one seed, the one that replica 0 with the same input has.
    """
    arrays = [_canonical(counts), *(_canonical(state[name]) for name in sorted(state))]
    names = ["counts", *sorted(state)]
    n_axes = 0 if n_replicas is None else 1
    # Shapes and types come first, so that equal bytes of different arrays never give equal messages.
    described = [f"{name}:{array.dtype.str}:{array.shape[n_axes:]}".encode() for name, array in zip(names, arrays)]
    prefix = b"".join([len(part).to_bytes(8, "little") + part for part in (*context, *described)])
    if n_replicas is None:
        return (hmac.digest(key, b"".join([prefix, bytes(8), *map(_bytes, arrays)]), "sha256"),)
    rows = [np.ascontiguousarray(array).reshape(n_replicas, -1).view(np.uint8) for array in arrays if array.size]
    data = np.concatenate(rows, axis=1) if rows else np.empty((n_replicas, 0), dtype=np.uint8)
    width, raw = data.shape[1], data.tobytes()
    return tuple(
        hmac.digest(key, prefix + row.to_bytes(8, "little") + raw[row * width : (row + 1) * width], "sha256")
        for row in range(n_replicas)
    )


def check_inputs(counts: NDArray[Any], state: Mapping[str, NDArray[Any]], n_replicas: int | None) -> None:
    """Raise `ParameterError` if an array holds objects, or its leading axis is not ``n_replicas`` long."""
    for name, value in {"counts": counts, **state}.items():
        array = np.asarray(value)
        if array.dtype.kind == "O":
            raise ParameterError(name, "an object array", "an array of numbers, text or times")
        if n_replicas is not None and (array.ndim == 0 or array.shape[0] != n_replicas):
            raise ParameterError(name, array.shape, f"{n_replicas} long on its first axis, one entry for each replica")


def _canonical(value: Any) -> NDArray[Any]:
    """Equal integers give equal bytes whatever their width; text and datetimes go by their own bytes."""
    array = np.asarray(value)
    if array.dtype in _CANONICAL:
        return array
    if array.dtype.kind in "ib" or (array.dtype.kind == "u" and array.dtype.itemsize < 8):
        return array.astype("<i8", copy=False)
    return array.astype(array.dtype.newbyteorder("<"), copy=False)
