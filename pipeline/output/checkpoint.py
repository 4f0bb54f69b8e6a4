"""Identity of the run in a folder, its checkpoints, and resuming from the latest one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mechanisms.core.plugin import ConfigError
from mechanisms.core.state import State, StateFormat
from pipeline.config.canonical import resolved
from pipeline.output import files
from pipeline.output.files import ledger_path, parts_folder
from pipeline.output.ledger import Ledger
from pipeline.output.manifest import why_not_the_same_key
from pipeline.sources.base import NEVER
from pipeline.steps import account
from pipeline.steps.account import books_of
from pipeline.steps.release import ReleaseLoop

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


# Checkpoints of a stream: what its steps remember, written down together, so that a killed run can go on.


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
        with files.whole(folder / name) as temporary, temporary.open("wb") as file:
            file.write(FORMAT.encode(state))
            file.flush()
            os.fsync(file.fileno())
        if not all((folder / piece).exists() for piece in self.names):
            return False
        files.write_json(self.folder / "current.json", number)
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
    files.write_json(_mark(plan), mark)


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
        files.write_json(_mark(plan), found | {"key": list(plan.key.fingerprints)})


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


# Continue a run that was killed or interrupted, in the folder that it left.


HOW_TO = "--resume goes on from here"
_FINISHED = (0, 3)


def prepare(plan: Plan) -> dict[str, Any] | None:
    """Check that the folder holds a run of the same configuration, and make it ready to go on.

    Releases and charges that are on disk stay. All else that a finite run has written is made again from its input,
    and what a stream has written since its latest checkpoint from there on: the same events and the same state give
    the same bytes.

    Returns
    -------
    The operator's manifest if the run had finished already; None where there is something to do.
    """
    check_same(plan)
    for temporary in plan.folder.rglob(".*.tmp"):
        temporary.unlink()
    if (found := finished(plan)) is not None:
        return found
    if plan.streaming:
        go_back(plan)
    else:
        for side in ("public", "operator"):
            for kind in (plan.folder / side / "parts").glob("*"):
                if kind.name != "releases":
                    shutil.rmtree(kind)
    return None


def finished(plan: Plan) -> dict[str, Any] | None:
    """The operator's manifest of a run that has come to its end; None where there is something to do."""
    manifest = plan.folder / "operator" / "manifest.json"
    if not manifest.exists():
        return None
    found: dict[str, Any] = json.loads(manifest.read_text(encoding="utf-8"))
    return found if found["exit"]["code"] in _FINISHED else None


def go_back(plan: Plan) -> None:
    """Make the folder of a stream what it was at its latest checkpoint, but for releases and true counts.

    These stay: the first of two parts is kept.
    """
    checkpoints = Checkpoints(folder(plan), ())
    _check_readable(plan, checkpoints)
    checkpoints.discard_incomplete()
    numbers = decode_position(checkpoints.read("feed"))[1]
    for kind in ("accounts", "accounts_public"):
        files.remove_from(parts_folder(plan, kind), lambda stem: _is_later(stem, checkpoints))
    for path in parts_folder(plan, "rejects").glob("*.jsonl"):
        if int(path.stem) >= numbers["number"]:
            path.unlink()


def _check_readable(plan: Plan, checkpoints: Checkpoints) -> None:
    """Raise `StateVersionError` if this code cannot read a piece: before anything changes or is released."""
    checkpoints.read("count")
    release = checkpoints.read("release")
    if release is not None:
        ReleaseLoop(plan).released(release["loop"].tobytes())
    for number, (accountant, own) in enumerate(zip(plan.accountants, plan.shards)):
        for shard in range(len(own)):
            saved = checkpoints.read(f"account-{number:03d}-{shard:06d}")
            if saved is not None:
                books_of(accountant, account.FORMAT.decode(saved["loop"].tobytes()))


def _is_later(stem: str, checkpoints: Checkpoints) -> bool:
    """Whether a part of the accounts came after the current checkpoint."""
    number, first, shard = stem.partition("~")[0].split("-")
    saved = checkpoints.read(f"account-{number}-{shard}")
    return saved is None or int(first) > int(saved["accounted"])


# The ledger as one run opens it: which charges are its own, among those of others in a shared file.


def open_ledger(plan: Plan, strict: bool) -> Ledger:
    """The ledger of a run, which knows what is the run's own.

    Parameters
    ----------
    plan
        The run; its folder says where its charges begin and what it has released.
    strict
        Whether a window of the run's own may be charged for one input only. Charges that others have made before the
        run began count for it where it has released the same windows: of the same input, these were charged already.
    """
    if not strict:
        return Ledger(ledger_path(plan))
    stems = [part.stem for part in parts_folder(plan, "releases").glob("*.parquet")]
    released = {window for stem in stems for window in files.windows_of(stem)}
    return Ledger(ledger_path(plan), True, charges_begin(plan), released)
