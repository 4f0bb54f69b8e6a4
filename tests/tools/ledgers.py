"""Charges of test runs, wherever their ledger lies."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from penstock.pipeline.output import checkpoint
from penstock.pipeline.releasing.ledger import Charge, Ledger
from penstock.pipeline.releasing.terms import Terms


def ledger_of(folder: Path) -> Path:
    """Ledger of a run: local, named by its manifest, or of the source ``events``."""
    ledger_path, manifest = folder / "operator" / "ledger", folder / "operator" / "manifest.json"
    if ledger_path.exists():
        return ledger_path
    if manifest.exists():
        return Path(json.loads(manifest.read_text())["ledger"]["path"])
    return Path(os.environ["XDG_STATE_HOME"]) / "penstock" / "ledgers" / "events"


def charges_in(path: Path) -> list[Charge]:
    """Charges for counts in a ledger, by default of the latest run."""
    if not path.is_dir():
        return [posting.charge for posting in Ledger(path).postings() if not posting.charge.part]
    ledger, manifest = Ledger(ledger_of(path)), path / "operator" / "manifest.json"
    run = [entry.values["run"] for entry in ledger.entries() if entry.kind == "run"][-1:] or [""]
    if manifest.exists():
        run = [json.loads(manifest.read_text())["ledger"]["run"]]
    return [posting.charge for posting in ledger.postings() if posting.run in run and not posting.charge.part]


def windows_in(path: Path) -> list[int]:
    """The windows that were charged, in order."""
    return [charge.window for charge in charges_in(path)]


def charged_until(path: Path) -> int:
    """End of the last window that was charged, in milliseconds since 1970."""
    ledger = Ledger(path)
    terms = Terms.of(next(ledger.entries()).values["terms"])
    return max((terms.calendar.end(posting.last_slot) for posting in ledger.postings()), default=0)


def with_new_ledger(value: dict[str, Any], name: str) -> dict[str, Any]:
    """Deployment with a unique event source, hence a new ledger."""
    return value | {"output": value["output"] | {"ledger_source": name}}


def under_nonce(nonce: bytes) -> AbstractContextManager[object]:
    """Give every run that begins in a block this nonce."""
    return patch.object(checkpoint, "nonce_of_run", lambda *_: nonce)


@contextmanager
def under_nonces_of(folder: Path) -> Iterator[None]:
    """Step every window under the nonce recorded for it by a resumed run."""
    entries, run = list(Ledger(ledger_of(folder)).entries()), json.loads((folder / "operator" / "run.json").read_text())
    ledger_path = [entry.values for entry in entries if entry.values.get("nonce") == run["nonce"]]
    name = ledger_path[0]["run"] if ledger_path else ""
    full = {e.values["nonce"][:16]: e.values["nonce"] for e in entries if e.kind != "charge" and e.values.get("nonce")}
    made = {
        posting.charge.at: full.get(posting.nonce, "")
        for posting in Ledger(ledger_of(folder)).postings()
        if posting.run == name and not posting.charge.part
    }
    nonce, usual = bytes.fromhex(run["nonce"]), Ledger.nonce
    with (
        under_nonce(nonce),
        patch.object(Ledger, "nonce", lambda self, window: made.get(window) or usual(self, window)),
    ):
        yield
