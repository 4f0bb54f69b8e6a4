"""Reconstruction risk: the probability that an informed adversary retraces a person from released counts.

The adversary knows where everybody else is, how the target moves (a Markov chain) and every release. It succeeds when
it guesses all but ``tolerance`` of the target's locations; the loss is the probability of that. Here are the priors,
the information in releases, upper bounds on the loss of every attack, attacks with their success, and the risk
realised by the releases made so far. Proofs are in the modules of
`penstock.accountants.inference`, definitions and use in ``docs/reconstruction.md``.

>>> import numpy as np
>>> prior = chain_prior(50, 0.1)
>>> sensors = [{3}, {17}, {25}, {40}, {11}]
>>> bound = success_upper_bound(prior, sensors, tolerance=2)
>>> rate, low, high = attack_success("map", prior, sensors, 2, 1000, np.random.default_rng(7))
>>> low <= bound < 0.05
True

Source: Koga, Meehan, Chaudhuri, "Measuring Privacy Loss in Distributed Spatio-Temporal Data", generalised to sets of
sensors, other noise and sharper bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.accountants.core.accountant import Accountant, AccountingFacts, Rows
from penstock.accountants.core.charges import pure_epsilon
from penstock.accountants.core.training import Training
from penstock.accountants.correlation.adversary import Walk
from penstock.accountants.inference.estimators import attack_success, estimate
from penstock.accountants.inference.information import information_bound
from penstock.accountants.inference.places import ReleaseForecast, Releasing
from penstock.accountants.inference.running import TargetFilters, target_filters
from penstock.accountants.inference.success_bounds import advantage_upper_bound, success_upper_bound
from penstock.accountants.inference.success_prior import max_ball_probability
from penstock.accountants.inference.targets import KnownPrior, KnownTargets, known_targets, with_known_people
from penstock.accountants.markov import MarkovPrior, chain_prior, spectral_gap, trajectory_entropy
from penstock.mechanisms.core.contract import Release, Window
from penstock.mechanisms.core.plugin import ParameterError, UnsupportedEvent, parameter
from penstock.mechanisms.core.state import State, nested, part

__all__ = [
    "MarkovPrior",
    "Reconstruction",
    "advantage_upper_bound",
    "attack_success",
    "chain_prior",
    "estimate",
    "information_bound",
    "max_ball_probability",
    "spectral_gap",
    "success_upper_bound",
    "trajectory_entropy",
]


@dataclass(frozen=True, kw_only=True)
class Reconstruction(Accountant):
    """Bound the probability that an informed adversary retraces each target, window by window.

    Parameters
    ----------
    horizon, tolerance
        T and s: an attack is on T windows, and succeeds if at most s of them are guessed wrong.
    targets
        How many people, drawn from those seen in the training windows, or (in a simulation) their ids.
    prior
        What adversaries know of how each target moves.
    known
        Share of other people whose cells the adversaries know. The rest, drawn from those seen in the training windows,
        they know by how often each is where; ``realised_risk`` and ``place_known`` are then theirs, by a likelihood
        that takes cells and windows as independent (`UnknownCrowd`). The bounds stay those of one who knows everybody.
    seed
        Of the choice of targets, and of the people who are not known.
    shard
        Targets that are accounted together; others in parallel. Never changes a figure.

    **Privacy.** No guarantee is given: it is measured what an adversary gets who knows everybody else's cells, how the
    target moves, and every release. Unit: one person's places in T windows (Koga, Meehan, Chaudhuri).

    Rows, for the operator only. Of the T windows that begin with this one, before its release: ``loose_bound``,
    ``tight_bound``, ``leakage_bound`` and the smallest, ``best_bound``, on the success of any attack,
    ``success_prior`` (without any release) and ``information``. Of the T windows up to this one: ``realised_risk``
    between ``low`` and ``high``, provisional, for later releases tell more. ``place_known``: the likeliest place of a
    window, given all releases up to T − 1 windows later. ``visit_frequency``: share of the windows so far in a cell
    that published; ``spectral_gap``.

    One cell a user and window (``max_cells: 1``), or the counts tell more than is assumed.
    Any mechanism: noise that is simply added by its likelihood, others as if counts were exact (data processing) or
    by their ε. O(n_targets T s n_places²) time and O(n_targets T n_places) state a window. Definitions:
    ``docs/reconstruction.md``; proofs: the modules of `penstock.accountants.inference`.

    Examples
    --------
    >>> from penstock.mechanisms.core.events import Exact
    >>> accountant = Reconstruction(horizon=5, tolerance=0, targets=1, prior=KnownPrior(chain=Walk(n=10), windows=2))
    >>> model, state = accountant.start(AccountingFacts(n_cells=10))
    >>> release = Release(window=1, values=np.zeros(10), charge=(Exact(),), active=np.arange(10) == 3)
    >>> facts = {"counts": np.zeros(10), "target_cells": np.array([7])}
    >>> rows, state = accountant.charge(release, Window(index=1, start=0, end=1), facts, model, state)
    >>> [round(row.value, 3) for row in rows if row.name == "realised_risk"]
    [0.122]
    """

    public = False  # the rows describe people
    needs: ClassVar[tuple[str, ...]] = ("target_cells", "counts")
    reads: ClassVar[tuple[str, ...]] = ()
    horizon: int = parameter(10, doc="windows T that an attack is on", at_least=1, unit="windows")
    tolerance: int = parameter(2, doc="wrong guesses s that still count as a success", at_least=0, unit="windows")
    targets: int | tuple[int | str, ...] = parameter(20, doc="number of people watched, or (simulation) their ids")
    prior: KnownPrior = parameter(doc="adversaries' knowledge of how each target moves")
    known: float = parameter(1.0, doc="share of other people whose cells are known", at_least=0, at_most=1)
    seed: int = parameter(0, doc="seed of the choice of targets", at_least=0)
    shard: int = parameter(256, doc="targets accounted together, others in parallel", at_least=1)

    @property
    def training_windows(self) -> int | None:
        """The number of windows used to learn priors and draw targets."""
        draws = isinstance(self.targets, int) or self.known < 1
        return self.prior.windows if self.prior.estimate or draws else None

    @property
    def named_users(self) -> tuple[int | str, ...]:
        """The targets listed in the configuration."""
        return self.targets if isinstance(self.targets, tuple) else ()

    @classmethod
    def examples(cls) -> tuple[Reconstruction, ...]:
        """Return an example with two targets and a random-walk prior over five cells."""
        return (cls(horizon=3, tolerance=1, targets=2, prior=KnownPrior(chain=Walk(n=5, tau=0.3), windows=2)),)

    def __post_init__(self) -> None:
        super().__post_init__()
        n_targets = self.targets if isinstance(self.targets, int) else len(self.targets)
        if isinstance(self.targets, bool) or n_targets < 1:
            raise ParameterError("targets", self.targets, "a number of at least 1, or ids")
        if isinstance(self.targets, int) and self.prior.windows is None:
            raise ParameterError("prior.windows", None, "given: in how many first windows people are drawn as targets")

    def prepare(self, training: Training | None) -> Mapping[str, Any]:
        """Choose targets and build their priors."""
        known = known_targets(self.prior, self.targets, self.seed, training)
        known = with_known_people(known, self.prior, self.known, self.seed, training)
        return {"targets": known.watched, "known": known}

    def shards(self, prepared: Mapping[str, Any] | None) -> tuple[Mapping[str, Any] | None, ...]:
        """Split the targets into parts with at most ``shard`` targets."""
        known: KnownTargets = (prepared or self.prepare(None))["known"]
        firsts = range(0, known.n_targets, self.shard)
        parts = (known.part(first, min(first + self.shard, known.n_targets)) for first in firsts)
        return tuple({"targets": part.watched, "known": part} for part in parts)

    def start(self, facts: AccountingFacts) -> tuple[tuple[TargetFilters, ReleaseForecast], State]:
        """Return the filters and forecast as the model, and the initial state."""
        known: KnownTargets = (facts.training or self.prepare(None))["known"]
        check_one_place(facts, known)
        filters = target_filters(known, self.horizon, self.tolerance, self.known)
        releasing = Releasing(facts.mechanism, facts.steps)
        forecast = ReleaseForecast(known.places, self.horizon, releasing, facts.of_mechanism(), facts.windows)
        return (filters, forecast), filters.start() | nested("forecast", forecast.start())

    def charge(
        self,
        release: Release,
        window: Window,
        private: Mapping[str, Any],
        model: tuple[TargetFilters, ReleaseForecast],
        state: State,
    ) -> tuple[Rows, State]:
        """Bound the leakage over the coming windows, then update the beliefs with this release."""
        filters, forecast = model
        pure_epsilon(release.charge)  # refuses the unknown
        missing = [name for name in self.needs if name not in private]
        if missing:
            raise UnsupportedEvent(f"reconstruction: window {release.window} comes without {' and '.join(missing)}")
        watched = np.asarray(private["target_cells"], np.intp)
        cells = np.where(watched < 0, filters.known.places.n_cells, watched)
        observed = forecast.releasing.reading(release, np.asarray(private["counts"], float))
        before = part("forecast", state)
        coming = forecast.coming(release.window, before)
        rows, new = filters.charge(release.window, coming, observed, cells, state)
        return rows, new | nested("forecast", forecast.after(release.window, before))

    def finish(self, model: tuple[TargetFilters, ReleaseForecast], state: State) -> Rows:
        """Return the final values for the last windows."""
        return model[0].finish(state)

    def summary(self, model: tuple[TargetFilters, ReleaseForecast], state: State) -> dict[str, Any]:
        """Return the assumed prior, the horizon and the tolerance."""
        return {"prior": model[0].known.assumption, "horizon": self.horizon, "tolerance": self.tolerance}


def check_one_place(facts: AccountingFacts, known: KnownTargets) -> None:
    """Raise an error if people may count in more than one cell per window or the prior is over different cells."""
    if facts.max_cells != 1:
        raise UnsupportedEvent(
            f"reconstruction: a person may count in {facts.max_cells} cells of a window; with more than one the counts "
            "tell more than where a person is, and the bounds would not hold: set bounding.max_cells to 1"
        )
    if known.places.n_cells != facts.n_cells:
        raise ParameterError("prior", f"{known.places.n_cells} cells", f"one over the {facts.n_cells} cells of the run")
