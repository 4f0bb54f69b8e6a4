"""Local surprise: events are shown at once, end at once, and are seldom seen where only noise is."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.mechanisms.core import surprise
from penstock.mechanisms.core.contract import Facts, Release
from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.noise_family import NOISE_FAMILIES, families
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.state import decode_state, encode_state
from penstock.mechanisms.filter import Filter
from penstock.mechanisms.kalman import Kalman

N_CELLS, SIGMA = 60, 18.0
SIZE = 8 * SIGMA


def city(n_days=6, seed=1):
    rng = np.random.default_rng(seed)
    hours = np.arange(24 * n_days)[:, None]
    size, phase = rng.gamma(1.0, 30.0, N_CELLS), rng.choice([8, 13, 18], N_CELLS)
    return rng.poisson(size * np.exp(np.cos((hours % 24 - phase) * 2 * np.pi / 24)) / 1.3)


def shown(counts, step=None, seed=7, begin=None, between=lambda state: state):
    """Values, standard deviations and alarms, each of the counts' shape."""
    step = step or Filter()
    noise = np.random.default_rng(seed).normal(0.0, SIGMA, counts.shape)
    shape = counts.shape[:-2]
    state = step.start(Facts(n_cells=N_CELLS, windows_per_day=24, n_replicas=shape[0] if shape else None))
    rows = []
    for index in range(counts.shape[-2]):
        noisy = counts[..., index, :] + noise[..., index, :]
        at = {"window": index + 1, "time_of_day": index % 24 * 3_600_000}
        release, state = step.process(Release(**at, values=noisy, noise="gaussian", scale=SIGMA), between(state))
        rows.append((release.values, release.standard_deviation, release.alarm))
    return tuple(np.stack(one, -2) for one in zip(*rows))


def with_events(counts, n=30, hours=2):
    """Counts with events in cells and hours of their own, and where these are."""
    rng = np.random.default_rng(5)
    counts, cells = counts.copy(), rng.permutation(N_CELLS)[:n]
    begins = rng.integers(72, len(counts) - 6, n)
    for begin, cell in zip(begins, cells):
        counts[begin : begin + hours, cell] += int(SIZE)
    return counts, begins, cells


@pytest.fixture
def disable_alarms(monkeypatch):
    """Function after which nothing is a surprise."""
    return lambda: monkeypatch.setattr(surprise, "limits", lambda *_: (np.inf, np.inf))


@pytest.mark.parametrize("step", [Filter(), Kalman(process_variance=20.0)], ids=["filter", "kalman"])
def test_an_event_is_shown_in_its_first_hour_and_not_after_its_last(step, disable_alarms):
    counts, begins, cells = with_events(city())
    values, deviations, alarms = shown(counts, step)
    off = (values - counts) / SIZE
    assert np.median(np.abs(off[begins, cells])) < 0.2
    assert abs(np.median(off[begins, cells])) < 0.1
    assert np.median(np.abs(off[begins + 2, cells])) < 0.1
    assert alarms[begins, cells].mean() > 0.75
    assert alarms[begins + 3, cells].mean() < 0.1 or isinstance(step, Kalman)  # to which a day's rhythm is unusual
    assert (np.abs(off) * SIZE <= 2 * deviations)[begins, cells].mean() > 0.85
    # Without the alarm an event is hidden.
    disable_alarms()
    values, _, alarms = shown(counts, step)
    assert np.median((counts - values)[begins, cells]) > 0.1 * SIZE
    assert not alarms.any()


def test_jumps_that_come_back_every_day_are_no_alarms_of_a_walk(monkeypatch):
    counts = city() + np.where(np.arange(144) % 24 == 8, int(SIZE), 0)[:, None] * (np.arange(N_CELLS) < 20)

    def a_day():
        return shown(counts, Kalman(process_variance=20.0))[2].sum() / 6

    assert a_day() <= 3
    # Where a surprise is forgotten at once each of them is an alarm.
    monkeypatch.setattr("penstock.mechanisms.kalman.FADING", 0.0)
    assert a_day() > 10


def test_an_event_that_is_over_is_given_up_at_once(monkeypatch):
    counts, begins, cells = with_events(city())

    def left():
        return np.median((shown(counts)[0] - counts)[begins + 2, cells]) / SIZE

    assert left() < 0.05
    # Where an event cannot end, and its size hardly wanders, the value stays high.
    monkeypatch.setattr(surprise, "PERSISTENCE", 1.0)
    monkeypatch.setattr(surprise, "EVENT_FADING", 0.999)
    assert left() > 0.1


