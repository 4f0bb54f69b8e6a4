"""Encode the state of a plug-in to bytes as a versioned header and raw arrays, without pickle."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import StateVersionError

State = dict[str, NDArray[Any]]

_MAGIC = b"PSTK1"
_KINDS = "biufSU"
_HEADER = json.JSONEncoder(separators=(",", ":"))
_DTYPE = re.compile(rf"[<|][{_KINDS}][0-9]{{1,9}}")


def encode_state(name: str, version: int, state: Mapping[str, NDArray[Any]]) -> bytes:
    """Encode a flat dict of state arrays to bytes."""
    header, body = [], []
    for key in sorted(state):
        array = np.asarray(state[key])
        if array.dtype.kind not in _KINDS:
            raise TypeError(f"state {key!r} has dtype {array.dtype}; only plain numbers, booleans and text are state")
        if array.dtype.str[0] == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        header.append([key, array.dtype.str, list(array.shape)])
        body.append(array.tobytes())
    head = _HEADER.encode({"name": name, "version": version, "arrays": header}).encode()
    return b"".join([_MAGIC, len(head).to_bytes(4, "little"), head, *body])


def decode_state(data: bytes, name: str, version: int) -> State:
    """Decode bytes written by `encode_state`. Raise `StateVersionError` for another plug-in or version."""
    if data[: len(_MAGIC)] != _MAGIC:
        raise StateVersionError("these bytes are not an encoded penstock state")
    offset = len(_MAGIC) + 4
    length = int.from_bytes(data[len(_MAGIC) : offset], "little")
    state: State = {}
    try:
        header = json.loads(data[offset : offset + length])
        owner, written, offset = str(header["name"]), int(header["version"]), offset + length
        for key, dtype, shape in header["arrays"]:
            # NumPy would take anything that looks like Python for a description of fields.
            if not _DTYPE.fullmatch(dtype) or min(shape, default=0) < 0:
                raise ValueError(f"array {key!r} is described as {dtype!r} of shape {shape}")
            kind = np.dtype(dtype)
            array = np.frombuffer(data, kind, math.prod(shape), offset).reshape(shape)
            state[key] = array.astype(kind.newbyteorder("="))
            offset += array.nbytes
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise StateVersionError(f"the encoded state of {name!r} is damaged: {error}") from error
    if owner != name:
        raise StateVersionError(f"state of {owner!r} cannot be read as state of {name!r}")
    if offset != len(data):
        raise StateVersionError(f"state of {name!r} is {len(data)} bytes long where its header says {offset}")
    if written != version:
        raise StateVersionError(
            f"state of {name!r} has version {written}; this code reads version {version}: finish the run with the "
            "release of penstock that began it"
        )
    return state


def nested(prefix: str, state: State) -> State:
    """Embed a state in a larger one by prepending ``prefix.`` to every name."""
    return {f"{prefix}.{name}": value for name, value in state.items()}


def part(prefix: str, state: State) -> State:
    """Extract a state embedded by `nested`, with its original names."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}
