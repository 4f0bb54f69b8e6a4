"""Draft a configuration from a file by guessing the columns, times, area and bounds from its rows."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from penstock.mechanisms.core.plugin import DataError, ParameterError
from penstock.pipeline.config.build import fields_of
from penstock.pipeline.config.drafting.columns import FIXME, KINDS, Columns, Table, UserHints, guess, source_of
from penstock.pipeline.config.drafting.facts import DELTA, EPSILON_PER_DAY, HOUR, STRAY, DraftFacts
from penstock.pipeline.config.drafting.time_formats import MAJORITY, UNIX, fit, numbers, other_orders, share, time_span
from penstock.pipeline.config.kinds import format_duration
from penstock.pipeline.sources.base import SOURCES, Source
from penstock.pipeline.sources.citibike import ZONE, Citibike, has_trips, trip_columns
from penstock.pipeline.sources.csv import Csv
from penstock.pipeline.sources.json import Json
from penstock.pipeline.sources.parquet import Parquet
from penstock.pipeline.sources.reading.columns import join_date
from penstock.pipeline.sources.reading.inputs import ARCHIVES, list_files, matches
from penstock.pipeline.spaces.base import SPACES, Space
from penstock.pipeline.spaces.grid import Grid
from penstock.pipeline.spaces.places import Places
from penstock.pipeline.spaces.stations import Stations
from penstock.pipeline.spaces.tables import read_table
from penstock.pipeline.windows.calendar import DAY, format_time

#: Events that times, area and bounds are guessed from.
_EVENTS = 2_000_000
#: Names of columns that hold things which people have, or share.
_DEVICES = (
    r"bike|cab|taxi|vehic|vehíc|device|card|cart[aeã]|karte|kaart|tarjeta|tessera|appar|ger[äa]e?t|dispositi|カード|卡"
)
#: Metres from a stop that are at it.
_RADIUS = 250.0
#: Degrees east of Citi Bike's stations; other cities publish trips under the same columns.
_NEW_YORK = (-75.0, -73.0)
#: Values of a trip by the Mobility Data Specification, which knows the vehicle and not who rides it.
_MDS_TRIP = {"provider_id", "trip_id", "start_time"}
#: How to go on where some files of many are of another kind.
LEAVE_OUT = "to leave a file out, move it away, or give a pattern that only the others match, such as 'trips-*.csv'"
#: Number of unreadable rows by file and reason.
Rejects = Counter[tuple[str, str]]


@dataclass
class Draft:
    """A drafted configuration and remarks on it."""

    text: str  # the YAML, with comments
    notes: list[str] = field(default_factory=list)  # what was found and what to look at, a sentence each
    is_whole: bool = True  # nothing is left to be written by hand
    one: str = "person"  # whom the budget is for


def draft(
    path: str,
    time_zone: str = "UTC",
    epsilon_per_day: float = EPSILON_PER_DAY,
    stated: UserHints | None = None,
    stops: str | None = None,
) -> Draft:
    """Draft a configuration for an event table, or a folder of tables, based on at most two million events.

    What can be neither read nor guessed is drafted as ``FIXME`` with a note, so that there is a draft of every table.

    **Privacy**: the draft is made by looking at the data, which is fine for a simulation. Values taken from it are
    marked ``LOOKED``, and the key ``looked_at_data: true`` keeps the draft from being deployed until someone has
    decided these values by what is publicly known.

    ``epsilon_per_day``: budget, in nats, for all that a person does in a day. ``stops``: a file of stops or stations.
    Raises `ParameterError` unless the budget is above 0 and stated columns are there, `DataError` without a table.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "taps.csv"
    ...     _ = file.write_text("rider,tapped_at,station\\nann,2024-05-01 08:10,North\\nbob,2024-05-01 09:20,South\\n")
    ...     print(draft(str(file)).notes[0])
    columns: user from rider, time from tapped_at, place from station
    """
    if not 0 < epsilon_per_day < math.inf:
        raise ParameterError("epsilon_per_day", epsilon_per_day, "a number above 0")
    stated = stated or UserHints()
    try:
        table = Table.read(path, stated)
        names = table.frame.columns
        has_riders = "user" in stated.columns or not (has_trips(names) or set(names) >= _MDS_TRIP)
        no_user = replace(stated, columns={**stated.columns, "user": ""})
        columns = guess(table, time_zone, stated if has_riders else no_user)
        source: Csv | Parquet | Json | Citibike = _source(path, table, columns, time_zone)
        if not has_riders:
            columns.checks["user"] = "rows are trips, and none says who rode: what is counted and protected is a trip"
            if stated == UserHints() and has_trips(names) and _is_citibike(path, table):
                source, time_zone = Citibike(path=path), ZONE
        is_whole = FIXME not in columns.names.values()
        events, rejects = _events(source) if is_whole else (pl.DataFrame(), Rejects())
    except DataError as error:
        if _is_pattern(path):
            raise DataError(f"{error}; {LEAVE_OUT}") from error
        raise
    if isinstance(source, Json) and re.search(r"\.\d+$", columns.names["time"]):
        raise DataError(f"{path}: times are in a list of their own: write one object for each row, a line or a list")
    has_clock = columns.time_format in ("iso", *UNIX) or "%H" in columns.time_format or "%I" in columns.time_format
    has_clock &= not columns.checks.get("time", "").startswith("it holds days")
    has_positions = not columns.names.keys().isdisjoint(("latitude", "point"))
    known = _stops(stops, events, has_positions) if stops else None
    if len(events):
        facts = DraftFacts.of(events, time_zone, epsilon_per_day, HOUR if has_clock else DAY, known)
    else:
        unknown: Space = Places(list_=(FIXME,), elsewhere=True)
        if has_positions:
            unknown = Grid(south=0.0, north=1.0, west=0.0, east=1.0, rows=1, columns=1)
        facts = DraftFacts.unknown(epsilon_per_day, known or unknown)
    used = (f"{part} from {name}" if name else f"no {part}" for part, name in columns.names.items())
    notes = [
        f"columns: {', '.join(used)}",
        f"times: {columns.time_format}" + f", {format_time(facts.begin)} to {format_time(facts.end)}" * facts.is_known,
        *(f"{part} from {columns.names[part] or 'no column'}: {why}" for part, why in columns.checks.items()),
        *table.notes,
    ]
    if len(events):
        notes += [*_list_uncertainties(table, columns, source, events, rejects, stated), *_caveats(facts)]
    else:
        unread = "no row was read"
        if is_whole:
            unread = f"none of {rejects.total():,} rows could be read as drafted ({_most_frequent(rejects)})"
        notes.append(f"{unread}: from, until, space and bounds are {FIXME}, and have to be written before a run")
    one = "person" if source.has_people else "trip"
    if source.has_people and "user" in columns.checks:
        one = f"person (if {columns.names['user']} says who it is)"
    return Draft(_text(path, source, columns, time_zone, facts, notes[2:], one), notes, facts.is_known, one)


def _stops(file: str, events: pl.DataFrame, has_positions: bool) -> Places | Stations:
    """Build the space from a file of stops, matching events by nearest position or by name."""
    if has_positions:
        return Stations(file=file, radius=_RADIUS)
    places = Places(file=file, elsewhere=True)
    table = read_table(file, "place", "optional")
    if not len(events):
        return places
    seen = events["place"].unique()

    def n_matching(name: str) -> tuple[float, bool]:
        """Return the fraction of observed places that occur in a column of the stops."""
        return share(seen.is_in(table[name].cast(pl.String).implode())), name == "place"

    column = max(table.columns, key=n_matching)
    return places if column in ("place", "stop_id") else Places(file=file, elsewhere=True, column=column)


def _source(path: str, table: Table, columns: Columns, zone: str) -> Csv | Parquet | Json:
    """Return the drafted source without a time range."""
    unused = {part: "" for part in ("latitude", "longitude", "place") if part not in columns.names}
    read: Any = {"path": path, "columns": columns.names | unused}
    read |= {"time_format": columns.time_format, "time_zone": zone}
    if table.source is Parquet:
        return Parquet(**read)
    if table.source is Json:
        return Json(**read, records=table.records)
    dialect = {name: getattr(table, name) for name in ("separator", "quote", "decimal", "encoding", "header")}
    return Csv(**read, **dialect)


def _is_citibike(path: str, table: Table) -> bool:
    """Return whether the trips are in New York and stored in files that the Citi Bike source can read."""
    files, patterns = list_files(path, Csv.patterns), (*Citibike.patterns, *ARCHIVES)
    is_read = not os.path.isdir(path) or any(matches(file, patterns) for file in files)
    east = table.frame.to_series(trip_columns(table.frame.columns).index("start_longitude"))
    is_near = share(numbers(east).is_between(*_NEW_YORK)) >= MAJORITY
    return is_read and is_near and table.source is Csv and table.separator == ","


def _events(source: Csv | Parquet | Json | Citibike) -> tuple[pl.DataFrame, Rejects]:
    """Return a source's first events and the number of unreadable rows by file and reason."""
    frames, n_rows, rejects = [], 0, Rejects()
    for block in source.all_blocks():
        frames.append(block.frame)
        rejects.update((reject.file, reject.reason) for reject in block.rejects)
        n_rows += block.n_rows
        if n_rows >= _EVENTS:
            break
    return (pl.concat(frames) if frames else pl.DataFrame()), rejects


