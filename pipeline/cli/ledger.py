"""``penstock ledger``: what all runs over one event source have cost together."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from penstock.pipeline import DONE, FAILED
from penstock.pipeline.cli.command import Command, print_json


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    show = actions.add_parser("show", help="budget, runs, and what they have cost by period")
    show.add_argument("path", metavar="FILE", help="the ledger of a run, or one that several share")
    show.add_argument(
        "--manifest",
        metavar="MANIFEST",
        help="manifest of a run, such as public/manifest.json: is the ledger as it was?",
    )
    show.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON for machines")


def _execute(arguments: argparse.Namespace) -> int:
    found = overview(Path(arguments.path), arguments.manifest and Path(arguments.manifest))
    if arguments.json:
        print_json(found)
    else:
        print("\n".join(_lines(found)))
    return FAILED if found["faults"] else DONE


def overview(path: Path, manifest: Path | None = None) -> dict[str, Any]:
    """Terms, runs and costs by period of a ledger; checks its chain, and that its end is there.

    ``manifest`` is a run's, public or the operator's: its head of the ledger has to be there. Raises `DataError` if
    there is no ledger, its chain is broken, or the manifest says nothing of a ledger.
    """
    from penstock.mechanisms.core.plugin import DataError
    from penstock.pipeline.output.ledger import Ledger
    from penstock.pipeline.output.ledger_budget import Books, Terms
    from penstock.pipeline.windows.calendar import format_time

    if not path.is_file():
        raise DataError(f"{path}: no ledger here")
    ledger = Ledger(path)
    entries = [entry.values for entry in ledger.entries()]
    stated = [Terms.of_entry(values) for values in entries if values.get("entry") == "terms"]
    # A ledger of simulations states nothing: their charges are summed all the same.
    unstated = Terms(source="", unit="", adjacency="", measure="epsilon", budget=math.inf, span=0)
    books = Books(stated[0] if stated else unstated)
    charges = list(ledger)
    books.add(charges)
    begun = [values for values in entries if values.get("entry") == "run"]
    # A simulation, which begins no run, may have charged beside one that has the ledger to itself.
    is_alone = len(begun) == 1 and begun[0].get("alone") and {charge.run for charge in charges} <= {begun[0]["run"]}
    promised = begun[0]["promise"] if is_alone else None
    periods = [row | {"from": format_time(row["from"])} for row in books.summary(promised)]
    runs = [
        {name: values[name] for name in ("run", "configuration", "input", "promise")}
        | {name: values[name] and format_time(values[name]) for name in ("from", "until")}
        for values in begun
    ]
    heads = ledger.heads()
    faults = []
    try:
        ledger.whole()
    except DataError as error:
        faults.append(str(error))
    if manifest is not None and _head_in(manifest) not in heads:
        faults.append(
            f"{path}: lacks the entry that {manifest} names: it was cut, or it is an older copy or another ledger"
        )
    return {
        "terms": stated[0].entry() if stated else None,
        "entries": len(entries),
        "head": heads[-1] if heads else "",
        "runs": runs,
        "periods": periods,
        "faults": faults,
    }


def _head_in(path: Path) -> str:
    """Head of the ledger at the end of a run, by either of its manifests."""
    from penstock.mechanisms.core.plugin import DataError

    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        head = values.get("ledger_head") or values["ledger"]["head"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        head = None
    if not isinstance(head, str) or not head:
        raise DataError(f"{path}: no manifest of a deployment, which names the head of its ledger")
    return head


def _lines(found: dict[str, Any]) -> list[str]:
    terms = found["terms"]
    lines = [
        f"{found['entries']:,} entries, head {found['head']}",
        *(f"fault     {fault}" for fault in found["faults"]),
    ]
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
