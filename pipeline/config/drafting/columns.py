"""Guess a file's user, time and place columns from their names, in sixteen languages, and from their values."""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import polars as pl
import pyarrow.parquet as pq
from polars import selectors

from penstock.mechanisms.core.plugin import DataError, ParameterError
from penstock.pipeline.config.drafting.time_formats import CLOCKS, DAYS, MAJORITY, WHOLE, numbers, share, time_format
from penstock.pipeline.sources.csv import Csv
from penstock.pipeline.sources.json import Json, lists_of, names_in, text_at
from penstock.pipeline.sources.parquet import Parquet
from penstock.pipeline.sources.reading.columns import FILE_NAME, date_of_file, positions
from penstock.pipeline.sources.reading.inputs import list_files, matches, open_inputs
from penstock.pipeline.spaces.tables import is_number

#: Bytes of the first file that columns are guessed from, and rows of Parquet.
_HEAD_BYTES, _HEAD_ROWS = 1 << 18, 10_000
#: So few people in a whole file are kinds of people, such as subscribers and customers.
KINDS = 10
#: Stands in a draft for what is not known.
FIXME = "FIXME"

#: A part of an event, and words for it: those that tell most in the first line. English, Arabic, Bengali,
#: Chinese, Dutch, French, German, Hindi, Indonesian, Italian, Japanese, Korean, Portuguese, Russian, Spanish, Urdu.
_WORDS = {
    "time": (
        "timestamp datetime zeitstempel zeitpunkt horodatage horodate fechahora datahora dataora tijdstempel tijdstip"
        " momento 日時 时间戳 タイムスタンプ 일시 момент टाइमस्टैम्प টাইমস্ট্যাম্প ts",
        "time uhrzeit zeit heure hora ora horario orario tijd waktu время وقت ساعة 时间 時間 時刻 时刻 시간 시각"
        " समय সময়",
        "started start beginn debut inicio inizio mulai начало بداية 开始 開始",
        "date datum jour fecha data dia tanggal дата تاريخ تاریخ 日期 日付 날짜 दिनांक तारीख तिथि তারিখ",
        "when at instant",
    ),
    "date": (
        "date datum jour fecha data dia day tag giorno dag tanggal дата день تاريخ تاریخ يوم 日期 日付 날짜 일자"
        " दिनांक तारीख तिथि তারিখ",
    ),
    "latitude": (
        "latitude breitengrad latitud latitudine breedtegraad breddegrad lintang широта 纬度 緯度 위도 عرض अक्षांश অক্ষাংশ",
        "lat breite",
        "y coordinates.1",
    ),
    "longitude": (
        "longitude laengengrad langengrad longitud longitudine lengtegraad bujur долгота 经度 經度 経度 경도 طول"
        " देशांतर देशान्तर रेखांश দ্রাঘিমাংশ দ্রাঘিমা",
        "lon lng long lange laenge",
        "x coordinates.0",
    ),
    "user": (
        "user utilisateur usager benutzer nutzer usuario utilizador utente gebruiker pengguna пользовател مستخدم صارف"
        " 用户 用戶 ユーザー 利用者 사용자 이용자 उपयोगकर्ता प्रयोक्ता ব্যবহারকারী",
        "rider person passenger personne passager voyageur fahrgast teilnehmer persona pasajero pessoa passageiro"
        " passeggero viaggiatore reiziger persoon penumpang пассажир راكب مسافر شخص 乘客 乗客 旅客 승객"
        " यात्री व्यक्ति যাত্রী",
        "customer member subscriber client abonne kunde cliente klant abonado assinante pelanggan клиент абонент عميل"
        " 会员 客户 顧客 会員 고객 ग्राहक গ্রাহক",
        "msisdn imsi uid",
        "card carte karte tarjeta cartao tessera kaart kartu карт بطاقة کارڈ 卡号 卡 カード 카드 कार्ड কার্ড",
        "device phone imei appareil gerat geraet dispositivo apparaat perangkat устройство جهاز 设备 手机"
        " 端末 기기 단말기 डिवाइस उपकरण ডিভাইস",
        "cab taxi vehicle bike velo fahrrad fahrzeug vehiculo veiculo veicolo",
        "id",
    ),
    "place": (
        "place station stop venue arret gare haltestelle bahnhof estacion parada estacao paragem stazione fermata halte"
        " stasiun станци остановк محطة موقف اسٹیشن اسٹاپ 站点 车站 站 駅 停留所 정류장 정류소 स्टेशन स्टॉप স্টেশন স্টপ",
        "zone location poi site lieu commune quartier ort stadtteil lugar barrio zona local bairro luogo quartiere"
        " plaats wijk lokasi tempat место район مكان منطقة مقام 地点 区 場所 エリア 장소 지역 स्थान क्षेत्र স্থান এলাকা",
        "cell",
    ),
}
#: Name of a column that says of what kind people are, or how many, and values that are a position in one.
_KIND = re.compile(r"type|kind|class|categ|segment|vendor|provider|operator|casual|count|number of|s$", re.IGNORECASE)
_POSITION = r"-?\d+\.\d+[,; ]\s*-?\d+\.\d+|^\s*\d+\s*°"
#: What is tried as a point in well-known text, or in well-known binary as hexadecimal digits.
_POINT = r"(?i)POINT|^\s*[0-9A-F]{42,}\s*$"
#: End of a name that says that it is an identifier, and not of what.
_ID_NAME = re.compile(r"((^|[\W_])(?i:id)|(?<=[a-z])I[Dd])$")
#: What unreadable numbers may be, by the part of an event that they are named after: from, up to, meaning.
_MEANINGS = {
    "time": ((2e4, 8e4, "days from 1900, as spreadsheets count: save text, such as 2024-05-01 08:10"),),
    "latitude": (
        (1.8e8, 1.8e9, "degrees times ten million"),
        (2.1e7, 1.8e8, "degrees times a million"),
        (1e4, 2.1e7, "metres of a national grid, or degrees times a million"),
    ),
    "place": ((1e4, 2.1e7, "metres of a national grid"),),
}
#: Encodings by the mark that text in them begins with: the longer ones begin with a shorter one.
_MARKS = {
    **dict.fromkeys((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "utf-32"),
    **dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "utf-16"),
}
#: Encodings of text that is not UTF-8; of those that read it the one counts in which most columns have known names.
_ENCODINGS = ("cp1252", "gb18030", "shift_jis", "big5", "cp1251", "cp1256", "koi8-r")

