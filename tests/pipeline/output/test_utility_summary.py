"""Statements of a run about itself: expected error beforehand, and one person's loss."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from penstock.mechanisms.core.concentrated import SMOOTHING, epsilon_at
from penstock.pipeline.cli.main import main
from penstock.pipeline.cli.run import expectations
from penstock.pipeline.output.loss import DELTA, caution, describe_losses, losses
from penstock.pipeline.output.rehearsal import expected_losses, expected_noise, rehearse
from penstock.pipeline.output.utility_summary import (
    describe_utility,
    matrices,
    usual_counts,
)
from penstock.pipeline.reporting.page import write_report
from penstock.pipeline.run import run
from tests.tools.deployments import configured, sections
from tests.tools.report_pages import Text, page, warnings_of
from tests.tools.report_runs import run_folder

GRID = {"type": "grid", "south": 37.7, "north": 37.8, "west": -122.5, "east": -122.4, "rows": 20, "columns": 20}


def simulated(folder: Path, mechanism: Any, **changes: Any) -> dict[str, Any]:
    changes = {"mode": "simulation", "noise_key": None, "mechanism": mechanism} | changes
    return sections(folder) | changes


@pytest.mark.parametrize(
    ("mechanism", "expected"),
    [
        ({"type": "laplace", "epsilon": 0.5}, 2.0),
        ({"type": "gaussian", "rho": 0.02}, 5 * math.sqrt(2 / math.pi)),
        ({"type": "landmark_uniform", "epsilon": 1.0}, 2.0),
        ([{"type": "spatial_generalization", "group_size": 4}, {"type": "laplace", "epsilon": 0.5}], 2.0),
        ({"type": "fpa", "epsilon": 2.0, "coefficients": 2, "block": 6}, None),
    ],
)
def test_the_expected_error_is_that_of_the_noise(tmp_path, mechanism, expected):
    mean, most = expected_noise(rehearse(configured(simulated(tmp_path, mechanism, space=GRID))))  # type: ignore[misc]
    assert most > mean > 0
    if expected is not None:
        assert mean == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("n_hours", [2, 6])
def test_the_expected_error_of_few_counts_is_that_of_many(tmp_path, n_hours):
    value = simulated(tmp_path, {"type": "discrete_laplace", "epsilon": 0.1})
    value["source"]["until"] = f"2024-01-01T{n_hours:02d}:00:00Z"
    mean, most = expected_noise(rehearse(configured(value | {"bounding": {"max_cells": 1}})))  # type: ignore[misc]
    assert mean == pytest.approx(10, rel=0.05)
    assert most == pytest.approx(30, abs=2)


def test_the_expected_error_needs_neither_data_nor_the_key(tmp_path):
    value = sections(tmp_path)
    config = configured(value)
    (tmp_path / "events.csv").unlink()
    (tmp_path / "noise.key").unlink()
    assert expected_noise(rehearse(config)) is not None


def test_nothing_is_expected_without_noise(tmp_path):
    assert expected_noise(rehearse(configured(simulated(tmp_path, {"type": "raw"})))) is None


@pytest.mark.parametrize("command", [["validate"], ["run", "--runner", "local"]])
def test_what_to_expect_comes_before_the_run(tmp_path, capsys, command):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(sections(tmp_path, bounding={})))
    assert main([*command, str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    loss, expect, caution = [line for line in lines if line.startswith(("loss", "expect", "CAUTION"))][:3]
    assert loss.startswith("loss      One person loses at most ε = 3 by a day (even odds become at most 95.3 %)")
    assert expect.startswith("expect    Noise will make a count wrong by about ")
    assert caution.startswith("CAUTION   bounding.max_cells is not set: one person may count in all 4 cells")
    if command[0] == "run":
        assert lines[:3] == [loss, expect, caution]


@pytest.mark.parametrize(
    ("typical", "message"),
    [(8, "; 8 are typical (typical_count): by "), (1, "CAUTION   Zeros would be nearer to the counts: ")],
)
def test_the_expected_error_stands_beside_a_typical_count(tmp_path, capsys, typical, message):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(sections(tmp_path, typical_count=typical, bounding={"max_cells": 1})))
    assert main(["validate", str(path)]) == 0
    assert message in capsys.readouterr().out


DAY = 24 * 3_600_000


def test_the_usual_counts_go_by_the_local_time_of_the_week():
    """The clocks change in the second week: the hours by which people live do, too."""
    starts = np.arange(np.datetime64("2024-03-17T23", "h"), np.datetime64("2024-04-07T22", "h")).astype("M8[ms]")
    starts = starts.astype(np.int64)
    local = pl.Series(starts).cast(pl.Datetime("ms", "UTC")).dt.convert_time_zone("Europe/Zurich")
    truth = np.stack([local.dt.hour() + 100.0 * local.dt.weekday(), np.full(len(starts), 3.0)], axis=1)
    active = np.ones(truth.shape, bool)
    active[-1, 1] = active[5, 1] = False
    truth[~active] = 0
    training = starts < starts[0] + 7 * DAY
    assert np.array_equal(usual_counts(truth, active, starts, "Europe/Zurich", training)[~training], truth[~training])
    # By the hour of the day where there is no whole week, and 5 o'clock of the second cell is known from one day less.
    daily = usual_counts(truth, active, starts, "Europe/Zurich", starts < starts[0] + 2 * DAY)
    assert daily[72].tolist() == [150.0, 3.0]
    assert daily[-1, 1] == 0


def test_an_hour_that_was_not_learned_has_the_mean_of_all():
    starts = np.arange(48) * 3_600_000 * 2
    starts[30:] += 3_600_000
    truth = np.arange(48.0)[:, None]
    actual = usual_counts(truth, np.ones((48, 1), bool), starts, "UTC", np.arange(48) < 24)
    assert actual[24:30, 0].tolist() == [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]
    assert (actual[30:] == 11.5).all()


def learning(folder: Path, **correlation: Any) -> dict[str, Any]:
    value = simulated(folder, {"type": "landmark_uniform", "epsilon": 1.0})
    places = ((37.72, -122.48), (37.78, -122.42))
    rows = [
        f"{user},2024-01-01T{hour:02}:{user:02}:00Z,{latitude},{longitude}"
        for hour in range(6)
        for user in range(4 + 5 * hour % 7)
        for latitude, longitude in (places[(user * hour + user) % 3 % 2],)
    ]
    (folder / "events.csv").write_text("\n".join(["user,time,latitude,longitude", *rows]) + "\n")
    return value | {"accountants": [{"type": "temporal", "correlation": correlation}]}


def test_the_verdict_against_what_was_learned_is_in_every_place(tmp_path, capsys):
    value = learning(tmp_path, estimate="first", windows=3)
    (tmp_path / "run.json").write_text(json.dumps(value))
    assert main(["run", str(tmp_path / "run.json"), "--runner", "local"]) == 0
    message = capsys.readouterr().out
    result = penstock_result(tmp_path)
    truth, released, worth = result["truth"], result["released"], result["utility_summary"]
    # Six hours, of which three are learned from: less than a day, so the mean of each cell.
    expected = np.abs(truth[:3].mean(axis=0) - truth[3:]).mean()
    assert worth["training_windows"] == 3
    assert worth["error_of_prior"] == pytest.approx(expected)
    assert worth["error_after_training"] == pytest.approx(np.abs(released - truth)[3:].mean())
    skill = 1 - worth["error_after_training"] / expected
    assert result["utility"]["skill_prior"] == pytest.approx(skill)
    rows = pl.read_parquet(tmp_path / "out" / "operator" / "utility.parquet").filter(metric="skill_prior")
    assert rows.filter(scope="run")["value"].to_list() == pytest.approx([skill])
    assert rows.filter(pl.col("scope") != "run")["value"].mean() == pytest.approx(skill)
    verdict = describe_utility(worth)
    assert verdict in message
    text = Text((tmp_path / "out" / "report.html").read_text()).text
    assert verdict in text
    assert "Skill against the prior" in text


def penstock_result(folder: Path) -> dict[str, Any]:
    """Counts as matrices, and the operator's figures, of a run."""
    manifest = json.loads((folder / "out" / "operator" / "manifest.json").read_text())
    tables = {"truth": ("operator/truth", "count"), "released": ("public/releases", "value")}
    actual = {}
    for name, (path, column) in tables.items():
        rows = pl.read_parquet(folder / "out" / f"{path}.parquet").with_columns(pl.col("cell").cast(pl.String))
        actual[name] = rows.pivot("cell", index="window", values=column).sort("window").drop("window").to_numpy()
    return actual | {"utility_summary": manifest["utility_summary"], "utility": manifest["utility"]}