def _list_uncertainties(
    table: Table,
    columns: Columns,
    source: Csv | Parquet | Json | Citibike,
    events: pl.DataFrame,
    rejects: Rejects,
    stated: UserHints,
) -> Iterator[str]:
    """Yield one sentence about each uncertain guess."""
    if not table.header:
        yield "the file has no header: columns were told by their values alone; check them"
    n_users, user = events["user"].n_unique(), columns.names["user"]
    if user and n_users <= KINDS < len(events) / 100:
        yield f"{user} has {n_users} values in {len(events):,} rows: is it a kind of people, and not a person?"
    elif user and n_users > 0.9 * len(events) > 9:
        yield f"nearly every row has another {user}: is it a trip or a row, and not a person?"
    elif re.search(_DEVICES, user, re.IGNORECASE):
        yield f"{user} is taken for a person: one person with two of them counts twice, two with one once"
    if not isinstance(source, Citibike):
        yield from _time_uncertainties(table, columns, source.time_zone, stated.time_format is not None)
    n_rows = len(events) + rejects.total()
    if n_rows >= _EVENTS:
        yield f"only the first {n_rows:,} rows were looked at"
    if rejects:
        files = Counter(file for file, _ in rejects.elements())
        by_file = ", ".join(f"{n:,} of {os.path.basename(file)}" for file, n in files.most_common(3))
        more = ", …" if len(files) > 3 else ""
        where = f" ({by_file}{more}): {LEAVE_OUT}" if _is_pattern(source.path) else f": {_most_frequent(rejects)}"
        yield f"{rejects.total():,} of {n_rows:,} rows cannot be read, and will be rejected{where}"


