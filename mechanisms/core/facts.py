"""Public facts of a run that a mechanism starts from."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.errors import ParameterError
from mechanisms.core.window import Window


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is publicly known before the first window.

    Parameters
    ----------
    n_cells
        Length of every count vector.
    max_cells
        C: cells of one window that one user can add 1 to, as enforced by contribution bounding; hence an L1
        sensitivity of C and an L2 sensitivity of sqrt(C) under add/remove.
    max_windows, max_block_cells
        W and U: windows, and cells over all windows, that one user counts in within a block; None: no such bound.
    n_windows
        Windows in the run; None on an endless stream.
    landmarks
        1-based indices of the landmark windows (used by the plain loop; a pipeline tells them window by window).
    budget_period
        Windows per budget period; None: the whole run is one period.
    max_landmarks
        Declared maximum of landmarks per period, in place of their number.
    n_replicas
        Independent copies stepped at once; None: one run, without a leading axis.

    Examples
    --------
    >>> Facts(n_cells=3, max_cells=4).sensitivity
    3
    >>> [w.landmarks_to_come for w in Facts(n_cells=1, n_windows=3, landmarks=(1, 3)).windows()]
    [1, 1, 0]
    """

    n_cells: int
    max_cells: int = 1
    max_windows: int | None = None
    max_block_cells: int | None = None
    n_windows: int | None = None
    landmarks: tuple[int, ...] = ()
    budget_period: int | None = None
    max_landmarks: int | None = None
    n_replicas: int | None = None

    def __post_init__(self) -> None:
        least = {field.name: 1 for field in fields(self) if field.name != "landmarks"} | {"max_landmarks": 0}
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None and not (hasattr(value, "__index__") and value >= smallest):
                raise ParameterError(name, value, f"a whole number of at least {smallest}")
        object.__setattr__(self, "landmarks", tuple(sorted({int(i) for i in self.landmarks})))
        if self.landmarks and (self.landmarks[0] < 1 or self.landmarks[-1] > (self.n_windows or np.inf)):
            raise ParameterError("landmarks", self.landmarks, f"window indices from 1 to {self.n_windows}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Leading axes of every state array: () or (n_replicas,)."""
        return () if self.n_replicas is None else (self.n_replicas,)

    @property
    def sensitivity(self) -> int:
        """L1 sensitivity (add/remove) of one window's vector; its square root is the L2 sensitivity."""
        return min(self.max_cells, self.n_cells)

    def constant(self, value: float, dtype: type = np.float64) -> NDArray[np.generic]:
        """A state array that holds one number (per replica)."""
        return np.full(self.shape, value, dtype)

    def windows(self, n_windows: int | None = None, hour: int = 3_600_000) -> list[Window]:
        """Windows of the plain loop: one hour each from 1970, landmarks and budget periods as stated here."""
        n = self.n_windows or n_windows
        if n is None:
            raise ParameterError("n_windows", None, "given, to list the windows")
        landmark = np.zeros(n, bool)
        if self.landmarks and self.landmarks[-1] > n:
            raise ParameterError("landmarks", self.landmarks, f"window indices from 1 to {n}")
        landmark[np.asarray(self.landmarks, int) - 1] = True
        length = self.budget_period or n
        windows = []
        for i in range(n):
            first, last = i - i % length, min(i - i % length + length, n)
            listed = int(landmark[first:last].sum())
            allowed = listed if self.max_landmarks is None else self.max_landmarks
            to_come = int(landmark[i + 1 : last].sum())
            if self.max_landmarks is not None:
                to_come = max(0, self.max_landmarks - int(landmark[first : i + 1].sum()))
            windows.append(
                Window(
                    index=i + 1,
                    start=i * hour,
                    end=(i + 1) * hour,
                    landmark=bool(landmark[i]),
                    landmarks_to_come=to_come,
                    regulars_to_come=int((~landmark[i + 1 : last]).sum()),
                    period=i // length,
                    n_landmarks=allowed,
                    n_windows=last - first,
                )
            )
        return windows