def test_the_verdict_against_a_learned_file(tmp_path, capsys):
    (tmp_path / "run.json").write_text(json.dumps(learning(tmp_path, estimate="first", windows=3)))
    assert main(["learn", str(tmp_path / "run.json"), "--windows", "4", "--out", str(tmp_path / "l.npz")]) == 0
    run(configured(learning(tmp_path, learned=str(tmp_path / "l.npz"))), runner="local")
    result = penstock_result(tmp_path)
    visits = np.load(tmp_path / "l.npz")["visits"]
    assert result["utility_summary"]["error_of_prior"] == pytest.approx(np.abs(visits / 4 - result["truth"]).mean())
    assert "training_windows" not in result["utility_summary"]
    assert result["utility_summary"]["prior_overlap"] == 4
    verdict = describe_utility(result["utility_summary"])
    assert "(learned from the times of 4 of these windows, which it may know)" in verdict
    assert verdict in Text((tmp_path / "out" / "report.html").read_text()).text


def test_what_was_learned_before_the_run_is_said_to_be_the_prior(tmp_path, capsys):
    (tmp_path / "run.json").write_text(json.dumps(learning(tmp_path, estimate="first", windows=3)))
    words = ["learn", str(tmp_path / "run.json"), "--windows", "3", "--out", str(tmp_path / "l.npz"), "--json"]
    assert main(words) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["from"], facts["until"], facts["windows"]) == ("2024-01-01T00:00:00Z", "2024-01-01T03:00:00Z", 3)
    assert facts["source"] == "events"
    value = learning(tmp_path, learned=str(tmp_path / "l.npz"))
    value["source"]["from"] = "2024-01-01T03:00:00Z"
    value["mechanism"]["epsilon"] = 90.0
    run(configured(value), runner="local")
    later = penstock_result(tmp_path)["utility_summary"]
    assert later["prior_overlap"] == 0
    assert "the prior by" in describe_utility(later)
    assert "learned" not in describe_utility(later)


