"""`penstock choose`: candidates with one guarantee, ranked on the data, and the binding limit."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from penstock.evaluation.utility import METRICS
from penstock.mechanisms.core.plugin import ConfigError, ParameterError
from penstock.mechanisms.core.run import run_mechanism
from penstock.pipeline import DONE, FAILED, WRONG_USE
from penstock.pipeline.cli.choose import summary
from penstock.pipeline.cli.main import main
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import load
from penstock.pipeline.experiments.choose import (
    PURPOSES,
    Choice,
    ChoiceRequest,
    attack_on,
    candidates,
    choose,
    event_size,
    experiment_of,
    n_windows,
    suggested_bounds,
)
from penstock.pipeline.experiments.config import Choose
from penstock.pipeline.experiments.measures import trial_record
from penstock.pipeline.experiments.results import binding
from penstock.pipeline.experiments.trial import EventFigures, TrialCounts, events_shown
from tests.tools.experiment_cases import BASE, experiment_in


@pytest.fixture(scope="module")
def configuration(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("choose") / "city.yaml"
    path.write_text(BASE)
    return path


@pytest.fixture(scope="module")
def chosen(configuration, tmp_path_factory):
    asked = ChoiceRequest(epsilon=20.0, n_seeds=2, n_grids=2, at_most={"relative_mae": 0.001})
    return choose(configuration, asked, tmp_path_factory.mktemp("out"))


USUAL = ChoiceRequest(protect="24h", epsilon=1.0, delta=1e-6)


def test_every_candidate_keeps_the_asked_budget_for_any_24_hours(configuration):
    experiment = experiment_of(configuration, (), ChoiceRequest(epsilon=2.0, n_seeds=1), {})
    assert len(experiment.trials) == len(candidates(24, USUAL))
    for trial in experiment.trials:
        step = trial.config.mechanism[0]
        assert (step.w, step.epsilon) == (24, 2.0)
        # The noise that has less is taken, but where a mechanism has no choice.
        noise = {"pegasus, Laplace": "discrete_laplace", "correlated, Gaussian": "discrete_gaussian"}
        name = ", ".join(trial.values["variant"].split(", ")[:2])
        assert step.noise == noise.get(name, "auto"), name
        assert getattr(step, "delta", None) == (None if "Laplace" in name else 1e-6)
    assert {"w_event_ba", "pegasus, Laplace, filter"} <= candidates(24, USUAL).keys()
    assert not any("Gaussian" in name for name in candidates(24, replace(USUAL, delta=0.0)))
    assert {changes["mechanism"][0].get("delta") for changes in candidates(24, replace(USUAL, delta=0.0)).values()} == {
        None
    }


DAY = ("budget_period=1d", "landmarks=", "accountants=[{type: composition}]")


@pytest.mark.parametrize(
    ("changes", "asked", "expected"),
    [
        ((), ChoiceRequest(), ("24h", 1.0, 1e-6)),
        ((*DAY, "mechanism={type: period_uniform, epsilon: 2, delta: 1e-7}"), ChoiceRequest(), ("day", 2.0, 1e-7)),
        ((*DAY, "mechanism={type: period_uniform, epsilon: 2}"), ChoiceRequest(delta=0.0), ("day", 2.0, 0.0)),
        ((*DAY, "mechanism={type: period_uniform, epsilon: 2}"), ChoiceRequest(protect="12h"), ("12h", 1.0, 1e-6)),
        ((*DAY, "mechanism={type: period_uniform, epsilon: 2}"), ChoiceRequest(epsilon=5.0), ("day", 5.0, 1e-6)),
        ((*DAY[1:], "mechanism={type: w_event_uniform, w: 6, epsilon: 3}"), ChoiceRequest(), ("6h", 3.0, 1e-6)),
        (
            (*DAY[1:], "mechanism={type: w_event_uniform, w: 24, epsilon: 3}"),
            ChoiceRequest(protect="24h"),
            ("24h", 3.0, 1e-6),
        ),
        ((*DAY[1:], "mechanism={type: discrete_laplace, epsilon: 0.3}"), ChoiceRequest(), ("window", 0.3, 1e-6)),
        ((*DAY[1:], "mechanism={type: w_event_uniform, w: 6, epsilon: .inf}"), ChoiceRequest(), ("6h", 1.0, 1e-6)),
    ],
)
def test_what_is_left_unset_is_asked_as_configured(configuration, changes, asked, expected):
    asked = asked.of(load(configuration, changes))
    assert (asked.protect, asked.epsilon, asked.delta) == expected


def test_a_pace_is_that_of_the_configured_bound_and_is_not_kept_without_it(configuration):
    changes = (*DAY, "bounding={max_per_period: 12, pace: [1, 1]}", "mechanism={type: period_uniform, epsilon: 2}")
    experiment = experiment_of(configuration, changes, ChoiceRequest(n_seeds=1), {})
    assert {trial.config.bounding.pace for trial in experiment.trials} == {None}
    assert None in {trial.config.bounding.max_per_period for trial in experiment.trials}


def test_an_accountant_is_left_out_where_it_has_no_theorem(configuration):
    accountants = "accountants=[{type: composition}, {type: temporal, correlation: {estimate: first, windows: 12}}]"
    changes = [*DAY[:2], "mechanism={type: period_uniform, epsilon: 2}"]
    experiment = experiment_of(configuration, (*changes, accountants), ChoiceRequest(n_seeds=1), {})
    for trial in experiment.trials:
        assert len(trial.config.accountants) == (1 if "n = " in trial.values["variant"] else 2)


def test_a_filter_with_parameters_is_tried_beside_the_usual_one(configuration):
    change = "mechanism=[{type: w_event_uniform, epsilon: 1, w: 24}, {type: filter, slots: 8}]"
    experiment = experiment_of(configuration, (change,), ChoiceRequest(n_seeds=1), {})
    actual = {trial.values["variant"]: trial.config.mechanism[1:] for trial in experiment.trials}
    slots = {name: [step.slots for step in steps] for name, steps in actual.items() if "w_event_uniform" in name}
    assert slots == {
        "w_event_uniform": [],
        "w_event_uniform, filter": [24],
        "w_event_uniform, filter as configured": [8],
    }


def test_a_calendar_day_is_protected_by_other_mechanisms_and_by_bounds_on_a_persons_day(configuration):
    asked = ChoiceRequest(protect="day", epsilon=2.0, delta=0.0, n_seeds=1)
    experiment = experiment_of(configuration, (), asked, {})
    actual = {trial.values["variant"]: trial.config for trial in experiment.trials}
    assert {"fast, kalman", "period_uniform", "period_uniform, filter"} <= actual.keys()
    for name, config in actual.items():
        assert (config.mechanism[0].epsilon, config.budget_period) == (2.0, 86_400_000)
        assert config.landmarks is None
        assert (config.bounding.max_per_period is not None) == ("n = " in name)
    bounds = {config.bounding.max_per_period for config in actual.values()} - {None}
    # A bound on the period stands alone: one on its windows would cut off counts, and make the noise no smaller.
    assert all(config.bounding.max_cells is None for name, config in actual.items() if "n = " in name)
    first = next(iter(actual.values()))
    plan = make_plan(replace(first, bounding=replace(first.bounding, max_cells=None)))
    step = actual["period_uniform"].mechanism[0]
    assert bounds == set(suggested_bounds(plan, plan.grid.n_windows, step).values())
    assert {name.split(",")[0] for name in actual if "n = " in name} == {"fast", "period_uniform"}
    # What a day can cost is the budget, with a bound or without: the noise is as much smaller as the bound allows.
    for name in ("period_uniform", f"period_uniform, n = {max(bounds)}"):
        plan = make_plan(actual[name])
        facts = replace(plan.facts(), n_windows=24, budget_period=24)
        release = run_mechanism(plan.config.mechanism[0], np.zeros((24, facts.n_cells), int), facts)[0]
        assert release.scale == pytest.approx(min(24, max(bounds) if "n = " in name else 24) / 2.0)


@pytest.mark.parametrize(
    "change",
    [
        "windows.size=5h",
        "windows.offset=30m",
        "windows={type: fixed, size: 90m, time_zone: Europe/Berlin}",
        "windows.size=7d",
    ],
)
def test_a_calendar_day_that_windows_do_not_divide_is_refused(configuration, change):
    with pytest.raises(ParameterError, match="--protect: 'day' is not allowed; it must be a duration"):
        experiment_of(configuration, (change,), ChoiceRequest(protect="day", n_seeds=1), {})


def test_a_choice_on_an_input_without_a_usable_row_ends_before_any_trial(configuration, tmp_path, capsys):
    command = ["choose", str(configuration), "--set", "space.south=-2", "--set", "space.north=-1"]
    assert main([*command, "--out", str(tmp_path / "out")]) == FAILED
    assert "nothing of the input can be used" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_where_nothing_keeps_the_limits_coarser_grids_follow_and_the_nearest_is_named(chosen):
    assert chosen.tried == ("as configured", "2x2")
    assert chosen.choice["best"] is None
    assert not (chosen.folder / "best.yaml").exists()
    actual = chosen.choice["binding"]
    assert (actual["limit"], actual["keeping"]) == ("relative_mae", None)
    assert actual["setting"]["variant"] == chosen.ranking.sort("high relative_mae")["variant"][0]
    errors = chosen.ranking["mean relative_mae"].to_list()
    assert errors == sorted(errors)
    assert json.loads((chosen.folder / "choice.json").read_text())["grids"] == ["as configured", "2x2"]


def test_the_pages_of_a_choice_are_written_from_its_folder(chosen, capsys):
    assert main(["report", str(chosen.folder)]) == DONE
    expected = [str(chosen.folder / grid / "report.html") for grid in ("grid-2", "grid-1")]
    assert capsys.readouterr().out.split() == expected


def test_the_ranking_is_the_seeds_own_and_the_best_is_written_marked_as_looked_at(
    configuration, chosen, tmp_path, capsys
):
    arguments = ["--epsilon", "20", "--seeds", "2", "--at-most", "relative_mae=100", "--jobs", "1"]
    # The trials on the configured grid are those of before: only what is new is run.
    (tmp_path / "grid-1").symlink_to(chosen.folder / "grid-1")
    assert main(["choose", str(configuration), *arguments, "--out", str(tmp_path)]) == DONE
    messages = capsys.readouterr()
    ranked = pl.read_parquet(chosen.folder / "grid-1" / "frontier.parquet")
    best = ranked.sort("mean relative_mae")["variant"][0]
    assert f"best      {best}: {tmp_path / 'best.yaml'}" in messages.out
    assert "looks at the exact counts" in messages.err
    assert re.search(r"(\d+) of \1 trials", messages.err)
    config = load(tmp_path / "best.yaml")
    assert config.looked_at_data is True
    with pytest.raises(ConfigError, match="looked_at_data"):
        load(tmp_path / "best.yaml", ["mode=deployment"])
    names = ("best.yaml", "choice.json", "grid-1/experiment.json", "grid-1/report.html", "grid-1/frontier.csv")
    first = {name: (tmp_path / name).read_bytes() for name in names}
    arguments[-3] = "relative_mae=99"
    assert main(["choose", str(configuration), *arguments, "--out", str(tmp_path), "-q"]) == DONE
    assert capsys.readouterr() == (f"best      {best}: {tmp_path / 'best-2.yaml'}\n", "")
    assert first == {name: (tmp_path / name).read_bytes() for name in names}
    second = json.loads((tmp_path / "grid-1-2" / "experiment.json").read_text())
    assert (second["choice"]["at_most"], second["resumed"]) == ({"relative_mae": 99}, second["cells"])
    assert main(["report", str(tmp_path)]) == DONE
    assert capsys.readouterr().out.split() == [str(tmp_path / grid / "report.html") for grid in ("grid-1-2", "grid-1")]
    assert json.loads((tmp_path / "choice-2.json").read_text())["asked"]["at_most"] == {"relative_mae": 99}


def test_a_choice_that_was_broken_off_is_not_overwritten_by_another_question(configuration, tmp_path):
    class Broken(Exception):
        pass

    def broken(*_: object) -> None:
        raise Broken

    for epsilon in (20.0, 10.0, 20.0):
        with pytest.raises(Broken):
            choose(configuration, ChoiceRequest(epsilon=epsilon, n_seeds=1, n_grids=1), tmp_path, begun=broken)
    asked = {
        name: json.loads((tmp_path / name).read_text())["asked"]["epsilon"] for name in sorted(os.listdir(tmp_path))
    }
    assert asked == {"choice-2.json": 10.0, "choice.json": 20.0}


def test_a_deployment_is_not_chosen_for_and_wrong_wishes_are_refused(configuration, capsys):
    assert main(["choose", str(configuration), "--set", "mode=deployment", "--set", "noise_key=k"]) == WRONG_USE
    assert main(["choose", str(configuration), "--protect", "90m"]) == WRONG_USE
    assert "a multiple of 1h" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=str(WRONG_USE)):
        main(["choose", str(configuration), "--at-most", "mae"])
    assert main(["choose", str(configuration), "--at-most", "mea=3"]) == WRONG_USE
    assert "--at-most: 'mea' is not allowed; it must be one of mae" in capsys.readouterr().err
    for wrong in ({"epsilon": 0.0}, {"delta": 1.0}, {"n_seeds": 0}, {"n_grids": 0}):
        with pytest.raises(ParameterError):
            ChoiceRequest(**wrong)


def test_a_stretch_is_counted_in_windows(configuration):
    config = load(configuration)
    assert [n_windows(config, text) for text in ("window", "1h", "24h", "7d")] == [1, 1, 24, 168]


def test_a_limit_that_makes_no_difference_does_not_bind():
    wide = pl.DataFrame({"mean f1": [0.8, 0.9], "mean loss": [1.0, 1.5]})
    assert binding(Choose(at_least={"f1": 0.5}, at_most={"loss": 2}), wide) is None


def test_the_files_words_about_its_data_are_not_told_of_other_data(tmp_path):
    text = "name: e\nquestion: which\nsetting: a made-up city\nbase: base.yaml\nmeasures: [mae]\n"
    load_text = experiment_in(tmp_path)
    assert load_text(text).written["setting"] == "a made-up city"
    assert load_text(text, "seeds=2").written["setting"] == "a made-up city"
    changed = load_text(text, "base.source.n_users=30")
    assert "made-up" not in changed.written["setting"]
    assert changed.config.setting is None


def test_zeros_are_never_chosen_without_a_word(tmp_path):
    """A schedule that publishes nothing but zeros is as near as zeros are, and does not beat them."""
    assert ChoiceRequest().limits["at_least"]["skill"] > 0
    table = pl.DataFrame({"variant": ["a", "b"], "mean relative_mae": [1.0, 2.0], "allowed": [True, True]})
    choice = {"binding": None, "best": {"values": {"variant": "a"}, "means": {}, "intervals": {}}}
    choice |= {"at_least": {}, "at_most": {"mae": 9.0}, "settings": 2}
    asked = USUAL
    message = summary(Choice(tmp_path, table, choice, ("as configured",), 0), asked)
    assert "limits    mae ≤ 9, of the whole interval over seeds" in message
    assert any(line.startswith("CAUTION   the best is no nearer to the counts than zeros are") for line in message)
    daily = table.rename({"mean relative_mae": "mean daily_relative_mae"})
    assert "CAUTION" in "".join(summary(Choice(tmp_path, daily, choice, ("as configured",), 0), asked))
    nearer = table.with_columns(pl.Series("mean relative_mae", [0.5, 2.0]))
    assert "CAUTION" not in "".join(summary(Choice(tmp_path, nearer, choice, ("as configured",), 0), asked))


def test_what_a_release_is_for_decides_what_ranks_and_which_limit_holds(configuration, chosen, tmp_path, capsys):
    assert ChoiceRequest(purpose="days").limits == {"at_least": {}, "at_most": {"daily_relative_mae": 0.99}}
    assert ChoiceRequest(purpose="places").preferred == "hotspot_f1"
    # Zeros find the busiest cells where these are listed first, but keep no purpose's limits.
    truth = np.tile(np.arange(24.0, 0.0, -1.0), (24, 1))
    zeros = {name: METRICS[name].function(truth, 0 * truth, axes="windows_cells") for name in METRICS}
    assert zeros["hotspot_f1"] == 1.0
    for limits in (ChoiceRequest(purpose=purpose).limits for purpose in PURPOSES):
        kept = [zeros[name] >= least for name, least in limits["at_least"].items()]
        kept += [zeros[name] <= most for name, most in limits["at_most"].items()]
        assert not all(kept)
    assert ChoiceRequest(purpose="days", prefer="mae").preferred == "mae"
    assert ChoiceRequest(purpose="days", at_most={"mae": 3.0}).limits == {"at_least": {}, "at_most": {"mae": 3.0}}
    arguments = ["choose", str(configuration), "--epsilon", "20", "--seeds", "2", "--jobs", "1", "--out", str(tmp_path)]
    # All purposes are measured in every trial: none is run again.
    (tmp_path / "grid-1").symlink_to(chosen.folder / "grid-1")
    records = {path: path.stat().st_mtime_ns for path in (chosen.folder / "grid-1" / "cells").iterdir()}
    purposes = (("days", "daily_relative_mae"), ("places", "hotspot_f1"), ("windows", "relative_mae"))
    for (purpose, measure), suffix in zip(purposes, ("", "-2", "-3")):
        assert main([*arguments, "--for", purpose]) == DONE
        name, table = f"best{suffix}.yaml", pl.read_parquet(tmp_path / f"grid-1{suffix}" / "frontier.parquet")
        ordered = table.filter(pl.col("allowed")).sort(f"mean {measure}", descending=purpose == "places")
        best = ordered.row(0, named=True)
        messages = capsys.readouterr().out
        assert f"best      {best['variant']}: " in messages
        interval = f"{best[f'low {measure}']:.4g} to {best[f'high {measure}']:.4g}"
        for text in (messages, (tmp_path / name).read_text()):
            assert f"{measure} {best[f'mean {measure}']:.4g} ({interval})" in text
        assert load(tmp_path / name).looked_at_data
    assert records == {path: path.stat().st_mtime_ns for path in (chosen.folder / "grid-1" / "cells").iterdir()}


def test_daily_totals_are_chosen_for_where_windows_add_up_to_days(configuration, capsys):
    short = "source.until=2024-01-01T20:00:00Z"
    assert main(["choose", str(configuration), "--for", "day"]) == WRONG_USE
    assert (
        "--for: 'day' is not allowed; it must be one of windows, places, days, events, forecast"
        in capsys.readouterr().err
    )
    assert main(["choose", str(configuration), "--for", "days", "--set", short]) == WRONG_USE
    assert main(["choose", str(configuration), "--at-most", "daily_mae=3", "--set", short]) == WRONG_USE
    message = capsys.readouterr().err
    assert message.count("no calendar day (UTC) is in the run as a whole") == 2
    assert "--for: 'days' is not allowed" in message
    assert "measures: 'daily_mae' is not allowed" in message
    # For the other purposes totals are not measured there.
    measured = [
        experiment_of(configuration, (change,), ChoiceRequest(), {}).config.measures for change in (short, "seed=1")
    ]
    assert [name for name in measured[1] if name not in measured[0]] == ["daily_relative_mae"]


CITY = [
    *("--set", "source.n_users=60", "--set", "bounding.max_cells=2", "--seeds", "1", "--jobs", "1", "--grids", "1"),
]


def test_what_lets_an_adversary_tell_the_most_exposed_people_apart_is_refused_before_it_is_tried(
    configuration, tmp_path, capsys
):
    few = ["choose", str(configuration), *CITY, "--protect", "window", "--delta", "0", "--out", str(tmp_path)]
    assert main([*few, "--epsilon", "8", "--advantage", "0.5"]) == DONE
    messages = capsys.readouterr()
    assert re.search(r"attack on 6 people: about \d+\.\d minutes of one processor: \d+ trials", messages.err)
    written = json.loads((tmp_path / "choice.json").read_text())
    refused = {one["variant"] for one in written["attacked"] if one["refused"]}
    assert (
        {"w_event_uniform", "w_event_sample"}
        <= refused
        == {one["variant"] for one in written["attacked"] if one["mean"] > 0.5}
    )
    tried = pl.read_parquet(tmp_path / "grid-1" / "frontier.parquet")["variant"].to_list()
    assert tried
    assert not {name.removesuffix(", filter").removesuffix(", kalman") for name in tried} & refused
    assert messages.out.count("  refused\n") == len(refused)
    # One attack for all that share a release: the filter makes nothing more of it.
    names = [one["variant"] for one in written["attacked"]]
    assert len(names) == len(set(names))
    assert not any("filter" in name for name in names)
    none = {"at_least": {}, "at_most": {}, "settings": 0, "best": None, "binding": None}
    message = summary(Choice(tmp_path, pl.DataFrame(), none, ("as configured",), 0), replace(USUAL, advantage=0.5))
    assert any(line.startswith("best      none: every candidate is refused") for line in message)


def test_a_limit_on_the_advantage_takes_candidates_away_and_changes_nothing_else(configuration, tmp_path, capsys):
    few = [*CITY, "--protect", "window", "--delta", "0", "--epsilon", "8", "--for", "places"]
    answers = {}
    for name, limit in (("free", []), ("limited", ["--advantage", "0.5"])):
        folder = tmp_path / name
        main(["choose", str(configuration), *few, *limit, "--out", str(folder)])
        answers[name] = (
            pl.read_parquet(folder / "grid-1" / "frontier.parquet"),
            json.loads((folder / "choice.json").read_text()),
        )
    (free, without), (limited, answer) = answers["free"], answers["limited"]
    refused = {one["variant"] for one in answer["attacked"] if one["refused"]}
    is_kept = [name.removesuffix(", filter").removesuffix(", kalman") not in refused for name in free["variant"]]
    assert refused
    assert any(is_kept)
    figures = [name for name in free.columns if name.startswith("mean ")] + ["variant", "allowed"]
    kept = free.filter(pl.Series(is_kept)).select(figures).sort("variant")
    assert kept.equals(limited.select(figures).sort("variant"))
    for choice in (without["choice"], answer["choice"]):
        assert (choice["at_least"], choice["prefer"]) == ({"kendall_tau": 0.05}, "hotspot_f1")
    best = kept.filter("allowed")["mean hotspot_f1"].max()
    assert limited.filter("best")["mean hotspot_f1"].to_list() == [best]
    assert best <= free.filter("best")["mean hotspot_f1"].item()


def test_a_release_of_less_budget_gives_an_adversary_less_advantage(configuration):
    def advantage(epsilon: float) -> float:
        asked = ChoiceRequest(protect="window", epsilon=epsilon, delta=0.0, n_seeds=1)
        changes = ("source.n_users=60", "bounding.max_cells=2")
        attack = attack_on(experiment_of(configuration, changes, asked, {}), configuration, 0.5)
        trial = next(trial for trial in attack.trials if trial.values["variant"] == "w_event_uniform")
        game = replace(attack.config.played, samples=200, targets=3)
        people = make_plan(trial.config).people.memberships(24)
        record = trial_record(trial.config, people, ["attack/lira/advantage"], game=game)
        return record["measures"][0]["value"]

    assert advantage(20.0) > 0.8
    assert abs(advantage(0.02)) < 0.3


def test_a_choice_for_events_takes_of_what_is_as_near_the_one_that_shows_most_events(configuration, tmp_path, capsys):
    asked = ["--for", "events", "--protect", "window", "--epsilon", "1", "--out", str(tmp_path)]
    assert main(["choose", str(configuration), *CITY, *asked]) == DONE
    messages = capsys.readouterr().out
    table = pl.read_parquet(tmp_path / "grid-1" / "frontier.parquet")
    [recall] = [name for name in table.columns if name.startswith("mean event_recall_")]
    least = table.sort("mean relative_mae").row(0, named=True)
    assert (table.filter("allowed")["mean relative_mae"] <= 1.1 * least["mean relative_mae"] + 1e-9).all()
    best = table.filter("best").row(0, named=True)
    assert best[recall] == table.filter("allowed")[recall].max()
    assert f"best      {best['variant']}: " in messages
    # Eight standard deviations of the noise of one membership at ε = 1, which is √2 with Laplace noise.
    config = experiment_of(configuration, ("bounding.max_cells=1",), ChoiceRequest(protect="window", n_seeds=1), {})
    assert event_size(config) == round(8 * np.sqrt(1 / (2 * np.sinh(0.5) ** 2)))
    assert main(["choose", str(configuration), *asked, "--prefer", "mae"]) == WRONG_USE


def test_events_are_shown_as_far_as_the_release_follows_them(configuration):
    def shown(mechanism: str, size: int) -> EventFigures:
        changes = [f"mechanism={mechanism}", "space.rows=10", "space.columns=10", "source.until=2024-01-05T00:00:00Z"]
        steady = np.full((96, 100), 100)
        return events_shown(make_plan(load(configuration, changes)), TrialCounts(steady, steady), size)

    assert shown("{type: raw}", 5) == EventFigures(recall=1.0, alarms=0.0, error=0.0)
    # Of a schedule that publishes nothing after the first window no event is seen.
    assert shown("{type: w_event_sample, epsilon: 100, w: 96}", 50).recall == 0.0
    smoothed = "[{type: w_event_uniform, epsilon: 2.4, w: 24}, {type: filter}]"
    small, large = shown(smoothed, 15), shown(smoothed, 300)
    assert small.recall < 0.5
    assert large.recall == 1.0
    assert small.alarms < 0.1 < 0.9 < large.alarms
    assert large.error < 0.1
