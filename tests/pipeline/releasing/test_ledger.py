"""The ledger of an event source: one enforced, chained budget for all runs and configurations."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import secrets
import shutil
import signal
from contextlib import nullcontext, suppress
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
import pytest

from penstock.mechanisms.core.plugin import ConfigError, DataError
from penstock.pipeline import DONE, STOPPED
from penstock.pipeline.cli.ledger import _lines
from penstock.pipeline.cli.main import main
from penstock.pipeline.config.plan import make_plan, state_folder
from penstock.pipeline.monitoring.verify import verify
from penstock.pipeline.output import checkpoint, registration
from penstock.pipeline.output.registration import ledger_terms
from penstock.pipeline.releasing.ledger import Ledger
from penstock.pipeline.releasing.terms import Terms
from penstock.pipeline.reporting.data_protection import write_statement
from penstock.pipeline.reporting.result import Result
from penstock.pipeline.windows.calendar import format_time
from tests.tools.deployments import LATITUDE, LONGITUDE, configured, sections
from tests.tools.ledgers import charges_in, ledger_of
from tests.tools.small_configuration import run_locally as run

HOUR = 3_600_000
DAY = "2024-01-01T00:00:00Z"


@pytest.fixture
def value(tmp_path: Path) -> dict[str, Any]:
    """Deployment over six hours at ε = 1, with a new ledger."""
    actual = sections(tmp_path)
    actual["output"].pop("ledger_budget")
    actual["output"] |= {"ledger": str(tmp_path / "ledger"), "ledger_source": "events", "report": False}
    return actual


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
    return sum(charge.epsilon for charge in charges_in(folder / "ledger"))


UNIFORM = {"type": "landmark_uniform", "epsilon": 1.0}
PLAIN = {"type": "discrete_laplace", "epsilon": 1.0}
W_EVENT = {"type": "w_event_uniform", "epsilon": 1.0, "w": 3}
COMPOSED: dict[str, Any] = {"landmarks": None, "accountants": [{"type": "composition"}]}


@pytest.mark.parametrize(
    ("changes", "runner"),
    [
        ({"mechanism": UNIFORM}, "direct"),
        ({"mechanism": PLAIN} | COMPOSED, "local"),
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
    """Windows after the stop are counted and repeat no release."""
    path = tmp_path / "events.csv"
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *rows, *rows[:3]]) + "\n")
    if runner == "stream":
        value["source"] = {"type": "stream", "of": value["source"]}
        times = {name: value["source"]["of"].pop(name) for name in ("from", "until")}
        value["source"] |= times
    results = [run(configured(value), tmp_path / n, "local" if runner == "local" else "direct") for n in "ab"]
    assert [result.exit_code for result in results] == [DONE, STOPPED]
    actual = [result.manifest["rows"] for result in results]
    assert actual[0]["duplicates"] == 3
    assert actual[0] == actual[1]


def test_the_command_ends_with_exit_code_3(tmp_path, value, capsys):
    (tmp_path / "run.yaml").write_text(json.dumps(value))
    command = ["run", str(tmp_path / "run.yaml"), "--quiet", "--out"]
    assert main([*command, str(tmp_path / "one")]) == DONE
    assert main([*command, str(tmp_path / "other")]) == STOPPED


def test_a_w_event_schedule_that_begins_afresh_counts_what_the_run_before_has_charged(tmp_path, value):
    configuration = COMPOSED | {"mechanism": W_EVENT, "on_exhausted": "repeat"}
    first = run(configured(changed(value, 0, 3, **configuration)), tmp_path / "first")
    # Hours 2 and 3 overlap any three hours that begin with them: the run after them may not spend as if it were first.
    configuration["mechanism"] = W_EVENT | {"w": 1, "epsilon": 1.0}
    second = run(configured(changed(value, 3, 7, **configuration)), tmp_path / "second")
    assert actions(first) == ["published"] * 3
    assert actions(second) == ["refused", "refused", "published", "refused"]
    costs = [0.0] * 7
    for posting in Ledger(tmp_path / "ledger").postings():
        costs[(posting.slot - 1) % 24] += posting.charge.epsilon
    assert max(sum(costs[i : i + 3]) for i in range(5)) <= 1 + 1e-9


def test_a_budget_for_several_runs_is_stated_by_the_configuration(tmp_path, value):
    value["output"]["ledger_budget"] = 2.0
    results = [run(configured(changed(value, on_exhausted="repeat")), tmp_path / str(n)) for n in range(3)]
    assert [set(actions(result)) for result in results] == [{"published"}, {"published"}, {"refused"}]


def test_a_run_over_a_span_that_is_charged_says_so_before_it_starts(tmp_path, value, caplog):
    value["output"]["ledger_budget"] = 5.0
    run(configured(value), tmp_path / "first")
    assert not caplog.messages
    run(configured(value), tmp_path / "second")
    assert "1 other run of the same input over this span began before" in caplog.messages[0]
    (tmp_path / "events.csv").write_text((tmp_path / "events.csv").read_text().replace("T03:10", "T03:11"))
    run(configured(value), tmp_path / "third")
    assert "2 other runs of other input over this span began before" in caplog.messages[1]


def test_traces_count_run_by_run(tmp_path, value):
    configuration = {
        "windows": {"type": "timestamps"},
        "landmarks": None,
        "bounding": None,
        "accountants": [],
        "mechanism": {"type": "planar_laplace", "epsilon": 0.01},
    }
    with (tmp_path / "events.csv").open("a") as file:
        file.write(f"somebody,2024-01-01T07:10:00Z,{LATITUDE},{LONGITUDE}\n")
    assert run(configured(changed(value, **configuration)), tmp_path / "first").exit_code == DONE
    (tmp_path / "run.yaml").write_text(json.dumps(changed(value, **configuration)))
    assert main(["run", str(tmp_path / "run.yaml"), "--quiet", "--out", str(tmp_path / "second")]) == STOPPED
    assert run(configured(changed(value, 6, 9, **configuration)), tmp_path / "later").exit_code == DONE
    with pytest.raises(ConfigError, match="counts and traces need a ledger each"):
        run(configured(value), tmp_path / "counts")


@pytest.mark.parametrize(("begin", "ended"), [("05:59:59.999", STOPPED), ("06:00:00", DONE)])
def test_a_run_of_traces_is_charged_up_to_the_last_quarter_of_an_hour_that_it_meets(tmp_path, value, begin, ended):
    configuration = changed(value, **TRACE_RUN, mechanism={"type": "planar_laplace", "epsilon": 0.01})
    assert run(configured(configuration), tmp_path / "first").exit_code == DONE
    source = configuration["source"] | {"from": f"2024-01-01T{begin}Z", "until": at(9)}
    with (tmp_path / "events.csv").open("a") as file:
        file.write(f"somebody,2024-01-01T07:10:00Z,{LATITUDE},{LONGITUDE}\n")
    (tmp_path / "run.yaml").write_text(json.dumps(configuration | {"source": source}))
    assert main(["run", str(tmp_path / "run.yaml"), "--quiet", "--out", str(tmp_path / "second")]) == ended


TRACE_RUN = {"windows": {"type": "timestamps"}, "landmarks": None, "bounding": None, "accountants": []}


def test_traces_go_on_with_the_input_that_they_began_with_and_no_other(tmp_path, value):
    """They go on under their first nonce."""
    config = configured(
        changed(value, **TRACE_RUN, mechanism={"type": "planar_laplace", "epsilon": 0.01}, on_exhausted="stop")
    )
    nonce = checkpoint.nonce_of_run(config, tmp_path / "run", resume=False)
    checkpoint.begin(make_plan(config, tmp_path / "run", nonce))
    events = (tmp_path / "events.csv").read_text()
    (tmp_path / "events.csv").write_text(events.replace("T03:10", "T03:11"))
    with pytest.raises(DataError, match="the input of window 1 is not what it was"):
        run(config, tmp_path / "run", resume=True)
    (tmp_path / "events.csv").write_text(events)
    assert run(config, tmp_path / "run", resume=True).exit_code == DONE


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
    configuration = TRACE_RUN | landmarks | {"mechanism": mechanism} | other
    with (tmp_path / "events.csv").open("a") as file:
        file.write(f"somebody,2024-01-01T07:10:00Z,{LATITUDE},{LONGITUDE}\n")
    assert run(configured(changed(value, **configuration)), tmp_path / "first").exit_code == DONE
    (tmp_path / "run.yaml").write_text(
        json.dumps(changed(value, 6, 9, **configuration))
    )  # another span of the same day
    ended = main(["run", str(tmp_path / "run.yaml"), "--quiet", "--out", str(tmp_path / "later")])
    assert ended == (STOPPED if shared else DONE)


def test_budget_periods_of_traces_begin_where_those_of_the_ledger_do(tmp_path, value):
    mechanism = {"type": "landmark_uniform", "noise": "planar_laplace", "epsilon": 1.0}
    configuration = TRACE_RUN | {
        "landmarks": {"recurring": ["01:00-02:00"]},
        "mechanism": mechanism,
        "budget_period": "6h",
    }
    configuration["allow_empty"] = True
    with (tmp_path / "events.csv").open("a") as file:
        file.write(f"somebody,2024-01-01T10:10:00Z,{LATITUDE},{LONGITUDE}\n")
    assert run(configured(changed(value, **configuration)), tmp_path / "first").exit_code == DONE
    with pytest.raises(ConfigError, match="another budget period"):
        run(configured(changed(value, 9, 12, **configuration)), tmp_path / "later")
    with pytest.raises(ConfigError, match="another unit"):
        run(configured(changed(value, 12, 15, **configuration | {"budget_period": "12h"})), tmp_path / "longer")


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
    for folder, resume in ((later, True), (tmp_path / "third", False)):
        with pytest.raises(DataError, match=r"has 9 of the 15 entries that .* knows of: an older copy was put in its"):
            run(configured(value), folder, resume=resume)
    for notes in (tmp_path / "noise.key.ledgers", state_folder() / "ledgers.json"):
        notes.unlink()
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


@pytest.mark.parametrize(
    ("budget", "spent", "end"),
    [
        (1.0, sum([0.1] * 10), ", 0 left"),
        (1.0, 1.5, ", 0 left"),
        (1.0, 0.75, ", 0.25 left"),
        (1e-12, 5e-13, ", 5e-13 left"),
        (float("inf"), 1.0, "1 spent (even odds become 73.2 %)"),
    ],
)
def test_what_is_left_of_a_budget_is_rounded_and_nothing_is_said_without_one(budget, spent, end):
    terms = {"budget": budget, "source": "taps", "unit": "a day", "adjacency": "add or remove", "measure": "epsilon"}
    periods = [{"from": "2024-05-01T00:00:00Z", "charges": 10, "spent": spent}]
    shown = {"entries": 11, "head": "0", "faults": [], "terms": terms, "runs": [], "periods": periods}
    (line,) = (line for line in _lines(shown | {"series": None, "choices": None}) if line.startswith("period"))
    assert line.endswith(end)


def test_show_sums_by_period_and_unit(tmp_path, value, capsys):
    value["output"]["ledger_budget"] = 2.0
    for name in ("one", "other"):
        run(configured(changed(value, end=9)), tmp_path / name)
    assert main(["ledger", "show", str(tmp_path / "ledger"), "--json"]) == DONE
    shown = json.loads(capsys.readouterr().out)
    unit = "one user's events in the landmark windows of all time and in any one other window of it"
    assert shown["terms"]["unit"] == unit
    assert [row["spent"] for row in shown["periods"]] == [pytest.approx(2.0)]
    assert len(shown["runs"]) == 2
    assert main(["ledger", "show", str(tmp_path / "ledger")]) == DONE
    text = capsys.readouterr().out
    assert "period    from 2024-01-01T00:00:00Z: 18 charges, 2 spent (even odds become 88.1 %), 0 left" in text
    shutil.copy(tmp_path / "ledger", tmp_path / "copy")
    # The copy stands without its head, which is a fault.
    assert main(["ledger", "show", *(str(tmp_path / name) for name in ("ledger", "copy", "ledger"))]) == 1
    assert "together  at most 2 (epsilon)" in capsys.readouterr().out  # one ledger, however often it is given
    # Each of nine windows costs 0.5 in both runs; no unit has more than four of them.
    ends = {"from": "2024-01-01T00:00:00Z", "until": "2024-01-01T09:00:00Z", "charges": 18}
    assert shown["series"] == ends | {"measure": "epsilon", "sum": 9.0, "sum_of_30_days": 9.0}
    # The manifest of the second run and the statement made of it have the same figures.
    public = json.loads((tmp_path / "other" / "public" / "manifest.json").read_text())
    assert public["ledger_series"] == shown["series"]
    page = write_statement(tmp_path / "other").read_text()
    assert "By all releases, 2024-01-01T00:00:00Z to 2024-01-01T09:00:00Z</th><td>9</td>" in page
    assert "By those of the last 30 days of these</th><td>9</td>" in page
    text_of_error = "9 (even odds become over 99.9 %)"
    assert text.endswith(
        f"throughout has lost at most\n          {text_of_error} in all, and {text_of_error} in the last 30 days\n"
    )
    (tmp_path / "ledger").write_text((tmp_path / "ledger").read_text().replace("0.5", "0.1", 1))
    assert main(["ledger", "show", str(tmp_path / "ledger")]) == 1
    assert main(["ledger", "show", str(tmp_path / "none")]) == 1


def hiding(windows: list[int], epsilon: float) -> dict[str, Any]:
    return {"windows": windows, "hidden": {"number": 2, "epsilon": epsilon}}


def test_a_choice_of_landmarks_is_charged_to_every_run_that_shows_it(tmp_path, value, capsys):
    value["output"] |= {"ledger_budget": 50.0, "ledger_span": "6h"}  # landmarks of runs may differ
    shown = None
    for name, landmarks, about_each in (
        ("one", hiding([2, 4, 5], 1.5), 1.5),
        ("again", hiding([5, 4, 2], 1.5), 3.0),  # drawn again, for all that is known
        ("other", hiding([1, 4, 6], 1.5), 4.5),
        ("none", {"windows": [3]}, 4.5),
    ):
        public = run(configured(changed(value, landmarks=landmarks)), tmp_path / name).folder / "public"
        manifest = json.loads((public / "manifest.json").read_text())
        assert manifest["ledger_choices"]["about_each"] == about_each
        assert ("hidden_landmarks" in manifest) == (name != "none")
        assert main(["ledger", "show", str(tmp_path / "ledger"), "--json"]) == DONE
        shown = json.loads(capsys.readouterr().out)
        assert shown["choices"] == manifest["ledger_choices"]
    assert shown["choices"] == {"choices": 3, "about_each": 4.5, "about_all": 9.0}
    first, *entries = Ledger(tmp_path / "ledger").entries()
    terms = Terms.of(first.values["terms"])
    slots = [entry.values["slots"] for entry in entries if entry.kind == "choice"]
    times = [[format_time(terms.start(slot)) for slot in of_run] for of_run in slots]
    assert times == [[at(window - 1) for window in windows] for windows in ([2, 4, 5], [2, 4, 5], [1, 4, 6])]
    # Four runs of six windows, a quarter of ε = 1 in each, half where one landmark is declared: the choice is no part.
    assert shown["series"]["sum"] == pytest.approx(6 * (3 / 4 + 1 / 2))
    assert main(["ledger", "show", str(tmp_path / "ledger")]) == DONE
    assert "chosen 3 times: 4.5 nats about each that hides, 9 about all" in capsys.readouterr().out
    page = write_statement(tmp_path / "one").read_text()
    assert "3 windows in which 2 private landmarks hide; the choice costs 1.5 nats about each and 3 about all." in page
    (tmp_path / "ledger").write_text(
        (tmp_path / "ledger").read_text().replace('"about_each": 1.5', '"about_each": 1', 1)
    )
    assert main(["ledger", "show", str(tmp_path / "ledger")]) == 1


def test_another_choice_is_refused_by_a_ledger_of_landmarks(tmp_path, value):
    value["output"]["ledger_budget"] = 50.0
    run(configured(changed(value, landmarks=hiding([2, 4], 1.5))), tmp_path / "one")
    with pytest.raises(ConfigError, match="window 5 is one of this run"):
        run(configured(changed(value, landmarks=hiding([2, 5], 1.5))), tmp_path / "other")


def test_a_public_manifest_has_no_paths(tmp_path, value):
    value["output"] |= {"path": str(tmp_path / "named_path"), "ledger": str(tmp_path / "named_ledger")}
    folder = run(configured(value)).folder
    public = (folder / "public" / "manifest.json").read_text()
    assert not any(name in public for name in (str(tmp_path), "named_path", "named_ledger"))
    assert json.loads(public)["configuration"]["output"]["ledger_source"] == "events"
    simulated = changed(value, mode="simulation", noise_key=None)
    assert str(tmp_path) not in (run(configured(simulated), tmp_path / "s").folder / "public/manifest.json").read_text()


LANDMARK_RUN = {"mechanism": UNIFORM, "on_exhausted": "repeat"}


def begun_and_released(tmp_path: Path, value: dict[str, Any], order: list[str]) -> dict[str, list[str]]:
    """Run two deployments in either order, with landmarks at hours 1 and 4 in the first."""

    value["output"]["ledger_budget"] = 1.0
    runs = {
        "landmarks": changed(value, landmarks={"windows": [2, 5]}, **LANDMARK_RUN),
        "plain": changed(value, mechanism=PLAIN | {"epsilon": 0.5}, on_exhausted="repeat", **COMPOSED),
    }
    plans = {
        name: make_plan(configured(configuration), tmp_path / name, name.encode())
        for name, configuration in runs.items()
    }
    for plan in plans.values():
        checkpoint.begin(plan)
    actual = {}
    for name in order:
        loop, ledger = plans[name].release_loop(), registration.open_ledger(plans[name])
        counts = np.zeros((6, plans[name].grid.n_cells), int)
        with ledger.transaction() as budget:
            batch, _ = loop.advance(loop.start(), 1, counts, budget)
        actual[name] = [release.action for release in batch.releases]
    return actual


@pytest.mark.parametrize("order", [["plain"], ["plain", "landmarks"], ["landmarks", "plain"]])
def test_landmarks_are_known_before_any_run_has_charged_them(tmp_path, value, order):
    begun_and_released(tmp_path, value, order)
    hours: dict[int, float] = {}
    for posting in Ledger(tmp_path / "ledger").postings():
        hour = (posting.slot - 1) % 24
        hours[hour] = hours.get(hour, 0.0) + posting.charge.epsilon
    assert hours.pop(1) + hours.pop(4) + max(hours.values()) <= 1.0 + 1e-9


def test_landmarks_of_another_day_have_to_be_those_of_the_ledger(tmp_path, value):
    """A listed landmark of day 2 would count as any other window there: as many runs would fit as there are others."""

    def day(begin: int, out: str, **landmarks: Any) -> Result:
        configuration = changed(
            value, begin, begin + 6, landmarks=landmarks, budget_period="6h", mechanism=UNIFORM, allow_empty=True
        )
        return run(configured(configuration), tmp_path / out, "local")

    assert day(0, "first", windows=[2, 5]).exit_code == 0
    with pytest.raises(ConfigError, match=r"landmarks: window 2 is one of this run, and not of .*recurring"):
        day(6, "second", windows=[2, 5])
    value["output"] |= {"ledger": str(tmp_path / "other"), "new_ledger": True}
    recurring = ["01:00-02:00", "07:00-08:00"]
    assert day(0, "third", recurring=recurring).exit_code == 0
    assert day(6, "fourth", recurring=recurring).exit_code == 0
    assert day(6, "fifth", recurring=recurring).exit_code == 3


def test_a_block_is_charged_as_the_landmarks_in_it(tmp_path, value):
    value["output"]["ledger_budget"] = 1.0
    blocks = {"type": "fpa", "epsilon": 0.25, "block": 3, "coefficients": 1, "noise": "discrete_laplace"}
    configuration = changed(
        value,
        landmarks={"windows": [2, 5]},
        bounding={"max_cells": 1, "max_windows": 1},
        mechanism=blocks,
        accountants=[{"type": "landmark_budget", "budget": 1.0}],
        on_exhausted="repeat",
    )
    assert set(actions(run(configured(configuration), tmp_path / "one"))) == {
        "published"
    }  # two blocks, each as a replacement
    assert set(actions(run(configured(configuration), tmp_path / "two"))) == {"refused"}


@pytest.mark.parametrize(("begin", "end"), [(0, 6), (6, 12)])
def test_all_of_a_day_is_its_period_also_where_the_first_run_begins_in_it(tmp_path, value, begin, end):
    value["output"]["ledger_budget"] = 1.0
    first = changed(value, 6, 12, mechanism=UNIFORM | {"epsilon": 1e-6}, budget_period="1d", allow_empty=True)
    run(configured(first), tmp_path / "first")
    plain = {"mechanism": PLAIN | {"epsilon": 0.75}, "on_exhausted": "repeat", "allow_empty": True, **COMPOSED}
    actual = [actions(run(configured(changed(value, begin, end, **plain)), tmp_path / name)) for name in "ab"]
    assert actual[0].count("published") >= 1
    assert actual[1] == ["refused"] * 6


def test_a_run_has_room_on_its_own_ledger_where_the_clocks_are_put_back(tmp_path, value):
    """A window of 25 hours that ends at noon has a part of the next day, whose landmarks cost the whole budget."""

    windows = {"type": "fixed", "size": "1d", "time_zone": "Europe/Berlin", "origin": "2024-10-25T10:00:00Z"}
    days = {"budget_period": "2d", "landmarks": {"windows": [3, 4]}}
    configuration = changed(value, mechanism=UNIFORM, windows=windows, **days)
    configuration["source"] |= {"from": "2024-10-25T10:00:00Z", "until": "2024-10-31T10:00:00Z"}
    plan = make_plan(configured(configuration), tmp_path / "one", b"one")
    assert plan.grid.calendar.end(2) - plan.grid.calendar.start(2) == 25 * HOUR
    checkpoint.begin(plan)
    loop = plan.release_loop()
    counts = np.zeros((plan.grid.n_windows, plan.grid.n_cells), int)
    with registration.open_ledger(plan).transaction() as budget:
        batch, _ = loop.advance(loop.start(), 1, counts, budget)
    assert [release.action for release in batch.releases] == ["published"] * 6


def test_a_stretch_goes_on_in_the_next_budget_period(tmp_path, value):
    value["output"] |= {"ledger_budget": 1.0, "ledger_span": "3h"}
    tiny = {"landmarks": {"windows": [1]}, "budget_period": "3h", "mechanism": UNIFORM | {"epsilon": 1e-6}}
    run(configured(changed(value, end=1, **tiny)), tmp_path / "one")
    plain = changed(value, begin=1, mechanism=PLAIN | {"epsilon": 0.49}, on_exhausted="repeat", **COMPOSED)
    released = actions(run(configured(plain), tmp_path / "two"))
    assert released == ["published", "published", "refused", "published", "published"]


def test_a_window_is_not_charged_for_two_inputs_by_a_run_that_was_not_continued(tmp_path, value):
    plan = make_plan(configured(changed(value, mechanism=PLAIN, **COMPOSED)), tmp_path / "one", b"one")
    checkpoint.begin(plan)
    for n_people in (0, 1):
        ledger, loop = registration.open_ledger(plan), plan.release_loop()
        counts = np.full((1, plan.grid.n_cells), n_people)
        allowed = nullcontext() if n_people == 0 else pytest.raises(DataError, match="is not what it was")
        with allowed, ledger.transaction() as budget:
            loop.advance(loop.start(), 1, counts, budget)
    entries = registration.open_ledger(plan).entries()
    assert len([entry for entry in entries if entry.kind == "charge"]) == 1


def test_runs_at_the_same_time_do_not_pass_the_budget_together(tmp_path, value):
    """Two loops on one ledger, window by window in any order: neither sees less than the other has charged."""
    value["output"]["ledger_budget"] = 1.0
    plans = []
    for name in ("one", "other"):
        config = configured(changed(value, mechanism=PLAIN | {"epsilon": 0.75}, on_exhausted="repeat", **COMPOSED))
        plans.append(make_plan(config, tmp_path / name, name.encode()))

    loops = []
    for plan in plans:
        checkpoint.begin(plan)
        loop = plan.release_loop()
        loops.append([plan, loop, loop.start(), registration.open_ledger(plan), 1])
    order = [0] * 6 + [1] * 6
    random.Random(1).shuffle(order)
    for which in order:
        plan, loop, state, ledger, number = loops[which]
        counts = np.zeros((1, plan.grid.n_cells), int)
        with ledger.transaction() as budget:
            _, state = loop.advance(state, number, counts, budget)
        loops[which][2], loops[which][4] = state, number + 1
    totals: dict[int, float] = {}
    for charge in charges_in(tmp_path / "ledger"):
        totals[charge.window] = totals.get(charge.window, 0.0) + charge.epsilon
    assert set(totals.values()) == {0.75}


def test_fast_has_the_budget_of_its_period_and_not_of_a_window(tmp_path, value):
    fast = COMPOSED | {"mechanism": {"type": "fast", "epsilon": 1.0, "publications": 4}}
    assert ledger_terms(make_plan(configured(changed(value, **fast)), nonce=b"a run")).budget == 1.0
    daily = make_plan(configured(changed(value, **fast, budget_period="3h")), nonce=b"a run")
    assert (ledger_terms(daily).budget, ledger_terms(daily).kind, ledger_terms(daily).period) == (
        1.0,
        "period",
        3 * HOUR,
    )
    spent = []
    for begin in (0, 1, 2, 3):
        run(configured(changed(value, begin=begin, **fast, on_exhausted="repeat")), tmp_path / str(begin))
        spent.append(charged(tmp_path))
    assert max(spent) <= 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output": {"ledger_budget": 3.0}}, r"another budget \(1.0\) than this run \(3.0\)"),
        ({"output": {"ledger_budget": 1.0, "ledger_span": "2h"}}, r"another span .* than this run"),
        ({"output": {"ledger_source": "taxis"}}, r"another event source \(events\) than this run \(taxis\)"),
        (
            {"windows": {"type": "fixed", "size": "30m"}},
            r"windows \(1h in UTC\) than this run \(30m in UTC\); name",
        ),
        (
            {"windows": {"type": "fixed", "size": "1h", "origin": "2024-01-01T00:30:00Z"}},
            r"windows .*1h in UTC, 30m after",
        ),
        ({"windows": {"type": "fixed", "size": "1h", "time_zone": "Europe/Berlin"}}, r"windows .*1h in Europe/Berlin"),
        (
            {"mechanism": {"type": "landmark_uniform", "noise": "discrete_gaussian", "rho": 0.5}},
            r"another measure \(epsilon\)",
        ),
        ({**TRACE_RUN, "landmarks": None, "mechanism": {"type": "planar_laplace", "epsilon": 1.0}}, "another unit"),
    ],
    ids=str,
)
def test_another_grid_measure_source_or_stated_unit_is_refused_before_anything_is_written(
    tmp_path, value, changes, message
):
    run(configured(value), tmp_path / "first")
    before = (tmp_path / "ledger").read_bytes()
    other = changed(value, **changes | {"output": value["output"] | changes.get("output", {})})
    with pytest.raises(ConfigError, match=message):
        run(configured(other), tmp_path / "second")
    assert (tmp_path / "ledger").read_bytes() == before
    assert not (tmp_path / "second" / "operator" / "run.json").exists()


def test_a_second_ledger_over_a_source_has_to_be_acknowledged_and_the_manifest_says_so(tmp_path, value, capsys):
    run(configured(value), tmp_path / "first")
    value["output"]["ledger"] = str(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"is not the ledger that the event source events has: .*/ledger, whose"):
        run(configured(value), tmp_path / "second")
    assert not (tmp_path / "other").exists()
    assert not list((tmp_path / "second").iterdir())
    value["output"]["new_ledger"] = True
    second = run(configured(value), tmp_path / "second")
    assert second.exit_code == DONE
    public = json.loads((second.folder / "public" / "manifest.json").read_text())
    assert public["total"].startswith("unknown: there are other ledgers over the same event source")
    assert "total" not in json.loads((tmp_path / "first" / "public" / "manifest.json").read_text())
    assert main(["ledger", "show", str(tmp_path / "ledger"), str(tmp_path / "other")]) == DONE
    assert "together  at most 2 (epsilon)" in capsys.readouterr().out
    manifest = str(second.folder / "public" / "manifest.json")
    assert main(["ledger", "show", str(tmp_path / "ledger"), str(tmp_path / "other"), "--manifest", manifest]) == DONE
    assert main(["ledger", "show", str(tmp_path / "ledger"), "--manifest", manifest]) == 1


def _begin_slowly(value: dict[str, Any], folder: Path, together: Any) -> str:
    """Begin a first run; whoever has looked for other ledgers waits for the other process before it goes on."""
    check = registration.LedgerRegistry.check_new

    def slow_check(known: registration.LedgerRegistry) -> str | None:
        caution = check(known)
        with suppress(BrokenBarrierError):
            together.wait(1.0)
        return caution

    with patch.object(registration.LedgerRegistry, "check_new", slow_check):
        try:
            checkpoint.plan_in_folder(configured(value), folder)
        except ConfigError as error:
            return str(error)
    return "begun"


def test_of_two_first_runs_at_the_same_time_on_two_ledgers_one_is_refused(tmp_path, value):
    values = [value | {"output": value["output"] | {"ledger": str(tmp_path / name)}} for name in "ab"]
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, context.Pool(2) as pool:
        together = manager.Barrier(2)
        answers = pool.starmap(_begin_slowly, [(values[i], tmp_path / f"run{i}", together) for i in range(2)])
    begun = answers.index("begun")
    assert f"is not the ledger that the event source events has: {tmp_path / 'ab'[begun]}, whose" in answers[1 - begun]
    assert not (tmp_path / "ab"[1 - begun]).exists()
    assert not (tmp_path / f"run{1 - begun}" / "operator" / "run.json").exists()


def test_a_copy_of_a_ledger_is_another_one_while_the_original_is_there(tmp_path, value):
    value["output"]["ledger_budget"] = 3.0
    run(configured(value), tmp_path / "first")
    for name in ("ledger", "ledger.head"):
        shutil.copy(tmp_path / name, tmp_path / name.replace("ledger", "copy"))
    copied = value | {"output": value["output"] | {"ledger": str(tmp_path / "copy")}}
    with pytest.raises(ConfigError, match=r"copy is a copy of .*/ledger, which goes on counting"):
        run(configured(copied), tmp_path / "second")
    for name in ("ledger", "ledger.head"):  # moved, it is the same ledger
        (tmp_path / name).unlink()
    assert run(configured(copied), tmp_path / "second").exit_code == DONE


def test_a_ledger_that_was_put_back_from_an_older_copy_begins_no_run(tmp_path, value):
    value["output"]["ledger_budget"] = 3.0
    run(configured(value), tmp_path / "first")
    older = {name: (tmp_path / name).read_bytes() for name in ("ledger", "ledger.head")}
    run(configured(value), tmp_path / "second")
    for name, data in older.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(
        DataError, match=r"has 8 of the 15 entries that .* knows of: an older copy was put in its place"
    ):
        run(configured(value), tmp_path / "third")


def test_a_ledger_that_lacks_its_last_charge_alone_begins_no_run(tmp_path, value):
    value["output"]["ledger_budget"] = 3.0
    run(configured(value), tmp_path / "first")
    lines = (tmp_path / "ledger").read_bytes().splitlines(keepends=True)
    (tmp_path / "ledger").write_bytes(b"".join(lines[:-1]))
    (tmp_path / "ledger.head").write_text(json.loads(lines[-2])["chain"] + "\n")
    with pytest.raises(DataError, match="has 7 of the 8 entries that"):
        run(configured(value), tmp_path / "second")


@pytest.mark.parametrize("left", [b"", b'{"entry": "led'])
def test_a_ledger_whose_first_writer_was_killed_is_begun_by_the_next_run(tmp_path, value, left):
    (tmp_path / "ledger").write_bytes(left)
    assert run(configured(value), tmp_path / "first").exit_code == DONE


def _begin_and_die(value: dict[str, Any], folder: Path, phase: str) -> None:
    """Begin a run and kill its process around a note in the file of known ledgers."""
    note = registration.LedgerRegistry.note

    def killed(*known: Any, announced: bool = False, **options: Any) -> None:
        if phase == ("announcing" if announced else "entered"):
            os.kill(os.getpid(), signal.SIGKILL)
        note(*known, announced=announced, **options)
        if phase == "announced":
            os.kill(os.getpid(), signal.SIGKILL)

    with patch.object(registration.LedgerRegistry, "note", killed):
        checkpoint.plan_in_folder(configured(value), folder)


def killed_in(phase: str, value: dict[str, Any], folder: Path) -> int | None:
    process = multiprocessing.get_context("spawn").Process(target=_begin_and_die, args=(value, folder, phase))
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.parametrize("phase", ["announcing", "announced", "entered"])
def test_of_two_ledgers_one_hears_of_the_other_whenever_the_first_run_is_killed(tmp_path, value, phase):
    assert killed_in(phase, value, tmp_path / "first") == -signal.SIGKILL
    is_entered = phase == "entered"
    assert bool(list(Ledger(tmp_path / "ledger").entries())) == is_entered
    names = ("ledger", "other")
    values = {name: value | {"output": value["output"] | {"ledger": str(tmp_path / name)}} for name in names}
    folders = {"ledger": tmp_path / "first", "other": tmp_path / "second"}
    # Where nothing was entered, no other ledger is known, and the killed run hears of the one that began meanwhile.
    first, second = names if is_entered else names[::-1]
    if not is_entered:
        checkpoint.plan_in_folder(configured(values[first]), folders[first])
    with pytest.raises(ConfigError, match=rf"is not the ledger that the event source events has: .*/{first},"):
        checkpoint.plan_in_folder(configured(values[second]), folders[second])
    checkpoint.plan_in_folder(configured(values[first]), folders[first])  # goes on


def test_a_run_whose_ledger_nobody_knows_is_known_to_others_when_it_is_killed_as_it_goes_on(tmp_path, value):
    """As on another machine, to which the key's file came without its notes."""
    checkpoint.plan_in_folder(configured(value), tmp_path / "first")
    for notes in (tmp_path / "noise.key.ledgers", state_folder() / "ledgers.json"):
        notes.unlink()
    assert killed_in("entered", value, tmp_path / "first") == -signal.SIGKILL
    assert [entry.kind for entry in Ledger(tmp_path / "ledger").entries()] == ["ledger", "run", "nonce"]
    other = value | {"output": value["output"] | {"ledger": str(tmp_path / "other")}}
    with pytest.raises(ConfigError, match=r"is not the ledger that the event source events has: .*/ledger,"):
        checkpoint.plan_in_folder(configured(other), tmp_path / "second")


