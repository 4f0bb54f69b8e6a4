"""The plain loop: a mechanism over a matrix of counts, without Beam. The pipeline must release the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.errors import ParameterError
from mechanisms.core.facts import Facts
from mechanisms.core.mechanism import Mechanism
from mechanisms.core.noise import NoiseKey, NoiseSource
from mechanisms.core.release import Release
from mechanisms.core.state import State
from mechanisms.core.window import Window


def run_mechanism(
    mechanism: Mechanism,
    counts: NDArray[Any],
    facts: Facts | None = None,
    seed: int = 0,
    *,
    windows: Sequence[Window] | None = None,
    source: NoiseSource | None = None,
) -> list[Release]:
    """Step a mechanism through all windows of a finite series.

    Parameters
    ----------
    mechanism
        A mechanism that works on counts.
    counts
        Whole numbers, shape (n_windows, n_cells), or (n_replicas, n_windows, n_cells) for independent copies in one
        vectorised pass.
    facts
        Public facts; None: one bounded cell per user and window, no landmarks. ``n_windows`` and ``n_replicas`` are
        taken from the counts.
    seed
        Seed of the simulation's noise key; replica 0 releases what a run without replicas does.
    windows
        One window a row of counts; None: those of the facts.
    source
        Where the noise comes from; None: from the seed. With the windows and the noise of a pipeline's plan the
        releases are those of the pipeline.

    Returns
    -------
    The releases in order of window, those of `Mechanism.finish` included.

    Examples
    --------
    >>> from mechanisms import get
    >>> [r.values.tolist() for r in run_mechanism(get("raw")(), np.array([[1, 2], [3, 4]]), seed=7)]
    [[1.0, 2.0], [3.0, 4.0]]
    """
    counts = _whole_numbers(counts)
    n_replicas = counts.shape[0] if counts.ndim == 3 else None
    facts = replace(facts or Facts(n_cells=counts.shape[-1]), n_windows=counts.shape[-2], n_replicas=n_replicas)
    if facts.n_cells != counts.shape[-1]:
        raise ParameterError("counts", counts.shape, f"{facts.n_cells} cells wide, as the facts say")
    windows = facts.windows() if windows is None else windows
    if len(windows) != counts.shape[-2]:
        raise ParameterError("windows", len(windows), f"{counts.shape[-2]} windows, one for each row of counts")
    source = source or NoiseSource(NoiseKey.from_seed(seed), configuration=b"", stream="")
    return [release for made, _ in step_through(mechanism, counts, facts, windows, source) for release in made]


def step_through(
    mechanism: Mechanism,
    counts: NDArray[Any],
    facts: Facts,
    windows: Sequence[Window],
    source: NoiseSource,
    between: Callable[[State], State] = lambda state: state,
) -> Iterator[tuple[list[Release], State]]:
    """Releases of each step and the state after it, the end of the run being the last step.

    Parameters
    ----------
    mechanism, counts, facts, windows, source
        As in `run_mechanism`, all given.
    between
        What happens to the state between two steps, for instance encoding and decoding it.
    """
    state = mechanism.start(facts)
    for row, window in enumerate(windows):
        state = between(state)
        vector = counts[..., row, :]
        noise = source.at(window.start, window.end, "step", vector, state, facts.n_replicas)
        made, state = mechanism.step(window, vector, state, noise)
        yield made, state
    state = between(state)
    nothing, last = np.zeros_like(counts[..., 0, :]), windows[-1]
    noise = source.at(last.start, last.end, "finish", nothing, state, facts.n_replicas)
    yield mechanism.finish(state, noise), state


def _whole_numbers(counts: NDArray[Any]) -> NDArray[Any]:
    counts = np.asarray(counts)
    if counts.ndim not in (2, 3) or 0 in counts.shape:
        raise ParameterError("counts", counts.shape, "of shape (n_windows, n_cells) or (replicas, n_windows, n_cells)")
    if counts.dtype.kind in "iu":
        return counts
    if counts.dtype.kind not in "bf" or not (counts == np.rint(counts.astype(np.float64))).all():
        raise ParameterError("counts", str(counts.dtype), "whole numbers")
    return counts.astype(np.int64)
