"""Base classes for mechanisms that buffer a block of windows and release them together."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Facts, Interpretation, Mechanism, Release, Window
from penstock.mechanisms.core.events import FREE, Event, Exact
from penstock.mechanisms.core.events import Block as BlockEvent
from penstock.mechanisms.core.noise import Noise
from penstock.mechanisms.core.plugin import parameter
from penstock.mechanisms.core.state import State

_WORD = 64


def waiting(facts: Facts, n_windows: int) -> State:
    """Return the initial state of a block of up to ``n_windows``, with buffers for each window's public attributes."""
    words = -(-facts.n_cells // _WORD)
    return {
        "block_first": facts.constant(0, np.int64),
        "block_last": facts.constant(0, np.int64),
        "block_end": facts.constant(0, np.int64),
        "block_landmark": np.zeros((*facts.shape, n_windows), bool),
        "block_active": np.zeros((*facts.shape, n_windows, words), np.uint64),
    }


def seen(window: Window, row: int, state: State) -> State:
    """Store the public attributes of a window in its block's state, at row ``row`` (0-based)."""
    first = np.where(state["block_first"] == 0, window.index, state["block_first"])
    landmark, active = state["block_landmark"].copy(), state["block_active"].copy()
    landmark[..., row] = window.landmark
    # All ones stand for "every sensor", also where the last word has more bits than there are cells.
    active[..., row, :] = ~np.uint64(0)
    if window.active is not None:
        bits = np.zeros(active.shape[-1] * _WORD, bool)
        bits[: len(window.active)] = window.active
        active[..., row, :] = np.packbits(bits, bitorder="little").view("<u8")
    return {
        "block_first": first,
        "block_last": np.full_like(first, window.index),
        "block_end": np.full_like(first, window.end),
        "block_landmark": landmark,
        "block_active": active,
    }


def release_windows(
    state: State, row: int, values: NDArray[Any], charge: tuple[Event, ...], **common: Any
) -> list[Release]:
    """Release all of a block's windows at its end. The first release carries the whole charge."""
    # `row` is the place of the first window seen in its block, `values` (..., n_windows, n_cells) has one row for each,
    # `charge` is that of the whole block, and `common` are further fields of every release.
    first, last, end = (int(np.max(state[name])) for name in ("block_first", "block_last", "block_end"))
    n_cells = values.shape[-1]
    landmark = state["block_landmark"].reshape(-1, state["block_landmark"].shape[-1])[0]
    active = state["block_active"].reshape(-1, *state["block_active"].shape[-2:])[0]
    whole = tuple(e if isinstance(e, FREE) else BlockEvent(e, first, last) for e in charge)
    releases = []
    for place, index in enumerate(range(first, last + 1)):
        bits = np.unpackbits(active[row + place].astype("<u8").view(np.uint8), bitorder="little").astype(bool)
        mask = None if bits.all() else bits[:n_cells]
        shown = np.array(values[..., place, :], np.float64)
        releases.append(
            Release(
                window=index,
                values=shown if mask is None else np.where(mask, shown, np.nan),
                charge=whole if index == first else (),
                landmark=bool(landmark[row + place]),
                available_at=end,
                active=mask,
                **common,
            )
        )
    return releases


@dataclass(frozen=True, kw_only=True)
class BlockMechanism(Mechanism):
    """Base class for mechanisms that release ``block`` windows together. The first block starts at window 1."""

    block: int = parameter(doc="windows that are released together", at_least=1)

    @abstractmethod
    def empty(self, facts: Facts) -> State:
        """Return the empty accumulator for `gather`."""

    @abstractmethod
    def gather(self, row: int, n_windows: int, counts: NDArray[Any], state: State) -> State:
        """Add one window, at row ``row`` (0-based) of its block, and return the updated entries of `empty`."""

    @abstractmethod
    def publish(self, n_windows: int, state: State, noise: Noise) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Return the block's values, shape (..., n_windows, n_cells), and any additional fields for its releases."""

    @abstractmethod
    def block_charge(self, n_windows: int, state: State) -> tuple[Event, ...]:
        """Return the privacy charge of a block of ``n_windows`` windows."""

    def blocks(self, rows: NDArray[Any]) -> list[NDArray[Any]]:
        """Split a run, shape (..., n_windows, n_cells), into blocks. The last one may be shorter."""
        return [rows[..., first : first + self.block, :] for first in range(0, rows.shape[-2], self.block)]

    def start(self, facts: Facts) -> State:
        """Return the initial state."""
        length = np.full(facts.shape, facts.n_windows or 0, np.int64)
        return {"n_windows": length} | waiting(facts, self.block) | self.empty(facts)

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Add one window to the block. If it is the last one, release the whole block."""
        row, n_windows = self._place(window.index, state)
        state = state | seen(window, row, state)
        state = state | self.gather(row, n_windows, counts, state)
        if row < n_windows - 1:
            return [], state
        cleared = {name: value if name in self.kept else np.zeros_like(value) for name, value in state.items()}
        return self._release(state, noise), cleared

    def finish(self, state: State, noise: Noise) -> list[Release]:
        """Release the windows of an incomplete block, treating missing windows as empty."""
        return self._release(state, noise) if int(np.max(state["block_first"])) else []

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """Return the block's charge at its first window, or an empty charge at later windows."""
        if int(np.max(state["block_first"])):
            return ()
        row, n_windows = self._place(window.index, state)
        last = window.index + n_windows - row - 1
        return tuple(BlockEvent(event, window.index, last) for event in self.block_charge(n_windows, state))

    def _place(self, index: int, state: State) -> tuple[int, int]:
        """Return the row of a window in its block (0-based) and the block's size. The last block may be shorter."""
        row = (index - 1) % self.block
        total = int(np.max(state["n_windows"]))
        return row, min(self.block, total - index + row + 1) if total else self.block

    def _release(self, state: State, noise: Noise) -> list[Release]:
        row, n_windows = self._place(int(np.max(state["block_first"])), state)
        values, common = self.publish(n_windows, state, noise)
        n_seen = int(np.max(state["block_last"] - state["block_first"])) + 1
        shown = values[..., row : row + n_seen, :]
        return release_windows(state, row, shown, self.block_charge(n_windows, state), **common)

    #: Entries of the state that outlive a block.
    kept: ClassVar[tuple[str, ...]] = ("n_windows",)


class CountsOfBlock(BlockMechanism, Interpretation):
    """Base class for noise-free mechanisms that process all counts in a block together."""

    @abstractmethod
    def generalize(self, counts: NDArray[Any]) -> NDArray[Any]:
        """Generalise the counts of a block, shape (..., n_windows, n_cells)."""

    def empty(self, facts: Facts) -> State:
        """Return an empty buffer for the counts of one block."""
        return {"counts": np.zeros((*facts.shape, self.block, facts.n_cells), np.int64)}

    def gather(self, row: int, n_windows: int, counts: NDArray[Any], state: State) -> State:
        """Store the counts of one window in the buffer."""
        kept = state["counts"].copy()
        kept[..., row, :] = counts
        return {"counts": kept}

    def publish(self, n_windows: int, state: State, noise: Noise) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Return the block's generalised counts."""
        return np.asarray(self.generalize(state["counts"][..., :n_windows, :]), np.float64), {}

    def block_charge(self, n_windows: int, state: State) -> tuple[Event, ...]:
        """Return the charge of an exact release."""
        return (Exact(),)

    def without_noise(self, counts: NDArray[Any]) -> NDArray[Any]:
        """Generalise the counts block by block; no noise is involved."""
        return np.concatenate([self.generalize(block) for block in self.blocks(counts)], axis=-2)
