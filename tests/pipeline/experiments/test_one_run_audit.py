"""The audit: its bound holds for private mechanisms and exposes broken ones."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
from scipy.stats import binom

from penstock import mechanisms
from penstock.evaluation.attacks.one_run import Guesses, largest_accuracy, lower_bound
from penstock.mechanisms.core.concentrated import rho_of
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.schedules import TraceSchedule
from penstock.mechanisms.laplace import Laplace
from penstock.pipeline import DONE, FAILED, WRONG_USE
from penstock.pipeline.cli.main import main
from penstock.pipeline.config.plan import RunKeys
from penstock.pipeline.config.run import loads
from penstock.pipeline.experiments.audit import audit
from penstock.pipeline.releasing import traces as releasing
from tests.tools.deployments import configured as deployed
from tests.tools.deployments import sections
from tests.tools.distinguishing import HalvedNoise, HalvedTraces
from tests.tools.small_configuration import made_up_events, small_sections, walk_source

NO_LANDMARKS = {"landmarks": None, "accountants": []}
PLACES = list("abcdefghijklmnopqrstuvwxy")


def configured(folder, mechanism, n_windows=20, places=(), **changes):
    changes = {"accountants": []} | changes | {"mechanism": mechanism}
    if places:
        changes["space"] = {"type": "places", "list": places, "elsewhere": False}
    sections = small_sections(folder, made_up_events(300), n_windows, **changes)
    sections["bounding"] = {"max_cells": 1}
    return loads(json.dumps(sections))


@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_no_guess_under_epsilon_is_right_more_often(epsilon):
    [largest] = largest_accuracy(np.array([epsilon]), concentrated=False)
    assert largest == pytest.approx(exp(epsilon) / (1 + exp(epsilon)))


@pytest.mark.parametrize("rho", [0.001, 0.0881, 0.5, 3.0])
def test_no_guess_under_rho_is_right_more_often(rho):
    """Of two probabilities of a guess of presence, every pair that ρ allows at some orders has no larger accuracy."""
    [largest] = largest_accuracy(np.array([rho]), concentrated=True)
    p, q = np.meshgrid(*[np.linspace(0.001, 0.999, 999)] * 2)
    allowed = np.ones(p.shape, bool)
    for one, other in itertools.permutations((p, q)):
        kullback = one * np.log(one / other) + (1 - one) * np.log((1 - one) / (1 - other))
        allowed &= kullback <= rho
    accuracy = ((1 + p - q) / 2)[allowed].max()
    assert accuracy <= largest <= accuracy + 0.003
    odds = log(largest / (1 - largest))
    assert odds * np.tanh(odds / 2) == pytest.approx(rho)
    # The Gaussian mechanism of this ρ, whose best guess is right with probability Φ(√(2ρ)/2).
    from scipy.stats import norm

    assert norm.cdf(np.sqrt(rho / 2)) < largest


def randomized_response(claims, seed, factor=1.0):
    """Answers that are right exactly as often as ``factor`` times the claims in ε allow."""
    random = np.random.default_rng(seed)
    present = random.random(len(claims)) < 0.5
    truthful = random.random(len(claims)) < 1 / (1 + np.exp(-factor * claims))
    return Guesses(np.where(present == truthful, claims, -claims), present, claims, np.arange(len(claims)))


#: Equal claims, and some that differ.
CLAIMS = {"equal": np.ones(2000), "different": np.repeat([0.1, 0.5, 2.0], [600, 600, 800])}


@pytest.mark.parametrize("claims", CLAIMS.values(), ids=CLAIMS)
def test_the_bound_in_epsilon_holds_as_often_as_it_says_and_is_near(claims):
    factors = [lower_bound(randomized_response(claims, seed), confidence=0.9).factor for seed in range(100)]
    # Of 100 seeds, more than 16 failures of a bound that fails in 10 % have a probability of 2 %.
    assert np.sum(np.array(factors) > 1) <= 16
    assert np.median(factors) > 0.8
    broken = [lower_bound(randomized_response(claims, seed, 2.0)).factor for seed in range(10)]
    assert min(broken) > 1


def test_a_mean_of_different_claims_has_the_largest_tail():
    """The binomial law of the mean covers sums of different coins, where the bound makes use of it (brute force)."""
    probabilities = np.array([0.5, 0.6, 0.8, 0.9, 0.95])
    mean = probabilities.mean()
    for n_right in range(6):
        if n_right >= 5 * mean + 1 - 1e-9:
            tail = sum(
                np.where(outcome, probabilities, 1 - probabilities).prod()
                for outcome in itertools.product([False, True], repeat=5)
                if sum(outcome) >= n_right
            )
            assert tail <= binom.sf(n_right - 1, 5, mean)


def gaussian_guesses(rho, n_rounds, n_people, seed, shared=0.0):
    """Guesses under Gaussian noise of a given ρ, correlated within a round."""
    random = np.random.default_rng(seed)
    shape = n_rounds, n_people
    common = np.sqrt(shared) * random.standard_normal((n_rounds, 1))
    noise = common + np.sqrt(1 - shared) * random.standard_normal(shape)
    present = random.random(shape) < 0.5
    scores = noise + np.sqrt(2 * rho) * (present - 0.5)
    rounds = np.repeat(np.arange(n_rounds), n_people)
    return Guesses(scores.ravel(), present.ravel(), np.full(scores.size, 0.5), rounds)


@pytest.mark.parametrize("shared", [0.0, 0.9])
def test_the_bound_in_rho_holds_as_often_as_it_says(shared):
    actual = [
        lower_bound(gaussian_guesses(0.5, 60, 10, seed, shared), concentrated=True, confidence=0.9).factor
        for seed in range(40)
    ]
    # Of 40 seeds, more than 8 failures of a bound that fails in 10 % have a probability of 2 %.
    assert np.sum(np.array(actual) > 1) <= 8
    broken = [lower_bound(gaussian_guesses(2.0, 400, 10, seed, shared), concentrated=True).factor for seed in range(2)]
    assert min(broken) > 1


def test_windows_that_cannot_be_charged_cost_no_power_and_hide_nothing():
    some = gaussian_guesses(2.0, 100, 10, 1)
    nothing = Guesses(np.zeros(5000), np.arange(5000) % 2 == 0, np.zeros(5000), np.arange(500).repeat(10))
    alone, with_them = (lower_bound(Guesses.of(one), concentrated=True) for one in ([some], [some, nothing]))
    assert alone.factor > 1
    assert with_them.factor == pytest.approx(alone.factor, rel=1e-3)
    # Who is shown in a window that was not charged convicts it.
    shown = replace(nothing, scores=np.where(nothing.present, 1.0, -1.0))
    assert lower_bound(shown, concentrated=True).factor > 1
    assert lower_bound(shown).factor > 1


def test_rounds_that_show_everybody_together_are_within_rho():
    """Mostly nothing is shown, and sometimes all: right guesses then come together, and count as one round's."""
    random = np.random.default_rng(1)
    for seed in range(50):
        shown = random.random(40) < 0.3  # each guess is right with probability .65, as ρ = .19 allows
        present = random.random((40, 50)) < 0.5
        guessed = np.where(shown[:, None], present, random.random((40, 50)) < 0.5)
        rounds = np.repeat(np.arange(40), 50)
        rho = 0.19
        guesses = Guesses(np.where(guessed, 1.0, -1.0).ravel(), present.ravel(), np.full(2000, rho), rounds)
        assert lower_bound(guesses, concentrated=True).factor <= 1, seed


