"""From spans of input to distinct memberships: all of counting that can begin before the runner is there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

from pipeline import parts
from pipeline.block import EventBlock, Reject
from pipeline.counting import Fate, count_block
from pipeline.ingestion import kept_reject
from pipeline.paths import parts_folder
from pipeline.plan import Plan
from pipeline.prefetch import prefetch
from pipeline.source import Span

#: The fate of the rows of one block, or ((group, shard), encoded memberships).
Piece = Fate | tuple[tuple[int, int], bytes]

_begun: dict[str, prefetch[Piece]] = {}


@contextmanager
def counting_ahead(plan: Plan, spans: Iterable[Span]) -> Iterator[None]:
    """Count in threads of their own from now on: importing and starting Beam takes as long as millions of rows.

    What is found waits for `counting_of` in the same process. It takes the room that it would take there.
    """
    with prefetch(span_memberships(spans, plan), n_ahead=0) as found:
        _begun[str(plan.folder)] = found
        try:
            yield
        finally:
            _begun.pop(str(plan.folder), None)


def counting_of(spans: Iterable[Span], plan: Plan) -> prefetch[Piece]:
    """What `counting_ahead` finds, or else the same from now on."""
    return _begun.pop(str(plan.folder), None) or prefetch(span_memberships(spans, plan))


def span_memberships(spans: Iterable[Span], plan: Plan) -> Iterator[Piece]:
    """Fate and distinct memberships of every block; fates and rejects of each span are left as parts too."""
    source = plan.source
    with prefetch((span.index, block) for span in spans for block in chain(source.read(span), [None])) as pieces:
        for index, blocks in groupby(pieces, key=itemgetter(0)):
            yield from _of_span(index, (block for _, block in blocks if block is not None), plan)


def _of_span(index: int, blocks: Iterable[EventBlock], plan: Plan) -> Iterator[Piece]:
    fate, name = Fate(), f"{index:09d}"
    path = parts_folder(plan, "rejects") / f"{name}.jsonl"
    with parts.whole(path) as temporary, temporary.open("w", encoding="utf-8") as rejects:
        for block in blocks:
            block_fate, memberships = count_block(block, plan)
            yield block_fate
            yield from memberships
            fate.add(block_fate)
            for reject in block.rejects:
                rejects.write(json.dumps(as_kept(reject, plan), ensure_ascii=False) + "\n")
    parts.write_json(parts_folder(plan, "fates") / f"{name}.json", asdict(fate))


def as_kept(reject: Reject, plan: Plan) -> dict[str, Any]:
    """A reject as it is written; a raw row names a person."""
    return kept_reject(reject, plan).as_dict()
