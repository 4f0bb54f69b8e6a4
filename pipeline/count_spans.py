"""From spans of input to counts of groups of windows: all of counting that can begin before the runner is there."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pipeline.output import files
from pipeline.output.files import parts_folder
from pipeline.prefetch import in_threads, prefetch
from pipeline.sources.base import EventBlock, Reject, Span
from pipeline.steps.contributions import Distinct
from pipeline.steps.count import GroupCounts, Visits, count_group, memberships_of, nothing, summarise_users
from pipeline.steps.ingest import Fate, kept_reject

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


#: The fate of the rows of one piece of input, or memberships of a group of windows and a shard of users.
Piece = Fate | tuple[tuple[int, int], Distinct]
#: What makes some blocks.
Work = Callable[[], Iterable[EventBlock]]

#: Rows that are counted together: what is worked out on the way stays in the processor's cache.
_PIECE_ROWS = 1 << 18


#: Runs a call now or later.
Aside = Callable[[Callable[[], object]], object]

_begun: dict[str, prefetch[Fate | GroupCounts]] = {}


@contextmanager
def counting_ahead(plan: Plan, spans: Iterable[Span], *asides: Callable[[], object]) -> Iterator[None]:
    """Count in threads of their own from now on: importing and starting Beam takes as long as millions of rows.

    What is found waits for `counting_of` in the same process. It takes the room that it would take there. ``asides``
    are called when everything is counted, beside the releases, of which one thread has all the work.
    """
    with ThreadPoolExecutor(1, "penstock-aside") as pool:
        waiting: list[Future[object]] = []

        def counting() -> Iterator[Fate | GroupCounts]:
            """Everything that is counted, and what is to be done after it."""
            yield from counted(spans, plan, lambda call: waiting.append(pool.submit(call)))
            # Not sooner: the releases wait for the counts, and leave a processor idle.
            waiting.extend(pool.submit(call) for call in asides)

        with prefetch(counting(), n_ahead=0) as found:
            _begun[str(plan.folder)] = found
            try:
                yield
            finally:
                _begun.pop(str(plan.folder), None)
        for done in waiting:
            done.result()


def counting_of(spans: Iterable[Span], plan: Plan) -> prefetch[Fate | GroupCounts]:
    """What `counting_ahead` finds, or else the same from now on."""
    return _begun.pop(str(plan.folder), None) or prefetch(counted(spans, plan))


def counted(spans: Iterable[Span], plan: Plan, aside: Aside = lambda call: call()) -> Iterator[Fate | GroupCounts]:
    """Fates of all rows as they are read, then the counts of every group of windows in order.

    Users are summarised too, which nobody waits for: by a call that is given to ``aside``.
    """
    pieces: dict[int, dict[int, list[Distinct]]] = defaultdict(lambda: defaultdict(list))
    for piece in span_memberships(spans, plan):
        if isinstance(piece, Fate):
            yield piece
        else:
            (group, shard), found = piece
            pieces[group][shard].append(found)
    seen: dict[int, list[Visits]] = defaultdict(list)
    # Each group's pieces are let go when its turn comes.
    groups = ((group, pieces.pop(group, {})) for group in range(plan.n_groups))
    for counts, visits in in_threads(partial(_count, plan), groups):
        yield counts
        for shard, its in visits.items():
            seen[shard].append(its)
    for shard, parts_of in seen.items():
        aside(partial(write_users, shard, parts_of, plan))


def _count(plan: Plan, work: tuple[int, dict[int, list[Distinct]]]) -> tuple[GroupCounts, dict[int, Visits]]:
    group, shards = work
    total, visits = nothing(group, plan), {}
    for shard in sorted(shards):
        counts, seen = count_group(group, shards.pop(shard), plan)
        total = total + counts
        if seen is not None:
            visits[shard] = seen
    return total, visits


def write_users(shard: int, seen: Iterable[Visits], plan: Plan) -> None:
    """Keep the numbers of cells and windows of the users of one shard; no identity."""
    files.write_json(parts_folder(plan, "users") / f"{shard:06d}.json", summarise_users(seen))


def span_memberships(spans: Iterable[Span], plan: Plan) -> Iterator[Piece]:
    """Fate and distinct memberships of every block; fates and rejects of each span are left as parts too."""
    with prefetch(_work(spans, plan)) as work:
        for index, pieces in groupby(in_threads(partial(_reduced, plan), work), key=lambda found: found[0]):
            yield from _of_span(index, (piece for _, its in pieces for piece in its), plan)


def _work(spans: Iterable[Span], plan: Plan) -> Iterator[tuple[int, Work]]:
    for span in spans:
        yield span.index, tuple  # a span without a row has a fate as well
        for call in plan.source.work(span):
            yield span.index, call


def _reduced(plan: Plan, work: tuple[int, Work]) -> tuple[int, list[tuple[Fate, tuple[Reject, ...], list[Any]]]]:
    """Fate, rejects and memberships of some blocks, piece by piece."""
    index, call = work
    found = []
    for piece in (piece for block in call() for piece in block.pieces(_PIECE_ROWS)):
        fate, memberships = memberships_of(piece, plan)
        found.append((fate, piece.rejects, list(memberships)))
    return index, found


def _of_span(index: int, pieces: Iterable[tuple[Fate, tuple[Reject, ...], list[Any]]], plan: Plan) -> Iterator[Piece]:
    total, name = Fate(), f"{index:09d}"
    path = parts_folder(plan, "rejects") / f"{name}.jsonl"
    with files.whole(path) as temporary, temporary.open("w", encoding="utf-8") as kept:
        for fate, rejects, memberships in pieces:
            yield fate
            yield from memberships
            total.add(fate)
            for reject in rejects:
                kept.write(json.dumps(as_kept(reject, plan), ensure_ascii=False) + "\n")
    files.write_json(parts_folder(plan, "fates") / f"{name}.json", asdict(total))


def as_kept(reject: Reject, plan: Plan) -> dict[str, Any]:
    """A reject as it is written; a raw row names a person."""
    return kept_reject(reject, plan).as_dict()
