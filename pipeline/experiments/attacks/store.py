"""Stored results of an attack, target by target, so that an interrupted command resumes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from penstock.pipeline.config.canonical import content_digest, digest
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.counting.presence import Presence
from penstock.pipeline.output import files
from penstock.pipeline.output.manifest import made_by


@dataclass(frozen=True)
class Store:
    """Result table of one game (its digest, `game_name`), ordered ``by`` columns; rows of another game are replaced."""

    path: Path
    schema: Mapping[str, Any]
    game: str
    by: tuple[str, ...]

    def kept(self) -> list[dict[str, Any]]:
        """Rows of this game from an earlier call."""
        if not self.path.exists():
            return []
        table = pl.read_parquet(self.path)
        return table.filter(pl.col("game") == self.game).to_dicts() if table.schema == self.schema else []

    def write(self, rows: list[dict[str, Any]]) -> pl.DataFrame:
        """Replace the table atomically; rows without a ``game`` belong to this one."""
        table = pl.DataFrame([{"game": self.game} | row for row in rows], schema=self.schema)
        table = table.sort(self.by, maintain_order=True)
        with files.whole(self.path) as temporary:
            table.write_parquet(temporary)
        return table


def game_name(config: RunConfig, played: Any, presence: Presence) -> str:
    """Digest of everything that decides an attack's results, including users' movements and the code.

    ``played`` holds the parameters of the game as plain values.
    """
    own = hashlib.sha256(digest(config))
    plugins = [content_digest(folder) for folder in config.plugins]
    own.update(json.dumps([config.seed, played, made_by(), plugins], sort_keys=True).encode())
    for binary in (presence.raw, presence.released):
        own.update(str(binary.shape).encode())
        for person in binary:
            own.update(np.packbits(person).tobytes())
    return own.hexdigest()[:32]