#: Begin of a JSON document; and the names of files that a draft is made of.
_JSON = re.compile(r"\ufeff?\s*(\{\s*[\"}]|\[\s*[{\]])")
PATTERNS = (*Csv.patterns, *Parquet.patterns, *Json.patterns)


@dataclass(frozen=True)
class UserHints:
    """The attributes that the user stated. Everything else is guessed."""

    columns: Mapping[str, str] = field(default_factory=dict)  # by part of an event; an empty user: there is none
    time_format: str | None = None
    decimal: str | None = None
    encoding: str | None = None


@dataclass
class Table:
    """The first rows of a table as strings, along with the table's dialect."""

    frame: pl.DataFrame
    separator: str = ","
    quote: str = '"'
    decimal: str = "."
    encoding: str = "utf-8"
    header: bool = True
    source: type[Csv | Parquet | Json] = Csv
    records: str = ""
    notes: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: str, stated: UserHints) -> Table:
        """Read the head of the first file. Raises `DataError` if it is not a table."""
        source = source_of(path)
        if source is Parquet:
            return cls._of_parquet(list_files(path, Parquet.patterns)[0])
        if source is Json:
            return cls._of_json(path)
        inputs = open_inputs(list_files(path, Csv.patterns), Csv.patterns)
        path, head = next(((name, stream.read(_HEAD_BYTES)) for name, stream in inputs), (path, b""))
        encoding, text, notes = _decode(path, head, stated.encoding)
        lines = text.splitlines()[: None if len(head) < _HEAD_BYTES else -1]
        lines = [line for line in lines if line.strip()]
        if not lines:
            raise DataError(f"{path}: has no rows to look at")
        separator = max(",;\t|", key=lambda one: (min(_count(line, one) for line in lines[:20]), lines[0].count(one)))
        if lines[0].startswith("sep=") or separator not in lines[0]:
            raise DataError(
                f"{path}: the first line has no comma, semicolon, tab or bar: take titles, comments or sep= above the "
                "header out; is it a CSV file? Others have sources of their own: see 'penstock list sources'"
            )
        field = f'("([^"]|"")*"|[^"{separator}]*)'
        quoted = [re.fullmatch(f"({field}[{separator}])*{field}", line) is not None for line in lines if '"' in line]
        # Quotes are text where most lines have them otherwise, and without them as many fields as all others.
        is_plain = 2 * sum(quoted) < len(quoted) and len({line.count(separator) for line in lines}) == 1
        quote = "" if is_plain else '"'
        first = next(csv.reader([lines[0]], delimiter=separator))
        is_time = [time_format(pl.Series([value]), "UTC", (*WHOLE, *DAYS)) for value in first]
        has_header = not any(is_time) and not any(is_number(value.strip()) for value in first)
        if has_header and len(lines) == 1:
            raise DataError(f"{path}: has a header and no rows")
        try:
            frame = pl.read_csv(
                io.BytesIO("\n".join(lines).encode()),
                separator=separator,
                quote_char=quote or None,
                has_header=has_header,
                infer_schema=False,
                truncate_ragged_lines=True,
            )
        except pl.exceptions.PolarsError as error:
            raise DataError(f"{path}: cannot be read as CSV ({' '.join(str(error).split())[:200]})") from error
        frame.columns = [name.strip() if has_header else f"column_{i + 1}" for i, name in enumerate(frame.columns)]
        commas = [name for name in frame.columns if share(frame[name].str.contains(r"^\s*-?\d+,\d+\s*$")) >= MAJORITY]
        decimal = stated.decimal or ("," if commas else ".")
        if decimal == ",":
            frame = frame.with_columns(pl.col(commas).str.replace(",", ".", literal=True))
        return cls(_with_day(frame, path), separator, quote, decimal, encoding, has_header, notes=notes)

    @classmethod
    def _of_parquet(cls, file: str) -> Table:
        try:
            with pq.ParquetFile(file, coerce_int96_timestamp_unit="ms") as parquet:
                batch = next(parquet.iter_batches(_HEAD_ROWS), None)
        except (OSError, ValueError) as error:
            raise DataError(f"{file}: cannot be read as Parquet: {error}") from error
        if batch is None or not batch.num_rows:
            raise DataError(f"{file}: has no rows to look at")
        frame = pl.DataFrame(batch).with_columns(selectors.binary().bin.encode("hex"))
        frame = frame.select(~(selectors.nested() | selectors.duration()))
        texts = frame.select(selectors.datetime().dt.to_string("iso"), (~selectors.datetime()).cast(pl.String))
        return cls(_with_day(texts.select(frame.columns), file), source=Parquet)

    @classmethod
    def _of_json(cls, path: str) -> Table:
        """Read the first objects of the longest list in the first non-empty file."""
        for file, stream in open_inputs(list_files(path, Json.patterns), Json.patterns):
            lists = {
                name: [each for each in islice(entries, _HEAD_ROWS) if isinstance(each, dict)]
                for name, entries in lists_of(file, stream).items()
            }
            if any(lists.values()):
                records = max(lists, key=lambda name: len(lists[name]))
                # Of a trip's ends the beginning comes first, which is what is taken of two alike.
                names = sorted(names_in(lists[records]), key=lambda name: not name.startswith("start"))
                frame = pl.DataFrame([text_at(name, lists[records]).alias(name) for name in names])
                return cls(_with_day(frame, file), source=Json, records=records if len(lists) > 1 else "")
        raise DataError(f"{path}: has no objects in a list, or one a line, to look at (documentation: Bring data)")


