"""Draft of a configuration from a CSV file of one's own: columns, times, area and bounds, guessed from a look at it."""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from penstock.mechanisms.core.concentrated import rho_of
from penstock.mechanisms.core.plugin import DataError, ParameterError
from penstock.pipeline.config.kinds import format_duration
from penstock.pipeline.sources.csv import Csv
from penstock.pipeline.sources.reading.inputs import list_files, open_inputs
from penstock.pipeline.sources.reading.times import TimeFormat
from penstock.pipeline.spaces.grid import Grid
from penstock.pipeline.windows.calendar import DAY, format_time, instants, wall_time

#: Bytes of the first file that columns are guessed from, and events that times, area and bounds are.
_HEAD_BYTES = 1 << 18
_EVENTS = 2_000_000
#: A column is of a kind where this share of its values is.
_MOST = 0.9
#: Times this far from the others are taken for mistakes, at each end; positions likewise.
_STRAY = 0.005
#: So few people in a whole file are kinds of people, such as subscribers and customers.
_KINDS = 10
HOUR, WEEK = 3_600_000, 7 * DAY
#: Metres of a degree of latitude, and of the smallest cell that is drafted.
_DEGREE, _CELL = 111_195.0, 500.0
_MOST_CELLS = 10
#: Metres across which events are of one region; of those that are further apart a square of the second length is kept.
_WIDEST, _REGION = 200_000.0, 50_000.0
#: ε and δ of a day in the draft, and how many times its noise a typical count shall be.
EPSILON_PER_DAY, _DELTA, _CLEAR = 2.0, 1e-6, 1.5
#: Longest time that hours are drafted for, least number of windows that are longer, and how many of the finest grids
#: are tried before longer windows.
_HOURLY, _WINDOWS, _FINE = 92 * DAY, 10, 3
#: Events that windows and cells are tried on; of more, those of some of the people.
_TRIED = 500_000

_FORMATS = (
    "iso",
    "unix_s",
    "unix_ms",
    "unix_us",
    "unix_ns",
    *(
        f"{date} {clock}"
        for date in ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y")
        for clock in ("%H:%M:%S", "%H:%M")
    ),
    "%a %b %d %H:%M:%S %z %Y",
    "%Y%m%d%H%M%S",
)
_SECONDS = (300_000_000, 5_000_000_000)  # 1979 to 2128
#: Words of a column's name for each part of an event, the most telling first.
_WORDS = {
    "time": ("timestamp", "datetime", "time", "started", "start", "date", "when", "at"),
    "latitude": ("latitude", "lat"),
    "longitude": ("longitude", "long", "lon", "lng"),
    "user": (
        *(
            "user",
            "rider",
            "person",
            "customer",
            "member",
            "subscriber",
            "passenger",
            "card",
            "device",
            "phone",
            "imei",
        ),
        *("cab", "taxi", "vehicle", "bike", "id"),
    ),
    "place": ("place", "station", "stop", "venue", "zone", "location", "poi", "cell", "site"),
}


#: What to do about a file that is no CSV file.
OTHERS = (
    "is it a CSV file? Cabspotting, GeoLife, T-Drive, Parquet and others have sources of their own: see "
    "'penstock list sources' and configs/datasets"
)
#: What to do about quoted values with line breaks.
CUT = "a quoted value goes on in the next line, and a row is one line: take such line breaks out"

#: How to go on where some files of many are of another kind.
LEAVE_OUT = "to leave a file out, move it away, or give a pattern that only the others match, such as 'trips-*.csv'"


@dataclass
class Draft:
    """A configuration as text, and what to say about it."""

    text: str  # the YAML, with comments
    notes: list[str] = field(default_factory=list)  # what was found and what to look at, a sentence each


