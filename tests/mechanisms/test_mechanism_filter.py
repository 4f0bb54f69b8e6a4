"""The filter: its inputs, its gain, and coverage of its standard deviations."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from penstock.mechanisms import get
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.contract import Facts, Release
from penstock.mechanisms.core.intervals import margin
from penstock.mechanisms.core.plugin import ParameterError, StateVersionError
from penstock.mechanisms.core.run import run_mechanism
from penstock.mechanisms.core.state import decode_state, encode_state
from penstock.mechanisms.core.usual_days import Noisy, shrunk
from penstock.mechanisms.filter import Filter, _evidence, group_variance, noise_variance
from penstock.pipeline.output.utility_summary import ends

N_CELLS = 60
READERS = {
    "gaussian": get("gaussian")(sigma=20.0),
    "discrete_laplace": get("discrete_laplace")(epsilon=0.1),
    "landmark_skip": get("landmark_skip")(epsilon=2.0),
}


def days(n_days=14, seed=3, n_replicas=None):
    """Counts with a rhythm of the day, of different size and shape from cell to cell, and a free weekend."""
    rng = np.random.default_rng(seed)
    hours = np.arange(24 * n_days)
    size = rng.gamma(1.0, 40.0, N_CELLS)
    phase = rng.choice([8, 13, 18], N_CELLS)
    rhythm = np.exp(np.cos((hours[:, None] % 24 - phase) * 2 * np.pi / 24))
    weekend = np.where((hours // 24 % 7 >= 5)[:, None], 0.6, 1.0)
    shape = (() if n_replicas is None else (n_replicas,)) + (len(hours), N_CELLS)
    return rng.poisson(size * rhythm * weekend / 1.3, shape)


def hour(index):
    """Time of day of a window of an hour."""
    return {"time_of_day": index % 24 * 3_600_000}


def filtered(counts, reader, **facts):
    """Values and standard deviations, shape (..., n_windows, n_cells)."""
    releases = run_mechanism(Chain.of([reader, Filter()]), counts, Facts(n_cells=N_CELLS, **facts), seed=1)
    return tuple(np.stack([getattr(r, name) for r in releases], -2) for name in ("values", "standard_deviation"))


@pytest.mark.parametrize("reader", ["gaussian", "discrete_laplace", "landmark_skip"])
def test_a_filter_costs_nothing_and_changes_no_decision(reader):
    counts, facts = days(2), Facts(n_cells=N_CELLS, landmarks=(3, 9, 10))
    noisy = run_mechanism(READERS[reader], counts, facts, seed=1)
    shown = run_mechanism(Chain.of([READERS[reader], Filter()]), counts, facts, seed=1)
    for name in ("window", "action", "noise", "scale", "repeats", "landmark", "charge"):
        assert [getattr(release, name) for release in noisy] == [getattr(release, name) for release in shown]


def test_the_filter_halves_the_error_and_states_its_deviation():
    counts = days(n_replicas=4)
    values, deviations = filtered(counts, READERS["gaussian"])
    error = np.abs(values - counts)
    assert error[:, 24:].mean() < 0.5 * 0.8 * 20.0
    running = np.cumsum(counts + np.random.default_rng(0).normal(0, 20.0, counts.shape), 1)
    running /= np.arange(1, counts.shape[1] + 1)[:, None]
    assert error[:, 24:].mean() < 0.7 * np.abs(running - counts)[:, 24:].mean()
    covered = (error[:, 24:] <= 1.96 * deviations[:, 24:]).mean()
    assert 0.95 <= covered <= 0.985
    # The same test refuses standard deviations that are a third too small or a fifth too large.
    assert not 0.95 <= (error[:, 24:] <= 1.96 * 0.7 * deviations[:, 24:]).mean() <= 0.985
    assert not 0.95 <= (error[:, 24:] <= 1.96 * 1.2 * deviations[:, 24:]).mean() <= 0.985


def test_stated_deviations_hold_in_cells_where_hardly_anybody_is():
    rng = np.random.default_rng(5)
    size = np.repeat([0.2, 2.0, 20.0], N_CELLS // 3)
    counts = rng.poisson(size * np.exp(np.cos(np.arange(336)[:, None] * np.pi / 12)) / 1.3, (2, 336, N_CELLS))

    values, deviations = filtered(counts, get("gaussian")(sigma=3.0))
    half = margin(values, deviations)
    low, high = ends(values, half)
    is_held = ((low <= counts) & (counts <= high))[:, 24:]
    assert is_held.mean((0, 1)).reshape(3, -1).mean(1).min() >= 0.92
    assert np.median(half[:, 24:, : N_CELLS // 3]) < 2.5
    # Who reads a low value is told as much of it as who reads a high one.
    tenth = np.argsort(np.argsort(values[:, 24:], None)) * 10 // values[:, 24:].size
    assert min(is_held.ravel()[tenth == number].mean() for number in range(10)) >= 0.92


def test_noise_in_the_total_is_not_taken_for_an_error_that_all_cells_share(monkeypatch):
    rng = np.random.default_rng(4)
    few = rng.poisson(0.1, (4, 168, N_CELLS))
    gone = np.where(np.arange(96)[:, None] == 80, 0, rng.poisson(40.0, (4, 96, N_CELLS)))

    def error(counts):
        """Mean absolute error of each window under strong noise."""
        return np.abs(filtered(counts, READERS["gaussian"])[0] - counts).mean((0, 2))

    # Where every prediction is shown, however few noisy counts bear it out.
    monkeypatch.setattr("penstock.mechanisms.filter._evidence", lambda noisy, state: 1.0)
    actual = error(few).mean()
    assert actual < 0.45
    # What stands out is believed at once: everybody is gone for one hour.
    assert error(gone)[80] < 4.0
    # Where every total counts as standing out, few are seen as many.
    monkeypatch.setattr("penstock.mechanisms.filter.JUMP", -1e6)
    assert error(few).mean() > 1.1 * actual


def test_what_may_be_noise_alone_is_released_as_zero_and_what_is_clear_is_not():
    rng = np.random.default_rng(6)
    rates = np.where(np.arange(N_CELLS) == 0, 30.0, 0.1)
    few, one_busy = rng.poisson(0.1, (4, 168, N_CELLS)), rng.poisson(rates, (4, 168, N_CELLS))

    values = filtered(few, READERS["gaussian"])[0]
    assert np.abs(values - few).mean() < 1.3 * few.mean()  # false alarms are the rest
    values = filtered(one_busy, READERS["gaussian"])[0]
    assert np.abs(values - one_busy)[:, 24:, 0].mean() < 10.0
    assert np.abs(values - one_busy)[..., 1:].mean() < 1.2 * one_busy[..., 1:].mean()


def test_a_prediction_counts_by_how_clearly_the_mean_of_all_counts_or_of_the_cell_is_above_noise():
    state = {"means": np.array([[3.0, 0.0, 0.0, 0.0]]), "variances": np.array([[3.0, 1.0, 1.0, 1.0]])}
    noisy = Noisy(np.array([9.0, 0.0, 0.0, 99.0]), np.array([3.0, 1.0, 1.0, 1.0]), np.array([True, True, True, False]))
    # By cell: totals 4 of precision 2/3 (24 half squares above 0), else 0; of all 4 of precision 17/3.
    expected = 1.0 / (1.0 + np.exp((16.0 - np.array([24.0, 48.0 / 17.0, 48.0 / 17.0, 48.0 / 17.0])) / 2.0))
    np.testing.assert_allclose(_evidence(noisy, state), expected, rtol=1e-12)
    assert _evidence(noisy, state | {"profile": np.zeros((1, 4))}).tolist() == [1.0] * 4


def test_an_event_in_a_city_of_few_people_does_not_hide_itself(monkeypatch):
    counts = np.random.default_rng(8).poisson(0.4, (4, 168, N_CELLS))
    at = slice(None), np.arange(40, 168, 24), np.arange(6) * 7
    counts[at] += 200

    def is_shown():
        """Mask of the events that are shown by at least half."""
        return filtered(counts, get("laplace")(epsilon=0.25))[0][at] > 100

    assert is_shown().all()
    monkeypatch.setattr("penstock.mechanisms.filter._sum_of_others", lambda parts: parts.sum(-1, keepdims=True))
    assert is_shown().mean() < 0.9


def test_without_a_publication_the_prediction_stands_and_its_doubt_grows():
    counts = days(7)
    state = Filter().start(Facts(n_cells=N_CELLS))
    rng = np.random.default_rng(2)
    for index, row in enumerate(counts[:-6]):
        noisy = Release(
            window=index + 1, values=row + rng.normal(0, 5.0, N_CELLS), noise="gaussian", scale=5.0, **hour(index)
        )
        shown, state = Filter().process(noisy, state)
    learned = {name: value.copy() for name, value in state.items()}
    doubts = []
    for index in range(len(counts) - 6, len(counts)):
        repeat = Release(window=index + 1, values=noisy.values, action="repeated", repeats=noisy.window, **hour(index))
        shown, state = Filter().process(repeat, state)
        doubts.append(shown.standard_deviation.mean())
        assert shown.repeats == noisy.window
        assert np.abs(shown.values - counts[index]).mean() < np.abs(noisy.values - counts[index]).mean() + 5.0
    assert doubts[0] > 5.0 * 0.5
    assert all(later > 0.8 * earlier for earlier, later in pairwise(doubts))
    for name in ("means", "variances", "patterns", "information", "moments", "levels"):
        assert np.array_equal(state[name], learned[name]), f"{name} learned from a repeat"


def test_predictions_of_predictions_do_not_grow_without_end():
    """Counts that double teach weights whose sum is more than 1; what follows is never published."""
    state, shown = Filter().start(Facts(n_cells=N_CELLS)), []
    for index in range(60):
        values = np.full(N_CELLS, 2.0 ** min(index, 8))
        seen = {} if index < 9 else {"action": "repeated", "repeats": 9}
        one = Release(window=index + 1, values=values, noise="gaussian", scale=1.0, **seen, **hour(index))
        released, state = Filter().process(one, state)
        shown.append(released.values.max())
    assert max(shown) <= 5 * 256


@pytest.mark.parametrize(
    ("reader", "ignored"),
    [
        (get("fast")(epsilon=5.0, delta=1e-6, publications=6, noise="gaussian"), "_time_of_day_variance"),
        (get("w_event_sample")(epsilon=1.0, w=24), "_time_of_day_variance"),
        (get("rescue_dp")(epsilon=5.0, w=24), "group_variance"),
    ],
    ids=["fast", "w_event_sample", "rescue_dp"],
)
def test_intervals_hold_what_was_sampled_repeated_or_released_in_groups(reader, ignored, monkeypatch):
    counts = days(10)

    def coverage():
        values, deviations = filtered(counts, reader, max_cells=2, budget_period=24)
        low, high = ends(values, margin(values, deviations))
        return ((low <= counts) & (counts <= high))[48:].mean()

    assert coverage() >= 0.92
    # The noise of the last publication is not the whole error: of times of day never seen, or of cells of a group.
    monkeypatch.setattr(f"penstock.mechanisms.filter.{ignored}", lambda *args: np.zeros(N_CELLS))
    assert coverage() < 0.9


UNSEEN = 7.0


@pytest.mark.parametrize(
    ("values", "scale", "expected"),
    [
        ([5.0, 4.0], 2.0, [0, 0]),
        ([5.0, np.nan], [2.0, 1.0], [0, UNSEEN]),
        ([5.0], [2.0], [0]),
        # One cell alone, and the mean of a group, whose scale is smaller.
        ([40.0, -3.0], [2.0, 1.0], [0, 12]),
        ([40.0, 3.0, 3.0, np.nan], [2.0, 1.0, 1.0, 9.0], [0, 12, 12, UNSEEN]),
        # Scales that are all the same, of groups and of single cells: two of four values, and three, four of four.
        ([5.0, 3.0, 5.0, 3.0], [2.0] * 4, [30, 12, 30, 12]),
        ([5.0, 5.0, np.nan], [2.0] * 3, [30, 30, UNSEEN]),
        ([5.0, 5.0, 4.0, 3.0], [2.0] * 4, [0] * 4),
        ([5.0, 5.0, 3.0], [2.0] * 3, [0] * 3),
        ([5.0, 4.0, 3.0, 2.0], [2.0] * 4, [0] * 4),
        ([np.nan, np.nan], [2.0] * 2, [UNSEEN] * 2),
    ],
)
def test_counts_around_the_mean_of_a_group_vary_as_far_as_to_0(values, scale, expected):
    """In each replica by itself: in another one nothing is seen, in a third one all cells stand alone."""
    n, values = len(values), np.array(values)
    values = np.stack([values, np.full(n, np.nan), np.arange(1.0, n + 1)])
    scale = np.array(scale) if np.ndim(scale) == 0 else np.stack([scale, scale, np.full(n, 99.0)])
    release = Release(window=1, values=values, noise="laplace", scale=scale)
    actual = group_variance(release, ~np.isnan(values), np.full(values.shape, UNSEEN))
    assert actual.tolist() == [expected, [UNSEEN] * n, [0] * n]


@pytest.mark.parametrize(
    ("reader", "shape"),
    [(get("fast")(epsilon=5.0, publications=6), np.inf), (get("rescue_dp")(epsilon=1.0, delta=1e-6, w=24), 1.0)],
    ids=["fast", "rescue_dp"],
)
def test_intervals_hold_in_every_tenth_of_what_was_sampled_or_released_in_groups(reader, shape):
    """Cells that are empty in the hours published, and counts that vary more than the means of their groups."""
    rng, hours = np.random.default_rng(2), np.arange(240)[:, None] % 24
    works = np.arange(N_CELLS) < N_CELLS // 2
    mean = np.where(works, np.exp(-(((hours - 13) / 4.5) ** 2)), 0.3) * rng.lognormal(2.6, 0.8, N_CELLS)
    counts = rng.poisson(mean if np.isinf(shape) else mean * rng.gamma(shape, 1.0 / shape, mean.shape))
    values, deviations = filtered(counts, reader, budget_period=24)
    low, high = ends(values, margin(values, deviations))
    is_held = ((low <= counts) & (counts <= high))[48:].ravel()
    place = np.searchsorted(np.quantile(values[48:], np.arange(1, 10) / 10), values[48:].ravel(), "right")
    assert min(is_held[place == number].mean() for number in np.unique(place)) >= 0.92


def test_inactive_cells_stay_empty_and_teach_nothing():
    state = Filter().start(Facts(n_cells=3))
    for index in range(30):
        values = np.array([50.0 + index % 5, np.nan, 20.0])
        noisy = Release(window=index + 1, values=values, noise="laplace", scale=2.0, **hour(index))
        shown, state = Filter().process(noisy, state)
        assert np.isnan(shown.values).tolist() == np.isnan(shown.standard_deviation).tolist() == [False, True, False]
    assert not state["variances"][:, 1].any()


def test_exact_counts_stay_exact():
    counts = days(2)
    values, deviations = filtered(counts, get("gaussian")(sigma=0.0))
    assert np.array_equal(values, counts)
    assert not deviations.any()


def test_several_windows_share_a_time_of_day_where_there_are_many():
    for per_day, n_slots in ((1, 1), (5, 5), (24, 24), (1440, 24)):
        facts = Facts(n_cells=2, windows_per_day=per_day)
        assert Filter().start(facts)["means"].shape == (3 * n_slots, 2)


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_the_variance_of_integer_noise_is_exact(scale):
    z = np.arange(-400, 401)
    weights = np.exp(-np.abs(z) / scale)
    assert noise_variance("discrete_laplace", scale) == pytest.approx((weights * z**2).sum() / weights.sum(), rel=1e-12)
    gauss = np.exp(-(z**2) / (2 * scale**2))
    assert (gauss * z**2).sum() / gauss.sum() <= noise_variance("discrete_gaussian", scale) * (1 + 1e-12)


def test_a_filter_stands_directly_behind_noise_on_single_counts():
    with pytest.raises(ParameterError, match="directly after gaussian"):
        Chain.of([READERS["gaussian"], get("suppress_small")(threshold=3), Filter()])
    with pytest.raises(ParameterError, match="that of a block"):
        Chain.of([get("fpa")(epsilon=1.0, coefficients=2, block=8), Filter()])
    with pytest.raises(ParameterError, match="noise"):
        Filter().process(replace(Release(window=1, values=np.ones(2)), noise="planar_laplace"), {})


def test_means_are_drawn_together_as_noise_drives_them_apart():
    means = np.array([1.0, 3.0, 5.0, 7.0, 0.0])  # spread 20/3; the last cell was never seen
    assert shrunk(means, np.array([2, 2, 2, 2, 0.0]))[:4] == pytest.approx(4 + 0.7 * (means[:4] - 4))
    assert shrunk(means, np.array([9, 9, 9, 9, 0.0]))[:4] == pytest.approx(np.full(4, 4.0))
    assert np.array_equal(shrunk(means, np.zeros(5)), means)


def test_a_chain_refuses_the_state_of_an_earlier_filter():
    chain = Chain.of([READERS["gaussian"], Filter()])
    assert (chain.version, Chain.of([READERS["gaussian"]]).version) == (10, 1)
    data = encode_state("chain", 1, {"means": np.zeros(2)})
    with pytest.raises(StateVersionError, match="version 1"):
        decode_state(data, "chain", chain.version)


def weeks(n_weeks, seed=3):
    """Hourly counts of a city with different weekends, from a Monday on, with its windows."""
    rng = np.random.default_rng(seed)
    hours = np.arange(168 * n_weeks)
    size, phase = rng.gamma(1.0, 40.0, (2, N_CELLS)), rng.choice([8, 13, 18], (2, N_CELLS))
    rhythm = np.exp(np.cos((hours[:, None, None] % 24 - phase) * 2 * np.pi / 24)) / 1.3
    day = hours // 24 % 7
    usual = (size * rhythm)[np.arange(len(hours)), (day >= 5).astype(int)]
    windows = [
        replace(window, day_type=max(0, int(weekday) - 4))
        for window, weekday in zip(Facts(n_cells=N_CELLS, n_windows=len(hours)).windows(), day)
    ]
    return rng.poisson(usual), windows


def error_by_week(counts, windows):
    """Mean absolute error of each week under strong noise."""
    chain = Chain.of([READERS["gaussian"], Filter()])
    made = run_mechanism(chain, counts, Facts(n_cells=N_CELLS), seed=1, windows=windows)
    return np.abs(np.stack([release.values for release in made]) - counts).reshape(-1, 168, N_CELLS).mean((1, 2))


def test_weekends_are_told_from_weekdays():
    counts, windows = weeks(3)
    by_type = error_by_week(counts, windows)
    every_day = error_by_week(counts, [replace(window, day_type=0) for window in windows])
    assert ((every_day / by_type)[1:] > [1.2, 1.4]).all()
    # Days that are of one kind lose nothing by being told apart.
    same = np.random.default_rng(1).poisson(np.tile(weeks(1)[0][:24], (14, 1)))
    losses = error_by_week(same, windows[:336]) / error_by_week(
        same, [replace(one, day_type=0) for one in windows[:336]]
    )
    assert losses.max() < 1.02


def test_the_state_does_not_grow_with_the_days():
    (counts, windows), step = weeks(3), Filter()
    state = step.start(Facts(n_cells=N_CELLS))
    shapes = {name: array.shape for name, array in state.items()}
    for window, row in zip(windows, counts):
        noisy = Release(window=window.index, values=row.astype(float), noise="laplace", scale=2.0)
        dated = replace(noisy, day_type=window.day_type, time_of_day=window.time_of_day)
        _, state = step.process(dated, state)
    assert {name: array.shape for name, array in state.items()} == shapes


@pytest.mark.parametrize("rates", [(2, 9, 60), (60, 60, 60)])
def test_intervals_of_few_cells_hold_what_they_claim(rates: tuple[int, ...]):
    # What the largest cell errs alone is not an error common to all: it would leave the small ones none of their own.
    counts = np.random.default_rng(1).poisson(rates, (672, len(rates)))
    releases = run_mechanism(Chain.of([get("gaussian")(sigma=5.0), get("filter")()]), counts, seed=1)
    values, deviations = (
        np.array([getattr(one, name) for one in releases]) for name in ("values", "standard_deviation")
    )
    is_held = np.abs(values - counts) <= margin(values, deviations)
    assert is_held[100:].mean(0).min() >= 0.92