def test_an_alarm_does_not_last_and_what_goes_on_is_the_new_usual_day(monkeypatch):
    counts = city(8)
    busy = np.argsort(counts.mean(0))[N_CELLS // 2 :][:3]
    counts[72:, busy] += int(SIZE)
    values, _, alarms = shown(counts)
    first = alarms[72:96, busy]
    assert first.any(0).all()
    assert first.sum(0).max() <= 2 * surprise.LONGEST
    off = (values - counts)[120:, busy] / SIZE
    assert abs(off.mean()) < 0.1
    # Without an end the cells are in alarm all day, and teach nothing.
    monkeypatch.setattr(surprise, "LONGEST", 10_000)
    assert shown(counts)[2][72:96, busy].sum(0).max() > 4 * 3


def test_a_dead_sensor_is_shown_as_dead_after_a_few_hours(disable_alarms):
    counts = city()
    busy = np.argsort(counts.mean(0))[-4]
    counts[110:116, busy] = 0
    dead = shown(counts)[0][112:116, busy].mean()
    disable_alarms()
    assert dead < 0.4 * shown(counts)[0][112:116, busy].mean()


def test_without_events_nothing_is_lost(disable_alarms):
    counts = city()
    values, deviations, alarms = shown(counts)
    disable_alarms()
    before, stated, _ = shown(counts)
    late = slice(48, None)
    error, before_error = np.abs(values - counts)[late], np.abs(before - counts)[late]
    assert error.mean() < 1.006 * before_error.mean()
    covered = [(e <= 1.96 * d[late] + 0.5).mean() for e, d in ((error, deviations), (before_error, stated))]
    assert covered[0] > covered[1] - 0.012
    assert (alarms[late][1:] & ~alarms[late][:-1]).sum() <= 2 * (len(counts) - 48) / 24


@pytest.mark.parametrize("family", families("counts"))
@pytest.mark.parametrize("scale", [0.4, 1.0, 12.0])
def test_noise_alone_passes_a_limit_no_more_often_than_stated(family, scale):
    n_counts, n_windows = 500, 400
    noise = NoiseSource(NoiseKey.from_seed(3), configuration=b"", stream="").at(
        0, 1, "step", np.zeros(1), {"x": np.zeros(1)}, None
    )
    law = NOISE_FAMILIES[family]
    drawn = np.asarray(law.draw(noise, scale, (n_windows, n_counts)), np.float64) / law.standard_deviation(scale)
    single, summed = (float(np.max(one)) for one in surprise.limits(family, np.array(scale), n_counts))
    faded, passed = np.zeros(n_counts), 0
    for row in drawn:
        faded = surprise.SUM_FADING * faded + row
        passed += (np.sqrt(1 - surprise.SUM_FADING**2) * np.abs(faded) > summed).sum()
    # Half a false alarm in as many counts as a day has, for each test; a Poisson number of them.
    expected = 0.5 * n_windows
    assert (np.abs(drawn) > single).sum() <= expected + 4 * np.sqrt(expected)
    assert passed <= expected + 10 * np.sqrt(expected)


def test_the_limits_of_gaussian_noise_would_cry_wolf_under_laplace_noise():
    drawn = np.abs(np.random.default_rng(1).laplace(0.0, np.sqrt(0.5), 2400 * 100))
    gaussian, laplace = (float(np.max(surprise.limits(f, np.array(9.0), 2400)[0])) for f in ("gaussian", "laplace"))
    assert (drawn > gaussian).sum() > 10 * 100
    assert (drawn > laplace).sum() <= 100


def test_few_counts_a_day_are_not_alarmed_by_ordinary_noise():
    assert float(surprise.limits("gaussian", np.array(1.0), 1.0)[0][0]) > 3.4


@pytest.mark.parametrize("step", [Filter(), Kalman()], ids=["filter", "kalman"])
def test_encoded_states_and_replicas_go_on_bit_for_bit(step):
    counts = np.stack([with_events(city(4, seed), 20)[0] for seed in (1, 2)])
    together = shown(counts, step)
    encoded = shown(counts, step, between=lambda state: decode_state(encode_state("filter", 3, state), "filter", 3))
    for one, other in zip(together, encoded):
        assert np.array_equal(one, other, equal_nan=True)
    noise = np.random.default_rng(7).normal(0.0, SIGMA, counts.shape)
    for number in range(2):
        state = step.start(Facts(n_cells=N_CELLS, windows_per_day=24))
        for index in range(counts.shape[1]):
            at = {"window": index + 1, "time_of_day": index % 24 * 3_600_000}
            noisy = Release(**at, values=counts[number, index] + noise[number, index], noise="gaussian", scale=SIGMA)
            release, state = step.process(noisy, state)
            assert np.array_equal(release.values, together[0][number, index])
            assert np.array_equal(release.alarm, together[2][number, index])
