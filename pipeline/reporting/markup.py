"""Building blocks for HTML pages: templates, tables, number formatting and packed arrays."""

from __future__ import annotations

import base64
import hashlib
import math
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import ArrayLike

#: Significant digits of numbers in CSV files, which people read; Parquet files hold every number as it is.
CSV_DIGITS = 6
#: Text, or text and the number it is sorted by.
Cell = str | tuple[str, float]


class Table(NamedTuple):
    """A sortable table."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str


# Templates, styles and scripts of this package.


@cache
def package_text(names: tuple[str, ...]) -> str:
    """Return the concatenated contents of files in ``static``."""
    folder = resources.files("penstock.pipeline.reporting") / "static"
    return "\n".join((folder / name).read_text(encoding="utf-8").strip() for name in names)


@cache
def templates() -> Environment:
    """Return this package's template environment, which escapes values and raises an error on undefined variables."""
    loader = PackageLoader("penstock.pipeline.reporting")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def document(template: str, title: str, styles: tuple[str, ...], policy: str = "", **values: Any) -> str:
    """Render a page from a template, with inline styles and a content security policy that ``policy`` extends."""
    style = package_text(styles)
    shared = {"title": title, "style": Markup(style), "style_hash": content_hash(style), "policy": Markup(policy)}
    return templates().get_template(template).render(shared | values)


def content_hash(text: str) -> str:
    """Return the hash by which a content security policy allows an inline style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


# Formats of numbers, times and names.


def number(value: float | None, digits: int = 4) -> str:
    """Format a number to some significant digits, with an exponent only if it is very small or large.

    >>> number(1015506), number(0.011036774), number(2.0), number(float("inf")), number(-1e-16), number(None)
    ('1,015,506', '0.01104', '2', '∞', '0', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if abs(value) < 1e-12:
        return "0"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}".replace("-", "−")
    if 1e-4 <= abs(value) < 1e6:
        places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{places}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        text = f"{value:.{digits - 1}e}"
    return text.replace("-", "−")


def percent(part: float, whole: float) -> str:
    """Format a fraction as a percentage.

    >>> percent(1, 3), percent(1, 100000), percent(0, 0), percent(-14.4, 1)
    ('33 %', '< 0.1 %', '0 %', '−1,440 %')
    """
    share = part / whole if whole else 0.0
    if not math.isfinite(share):
        return number(share)
    if 0 < share < 0.001:
        return "< 0.1 %"
    places = 0 if abs(share) >= 0.1 or share == 0 else 1
    return f"{share:,.{places}%}".replace("%", " %").replace("-", "−")


def plus_minus(mean: float, half: float, unit: str = "") -> str:
    """Format a mean and the half-width of its interval, both to the precision of the half-width.

    >>> plus_minus(7.7234, 0.7765), plus_minus(36.65, 9.99, " %"), plus_minus(0.25, 0.0)
    ('7.72 ± 0.78', '37 ± 10 %', '0.25 ± 0')
    """
    if not 1e-4 <= half < 1e6 or not math.isfinite(mean):
        return f"{number(mean, 3)} ± {number(half, 2)}{unit}"
    places = max(0, 1 - math.floor(math.log10(float(f"{half:.1e}"))))
    return f"{mean:,.{places}f} ± {half:,.{places}f}{unit}".replace("-", "−")


def moment(milliseconds: float, time_zone: str) -> str:
    """Format a timestamp as a date and time in the given time zone.

    >>> moment(1704067200000, "Europe/Berlin")
    '1\xa0January\xa02024,\xa001:00'
    """
    at = datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone(ZoneInfo(time_zone))
    return f"{at.day} {at:%B %Y, %H:%M}".replace(" ", "\N{NO-BREAK SPACE}")


def phrase(name: str) -> str:
    """Convert an identifier to words separated by spaces."""
    return name.replace("_", " ")


def plural(n: int, noun: str) -> str:
    """Format a count with its noun, as in 1 window or 1,200 windows."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


# Arrays inside JSON: compressed and in base64, so that a page with a million counts stays small.


def pack(values: ArrayLike, exact: bool = False) -> dict[str, str]:
    """Encode an array as text that the page's ``unpack`` decodes to a typed array, NaN and infinities included.

    As 64-bit floats if ``exact`` (times), else as the smallest integers that hold all values, or 32-bit floats.

    >>> pack([1, 2, 300])["type"], pack([0.5, 2])["type"], pack([True, False])["type"]
    ('i2', 'f4', 'i1')
    """
    array = np.asarray(values)
    with np.errstate(over="ignore", invalid="ignore"):
        kinds = () if exact else ("i1", "<i2", "<i4")
        smallest = (integers for kind in kinds if np.array_equal(integers := array.astype(kind), array))
        array = next(smallest, array.astype("<f8" if exact else "<f4"))
    # A higher level saves 1 % of noisy counts.
    packed = zlib.compress(np.ascontiguousarray(array).data, 1)
    return {"type": array.dtype.str[1:], "packed": base64.b64encode(packed).decode("ascii")}
