"""A bound on each person's budget period: enforcement, sensitivity, charges, refused combinations."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import polars as pl
import pytest

from penstock.mechanisms.core.plugin import ConfigError
from penstock.pipeline.cli.main import main
from penstock.pipeline.config.run import loads
from penstock.pipeline.counting.bounding import CountingBounds, PeriodQuota, quota_for_noise, quota_for_share
from penstock.pipeline.counting.contributions import ContributionRows
from penstock.pipeline.monitoring.metrics import CHECKPOINT_BYTES, LAST_WINDOW, RunMetrics, listening
from penstock.pipeline.run import run
from tests.tools.listeners import CallbackListener
from tests.tools.small_configuration import made_up_events, small_sections

HOUR = 3_600_000


def some_rows(seed: int, n_users: int = 6, n_windows: int = 8, n_cells: int = 4) -> ContributionRows:
    present = np.random.default_rng(seed).random((n_users, n_windows, n_cells)) < 0.5
    user, window, cell = np.nonzero(present)
    mark = np.random.default_rng(seed).integers(0, 9, len(user))
    return ContributionRows(user[:, None].astype(np.int64), window + 1, cell, mark)


def admitted(rows: ContributionRows, period: Any, cuts: list[int], keep: str, most: int = 3) -> list[bool]:
    """Contributions admitted piecewise, with the quota serialised in between."""
    quota, actual = PeriodQuota(), np.zeros(len(rows), bool)
    for first, last in zip([0, *cuts], [*cuts, 10**6]):
        piece = np.flatnonzero((rows.window > first) & (rows.window <= last))
        actual[piece] = quota.admit(rows.take(piece), period[piece], most, keep, b"k" * 16)
        quota = PeriodQuota({name: value.copy() for name, value in quota.state().items()})
    return actual.tolist()


@pytest.mark.parametrize("keep", ["hash", "first", "last", "most_frequent"])
def test_the_first_memberships_of_a_period_stay(keep):
    for seed in range(5):
        rows = some_rows(seed)
        period = (rows.window - 1) // 3
        whole = admitted(rows, period, [], keep)
        assert all(admitted(rows, period, cuts, keep) == whole for cuts in ([1, 2, 3, 4, 5, 6, 7], [4], [2, 7]))
        for user, number in product(range(6), range(3)):
            indices = np.flatnonzero((rows.user[:, 0] == user) & (period == number))
            stay = indices[np.array(whole)[indices]]
            assert len(stay) == min(3, len(indices))
            # Whole windows, then a part of one, then nothing.
            if 0 < len(stay) < len(indices):
                gone = np.setdiff1d(indices, stay)
                assert rows.window[stay].max() <= rows.window[gone].min()
                if keep != "hash":
                    sign = 1 if keep == "first" else -1
                    border = rows.window[stay].max()
                    last = [sign * rows.mark[i] for i in stay if rows.window[i] == border]
                    left = [sign * rows.mark[i] for i in gone if rows.window[i] == border]
                    assert not left or max(last) <= min(left)


def test_a_period_whose_use_is_not_known_leaves_nobody_anything():
    """After a loss of the quota nobody is admitted who may have counted before."""
    rows = ContributionRows(np.array([[7], [8], [7]]), np.array([3, 4, 5]), np.zeros(3, np.int64))
    quota = PeriodQuota()
    assert quota.close(2)
    assert not PeriodQuota(quota.state()).close(2)
    for one in (quota, PeriodQuota(quota.state())):
        assert one.admit(rows.take(slice(0, 2)), np.array([1, 2]), 5, "hash", b"k" * 16).tolist() == [False, False]
        assert one.admit(rows.take(slice(2, 3)), np.array([3]), 5, "hash", b"k" * 16).tolist() == [True]


def test_users_of_both_kinds_of_identity_are_told_apart():
    quota = PeriodQuota()
    two = ContributionRows(np.array([[7, 1], [7, 2]]), np.array([1, 1]), np.array([0, 0]))
    zeros = np.zeros(2, np.int64)
    assert quota.admit(two, zeros, 1, "hash", b"k" * 16).all()
    later = ContributionRows(two.user, two.window + 1, two.cell)
    assert not quota.admit(later, zeros, 1, "hash", b"k" * 16).any()
    with pytest.raises(ValueError, match="does not follow"):
        quota.admit(later, zeros - 1, 1, "hash", b"k" * 16)


# A quota that opens in turn.


def rows_of(people: dict[int, tuple[int, ...]]) -> ContributionRows:
    """Memberships by person: the numbers of (window, cell), two cells a window, in a sorted table."""
    actual = sorted((user, 1 + place // 2, place % 2) for user, places in people.items() for place in places)
    user, window, cell = np.array(actual, np.int64).reshape(-1, 3).T
    return ContributionRows(user[:, None], window, cell)


def kept_of(rows: ContributionRows, opened: list[int]) -> set[tuple[int, int, int]]:
    """Contributions kept in three windows of one period under a pace."""
    stay = PeriodQuota().admit(rows, 0 * rows.window, np.array(opened)[rows.window - 1], "hash", b"k" * 16)
    return {(int(u), int(w), int(c)) for u, w, c in zip(rows.user[stay, 0], rows.window[stay], rows.cell[stay])}


@pytest.mark.parametrize("pace", [(1, 1, 1), (0, 1, 3), (3, 0, 1), (1, 0, 0)])
def test_a_paced_quota_moves_no_more_than_n_counts_whatever_one_person_does(pace):
    """Every set of memberships of one person in three windows of two cells, beside another person, for every n."""
    everything = [tuple(p for p in range(6) if number >> p & 1) for number in range(64)]
    for n in range(1, 7):
        opened = (
            CountingBounds(max_per_period=n, pace=pace)
            .quota_by_window(np.arange(3), lambda windows: windows / 3)
            .tolist()
        )
        assert opened[-1] == n
        assert opened == sorted(opened)
        alone = {places: kept_of(rows_of({1: places}), opened) for places in everything if places}
        for places, stay in alone.items():
            # Exactly what is open, or all that there is of it: in every window, together with those before.
            used = 0
            for window in (1, 2, 3):
                used = min(used + sum(1 + p // 2 == window for p in places), opened[window - 1])
                assert sum(w <= window for _, w, _ in stay) == used
            assert len(stay) <= n
        other = (0, 3, 4, 5)
        for places in everything[1::7]:
            # The neighbour without the person: nothing of the other one moves, and at most n counts by one.
            without = kept_of(rows_of({0: other}), opened)
            assert kept_of(rows_of({0: other, 1: places}), opened) == without | alone[places]


@pytest.mark.parametrize("cuts", [[], [1, 2, 3, 4, 5, 6, 7], [2, 7]])
def test_a_paced_quota_goes_on_where_it_was_written_down(cuts):
    rows = some_rows(3)
    period = (rows.window - 1) // 4
    opened = CountingBounds(max_per_period=3, pace=(1, 1, 1, 1)).quota_by_window(
        rows.window, lambda windows: (windows - 1) % 4 / 4
    )
    quota, actual = PeriodQuota(), np.zeros(len(rows), bool)
    for first, last in zip([0, *cuts], [*cuts, 10**6]):
        piece = np.flatnonzero((rows.window > first) & (rows.window <= last))
        actual[piece] = quota.admit(rows.take(piece), period[piece], opened[piece], "hash", b"k" * 16)
        quota = PeriodQuota({name: value.copy() for name, value in quota.state().items()})
    assert actual.tolist() == PeriodQuota().admit(rows, period, opened, "hash", b"k" * 16).tolist()
    everything = CountingBounds(max_per_period=3, pace=(1, 0, 0, 0)).quota_by_window(
        rows.window, lambda windows: (windows - 1) % 4 / 4
    )
    assert PeriodQuota().admit(rows, period, everything, "hash", b"k" * 16).tolist() == admitted_of(rows, period)


def test_a_digest_tells_uses_of_a_quota_apart_and_not_the_order_of_users():
    used = {"period": 1, "closed": -1, "users": [[7, 0], [8, 0]], "used": [1, 2]}
    others = {"period": 2, "closed": 0, "users": [[7, 0], [9, 0]], "used": [2, 2]}
    digests = [PeriodQuota(used | {name: value}).digest(b"k" * 16) for name, value in others.items()]
    digests += [PeriodQuota(used).digest(key * 16) for key in (b"k", b"l")]
    assert len({*digests}) == 6
    swapped = used | {"users": [[8, 0], [7, 0]], "used": [2, 1]}
    assert PeriodQuota(swapped).digest(b"k" * 16) == PeriodQuota(used).digest(b"k" * 16)


def admitted_of(rows: ContributionRows, period: Any) -> list[bool]:
    """Contributions admitted by a quota of 3."""
    return PeriodQuota().admit(rows, period, 3, "hash", b"k" * 16).tolist()


def test_the_bound_that_keeps_a_share_of_all_memberships():
    rows = some_rows(1)
    period = (rows.window - 1) // 3
    n_own = np.unique(np.stack([rows.user[:, 0], period]), axis=1, return_counts=True)[1]
    for share in (0.1, 0.5, 0.9, 0.95, 1.0):
        most = quota_for_share(rows, period, share)
        assert np.minimum(n_own, most).sum() >= share * len(rows) > np.minimum(n_own, most - 1).sum()
    assert quota_for_share(rows.take(slice(0, 0)), period[:0], 0.9) == 1


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

    least, most = quota_for_share(rows, period, 0.99), quota_for_share(rows, period, 1.0)
    actual = [
        quota_for_noise(rows, period, n_counts, lambda n, size=size: size * n**0.5) for size in (1e6, 3.0, 0.3, 1e-6)
    ]
    assert least == actual[0] <= actual[1] <= actual[2] <= actual[3] == most
    for size, n in zip((1e6, 3.0, 0.3, 1e-6), actual):
        assert cut_off(n) <= size * n**0.5 / 8
        assert n == least or cut_off(n - 1) > size * (n - 1) ** 0.5 / 8


def test_learn_says_which_bounds_keep_most(tmp_path, capsys):
    mechanism = {"type": "period_uniform", "epsilon": 1.0}
    (tmp_path / "run.json").write_text(json.dumps(bounded(tmp_path, mechanism=mechanism)))
    command = ["learn", str(tmp_path / "run.json"), "--out", str(tmp_path / "moves.npz"), "--json"]
    assert main(command) == 0
    actual = json.loads(capsys.readouterr().out)
    assert 3 < actual["max_per_period_95"] <= actual["max_per_period_99"] <= actual["max_per_period_for_noise"] <= 8
    assert "a look at the data" in actual["bounds_from"]


# Noise and its price.


# Whole runs.


MECHANISM = {"type": "period_uniform", "epsilon": 4.0}


def bounded(folder, **changes: Any) -> dict[str, Any]:
    actual = small_sections(folder, made_up_events(400), landmarks=None, mechanism=MECHANISM) | {
        "bounding": {"max_cells": 2, "max_per_period": 3},
        "budget_period": "4h",
        "accountants": [{"type": "composition"}],
        "output": {"path": str(folder / "out"), "report": False},
    }
    return {name: part for name, part in (actual | changes).items() if part is not None}


def test_nobody_counts_more_often_in_a_period(tmp_path):
    run(loads(json.dumps(bounded(tmp_path))), runner="local")
    truth = pl.read_parquet(tmp_path / "out" / "operator" / "truth.parquet")
    first = truth.filter(pl.col("window") <= 4)["bounded"].sum()
    assert 0 < first <= 3 * 40 < truth.filter(pl.col("window") <= 4)["count"].sum()
    stated = json.loads((tmp_path / "out" / "public" / "manifest.json").read_text())["configuration"]
    assert stated["bounding"]["max_per_period"] == 3


class Killed(RuntimeError):
    """Stands for the end of the process."""


@pytest.mark.parametrize("remembers", [True, False])
def test_a_stream_goes_on_in_the_middle_of_a_period(tmp_path, monkeypatch, remembers):
    values = bounded(tmp_path)
    expected = run(loads(json.dumps(values)), tmp_path / "whole", runner="local").folder
    source = {"type": "stream", "of": values["source"], "block_rows": 20, "checkpoint": "0s"}
    config = loads(json.dumps(values | {"source": source}))
    registry = RunMetrics()

    def killed(measure, _):
        if measure is CHECKPOINT_BYTES and registry.value(LAST_WINDOW) == 2:
            raise Killed

    with listening(registry, CallbackListener(killed)), pytest.raises(Killed):
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


# Who may use it.


WRONG = {
    "a smaller unit": ({"mechanism": {"type": "w_event_uniform", "epsilon": 1.0, "w": 3}}, "period_uniform"),
    "single windows": ({"mechanism": {"type": "laplace", "epsilon": 1.0}}, "period_uniform"),
    "longer windows": (
        {"mechanism": [{"type": "temporal_generalization", "windows": 2}, MECHANISM]},
        "a mechanism of single windows",
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
    with pytest.raises(ConfigError, match=r"a mechanism that protects periods"):
        loads(json.dumps({name: part for name, part in values.items() if part is not None}))


def test_a_pace_leaves_evenings_more_of_a_run_and_needs_a_quota(tmp_path):
    totals = {}
    for name, pace in (("first", None), ("paced", [1, 1, 1, 1])):
        bounding = {"max_cells": 2, "max_per_period": 3} | ({} if pace is None else {"pace": pace})
        (tmp_path / name).mkdir()
        sections = bounded(tmp_path / name, bounding=bounding, mechanism=MECHANISM | {"epsilon": 1e4})
        run(loads(json.dumps(sections)), runner="local")
        operator = json.loads((tmp_path / name / "out" / "operator" / "manifest.json").read_text())
        totals[name] = {row["hour"]: row["bias"] for row in operator["utility_summary"]["bias_by_hour"]}
    assert totals["paced"][3] > totals["first"][3]
    assert totals["paced"][0] < totals["first"][0]
    for wrong in ([], [0, 0], [1, -1]):
        with pytest.raises(ConfigError, match="pace"):
            loads(json.dumps(bounded(tmp_path, bounding={"max_per_period": 3, "pace": wrong})))
    with pytest.raises(ConfigError, match="max_per_period"):
        loads(json.dumps(bounded(tmp_path, bounding={"max_cells": 2, "pace": [1, 1]})))
