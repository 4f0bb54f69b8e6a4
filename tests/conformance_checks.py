"""One function for each promise of a mechanism's contract; a function fails where the promise is broken."""

from __future__ import annotations

import contextlib
import inspect
import os
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from accountants.core.charges import concentrated_rho, pure_epsilon
from mechanisms import Facts, Mechanism
from mechanisms.core.errors import ParameterError, PenstockError
from mechanisms.core.event import Block
from mechanisms.core.noise import Noise, NoiseKey, NoiseSource
from mechanisms.core.noise_checks import noise_matches
from mechanisms.core.parameters import parameters_of
from mechanisms.core.release import ACTIONS, Release
from mechanisms.core.run import step_through
from mechanisms.core.state import decode_state, encode_state
from pipeline.configuration.plugins import add_folder

SOURCE = NoiseSource(NoiseKey.from_seed(11), configuration=b"conformance")
#: A sample that is what it should be is refused this rarely; one of a scale 30 % off must be refused at this level.
LEVEL = 1e-6
LAPLACE, GAUSSIAN = ("laplace", "discrete_laplace"), ("gaussian", "discrete_gaussian")


@dataclass(frozen=True)
class Subject:
    """What is checked: a mechanism, and where its noise comes from."""

    mechanism: Mechanism
    source: Any = field(default=SOURCE)


def facts_for(n_windows=12, n_cells=5, **changes):
    given = {"max_cells": 2, "max_windows": 4, "max_block_cells": 6, "landmarks": (3, 4, 9, 11)}
    return Facts(n_cells=n_cells, n_windows=n_windows, **given | changes)


def worlds():
    """Public facts and windows: one period; periods with too many landmarks; sensors that come and go."""
    yield (facts := facts_for()), facts.windows()
    yield (facts := facts_for(budget_period=6, max_landmarks=1)), facts.windows()
    masks = np.random.default_rng(2).random((12, 5)) < 0.6
    masks[6] = False
    windows = [replace(window, active=mask) for window, mask in zip(facts_for().windows(), masks)]
    yield facts_for(), windows


