"""Input checks: detect unusable or suspicious rows, explain why rows were rejected and suggest fixes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from penstock.pipeline.counting.ingest import RowCounts, cells_of, classify_rows
from penstock.pipeline.sources.base import EventBlock, Source
from penstock.pipeline.sources.reading.columns import MappedColumns
from penstock.pipeline.sources.reading.text import NO_DEGREES, NOT_UTF8
from penstock.pipeline.spaces.base import ELSEWHERE, Space
from penstock.pipeline.windows.calendar import DAY, Calendar, clock_changes, utc_offset, wall_time
from penstock.pipeline.windows.grid import WindowGrid

#: Rows that a likely cure is looked for in.
SAMPLE = 100_000
#: Rows of a stream after which it is said that none could be used.
FIRST = 1_000
#: Where no row is used, rows in the time of the run are what is wrong from this share on.
FEW = 0.01
#: A cure is likely where it would make this share of the rows usable.
MAJORITY = 0.5
#: Where this share is used, ``from`` and ``until`` were given to leave out the rows that are out of time.
SLICE = 0.05
#: Begin of the reason why times of an hour that clocks skip are rejected, and the cure.
NEVER, CHECK_ZONE = "local time does not exist", "is source.time_zone right?"
#: Clocks of the Earth differ by at most this many milliseconds.
CLOCKS = 14 * 3_600_000
#: Ten years in milliseconds: what is earlier was read in the wrong unit.
EPOCH = 10 * 365 * 24 * 3_600_000


def first_use(
    blocks: Iterable[EventBlock], grid: WindowGrid, space: Space, on_points: bool
) -> tuple[RowCounts, list[EventBlock]]:
    """Return row counts up to and including the first block with a row to use, late or not, and a sample of blocks."""
    total, sample = RowCounts(), list[EventBlock]()
    for block in blocks:
        total.add(classify_rows(block, grid, space).counts)
        if sum(block.n_rows for block in sample) < SAMPLE:
            sample.append(block)
        if on_points:  # a point outside the area is moved to its edge
            total.used, total.out_of_area = total.used + total.out_of_area, 0
        if total.used:
            break
    return total, sample


def sample_of(blocks: Iterable[EventBlock]) -> list[EventBlock]:
    """Return enough leading blocks to suggest a fix."""
    sample = list[EventBlock]()
    for block in blocks:
        sample.append(block)
        if sum(block.n_rows for block in sample) >= SAMPLE:
            break
    return sample


OUTCOMES = {
    "rejected": "could not be read",
    "late": "came after their window was final",
    "out_of_area": "were in no cell",
    "out_of_time": "were before or after the run",
}


def mostly_lost(equation: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the row counts by outcome if at least half of the rows were lost, or None otherwise.

    Of a run on a part of its input only the rows in its time count.

    >>> rows = {"rows": 100, "used": 20, "out_of_time": 70, "out_of_area": 10, "late": 0, "rejected": 0}
    >>> mostly_lost(rows), mostly_lost(rows | {"used": 4, "out_of_area": 26})["out_of_time"]
    (None, 70)
    """
    if int(equation["used"]) >= SLICE * int(equation["rows"]):
        inside = int(equation["rows"]) - int(equation["out_of_time"])
        equation = {**equation, "rows": inside, "out_of_time": 0}
    return equation if equation["rows"] > 0 and equation["used"] <= MAJORITY * equation["rows"] else None


def explain_unused_rows(equation: Mapping[str, Any], sample: list[EventBlock], calendar: Calendar, space: Space) -> str:
    """Explain the most common reason why rows are unused and how to fix it, without quoting any values.

    ``sample`` has blocks to look for a cure in; none where the input can be read only once.
    """
    if not equation["rows"]:
        return "The input has no rows: an empty folder, or files with a header (or all on one line, as JSON may be)."
    outcome = max(OUTCOMES, key=lambda name: int(equation[name]))
    if not equation["used"] and outcome == "out_of_time" and equation["out_of_area"] > FEW * equation["rows"]:
        outcome = "out_of_area"  # a part of the input is released, and it is the part that is nowhere
    n, text, cure = equation[outcome], OUTCOMES[outcome], ""
    if outcome == "rejected":
        reason, n = max(equation["rejected_by_reason"].items(), key=lambda entry: int(entry[1]))
        text, cure = f"could not be read: {reason}", _for_rejects(reason)
    elif outcome == "late":
        cure = "Is windows.allowed_lateness too short for how disordered the events are?"
    elif sample:
        frame = pl.concat([block.frame for block in sample])
        cure = suggest_place_fix(frame, space) if outcome == "out_of_area" else _for_times(frame, calendar)
    return f"{n:,} of {equation['rows']:,} rows {text}. {cure}".rstrip()


