"""Totals of local days: membership of windows in days, and errors against a plain loop."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.evaluation import utility
from penstock.evaluation.utility import METRICS
from penstock.mechanisms.core.plugin import ConfigError, ParameterError
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.experiments.runner import run_experiment
from penstock.pipeline.output.utility import _count_scores
from penstock.pipeline.run import run
from penstock.pipeline.windows.fixed import Fixed
from tests.tools.experiment_cases import BASE, experiment_in

HOUR = 3_600_000
DAILY = [name for name, metric in METRICS.items() if metric.daily]


def utc(text: str) -> int:
    return round(datetime.fromisoformat(text + "+00:00").timestamp() * 1000)


def hours(begin: str, until: str, zone: str = "America/New_York", **changes):
    return Fixed(**{"size": HOUR, "time_zone": zone} | changes).calendar(utc(begin), utc(until))


def all_of(calendar):
    return calendar.whole_days(np.arange(1, calendar.n_windows + 1))


def lengths(calendar) -> dict[str, int]:
    """Windows of every whole day."""
    days = all_of(calendar)
    return {str(day): int((days == day).sum()) for day in np.unique(days[~np.isnat(days)])}


def plain(truth, released, days) -> dict[str, float]:
    """Every daily metric in loops over windows × cells; ``days`` has None for a window that is left out."""
    true, seen = defaultdict(float), defaultdict(float)
    for window, day in enumerate(days):
        for cell in range(truth.shape[1]):
            if day is not None:
                true[day, cell] += truth[window, cell]
                seen[day, cell] += released[window, cell]
    errors = [abs(seen[place] - true[place]) for place in true]
    dates = {day for day, _ in true}
    whole = {day: sum(seen[d, c] - true[d, c] for d, c in true if d == day) for day in dates}
    everything = max(sum(true.values()), 1.0)
    return {
        "daily_mae": sum(errors) / len(errors),
        "daily_relative_mae": sum(errors) / everything,
        "daily_city_error": sum(abs(error) for error in whole.values()) / everything,
    }


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_errors_equal_a_plain_loop(n_windows, n_cells, seed):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, (n_windows, n_cells)) * 1.0
    released = truth + rng.integers(-2, 3, truth.shape)
    named = [None if day == 3 else date(2020, 3, 7) + timedelta(int(day)) for day in rng.integers(0, 4, n_windows)]
    named[0] = date(2020, 3, 7)  # one at least
    days = np.array(named, "M8[D]")
    for name, expected in plain(truth, released, named).items():
        metric = METRICS[name]
        assert metric.function(truth, released, days, axes="windows_cells") == pytest.approx(expected)
        assert metric.function(truth.T, released.T, days=days, axes="cells_windows") == pytest.approx(expected)
        where, values = metric.scores(truth, released, days=days)
        assert values.mean() == pytest.approx(expected)
        assert len(where) == (len(set(named) - {None}) if metric.scope == "day" else n_cells)


def test_the_metrics_are_exact():
    truth = np.array([[4.0, 0.0], [6.0, 2.0], [0.0, 8.0]])
    released = np.array([[5.0, 1.0], [3.0, 2.0], [0.0, 6.0]])
    days = ["2020-03-07", "2020-03-07", "2020-03-08"]  # totals 10, 2; 0, 8 against 8, 3; 0, 6
    actual = {name: METRICS[name].function(truth, released, days, axes="windows_cells") for name in DAILY}
    assert actual == pytest.approx({"daily_mae": 5 / 4, "daily_relative_mae": 5 / 20, "daily_city_error": 3 / 20})
    # Errors within a day cancel, as they do in its total.
    swapped = truth[[1, 0, 2]]
    assert utility.daily_mean_absolute_error(truth, swapped, days, axes="windows_cells") == 0
    assert utility.mean_absolute_error(truth, swapped, axes="windows_cells") > 1


def test_without_dates_24_windows_are_a_day_and_a_rest_is_left_out_unless_alone():
    truth = np.ones((50, 2))
    released = truth.copy()
    released[48:] += 100.0
    released[0] += 1.0
    assert utility.daily_mean_absolute_error(truth, released, axes="windows_cells") == 0.5
    assert utility.daily_mean_absolute_error(truth[:3], released[:3], axes="windows_cells") == 1.0
    rest = released[48:], truth[48:]
    assert utility.daily_mean_absolute_error(*rest, axes="windows_cells") == 200.0


@pytest.mark.parametrize("days", [["2020-01-01"], ["NaT", "NaT"], ["monday", "tuesday"], np.zeros((2, 1), "M8[D]")])
def test_dates_that_do_not_fit_are_named(days):
    for name in DAILY:
        with pytest.raises(ParameterError, match=r"^days: "):
            METRICS[name].function(np.ones((2, 3)), np.ones((2, 3)), days, axes="windows_cells")
        with pytest.raises(ParameterError, match=r"^days: "):
            METRICS[name].scores(np.ones((2, 3)), np.ones((2, 3)), days=days)


def test_days_have_23_and_25_hours_where_the_clocks_change():
    spring = hours("2020-03-07T05:00", "2020-03-10T04:00")
    assert lengths(spring) == {"2020-03-07": 24, "2020-03-08": 23, "2020-03-09": 24}
    autumn = hours("2020-10-31T04:00", "2020-11-03T05:00")
    assert lengths(autumn) == {"2020-10-31": 24, "2020-11-01": 25, "2020-11-02": 24}
    # The same hours are other days in UTC.
    assert lengths(hours("2020-10-31T04:00", "2020-11-03T05:00", "UTC")) == {"2020-11-01": 24, "2020-11-02": 24}
    # A zone that leaves out a date (Samoa), and one whose clocks go forward at midnight.
    assert list(lengths(hours("2011-12-29T10:00", "2011-12-31T10:00", "Pacific/Apia"))) == ["2011-12-29", "2011-12-31"]
    assert lengths(hours("2018-11-03T03:00", "2018-11-05T02:00", "America/Sao_Paulo")) == {
        "2018-11-03": 24,
        "2018-11-04": 23,
    }


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "America/Havana"])
@pytest.mark.parametrize(("size", "offset"), [(HOUR // 2, 0), (HOUR, HOUR // 2), (5 * HOUR, 0), (24 * HOUR, 6 * HOUR)])
def test_a_window_is_of_the_date_it_starts_on_and_days_are_whole(zone, size, offset):
    """Equal to a calendar that begins long before and goes on long after."""

    def day_of(start: int) -> date:
        return datetime.fromtimestamp(start / 1000, UTC).astimezone(ZoneInfo(zone)).date()

    begin = utc("2021-03-10T07:00")
    for from_, until in ((begin, begin + 9 * 24 * HOUR), (begin + 17 * 60_000, begin + 30 * 24 * HOUR + 5)):
        calendar = Fixed(size=size, offset=offset, time_zone=zone).calendar(from_, until)
        long = replace(calendar, from_ms=from_ - 9 * 24 * HOUR, until_ms=until + 9 * 24 * HOUR)
        starts, ends = (of(1, calendar.n_windows).tolist() for of in (calendar.starts, calendar.ends))
        held = {start for start, end in zip(starts, ends) if start >= from_ and end <= until}
        lacking = {day_of(start) for start in long.starts(1, long.n_windows).tolist() if start not in held}
        expected = np.array([None if day_of(start) in lacking else day_of(start) for start in starts], "M8[D]")
        np.testing.assert_array_equal(all_of(calendar), expected)


def test_days_that_are_not_released_to_their_end_are_left_out():
    calendar = hours("2020-03-07T05:00", "2020-03-10T04:00")
    windows = np.arange(1, 72)
    assert np.isnat(calendar.whole_days(windows[:60])[47:]).all()
    assert not np.isnat(calendar.whole_days(windows[:60])[:47]).any()
    without_one = calendar.whole_days(np.delete(windows, 30))
    assert {str(day) for day in without_one} == {"2020-03-07", "NaT", "2020-03-09"}
    assert len(calendar.whole_days(windows[:0])) == 0
    endless = Fixed(size=HOUR, time_zone="America/New_York").calendar(utc("2020-03-07T05:00"))
    assert np.isnat(endless.whole_days(windows[:50])).tolist() == [False] * 47 + [True] * 3


def test_windows_that_add_up_to_no_days_are_refused():
    begin, until = utc("2020-03-02T00:00"), utc("2020-03-30T00:00")
    for windows in (Fixed(size=7 * 24 * HOUR), Fixed(size=25 * HOUR)):
        with pytest.raises(ParameterError, match=r"windows: .* at most a day long"):
            all_of(windows.calendar(begin, until))


TEXT = BASE.replace("[mae, pearson]", f"[mae, {', '.join(DAILY)}]").replace(
    "until: 2024-01-02T00:00:00Z", "until: 2024-01-03T00:00:00Z"
)


@pytest.mark.parametrize(
    ("old", "new", "right"),
    [
        ("until: 2024-01-03T00:00:00Z", "until: 2024-01-01T20:00:00Z", r"no calendar day \(UTC\) is in the run"),
        ("size: 1h", "size: 48h", "those longer than a day add up to no days"),
    ],
)
def test_a_run_without_a_whole_day_has_no_daily_metric(tmp_path, old, new, right):
    text = TEXT.replace(old, new).replace("accountants: [{type: landmark_budget}]", "accountants: []")
    with pytest.raises(ConfigError) as actual:
        loads(text)
    assert sum("utility[1]: 'daily_mae' is not allowed" in problem for problem in actual.value.problems) == 1
    actual.match(right)
    (tmp_path / "run.yaml").write_text(text)
    experiment = experiment_in(tmp_path)
    (tmp_path / "base.yaml").write_text(text.replace(f", {', '.join(DAILY)}", ""))
    for measure in ("daily_mae", "guess_daily_city_error"):
        with pytest.raises(ConfigError, match=rf"measures\[1\]: '{measure}' is not allowed.*{right}"):
            experiment(f"name: e\nquestion: which\nbase: base.yaml\nmeasures: [mae, {measure}]\n")


def totals(folder, zone):
    """Totals of all dates, true and released, from what a run wrote."""
    names = {"public/releases.parquet": "value", "operator/truth.parquet": "count"}
    local = pl.col("window_start").dt.convert_time_zone(zone).dt.date().alias("day")
    frames = [
        pl.read_parquet(folder / name).group_by(local, pl.col("cell").cast(pl.String)).agg(pl.col(column).sum())
        for name, column in names.items()
    ]
    return frames[0].join(frames[1], on=["day", "cell"])


def test_a_run_and_an_experiment_measure_what_was_released(tmp_path):
    zone = "Asia/Kolkata"  # half an hour off: of two days in UTC one is whole there, less half an hour at both ends
    text = TEXT.replace("size: 1h", f"size: 30m, time_zone: {zone}")
    result = run(loads(text), tmp_path / "run", runner="local")
    of_day = totals(tmp_path / "run", zone).filter(pl.col("day") == date(2024, 1, 2))
    error = (of_day["value"] - of_day["count"]).abs()
    expected = {
        "daily_mae": error.mean(),
        "daily_relative_mae": error.sum() / of_day["count"].sum(),
        "daily_city_error": abs(of_day["value"].sum() - of_day["count"].sum()) / of_day["count"].sum(),
    }
    actual = result.manifest["utility"]
    assert {name: actual[name] for name in DAILY} == pytest.approx(expected)
    rows = pl.read_parquet(tmp_path / "run" / "operator" / "utility.parquet").filter(pl.col("metric").is_in(DAILY))
    assert rows.filter(pl.col("scope").str.starts_with("day:"))["scope"].to_list() == ["day:2024-01-02"]
    assert len(rows.filter(pl.col("scope").str.starts_with("cell:"))) == 2 * 9

    load = experiment_in(tmp_path)
    (tmp_path / "base.yaml").write_text(text)
    outcome = run_experiment(
        load(f"name: e\nquestion: which\nbase: base.yaml\nmeasures: [{', '.join(DAILY)}]\nseeds: 1\n"), tmp_path / "e"
    )
    again = run(loads(text + "seed: 1\n"), tmp_path / "again", runner="local").manifest["utility"]
    measured = dict(pl.read_parquet(outcome.folder / "results.parquet").select("measure", "value").iter_rows())
    assert measured == pytest.approx({name: again[name] for name in DAILY})


def test_a_run_that_stops_within_its_first_day_has_no_total():
    plan = make_plan(loads(TEXT))
    windows = np.arange(1, 6)
    scores = _count_scores(plan, np.ones((5, 9)), np.ones((5, 9)), windows)
    assert {score.metric for score in scores} == {"mae"}
    whole = np.arange(1, 30)
    scores = _count_scores(plan, np.ones((29, 9)), np.ones((29, 9)), whole)
    assert {score.metric for score in scores} == {"mae", *DAILY}
    assert [score.scope for score in scores if score.metric == "daily_city_error"] == ["run", "day:2024-01-01"]
