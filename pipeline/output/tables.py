"""Arrow schemas and tables for output files: releases, traces, truth, accounts and utility."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, DTypeLike, NDArray

from penstock.accountants.core.accountant import ACCOUNTANTS, Accountant, AccountRow
from penstock.accountants.core.charges import charges_shown, concentrated_rho, pure_epsilon
from penstock.mechanisms.core.contract import ChainStep, Postprocess, Release, Window
from penstock.mechanisms.core.plugin import PluginError, place_of
from penstock.pipeline.counting.spec import STREAM

if TYPE_CHECKING:
    from penstock.mechanisms.core.run import ReleasedTraces, TraceFacts, Traces

TIME = pa.timestamp("ms", tz="UTC")
TEXT = pa.dictionary(pa.int32(), pa.string())


def _fields(nullable: bool = False, **kinds: pa.DataType) -> list[pa.Field]:
    """Return fields of the given types. Non-nullable fields take up less space."""
    return [pa.field(name, kind, nullable) for name, kind in kinds.items()]


NUMBER, INTEGER, STRING = pa.float64(), pa.int64(), pa.string()
WINDOW_FIELDS = _fields(stream=TEXT, window=INTEGER, window_start=TIME, window_end=TIME, cell=TEXT)
RELEASES = pa.schema(
    [
        *WINDOW_FIELDS,
        *_fields(value=NUMBER, epsilon=NUMBER, rho=NUMBER, noise=TEXT, scale=NUMBER, landmark=pa.bool_(), action=TEXT),
        pa.field("repeats", INTEGER),
        *_fields(available_at=TIME),
        pa.field("standard_deviation", NUMBER),
    ]
)
#: With the column that a step fills which judges whether a count is unusual.
JUDGED_RELEASES = RELEASES.append(pa.field("alarm", pa.bool_(), nullable=False))
TRUTH = pa.schema([*WINDOW_FIELDS, *_fields(count=INTEGER, bounded=INTEGER)])
TRUE_TRACES = pa.schema(_fields(True, pseudonym=TEXT, time=TIME, latitude=NUMBER, longitude=NUMBER))
TRACES = pa.schema([*TRUE_TRACES, *_fields(True, epsilon=NUMBER, rho=NUMBER, landmark=pa.bool_(), action=TEXT)])
#: Actions of points, in the order of their codes.
ACTIONS = ("published", "repeated", "refused", "absent")
_SUBJECT = _fields(True, stream=STRING, accountant=STRING, subject=STRING, window=INTEGER, name=STRING)
_FIGURE = _fields(True, value=NUMBER, low=NUMBER, high=NUMBER)
ACCOUNTS = pa.schema([*_SUBJECT, *_FIGURE, *_fields(True, unit=STRING, adjacency=STRING, status=STRING)])
UTILITY = pa.schema([*_fields(True, stream=STRING, metric=STRING, scope=STRING, window=INTEGER), *_FIGURE])


def releases_table(
    releases: Sequence[Release], windows: Sequence[Window], cells: Sequence[str], lateness: int
) -> pa.Table:
    """Return a table with one row per active cell per release, ordered by window and cell.

    ``windows`` has the window of each release; it is available ``lateness`` milliseconds after it ends, unless it says
    when. Releases that are judged have a column ``alarm``.
    """
    rows = _Rows(len(releases), len(cells))
    names, codes = np.unique([r.noise for r in releases], return_inverse=True)
    actions, action_codes = np.unique([str(r.action) for r in releases], return_inverse=True)
    repeats = rows.spread([-1 if r.repeats is None else int(r.repeats) for r in releases])
    available = [w.end + lateness if r.available_at is None else r.available_at for r, w in zip(releases, windows)]
    charges = charges_shown(releases)
    deviations = rows.broadcast([np.nan if r.standard_deviation is None else r.standard_deviation for r in releases])
    columns = rows.of(windows, cells) | {
        "value": rows.broadcast([r.values for r in releases]),
        "epsilon": rows.spread([pure_epsilon(charge) for charge in charges]),
        "rho": rows.spread([concentrated_rho(charge) for charge in charges]),
        "noise": _dictionary(rows.spread(codes, np.int32), names),
        "scale": rows.broadcast([r.scale for r in releases]),
        "landmark": rows.spread([r.landmark for r in releases]),
        "action": _dictionary(rows.spread(action_codes, np.int32), actions),
        "repeats": pa.array(repeats, mask=repeats < 0),
        "available_at": _times(rows.spread(available)),
        "standard_deviation": pa.array(deviations, mask=np.isnan(deviations)),
    }
    schema = RELEASES
    if any(r.alarm is not None for r in releases):
        columns["alarm"] = rows.broadcast([False if r.alarm is None else r.alarm for r in releases]).astype(bool)
        schema = JUDGED_RELEASES
    table = pa.table([columns[name] for name in schema.names], schema=schema)
    if all(r.active is None for r in releases):
        return table
    return table.filter(
        pa.array(rows.broadcast([True if r.active is None else r.active for r in releases]).astype(bool))
    )


def releases_schema(steps: Sequence[ChainStep]) -> pa.Schema:
    """Return the releases table's schema for a chain of steps, with ``alarm`` if a step raises alarms."""
    return JUDGED_RELEASES if any(isinstance(step, Postprocess) and step.raises_alarms for step in steps) else RELEASES


