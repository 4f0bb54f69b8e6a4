"""Ledger of privacy charges: append-only, chained, idempotent, fsynced before a release leaves; how a run enters it."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from penstock.accountants.landmark_budget import ROUNDING
from penstock.mechanisms.core.plugin import ConfigError, DataError
from penstock.pipeline.atomic import write_first
from penstock.pipeline.config.canonical import digest
from penstock.pipeline.output.files import ledger_path
from penstock.pipeline.output.ledger_budget import (
    ENDLESS,
    LedgerExhausted,
    Limit,
    Terms,
    check_terms,
    own_promise,
    promise,
    terms_of,
)
from penstock.pipeline.releasing.release import Batch, Charge, Identity, Span

if TYPE_CHECKING:
    from penstock.pipeline.config.plan import Plan


#: Charges that are remembered beside those that were there at first.
MAX_RECENT = 100_000

Step = Callable[[Limit | None], tuple[Batch, bytes]]


class Entry(NamedTuple):
    """One line: where it begins, what it says, the head of the chain that it makes, and whether it states it."""

    begins: int
    values: dict[str, Any]
    head: str
    is_chained: bool

    @property
    def is_charge(self) -> bool:
        """Whether it is a charge; otherwise ``entry`` says what it is: ``terms`` or ``run``."""
        return "entry" not in self.values


class Head:
    """Head of a ledger's chain in a small file of its own, written after the entry: it shows that the end is missing.

    The file has a fixed length and is, overwritten in place, since a write of so few bytes happens whole or not at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     head = Head(Path(folder) / "ledger.head")
    ...     head.make(""), head.read()
    ...     head.keep("ab" * 32), head.read() == "ab" * 32
    (None, '')
    (None, True)
    """

    _LENGTH = 64

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> str | None:
        """The head that was kept last, empty before the first entry; None where there is no file."""
        try:
            head = self.path.read_text(encoding="utf-8", errors="replace").strip()
        except FileNotFoundError:
            return None
        return "" if head == "0" * self._LENGTH else head

    def make(self, head: str) -> None:
        """Make the file, durably; one that is there stays as it is."""
        if not self.path.exists():
            write_first(self.path, self._line(head))

    def keep(self, head: str) -> None:
        """Keep a head durably, in the file that is there."""
        if self.read() != head:
            with self.path.open("r+b") as file:
                file.write(self._line(head))
                file.flush()
                os.fsync(file.fileno())

    def _line(self, head: str) -> bytes:
        return head.zfill(self._LENGTH).encode() + b"\n"


class Ledger:
    """Append-only file of charges, one JSON object a line; several runs, and several workers of one, may write to it.

    The file is made with its folder when first written. A torn last line (a killed run) is cut off, since the release
    it belongs to never left.

    Parameters
    ----------
    path
        The file.
    strict
        Whether a window that was charged before must be charged for the same input again. A run that is continued
        cannot release a window twice.
    begun
        Where in the file the run's own charges begin, in bytes. Those before are another run's, which may have
        released the same windows of other input.
    released
        Streams and windows that the run has released. It may have done so under a charge of another run for the same
        input.
    run
        The deployment that charges; empty: a simulation.
    limit
        Budget that all runs share; None: not enforced.
    own_head
        Where the run keeps the head of its own last entry, besides the one at the ledger; None: nowhere else.

    Notes
    -----
    Every line ends with the head of the chain: SHA-256 over the head before it and the line. A line that was changed
    or taken out breaks the chain. A missing end does not: it shows by a head that was kept elsewhere (`Head`), beside
    the ledger, in the folder of the run and in the manifests. A head is kept after its entry is written and before the
    release leaves, so that a writer that is killed leaves the head of an earlier entry, never of a later one. Lines of
    earlier versions have no head. They stand at the beginning only, and are chained by what follows them.

    >>> import tempfile
    >>> charge = Charge("main", 1, 0, 1, 0.5, 0.125, False, "configuration", "data")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one, other = Ledger(Path(folder) / "ledger"), Ledger(Path(folder) / "ledger")
    ...     [len(ledger.append([charge])) for ledger in (one, other, one)]
    [1, 0, 0]
    """

    def __init__(
        self,
        path: Path,
        strict: bool = False,
        begun: int = 0,
        released: Collection[tuple[str, int]] = frozenset(),
        run: str = "",
        limit: Limit | None = None,
        own_head: Path | None = None,
    ) -> None:
        self.path, self.strict, self.begun, self.released = path, strict, begun, released
        self.run, self.limit = run, limit
        beside = path.with_name(f"{path.name}.head")
        self._kept = [Head(beside)] if own_head in (None, beside) else [Head(beside), Head(own_head)]
        self._forget()

    def _forget(self) -> None:
        """Know nothing of the file any more."""
        self._known: set[Identity] = set()
        self._charged: set[Span] = set()
        self._recent: deque[Identity] = deque()
        self._read_to: int | None = None
        self._head = ""
        if self.limit is not None:
            self.limit.forget()

    def __iter__(self) -> Iterator[Charge]:
        return (Charge(**entry.values) for entry in self.entries() if entry.is_charge)

    def entries(self) -> Iterator[Entry]:
        """All entries from the first; raises `DataError` where the chain is broken."""
        if self.path.exists():
            with self.path.open("rb") as file:
                yield from self._lines(file, 0, "")

    def whole(self) -> list[Entry]:
        """All entries; raises `DataError` also where the end is missing, by the heads that were kept."""
        kept = self._read_kept()
        entries = list(self.entries())
        self._check_kept(kept, "", entries)
        return entries

    def heads(self) -> list[str]:
        """Head of the chain after every entry; one that was written down elsewhere must be among them."""
        return [entry.head for entry in self.entries()]

    @property
    def end(self) -> int:
        """Bytes of its whole lines: where the next charge goes."""
        if not self.path.exists():
            return 0
        with self.path.open("rb") as lines:
            return sum(len(line) for line in lines if _is_whole(line))

    def _lines(self, file: BinaryIO, start: int, head: str) -> Iterator[Entry]:
        """Entries from a byte on, where the chain has a head."""
        file.seek(start)
        begins, is_chained = start, None if start else False
        for line in file:
            if not _is_whole(line):
                return
            try:
                values = json.loads(line)
                stored = values.pop("chain", None)
                if "entry" not in values:
                    Charge(**values)
                head = _next_head(head, values)
                if (stored is None and is_chained is not False) or stored not in (None, head):
                    raise ValueError("the chain is broken: a line before it was changed, added or removed")
            except (ValueError, TypeError, AttributeError) as error:
                file.seek(0)
                number = file.read(begins).count(b"\n") + 1
                raise DataError(f"{self.path}:{number}: not a ledger line ({error})") from None
            is_chained = is_chained or stored is not None
            yield Entry(begins, values, head, stored is not None)
            begins += len(line)

    def append(self, charges: Iterable[Charge]) -> list[Charge]:
        """Make charges durable, each once, whichever process wrote it; those already there are retries and are skipped.

        Returns the charges that were new. One write and one sync, whatever their number.
        """
        charges = list(charges)
        if not charges:
            return []
        with self._held() as file:
            return self._append(file, charges, self._learn(file))

    def charge(self, step: Step) -> tuple[Batch, bytes]:
        """Step a release loop, and make its charges durable, while no other run can charge.

        ``step`` is given what the budget leaves (None: no limit), the batch and the state after it.
        """
        with self._held() as file:
            found = self._learn(file)
            try:
                batch, state = step(self.limit)
                self._append(file, list(batch.charges), found)
            except BaseException:
                self._forget()  # the limit may know charges that were never written
                raise
        return batch, state

    def begin(self, entries: Callable[[list[Entry]], Iterable[Mapping[str, Any]]]) -> None:
        """Append what a run enters before it starts, given all that is there."""
        with self._held() as file:
            for own in self._kept[1:]:
                own.make("")
            kept = self._read_kept()
            found = list(self._lines(file, 0, ""))
            self._check_kept(kept, "", found)
            self._make_kept()
            self._keep(self._write(file, entries(found), found[-1].head if found else ""))
            self._forget()

    def _read_kept(self) -> dict[Head, str | None]:
        """The heads that were kept; to be read before the entries, which others may add to."""
        return {place: place.read() for place in self._kept}

    def _check_kept(self, kept: Mapping[Head, str | None], before: str, entries: Iterable[Entry]) -> None:
        """Raise `DataError` unless every head that was kept is that of an entry, or the one before them."""
        is_chained = bool(before)
        unmet = set(kept.values()) - {None, "", before}
        for entry in entries:
            is_chained |= entry.is_chained
            unmet.discard(entry.head)
        for place, head in kept.items():
            if head in unmet:
                raise DataError(
                    f"{self.path}: lacks entries that it had, by the head of its chain in {place.path}: it was cut, "
                    "or an older copy was put in its place; put the latest copy back"
                )
            if head is None and is_chained:
                raise DataError(
                    f"{place.path}: is missing, so that it is unknown whether {self.path} is whole; put it back, "
                    "or, if 'penstock ledger show' with the latest run's public manifest finds the ledger whole, "
                    "write the head that it prints into a new one"
                )

    def _make_kept(self) -> None:
        """Make the files of the heads before the first entry: from then on their absence means that they were lost."""
        for place in self._kept:
            place.make("")

    def _keep(self, head: str) -> None:
        """Keep the head of what is durable."""
        for place in self._kept:
            place.keep(head)

    def _append(self, file: BinaryIO, charges: list[Charge], found: bool) -> list[Charge]:
        if found:
            os.fsync(file.fileno())  # a release may leave on what was found: its writer may have been killed
        new = [replace(charge, run=self.run) for charge in charges if charge.identity not in self._known]
        if self.strict:
            self._check(new)
        if new:
            self._head = self._write(file, map(_values, new), self._head)
            self._remember(new)
        if charges or found:
            # Also on a retry: a killed writer may have left it out. And without a charge: what is read next begins
            # behind what was found, and the heads that were kept must not be of what is before it.
            self._keep(self._head)
        self._read_to = file.seek(0, os.SEEK_END)
        return new

    @staticmethod
    def _write(file: BinaryIO, entries: Iterable[Mapping[str, Any]], head: str) -> str:
        """Append entries durably; returns the head of the chain after them."""
        lines = []
        for values in entries:
            head = _next_head(head, values)
            lines.append(json.dumps({**values, "chain": head}) + "\n")
        file.write("".join(lines).encode())
        file.flush()
        os.fsync(file.fileno())
        return head

    def _learn(self, file: BinaryIO) -> bool:
        """Read the charges appended since the last read; returns whether there were any."""
        size = file.seek(0, os.SEEK_END)
        if self._read_to is not None and size < self._read_to:
            raise DataError(f"{self.path}: is shorter than it was: it was cut, or an older copy was put in its place")
        first, start = self._read_to is None, self._read_to or 0
        kept = self._read_kept()
        charges = []
        entries = list(self._lines(file, start, self._head))
        self._check_kept(kept, self._head, entries)
        for entry in entries:
            self._head = entry.head
            if not entry.is_charge:
                continue
            charge = Charge(**entry.values)
            charges.append(charge)
            counts = entry.begins >= self.begun or (charge.stream, charge.window) in self.released
            if self.run:
                counts = charge.run == self.run
            if first:
                self._known.add(charge.identity)
                if counts:
                    self._charged.add(charge.identity[:4])
            else:
                self._remember([charge], counts)
        if self.limit is not None:
            self.limit.add(charges)
        self._read_to = size
        if first:
            self._make_kept()
        return size > start

    def _remember(self, charges: list[Charge], counts: bool = True) -> None:
        """Remember the latest charges: a bundle is retried soon or never, and a stream has no end."""
        for charge in charges:
            self._known.add(charge.identity)
            if counts:
                self._charged.add(charge.identity[:4])
            self._recent.append(charge.identity)
        while len(self._recent) > MAX_RECENT:
            oldest = self._recent.popleft()
            self._known.discard(oldest)
            self._charged.discard(oldest[:4])

    def _check(self, new: list[Charge]) -> None:
        for charge in new:
            if charge.identity[:4] in self._charged:
                raise DataError(
                    f"the input of window {charge.window} is not what it was when the window was released; "
                    "a run can only be continued with the input that it began with"
                )

    @contextmanager
    def _held(self) -> Iterator[BinaryIO]:
        """The file, locked and ending with a whole line, so that what is appended begins one.

        Without the lock a torn line might be one that another run is writing.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Not where it ended when it was opened: another may have added to it before the lock was ours.
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.seek(0)
                    data = file.read()
                    begins = data.rfind(b"\n") + 1
                    if _is_whole(data[begins:]):
                        file.write(b"\n")
                        file.flush()
                    else:
                        file.truncate(begins)
            yield file


