"""Checkpoints of a stream: what its steps remember, written down together, so that a killed run can go on."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from mechanisms.core.errors import ConfigError
from mechanisms.core.state import State, StateFormat
from pipeline import parts
from pipeline.configuration.run import resolved
from pipeline.key_epochs import why_not_the_same_key
from pipeline.ledger import Ledger
from pipeline.paths import ledger_path
from pipeline.plan import Plan
from pipeline.slices import NEVER

FORMAT = StateFormat("checkpoint")
#: The first file that a run writes, in ``operator``: which run it is.
MARK = "run.json"


class Checkpoints:
    """The latest complete checkpoint of a run, and the one that is being written.

    Every step writes its own piece when the checkpoint's mark reaches it; the one that completes the set makes it the
    current one, by renaming a single file. A kill at any moment leaves the one before.

    Parameters
    ----------
    folder
        ``operator/checkpoint`` of the run.
    names
        Names of all pieces of one checkpoint.
    """

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self.folder, self.names = folder, names

    @property
    def current(self) -> int | None:
        """Number of the latest complete checkpoint."""
        path = self.folder / "current.json"
        return int(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None

    def write(self, number: int, name: str, state: State) -> bool:
        """Write one piece; True if it was the last one that was missing and the checkpoint is now the current one."""
        folder = self.folder / f"{number:09d}"
        with parts.whole(folder / name) as temporary, temporary.open("wb") as file:
            file.write(FORMAT.encode(state))
            file.flush()
            os.fsync(file.fileno())
        if not all((folder / piece).exists() for piece in self.names):
            return False
        parts.write_json(self.folder / "current.json", number)
        for other in self.folder.glob("[0-9]*"):
            if int(other.name) < number:
                shutil.rmtree(other)
        return True

    def discard_incomplete(self) -> None:
        """Remove what a killed run had begun to write: its pieces must not mix with those of a later one."""
        current = self.current
        for folder in self.folder.glob("[0-9]*"):
            if int(folder.name) != current:
                shutil.rmtree(folder)

    def read(self, name: str) -> State | None:
        """One piece of the current checkpoint; None where there is none."""
        if self.current is None:
            return None
        data = (self.folder / f"{self.current:09d}" / name).read_bytes()
        return FORMAT.decode(data)


def folder(plan: Plan) -> Path:
    """Where the checkpoints of a run are kept."""
    return plan.folder / "operator" / "checkpoint"


def run_digest(plan: Plan) -> str:
    """SHA-256 over all of a configuration that a run's files depend on: two runs with the same one continue each other.

    The key is not in it: a continued run may have a key with more epochs.
    """
    config: dict[str, Any] = resolved(plan.config, secrets=True)
    config.pop("output")
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def begin(plan: Plan) -> None:
    """Note in the folder which run it is, and where its charges begin in a ledger that others may have written to."""
    mark = {"run": run_digest(plan), "key": list(plan.key.fingerprints), "ledger": Ledger(ledger_path(plan)).end}
    parts.write_json(_mark(plan), mark)


def charges_begin(plan: Plan) -> int:
    """Where the charges of the run in the folder begin in its ledger; without a mark all count as its own."""
    return int(json.loads(_mark(plan).read_text(encoding="utf-8")).get("ledger", 0)) if _mark(plan).exists() else 0


def check_same(plan: Plan) -> None:
    """Raise `ConfigError` unless the folder holds an unfinished or finished run of this very configuration."""
    if not _mark(plan).exists():
        raise ConfigError((f"--resume: {plan.folder} holds no run to continue; leave --resume out to start one",))
    found = json.loads(_mark(plan).read_text(encoding="utf-8"))
    if found["run"] != run_digest(plan):
        raise ConfigError(
            (f"--resume: the run in {plan.folder} has another configuration; continue it with the one it began with",)
        )
    if reason := why_not_the_same_key(plan, found["key"]):
        raise ConfigError((f"--resume: the run in {plan.folder} {reason}",))
    if list(plan.key.fingerprints) != found["key"]:
        parts.write_json(_mark(plan), found | {"key": list(plan.key.fingerprints)})


def _mark(plan: Plan) -> Path:
    return plan.folder / "operator" / MARK


def encode_position(position: State, **numbers: int) -> State:
    """Where a stream stands, as state: the position of its source and the feed's own numbers."""
    return position | {name: np.asarray(value) for name, value in numbers.items()}


def decode_position(state: State | None) -> tuple[State, dict[str, int]]:
    """Inverse of `encode_position`; the beginning where there is no state."""
    numbers = {"number": 0, "latest": NEVER, "checkpoint": 0}
    if state is None:
        return {}, numbers
    position = {name: value for name, value in state.items() if name not in numbers}
    return position, {name: int(state[name]) for name in numbers}
