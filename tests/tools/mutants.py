"""Mutants: plug-ins with one deliberate fault each, and the checks that must catch them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.accountants.landmark_budget import LandmarkBudget
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.contract import EventStep
from penstock.mechanisms.core.noise import Noise, NoiseSource
from penstock.mechanisms.core.plugin import UnsupportedEvent
from penstock.mechanisms.core.unit import WINDOW
from penstock.mechanisms.discrete_laplace import DiscreteLaplace
from penstock.mechanisms.landmark_adaptive import LandmarkAdaptive
from penstock.mechanisms.landmark_uniform import LandmarkUniform
from penstock.mechanisms.sampling import Sampling
from penstock.mechanisms.suppress_small import SuppressSmall
from penstock.mechanisms.w_event_ba import WEventBa
from penstock.mechanisms.w_event_bd import WEventBd
from penstock.testing.runs import SOURCE, Subject

DRAWN = "every_draw_is_charged_and_every_charge_is_drawn"


@dataclass(frozen=True)
class Mutant:
    """A broken plug-in and the names of the checks that fail on it."""

    subject: Any
    caught_by: tuple[str, ...]

    @property
    def name(self):
        broken = self.subject.mechanism if isinstance(self.subject, Subject) else self.subject
        source = getattr(self.subject, "source", SOURCE)
        return type(broken if source is SOURCE else source).__name__


class HalvedNoise(DiscreteLaplace):
    def step(self, window, counts, state, noise):
        [release], state = super().step(window, counts, state, noise)
        scale = np.asarray(release.scale) / 2
        return [
            replace(release, values=self._shown(window, counts + noise.discrete_laplace(scale, counts.shape)))
        ], state

    @staticmethod
    def _shown(window, values):
        return values.astype(float) if window.active is None else np.where(window.active, values, np.nan)


class SharedByReplicas(HalvedNoise):
    """Add noise of which all replicas get the same."""

    __doc__ = DiscreteLaplace.__doc__

    def step(self, window, counts, state, noise):
        [release], state = DiscreteLaplace.step(self, window, counts, state, noise)
        drawn = noise.discrete_laplace(release.scale, counts.shape)
        shared = drawn[:1] if counts.ndim > 1 else drawn
        return [replace(release, values=self._shown(window, counts + shared))], state


class GrowingState(DiscreteLaplace):
    def start(self, facts):
        return super().start(facts) | {"history": np.zeros((*facts.shape, 0))}

    def step(self, window, counts, state, noise):
        releases, after = super().step(window, counts, state, noise)
        history = np.concatenate([state["history"], counts.sum(-1, keepdims=True)], axis=-1)
        return releases, after | {"history": history}


class Undercharging(DiscreteLaplace):
    """Mutant that reports half of its charges."""

    __doc__ = DiscreteLaplace.__doc__

    def _charge_step(self, window, offer, after):
        (event,), after = super()._charge_step(window, offer, after)
        return (replace(event, scale=2 * event.scale),), after


class WorstIsNotWorst(DiscreteLaplace):
    def worst_charge(self, window, state):
        [event] = super().worst_charge(window, state)
        return (replace(event, scale=2 * event.scale),)


class ChangesCounts(DiscreteLaplace):
    def step(self, window, counts, state, noise):
        made = super().step(window, counts, state, noise)
        counts += 1
        return made


class ChangesState(DiscreteLaplace):
    def step(self, window, counts, state, noise):
        made = super().step(window, counts, state, noise)
        state["last_window"][...] = window.index
        return made


class RemembersInTheObject(DiscreteLaplace):
    def start(self, facts):
        object.__setattr__(self, "remembered", facts)
        return super().start(facts)

    def step(self, window, counts, state, noise):
        assert self.remembered
        return super().step(window, counts, state, noise)


class AcceptsAnything(DiscreteLaplace):
    def __post_init__(self):
        pass


class InfinityIsZero(DiscreteLaplace):
    def step(self, window, counts, state, noise):
        [release], state = super().step(window, counts, state, noise)
        values = 0 * release.values if np.isinf(self.epsilon) else release.values
        return [replace(release, values=values)], state


class DropsEmptyWindows(DiscreteLaplace):
    def step(self, window, counts, state, noise):
        releases, state = super().step(window, counts, state, noise)
        return (releases if counts.any() else []), state


class Undocumented(DiscreteLaplace):
    """Add integer noise with budget epsilon."""


class KeyedByNames(NoiseSource):
    """Mutant that draws one noise for different data."""

    def at(self, window_start, window_end, step, counts, state, n_replicas=None):
        return super().at(window_start, window_end, step, np.zeros_like(counts), {}, n_replicas)


class SharedGenerator(NoiseSource):
    """Mutant with fresh noise at every call."""

    def at(self, window_start, window_end, step, counts, state, n_replicas=None):
        return Noise([secrets.token_bytes(32) for _ in range(n_replicas or 1)], n_replicas, False)


@dataclass(frozen=True, kw_only=True)
class KeepsEverySecond(EventStep):
    """Keep every second membership.

    **Privacy.** None.
    """

    def keep(self, users, cells, window, hashes):
        return np.arange(len(users)) % 2 == 0


class QuestionOfOneCell(WEventBd):
    """Draw the question's noise for one cell and charge it for all that a user is in."""

    __doc__ = WEventBd.__doc__

    def ask(self, window, values, state, noise):
        family, (_, scale) = self.view.query_family, self.view.query(self.query_budget, window, state)
        total, n = self.view.distance(values, self.view.last_release(window, state), window)
        return family.add(noise, total[..., None].astype(int), scale / 2)[..., 0] / n