def test_without_a_prior_nothing_is_said_of_one(tmp_path, capsys):
    (tmp_path / "run.json").write_text(json.dumps(simulated(tmp_path, {"type": "landmark_uniform", "epsilon": 1.0})))
    assert main(["run", str(tmp_path / "run.json"), "--runner", "local"]) == 0
    assert "the prior" not in capsys.readouterr().out
    assert not (tmp_path / "out" / "operator" / "utility.parquet").read_bytes().count(b"skill_prior")


WORTH = {"mean_count": 40.0, "error": 4.0, "error_of_zeros": 40.0, "error_of_last": 8.0}


def test_a_prior_whose_file_states_no_times_may_know_these_windows():
    verdict = describe_utility(WORTH | {"error_of_prior": 5.0, "prior_overlap": None})
    assert "does not say when it was learned" in verdict


@pytest.mark.parametrize(
    ("prior", "message", "level"),
    [
        ({"error_of_prior": 5.0}, "; zeros by 40, the last release shown again by 8, the prior by 5.", None),
        (
            {"error_of_prior": 5.0, "training_windows": 6, "error_after_training": 5.5},
            ": no better than the prior, which is wrong by 5 (after its training on 6 windows, the release by 5.5).",
            "Caution: no better than the prior. ",
        ),
        (
            {"error_of_prior": 4.0},
            ": no better than the prior, which is wrong by 4.",
            "Caution: no better than the prior. ",
        ),
        (  # counts that never change: nothing is nearer than what they usually are
            {"error_of_prior": 0.0},
            ": no better than the prior, which is wrong by 0.",
            "Caution: no better than the prior. ",
        ),
        (
            {"error_of_prior": 0.0, "training_windows": 6, "error_after_training": 0.0},
            "; zeros by 40, the last release shown again by 8, "
            "the prior by 0 (after its training on 6 windows, the release by 0).",
            None,
        ),
    ],
)
def test_a_release_that_the_prior_beats_is_no_use(tmp_path, prior, message, level):
    worth = WORTH | prior
    assert describe_utility(worth) == f"Wrong by 4 people on average where 40 are counted (10 %){message}"
    actual = warnings_of(page(run_folder(tmp_path, operator={"utility_summary": worth})))
    assert ("no better" in actual) == (level is not None)
    assert (level or "") in actual


