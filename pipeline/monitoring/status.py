"""A run's status, read from the files in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from penstock.mechanisms.core.plugin import DataError
from penstock.mechanisms.core.state import decode_state
from penstock.pipeline import DONE, FAILED, atomic
from penstock.pipeline.output import checkpoint
from penstock.pipeline.output.files import LOCK, READERS, lock_holder, read_part, windows_of


@dataclass(frozen=True, kw_only=True)
class Status:
    """A run's state and progress. Unknown values are None, and times are in seconds."""

    # ``running``, ``ended``, or ``stopped``: no process works on a run that has not ended; ``--resume`` continues it.
    state: str
    exit_code: int = DONE  # of the run, where no process works on it; FAILED where it was killed
    detail: str | None = None  # which process runs, or why the run has ended
    # Number of the latest window on disk, and of the last window of the run
    released: int | None = None
    planned: int | None = None
    last_window_end: float | None = None  # end of the latest window on disk, since 1970
    watermark: float | None = None  # of a stream: at its latest checkpoint, or of the reader that is furthest behind
    due: int | None = None  # windows that are final at the watermark and not released yet
    budget_left: float | None = None  # ε that the current budget period has left
    # Rows read, and how many of them were late: at the latest checkpoint, or the end
    rows: int | None = None
    late: int | None = None
    checkpoint: float | None = None  # when a stream was last written down, since 1970


def of_folder(folder: Path) -> Status:
    """Return the status of a folder's run from its files, without locking. Raise `DataError` if there is no run."""
    if not (folder / "operator" / checkpoint.MARK).exists():
        raise DataError(f"{folder}: no run was begun here")
    holder, manifest = lock_holder(folder), atomic.read_json(folder / "operator" / "manifest.json", {})
    public = atomic.read_json(folder / "public" / "manifest.json", {})
    ending = manifest.get("exit", {})
    if ending.get("ended"):
        state, detail, released, end = "ended", f"exit code {ending['code']}: {ending['reason']}", None, None
        if (path := folder / "public" / "releases.parquet").exists():  # a run of traces has none
            released, end = pl.scan_parquet(path).select(pl.col("window", "window_end").max()).collect().row(0)
        known = {name: manifest["rows"][name] for name in ("rows", "late")}
        code = ending["code"]
    else:
        state, detail = "running" if holder else "stopped", holder or "--resume continues it"
        parts = (folder / "public" / "parts" / "releases").glob("*.parquet")
        released, end = None, None
        if (latest := max(parts, key=lambda part: windows_of(part.stem).stop, default=None)) is not None:
            released = windows_of(latest.stem).stop - 1
            end = pl.Series(read_part(latest).column("window_end")).dt.max()
        known = _of_checkpoint(folder / "operator" / "checkpoint" / "latest", released) or _of_cluster(folder)
        was_killed = (folder / LOCK).exists()  # with what it said before it went on
        code = DONE if holder else FAILED if was_killed else ending.get("code", FAILED)
    if isinstance(end, datetime):
        known["last_window_end"] = end.timestamp()
    planned = public.get("windows")
    return Status(state=state, exit_code=code, detail=detail, released=released, planned=planned, **known)


def _of_checkpoint(path: Path, released: int | None) -> dict[str, Any]:
    """Read the progress from a local stream's checkpoint. Returns an empty dictionary if there is no checkpoint."""
    if not path.exists():
        return {}
    saved: Mapping[str, Any] = decode_state(path.read_bytes(), *checkpoint.FORMAT)
    known: dict[str, Any] = {
        "rows": int(saved["rows.rows"]),
        "late": int(saved["rows.late"]),
        "checkpoint": path.stat().st_mtime,
        "due": max(0, int(saved["final"]) - (released or 0)),
    }
    if "budget_left" in saved:
        known["budget_left"] = float(saved["budget_left"])
    if (watermark := int(saved["watermark"])) > 0:
        known["watermark"] = watermark / 1000
    return known


def _of_cluster(folder: Path) -> dict[str, Any]:
    """Read the progress written by a cluster's workers, if there is any."""
    parts, known = folder / "operator" / "parts", dict[str, Any]()
    if counted := atomic.read_json(parts / "row_counts" / "cluster.json"):
        known |= {name: counted[name] for name in ("rows", "late")}
    watermarks = [atomic.read_json(path)["watermark"] for path in (parts / READERS).glob("*.json")]
    if min(watermarks, default=0) > 0:
        known["watermark"] = min(watermarks) / 1000
    made = (folder / "operator" / "checkpoint" / "flink").glob("*/chk-*/_metadata")
    if (latest := max((path.stat().st_mtime for path in made), default=None)) is not None:
        known["checkpoint"] = latest
    return known