def _is_whole(line: bytes) -> bool:
    """Whether a line was written whole; an editor may have left out its end of line."""
    if line.endswith(b"\n"):
        return True
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _next_head(head: str, values: Mapping[str, Any]) -> str:
    return hashlib.sha256((head + json.dumps(values)).encode()).hexdigest()


def _values(charge: Charge) -> dict[str, Any]:
    """A charge as a line says it; a simulation's has neither run nor reach nor factor."""
    left_out = () if charge.run else ("run", "reach", "factor")
    return {name: value for name, value in vars(charge).items() if name not in left_out}


# A run that begins.


class Entering:
    """The entries of a run that begins, given those that are there; and what there is to say of them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.notice: str | None = None
        until = plan.grid.calendar.until_ms
        self.own: dict[str, Any] = {
            "entry": "run",
            "run": plan.keys.run_id,
            "configuration": digest(plan.config).hex()[:32],
            "from": plan.grid.calendar.from_ms,
            "until": until,
            "input": self._input(),
            "promise": promise(plan) if plan.on_points else None,
        }
        if plan.bounds.max_per_period is not None:
            self.own |= {"alone": True, "promise": own_promise(plan)}

    def _input(self) -> str:
        """Keyed digest of the input, the same in every run of the key: it says whether two runs read the same."""
        text = json.dumps(self.plan.config.source.digests(), sort_keys=True)
        key = self.plan.keys.noise_key.for_run(b"").subkey("input")
        return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()[:32]

    def __call__(self, found: list[Entry]) -> Iterable[dict[str, Any]]:
        """Terms where there are none yet, and the run; raises `ConfigError` or `LedgerExhausted`."""
        stated = next((e.values for e in found if e.values.get("entry") == "terms"), None)
        terms = terms_of(self.plan) if stated is None else Terms.of_entry(stated)
        if stated is not None:
            check_terms(terms, self.plan)
        runs = {e.values["run"]: e.values for e in found if e.values.get("entry") == "run"}
        charges = [e.values for e in found if e.is_charge]
        others = [entry for entry in (*runs.values(), *charges) if entry.get("run") != self.plan.keys.run_id]
        self._check_alone(terms, others)
        overlapping = [run for run in runs.values() if self._overlaps(run["from"], run["until"])]
        if self.plan.on_points:
            self._check_traces(terms, [run for run in runs.values() if self._shares_unit(terms, run)])
        charges = [c for c in charges if self._overlaps(c["window_start"], c["window_end"])]
        self.notice = self._notice(terms, overlapping, charges)
        return [self.own] if stated is not None else [terms.entry(), self.own]

    def _overlaps(self, start: int, end: int | None) -> bool:
        calendar = self.plan.grid.calendar
        begin, until = calendar.start(1), calendar.until_ms
        return (end is None or end > begin) and (until is None or start < until)

    def _shares_unit(self, terms: Terms, run: dict[str, Any]) -> bool:
        """Whether one user's unit may have points of a trace run and of this one."""
        mechanism = self.plan.traces.mechanism
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
        spent, own = sum(run["promise"] for run in runs), self.own["promise"]
        if np.isinf(own) and not runs:  # nothing that could be added up: one run is all that there may be
            return
        if np.isinf(own) or spent + own > terms.budget * (1 + ROUNDING):
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