@dataclass
class Columns:
    """The column guessed for each event field."""

    names: dict[str, str]  # by part of an event; `FIXME` where none will do, an empty user where none says who
    time_format: str
    checks: dict[str, str]  # why a guess is to be looked at, by part


def source_of(path: str) -> type[Csv | Parquet | Json]:
    """Return the source type for a path. A folder is judged by its file names, a file by its first bytes."""
    files, sources = list_files(path, PATTERNS), (Csv, Parquet, Json)
    first = next((file for source in sources for file in files if matches(file, source.patterns)), files[0])
    head = next((stream.read(64) for _, stream in open_inputs([first], PATTERNS)), b"")
    if head[:4] == b"PAR1":
        return Parquet
    return Json if _JSON.match(head.decode(json.detect_encoding(head), "replace")) else Csv


def _decode(path: str, head: bytes, stated: str | None) -> tuple[str, str, tuple[str, ...]]:
    """Detect the encoding of a file's head, which may end inside a character. Return the encoding, text and remarks."""
    known = stated or next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
    others = () if known or b"\0" in head else _ENCODINGS
    texts: dict[str, str] = {}
    for encoding in (known or "utf-8", *others):
        try:
            text = codecs.getincrementaldecoder(encoding)().decode(head, final=len(head) < _HEAD_BYTES)
        except (UnicodeDecodeError, LookupError):
            continue
        texts[encoding] = text.removeprefix("\ufeff")
        if encoding in ("utf-8", known):
            return encoding, texts[encoding], ()
    if not texts:
        text = f"cannot be read as {known}" if known else "is not UTF-8 text (is it a CSV file?)"
        raise DataError(f"{path}: {text}; --encoding says another encoding")

    def n_known(encoding: str) -> int:
        """Count the event fields named in the header if it is decoded with an encoding."""
        names = re.split(r"[,;\t|]", texts[encoding].split("\n", 1)[0])
        return sum(bool(named(part, names)) for part in _WORDS)

    best = max(texts, key=n_known)
    return best, texts[best], (f"the text is not UTF-8 and is read as {best}: --encoding says another",)


