"""An adversary who has trained on undefended aggregates, without ever forming one of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluation.attacks.pca_attack import PcaAttack
from evaluation.attacks.priors import Samples
from evaluation.attacks.user_space import Embedding, UserSpace, inverse_scale

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Adversary:
    """Principal components and a logistic regression, both in the space of the users she trained on.

    Training needs those users and past windows only, so that one adversary may be challenged with groups of others,
    in other windows, as often as one likes.

    Attributes
    ----------
    space
        Presence of all users.
    samples
        What she trained on: no challenges, nobody who is in no group.
    scale (n_windows·n_cells,)
        What counts are multiplied with before components are extracted.
    embedding
        Coordinates of scaled aggregates.
    distinguisher
        The components and the regression, in these coordinates.
    """

    space: UserSpace
    samples: Samples
    scale: Array
    embedding: Embedding
    distinguisher: PcaAttack

    @classmethod
    def train(cls, space: UserSpace, samples: Samples, n_components: int, *, standardize: bool) -> Adversary:
        """Learn from the training part of a game's samples.

        O(n_rows²·n_windows·n_cells + n_rows³ + n_train·n_rows²), where n_rows is the number of (past block, user in a
        group).

        Examples
        --------
        >>> from evaluation.membership import MembershipGame
        >>> binary = np.random.default_rng(0).random((30, 5, 24)) < 0.2
        >>> game = MembershipGame(binary, group_size=10, observation=24, inference=24, n_samples=400, seed=1)
        >>> adversary = Adversary.train(game.space, game.samples(3), 600, standardize=True)
        >>> adversary.scores(game.samples(3)).shape
        (80,)
        """
        training = samples.training
        scale = inverse_scale(space.deviations(training)) if standardize else np.ones(np.prod(space.shape))
        embedding = space.embedding(training.users, scale if standardize else None)
        distinguisher = PcaAttack.fit(embedding.coordinates(training), training.labels, n_components)
        return cls(space, training, scale, embedding, distinguisher)

    @property
    def n_components(self) -> int:
        """Components that the regression uses."""
        return self.distinguisher.weights.size

    def directions(self, weights: Array) -> Array:
        """Sums (k, n_windows·n_cells) of the components with weights (k, n_components), in scaled counts."""
        combined = self.distinguisher.components.combined(weights)
        return self.space.lift(self.embedding, self.samples.users, combined) * self.scale

    def scores(self, samples: Samples) -> Array:
        """Log-odds of membership for the challenges of a game, all along one direction of counts."""
        direction = self.directions(self.distinguisher.weights[None])[0] * self.scale
        return self.space.products(samples, direction)[samples.n_train :] + self.distinguisher.offset