class QuestionWithoutNoise(WEventBa):
    __doc__ = WEventBa.__doc__

    def ask(self, window, values, state, noise):
        total, n = self.view.distance(values, self.view.last_release(window, state), window)
        return total / n


class RepeatsForNothing(WEventBd):
    """Mutant that charges the dissimilarity query only for publications."""

    __doc__ = WEventBd.__doc__

    def _charge_step(self, window, offer, after):
        charge, after = super()._charge_step(window, offer, after)
        return charge if offer.publish.all() else charge[1:], after


class RateFromCounts(LandmarkAdaptive):
    """Let the sampling rate follow the true counts."""

    __doc__ = LandmarkAdaptive.__doc__

    def step(self, window, counts, state, noise):
        made, state = super().step(window, counts, state, noise)
        busy = counts.sum(axis=-1) > 100
        return made, state | {"rate": np.where(busy, state["rate"], state["rate"] / 2)}


class ChargesLate(DiscreteLaplace):
    """Charge a release when the next one leaves."""

    __doc__ = DiscreteLaplace.__doc__

    def step(self, window, counts, state, noise):
        [release], after = super().step(window, counts, state, noise)
        owed = release.charge if int(np.max(state["last_window"])) else ()
        return [replace(release, charge=owed)], after


class SharedByCells(DiscreteLaplace):
    """Give the second cell the noise of the first."""

    __doc__ = DiscreteLaplace.__doc__

    def step(self, window, counts, state, noise):
        [release], state = super().step(window, counts, state, noise)
        values = release.values.copy()
        if window.active is None:
            values[..., 1] = release.values[..., 0] - counts[..., 0] + counts[..., 1]
        return [replace(release, values=values)], state


class OneSampleForTheRun(NoiseSource):
    """Hash memberships without their window."""

    def membership_hashes(self, users, starts, *cells):
        return super().membership_hashes(users, *cells)


class SamplesPeopleOnce(Sampling):
    """Sample by the person alone, whatever the hash says."""

    __doc__ = str(Sampling.__doc__).partition("    Examples\n")[0]

    def keep(self, users, cells, window, hashes):
        return np.asarray(users) * 2654435761 % 2**32 < self.rate * 2**32


class RoundsUnseen(SuppressSmall):
    """Show other values beside the deviations of those that were read."""

    __doc__ = SuppressSmall.__doc__

    def process(self, release, state):
        return replace(release, values=20 * np.rint(np.asarray(release.values) / 20)), state


class ShowsNoCharge(SuppressSmall):
    """Take the price from what is suppressed."""

    __doc__ = SuppressSmall.__doc__

    def process(self, release, state):
        shown, state = super().process(release, state)
        return replace(shown, charge=()), state


class AnnouncesNothing(Chain):
    """Let every step of a chain pass unannounced."""

    def worst_charge(self, window, state):
        return ()


CHAINED = (DiscreteLaplace(epsilon=1.0), SuppressSmall(threshold=5))


class UndeclaredLandmarks(LandmarkUniform):
    unit = WINDOW


def _mutant(broken, *caught_by, **parameters):
    return Mutant(Subject(broken(epsilon=1.0, **parameters)), caught_by)


#: Faults once caught by luck or not at all, with the checks that catch them now; the first does whatever the seed.
NAMED_MUTANTS = (
    _mutant(QuestionOfOneCell, DRAWN, w=3),
    _mutant(QuestionWithoutNoise, DRAWN, w=3),
    _mutant(RepeatsForNothing, DRAWN, "replicas_equal_separate_runs", w=3),
    _mutant(RateFromCounts, "decisions_read_releases_alone"),
    _mutant(ChargesLate, DRAWN, "charges_cover_the_noise"),
    _mutant(UndeclaredLandmarks, "reads_what_it_says"),
    _mutant(SharedByCells, "cells_have_noise_of_their_own"),
    Mutant(
        Subject(Sampling(rate=0.5), OneSampleForTheRun(SOURCE.key, configuration=b"")),
        ("samples_anew_in_every_window_and_configuration",),
    ),
    Mutant(Subject(SamplesPeopleOnce(rate=0.5)), ("samples_anew_in_every_window_and_configuration",)),
    Mutant(Subject(ShowsNoCharge(threshold=5)), ("reads_releases_alone",)),
    Mutant(Subject(RoundsUnseen(threshold=5)), ("reads_releases_alone",)),
    Mutant(Subject(AnnouncesNothing.of(CHAINED)), ("charges_stay_within_worst_charge",)),
)

