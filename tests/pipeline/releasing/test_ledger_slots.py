"""The ledger by slot against a count by hand: units, blocks, periods, landmarks, days of 23 and 25 hours, kills."""

from __future__ import annotations

import fcntl
import itertools
import json
import math
import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from unittest.mock import patch
from zoneinfo import ZoneInfo

import pytest

from penstock.mechanisms.core import unit as unit_module
from penstock.mechanisms.core.plugin import DataError, StateVersionError
from penstock.mechanisms.core.unit import SlotCharge
from penstock.pipeline.releasing import ledger as module
from penstock.pipeline.releasing.ledger import Charge, Ledger, LedgerExhausted, store_head
from penstock.pipeline.releasing.terms import Terms
from tests.tools.cases import seeds

HOUR, DAY = 3_600_000, 86_400_000
BERLIN = ZoneInfo("Europe/Berlin")
#: Four days of Berlin, one of 23 hours (31 March) or of 25 (27 October) among them; the first instant of each.
SPRING, AUTUMN = (int(datetime(2024, *day, tzinfo=BERLIN).timestamp() * 1000) for day in ((3, 29), (10, 25)))


def terms_at(begin: int, **changes: object) -> Terms:
    usual = {"source": "taxis", "step": HOUR, "anchor": 0, "measure": "epsilon", "budget": 2.0}
    return Terms(**usual | {"time_zone": "Europe/Berlin", "period_zone": "Europe/Berlin", **changes})  # type: ignore[arg-type]


def wall(instant: int) -> datetime:
    return datetime.fromtimestamp(instant / 1000, BERLIN)


def day_of(instant: int) -> object:
    return wall(instant).date()


#: Terms of a ledger whose slots are the hours from an instant on, and the period and landmark of one by the clock.
UNITS = {
    "window": {},
    "stretch": {"length": 5},
    "period": {"kind": "period", "period": DAY},
    "landmarks": {"kind": "landmarks", "period": DAY, "recurring": ("02:00-04:00", "18:00-19:00")},
    "all time": {"kind": "landmarks", "recurring": ("18:00-19:00",)},
    "all": {"kind": "period"},
}


def units_of(terms: Terms, begin: int, n_slots: int) -> Iterator[set[int]]:
    """All that the budget protects, as sets of hours, counted from the definition."""
    instants = [begin + hour * HOUR for hour in range(n_slots)]
    if terms.kind == "stretch":
        yield from (set(range(first, first + terms.length)) for first in range(-terms.length, n_slots))
        return
    for _, hours in itertools.groupby(range(n_slots), lambda h: day_of(instants[h]) if terms.period else None):
        period = set(hours)
        if terms.kind == "period":
            yield period
            continue
        marks = {h for h in period if wall(instants[h]).hour in ((2, 3, 18) if terms.period else (18,))}
        yield from (marks | {hour} for hour in period)


def cost(unit: set[int], charges: list[SlotCharge]) -> float:
    """A charge of several slots counts in full in every unit that meets any of them, and more where it holds a part."""
    total = 0.0
    for charge in charges:
        slots = set(range(charge.first, charge.last + 1))
        if slots & unit:
            total += charge.amount if slots <= unit else charge.in_part
    return total


@pytest.mark.parametrize("kind", UNITS)
@pytest.mark.parametrize("seed", seeds(10, 40))
def test_every_decision_is_that_of_the_definition(kind: str, seed: int) -> None:
    """Two thousand charges a unit, over a day of 23 or of 25 hours; slots lie on both sides of a chunk."""
    rng = random.Random(seed)
    begin = (SPRING, AUTUMN)[seed % 2]
    terms = terms_at(begin, **UNITS[kind])
    first, n_slots = terms.slot(begin), 95
    units = list(units_of(terms, begin, n_slots))
    with patch.object(unit_module, "CHUNK", rng.choice((7, 64, 4096))):
        table, charges = terms.costs(), list[SlotCharge]()
        for _ in range(60):
            hour, length = rng.randrange(n_slots), rng.choice((1, 1, 1, 2, 3, 24, 30))
            last = min(hour + length, n_slots) - 1
            amount = rng.choice((0.25, 0.5, 1.0, math.inf if rng.random() < 0.05 else 0.125))
            one = SlotCharge(hour, last, amount, amount * rng.choice((1.0, 2.0)) if last > hour else amount)
            meets = [unit for unit in units if unit & set(range(hour, last + 1))]
            allowed = all(cost(unit, [*charges, one]) <= terms.budget for unit in meets)
            on_grid = one._replace(first=one.first + first, last=one.last + first)
            fits = table.total(on_grid) <= terms.budget
            # Of landmarks and one other slot together no charge of several slots is held as a whole.
            part = [c._replace(amount=c.in_part) if _is_mixed(c, terms, begin) else c for c in [*charges, one]]
            assert fits == all(cost(unit, part) <= terms.budget for unit in meets)
            assert not fits or allowed
            if fits:
                charges.append(one)
                table.add(on_grid)
        assert charges


