"""State of a plug-in as bytes: a versioned header and raw arrays, never pickle."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.errors import StateVersionError

State = dict[str, NDArray[Any]]
Migration = Callable[[int, State], State]

_MAGIC = b"PSTK1"
_KINDS = "biufSU"


def encode_state(name: str, version: int, state: Mapping[str, NDArray[Any]]) -> bytes:
    """Encode a flat state of arrays.

    Parameters
    ----------
    name, version
        Plug-in the state belongs to and the version of its layout.
    state
        Arrays of booleans, numbers or fixed-width text, by name. Objects are refused with `TypeError`.

    Examples
    --------
    >>> decode_state(encode_state("raw", 1, {"last": np.arange(3)}), "raw", 1)
    {'last': array([0, 1, 2])}
    """
    header, body = [], []
    for key in sorted(state):
        array = np.asarray(state[key])
        if array.dtype.kind not in _KINDS:
            raise TypeError(f"state {key!r} has dtype {array.dtype}; only plain numbers, booleans and text are state")
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        header.append([key, array.dtype.str, list(array.shape)])
        body.append(array.tobytes())
    head = json.dumps({"name": name, "version": version, "arrays": header}, separators=(",", ":")).encode()
    return b"".join([_MAGIC, len(head).to_bytes(4, "little"), head, *body])


def decode_state(data: bytes, name: str, version: int, migrate: Migration | None = None) -> State:
    """Decode what `encode_state` wrote; an older version goes through ``migrate(version, state)``.

    Raises `StateVersionError` where the bytes are not a state, belong to another plug-in, are newer than this
    code, or are older and cannot be migrated.
    """
    if data[: len(_MAGIC)] != _MAGIC:
        raise StateVersionError("these bytes are not an encoded penstock state")
    offset = len(_MAGIC) + 4
    length = int.from_bytes(data[len(_MAGIC) : offset], "little")
    header = json.loads(data[offset : offset + length])
    offset += length
    if header["name"] != name:
        raise StateVersionError(f"state of {header['name']!r} cannot be read as state of {name!r}")
    state: State = {}
    for key, dtype, shape in header["arrays"]:
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(data, np.dtype(dtype), count, offset).reshape(shape)
        state[key] = array.astype(array.dtype.newbyteorder("="))
        offset += array.nbytes
    if offset != len(data):
        raise StateVersionError(f"state of {name!r} is {len(data)} bytes long where its header says {offset}")
    if header["version"] == version:
        return state
    if header["version"] < version and migrate is not None:
        return migrate(header["version"], state)
    raise StateVersionError(f"state of {name!r} has version {header['version']}; this code reads version {version}")
