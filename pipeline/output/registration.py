"""Register runs in the ledger of their event source: locate it, state what a run promises, and start or resume the
run.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import math
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock.accountants.core.charges import PRICES, concentrated_rho, pure_epsilon
from penstock.mechanisms.core.events import Block, Event
from penstock.mechanisms.core.guarantee import Guarantee
from penstock.mechanisms.core.plugin import ConfigError, DataError
from penstock.mechanisms.core.sensitivity import price_of_replacement
from penstock.mechanisms.core.unit import LANDMARKS, PERIOD, RUN, WINDOW
from penstock.pipeline.atomic import make_folder, private_opener, write_json
from penstock.pipeline.config.canonical import digest
from penstock.pipeline.config.kinds import format_duration
from penstock.pipeline.config.plan import Plan, ledger_path, state_folder
from penstock.pipeline.releasing.ledger import Charge, Ledger
from penstock.pipeline.releasing.terms import Terms
from penstock.pipeline.windows.calendar import DAY

#: The first file that a run writes, in ``operator``: which run it is.
MARK = "run.json"
#: Traces have no windows: a run of them counts in all quarters of an hour that it meets, since zones begin at such.
TRACE_STEP = 900_000
#: Windows of an endless run that are looked at for landmarks, at most.
MAX_WINDOWS = 1_000_000
NAME_ANOTHER_LEDGER = "name another ledger (output.ledger), and acknowledge it (output.new_ledger: true)"


# What a ledger is about.


def ledger_terms(plan: Plan) -> Terms:
    """Return the terms that a run would set for its ledger if it were the first.

    Unless the configuration states a budget, it is what one run promises by itself: ε or ρ of a landmark mechanism in
    a budget period, of a w-event mechanism in w windows, of one over whole periods in each, of any other in what one
    window costs. A simulation has no budget.
    """
    terms, output = run_terms(plan), plan.config.output
    if output.ledger_span is not None and not plan.on_points:
        grid = {name: getattr(terms, name) for name in ("source", "step", "anchor", "time_zone", "measure", "budget")}
        terms = Terms(length=output.ledger_span // terms.step, **grid)
    if plan.config.mode == "simulation":
        return replace(terms, budget=math.inf)
    return terms if output.ledger_budget is None else replace(terms, budget=output.ledger_budget)


def run_terms(plan: Plan) -> Terms:
    """Return the unit, measure and budget that a run promises."""
    terms = _of_traces(plan) if plan.on_points else _of_counts(plan)
    return Terms(source=plan.config.output.ledger_source or "", **terms)


def _of_traces(plan: Plan) -> dict[str, Any]:
    mechanism = plan.traces.mechanism
    guarantee = mechanism.guarantee
    period = plan.config.budget_period if guarantee.unit == LANDMARKS else None
    length = format_duration(period) if period else "all time"
    size = f" (period = {length})" if guarantee.unit == LANDMARKS else ""
    promised = mechanism.budget
    return {
        "step": TRACE_STEP,
        "anchor": 0,
        "measure": "runs" if math.isinf(promised) else guarantee.measure,
        "budget": 1.0 if math.isinf(promised) else promised,
        # Any two points of a user may be successive ones of w, however long there is none in between.
        "kind": "stretch" if guarantee.unit == WINDOW else "period",
        "period": period,
        "period_begin": plan.grid.calendar.start(1),
        "period_zone": plan.config.windows.time_zone,
        "adjacency": guarantee.words.neighbours,
        "traces": f"traces: {guarantee.words.unit}{size}, of positions {mechanism.metres:g} m apart",
    }


def _of_counts(plan: Plan) -> dict[str, Any]:
    calendar, reader, together = plan.grid.calendar, plan.chain.reader, plan.chain.n_merged
    if plan.keys.run_id:
        plan.bounds.check_joint_charges(_charges_blocks(plan))
    grid, unit = {"step": calendar.step, "anchor": calendar.anchor, "time_zone": calendar.time_zone}, dict[str, Any]()
    periods = {
        "period": plan.config.budget_period,
        "period_begin": calendar.start(1),
        "period_zone": plan.config.windows.time_zone,
    }
    guard, promised = plan.guard(), reader.guarantee
    measure, amount = promised.measure or "epsilon", math.inf if promised.amount is None else promised.amount
    if guard is not None and np.isfinite(guard.model.amount):
        unit, measure, budget = {"kind": "landmarks", **periods}, guard.model.measure, guard.model.amount
        if (landmarks := plan.config.landmarks) is not None:
            slots = replace(calendar, from_ms=0, until_ms=None)  # as in `Terms.calendar`
            offset = int(slots.index(np.array([calendar.start(1)]))[0]) - 1
            listed = tuple(window + offset for window in landmarks.windows)
            unit |= {"times": landmarks.times, "recurring": landmarks.recurring, "listed": listed}
    elif promised.unit == PERIOD:
        unit, budget = {"kind": "period", **periods}, amount
    elif promised.unit == RUN:
        unit, budget = {"kind": "period", **periods, "period": None}, amount
    elif promised.unit.kind == "stretch":
        # No stretch of so many windows meets more than w of the longer ones that are counted as one. What linked
        # windows cost together is charged window by window, which may add up to more than is promised.
        budget = promised.charged or amount
        unit = {"length": (promised.unit.length - 1) * together + 1}
    else:
        worst = _worst(plan)
        epsilon, rho = pure_epsilon(worst), concentrated_rho(worst)
        measure = "rho" if np.isinf(epsilon) else "epsilon"
        is_part = _charges_blocks(plan) and plan.bounds.spans_windows(together)  # one window is a part of its block
        budget = max(Charge(1, 1, epsilon, rho, 1, "", is_part).amounts(measure))
    if together > 1 and promised.unit.kind in ("stretch", "period"):
        budget *= price_of_replacement(measure)  # parts of longer windows count as replacements
    return {**grid, **unit, "measure": measure, "budget": float(budget)}


def stated_guarantee(plan: Plan) -> Guarantee:
    """Return a run's guarantee. Noise of a given scale is priced under the run's bounds."""
    if plan.on_points:
        return plan.traces.mechanism.guarantee
    promised = plan.chain.guarantee
    if promised.measure is None or promised.amount is not None:
        return promised
    return replace(promised, amount=PRICES[promised.measure](_worst(plan)))


def _worst(plan: Plan) -> tuple[Event, ...]:
    """Return the first window's worst-case charge if every sensor is active."""
    first = replace(plan.grid.window(1), active=None)
    return plan.chain.mechanism.worst_charge(first, plan.chain.mechanism.start(plan.facts()))


