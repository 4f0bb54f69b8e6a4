"""Any source to one Parquet file that the parquet source reads without further settings."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from mechanisms.core.plugin import DataError
from pipeline.cli.common import add_parameters, print_figures
from pipeline.exit_codes import DONE
from pipeline.sources.base import EventBlock, Source
from pipeline.sources.synthetic import Synthetic

# ``penstock convert``: a data set to Parquet.


HELP = "convert a data set in its original format to Parquet"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("type", help="source type, for instance cabspotting")
    parser.add_argument("path", help="folder, file or archive of the data set")
    parser.add_argument("target", help="Parquet file to write")
    add_parameters(parser, of="source")


def execute(arguments: argparse.Namespace) -> int:
    """Convert, and say what was kept."""
    return write_events(arguments, arguments.type, [f"path={arguments.path}", *arguments.set])


def write_events(arguments: argparse.Namespace, source_type: str, settings: list[str]) -> int:
    """Write the events of a source to ``arguments.target``."""
    from pipeline.config.build import load_plugin
    from pipeline.sources.base import Source

    source = load_plugin(Source, source_type, settings)
    print_figures(convert(source, Path(arguments.target)).as_dict(), arguments.json)
    return DONE


@dataclass(frozen=True, kw_only=True)
class ConvertSummary:
    """What a conversion read and wrote; ``n_rows == n_events + n_rejected``.

    Parameters
    ----------
    path, rejects_path
        The Parquet file, and the JSON lines with every rejected row (None where there was none).
    n_rows, n_events, n_rejected
        Rows read, written and rejected.
    n_users
        Distinct users among the events; of trips where the source has no people.
    first, last
        Earliest and latest event in milliseconds since 1970 UTC; None without events.
    n_bytes
        Size of the Parquet file.
    """

    path: str
    rejects_path: str | None
    n_rows: int
    n_events: int
    n_rejected: int
    n_users: int
    first: int | None
    last: int | None
    n_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """All figures by name."""
        return asdict(self)


def convert(source: Source, out: str | os.PathLike[str]) -> ConvertSummary:
    """Write all events of a source to one Parquet file, and rejected rows to ``<out>.rejects.jsonl``.

    Columns are those of an `EventBlock`, ``time`` as a timestamp in milliseconds UTC. Both files appear under their
    names only when they are complete.

    Parameters
    ----------
    source
        Anything with an end.
    out
        Path of the Parquet file; replaced if it exists.

    Returns
    -------
    ConvertSummary

    Raises
    ------
    DataError
        The source cannot be read, or has no rows at all.

    Notes
    -----
    Memory: one block, and one number a distinct user.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     summary = convert(Synthetic(n_users=10, days=1), folder + "/city.parquet")
    >>> summary.n_rows == summary.n_events, summary.n_users
    (True, 10)
    """
    path = os.fspath(out)
    counts = _Counts()
    rejects_path = path + ".rejects.jsonl"
    writer: pq.ParquetWriter | None = None
    with _replacing(rejects_path, "w") as rejects, _replacing(path, "wb") as events, ExitStack() as stack:
        for span in source.spans():
            for block in source.read(span):
                counts.add(block)
                rejects.writelines(json.dumps(reject.as_dict(), ensure_ascii=False) + "\n" for reject in block.rejects)
                table = _table(block.frame)
                if writer is None:
                    writer = stack.enter_context(pq.ParquetWriter(events, table.schema, compression="zstd"))
                writer.write_table(table)
        if writer is None:
            raise DataError(f"{type(source).__name__.lower()}: there is no row to convert")
    if not counts.n_rejected:
        os.remove(rejects_path)
    return ConvertSummary(
        path=path,
        rejects_path=rejects_path if counts.n_rejected else None,
        n_rows=counts.n_rows,
        n_events=counts.n_events,
        n_rejected=counts.n_rejected,
        n_users=len(counts.users),
        first=counts.first,
        last=counts.last,
        n_bytes=os.path.getsize(path),
    )


def generate(out: str | os.PathLike[str], **parameters: Any) -> ConvertSummary:
    """Write the events of a made-up city to a Parquet file.

    Parameters
    ----------
    out
        Path of the Parquet file.
    parameters
        Those of `Synthetic`.

    Raises
    ------
    ParameterError
        As `Synthetic` does.
    """
    return convert(Synthetic(**parameters), out)


class _Counts:
    """Running figures over blocks."""

    def __init__(self) -> None:
        self.n_rows = self.n_events = self.n_rejected = 0
        self.first: int | None = None
        self.last: int | None = None
        self.users: set[int | str] = set()

    def add(self, block: EventBlock) -> None:
        self.n_rows += block.n_rows
        self.n_events += block.frame.height
        self.n_rejected += len(block.rejects)
        if block.frame.height:
            first, last = block.frame.select(a=pl.col("time").min(), b=pl.col("time").max()).row(0)
            self.first = first if self.first is None else min(self.first, first)
            self.last = last if self.last is None else max(self.last, last)
            self.users.update(block.frame["user"].unique().to_list())


def _table(frame: pl.DataFrame) -> pa.Table:
    table = frame.with_columns(pl.col("time").cast(pl.Datetime("ms", "UTC"))).to_arrow()
    # Newer string layouts are not understood by every reader of Parquet.
    fields = [(field.name, pa.string() if _is_text(field.type) else field.type) for field in table.schema]
    return table.cast(pa.schema(fields))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


@contextmanager
def _replacing(path: str, mode: str) -> Iterator[IO[Any]]:
    """Write to a temporary name that takes the place of ``path`` when everything went well."""
    temporary = f"{path}.{os.getpid()}.part"
    try:
        with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as stream:
            yield stream
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise
