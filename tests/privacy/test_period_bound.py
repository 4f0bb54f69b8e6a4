"""A bound on each person's budget period: enforcement, sensitivity, charges, refused combinations."""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations, product
from typing import Any

import numpy as np
import polars as pl
import pytest
from deployments import sections as deployed_sections
from small_configuration import made_up_events, small_sections

from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.period import PeriodBound
from penstock.mechanisms.core.plugin import ConfigError, ParameterError
from penstock.mechanisms.core.run import run_mechanism
from penstock.mechanisms.landmark_uniform import LandmarkUniform
from penstock.mechanisms.w_event_uniform import WEventUniform
from penstock.pipeline.cli.main import main
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.counting.bounding import PeriodQuota, most_for_noise, most_for_share
from penstock.pipeline.counting.contributions import ContributionRows
from penstock.pipeline.output.manifest import sensitivity
from penstock.pipeline.output.utility_summary import losses
from penstock.pipeline.run import run
from penstock.pipeline.runners.local import StreamLoop
from penstock.pipeline.windows.calendar import DAY, Calendar
from penstock.pipeline.windows.grid import WindowGrid

HOUR = 3_600_000


# How many memberships the unit of a guarantee changes.


def kept(rows: tuple[int, ...], most: int, length: int) -> np.ndarray[Any, Any]:
    """Memberships of each window that stay, of so many."""
    left, found = most, []
    for index, n in enumerate(rows):
        left = most if index % length == 0 else left
        found.append(min(n, left))
        left -= found[-1]
    return np.array(found)


def moved(rows: tuple[int, ...], gone: set[int], most: int, length: int) -> int:
    """Memberships that differ when some windows' rows go; within a window those of the smaller set stay."""
    left = tuple(0 if index in gone else n for index, n in enumerate(rows))
    return int(np.abs(kept(rows, most, length) - kept(left, most, length)).sum())


SIZES = [(c, length, most) for c in (1, 2) for length in (1, 2, 3) for most in range(1, c * length + 2)]


@pytest.mark.parametrize(("max_cells", "length", "most"), SIZES)
def test_no_rows_of_a_person_move_more(max_cells, length, most):
    n_windows = 2 * length
    bound = PeriodBound(most=most, max_cells=max_cells, shortest=length, longest=length)
    everyone = list(product(range(max_cells + 1), repeat=n_windows))
    for n in range(1, n_windows + 1):
        stretches = [set(range(first, first + n)) for first in range(n_windows - n + 1)]
        found = max(moved(rows, gone, most, length) for rows in everyone for gone in stretches)
        assert found <= bound.stretch(n)
        if n <= length:
            assert found == bound.stretch(n)
        parts = {part for gone in stretches for size in range(1, n + 1) for part in combinations(sorted(gone), size)}
        found = max(moved(rows, set(part), most, length) for rows in everyone for part in parts)
        assert found <= bound.part_of_stretch(n)
        if n <= length:
            assert found == bound.part_of_stretch(n)
    for n in range(1, length + 1):
        subsets = [gone for gone in map(set, product(range(length), repeat=n)) if len(gone) == n]
        found = max(moved(rows, gone, most, length) for rows in everyone for gone in subsets)
        assert found == bound.part(n) <= 2 * most


def test_a_part_of_a_period_may_move_more_than_the_whole():
    rows, most, length = (1, 1, 1, 1), 2, 4  # two of four windows count; without the first two the others do
    assert [moved(rows, gone, most, length) for gone in ({0, 1, 2, 3}, {0, 1, 2}, {0, 1}, {0})] == [2, 3, 4, 2]


def test_a_day_is_dearer_than_its_bound_unless_it_is_the_period():
    day = PeriodBound(most=30, max_cells=15, shortest=24, longest=24)
    assert (day.whole, day.part(24), day.part(23), day.stretch(24), day.stretch(1)) == (30, 30, 45, 90, 30)
    assert day.part_of_stretch(24) == 120
    assert PeriodBound(most=360, max_cells=15, shortest=24, longest=24).stretch(24) == 360  # it binds nobody
    alone = PeriodBound(most=30, max_cells=15, shortest=24, longest=24, alone=True)
    assert alone.stretch(2) == 60
    assert PeriodBound(most=3, max_cells=15, shortest=24, longest=24).of_window == 3


