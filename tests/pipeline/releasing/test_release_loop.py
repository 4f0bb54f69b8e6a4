"""The release loop: order, repetition, resumption, ledger."""

from __future__ import annotations

import fcntl
import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_configuration import made_up_events, small_sections

from penstock.mechanisms import get
from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.plugin import DataError
from penstock.mechanisms.core.run import run_mechanism
from penstock.mechanisms.filter import Filter
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.output import checkpoint
from penstock.pipeline.output.files import ledger_path
from penstock.pipeline.output.ledger import Ledger
from penstock.pipeline.output.writer import RunWriter
from penstock.pipeline.releasing.release import Charge, ReleaseLoop

N_WINDOWS, N_CELLS = 8, 3


def plan_for(tmp_path, mechanism=None, **changes):
    own = {"seed": 5} | ({"mechanism": mechanism} if mechanism else {}) | changes
    return make_plan(loads(json.dumps(small_sections(tmp_path, n_windows=N_WINDOWS, **own))))


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
    loop = ReleaseLoop(plan_for(tmp_path))
    whole, state = release_all(loop, counts, [])
    for cuts in ([1], [3, 4], [1, 2, 3, 4, 5, 6, 7]):
        # A new loop for every cut: nothing may survive in the object.
        found, end = release_all(ReleaseLoop(plan_for(tmp_path)), counts, cuts)
        assert np.array_equal(found, whole)
        assert end == state


def test_a_retried_step_returns_the_same_bytes(tmp_path, counts):
    loop = ReleaseLoop(plan_for(tmp_path))
    state = loop.start()
    one, after = loop.advance(state, 1, counts[:3])
    two, again = loop.advance(state, 1, counts[:3])
    assert after == again
    assert one.charges == two.charges
    assert all(np.array_equal(a.values, b.values) for a, b in zip(one.releases, two.releases))


def test_a_step_that_is_retried_on_another_processor_is_the_same_charge(tmp_path, counts, monkeypatch):
    """What a filter has learned differs there in its last bits: other noise, or a charge that is refused, otherwise."""
    plan = plan_for(tmp_path, [{"type": "discrete_laplace", "epsilon": 1.0}, {"type": "filter"}], landmarks=None)
    here, state = ReleaseLoop(plan).advance(ReleaseLoop(plan).start(), 1, counts)
    right = Filter.process

    def process(self, release, state):
        release, state = right(self, release, state)
        return release, {k: v * (1 + 2.0**-52) if v.dtype.kind == "f" else v for k, v in state.items()}

    monkeypatch.setattr(Filter, "process", process)
    there, other = ReleaseLoop(plan).advance(ReleaseLoop(plan).start(), 1, counts)
    assert state != other
    assert np.allclose([r.values for r in here.releases], [r.values for r in there.releases], atol=1e-5)
    assert here.charges == there.charges


def test_a_window_cannot_be_released_twice_or_skipped(tmp_path, counts):
    loop = ReleaseLoop(plan_for(tmp_path))
    _, state = loop.advance(loop.start(), 1, counts[:3])
    for first in (3, 5):
        with pytest.raises(ValueError, match="does not follow"):
            loop.advance(state, first, counts[:1])


def test_released_windows_scale_as_the_plain_loop_says(tmp_path, counts):
    plan = plan_for(tmp_path, {"type": "landmark_uniform", "epsilon": 3.0})
    batch, _ = ReleaseLoop(plan).advance(ReleaseLoop(plan).start(), 1, counts)
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


def charge(window=1, data="d"):
    return Charge("main", window, window, window + 1, 0.5, 0.125, False, "c", data)


def test_the_ledger_charges_a_retry_once_and_other_data_again(tmp_path):
    ledger = Ledger(tmp_path / "operator" / "ledger")
    assert ledger.append([charge()]) == [charge()]
    assert ledger.append([charge(), charge(2)]) == [charge(2)]
    assert Ledger(ledger.path).append([charge(), charge(data="e")]) == [charge(data="e")]
    assert list(ledger) == [charge(), charge(2), charge(data="e")]


