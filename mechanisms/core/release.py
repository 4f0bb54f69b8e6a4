"""A release: everything an accountant, a file or a reader needs to know about one published vector."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.event import Event, Repeated
from mechanisms.core.perturb import only_active
from mechanisms.core.window import Window

ACTIONS = ("published", "repeated", "suppressed", "refused")


@dataclass(frozen=True, kw_only=True)
class Release:
    """One window's public vector and what was done to make it.

    Parameters
    ----------
    window
        1-based index of the window.
    values
        Shape (..., n_cells): what is published; NaN where the cell's sensor is not active.
    action
        One of `ACTIONS`; for replicas, an array of them.
    noise
        Name of the noise family, "none" without.
    scale
        Scale of the noise: a number, or an array that broadcasts against ``values``.
    charge
        Privacy events of this release, to be priced by accountants.
    landmark
        Whether the window is a landmark.
    repeats
        Window whose release is shown again, 0 for the public constant before any; None: not a repetition. For
        replicas an array, -1 where one is no repetition.
    available_at
        When it can be published, milliseconds since 1970; None: at the window's end + allowed lateness.
    active
        Mask of active sensors; None: all.
    """

    window: int
    values: NDArray[Any]
    action: str | NDArray[np.str_] = "published"
    noise: str = "none"
    scale: float | NDArray[np.float64] = 0.0
    charge: tuple[Event, ...] = ()
    landmark: bool = False
    repeats: int | NDArray[np.int64] | None = None
    available_at: int | None = None
    active: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, window: Window, values: NDArray[Any], charge: tuple[Event, ...], **further: Any) -> Release:
        """What is released of one window.

        Parameters
        ----------
        window
            Says which it is, whether it is a landmark, and which sensors are active.
        values
            Shape (..., n_cells), of all cells: only those of active sensors are kept.
        charge, further
            As the fields of a release.
        """
        public = only_active(window, values)
        return cls(
            window=window.index, values=public, charge=charge, landmark=window.landmark, active=window.active, **further
        )

    def replica(self, number: int) -> Release:
        """One replica's release, as a run without the others would have made it."""

        def own(value: Any) -> Any:
            """The replica's entry, where replicas differ."""
            return value[number] if np.ndim(value) else value

        changes: dict[str, Any] = {"values": self.values[number], "action": str(own(self.action))}
        changes["charge"] = tuple(
            replace(event, **{f.name: own(getattr(event, f.name)) for f in fields(event)}) for event in self.charge
        )
        scale = own(self.scale)
        changes["scale"] = float(scale[0]) if np.shape(scale) == (1,) else scale
        if isinstance(self.repeats, np.ndarray):
            repeated = int(own(self.repeats))
            changes["repeats"] = None if repeated < 0 else repeated
            if repeated >= 0:
                # The last event prices a publication, which this replica did not make.
                changes |= {"noise": "none", "scale": 0.0, "charge": (*changes["charge"][:-1], Repeated(repeated))}
        return replace(self, **changes)
