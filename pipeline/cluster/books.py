"""The row equation of a cluster: fates of rows as data, added up in state that the engine keeps exactly once."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np
from apache_beam.coders import BytesCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.utils.timestamp import Timestamp

from mechanisms.core.state import StateFormat
from pipeline.cluster.blocks import end_of_input
from pipeline.cluster.step import ClusterStep, discreetly
from pipeline.output import files
from pipeline.output.files import parts_folder
from pipeline.steps.ingest import Fate

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


#: Tag of the output of a step that carries entries for the books.
ENTRIES = "entries"
#: Milliseconds before the end of the input, after the last window, at which the books are closed.
_BEFORE = 2000
#: An entry: everything goes to the one book.
Entry = tuple[int, bytes]
FORMAT = StateFormat("books")


def entry(fate: Fate | None = None, memberships: int = 0) -> Entry:
    """Rows and distinct memberships to be added; those that turn out to be late are moved with a negative ``used``.

    Examples
    --------
    >>> entry(memberships=3)[0]
    0
    """
    return 0, _encode(fate or Fate(), memberships)


class KeepBooks(ClusterStep):
    """Add up what became of the rows, and write it down where the end of a run looks for it.

    Every entry balances in itself, so the books balance at any time. The file is written again with each entry: after
    a failure it goes back with the state, and is right again when the rows have been read again.
    """

    BOOKS = ReadModifyWriteStateSpec("books", BytesCoder())
    END = TimerSpec("end", TimeDomain.WATERMARK)

    @discreetly
    def process(
        self,
        element: Entry,
        books: Any = beam.DoFn.StateParam(BOOKS),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> None:
        """Add an entry; ask to be woken when all input has been read."""
        total, memberships = _decode(books.read() or entry()[1])
        fate, more = _decode(element[1])
        total.add(fate)
        memberships += more
        books.write(_encode(total, memberships))
        files.write_json(parts_folder(self.plan, "fates") / "cluster.json", asdict(total))
        files.write_json(parts_folder(self.plan, "memberships") / "cluster.json", memberships)
        if (instant := end_of_input(self.plan)) is not None:
            end.set(Timestamp(micros=1000 * (instant - _BEFORE)))

    @on_timer(END)
    @discreetly
    def close(self, books: Any = beam.DoFn.StateParam(BOOKS)) -> None:
        """Note that there is no more input, and how many rows there were."""
        files.write_json(parts_folder(self.plan, "ended") / "input.json", _decode(books.read())[0].rows)


def _encode(fate: Fate, memberships: int) -> bytes:
    numbers = {name: np.asarray(n) for name, n in asdict(fate).items() if name != "rejected"}
    reasons = np.asarray(list(fate.rejected), np.str_ if fate.rejected else "U1")
    rejected = np.asarray(list(fate.rejected.values()), np.int64)
    return FORMAT.encode(numbers | {"memberships": np.asarray(memberships), "reasons": reasons, "rejected": rejected})


def _decode(data: bytes) -> tuple[Fate, int]:
    state = FORMAT.decode(data)
    rejected = dict(zip(state.pop("reasons").tolist(), state.pop("rejected").tolist()))
    memberships = int(state.pop("memberships"))
    return Fate(rejected=rejected, **{name: int(n) for name, n in state.items()}), memberships


def all_read(plan: Plan) -> bool:
    """Whether the input has ended and the books that are on disk hold all of it."""
    ended, fate = parts_folder(plan, "ended") / "input.json", parts_folder(plan, "fates") / "cluster.json"
    return ended.exists() and json.loads(ended.read_text()) == json.loads(fate.read_text())["rows"]
