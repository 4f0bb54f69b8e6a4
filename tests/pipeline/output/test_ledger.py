"""The ledger of an event source: one enforced, chained budget for all runs and configurations."""

from __future__ import annotations

import json
import math
import random
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from deployments import LATITUDE, LONGITUDE, configured, sections
from hypothesis import given, settings
from hypothesis import strategies as st
from small_configuration import run_locally as run

from penstock.accountants.core.charges import concentrated_rho, pure_epsilon, replaced
from penstock.mechanisms.core.events import Additive, Event, PureDP
from penstock.mechanisms.core.plugin import BudgetExceeded, ConfigError, DataError
from penstock.pipeline import DONE, STOPPED
from penstock.pipeline.cli.ledger import overview
from penstock.pipeline.cli.main import main
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.monitoring.verify import verify
from penstock.pipeline.output.ledger import Ledger
from penstock.pipeline.output.ledger_budget import Books, LandmarkWindows, Limit, Terms, terms_of
from penstock.pipeline.releasing.release import Batch, Charge
from penstock.pipeline.reporting.result import Result

HOUR = 3_600_000
DAY = "2024-01-01T00:00:00Z"


@pytest.fixture
def value(tmp_path: Path) -> dict[str, Any]:
    """A deployment over six hours at ε = 1, on a ledger of its own source."""
    found = sections(tmp_path)
    found["output"] |= {"ledger": str(tmp_path / "ledger"), "report": False}
    return found


def at(hour: int) -> str:
    return f"2024-01-01T{hour:02d}:00:00Z"


def changed(value: dict[str, Any], begin: int = 0, end: int = 6, **changes: Any) -> dict[str, Any]:
    source = value["source"] | {"from": at(begin), "until": at(end)}
    return {name: part for name, part in (value | {"source": source} | changes).items() if part is not None}


def actions(result: Result) -> list[str]:
    frame = pl.read_parquet(result.folder / "public" / "releases.parquet")
    return (
        frame.group_by("window", maintain_order=True).agg(pl.col("action").first().cast(pl.String))["action"].to_list()
    )


def charged(folder: Path) -> float:
    return sum(charge.epsilon for charge in Ledger(folder / "ledger"))


UNIFORM = {"type": "landmark_uniform", "epsilon": 1.0}
PLAIN = {"type": "discrete_laplace", "epsilon": 1.0}
W_EVENT = {"type": "w_event_uniform", "epsilon": 1.0, "w": 3}
COMPOSED: dict[str, Any] = {"landmarks": None, "accountants": [{"type": "composition"}]}


@pytest.mark.parametrize(
    ("changes", "runner"),
    [
        ({"mechanism": UNIFORM}, "direct"),
        ({"mechanism": PLAIN} | COMPOSED, "direct"),
        ({"mechanism": W_EVENT} | COMPOSED, "local"),
    ],
)
def test_the_second_of_three_deployments_on_one_day_is_refused_before_its_release(tmp_path, value, changes, runner):
    first = run(configured(changed(value, **changes)), tmp_path / "first", runner)
    assert (first.exit_code, set(actions(first))) == (DONE, {"published"})
    spent = charged(tmp_path)
    second = run(configured(changed(value, **changes)), tmp_path / "second", runner)
    assert second.exit_code == STOPPED
    assert "of the ledger, which all runs over its event source share" in second.manifest["exit"]["reason"]
    assert actions(second) == []
    third = run(configured(changed(value, **changes, on_exhausted="repeat")), tmp_path / "third", runner)
    assert (third.exit_code, actions(third)) == (DONE, ["refused"] * 6)
    assert charged(tmp_path) == spent
    assert all(check.passed for result in (first, second, third) for check in verify(result.folder))


@pytest.mark.parametrize("runner", ["local", "direct", "stream"])
def test_a_run_that_is_stopped_counts_its_duplicates_as_one_that_is_not(tmp_path, value, runner):
    """What is not released any more was counted all the same: it is no repetition of anything."""
    path = tmp_path / "events.csv"
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *rows, *rows[:3]]) + "\n")
    if runner == "stream":
        value["source"] = {"type": "stream", "of": value["source"]}
        times = {name: value["source"]["of"].pop(name) for name in ("from", "until")}
        value["source"] |= times
    results = [run(configured(value), tmp_path / n, "local" if runner == "local" else "direct") for n in "ab"]
    assert [result.exit_code for result in results] == [DONE, STOPPED]
    found = [result.manifest["rows"] for result in results]
    assert found[0]["duplicates"] == 3
    assert found[0] == found[1]


def test_the_command_ends_with_exit_code_3(tmp_path, value, capsys):
    (tmp_path / "run.yaml").write_text(json.dumps(value))
    command = ["run", str(tmp_path / "run.yaml"), "--quiet", "--out"]
    assert main([*command, str(tmp_path / "one")]) == DONE
    assert main([*command, str(tmp_path / "other")]) == STOPPED


def test_a_run_with_only_until_moved_averages_nothing(tmp_path, value):
    for number, end in enumerate((6, 7, 8, 9)):
        run(configured(changed(value, end=end, on_exhausted="repeat")), tmp_path / str(number))
    totals: dict[int, float] = {}
    for charge in Ledger(tmp_path / "ledger"):
        totals[charge.window_start] = totals.get(charge.window_start, 0.0) + charge.epsilon
    assert max(totals.values()) <= 1.0


