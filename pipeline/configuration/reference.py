"""The reference of all keys, as Markdown, from the same declarations that check them."""

from __future__ import annotations

import sys
import typing
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from pipeline.configuration.fields import Field, alternatives, expected, fields_of, is_section, is_tuple
from pipeline.configuration.planned import Planned
from pipeline.configuration.plugins import UNIONS, plugins_of
from pipeline.configuration.run import RunConfig
from pipeline.configuration.values import format_duration, format_time

MARKER = "<!-- reference -->"
_HEADER = "| key | must be | default | meaning |\n|---|---|---|---|\n"


def reference_markdown() -> str:
    """Every section and plug-in with its keys: what each must be, its default and its meaning.

    Examples
    --------
    >>> print(reference_markdown()[:14])
    ### A run
    <BLANKLINE>
    | k
    """
    parts = ["### A run\n\n" + _table(RunConfig)]
    for field in fields_of(RunConfig):
        for section in filter(is_section, alternatives(field.hint)):
            if section not in UNIONS:
                parts.append(f"### `{field.key}`\n\n{_summary(section)}\n\n{_table(section)}")
    known: set[type] = set()
    for registry in UNIONS.values():
        for name, plugin in plugins_of(registry).items():
            parts.append(f"### {registry.kind} `{name}`\n\n{_summary(plugin)}\n\n{_table(plugin)}")
            for section, key in _inside(plugin).items():
                if section not in known:
                    parts.append(f"#### `{key}`\n\n{_summary(section)}\n\n{_table(section)}")
                    known.add(section)
    parts.append(f"### A planned `epsilon`\n\n{_summary(Planned)}\n\n{_table(Planned)}")
    return "\n".join(parts)


def _inside(cls: type) -> dict[type, str]:
    """Sections inside a section, however deep, and their keys; those of a list too."""
    found: dict[type, str] = {}
    for field in fields_of(cls):
        for hint in alternatives(field.hint):
            member = typing.get_args(hint)[0] if is_tuple(hint) else hint
            if is_section(member) and member not in UNIONS:
                found |= {member: field.key} | _inside(member)
    return found


def _summary(cls: type) -> str:
    """First line of a docstring."""
    return (cls.__doc__ or "").strip().split("\n")[0]


def _table(cls: type) -> str:
    fields = fields_of(cls)
    return _HEADER + "".join(map(_row, fields)) if fields else "No keys.\n"


def _row(field: Field) -> str:
    cells = (f"`{field.key}`", expected(field.hint, field.declared, UNIONS), _default(field), field.declared.doc)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _default(field: Field) -> str:
    """A default as it would be written; nothing for one that means "not given"."""
    value: Any = field.default
    if value is MISSING:
        return "*required*"
    if value is None or value == () or value == {} or is_section(type(value)):
        return ""
    if isinstance(value, bool):
        return f"`{value}`".lower()
    if field.declared.kind == "duration":
        return f"`{format_duration(value)}`"
    return f"`{format_time(value)}`" if field.declared.kind == "time" else f"`{value}`"


def with_reference(page: str) -> str:
    """A page of documentation whose part after the marker is the reference as it is now.

    >>> with_reference("# Page\\n\\n<!-- reference -->\\nold")[:37]
    '# Page\\n\\n<!-- reference -->\\n\\n### A run'
    """
    text, marker, _ = page.partition(MARKER)
    return f"{text}{marker}\n\n{reference_markdown()}" if marker else page


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(with_reference(Path(name).read_text(encoding="utf-8")), encoding="utf-8")