def draft(path: str, time_zone: str = "UTC", epsilon_per_day: float = EPSILON_PER_DAY) -> Draft:
    """Draft a configuration that runs on a CSV file, or on a folder of them, from a look at it.

    **Privacy**: the draft is made by looking at the data, which is fine for a simulation. Values taken from it are
    marked ``LOOKED``, and the key ``looked_at_data: true`` keeps the draft from being deployed until someone has
    decided these values by what is publicly known.

    Reads up to two million events; memory O(events read).

    ``path``: as for the source ``csv``: a file, compressed or not, a folder, a pattern, or an archive. ``time_zone``:
    of times written without an offset, and of the windows. ``epsilon_per_day``: budget, in nats, for all that a person
    does in a day. Raises `ParameterError` unless it is above 0, `DataError` if there is nothing to read, or no column
    can be a time, a person, or a place.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "taps.csv"
    ...     _ = file.write_text("rider,tapped_at,station\\nann,2024-05-01 08:10,North\\nbob,2024-05-01 09:20,South\\n")
    ...     print(draft(str(file)).notes[0])
    columns: user from rider, time from tapped_at, place from station
    """
    if not 0 < epsilon_per_day < math.inf:
        raise ParameterError("epsilon_per_day", epsilon_per_day, "a number above 0")
    try:
        table = _Table.read(path)
        columns = _columns(table, time_zone)
        source = _source(path, table, columns, time_zone)
        events, rejects = _events(source)
    except DataError as error:
        if _are_many(path):
            raise DataError(f"{error}; {LEAVE_OUT}") from error
        raise
    n_rows = len(events) + rejects.total()
    if not len(events):
        if table.is_cut:
            raise DataError(f"{path}: {CUT}")
        raise DataError(
            f"{path}: none of {n_rows:,} rows can be read as {', '.join(columns)}; write the source by hand"
        )
    found = _Facts.of(events, time_zone, epsilon_per_day)
    notes = [
        "columns: " + ", ".join(f"{part} from {name}" for part, name in columns.items()),
        f"times: {source.time_format}, {format_time(found.begin)} to {format_time(found.end)}",
        *_doubts(table, columns, source, events, rejects),
        *_caveats(found),
    ]
    return Draft(_text(path, source, columns, found, notes[2:]), notes)


# What the file looks like: separator, header, and which column is which.


@dataclass
class _Table:
    """The first rows of a table, all as text."""

    frame: pl.DataFrame
    separator: str
    decimal: str
    has_header: bool
    is_cut: bool

    @classmethod
    def read(cls, path: str) -> _Table:
        """Read the head of the first file."""
        files = list_files(path, Csv.patterns)
        inputs = open_inputs(files, Csv.patterns)
        path, head = next(((name, stream.read(_HEAD_BYTES)) for name, stream in inputs), (path, b""))
        if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise DataError(f"{path}: is UTF-16 text; save it as UTF-8 (in Excel: 'CSV UTF-8')")
        try:
            text = head.decode("utf-8-sig", "strict" if len(head) < _HEAD_BYTES else "ignore")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}: is not UTF-8 text (byte {error.start}); is it a CSV file, saved as UTF-8?"
            ) from None
        lines = text.splitlines()[: None if len(head) < _HEAD_BYTES else -1]
        lines = [line for line in lines if line.strip()]
        if not lines:
            raise DataError(f"{path}: has no rows to look at")
        if lines[0].lstrip()[:1] in "{[":
            raise DataError(f"{path}: looks like JSON; draft reads CSV files")
        separator = max(",;\t|", key=lambda one: (min(line.count(one) for line in lines[:20]), lines[0].count(one)))
        if separator not in lines[0]:
            raise DataError(f"{path}: the first line has no comma, semicolon, tab or bar; {OTHERS}")
        first = [one.strip().strip('"') for one in lines[0].split(separator)]
        has_header = not any(_is_number(one) or _time_format(pl.Series([one]), "UTC") for one in first)
        if has_header and len(lines) == 1:
            raise DataError(f"{path}: has a header and no rows")
        try:
            frame = pl.read_csv(
                io.BytesIO("\n".join(lines).encode()),
                separator=separator,
                has_header=has_header,
                infer_schema=False,
                truncate_ragged_lines=True,
            )
        except pl.exceptions.PolarsError as error:
            if any(map(_is_cut, lines)):
                raise DataError(f"{path}: {CUT}") from None
            raise DataError(f"{path}: cannot be read as CSV ({' '.join(str(error).split())[:200]})") from error
        frame.columns = [name.strip() for name in frame.columns]
        commas = [name for name in frame.columns if _share(frame[name].str.contains(r"^-?\d+,\d+$")) >= _MOST]
        if separator != "," and commas:
            frame = frame.with_columns(pl.col(name).str.replace(",", ".", literal=True) for name in commas)
        decimal = "," if separator != "," and commas else "."
        return cls(frame, separator, decimal, has_header, any(map(_is_cut, lines)))


