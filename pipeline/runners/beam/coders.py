"""Versioned coders for all values that are sent between workers or stored in engine state. None of them uses pickle.

The names and versions of the formats are a compatibility surface: a job that is upgraded reads what the one before has
left in its checkpoints, or refuses it.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl
from apache_beam.coders import Coder
from apache_beam.coders.typecoders import registry
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Release
from penstock.mechanisms.core.events import EVENTS
from penstock.mechanisms.core.plugin import StateVersionError
from penstock.mechanisms.core.state import State, decode_state, encode_state
from penstock.pipeline.config.plan import Plan
from penstock.pipeline.counting.count import GroupCounts
from penstock.pipeline.counting.ingest import RowCounts
from penstock.pipeline.counting.targets import PrivateFacts
from penstock.pipeline.releasing.ledger import Charge
from penstock.pipeline.releasing.release import Batch
from penstock.pipeline.sources.base import MIN_EVENT_TIME, EventBlock, MicroBatch, Reject
from penstock.pipeline.sources.reading.offsets import OffsetRange

#: Everything that is encoded here, but for pieces of contributions.
FORMAT = ("beam", 1)
#: Distinct contributions: layout, group of windows, and how many rows they stand for; then the contributions.
_HEAD = np.dtype([("layout", "S8"), ("group", "<i8"), ("n_rows", "<i8")])
_LAYOUT = b"PIECE001"


@dataclass(frozen=True)
class NamedBlock:
    """A block of events along with the name of its rejects file.

    A block that is read again after a failure has the same name and the same rows.
    """

    #: Where it is from (``000000003/000017``); letters, digits and ``-._/``; no user id and no coordinates.
    name: str
    block: EventBlock
    #: Shape (n_rows,): the last window that was final when each row arrived, where the order of the events alone
    #: decides which rows are late; None: the watermark decides.
    closed: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class Cursor:
    """The position up to which a source has been read."""

    position: State = field(default_factory=dict)  # in the terms of the source (`MicroBatch.end`)
    number: int = 0  # of the next micro-batch
    latest: int = MIN_EVENT_TIME  # time that was reached before it
    ended: bool = False  # whether nothing is left for this reader: the rest was left to another
    reader: int = 0  # number among those that share the source

    def after(self, piece: MicroBatch) -> Cursor:
        """Return the reader's cursor after reading a micro-batch."""
        return Cursor(piece.end, piece.number + 1, piece.after, reader=self.reader)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cursor) and encode(self) == encode(other)

    def __hash__(self) -> int:
        return hash((self.number, self.latest, self.ended))


#: Classes of what travels, by name.
_VALUES = (Release, Charge, PrivateFacts, Batch, GroupCounts, NamedBlock, Cursor, EventBlock, Reject, OffsetRange)
_CLASSES: dict[str, type] = {kind.__name__: kind for kind in (*EVENTS, *_VALUES)}


def encode(value: Any) -> bytes:
    """Encode a block, batch, counts or numbers bit-exactly, as JSON that refers to arrays and frames.

    >>> release = Release(window=3, values=np.array([1.0, 2.0]), noise="laplace", scale=2.0)
    >>> decode(encode(Batch((release,), ()))).releases[0].scale
    2.0
    >>> block = EventBlock(pl.DataFrame({"time": [1], "user": [7], "place": ["a"]}), n_rows=1)
    >>> decode(encode(NamedBlock("file/0", block))).name
    'file/0'
    """
    arrays: State = {}
    head = json.dumps(_as_json(value, arrays))
    return encode_state(*FORMAT, arrays | {"head": np.frombuffer(head.encode(), np.uint8)})


def decode(data: bytes) -> Any:
    """Decode a value encoded by `encode`, or raise `StateVersionError` if its layout is unknown."""
    state = decode_state(data, *FORMAT)
    try:
        return _of_json(json.loads(state["head"].tobytes()), state)
    except (LookupError, TypeError, ValueError) as error:  # an event, or a charge, that this code does not know
        raise StateVersionError(f"what was encoded is damaged or later than this code: {error!r}") from error


def pack(group: int, n_rows: int, contributions: bytes | memoryview) -> bytes:
    """Pack distinct contributions together with their window group and number of source rows.

    >>> group, n_rows, contributions = unpack(pack(3, 10, b"contributions"))
    >>> group, n_rows, bytes(contributions)
    (3, 10, b'contributions')
    """
    return np.array([(_LAYOUT, group, n_rows)], _HEAD).tobytes() + contributions


