"""The release loop: order, repetition, resumption, ledger."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.mechanisms import get
from penstock.mechanisms.core.contract import Facts, Release
from penstock.mechanisms.core.run import run_mechanism
from penstock.mechanisms.filter import Filter
from penstock.pipeline.config.plan import ledger_path, make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.output import registration
from penstock.pipeline.output.writer import RunWriter
from penstock.pipeline.releasing.ledger import Ledger
from penstock.pipeline.releasing.release import ReleaseLoop
from tests.tools.ledgers import charges_in
from tests.tools.small_configuration import made_up_events, small_sections

N_WINDOWS, N_CELLS = 8, 3


def plan_for(tmp_path, mechanism=None, **changes):
    sections = {"seed": 5} | ({"mechanism": mechanism} if mechanism else {}) | changes
    return make_plan(loads(json.dumps(small_sections(tmp_path, n_windows=N_WINDOWS, **sections))))


@pytest.fixture
def counts():
    return np.random.default_rng(1).integers(0, 50, (N_WINDOWS, N_CELLS))


def release_all(loop, counts, cuts):
    state, values = loop.start(), []
    for first, last in zip([0, *cuts], [*cuts, len(counts)]):
        batch, state = loop.advance(state, first + 1, counts[first:last])
        values += [release.values for release in batch.releases]
    return np.array(values), state


def test_any_cut_gives_the_same_releases_and_the_same_state(tmp_path, counts):
    loop = plan_for(tmp_path).release_loop()
    whole, state = release_all(loop, counts, [])
    for cuts in ([1], [3, 4], [1, 2, 3, 4, 5, 6, 7]):
        # A new loop for every cut: nothing may survive in the object.
        actual, end = release_all(plan_for(tmp_path).release_loop(), counts, cuts)
        assert np.array_equal(actual, whole)
        assert end == state


def test_a_retried_step_returns_the_same_bytes(tmp_path, counts):
    loop = plan_for(tmp_path).release_loop()
    state = loop.start()
    one, after = loop.advance(state, 1, counts[:3])
    two, again = loop.advance(state, 1, counts[:3])
    assert after == again
    assert one.charges == two.charges
    assert all(np.array_equal(a.values, b.values) for a, b in zip(one.releases, two.releases))


def test_a_step_that_is_retried_on_another_processor_is_the_same_charge(tmp_path, counts, monkeypatch):
    """Another machine differs in the last bits of a filter's state, which must change neither noise nor charges."""
    plan = plan_for(tmp_path, [{"type": "discrete_laplace", "epsilon": 1.0}, {"type": "filter"}], landmarks=None)
    here, state = plan.release_loop().advance(plan.release_loop().start(), 1, counts)
    right = Filter.process

    def process(self, release, state):
        release, state = right(self, release, state)
        return release, {k: v * (1 + 2.0**-52) if v.dtype.kind == "f" else v for k, v in state.items()}

    monkeypatch.setattr(Filter, "process", process)
    there, other = plan.release_loop().advance(plan.release_loop().start(), 1, counts)
    assert state != other
    assert np.allclose([r.values for r in here.releases], [r.values for r in there.releases], atol=1e-5)
    assert here.charges == there.charges


def test_the_charge_of_a_window_says_of_which_input_the_earlier_ones_were(tmp_path, counts):
    """Its noise follows from them: with others before it, it is another release."""
    loop = plan_for(tmp_path, {"type": "landmark_adaptive", "epsilon": 3.0}).release_loop()
    other = counts.copy()
    other[0] += 1
    one, two = (loop.advance(loop.start(), 1, some)[0].charges for some in (counts, other))
    assert len(one) == len(two) == N_WINDOWS
    assert not {charge.data for charge in one} & {charge.data for charge in two}


@pytest.mark.parametrize(
    ("changes", "is_replaced"),
    [
        ({"mechanism": {"type": "discrete_laplace", "epsilon": 1.0}, "landmarks": None}, False),
        ({"bounding": {"max_cells": 1, "max_windows": 1}}, True),
        ({"bounding": {"max_cells": 1}}, False),
        (
            {
                "mechanism": {"type": "period_uniform", "epsilon": 1.0},
                "budget_period": "4h",
                "bounding": {"max_per_period": 2},
                "landmarks": None,
            },
            True,
        ),
        (
            {
                "mechanism": [{"type": "temporal_generalization", "windows": 4}, {"type": "laplace", "epsilon": 1.0}],
                "landmarks": None,
            },
            True,
        ),
    ],
)
def test_charges_where_bounding_chooses_among_windows_are_replacements_for_a_part_of_them(
    tmp_path, counts, changes, is_replaced
):
    blocks = {"type": "fpa", "epsilon": 1.0, "block": 4, "coefficients": 1}
    loop = plan_for(tmp_path, **{"mechanism": blocks} | changes).release_loop()
    batch, _ = loop.advance(loop.start(), 1, counts)
    assert {charge.replaced for charge in batch.charges if charge.epsilon} == {is_replaced}
    assert loop.worst(loop.start()).replaced is is_replaced
    whole, part = loop.worst(loop.start()).amounts("epsilon")
    assert (whole, part) == (1.0, 2.0 if is_replaced else 1.0)