RHO = round(rho_of(2.0, 1e-6), 4)
LANDMARKS = {"landmarks": {"windows": [4, 8, 12, 16]}}
GAUSSIAN = {"rho": RHO, "noise": "discrete_gaussian"}
#: Every mechanism with a finite guarantee of counts, at ε = 2 of its unit (or at δ = 1e-6).
CASES = {
    "laplace": {"epsilon": 2.0},
    "discrete_laplace": {"epsilon": 2.0},
    "gaussian": {"rho": RHO},
    "discrete_gaussian": {"rho": RHO},
    "hierarchy": {"rho": RHO},
    "correlated": {"rho": RHO, "w": 4, "band": 4},
    "fpa": {"epsilon": 2.0, "coefficients": 3, "block": 10},
    "fast": {"epsilon": 2.0, "publications": 5},
    "period_uniform": GAUSSIAN,
    "pegasus": {"epsilon": 2.0, "w": 4},
    "rescue_dp": {"epsilon": 2.0, "w": 10, "group_below": 0.0},
    "landmark_uniform": {"epsilon": 2.0},
    "landmark_skip": {"epsilon": 2.0},
    "landmark_adaptive": {"epsilon": 2.0},
    "w_event_uniform": {"epsilon": 2.0, "w": 10},
    "w_event_sample": {"epsilon": 2.0, "w": 10},
    "w_event_bd": {"epsilon": 2.0, "w": 10},
    "w_event_ba": {"epsilon": 2.0, "w": 10},
}