def _with_day(frame: pl.DataFrame, file: str) -> pl.DataFrame:
    """If some column holds times of day, append the day in the file's name, if there is one, as a column."""
    clocks = (
        name for name in frame.columns if share(frame[name].str.contains(r"^\s*\d\d?[:.hH時时]\s*\d\d")) >= MAJORITY
    )
    if FILE_NAME in frame.columns or next(clocks, None) is None:
        return frame
    try:
        return frame.with_columns(pl.lit(date_of_file(file)).alias(FILE_NAME))
    except DataError:
        return frame


def _count(line: str, separator: str) -> int:
    """Count the occurrences of a separator outside quotes in a line."""
    return re.sub(r'"[^"]*"', "", line).count(separator)


def named(part: str, names: Iterable[str]) -> list[str]:
    """Return the columns whose names match an event field, starting with the best match.

    >>> named("user", ["Kartennummer", "nº usuário", "time"]), named("latitude", ["纬度", "startlat", "platform"])
    (['nº usuário', 'Kartennummer'], ['纬度', 'startlat'])
    """
    words = [(word, rank) for rank, line in enumerate(_WORDS[part]) for word in _plain(line).split()]

    def rank(name: str) -> float:
        """Return the rank of the most specific word in a name, ignoring accents. Whole words rank first."""
        plain = _plain(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name))
        # Vowels after a letter are marks in India's scripts.
        parts = "".join(one if unicodedata.category(one)[0] in "LM" else " " for one in plain).split()
        parts += [word.removeprefix("ال") for word in parts]
        exact = [rank for word, rank in words if word in parts]
        ends = [rank + 0.3 for word, rank in words if len(word) > 2 and any(one.endswith(word) for one in parts)]
        within = [rank + 0.6 for word, rank in words if (len(word) > 3 or not word.isascii()) and word in plain]
        return min([*exact, *ends, *within], default=math.inf)

    ranks = {name: rank(name) for name in names}
    return sorted((name for name in ranks if ranks[name] < math.inf), key=lambda name: ranks[name])


