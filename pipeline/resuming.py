"""Continue a run that was killed or interrupted, in the folder that it left."""

from __future__ import annotations

import json
import shutil
from typing import Any

from pipeline import account_loop, checkpoint, parts
from pipeline.account_loop import books_of
from pipeline.checkpoint import Checkpoints
from pipeline.paths import parts_folder
from pipeline.plan import Plan
from pipeline.release_loop import ReleaseLoop

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
    checkpoint.check_same(plan)
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
    checkpoints = Checkpoints(checkpoint.folder(plan), ())
    _check_readable(plan, checkpoints)
    checkpoints.discard_incomplete()
    numbers = checkpoint.decode_position(checkpoints.read("feed"))[1]
    for kind in ("accounts", "accounts_public"):
        parts.remove_from(parts_folder(plan, kind), lambda stem: _is_later(stem, checkpoints))
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
                books_of(accountant, account_loop.FORMAT.decode(saved["loop"].tobytes()))


def _is_later(stem: str, checkpoints: Checkpoints) -> bool:
    """Whether a part of the accounts came after the current checkpoint."""
    number, first, shard = stem.partition("~")[0].split("-")
    saved = checkpoints.read(f"account-{number}-{shard}")
    return saved is None or int(first) > int(saved["accounted"])