@pytest.mark.parametrize(
    "left",
    ["operator/checkpoint/latest", f"operator/checkpoint/flink/{'a' * 32}/chk-1/_metadata", "public/parts/1.parquet"],
)
def test_a_folder_with_anything_entered_is_not_gone_on_with_on_an_empty_ledger(tmp_path, value, left):
    """A state, also of an engine, holds counts that were charged elsewhere; without any the run is registered again."""
    plan = checkpoint.plan_in_folder(configured(value), tmp_path / "first")
    for file in [*tmp_path.glob("ledger*"), *tmp_path.glob("*.ledgers"), plan.folder / "operator" / "ledger.head"]:
        file.unlink()
    shutil.rmtree(state_folder())
    (plan.folder / left).parent.mkdir(parents=True)
    (plan.folder / left).touch()
    with pytest.raises(DataError, match=r"ledger: lacks what the run in .*first has entered: it was cut"):
        checkpoint.plan_in_folder(configured(value), tmp_path / "first")
    assert not (tmp_path / "ledger").exists()
    shutil.rmtree(plan.folder / Path(*Path(left).parts[:2]))
    checkpoint.plan_in_folder(configured(value), tmp_path / "first")


def test_a_start_that_was_refused_is_not_enabled_by_resume(tmp_path, value, monkeypatch):
    """Where no file can say which ledgers there are, each would be a new book."""
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    monkeypatch.setenv("NOISE_KEY", secrets.token_hex(32))
    value["noise_key"] = "env:NOISE_KEY"
    for resume in (False, True):
        with pytest.raises(ConfigError, match=r"ledgers\.json: cannot be written; XDG_STATE_HOME says where it may be"):
            run(configured(value), tmp_path / "first", resume=resume)
        assert not list((tmp_path / "first").rglob("*.parquet"))


