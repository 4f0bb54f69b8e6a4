"""Sensors: the public schedule of the cells that publish in each window."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import Checked, DataError, ParameterError, check_one_of, nearest, parameter


@dataclass(frozen=True)
class SensorSchedule:
    """The active cells in every window, determined by public information only.

    O(n_cells) a window; memory O(pairs listed).
    """

    kind: str  # ``all``, ``one_random``, ``fixed`` or ``schedule``
    n_cells: int  # cells of the space
    seed: int = 0  # of ``one_random``: public, and nothing secret may use the same number
    # `windows`, `cells`: active pairs of window (1-based, sorted) and cell index; for ``fixed`` only ``cells``
    windows: tuple[int, ...] = ()
    cells: tuple[int, ...] = ()

    @property
    def all_active(self) -> bool:
        """Return whether every cell publishes in every window."""
        return self.kind == "all"

    def mask(self, window: int) -> NDArray[np.bool_]:
        """Return a mask of the cells active in one window (1-based), shape (n_cells,)."""
        mask: NDArray[np.bool_] = self.masks(window, window)[0]
        return mask

    def masks(self, first: int, last: int) -> NDArray[np.bool_]:
        """Return masks of the cells active in windows ``first`` through ``last``, shape (last − first + 1, n_cells)."""
        n_windows = last - first + 1
        if self.kind == "all":
            return np.ones((n_windows, self.n_cells), bool)
        masks = np.zeros((n_windows, self.n_cells), bool)
        if self.kind == "one_random":
            masks[np.arange(n_windows), self.random_cells(first, last)] = True
        elif self.kind == "fixed":
            masks[:, list(self.cells)] = True
        else:
            windows, cells = self._pairs
            listed = slice(*np.searchsorted(windows, [first, last + 1]))
            masks[windows[listed] - first, cells[listed]] = True
        return masks

    @cached_property
    def _pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return np.array(self.windows, np.int64), np.array(self.cells, np.int64)

    def random_cells(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the single cell active in each window under ``one_random``, shape (last − first + 1,).

        SplitMix64 (Steele, Lea, Flood 2014) of seed and window, modulo the number of cells: uniform up to
        n_cells/2⁶⁴, the same everywhere, and known to everybody who knows the seed.
        """
        windows = np.arange(first, last + 1, dtype=np.uint64)
        hashed = _split_mix(_split_mix(np.full_like(windows, self.seed % 2**64)) + windows)
        return (hashed % np.uint64(self.n_cells)).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Sensors(Checked):
    """The choice of active sensors: all cells, a random one per window, a fixed set or a schedule read from a file.

    Parameters
    ----------
    active
        ``all`` (the default where nothing else is given) or ``one_random``.
    fixed
        Names of the cells that publish in every window; no other does.
    schedule
        CSV file with the columns ``window`` (1-based) and ``cell``, one row for each active cell; in windows that it
        does not name no sensor publishes.

    Examples
    --------
    >>> schedule = Sensors(active="one_random").prepare(("a", "b", "c"), seed=7)
    >>> schedule.masks(1, 100).sum(axis=1).tolist() == [1] * 100
    True
    >>> Sensors(fixed=("b",)).prepare(("a", "b", "c"), seed=7).mask(1)
    array([False,  True, False])
    """

    active: str | None = parameter(None, choices=("all", "one_random"), doc="all sensors, or one at random a window")
    fixed: tuple[str, ...] = parameter((), doc="cells that publish in every window")
    schedule: str | None = parameter(None, kind="path", doc="CSV file with the columns window and cell")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of({"active": self.active, "fixed": self.fixed, "schedule": self.schedule}, required=False)

    def prepare(self, cells: tuple[str, ...], seed: int) -> SensorSchedule:
        """Resolve the cell names, read the schedule file if there is one and return the schedule."""
        position = {cell: index for index, cell in enumerate(cells)}
        if self.fixed:
            for cell in self.fixed:
                if cell not in position:
                    raise ParameterError("fixed", cell, "a cell of the space" + _suggestion(cell, cells))
            return SensorSchedule("fixed", len(cells), cells=tuple(sorted({position[cell] for cell in self.fixed})))
        if self.schedule is not None:
            pairs = sorted(set(_read_schedule(Path(self.schedule), position)))
            windows, indices = (tuple(column) for column in zip(*pairs)) if pairs else ((), ())
            return SensorSchedule("schedule", len(cells), windows=windows, cells=indices)
        return SensorSchedule(self.active or "all", len(cells), seed=seed)


def _read_schedule(path: Path, position: dict[str, int]) -> Iterator[tuple[int, int]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if not {"window", "cell"} <= set(reader.fieldnames or ()):
                raise DataError(f"{path}:1: the header must name the columns window and cell")
            for row in reader:
                window, cell = (row["window"] or "").strip(), (row["cell"] or "").strip()
                if not window.isdecimal() or int(window) < 1:
                    raise DataError(f"{path}:{reader.line_num}: window {window!r} must be a whole number of at least 1")
                if cell not in position:
                    near = _suggestion(cell, tuple(position))
                    raise DataError(f"{path}:{reader.line_num}: {cell!r} is not a cell of the space{near}")
                yield int(window), position[cell]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: {error}") from error


def _suggestion(name: str, names: tuple[str, ...]) -> str:
    near = nearest(name, names)
    return f" (did you mean {near!r}?)" if near else ""


def _split_mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply one step of SplitMix64 to every state in an array."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
