"""State encoding: round trip, refusal of foreign bytes and of other versions."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.plugin import ParameterError, StateVersionError
from penstock.mechanisms.core.run import run_mechanism, step_through
from penstock.mechanisms.core.state import decode_state, encode_state
from penstock.mechanisms.laplace import Laplace
from penstock.testing.runs import SOURCE

STATE = {
    "last": np.arange(6.0).reshape(2, 3),
    "n": np.asarray(4),
    "seen": np.array([True, False]),
    "t": np.array(["é"]),
}


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.one_of(arrays(t, st.integers(0, 4)) for t in ("f8", "f4", "i8", "u2", "b1", "U3", "S2", ">i4")),
    )
)
@settings(max_examples=200, deadline=None)
def test_every_state_comes_back(state):
    back = decode_state(encode_state("x", 1, state), "x", 1)
    assert back.keys() == state.keys()
    for key, array in state.items():
        assert back[key].dtype == array.dtype.newbyteorder("=")
        assert back[key].tobytes() == array.astype(array.dtype.newbyteorder("=")).tobytes()
        assert back[key].shape == array.shape


def test_scalars_and_shapes_come_back():
    back = decode_state(encode_state("x", 1, STATE), "x", 1)
    assert all(np.array_equal(back[key], STATE[key]) and back[key].shape == STATE[key].shape for key in STATE)
    back["last"][0, 0] = 9  # owns its memory


def test_equal_states_give_equal_bytes_in_any_order():
    assert encode_state("x", 1, dict(reversed(STATE.items()))) == encode_state("x", 1, STATE)


@given(position=st.integers(0, 400), value=st.integers(0, 255), length=st.integers(0, 400))
@settings(max_examples=400, deadline=None)
def test_damaged_bytes_are_an_error_or_another_state_but_nothing_else(position, value, length):
    data = bytearray(encode_state("x", 1, STATE))
    if position < len(data):
        data[position] = value
    for damaged in (bytes(data), bytes(data[:length]), bytes(data) + b"x"):
        with contextlib.suppress(StateVersionError):
            assert isinstance(decode_state(damaged, "x", 1), dict)


def test_objects_are_refused():
    with pytest.raises(TypeError, match="'rng'"):
        encode_state("x", 1, {"rng": np.array([object()])})


def test_the_state_of_another_plug_in_or_version_is_refused_in_one_sentence():
    data = encode_state("laplace", 2, STATE)
    with pytest.raises(StateVersionError, match="'laplace' cannot be read as state of 'gaussian'"):
        decode_state(data, "gaussian", 2)
    with pytest.raises(StateVersionError, match="has version 2; this code reads version 1"):
        decode_state(data, "laplace", 1)
    with pytest.raises(StateVersionError, match="has version 2; this code reads version 3: finish the run"):
        decode_state(data, "laplace", 3)


@pytest.mark.parametrize(
    ("counts", "field"),
    [
        (np.zeros(3), "counts"),
        (np.full((2, 2), 0.5), "counts"),
        (np.zeros((0, 2)), "counts"),
        (np.zeros((2, 3)), "counts"),
    ],
)
def test_the_plain_loop_refuses_what_are_no_counts(counts, field):
    with pytest.raises(ParameterError) as caught:
        run_mechanism(Laplace(epsilon=1.0), counts, Facts(n_cells=2))
    assert caught.value.field == field


def test_the_plain_loop_wants_one_window_for_each_row():
    with pytest.raises(ParameterError, match="windows"):
        run_mechanism(Laplace(epsilon=1.0), np.zeros((2, 2), int), windows=Facts(n_cells=2).windows(3))


def test_whole_numbers_are_the_same_counts_in_any_type():
    counts = np.array([[3, 0], [1, 2]])
    runs = [run_mechanism(Laplace(epsilon=1.0), counts.astype(kind), seed=3) for kind in ("i8", "f8", "u2", "i4")]
    assert len({b"".join(release.values.tobytes() for release in run) for run in runs}) == 1


def test_steps_end_with_what_is_still_owed():
    facts = Facts(n_cells=2, n_windows=3)
    steps = list(step_through(Laplace(epsilon=1.0), np.zeros((3, 2), int), facts, facts.windows(), SOURCE))
    assert [len(made) for made, _ in steps] == [1, 1, 1, 0]