def test_a_w_event_schedule_that_begins_afresh_counts_what_the_run_before_has_charged(tmp_path, value):
    own = COMPOSED | {"mechanism": W_EVENT, "on_exhausted": "repeat"}
    first = run(configured(changed(value, 0, 3, **own)), tmp_path / "first")
    # Hours 2 and 3 overlap any three hours that begin with them: the run after them may not spend as if it were first.
    own["mechanism"] = W_EVENT | {"w": 1, "epsilon": 1.0}
    second = run(configured(changed(value, 3, 7, **own)), tmp_path / "second")
    assert actions(first) == ["published"] * 3
    assert actions(second) == ["refused", "refused", "published", "refused"]
    costs = [0.0] * 7
    for charge in Ledger(tmp_path / "ledger"):
        costs[(charge.window_start // HOUR) % 24] += charge.epsilon
    assert max(sum(costs[i : i + 3]) for i in range(5)) <= 1 + 1e-9


def test_windows_of_other_sizes_are_charged_by_overlap_in_time(tmp_path, value):
    value["output"]["ledger_budget"] = 3.0
    half = changed(value, windows={"type": "fixed", "size": "30m"}, mechanism=PLAIN | {"epsilon": 0.5}, **COMPOSED)
    hours = changed(value, mechanism=PLAIN | {"epsilon": 0.5}, on_exhausted="repeat", **COMPOSED)
    assert set(actions(run(configured(hours), tmp_path / "hours"))) == {"published"}
    # An hour from the middle of another one on holds two half hours, and parts of two hours: 2 · 0.5 + 2 · 2 · 0.5.
    assert set(actions(run(configured(half), tmp_path / "half"))) == {"published"}
    assert set(actions(run(configured(hours), tmp_path / "again"))) == {"refused"}


def test_a_window_of_which_the_unit_holds_a_part_counts_twice(tmp_path, value):
    """An hour meets halves of two windows that begin at half past: there other cells may count instead."""
    value["output"]["ledger_budget"] = 2.5
    moved = {"windows": {"type": "fixed", "size": "1h", "origin": "2024-01-01T00:30:00Z"}}
    own = COMPOSED | {"mechanism": PLAIN | {"epsilon": 0.5}, "on_exhausted": "repeat"}
    assert set(actions(run(configured(changed(value, **own)), tmp_path / "hours"))) == {"published"}
    shifted = changed(value, **own, **moved)
    shifted["source"] |= {"from": "2024-01-01T00:30:00Z", "until": "2024-01-01T05:30:00Z"}
    assert set(actions(run(configured(shifted), tmp_path / "moved"))) == {"published"}
    assert [row["spent"] for row in overview(tmp_path / "ledger")["periods"]] == [0.5 + 2 * 2 * 0.5]
    value["output"]["ledger_budget"] = 2.0
    for left in tmp_path.glob("ledger*"):
        left.unlink()
    run(configured(changed(value, **own)), tmp_path / "again")
    shifted["output"] = value["output"]
    assert "refused" in actions(run(configured(shifted), tmp_path / "moved again"))


def test_a_budget_for_several_runs_is_stated_by_the_configuration(tmp_path, value):
    value["output"]["ledger_budget"] = 2.0
    results = [run(configured(changed(value, on_exhausted="repeat")), tmp_path / str(n)) for n in range(3)]
    assert [set(actions(result)) for result in results] == [{"published"}, {"published"}, {"refused"}]


@pytest.mark.parametrize(
    ("output", "source", "message"),
    [
        ({"ledger_budget": 3.0}, {}, r"another budget \(1.0\) than the configuration \(3.0\)"),
        ({"ledger_span": "2h"}, {}, r"another span \(3600000\) than the configuration \(7200000\)"),
        ({"ledger_source": "taxis"}, {}, r"another event source \([0-9a-f]{16}\) than the configuration \(taxis\)"),
        ({}, {"path": "other.csv"}, "another event source"),
    ],
)
def test_another_budget_unit_or_source_is_refused_before_anything_is_written(tmp_path, value, output, source, message):
    run(configured(value), tmp_path / "first")
    before = (tmp_path / "ledger").read_bytes()
    if source:
        (tmp_path / "other.csv").write_text((tmp_path / "events.csv").read_text())
        source = {"path": str(tmp_path / "other.csv")}
    other = value | {"output": value["output"] | output, "source": value["source"] | source}
    with pytest.raises(ConfigError, match=message):
        run(configured(other), tmp_path / "second")
    assert (tmp_path / "ledger").read_bytes() == before
    assert not (tmp_path / "second" / "operator" / "run.json").exists()


def test_a_run_over_a_span_that_is_charged_says_so_before_it_starts(tmp_path, value, caplog):
    value["output"]["ledger_budget"] = 5.0
    run(configured(value), tmp_path / "first")
    assert not caplog.messages
    run(configured(value), tmp_path / "second")
    assert "1 other run of the same input over this span charged 6 windows before" in caplog.messages[0]
    (tmp_path / "events.csv").write_text((tmp_path / "events.csv").read_text().replace("T03:10", "T03:11"))
    run(configured(value), tmp_path / "third")
    assert "2 other runs of other input over this span charged 12 windows before" in caplog.messages[1]


def test_traces_count_run_by_run(tmp_path, value):
    own = {
        "windows": {"type": "timestamps"},
        "landmarks": None,
        "bounding": None,
        "accountants": [],
        "mechanism": {"type": "planar_laplace", "epsilon": 0.01},
    }
    with (tmp_path / "events.csv").open("a") as file:
        file.write(f"somebody,2024-01-01T07:10:00Z,{LATITUDE},{LONGITUDE}\n")
    assert run(configured(changed(value, **own)), tmp_path / "first").exit_code == DONE
    (tmp_path / "run.yaml").write_text(json.dumps(changed(value, **own)))
    assert main(["run", str(tmp_path / "run.yaml"), "--quiet", "--out", str(tmp_path / "second")]) == STOPPED
    assert run(configured(changed(value, 6, 9, **own)), tmp_path / "later").exit_code == DONE
    with pytest.raises(ConfigError, match="counts and traces need a ledger each"):
        run(configured(value), tmp_path / "counts")


TRACE_RUN = {"windows": {"type": "timestamps"}, "landmarks": None, "bounding": None, "accountants": []}


@pytest.mark.parametrize(
    ("mechanism", "other", "shared"),
    [
        ({"type": "landmark_uniform", "noise": "planar_laplace", "epsilon": 1.0}, {}, True),  # all time is one period
        ({"type": "landmark_uniform", "noise": "planar_laplace", "epsilon": 1.0}, {"budget_period": "1d"}, True),
        ({"type": "landmark_uniform", "noise": "planar_gaussian", "rho": 0.5}, {"budget_period": "1d"}, True),
        ({"type": "landmark_uniform", "noise": "planar_gaussian", "rho": 0.5}, {"budget_period": "6h"}, False),
        ({"type": "w_event_uniform", "noise": "planar_gaussian", "rho": 0.5, "w": 3}, {}, True),
        ({"type": "planar_laplace", "epsilon": 1.0}, {}, False),
    ],
    ids=str,
)
def test_runs_on_traces_share_the_budget_of_what_one_unit_may_hold(tmp_path, value, mechanism, other, shared):
    landmarks = {"landmarks": {"recurring": ["01:00-02:00"]}} if "landmark" in mechanism["type"] else {}
    own = TRACE_RUN | landmarks | {"mechanism": mechanism} | other
    with (tmp_path / "events.csv").open("a") as file:
        file.write(f"somebody,2024-01-01T07:10:00Z,{LATITUDE},{LONGITUDE}\n")
    assert run(configured(changed(value, **own)), tmp_path / "first").exit_code == DONE
    (tmp_path / "run.yaml").write_text(json.dumps(changed(value, 6, 9, **own)))  # another span of the same day
    ended = main(["run", str(tmp_path / "run.yaml"), "--quiet", "--out", str(tmp_path / "later")])
    assert ended == (STOPPED if shared else DONE)


def test_budget_periods_of_traces_begin_where_those_of_the_ledger_do(tmp_path, value):
    mechanism = {"type": "landmark_uniform", "noise": "planar_laplace", "epsilon": 1.0}
    own = TRACE_RUN | {"landmarks": {"recurring": ["01:00-02:00"]}, "mechanism": mechanism, "budget_period": "6h"}
    own["allow_empty"] = True
    with (tmp_path / "events.csv").open("a") as file:
        file.write(f"somebody,2024-01-01T10:10:00Z,{LATITUDE},{LONGITUDE}\n")
    assert run(configured(changed(value, **own)), tmp_path / "first").exit_code == DONE
    with pytest.raises(ConfigError, match="another budget period"):
        run(configured(changed(value, 9, 12, **own)), tmp_path / "later")
    with pytest.raises(ConfigError, match="another unit"):
        run(configured(changed(value, 12, 15, **own | {"budget_period": "12h"})), tmp_path / "longer")


def test_an_older_copy_is_noticed(tmp_path, value):
    value["output"]["ledger_budget"] = 5.0
    folder = run(configured(value), tmp_path / "first").folder
    older = (tmp_path / "ledger").read_bytes()
    later = run(configured(value), tmp_path / "second").folder
    assert all(check.passed for path in (folder, later) for check in verify(path))
    heads = [json.loads((later / side / "manifest.json").read_text()) for side in ("public", "operator")]
    assert heads[0]["ledger_head"] == heads[1]["ledger"]["head"] == Ledger(tmp_path / "ledger").heads()[-1]
    (tmp_path / "ledger").write_bytes(older)
    assert all(check.passed for check in verify(folder))
    assert {check.name for check in verify(later) if not check.passed} == {"ledger", "ledger chain"}
    (later / "operator" / "manifest.json").unlink()
    with pytest.raises(DataError, match="it was cut, or an older copy was put in its place"):
        run(configured(value), later, resume=True)
    with pytest.raises(DataError, match="it was cut, or an older copy was put in its place"):
        run(configured(value), tmp_path / "new")
    assert not (tmp_path / "new" / "operator" / "run.json").exists()


def test_a_ledger_and_its_head_from_one_backup_are_found_by_the_folder_and_the_public_manifest(tmp_path, value, capsys):
    value["output"]["ledger_budget"] = 5.0
    run(configured(value), tmp_path / "first")
    files = [tmp_path / "ledger", tmp_path / "ledger.head"]
    n_before = len(Ledger(files[0]).heads())
    later = run(configured(value), tmp_path / "second").folder
    lines, heads = files[0].read_bytes().splitlines(keepends=True), Ledger(files[0]).heads()
    older = [b"".join(lines[: n_before + 1]), heads[n_before].encode() + b"\n"]  # as the second run had begun
    show = ["ledger", "show", str(files[0]), "--manifest", str(later / "public" / "manifest.json")]
    assert main(show) == main([*show[:-1], str(later / "operator" / "manifest.json")]) == DONE
    for file, data in zip(files, older):
        file.write_bytes(data)
    (later / "operator" / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"by the head of its chain in .*/second/operator/ledger.head"):
        run(configured(value), later, resume=True)
    capsys.readouterr()
    assert main(show) == 1
    assert "lacks the entry that" in capsys.readouterr().out
    assert run(configured(value), tmp_path / "third").exit_code == DONE  # nothing here can know


@pytest.mark.parametrize("lost", [slice(0, -1), slice(0, 2), slice(0, 0)])
def test_a_ledger_that_lacks_its_end_begins_no_run(tmp_path, value, lost):
    value["output"]["ledger_budget"] = 5.0
    run(configured(value), tmp_path / "first")
    lines = (tmp_path / "ledger").read_text().splitlines(keepends=True)
    (tmp_path / "ledger").write_text("".join(lines[lost]))
    with pytest.raises(DataError, match="put the latest copy back"):
        run(configured(value), tmp_path / "second")
    assert not (tmp_path / "second" / "operator" / "run.json").exists()


def test_a_ledger_without_its_head_begins_and_continues_no_run(tmp_path, value, capsys):
    value["output"]["ledger_budget"] = 5.0
    first = run(configured(value), tmp_path / "first").folder
    (tmp_path / "ledger.head").unlink()
    (first / "operator" / "manifest.json").unlink()
    for folder, resume in ((tmp_path / "second", False), (first, True)):
        with pytest.raises(DataError, match=r"ledger.head: is missing"):
            run(configured(value), folder, resume=resume)
    assert main(["ledger", "show", str(tmp_path / "ledger"), "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert "is missing" in shown["faults"][0]
    (tmp_path / "ledger.head").write_text(shown["head"] + "\n")
    assert run(configured(value), first, resume=True).exit_code == DONE
    (first / "operator" / "ledger.head").unlink()
    (first / "operator" / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"operator/ledger.head: is missing"):
        run(configured(value), first, resume=True)


def test_a_head_that_a_killed_writer_left_out_is_made_again(tmp_path):
    ledger = Ledger(tmp_path / "ledger", run="a", own_head=tmp_path / "own.head")
    one, other = (charge(start, 1, 0.5, "a", start) for start in (1, 2))
    ledger.append([one])
    heads = [tmp_path / "ledger.head", tmp_path / "own.head"]
    behind = [head.read_bytes() for head in heads]
    ledger.append([other])
    ahead = [head.read_bytes() for head in heads]
    assert ahead == [Ledger(tmp_path / "ledger").heads()[-1].encode() + b"\n"] * 2
    for head, data in zip(heads, behind):
        head.write_bytes(data)
    again = Ledger(tmp_path / "ledger", run="a", own_head=tmp_path / "own.head")
    assert again.append([other]) == []
    assert [head.read_bytes() for head in heads] == ahead
    # A writer killed at its first entry, too: the head was there before.
    for path in tmp_path.iterdir():
        path.unlink()
    Ledger(tmp_path / "ledger", run="a", own_head=tmp_path / "own.head").append([one])
    for head in heads:
        head.write_bytes(b"0" * 64 + b"\n")
    assert Ledger(tmp_path / "ledger", run="a").append([one]) == []
    assert heads[0].read_text().strip() == Ledger(tmp_path / "ledger").heads()[-1]


def test_a_ledger_that_is_cut_while_a_run_goes_on_stops_it(tmp_path):
    ledger = Ledger(tmp_path / "ledger", run="a")
    ledger.append([charge(1, 1, 0.5, "a", 1)])
    Ledger(tmp_path / "ledger").append([charge(2, 1, 0.5, "b", 2)])
    lines = (tmp_path / "ledger").read_bytes().splitlines(keepends=True)
    (tmp_path / "ledger").write_bytes(lines[0])
    with pytest.raises(DataError, match="it was cut"):
        ledger.append([charge(3, 1, 0.5, "a", 3)])


def test_a_ledger_of_the_version_before_counts_and_goes_on(tmp_path, value):
    run(configured(value), tmp_path / "first")
    lines = [json.loads(line) for line in (tmp_path / "ledger").read_text().splitlines()]
    old = [
        {k: v for k, v in line.items() if k not in ("run", "reach", "chain")} for line in lines if "entry" not in line
    ]
    text = "".join(json.dumps(line) + "\n" for line in old)
    (tmp_path / "ledger").write_text(text)
    (tmp_path / "ledger.head").unlink()
    second = run(configured(changed(value, on_exhausted="repeat")), tmp_path / "second")
    assert set(actions(second)) == {"refused"}
    assert (tmp_path / "ledger").read_text().startswith(text)
    assert len(Ledger(tmp_path / "ledger").heads()) == 6 + 2 + 6


def test_show_sums_by_period_and_unit(tmp_path, value, capsys):
    value["output"]["ledger_budget"] = 2.0
    for name in ("one", "other"):
        run(configured(changed(value, end=9)), tmp_path / name)
    assert main(["ledger", "show", str(tmp_path / "ledger"), "--json"]) == DONE
    shown = json.loads(capsys.readouterr().out)
    assert (
        shown["terms"]["unit"] == "one user's events in 1h from the start of any charged window, and in all "
        "landmarks of all time"
    )
    assert [row["spent"] for row in shown["periods"]] == [pytest.approx(2.0)]
    assert len(shown["runs"]) == 2
    assert main(["ledger", "show", str(tmp_path / "ledger")]) == DONE
    text = capsys.readouterr().out
    assert "period    from 2024-01-01T00:00:00Z: 18 charges, 2 spent, 0 left" in text
    (tmp_path / "ledger").write_text((tmp_path / "ledger").read_text().replace("0.5", "0.1", 1))
    assert main(["ledger", "show", str(tmp_path / "ledger")]) == 1
    assert main(["ledger", "show", str(tmp_path / "none")]) == 1


def test_a_public_manifest_has_no_paths(tmp_path, value):
    folder = run(configured(value), tmp_path / "first").folder
    public = (folder / "public" / "manifest.json").read_text()
    assert str(tmp_path) not in public
    assert json.loads(public)["configuration"]["output"]["ledger"] == "ledger"
    simulated = changed(value, mode="simulation", noise_key=None)
    assert str(tmp_path) not in (run(configured(simulated), tmp_path / "s").folder / "public/manifest.json").read_text()


# The arithmetic, against a plain count over all stretches.

COUNTED = Terms(source="", unit="", adjacency="", measure="epsilon", budget=1.0, span=3)


def charge(start: int, length: int, cost: float, run: str = "other", window: int = 1, landmark: bool = False) -> Charge:
    return Charge("main", window, start, start + length, cost, 0.0, landmark, "c", "d", run, start + 3 * length)


CHARGES = st.lists(
    st.builds(charge, st.integers(0, 12), st.integers(1, 3), st.sampled_from([0.0, 0.25, 0.5, math.inf])), max_size=12
)


@pytest.mark.parametrize("event", [PureDP(0.5), Additive("laplace", 1.0, 2.0), Additive("gaussian", 1.0, 2.0)])
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_in_rho_a_part_of_a_window_costs_what_a_replacement_does(event: Event, factor: float) -> None:
    terms = replace(COUNTED, measure="rho")
    one = replace(charge(0, 3, pure_epsilon([event])), rho=concentrated_rho([event]), factor=factor)
    assert terms.cost(one) + terms.more_in_part(one) == pytest.approx(concentrated_rho([replaced(event)]))


def cost_of(charges: list[Charge], start: int, end: int) -> float:
    """Twice where the stretch cuts a window: its other events stay, and bounding may keep another of them."""
    met = [c for c in charges if c.window_start < end and c.window_end > start]
    return sum(c.epsilon * (1 + (c.window_start < start or c.window_end > end)) for c in met)


@settings(max_examples=300, deadline=None)
@given(charges=CHARGES, start=st.integers(0, 12), length=st.integers(1, 3))
def test_what_is_spent_is_the_dearest_stretch_that_meets_the_charge(charges, start, length):
    books, new = Books(COUNTED, "own"), charge(start, length, 0.5, "own")
    books.add(charges)
    stretches = [(c.window_start, c.reach) for c in [*charges, new]]
    # Its own cost comes in addition; not so what it counts for beyond that where a stretch cuts it.
    expected = max(
        cost_of([*charges, new], first, last) - 0.5
        for first, last in stretches
        if first < new.window_end and last > start
    )
    assert books.spent(new) == pytest.approx(expected)


@settings(max_examples=300, deadline=None)
@given(charges=CHARGES, marks=st.integers(0, 2**12), start=st.integers(0, 12), mark=st.booleans())
def test_all_landmarks_of_a_period_and_any_stretch_are_spent_together(charges, marks, start, mark):
    charges = [replace(c, landmark=bool(marks >> i & 1)) for i, c in enumerate(charges)]
    new = charge(start, 2, 0.5, "own", landmark=mark)
    books = Books(replace(COUNTED, landmarks=True), "own")
    books.add(charges)
    marked = [c for c in [*charges, new] if c.landmark]
    marked_time = {hour for m in marked for hour in range(m.window_start, m.window_end)}

    def inside(c: Charge) -> bool:
        return any(m.window_start < c.window_end and m.window_end > c.window_start for m in marked)

    def whole(c: Charge) -> bool:
        return set(range(c.window_start, c.window_end)) <= marked_time

    others = [c for c in charges if not inside(c)]
    stretches = [c for c in [*charges, new] if inside(new) or (c.window_start < new.window_end and c.reach > start)]
    beside = [*others, *([] if inside(new) else [new])]
    dearest = max((cost_of(beside, c.window_start, c.reach) for c in stretches), default=0.0)
    within = [c for c in [*charges, new] if inside(c)]
    # Its own cost comes in addition; not so what it counts for beyond that where the unit cuts it.
    everything = sum(c.epsilon * (1 if whole(c) else 2) for c in within) + dearest - 0.5
    assert books.spent(new) == pytest.approx(everything)


EACH_SIX_HOURS = LandmarkWindows(
    times=(), recurring=("02:00-03:00", "08:00-09:00"), step=HOUR, anchor=0, time_zone="UTC"
)


def unit_of(quarter: int, begin: int, stretch: tuple[int, int]) -> set[int]:
    """Quarters of an hour of a stretch and of all landmarks of the period in which it begins.

    Periods are six hours long, from ``begin`` on; all time before is one.
    """

    def period(of: int) -> int:
        return max(-1, (of - begin) // 24)

    hours = [hour for hour in (2, 8) if period(4 * hour) == period(quarter)]
    return {4 * hour + n for hour in hours for n in range(4)} | set(range(*stretch))


def dearest_unit(charges: list[Charge], begin: int) -> float:
    """What the dearest unit costs, by counting: twice what a charge costs of which only a part is in the unit."""
    quarter, found = HOUR // 4, [0.0]
    times = [set(range(c.window_start // quarter, c.window_end // quarter)) for c in charges]
    for begun in charges:
        stretch = (begun.window_start // quarter, begun.reach // quarter)
        unit = unit_of(stretch[0], begin, stretch)
        found.append(sum(c.epsilon * (1 + (not own <= unit)) for c, own in zip(charges, times) if own & unit))
    return max(found)


@settings(max_examples=300, deadline=None)
@given(
    asked=st.lists(
        st.tuples(st.integers(0, 44), st.integers(2, 8), st.sampled_from([0.25, 0.5, 1.0]), st.integers(0, 2)),
        max_size=14,
    ),
    begin=st.sampled_from([0, 6, 9, 11, 24, 34]),
)
def test_no_unit_costs_more_than_the_budget_in_whatever_order_runs_charge(asked, begin):
    """Windows of 30 to 120 minutes and landmarks from 2 to 3 and 8 to 9, which periods may begin within."""
    terms = replace(
        COUNTED,
        landmarks=True,
        span=2 * HOUR,
        period=6 * HOUR,
        period_begin=begin * HOUR // 4,
        landmark_windows=EACH_SIX_HOURS,
        budget=2.0,
    )
    books, charges = Books(terms), list[Charge]()
    for number, (quarter, n_quarters, cost, other) in enumerate(asked):
        start, end = quarter * HOUR // 4, (quarter + n_quarters) * HOUR // 4
        one = Charge("main", number, start, end, cost, 0.0, False, "c", "d", f"run {other}", start + 2 * HOUR)
        if books.spent(one) + cost > terms.budget:
            continue
        assert dearest_unit([*charges, one], begin) <= terms.budget
        charges.append(one)
        books.add([one])
    # More where a window goes beyond a landmark into the stretch, which both together hold whole.
    assert max((row["spent"] for row in books.summary()), default=0.0) >= dearest_unit(charges, begin) - 1e-9


def test_terms_of_an_earlier_version_are_read():
    """They say neither which windows are landmarks nor which column names the user."""
    entry = json.loads(json.dumps(replace(COUNTED, landmarks=True, landmark_windows=EACH_SIX_HOURS).entry()))
    stated = Terms.of_entry(entry)
    assert stated.landmark_windows is not None
    assert stated.landmark_windows.within(0, 10 * HOUR).tolist() == [[2 * HOUR, 3 * HOUR], [8 * HOUR, 9 * HOUR]]
    for name in ("landmark_windows", "person"):
        entry.pop(name)
    assert Terms.of_entry(entry) == replace(COUNTED, landmarks=True)


LANDMARK_RUN = {"mechanism": UNIFORM, "on_exhausted": "repeat"}


def begun_and_released(tmp_path: Path, value: dict[str, Any], order: list[str]) -> dict[str, list[str]]:
    """What a run with landmarks at hours 1 and 4 and one without any release, in an order; the first has begun."""
    from penstock.pipeline.output import checkpoint
    from penstock.pipeline.releasing.release import ReleaseLoop

    value["output"]["ledger_budget"] = 1.0
    runs = {
        "landmarks": changed(value, landmarks={"windows": [2, 5]}, **LANDMARK_RUN),
        "plain": changed(value, mechanism=PLAIN | {"epsilon": 0.5}, on_exhausted="repeat", **COMPOSED),
    }
    plans = {name: make_plan(configured(own), tmp_path / name, name.encode()) for name, own in runs.items()}
    for plan in plans.values():
        checkpoint.begin(plan)
    found = {}
    for name in order:
        loop, ledger = ReleaseLoop(plans[name]), checkpoint.open_ledger(plans[name], strict=True)
        counts = np.zeros((6, plans[name].grid.n_cells), int)
        batch, _ = ledger.charge(lambda limit: loop.advance(loop.start(), 1, counts, limit))  # noqa: B023
        found[name] = [release.action for release in batch.releases]
    return found


@pytest.mark.parametrize("order", [["plain"], ["plain", "landmarks"], ["landmarks", "plain"]])
def test_landmarks_are_known_before_any_run_has_charged_them(tmp_path, value, order):
    begun_and_released(tmp_path, value, order)
    charges = list(Ledger(tmp_path / "ledger"))
    first = charges[0].window_start
    hours: dict[int, float] = {}
    for one in charges:
        hour = (one.window_start - first) // HOUR
        hours[hour] = hours.get(hour, 0.0) + one.epsilon
    assert hours.pop(1) + hours.pop(4) + max(hours.values()) <= 1.0 + 1e-9


def test_a_block_is_charged_as_the_landmarks_in_it(tmp_path, value):
    value["output"]["ledger_budget"] = 1.0
    blocks = {"type": "fpa", "epsilon": 0.25, "block": 3, "coefficients": 1, "noise": "discrete_laplace"}
    own = changed(
        value,
        landmarks={"windows": [2, 5]},
        bounding={"max_cells": 1, "max_windows": 1},
        mechanism=blocks,
        accountants=[{"type": "landmark_budget", "budget": 1.0}],
        on_exhausted="repeat",
    )
    assert set(actions(run(configured(own), tmp_path / "one"))) == {"published"}  # two blocks, each as a replacement
    assert set(actions(run(configured(own), tmp_path / "two"))) == {"refused"}


@pytest.mark.parametrize(("begin", "end"), [(0, 6), (6, 12)])
def test_all_of_a_day_is_its_period_also_where_the_first_run_begins_in_it(tmp_path, value, begin, end):
    value["output"]["ledger_budget"] = 1.0
    first = changed(value, 6, 12, mechanism=UNIFORM | {"epsilon": 1e-6}, budget_period="1d", allow_empty=True)
    run(configured(first), tmp_path / "first")
    plain = {"mechanism": PLAIN | {"epsilon": 0.75}, "on_exhausted": "repeat", "allow_empty": True, **COMPOSED}
    found = [actions(run(configured(changed(value, begin, end, **plain)), tmp_path / name)) for name in "ab"]
    assert found[0].count("published") >= 1
    assert found[1] == ["refused"] * 6


def test_a_landmark_that_goes_on_in_the_next_period_is_one_there(tmp_path, value):
    """From 21 to 4 o'clock: the hours after midnight are in it, and together may cost no more than the budget."""
    from penstock.pipeline.output import checkpoint

    value["output"] |= {"ledger_budget": 1.0, "ledger_span": "1h"}
    night = {"windows": {"type": "fixed", "size": "7h"}, "landmarks": {"windows": [4]}, "budget_period": "1d"}
    own = changed(value, mechanism=UNIFORM, **night)
    own["source"] |= {"until": "2024-01-03T01:00:00Z"}
    checkpoint.begin(make_plan(configured(own), tmp_path / "night", b"night"))
    plain = {"mechanism": PLAIN | {"epsilon": 0.75}, "on_exhausted": "repeat", "allow_empty": True, **COMPOSED}
    hours = changed(value, **plain)
    hours["source"] |= {"from": "2024-01-02T00:00:00Z", "until": "2024-01-02T04:00:00Z"}
    assert actions(run(configured(hours), tmp_path / "hours")) == ["published", "refused", "refused", "refused"]
    assert [row["spent"] for row in overview(tmp_path / "ledger")["periods"]] == [0.75, 0.75]


def test_a_run_has_room_on_its_own_ledger_where_the_clocks_are_put_back(tmp_path, value):
    """A window of 25 hours that ends at noon has a part of the next day, whose landmarks cost the whole budget."""
    from penstock.pipeline.output import checkpoint
    from penstock.pipeline.releasing.release import ReleaseLoop

    windows = {"type": "fixed", "size": "1d", "time_zone": "Europe/Berlin", "origin": "2024-10-25T10:00:00Z"}
    days = {"budget_period": "2d", "landmarks": {"windows": [3, 4]}}
    own = changed(value, mechanism=UNIFORM, windows=windows, **days)
    own["source"] |= {"from": "2024-10-25T10:00:00Z", "until": "2024-10-31T10:00:00Z"}
    plan = make_plan(configured(own), tmp_path / "one", b"one")
    assert plan.grid.calendar.end(2) - plan.grid.calendar.start(2) == 25 * HOUR
    checkpoint.begin(plan)
    loop = ReleaseLoop(plan)
    counts = np.zeros((plan.grid.n_windows, plan.grid.n_cells), int)
    batch, _ = checkpoint.open_ledger(plan, strict=True).charge(
        lambda limit: loop.advance(loop.start(), 1, counts, limit)
    )
    assert [release.action for release in batch.releases] == ["published"] * 6


def test_a_stretch_goes_on_in_the_next_budget_period(tmp_path, value):
    value["output"] |= {"ledger_budget": 1.0, "ledger_span": "3h"}
    tiny = {"landmarks": {"windows": [1]}, "budget_period": "3h", "mechanism": UNIFORM | {"epsilon": 1e-6}}
    run(configured(changed(value, end=1, **tiny)), tmp_path / "one")
    plain = changed(value, begin=1, mechanism=PLAIN | {"epsilon": 0.49}, on_exhausted="repeat", **COMPOSED)
    released = actions(run(configured(plain), tmp_path / "two"))
    assert released == ["published", "published", "refused", "published", "published"]


def test_a_stretch_that_cuts_a_window_costs_its_part(tmp_path, value):
    """In 90 minutes from a window's start there is half of the next one, which counts as a replacement."""
    value["output"] |= {"ledger_budget": 0.5, "ledger_span": "90m"}
    own = changed(value, mechanism=PLAIN | {"epsilon": 0.25}, on_exhausted="repeat", **COMPOSED)
    assert actions(run(configured(own), tmp_path / "one")) == ["published", "refused"] * 3


def test_one_person_is_the_same_in_all_runs_of_a_ledger(tmp_path, value):
    path = tmp_path / "events.csv"
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([f"{header},trip", *(f"{row},{number}" for number, row in enumerate(rows))]) + "\n")
    own = changed(value, mechanism=PLAIN, on_exhausted="repeat", **COMPOSED)
    checkpoint_of(own, tmp_path / "one")
    source = own["source"] | {"columns": own["source"]["columns"] | {"user": "trip"}}
    with pytest.raises(ConfigError, match=r"another user column \(user\) than the configuration \(trip\)"):
        checkpoint_of(own | {"source": source}, tmp_path / "two")


def checkpoint_of(own: dict[str, Any], folder: Path) -> None:
    """Begin a run."""
    from penstock.pipeline.output import checkpoint

    checkpoint.begin(make_plan(configured(own), folder, folder.name.encode()))


def test_a_window_is_not_charged_for_two_inputs_by_a_run_that_was_not_continued(tmp_path, value):
    from penstock.pipeline.output import checkpoint
    from penstock.pipeline.releasing.release import ReleaseLoop

    plan = make_plan(configured(changed(value, mechanism=PLAIN, **COMPOSED)), tmp_path / "one", b"one")
    checkpoint.begin(plan)
    for n_people in (0, 1):
        ledger, loop = checkpoint.open_ledger(plan, strict=False), ReleaseLoop(plan)
        counts = np.full((1, plan.grid.n_cells), n_people)
        with nullcontext() if n_people == 0 else pytest.raises(DataError, match="is not what it was"):
            ledger.charge(lambda limit: loop.advance(loop.start(), 1, counts, limit))  # noqa: B023


@pytest.mark.parametrize("cost", [math.nan, -1.0])
def test_a_charge_is_a_number_that_is_not_negative(cost):
    with pytest.raises(ValueError, match="neither is negative, or no number"):
        charge(0, 1, cost)


def test_a_sum_that_is_no_number_is_not_within_the_budget(tmp_path, value):
    value["output"]["ledger_budget"] = 1.0
    plan = make_plan(configured(changed(value, mechanism=PLAIN, **COMPOSED)), nonce=b"a run")
    limit, window = Limit(plan, terms_of(plan)), plan.grid.windows(1, 1)[0]
    huge = Charge("main", 1, window.start, window.end, 1e308, 0.5, False, "c", "d", "another", window.end)
    with np.errstate(all="ignore"):
        limit.add([replace(huge, run=f"run {n}") for n in range(3)])
        with pytest.raises(BudgetExceeded):
            limit.admit(replace(huge, epsilon=0.5))


def test_a_step_without_a_charge_keeps_the_head_of_what_others_have_charged(tmp_path):
    ledger, other = (Ledger(tmp_path / "ledger", own_head=tmp_path / name / "head") for name in ("one", "other"))
    for name, own in (("one", ledger), ("other", other)):
        (tmp_path / name).mkdir()
        own.begin(lambda _: [])
    ledger.append([charge(0, 1, 0.5)])
    other.append([charge(1, 1, 0.5)])
    ledger.charge(lambda limit: (Batch((), ()), b""))
    other.append([charge(2, 1, 0.5)])
    assert len(ledger.append([charge(3, 1, 0.5)])) == 1
    assert len(ledger.whole()) == 4


def test_a_last_line_without_its_end_is_kept_if_it_is_whole(tmp_path):
    path = tmp_path / "ledger"
    Ledger(path).append([charge(0, 1, 0.5), charge(1, 1, 0.5)])
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert len(Ledger(path).whole()) == 2
    assert len(Ledger(path).append([charge(2, 1, 0.5)])) == 1
    assert len(Ledger(path).whole()) == 3
    path.write_bytes(path.read_bytes() + b'{"stream": "ma')
    assert len(Ledger(path).append([charge(3, 1, 0.5)])) == 1
    assert len(Ledger(path).whole()) == 4


def test_what_is_decided_of_a_window_stays_whatever_others_charge_later(tmp_path, value):
    plan = make_plan(configured(changed(value, mechanism=PLAIN, **COMPOSED)), nonce=b"a run")
    limit = Limit(plan, terms_of(plan))
    window = plan.grid.windows(1, 1)[0]
    worst = plan.mechanism.worst_charge(window, plan.mechanism.start(plan.facts()))
    limit.check(window, worst)
    own = limit.admit(Charge("main", 1, window.start, window.end, 1.0, 0.5, False, "c", "d"))
    later = replace(own, run="another", data="e")
    again = Limit(plan, terms_of(plan))
    again.books.add([later, own])
    again.check(window, worst)  # a retry: it is charged already
    fresh = Limit(plan, terms_of(plan))
    fresh.books.add([later])
    with pytest.raises(Exception, match="exceeds the budget 1 of the ledger"):
        fresh.check(window, worst)


def test_runs_at_the_same_time_do_not_pass_the_budget_together(tmp_path, value):
    """Two loops on one ledger, window by window in any order: neither sees less than the other has charged."""
    value["output"]["ledger_budget"] = 1.0
    plans = []
    for name in ("one", "other"):
        config = configured(changed(value, mechanism=PLAIN | {"epsilon": 0.75}, on_exhausted="repeat", **COMPOSED))
        plans.append(make_plan(config, tmp_path / name, name.encode()))
    from penstock.pipeline.output import checkpoint
    from penstock.pipeline.releasing.release import ReleaseLoop

    loops = []
    for plan in plans:
        checkpoint.begin(plan)
        loop = ReleaseLoop(plan)
        loops.append([plan, loop, loop.start(), checkpoint.open_ledger(plan, strict=False), 1])
    order = [0] * 6 + [1] * 6
    random.Random(1).shuffle(order)
    for which in order:
        plan, loop, state, ledger, number = loops[which]
        counts = np.zeros((1, plan.grid.n_cells), int)
        _, state = ledger.charge(lambda limit: loop.advance(state, number, counts, limit))  # noqa: B023
        loops[which][2], loops[which][4] = state, number + 1
    totals: dict[int, float] = {}
    for charge in Ledger(tmp_path / "ledger"):
        totals[charge.window] = totals.get(charge.window, 0.0) + charge.epsilon
    assert set(totals.values()) == {0.75}


def test_fast_has_the_budget_of_its_period_and_not_of_a_window(tmp_path, value):
    fast = COMPOSED | {"mechanism": {"type": "fast", "epsilon": 1.0, "publications": 4}}
    assert terms_of(make_plan(configured(changed(value, **fast)), nonce=b"a run")).budget == 1.0
    daily = make_plan(configured(changed(value, **fast, budget_period="3h")), nonce=b"a run")
    assert (terms_of(daily).budget, terms_of(daily).span) == (2.0, 3 * 3_600_000)
    spent = []
    for begin in (0, 1, 2, 3):
        run(configured(changed(value, begin=begin, **fast, on_exhausted="repeat")), tmp_path / str(begin))
        spent.append(charged(tmp_path))
    assert max(spent) <= 1.0
