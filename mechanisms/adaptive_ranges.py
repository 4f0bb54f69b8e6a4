"""Ranges of each cell's own size: every count is shown as the middle of one of a few parts of the cell's span."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.blocks import CountsOfBlock
from penstock.mechanisms.core.contract import Facts, Release, Transformation, Window
from penstock.mechanisms.core.events import Event
from penstock.mechanisms.core.plugin import parameter
from penstock.mechanisms.core.state import State

if TYPE_CHECKING:
    from penstock.mechanisms.core.draws import Noise


@dataclass(frozen=True, kw_only=True)
class AdaptiveRanges(Transformation):
    """Cut each cell's span from its least to its greatest count into equal parts, and show the middle of the part.

    Parameters
    ----------
    parts
        Equal parts of each cell's span.
    block
        Windows over which the span is taken and that are released together, as in the paper; unset: the running form,
        whose span is that of all windows so far, so that every window is released when it is over.

    **Privacy.** None: no guarantee, since the span and the parts are those of true counts. After a private release the
    running form is post-processing and costs nothing.

    Notes
    -----
    Time O(n_cells) a window; state O(n_cells), or O(block · n_cells). A cell that never changes is shown as it is.
    Pyrgelis, Troncoso, De Cristofaro 2020, data generalization with adaptive ranges.

    Examples
    --------
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> counts = np.array([[0], [10], [4]])
    >>> [r.values.item() for r in run_mechanism(AdaptiveRanges(parts=2, block=3), counts)]
    [2.5, 7.5, 2.5]
    >>> [r.values.item() for r in run_mechanism(AdaptiveRanges(parts=2), counts)]
    [0.0, 7.5, 2.5]
    """

    parts: int = parameter(doc="equal parts of each cell's span", at_least=1)
    block: int | None = parameter(
        None, doc="windows over which the span is taken and that are released together; unset: running", at_least=1
    )
    ideal: ClassVar[str] = "the middle of the part of the cell's span that holds the count"

    @classmethod
    def examples(cls) -> tuple[AdaptiveRanges, ...]:
        """Both forms."""
        return cls(parts=4), cls(parts=4, block=5)

    @property
    def follows(self) -> bool:
        """The running form may stand after a release; a block must be read as true counts."""
        return self.block is None

    @property
    def _of_block(self) -> _RangesOfBlock | None:
        return None if self.block is None else _RangesOfBlock(parts=self.parts, block=self.block)

    def start(self, facts: Facts) -> State:
        """No span yet."""
        if self._of_block:
            return self._of_block.start(facts)
        return {name: np.full((*facts.shape, facts.n_cells), np.nan) for name in ("low", "high")}

    def transform(self, values: NDArray[np.float64], state: State) -> tuple[NDArray[np.float64], State]:
        """Widen the span by this window, then show the middles."""
        span = {"low": np.fmin(state["low"], values), "high": np.fmax(state["high"], values)}
        return middles(values, span["low"], span["high"], self.parts), span

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Release one window, or wait for the end of its block."""
        form = self._of_block
        return form.step(window, counts, state, noise) if form else super().step(window, counts, state, noise)

    def finish(self, state: State, noise: Noise) -> list[Release]:
        """The windows of a block that did not become full."""
        return self._of_block.finish(state, noise) if self._of_block else []

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """An exact release, of the window or of the block that it begins."""
        return self._of_block.worst_charge(window, state) if self._of_block else super().worst_charge(window, state)

    def without_noise(self, counts: NDArray[Any]) -> NDArray[Any]:
        """The middles."""
        if self._of_block:
            return self._of_block.without_noise(counts)
        low, high = (extreme.accumulate(counts, axis=0) for extreme in (np.minimum, np.maximum))
        return middles(counts, low, high, self.parts)


@dataclass(frozen=True, kw_only=True)
class _RangesOfBlock(CountsOfBlock):
    """The block form."""

    parts: int
    block: int

    @property
    def length(self) -> int:
        """Windows of a block."""
        return self.block

    def generalize(self, counts: NDArray[Any]) -> NDArray[Any]:
        """Middles of parts of each cell's span over the block."""
        low, high = counts.min(axis=-2, keepdims=True), counts.max(axis=-2, keepdims=True)
        return middles(counts, low, high, self.parts)


def middles(values: NDArray[Any], low: NDArray[Any], high: NDArray[Any], parts: int) -> NDArray[np.float64]:
    """The middle of the part of [low, high] that holds each value; the value itself where low equals high.

    >>> middles(np.array([0.0, 10.0]), np.array([0.0]), np.array([10.0]), 4).tolist()
    [1.25, 8.75]
    """
    width = (high - low) / parts
    part = np.clip(np.floor((values - low) / np.where(width == 0, 1.0, width)), 0, parts - 1)
    return np.asarray(np.where(width == 0, values, low + (part + 0.5) * width), np.float64)