def _plain(text: str) -> str:
    """Return a text in lower case without accents."""
    plain = unicodedata.normalize("NFKD", text.lower())
    return unicodedata.normalize("NFC", re.sub("[\u0300-\u0305\u0307-\u036f]", "", plain))  # a breve makes й of и


def guess(table: Table, zone: str, stated: UserHints) -> Columns:
    """Guess the column for each event field. Raises `ParameterError` if a stated column is missing."""
    frame = table.frame
    for part, name in stated.columns.items():
        if name not in frame.columns and (part, name) != ("user", ""):
            raise ParameterError(part, name, f"one of the columns: {', '.join(frame.columns)}")
    names, checks = dict(stated.columns), dict[str, str]()
    form = stated.time_format or _time(frame, zone, names, checks)
    if stated.time_format and "time" not in names:
        fitting = [name for name in _unassigned(frame, names) if time_format(frame[name], zone, (form,))]
        _choose("time", named("time", fitting), fitting, names, checks, "its values are of the format")
    instants = [name for name in _unassigned(frame, names) if time_format(frame[name], zone, (*WHOLE, *DAYS))]
    _position(frame, [name for name in _unassigned(frame, names) if name not in instants], names, checks)
    rest = [name for name in _unassigned(frame, names) if name not in instants]
    if "user" not in names:
        _user(frame, rest, names, checks)
    if not names.keys() & {"latitude", "point", "place"}:
        _place(frame, _unassigned(frame, names), names, checks)
    order = ("user", "date", "time", "latitude", "longitude", "point", "place")
    return Columns({part: names[part] for part in order if part in names}, form, checks)


def _unassigned(frame: pl.DataFrame, names: dict[str, str]) -> list[str]:
    return [name for name in frame.columns if name not in names.values()]


def _choose(
    part: str, by_name: list[str], by_value: list[str], names: dict[str, str], checks: dict[str, str], reason: str
) -> None:
    """Choose the column for a field by name, falling back to its values."""
    names[part] = next(iter(by_name or by_value), FIXME)
    if names[part] == FIXME:
        checks[part] = f"no column could be told to hold the {part}; write it"
    elif not by_name:
        checks[part] = f"by its values, not by its name: {reason}"


