"""Coders of everything that travels between workers or waits in an engine's state: versioned bytes, never pickle.

The names and versions of the formats are a compatibility surface: a job that is upgraded reads what the one before has
left in its checkpoints, or refuses it.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from apache_beam.coders import Coder
from apache_beam.coders.typecoders import registry
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Release
from penstock.mechanisms.core.events import EVENTS
from penstock.mechanisms.core.plugin import StateVersionError
from penstock.mechanisms.core.state import State, StateFormat
from penstock.pipeline.counting.bounding import PeriodQuota
from penstock.pipeline.counting.count import GroupCounts
from penstock.pipeline.counting.ingest import RowCounts
from penstock.pipeline.counting.targets import PrivateFacts
from penstock.pipeline.releasing.ledger import Charge
from penstock.pipeline.releasing.release import Batch
from penstock.pipeline.sources.base import EventBlock, Reject
from penstock.pipeline.sources.reading.offsets import OffsetRange

if TYPE_CHECKING:
    from penstock.pipeline.config.plan import Plan


#: A block of events.
BLOCK_VERSION = 2
_MAGIC, _CLOSED = b"penstock block", "closed"
#: Distinct contributions: layout, group of windows, and how many rows they stand for; then the contributions.
_HEAD = np.dtype([("layout", "S8"), ("group", "<i8"), ("n_rows", "<i8")])
_LAYOUT = b"PIECE001"
#: Counts of a group of windows; how far a lane has been counted; row counts; releases.
COUNTS, LANE = StateFormat("group_counts", 2), StateFormat("lane")
ROWS, BATCH = StateFormat("books", 2), StateFormat("batch", 4)
#: What the users of a shard have used of a bound on budget periods.
_QUOTA = StateFormat("quota")
#: Classes of what batches and counts hold, by name.
_CLASSES: dict[str, type] = {
    kind.__name__: kind for kind in (*EVENTS, Release, Charge, PrivateFacts, Batch, GroupCounts)
}


@dataclass(frozen=True)
class NamedBlock:
    """A block of events with the name under which its rejects are kept.

    A block that is read again after a failure has the same name and the same rows.

    Parameters
    ----------
    name
        Where it is from (``000000003/000017``); letters, digits and ``-._/``; no user id and no coordinates.
    block
        Its rows.
    closed
        Shape (n_rows,): the last window that was final when each row arrived, where the order of the events alone
        decides which rows are late; None: the watermark decides.
    """

    name: str
    block: EventBlock
    closed: NDArray[np.int64] | None = None


def encode_block(named: NamedBlock) -> bytes:
    """Encode a block: a line with name, row count and rejects, then the rows as Arrow IPC.

    >>> block = EventBlock(pl.DataFrame({"time": [1], "user": [7], "place": ["a"]}), n_rows=1)
    >>> decode_block(encode_block(NamedBlock("file/0", block))).name
    'file/0'
    """
    block = named.block
    rejects = [reject.as_dict() for reject in block.rejects]
    head = {"version": BLOCK_VERSION, "name": named.name, "n_rows": block.n_rows, "rejects": rejects}
    head["offsets"] = block.offsets
    rows = io.BytesIO()
    frame = block.frame if named.closed is None else block.frame.with_columns(pl.Series(_CLOSED, named.closed))
    frame.write_ipc(rows, compression="uncompressed")
    return _MAGIC + json.dumps(head).encode() + b"\n" + rows.getvalue()


def decode_block(data: bytes) -> NamedBlock:
    """The inverse of `encode_block`; raises `StateVersionError` for bytes of another version or kind."""
    end = data.find(b"\n")
    if not data.startswith(_MAGIC) or end < 0:
        raise StateVersionError("these bytes are no block of events")
    head = json.loads(data[len(_MAGIC) : end])
    if head["version"] != BLOCK_VERSION:
        raise StateVersionError(f"a block of version {head['version']}; this penstock reads version {BLOCK_VERSION}")
    frame = pl.read_ipc(io.BytesIO(data[end + 1 :]))
    rejects = tuple(Reject(**reject) for reject in head["rejects"])
    closed = None
    if _CLOSED in frame.columns:
        closed, frame = frame[_CLOSED].to_numpy(), frame.drop(_CLOSED)
    offsets = tuple(map(OffsetRange._make, head["offsets"]))
    return NamedBlock(head["name"], EventBlock(frame, head["n_rows"], rejects, offsets), closed)


def pack(group: int, n_rows: int, contributions: bytes | memoryview) -> bytes:
    """Distinct contributions with their group of windows, and how many rows they stand for.

    >>> group, n_rows, contributions = unpack(pack(3, 10, b"contributions"))
    >>> group, n_rows, bytes(contributions)
    (3, 10, b'contributions')
    """
    return np.array([(_LAYOUT, group, n_rows)], _HEAD).tobytes() + contributions


def unpack(data: bytes) -> tuple[int, int, memoryview]:
    """The inverse of `pack`, without a copy; raises `StateVersionError` for another layout."""
    if not data.startswith(_LAYOUT):
        raise StateVersionError("a piece of memberships has a layout that this code cannot read")
    head = np.frombuffer(data, _HEAD, 1)[0]
    return int(head["group"]), int(head["n_rows"]), memoryview(data)[_HEAD.itemsize :]


def encode_counts(counts: GroupCounts, n_rows: int, plan: Plan) -> bytes:
    """Counts of one group of windows and one shard of users; true counts only where they are written."""
    if plan.config.mode != "simulation" or not plan.config.output.truth:
        counts = replace(counts, counts=counts.bounded)
    return COUNTS.encode(_as_state((counts, n_rows)))


def decode_counts(data: bytes) -> tuple[GroupCounts, int]:
    """The inverse of `encode_counts`."""
    counts, n_rows = _of_state(COUNTS.decode(data))
    return counts, n_rows


def encode_lane(lane: dict[str, int]) -> bytes:
    """Return how far a lane has been counted, and how many pieces it holds.

    >>> decode_lane(encode_lane({"counted": 3, "pieces": 1, "merged": 0}))["counted"]
    3
    """
    return LANE.encode({name: np.asarray(value) for name, value in lane.items()})


def decode_lane(data: bytes | None) -> dict[str, int]:
    """Decode a lane; a new one if there is none."""
    if data is None:
        return {"counted": -1, "pieces": 0, "merged": 0}
    return {name: int(value) for name, value in LANE.decode(data).items()}


def encode_quota(quota: PeriodQuota) -> bytes:
    """Encode the quotas used in the current budget period.

    >>> decode_quota(encode_quota(PeriodQuota())).state()["period"].item()
    -1
    """
    return _QUOTA.encode(quota.state())


def decode_quota(data: bytes | None) -> PeriodQuota:
    """Decode quotas; empty if there are none."""
    return PeriodQuota(None if data is None else _QUOTA.decode(data))


def encode_rows(counts: RowCounts, memberships: int = 0) -> bytes:
    """Row counts, and how many distinct contributions there are.

    >>> decode_rows(encode_rows(RowCounts(rows=3, used=2, rejected={"no time": 1}), 2))[1]
    2
    """
    return ROWS.encode(counts.as_state() | {"memberships": np.asarray(memberships)})


def decode_rows(data: bytes) -> tuple[RowCounts, int]:
    """The inverse of `encode_rows`."""
    state = ROWS.decode(data)
    memberships = int(state.pop("memberships"))
    return RowCounts.of_state(state), memberships


def row_counts(counts: RowCounts | None = None, memberships: int = 0) -> tuple[int, bytes]:
    """Row counts and distinct contributions, as they travel to the tally."""
    return 0, encode_rows(counts or RowCounts(), memberships)


def late(n_rows: int, memberships: int = 0) -> tuple[int, bytes]:
    """Row counts that reclassify used rows as late."""
    return row_counts(RowCounts(used=-n_rows, late=n_rows), -memberships)


def encode_batch(batch: Batch) -> bytes:
    """Encode a batch bit-exactly; values, scales and events keep their types.

    >>> release = Release(window=3, values=np.array([1.0, 2.0]), noise="laplace", scale=2.0)
    >>> decode_batch(encode_batch(Batch((release,), ()))).releases[0].scale
    2.0
    """
    return BATCH.encode(_as_state(batch))


def decode_batch(data: bytes) -> Batch:
    """The inverse of `encode_batch`; raises `StateVersionError` for bytes that this code cannot read."""
    state = BATCH.decode(data)
    try:
        batch: Batch = _of_state(state)
        return batch
    except (LookupError, TypeError, ValueError) as error:  # an event, or a charge, that this code does not know
        raise StateVersionError(f"a batch of releases is damaged or later than this code: {error!r}") from error


def _as_state(value: Any) -> State:
    """A value as JSON and arrays."""
    arrays: State = {}
    head = json.dumps(_as_json(value, arrays))
    return arrays | {"head": np.frombuffer(head.encode(), np.uint8)}


def _of_state(state: State) -> Any:
    """The inverse of `_as_state`."""
    return _of_json(json.loads(state["head"].tobytes()), state)


def _as_json(value: Any, arrays: State) -> Any:
    """JSON form of a value: scalars unchanged, objects by class and non-default fields.

    Arrays and numbers of NumPy, which differ from Python's in a division by zero, are added to ``arrays`` and named.
    """
    if isinstance(value, tuple):
        return [_as_json(item, arrays) for item in value]
    if (kind := type(value).__name__) in _CLASSES:
        fields = {name: part for name, part in vars(value).items() if part is not getattr(value.__class__, name, value)}
        return {kind: {name: _as_json(part, arrays) for name, part in fields.items()}}
    if isinstance(value, (np.ndarray, np.generic)):
        name = str(len(arrays))
        arrays[name] = np.asarray(value)
        return {"array" if isinstance(value, np.ndarray) else "scalar": name}
    return value


def _of_json(value: Any, arrays: State) -> Any:
    """The inverse of `_as_json`."""
    if type(value) is list:
        return tuple([_of_json(item, arrays) for item in value])
    if type(value) is not dict:
        return value
    ((kind, content),) = value.items()
    if kind in ("array", "scalar"):
        return arrays[content] if kind == "array" else arrays[content][()]
    return _CLASSES[kind](**{name: _of_json(part, arrays) for name, part in content.items()})


class _Deterministic(Coder):  # type: ignore[misc]
    """Base of coders by which equal values have equal bytes."""

    kind: type

    def is_deterministic(self) -> bool:
        """Equal values have equal bytes."""
        return True

    def to_type_hint(self) -> Any:
        """Type that the coder encodes."""
        return self.kind


class BlockCoder(_Deterministic):
    """Blocks of events as bytes, for Beam."""

    kind = NamedBlock

    def encode(self, value: NamedBlock) -> bytes:
        """Encode a block; see `encode_block`."""
        return encode_block(value)

    def decode(self, encoded: bytes) -> NamedBlock:
        """Decode a block; see `decode_block`."""
        return decode_block(encoded)

    def estimate_size(self, value: NamedBlock) -> int:
        """About how many bytes: Beam asks this of elements that fused steps hand on without encoding them."""
        return int(value.block.frame.estimated_size())


class BatchCoder(_Deterministic):
    """Batches of releases as bytes, for Beam."""

    kind = Batch

    def encode(self, value: Batch) -> bytes:
        """Encode a batch; see `encode_batch`."""
        return encode_batch(value)

    def decode(self, encoded: bytes) -> Batch:
        """Decode a batch; see `decode_batch`."""
        return decode_batch(encoded)

    def estimate_size(self, value: Batch) -> int:
        """About how many bytes: Beam asks this of elements that fused steps hand on without encoding them."""
        return sum(8 * np.size(release.values) for release in value.releases)


registry.register_coder(NamedBlock, BlockCoder)
registry.register_coder(Batch, BatchCoder)