def _for_rejects(reason: str) -> str:
    if reason.startswith(NEVER):
        return f"Local times that never existed: {CHECK_ZONE}"
    if reason == "longitude out of range":
        return "Longitudes are degrees from −180 to 180, west negative: are they counted from 0 to 360?"
    if "out of range" in reason:
        return "Latitude and longitude are probably swapped: exchange them in source.columns."
    if reason.endswith(NO_DEGREES):
        return (
            "Metres of a map projection, or degrees times a million? Write latitude and longitude (WGS 84, EPSG:4326) "
            "into the file, or name the columns that hold them in source.columns."
        )
    if reason.startswith("time"):
        return "The times are probably of another format: see source.time_format."
    if reason.endswith("is not a finite number"):
        return (
            "Is another column meant in source.columns, are they decimal commas (source.decimal: ','), or is more than "
            "a number in the field, such as ° or N?"
        )
    if reason.startswith("user is too large"):
        return ""
    if reason == NOT_UTF8:
        return "Is it of another encoding (source.encoding: cp1252, or gb18030, shift_jis, cp1251, …)?"
    return "Is another column meant in source.columns?"


def suggest_place_fix(frame: pl.DataFrame, space: Space) -> str:
    """Suggest a fix for rows that do not match any cell."""
    if "latitude" not in space.reads or not {"latitude", "longitude"} <= set(frame.columns):
        return "Are the places of the space named as in the input?"
    n_rows, frame = len(frame), frame.filter(cells_of(frame, space) < 0)
    latitude, longitude = pl.col("latitude"), pl.col("longitude")
    file = getattr(space, "path", None) or getattr(space, "file", None)
    where = f"source.columns, or in {file}" if file else "source.columns"
    if len(frame) <= MAJORITY * n_rows:  # exchanging columns would lose the others
        where = "those rows of the file"
    candidates = {
        f"Latitude and longitude are probably swapped: exchange them in {where}.": (longitude, latitude),
        "Longitudes have probably lost their sign: west is negative.": (latitude, -longitude),
        "Latitudes have probably lost their sign: south is negative.": (-latitude, longitude),
    }
    for words, (north, east) in candidates.items():
        other = frame.with_columns(latitude=north, longitude=east).filter(latitude.is_between(-90, 90))
        if np.count_nonzero(cells_of(other, space) >= 0) > MAJORITY * len(frame):
            return words
    return "Is the space where the events are?"


def _for_times(frame: pl.DataFrame, calendar: Calendar) -> str:
    times = frame["time"].to_numpy()
    outside = times[calendar.index(times) <= 0]
    if np.median(outside) < EPOCH <= calendar.from_ms:
        return "The times are of 1970: seconds read as milliseconds, or days of a spreadsheet? See source.time_format."
    until = np.inf if calendar.until_ms is None else calendar.until_ms
    near = (outside >= calendar.from_ms - CLOCKS) & (outside < until + CLOCKS)
    if np.count_nonzero(near) > MAJORITY * len(outside):
        return "They miss the run by hours: the times are probably of another time zone."
    return "Are source.from and source.until in the year of the events?"


# What a sample of the rows of an input makes doubtful, for the operator alone.


#: Share of the rows from which on it is said that they are outside, or of one user where an average one has far fewer.
MANY, ONE_USER, TIMES_AVERAGE = 0.05, 0.05, 20
#: Share of the rows from which on a word in the place of a user is said.
MIN_WORD_FRACTION = 0.005
#: Fewest rows that a share is said of.
MIN_SAMPLE_ROWS = 100
#: What stands for a user that is not known.
PLACEHOLDER = r"(?i)^\s*(null|none|nan|na|n/a|nil|unknown|undefined|anonymous|missing|-|\?|-1)\s*$"
#: Zeros before and after a whole number, which programs add and drop.
_ZEROS = r"^0*(\d+)(\.0+)?$"
#: A long number as spreadsheets write it: its last digits are gone.
_CUT = r"^\d[.,]\d+[eE]\+\d\d$"
_BUT_FOR = "like another but for case, blanks or zeros, as 'A7' and 'a7 ', or '007' and '7.0'"
#: Rows that are read again to tell whether their times are local.
_ROWS = 1000