def _time_uncertainties(table: Table, columns: Columns, zone: str, is_stated: bool) -> Iterator[str]:
    """Yield one sentence about each uncertainty in how times were parsed."""
    parts = {part: columns.names[part] for part in ("date", "time") if part in columns.names}
    times = join_date(table.frame.select(pl.col(name).alias(part) for part, name in parts.items()))["time"]
    form = columns.time_format
    for other in () if is_stated else other_orders(form):
        # Years in place of days would lie decades apart.
        if fit(times, other, zone) >= MAJORITY and time_span(times, other, zone) <= time_span(times, form, zone) + 366:
            second = "month" if form.lower().index("y") == other.lower().index("y") else "year"
            yield f"day and {second} cannot be told apart in these times: check time_format (or {other})"
    zoned = "%z" in form or form in UNIX
    if form == "iso":
        zoned = share(times.str.contains(r"(Z|UTC|GMT|:\S*[+-]\d\d(:?\d\d)?)$")) >= MAJORITY
    if not zoned:
        yield f"times have no zone and are read as {zone}: --time-zone says another"


def _most_frequent(rejects: Rejects) -> str:
    return Counter(reason for _, reason in rejects.elements()).most_common(1)[0][0]


def _is_pattern(path: str) -> bool:
    """Return whether a path is a glob pattern."""
    return not os.path.isfile(path) and len(list_files(path, source_of(path).patterns)) > 1


def _caveats(facts: DraftFacts) -> Iterator[str]:
    """Yield one sentence about each caveat of the drafted release."""
    if facts.inside < 1 - 4 * STRAY:
        where = "the densest region" if isinstance(facts.space, Grid) else "the most frequent places"
        if getattr(facts.space, "file", None):
            where = "stops of the file"
        yield f"the cells are {where}, with {100 * facts.inside:.0f} % of the events: change space for others"
    if facts.signal_to_noise < 1:
        cell = f"a cell has {facts.typical:.2g} people in a window on average and noise of about {facts.noise:.2g}"
        yield f"{cell}: it takes larger cells, longer windows, more events or a larger epsilon"


# The text.