def _is_cut(line: str) -> bool:
    """Whether a quoted value does not end in its line."""
    return line.count('"') % 2 == 1


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _numbers(column: pl.Series) -> pl.Series:
    return column.cast(pl.Float64, strict=False)


def _share(mask: pl.Series) -> float:
    return float(mask.fill_null(False).mean() or 0.0)  # type: ignore[arg-type]


def _time_format(column: pl.Series, zone: str) -> str | None:
    """The format that most values of a column have, if any."""
    numbers = _numbers(column)
    for name in _FORMATS:
        if name.startswith("unix"):
            scale = 1000 ** ("unix_s", "unix_ms", "unix_us", "unix_ns").index(name)
            if _share(numbers.is_between(_SECONDS[0] * scale, _SECONDS[1] * scale)) >= _MOST:
                return name
        elif _share(TimeFormat(name, zone).milliseconds(column).is_not_null()) >= _MOST:
            return name
    return None


def _named(part: str, names: Iterable[str]) -> list[str]:
    """Columns in the order in which their names tell of a part of an event; those that do not are left out."""

    def rank(name: str) -> int:
        """Place of a name among the words for the part; large where it has none of them."""
        words = re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower())
        spoken = [i for i, word in enumerate(_WORDS[part]) if word in words]
        within = [
            len(_WORDS[part]) + i for i, word in enumerate(_WORDS[part]) if len(word) > 2 and word in name.lower()
        ]
        return min(spoken or within or [999])

    return sorted((name for name in names if rank(name) < 999), key=rank)


def _are_many(path: str) -> bool:
    """Whether a path means several files."""
    return not os.path.isfile(path) and len(list_files(path, Csv.patterns)) > 1


def _columns(table: _Table, zone: str) -> dict[str, str]:
    """Column of each part of an event, user and time first."""
    frame = table.frame
    names = frame.columns if table.has_header else [f"column_{i + 1}" for i in range(frame.width)]
    frame.columns = names
    times = [name for name in names if _time_format(frame[name], zone)]
    if not times:
        raise DataError(
            f"no column holds times that can be read (columns: {', '.join(names)}); write time_format by hand"
        )
    found = {"time": [*(name for name in _named("time", names) if name in times), *times][0]}
    found |= _position(frame, [name for name in names if name not in times])
    rest = [name for name in names if name not in (*times, *found.values())]
    if "latitude" not in found:
        places = _named("place", rest)
        if not places:
            raise DataError(
                f"no column holds latitude and longitude, or names a place (columns: {', '.join(names)}); {OTHERS}"
            )
        found["place"] = places[0]
    others = [name for name in rest if name not in (found.get("place"), *_named("place", rest))]
    named = _named("user", others)
    users = [name for name in named if not _is_kind(frame[name])] or named
    users = users or [name for name in others if frame[name].n_unique() > 1]
    if not users:
        raise DataError(f"no column tells people apart (columns: {', '.join(names)}); write columns.user by hand")
    return {"user": users[0]} | found


def _is_kind(column: pl.Series) -> bool:
    """Whether a column says what a person is, not who: a few values that take turns from row to row."""
    n_values, n_turns = column.n_unique(), int((column != column.shift()).sum())
    return n_values <= _KINDS and n_turns > 10 * n_values


def _position(frame: pl.DataFrame, names: list[str]) -> dict[str, str]:
    """Columns of latitude and longitude: by name, or the two with decimals that can be."""

    def fits(name: str, limit: int) -> bool:
        """Whether most values of a column are coordinates within a limit."""
        return _share(_numbers(frame[name]).abs() <= limit) >= _MOST

    north = [name for name in _named("latitude", names) if fits(name, 90)]
    east = [name for name in _named("longitude", names) if fits(name, 180)]
    if not (north and east):
        decimals = [name for name in names if fits(name, 180) and _share(frame[name].str.contains(r"\.\d{3}")) >= _MOST]
        if len(decimals) < 2:
            return {}
        first, second = decimals[:2]
        north, east = ([first], [second]) if fits(first, 90) else ([second], [first])
    return {"latitude": north[0], "longitude": east[0]} if north[0] != east[0] and fits(north[0], 90) else {}