def input_warnings(
    sample: list[EventBlock],
    calendar: Calendar,
    space: Space,
    on_points: bool,
    source: Source,
    rejected: Mapping[str, int],
) -> list[str]:
    """Return one-sentence warnings about suspicious rows in finite input, without revealing personal values.

    **Privacy**: shares of rows are exact. They are for the terminal and the operator's page, and never published.
    """
    frame = pl.concat([block.frame for block in sample]) if sample else pl.DataFrame()
    remarks = [*_local_times(calendar, source)]
    if len(cells := _near_duplicates(pl.Series(space.cells, dtype=pl.String))):
        remarks.append(f"cell {cells[0]!r} is written {_BUT_FOR}: a reader may take one for the other")
    if n_never := sum(n for reason, n in rejected.items() if reason.startswith(NEVER)):
        remarks.append(f"{n_never:,} rows are rejected for local times that never existed: {CHECK_ZONE}")
    if len(frame) >= MIN_SAMPLE_ROWS:
        remarks += [*_users(frame), *_positions(frame, space, on_points)]
    return remarks


def _format_share(n: int, frame: pl.DataFrame) -> str:
    return f"{100 * n / len(frame):.3g} % of the first {len(frame):,} rows"


def _users(frame: pl.DataFrame) -> Iterator[str]:
    """Warn about suspicious users, such as one with too many rows. Only a placeholder is mentioned by name."""
    rows = frame.group_by(pl.col("user").cast(pl.String)).len().sort("len", "user", descending=True)
    words = rows.filter(pl.col("user").str.contains(PLACEHOLDER))
    for user, n in words.rows():
        if n >= MIN_WORD_FRACTION * len(frame):
            cure = "counted as one person, of which bounding keeps little; take them out, or give each an identifier"
            share = _format_share(n, frame)
            yield f"{share} have the user {user!r}: if that means that nobody is known, they are {cure}"
    known = rows.join(words, on="user", how="anti")
    if len(known) and known["len"][0] >= max(ONE_USER * len(frame), TIMES_AVERAGE * len(frame) / len(rows)):
        times = known["len"][0] * len(rows) / len(frame)
        yield (
            f"{_format_share(known['len'][0], frame)} are of one user, {times:.0f} times as many as of an average "
            "one: is it a person, or what a device or an export writes where none is known?"
        )
    n_cut = int(known.filter(pl.col("user").str.contains(_CUT))["len"].sum() or 0)
    if n_cut >= MIN_WORD_FRACTION * len(frame):
        cut = "users written like 1.2E+15, as spreadsheets cut long numbers: people with the same first digits are one"
        yield f"{_format_share(n_cut, frame)} have {cut}; export identifiers as text"
    if n_alike := len(_near_duplicates(known["user"])):
        yield f"{n_alike:,} of {len(known):,} users are written {_BUT_FOR}: one person with two of them counts twice"


def _near_duplicates(names: pl.Series) -> pl.Series:
    """Return the names that differ from an earlier name only in case, spaces or zeros."""
    plain = names.str.normalize("NFKC").str.strip_chars().str.to_lowercase().str.replace(_ZEROS, "${1}")
    return names.filter(~plain.is_first_distinct())


def _positions(frame: pl.DataFrame, space: Space, on_points: bool) -> Iterator[str]:
    """Describe the rows outside all known cells and suggest a fix."""
    cell = cells_of(frame, space)
    n_outside = int(np.count_nonzero(cell < 0))
    if MANY * len(frame) <= n_outside <= MAJORITY * len(frame) and not on_points:
        cure = suggest_place_fix(frame, space)
        if "probably" in cure:
            yield f"{_format_share(n_outside, frame)} are in no cell. {cure}"
    cells = space.cells
    n_elsewhere = int(np.count_nonzero(cell == len(cells) - 1)) if cells[-1] == ELSEWHERE else 0
    if n_elsewhere > MAJORITY * len(frame):
        yield f"{_format_share(n_elsewhere, frame)} are elsewhere: are the places of the space named as in the input?"


def _local_times(calendar: Calendar, source: Source) -> Iterator[str]:
    """Warn if times are local and the run spans a clock change."""
    if not isinstance(source, MappedColumns) or source.time_zone == "UTC":
        return
    end = calendar.until_ms
    changes = clock_changes(source.time_zone, calendar.from_ms, end) if end is not None else []
    back = [(at, offset) for at, offset in changes if offset < utc_offset(source.time_zone, at - 1)]
    if back and _times(source, source.time_zone) != _times(source, "UTC"):
        at, offset = back[0]
        day = np.datetime64(wall_time(source.time_zone, at) // DAY, "D")
        twice = (utc_offset(source.time_zone, at - 1) - offset) // 60_000
        yield (
            f"clocks were set back in {source.time_zone} on {day}, and times have no offset: {twice} minutes happened "
            "twice, events of both are counted at the first, and the second looks empty"
        )


def _times(source: Any, zone: str) -> list[int]:
    """Return the times of the source's first rows, interpreted in a given time zone."""
    block = next(replace(source, time_zone=zone, block_rows=_ROWS).all_blocks(), None)
    return [] if block is None else block.frame["time"].to_list()
