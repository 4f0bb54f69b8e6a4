"""Profiles: usual counts by day type, time of day and cell, known before a run begins."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import DAY, DAY_TYPES, Window
from penstock.mechanisms.core.plugin import Checked, DataError, ParameterError, check_one_of, parameter

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Profile(Checked):
    """A file of usual counts, and the reason why a deployment may read it: it is public, or charged to a ledger.

    Examples
    --------
    >>> Profile(file="usual.json", declared="public").ledger is None
    True
    """

    file: str = parameter(kind="path", doc="file that `penstock learn --profile` wrote")
    declared: str | None = parameter(None, choices=("public",), doc="that the counts are of public data")
    ledger: str | None = parameter(None, kind="path", doc="ledger that holds the charges of the run it is learned from")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of({"declared": self.declared, "ledger": self.ledger}, required=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class UsualCounts:
    """The contents of a file of usual counts.

    Parameters
    ----------
    counts
        Shape (n_day_types, n_times_of_day, n_cells): people, as `DAY_TYPES` and equal parts of the day have them.
    cells
        Names of the cells.
    facts
        Where they are from: ``source``, ``run``, ``from``, ``until``, ``noise``.
    """

    counts: Array
    cells: tuple[str, ...]
    facts: dict[str, Any]

    def write(self, path: str | Path) -> None:
        """Write the usual counts to a JSON file."""
        values = {"day_types": DAY_TYPES, "cells": self.cells, "counts": self.counts.tolist(), "facts": self.facts}
        Path(path).write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def read(cls, path: str | Path) -> UsualCounts:
        """Read a file written by `write`, or raise `DataError` for any other file."""
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
            counts = np.asarray(values["counts"], np.float64)
            cells, facts = tuple(map(str, values["cells"])), dict(values["facts"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: not a file of usual counts: {error}") from error
        shape = counts.shape
        if counts.ndim != 3 or (shape[0], shape[2]) != (len(DAY_TYPES), len(cells)) or not shape[1]:
            expected = f"{len(DAY_TYPES)} types of day × times of day × {len(cells)} cells"
            raise DataError(f"{path}: counts of shape {shape} where they must be of {expected}")
        if not (np.isfinite(counts).all() and (counts >= 0).all()):
            raise DataError(f"{path}: counts that are no finite numbers of at least 0")
        return cls(counts=counts, cells=cells, facts=facts)

    def rows(self, n_slots: int, cells: tuple[str, ...] | None, n_cells: int) -> Array:
        """Return the usual counts for a run's cells and times of day, shape (n_day_types × n_slots, n_cells).

        A cell that the file lacks has no usual count (0). Raises `ParameterError` if no cell is in both.
        """
        if cells is None:
            if n_cells != len(self.cells):
                raise ParameterError("profile", f"{len(self.cells)} cells", f"one of {n_cells} cells, as the counts")
            cells = self.cells
        place = {name: number for number, name in enumerate(self.cells)}
        at = np.array([place.get(name, -1) for name in cells])
        if (at < 0).all():
            raise ParameterError("profile", self.cells[:3], f"one with cells of the run, such as {cells[0]!r}")
        n_times = self.counts.shape[1]
        times = (2 * np.arange(n_slots) + 1) * n_times // (2 * n_slots)
        counts = np.where(at < 0, 0.0, self.counts[:, times][:, :, at])
        return counts.reshape(-1, len(cells))

    def at(self, windows: Sequence[Window], cells: tuple[str, ...]) -> Array:
        """Return the usual counts of the given windows, shape (n_windows, n_cells)."""
        n_times = self.counts.shape[1]
        places = [window.day_type * n_times + window.time_of_day * n_times // DAY for window in windows]
        return self.rows(n_times, cells, len(cells))[places]
