"""Temporal privacy loss: the loss about one window caused by releases of correlated values.

An adversary who knows how a person's value changes from one window to the next learns about the value at t from the
releases before and after t as well. This module holds the exact functions; definitions, and how to read the figures,
are in `docs/temporal.md`, proofs in `penstock.accountants.correlation`. Matrices: P_B[i, j] = Pr(previous = j given
now = i) and P_F[i, j] = Pr(next = j given now = i). Every epsilon is a pure one for *replacing* a person's value, and
every loss is in nats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from penstock.accountants.core.accountant import Accountant, AccountingFacts, Rows
from penstock.accountants.core.charges import is_linked, pure_epsilon
from penstock.accountants.core.training import Training
from penstock.accountants.correlation.adversary import KnownCorrelation, SmoothedIdentity, UserClass, adversary
from penstock.accountants.correlation.landmark_losses import landmark_temporal_privacy_loss
from penstock.accountants.correlation.leakage import LeakageFunction, temporal_privacy_loss
from penstock.accountants.correlation.planning import largest_epsilon
from penstock.accountants.correlation.running import TemporalLossTracker
from penstock.accountants.markov import laplacian_smoothing_matrix
from penstock.mechanisms.core.contract import Release, Window
from penstock.mechanisms.core.events import Block
from penstock.mechanisms.core.guarantee import EPSILON, Guarantee
from penstock.mechanisms.core.plugin import ParameterError, UnsupportedEvent, parameter
from penstock.mechanisms.core.sensitivity import price_of_replacement
from penstock.mechanisms.core.state import State, nested, part
from penstock.mechanisms.core.unit import ROUNDING

__all__ = [
    "LeakageFunction",
    "Temporal",
    "landmark_temporal_privacy_loss",
    "laplacian_smoothing_matrix",
    "largest_epsilon",
    "temporal_privacy_loss",
]


@dataclass(frozen=True, kw_only=True)
class Temporal(Accountant):
    """Account for the privacy loss about each window caused by releases of correlated windows before and after it.

    Parameters
    ----------
    correlation
        How people move, as the adversary knows it: the subject "everybody".
    classes
        Further subjects with correlations of their own.
    lag
        Releases that stay open for revision by later ones at most; bounds state and time.
    largest_epsilon
        Declared bound on what one release will ever cost, as mechanisms state it (add/remove); None: that of a budget
        schedule, no bound for others. Without one, rows of a chain with zeros in its matrix never become final.
    goal
        Total loss that is not to be passed: the manifest says which ε keeps it.

    **Privacy.** Unit: one person's cell in one window, *replaced* by another (twice the ε of add/remove), against an
    adversary who knows everybody else and the correlation. Rows: ``backward_loss``, ``forward_loss``, ``total_loss``
    of each window (Cao, Yoshikawa, Xiao, Xiong 2017), provisional with the bound ``high`` until no later release can
    change them; ``landmark_loss`` and ``largest_landmark_loss`` (Katsomallos et al. 2022, with a sound gap term; the
    releases of a gap count in full for chains of more than 20 states, and after 200 of them comes a landmark).
    Infinite for Gaussian noise, which has no pure ε. A repeated release costs 0; a block is one timestamp. O(open
    rows) time and state a release. See ``docs/temporal.md``.

    Examples
    --------
    >>> accountant = Temporal(correlation=KnownCorrelation(laplacian=SmoothedIdentity(s=0.1)), goal=1.0)
    >>> model, state = accountant.start(AccountingFacts(n_cells=2))
    >>> round(accountant.summary(model, state)["everybody"]["epsilon_for_goal"], 4)
    0.0474
    """

    version: ClassVar[int] = 2
    prices_links: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ("landmarks",)

    correlation: KnownCorrelation | None = parameter(None, doc="correlation that the adversary knows")
    classes: tuple[UserClass, ...] = parameter((), doc="classes of people with correlations of their own")
    lag: int = parameter(1000, doc="releases open for revision", at_least=1)
    largest_epsilon: float | None = parameter(None, doc="bound on the ε of any release", above=0, unit="nats")
    goal: float | None = parameter(None, doc="total loss that is not to be passed", above=0, unit="nats")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.correlation is None and not self.classes:
            raise ParameterError("correlation", None, "given, for instance {estimate: first, windows: 168}")
        names = [*(("everybody",) if self.correlation else ()), *(group.name for group in self.classes)]
        for i, group in enumerate(self.classes):
            if names.count(group.name) > 1:
                raise ParameterError(f"classes.{i}.name", group.name, "different from every other class and everybody")

    @classmethod
    def examples(cls) -> tuple[Temporal, ...]:
        """Return an example with one adversary and one with an additional class of people."""
        strong, weak = (KnownCorrelation(laplacian=SmoothedIdentity(s=s)) for s in (0.01, 1.0))
        tourists = UserClass(name="tourists", correlation=weak)
        return cls(correlation=strong, lag=12, goal=1.0), cls(correlation=strong, classes=(tourists,), lag=12)

    @property
    def known(self) -> tuple[tuple[str, KnownCorrelation], ...]:
        """The correlation that the adversary knows for each subject."""
        everybody = () if self.correlation is None else (("everybody", self.correlation),)
        return (*everybody, *((group.name, group.correlation) for group in self.classes))

    @property
    def public(self) -> bool:
        """Return whether all correlations are public, which means that none is learned from people."""
        return all(correlation.is_public for _, correlation in self.known)

    @property
    def training_windows(self) -> int | None:
        """The number of windows used to estimate the correlation."""
        return self.correlation.windows if self.correlation else None

    def prepare(self, training: Training | None) -> Mapping[str, Any]:
        """Build every adversary, from files or from a learned estimate."""
        made = (adversary(known, training, subject) for subject, known in self.known)
        return {"adversaries": tuple(made)}

    def start(self, facts: AccountingFacts) -> tuple[tuple[TemporalLossTracker, ...], State]:
        """Create a tracker for each subject."""
        prepared = self.prepare(None) if facts.training is None else facts.training
        followed = partial(
            TemporalLossTracker,
            largest_epsilon=self._largest_epsilon(facts),
            lag=self.lag,
            landmarks=facts.landmarks,
            goal=self.goal,
            horizon=facts.n_windows,
        )
        model = tuple(followed(known) for known in prepared["adversaries"])
        state: State = {}
        for i, tracker in enumerate(model):
            state |= nested(f"{i}", tracker.start())
        return model, state | {"block": np.zeros(2, np.int64)}

    def _largest_epsilon(self, facts: AccountingFacts) -> float:
        """Bound the ε of one release under replacement, with some slack for rounded scales."""
        stated = self.largest_epsilon
        promised = Guarantee() if facts.mechanism is None else facts.mechanism.guarantee
        if stated is None and promised.measure == EPSILON:
            stated = promised.amount  # of any unit: no release in it costs more
        return math.inf if stated is None else price_of_replacement(EPSILON) * stated * (1 + ROUNDING)

    def charge(
        self,
        release: Release,
        window: Window,
        private: Mapping[str, Any],
        model: tuple[TemporalLossTracker, ...],
        state: State,
    ) -> tuple[Rows, State]:
        """Add one release to every subject's account."""
        if is_linked(release.charge):
            raise UnsupportedEvent(f"temporal: releases of other windows read window {release.window}, too")
        epsilon = pure_epsilon(release.charge, "replacement")
        block = next((event for event in release.charge if isinstance(event, Block)), None)
        if block is None and epsilon == 0 and state["block"][0] <= release.window <= state["block"][1]:
            return [], state
        if block is not None and (block.first, block.last) == tuple(state["block"].tolist()):
            return [], state
        if epsilon > (largest := model[0].running.largest_epsilon):
            cost, limit = (loss / price_of_replacement(EPSILON) for loss in (epsilon, largest))
            text = f"window {release.window} costs {cost:g}, above the largest_epsilon of {limit:g} that earlier rows"
            raise UnsupportedEvent(f"temporal: {text} were closed under")
        rows: Rows = []
        new: State = {"block": np.array([block.first, block.last]) if block else state["block"]}
        for i, tracker in enumerate(model):
            landmark = release.landmark or block is not None
            made, inner = tracker.step(release.window, epsilon, landmark, part(f"{i}", state))
            rows += made
            new |= nested(f"{i}", inner)
        return rows, new

    def finish(self, model: tuple[TemporalLossTracker, ...], state: State) -> Rows:
        """Close all open rows."""
        return [row for i, tracker in enumerate(model) for row in tracker.finish(part(f"{i}", state))]

    def summary(self, model: tuple[TemporalLossTracker, ...], state: State) -> dict[str, Any]:
        """Return each subject's largest total loss, its window, the limit of the loss and the ε that meets the goal."""
        return {tracker.subject: tracker.summary(part(f"{i}", state)) for i, tracker in enumerate(model)}