def _is_mixed(charge: SlotCharge, terms: Terms, begin: int) -> bool:
    if terms.kind != "landmarks" or charge.first == charge.last:
        return False
    marked = (2, 3, 18) if terms.period else (18,)
    hours = [wall(begin + hour * HOUR).hour in marked for hour in range(charge.first, charge.last + 1)]
    return 0 < sum(hours) < len(hours)


def test_a_day_of_a_unit_has_as_many_slots_as_hours() -> None:
    for begin, changed, n_hours in ((SPRING, "2024-03-31", 23), (AUTUMN, "2024-10-27", 25)):
        terms = terms_at(begin, **UNITS["period"])
        table, first = terms.costs(), terms.slot(begin)
        periods = [table.period(first + hour) for hour in range(95)]
        days = [str(day_of(begin + hour * HOUR)) for hour in range(95)]
        assert [days[i] == days[i - 1] for i in range(1, 95)] == [periods[i] == periods[i - 1] for i in range(1, 95)]
        assert days.count(changed) == n_hours


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "America/Sao_Paulo", "Asia/Kolkata"])
@pytest.mark.parametrize("step", [HOUR // 4, HOUR, 3 * HOUR, DAY, 7 * DAY])
def test_windows_of_every_run_on_the_grid_are_slots(zone: str, step: int) -> None:
    terms = terms_at(0, step=step, anchor=step // 2, time_zone=zone)
    for begin in (SPRING, AUTUMN, AUTUMN - 12_345_678):
        run = replace(terms.calendar, from_ms=begin)
        offset = terms.slot(run.start(1)) - 1
        assert (terms.calendar.starts(offset + 1, offset + 200) == run.starts(1, 200)).all()


# The file.

WINDOW = terms_at(0, time_zone="UTC")


def ledger_in(folder: Path, run: str = "a", terms: Terms = WINDOW, **options: object) -> Ledger:
    return Ledger(folder / "ledger", terms, run, **options)  # type: ignore[arg-type]


def charge(window: int, epsilon: float = 0.5, data: str = "", **changes: object) -> Charge:
    values = {"window": window, "last": window, "epsilon": epsilon, "rho": epsilon * epsilon / 2, "at": window}
    return Charge(**values | {"data": data or f"d{window}"} | changes)  # type: ignore[arg-type]


def pay(ledger: Ledger, *charges: Charge) -> None:
    with ledger.transaction() as budget:
        for one in charges:
            budget.check(one)
            budget.charge(one)


def windows_in(folder: Path) -> list[int]:
    return [posting.charge.window for posting in Ledger(folder / "ledger").postings()]


@pytest.mark.parametrize("kind", UNITS)
@pytest.mark.parametrize("seed", seeds(4, 12))
def test_histories_of_several_runs_with_errors_and_forgetful_readers(tmp_path: Path, kind: str, seed: int) -> None:
    """The file holds what a count by hand allows, whoever has charged; a reader that forgets decides the same."""
    rng, begin = random.Random(seed), (SPRING, AUTUMN)[seed % 2]
    terms, n_slots = terms_at(begin, **UNITS[kind]), 60
    units, paid = list(units_of(terms, begin, n_slots)), dict[tuple[str, int], SlotCharge]()
    ledgers = {run: ledger_in(tmp_path, run, terms, begin=begin) for run in "abc"}
    with patch.object(module, "RECENT", 8):
        for _ in range(80):
            run = rng.choice("abc")
            if rng.random() < 0.2:
                ledgers[run] = ledger_in(tmp_path, run, terms, begin=begin)
            window, epsilon = rng.randrange(1, n_slots + 1), rng.choice((0.25, 0.5, 1.0))
            one, fails = charge(window, epsilon), rng.random() < 0.1
            settled = (run, window) in paid
            added = SlotCharge(window - 1, window - 1, epsilon, epsilon)
            fits = settled or all(
                cost(unit, [*paid.values(), added]) <= terms.budget for unit in units if window - 1 in unit
            )
            done = False
            with suppress(LedgerExhausted, KeyboardInterrupt), ledgers[run].transaction() as budget:
                budget.check(one)
                budget.charge(one)
                if fails:
                    raise KeyboardInterrupt
                done = True
            assert done == (fits and not fails)
            if done and not settled:
                paid[run, window] = added
    assert sorted((p.run, p.charge.window) for p in ledger_in(tmp_path).postings()) == sorted(paid)


def test_a_charge_is_made_once_and_for_one_input(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    pay(ledger, charge(1), charge(2))
    for again in (ledger, ledger_in(tmp_path)):
        pay(again, charge(1), charge(2))
        with pytest.raises(DataError, match="the input of window 2 is not what it was"):
            pay(again, charge(1), charge(2, data="other"))
    assert windows_in(tmp_path) == [1, 2]
    pay(ledger_in(tmp_path, "b"), charge(1, data="other"))  # another run
    assert windows_in(tmp_path) == [1, 2, 1]


def test_what_is_decided_of_a_window_stays(tmp_path: Path) -> None:
    ledger, other = ledger_in(tmp_path), ledger_in(tmp_path, "b")
    pay(ledger, charge(1, 1.5))
    pay(other, charge(1, 0.5), charge(2, 2.0))
    pay(ledger, charge(1, 1.5))  # settled
    with pytest.raises(LedgerExhausted), ledger.transaction() as budget:
        budget.check(charge(2, 0.25))
    with ledger.transaction() as budget:
        budget.charge(Charge(2, 2, 0.0, 0.0, 2))  # refused, without an input
    for again in (ledger, ledger_in(tmp_path)):
        with pytest.raises(LedgerExhausted), again.transaction() as budget:
            budget.check(charge(2, 0.0))
        with pytest.raises(DataError, match="the input of window 2 is not what it was"), again.transaction() as budget:
            budget.charge(charge(2, 0.0))  # nor is it released for nothing by one who did not look


def test_a_window_that_was_charged_is_stepped_under_its_nonce(tmp_path: Path) -> None:
    for nonce, windows in (("n1", (1, 2)), ("n2", (3, 4))):
        ledger = ledger_in(tmp_path)
        with ledger.transaction() as budget:
            budget.add_entry({"entry": "nonce", "run": "a", "nonce": nonce})
        pay(ledger, *map(charge, windows))
    pay(ledger, charge(5, last=7, at=7))  # a block, made with its last window
    with ledger_in(tmp_path).transaction() as budget:
        budget.add_entry({"entry": "nonce", "run": "b", "nonce": "other"})
        budget.add_entry({"entry": "nonce", "run": "a", "nonce": "n3"})
        assert [budget.nonce(window) for window in range(1, 9)] == ["n1", "n1", "n2", "n2", "n3", "n3", "n2", "n3"]


def test_a_part_of_a_block_under_a_bound_is_a_replacement() -> None:
    pure, gaussian = charge(1, 1.0, replaced=True), charge(1, math.inf, rho=0.5, replaced=True)
    assert pure.amounts("epsilon") == (1.0, 2.0)
    assert pure.amounts("rho") == (0.5, 2.0)  # ρ = ε²/2 of 2 · ε
    assert gaussian.amounts("rho") == (0.5, 1.0)
    assert replace(pure, replaced=False).amounts("epsilon") == (1.0, 1.0)


@pytest.mark.parametrize("cost", [math.nan, -1.0])
def test_a_charge_is_a_number_that_is_not_negative(cost: float) -> None:
    with pytest.raises(ValueError, match="neither is negative, or no number"):
        charge(1, cost)


def test_sums_of_huge_figures_are_not_within_a_budget(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path, terms=replace(WINDOW, budget=1.7e308))
    pay(ledger, charge(1, 1e308, rho=0.0))
    with pytest.raises(LedgerExhausted):
        pay(ledger_in(tmp_path, "b"), charge(1, 1e308, rho=0.0))


def test_rounding_of_shares_is_no_overspending(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path, terms=replace(WINDOW, length=10, budget=1.0))
    pay(ledger, *(charge(window, 0.1) for window in range(1, 40)))
    assert len(windows_in(tmp_path)) == 39


def test_memory_stays_bounded_and_going_back_reads_again(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path, terms=replace(WINDOW, length=3, budget=1.5))
    other = ledger_in(tmp_path, "b")
    with patch.object(module, "RECENT", 50), patch.object(unit_module, "CHUNK", 16):
        for window in range(1, 1000, 10):
            pay(ledger, *(charge(w, 0.25) for w in range(window, window + 10)))
            pay(other, charge(window, 0.5))
            assert len(ledger.known.digests) <= 120
        again = ledger_in(tmp_path)
        pay(again, charge(1000, 0.25))
        assert len(again.known.digests) <= 120
        for reader in (ledger, again):
            pay(reader, *(charge(w, 0.25) for w in range(1, 1001)))  # all of them are retries
            with pytest.raises(DataError, match="window 7"):
                pay(reader, charge(7, 0.25, "other"))
            with pytest.raises(LedgerExhausted):
                pay(ledger_in(tmp_path, "c"), charge(1, 0.5))
    assert len(windows_in(tmp_path)) == 1000 + 100


def test_what_a_later_charge_can_meet_is_not_forgotten() -> None:
    """The first slot of a later charge is in stretches that began in the chunk before."""
    table = replace(WINDOW, length=10).costs()
    border = unit_module.CHUNK
    table.add(SlotCharge(border - 4, border - 4, 0.5, 0.5))
    table.forget_before(border + 5)
    assert table.total(SlotCharge(border + 5, border + 5, 0.25, 0.25)) == 0.75
    assert table.total(SlotCharge(border + 6, border + 6, 0.25, 0.25)) == 0.25


def test_going_back_into_the_middle_of_a_block_reads_again(tmp_path: Path) -> None:
    """The other windows of a block are not checked: what was charged of it is known by its charge alone."""
    ledger = ledger_in(tmp_path)

    def stepped(ledger: Ledger, first: int, last: int, data: str) -> int:
        with ledger.transaction() as transaction:
            for window in range(first, last + 1):
                begin = (window - 1) // 1000 * 1000 + 1
                if window == begin:
                    transaction.check(charge(begin, 1.0, last=begin + 999, at=window))
                nonce = transaction.nonce(window)
                if window == begin + 999:
                    assert nonce == ("ab" * 16 if window <= 30_000 else "cd" * 16)
                    transaction.charge(charge(begin, 1.0, data, last=window, at=window))
            return len(transaction.new)

    with ledger.transaction() as transaction:
        transaction.add_entry({"entry": "run", "run": "a", "nonce": "ab" * 16})
    assert stepped(ledger, 1, 30_000, "data") == 30
    with ledger.transaction() as transaction:
        transaction.add_entry({"entry": "nonce", "run": "a", "nonce": "cd" * 16})
    for reader in (ledger, ledger_in(tmp_path)):
        assert stepped(reader, 500, 8000, "data") == 0
        with pytest.raises(DataError, match="the input of window 1 "):
            stepped(reader, 500, 8000, "other")
    assert stepped(ledger, 29_500, 31_000, "data") == 1


def test_a_torn_tail_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    pay(ledger_in(tmp_path), charge(1), charge(2))
    path.write_bytes(path.read_bytes() + b'{"run": "torn", "slo')
    assert windows_in(tmp_path) == [1, 2]
    pay(ledger_in(tmp_path), charge(3))
    assert windows_in(tmp_path) == [1, 2, 3]
    assert len(ledger_in(tmp_path).checked_entries()) == 4


@pytest.mark.parametrize("text", ["notes on the ledger", "one line\nand half of another"])
def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path, text: str) -> None:
    (tmp_path / "ledger").write_text(text)
    with pytest.raises(DataError, match="is no ledger"):
        pay(ledger_in(tmp_path), charge(1))
    assert (tmp_path / "ledger").read_text() == text


def test_a_charge_without_its_end_of_line_is_neither_cut_nor_left_out(tmp_path: Path) -> None:
    """An editor may take it away; the head knows that the charge was made."""
    path = tmp_path / "ledger"
    pay(ledger_in(tmp_path), charge(1), charge(2))
    before = path.read_bytes()
    path.write_bytes(before.rstrip(b"\n"))
    with pytest.raises(DataError, match="lacks entries that it had"):
        pay(ledger_in(tmp_path), charge(3))
    assert path.read_bytes() == before.rstrip(b"\n")
    path.write_bytes(before)
    pay(ledger_in(tmp_path), charge(3))
    assert windows_in(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("how", ["changed", "removed", "doubled", "swapped"])
def test_a_line_that_was_changed_removed_or_added_stops_every_reader(tmp_path: Path, number: int, how: str) -> None:
    pay(ledger_in(tmp_path), *map(charge, range(1, 6)))
    lines = (tmp_path / "ledger").read_bytes().splitlines(keepends=True)
    if how == "changed":
        lines[number] = lines[number].replace(b'"run": "a"', b'"run": "b"').replace(b'"budget": 2.0', b'"budget": 9.0')
    else:
        lines[number : number + 2] = {
            "removed": lines[number + 1 : number + 2],
            "doubled": [lines[number], *lines[number : number + 2]],
            "swapped": [lines[number + 1], lines[number]],
        }[how]
    (tmp_path / "ledger").write_bytes(b"".join(lines))
    with pytest.raises(DataError):
        ledger_in(tmp_path).checked_entries()
    with pytest.raises(DataError), ledger_in(tmp_path, "b").transaction():
        pass


@pytest.mark.parametrize("lost", [slice(0, -1), slice(0, 2), slice(0, 0)])
def test_a_missing_end_is_found_by_either_head(tmp_path: Path, lost: slice) -> None:
    other_head = tmp_path / "run" / "ledger.head"
    other_head.parent.mkdir()
    ledger = ledger_in(tmp_path, run_head=other_head)
    pay(ledger, charge(1), charge(2))
    lines = (tmp_path / "ledger").read_bytes().splitlines(keepends=True)
    (tmp_path / "ledger").write_bytes(b"".join(lines[lost]))
    for reader in (ledger, ledger_in(tmp_path), ledger_in(tmp_path, "b")):
        with pytest.raises(DataError, match=r"ledger.head.*put the latest copy back|is shorter than it was"):
            pay(reader, charge(3))
    # A head from the same backup as the ledger: the run's own one still knows.
    heads = Ledger(tmp_path / "ledger").heads()
    (tmp_path / "ledger.head").write_text((heads[-1] if heads else "").zfill(64) + "\n")
    with pytest.raises(DataError, match=r"run/ledger.head"):
        pay(ledger_in(tmp_path, run_head=other_head), charge(3))


def test_a_lost_head_stops_runs_until_it_is_written_again(tmp_path: Path) -> None:
    other_head = tmp_path / "run" / "ledger.head"
    other_head.parent.mkdir()
    pay(ledger_in(tmp_path, run_head=other_head), charge(1))
    head = (tmp_path / "ledger.head").read_text()
    (tmp_path / "ledger.head").unlink()
    with pytest.raises(DataError, match=r"ledger.head: is missing"):
        pay(ledger_in(tmp_path, "b"), charge(1))
    (tmp_path / "ledger.head").write_text(head)
    pay(ledger_in(tmp_path, "b"), charge(1))
    other_head.unlink()
    with pytest.raises(DataError, match=r"run/ledger.head: is missing"):
        pay(ledger_in(tmp_path, run_head=other_head), charge(2))


def test_heads_that_a_killed_writer_left_behind_are_kept_again(tmp_path: Path) -> None:
    other_head = tmp_path / "own.head"
    pay(ledger_in(tmp_path, run_head=other_head), charge(1))
    heads = [tmp_path / "ledger.head", other_head]
    behind = [head.read_bytes() for head in heads]
    pay(ledger_in(tmp_path, run_head=other_head), charge(2))
    ahead = [head.read_bytes() for head in heads]
    for head, data in zip(heads, behind):
        head.write_bytes(data)  # killed between entry and head
    pay(ledger_in(tmp_path, run_head=other_head), charge(2))
    assert [head.read_bytes() for head in heads] == ahead
    # A transaction without a charge keeps the head of what others have charged.
    ledger = ledger_in(tmp_path, run_head=other_head)
    pay(ledger_in(tmp_path, "b"), charge(3))
    with ledger.transaction():
        pass
    assert other_head.read_bytes() == (tmp_path / "ledger.head").read_bytes()


def test_a_ledger_of_another_version_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text('{"stream": "main", "window": 1, "chain": "00"}\n')
    for read in (lambda: list(ledger_in(tmp_path).entries()), lambda: pay(ledger_in(tmp_path), charge(1))):
        with pytest.raises(DataError, match="is no ledger of this version of penstock; name another file in output"):
            read()
    (tmp_path / "ledger").unlink()
    with patch.object(module, "VERSION", 2):
        pay(ledger_in(tmp_path), charge(1))
    with pytest.raises(StateVersionError, match="a later version of penstock"):
        pay(ledger_in(tmp_path), charge(2))


def test_a_ledger_of_version_1_stays_readable(tmp_path: Path) -> None:
    """Bytes of version 1, which every later version reads and continues."""
    lines = [
        '{"entry": "ledger", "version": 1, "id": "0123456789abcdef", "terms": {"source": "taxis", "step": 3600000, '
        '"anchor": 0, "measure": "epsilon", "budget": 2.0, "time_zone": "UTC", "kind": "stretch", "length": 1, '
        '"period": null, "period_begin": 0, "period_zone": "UTC", "times": [], "recurring": [], "listed": [], '
        '"adjacency": "add or remove one user\'s events in the unit", "traces": ""}',
        '{"entry": "run", "run": "a", "nonce": "n1"',
        '{"run": "a", "slot": 1, "nonce": "n1", "window": 1, "epsilon": 1.5, "rho": 1.125, "data": "d1"',
        '{"run": "a", "slot": 2, "nonce": "n1", "window": 2, "last": 3, "epsilon": 0.5, "rho": 0.125, "data": "d2", '
        '"at": 3, "replaced": true',
    ]
    head, text = "", ""
    for line in lines:
        head = module._next_head(head, json.loads(line + "}"))
        text += f'{line}, "chain": "{head}"}}\n'
    (tmp_path / "ledger").write_text(text)
    (tmp_path / "ledger.head").write_text(head + "\n")
    assert head == "0c46b03a5f1944feb237bf2b16b5dbd0f3c166fb28525751e9be5822f4cdda7c"
    pay(ledger_in(tmp_path), charge(1, 1.5))
    with pytest.raises(LedgerExhausted):
        pay(ledger_in(tmp_path, "b"), charge(3, 1.5))
    pay(ledger_in(tmp_path, "b"), charge(3, 1.0))


# At the same time, and killed.


def test_a_charge_that_another_writer_has_only_just_written_is_made_durable(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    pay(ledger_in(tmp_path), charge(1))
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
    (tmp_path / "ledger.head").write_text("0" * 64 + "\n")  # whoever wrote it was killed before the head
    pay(ledger_in(tmp_path), charge(1))
    head = tmp_path / "ledger.head"
    assert synced[-2:] == [(tmp_path / "ledger").stat().st_ino, head.stat().st_ino]  # the head never leads the entry
    assert head.read_text().strip() == Ledger(tmp_path / "ledger").heads()[-1]


def test_a_line_that_another_writer_is_writing_is_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    pay(ledger_in(tmp_path), charge(1))
    before = path.read_bytes()
    pay(ledger_in(tmp_path), charge(2))
    line = path.read_bytes()[len(before) :].decode()
    path.write_bytes(before)
    (tmp_path / "ledger.head").write_text(Ledger(path).heads()[-1] + "\n")
    with ThreadPoolExecutor(1) as pool:
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(line[:20])
            file.flush()
            paid = pool.submit(pay, ledger_in(tmp_path, "b"), charge(3))
            with pytest.raises(TimeoutError):
                paid.result(0.2)
            file.write(line[20:])
        paid.result(10)
    assert windows_in(tmp_path) == [1, 2, 3]


def _race(folder: Path, run: str, n_windows: int) -> int:
    ledger, n_paid = ledger_in(folder, run), 0
    for window in range(1, n_windows + 1):
        with suppress(LedgerExhausted):
            pay(ledger, charge(window, 0.75))
            n_paid += 1
    return n_paid


def test_nobody_charges_between_the_look_and_the_charge_of_another(tmp_path: Path) -> None:
    """The lock is held from the first look until the charge is durable, in one process and between two."""
    pools = ThreadPoolExecutor(1), ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    for number, pool in enumerate(pools):
        with pool:
            pool.submit(int).result()  # it has begun
            ledger, window = ledger_in(tmp_path, "a"), number + 1
            with ledger.transaction() as budget:
                budget.check(charge(window, 1.5))
                other = pool.submit(_race, tmp_path, "b", window)
                with pytest.raises(TimeoutError):
                    other.result(1)
                budget.charge(charge(window, 1.5))
                with pytest.raises(TimeoutError):
                    other.result(0.5)
            assert other.result(60) == 0, "what was looked at is what was there"
        assert windows_in(tmp_path) == list(range(1, window + 1))


def test_an_entry_is_durable_before_its_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that is ahead of the entries would stop every later run: nothing could put the entry back."""
    made: list[str] = []
    sync = os.fsync

    def synced(file: int) -> None:
        made.append("entry" if os.fstat(file).st_ino == (tmp_path / "ledger").stat().st_ino else "head")
        sync(file)

    def kept(path: Path, head: str) -> None:
        assert head == Ledger(tmp_path / "ledger").heads()[-1]
        made.append("keep")
        store_head(path, head)

    pay(ledger_in(tmp_path), charge(1))
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(module, "store_head", kept)
    pay(ledger_in(tmp_path), charge(2))
    assert made == ["entry", "keep", "head"]


def test_two_threads_do_not_pass_the_budget_together(tmp_path: Path) -> None:
    threads = [threading.Thread(target=_race, args=(tmp_path, run, 60)) for run in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(windows_in(tmp_path)) == sorted([*range(1, 61)] * 2)  # two of three fit into 2
    ledger_in(tmp_path).checked_entries()


def test_two_processes_do_not_pass_the_budget_together(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        paid = pool.starmap(_race, [(tmp_path, run, 60) for run in "abc"])
    assert sum(paid) == 120
    assert sorted(windows_in(tmp_path)) == sorted([*range(1, 61)] * 2)
    ledger_in(tmp_path).checked_entries()


def _charge_until_killed(folder: Path, fatal: int) -> None:
    """Charge windows one by one; die before the ``fatal``-th write, sync or head."""
    left = fatal

    def counted(call):  # type: ignore[no-untyped-def]
        def calling(*arguments):  # type: ignore[no-untyped-def]
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments)

        return calling

    os.fsync = counted(os.fsync)  # type: ignore[assignment]
    module.store_head = counted(store_head)
    ledger = ledger_in(folder, run_head=folder / "own.head")
    for window in range(1, 7):
        pay(ledger, charge(window, 1.5))
        with (folder / "left").open("a") as file:  # what a release stands for
            file.write(f"{window}\n")


@pytest.mark.parametrize("fatal", range(1, 30))
def test_a_writer_that_is_killed_anywhere_is_continued(tmp_path: Path, fatal: int) -> None:
    process = multiprocessing.get_context("fork").Process(target=_charge_until_killed, args=(tmp_path, fatal))
    process.start()
    process.join()
    released = [int(line) for line in (tmp_path / "left").read_text().split()] if (tmp_path / "left").exists() else []
    assert set(released) <= set(windows_in(tmp_path))
    pay(ledger_in(tmp_path, run_head=tmp_path / "own.head"), *(charge(window, 1.5) for window in range(1, 7)))
    assert windows_in(tmp_path) == list(range(1, 7))
    assert len(ledger_in(tmp_path, run_head=tmp_path / "own.head").checked_entries()) == 7
