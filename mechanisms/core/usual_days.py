"""Usual days: mean noisy counts by day type and time of day, reduced to the few patterns that exceed the noise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import DAY, DAY_TYPES, Facts, Window
from penstock.mechanisms.core.intervals import TINY
from penstock.mechanisms.core.plugin import Checked, DataError, ParameterError, check_one_of, parameter
from penstock.mechanisms.core.state import State

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Profile(Checked):
    """A file of usual counts and the reason why a deployment may read it: it is public or charged to a ledger."""

    file: str = parameter(kind="path", doc="file that `penstock learn --profile` wrote")
    declared: str | None = parameter(None, choices=("public",), doc="that the counts are of public data")
    ledger: str | None = parameter(None, kind="path", doc="ledger that holds the charges of the run it is learned from")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of({"declared": self.declared, "ledger": self.ledger}, required=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class UsualCounts:
    """The contents of a usual-counts file."""

    counts: Array  # people, shape (n_day_types, n_times_of_day, n_cells); times of day are equal parts of it
    cells: tuple[str, ...]  # names of the cells
    facts: dict[str, Any]  # where they are from: source, run, from, until, noise

    def write(self, path: str | Path) -> None:
        """Write the usual counts to a JSON file."""
        values = {"day_types": DAY_TYPES, "cells": self.cells, "counts": self.counts.tolist(), "facts": self.facts}
        Path(path).write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def read(cls, path: str | Path) -> UsualCounts:
        """Read a file written by `write`. Raise `DataError` if it is anything else."""
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
        """Return usual counts by time of day, shape (n_day_types × n_slots, n_cells), or 0 for unknown cells."""
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
        """Return usual counts for the given windows, shape (n_windows, n_cells)."""
        n_times = self.counts.shape[1]
        places = [window.day_type * n_times + window.time_of_day * n_times // DAY for window in windows]
        return self.rows(n_times, cells, len(cells))[places]


#: How many patterns are kept at most, beside the cells' means.
PATTERNS = 8
#: The patterns are worked out again when there are as many more windows, as a share of those before or of a day.
GROWTH, DAY_FRACTION = 0.1, 0.5


class Noisy(NamedTuple):
    """Published counts and their noise variance. Cells that are not ``seen`` have count 0 and variance 1."""

    values: Array
    variance: Array
    seen: NDArray[np.bool_]


def start(facts: Facts, n_slots: int, profile: Array | None = None) -> State:
    """Return the initial state, which is empty or based on a profile with all rows, shape (n_rows, n_cells)."""
    shape, n_cells, n_rows = facts.shape, facts.n_cells, len(DAY_TYPES) * n_slots
    n_patterns = 1 + min(PATTERNS, n_rows)
    state = {
        # Means of the noisy counts by type of day and time of day, weighted by their precisions; the variances of
        # their noise, 0 where nothing was seen.
        "means": np.zeros((*shape, n_rows, n_cells)),
        "variances": np.zeros((*shape, n_rows, n_cells)),
        # A row is usually its sizes × the patterns, of which the first are the cells' means, or those of the profile.
        "sizes_of_patterns": np.zeros((*shape, n_rows, n_patterns)),
        "patterns": np.zeros((*shape, n_patterns, n_cells)),
        # Windows of which something was seen, and how many they were when the patterns were worked out.
        "n_windows": facts.constant(0, np.int64),
        "n_in_patterns": facts.constant(0, np.int64),
    }
    if profile is not None:
        state["profile"] = np.broadcast_to(profile, (*shape, n_rows, n_cells)).copy()
        state["patterns"][..., 0, :] = profile.mean(0)
        state["sizes_of_patterns"][..., 0] = 1.0
    return state


def usual(rows: Sequence[int], state: State) -> Array:
    """Return usual counts for the given rows, where row = day type × number of times of day + time of day."""
    sizes, patterns = state["sizes_of_patterns"][..., rows, :], state["patterns"]
    if "profile" not in state:
        return np.asarray(np.maximum(np.einsum("...kr,...rc->...kc", sizes, patterns), 0.0))
    rest = np.einsum("...kr,...rc->...kc", sizes[..., 1:], patterns[..., 1:, :])
    return np.asarray(np.maximum(sizes[..., :1] * state["profile"][..., rows, :] + rest, 0.0))


def learned(row: int, noisy: Noisy, predicted: Array, noise: Array, per_day: int, state: State) -> State:
    """Return the updated state entries after adding a window's noisy counts to its row's mean."""
    # `predicted` stands for cells of which nothing was seen so far in this row, where others were. `noise`, shape
    # (...), is the variance of the noise of a count, on average over the cells, when something was published last.
    means, variances = state["means"].copy(), state["variances"].copy()
    before, variance = variances[..., row, :], np.maximum(noisy.variance, TINY)
    new = before == 0
    begin = np.where(new & np.asarray(noisy.seen.any(-1))[..., None], predicted, means[..., row, :])
    gain = np.where(new, 1.0, before / (before + variance)) * noisy.seen
    means[..., row, :] = begin + gain * (noisy.values - begin)
    variances[..., row, :] = np.where(noisy.seen, np.where(new, variance, (1.0 - gain) * before), before)
    after = {"means": means, "variances": variances, "n_windows": state["n_windows"] + noisy.seen.any(-1)}
    done = state["n_in_patterns"]
    more = after["n_windows"] - done
    is_due = (more > 0) & (new.all(-1) | (more >= np.minimum(GROWTH * done, DAY_FRACTION * per_day)))
    if is_due.any():
        fresh = _in_patterns(means, variances, np.maximum(noise, TINY)[..., None], state.get("profile"))
        fresh |= {"n_in_patterns": after["n_windows"]}
        for name, array in fresh.items():
            after[name] = np.where(is_due.reshape(is_due.shape + (1,) * (array.ndim - is_due.ndim)), array, state[name])
    return after


# BLAS has one thread, and no sum over cells: its last bit may depend on the number of threads.


def _in_patterns(means: Array, variances: Array, noise: Array, profile: Array | None) -> State:
    """Decompose the rows of means into patterns and the weights of each row."""
    n_rows, n_cells = means.shape[-2:]
    precision = _inverse(variances)
    mean = _mean(means, precision)
    first = mean[..., None, :] if profile is None else profile
    total = np.maximum(first.sum(-1), TINY)
    # The matrix of means is row's total by cell's share, and a rest. Of the rest, in units of the noise of each entry,
    # a singular value s stands out of noise above √m + √n, and without noise is sqrt((s² − m − n)² − 4·m·n)/s of an
    # m × n matrix (Gavish and Donoho 2017, Frobenius loss); `gram` holds the products of the rows.
    rows, is_seen = means.sum(-1), np.asarray((precision > 0).any(-1))
    scale = 1.0 / np.sqrt(mean + noise)
    rest = (means - (rows / total)[..., None] * first) * is_seen[..., None] * scale[..., None, :]
    n_seen = np.maximum((precision > 0).sum(-1), 1)
    n_windows = noise * precision.sum(-1) / n_seen
    weighted = np.sqrt(n_windows)[..., None] * rest
    gram = np.einsum("...ic,...jc->...ij", weighted, weighted)
    from threadpoolctl import threadpool_limits  # which a check of a configuration needs not

    with threadpool_limits(1):
        squares, axes = np.linalg.eigh(gram)
    n_kept = min(PATTERNS, n_rows)
    squares, axes = squares[..., ::-1][..., :n_kept], axes[..., ::-1][..., :n_kept]
    m = is_seen.sum(-1)[..., None]
    is_significant = squares > np.maximum((np.sqrt(m) + np.sqrt(n_cells)) ** 2, TINY)
    squares = np.where(is_significant, squares, np.inf)
    less = (
        np.sqrt(np.maximum((1.0 - (m + n_cells) / squares) ** 2 - 4 * m * n_cells / squares**2, 0.0)) * is_significant
    )
    patterns = np.einsum("...ir,...ic->...rc", axes, weighted) / np.sqrt(squares)[..., None]
    sizes = less[..., None, :] * np.einsum("...kc,...rc->...kr", rest, patterns)
    doubt = np.broadcast_to(_inverse(n_windows)[..., None], sizes.shape)
    return {
        "patterns": np.concatenate([mean[..., None, :], patterns / scale[..., None, :]], -2),
        "sizes_of_patterns": _by_type(
            np.concatenate([(rows / total)[..., None], sizes], -1),
            np.concatenate([(variances.sum(-1) / total**2)[..., None], doubt], -1),
        ),
    }


def _mean(means: Array, precision: Array) -> Array:
    """Return the mean of each cell over times of day, shrunk towards the mean over all cells."""
    by_type = (*means.shape[:-2], len(DAY_TYPES), -1, means.shape[-1])
    of_time = precision.reshape(by_type).sum(-3)
    at_time = (precision * means).reshape(by_type).sum(-3) * _inverse(of_time)
    n_seen = np.maximum((of_time > 0).any(-1).sum(-1), 1)[..., None]
    return np.maximum(shrunk(at_time.sum(-2) / n_seen, _inverse(of_time).sum(-2) / n_seen**2), 0.0)


def shrunk(means: Array, variance: Array) -> Array:
    """Shrink cell means towards the grand mean by the fraction of their variance that is due to noise."""
    # Empirical Bayes (Efron and Morris 1973): noise must not make a cell look busy. A cell of variance 0 was not seen.
    seen = variance > 0
    n = np.maximum(seen.sum(-1), 1)[..., None]
    centre = (means * seen).sum(-1)[..., None] / n
    spread = (seen * (means - centre) ** 2).sum(-1)[..., None] / np.maximum(n - 1, 1)
    between = np.maximum(spread - variance.sum(-1)[..., None] / n, 0.0)
    return np.asarray(np.where(seen, centre + between / np.maximum(between + variance, TINY) * (means - centre), means))


def _by_type(sizes: Array, variance: Array) -> Array:
    """Shrink each day type's weights towards the average weights at the same time of day, depending on the noise."""
    # A weekday and a weekend are drawn to their mean, then Saturday and Sunday to the weekend.
    shape = (*sizes.shape[:-2], len(DAY_TYPES), -1, sizes.shape[-1])
    sizes, precision = sizes.reshape(shape), _inverse(variance).reshape(shape)
    weekend, weekend_precision = _pool(sizes[..., 1:, :, :], precision[..., 1:, :, :], -3)
    day_sizes = np.concatenate([sizes[..., :1, :, :], weekend], -3)
    day_precision = np.concatenate([precision[..., :1, :, :], weekend_precision], -3)
    usual, total_precision = _pool(day_sizes, day_precision, -3)
    # A time of day that was never seen is as the others.
    usual = np.where(total_precision > 0, usual, _pool(usual, total_precision, -2)[0])
    day_sizes = _shrink_towards(usual, total_precision, day_sizes, day_precision)
    of_type = _shrink_towards(
        day_sizes[..., 1:, :, :], weekend_precision, sizes[..., 1:, :, :], precision[..., 1:, :, :]
    )
    stacked = np.concatenate([day_sizes[..., :1, :, :], of_type], -3)
    return stacked.reshape(*shape[:-3], -1, shape[-1])


def _pool(values: Array, precision: Array, axis: int) -> tuple[Array, Array]:
    """Return the precision-weighted mean and its precision."""
    together = precision.sum(axis, keepdims=True)
    return (precision * values).sum(axis, keepdims=True) * _inverse(together), together


def _shrink_towards(centre: Array, precision: Array, values: Array, each: Array) -> Array:
    """Shrink values towards their mean, using one factor for all times of day (the second-to-last axis)."""
    deviations = np.where(each > 0, values - centre, 0.0)
    noise = np.where(each > 0, np.maximum(_inverse(each) - _inverse(precision), 0.0), 0.0)
    n_seen = np.maximum((each > 0).sum(-2, keepdims=True), 1)
    between = np.maximum((deviations**2 - noise).sum(-2, keepdims=True) / n_seen, 0.0)
    return np.asarray(centre + between / np.maximum(between + noise, TINY) * deviations)


def _inverse(values: Array) -> Array:
    """Return the reciprocal of each value, or 0 if the value is 0."""
    return np.where(values > 0, 1.0 / np.where(values > 0, values, 1.0), 0.0)
