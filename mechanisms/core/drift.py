"""Change detection on a short history, without an object that would have to live in state."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def page_hinkley_alarm(history: NDArray[Any], threshold: float = 2.0, delta: float = 0.05) -> NDArray[np.bool_]:
    """Whether a Page-Hinkley test sounds its alarm at the last value of a history.

    Parameters
    ----------
    history
        Shape (..., n): values, oldest first; NaN where there is none.
    threshold, delta
        Of `river.drift.PageHinkley`: summed deviation that raises an alarm, and the change that is tolerated.

    Notes
    -----
    The detector is rebuilt from the history at every call, about 2 µs a value, so that state stays a plain array.
    Source: Page 1954; river's implementation.

    Examples
    --------
    >>> quiet = np.ones(20)
    >>> bool(page_hinkley_alarm(quiet)), bool(page_hinkley_alarm(np.append(quiet, 9.0)))
    (False, True)
    """
    from river.drift import PageHinkley

    rows = history.reshape(-1, history.shape[-1])
    alarms = np.zeros(len(rows), bool)
    for number, row in enumerate(rows):
        detector = PageHinkley(min_instances=5, delta=delta, threshold=threshold, mode="up")
        for value in row[~np.isnan(row)]:
            detector.update(float(value))
        alarms[number] = detector.drift_detected
    return alarms.reshape(history.shape[:-1])