def test_a_ledger_that_is_gone_cannot_be_missed(tmp_path, value, caplog):
    del value["output"]["ledger"]
    run(configured(value), tmp_path / "first")
    ledger = ledger_of(tmp_path)
    assert ledger.is_file()
    assert json.loads((tmp_path / "noise.key.ledgers").read_text())["events"]
    for file in (ledger, ledger.with_name("events.head")):
        file.unlink()
    with pytest.raises(ConfigError, match="is not the ledger that the event source events has"):
        run(configured(value), tmp_path / "second")
    # Nothing of the machine is left but the key and what lies beside it; another name for the source.
    (ledger.parents[1] / "ledgers.json").unlink()
    value["output"]["ledger_source"] = "others"
    run(configured(value), tmp_path / "third")
    assert any("THE NOISE KEY HAS CHARGED BEFORE, IN 1 RUN," in message for message in caplog.messages)


def test_a_simulation_charges_in_its_own_folder_whatever_ledger_is_named(tmp_path, value):
    run(configured(value), tmp_path / "first")
    before = (tmp_path / "ledger").read_bytes()
    simulated = run(configured(changed(value, mode="simulation", noise_key=None, seed=3)), tmp_path / "s")
    assert (tmp_path / "ledger").read_bytes() == before
    assert len(charges_in(simulated.folder)) == 6