def released(epsilons: list[float], rho: float = math.inf, hours: int = 12, size: int | None = None) -> pl.LazyFrame:
    start = pl.datetime_range(
        pl.datetime(2024, 1, 1, time_zone="UTC"), pl.datetime(2024, 12, 31, time_zone="UTC"), f"{hours}h", eager=True
    ).dt.cast_time_unit("ms")[: len(epsilons)]
    window = np.arange(1, len(epsilons) + 1)
    times = {"window_start": start, "window_end": start + timedelta(hours=hours if size is None else size)}
    action = ["published" if epsilon else "repeated" for epsilon in epsilons]
    frame = pl.DataFrame({"stream": "main", "window": window, "available_at": start, "action": action} | times)
    frame = frame.with_columns(epsilon=pl.Series(epsilons), rho=pl.lit(rho))
    return pl.concat([frame, frame]).sort("window", maintain_order=True).lazy()  # two cells


def test_losses_are_sums_over_releases():
    actual = losses(released([0.5, 1.0, 2.0, 0.0, 0.25]), "UTC")
    assert actual == {"release": 2.0, "day": 2.0, "run": 3.75}
    # Days are those of the wall clock: from noon to noon.
    assert losses(released([0.5, 1.0, 2.0, 0.0, 0.25]), "Etc/GMT-12") == {"release": 2.0, "day": 3.0, "run": 3.75}


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (12, 3.0),  # the second day has windows 3 and 4 (2 and 1)
        (14, 2 + 2 * 0.5 + 2 * 1),  # windows 2 and 4 go beyond it, by two hours each
        (24, 2 * (0.5 + 1) + 2),  # window 3 is the day
        (25, 2 * (0.25 + 0.5 + 1 + 2)),  # all four go beyond it
    ],
)
def test_a_day_pays_for_every_release_that_shares_time_with_it(size, expected):
    actual = losses(released([0.25, 0.5, 2.0, 1.0], size=size), "UTC")
    assert actual == {"release": 2.0, "day": expected, "run": 3.75}


def test_a_sum_of_charges_has_the_same_bits_in_any_order():
    rows = released([0.1, 0.7, 1 / 3, 1e-3, 0.9, 0.123, 5.0, 2 / 7] * 40).collect()
    actual = {tuple(losses(part.lazy(), "UTC").values()) for part in (rows, rows.reverse())}  # type: ignore[union-attr]
    assert len(actual) == 1


def test_a_release_of_several_days_counts_in_each_of_them():
    assert losses(released([1.0, 0.5], hours=72), "UTC") == {"release": 1.0, "day": 2.0, "run": 1.5}
    assert losses(released([1.0, 0.5], hours=36), "UTC") == {"release": 1.0, "day": 3.0, "run": 1.5}