def _time(frame: pl.DataFrame, zone: str, names: dict[str, str], checks: dict[str, str]) -> str:
    """Choose the time column, or the date and hour columns, and return the time format."""
    left = [names["time"]] if "time" in names else _unassigned(frame, names)

    def formats(columns: list[str], of: Sequence[str], before: str = "") -> dict[str, str]:
        """Return the time formats of the columns that have one, after prefixing their values with ``before``."""
        forms = {name: time_format(before + frame[name], zone, of) for name in columns}
        return {name: form for name, form in forms.items() if form}

    left = [name for name in left if name != FILE_NAME]
    complete = formats(left, WHOLE)
    days = formats([names["date"]] if "date" in names else _unassigned(frame, names), DAYS)
    others = [name for name in left if name not in days and name not in complete]
    clocks = formats(others, [f"%Y-%m-%d {clock}" for clock in CLOCKS], before="2024-05-01 ")
    by_name = named("time", complete) if "time" not in names else list(complete)
    if by_name and "date" not in names:
        names["time"] = by_name[0]
        if len(by_name) > 1:
            checks["time"] = f"{', '.join(by_name[1:])} could be it, too: --time says which"
    elif clocks and days:
        _choose(
            "date",
            named("date", [name for name in days if name != FILE_NAME]),
            list(days),
            names,
            checks,
            "it holds days",
        )
        clock_columns = named("time", clocks) or [name for name in clocks if name in names.values()]
        _choose("time", clock_columns, list(clocks), names, checks, "it holds times of day")
        form = f"{days[names['date']]} {clocks[names['time']].removeprefix('%Y-%m-%d ')}"
        return "iso" if form.startswith("%Y-%m-%d %H:%M") else form
    elif complete:
        _choose("time", [], list(complete), names, checks, "it holds times")
    elif days:
        _choose("time", named("time", days), list(days), names, checks, "it holds days")
        checks["time"] = "it holds days without times of day: windows are days at least"
        return "iso" if days[names["time"]] == "%Y-%m-%d" else days[names["time"]]
    else:
        _choose("time", named("time", left), [], names, checks, "")
        checks["time"] = "no column holds times that can be read: write it, and time_format (--time, --time-format)"
        checks["time"] += _describe_unmapped(frame, "time", named("time", left)[:1])
        if named("time", clocks):
            names["date"] = FIXME
            checks["time"] = f"{names['time']} holds times of day, and no column holds the day: write it (--date)"
    return complete.get(names["time"], "iso")


def _position(frame: pl.DataFrame, left: list[str], names: dict[str, str], checks: dict[str, str]) -> None:
    """Choose the latitude and longitude columns by name, or a column of points, or columns by their range of values.

    Positions whose names and values do not tell which coordinate comes first are left to be stated.
    """
    if "point" in names or ("latitude" in names and "longitude" in names):
        return

    def fits(name: str, limit: float) -> bool:
        """Return whether most values of a column lie within ``limit`` degrees."""
        return share(numbers(frame[name]).abs() <= limit) >= MAJORITY

    degrees = [name for name in left if fits(name, 180)]
    north = [names["latitude"]] if "latitude" in names else named("latitude", degrees)
    east = [names["longitude"]] if "longitude" in names else named("longitude", degrees)
    east = [name for name in east if name not in north[:1]]
    if north and east:
        latitude, longitude = north[0], east[0]
        if len(north) > 1 < len(east):
            checks["latitude"] = f"{north[1]} and {east[1]} could be it, too: --latitude and --longitude say which"
    elif points := [] if names.keys() & {"latitude", "longitude"} else _points(frame, left):
        names["point"] = points[0]
        checks["point"] = "by its values, not by its name: points, longitude first"
        if len(points) > 1:
            checks["point"] = f"{points[1]} could be it, too: --point says which"
        return
    else:
        known = (north or east)[:1]
        others = [name for name in degrees if share(frame[name].str.contains(r"\.\d{3}")) >= MAJORITY]
        others = [name for name in others if name not in known][: 2 - len(known)]
        if len(known) + len(others) < 2:
            return
        latitude, longitude = (*north, *others)[:2] if north or not east else (others[0], east[0])
        for part in {"latitude", "longitude"} - names.keys():
            checks[part] = "by its values, not by its name"
    beyond = [name for name in (latitude, longitude) if numbers(frame[name]).abs().is_between(90, 180, "right").any()]
    if not north and not east and len(beyond) != 1:
        a, b = (float(numbers(frame[name]).median() or 0.0) for name in (latitude, longitude))  # type: ignore[arg-type]
        names["latitude"] = names["longitude"] = FIXME
        checks["latitude"] = (
            f"{latitude} and {longitude} hold positions, and neither names nor values tell which is the latitude: "
            f"--latitude {latitude} reads them as {a:.4g}° north, {b:.4g}° east; --latitude {longitude} as {b:.4g}° "
            f"north, {a:.4g}° east"
        )
        checks.pop("longitude", None)
        return
    if (not fits(latitude, 90) and fits(longitude, 90)) or (not north and not east and beyond == [latitude]):
        latitude, longitude = longitude, latitude
        checks["latitude"] = f"{longitude} holds values beyond 90, so the other one is the latitude"
    if fits(latitude, 90):
        names["latitude"], names["longitude"] = latitude, longitude


