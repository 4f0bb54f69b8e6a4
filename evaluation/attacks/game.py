"""The membership game, in which an adversary distinguishes aggregates that include a target from those that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from penstock.accountants.online_attack import area_under_curve, auc_interval
from penstock.evaluation.attacks.challenge import (
    CONFIDENCE,
    FALSE_ALARMS,
    AttackResult,
    cell_statistics,
    distinguish,
    standardize_in_place,
    true_positives,
)
from penstock.evaluation.attacks.defenses import MAX_VALUES, Defense, flat, released_features
from penstock.evaluation.attacks.lira import likelihood_ratio_scores
from penstock.evaluation.attacks.priors import (
    CHALLENGES,
    PRIORS,
    Known,
    Period,
    Samples,
    game_blocks,
    known_users,
    past_samples,
    subset_samples,
)
from penstock.evaluation.attacks.user_space import UserSpace, checked_binary
from penstock.evaluation.attacks.zero_knowledge import zero_knowledge_scores
from penstock.mechanisms.core.plugin import ParameterError, check_choice, check_whole

Array = NDArray[np.float64]
Item = TypeVar("Item")
Done = TypeVar("Done")


#: Attacks that need nothing but labelled groups.
CLASSIFIERS = ("pca", "statistics")
ATTACKS = (*CLASSIFIERS, "lira", "zero_knowledge")
#: Releases that the zero-knowledge adversary trains on, of each target's challenges.
ZERO_KNOWLEDGE_TRAININGS = 4
BLAS = ThreadpoolController()


class MembershipGame:
    """The distinguishability game for a data set and a prior. It can be played for any number of targets.

    Parameters
    ----------
    binary (n_users, n_windows, n_cells)
        Whether a user was in a cell during a window.
    prior
        What the adversary knows. ``subset``: the locations of the `known` users, her target among them.
        ``same_groups``: whether the target was in each of the `groups` groups released in the past, which are
        released again. ``different_groups``: the same, but she is challenged with new groups.
    group_size
        Users in a group.
    known
        Prior ``subset``: fraction (float) or number (int) of users, their indices, or None for everybody.
    challenges
        Prior ``subset``: what groups she is challenged with. ``known``: further groups of the users whom she knows.
        ``others``: groups of her target and users whom she does not know, which is harder.
    groups
        Past priors: number of known groups; None: as many as `n_samples` allows.
    observation, inference
        Windows that the adversary trains on and is challenged on: a slice, range, (start, stop) pair, number of
        windows, indices or mask. A longer observation is cut into blocks of the length of `inference`.
    n_samples
        Labelled aggregates, half with the target. ``subset``: four fifths train. Past priors: every known group
        gives one for each past block and one challenge; not used if `groups` is given.
    n_components
        Most principal components to extract; the rank of the training samples may allow fewer.
    seed
        Fixes every group and every defense. A target's game depends on the seed and the target only: not on the
        order of targets or the number of jobs, so that an interrupted run goes on with the targets that are left.

    Notes
    -----
    Memory: the presence (one byte an entry, by reference, and another in the order of aggregates), and for each target
    attacked at one time about 8·n_known·n_blocks·(n_windows·n_cells + n_samples) bytes undefended and
    24·n_samples·n_windows·n_cells defended, where more than 12 GB are refused.
    Pyrgelis, Troncoso, De Cristofaro, POMACS 2020, section 2.2.

    Examples
    --------
    >>> binary = np.random.default_rng(0).random((30, 24, 5)) < 0.2
    >>> sizes = {"group_size": 10, "observation": 24, "inference": 24, "n_samples": 400}
    >>> game = MembershipGame(binary, **sizes, seed=1)
    >>> game.attack(3).auc > 0.95
    True
    >>> game.attack(3, defense=lambda counts, seed: np.zeros(counts.shape)).auc
    0.5
    """

    def __init__(
        self,
        binary: NDArray[Any],
        *,
        prior: str = "subset",
        group_size: int,
        known: Known = None,
        challenges: str = "known",
        groups: int | None = None,
        observation: Period,
        inference: Period,
        n_samples: int,
        n_components: int = 600,
        seed: int = 0,
    ) -> None:
        check_choice("prior", prior, PRIORS)
        if challenges not in CHALLENGES or (challenges != "known" and prior != "subset"):
            raise ParameterError("challenges", challenges, "known, or with the prior subset others")
        check_whole({"group_size": group_size, "n_samples": n_samples, "groups": groups, "n_components": n_components})
        check_whole({"seed": seed}, at_least=0)
        presence = checked_binary(binary)
        blocks = game_blocks(observation, inference, presence.shape[1], prior)
        if groups is None:
            groups = n_samples // len(blocks)
        if prior != "subset" and groups < 2:
            raise ParameterError("groups", groups, "at least 2, so that one is with and one without the target")
        self.prior, self.group_size, self.known, self.groups = prior, group_size, known, groups
        self.challenges = challenges
        self.n_samples, self.n_components = n_samples, n_components
        self.seed = seed
        self.space = UserSpace(presence, blocks)

    def samples(self, target: int) -> Samples:
        """Return the labelled groups for one target. They depend only on the seed and the target."""
        n_users, n_blocks = len(self.space.binary), len(self.space.blocks)
        check_whole({"target": target}, at_least=0)
        if target >= n_users:
            raise ParameterError("target", target, f"a user of 0..{n_users - 1}")
        rng = np.random.default_rng([self.seed, target])
        if self.prior == "subset":
            users = known_users(self.known, target, n_users, rng)
            sizes = {"group_size": self.group_size, "n_samples": self.n_samples, "n_blocks": n_blocks}
            others = np.setdiff1d(np.arange(n_users), users) if self.challenges == "others" else None
            return subset_samples(users, target, **sizes, rng=rng, others=others)
        sizes = {"group_size": self.group_size, "n_groups": self.groups, "n_blocks": n_blocks}
        return past_samples(n_users, target, **sizes, same=self.prior == "same_groups", rng=rng)

    def attack(self, target: int, *, defense: Defense | None = None, attack: str = "pca") -> AttackResult:
        """Train the adversary for one target and evaluate it on the challenges.

        Parameters
        ----------
        target
            Index of the user.
        defense
            Called with counts (replicas, n_windows, n_cells) and a seed, returns the released values in that shape;
            every sample of the game passes through it once. None: raw counts, and everything stays in user space.
        attack
            ``pca`` or ``statistics``: a classifier of labelled groups. ``lira``: the likelihood ratio of the release
            with and without the target, whose trace she knows. ``zero_knowledge``: by synthetic people made from the
            release; of all that the prior gives her she uses the target's trace and the size of a group.
        """
        samples = self.samples(target)
        scores, n_features = self._scores(target, samples, defense, attack)
        hidden = samples.labels[samples.n_train :]
        auc, n_positive = area_under_curve(hidden, scores), int(hidden.sum())
        low, high = auc_interval(auc, n_positive, hidden.size - n_positive, CONFIDENCE)
        n_found = true_positives(hidden, scores, FALSE_ALARMS)
        return AttackResult(target, auc, low, high, samples.n_train, hidden.size, n_features, n_found)

    def scores(
        self, target: int, *, defense: Defense | None = None, attack: str = "pca"
    ) -> tuple[NDArray[np.bool_], Array]:
        """Return the challenges' labels and the adversary's scores, so that rates can be pooled over targets."""
        samples = self.samples(target)
        scores, _ = self._scores(target, samples, defense, attack)
        return samples.labels[samples.n_train :], scores

    def _scores(self, target: int, samples: Samples, defense: Defense | None, attack: str) -> tuple[Array, int]:
        """Return the score of every challenge, and the number of features used."""
        check_choice("attack", attack, ATTACKS)
        n_components = self.n_components if attack == "pca" else None
        n_values = samples.labels.size * int(np.prod(self.space.shape))
        is_small = len(self.space.blocks) * samples.users.size <= samples.n_train or n_values > MAX_VALUES
        if defense is None and attack == "pca" and is_small:
            # Coordinates of users are fewer than those of aggregates, or these are too large as counts. Such matrices
            # are so small that more threads cost more than they bring.
            with BLAS.limit(limits=1):
                points = self.space.coordinates(samples)
                return distinguish(points, samples.labels, samples.n_train, n_components=n_components)
        summary = cell_statistics if attack == "statistics" else flat
        played = samples.challenges if attack == "zero_knowledge" else samples
        seed = [self.seed, target, 1]  # the groups come from [seed, target]
        features = released_features(self.space, played, summary, defense=defense, seed=seed)
        if attack in CLASSIFIERS:
            standardize_in_place(features, samples.n_train)
            return distinguish(features, samples.labels, samples.n_train, n_components=n_components)
        if len(self.space.blocks) > 1:
            raise ParameterError(
                "observation", "windows of its own", f"left out: {attack} observes the challenged windows themselves"
            )
        trace = self.space.presence(np.array([target]), 0)[0] > 0
        if attack == "lira":
            return likelihood_ratio_scores(features, samples.labels, trace, samples.n_train), 1
        released = features.reshape(len(features), *self.space.shape)
        scores = zero_knowledge_scores(
            released,
            trace.reshape(self.space.shape),
            self.group_size,
            defense=defense,
            n_trainings=ZERO_KNOWLEDGE_TRAININGS,
            seed=[self.seed, target, 2],
        )
        return scores, features.shape[1]


def in_threads(function: Callable[[Item], Done], items: Iterable[Item], n_jobs: int) -> Iterator[Done]:
    """Apply a function to all items in threads. Yield results as they complete, or in order if there is one job.

    BLAS is limited to one thread, so that results do not depend on the number of jobs.
    """
    with BLAS.limit(limits=1):
        if n_jobs == 1:
            yield from map(function, items)
            return
        pool = ThreadPoolExecutor(n_jobs)
        try:
            for done in as_completed([pool.submit(function, item) for item in items]):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)