@pytest.mark.parametrize(
    ("wrong", "field"),
    [({"most": 0}, "most"), ({"max_cells": 1.5}, "max_cells"), ({"shortest": 25}, "shortest")],
)
def test_a_bound_is_made_of_whole_numbers(wrong, field):
    with pytest.raises(ParameterError, match=field):
        PeriodBound(**({"most": 3, "max_cells": 1, "shortest": 24, "longest": 24} | wrong))


def schedule(hours: int | None, period: int | None, zone: str = "UTC", begin: int = 0) -> WindowGrid:
    until = None if hours is None else begin + hours * HOUR
    calendar = Calendar(step=HOUR, anchor=begin, time_zone="UTC", from_ms=begin, until_ms=until)
    return WindowGrid(calendar=calendar, budget_period_ms=period, time_zone=zone)


def test_lengths_of_periods():
    assert schedule(48, None).period_lengths() == (48, 48, True)
    assert schedule(72, DAY, begin=5 * HOUR).period_lengths() == (24, 24, False)
    assert schedule(10, 12 * HOUR).period_lengths() == (10, 10, True)
    assert schedule(None, DAY).period_lengths() == (23, 24, False)
    spring = 1_585_440_000_000 - 3 * DAY  # three days before 2020-03-29 in Berlin, which has 23 hours
    assert schedule(7 * 24, DAY, "Europe/Berlin", spring).period_lengths() == (23, 24, False)
    least, most, alone = schedule(None, DAY, "Europe/Berlin").period_lengths()
    assert (least <= 23, most >= 25, alone) == (True, True, False)
    with pytest.raises(ParameterError, match="budget_period"):
        schedule(None, None).period_lengths()


# Which memberships stay.


def some_rows(seed: int, n_users: int = 6, n_windows: int = 8, n_cells: int = 4) -> ContributionRows:
    present = np.random.default_rng(seed).random((n_users, n_windows, n_cells)) < 0.5
    user, window, cell = np.nonzero(present)
    mark = np.random.default_rng(seed).integers(0, 9, len(user))
    return ContributionRows(user[:, None].astype(np.int64), window + 1, cell, mark)


def admitted(rows: ContributionRows, period: Any, cuts: list[int], keep: str, most: int = 3) -> list[bool]:
    """What stays where windows come in pieces, each with a quota that was written down in between."""
    quota, found = PeriodQuota(), np.zeros(len(rows), bool)
    for first, last in zip([0, *cuts], [*cuts, 10**6]):
        piece = np.flatnonzero((rows.window > first) & (rows.window <= last))
        found[piece] = quota.admit(rows.take(piece), period[piece], most, keep, b"k" * 16)
        quota = PeriodQuota({name: value.copy() for name, value in quota.state().items()})
    return found.tolist()


@pytest.mark.parametrize("keep", ["hash", "first", "last", "most_frequent"])
def test_the_first_memberships_of_a_period_stay(keep):
    for seed in range(5):
        rows = some_rows(seed)
        period = (rows.window - 1) // 3
        whole = admitted(rows, period, [], keep)
        assert all(admitted(rows, period, cuts, keep) == whole for cuts in ([1, 2, 3, 4, 5, 6, 7], [4], [2, 7]))
        for user, number in product(range(6), range(3)):
            own = np.flatnonzero((rows.user[:, 0] == user) & (period == number))
            stay = own[np.array(whole)[own]]
            assert len(stay) == min(3, len(own))
            # Whole windows, then a part of one, then nothing.
            if 0 < len(stay) < len(own):
                gone = np.setdiff1d(own, stay)
                assert rows.window[stay].max() <= rows.window[gone].min()
                if keep != "hash":
                    sign = 1 if keep == "first" else -1
                    border = rows.window[stay].max()
                    last = [sign * rows.mark[i] for i in stay if rows.window[i] == border]
                    left = [sign * rows.mark[i] for i in gone if rows.window[i] == border]
                    assert not left or max(last) <= min(left)


