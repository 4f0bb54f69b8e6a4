"""How a deployment enters itself into its ledger before it starts, and what it finds there."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.accountants.landmark_budget import ROUNDING
from penstock.mechanisms.core.plugin import ConfigError
from penstock.pipeline.config.canonical import digest
from penstock.pipeline.output.files import ledger_path
from penstock.pipeline.output.ledger import Entry
from penstock.pipeline.output.ledger_budget import (
    ENDLESS,
    LedgerExhausted,
    Terms,
    check_terms,
    own_promise,
    promise,
    terms_of,
)

if TYPE_CHECKING:
    from penstock.pipeline.config.plan import Plan


class Entering:
    """The entries of a run that begins, given those that are there; and what there is to say of them.

    Parameters
    ----------
    plan
        The run, a deployment.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.notice: str | None = None
        until = plan.calendar.until_ms
        self.own: dict[str, Any] = {
            "entry": "run",
            "run": plan.run_id,
            "configuration": digest(plan.config).hex()[:32],
            "from": plan.calendar.from_ms,
            "until": until,
            "input": self._input(),
            "promise": promise(plan) if plan.on_points else None,
        }
        if plan.bounding.max_per_period is not None:
            self.own |= {"alone": True, "promise": own_promise(plan)}

    def _input(self) -> str:
        """Keyed digest of the input, the same in every run of the key: it says whether two runs read the same."""
        text = json.dumps(self.plan.config.source.digests(), sort_keys=True)
        key = self.plan.key.for_run(b"").subkey("input")
        return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()[:32]

    def __call__(self, found: list[Entry]) -> Iterable[dict[str, Any]]:
        """Terms where there are none yet, and the run; raises `ConfigError` or `LedgerExhausted`."""
        stated = next((e.values for e in found if e.values.get("entry") == "terms"), None)
        terms = terms_of(self.plan) if stated is None else Terms.of_entry(stated)
        if stated is not None:
            check_terms(terms, self.plan)
        runs = {e.values["run"]: e.values for e in found if e.values.get("entry") == "run"}
        charges = [e.values for e in found if e.is_charge]
        others = [entry for entry in (*runs.values(), *charges) if entry.get("run") != self.plan.run_id]
        self._check_alone(terms, others)
        overlapping = [run for run in runs.values() if self._overlaps(run["from"], run["until"])]
        if self.plan.on_points:
            self._check_traces(terms, [run for run in runs.values() if self._shares_unit(terms, run)])
        charges = [c for c in charges if self._overlaps(c["window_start"], c["window_end"])]
        self.notice = self._notice(terms, overlapping, charges)
        return [self.own] if stated is not None else [terms.entry(), self.own]

    def _overlaps(self, start: int, end: int | None) -> bool:
        calendar = self.plan.calendar
        begin, until = calendar.start(1), calendar.until_ms
        return (end is None or end > begin) and (until is None or start < until)

    def _shares_unit(self, terms: Terms, run: dict[str, Any]) -> bool:
        """Whether one user's unit may have points of a trace run and of this one."""
        mechanism = self.plan.point_mechanism
        if mechanism.landmark_budget is None:
            # Any two points may be successive ones of a user, however long there is none in between.
            return getattr(mechanism, "w", None) is not None or self._overlaps(run["from"], run["until"])
        if terms.period is None:
            return True
        (first, last), (begin, end) = (_periods(terms, entry) for entry in (run, self.own))
        return first <= end and begin <= last

    def _check_alone(self, terms: Terms, others: list[dict[str, Any]]) -> None:
        """A bound on a user's budget period is kept by one run: in each of several, another n memberships count."""
        bounded = "alone" in self.own
        if others and (bounded or any(entry.get("alone") for entry in others)):
            why = "other runs have used it" if bounded else "it belongs to such a run"
            raise ConfigError(
                (
                    f"output.ledger: {ledger_path(self.plan)}: a run with bounding.max_per_period needs a ledger to "
                    f"itself, since each of several counts as many memberships of a person; {why}",
                )
            )
        own = self.own["promise"] if bounded else 0.0
        if own > terms.budget * (1 + ROUNDING):
            raise LedgerExhausted(1, 0.0, own, terms.budget)

    def _check_traces(self, terms: Terms, runs: list[dict[str, Any]]) -> None:
        """Traces count run by run: a user's points in one run are not those of another pseudonym in the next."""
        spent, own = sum(run["promise"] for run in runs), promise(self.plan)
        if np.isinf(own) and not runs:  # nothing that could be added up: one run is all that there may be
            return
        if np.isinf(own):
            raise LedgerExhausted(1, spent, own, terms.budget)
        if spent + own > terms.budget * (1 + ROUNDING):
            raise LedgerExhausted(1, spent, own, terms.budget)

    def _notice(self, terms: Terms, runs: list[dict[str, Any]], charges: list[dict[str, Any]]) -> str | None:
        if not runs and not charges:
            return None
        inputs = {run["input"] for run in runs} | {None for charge in charges if not charge.get("run")}
        same = "the same input" if inputs == {self.own["input"]} else "other input"
        n_runs = max(len(runs), len({charge.get("run") for charge in charges}))
        return (
            f"{ledger_path(self.plan)}: {n_runs:,} other run{'s' * (n_runs > 1)} of {same} over this span "
            f"charged {len(charges):,} windows before; this one is charged in addition, up to the "
            f"budget {terms.budget:g} of the ledger"
        )


def _periods(terms: Terms, run: Mapping[str, Any]) -> tuple[float, float]:
    """The first and the last budget period that a run of traces meets."""
    until = ENDLESS if run["until"] is None else run["until"]
    first, last = terms.periods(np.array([run["from"] or 0, until - 1], np.float64))
    return float(first), float(last)
