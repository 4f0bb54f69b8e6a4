"""Identity of the run in a folder, its checkpoints, and resuming from the latest one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.mechanisms.core.plugin import ConfigError, StateVersionError
from penstock.mechanisms.core.state import State, StateFormat
from penstock.pipeline.config.canonical import resolved
from penstock.pipeline.output import files
from penstock.pipeline.output.files import ledger_path, parts_folder
from penstock.pipeline.output.ledger import Ledger
from penstock.pipeline.output.manifest import why_not_the_same_key
from penstock.pipeline.steps import account, traces
from penstock.pipeline.steps.account import books_of
from penstock.pipeline.steps.release import ReleaseLoop

if TYPE_CHECKING:
    from penstock.pipeline.config.plan import Plan


# The checkpoint of a stream, and the mark that says which run a folder holds.


FORMAT = StateFormat("checkpoint", 2)
#: The first file that a run writes, in ``operator``: which run it is.
MARK = "run.json"


def path(plan: Plan) -> Path:
    """The one file that a checkpoint is."""
    return plan.folder / "operator" / "checkpoint" / "latest"


def write(plan: Plan, state: State) -> int:
    """Replace the checkpoint, atomically and durably; returns its size in bytes.

    Everything that it covers must be durable before.
    """
    data = FORMAT.encode(state)
    with files.whole(path(plan)) as temporary, temporary.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    files.sync_folder(path(plan).parent)
    return len(data)


def read(plan: Plan) -> State | None:
    """The checkpoint of a stream; None where there is none yet.

    Raises
    ------
    StateVersionError
        Another version of penstock has written it.
    """
    if (path(plan).parent / "current.json").exists():
        raise StateVersionError(
            f"{path(plan).parent} was written by an earlier version of penstock, which kept a checkpoint as several "
            "files; finish the run with that version, or start it anew without --resume"
        )
    return FORMAT.decode(path(plan).read_bytes()) if path(plan).exists() else None


def position_of(state: State | None) -> State:
    """Where the source of a stream goes on, in the source's own terms; empty: the beginning."""
    return {k.removeprefix("source."): v for k, v in (state or {}).items() if k.startswith("source.")}


def account_key(number: int, shard: int) -> str:
    """Name of the state of one parallel part of an accountant in a checkpoint."""
    return f"account-{number:03d}-{shard:06d}"


def run_digest(plan: Plan) -> str:
    """SHA-256 over all of a configuration that a run's files depend on: two runs with the same one continue each other.

    The key is not in it: a continued run may have a key with more epochs.
    """
    config: dict[str, Any] = resolved(plan.config, secrets=True)
    config.pop("output")
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def begin(plan: Plan) -> None:
    """Note in the folder which run it is, and where its charges begin in a ledger that others may have written to."""
    mark: dict[str, Any] = {
        "run": run_digest(plan),
        "key": list(plan.key.fingerprints),
        "ledger": Ledger(ledger_path(plan)).end,
    }
    if plan.on_points:
        mark["traces"] = traces.VERSION
    files.write_json(_mark(plan), mark)


def charges_begin(plan: Plan) -> int:
    """Where the charges of the run in the folder begin in its ledger; without a mark all count as its own."""
    return int(json.loads(_mark(plan).read_text(encoding="utf-8")).get("ledger", 0)) if _mark(plan).exists() else 0


def check_same(plan: Plan) -> None:
    """Raise `ConfigError` unless the folder holds an unfinished or finished run of this very configuration.

    Raises `StateVersionError` where another version would have made other traces of the same rows.
    """
    if not _mark(plan).exists():
        raise ConfigError((f"--resume: {plan.folder} holds no run to continue; leave --resume out to start one",))
    found = json.loads(_mark(plan).read_text(encoding="utf-8"))
    if found["run"] != run_digest(plan):
        raise ConfigError(
            (f"--resume: the run in {plan.folder} has another configuration; continue it with the one it began with",)
        )
    if plan.on_points and found.get("traces", 1) != traces.VERSION:
        raise StateVersionError(
            f"--resume: another version of penstock began the run in {plan.folder} and finds other points in the same "
            "rows; finish it with that version, or start it anew without --resume"
        )
    if reason := why_not_the_same_key(plan, found["key"]):
        raise ConfigError((f"--resume: the run in {plan.folder} {reason}",))
    if list(plan.key.fingerprints) != found["key"]:
        files.write_json(_mark(plan), found | {"key": list(plan.key.fingerprints)})


def _mark(plan: Plan) -> Path:
    return plan.folder / "operator" / MARK


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
    """Make the folder of a stream what it was at its checkpoint, but for releases and true counts.

    These stay: of two parts with the same windows the first one counts.
    """
    saved = read(plan)
    accounted = _accounted(plan, saved)
    for kind in ("accounts", "accounts_public"):
        for path in parts_folder(plan, kind).glob("*.parquet"):
            number, first, shard = map(int, path.stem.split("-"))
            if first > accounted[number, shard]:
                path.unlink()
    for path in parts_folder(plan, "rejects").glob("*.jsonl"):
        if saved is None or int(path.stem) >= int(saved["number"]):
            path.unlink()


def _accounted(plan: Plan, saved: State | None) -> dict[tuple[int, int], int]:
    """Last window that each part of each accountant has in the checkpoint.

    Raises `StateVersionError` if this code cannot read some state: before anything changes or is released.
    """
    if saved is not None:
        ReleaseLoop(plan).released(saved["release"].tobytes())
    found = {}
    for number, (accountant, own) in enumerate(zip(plan.accountants, plan.shards)):
        for shard in range(len(own)):
            found[number, shard] = 0
            if saved is not None:
                flat = account.FORMAT.decode(saved[account_key(number, shard)].tobytes())
                books_of(accountant, flat)
                found[number, shard] = int(flat["accounted"])
    return found


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
