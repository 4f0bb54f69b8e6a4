"""The one-run audit: its bound holds for private mechanisms and exposes broken ones."""

from __future__ import annotations

import json
from dataclasses import replace
from math import comb, exp

import numpy as np
import pytest
from deployments import configured as deployed
from deployments import sections
from small_configuration import made_up_events, small_sections

from penstock.evaluation.attacks.one_run import least_epsilon, one_run_bound, p_value
from penstock.mechanisms.core.concentrated import epsilon_of
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.discrete_laplace import DiscreteLaplace
from penstock.mechanisms.period_uniform import PeriodUniform
from penstock.pipeline import DONE, WRONG_USE
from penstock.pipeline.cli.main import main
from penstock.pipeline.config.run import loads
from penstock.pipeline.experiments.games.audit import audit

NO_LANDMARKS = {"landmarks": None, "accountants": []}


def configured(folder, mechanism, n_windows=20, **changes):
    sections = small_sections(folder, made_up_events(300), n_windows, **(changes | {"mechanism": mechanism}))
    sections["bounding"] = {"max_cells": 1}
    return loads(json.dumps(sections))


@pytest.mark.parametrize(("n_guesses", "epsilon"), [(4, 0.0), (7, 1.0), (9, 2.5)])
def test_without_delta_right_guesses_are_binomial(n_guesses, epsilon):
    right = exp(epsilon) / (1 + exp(epsilon))
    for n_right in range(n_guesses + 1):
        tail = sum(
            comb(n_guesses, k) * right**k * (1 - right) ** (n_guesses - k) for k in range(n_right, n_guesses + 1)
        )
        assert p_value(20, n_guesses, n_right, epsilon) == pytest.approx(tail)


@pytest.mark.parametrize(("n_people", "delta"), [(6, 0.01), (9, 0.002)])
def test_with_delta_it_covers_releases_that_fail(n_people, delta):
    """All coins are shown with probability δ, or each for itself: (0, δ)-private, and else the coins are guessed."""

    def tail(n_right, right):
        ways = range(n_right, n_people + 1)
        return sum(comb(n_people, k) * right**k * (1 - right) ** (n_people - k) for k in ways)

    for n_right in range(1, n_people + 1):
        covered = p_value(n_people, n_people, n_right, 0.0, delta)
        assert covered >= (1 - delta) * tail(n_right, 0.5) + delta
        assert covered >= tail(n_right, (1 + delta) / 2)


def test_more_right_guesses_refute_a_larger_epsilon():
    found = [least_epsilon(200, 200, n_right, 1e-5, 0.05) for n_right in range(100, 201, 10)]
    assert found == sorted(found)
    assert found[0] == 0 < found[-1]
    for n_right, epsilon in zip(range(130, 201, 10), found[3:]):
        assert p_value(200, 200, n_right, epsilon, 1e-5) <= 0.05 < p_value(200, 200, n_right, epsilon + 1e-3, 1e-5)


def randomized_response(epsilon, n_people, seed):
    random = np.random.default_rng(seed)
    present = random.random(n_people) < 0.5
    truthful = random.random(n_people) < exp(epsilon) / (1 + exp(epsilon))
    return np.where(present == truthful, 1.0, -1.0), present


def test_the_bound_holds_as_often_as_it_says_and_is_near():
    bounds = [one_run_bound(*randomized_response(1.0, 3000, seed)).epsilon for seed in range(60)]
    assert np.mean(np.array(bounds) <= 1.0) >= 0.95
    assert np.median(bounds) > 0.85
    assert np.median([one_run_bound(*randomized_response(1.5, 3000, seed)).epsilon for seed in range(20)]) > 1.2


@pytest.mark.parametrize(
    ("mechanism", "changes", "claimed", "unit"),
    [
        ({"type": "discrete_laplace", "epsilon": 2.0}, NO_LANDMARKS, 2.0, "one cell of one window"),
        ({"type": "w_event_uniform", "epsilon": 2.0, "w": 2}, NO_LANDMARKS, 2.0, "one cell of 2 windows"),
        ({"type": "w_event_bd", "epsilon": 2.0, "w": 2}, NO_LANDMARKS, 2.0, "one cell of 2 windows"),
        ({"type": "landmark_uniform", "epsilon": 2.0}, {}, 2.0, "one cell of 3 windows (the landmarks"),
        ({"type": "fast", "epsilon": 2.0, "publications": 2}, NO_LANDMARKS, 2.0, "one cell of 20 windows"),
        ({"type": "gaussian", "rho": 0.5}, NO_LANDMARKS, epsilon_of(0.5, 1e-6), "one cell of one window"),
    ],
)
def test_what_is_claimed_is_what_the_unit_is_charged(tmp_path, mechanism, changes, claimed, unit):
    found = audit(configured(tmp_path, mechanism, **changes), n_runs=3)
    assert found.claimed == pytest.approx(claimed)
    assert unit in found.unit
    assert not found.convicted
    assert found.on_data


