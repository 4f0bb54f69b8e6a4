"""State of a plug-in as bytes: a versioned header and raw arrays, never pickle."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import StateVersionError

State = dict[str, NDArray[Any]]
Migration = Callable[[int, State], State]

_MAGIC = b"PSTK1"
_KINDS = "biufSU"
_HEADER = json.JSONEncoder(separators=(",", ":"))
_DTYPE = re.compile(rf"[<|][{_KINDS}][0-9]{{1,9}}")


def encode_state(name: str, version: int, state: Mapping[str, NDArray[Any]]) -> bytes:
    """Encode a flat state of arrays.

    >>> decode_state(encode_state("raw", 1, {"last": np.arange(3)}), "raw", 1)
    {'last': array([0, 1, 2])}
    """
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


def decode_state(data: bytes, name: str, version: int, migrate: Migration | None = None) -> State:
    """Decode what `encode_state` wrote; an older version goes through ``migrate(version, state)``.

    Raises `StateVersionError` where the bytes are not a state, belong to another plug-in, are newer than this
    code, or are older and cannot be migrated.
    """
    if data[: len(_MAGIC)] != _MAGIC:
        raise StateVersionError("these bytes are not an encoded penstock state")
    offset = len(_MAGIC) + 4
    length = int.from_bytes(data[len(_MAGIC) : offset], "little")
    try:
        header = json.loads(data[offset : offset + length])
        owner, written, described = str(header["name"]), int(header["version"]), header["arrays"]
        state, offset = _arrays(data, described, offset + length)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise StateVersionError(f"the encoded state of {name!r} is damaged: {error}") from error
    if owner != name:
        raise StateVersionError(f"state of {owner!r} cannot be read as state of {name!r}")
    if offset != len(data):
        raise StateVersionError(f"state of {name!r} is {len(data)} bytes long where its header says {offset}")
    if written == version:
        return state
    if written < version and migrate is not None:
        return migrate(written, state)
    raise StateVersionError(f"state of {name!r} has version {written}; this code reads version {version}")


@dataclass(frozen=True)
class StateFormat:
    """How one thing is kept as bytes: its present version, and how to come there from each older one.

    Examples
    --------
    >>> old = StateFormat("sums")
    >>> new = StateFormat("sums", 2, {1: lambda state: {"total": state["sum"]}})
    >>> new.decode(old.encode({"sum": np.arange(2)}))
    {'total': array([0, 1])}
    >>> old.decode(new.encode({"total": np.arange(2)}))
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.StateVersionError: state of 'sums' has version 2; this code reads version 1
    """

    name: str  # what the state belongs to
    version: int = 1  # of the present layout
    # by version: a function that turns state of that version into state of the next one. A version without a step
    # can no longer be read.
    steps: Mapping[int, Callable[[State], State]] = field(default_factory=dict)

    def encode(self, state: Mapping[str, NDArray[Any]]) -> bytes:
        """State as bytes of the present version."""
        return encode_state(self.name, self.version, state)

    def decode(self, data: bytes) -> State:
        """State of the present version from bytes of this one or an older one; `StateVersionError` for all others."""
        return decode_state(data, self.name, self.version, self._migrate)

    def _migrate(self, written: int, state: State) -> State:
        for version in range(written, self.version):
            if version not in self.steps:
                raise StateVersionError(
                    f"state of {self.name!r} has version {written}, which this code can no longer read; "
                    f"go on with a release of penstock that reads it, up to version {self.version}"
                )
            state = self.steps[version](state)
        return state


def nested(prefix: str, state: State) -> State:
    """A state as part of a larger one: every name begins with ``prefix.``."""
    return {f"{prefix}.{name}": value for name, value in state.items()}


def part(prefix: str, state: State) -> State:
    """The part that `nested` put into a larger state, by its own names."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}


def _arrays(data: bytes, described: list[tuple[str, str, list[int]]], offset: int) -> tuple[State, int]:
    """Arrays of a header, and the offset behind the last one."""
    state: State = {}
    for key, dtype, shape in described:
        # NumPy would take anything that looks like Python for a description of fields.
        if not _DTYPE.fullmatch(dtype):
            raise ValueError(f"array {key!r} is described as {dtype!r}")
        kind = np.dtype(dtype)
        if min(shape, default=0) < 0:
            raise ValueError(f"array {key!r} has dtype {dtype} and shape {shape}")
        array = np.frombuffer(data, kind, math.prod(shape), offset).reshape(shape)
        state[key] = array.astype(kind.newbyteorder("="))
        offset += array.nbytes
    return state, offset