def test_a_torn_line_is_cut_off(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.append([charge()])
    with ledger.path.open("a") as file:
        file.write('{"stream": "main", "win')
    assert list(ledger) == [charge()]
    begun = ledger.end
    Ledger(ledger.path).append([charge(2)])
    assert list(Ledger(ledger.path)) == [charge(), charge(2)]
    strict = Ledger(ledger.path, strict=True, begun=begun)
    assert strict.append([charge(data="e")]) == [charge(data="e")]  # another run's, before this one began
    with pytest.raises(DataError, match="window 2"):
        strict.append([charge(2, data="e")])


def test_a_line_that_another_run_left_torn_meanwhile_spoils_none(tmp_path):
    one, other = Ledger(tmp_path / "ledger"), Ledger(tmp_path / "ledger")
    one.append([charge()])
    other.append([charge(2)])
    with one.path.open("a") as file:
        file.write('{"stream": "main", "win')  # one was killed here
    other.append([charge(3)])
    assert list(other) == [charge(), charge(2), charge(3)]


def test_a_charge_that_another_run_has_only_just_written_is_made_durable(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "ledger")
    ledger.path.write_text(json.dumps(vars(charge())) + "\n")  # whoever wrote it was killed before the sync
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
    assert ledger.append([charge()]) == []
    head = tmp_path / "ledger.head"
    assert synced[-2:] == [ledger.path.stat().st_ino, head.stat().st_ino]  # the head never leads the entry
    assert head.read_text().strip() == ledger.heads()[-1]


def test_two_runs_side_by_side_charge_once(tmp_path):
    one, other = Ledger(tmp_path / "ledger"), Ledger(tmp_path / "ledger")
    assert [ledger.append([charge()]) for ledger in (one, other)] == [[charge()], []]
    assert [ledger.append([charge(2)]) for ledger in (other, one)] == [[charge(2)], []]
    assert [ledger.append([charge(3, data), charge(4)]) for ledger, data in ((one, "d"), (other, "e"))] == [
        [charge(3), charge(4)],
        [charge(3, "e")],
    ]
    assert list(one) == [charge(), charge(2), charge(3), charge(4), charge(3, "e")]


def test_many_writers_at_once_charge_once(tmp_path):
    ledgers = [Ledger(tmp_path / "ledger") for _ in range(4)]
    charges = [charge(window) for window in range(1, 41)]

    def appended(ledger):
        return [new for first in range(0, 40, 4) for new in ledger.append(charges[first : first + 4])]

    with ThreadPoolExecutor(4) as pool:
        found = [new for its in pool.map(appended, ledgers) for new in its]
    assert sorted(c.window for c in found) == list(range(1, 41))
    assert sorted(c.window for c in ledgers[0]) == list(range(1, 41))


def test_a_ledger_that_was_replaced_while_a_run_goes_on_is_refused(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.append([charge()])
    older = ledger.path.read_bytes()
    ledger.append([charge(2)])
    ledger.path.write_bytes(older)
    with pytest.raises(DataError, match="it was cut, or an older copy was put in its place"):
        ledger.append([charge(3)])
    assert ledger.path.read_bytes() == older


def test_a_changed_line_or_one_that_is_missing_breaks_the_chain(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.append([charge(window) for window in range(1, 5)])
    lines = ledger.path.read_text().splitlines(keepends=True)
    for spoiled, number in (
        ([lines[0], lines[1].replace("0.5", "0.1"), *lines[2:]], 2),
        ([lines[0], *lines[2:]], 2),
        ([*lines[:2], lines[3], lines[2]], 3),
        ([*lines, json.dumps(vars(charge(5))) + "\n"], 5),
    ):
        ledger.path.write_text("".join(spoiled))
        for read in (lambda: list(ledger), lambda: Ledger(ledger.path).append([charge(6)])):
            with pytest.raises(DataError, match=f"ledger:{number}: not a ledger line .the chain is broken"):
                read()


def test_lines_of_the_version_before_are_kept_and_chained(tmp_path):
    old = "".join(
        json.dumps({k: v for k, v in vars(charge(w)).items() if k not in ("run", "reach")}) + "\n" for w in (1, 2)
    )
    path = tmp_path / "ledger"
    path.write_text(old)
    assert Ledger(path).append([charge(2), charge(3)]) == [charge(3)]
    assert path.read_text().startswith(old)
    assert [one.window for one in Ledger(path)] == [1, 2, 3]
    path.write_text(path.read_text().replace("0.5", "0.1", 1))
    with pytest.raises(DataError, match=r"ledger:3: .*the chain is broken"):
        list(Ledger(path))


def test_a_bad_line_is_named(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.append([charge(), charge(2)])
    with ledger.path.open("a") as file:
        file.write("{}\n")
    for read in (lambda: list(ledger), lambda: ledger.append([charge(3)])):
        with pytest.raises(DataError, match="ledger:3: not a ledger line"):
            read()


def test_a_line_that_another_run_is_writing_is_not_cut(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.append([charge()])
    whole = ledger.path.read_bytes()
    Ledger(ledger.path).append([charge(2)])
    line = ledger.path.read_bytes()[len(whole) :].decode()
    ledger.path.write_bytes(whole)
    ledger = Ledger(ledger.path)
    with ThreadPoolExecutor(1) as pool:
        with ledger.path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(line[:20])
            file.flush()
            appended = pool.submit(Ledger(ledger.path).append, [charge(3)])
            with pytest.raises(TimeoutError):
                appended.result(0.2)
            file.write(line[20:])
        appended.result(10)
    assert list(ledger) == [charge(), charge(2), charge(3)]


class LateLedger(Ledger):
    """Makes charges durable with those of the next batch: after their releases have left."""

    def _append(self, file, charges, found):
        before, self.held = getattr(self, "held", []), list(charges)
        return super()._append(file, before, found)


def test_charges_are_durable_before_their_releases_leave(small_run, monkeypatch):
    write, n_charged = RunWriter.releases, []

    def charges_come_first(self, batch, *rest, **named):
        durable = list(Ledger(ledger_path(self.plan)))
        assert all(charge in durable for charge in batch.charges), "a release leaves before its charge"
        n_charged.append(len(batch.charges))
        return write(self, batch, *rest, **named)

    monkeypatch.setattr(RunWriter, "releases", charges_come_first)
    small_run(made_up_events(300))
    assert sum(n_charged) > 0
    monkeypatch.setattr(checkpoint, "Ledger", LateLedger)
    with pytest.raises(AssertionError, match="a release leaves before its charge"):
        small_run(made_up_events(300), "late")