def counts_for(n_windows=12, n_cells=5, seed=1):
    """Quiet stretches, a spike, and an empty window."""
    level = np.repeat(np.random.default_rng(seed).poisson(20, (-(-n_windows // 3), n_cells)), 3, axis=0)[:n_windows]
    level[n_windows // 2] = 0
    level[n_windows - 2] += 1000
    return level


def released(subject, counts, facts, windows=None, between=lambda state: state, mechanism=None):
    """All releases, and the last state; counts are copied, so that nobody's changes reach the next run."""
    releases, state = [], {}
    windows = facts.windows() if windows is None else windows
    runner = mechanism or subject.mechanism
    for made, after in step_through(runner, counts.copy(), facts, windows, subject.source, between):
        releases, state = releases + made, after
    return releases, state


def matrix_of(releases, counts):
    """Released values by window and cell, NaN where a window was not released."""
    matrix = np.full(counts.shape, np.nan)
    for release in releases:
        matrix[release.window - 1] = release.values
    return matrix


def content(release):
    """Everything a release says, comparable; charges by what they cost."""
    return (
        release.window,
        np.asarray(release.values, np.float64).tobytes(),
        str(release.action),
        release.noise,
        np.broadcast_to(np.asarray(release.scale, np.float64), np.shape(release.values)).tolist(),
        pure_epsilon(release.charge),
        concentrated_rho(release.charge),
        release.landmark,
        None if release.repeats is None else int(release.repeats),
        release.available_at,
        None if release.active is None else release.active.tolist(),
    )


def contents(releases):
    return [content(release) for release in releases]


class Amnesiac:
    """A mechanism that is made anew for every call: nothing can be remembered in the object."""

    def __init__(self, mechanism):
        self._mechanism = mechanism

    def __getattr__(self, name):
        return getattr(replace(self._mechanism), name)


def resumes_from_encoded_state(subject):
    def restart(state):
        return decode_state(encode_state("subject", 1, state), "subject", 1)

    for facts, windows in worlds():
        whole, end = released(subject, counts_for(), facts, windows)
        cut, resumed = released(subject, counts_for(), facts, windows, restart, Amnesiac(subject.mechanism))
        assert contents(cut) == contents(whole)
        assert encode_state("subject", 1, resumed) == encode_state("subject", 1, end)


def leaves_inputs_alone(subject):
    for facts, windows in worlds():
        counts, seen = counts_for(), []

        def look(state, seen=seen):
            seen[:] = [state, encode_state("subject", 1, state)]
            return state

        for made, _ in step_through(subject.mechanism, counts, facts, windows, subject.source, look):
            assert np.array_equal(counts, counts_for()), "the counts were changed"
            assert encode_state("subject", 1, seen[0]) == seen[1], "the state was changed"
            assert not any(np.shares_memory(release.values, counts) for release in made), (
                "a release is a view of counts"
            )


def state_does_not_grow(subject):
    facts = facts_for(48, landmarks=tuple(range(3, 48, 5)), budget_period=12)
    sizes = []

    def measure(state):
        sizes.append(len(encode_state("subject", 1, state)))
        return state

    released(subject, counts_for(48), facts, between=measure)
    # Texts of numbers in the header are all that may differ.
    assert sizes[48] <= sizes[24] + 8, f"{sizes[24]} bytes after half the windows, {sizes[48]} after all"


def charges_stay_within_worst_charge(subject):
    for facts, windows in worlds():
        announced = []

        def announce(state, announced=announced, windows=windows):
            if len(announced) < len(windows):
                announced.append(subject.mechanism.worst_charge(windows[len(announced)], state))
            return state

        spent_blocks, offered_blocks = 0.0, 0.0
        steps = step_through(subject.mechanism, counts_for(), facts, windows, subject.source, announce)
        for number, (made, _) in enumerate(steps):
            worst = announced[number] if number < len(windows) else ()
            charged = [event for release in made for event in release.charge]
            for price in (pure_epsilon, concentrated_rho):
                assert price(_outside_blocks(charged)) <= price(_outside_blocks(worst)) * (1 + 1e-12)
            offered_blocks += pure_epsilon(e for e in worst if isinstance(e, Block))
            spent_blocks += pure_epsilon(e for e in charged if isinstance(e, Block))
            assert spent_blocks <= offered_blocks * (1 + 1e-12)


def _outside_blocks(charge):
    return [event for event in charge if not isinstance(event, Block)]


def without_limits_gives_the_ideal(subject):
    assert subject.mechanism.ideal
    for facts, windows in worlds():
        mechanism = subject.mechanism.unlimited()
        releases, _ = released(subject, counts_for(), facts, windows, mechanism=mechanism)
        ideal = np.asarray(mechanism.without_noise(counts_for()), np.float64)
        shown, n_published = np.zeros(facts.n_cells), 0
        for release in releases:
            active = np.ones(facts.n_cells, bool) if release.active is None else release.active
            if release.repeats is None:
                shown = np.where(active, ideal[release.window - 1], shown)
                n_published += 1
            np.testing.assert_allclose(release.values[active], shown[active], rtol=1e-9, atol=1e-9)
        assert n_published > 0


def noise_has_the_declared_scale(subject):
    n_cells = 100_000
    facts = facts_for(6, n_cells, max_cells=1, landmarks=(2, 4))
    counts = np.random.default_rng(3).poisson(30, (6, n_cells))
    releases, _ = released(subject, counts, facts)
    noises = subject.mechanism.noise_in(matrix_of(releases, counts), counts)
    blocks = tuple(e for release in releases for e in release.charge if isinstance(e, Block))
    told_apart: set[float] = set()
    for release in (release for release in releases if release.repeats is None):
        if release.noise == "none":
            assert pure_epsilon(release.charge + blocks) == np.inf, "no noise, yet a finite charge"
            continue
        scales = np.broadcast_to(release.scale, n_cells)
        for scale in np.unique(scales[scales > 0]):
            sample = noises[release.window - 1][scales == scale]
            if len(sample) < n_cells // 5:
                continue
            assert noise_matches(sample, release.noise, scale) > LEVEL, f"not {release.noise} noise of scale {scale}"
            if scale not in told_apart:
                assert all(noise_matches(sample, release.noise, wrong * scale) < LEVEL for wrong in (0.7, 1.3))
                told_apart.add(scale)


def charges_cover_the_noise(subject):
    for facts, windows in worlds():
        releases, _ = released(subject, counts_for(), facts, windows)
        blocks = [e for release in releases for e in release.charge if isinstance(e, Block)]
        for release in (release for release in releases if release.repeats is None):
            active = np.ones(facts.n_cells, bool) if release.active is None else release.active
            scales = np.sort(np.broadcast_to(np.asarray(release.scale, float), facts.n_cells)[active])
            hit = scales[: facts.max_cells]  # the cells where one user shows most
            charge = blocks if blocks else release.charge
            with np.errstate(divide="ignore"):
                if release.noise in GAUSSIAN:
                    least, paid = (1 / (2 * hit**2)).sum(), concentrated_rho(charge)
                else:
                    least, paid = (1 / hit).sum(), pure_epsilon(charge)
            assert paid >= least * (1 - 1e-9), f"window {release.window} charges {paid}, its noise gives {least}"


def a_retry_draws_the_same_noise(subject):
    for facts, windows in worlds():
        first, _ = released(subject, counts_for(), facts, windows)
        again, _ = released(subject, counts_for(), facts, windows)
        assert contents(first) == contents(again)


def a_changed_count_draws_independent_noise(subject):
    facts, n_cells = facts_for(6, 2000, landmarks=(2, 4)), 2000
    counts = counts_for(6, n_cells)
    changed = counts.copy()
    changed[0, 7] += 1
    one, _ = released(subject, counts, facts)
    other, _ = released(subject, changed, facts)
    first, second = one[0], other[0]
    assert first.repeats is second.repeats is None, "the first window is published when it is far from empty"
    if first.noise == "none":
        return
    noises = [
        subject.mechanism.noise_in(matrix_of(run, matrix), matrix)[0]
        for run, matrix in ((one, counts), (other, changed))
    ]
    assert abs(np.corrcoef(*noises)[0, 1]) < 5 / np.sqrt(n_cells)


class OneReplica:
    """The noise source of one replica's run without the others."""

    def __init__(self, source, number):
        self.source, self.number = source, number

    def at(self, start, end, step, counts, state, n_replicas=None):
        n = self.number + 1
        states = {name: np.stack([value] * n) for name, value in state.items()}
        joint = self.source.at(start, end, step, np.stack([counts] * n), states, n)
        return Noise(joint._seeds[self.number :], None, joint.exact)


def replicas_equal_separate_runs(subject):
    matrices = np.stack([counts_for(seed=seed) for seed in (1, 2, 3)])
    for facts, windows in worlds():
        joint, _ = released(subject, matrices, replace(facts, n_replicas=3), windows)
        for number, counts in enumerate(matrices):
            alone, _ = released(Subject(subject.mechanism, OneReplica(subject.source, number)), counts, facts, windows)
            assert contents(release.replica(number) for release in joint) == contents(alone)


def every_window_is_released_once(subject):
    for facts, windows in worlds():
        releases, _ = released(subject, counts_for(), facts, windows)
        assert [release.window for release in releases] == [window.index for window in windows]
        for release, window in zip(releases, windows):
            assert isinstance(release, Release)
            assert release.action in ACTIONS
            assert (release.repeats is None) == (release.action in ("published", "suppressed"))
            assert release.landmark == window.landmark
            active = np.ones(facts.n_cells, bool) if window.active is None else window.active
            assert np.array_equal(~np.isnan(release.values), active), "values exactly where sensors are active"


def parameters_are_checked(subject):
    _check_parameters(subject.mechanism)


def is_documented(subject):
    plugin, guarantee = type(subject.mechanism), subject.mechanism.guarantee
    privacy = _check_documentation(plugin)
    if guarantee.exists:
        assert all((guarantee.unit, guarantee.neighbours, guarantee.theorem))
        assert "unit" in privacy.lower() or "user" in privacy.lower(), "the Privacy paragraph does not name the unit"
        # The first author at least: whose theorem it is.
        assert guarantee.theorem.split()[0].rstrip(",") in inspect.getdoc(plugin)
    else:
        assert "none" in privacy.lower() or "no guarantee" in privacy.lower()


def _check_documentation(plugin):
    """The Privacy paragraph of a plug-in whose documentation is complete."""
    text = inspect.getdoc(plugin) or ""
    promise = text.split("\n")[0]
    assert promise.endswith("."), "the first line is one sentence"
    assert len(promise) < 130
    assert "**Privacy.**" in text, "there is no Privacy paragraph"
    for name, declared in parameters_of(plugin).items():
        if declared.choices is None or len(declared.choices) > 1:
            assert (declared.key or name) in text, f"the parameter {name} is not described"
    return text.split("**Privacy.**")[1].split("\n\n")[0]


def _check_parameters(plugin):
    """Every value outside the declared bounds is refused by an error that names the field."""
    for name, declared in parameters_of(type(plugin)).items():
        for wrong in _outside(declared):
            with pytest.raises(ParameterError) as caught:
                replace(plugin, **{name: wrong})
            assert caught.value.field == (declared.key or name)
            assert declared.expected() in str(caught.value)


def _outside(declared):
    if declared.choices is not None:
        return ["no such choice"]
    wrong = [limit for limit in (declared.above, declared.below) if limit is not None]
    wrong += [limit - 1 for limit in (declared.above, declared.at_least) if limit is not None]
    wrong += [limit + 1 for limit in (declared.below, declared.at_most) if limit is not None]
    return [*wrong, float("nan"), "text", True] if wrong else []


def keeps_by_hash_alone(subject):
    """Event stage: the mask is a function of the memberships and their hashes, whatever their order."""
    rng = np.random.default_rng(4)
    users, cells = rng.integers(0, 400, 1000), rng.integers(0, 20, 1000)
    hashes = rng.integers(0, 2**64, 1000, dtype=np.uint64)
    window, order = facts_for().windows()[0], rng.permutation(1000)
    given = [array.copy() for array in (users, cells, hashes)]
    mask = subject.mechanism.keep(users, cells, window, hashes)
    assert (mask.dtype, mask.shape) == (bool, users.shape)
    assert all(np.array_equal(array, copy) for array, copy in zip((users, cells, hashes), given))
    shuffled = subject.mechanism.keep(users[order], cells[order], window, hashes[order])
    assert np.array_equal(shuffled, mask[order])


GENERAL = (parameters_are_checked, is_documented)
COUNTS = (
    resumes_from_encoded_state,
    leaves_inputs_alone,
    state_does_not_grow,
    charges_stay_within_worst_charge,
    without_limits_gives_the_ideal,
    noise_has_the_declared_scale,
    charges_cover_the_noise,
    a_retry_draws_the_same_noise,
    a_changed_count_draws_independent_noise,
    replicas_equal_separate_runs,
    every_window_is_released_once,
)
EVENTS = (keeps_by_hash_alone,)


def checks_for(mechanism):
    """The checks of every stage that a mechanism works at."""
    by_stage = {"counts": COUNTS, "events": EVENTS}
    return GENERAL + tuple(check for stage in mechanism.stages for check in by_stage.get(stage, ()))


def examples_of(family):
    """Name, number and instance of every example in a family of plug-ins; one without any fails a test of its own.

    Folders with further plug-ins are named in PENSTOCK_PLUGINS, as under ``plugins:`` in a configuration.
    """
    for folder in filter(None, os.environ.get("PENSTOCK_PLUGINS", "").split(os.pathsep)):
        add_folder(folder)
    for name in family.names():
        with contextlib.suppress(PenstockError):
            yield from ((name, number, example) for number, example in enumerate(family.get(name).examples()))


def failing(subject, checks):
    """Names of the checks that a subject fails."""
    failed = set()
    for check in checks:
        try:
            check(subject)
        except (Exception, pytest.fail.Exception):  # a broken plug-in may fail in any way
            failed.add(check.__name__)
    return failed
