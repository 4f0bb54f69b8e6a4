"""Batches of releases as bytes: what travels between workers and waits in state, versioned and never pickle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from apache_beam.coders import Coder
from apache_beam.coders.typecoders import registry
from numpy.typing import NDArray

from mechanisms.core.contract import Release
from mechanisms.core.events import EVENTS, Event
from mechanisms.core.plugin import StateVersionError
from mechanisms.core.state import State, StateFormat
from pipeline.output.ledger import Charge
from pipeline.steps.release import Batch
from pipeline.steps.targets import Known

FORMAT = StateFormat("batch")
_EVENTS = {kind.__name__: kind for kind in EVENTS}
#: Stands for no number where numbers are at least 0, and for no time.
_NONE = -(2**63)


class BatchCoder(Coder):  # type: ignore[misc]
    """Batches as bytes, for Beam."""

    def encode(self, value: Batch) -> bytes:
        """See `encode_batch`."""
        return encode_batch(value)

    def decode(self, encoded: bytes) -> Batch:
        """See `decode_batch`."""
        return decode_batch(encoded)

    def estimate_size(self, value: Batch) -> int:
        """About how many bytes: Beam asks of the batches that steps hand on, which nobody encodes."""
        return sum(8 * np.size(release.values) for release in value.releases)

    def is_deterministic(self) -> bool:
        """Equal batches have equal bytes."""
        return True

    def to_type_hint(self) -> Any:
        """What it encodes."""
        return Batch


registry.register_coder(Batch, BatchCoder)


def encode_batch(batch: Batch) -> bytes:
    """One batch; values, scales and numbers in events keep their types and every bit.

    Examples
    --------
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
        "charges": [vars(charge) for charge in batch.charges],
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
    }
    if known is not None:
        state |= {"counts": known.counts, "sightings": known.sightings}
    # Text of no length at all is not state.
    return FORMAT.encode({name: array.astype("U1") if array.dtype == "U0" else array for name, array in state.items()})


def decode_batch(data: bytes) -> Batch:
    """The inverse of `encode_batch`; raises `StateVersionError` for bytes that this code cannot read."""
    state = FORMAT.decode(data)
    try:
        return _decode(state)
    except (LookupError, TypeError, ValueError) as error:  # an event, or a charge, that this code does not know
        raise StateVersionError(f"a batch of releases is damaged or later than this code: {error!r}") from error


def _decode(state: State) -> Batch:
    head = json.loads(state["head"].tobytes())
    events = [tuple(map(_decode_event, charge)) for charge in head["events"]]
    columns = [state[name].tolist() for name in ("window", "action", "noise", "events", "landmark")]
    optional = [[None if n == _NONE else n for n in state[name].tolist()] for name in ("repeats", "available_at")]
    arrays = [_decode_arrays(name, state) for name in ("values", "scale", "active")]
    releases = [
        Release(
            window=window,
            values=values,
            action=action,
            noise=noise,
            scale=scale,
            charge=events[number],
            landmark=landmark,
            repeats=repeats,
            available_at=available_at,
            active=active,
        )
        for window, action, noise, number, landmark, repeats, available_at, values, scale, active in zip(
            *columns, *optional, *arrays
        )
    ]
    known = None if head["first"] is None else Known(head["first"], state["counts"], state["sightings"])
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
    distinct = {text: number for number, text in enumerate(dict.fromkeys(map(json.dumps, looks)))}
    state: State = {f"{name}.{kind}": np.concatenate(own) for kind, own in items.items()}
    state[f"{name}.looks"] = np.frombuffer(json.dumps(list(map(json.loads, distinct))).encode(), np.uint8)
    state[f"{name}.look"] = np.asarray([distinct[json.dumps(look)] for look in looks], np.int64)
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