def test_users_of_both_kinds_of_identity_are_told_apart():
    quota = PeriodQuota()
    two = ContributionRows(np.array([[7, 1], [7, 2]]), np.array([1, 1]), np.array([0, 0]))
    zeros = np.zeros(2, np.int64)
    assert quota.admit(two, zeros, 1, "hash", b"k" * 16).all()
    later = ContributionRows(two.user, two.window + 1, two.cell)
    assert not quota.admit(later, zeros, 1, "hash", b"k" * 16).any()
    with pytest.raises(ValueError, match="does not follow"):
        quota.admit(later, zeros - 1, 1, "hash", b"k" * 16)


def test_the_bound_that_keeps_a_share_of_all_memberships():
    rows = some_rows(1)
    period = (rows.window - 1) // 3
    n_own = np.unique(np.stack([rows.user[:, 0], period]), axis=1, return_counts=True)[1]
    for share in (0.1, 0.5, 0.9, 0.95, 1.0):
        most = most_for_share(rows, period, share)
        assert np.minimum(n_own, most).sum() >= share * len(rows) > np.minimum(n_own, most - 1).sum()
    assert most_for_share(rows.take(slice(0, 0)), period[:0], 0.9) == 1


def test_the_bound_that_suits_the_noise():
    rows = some_rows(1, n_users=100)
    period, n_counts = (rows.window - 1) // 3, 32

    def cut_off(most):
        """Root mean square of what the bound takes away from a count; within a window the first cells stay."""
        taken, lost = Counter(), Counter()
        for user, one, window, cell in sorted(zip(rows.user[:, 0], period, rows.window, rows.cell)):
            taken[user, one] += 1
            lost[window, cell] += taken[user, one] > most
        return np.sqrt(sum(n**2 for n in lost.values()) / n_counts)

    least, most = most_for_share(rows, period, 0.99), most_for_share(rows, period, 1.0)
    found = [
        most_for_noise(rows, period, n_counts, lambda n, size=size: size * n**0.5) for size in (1e6, 3.0, 0.3, 1e-6)
    ]
    assert least == found[0] <= found[1] <= found[2] <= found[3] == most
    for size, n in zip((1e6, 3.0, 0.3, 1e-6), found):
        assert cut_off(n) <= size * n**0.5 / 8
        assert n == least or cut_off(n - 1) > size * (n - 1) ** 0.5 / 8


