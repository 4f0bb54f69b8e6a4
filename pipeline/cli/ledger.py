"""``penstock ledger``: what all runs over one event source have cost together."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from penstock.pipeline.cli.command import Command, print_json
from penstock.pipeline.exit_codes import DONE


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    show = actions.add_parser("show", help="budget, runs, and what they have cost by period")
    show.add_argument("path", metavar="FILE", help="the ledger of a run, or one that several share")
    show.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON for machines")


def _execute(arguments: argparse.Namespace) -> int:
    found = overview(Path(arguments.path))
    if arguments.json:
        print_json(found)
    else:
        print("\n".join(_lines(found)))
    return DONE


def overview(path: Path) -> dict[str, Any]:
    """Terms, runs and costs by period of a ledger; checks its chain.

    Raises
    ------
    DataError
        If there is no ledger, or its chain is broken.
    """
    from penstock.mechanisms.core.plugin import DataError
    from penstock.pipeline.config.build import format_time
    from penstock.pipeline.output.ledger import Ledger
    from penstock.pipeline.output.ledger_budget import Books, Terms

    if not path.is_file():
        raise DataError(f"{path}: no ledger here")
    ledger = Ledger(path)
    entries = [entry.values for entry in ledger.entries()]
    stated = [Terms.of_entry(values) for values in entries if values.get("entry") == "terms"]
    # A ledger of simulations states nothing: their charges are summed all the same.
    unstated = Terms(source="", unit="", adjacency="", measure="epsilon", budget=math.inf, span=0)
    books = Books(stated[0] if stated else unstated)
    books.add(ledger)
    periods = [row | {"from": format_time(row["from"])} for row in books.summary()]
    runs = [
        {name: values[name] for name in ("run", "configuration", "input", "promise")}
        | {name: values[name] and format_time(values[name]) for name in ("from", "until")}
        for values in entries
        if values.get("entry") == "run"
    ]
    return {
        "terms": stated[0].entry() if stated else None,
        "entries": len(entries),
        "head": ledger.heads()[-1] if entries else "",
        "runs": runs,
        "periods": periods,
    }


def _lines(found: dict[str, Any]) -> list[str]:
    terms = found["terms"]
    lines = [f"{found['entries']:,} entries, head {found['head'][:16]}…"]
    if terms is None:
        lines.append("no budget: no deployment has charged here")
    else:
        lines += [
            f"source    {terms['source']}",
            f"unit      {terms['unit']} ({terms['adjacency']})",
            f"budget    {terms['budget']:g} ({terms['measure']})",
        ]
    for run in found["runs"]:
        promised = "" if run["promise"] is None else f", promises {run['promise']:g}"
        lines.append(f"run       {run['run']} from {run['from']} until {run['until'] or 'its end'}{promised}")
    for row in found["periods"]:
        left = "" if terms is None or not terms["span"] else f", {max(terms['budget'] - row['spent'], 0.0):g} left"
        spent = row["sum"] if terms is None or not terms["span"] else row["spent"]
        lines.append(f"period    from {row['from']}: {row['charges']:,} charges, {spent:g} spent{left}")
    return lines


LEDGER = Command("ledger", "what all runs over one event source have cost together", _configure, _execute)
