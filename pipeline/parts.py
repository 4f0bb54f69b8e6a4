"""Files that appear whole or not at all, and parts that are merged when a run ends."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary path that becomes ``path`` when the block ends well: readers see the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON, whole."""
    with whole(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def write_part(folder: Path, name: str, table: pa.Table) -> None:
    """Write one part; the first write of a name wins, so that a repeated bundle changes nothing."""
    path = folder / f"{name}.parquet"
    if not path.exists():
        with whole(path) as temporary:
            pq.write_table(table, temporary, compression="zstd", compression_level=1)


def merge_parts(folder: Path, target: Path, schema: pa.Schema, once: str | None = None) -> int:
    """Merge parts in order of their names into one file.

    Parameters
    ----------
    folder
        Where the parts are; it is removed in the end.
    target
        The file to write; with the schema alone if there are no parts.
    once
        Column that only ever grows from part to part (``window``): rows of a later part that do not go beyond the
        earlier ones were written twice and are left out.

    Returns
    -------
    Number of rows.
    """
    n_rows, seen = 0, -1
    with whole(target) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for part in sorted(folder.glob("*.parquet")):
            table = pq.read_table(part).cast(schema)
            if once is not None and len(table):
                keys = table.column(once).to_numpy()
                table = table if keys[0] > seen else table.filter(pa.array(keys > seen))
                seen = max(seen, int(np.max(keys)))
            writer.write_table(table)
            n_rows += len(table)
    shutil.rmtree(folder, ignore_errors=True)
    return n_rows
