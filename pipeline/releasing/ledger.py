"""Append-only, hash-chained ledger of privacy charges. Each charge is a transaction that is synced to disk before
the release is published.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from penstock.mechanisms.core.plugin import BudgetExceeded, DataError, StateVersionError
from penstock.mechanisms.core.sensitivity import price_of_replacement
from penstock.mechanisms.core.unit import SlotCharge, UnitCosts, exceeds
from penstock.mechanisms.core.usual_days import Profile, UsualCounts
from penstock.pipeline.atomic import make_folder, private_opener, write_first
from penstock.pipeline.releasing.terms import Terms
from penstock.pipeline.windows.calendar import DAY, format_time

#: Version of the file; every later version of penstock reads this one.
VERSION = 1
#: Slots whose charges a run remembers behind the one at hand: a bundle is retried soon or never.
RECENT = 10_000
#: Hexadecimal digits of a nonce that charges are recorded with.
SHORT = 16
_HEAD_LENGTH = 64


class LedgerExhausted(BudgetExceeded):
    """Raised if a release would exceed the ledger's budget. In that case, nothing has been charged or released."""

    def __str__(self) -> str:
        return f"{super().__str__()} of the ledger, which all runs over its event source share"


@dataclass(frozen=True)
class Charge:
    """The privacy cost of one release.

    Parameters
    ----------
    window, last
        First and last window that it is about, numbers of the run; in between are those of a block or a period.
    epsilon, rho, gaussian
        Cost of the whole vector under add/remove; ``gaussian``, half of μ², of a run that promises so.
    at
        The window that was stepped when it was made: of a block its last one.
    data
        Keyed digest of the input: the same again is a retry, another an error. Empty: nothing was read (refused).
    replaced
        Whether contribution bounding chooses among a person's events in all of these windows. A unit that holds some of
        them then counts a replacement: others are counted in place of those that go.
    part
        What else tells charges for a window apart: a shard of traces.
    """

    window: int
    last: int
    epsilon: float
    rho: float
    at: int
    data: str = ""
    replaced: bool = False
    part: str = ""
    gaussian: float = math.inf

    def __post_init__(self) -> None:
        if not all(amount >= 0 for amount in (self.epsilon, self.rho, self.gaussian)):
            raise ValueError(f"charges of ε = {self.epsilon} and ρ = {self.rho}: neither is negative, or no number")

    def amounts(self, measure: str) -> tuple[float, float]:
        """Return the amounts charged to a unit with all of the charge's windows and to a unit with only some."""
        amount = 1.0 if measure == "runs" else float(getattr(self, measure))
        if not self.replaced or measure == "runs":
            return amount, amount
        return amount, amount * price_of_replacement(measure, is_pure=math.isfinite(self.epsilon))


class Posting(NamedTuple):
    """A charge posted to the ledger, with its run, first slot and nonce."""

    run: str
    slot: int
    nonce: str
    charge: Charge

    @property
    def last_slot(self) -> int:
        """The last slot of the charge."""
        return self.slot + self.charge.last - self.charge.window

    def on_slots(self, measure: str) -> SlotCharge:
        """Return the slots covered by the charge and the amounts charged to them."""
        return SlotCharge(self.slot, self.last_slot, *self.charge.amounts(measure))

    def values(self) -> dict[str, Any]:
        """Return the contents of the ledger line, omitting default values."""
        values = {"run": self.run, "slot": self.slot, "nonce": self.nonce, **vars(self.charge)}
        usual: dict[str, Any] = {"replaced": False, "part": "", "gaussian": math.inf}
        usual |= {"last": self.charge.window, "at": self.charge.window}
        return {name: value for name, value in values.items() if name not in usual or value != usual[name]}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Posting:
        """Restore a posting from the contents of a ledger line, ignoring keys added by later versions."""
        names = [field.name for field in fields(Charge)]
        window = {"last": values["window"], "at": values["window"]}
        charge = Charge(**window | {name: values[name] for name in names if name in values})
        return cls(values["run"], values["slot"], values["nonce"], charge)


