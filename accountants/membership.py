"""Membership: how well an online adversary infers a person's presence from the counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.accountants.core.accountant import Accountant, AccountingFacts, AccountRow, Rows
from penstock.accountants.core.charges import pure_epsilon
from penstock.accountants.core.training import Training
from penstock.accountants.correlation.adversary import Walk
from penstock.accountants.markov import chain_prior
from penstock.accountants.online_attack import (
    Groups,
    area_under_curve,
    auc_interval,
    draw_groups,
    learn,
    logits,
    start_learner,
)
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.contract import Facts, Mechanism, Release, Window
from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import ParameterError, UnsupportedEvent, parameter
from penstock.mechanisms.core.state import State, nested, part

__all__ = ["Membership"]

CONFIDENCE = 0.95
UNIT = "area under the curve"


@dataclass(frozen=True, eq=False)
class GroupGame:
    """An attack's groups and mechanism, which are the same in every window."""

    groups: tuple[Groups, ...]
    mechanism: Mechanism
    facts: Facts
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Membership(Accountant):
    """Attack the run's mechanism with an adversary who learns from every window.

    Parameters
    ----------
    windows
        First windows of the run, those that are attacked; where people are in them is known from the training part.
    targets, samples
        How many people are attacked, and groups for each, half with the target; four fifths are learned from. Where
        there are fewer people than asked for here or under ``known``, the manifest warns.
    known, group_size
        People whose cells the adversary of each target knows, and how many of them make a group; unset: half.
    people
        In place of the run's: made-up people who walk on a line of cells, for a look before there is data.
    rate
        Learning rate.
    seed
        Of targets, groups and the noise of their releases.

    **Privacy.** No guarantee is given: it is measured what an attack achieves, and a better one may achieve more. Unit:
    one person's membership in a group, against an adversary who knows the cells of the group's candidates and the
    mechanism, which she runs on groups of her own. She looks at every cell and at the one where the target is, each
    less its mean over the groups she learns from (Pyrgelis, Troncoso, De Cristofaro 2020, prior 1, with an online
    learner in place of principal components). The run's own releases are not attacked: their true answer is unknown
    for sure but whom it is about.

    Rows, for the operator only: ``window_auc``, from the releases of one window alone, and ``membership_auc``, from the
    sum of all evidence up to it, with 95 % intervals over the challenges; ½ is guessing, 1 always right. People count
    in one cell a window, the one that training keeps. Refused: steps on events, and mechanisms over blocks, for
    which ``penstock attack`` is made. O(targets·samples·(known + n_cells)) time a window, state
    O(targets·(n_cells + samples)) and that of the mechanism for each group.

    Examples
    --------
    >>> from penstock.mechanisms import get
    >>> accountant = Membership(people=Walk(n=4), windows=2, targets=1)
    >>> model, state = accountant.start(AccountingFacts(n_cells=4, mechanism=get("raw")()))
    >>> release, window = Release(window=1, values=np.zeros(4), charge=()), Window(index=1, start=0, end=1)
    >>> rows, state = accountant.charge(release, window, {}, model, state)
    >>> [row.name for row in rows]
    ['window_auc', 'membership_auc']
    """

    public = False  # the rows describe people
    simulation_only: ClassVar[bool] = True
    follows_groups: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = ()

    windows: int = parameter(168, doc="first windows of the run that are attacked", at_least=1)
    targets: int = parameter(10, doc="people attacked", at_least=1)
    samples: int = parameter(400, doc="groups for each of them", at_least=20)
    known: int = parameter(100, doc="people whose cells an adversary knows", at_least=2)
    group_size: int | None = parameter(None, doc="people in a group; unset: half of the known", at_least=1)
    people: Walk | None = parameter(None, doc="made-up people on a line of cells, in place of the run's")
    rate: float = parameter(0.01, doc="learning rate", above=0)
    seed: int = parameter(0, doc="seed of targets, groups and their noise", at_least=0)

    @classmethod
    def examples(cls) -> tuple[Membership, ...]:
        """Return an example with two targets among synthetic people on five cells."""
        return (cls(people=Walk(n=5, tau=0.3), windows=24, targets=2, samples=40, known=20),)

    @property
    def training_windows(self) -> int | None:
        """The number of windows to attack, or None if people are synthetic."""
        return None if self.people else self.windows

    def prepare(self, training: Training | None) -> Mapping[str, Any]:
        """Draw the targets and groups."""
        if training is None:
            if self.people is None:
                raise ParameterError("people", None, "given where there is no training part")
            prior = chain_prior(self.people.n, self.people.tau)
            trajectories = prior.sample(2 * self.known, self.windows, np.random.default_rng(self.seed))
            users = np.arange(len(trajectories))[:, None]
            training = Training(trajectories=trajectories, users=users, n_cells=self.people.n)
        sizes = {"n_targets": self.targets, "n_known": self.known, "n_samples": self.samples}
        groups = draw_groups(training, **sizes, group_size=self.group_size, seed=self.seed)
        drawn = {"targets": len(groups), "known": groups[0].members.shape[1]}
        requested = {"targets": self.targets, "known": self.known}
        warnings = [
            f"{name}: {drawn[name]} in place of {requested[name]}, for there are no more people in the first "
            f"{training.n_windows} windows"
            for name in drawn
            if drawn[name] < requested[name]
        ]
        return {"groups": groups, "warnings": tuple(warnings)}

    def shards(self, prepared: Mapping[str, Any] | None) -> tuple[Mapping[str, Any] | None, ...]:
        """Split the attack into shards of one target each."""
        prepared_run = prepared or self.prepare(None)
        return tuple({**prepared_run, "groups": (groups,)} for groups in prepared_run["groups"])

    def start(self, facts: AccountingFacts) -> tuple[GroupGame, State]:
        """Return the game as the model, and an untrained learner's state."""
        if self.people is not None and self.people.n != facts.n_cells:
            raise ParameterError("people.n", self.people.n, f"{facts.n_cells}, the cells of the run")
        prepared = facts.training or self.prepare(None)
        groups = prepared["groups"]
        mechanism_facts = facts.of_mechanism(self.samples)
        chain = Chain.of(facts.steps or (() if facts.mechanism is None else (facts.mechanism,)))
        if chain.reshapes or chain.bounding_windows > 1:
            raise UnsupportedEvent(
                "membership: steps on events and blocks of windows are not followed window by window; use penstock "
                "attack"
            )
        mechanism = chain.reader if chain.simple else chain
        game = GroupGame(groups, mechanism, mechanism_facts, prepared["warnings"])
        state: State = {}
        for group in groups:
            state |= nested(f"{group.subject}.mechanism", game.mechanism.start(mechanism_facts))
            state |= nested(f"{group.subject}.learner", start_learner(facts.n_cells + 1))
            state |= nested(
                f"{group.subject}.evidence", {"sum": np.zeros(self.samples - group.n_train), "window": np.asarray(0)}
            )
        return game, state

    def charge(
        self, release: Release, window: Window, private: Mapping[str, Any], model: GroupGame, state: State
    ) -> tuple[Rows, State]:
        """Release the window for every group, train on most groups and score the rest."""
        pure_epsilon(release.charge)  # refuses the unknown
        rows: Rows = []
        for groups in (groups for groups in model.groups if window.index <= groups.n_windows):
            of_target = part(f"{groups.subject}", state)
            inner, learner, evidence = (part(name, of_target) for name in ("mechanism", "learner", "evidence"))
            counts = groups.counts(window.index, model.facts.n_cells)
            key = NoiseKey.from_seed(self.seed)
            source = NoiseSource(key, configuration=b"membership", stream=f"target {groups.subject}")
            read = model.mechanism.noise_state(inner)
            noise = source.at(window.start, window.end, "step", counts, read, self.samples)
            made, inner = model.mechanism.step(window, counts, inner, noise)
            values = np.nan_to_num(np.asarray(made[0].values, np.float64))  # what no sensor publishes tells nothing
            features = groups.features(np.broadcast_to(values, counts.shape), window.index)
            learner = learn(features[: groups.n_train], groups.labels[: groups.n_train], self.rate, learner)
            alone = logits(features[groups.n_train :], learner)
            total = evidence["sum"] + alone
            rows.append(_row(groups, window.index, "window_auc", alone))
            rows.append(_row(groups, window.index, "membership_auc", total))
            new = nested("mechanism", inner) | nested("learner", learner)
            new |= nested("evidence", {"sum": total, "window": np.asarray(window.index)})
            state = state | nested(f"{groups.subject}", new)
        return rows, state

    def finish(self, model: GroupGame, state: State) -> Rows:
        """Return each target's area under the curve over the whole run."""
        rows = []
        for groups in model.groups:
            evidence = part(f"{groups.subject}.evidence", state)
            if evidence["window"]:
                rows.append(_row(groups, None, "membership_auc", evidence["sum"]))
        return rows

    def summary(self, model: GroupGame, state: State) -> dict[str, Any]:
        """Return each target's area under the curve so far, and warnings about missing targets or groups."""
        areas = {
            f"target {group.subject}": _area(group, part(f"{group.subject}.evidence", state)["sum"])
            for group in model.groups
        }
        warnings = {"warnings": list(model.warnings)} if model.warnings else {}
        return {"membership_auc": areas, "samples": self.samples, **warnings}


def _area(groups: Groups, scores: Any) -> float:
    return area_under_curve(groups.labels[groups.n_train :], scores)


def _row(groups: Groups, window: int | None, name: str, scores: Any) -> AccountRow:
    area, hidden = _area(groups, scores), groups.labels[groups.n_train :]
    low, high = auc_interval(area, int(hidden.sum()), int((~hidden).sum()), CONFIDENCE)
    n_known, size = groups.members.shape[1], int(groups.members[0].sum())
    against = f"groups of {size} out of {n_known} known people, with the target against without"
    low, high = min(low, area), max(high, area)  # rounding may put a limit beyond an area of 0 or 1
    return AccountRow(f"target {groups.subject}", window, name, area, low, high, unit=UNIT, adjacency=against)
