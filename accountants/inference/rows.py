"""The books of targets as rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountants.core.accountant import AccountRow, Rows

FloatArray = NDArray[np.float64]

#: Figures of the coming windows as `horizon_bounds` calls them, and how their rows are called, with the unit.
COMING = {
    "loose": ("loose_bound", "probability"),
    "tight": ("tight_bound", "probability"),
    "leakage": ("leakage_bound", "probability"),
    "first_moment": ("first_moment_bound", "probability"),
    "segment": ("segment_bound", "probability"),
    "best": ("best_bound", "probability"),
    "ball": ("ball", "probability"),
    "information": ("information", "nats"),
}


@dataclass(frozen=True)
class RowWriter:
    """Makes the rows of a run: subjects are numbered, for a row must name nobody.

    Parameters
    ----------
    assumption
        The prior in words.
    horizon, tolerance
        T and s.
    """

    assumption: str
    horizon: int
    tolerance: int

    def coming(self, subjects: Iterable[int], window: int, bounds: dict[str, FloatArray]) -> Rows:
        """Bounds on attacks on the horizon that begins with a window; said before its release, hence final."""
        text = self._text(f"success against {self.horizon} windows from this one on, at most {self.tolerance} wrong")
        columns = [(*COMING[name], values.tolist()) for name, values in bounds.items() if name in COMING]
        return [
            AccountRow(f"target {subject}", window, name, values[i], unit=unit, adjacency=text)
            for i, subject in enumerate(subjects)
            for name, unit, values in columns
        ]

    def realised(self, subjects: Iterable[int], window: int, risk: dict[str, NDArray[Any]], status: str) -> Rows:
        """What is known about the windows up to one, now; later releases tell more."""
        n_steps = risk["marginals"].shape[1]
        text = self._text(
            f"success against the last {n_steps} windows given the releases so far, at most {self.tolerance} wrong"
        )
        low, high = risk["low"].tolist(), risk["high"].tolist()
        return [
            AccountRow(
                f"target {subject}", window, "realised_risk", high[i], low[i], high[i], "probability", text, status
            )
            for i, subject in enumerate(subjects)
        ]

    def places(self, subjects: Iterable[int], window: int, likeliest: FloatArray) -> Rows:
        """Probability of the likeliest place of a window, smoothed by the windows after it; (n_targets,)."""
        text = self._text(f"place in this window given the releases up to {self.horizon - 1} windows later")
        return [
            AccountRow(f"target {subject}", window, "place_known", value, unit="probability", adjacency=text)
            for subject, value in zip(subjects, likeliest.tolist())
        ]

    def visits(self, subjects: Iterable[int], window: int, frequency: FloatArray) -> Rows:
        """Share of the windows so far in a cell that published, (n_targets,)."""
        text = "windows up to this one in which the target was in a cell whose count was published"
        return [
            AccountRow(f"target {subject}", window, "visit_frequency", value, unit="share", adjacency=text)
            for subject, value in zip(subjects, frequency.tolist())
        ]

    def gaps(self, subjects: Iterable[int], gaps: FloatArray) -> Rows:
        """Spectral gap of each target's prior: how fast it forgets where it was."""
        text = self._text("of the transition matrix that the adversary knows")
        return [
            AccountRow(f"target {subject}", None, "spectral_gap", gap, unit="1", adjacency=text)
            for subject, gap in zip(subjects, gaps.tolist())
        ]

    def _text(self, what: str) -> str:
        return f"{what}; everybody else's cells known, {self.assumption}"