class LedgerEntry(NamedTuple):
    """A ledger line's contents and the chain head after it."""

    values: dict[str, Any]
    head: str

    @property
    def kind(self) -> str:
        """The kind of entry: ``ledger`` (the first line), ``run``, ``nonce``, ``choice`` or ``charge``."""
        return str(self.values.get("entry", "charge"))


def stored_head(path: Path) -> str | None:
    """Return the ledger head stored in a file: empty before the first entry, or None if there is no file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip().removeprefix("0" * _HEAD_LENGTH)
    except FileNotFoundError:
        return None


def store_head(path: Path, head: str) -> None:
    """Store a ledger's head durably so that truncation can be detected.

    The file has a fixed length and is overwritten in place, since a write of so few bytes happens whole or not at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for head in ("", "ab" * 32):
    ...         store_head(path := Path(folder) / "ledger.head", head)
    ...         stored_head(path) == head
    True
    True
    """
    line, before = head.zfill(_HEAD_LENGTH).encode() + b"\n", stored_head(path)
    if before is None and not head:
        write_first(path, line, private=True)
    elif before != head:  # a file that is gone is an error: so is its folder, perhaps, and the run's mark
        with path.open("r+b") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())


@dataclass
class LedgerState:
    """A ledger's state as last read by a run."""

    terms: Terms | None = None
    identity: str = ""
    #: Costs of all units; None without a budget.
    costs: UnitCosts | None = None
    #: Entries of all runs that have begun.
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Choices of public landmarks among which private ones hide.
    choices: list[dict[str, Any]] = field(default_factory=list)
    #: Nonces of the run itself by their short names, the newest last.
    nonces: dict[str, str] = field(default_factory=dict)
    #: Digest of the input of the run's own charges, by part and slot; and the nonce of its steps, by slot.
    digests: dict[tuple[str, int], str] = field(default_factory=dict)
    made_under: dict[int, str] = field(default_factory=dict)
    head: str = ""
    read_to: int = 0
    #: Charges before this slot are forgotten; the latest slot that the run has charged.
    floor: int = -(2**62)
    latest: int = -(2**62)