def _charges_blocks(plan: Plan) -> bool:
    return any(isinstance(event, Block) for event in _worst(plan))


def check_terms(terms: Terms, plan: Plan) -> None:
    """Raise `ConfigError` if a run's source, grid, measure or declared unit conflicts with its ledger."""
    needed, output, path = ledger_terms(plan), plan.config.output, ledger_path(plan)
    stated = "leave the configuration's out, or " + NAME_ANOTHER_LEDGER
    differences: list[tuple[str, Any, Any, str]] = [
        ("event source", terms.source, needed.source, "output.ledger_source names it"),
        ("unit", terms.unit, needed.unit, "counts and traces need a ledger each; " + NAME_ANOTHER_LEDGER)
        if terms.traces or needed.traces
        else ("windows", _grid(terms), _grid(needed), NAME_ANOTHER_LEDGER),
        ("measure", terms.measure, needed.measure, NAME_ANOTHER_LEDGER),
    ]
    if needed.traces:
        differences.append(("budget period", _periods(terms), _periods(needed), NAME_ANOTHER_LEDGER))
    if output.ledger_budget is not None:
        differences.append(("budget", terms.budget, output.ledger_budget, stated))
    if output.ledger_span is not None:
        differences.append(("span", (terms.kind, terms.length), (needed.kind, needed.length), stated))
    for name, recorded, requested, hint in differences:
        if recorded != requested:
            text = f"output.ledger: {path} has another {name} ({recorded}) than this run ({requested}); {hint}"
            raise ConfigError((text,))
    if terms.kind != "landmarks" or needed.kind != "landmarks":
        return
    calendar = plan.grid.calendar
    first, n_windows = needed.slot(calendar.start(1)), calendar.n_windows
    if n_windows is None:  # what recurs does so by the week, and the clocks change within a year
        n_windows = min(-(-366 * DAY // needed.step), MAX_WINDOWS)
    listed, known = (one.landmarks.mask(one.calendar, first, first + n_windows - 1) for one in (needed, terms))
    if (missing := listed & ~known).any():
        window = int(np.argmax(missing)) + 1
        text = f"landmarks: window {window} is one of this run, and not of {path}, whose first run has stated them"
        raise ConfigError((f"{text}; state what is a landmark on every day as recurring, or {NAME_ANOTHER_LEDGER}",))


def _grid(terms: Terms) -> str:
    anchor = terms.anchor % terms.step
    after = f", {format_duration(anchor)} after" if anchor else ""
    return f"{format_duration(terms.step)} in {terms.time_zone}{after}"


def _periods(terms: Terms) -> str:
    if (periods := terms.periods) is None:
        return "all time"
    return f"{format_duration(periods.step)} in {periods.time_zone}, {periods.anchor % periods.step} ms after"


# A run in its ledger.


def open_ledger(plan: Plan) -> Ledger:
    """Open a run's ledger. Raises an error for a deployment that has no nonce or was not begun in its folder."""
    if plan.config.mode == "deployment" and not plan.keys.run_id:
        raise ConfigError(("a deployment releases under the nonce of its run only; see penstock.beam.make_plan",))
    if plan.keys.run_id and not (plan.folder / "operator" / MARK).exists():
        raise DataError(
            f"{plan.folder}: holds no run, so nothing is released here; the folder must be one that the driver "
            "shares with all workers"
        )
    return _ledger(plan, None if plan.keys.run_id else ledger_terms(plan))


def _ledger(plan: Plan, terms: Terms | None) -> Ledger:
    head_of_run = plan.folder / "operator" / "ledger.head"
    return Ledger(ledger_path(plan), terms, plan.keys.run_id, plan.grid.calendar.start(1), head_of_run)


def register_run(plan: Plan, begin: Callable[[], None] | None = None) -> str | None:
    """Register a run and its nonce durably in its ledger. The first run sets the ledger's terms.

    ``begin`` is called when the run is admitted and before it is entered. All of it is under the lock of the known
    ledgers, so that of two first runs at the same time the second knows the ledger of the first. Return what to say
    before it starts. Raise `ConfigError` for a ledger of another source, grid or unit or an unacknowledged one,
    `BudgetExceeded` if nothing is left for a run that counts as a whole, and `DataError` if entries are missing.
    """
    ledger = _ledger(plan, ledger_terms(plan))
    if not plan.keys.run_id:  # a simulation repeats itself, in a ledger that knows no other run
        with ledger.transaction() as transaction:
            _begin(plan, transaction, begin)
        return None
    known = LedgerRegistry(plan)
    with known.locked():
        caution = known.check_new()
        with ledger.transaction() as transaction:
            check_terms(transaction.terms, plan)
            notice = _notice(plan, transaction)
            entry = {
                "entry": "run",
                "run": plan.keys.run_id,
                "configuration": digest(plan.config).hex()[:32],
                "from": plan.grid.calendar.from_ms,
                "until": plan.grid.calendar.until_ms,
                "input": _input(plan),
                "nonce": plan.keys.noise_key.nonce.hex(),
                "others": bool(known.others()),
            }
            transaction.add_entry(entry)
            _begin(plan, transaction, begin)
            # Before the entry, so that no other ledger begins unwarned if the run is killed right after it.
            known.note(transaction.known.identity, announced=True)
        known.note(transaction.known.identity)
    return "; ".join(filter(None, (caution, notice))) or None


def _begin(plan: Plan, transaction: Ledger, begin: Callable[[], None] | None) -> None:
    """Register a run and charge for its choice of landmarks and for mechanisms that are charged as a whole."""
    if plan.on_points:
        _charge_traces(plan, transaction)
    if (landmarks := plan.config.landmarks) is not None and landmarks.hidden is not None:
        # It is about which windows are landmarks and about nobody's events, hence no part of the budget. A set that
        # another run has shown counts again: it may have been drawn again, for other landmarks.
        offset, hidden = transaction.terms.slot(plan.grid.calendar.start(1)) - 1, landmarks.hidden
        slots = [window + offset for window in sorted(set(landmarks.windows))]
        costs = {"about_each": hidden.epsilon, "about_all": hidden.whole_epsilon(len(slots))}
        choice = {"entry": "choice", "run": plan.keys.run_id, "slots": slots, **costs}
        if choice not in transaction.known.choices:
            transaction.add_entry(choice)
    if begin is not None:
        begin()


def is_registered(plan: Plan) -> bool:
    """Return whether a deployment's ledger knows the run. Raises `DataError` if the ledger lacks entries."""
    entries = Ledger(ledger_path(plan)).checked_entries()
    return any(entry.kind == "run" and entry.values["run"] == plan.keys.run_id for entry in entries)


def resume_run(plan: Plan) -> str | None:
    """Draw a new nonce for a deployment's remaining windows and store it durably before any noise is drawn.

    What is charged is made again under its own nonce. Traces are charged as a whole, hence go on under the first, and
    only with the input that they began with. A run that was killed before it was registered is registered, and what
    to say of it returned.
    """
    ledger = open_ledger(plan)  # which refuses a deployment without a nonce
    notice = None if plan.keys.run_id and is_registered(plan) else register_run(plan)
    if not plan.keys.run_id:
        return None
    known = LedgerRegistry(plan)
    with known.locked():
        known.check(by_copy=not plan.on_points)  # the noise of traces would be repeated
        if not known.is_noted():
            known.check_new()
        with ledger.transaction() as transaction:
            source, stated = transaction.terms.source, plan.config.output.ledger_source or ""
            if source != stated:
                text = f"is {stated!r}, and {ledger_path(plan)} is the ledger of {source!r}; leave it as the run began"
                raise ConfigError((f"output.ledger_source: {text}",))
            if plan.on_points:
                _charge_traces(plan, transaction)
            else:
                transaction.add_entry({"entry": "nonce", "run": plan.keys.run_id, "nonce": secrets.token_hex(16)})
            known.note(transaction.known.identity, resumed=True, announced=True)
        known.note(transaction.known.identity, resumed=True)
    return notice


def record_end(plan: Plan) -> None:
    """Record the number of entries in a deployment's ledger when a run ends."""
    if plan.keys.run_id:
        known = LedgerRegistry(plan)
        with known.locked():
            if identity := identity_of(known.ledger):  # a ledger that is gone is refused at the next start
                known.note(identity, resumed=True)


def _charge_traces(plan: Plan, transaction: Ledger) -> None:
    """Charge the promised amount to every slot that a trace run overlaps."""
    calendar, terms, promised = plan.grid.calendar, transaction.terms, plan.traces.mechanism.budget
    last = terms.slot((calendar.until_ms or calendar.end(1)) - 1) - terms.slot(calendar.start(1)) + 1
    epsilon, rho = (math.inf, promised) if terms.measure == "rho" else (promised, promised**2 / 2)
    transaction.charge(Charge(1, last, epsilon, rho, 1, _input(plan), part="traces"))


def _input(plan: Plan) -> str:
    """Return a keyed digest of the input, so that runs with the same key can detect identical inputs."""
    text = json.dumps(plan.config.source.digests(), sort_keys=True)
    key = plan.keys.noise_key.for_run(b"").subkey("input")
    return hmac.digest(key, text.encode(), "sha256").hex()[:32]


def _notice(plan: Plan, transaction: Ledger) -> str | None:
    """Return a notice about other runs charged for the same time span, or None if there are none."""
    begin, until = plan.grid.calendar.start(1), plan.grid.calendar.until_ms
    runs = [
        run
        for run in transaction.known.runs.values()
        if run["run"] != plan.keys.run_id
        and (run["until"] is None or run["until"] > begin)
        and (until is None or run["from"] < until)
    ]
    if not runs:
        return None
    same = "the same input" if {run["input"] for run in runs} == {_input(plan)} else "other input"
    return (
        f"{ledger_path(plan)}: {len(runs):,} other run{'s' * (len(runs) > 1)} of {same} over this span "
        f"began before; this one is charged in addition, up to the budget {transaction.terms.budget:g} of the ledger"
    )


# Which ledgers there are over an event source.


class LedgerRegistry:
    """The ledgers used by deployments with a given key or on a given machine, by event source.

    Noted beside the key file and in the state folder: who deletes a ledger, or names a new one, is told that its budget
    is not all that was spent. A new ledger is announced before its first entry, without runs or entries, and counts
    once it has that entry.
    """

    def __init__(self, plan: Plan) -> None:
        self.ledger, self.output = ledger_path(plan), plan.config.output
        self.source = self.output.ledger_source or ""
        named = plan.config.noise_key or "env:"
        self.key_ledgers = None if named.startswith("env:") else Path(f"{named}.ledgers")
        #: Files that know the ledgers.
        self.files = [*filter(None, [self.key_ledgers]), state_folder() / "ledgers.json"]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold a lock on every writable notes file for the duration of the block."""
        with ExitStack() as locks:
            with suppress(OSError):
                make_folder(state_folder(), private=True)
                make_folder(state_folder() / "ledgers", private=True)
            for path in self.files:
                with suppress(OSError):
                    file = open(path.with_name(f".{path.name}.lock"), "a", opener=private_opener)  # noqa: SIM115
                    fcntl.flock(locks.enter_context(file), fcntl.LOCK_EX)
            yield

    def _read(self, path: Path) -> dict[str, dict[str, dict[str, Any]]]:
        """Read each ledger's path and run count from a notes file, by source and identity."""
        try:
            known: dict[str, dict[str, dict[str, Any]]] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            raise DataError(f"{path}: cannot be read; it says which ledgers there are") from None
        return known

    def _is_original(self, path: str) -> bool:
        """Return whether a file is the original of the run's ledger, which would then be a copy."""
        other, ledger = Path(path), self.ledger
        if not (other.exists() and ledger.exists()) or other.samefile(ledger):
            return False
        return identity_of(other) == identity_of(ledger)

    def others(self) -> list[str]:
        """Return the paths of the source's other ledgers, including the original if the run's ledger is a copy."""
        known = [self._read(file).get(self.source, {}) for file in self.files]
        identity = identity_of(self.ledger)
        noted = {
            name: ledger["path"]
            for ledgers in known
            for name, ledger in ledgers.items()
            if _is_entered(ledger) or _may_hold(Path(ledger["path"]), name)
        }
        return sorted({path for name, path in noted.items() if name != identity or self._is_original(path)})

    def check(self, by_copy: bool = False) -> None:
        """Raise `DataError` if the ledger has been replaced by an older copy that lacks known entries, or
        `ConfigError` if it is a copy, unless ``by_copy`` and acknowledged.
        """
        identity, n_entries = identity_of(self.ledger), len(Ledger(self.ledger).checked_entries())
        for file in self.files:
            for ledgers in self._read(file).values():
                noted = ledgers.get(identity or "", {})
                if noted and not (by_copy and self.output.new_ledger) and self._is_original(noted["path"]):
                    text = f"{self.ledger} is a copy of {noted['path']}, which goes on counting; name that one"
                    raise ConfigError((f"output.ledger: {text}",))
                if (n_noted := noted.get("entries", 0)) > n_entries:
                    raise DataError(
                        f"{self.ledger}: has {n_entries} of the {n_noted} entries that {file} knows of: an "
                        "older copy was put in its place; put the latest one back"
                    )

    def check_new(self) -> str | None:
        """Check a new run's ledger. Returns a warning if the key has been used before but the ledger is missing.

        Raises `ConfigError` if another ledger over the same source is known, which has to be acknowledged.
        """
        self.check(by_copy=True)
        if (others := self.others()) and not self.output.new_ledger:
            raise ConfigError(
                (
                    f"output.ledger: {self.ledger} is not the ledger that the event source {self.source} has: "
                    f"{', '.join(others)}, whose charges count as well; put that one back or name it; with "
                    "output.new_ledger: true this run counts here, and what all have cost together is then unknown",
                )
            )
        if self.key_ledgers is None or self.ledger.exists():
            return None
        n_runs = sum(entry["runs"] for ledgers in self._read(self.key_ledgers).values() for entry in ledgers.values())
        if not n_runs:
            return None
        return (
            f"THE NOISE KEY HAS CHARGED BEFORE, IN {n_runs:,} RUN{'S' * (n_runs > 1)}, and {self.ledger} is "
            f"not there: a new ledger begins, which knows nothing of that ({self.key_ledgers} says where it was)"
        )

    def is_noted(self) -> bool:
        """Return whether a file knows of entries in the run's ledger."""
        known = [self._read(file).get(self.source, {}) for file in self.files]
        return any(_is_entered(ledgers.get(identity_of(self.ledger) or "")) for ledgers in known)

    def note(self, identity: str, resumed: bool = False, announced: bool = False) -> None:
        """Record that a run has started, resumed or ended, or is about to enter the ledger. Raises `ConfigError` if
        this cannot be recorded anywhere and never has been.
        """
        n_entries = len(Ledger(self.ledger).checked_entries())
        is_written, path = False, os.path.abspath(self.ledger)
        for file in self.files:
            known = self._read(file)
            ledger = known.setdefault(self.source, {}).setdefault(identity, {"path": path, "runs": 0, "entries": 0})
            if not announced:
                is_new = not resumed or not _is_entered(ledger)
                ledger |= {"path": path, "runs": ledger["runs"] + is_new, "entries": n_entries}
            with suppress(OSError):
                write_json(file, known, private=True)
                is_written = True
        if not (is_written or (resumed and self.is_noted())):
            raise ConfigError((f"{self.files[-1]}: cannot be written; XDG_STATE_HOME says where it may be",))


def _is_entered(noted: dict[str, Any] | None) -> bool:
    """Return whether a ledger had entries when it was noted, rather than only having been announced."""
    return noted is not None and noted.get("entries") != 0


def _may_hold(path: Path, identity: str) -> bool:
    """Return whether a file is the ledger with an identity, or cannot be read."""
    try:
        return identity_of(path) == identity
    except (OSError, DataError):
        return True


def identity_of(path: Path) -> str | None:
    """Return a ledger's identity, or None if no run has been registered in it."""
    first = next(Ledger(path).entries(), None)
    return None if first is None else str(first.values["id"])
