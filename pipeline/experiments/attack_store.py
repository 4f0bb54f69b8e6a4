"""What an attack has found so far, target by target: on disk, so that a command that was interrupted goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl

from evaluation.attacks.game import BLAS
from pipeline.config.canonical import content_digest, digest
from pipeline.config.run import RunConfig
from pipeline.output import files
from pipeline.output.manifest import made_by
from pipeline.steps.individuals import Presence

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Store:
    """The table of one game.

    Parameters
    ----------
    path
        Its file; rows of another game in it are not looked at, and replaced.
    schema
        Its columns, among them ``game``.
    game
        As `game_name` gives it.
    by
        Columns that order the rows, whatever order they were found in.
    """

    path: Path
    schema: Mapping[str, Any]
    game: str
    by: tuple[str, ...]

    def kept(self) -> list[dict[str, Any]]:
        """Rows that an earlier call has left."""
        if not self.path.exists():
            return []
        table = pl.read_parquet(self.path)
        return table.filter(pl.col("game") == self.game).to_dicts() if table.schema == self.schema else []

    def write(self, rows: list[dict[str, Any]]) -> pl.DataFrame:
        """Replace the table, whole; rows without a game are of this one."""
        table = pl.DataFrame([{"game": self.game} | row for row in rows], schema=self.schema)
        table = table.sort(self.by, maintain_order=True)
        with files.whole(self.path) as temporary:
            table.write_parquet(temporary)
        return table


def game_name(config: RunConfig, played: Any, presence: Presence) -> str:
    """Digest of everything that decides an attack's results, people's movements and all code among it.

    Parameters
    ----------
    config
        Of the run.
    played
        How the game is played, as JSON can write it.
    presence
        Of the people.
    """
    own = hashlib.sha256(digest(config))
    plugins = [content_digest(folder) for folder in config.plugins]
    own.update(json.dumps([config.seed, played, made_by(), plugins], sort_keys=True).encode())
    for binary in (presence.raw, presence.released):
        own.update(str(binary.shape).encode())
        for person in binary:
            own.update(np.packbits(person).tobytes())
    return own.hexdigest()[:32]


def in_threads(function: Callable[[Item], Result], items: Iterable[Item], n_jobs: int) -> Iterator[Result]:
    """What a function gives for each item, so many at a time: in order with one job, else as they are ready.

    Every thread has its linear algebra for itself, so that results do not depend on how many there are.

    >>> sorted(in_threads(abs, [-1, -2], 2))
    [1, 2]
    """
    with BLAS.limit(limits=1):
        if n_jobs == 1:
            yield from map(function, items)
            return
        pool = ThreadPoolExecutor(n_jobs)
        try:
            for done in as_completed([pool.submit(function, item) for item in items]):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)
