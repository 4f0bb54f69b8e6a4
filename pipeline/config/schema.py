"""JSON Schema and reference tables for the configuration, generated from the declarations that validate it."""

from __future__ import annotations

import typing
from collections import Counter
from dataclasses import MISSING
from typing import Any, Literal

from penstock.mechanisms.core.plugin import Parameter
from penstock.pipeline.config.build import Field, alternatives, expected, fields_of, is_section, is_tuple
from penstock.pipeline.config.kinds import kind_of, show
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.config.sections import UNIONS, plugins_of

# Reference of all keys, as Markdown.

MARKER = "<!-- reference -->"
#: Words of a message, and how the reference writes them.
_BRIEF = {
    "a duration such as 10m, 1h30m or 7d": "duration",
    "a time such as 2008-05-19T00:00:00Z": "time",
    "an existing file or folder": "path",
    "a whole number": "integer",
    "a number": "number",
    "a list, each entry ": "list of ",
    "a section, each value ": "section of ",
    "true or false": "boolean",
    "one of ": "",
    "at least ": "≥",
    "above ": ">",
    "at most ": "≤",
    "below ": "<",
}
#: A key that this many plug-ins of a kind share is written once for all of them.
_SHARED_BY = 2


def reference_markdown() -> str:
    """Return the reference for every section and plug-in, with each key's kind, default and meaning.

    >>> print(reference_markdown()[:36])
    ### A run
    <BLANKLINE>
    * `name` (text; required)
    """
    parts = [f"### A run\n\n{_table(RunConfig, {})}"]
    known: set[tuple[type, str]] = set()

    def add(cls: type, level: str) -> None:
        for section, key in _inside(cls).items():
            if (section, key) not in known:
                parts.append(f"{level} `{key}`\n\n{_summary(section)}\n\n{_table(section, {})}")
                known.add((section, key))

    add(RunConfig, "###")
    for registry in UNIONS.values():
        plugins, kind = plugins_of(registry), registry.kind
        counted = Counter((field.key, _row(field)) for plugin in plugins.values() for field in fields_of(plugin))
        shared: dict[str, str] = {}
        for (key, row), n in counted.most_common():
            if n >= _SHARED_BY:
                shared.setdefault(key, row)
        if len(shared) > 1:
            parts.append(f"### {kind}: keys of several types\n\n{''.join(shared.values())}")
        for name, plugin in plugins.items():
            table = _table(plugin, shared if len(shared) > 1 else {}, f"#{kind}-keys-of-several-types")
            parts.append(f"### {kind} `{name}`\n\n{_summary(plugin)}\n\n{table}")
            add(plugin, "####")
    return "\n".join(parts)


def _inside(cls: type) -> dict[type, str]:
    """Return all sections nested in a class, including those in lists, along with their keys."""
    sections: dict[type, str] = {}
    for field in fields_of(cls):
        for hint in alternatives(field.hint):
            member = typing.get_args(hint)[0] if is_tuple(hint) else hint
            if is_section(member) and member not in UNIONS:
                sections |= {member: field.key} | _inside(member)
    return sections


def _summary(cls: type) -> str:
    """Return a docstring's first line."""
    return (cls.__doc__ or "").strip().split("\n")[0]


def _table(cls: type, shared: dict[str, str], where: str = "") -> str:
    """Return a table of a section's keys. Keys shared by several types are only listed by name."""
    rows = {field.key: _row(field) for field in fields_of(cls)}
    particular = {key: row for key, row in rows.items() if shared.get(key) != row}
    elsewhere = ", ".join(f"`{key}`" for key in rows if key not in particular)
    also = f"* [also]({where}) {elsewhere}\n" if elsewhere else ""
    return "".join(particular.values()) + also or "No keys.\n"


def _row(field: Field) -> str:
    return f"* `{field.key}` ({_kind(field)}{_default(field)}): {field.declared.doc}\n"


