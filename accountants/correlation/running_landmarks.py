"""The landmark loss kept up to date release by release: closed gaps are two numbers, the open one a few arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from accountants.correlation.bridges import to_end
from accountants.correlation.hull import Array
from accountants.correlation.landmark_losses import LandmarkModel, Method
from accountants.correlation.running import State
from mechanisms.core.errors import ParameterError


@dataclass(frozen=True, kw_only=True)
class LandmarkFigures:
    """Landmark losses given the releases so far, in nats.

    Parameters
    ----------
    landmarks
        Loss about all landmarks together; 0 before the first.
    now
        Loss about all landmarks and the release just made.
    largest
        The overall loss: the largest over every release so far.
    closed_from, closed
        Releases, the first with this 1-based index, whose part became final with this step: from now on the loss at
        each is `landmarks` plus its entry of `closed`. Empty unless a landmark ended a gap.
    """

    landmarks: float
    now: float
    largest: float
    closed_from: int
    closed: Array


class RunningLandmarkLoss:
    """Landmark loss of a series, one release at a time; equals `landmark_temporal_privacy_loss` at every prefix.

    Parameters
    ----------
    backward, forward, method
        As in `landmark_temporal_privacy_loss`.
    longest_gap
        Releases without a landmark after which the next is treated as one; bounds state and time. Knowing one more
        value can only raise the true loss, so that the sound bound stays sound.

    model
        An adversary made before, in place of `backward`, `forward` and `method`.

    Notes
    -----
    Call m the open gap's length and n the number of states. A step takes O(m·n) evaluations (O(m) for ``paper``); the
    landmark that ends a gap O(m²·n), vectorised. State: O(m + n) numbers.

    Examples
    --------
    >>> matrix = [[0.8, 0.2], [0.2, 0.8]]
    >>> running = RunningLandmarkLoss(backward=matrix, forward=matrix)
    >>> state = running.start()
    >>> for landmark in (True, False, True):
    ...     state, figures = running.step(state, 0.5, landmark)
    >>> round(figures.landmarks, 4), round(figures.largest, 4)
    (1.487, 1.5)
    """

    def __init__(
        self,
        *,
        backward: Any = None,
        forward: Any = None,
        method: Method = "sound",
        longest_gap: int = 1000,
        model: LandmarkModel | None = None,
    ) -> None:
        if isinstance(longest_gap, bool) or not isinstance(longest_gap, int | np.integer) or longest_gap < 1:
            raise ParameterError("longest_gap", longest_gap, "a whole number of at least 1 (releases)")
        self.model = LandmarkModel(backward, forward, method) if model is None else model
        self.longest_gap = int(longest_gap)

    def start(self) -> State:
        """State before the first release."""
        n_ends = max((back.n_ends for _, back in self.model.adversaries), default=1)
        return {
            "releases": np.zeros(1, dtype=np.int64),
            "landmarks": np.zeros(1, dtype=np.int64),
            "spent": np.zeros(1),
            "largest_closed": np.full(1, -np.inf),
            "charges": np.empty(0),
            "left": np.zeros(1),
            "from_left": np.zeros((len(self.model.adversaries), n_ends)),
        }

    def step(self, state: State, epsilon: float, landmark: bool) -> tuple[State, LandmarkFigures]:
        """Add one release.

        Parameters
        ----------
        state
            State after the release before; left as it is.
        epsilon
            Pure epsilon of this release for replacing a value; 0 for a repeated or skipped one.
        landmark
            Whether it is a landmark.

        Returns
        -------
        State, LandmarkFigures
            The new state and the losses given the releases so far.

        Raises
        ------
        ParameterError
            `epsilon` is negative or NaN.
        """
        if not epsilon >= 0:
            raise ParameterError("epsilon", epsilon, "a number of at least 0")
        if landmark or len(state["charges"]) >= self.longest_gap:
            return self._close(state, float(epsilon))
        return self._extend(state, float(epsilon))

    def _extend(self, state: State, epsilon: float) -> tuple[State, LandmarkFigures]:
        has_left = bool(state["landmarks"][0])
        charges = np.append(state["charges"], epsilon)
        gap, from_left = self._next_gap(charges, state["from_left"])
        if not has_left:
            gap = self.model.head(float(state["left"][-1]) + epsilon)
        new_state = {
            **state,
            "releases": state["releases"] + 1,
            "charges": charges,
            "left": np.append(state["left"], gap),
            "from_left": from_left,
        }
        right = self.model.after(charges)
        spent = float(state["spent"][0])
        losses = spent + (new_state["left"][:-1] + charges + right[1:])
        landmarks = spent + float(right[0]) if has_left else 0.0
        largest = max(float(losses.max()), landmarks + float(state["largest_closed"][0]))
        figures = LandmarkFigures(
            landmarks=landmarks, now=float(losses[-1]), largest=largest, closed_from=0, closed=np.empty(0)
        )
        return new_state, figures

    def _close(self, state: State, epsilon: float) -> tuple[State, LandmarkFigures]:
        charges, left = np.asarray(state["charges"], dtype=float), np.asarray(state["left"], dtype=float)
        without = float(left[-1])
        within = left[:-1] + charges + self.model.gaps_back(charges)[1:]
        closed = np.subtract(within, without, out=np.zeros_like(within), where=np.isfinite(without))
        spent = state["spent"] + without + epsilon
        largest_closed = np.array([closed.max(initial=max(0.0, float(state["largest_closed"][0])))])
        new_state = {
            "releases": state["releases"] + 1,
            "landmarks": state["landmarks"] + 1,
            "spent": spent,
            "largest_closed": largest_closed,
            "charges": np.empty(0),
            "left": np.zeros(1),
            "from_left": np.zeros_like(state["from_left"]),
        }
        loss = float(spent[0])
        figures = LandmarkFigures(
            landmarks=loss,
            now=loss,
            largest=loss + float(largest_closed[0]),
            closed_from=int(state["releases"][0]) - len(charges) + 1,
            closed=closed,
        )
        return new_state, figures

    def _next_gap(self, charges: Array, from_left: Array) -> tuple[float, Array]:
        """Term of the gap that holds these charges, and the runs from its left end, for each adversary and end."""
        n = len(charges)
        terms, runs = [0.0], np.empty_like(from_left)
        for at, (ahead, back) in enumerate(self.model.adversaries):
            runs[at] = back.step(n, charges[-1] + from_left[at])
            both = to_end(charges, ahead)[0].max() + runs[at].max()
            terms.append(self.model.capped_gap(float(both), charges, ahead))
        return max(terms), runs