def _points(frame: pl.DataFrame, left: list[str]) -> list[str]:
    """Return the columns of points in well-known text or binary."""
    tried = [name for name in left if share(frame[name].str.contains(_POINT)) >= MAJORITY]
    return [name for name in tried if share(positions(frame[name])[0].is_not_null()) >= MAJORITY]


def _user(frame: pl.DataFrame, left: list[str], names: dict[str, str], checks: dict[str, str]) -> None:
    """Choose the user column, if there is one."""
    others = [name for name in left if name != names.get("place") and name not in named("place", left)]
    by_name = named("user", others)
    people = [name for name in by_name if not _holds_categories(frame[name])]
    people = people or [name for name in by_name if not _KIND.search(name)]
    n_rows = len(frame)
    repeating = [
        name
        for name in others
        if 1 < frame[name].n_unique() <= max(2, 0.9 * n_rows)
        and not _holds_categories(frame[name])
        and share(frame[name].str.contains(r"^-?\d+[.,]\d+$")) < MAJORITY
    ]
    if people or repeating:
        seen = f"it has {frame[(people or repeating)[0]].n_unique():,} values in {n_rows:,} rows"
        _choose("user", people, repeating, names, checks, seen)
        if people and _ID_NAME.search(people[0]) and not named("user", [_ID_NAME.sub("", people[0])]):
            checks["user"] = f"an id may be of a trip, a row or a place, too: {seen}"
        return
    names["user"] = ""
    checks["user"] = (
        "no column says who it is, so each row is taken for a person of its own: one who is in ten rows counts ten "
        "times, and what is protected is a row, not a person, which a deployment refuses (--user says the column)"
    )


def _place(frame: pl.DataFrame, left: list[str], names: dict[str, str], checks: dict[str, str]) -> None:
    """Choose the column of place names."""
    text = [
        name
        for name in left
        if share(numbers(frame[name]).is_not_null()) < MAJORITY and 1 < frame[name].n_unique() <= max(2, len(frame) / 2)
    ]
    positions = [name for name in left if share(frame[name].str.contains(_POSITION)) >= MAJORITY]
    left, text = ([name for name in columns if name not in positions] for columns in (left, text))
    _choose("place", named("place", left), text, names, checks, "it is text that repeats")
    if names["place"] == FIXME:
        none = "no column holds latitude and longitude, or names a place: write it"
        checks["place"] = f"{none} (--latitude, --longitude, --place)"
        both = [*named("latitude", left)[:1], *named("longitude", left)[:1]]
        large = [name for name in left if share(numbers(frame[name]).abs() >= 1e4) >= MAJORITY]
        pair = large[:2] if len(large) > 1 else []
        checks["place"] += _describe_unmapped(frame, "latitude", both) or _describe_unmapped(frame, "place", pair)
        if doubtful := [*positions, *both, *pair]:
            checks["place"] += f"; {doubtful[0]} does not hold decimal degrees (WGS 84), which need two columns"


def _describe_unmapped(frame: pl.DataFrame, part: str, columns: list[str]) -> str:
    """Suggest what numeric columns that are not mapped to any event field might mean."""
    sizes = [numbers(frame[name]).abs() for name in columns]
    for low, up, meaning in _MEANINGS[part] if columns else ():
        if share(pl.DataFrame(sizes).max_horizontal().is_between(low, up)) >= MAJORITY:
            return f"; {' and '.join(columns)} may be {meaning}"
    return ""


def _holds_categories(column: pl.Series) -> bool:
    """Return whether a column contains user categories (a few alternating values) instead of individual users."""
    n_values, n_turns = column.n_unique(), int((column != column.shift()).sum())
    return n_values <= KINDS and (n_turns if n_values > 1 else len(column)) > 10 * n_values