class Ledger:
    """Append-only file of charges, one JSON object per line, shared by any number of runs and workers.

    The first line states version and `Terms`, which the first run brings; whoever comes later takes them. A torn last
    line (a killed run) is cut off, since the release it belongs to never left.

    Parameters
    ----------
    path
        The file; made with its folder when first written.
    terms
        What a new ledger is about; None: it is only read.
    run
        Which run charges.
    begin
        First instant of the run's first window.
    run_head
        Where the run keeps the head of its last entry, besides the one at the ledger; None: nowhere else.

    Notes
    -----
    Every line ends with the head of the chain: SHA-256 over the head before it and the line. A line that was changed or
    taken out breaks the chain. A missing end does not: it shows by a head that was stored elsewhere (`store_head`),
    beside the ledger, in the folder of the run and in the manifests. A head is kept after its entry is written and
    before the release leaves, so that a writer that is killed leaves the head of an earlier entry, never of a later
    one.

    Examples
    --------
    >>> import tempfile
    >>> terms = Terms(source="taxis", step=3_600_000, anchor=0, measure="epsilon", budget=1.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one, other = (Ledger(Path(folder) / "ledger", terms, run) for run in ("one", "other"))
    ...     for ledger in (one, one, other):
    ...         with ledger.transaction() as budget:
    ...             budget.charge(Charge(1, 1, 0.5, 0.125, 1, "data"))
    ...     len(list(one.postings()))
    2
    """

    def __init__(
        self, path: Path, terms: Terms | None = None, run: str = "", begin: int = 0, run_head: Path | None = None
    ) -> None:
        self.path, self.run, self.begin, self._first_terms = path, run, begin, terms
        beside = path.with_name(f"{path.name}.head")
        self._heads = list(dict.fromkeys([beside, run_head or beside]))
        self.known, self._pinned = LedgerState(), 2**62
        self._file: BinaryIO | None = None
        self._offset = 0  # slot of the run's window 0
        #: Entries of the transaction, to be appended.
        self.new: list[dict[str, Any]] = []

    # Reading.

    def entries(self) -> Iterator[LedgerEntry]:
        """Yield all entries in order. Raises `DataError` if the hash chain is broken."""
        if self.path.exists():
            with self.path.open("rb") as file:
                yield from (entry for entry, _ in self._lines(file, 0, ""))

    def postings(self) -> Iterator[Posting]:
        """Yield all charges in order."""
        return (Posting.of(entry.values) for entry in self.entries() if entry.kind == "charge")

    def checked_entries(self) -> list[LedgerEntry]:
        """Return all entries. Raises `DataError` if the hash chain is broken or the stored heads reveal truncation."""
        kept = list(map(stored_head, self._heads))  # before the entries, which others may add to
        entries = list(self.entries())
        self._check_heads(kept, "", entries)
        return entries

    def heads(self) -> list[str]:
        """Return the chain head after each entry."""
        return [entry.head for entry in self.entries()]

    def _lines(self, file: BinaryIO, start: int, head: str) -> Iterator[tuple[LedgerEntry, int]]:
        """Yield each entry from a byte offset onward with its end offset, given the chain head at that offset."""
        file.seek(start)
        end = start
        for line in file:
            try:
                if end == 0 and not line.startswith(b"{"):
                    raise ValueError("a file of something else, which no torn line is cut off")
                if not line.endswith(b"\n"):
                    return  # torn: the release it belongs to never left
                values = json.loads(line)
                stated = values.pop("chain")
                head = _next_head(head, values)
                if stated != head:
                    raise ValueError("the chain is broken: a line before it was changed, added or removed")
                entry = LedgerEntry(values, head)
                if end == 0 and (entry.kind != "ledger" or "version" not in values):
                    raise ValueError("the first line states no version")
                if entry.kind == "charge":
                    Posting.of(values)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                if end == 0:
                    text = "is no ledger of this version of penstock; name another file in output.ledger"
                    raise DataError(f"{self.path}: {text}") from None
                file.seek(0)
                number = file.read(end).count(b"\n") + 1
                raise DataError(f"{self.path}:{number}: not a ledger line ({error})") from None
            if end == 0 and values["version"] > VERSION:
                text = "a later version of penstock has written this ledger; use that one"
                raise StateVersionError(f"{self.path}: {text}")
            end += len(line)
            yield entry, end

    # One transaction: what a run may do while no other run can charge.

    @contextmanager
    def transaction(self) -> Iterator[Ledger]:
        """Lock and read the ledger. On exit, append the new entries, sync the file and release the lock.

        `check` before a step and `charge` after it. If an error is raised, nothing has been charged.
        """
        make_folder(self.path.parent)
        with open(self.path, "ab+", opener=private_opener) as self._file:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX)  # a torn line might be one that another run is writing
                learned, self.new = self._learn(self._file), []
                self._file.truncate(self.known.read_to)  # what is torn
                if self.known.terms is None:
                    if self._first_terms is None:
                        raise DataError(f"{self.path}: no ledger here")
                    # Ledgers of simulations need not be told apart, and are the same bytes on every runner.
                    identity = secrets.token_hex(8) if self.run else "simulation"
                    terms = asdict(self._first_terms)
                    self.add_entry({"entry": "ledger", "version": VERSION, "id": identity, "terms": terms})
                self._offset = self.terms.slot(self.begin) - 1
                yield self
                self._append(self._file, learned)
            except BaseException:
                self.known = LedgerState()  # it may hold charges that were never written
                raise
            finally:
                self._file = None

    @property
    def terms(self) -> Terms:
        """The ledger's terms."""
        assert self.known.terms is not None
        return self.known.terms

    def add_entry(self, values: dict[str, Any]) -> None:
        """Add an entry to the current transaction."""
        assert self._file is not None, "in a transaction only"
        values = json.loads(json.dumps(values))
        self.new.append(values)
        self._record(values)

    def nonce(self, window: int) -> str:
        """Return the nonce under which a window was charged, or the run's newest nonce if it has not been charged."""
        slot = window + self._offset
        known = self._known_from(slot)
        newest = next(reversed(known.nonces), "")
        return known.nonces.get(known.made_under.get(slot, newest), "")

    def check(self, charge: Charge) -> None:
        """Raise `LedgerExhausted` if a release's worst-case charge would exceed the budget.

        A window that was charged or refused before is settled: what is decided of it is the same whenever it is
        repeated, whatever others have charged since.
        """
        posting, data = self._look_up(charge)
        if not data:
            self._check_fits(posting, refused=data is not None)

    def charge(self, charge: Charge) -> None:
        """Charge a window once. Repeating it with identical input is a retry. Different input raises `DataError`."""
        posting, data = self._look_up(charge)
        if data is None:
            self._check_fits(posting)
            self.add_entry(posting.values())
        elif data != charge.data:
            raise DataError(
                f"the input of window {charge.window} is not what it was when the window was released; "
                "a run can only be continued with the input that it began with, and another input needs another folder"
            )

    def _look_up(self, charge: Charge) -> tuple[Posting, str | None]:
        """Return the posting for a charge and, if the charge was posted before, the digest of its input."""
        slot = charge.window + self._offset
        data = self._known_from(slot).digests.get((charge.part, slot))
        return Posting(self.run, slot, self.nonce(charge.at)[:SHORT], charge), data

    def _check_fits(self, posting: Posting, refused: bool = False) -> None:
        if (costs := self.known.costs) is None:
            return
        slots, budget = posting.on_slots(self.terms.measure), self.terms.budget
        if slots.amount or slots.in_part or refused:
            spent, amount = costs.costliest_unit(slots)
            if refused or exceeds(spent + amount, budget):
                raise LedgerExhausted(posting.charge.window, spent, amount, budget)

    # What a run knows of its ledger.

    def _learn(self, file: BinaryIO) -> bool:
        """Read the entries appended since the last read and return whether there were any."""
        known, kept = self.known, list(map(stored_head, self._heads))
        size, before = file.seek(0, os.SEEK_END), (known.read_to, known.head)
        if size < known.read_to:
            raise DataError(f"{self.path}: is shorter than it was: it was cut, or an older copy was put in its place")
        entries = []
        for entry, known.read_to in self._lines(file, *before):
            known.head = entry.head
            entries.append(entry)
            self._record(entry.values)
        self._check_heads(kept, before[1], entries)
        if not before[0]:
            for path, head in zip(self._heads, kept):
                if head is None:  # from here on their absence means that they were lost
                    store_head(path, "")
        return known.read_to > before[0]

    def _record(self, values: dict[str, Any]) -> None:
        """Update the known state with one entry."""
        known, kind = self.known, values.get("entry", "charge")
        if kind == "charge":
            posting = Posting.of(values)
            if known.costs is not None:
                known.costs.add(posting.on_slots(self.terms.measure))
            if posting.run == self.run and posting.slot >= known.floor:
                charge = posting.charge
                known.digests[charge.part, posting.slot] = charge.data
                known.made_under[posting.slot + charge.at - charge.window] = posting.nonce
                known.latest = max(known.latest, posting.last_slot)
                if (kept_from := min(known.latest, self._pinned)) - known.floor > 2 * RECENT:
                    self._evict_before(kept_from - RECENT)
        elif kind == "ledger":
            known.identity, known.terms = values["id"], Terms.of(values["terms"])
            known.costs = known.terms.costs() if math.isfinite(known.terms.budget) else None
        elif kind == "choice":
            known.choices.append(values)
        elif values["run"] == self.run and values.get("nonce"):
            known.nonces[values["nonce"][:SHORT]] = values["nonce"]
        if kind == "run":
            known.runs[values["run"]] = values

    def _evict_before(self, floor: int) -> None:
        """Evict charges far behind the current window from memory."""
        known = self.known
        known.floor = floor
        if known.costs is not None:
            known.costs.forget_before(floor)
        known.digests = {place: data for place, data in known.digests.items() if place[1] >= floor}
        known.made_under = {slot: nonce for slot, nonce in known.made_under.items() if slot >= floor}

    def _known_from(self, slot: int) -> LedgerState:
        """Return the known state with all charges from a slot onward, rereading any that were evicted.

        A run may go back into the middle of a block, which is not checked there.
        """
        assert self._file is not None, "in a transaction only"
        if not self.new:  # new ones would be lost; whatever comes after them is remembered
            if slot < self.known.floor:
                self.known, self._pinned = LedgerState(), slot
                self._learn(self._file)
            self._pinned = 2**62 if self.known.latest < slot else min(self._pinned, slot)
        return self.known

    def _append(self, file: BinaryIO, learned: bool) -> None:
        """Append new entries durably with a single write and sync, then update the stored heads."""
        known, lines = self.known, []
        for values in self.new:
            known.head = _next_head(known.head, values)
            lines.append(json.dumps({**values, "chain": known.head}) + "\n")
        if lines:
            file.seek(0, os.SEEK_END)
            file.write("".join(lines).encode())
            file.flush()
        if lines or learned:  # a release may leave on what was there: its writer may have been killed
            os.fsync(file.fileno())
            for path in self._heads:
                store_head(path, known.head)
        known.read_to = file.seek(0, os.SEEK_END)

    def _check_heads(self, kept: Sequence[str | None], before: str, entries: Sequence[LedgerEntry]) -> None:
        """Raise `DataError` if a stored head matches no entry, or is missing although it should have been stored."""
        heads = {None, "", before, *(entry.head for entry in entries)}
        for path, head in zip(self._heads, kept):
            if head not in heads:
                raise DataError(
                    f"{self.path}: lacks entries that it had, by the head of its chain in {path}: it was cut, "
                    "or an older copy was put in its place; put the latest copy back"
                )
            is_due = (before or entries) and (path is self._heads[0] or self.known.digests)
            if head is None and is_due and path.parent.exists():
                raise DataError(
                    f"{path}: is missing, so that it is unknown whether {self.path} is whole; put it back, "
                    "or, if 'penstock ledger show' with the latest run's public manifest finds the ledger whole, "
                    "write the head that it prints into a new one"
                )