def truth_table(
    counts: NDArray[Any], bounded: NDArray[Any], windows: Sequence[Window], cells: Sequence[str]
) -> pa.Table:
    """Return a table of distinct users per cell per window, before and after bounding (n_windows, n_cells)."""
    figures = {"count": counts.ravel().astype(np.int64), "bounded": bounded.ravel().astype(np.int64)}
    columns = _Rows(len(windows), len(cells)).of(windows, cells) | figures
    return pa.table([columns[name] for name in TRUTH.names], schema=TRUTH)


def traces_table(released: ReleasedTraces) -> pa.Table:
    """Return a table with one row per released point, ordered by pseudonym and time."""
    codes = np.select([released.action == action for action in ACTIONS], range(len(ACTIONS))).astype(np.int32)
    columns = _user_and_time(released) | {
        "latitude": released.values[:, 0],
        "longitude": released.values[:, 1],
        "epsilon": released.epsilon,
        "rho": released.rho,
        "landmark": released.landmarks,
        "action": _dictionary(codes, ACTIONS),
    }
    return pa.table([columns[name] for name in TRACES.names], schema=TRACES)


def true_traces_table(traces: Traces) -> pa.Table:
    """Return a table with one row per true point, in the order of `traces_table` (simulation only)."""
    columns = _user_and_time(traces) | {"latitude": traces.points[:, 0], "longitude": traces.points[:, 1]}
    return pa.table([columns[name] for name in TRUE_TRACES.names], schema=TRUE_TRACES)


def _user_and_time(traces: TraceFacts) -> dict[str, Any]:
    names = _dictionary(traces.user_of.astype(np.int32), traces.pseudonyms)
    return {"pseudonym": names, "time": _times(traces.times)}


def accounts_table(rows: Sequence[AccountRow], accountant: Accountant) -> pa.Table:
    """Convert one accountant's rows to a table."""
    kind = type(accountant)
    fixed = {"stream": [STREAM] * len(rows), "accountant": [ACCOUNTANTS.name_of(kind)] * len(rows)}
    names = [name for name in ACCOUNTS.names if name not in fixed]
    columns = zip(*map(attrgetter(*names), rows)) if rows else ([] for _ in names)
    try:
        return pa.table(fixed | dict(zip(names, columns)), schema=ACCOUNTS)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        text = f"a row of {kind.__name__} holds what is neither a number nor text: {error}"
        raise PluginError(f"{place_of(kind, ['charge', 'finish'])}: {text}") from error


class _Rows(NamedTuple):
    """Builder for table columns that cover several windows, ordered by window and then by cell."""

    n_windows: int
    n_cells: int

    def spread(self, values: ArrayLike, kind: DTypeLike | None = None) -> NDArray[Any]:
        """Repeat each window's value once per cell."""
        return np.repeat(np.asarray(values, kind), self.n_cells)

    def broadcast(self, values: Sequence[ArrayLike]) -> NDArray[np.float64]:
        """Concatenate the vectors of all windows, broadcasting each scalar to all cells in its window."""
        rows = [np.broadcast_to(np.asarray(value, np.float64), self.n_cells) for value in values]
        return np.concatenate([np.zeros(0), *rows])

    def of(self, windows: Sequence[Window], cells: Sequence[str]) -> dict[str, Any]:
        """Return each row's window and cell as columns."""
        codes = np.tile(np.arange(self.n_cells, dtype=np.int32), self.n_windows)
        return {
            "stream": _dictionary(np.zeros(len(codes), np.int32), [STREAM]),
            "window": self.spread([w.index for w in windows], np.int64),
            "window_start": _times(self.spread([w.start for w in windows])),
            "window_end": _times(self.spread([w.end for w in windows])),
            "cell": _dictionary(codes, cells),
        }


def _dictionary(codes: NDArray[Any], values: Iterable[Any]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(list(map(str, values))))


def _times(values: NDArray[Any]) -> pa.Array:
    return pa.array(np.asarray(values, "datetime64[ms]"), TIME)  # a cast would load Arrow's compute functions