MECHANISM_MUTANTS = (
    *NAMED_MUTANTS,
    _mutant(HalvedNoise, "noise_has_the_declared_scale", DRAWN),
    _mutant(SharedByReplicas, "replicas_equal_separate_runs", DRAWN),
    _mutant(GrowingState, "state_does_not_grow"),
    _mutant(Undercharging, "charges_cover_the_noise", DRAWN),
    _mutant(WorstIsNotWorst, "charges_stay_within_worst_charge"),
    _mutant(ChangesCounts, "leaves_inputs_alone"),
    _mutant(ChangesState, "leaves_inputs_alone"),
    _mutant(RemembersInTheObject, "resumes_from_encoded_state"),
    _mutant(AcceptsAnything, "parameters_are_checked"),
    _mutant(InfinityIsZero, "without_limits_gives_the_ideal"),
    _mutant(DropsEmptyWindows, "every_window_is_released_once"),
    _mutant(Undocumented, "is_documented"),
    Mutant(
        Subject(DiscreteLaplace(epsilon=1.0), KeyedByNames(SOURCE.key, configuration=b"")),
        ("a_changed_count_draws_independent_noise",),
    ),
    # What is drawn afresh can be repeated neither by a retry, nor after a restart, nor in a run of its own.
    Mutant(
        Subject(DiscreteLaplace(epsilon=1.0), SharedGenerator(SOURCE.key, configuration=b"")),
        ("a_retry_draws_the_same_noise", "resumes_from_encoded_state", "replicas_equal_separate_runs"),
    ),
    Mutant(Subject(KeepsEverySecond()), ("keeps_by_hash_alone", "samples_anew_in_every_window_and_configuration")),
)


class StateInTheInstance(LandmarkBudget):
    def start(self, facts):
        object.__setattr__(self, "remembered", facts)
        return super().start(facts)

    def charge(self, release, window, private, model, state):
        assert self.remembered
        return super().charge(release, window, private, model, state)


class StateOverwritten(LandmarkBudget):
    def charge(self, release, window, private, model, state):
        rows, after = super().charge(release, window, private, model, state)
        state["window"][...] = window.index
        return rows, after


class SkipsTheUnknown(LandmarkBudget):
    def charge(self, release, window, private, model, state):
        try:
            return super().charge(release, window, private, model, state)
        except UnsupportedEvent:
            return [], state


class WithoutAdjacency(LandmarkBudget):
    def charge(self, release, window, private, model, state):
        rows, state = super().charge(release, window, private, model, state)
        return [replace(row, adjacency="") for row in rows], state


class KeepsEveryRelease(LandmarkBudget):
    def charge(self, release, window, private, model, state):
        rows, after = super().charge(release, window, private, model, state)
        return rows, after | {"all": np.append(state.get("all", np.zeros(0)), release.values)}


class ForgetsTheCostliest(LandmarkBudget):
    def charge(self, release, window, private, model, state):
        rows, after = super().charge(release, window, private, model, state)
        return rows, after if window.landmark else after | {"other": np.asarray(0.0)}


class AnyBudget(LandmarkBudget):
    def __post_init__(self):
        pass


class SaysTooMuch(LandmarkBudget):
    reads = ("landmarks",)


class UndocumentedAccountant(LandmarkBudget):
    """Keep a budget."""


ACCOUNTANT_MUTANTS = (
    Mutant(StateInTheInstance(), ("state_survives_encoding_at_every_step",)),
    Mutant(StateOverwritten(), ("inputs_are_not_modified",)),
    Mutant(SkipsTheUnknown(), ("rejects_unknown_events_without_side_effects",)),
    Mutant(WithoutAdjacency(), ("rows_are_complete",)),
    Mutant(KeepsEveryRelease(), ("state_does_not_grow",)),
    Mutant(ForgetsTheCostliest(), ("figures_cover_brute_force",)),
    Mutant(AnyBudget(), ("parameters_are_checked",)),
    Mutant(SaysTooMuch(), ("reads_what_it_says",)),
    Mutant(UndocumentedAccountant(), ("is_documented",)),
)
