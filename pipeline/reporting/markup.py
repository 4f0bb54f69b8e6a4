"""HTML that is safe by construction: text becomes markup in one place only, escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

#: Text, or text and the number it is sorted by.
Cell = str | tuple[str, float]


class Html(str):
    """Text that is already markup."""

    __slots__ = ()


def element(name: str, *children: str | None, **attributes: str | None) -> Html:
    """One element; children and attributes that are not `Html` are escaped, None is left out.

    A trailing underscore is dropped from attribute names, inner ones become hyphens.

    Examples
    --------
    >>> element("p", "1 < 2", class_="note")
    '<p class="note">1 &lt; 2</p>'
    >>> element("td", element("b", "x"), data_value="3")
    '<td data-value="3"><b>x</b></td>'
    """
    named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    written = "".join(f' {key}="{escape(value)}"' for key, value in named.items())
    return Html(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: str | None) -> Html:
    """Markup one after the other; plain text is escaped."""
    return Html("".join(c if isinstance(c, Html) else escape(c) for c in children if c is not None))


def table(columns: list[str], rows: Sequence[Sequence[Cell]], caption: str) -> Html:
    """A sortable table in a frame that scrolls by itself."""
    head = element("tr", *(element("th", column, scope="col") for column in columns))
    body = Html("".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows))
    made = element(
        "table",
        element("caption", caption),
        element("thead", head),
        element("tbody", body),
        class_="sortable",
    )
    return element("div", made, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _cell(cell: Cell) -> str:
    """One of perhaps thousands, and so written without `element`."""
    if isinstance(cell, tuple):
        return f'<td class="number" data-value="{float(cell[1])!r}">{join(cell[0])}</td>'
    kind = ' class="long"' if len(cell) > 40 else ' class="brief"' if len(cell) < 14 else ""
    return f"<td{kind}>{join(cell)}</td>"
