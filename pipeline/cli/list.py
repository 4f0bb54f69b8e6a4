"""``penstock list``: what a configuration can be made of."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

from mechanisms.core.plugin import Registry, parameters_of
from pipeline.cli.common import print_json
from pipeline.exit_codes import DONE

# Every plug-in with its promise, from its own docstring and guarantee: lists for people and tables for the README.


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
    from mechanisms.core.contract import MECHANISMS
    from pipeline.sources.base import SOURCES
    from pipeline.spaces.base import SPACES
    from pipeline.windows.base import WINDOWS

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


HELP = "list mechanisms, accountants, sources, spaces, windows and metrics"
KINDS = ("mechanisms", "accountants", "sources", "spaces", "windows", "metrics")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("kind", nargs="?", choices=KINDS, help="only these")
    parser.add_argument("--markdown", action="store_true", help="as the tables of the README")


def execute(arguments: argparse.Namespace) -> int:
    """Print one kind, or all."""

    kinds = (arguments.kind,) if arguments.kind else KINDS
    if arguments.json:
        print_json({kind: entries(kind) for kind in kinds})
    elif arguments.markdown:
        print("\n\n".join(markdown(kind) for kind in kinds))
    else:
        print("\n\n".join(text(kind) for kind in kinds))
    return DONE
