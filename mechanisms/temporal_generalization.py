"""Temporal generalization: distinct people are counted in longer windows."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.mechanisms.core.contract import Generalization
from penstock.mechanisms.core.plugin import parameter


@dataclass(frozen=True, kw_only=True)
class TemporalGeneralization(Generalization):
    """Count distinct people over several windows together, and show that count in each of them.

    Parameters
    ----------
    windows
        Windows that are counted as one; window 1 begins the first of these stretches.
    spread
        ``copy``: each window shows the count of its stretch. ``even``: an equal share of it, with as much of the noise.

    **Privacy.** None by itself: no guarantee, coarse counts are exact. People are bounded and counted again over the
    stretch, so noise that follows is calibrated to all of one user's events in a stretch, and drawn once for it.

    Notes
    -----
    O(1) a membership. All windows of a stretch are released when it is over. Pyrgelis, Troncoso, De Cristofaro 2020,
    temporal generalization; copying reproduces their tables, dividing does not.

    Examples
    --------
    >>> TemporalGeneralization(windows=4).spread
    'copy'
    """

    windows: int = parameter(doc="windows that are counted as one", at_least=1)
