"""What becomes of a block right after it was read, before it is kept or sent anywhere."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.block import EventBlock, Reject
from pipeline.identity import with_digests
from pipeline.plan import Plan
from pipeline.sealing import seal

#: Stands in place of coordinates and places once a deployment has taken events in; −1 outside the area.
CELL = "cell"


def ingested(block: EventBlock, plan: Plan) -> EventBlock:
    """The block as it may travel on: in a deployment without user ids, positions, and rows that were rejected.

    Parameters
    ----------
    block
        As the source gave it.
    plan
        The run; its key makes the digests that stand for users, its ``output.rejects`` says what is kept of rejects.

    Notes
    -----
    Doing it twice changes nothing. A hash for each distinct user of the block.
    """
    if plan.digest_key is None and plan.reject_rule == "raw":
        return block
    rejects = tuple(kept_reject(reject, plan) for reject in block.rejects)
    frame = with_digests(block.frame, plan.digest_key)
    if plan.digest_key is not None and not plan.on_points:
        frame = frame.select("time", "user", pl.Series(CELL, cells_of(frame, plan), dtype=pl.Int64))
    return EventBlock(frame, block.n_rows, rejects)


def cells_of(frame: pl.DataFrame, plan: Plan) -> NDArray[np.int64]:
    """Cell of every event, −1 outside the area."""
    if CELL in frame.columns:
        return frame[CELL].to_numpy()
    return np.asarray(plan.space.place(frame), np.int64)


def kept_reject(reject: Reject, plan: Plan) -> Reject:
    """A reject as it is kept: with its row, with the row sealed, or only where it was and what was wrong.

    A file that is named after a person is named by a digest in a deployment.
    """
    if plan.digest_key is not None and plan.config.source.recorded.names_users:
        reject = replace(reject, file=_hidden(reject.file, plan.digest_key))
    if plan.reject_rule == "raw" or reject.raw is None:
        return reject
    sealed = seal(reject.raw, plan.reject_key) if plan.reject_rule == "sealed" else None
    return replace(reject, raw=None, sealed=sealed)


def _hidden(file: str, key: bytes) -> str:
    """A file's name as a digest; one that is hidden already stays."""
    if file.startswith(_HIDDEN):
        return file
    return _HIDDEN + hashlib.blake2b(file.encode(), digest_size=8, key=key).hexdigest()


_HIDDEN = "file:"