def test_a_run_with_only_until_moved_averages_nothing(tmp_path, value):
    for number, end in enumerate((6, 7, 8, 9)):
        run(configured(changed(value, end=end, on_exhausted="repeat")), tmp_path / str(number))
    totals: dict[int, float] = {}
    for posting in Ledger(tmp_path / "ledger").postings():
        totals[posting.slot] = totals.get(posting.slot, 0.0) + posting.charge.epsilon
    assert max(totals.values()) <= 1.0


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


@pytest.mark.parametrize(
    "later",
    [
        {
            "mechanism": {"type": "period_uniform", "epsilon": 0.4},
            "budget_period": "3h",
            "bounding": {"max_per_period": 1},
        },
        {"mechanism": [{"type": "temporal_generalization", "windows": 3}, PLAIN | {"epsilon": 0.4}]},
    ],
)
def test_nothing_is_released_of_windows_that_are_chosen_among_with_a_refused_one(tmp_path, value, later):
    """A person's events in the refused hour 1 decide what counts in hours 2 and 3, which has a cost."""
    value["output"]["ledger_budget"] = 1.0
    run(configured(changed(value, 0, 1, mechanism=PLAIN, **COMPOSED)), tmp_path / "first")
    second = run(configured(changed(value, on_exhausted="repeat", **COMPOSED, **later)), tmp_path / "second")
    assert actions(second) == ["refused"] * 3 + ["published"] * 3
    assert [c.window for c in charges_in(tmp_path / "ledger") if c.epsilon == 0.4] == [4]