def _source(path: str, table: _Table, columns: dict[str, str], zone: str) -> Csv:
    """The source as the draft describes it, without a time range."""
    form = _time_format(table.frame[columns["time"]], zone)
    unused = {part: "" for part in ("latitude", "longitude", "place") if part not in columns}
    return Csv(
        path=path,
        columns=columns | unused,
        time_format=form or "iso",
        time_zone=zone,
        separator=table.separator,
        decimal=table.decimal,
        header=table.has_header,
    )


def _events(source: Csv) -> tuple[pl.DataFrame, Counter[str]]:
    """The first events of a source, and of each file how many rows beside them cannot be read."""
    frames, n_rows, rejects = [], 0, Counter[str]()
    for block in (block for span in source.spans() for block in source.read(span)):
        frames.append(block.frame)
        rejects.update(reject.file for reject in block.rejects)
        n_rows += block.n_rows
        if n_rows >= _EVENTS:
            break
    return (pl.concat(frames) if frames else pl.DataFrame()), rejects


# What is in it: when, where, and in how many cells a person is.


@dataclass
class _Facts:
    """What the draft takes from the events."""

    begin: int
    end: int
    window: int
    grid: Grid | None
    places: list[str]
    max_cells: int
    max_per_period: int
    epsilon: float
    typical: float
    #: Share of the events that are in the grid.
    inside: float

    @classmethod
    def of(cls, events: pl.DataFrame, zone: str, epsilon: float) -> _Facts:
        """Find the finest cells and windows in which a typical count stands clear of the noise."""
        begin, end = _midnights(_inner(events["time"]), zone)
        if "latitude" in events.columns:
            area = _area(events)
            layouts: list[tuple[Grid | None, list[str]]] = [(grid, []) for grid in _grids(area)]
        else:
            common = Counter(events["place"].to_list()).most_common(_MOST_CELLS**2)
            layouts = [(None, sorted(name for name, _ in common))]
        shortest = DAY if end - begin > _HOURLY else HOUR
        windows = [size for size in (HOUR, DAY, WEEK) if shortest <= size <= (end - begin) / _WINDOWS] or [HOUR]
        n_parts = -(-len(events) // _TRIED)
        tried = events.filter(pl.col("user").hash(0) % n_parts == 0) if n_parts > 1 else events
        tried = tried.filter(pl.col("time").is_between(begin, end, closed="left"))
        best: _Facts | None = None
        for window in windows:
            n_windows = (end - begin) / window
            for grid, places in layouts if window == windows[-1] else layouts[:_FINE]:
                cell = _cells(tried, grid, places)
                inside = float((cell >= 0).mean() or 0.0)  # type: ignore[arg-type]
                seen = tried.select("user", window=(pl.col("time") - begin) // window, cell=cell).filter(cell >= 0)
                seen = seen.unique().with_columns(period=pl.col("window") * window // max(window, DAY))
                each = seen.group_by("user", "window").len()["len"]
                in_period = seen.group_by("user", "period").len()["len"]
                n_cells = len(grid.cells) if grid is not None else len(places) + 1
                max_cells = int(each.quantile(0.95, "higher") or 1)
                most = int(in_period.quantile(0.95, "higher") or 1)
                kept = min(int(each.clip(0, max_cells).sum()), int(in_period.clip(0, most).sum()))
                typical = n_parts * kept / (n_windows * n_cells)
                found = cls(begin, end, window, grid, places, max_cells, most, epsilon, typical, inside)
                if found.clearness >= _CLEAR:
                    return found
                if best is None or found.clearness > best.clearness:
                    best = found
        assert best is not None
        return best

    @property
    def clearness(self) -> float:
        """A typical count in multiples of the noise that it gets."""
        return self.typical / self.noise

    @property
    def noise(self) -> float:
        """Mean size of the noise, of Laplace or Gaussian form, whichever is smaller."""
        gaussian = math.sqrt(self.max_per_period / (math.pi * rho_of(self.epsilon, _DELTA)))
        return self.max_per_period / self.epsilon if self.is_pure else gaussian

    @property
    def is_pure(self) -> bool:
        """Whether Laplace noise has the smaller variance: 2n²/ε² against n/(2ρ)."""
        return self.max_per_period < self.epsilon**2 / (4 * rho_of(self.epsilon, _DELTA))

    @property
    def period(self) -> str:
        """The budget period, a day or one longer window."""
        return format_duration(max(self.window, DAY))


def _cells(events: pl.DataFrame, grid: Grid | None, places: list[str]) -> pl.Series:
    """Cell of every event, −1 outside."""
    if grid is not None:
        return pl.Series("cell", grid.place(events), dtype=pl.Int64)
    numbers = {name: i for i, name in enumerate(places)}
    return events["place"].replace_strict(numbers, default=-1, return_dtype=pl.Int64).alias("cell")


def _inner(values: pl.Series) -> tuple[float, float]:
    """Range of values without strays."""
    low, high = (values.quantile(share, "nearest") for share in (_STRAY, 1 - _STRAY))
    assert low is not None
    assert high is not None
    # A few beyond are none: a range that holds all, where all are near.
    least, most = float(values.min()), float(values.max())  # type: ignore[arg-type]
    room = (high - low) / 2
    return (least if least >= low - room else low), (most if most <= high + room else high)


def _midnights(times: tuple[float, float], zone: str) -> tuple[int, int]:
    """Local midnights around times."""
    first, last = (wall_time(zone, int(time)) // DAY * DAY for time in times)
    begin, end = instants(zone, np.array([first, last + DAY])).tolist()
    return begin, end


def _area(events: pl.DataFrame) -> dict[str, float]:
    """Sides of a box: around the events where they are of one region, else around the densest one."""
    south, north = _inner(events["latitude"])
    west, east = _inner(events["longitude"])
    wide = _DEGREE * math.cos(math.radians((south + north) / 2))
    if max((north - south) * _DEGREE, (east - west) * wide) > _WIDEST:
        south, north, west, east = _densest(events)
    south, north = _outward(south, north, 90.0)
    west, east = _outward(west, east, 180.0)
    return {"south": south, "north": north, "west": west, "east": east}


def _densest(events: pl.DataFrame) -> tuple[float, float, float, float]:
    """South, north, west and east of the square of `_REGION` that most people are in, up to half of its length."""
    step = _REGION / 2 / _DEGREE
    north = (pl.col("latitude") / step).floor()
    # Degrees of longitude get shorter by latitude, here from row to row of tiles.
    wide = step / (north * step).radians().cos().clip(0.01)
    tile = events.select("user", "latitude", "longitude", row=north, column=(pl.col("longitude") / wide).floor())
    by_tile = tile.unique(("user", "row", "column")).group_by("row", "column").len().sort("len", "row", "column")
    row, column = by_tile.row(-1)[:2]
    middle = tile.filter((pl.col("row") == row) & (pl.col("column") == column))
    latitude, longitude = (float(middle[name].median()) for name in ("latitude", "longitude"))  # type: ignore[arg-type]
    high = _REGION / 2 / _DEGREE
    broad = high / max(0.01, math.cos(math.radians(latitude)))
    near = events.filter(
        pl.col("latitude").is_between(latitude - high, latitude + high)
        & pl.col("longitude").is_between(longitude - broad, longitude + broad)
    )
    return (*_inner(near["latitude"]), *_inner(near["longitude"]))


def _grids(area: dict[str, float]) -> Iterator[Grid]:
    """Grids over an area, from the finest of at most ten by ten cells to two by two."""
    wide = _DEGREE * math.cos(math.radians((area["south"] + area["north"]) / 2))
    rows = max(1, round((area["north"] - area["south"]) * _DEGREE / _CELL))
    columns = max(1, round((area["east"] - area["west"]) * wide / _CELL))
    made = [(min(n, rows), min(n, columns)) for n in (_MOST_CELLS, 7, 5, 3, 2)]
    for n_rows, n_columns in dict.fromkeys(made):
        yield Grid(**area, rows=n_rows, columns=n_columns)


def _outward(low: float, high: float, limit: float) -> tuple[float, float]:
    """A range of whole hundredths around two numbers."""
    return max(-limit, math.floor(low * 100) / 100), min(limit, math.floor(high * 100 + 1) / 100)


def _doubts(
    table: _Table, columns: dict[str, str], source: Csv, events: pl.DataFrame, rejects: Counter[str]
) -> Iterator[str]:
    """What may be guessed wrong, a sentence each."""
    if not table.has_header:
        yield "the file has no header: columns were told by their values alone; check them"
    n_users = events["user"].n_unique()
    if n_users <= _KINDS < len(events) / 100:
        values = f"{columns['user']} has {n_users} values in {len(events):,} rows"
        yield f"{values}: is it a kind of people, and not a person?"
    elif n_users > 0.9 * len(events) > 9:
        yield f"nearly every row has another {columns['user']}: is it a trip or a row, and not a person?"
    elif re.search(r"bike|cab|taxi|vehicle|device|card", columns["user"], re.IGNORECASE):
        yield f"{columns['user']} is taken for a person: one person with two of them counts twice, two with one once"
    if source.time_format.startswith(("%d/%m", "%m/%d")):
        other = "%m/%d" if source.time_format.startswith("%d/%m") else "%d/%m"
        swapped = TimeFormat(other + source.time_format[5:]).milliseconds(table.frame[columns["time"]])
        if _share(swapped.is_not_null()) >= _MOST:
            yield "day and month cannot be told apart in these times: check time_format"
    zoned = "%z" in source.time_format or source.time_format.startswith("unix")
    if source.time_format == "iso":
        zoned = _share(table.frame[columns["time"]].str.contains(r"(Z|:\S*[+-]\d\d(:?\d\d)?)$")) >= _MOST
    if not zoned:
        yield f"times have no zone and are read as {source.time_zone}: --time-zone says another"
    n_rows = len(events) + rejects.total()
    if n_rows >= _EVENTS:
        yield f"only the first {n_rows:,} rows were looked at"
    if rejects:
        by_file = ", ".join(f"{n:,} of {os.path.basename(file)}" for file, n in rejects.most_common(3))
        more = ", …" if len(rejects) > 3 else ""
        where = f" ({by_file}{more}): {LEAVE_OUT}" if _are_many(source.path) else ""
        yield f"{rejects.total():,} of {n_rows:,} rows cannot be read, and will be rejected{where}"


def _caveats(found: _Facts) -> Iterator[str]:
    """What a release as drafted leaves out or drowns, a sentence each."""
    if found.inside < 1 - 4 * _STRAY:
        where = "the densest region" if found.grid is not None else f"the {len(found.places)} most frequent places"
        yield f"the cells are {where}, with {found.inside:.0%} of the events: change space for others".replace(
            "% ", " % "
        )
    if found.clearness < 1:
        yield (
            f"a cell has {found.typical:.2g} people in a window on average and noise of about "
            f"{found.noise:.2g}: it takes larger cells, longer windows, more events or a larger epsilon"
        )


# The text.


def _commented(text: str, comment: str) -> str:
    """A line of YAML, and what to know about it."""
    return f"{text:<32} # {comment}"


def _text(path: str, source: Csv, columns: dict[str, str], found: _Facts, doubts: list[str]) -> str:
    quoted = {part: json.dumps(name, ensure_ascii=False) for part, name in columns.items()}
    name, zone = name_of(path), source.time_zone
    extra = [] if source.separator == "," else [f"  separator: {json.dumps(source.separator)}"]
    extra += [] if source.decimal == "." else [f"  decimal: {json.dumps(source.decimal)}"]
    extra += [] if source.header else ["  header: false"]
    lines = [
        f"# Draft made by `penstock init` from a look at {json.dumps(Path(path).name)}.",
        "#",
        "# LOOKED marks values that were taken from the data. That is fine for a simulation. In a deployment they",
        "# would tell of the data: decide each by what is publicly known, then remove looked_at_data.",
        "# DECIDE marks what is a matter of judgement.",
        *(f"# CHECK: {doubt}." for doubt in doubts),
        f"name: {json.dumps(name)}",
        _commented("mode: simulation", "deployment: secret noise key, no truth written"),
        _commented("looked_at_data: true", "keeps this draft from being deployed as it is"),
        "seed: 1",
        "",
        "source:",
        "  type: csv",
        f"  path: {json.dumps(path, ensure_ascii=False)}",
        *extra,
        _commented("  columns:", "LOOKED: which column holds what"),
        *(f"    {part}: {text}" for part, text in quoted.items()),
        f"  time_format: {json.dumps(source.time_format)}",
        _commented(f"  time_zone: {zone}", "DECIDE: of times without an offset"),
        _commented(f"  from: {format_time(found.begin)}", "LOOKED: midnights around the events"),
        f"  until: {format_time(found.end)}",
        "",
        *_space_lines(found),
        "",
        "windows:",
        "  type: fixed",
        _commented(
            f"  size: {format_duration(found.window)}",
            "DECIDE: shorter ones hold fewer people, and cost more",
        ),
        f"  time_zone: {zone}",
        "",
        "bounding:",
        _commented(f"  max_cells: {found.max_cells}", "LOOKED: cells of one window that 95 % of people stay within"),
        _commented(
            f"  max_per_period: {found.max_per_period}",
            f"LOOKED: cells, window by window, of a period of {found.period}; what is more is not counted",
        ),
        _commented(f"budget_period: {found.period}", "the budget below is for all that a person does in it"),
        "",
        _commented(f"typical_count: {found.typical:.2g}", "LOOKED: people in a cell and window on average"),
        "",
        "mechanism:",
        "  - type: period_uniform",
        _commented(f"    noise: discrete_{'laplace' if found.is_pure else 'gaussian'}", "the smaller for these bounds"),
        _commented(f"    epsilon: {found.epsilon}", f"DECIDE: what {found.period} may cost one person, in nats"),
        *([] if found.is_pure else [_commented(f"    delta: {_DELTA:.1e}", "but for this chance")]),
        _commented("  - type: filter", "the best guess from all releases so far; costs nothing"),
        "",
        "accountants:",
        "  - type: composition",
        "",
        "output:",
        f"  path: {json.dumps(f'runs/{name}')}",
    ]
    return "\n".join(lines) + "\n"


def _space_lines(found: _Facts) -> list[str]:
    if (grid := found.grid) is not None:
        return [
            _commented(
                "space:",
                f"LOOKED: a box with {100 * found.inside:.0f} % of the events; DECIDE: how fine",
            ),
            "  type: grid",
            *(f"  {side}: {getattr(grid, side)!r}" for side in ("south", "north", "west", "east")),
            f"  rows: {grid.rows}",
            f"  columns: {grid.columns}",
        ]
    names = ", ".join(json.dumps(name, ensure_ascii=False) for name in found.places)
    return [
        _commented("space:", "LOOKED: the most frequent places"),
        "  type: places",
        f"  list: [{names}]",
        "  elsewhere: true",
    ]


def name_of(path: str) -> str:
    """Name of a run on a file, a folder or a pattern: the last part that says something, without its endings.

    >>> name_of("data/taps 2024.csv.gz"), name_of("trips/*.csv"), name_of("data/trips-[0-9]*.csv")
    ('taps-2024', 'trips', 'trips')
    """
    parts = reversed(Path(os.path.abspath(path)).parts)
    names = (re.sub(r"(\[.*?\]|[^\w-])+", "-", part.split(".")[0]).strip("-") for part in parts)
    return next(filter(None, names), "draft")


def write_draft(
    path: str, out: str | Path | None = None, time_zone: str = "UTC", epsilon_per_day: float = EPSILON_PER_DAY
) -> tuple[Path, Draft]:
    """Write a `draft` to a new file (None: called as the input, here); `DataError` where there is one already."""
    found, target = draft(path, time_zone, epsilon_per_day), Path(out or f"{name_of(path)}.yaml")
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(found.text)
    except FileExistsError:
        raise DataError(f"{target}: is there already; give another name with --out") from None
    return target, found