def unpack(data: bytes) -> tuple[int, int, memoryview]:
    """Unpack data packed by `pack` without copying, or raise `StateVersionError` if its layout differs."""
    if not data.startswith(_LAYOUT):
        raise StateVersionError("a piece of memberships has a layout that this code cannot read")
    head = np.frombuffer(data, _HEAD, 1)[0]
    return int(head["group"]), int(head["n_rows"]), memoryview(data)[_HEAD.itemsize :]


def encode_counts(counts: GroupCounts, n_rows: int, plan: Plan) -> bytes:
    """Encode the counts of a window group in one user shard. True counts are included only if the run writes them."""
    if plan.config.mode != "simulation" or not plan.config.output.truth:
        counts = replace(counts, counts=counts.bounded)
    return encode((counts, n_rows))


def row_counts(counts: RowCounts | None = None, memberships: int = 0) -> tuple[int, bytes]:
    """Encode row counts and the number of distinct contributions as an element for the tally.

    >>> decode_rows(row_counts(RowCounts(rows=3, used=2, rejected={"no time": 1}), 2)[1])[1]
    2
    """
    return 0, encode(((counts or RowCounts()).as_state(), memberships))


def decode_rows(data: bytes) -> tuple[RowCounts, int]:
    """Decode row counts and the number of distinct contributions encoded by `row_counts`."""
    state, memberships = decode(data)
    return RowCounts.of_state(state), memberships


def late(n_rows: int, memberships: int = 0) -> tuple[int, bytes]:
    """Encode row counts that move rows from used to late."""
    return row_counts(RowCounts(used=-n_rows, late=n_rows), -memberships)


def _as_json(value: Any, arrays: State) -> Any:
    """Convert a value to JSON. Scalars stay unchanged, and objects become their class name and non-default fields.

    Arrays, frames and numbers of NumPy, which differ from Python's in a division by zero, are added to ``arrays`` and
    named.
    """
    if (kind := type(value).__name__) in _CLASSES:
        fields = value._asdict() if isinstance(value, OffsetRange) else vars(value)
        stated = {name: part for name, part in fields.items() if part is not getattr(value.__class__, name, value)}
        return {kind: {name: _as_json(part, arrays) for name, part in stated.items()}}
    if isinstance(value, tuple):
        return [_as_json(item, arrays) for item in value]
    if isinstance(value, dict):
        return {"dict": {name: _as_json(item, arrays) for name, item in value.items()}}
    if isinstance(value, pl.DataFrame):
        rows = io.BytesIO()
        value.write_ipc(rows, compression="uncompressed")
        return {"frame": _as_json(np.frombuffer(rows.getbuffer(), np.uint8), arrays)}
    if isinstance(value, (np.ndarray, np.generic)):
        name = str(len(arrays))
        arrays[name] = np.asarray(value)
        return {"array" if isinstance(value, np.ndarray) else "scalar": name}
    return value


def _of_json(value: Any, arrays: State) -> Any:
    """Restore a value converted by `_as_json`."""
    if type(value) is list:
        return tuple([_of_json(item, arrays) for item in value])
    if type(value) is not dict:
        return value
    ((kind, content),) = value.items()
    if kind in ("array", "scalar"):
        return arrays[content] if kind == "array" else arrays[content][()]
    if kind == "frame":
        return pl.read_ipc(io.BytesIO(_of_json(content, arrays).data))
    parts = {name: _of_json(part, arrays) for name, part in content.items()}
    return parts if kind == "dict" else _CLASSES[kind](**parts)


class _ValueCoder(Coder):  # type: ignore[misc]
    """Beam coder for one class of values. Equal values are encoded to equal bytes."""

    kind: type

    def is_deterministic(self) -> bool:
        """Return True because equal values are encoded to equal bytes."""
        return True

    def to_type_hint(self) -> Any:
        """Return the type that the coder encodes."""
        return self.kind

    def encode(self, value: Any) -> bytes:
        """Encode a value with the module's `encode`."""
        return encode(value)

    def decode(self, encoded: bytes) -> Any:
        """Decode a value with the module's `decode`."""
        return decode(encoded)


class BlockCoder(_ValueCoder):
    """Beam coder for blocks of events."""

    kind = NamedBlock

    def estimate_size(self, value: NamedBlock) -> int:
        """Estimate the size in bytes of an element passed between fused steps without being encoded."""
        return int(value.block.frame.estimated_size())


class CursorCoder(_ValueCoder):
    """Beam coder for cursors."""

    kind = Cursor


class BatchCoder(_ValueCoder):
    """Beam coder for batches of releases."""

    kind = Batch

    def estimate_size(self, value: Batch) -> int:
        """Estimate the size in bytes of an element passed between fused steps without being encoded."""
        return sum(8 * np.size(release.values) for release in value.releases)


registry.register_coder(NamedBlock, BlockCoder)
registry.register_coder(Batch, BatchCoder)
