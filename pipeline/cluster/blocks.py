"""What travels on a cluster before it is counted: blocks of events as bytes, which every reader makes alike.

A reader of a cluster is a function ``read(root, plan) -> PCollection[bytes]`` that keeps to this contract:

* An element is one block, as `encode_block` writes it. It is never cut or joined afterwards.
* ``name`` says where the block is from and is the same when it is read again (``span-3/17``, ``topic/2/40960``): a
  block that is read twice has the same name and the same rows, so that its rows are counted once. Names are the only
  thing by which repeats are known; they must hold no user id and no coordinates, because they are logged.
* The element's timestamp is not after its earliest event of the run (`earliest`): a block of events that are late
  has a timestamp behind the watermark, which is allowed.
* The watermark passes an instant when no row from before it is expected any more. Rows that come all the same are
  late, and are counted as late where all their windows have been released.
* After the last block of an input that ends, the watermark goes to the end of time. An endless input never does that.
* Everything is in the global window.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass

import numpy as np
import polars as pl

from mechanisms.core.errors import StateVersionError
from pipeline.block import EventBlock, Reject
from pipeline.calendar import Calendar

VERSION = 1
_MAGIC = b"penstock block"


@dataclass(frozen=True)
class NamedBlock:
    """A block of events with the name under which it is counted once.

    Parameters
    ----------
    name
        Where it is from; the same whenever it is read again.
    block
        Its rows.
    """

    name: str
    block: EventBlock


def encode_block(name: str, block: EventBlock) -> bytes:
    """One block as bytes: a line with the name, the row count and the rejects, then the rows as Arrow IPC.

    Examples
    --------
    >>> block = EventBlock(pl.DataFrame({"time": [1], "user": [7], "place": ["a"]}), n_rows=1)
    >>> decode_block(encode_block("file/0", block)).name
    'file/0'
    """
    rejects = [reject.as_dict() for reject in block.rejects]
    head = {"version": VERSION, "name": name, "n_rows": block.n_rows, "rejects": rejects}
    rows = io.BytesIO()
    block.frame.write_ipc(rows, compression="uncompressed")
    return _MAGIC + json.dumps(head).encode() + b"\n" + rows.getvalue()


def decode_block(data: bytes) -> NamedBlock:
    """The inverse of `encode_block`; raises `StateVersionError` for bytes of another version or kind."""
    end = data.find(b"\n")
    if not data.startswith(_MAGIC) or end < 0:
        raise StateVersionError("these bytes are no block of events")
    head = json.loads(data[len(_MAGIC) : end])
    if head["version"] != VERSION:
        raise StateVersionError(f"a block of version {head['version']}; this penstock reads version {VERSION}")
    frame = pl.read_ipc(io.BytesIO(data[end + 1 :]))
    rejects = tuple(Reject(**reject) for reject in head["rejects"])
    return NamedBlock(head["name"], EventBlock(frame, head["n_rows"], rejects))


def earliest(block: EventBlock, calendar: Calendar, otherwise: int) -> int:
    """Time of the earliest event of the run in a block, in milliseconds; ``otherwise`` where there is none.

    Examples
    --------
    >>> calendar = Calendar(step=10, anchor=0, time_zone="UTC", from_ms=0, until_ms=100)
    >>> block = EventBlock(pl.DataFrame({"time": [-5, 42, 17, 100], "user": [1, 2, 3, 4], "place": list("aaaa")}), 4)
    >>> earliest(block, calendar, otherwise=0)
    17
    """
    times = block.frame["time"].to_numpy()
    inside = times[calendar.index(times) > 0]
    return int(np.min(inside)) if len(inside) else otherwise