def test_the_windows_of_a_block_are_paid_for_once():
    rows = released([3.0, 3.0, 3.0, 2.0, 2.0]).with_columns(available_at=(pl.col("window") - 1) // 3)
    assert losses(rows, "UTC")["run"] == 5.0  # type: ignore[index]


def test_a_day_that_costs_more_than_the_run_says_why():
    """Two days of one budget period: a day without the person may bring other events of theirs into the counts."""
    figures = losses(released([2.0], size=30), "UTC")
    assert (figures["day"], figures["run"]) == (4.0, 2.0)  # type: ignore[index]
    assert "A day costs more than the run because a charge goes beyond it" in describe_losses(figures)  # type: ignore[arg-type]
    assert "because" not in describe_losses({"release": 2.0, "day": 2.0, "run": 2.0})
    assert "because" not in describe_losses({"release": 2.0, "day": 4.0})


def test_losses_without_a_pure_bound_are_those_of_rho():
    actual = losses(released([math.inf] * 4, rho=0.5), "UTC")
    # Of a Gaussian with ρ = 2 in all: below Bun and Steinke's ρ + 2·√(ρ·ln(1/δ)), above ρ alone.
    assert 2.0 < actual["run"] < 2.0 + 2 * math.sqrt(2.0 * math.log(1 / DELTA))  # type: ignore[index]
    assert actual["release"] < actual["day"] < actual["run"]  # type: ignore[index]
    assert "at δ = 1e-06" in describe_losses(actual)  # type: ignore[arg-type]
    assert "no bound" in describe_losses(losses(released([math.inf]), "UTC"))  # type: ignore[arg-type]


def test_what_may_be_a_pure_question_costs_four_times_its_rho_in_a_day_that_it_goes_beyond():
    """Its ε doubles where other events of the person take the place of those that go, and ρ is half of its square.
    A row of question and noise together shows no ε.
    """
    for epsilon in (math.inf, 0.5):
        figures = losses(released([math.inf, epsilon], rho=0.125, hours=24, size=30), "UTC")
        assert figures["day"] == epsilon_at("rho", 4 * 2 * 0.125, DELTA)  # type: ignore[index]


def test_losses_of_gaussian_noise_are_exact_and_those_of_its_shares_never_less():
    """A third of a count has a third of the noise; what was drawn is charged, and unknown from the row."""
    rows = released([math.inf] * 4, rho=1 / 32).with_columns(noise=pl.lit("discrete_gaussian"))
    exact, shares, small = (
        losses(rows.with_columns(scale=pl.lit(scale)), "UTC", "gaussian") for scale in (12.0, 4.0, 0.5)
    )
    drawn = epsilon_at("gaussian", 1 / 32 * 144 / (144 - SMOOTHING), DELTA)
    assert exact["release"] == drawn  # type: ignore[index]
    assert shares["release"] > drawn  # type: ignore[index]
    assert small == losses(rows, "UTC")  # by ρ, which knows no scale
    assert all(exact[name] < shares[name] <= small[name] for name in ("release", "day", "run"))  # type: ignore[index]


def test_a_period_that_is_paid_for_once_costs_every_day_that_it_is_about():
    """A week in one charge: who loses one of its days has others counted in its place."""
    week = released([2.0] + [0.0] * 13).with_columns(action=pl.lit("published"))
    assert losses(week, "UTC") == {"release": 2.0, "day": 4.0, "run": 2.0}
    days = released([2.0, 0.0] * 7).with_columns(action=pl.lit("published"))
    assert losses(days, "UTC") == {"release": 2.0, "day": 2.0, "run": 14.0}


LANDMARKS = {"recurring": ["07:00-08:00", "17:00-18:00"]}
SCHEDULES = [
    ({"type": "discrete_laplace", "epsilon": 0.5}, {}, True),
    ({"type": "discrete_gaussian", "rho": 0.01}, {}, True),
    ({"type": "period_uniform", "epsilon": 2.0}, {"budget_period": "1d", "bounding": {"max_per_period": 4}}, True),
    ({"type": "period_uniform", "epsilon": 2.0}, {"budget_period": "12h", "bounding": {"max_per_period": 4}}, True),
    ({"type": "period_uniform", "epsilon": 2.0}, {"budget_period": "2d", "bounding": {"max_per_period": 4}}, True),
    ({"type": "fast", "epsilon": 2.0, "publications": 4}, {"budget_period": "1d"}, True),
    ({"type": "landmark_uniform", "epsilon": 2.0}, {"budget_period": "1d", "landmarks": LANDMARKS}, True),
    ({"type": "landmark_adaptive", "epsilon": 2.0}, {"budget_period": "1d", "landmarks": LANDMARKS}, False),
    ({"type": "w_event_uniform", "epsilon": 2.0, "w": 5}, {}, True),
    ({"type": "w_event_ba", "epsilon": 2.0, "w": 5}, {}, False),
    ({"type": "fpa", "epsilon": 2.0, "coefficients": 2, "block": 12}, {}, True),
]


@pytest.mark.parametrize(("mechanism", "changes", "is_exact"), SCHEDULES, ids=lambda value: str(value)[:40])
def test_what_a_run_loses_is_known_before_it(tmp_path, mechanism, changes, is_exact):
    value = simulated(tmp_path, mechanism, **changes)
    value["source"] = {"type": "synthetic", "n_users": 20, "days": 4, "seed": 1} | {"from": "2024-01-01T00:00:00Z"}
    config = configured(value | {"windows": {"type": "fixed", "size": "1h"}, "space": GRID | {"rows": 2, "columns": 2}})
    measured = run(config, tmp_path / "losses", runner="local").manifest["loss"]
    expected = expected_losses(rehearse(config))
    assert expected == measured or not is_exact
    for forecast in (expected, expected_losses(rehearse(config, max_counts=0))):  # the second as of a long run
        assert forecast is not None
        bounds = {"release": forecast.get("unit")} | forecast
        assert all(bounds[name] >= amount * (1 - 1e-12) for name, amount in measured.items())


ENDLESS = {"from": "2024-01-01T00:00:00Z", "columns": {"user": "user", "time": "time", "place": "place"}}
UNITS = [
    ({"type": "discrete_laplace", "epsilon": 0.5}, {}, "0.5 by one release (62.3 %)"),
    ({"type": "w_event_uniform", "epsilon": 1.0, "w": 6}, {}, "1 in any 6 successive windows (73.2 %)"),
    ({"type": "w_event_ba", "epsilon": 1.0, "w": 24}, {}, "1 in any 24 successive windows (73.2 %)"),
    (
        {"type": "landmark_uniform", "epsilon": 1.0},
        {"budget_period": "1d", "landmarks": LANDMARKS},
        "1 in the landmark windows of a budget period and in any one other window of it (73.2 %)",
    ),
    (  # the guard's budget is for the unit of its ledger, and not for 24 windows
        {"type": "w_event_ba", "epsilon": 8.0, "w": 24},
        {"budget_period": "1d", "landmarks": LANDMARKS, "accountants": [{"type": "landmark_budget", "budget": 3.0}]},
        "3 in the landmark windows of a budget period and in any one other window of it (95.3 %)",
    ),
    # Six pairs of windows that are counted as one: no more windows than these are sure to meet no seventh pair.
    (
        [{"type": "temporal_generalization", "windows": 2}, {"type": "w_event_ba", "epsilon": 1.0, "w": 6}],
        {},
        "2 in any 11 successive windows (88.1 %)",
    ),
]


@pytest.mark.parametrize(("mechanism", "changes", "words"), UNITS, ids=lambda value: str(value)[:40])
def test_an_endless_run_states_the_budget_of_its_unit_as_that(tmp_path, mechanism, changes, words):
    value = simulated(tmp_path, mechanism, **changes)
    value["source"] = {"type": "kafka", "topic": "t", "brokers": "localhost:9092", **ENDLESS}
    value |= {"windows": {"type": "fixed", "size": "1h"}, "space": {"type": "places", "list": ["a", "b"]}}
    (loss,) = (line for line in expectations(configured(value)) if line.startswith("loss"))
    assert f", and as much again by each day that follows, {words}; in nats, sums" in loss
    assert loss.count("release") == words.count("release")


def test_a_day_with_a_large_loss_has_a_caution():
    assert caution({"release": 1.0, "day": 5.0, "run": 10.0}) is None
    assert "weak protection" in str(caution({"release": 1.0, "day": 5.1, "run": 10.0}))
    assert "next to no protection" in str(caution({"release": 1.0, "day": 10.1, "run": 10.1}))
    assert "whoever is there every day" in str(caution({"release": 1.0, "day": 2.0, "run": 10.1}))


@pytest.mark.parametrize("accountants", [[], [{"type": "composition"}]])
def test_costs_are_on_both_pages_and_in_the_summary_whatever_is_accounted(tmp_path, capsys, accountants):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(sections(tmp_path, accountants=accountants)))
    assert main(["run", str(path), "--runner", "local"]) == 0
    message = (
        "One person loses at most ε = 3 by a day (even odds become at most 95.3 %), 3 by the whole run (95.3 %), 0.5 by"
    )
    assert capsys.readouterr().out.count(message) == 2  # before it and after it
    for written in write_report(tmp_path / "out"):
        shown = Text(written.read_text()).text
        assert "By a day 3 × 20.1 95.3 %" in shown
        assert "By the whole run 3 × 20.1 95.3 %" in shown


