"""The common part of all sources that read rows of text from files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import polars as pl

from mechanisms.core.parameters import parameter
from pipeline.block import EventBlock
from pipeline.reading.archives import open_inputs
from pipeline.reading.batches import Batch, Prologue, batches
from pipeline.reading.files import list_files, sha256, share_out
from pipeline.reading.parsing import Rows, parse, to_blocks
from pipeline.source import Source, Span

#: Rows that are parsed together at most: several batches are in memory at a time.
_BATCH_ROWS = 1 << 18


@dataclass(frozen=True, kw_only=True)
class TextSource(Source):
    """Base of sources in delimited text: a subclass says what the columns are and how they become events.

    A row is a line (a record, where quotes enclose line ends); blank lines are no rows. Files are joined or cut so
    that blocks have about ``block_rows`` rows; one file, compressed or not, or one archive is read by one worker.
    """

    path: str = parameter(kind="path", doc="a file, a directory, a pattern such as data/*.csv, or an archive")

    patterns: ClassVar[tuple[str, ...]]
    bytes_per_row: ClassVar[int] = 40

    @abstractmethod
    def prologue(self, file: str, head: bytes) -> Prologue:
        """Tell from the first bytes of a file how it is written."""

    @abstractmethod
    def wanted(self, columns: tuple[str, ...], file: str) -> Mapping[str, type[pl.DataType]]:
        """Columns to parse and the types to read them as; raises `DataError` if one is missing."""

    @abstractmethod
    def events(self, rows: Rows, batch: Batch) -> pl.DataFrame:
        """Columns of an `EventBlock` from ``rows.raw``: same rows, same order, null where a value is wrong.

        A further column ``problem`` may say what else is wrong with a row (null: nothing).
        """

    def explain(self, raw: pl.DataFrame) -> list[str | None]:
        """Say what is wrong with rows that are, as far as the source knows better than the general checks."""
        return [None] * raw.height

    def files(self) -> list[str]:
        """Input files, in reading order."""
        return list_files(self.path, self.patterns)

    def spans(self) -> list[Span]:
        """Whole files, grouped to about ``block_rows`` rows."""
        return share_out(self.files(), self.block_rows * self.bytes_per_row)

    def read(self, span: Span) -> Iterator[EventBlock]:
        """Read the files of a span."""
        for call in self.work(span):
            yield from call()

    def work(self, span: Span) -> Iterator[Callable[[], Iterable[EventBlock]]]:
        """Cut the text of a span into batches; parsing them is what can be done side by side."""
        for batch in self._batches(span):
            yield partial(self.blocks, batch)

    def blocks(self, batch: Batch) -> list[EventBlock]:
        """Parse a batch; overridden where a row is more than one event."""
        rows = self.parse(batch)
        return list(to_blocks(batch, rows, self.events(rows, batch), self.explain, self.block_rows))

    def parse(self, batch: Batch) -> Rows:
        """The wanted columns of a batch."""
        return parse(batch, self.wanted(batch.format.columns, batch.segments[0].file))

    def parsed(self, span: Span) -> Iterator[tuple[Batch, Rows]]:
        """Batches of a span with their wanted columns parsed, one after the other."""
        for batch in self._batches(span):
            yield batch, self.parse(batch)

    def _batches(self, span: Span) -> Iterator[Batch]:
        return batches(open_inputs(span.files, self.patterns), self.prologue, min(self.block_rows, _BATCH_ROWS))

    def digests(self) -> dict[str, str]:
        """SHA-256 of every input file, by its path below ``path``."""
        return sha256(self.files(), self.path)
