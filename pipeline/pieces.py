"""Memberships of one group of windows as they are collected: whatever form a block's are in, they can be joined."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.coded import Coded, join
from pipeline.membership import Memberships, merge
from pipeline.packed import decode_keys, distinct_keys, encode_keys, general
from pipeline.plan import Plan

Integers = NDArray[np.int64]

#: Distinct memberships of one group of windows: packed keys (see `pipeline.packed` and `pipeline.coded`), or the
#: general form.
Distinct = Integers | Coded | Memberships


def encoded(piece: Distinct, plan: Plan, group: int) -> bytes:
    """Memberships as bytes, for the shuffle and for state."""
    return encode_keys(piece) if isinstance(piece, np.ndarray) else in_general(piece, plan, group).encode()


def decoded(data: bytes) -> Distinct:
    """Inverse of `encoded`."""
    keys = decode_keys(data)
    return Memberships.decode(data) if keys is None else keys


def union(pieces: list[bytes], plan: Plan, group: int) -> bytes:
    """Encoded memberships of one group in one piece, each once."""
    if len(pieces) == 1:
        return pieces[0]
    whole = joined([decoded(piece) for piece in pieces], plan, group)
    return encoded(distinct_keys(whole) if isinstance(whole, np.ndarray) else whole, plan, group)


def joined(pieces: Sequence[Distinct], plan: Plan, group: int) -> Distinct:
    """All pieces in one: keys (not yet distinct) where all of them are, or else merged."""
    packed = [piece for piece in pieces if isinstance(piece, np.ndarray)]
    if len(packed) == len(pieces):
        return np.concatenate(packed)
    coded = [piece for piece in pieces if isinstance(piece, Coded)]
    whole = join(coded, plan.layout) if len(coded) == len(pieces) else None
    if whole is not None:
        return whole
    return merge([in_general(piece, plan, group).widened() for piece in pieces], plan.config.bounding.keep)


def in_general(piece: Distinct, plan: Plan, group: int) -> Memberships:
    """Memberships of a group of windows in the general form."""
    first = group * plan.group + 1
    if isinstance(piece, Memberships):
        return piece
    return piece.in_general(plan.layout, first) if isinstance(piece, Coded) else general(piece, plan.layout, first)
