"""Releases, truth and accounts as Arrow tables: the columns of every file that a run writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from accountants.core.accountant import AccountRow
from accountants.core.charges import concentrated_rho, pure_epsilon
from mechanisms.core.event import Block, Event
from mechanisms.core.release import Release
from mechanisms.core.window import Window

TIME = pa.timestamp("ms", tz="UTC")
TEXT = pa.dictionary(pa.int32(), pa.string())

WINDOW_FIELDS = [("stream", TEXT), ("window", pa.int64()), ("window_start", TIME), ("window_end", TIME), ("cell", TEXT)]
RELEASES = pa.schema(
    [
        *WINDOW_FIELDS,
        ("value", pa.float64()),
        ("epsilon", pa.float64()),
        ("rho", pa.float64()),
        ("noise", TEXT),
        ("scale", pa.float64()),
        ("landmark", pa.bool_()),
        ("action", TEXT),
        ("repeats", pa.int64()),
        ("available_at", TIME),
    ]
)
TRUTH = pa.schema([*WINDOW_FIELDS, ("count", pa.int64()), ("bounded", pa.int64())])
ACCOUNTS = pa.schema(
    [
        ("stream", pa.string()),
        ("accountant", pa.string()),
        ("subject", pa.string()),
        ("window", pa.int64()),
        ("name", pa.string()),
        ("value", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("unit", pa.string()),
        ("adjacency", pa.string()),
        ("status", pa.string()),
    ]
)
UTILITY = pa.schema(
    [
        ("stream", pa.string()),
        ("metric", pa.string()),
        ("scope", pa.string()),
        ("window", pa.int64()),
        ("value", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
    ]
)


def releases_table(
    releases: Sequence[Release], windows: Sequence[Window], cells: Sequence[str], stream: str, lateness: int
) -> pa.Table:
    """One row per active cell of each release, in order of window and cell.

    Parameters
    ----------
    releases
        What was released.
    windows
        The window of each release.
    cells
        Names of all cells.
    stream
        Name of the stream.
    lateness
        Allowed lateness in milliseconds: a release is available that long after its window ends, unless it says when.
    """
    n_cells = len(cells)
    active = np.concatenate([np.ones(n_cells, bool) if r.active is None else r.active for r in releases])
    names, codes = np.unique([r.noise for r in releases], return_inverse=True)
    actions, action_codes = np.unique([str(r.action) for r in releases], return_inverse=True)
    repeats = [-1 if r.repeats is None else int(r.repeats) for r in releases]
    available = [w.end + lateness if r.available_at is None else r.available_at for r, w in zip(releases, windows)]
    repeat = np.repeat(repeats, n_cells)[active]
    charges = _charges(releases)
    columns = _window_columns(windows, cells, stream, active) | {
        "value": np.concatenate([np.asarray(r.values, np.float64) for r in releases])[active],
        "epsilon": np.repeat([pure_epsilon(charge) for charge in charges], n_cells)[active],
        "rho": np.repeat([concentrated_rho(charge) for charge in charges], n_cells)[active],
        "noise": _dictionary(np.repeat(codes, n_cells)[active], names),
        "scale": np.concatenate([np.broadcast_to(r.scale, n_cells) for r in releases])[active],
        "landmark": np.repeat([r.landmark for r in releases], n_cells)[active],
        "action": _dictionary(np.repeat(action_codes, n_cells)[active], actions),
        "repeats": pa.array(repeat, mask=repeat < 0),
        "available_at": _times(np.repeat(available, n_cells)[active]),
    }
    return pa.table([columns[name] for name in RELEASES.names], schema=RELEASES)


def _charges(releases: Sequence[Release]) -> list[tuple[Event, ...]]:
    """What each release is part of: a block's charge is shown in each of its windows, though it is paid once."""
    shown: list[tuple[Event, ...]] = []
    block: tuple[Event, ...] = ()
    last = 0
    for release in releases:
        ends = [event.last for event in release.charge if isinstance(event, Block)]
        if ends:
            block, last = release.charge, max(ends)
        shown.append(block if not release.charge and release.window <= last else release.charge)
    return shown


def truth_table(
    counts: NDArray[Any], bounded: NDArray[Any], windows: Sequence[Window], cells: Sequence[str], stream: str
) -> pa.Table:
    """One row per cell and window: distinct users before and after bounding, arrays of shape (n_windows, n_cells)."""
    everything = np.ones(counts.size, bool)
    columns = _window_columns(windows, cells, stream, everything)
    columns |= {"count": counts.ravel(), "bounded": bounded.ravel()}
    return pa.table([pa.array(columns[f.name]).cast(f.type) for f in TRUTH], schema=TRUTH)


def accounts_table(rows: Sequence[AccountRow], accountant: str, stream: str) -> pa.Table:
    """Rows of one accountant."""
    whose = {"stream": [stream] * len(rows), "accountant": [accountant] * len(rows)}
    figures = {name: [getattr(row, name) for row in rows] for name in ACCOUNTS.names if name not in whose}
    return pa.table(whose | figures, schema=ACCOUNTS)


def _window_columns(
    windows: Sequence[Window], cells: Sequence[str], stream: str, active: NDArray[np.bool_]
) -> dict[str, Any]:
    n_windows, n_cells = len(windows), len(cells)

    def spread(values: list[int]) -> NDArray[np.int64]:
        return np.repeat(np.asarray(values, np.int64), n_cells)[active]

    return {
        "stream": _dictionary(np.zeros(int(active.sum()), np.int32), [stream]),
        "window": spread([w.index for w in windows]),
        "window_start": _times(spread([w.start for w in windows])),
        "window_end": _times(spread([w.end for w in windows])),
        "cell": _dictionary(np.tile(np.arange(n_cells, dtype=np.int32), n_windows)[active], cells),
    }


def _dictionary(codes: NDArray[Any], values: Iterable[Any]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(list(map(str, values))))


def _times(values: NDArray[Any]) -> pa.Array:
    return pa.array(np.asarray(values, np.int64)).cast(TIME)
