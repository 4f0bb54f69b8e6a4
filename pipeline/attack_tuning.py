"""Which prior an adversary takes: the one that foretells the end of her training windows best."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from accountants.core.training import Training
from accountants.inference.known import known_targets
from accountants.inference.sections import KnownPrior

#: What is tried: where added moves go, and their weight.
TOWARDS, SMOOTHING = ("own", "population"), (0.1, 1.0, 10.0, 100.0)
#: Share of the training windows that priors are learned from while they are compared.
LEARNED_SHARE = 0.75


def tuned(known: KnownPrior, training: Training) -> KnownPrior:
    """The prior with the smoothing under which the last training windows are likeliest.

    A prior that rules out too much makes a weak adversary of people who go where they have not been: with exact
    likelihoods she believes in noise rather than in a new place.

    Parameters
    ----------
    known
        One that is estimated; the rest of it stays as it is.
    training
        The training windows, with the targets as ``named``.

    Returns
    -------
    Of `TOWARDS` and `SMOOTHING` those with the largest mean log-likelihood of the targets' moves in the last quarter of
    the windows, learned from the others; unchanged where there are fewer than three windows. O(8·n_targets·n_places²).

    Examples
    --------
    >>> ways = np.tile([0, 1, 2, 3], (3, 6))
    >>> training = Training(trajectories=ways, users=np.arange(3)[:, None], n_cells=4, named=(0,))
    >>> tuned(KnownPrior(estimate="first", windows=24, smoothing=50), training).smoothing
    0.1
    """
    n_learned = int(LEARNED_SHARE * training.n_windows)
    if n_learned < 2 or n_learned == training.n_windows:
        return known
    candidates = [
        replace(known, towards=towards, smoothing=smoothing, windows=n_learned, initial="empirical")
        for towards, smoothing in product(TOWARDS, SMOOTHING)
    ]
    best = candidates[int(np.argmax([_foretold(each, training) for each in candidates]))]
    return replace(known, towards=best.towards, smoothing=best.smoothing)


def _foretold(known: KnownPrior, training: Training) -> float:
    """Mean ln Pr of each target's next place after the windows that are learned from."""
    rows = np.array(training.named)
    targets = known_targets(known, tuple(rows.tolist()), 0, training)
    paths: NDArray[np.intp] = targets.places.location[training.with_unseen()[rows]]
    held = paths[:, (known.windows or 0) - 1 :]
    likelihood = [np.asarray(prior.transition)[path[:-1], path[1:]] for prior, path in zip(targets.priors, held)]
    with np.errstate(divide="ignore"):
        return float(np.log(np.stack(likelihood)).mean())
