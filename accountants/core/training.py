"""The training part of a stream: people's cells before accounting starts. Only the operator may see it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Training:
    """Each person's cell in each of a stream's first windows. Only the operator may see it."""

    # shape (n_users, n_windows), integers: the one cell a person counts in, -1 where not seen
    trajectories: NDArray[np.integer[Any]]
    # shape (n_users, 1) or (n_users, 2): identity of each row, as in counting (a digest in deployment)
    users: NDArray[np.int64]
    n_cells: int  # cells of the space
    # share of all people seen that these are; below 1 where a random part of them was kept to bound memory
    share: float = 1.0
    # row of each of the accountant's `Accountant.named_users`, -1 for those who are not here
    named: tuple[int, ...] = ()

    @property
    def n_users(self) -> int:
        """The number of people."""
        return len(self.trajectories)

    @property
    def n_windows(self) -> int:
        """The number of windows."""
        return int(self.trajectories.shape[1])

    def first(self, n_windows: int) -> Training:
        """Keep only the first ``n_windows`` windows. People not seen in them keep rows of -1."""
        return replace(self, trajectories=self.trajectories[:, :n_windows])

    def with_unseen(self) -> NDArray[np.integer[Any]]:
        """Return the trajectories with an extra place, ``n_cells``, for windows without a sighting."""
        return np.where(self.trajectories < 0, self.n_cells, self.trajectories)