def case(folder, name):
    changes = LANDMARKS if name.startswith("landmark") else NO_LANDMARKS
    return configured(folder, {"type": name} | CASES[name], places=PLACES, **changes)


@pytest.fixture
def halve_noise(monkeypatch):
    """Function after which every run draws half of its noise."""
    right = RunKeys.noise
    return lambda: monkeypatch.setattr(RunKeys, "noise", lambda keys: HalvedNoise.of(right(keys)))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_half_of_the_noise_is_convicted_and_the_right_noise_is_not(name, tmp_path, halve_noise):
    config = case(tmp_path, name)
    honest = audit(config)
    assert 0 <= honest.bound.amount <= honest.bound.claim
    assert not honest.convicted
    assert honest.runs_for_half is not None
    halve_noise()
    assert audit(config).convicted


def test_every_mechanism_with_a_guarantee_of_counts_is_a_case():
    promised = {name: mechanisms.get(name).examples()[0].guarantee for name in mechanisms.names()}
    assert {name for name, one in promised.items() if one.exists and not one.on_points} == {*CASES}
    on_points = {name for name, one in promised.items() if one.exists and one.on_points}
    assert {*on_points, *(name for name in CASES if issubclass(mechanisms.get(name), TraceSchedule))} == {*TRACES}


#: Every mechanism of traces, at ε = 2 of its unit.
TRACES = {
    "planar_laplace": {"epsilon": 2.0, "radius": 100.0},
    "gaussian_trace": {"sigma": 100.0},
    **{name: {"epsilon": 2.0} for name in ("landmark_uniform", "landmark_skip", "landmark_adaptive")},
    **{f"w_event_{name}": {"epsilon": 2.0, "w": 4} for name in ("uniform", "sample", "bd", "ba")},
}
IN_RHO = [name for name in TRACES if name not in ("planar_laplace", "gaussian_trace")]


@pytest.mark.parametrize(
    ("name", "noise"),
    [
        pytest.param(name, noise, marks=[pytest.mark.slow] * (name in ("w_event_bd", "w_event_ba")))
        for noise, names in {"planar_laplace": TRACES, "planar_gaussian": IN_RHO}.items()
        for name in names
    ],
)
def test_half_of_the_noise_of_traces_is_convicted_and_the_right_noise_is_not(name, noise, tmp_path, monkeypatch):
    parameters = TRACES[name]
    if name in IN_RHO:
        budget = {} if noise == "planar_laplace" else {"epsilon": None, "rho": RHO}
        parameters = {key: value for key, value in (parameters | budget).items() if value is not None}
        parameters |= {"noise": noise, "radius": 50.0}
    source = walk_source(tmp_path / "walk.csv")
    (tmp_path / "walk.csv").write_text("user,time,lat,lon\na,0,39.9,116.4\n")
    box = {"type": "grid", "south": 39.8, "north": 40.0, "west": 116.3, "east": 116.5, "rows": 2, "columns": 2}
    value = {"name": "traces", "seed": 3, "source": source, "space": box, "windows": {"type": "timestamps"}}
    value |= LANDMARKS if name.startswith("landmark") else {}
    config = loads(json.dumps(value | {"mechanism": {"type": name} | parameters, "output": {"path": str(tmp_path)}}))
    honest = audit(config)
    assert 0 < honest.bound.amount <= honest.bound.claim
    assert not honest.convicted
    assert honest.charged <= honest.promised * (1 + 1e-9)
    monkeypatch.setattr(releasing, "NoiseSource", HalvedTraces)
    assert audit(config).convicted