def test_the_whole_loss_is_what_composition_says(tmp_path):
    result = run(configured(sections(tmp_path, accountants=[{"type": "composition"}])), runner="local")
    rows = pl.read_parquet(result.folder / "public" / "accounts.parquet").filter(pl.col("name") == "user_epsilon")
    assert rows["value"].max() == pytest.approx(result.manifest["loss"]["run"])


def test_a_person_of_a_trace_loses_what_the_own_points_cost():
    rows = pl.DataFrame(
        {"pseudonym": ["a", "a", "b"], "epsilon": [1.0, 1.0, 1.5], "rho": [0.5, 0.5, 1.125]}
    ).with_columns(time=pl.datetime(2024, 1, 1, time_zone="UTC"), rho=pl.col("epsilon") ** 2 / 2)
    assert losses(rows.lazy(), "UTC") == {"release": 1.5, "day": 2.0, "run": 2.0}


def test_a_run_without_a_bound_on_cells_warns_on_its_page(tmp_path):
    unbounded = {"bounding": {"max_cells": None}}
    public = {"sensitivity": {"max_cells": 400}}
    assert "400 times what it would be" in warnings_of(
        page(run_folder(tmp_path, public=public, configuration=unbounded))
    )


@pytest.mark.parametrize(
    ("mechanism", "accountants", "idle"),
    [
        ("landmark_uniform", [], []),
        ("discrete_laplace", ["landmark_budget"], []),
        ("discrete_laplace", [], ["budget_period", "landmarks"]),
        ("discrete_laplace", ["composition"], ["landmarks"]),
        ("discrete_laplace", ["temporal"], ["budget_period"]),
        ("fast", [], ["landmarks"]),
    ],
)
def test_keys_that_do_nothing_are_refused(tmp_path, capsys, mechanism, accountants, idle):
    changes = {
        "budget_period": "2h",
        "landmarks": {"windows": [2, 4]},
        "mechanism": {"type": mechanism, "epsilon": 1.0},
    }
    described = [
        {"type": name} | ({"correlation": {"laplacian": {"n": 2, "s": 1.0}}} if name == "temporal" else {})
        for name in accountants
    ]
    path = tmp_path / "run.json"
    path.write_text(json.dumps(sections(tmp_path, accountants=described, **changes)))
    assert main(["validate", str(path)]) == (2 if idle else 0)
    message = capsys.readouterr().err
    assert [key for key in ("budget_period", "landmarks") if f"{path}:1: {key}: " in message] == idle
    assert message.count("here reads it (landmark_uniform does, for one); it must be left out") == len(idle)


