"""Temporal generalisation: count distinct people in longer windows."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.mechanisms.core.contract import Generalization
from penstock.mechanisms.core.plugin import parameter


@dataclass(frozen=True, kw_only=True)
class TemporalGeneralization(Generalization):
    """Count distinct people over several successive windows and copy the count to each of them.

    Parameters
    ----------
    windows
        Windows that are counted as one; window 1 begins the first of these stretches.

    **Privacy.** None by itself: no guarantee, coarse counts are exact. People are bounded and counted again over the
    stretch, so noise that follows is calibrated to all of one user's events in a stretch, and drawn once for it.

    Notes
    -----
    O(1) a membership. All windows of a stretch are released when it is over. Pyrgelis, Troncoso, De Cristofaro 2020,
    temporal generalization; that each window shows the whole count reproduces their tables, equal shares would not.

    Examples
    --------
    Each window has the count of its stretch, which is released once:

    >>> import numpy as np
    >>> from penstock.mechanisms import get, run_mechanism
    >>> releases = run_mechanism(get("temporal_generalization")(windows=2), np.array([[3], [3], [1]]))
    >>> [(release.values.item(), len(release.charge)) for release in releases]
    [(3.0, 1), (3.0, 0), (1.0, 1)]
    """

    windows: int = parameter(doc="windows that are counted as one", at_least=1)
