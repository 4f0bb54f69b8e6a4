"""Rejection in batches whose rows never influence each other."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.sampling.bits import Bits, Counts

Proposal = Callable[[Bits, NDArray[np.int64], NDArray[np.int64]], tuple[NDArray[Any], NDArray[np.bool_]]]


def until_accepted(
    bits: Bits, n_per_row: Counts, propose: Proposal, wanted: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """Propose values for all places that have none yet, round after round.

    Parameters
    ----------
    bits
        Source of uniform words; round number i uses its fork i.
    n_per_row
        Places in each row: one number for all rows, or shape (n_rows,).
    propose
        From (bits, pending places in each row, their flat positions) to (values, which are accepted).
    wanted
        Flat mask of the places to fill, the others stay 0; None: all.
    """
    n_rows = len(bits.seeds)
    rows = np.repeat(np.arange(n_rows), n_per_row)
    result = np.zeros(rows.size, dtype=np.int64)
    pending = np.arange(result.size) if wanted is None else np.flatnonzero(wanted)
    for attempt in count():
        if not pending.size:
            break
        counts = np.bincount(rows[pending], minlength=n_rows)
        values, accepted = propose(bits.fork(attempt), counts, pending)
        result[pending[accepted]] = values[accepted]
        pending = pending[~accepted]
    return result