RIGHT = {"hour": 3, "count": 40.0, "bias": 0.01, "standard_error": 0.001}


@pytest.mark.parametrize(
    ("hour", "said"),
    [
        ({"bias": -0.2, "standard_error": 0.02}, "Around 18:00 all counts together are 20 % too small."),
        ({"bias": 0.08, "standard_error": 0.02}, "Around 18:00 all counts together are 8 % too large."),
        ({"bias": 0.04, "standard_error": 0.001}, None),  # small
        ({"bias": 0.08, "standard_error": 0.03}, None),  # perhaps by chance
        ({"bias": 0.5, "standard_error": None}, None),  # of a single window
        ({"count": 1.0, "bias": 0.5, "standard_error": 0.01}, None),  # hardly anybody is about
    ],
)
def test_an_hour_whose_counts_are_wrong_together_is_named(hour, said):
    worth = {"mean_count": 34.0, "error": 3.8, "error_of_zeros": 34.0, "error_of_last": 8.1}
    by_hour = [RIGHT, {"hour": 18, "count": 50.0} | hour, RIGHT | {"hour": 19, "bias": 0.06}]
    verdict = describe_utility(worth | {"bias_by_hour": by_hour})
    assert verdict.endswith(said or "Around 19:00 all counts together are 6 % too large.")


@pytest.mark.parametrize("max_rows", [1, 5, 1000])
def test_a_table_is_the_same_in_whatever_parts_it_is_read(max_rows):
    """Windows and cells that are left out, and sensors that are not active."""
    rng = np.random.default_rng(3)
    expected = np.where(rng.random((30, 4)) < 0.6, rng.random((30, 4)), np.nan)
    window, cell = np.nonzero(np.isfinite(expected))
    column = pl.Series(np.array(["a", "b", "c", "d"])[cell], dtype=pl.Categorical)
    rows = pl.DataFrame({"window": window + 1, "cell": column, "value": expected[window, cell]}).lazy()
    shown = [4, 9, 10, 11, 25, 30]
    actual = matrices(rows, pl.Series(shown), ("a", "d", "b"), pl.col("value"), max_rows=max_rows)
    np.testing.assert_array_equal(actual["value"], expected[np.array(shown) - 1][:, [0, 3, 1]])