def test_a_block_is_available_when_the_late_rows_of_its_last_window_are_in(tmp_path, counts):
    windows = {"type": "fixed", "size": "1h", "allowed_lateness": "5m"}
    plan = plan_for(tmp_path, {"type": "fpa", "epsilon": 1.0, "block": 4, "coefficients": 1}, windows=windows)
    batch, _ = plan.release_loop().advance(plan.release_loop().start(), 1, counts)
    ends = [plan.grid.calendar.end(last) + 300_000 for last in (4, 8)]
    assert [release.available_at for release in batch.releases] == [ends[0]] * 4 + [ends[1]] * 4


def test_a_window_cannot_be_released_twice_or_skipped(tmp_path, counts):
    loop = plan_for(tmp_path).release_loop()
    _, state = loop.advance(loop.start(), 1, counts[:3])
    for first in (3, 5):
        with pytest.raises(ValueError, match="does not follow"):
            loop.advance(state, first, counts[:1])


def test_released_windows_scale_as_the_plain_loop_says(tmp_path, counts):
    plan = plan_for(tmp_path, {"type": "landmark_uniform", "epsilon": 3.0})
    batch, _ = plan.release_loop().advance(plan.release_loop().start(), 1, counts)
    facts = Facts(n_cells=N_CELLS, max_cells=2, landmarks=(2, 4))
    plain = run_mechanism(get("landmark_uniform")(epsilon=3.0), counts, facts, seed=5)
    assert [r.scale for r in batch.releases] == [r.scale for r in plain]
    assert [r.charge for r in batch.releases] == [r.charge for r in plain]


@given(
    landmarks=st.sets(st.integers(1, N_WINDOWS)),
    epsilon=st.floats(0.01, 10),
    period=st.integers(1, N_WINDOWS),
)
@settings(max_examples=150, deadline=None)
def test_uniform_never_overspends_for_any_landmarks(landmarks, epsilon, period):
    facts = Facts(n_cells=2, landmarks=tuple(landmarks), budget_period=period)
    mechanism = get("landmark_uniform")(epsilon=epsilon)
    releases = run_mechanism(mechanism, np.zeros((N_WINDOWS, 2), int), facts)
    spent = np.array([1 / r.scale for r in releases])
    mask = np.array([r.landmark for r in releases])
    for first in range(0, N_WINDOWS, period):
        part, marked = spent[first : first + period], mask[first : first + period]
        worst = part[marked].sum() + (part[~marked].max() if (~marked).any() else 0)
        assert worst <= epsilon * (1 + 1e-9)
        assert worst >= epsilon * (1 - 1e-9)


class LateLedger(Ledger):
    """Mutant that syncs charges after their releases."""

    def _append(self, file, learned):
        before, self.held = getattr(self, "held", []), self.new
        self.new = before
        super()._append(file, learned)


def test_charges_are_durable_before_their_releases_leave(small_run, monkeypatch):
    write, n_charged = RunWriter.releases, []

    def charges_come_first(self, batch, *rest, **named):
        durable = charges_in(ledger_path(self.plan))
        assert all(charge in durable for charge in batch.charges), "a release leaves before its charge"
        n_charged.append(len(batch.charges))
        return write(self, batch, *rest, **named)

    monkeypatch.setattr(RunWriter, "releases", charges_come_first)
    small_run(made_up_events(300))
    assert sum(n_charged) > 0
    monkeypatch.setattr(registration, "Ledger", LateLedger)
    with pytest.raises(AssertionError, match="a release leaves before its charge"):
        small_run(made_up_events(300), "late")


def test_what_is_shown_of_an_idle_sensor_is_its_last_release():
    """A refused window repeats it, and no value that nobody released."""
    active = np.array([True, False, True])
    made = Release(window=4, values=np.array([5.0, np.nan, 7.0]), charge=(), active=active, action="published")
    shown = ReleaseLoop._remember_shown(made, {"shown": np.array([1.0, 2.0, 3.0])})
    assert (shown["shown"].tolist(), int(shown["shown_window"])) == ([5.0, 2.0, 7.0], 4)
    assert ReleaseLoop._remember_shown(replace(made, action="repeated"), shown) == {}
