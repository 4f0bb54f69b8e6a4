"""Benchmark of the membership attack in user space against scikit-learn's PCA on dense aggregates.

A synthetic city of the same size as the published one: 534 users, 100 cells, 168 windows. Both routes see the very same
standardised samples. User space is charged with everything from drawing groups to the area under the curve, the dense
route only with fitting the components.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from benchmarks.measure import Benchmark, Peer, Scale, Usage, usage
from penstock.evaluation.attacks.challenge import standardize_in_place
from penstock.evaluation.attacks.game import MembershipGame
from penstock.evaluation.attacks.user_space import draw_targets
from penstock.evaluation.utility import METRICS

N_USERS, N_CELLS, N_WINDOWS = 534, 100, 168


def synthetic_city(seed: int) -> np.ndarray:
    """Generate users and cells with uneven activity and a daily rhythm, with about 7 % of entries True."""
    rng = np.random.default_rng(seed)
    activity, popularity = rng.uniform(0.2, 1.0, N_USERS), rng.gamma(0.5, 0.3, N_CELLS)
    rhythm = 0.6 + 0.4 * np.sin(2 * np.pi * np.arange(N_WINDOWS) / 24)
    rates = np.clip(activity[:, None, None] * rhythm[:, None] * popularity, 0, 0.9)
    return rng.random((N_USERS, N_WINDOWS, N_CELLS), dtype=np.float32) < rates


def dense_attack(game: MembershipGame, target: int) -> tuple[float, Usage]:
    """Return the area under the curve, and the usage of scikit-learn's PCA (without aggregation and regression)."""
    samples = game.samples(target)
    n_train, labels = samples.n_train, samples.labels
    dense = game.space.counts(samples, np.arange(labels.size)).reshape(labels.size, -1).astype(float)
    standardize_in_place(dense, n_train)
    components = PCA(game.n_components)
    taken = usage(lambda: components.fit(dense[:n_train]))
    scores = components.transform(dense)
    model = LogisticRegression(max_iter=1000).fit(scores[:n_train], labels[:n_train])
    return float(roc_auc_score(labels[n_train:], model.decision_function(scores[n_train:]))), taken


def membership(scale: Scale) -> Iterator[Benchmark]:
    """Yield cases on the full attack on 150 people, the dense route for some of them, and all utility metrics."""
    binary = synthetic_city(0)
    targets = draw_targets(binary, 30 if scale.quick else 150, seed=0).tolist()
    game = MembershipGame(
        binary,
        group_size=100,
        known=0.2,
        observation=N_WINDOWS,
        inference=N_WINDOWS,
        n_samples=2000,
        n_components=600,
    )
    dense = {target: dense_attack(game, target) for target in targets[:: -(-len(targets) // 3)]}
    each = Usage(float(np.mean([taken.wall for _, taken in dense.values()])))

    def attack() -> dict[int, float]:
        """Attack every target."""
        return {target: game.attack(target).auc for target in targets}

    def agree(ours: dict[int, float], _: None) -> bool:
        """Return whether both routes give the same area under the curve."""
        return max(abs(auc - ours[target]) for target, (auc, _) in dense.items()) <= 0.02

    peer = Peer("scikit-learn's PCA alone on the dense matrices, from 3 people", each, len(targets), agree)
    what = f"attack on {len(targets)} people, 2,000 samples each, 100 cells × 168 windows, 600 components"
    yield Benchmark(what, attack, [peer])
    truth = np.tile(binary[:250].sum(axis=0), (3, 1))
    released = truth + np.random.default_rng(0).laplace(scale=5.0, size=truth.shape)
    yield Benchmark(
        "all utility metrics on 100 cells × 504 windows",
        lambda: [metric.mean(truth, released) for metric in METRICS.values()],
    )
