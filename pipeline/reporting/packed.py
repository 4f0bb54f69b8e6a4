"""Arrays inside JSON: compressed and base64, so that a page with a million counts stays small."""

from __future__ import annotations

import base64
import zlib
from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Bytes out of the middle of a long array that tell how it is best compressed.
SAMPLE = 1 << 16


def pack(values: ArrayLike, exact: bool = False, later: Executor | None = None) -> dict[str, Any]:
    """An array as a value that ``unpack`` of the page turns into a typed array: JSON but for bytes, perhaps to come.

    Parameters
    ----------
    values
        Numbers of any shape; NaN and infinities are kept.
    exact
        Keep 64-bit floating point (times); otherwise the smallest of 1, 2 and 4 byte integers that holds all values,
        or 32-bit floating point.
    later
        Where to compress, which needs no lock of Python, while other things are done; None: here and now.

    Examples
    --------
    >>> pack([1, 2, 300])["type"], pack([0.5, 2])["type"], pack([True, False])["type"]
    ('i2', 'f4', 'i1')
    """
    array = np.asarray(values)
    array = array.astype("<f8") if exact else _smallest(array)
    packed = later.submit(_packed, array) if later else _packed(array)
    return {"type": array.dtype.str[1:], "packed": packed}


def _packed(array: NDArray[Any]) -> bytes:
    return base64.b64encode(_compressed(array))


def _compressed(array: NDArray[Any]) -> bytes:
    """In zlib's format: what is long and has no repeats, as noisy counts, is not searched for any."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    searched, coded = zlib.Z_DEFAULT_STRATEGY, zlib.Z_RLE
    strategy = searched
    if len(data) > 4 * SAMPLE:
        some = data[len(data) // 2 :][:SAMPLE]
        strategy = min(searched, coded, key=lambda each: len(_deflated(some, each)))
    return _deflated(data, strategy)


def _deflated(data: NDArray[np.uint8], strategy: int) -> bytes:
    deflating = zlib.compressobj(1, strategy=strategy)  # a higher level saves 1 % of noise
    return deflating.compress(data.data) + deflating.flush()


def _smallest(array: NDArray[Any]) -> NDArray[Any]:
    integers = as_integers(array)
    if integers is not None:
        return integers
    with np.errstate(over="ignore"):
        return array.astype(np.float64, copy=False).astype("<f4")


def as_integers(array: NDArray[Any]) -> NDArray[Any] | None:
    """Numbers as the smallest of 1, 2 and 4 byte integers that holds all; None where one is not whole or too large.

    Examples
    --------
    >>> as_integers(np.array([1.0, -300.0])), as_integers(np.array([0.5, 2]))
    (array([   1, -300], dtype=int16), None)
    """
    least, largest = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
    if not (least > -(2.0**31) and largest < 2.0**31):  # also where one is not a number
        return None
    whole = array.astype(np.int32) if array.dtype.kind == "f" else array
    if whole is not array and not (whole == array).all():
        return None
    bits = max(-least, largest)
    return whole.astype("i1" if bits < 2**7 else "<i2" if bits < 2**15 else "<i4", copy=False)