class HalfTheNoise(DiscreteLaplace):
    """Charge as the mechanism does, with half of its noise."""

    __doc__ = DiscreteLaplace.__doc__

    def step(self, window, counts, state, noise):
        [release], state = super().step(window, counts, state, noise)
        scale = np.asarray(release.scale) / 2
        return [replace(release, values=counts + noise.discrete_laplace(scale, counts.shape).astype(float))], state


def test_half_of_the_noise_is_convicted(tmp_path):
    config = configured(tmp_path, {"type": "discrete_laplace", "epsilon": 2.0}, n_windows=23, **NO_LANDMARKS)
    honest = audit(config, n_runs=12)
    assert 1.0 < honest.bound.epsilon <= honest.claimed == 2.0
    broken = audit(replace(config, mechanism=(HalfTheNoise(epsilon=2.0),)), n_runs=12)
    assert broken.claimed == 2.0 < broken.bound.epsilon
    assert broken.convicted


def test_post_processing_does_not_hide_what_was_released(tmp_path):
    alone = audit(configured(tmp_path, {"type": "discrete_laplace", "epsilon": 2.0}, **NO_LANDMARKS))
    steps = [{"type": "discrete_laplace", "epsilon": 2.0}, {"type": "filter"}]
    assert audit(configured(tmp_path, steps, **NO_LANDMARKS)).bound == alone.bound


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        ({"type": "raw"}, "with a guarantee"),
        ([{"type": "sampling", "rate": 0.5}, {"type": "discrete_laplace", "epsilon": 1.0}], "steps on events"),
    ],
)
def test_what_cannot_be_audited_is_refused(tmp_path, mechanism, message):
    with pytest.raises(ParameterError, match=message):
        audit(configured(tmp_path, mechanism, **NO_LANDMARKS))


def test_a_stretch_of_ones_own_costs_the_sum_of_its_charges(tmp_path):
    config = configured(tmp_path, {"type": "discrete_laplace", "epsilon": 1.0}, **NO_LANDMARKS)
    assert audit(config, windows=4).claimed == pytest.approx(4.0)
    with pytest.raises(ParameterError, match="at most the 20 windows"):
        audit(config, windows=21)


def test_the_command_reports_and_fails_only_on_a_conviction(tmp_path, capsys):
    import yaml

    sections = small_sections(tmp_path, made_up_events(300), 20, mechanism={"type": "discrete_laplace", "epsilon": 1.0})
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(sections | {"landmarks": None, "accountants": []}))
    assert main(["audit", str(path), "--json"]) == DONE
    shown = json.loads(capsys.readouterr().out)
    assert shown["claimed"] == 1.0
    assert shown["n_canaries"] == 20
    assert shown["on_data"]
    assert not shown["convicted"]
    assert main(["audit", str(path), "--without-data"]) == DONE
    assert "planted among nobody else" in capsys.readouterr().out
    assert main(["audit", str(path), "--runs", "0"]) == WRONG_USE
    out = tmp_path / "audits" / "first.json"
    assert main(["audit", str(path), "--out", str(out)]) == DONE
    assert json.loads(out.read_text()) == shown
    assert main(["audit", str(path), "--out", str(tmp_path)]) == WRONG_USE


def test_a_deployments_people_and_key_are_not_looked_at(tmp_path):
    config = deployed(sections(tmp_path))
    (tmp_path / "events.csv").unlink()
    (tmp_path / "noise.key").unlink()
    found = audit(config)
    assert not found.on_data
    assert found.claimed == 1.0
    with pytest.raises(ParameterError, match="simulation of a finite source"):
        audit(config, on_data=True)


def test_people_whom_a_bound_would_not_leave_are_not_planted(tmp_path):
    config = configured(tmp_path, {"type": "w_event_uniform", "epsilon": 1.0, "w": 3}, **NO_LANDMARKS)
    bounding = replace(config.bounding, max_per_period=2)
    with pytest.raises(ParameterError, match="max_per_period"):
        audit(replace(config, bounding=bounding, budget_period=3 * 3_600_000))


class HalfTheNoiseOfAPeriod(PeriodUniform):
    """Charge as the mechanism does, with half of its noise."""

    __doc__ = PeriodUniform.__doc__

    def step(self, window, counts, state, noise):
        [release], state = super().step(window, counts, state, noise)
        noisy = counts + noise.discrete_laplace(np.asarray(release.scale) / 2, counts.shape)
        return [replace(release, values=noisy.astype(float))], state


def test_a_person_of_a_budget_period_is_planted_as_often_as_the_bound_leaves_one(tmp_path):
    config = configured(tmp_path, {"type": "period_uniform", "epsilon": 2.0}, n_windows=16, **NO_LANDMARKS)
    bounding = replace(config.bounding, max_per_period=4)
    config = replace(config, bounding=bounding, budget_period=8 * 3_600_000)
    honest = audit(config, n_runs=40)
    assert honest.unit == "one person in one cell of 4 windows"
    assert 0.8 < honest.bound.epsilon <= honest.claimed == pytest.approx(2.0)
    broken = audit(replace(config, mechanism=(HalfTheNoiseOfAPeriod(epsilon=2.0),)), n_runs=40)
    assert broken.claimed == pytest.approx(2.0)
    assert broken.convicted
