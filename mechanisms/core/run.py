"""The plain loop: a mechanism over a matrix of counts, without Beam. The pipeline must release the same bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.errors import ParameterError
from mechanisms.core.facts import Facts
from mechanisms.core.mechanism import Mechanism
from mechanisms.core.noise import NoiseKey, NoiseSource
from mechanisms.core.release import Release


def run_mechanism(
    mechanism: Mechanism, counts: NDArray[Any], facts: Facts | None = None, seed: int = 0
) -> list[Release]:
    """Step a mechanism through all windows of a finite series.

    Parameters
    ----------
    mechanism
        A mechanism that works on counts.
    counts
        Shape (n_windows, n_cells), or (n_replicas, n_windows, n_cells) for independent copies in one vectorised pass.
    facts
        Public facts; None: one bounded cell per user and window, no landmarks. ``n_windows`` and ``n_replicas`` are
        taken from the counts.
    seed
        Seed of the simulation's noise key; replica 0 releases what a run without replicas does.

    Returns
    -------
    The releases in order of window, those of `Mechanism.finish` included.

    Examples
    --------
    >>> from mechanisms import get
    >>> [r.values.tolist() for r in run_mechanism(get("raw")(), np.array([[1, 2], [3, 4]]), seed=7)]
    [[1.0, 2.0], [3.0, 4.0]]
    """
    counts = np.asarray(counts)
    if counts.ndim not in (2, 3):
        raise ParameterError("counts", counts.shape, "of shape (n_windows, n_cells) or (replicas, n_windows, n_cells)")
    n_replicas = counts.shape[0] if counts.ndim == 3 else None
    facts = replace(facts or Facts(n_cells=counts.shape[-1]), n_windows=counts.shape[-2], n_replicas=n_replicas)
    if facts.n_cells != counts.shape[-1]:
        raise ParameterError("counts", counts.shape, f"{facts.n_cells} cells wide, as the facts say")
    source = NoiseSource(NoiseKey.from_seed(seed), configuration=b"", stream="")
    state, releases = mechanism.start(facts), []
    for window in facts.windows():
        vector = counts[..., window.index - 1, :]
        noise = source.at(window.start, window.end, "step", vector, state, n_replicas)
        made, state = mechanism.step(window, vector, state, noise)
        releases += made
    last = np.zeros_like(counts[..., 0, :])
    return releases + mechanism.finish(state, source.at(0, facts.n_windows or 0, "finish", last, state, n_replicas))
