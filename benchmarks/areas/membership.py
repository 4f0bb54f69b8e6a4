"""The membership attack in user space against scikit-learn's principal components on the dense aggregates.

    python -m benchmarks membership

A synthetic city of the same size as the published one: 534 users, 100 cells, 168 windows.
Both routes see the very same standardised samples. User space is charged with everything from drawing groups to the
area under the curve, the dense route only with fitting the components.
"""

from __future__ import annotations

import resource
import time

import numpy as np
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from benchmarks.measure import Row, Settings
from penstock.evaluation.attacks.challenge import standardize_in_place
from penstock.evaluation.attacks.game import MembershipGame
from penstock.evaluation.attacks.targets import draw_targets
from penstock.evaluation.utility import METRICS

N_USERS, N_CELLS, N_WINDOWS = 534, 100, 168


def synthetic_city(seed: int) -> np.ndarray:
    """Users with own activity, cells with own popularity and a daily rhythm; about 7 % of the entries are True."""
    rng = np.random.default_rng(seed)
    activity, popularity = rng.uniform(0.2, 1.0, N_USERS), rng.gamma(0.5, 0.3, N_CELLS)
    rhythm = 0.6 + 0.4 * np.sin(2 * np.pi * np.arange(N_WINDOWS) / 24)
    rates = np.clip(activity[:, None, None] * rhythm[:, None] * popularity, 0, 0.9)
    return rng.random((N_USERS, N_WINDOWS, N_CELLS), dtype=np.float32) < rates


def dense_attack(game: MembershipGame, target: int) -> tuple[float, float]:
    """Area under the curve, and seconds of scikit-learn's components alone: neither aggregates nor regression."""
    samples = game.samples(target)
    n_train, labels = samples.n_train, samples.labels
    dense = game.space.counts(samples, np.arange(labels.size)).reshape(labels.size, -1).astype(float)
    standardize_in_place(dense, n_train)
    start = time.perf_counter()
    components = PCA(game.n_components).fit(dense[:n_train])
    seconds = time.perf_counter() - start
    scores = components.transform(dense)
    model = LogisticRegression(max_iter=1000).fit(scores[:n_train], labels[:n_train])
    return float(roc_auc_score(labels[n_train:], model.decision_function(scores[n_train:]))), seconds


def utility_seconds(binary: np.ndarray) -> float:
    """Seconds of all utility metrics on three weeks of a group's counts and a noisy release of them."""
    truth = np.tile(binary[:250].sum(axis=0), (3, 1))
    released = truth + np.random.default_rng(0).laplace(scale=5.0, size=truth.shape)
    start = time.perf_counter()
    for metric in METRICS.values():
        metric.mean(truth, released)
    return time.perf_counter() - start


def rows(settings: Settings) -> list[Row]:
    """The whole attack on 150 people, the dense route for some of them, and all utility metrics."""
    binary = synthetic_city(0)
    targets = draw_targets(binary, 30 if settings.quick else 150, seed=0).tolist()
    game = MembershipGame(
        binary,
        group_size=100,
        known=0.2,
        observation=N_WINDOWS,
        inference=N_WINDOWS,
        n_samples=2000,
        n_components=600,
    )
    start = time.perf_counter()
    results = {target: game.attack(target) for target in targets}
    total = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    dense = {target: dense_attack(game, target) for target in targets[:: -(-len(targets) // 3)]}
    each = float(np.mean([spent for _, spent in dense.values()]))
    if max(abs(auc - results[target].auc) for target, (auc, _) in dense.items()) > 0.02:
        raise AssertionError("the dense route finds another area under the curve")
    utility = utility_seconds(binary)
    return [
        Row(
            area="membership",
            what=f"attack on {len(targets)} people, 2,000 samples each, 100 cells × 168 windows, 600 components",
            ours=total,
            peer="scikit-learn's PCA alone on the dense matrices, from 3 people",
            theirs=each * len(targets),
            memory=memory,
        ),
        Row(area="membership", what="all utility metrics on 100 cells × 504 windows", ours=utility),
    ]
