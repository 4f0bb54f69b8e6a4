"""A window as a mechanism sees it: public facts only."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Window:
    """One interval of event time and what is publicly known about it before any data is read.

    Parameters
    ----------
    index
        Position in the run, 1-based.
    start, end
        Half-open interval in milliseconds since 1970 UTC.
    landmark
        Whether the window is a landmark (significant to everybody, and known to be).
    landmarks_to_come, regulars_to_come
        How many landmarks and how many regular windows follow in the same budget period; None where the stream is
        endless and has no period.
    period
        Budget period the window belongs to, 0-based.
    n_landmarks
        Landmarks in the whole period: listed, or the declared maximum; None where unknown.
    n_windows
        Windows in the whole period; None on an endless stream without one.
    active
        Which sensors publish in this window, shape (n_cells,); None: all.

    Examples
    --------
    >>> Window(index=1, start=0, end=3_600_000).landmark
    False
    """

    index: int
    start: int
    end: int
    landmark: bool = False
    landmarks_to_come: int | None = None
    regulars_to_come: int | None = None
    period: int = 0
    n_landmarks: int | None = 0
    n_windows: int | None = None
    active: NDArray[np.bool_] | None = field(default=None, compare=False)