def series(terms: Terms, postings: Sequence[Posting]) -> dict[str, Any] | None:
    """Return the total of all charges and the total for the last 30 days, or None if nothing has been charged.

    It is the most that someone loses who is in every window, in the measure of the ledger. A charge for some windows of
    the 30 days counts in full. None for traces, too: a run of them is charged for a unit, and not for a whole trace.

    **Privacy**: charges follow public facts and earlier noisy outputs alone, whose cost is among them; the sums may be
    published.
    """
    if not postings or terms.traces:
        return None
    amounts = [(entry.charge.amounts(terms.measure)[0], terms.start(entry.last_slot + 1)) for entry in postings]
    end = max(until for _, until in amounts)
    return {
        "from": format_time(terms.start(min(entry.slot for entry in postings))),
        "until": format_time(end),
        "charges": len(postings),
        "measure": terms.measure,
        "sum": sum(amount for amount, _ in amounts),
        "sum_of_30_days": sum(amount for amount, until in amounts if until > end - 30 * DAY),
    }


def landmark_choices(entries: Sequence[LedgerEntry]) -> dict[str, Any] | None:
    """Return the combined loss of all choices of public landmarks, or None if there are none."""
    choices = [entry.values for entry in entries if entry.kind == "choice"]
    sums = {name: sum(choice[name] for choice in choices) for name in ("about_each", "about_all")}
    return {"choices": len(choices), **sums} if choices else None


def is_profile_charged(profile: Profile) -> bool:
    """Return whether a profile is declared public or its run was charged to the profile's ledger."""
    if profile.ledger is None:
        return profile.declared == "public"
    entries = Ledger(Path(profile.ledger)).checked_entries()
    run = UsualCounts.read(profile.file).facts.get("run")
    # Runs of simulations have no name; their noise is no secret.
    return bool(run) and any(row.kind == "charge" and row.values["run"] == run for row in entries)


def _next_head(head: str, values: Mapping[str, Any]) -> str:
    return hashlib.sha256((head + json.dumps(values)).encode()).hexdigest()
