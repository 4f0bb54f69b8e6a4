"""Coders of everything that travels between workers or waits in an engine's state: versioned bytes, never pickle.

The names and versions of the formats are a compatibility surface: a job that is upgraded reads what the one before has
left in its checkpoints, or refuses it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from apache_beam.coders import Coder
from apache_beam.coders.typecoders import registry
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Release
from penstock.mechanisms.core.events import EVENTS, Event
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
COUNTS, LANE, ROWS = StateFormat("group_counts"), StateFormat("lane"), StateFormat("books", 2)
#: What the users of a shard have used of a bound on budget periods.
_QUOTA = StateFormat("quota")
_EVENTS = {kind.__name__: kind for kind in EVENTS}
#: Stands for no number where numbers are at least 0, and for no time.
_NONE = -(2**63)


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
    """One block as bytes: a line with the name, the row count and the rejects, then the rows as Arrow IPC.

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
    truth = plan.config.mode == "simulation" and plan.config.output.truth
    state = {
        "first": np.asarray(counts.first),
        "counts": counts.counts if truth else counts.bounded,
        "bounded": counts.bounded,
        "memberships": np.asarray(counts.n_memberships),
        "sightings": counts.target_cells,
        "rows": np.asarray(n_rows),
    }
    return COUNTS.encode(state)


def decode_counts(data: bytes) -> tuple[GroupCounts, int]:
    """The inverse of `encode_counts`."""
    state = COUNTS.decode(data)
    counts = GroupCounts(
        int(state["first"]), state["counts"], state["bounded"], int(state["memberships"]), state["sightings"]
    )
    return counts, int(state["rows"])


def encode_lane(lane: dict[str, int]) -> bytes:
    """Return how far a lane has been counted, and how many pieces it holds.

    >>> decode_lane(encode_lane({"counted": 3, "pieces": 1, "merged": 0}))["counted"]
    3
    """
    return LANE.encode({name: np.asarray(value) for name, value in lane.items()})


def decode_lane(data: bytes | None) -> dict[str, int]:
    """The inverse of `encode_lane`; that of a new lane where there is none."""
    if data is None:
        return {"counted": -1, "pieces": 0, "merged": 0}
    return {name: int(value) for name, value in LANE.decode(data).items()}


def encode_quota(quota: PeriodQuota) -> bytes:
    """Return what users have used of a bound on the current budget period.

    >>> decode_quota(encode_quota(PeriodQuota())).state()["period"].item()
    -1
    """
    return _QUOTA.encode(quota.state())


def decode_quota(data: bytes | None) -> PeriodQuota:
    """The inverse of `encode_quota`; no one has used anything where there is none."""
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
    """Row counts that turn used rows into late ones, and take back what they had been reduced to."""
    return row_counts(RowCounts(used=-n_rows, late=n_rows), -memberships)


def encode_batch(batch: Batch) -> bytes:
    """One batch; values, scales and numbers in events keep their types and every bit.

    >>> release = Release(window=3, values=np.array([1.0, 2.0]), noise="laplace", scale=2.0)
    >>> decode_batch(encode_batch(Batch((release,), ()))).releases[0].scale
    2.0
    """
    releases, known = batch.releases, batch.known
    texts = [json.dumps([_encode_event(event) for event in release.charge]) for release in releases]
    distinct = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    head = {
        "stopped": batch.stopped,
        "budget_left": _encode_number(batch.budget_left),
        "charges": [asdict(charge) for charge in batch.charges],
        "events": [json.loads(text) for text in distinct],
        "first": None if known is None else known.first,
    }
    state: State = {
        "head": np.frombuffer(json.dumps(head).encode(), np.uint8),
        "window": np.asarray([release.window for release in releases], np.int64),
        "action": np.asarray([str(release.action) for release in releases], np.str_),
        "noise": np.asarray([release.noise for release in releases], np.str_),
        "events": np.asarray([distinct[text] for text in texts], np.int64),
        "landmark": np.asarray([release.landmark for release in releases], np.bool_),
        "repeats": np.asarray([_or_none(release.repeats) for release in releases], np.int64),
        "available_at": np.asarray([_or_none(release.available_at) for release in releases], np.int64),
        **_encode_arrays("values", [release.values for release in releases]),
        **_encode_arrays("scale", [release.scale for release in releases]),
        **_encode_arrays("active", [release.active for release in releases]),
        **_encode_arrays("standard_deviation", [release.standard_deviation for release in releases]),
        **_encode_arrays("alarm", [release.alarm for release in releases]),
    }
    if known is not None:
        state |= {"counts": known.counts, "sightings": known.target_cells}
    # Text of no length at all is not state.
    return BATCH.encode({name: array.astype("U1") if array.dtype == "U0" else array for name, array in state.items()})


def decode_batch(data: bytes) -> Batch:
    """The inverse of `encode_batch`; raises `StateVersionError` for bytes that this code cannot read."""
    state = BATCH.decode(data)
    try:
        return _decode(state)
    except (LookupError, TypeError, ValueError) as error:  # an event, or a charge, that this code does not know
        raise StateVersionError(f"a batch of releases is damaged or later than this code: {error!r}") from error


