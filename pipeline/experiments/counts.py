"""Counts that cells share: what is counted alike is counted once, and kept under a name that says what it is."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mechanisms.core.mechanism import MECHANISMS
from pipeline import parts
from pipeline.configuration.run import Output, RunConfig, resolved
from pipeline.manifest import made_by


@dataclass(frozen=True)
class Counts:
    """Distinct users by window and cell.

    Parameters
    ----------
    truth, bounded
        Before and after contribution bounding, shape (n_windows, n_cells).
    facts
        Row equation of the counting run (``rows``), or how many people a random group has (``n_people``).
    """

    truth: NDArray[np.int64]
    bounded: NDArray[np.int64]
    facts: dict[str, Any]


def counting_config(config: RunConfig) -> RunConfig:
    """The configuration that counts what a cell needs, and nothing that it does not.

    Two cells whose counting configurations are equal share counts. A single step is replaced by ``raw`` unless people
    are bounded over its blocks; a chain stays as it is, for its steps may count afresh. The seed stays where a keyed
    hash decides who counts.
    """
    bounding = config.bounding
    over_blocks = bounding.max_windows is not None or bounding.max_block_cells is not None
    alone = len(config.mechanism) == 1 and not over_blocks
    hashed = not alone or (bounding.keep == "hash" and bounding.max_cells is not None)
    if alone:
        raw = MECHANISMS.get("raw")()
        config = replace(config, mechanism=(raw,), landmarks=None, budget_period=None)
    return replace(
        config,
        name="counts",
        seed=config.seed if hashed or config.sensors.active == "one_random" else 0,
        accountants=(),
        utility=(),
        on_exhausted="repeat",
        output=Output(path="unused", user_summaries=False),
    )


def counts_name(config: RunConfig, inputs: Mapping[str, str], group_size: int | None = None) -> str:
    """Digest of everything that decides the counts of a cell, the input's content among it."""
    counting = resolved(counting_config(config), secrets=True)
    group = {} if group_size is None else {"group_size": group_size, "seed": config.seed}
    return digest_of({"config": counting, "inputs": inputs} | made_by() | group)


def digest_of(value: Any) -> str:
    """32 hexadecimal digits that stand for a value that JSON can write."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def write_counts(config: RunConfig, path: Path) -> None:
    """Count what a cell needs with the run's own pipeline, and keep it in one file, whole."""
    from pipeline.run import run

    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".counting-") as folder:
        result = run(counting_config(config), folder)
        table = pl.read_parquet(Path(folder) / "operator" / "truth.parquet", columns=["window", "count", "bounded"])
        n_windows = int(result.manifest["windows"]["planned"])
        n_cells = len(config.space.resolve(config.source).cells)
        # Windows that nobody was near are not written where their whole group is empty.
        rows = table["window"].to_numpy().reshape(-1, n_cells)[:, 0] - 1
        arrays = {}
        for column in ("count", "bounded"):
            arrays[column] = np.zeros((n_windows, n_cells), np.int64)
            arrays[column][rows] = table[column].to_numpy().reshape(-1, n_cells)
        facts = json.dumps({"rows": result.manifest["rows"]})
    with parts.whole(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, facts=np.array(facts), count=arrays["count"], bounded=arrays["bounded"])


def read_counts(path: Path) -> Counts:
    """Counts that `write_counts` has kept."""
    with np.load(path, allow_pickle=False) as file:
        return Counts(file["count"], file["bounded"], json.loads(str(file["facts"])))
