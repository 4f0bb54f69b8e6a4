"""Read all rows of a source."""

from __future__ import annotations

import polars as pl

from penstock.pipeline.sources.base import EventBlock, Reject, Source


def blocks_of(source: Source) -> list[EventBlock]:
    """All blocks of a source."""
    return [block for span in source.spans() for block in source.read(span)]


def read(source: Source) -> tuple[pl.DataFrame, list[Reject]]:
    """All events and all rejected rows."""
    blocks = blocks_of(source)
    assert all(block.n_rows == block.frame.height + len(block.rejects) for block in blocks)
    return pl.concat(block.frame for block in blocks), [reject for block in blocks for reject in block.rejects]
