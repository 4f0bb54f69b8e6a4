"""Sampling: count only a random subset of users' contributions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import EventStep, Window
from penstock.mechanisms.core.events import FREE, Block, Event, Exact, Sampled
from penstock.mechanisms.core.plugin import parameter

UNITS = ("membership", "user")


@dataclass(frozen=True, kw_only=True)
class Sampling(EventStep):
    """Count each distinct membership with a given probability, as decided by a keyed hash.

    Parameters
    ----------
    rate
        Probability with which a membership is counted (1 minus the share w that papers drop).
    unit
        ``membership``: each distinct (user, cell, window) by itself. ``user``: all that a user contributes to one
        window, or to one block of a mechanism over blocks, together; another window is another draw.

    **Privacy.** None by itself: no guarantee, since the counts of the sample are exact. It amplifies the guarantee of
    the noise that follows (Li, Qardaji, Su 2012; Balle, Barthe, Gaboardi 2018), and with it crowd-blending becomes
    differential privacy for one count (Gehrke, Hay, Lui, Pass 2012).

    Notes
    -----
    Works on what contribution bounding leaves: sampling first would let a user with many memberships always keep some.
    O(1) a membership, vectorised. Counts are not scaled up by 1/rate.

    Examples
    --------
    >>> half = Sampling(rate=0.5)
    >>> hashes = np.array([1, 2**63, 2**64 - 1], np.uint64)
    >>> half.keep(np.arange(3), np.arange(3), Window(index=1, start=0, end=1), hashes).tolist()
    [True, False, False]
    """

    rate: float = parameter(doc="probability with which a membership is counted", above=0, at_most=1)
    unit: str = parameter("membership", doc="unit that is kept or dropped", choices=UNITS)

    def keep(
        self, users: NDArray[Any], cells: NDArray[np.int64], window: Window, hashes: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Return a mask of memberships whose hash is in the lowest fraction ``rate`` of the range."""
        limit = int(self.rate * 2.0**64)
        return np.ones(len(hashes), bool) if limit >= 2**64 else hashes < np.uint64(limit)

    def sampled(self, charge: tuple[Event, ...]) -> tuple[Event, ...]:
        """Return the charge for a release if it is computed from the sample.

        Amplification holds for one event that reads the sample; where a release makes several, they read the same
        one, so that amplifying each would understate: they are then charged as if nothing had been dropped. So is a
        block whose memberships are sampled one by one, since they meet again in its coefficients.
        """
        reading = [event for event in charge if not isinstance(event, FREE)]
        if len(reading) != 1 or self.rate == 1:
            return charge
        return tuple(self._sample(event) if event is reading[0] else event for event in charge)

    def _sample(self, event: Event) -> Event:
        if isinstance(event, Block) and self.unit == "user":
            return replace(event, inner=self._sample(event.inner))
        if isinstance(event, Block | Exact):
            return event
        return Sampled(event, self.rate, self.unit)