ONE = "one person in one cell of one window"


@pytest.mark.parametrize(
    ("mechanism", "changes", "claimed", "unit"),
    [
        ({"type": "discrete_laplace", "epsilon": 2.0}, NO_LANDMARKS, 2.0, ONE),
        # Charges of windows add up: each is audited by itself, the sum is checked.
        ({"type": "w_event_uniform", "epsilon": 2.0, "w": 2}, NO_LANDMARKS, 1.0, ONE),
        ({"type": "w_event_bd", "epsilon": 2.0, "w": 2}, NO_LANDMARKS, 1.0, ONE),
        ({"type": "landmark_uniform", "epsilon": 2.0}, {}, 2 / 3, ONE),
        ({"type": "gaussian", "rho": 0.5}, NO_LANDMARKS, 0.5, ONE),
        # A period, a block and linked windows are charged as a whole.
        (
            {"type": "fast", "epsilon": 2.0, "publications": 2},
            NO_LANDMARKS,
            2.0,
            "one person in one cell of 20 windows",
        ),
        (
            {"type": "fpa", "rho": 0.3, "coefficients": 2, "block": 5, "noise": "gaussian"},
            NO_LANDMARKS,
            0.3,
            "one person in one cell of 5 windows",
        ),
        (
            {"type": "correlated", "rho": 0.5, "w": 3, "band": 4},
            NO_LANDMARKS,
            0.5,
            "one person in one cell of 3 windows",
        ),
    ],
)
def test_what_is_claimed_is_what_is_charged(tmp_path, mechanism, changes, claimed, unit):
    actual = audit(configured(tmp_path, mechanism, **changes), n_runs=1)
    assert actual.bound.claim == pytest.approx(claimed)
    assert actual.unit == unit
    assert not actual.convicted
    assert actual.on_data
    if mechanism["type"] != "correlated":
        assert (
            actual.promised * (1 - 1e-9) <= actual.charged <= actual.promised * (1 + 1e-9) or "bd" in mechanism["type"]
        )


class ChargesTooMuch(Laplace):
    """Mutant that promises half of its charges."""

    __doc__ = Laplace.__doc__

    @property
    def guarantee(self):
        return replace(super().guarantee, amount=self.epsilon / 2)


def test_charges_beyond_the_promise_are_convicted_whatever_is_guessed(tmp_path):
    config = configured(tmp_path, {"type": "laplace", "epsilon": 0.2}, **NO_LANDMARKS)
    actual = audit(replace(config, mechanism=(ChargesTooMuch(epsilon=0.2),)), n_runs=1)
    assert actual.charged > actual.promised
    assert actual.convicted
    assert actual.bound.factor <= 1
    assert "charged:  ε = 0.2 of 0.1" in actual.as_text()


def test_the_audit_states_what_it_could_have_found(tmp_path, halve_noise):
    config = configured(tmp_path, {"type": "discrete_laplace", "epsilon": 2.0}, places=PLACES, **NO_LANDMARKS)
    one = audit(config, n_runs=1)
    assert one.expected < 2.0
    assert one.runs_for_half is not None
    enough = audit(config)
    assert enough.n_runs == 16 * enough.runs_for_half
    assert one.expected <= enough.expected < 2.0 < enough.expected_of_half
    assert abs(enough.bound.amount - enough.expected) < 0.4
    halve_noise()
    broken = audit(config)
    assert abs(broken.bound.amount - broken.expected_of_half) < 0.8
    assert not audit(
        configured(tmp_path, {"type": "rescue_dp", "epsilon": 1.0, "w": 4}, **NO_LANDMARKS), n_runs=1
    ).single_counts


