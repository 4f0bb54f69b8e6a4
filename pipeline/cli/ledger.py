"""``penstock ledger`` reports the total privacy cost of all runs over the same events."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.pipeline import DONE, FAILED
from penstock.pipeline.cli.command import Command, print_json

if TYPE_CHECKING:
    from penstock.pipeline.releasing.ledger import Posting
    from penstock.pipeline.releasing.terms import Terms

DAY = 86_400_000
#: What amounts are in, in words.
_MEASURES = {"epsilon": "amounts are ε in nats", "rho": "amounts are ρ", "gaussian": "amounts are half of μ²"}


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    show = actions.add_parser("show", help="budget, runs, and what they have cost by period")
    show.add_argument("paths", metavar="FILE", nargs="+", help="a ledger, or several over the same events")
    show.add_argument("--manifest", metavar="FILE", type=Path, help="a run's manifest to check the ledger against")
    show.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON for machines")


def _execute(arguments: argparse.Namespace) -> int:
    ledgers = [overview(Path(path)) for path in arguments.paths]
    if arguments.manifest:
        ledgers[0]["faults"] += _missing_head(arguments.paths, arguments.manifest)
    shown = ledgers[0] if len(ledgers) == 1 else {"ledgers": ledgers, "together": combined_cost(ledgers)}
    if arguments.json:
        print_json(shown)
    else:
        for path, ledger in zip(arguments.paths, ledgers):
            print("\n".join([f"ledger    {path}", *_lines(ledger)]))
        if len(ledgers) > 1:
            print(
                "\n".join(
                    f"together  at most {_amount(amount)} ({name})" for name, amount in combined_cost(ledgers).items()
                )
            )
    return FAILED if any(ledger["faults"] for ledger in ledgers) else DONE


def overview(path: Path) -> dict[str, Any]:
    """Verify a ledger's hash chain and head. Return its terms, its runs and its costs by period.

    Raises `DataError` if there is no ledger, or its chain is broken.
    """
    from penstock.mechanisms.core.plugin import DataError
    from penstock.pipeline.releasing.ledger import Ledger, Posting, landmark_choices, series
    from penstock.pipeline.releasing.terms import Terms
    from penstock.pipeline.windows.calendar import format_time

    ledger = Ledger(path)
    entries = list(ledger.entries()) if path.is_file() else []
    if not entries:
        raise DataError(f"{path}: no ledger here")
    terms = Terms.of(entries[0].values["terms"])
    postings = [Posting.of(entry.values) for entry in entries if entry.kind == "charge"]
    runs = [
        {name: values[name] for name in ("run", "configuration", "input")}
        | {name: values[name] and format_time(values[name]) for name in ("from", "until")}
        for values in (entry.values for entry in entries if entry.kind == "run")
    ]
    faults = []
    try:
        ledger.checked_entries()
    except DataError as error:
        faults.append(str(error))
    return {
        "id": entries[0].values["id"],
        "terms": asdict(terms) | {"unit": terms.unit},
        "entries": len(entries),
        "head": entries[-1].head,
        "runs": runs,
        "periods": list(_by_period(terms, postings)),
        "series": series(terms, postings),
        "choices": landmark_choices(entries),
        "faults": faults,
    }


def _by_period(terms: Terms, postings: Sequence[Posting]) -> Iterator[dict[str, Any]]:
    """Yield, for each budget period or UTC day, its charges, the highest cost of any unit and the total cost."""
    from penstock.pipeline.windows.calendar import format_time

    costs = terms.costs()
    grouped: dict[int, list[Posting]] = {}
    for posting in postings:
        slots = posting.on_slots(terms.measure)
        costs.add(slots)
        number = costs.period(posting.slot) if terms.kind != "stretch" else terms.start(posting.slot) // DAY
        grouped.setdefault(number, []).append(posting)
    for _, group in sorted(grouped.items()):
        spent = max(costs.spent(posting.slot, posting.last_slot) for posting in group)
        total = sum(posting.charge.amounts(terms.measure)[0] for posting in group)
        begin = format_time(terms.start(min(posting.slot for posting in group)))
        yield {"from": begin, "charges": len(group), "spent": spent, "sum": total}


def combined_cost(ledgers: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return an upper bound on the total cost recorded in several ledgers, for each privacy measure.

    A ledger that is given twice, or with a copy that has the same head, counts once.
    """
    costs: dict[str, float] = {}
    for ledger in {(ledger["id"], ledger["head"]): ledger for ledger in ledgers}.values():
        measure = ledger["terms"]["measure"]
        maximum = max((row["spent"] for row in ledger["periods"]), default=0.0)
        costs[measure] = costs.get(measure, 0.0) + maximum
    return costs