def test_learn_says_which_bounds_keep_most(tmp_path, capsys):
    mechanism = {"type": "period_uniform", "epsilon": 1.0}
    (tmp_path / "run.json").write_text(json.dumps(bounded(tmp_path, mechanism=mechanism)))
    command = ["learn", str(tmp_path / "run.json"), "--out", str(tmp_path / "moves.npz"), "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert 3 < found["max_per_period_95"] <= found["max_per_period_99"] <= found["max_per_period_for_noise"] <= 8
    assert "a look at the data" in found["max_per_period_from"]


# Noise and its price.


DAYS = PeriodBound(most=30, max_cells=15, shortest=24, longest=24)


def test_noise_of_any_24_hours():
    facts = Facts(n_cells=20, max_cells=15, period_bound=DAYS)
    zeros = np.zeros((1, 20), int)
    laplace = run_mechanism(WEventUniform(epsilon=2.0, w=24), zeros, facts, seed=1)[0]
    assert laplace.scale == pytest.approx(120 / 2)
    gaussian = WEventUniform(rho=0.5, w=24, noise="discrete_gaussian")
    assert run_mechanism(gaussian, zeros, facts, seed=1)[0].scale == pytest.approx(np.sqrt(120))
    plain = run_mechanism(WEventUniform(epsilon=2.0, w=24), zeros, Facts(n_cells=20, max_cells=15), seed=1)[0]
    assert plain.scale == 360 / 2


def test_noise_of_a_calendar_day_and_of_some_landmarks():
    zeros = np.zeros((24, 20), int)
    every = Facts(n_cells=20, max_cells=15, n_windows=24, landmarks=tuple(range(1, 25)), period_bound=DAYS)
    assert run_mechanism(LandmarkUniform(epsilon=2.0), zeros, every, seed=1)[0].scale == pytest.approx(30 / 2)
    two = Facts(n_cells=20, max_cells=15, n_windows=24, landmarks=(3, 4), period_bound=DAYS)
    # Three windows hold all 30, and 30 others come in.
    assert run_mechanism(LandmarkUniform(epsilon=2.0), zeros, two, seed=1)[0].scale == pytest.approx(60 / 2)


def figures(rows: Any, window: int | None) -> dict[str, float]:
    return {row.name: row.value for row in rows if row.window == window}


def test_losses_of_a_day_and_of_the_run_count_memberships():
    times = pl.datetime_range(
        pl.datetime(2024, 1, 1), pl.datetime(2024, 1, 2, 23), "1h", time_zone="UTC", eager=True
    ).cast(pl.Datetime("ms", "UTC"))
    releases = pl.LazyFrame(
        {
            "stream": ["main"] * 48,
            "window": range(1, 49),
            "window_start": times,
            "window_end": times.dt.offset_by("1h"),
            "available_at": times,
            "epsilon": [0.5] * 48,
            "rho": [0.125] * 48,
        }
    )
    assert losses(releases, "UTC") == {"release": 0.5, "day": 12.0, "run": 24.0}
    own = {"window": 15, "day": 30, "run": 60}
    assert losses(releases, "UTC", {"memberships": own}) == {"release": 0.5, "day": 1.0, "run": 2.0}


# Whole runs.


MECHANISM = {"type": "w_event_uniform", "epsilon": 4.0, "w": 3}


def bounded(folder, **changes: Any) -> dict[str, Any]:
    found = small_sections(folder, made_up_events(400), landmarks=None, mechanism=MECHANISM) | {
        "bounding": {"max_cells": 2, "max_per_period": 3},
        "budget_period": "4h",
        "accountants": [{"type": "composition"}],
        "output": {"path": str(folder / "out"), "report": False},
    }
    return {name: part for name, part in (found | changes).items() if part is not None}


def test_nobody_counts_more_often_in_a_period(tmp_path):
    run(loads(json.dumps(bounded(tmp_path))), runner="local")
    truth = pl.read_parquet(tmp_path / "out" / "operator" / "truth.parquet")
    first = truth.filter(pl.col("window") <= 4)["bounded"].sum()
    assert 0 < first <= 3 * 40 < truth.filter(pl.col("window") <= 4)["count"].sum()
    stated = json.loads((tmp_path / "out" / "public" / "manifest.json").read_text())["sensitivity"]["memberships"]
    assert stated == {"window": 2, "day": 24, "run": 6}  # 3 + 5·3 of whole periods + 3 + 3


class Killed(RuntimeError):
    """Stands for the end of the process."""


@pytest.mark.parametrize("remembers", [True, False])
def test_a_stream_goes_on_in_the_middle_of_a_period(tmp_path, monkeypatch, remembers):
    values = bounded(tmp_path)
    expected = run(loads(json.dumps(values)), tmp_path / "whole", runner="local").folder
    source = {"type": "stream", "of": values["source"], "block_rows": 20, "checkpoint": "0s"}
    config = loads(json.dumps(values | {"source": source}))
    right = StreamLoop._save

    def save_and_die(loop):
        right(loop)
        if loop.n_counted == 2:
            raise Killed

    with monkeypatch.context() as fatal:
        fatal.setattr(StreamLoop, "_save", save_and_die)
        with pytest.raises(Killed):
            run(config, tmp_path / "out")
    if not remembers:
        monkeypatch.setattr(PeriodQuota, "state", lambda self: {})
        monkeypatch.setattr(PeriodQuota, "__init__", _forgetful)
    run(config, tmp_path / "out", resume=True)
    same = all(
        (tmp_path / "out" / name).read_bytes() == (expected / name).read_bytes()
        for name in ("public/releases.parquet", "operator/truth.parquet")
    )
    assert same == remembers


def _forgetful(self: PeriodQuota, saved: Any = None) -> None:
    self._period, self._closed, self._users, self._used = -1, -1, np.zeros((0, 2), np.int64), np.zeros(0, np.int64)


COMPOSED = {"accountants": [{"type": "composition"}]}
GUARDED = {"landmarks": {"recurring": ["00:00-24:00"]}, "accountants": [{"type": "landmark_budget", "rho": 0.4}]}
LANDMARKED = {"landmarks": {"recurring": ["00:00-24:00"]}, "accountants": [{"type": "landmark_budget"}]}


def test_no_ledger_counts_window_by_window_under_a_bound_on_the_period(tmp_path):
    value = deployed_sections(tmp_path) | {"mechanism": MECHANISM, "budget_period": "4h"} | COMPOSED
    value.pop("landmarks", None)
    value |= {"bounding": {"max_cells": 2, "max_per_period": 2}}
    with pytest.raises(ConfigError, match="what leaves a window makes room in others"):
        run(loads(json.dumps(value)), tmp_path / "one", runner="local")
    assert not (tmp_path / "one" / "operator" / "run.json").exists()


# Who may use it.


WRONG = {
    "a mechanism over blocks": (
        {"mechanism": {"type": "fpa", "epsilon": 1.0, "coefficients": 1, "block": 4}},
        "one on counts of single windows",
    ),
    "ranges of blocks": (
        {"mechanism": {"type": "adaptive_ranges", "parts": 2, "block": 2}},
        "one on counts of single windows",
    ),
    "a declared number of landmarks": (
        {"mechanism": {"type": "landmark_uniform", "epsilon": 1.0}, "landmarks": {"windows": [1], "max_per_period": 2}},
        "memberships that move depend on",
    ),
    "a step on events": (
        {"mechanism": [{"type": "sampling", "rate": 0.5}, MECHANISM]},
        "alone or with post-processing",
    ),
    "sensors": ({"sensors": {"active": "one_random"}}, "left out with bounding.max_per_period"),
    "another accountant": (
        {"accountants": [{"type": "temporal", "correlation": {"laplacian": {"n": 3, "s": 0.1}}}]},
        "composition or landmark_budget",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_know_the_bound_is_refused(tmp_path, name):
    change, message = WRONG[name]
    with pytest.raises(ConfigError, match=message):
        loads(json.dumps(bounded(tmp_path, **change)))


def test_an_endless_run_needs_periods(tmp_path):
    values = bounded(tmp_path)
    kafka = {"type": "kafka", "brokers": "localhost:1", "topic": "t", "from": "2024-01-01T00:00:00Z"}
    values |= {"source": kafka, "budget_period": None}
    with pytest.raises(ConfigError, match=r"which bounding\.max_per_period is a bound on"):
        loads(json.dumps({name: part for name, part in values.items() if part is not None}))


def test_plans_say_what_the_mechanism_has_to_know(tmp_path):
    plan = make_plan(loads(json.dumps(bounded(tmp_path))))
    assert plan.period_bound == PeriodBound(most=3, max_cells=2, shortest=4, longest=4)
    assert plan.facts().period_bound == plan.accounting_facts().period_bound == plan.period_bound
    assert plan.facts().sensitivity == 2


def test_a_day_that_cuts_windows_costs_what_bounding_keeps_instead(tmp_path):
    """Of a window that goes beyond the day other events stay: removing a day's may keep another cell there."""
    changes = {"windows": {"type": "fixed", "size": "7h"}, "budget_period": "14h"}
    plan = make_plan(loads(json.dumps(bounded(tmp_path, **changes))))
    bound = plan.period_bound
    assert sensitivity(plan)["memberships"]["day"] == bound.stretch(5) + 2 * bound.of_window