def test_rounding_of_real_noise_tells_nobody_apart(tmp_path):
    config = configured(tmp_path, {"type": "laplace", "epsilon": 1.0}, places=PLACES, **NO_LANDMARKS)
    config = replace(config, bounding=replace(config.bounding, max_cells=2))  # scores of two cells add up to zero, too
    for seed in range(2):
        actual = audit(config, n_runs=40, seed=seed)
        assert 0.7 < actual.expected <= 1.0
        assert 0.7 < actual.bound.amount <= 1.0


def test_post_processing_does_not_hide_what_was_released(tmp_path):
    alone = audit(configured(tmp_path, {"type": "discrete_laplace", "epsilon": 2.0}, **NO_LANDMARKS), n_runs=1)
    steps = [{"type": "discrete_laplace", "epsilon": 2.0}, {"type": "filter"}]
    assert audit(configured(tmp_path, steps, **NO_LANDMARKS), n_runs=1).bound == alone.bound


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


def test_the_command_reports_and_fails_only_on_a_conviction(tmp_path, capsys, halve_noise):
    import yaml

    sections = small_sections(tmp_path, made_up_events(300), 20, mechanism={"type": "discrete_laplace", "epsilon": 1.0})
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(sections | {"landmarks": None, "accountants": []}))
    assert main(["audit", str(path), "--json", "--runs", "1"]) == DONE
    shown = json.loads(capsys.readouterr().out)
    assert shown["claimed"] == 1.0
    assert shown["n_canaries"] == 20
    assert shown["measure"] == "epsilon"
    assert shown["expected"] < 1.0
    assert shown["runs_for_half"] > 1
    assert shown["on_data"]
    assert not shown["convicted"]
    assert main(["audit", str(path), "--runs", "1"]) == DONE
    text = capsys.readouterr().out
    assert "planted among people of the source" in text
    assert f"which about {shown['runs_for_half']} runs convict" in text
    assert main(["audit", str(path), "--runs", "0"]) == WRONG_USE
    assert main(["audit", str(path), "--minutes", "0"]) == WRONG_USE
    out = tmp_path / "audits" / "first.json"
    assert main(["audit", str(path), "--runs", "1", "--out", str(out)]) == DONE
    assert json.loads(out.read_text()) == shown
    assert main(["audit", str(path), "--out", str(tmp_path)]) == WRONG_USE
    halve_noise()
    assert main(["audit", str(path), "--json"]) == FAILED


def test_a_deployments_people_and_key_are_not_looked_at(tmp_path):
    config = deployed(sections(tmp_path))
    (tmp_path / "events.csv").unlink()
    (tmp_path / "noise.key").unlink()
    actual = audit(config, n_runs=1)
    assert not actual.on_data
    assert actual.promised == 1.0
    assert "planted among nobody else" in actual.as_text()


def test_people_whom_a_bound_would_not_leave_are_not_planted(tmp_path):
    config = configured(tmp_path, {"type": "w_event_uniform", "epsilon": 1.0, "w": 3}, **NO_LANDMARKS)
    bounding = replace(config.bounding, max_per_period=2)
    with pytest.raises(ParameterError, match="max_per_period"):
        audit(replace(config, bounding=bounding, budget_period=3 * 3_600_000))


def test_a_person_of_a_budget_period_is_planted_as_often_as_the_bound_leaves_one(tmp_path, halve_noise):
    config = configured(
        tmp_path, {"type": "period_uniform", "epsilon": 2.0}, n_windows=16, places=PLACES, **NO_LANDMARKS
    )
    bounding = replace(config.bounding, max_per_period=4)
    config = replace(config, bounding=bounding, budget_period=8 * 3_600_000)
    honest = audit(config, n_runs=20)
    assert honest.unit == "one person in one cell of 4 windows"
    assert 0.8 < honest.bound.amount <= honest.bound.claim == pytest.approx(2.0)
    halve_noise()
    assert audit(config, n_runs=20).convicted
