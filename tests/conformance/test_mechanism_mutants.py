"""Mutants of the count mechanisms, each caught by a check."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import pytest

from penstock import mechanisms
from penstock.mechanisms.core.events import Additive
from penstock.mechanisms.core.sensitivity import of_transform
from penstock.mechanisms.crowd_blending import CrowdBlending
from penstock.mechanisms.discrete_laplace import DiscreteLaplace
from penstock.mechanisms.fpa import Fpa, real_basis
from penstock.mechanisms.sampling import Sampling
from penstock.mechanisms.suppress_unpopular import SuppressUnpopular
from penstock.testing import Subject, checks_for
from penstock.testing.checks import without_limits_gives_the_ideal


class HalfTheNoise(Fpa):
    __doc__ = Fpa.__doc__

    def publish(self, n_windows, state, noise):
        values, fields = super().publish(n_windows, state, noise)
        basis, inverse = self.matrices(n_windows)
        exact = inverse @ state["coefficients"][..., : len(basis), :]
        return exact + (values - exact) / 2, fields


class HalfTheSpectrum(Fpa):
    """Keep, pad and take the modulus, as public code does."""

    __doc__ = Fpa.__doc__

    def publish(self, n_windows, state, noise):
        values, fields = super().publish(n_windows, state, noise)
        spectrum = np.fft.fft(values, axis=-2)
        spectrum[..., self.coefficients :, :] = 0
        return np.abs(np.fft.ifft(spectrum, axis=-2)), fields


class ChargesEveryWindow(Fpa):
    """Says a window's share of the block where it must say the block."""

    __doc__ = Fpa.__doc__

    def block_charge(self, n_windows, state):
        [event] = super().block_charge(n_windows, state)
        return (Additive("laplace", event.sensitivity / n_windows**2, event.scale),)


class AnnouncesNothing(Fpa):
    __doc__ = Fpa.__doc__

    def worst_charge(self, window, state):
        return ()


class AnnouncesFromTheSecondOn(DiscreteLaplace):
    __doc__ = DiscreteLaplace.__doc__

    def worst_charge(self, window, state):
        return super().worst_charge(window, state) if state["last_window"].any() else ()


class Remembers(DiscreteLaplace):
    __doc__ = DiscreteLaplace.__doc__

    def start(self, facts):
        return super().start(facts) | {"seen": facts.constant(0)[..., None]}

    def step(self, window, counts, state, noise):
        made, after = super().step(window, counts, state, noise)
        return made, after | {"seen": np.concatenate([state["seen"], state["seen"][..., :1]], -1)}


class ForgetsTheLastWindow(SuppressUnpopular):
    __doc__ = SuppressUnpopular.__doc__

    def step(self, window, counts, state, noise):
        made, state = super().step(window, counts, state, noise)
        return made[:-1], state


class OffByOne(CrowdBlending):
    __doc__ = CrowdBlending.__doc__

    def step(self, window, counts, state, noise):
        [release], state = super().step(window, counts, state, noise)
        return [replace(release, values=np.where(counts == self.threshold, 0.0, release.values))], state


@dataclass(frozen=True, kw_only=True)
class DrawsItsOwn(Sampling):
    """Mutant that samples with an unkeyed generator."""

    def keep(self, users, cells, window, hashes):
        return np.random.default_rng().random(len(users)) < self.rate


PLAIN = {"epsilon": 1.0, "coefficients": 3, "block": 5}
MUTANTS = [
    (HalfTheNoise(**PLAIN), "noise_has_the_declared_scale"),
    (HalfTheSpectrum(**PLAIN), "without_limits_gives_the_ideal"),
    (ChargesEveryWindow(**PLAIN), "charges_cover_the_noise"),
    (AnnouncesNothing(**PLAIN), "charges_stay_within_worst_charge"),
    (AnnouncesFromTheSecondOn(epsilon=1.0), "charges_stay_within_worst_charge"),
    (Remembers(epsilon=1.0), "state_does_not_grow"),
    (ForgetsTheLastWindow(fraction=0.2, block=4), "every_window_is_released_once"),
    (OffByOne(threshold=20), "without_limits_gives_the_ideal"),
    (DrawsItsOwn(rate=0.5), "keeps_by_hash_alone"),
]


@pytest.mark.parametrize(("mutant", "check"), MUTANTS, ids=[type(mutant).__name__ for mutant, _ in MUTANTS])
def test_mutant_is_caught(mutant, check):
    sound = type(mutant).__mro__[1](**{field.name: getattr(mutant, field.name) for field in fields(mutant)})
    [run_check] = [one for one in checks_for(mutant) if one.__name__ == check]
    run_check(Subject(sound))
    with pytest.raises(AssertionError):
        run_check(Subject(mutant))


def test_a_sensitivity_of_one_coefficient_too_few_is_caught():
    """The bound of k − 1 coefficients is below what one user does to k: the brute force would notice."""
    worst = np.abs(real_basis(4, 3) @ np.ones((4, 1))).sum()
    signs = [np.abs(real_basis(4, 3) @ np.array(bits)[:, None]).sum() for bits in np.ndindex(2, 2, 2, 2)]
    assert max(signs) > of_transform(real_basis(4, 2), 1, 4, 1).l1
    assert worst <= of_transform(real_basis(4, 3), 1, 4, 1).l1


def shifted(mechanism):
    """Mutant that adds a person to every release that it publishes."""
    kind = type(mechanism)

    def shift(made):
        return [one if one.repeats is not None else replace(one, values=one.values + 1.0) for one in made]

    def step(self, window, counts, state, noise):
        made, state = kind.step(self, window, counts, state, noise)
        return shift(made), state

    def finish(self, state, noise):
        return shift(kind.finish(self, state, noise))

    broken = type(kind.__name__, (kind,), {"__doc__": kind.__doc__, "step": step, "finish": finish})
    return broken(**{field.name: getattr(mechanism, field.name) for field in fields(mechanism) if field.init})


def mechanisms_on_counts():
    actual = {name: mechanisms.get(name).examples()[0] for name in mechanisms.names()}
    return {name: example for name, example in actual.items() if without_limits_gives_the_ideal in checks_for(example)}


@pytest.mark.parametrize("name", mechanisms_on_counts())
def test_every_mechanism_on_counts_has_a_mutant(name):
    mechanism = mechanisms_on_counts()[name]
    without_limits_gives_the_ideal(Subject(mechanism))
    with pytest.raises(AssertionError):
        without_limits_gives_the_ideal(Subject(shifted(mechanism)))
