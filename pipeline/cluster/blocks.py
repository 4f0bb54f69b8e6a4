"""What travels on a cluster before it is counted: blocks of events as bytes, which every reader makes alike.

A reader of a cluster is a function ``read(root, plan) -> PCollection[bytes]`` that keeps to this contract:

* An element is one block, as `encode_block` writes it. It is never cut or joined afterwards.
* ``name`` says where the block is from (``span-3/17``, ``topic/2/40960``; letters, digits, ``-._/``). A block that is
  read again after a failure has the same name and the same rows: its rejects are then written once. That its rows are
  counted once is up to the engine, whose checkpoints hold position and counts together. Names hold no user id and no
  coordinates.
* The element's timestamp is not after its earliest event of the run (`earliest`): a block of events that are late
  has a timestamp behind the watermark, which is allowed.
* The watermark passes an instant when no row from before it is expected any more. Rows that come all the same are
  late, and are counted as late where all their windows have been released.
* Where the order of the events alone decides which of them are late, a block says for every row which window was the
  last final one when the row arrived (``closed``). This never depends on timing, so a run that was disturbed accepts
  the same rows as one that was not.
* After the last block of an input that ends, the watermark goes to `end_of_input` and stays there; the reader itself
  never ends. The run is over then, and the job is cancelled. An endless input never gets there.
* Everything is in the global window.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mechanisms.core.plugin import StateVersionError
from pipeline.sources.base import EventBlock, Reject
from pipeline.windows.calendar import Calendar

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


VERSION = 1
_MAGIC = b"penstock block"
_CLOSED = "closed"
_MARGIN = 4000


@dataclass(frozen=True)
class NamedBlock:
    """A block of events with the name under which it is counted once.

    Parameters
    ----------
    name
        Where it is from; the same whenever it is read again.
    block
        Its rows.
    closed
        Shape (n_rows,): the last window that was final when each row arrived; None: the watermark decides.
    """

    name: str
    block: EventBlock
    closed: NDArray[np.int64] | None = None


def encode_block(name: str, block: EventBlock, closed: NDArray[np.int64] | None = None) -> bytes:
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
    frame = block.frame if closed is None else block.frame.with_columns(pl.Series(_CLOSED, closed))
    frame.write_ipc(rows, compression="uncompressed")
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
    closed = None
    if _CLOSED in frame.columns:
        closed, frame = frame[_CLOSED].to_numpy(), frame.drop(_CLOSED)
    return NamedBlock(head["name"], EventBlock(frame, head["n_rows"], rejects), closed)


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


def whole_second(instant: int) -> int:
    """An instant in milliseconds, down to the whole second.

    Flink rounds the watermarks of a splittable step so. Here they are so from the start, and deadlines are whole
    seconds: counting is called a millisecond before one, its release at it, and both follow the same watermark.

    Examples
    --------
    >>> whole_second(1999), whole_second(2000), -whole_second(-1001)
    (1000, 2000, 2000)
    """
    return instant // 1000 * 1000


def end_of_input(plan: Plan) -> int | None:
    """What the watermark shows when nothing more is to come, in milliseconds; None for a run without an end."""
    n_windows = plan.calendar.n_windows
    if n_windows is None:
        return None
    # Whole seconds after the last window is final: engines round a watermark down to seconds.
    return int(plan.calendar.end(n_windows)) + plan.config.windows.allowed_lateness + _MARGIN