def _quoted(text: str) -> str:
    """Return a text as a quoted YAML scalar, escaping non-ASCII characters only if some character is unprintable."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _text(
    path: str, source: Source, columns: Columns, zone: str, facts: DraftFacts, remarks: list[str], one: str
) -> str:
    name = name_of(path)
    looked = "LOOKED: " if facts.is_known else f"{FIXME}: "
    written = {part: _quoted(name) for part, name in columns.names.items()}
    marked = {part: (name, "CHECK: see above" * (part in columns.checks)) for part, name in written.items()}
    read = {
        "columns": (marked, "LOOKED: which column holds what"),
        "time_format": json.dumps(columns.time_format),
        "time_zone": (zone, "DECIDE: of times without an offset"),
    }
    keys = {
        "name": _quoted(name),
        "mode": ("simulation", "deployment: secret noise key, no truth written"),
        "looked_at_data": ("true", "keeps this draft from being deployed as it is"),
        "seed": 1,
        "source": {
            **_keys(source),
            **({} if isinstance(source, Citibike) else read),
            "from": (format_time(facts.begin), looked + "midnights around the events"),
            "until": format_time(facts.end),
        },
        "space": _space(facts, looked),
        "windows": {
            "type": "fixed",
            "size": (format_duration(facts.window), "DECIDE: shorter ones hold fewer people, and cost more"),
            "time_zone": zone,
        },
        "bounding": {
            "max_cells": (facts.max_cells, looked + "cells of one window that 95 % of people stay within"),
            "max_per_period": (
                facts.memberships,
                f"{looked}cells, window by window, of a period of {facts.period}; what is more is not counted",
            ),
        },
        "budget_period": (facts.period, "the budget below is for all that a person does in it"),
        "typical_count": (f"{facts.typical:.2g}", "LOOKED: people in a cell and window on average"),
        "mechanism": [
            {
                "type": "period_uniform",
                "noise": ("auto", "of Laplace and Gaussian noise the one that is smaller here"),
                "epsilon": (facts.epsilon, f"DECIDE: what {facts.period} may cost one {one}, in nats"),
                "delta": (f"{DELTA:.1e}", "but for this chance; spent by Gaussian noise only"),
            },
            {"type": ("filter", "the best guess from all releases so far; costs nothing")},
        ],
        "accountants": [{"type": "composition"}],
        "output": {"path": _quoted(f"runs/{name}")},
    }
    if not facts.is_known:
        del keys["typical_count"]
    head = (
        f"# Draft made by `penstock init` from a look at {_quoted(Path(path).name)}.",
        "#",
        "# LOOKED marks values that were taken from the data. That is fine for a simulation. In a deployment they",
        "# would tell of the data: decide each by what is publicly known, then remove looked_at_data.",
        "# DECIDE marks what is a matter of judgement.",
        *(f"# CHECK: {without_line_breaks(remark)}" + "." * (not remark.endswith("?")) for remark in remarks),
    )
    return "\n".join((*head, *_lines(keys))) + "\n"


def without_line_breaks(text: str) -> str:
    """Replace the line breaks in a string because they would end a YAML comment."""
    return " ".join(text.split())


def _lines(keys: dict[str, Any], indent: str = "") -> Iterator[str]:
    """Yield the lines of a YAML section, given its values, subsections, lists and comments."""
    for key, given in keys.items():
        value, comment = given if isinstance(given, tuple) else (given, "")
        inside = isinstance(value, dict | list)
        if inside and not indent:
            yield ""
        text = f"{indent}{key}:" if inside else f"{indent}{key}: {value}"
        yield f"{text:<32} # {without_line_breaks(comment)}" if comment else text
        if isinstance(value, dict):
            yield from _lines(value, indent + "  ")
        for entry in value if isinstance(value, list) else ():
            first, *others = _lines(entry, indent + "    ")
            yield from (f"{indent}  - {first.lstrip()}", *others)


def _keys(section: Source | Space) -> dict[str, Any]:
    """Return the keys in a section whose values differ from the defaults."""
    registry = SOURCES if isinstance(section, Source) else SPACES
    keys = {"type": registry.name_of(type(section))}
    for entry in fields_of(type(section)):
        if (value := getattr(section, entry.name)) != entry.default:
            keys[entry.key] = json.dumps(value, ensure_ascii=False)
    return keys


def _space(facts: DraftFacts, looked: str) -> tuple[dict[str, Any], str]:
    """Return the keys for the space section and a remark on them."""
    keys = _keys(facts.space)
    if isinstance(facts.space, Grid):
        return keys, f"{looked}a box with {100 * facts.inside:.0f} % of the events; DECIDE: how fine"
    if "radius" in keys:
        keys["radius"] = (keys["radius"], "DECIDE: metres from a stop that are at it")
    return keys, "" if "file" in keys else f"{looked}the most frequent places"


def name_of(path: str) -> str:
    """Derive a run's name from the last meaningful part of a path or pattern, without extensions."""
    parts = reversed(Path(os.path.abspath(path)).parts)
    names = (re.sub(r"(\[.*?\]|[^\w-])+", "-", part.split(".")[0]).strip("-") for part in parts)
    return next(filter(None, names), "draft")
