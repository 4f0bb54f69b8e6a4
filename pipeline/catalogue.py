"""Every plug-in with its promise, from its own docstring and guarantee: lists for people and tables for the README."""

from __future__ import annotations

import inspect
from typing import Any

from mechanisms.core.parameters import parameters_of
from mechanisms.core.registry import Registry


def entries(kind: str) -> list[dict[str, Any]]:
    """One dict a plug-in: name, promise, parameters and, for mechanisms, the guarantee."""
    if kind == "metrics":
        from evaluation.utility import METRICS

        return [{"name": name, "promise": _first_line(metric.function)} for name, metric in sorted(METRICS.items())]
    registry = _registry(kind)
    found = []
    for name in registry.names():
        plugin = registry.get(name)
        entry: dict[str, Any] = {"name": name, "promise": _first_line(plugin)}
        if kind == "mechanisms":
            guarantee = plugin.guarantee
            entry |= {"guarantee": guarantee.statement, "unit": guarantee.unit, "theorem": guarantee.theorem}
        entry["parameters"] = {p.key or n: p.doc for n, p in parameters_of(plugin).items()}
        found.append(entry)
    return found


def text(kind: str) -> str:
    """A plain list."""
    rows = entries(kind)
    width = max((len(row["name"]) for row in rows), default=0)
    return "\n".join([kind, *(f"  {row['name']:<{width}}  {row['promise']}" for row in rows)])


def markdown(kind: str) -> str:
    """A Markdown table."""
    rows = entries(kind)
    columns = ["name", "promise"] + (["guarantee", "unit"] if kind == "mechanisms" else [])
    titles = {"name": kind[:-1], "promise": "what it does", "guarantee": "guarantee", "unit": "unit of privacy"}
    head = [" | ".join(titles[c] for c in columns), " | ".join("---" for _ in columns)]
    body = [" | ".join(f"`{row[c]}`" if c == "name" else row[c] for c in columns) for row in rows]
    return "\n".join(f"| {line} |" for line in head + body)


def _registry(kind: str) -> Registry[Any]:
    from accountants.core.accountant import ACCOUNTANTS
    from mechanisms.core.mechanism import MECHANISMS
    from pipeline.source import SOURCES
    from pipeline.space import SPACES
    from pipeline.window import WINDOWS

    registries: dict[str, Registry[Any]] = {
        "mechanisms": MECHANISMS,
        "accountants": ACCOUNTANTS,
        "sources": SOURCES,
        "spaces": SPACES,
        "windows": WINDOWS,
    }
    return registries[kind]


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n")[0]