def _missing_head(paths: Sequence[str], manifest: Path) -> list[str]:
    """Return an error message if none of the ledgers contains the head recorded in the manifest."""
    from penstock.mechanisms.core.plugin import DataError
    from penstock.pipeline.releasing.ledger import Ledger

    try:
        values = json.loads(manifest.read_text(encoding="utf-8"))
        head = values.get("ledger_head") or values["ledger"]["head"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        head = None
    if not (isinstance(head, str) and head):
        raise DataError(f"{manifest}: no manifest of a deployment, which names the head of its ledger")
    if any(head in Ledger(Path(path)).heads() for path in paths):
        return []
    cause = "it was cut, or it is an older copy or another ledger"
    return [f"{', '.join(paths)}: lacks the entry that {manifest} names: {cause}"]


def _amount(cost: float) -> str:
    """Format a cost in six digits, rounded up."""
    from penstock.mechanisms.core.guarantee import at_most

    return at_most(cost, 6)


def _lines(ledger: dict[str, Any]) -> list[str]:
    terms = ledger["terms"]
    budget = "none" if math.isinf(terms["budget"]) else f"{terms['budget']:g}"
    lines = [
        f"{ledger['entries']:,} entries, head {ledger['head']}",
        *(f"fault     {fault}" for fault in ledger["faults"]),
        f"source    {terms['source']}",
        f"unit      {terms['unit']} ({terms['adjacency']})",
        f"budget    {budget} ({_MEASURES.get(terms['measure'], terms['measure'])})",
    ]
    for run in ledger["runs"]:
        lines.append(f"run       {run['run']} from {run['from']} until {run['until'] or 'its end'}")
    for row in ledger["periods"]:
        left = terms["budget"] - row["spent"]
        if math.isfinite(left) and left <= 1e-9 * terms["budget"]:
            left = 0.0  # the rest is rounding
        rest = "" if math.isinf(left) else f", {left:g} left"
        odds = _odds(row["spent"], terms["measure"])
        lines.append(
            f"period    from {row['from']}: {row['charges']:,} charges, {_amount(row['spent'])} spent{odds}{rest}"
        )
    if series := ledger["series"]:
        costs = [
            f"{_amount(series[name])}{_odds(series[name], terms['measure'])}" for name in ("sum", "sum_of_30_days")
        ]
        lines.append(f"series    {series['from']} to {series['until']}: whoever was there throughout has lost at most")
        lines.append(f"          {costs[0]} in all, and {costs[1]} in the last 30 days")
    if choices := ledger["choices"]:
        each, every = (_amount(choices[name]) for name in ("about_each", "about_all"))
        told = f"{each} nats about each that hides, {every} about all"
        lines.append(f"landmarks chosen {choices['choices']:,} time{'s' * (choices['choices'] > 1)}: {told}")
    return lines


def _odds(spent: float, measure: str) -> str:
    """Describe a privacy cost as odds, converting it from the given privacy measure."""
    from penstock.mechanisms.core.concentrated import epsilon_at
    from penstock.mechanisms.core.guarantee import DELTA, at_most
    from penstock.pipeline.output.loss import even_odds

    if measure in ("rho", "gaussian"):
        epsilon = epsilon_at(measure, spent, DELTA)
        return f" (ε = {at_most(epsilon, 3)} at δ = {DELTA:g}; even odds become {even_odds(epsilon)})"
    return f" (even odds become {even_odds(spent)})" if measure == "epsilon" else ""


LEDGER = Command("ledger", "what all runs over one event source have cost together", _configure, _execute)
