"""Parameters of the games that are played against a configured release, and the run that they attack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from penstock.evaluation.attacks.defenses import MAX_VALUES
from penstock.evaluation.attacks.game import ATTACKS, CLASSIFIERS
from penstock.evaluation.attacks.priors import CHALLENGES, PRIORS
from penstock.evaluation.attacks.user_space import MOBILITY_GROUPS
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.contract import ChainStep, Facts, Mechanism, Window
from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.plugin import Checked, ParameterError, parameter

#: Targets where none are asked for, and the fewest where the values of their aggregates would be more than that.
TARGETS, MIN_TARGETS, MAX_GAME_VALUES = 30, 6, 600_000_000
#: Attacks that need the target's trace in the windows of the challenge.
KNOWS_TRACES = tuple(name for name in ATTACKS if name not in CLASSIFIERS)
#: Most trajectories that are recovered: assigning this many takes seconds a window.
MAX_PEOPLE = 2000


@dataclass(frozen=True, kw_only=True)
class Game(Checked):
    """Parameters of the membership game. The defaults follow the paper if the run is large enough for them.

    Pyrgelis, Troncoso, De Cristofaro, POMACS 2020, section 3.1: 150 targets, groups of 100 or more, one-week windows.
    """

    targets: int | None = parameter(
        None, doc="people attacked; unset: 30, at least 6 where aggregates are large", at_least=3
    )
    whom: str = parameter(
        "mobility", doc="a third of each mobility group, or those in most counts", choices=("mobility", "exposed")
    )
    samples: int = parameter(1000, doc="labelled aggregates of each target", at_least=8)
    prior: str = parameter("subset", doc="knowledge of the adversary", choices=PRIORS)
    attack: str = parameter("pca", doc="decision of the adversary", choices=ATTACKS)
    known: float = parameter(0.2, doc="prior subset: share of the people whom she knows", above=0, at_most=1)
    challenges: str = parameter(
        "known", doc="prior subset: whom challenges count beside the target, known or others", choices=CHALLENGES
    )
    group_size: int | None = parameter(
        None, doc="people in an aggregate; unset: half of those whom she can draw from, at most 100", at_least=1
    )
    inference: int | None = parameter(
        None, doc="windows of a challenge; unset: 168, or what the run has room for", at_least=1
    )
    observation: int | None = parameter(
        None, doc="windows to train on; unset: those of the challenge, or twice as many before it", at_least=1
    )
    components: int = parameter(600, doc="principal components at most", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attack in KNOWS_TRACES and self.prior != "subset":
            raise ParameterError("prior", self.prior, f"subset with the attack {self.attack}: she knows a trace")
        if self.challenges == "others" and self.prior != "subset":
            raise ParameterError("challenges", self.challenges, f"known with the prior {self.prior}")
        if self.challenges == "others" and self.known == 1:
            expected = "below 1 with challenges of others: there is no one left whom she does not know"
            raise ParameterError("known", self.known, expected)

    def periods(self, n_windows: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the observation and inference periods, each as (start, stop), for a run of ``n_windows`` windows."""
        if self.prior == "subset":
            inference = self.inference or self.observation or min(168, n_windows)
            observation = self.observation or inference
            periods = (0, observation), (max(observation - inference, 0), observation)
        else:
            inference = self.inference or min(168, max(n_windows // 3, 1))
            observation = self.observation or 2 * inference
            periods = (0, observation), (observation, observation + inference)
        if observation < inference:
            raise ParameterError("observation", observation, f"at least the {inference} windows of a challenge")
        if periods[1][1] > n_windows:
            raise ParameterError("observation", self.observation, f"with the challenge within {n_windows} windows")
        return periods

    def people_in_a_group(self, n_people: int) -> int:
        """Return the number of people in each aggregate, given a population of ``n_people``."""
        if self.group_size is not None:
            return self.group_size
        n_pool = n_people
        if self.prior == "subset":
            n_known = round(self.known * n_people)
            n_pool = min(n_known, n_people - n_known) if self.challenges == "others" else n_known
        return max(1, min(100, n_pool // 2))

    def settled(self, n_people: int, n_windows: int, n_cells: int) -> Game:
        """Return the game with its number of targets set, by default at most the number of people (or 3 if larger)."""
        fitting = MAX_GAME_VALUES // (self.samples * n_windows * n_cells)
        default = min(max(fitting // len(MOBILITY_GROUPS) * len(MOBILITY_GROUPS), MIN_TARGETS), TARGETS)
        return self if self.targets is not None else replace(self, targets=min(default, max(n_people, 3)))

    def check_room(self, n_windows: int, n_cells: int) -> None:
        """Raise an error if the game's released aggregates would not fit into memory."""
        observation, inference = self.periods(n_windows)
        length = inference[1] - inference[0]
        n_blocks = 1 if self.prior == "subset" else (observation[1] - observation[0]) // length + 1
        maximum = MAX_VALUES // (length * n_cells)
        if self.attack in ("pca", "lira") and self.samples // n_blocks * n_blocks > maximum:
            of_size = f"where an aggregate has {length} windows of {n_cells} cells"
            expected = f"at most {maximum} {of_size}; a shorter inference has room for more"
            raise ParameterError("samples", self.samples, expected)


@dataclass(frozen=True, kw_only=True)
class ReconstructionGame(Checked):
    """Parameters of the reconstruction game, by default those of the accountant ``reconstruction`` if configured.

    Koga, Meehan, Chaudhuri, "Measuring Privacy Loss in Distributed Spatio-Temporal Data", section 3.2.
    """

    targets: int = parameter(30, doc="people attacked, a third of each mobility group", at_least=3)
    horizon: int | None = parameter(None, doc="windows guessed together; unset: 10, or what fits", at_least=1)
    tolerance: int | None = parameter(None, doc="wrong guesses that still are a success; unset: 2", at_least=0)
    training: int | None = parameter(
        None, doc="first windows, which the adversary learns from; unset: half of the run, at most 168", at_least=2
    )
    learned: str | None = parameter(None, kind="path", doc="file of `penstock learn` in place of people's own moves")
    known: float | None = parameter(
        None, doc="share of other people whose cells the adversary knows; unset: all", at_least=0, at_most=1
    )
    stretches: int = parameter(10, doc="segments of windows attacked after the training, at most", at_least=1)
    releases: int = parameter(10, doc="releases of them, each with noise of its own", at_least=1)
    simulated: int = parameter(
        200, doc="trajectories simulated from each prior, to test the bound; 0: none", at_least=0
    )
    bound_samples: int = parameter(500, doc="draws for the first-moment bound; 0: it is left out", at_least=0)


@dataclass(frozen=True, kw_only=True)
class RecoveryGame(Checked):
    """Parameters of trajectory recovery. An attack with the defaults takes only a few minutes."""

    people: int = parameter(
        1000, doc="most people counted; of more, a sample drawn by the seed", at_least=2, at_most=MAX_PEOPLE
    )
    windows: int | None = parameter(None, doc="first windows of the run; unset: 168, or all that there are", at_least=2)


@dataclass(frozen=True, eq=False)
class AttackedRun:
    """The people in the first windows of a run, and the mechanism that is applied to their counts.

    ``users`` (n_users, 1) or (n_users, 2): their identities; ``raw`` and ``released`` (n_users, n_windows, n_cells):
    who was in a cell, and who is counted there after bounding.
    """

    users: NDArray[np.int64]
    raw: NDArray[np.bool_]
    released: NDArray[np.bool_]
    mechanism: Mechanism  # the chain, or its only step
    chain: Chain
    steps: tuple[ChainStep, ...]  # as configured
    facts: Facts  # of the whole run
    windows: Callable[[int, int], Sequence[Window]]  # by first and last number, from 1
    noise: NoiseSource  # of the run's own release
    seed: int  # decides targets, groups and simulations


@dataclass(frozen=True)
class AttackListener:
    """Callbacks that report the progress of an attack."""

    #: Told before the first attack: people attacked, and people seen.
    begun: Callable[[int, int], None] = lambda n_targets, n_people: None
    #: Told before the first target: seconds that the whole takes, by a trial of a small part.
    foreseen: Callable[[float], None] = lambda seconds: None
    #: Told after every target, and before the first: targets attacked, and all.
    made: Callable[[int, int], None] = lambda n_made, n_targets: None
