"""Stay points as landmarks of traces: how a configuration asks for them."""

from __future__ import annotations

from dataclasses import dataclass

from mechanisms.core.parameters import Checked, parameter


@dataclass(frozen=True, kw_only=True)
class StayPoints(Checked):
    """Landmarks that are found on each trace: its stay points. Found offline, from the data: for simulations only.

    Examples
    --------
    >>> StayPoints(distance=200.0, time=1_800_000).distance
    200.0
    """

    distance: float = parameter(doc="how far from its first point a stay may go", at_least=0, unit="metres")
    time: int = parameter(doc="how long it lasts at least", kind="duration", at_least=0, unit="ms")