def _decode(state: State) -> Batch:
    head = json.loads(state["head"].tobytes())
    events = [tuple(map(_decode_event, charge)) for charge in head["events"]]
    columns = [state[name].tolist() for name in ("window", "action", "noise", "events", "landmark")]
    optional = [[None if n == _NONE else n for n in state[name].tolist()] for name in ("repeats", "available_at")]
    names = ("values", "scale", "active", "standard_deviation", "alarm")
    arrays = [dict(zip(names, row)) for row in zip(*(_decode_arrays(name, state) for name in names))]
    releases = [
        Release(
            window=window,
            action=action,
            noise=noise,
            charge=events[number],
            landmark=landmark,
            repeats=repeats,
            available_at=available_at,
            **vectors,
        )
        for window, action, noise, number, landmark, repeats, available_at, vectors in zip(*columns, *optional, arrays)
    ]
    known = None if head["first"] is None else PrivateFacts(head["first"], state["counts"], state["sightings"])
    charges = tuple(Charge(**charge) for charge in head["charges"])
    return Batch(tuple(releases), charges, head["stopped"], known, _decode_number(head["budget_left"]))


def _or_none(value: Any) -> int:
    return _NONE if value is None else int(value)


def _encode_event(event: Event) -> dict[str, Any]:
    found = {field.name: getattr(event, field.name) for field in fields(event)}
    own = {name: _encode_event(v) if isinstance(v, Event) else _encode_number(v) for name, v in found.items()}
    return {"event": type(event).__name__, **own}


def _decode_event(value: dict[str, Any]) -> Event:
    own = {name: part for name, part in value.items() if name != "event"}
    return _EVENTS[value["event"]](**{name: _decode_part(part) for name, part in own.items()})


def _decode_part(value: Any) -> Any:
    return _decode_event(value) if isinstance(value, dict) and "event" in value else _decode_number(value)


def _encode_number(value: Any) -> Any:
    """A number or text of Python as it is; one of NumPy with its type, since the two differ in a division by zero."""
    if not isinstance(value, (np.generic, np.ndarray)):
        return value
    kind = "array" if isinstance(value, np.ndarray) else "scalar"
    return {kind: value.dtype.str, "shape": list(value.shape), "items": np.ravel(value).tolist()}


def _decode_number(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    array = np.asarray(value["items"], value.get("array") or value["scalar"]).reshape(value["shape"])
    return array if "array" in value else array[()]


def _encode_arrays(name: str, values: Sequence[Any]) -> State:
    """Numbers, arrays and None, one after the other: all items of one type together, and what each value looks like."""
    looks: list[Any] = []
    items: dict[str, list[NDArray[Any]]] = {}
    for value in values:
        if value is None or (isinstance(value, (int, float)) and not isinstance(value, np.generic)):
            looks.append(_encode_number(value))
            continue
        array = np.asarray(value)
        looks.append({"like": array.dtype.str, "shape": list(array.shape), "scalar": isinstance(value, np.generic)})
        items.setdefault(array.dtype.str, []).append(np.ravel(array))
    texts = list(map(json.dumps, looks))
    distinct = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    state: State = {f"{name}.{kind}": np.concatenate(own) for kind, own in items.items()}
    state[f"{name}.looks"] = np.frombuffer(json.dumps(list(map(json.loads, distinct))).encode(), np.uint8)
    state[f"{name}.look"] = np.asarray([distinct[text] for text in texts], np.int64)
    return state


def _decode_arrays(name: str, state: State) -> list[Any]:
    looks = json.loads(state[f"{name}.looks"].tobytes())
    begins: dict[str, int] = {}
    found: list[Any] = []
    for number in state[f"{name}.look"].tolist():
        look = looks[number]
        if not isinstance(look, dict):
            found.append(look)
            continue
        kind, shape = look["like"], look["shape"]
        begin = begins.get(kind, 0)
        begins[kind] = end = begin + int(np.prod(shape))
        array: NDArray[Any] = state[f"{name}.{kind}"][begin:end].reshape(shape)
        found.append(array[()] if look["scalar"] else array)
    return found


BATCH = StateFormat("batch", 3)


class BlockCoder(Coder):  # type: ignore[misc]
    """Blocks of events as bytes, for Beam."""

    def encode(self, value: NamedBlock) -> bytes:
        """See `encode_block`."""
        return encode_block(value)

    def decode(self, encoded: bytes) -> NamedBlock:
        """See `decode_block`."""
        return decode_block(encoded)

    def estimate_size(self, value: NamedBlock) -> int:
        """About how many bytes: Beam asks this of elements that fused steps hand on without encoding them."""
        return int(value.block.frame.estimated_size())

    def is_deterministic(self) -> bool:
        """Equal blocks have equal bytes."""
        return True

    def to_type_hint(self) -> Any:
        """Return what it encodes."""
        return NamedBlock


class BatchCoder(Coder):  # type: ignore[misc]
    """Batches of releases as bytes, for Beam."""

    def encode(self, value: Batch) -> bytes:
        """See `encode_batch`."""
        return encode_batch(value)

    def decode(self, encoded: bytes) -> Batch:
        """See `decode_batch`."""
        return decode_batch(encoded)

    def estimate_size(self, value: Batch) -> int:
        """About how many bytes: Beam asks this of elements that fused steps hand on without encoding them."""
        return sum(8 * np.size(release.values) for release in value.releases)

    def is_deterministic(self) -> bool:
        """Equal batches have equal bytes."""
        return True

    def to_type_hint(self) -> Any:
        """Return what it encodes."""
        return Batch


registry.register_coder(NamedBlock, BlockCoder)
registry.register_coder(Batch, BatchCoder)