def _kind(field: Field) -> str:
    """Return a short description of a value's kind. For a section, return a link to its keys."""
    kinds = []
    for hint in alternatives(field.hint):
        member = typing.get_args(hint)[0] if is_tuple(hint) else hint
        if is_section(member) or member in UNIONS:
            where = f"[section](#{field.key})" if member not in UNIONS else "section with a type"
            kinds.append(f"list of {where}" if is_tuple(hint) else where)
        elif hint is not type(None):
            kinds.append(expected(hint, field.declared, UNIONS))
    kind = " or ".join(kinds)
    for words, brief in _BRIEF.items():
        kind = kind.replace(words, brief)
    return kind.replace(", ≥", " ≥").replace(", >", " >")


def _default(field: Field) -> str:
    """Format a default as YAML. Returns an empty string if the default means "not given"."""
    value: Any = field.default
    if value is MISSING:
        return "; required"
    if value is None or value == () or value == {} or is_section(type(value)):
        return ""
    return f"; `{str(value).lower() if isinstance(value, bool) else show(value, field.declared)}`"


def with_reference(page: str) -> str:
    """Replace everything after a page's marker with the current reference."""
    text, marker, _ = page.partition(MARKER)
    return f"{text}{marker}\n\n{reference_markdown()}" if marker else page


# JSON Schema of a configuration.


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a run configuration, for editors and other programs.

    Every plug-in is an entry of ``$defs`` (``mechanism.laplace``); a section that names one is one of them, told apart
    by the constant under ``type``. What the schema cannot say (conditions between keys, files that must exist) is
    left to `load`; what it refuses, `load` refuses too.

    >>> json_schema()["$defs"]["window.fixed"]["properties"]["type"]
    {'const': 'fixed'}
    """
    defs: dict[str, Any] = {}
    for registry in UNIONS.values():
        for name, plugin in plugins_of(registry).items():
            defs[f"{registry.kind}.{name}"] = _section(plugin, {"type": {"const": name}})
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A run of penstock"}
    return schema | _section(RunConfig, {}) | {"$defs": defs}


def _section(cls: type, properties: dict[str, Any]) -> dict[str, Any]:
    """Return a dataclass's schema. The keys in ``properties`` are added as mandatory."""
    fields, keys = fields_of(cls), dict(properties)
    for field in fields:
        unit = f" ({field.declared.unit})" if field.declared.unit else ""
        keys[field.key] = {"description": field.declared.doc + unit} | _union(field.hint, field.declared)
        if isinstance(field.default, bool | int | float | str) and field.declared.kind not in ("duration", "time"):
            keys[field.key]["default"] = field.default
    return {
        "description": _summary(cls),
        "type": "object",
        "properties": keys,
        "required": [*properties, *(field.key for field in fields if field.required)],
        "additionalProperties": False,
    }


def _union(hint: Any, declared: Parameter) -> dict[str, Any]:
    choices = [_type(member, declared) for member in alternatives(hint)]
    return choices[0] if len(choices) == 1 else {"anyOf": choices}


def _type(hint: Any, declared: Parameter) -> dict[str, Any]:
    """Return the schema of a single type, not a union."""
    if hint is type(None):
        return {"type": "null"}
    if hint in UNIONS:
        family = UNIONS[hint].kind
        return {"oneOf": [{"$ref": f"#/$defs/{family}.{name}"} for name in plugins_of(UNIONS[hint])]}
    if is_section(hint):
        return _section(hint, {})
    if is_tuple(hint) and typing.get_args(hint)[-1] is Ellipsis:
        entry = _union(typing.get_args(hint)[0], declared)
        return {"anyOf": [{"type": "array", "items": entry}, entry]}  # one entry stands for a list of it
    if is_tuple(hint):
        items = [_union(entry, declared) for entry in typing.get_args(hint)]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if typing.get_origin(hint) is dict:
        return {"type": "object", "additionalProperties": _union(typing.get_args(hint)[1], declared)}
    if typing.get_origin(hint) is Literal:
        return {"enum": list(typing.get_args(hint))}
    if declared.choices is not None:
        return {"enum": list(declared.choices)}
    kind = kind_of(hint, declared)
    return kind.schema(declared) if kind else {}
