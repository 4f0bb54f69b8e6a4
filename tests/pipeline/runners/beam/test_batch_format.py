"""Encoding of batches between workers and in state: round trip, refusal of other layouts."""

import dataclasses

import numpy as np
import pytest

from penstock.mechanisms.core.contract import Release
from penstock.mechanisms.core.events import Additive, Block, Event, Repeated, Sampled
from penstock.mechanisms.core.plugin import StateVersionError
from penstock.pipeline.counting.targets import PrivateFacts
from penstock.pipeline.releasing.ledger import Charge
from penstock.pipeline.releasing.release import Batch
from penstock.pipeline.runners.beam.coders import BatchCoder, decode, encode
from penstock.pipeline.runners.beam.graph import AccountInOrder

CHARGE = Charge(3, 5, 0.1, float("inf"), 5, "data", True)
EVENTS: tuple[Event, ...] = (
    Additive("discrete_laplace", np.int64(2), np.float64(1 / 3)),
    Block(Sampled(Additive("gaussian", 1, np.array([0.1, np.inf])), 0.5), 3, 4),
    Repeated(0),
)
RELEASES = (
    Release(window=3, values=np.array([1.5, np.nan, -0.0]), noise="gaussian", scale=np.float64(0.1), charge=EVENTS),
    Release(window=4, values=np.array([1, 2, 3]), action="repeated", repeats=3, landmark=True, scale=1),
    Release(window=5, values=np.array([5e-324, 2.0, 3.0]), active=np.array([True, False, True]), available_at=-5),
    Release(window=6, values=np.zeros(3), scale=np.array([1.0, 2.0, 3.0]), repeats=0, charge=EVENTS),
    Release(window=7, values=np.ones(3), standard_deviation=np.ones(3), alarm=np.array([True, False, True])),
)


def same(one: object, other: object) -> bool:
    """Return whether two values have the same type and bits."""
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return type(one) is type(other) and all(same(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (np.ndarray, np.generic)):
        alike = type(one) is type(other) and one.dtype == other.dtype and one.shape == other.shape
        return alike and one.tobytes() == other.tobytes()
    return type(one) is type(other) and repr(one) == repr(other)


KNOWN = PrivateFacts(3, np.arange(12).reshape(4, 3), np.array([[3, 0, 1]]))


@pytest.mark.parametrize(
    "batch",
    [
        Batch((), ()),
        Batch(RELEASES, (CHARGE,), budget_left=0.1 + 0.2),
        Batch(RELEASES[:1], (), stopped="window 4: the budget, “used up”", known=KNOWN),
        Batch((), (), budget_left=np.float64(np.inf), known=KNOWN),
    ],
)
def test_every_bit_comes_back(batch):
    assert same(decode(encode(batch)), batch)
    assert BatchCoder().encode(BatchCoder().decode(encode(batch))) == encode(batch)


def test_other_layouts_are_refused():
    data = encode(Batch(RELEASES, (CHARGE,)))
    newer = data.replace(b'"version":1', b'"version":2')
    with pytest.raises(StateVersionError, match="has version 2; this code reads version 1"):
        decode(newer)
    for refused in (b"", b"\x80\x04N.", data[:-1]):
        with pytest.raises(StateVersionError):
            decode(refused)


def test_an_event_that_this_code_does_not_know_is_of_another_version():
    known = encode(Batch(RELEASES, ()))
    unknown = known.replace(b"Block", b"Blotz")
    assert unknown != known
    with pytest.raises(StateVersionError, match="Blotz"):
        decode(unknown)


def test_what_waits_for_the_accountants_is_no_pickle():
    assert isinstance(AccountInOrder.WAITING.coder, BatchCoder)
