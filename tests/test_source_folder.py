"""Files that keep arriving in a folder: each read once, every row held against its own arrival."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from small_configuration import run_locally as run

from penstock.mechanisms.core.noise_keys import new_key_file
from penstock.mechanisms.core.plugin import DataError, ParameterError
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.exit_codes import INTERRUPTED
from penstock.pipeline.output.ledger import Ledger
from penstock.pipeline.runners import local
from penstock.pipeline.sources.base import MIN_EVENT_TIME, Checkpointed
from penstock.pipeline.sources.cabspotting import Cabspotting
from penstock.pipeline.sources.folder import Folder
from penstock.pipeline.sources.synthetic import Synthetic

START = datetime(2024, 1, 1, tzinfo=UTC).timestamp()
#: Minute of the event, user, place; by file, with the minute in which it was written.
FILES = {
    "a": (12, [(1, "annegret", "x"), (9, "bob", "x"), (11, "cat", "y")]),
    "b": (24, [(13, "annegret", "y"), (22, "annegret", "x"), (23, "dan", "x")]),
    "c": (34.5, [(8, "eve", "x"), (25, "bob", "y"), (33, "annegret", "x"), (34, "fay", "y")]),
}


def put(folder: Path, name: str, minute: float, rows: list[tuple]) -> Path:
    """Write a file as its sender does: under another name first."""
    lines = [f"{user},{datetime.fromtimestamp(START + m * 60, UTC).isoformat()},{place}" for m, user, place in rows]
    path = folder / f"{name}.csv"
    hidden = folder / f".{name}.csv"
    hidden.write_text("\n".join(["user,time,place", *lines]) + "\n")
    os.utime(hidden, (START + minute * 60,) * 2)
    os.replace(hidden, path)
    return path


@pytest.fixture
def incoming(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name, (minute, rows) in FILES.items():
        put(folder, name, minute, rows)
    return folder


def sections(folder: Path, **source) -> dict:
    columns = {"user": "user", "time": "time", "place": "place"}
    return {
        "name": "arriving",
        "seed": 3,
        "source": {
            "type": "folder",
            "of": {"type": "csv", "path": str(folder / "in"), "columns": columns, "block_rows": 2},
            "from": "2024-01-01T00:00:00Z",
            "until": "2024-01-01T00:40:00Z",
            "every": "10ms",
        }
        | source,
        "space": {"type": "places", "list": ["x", "y"], "elsewhere": False},
        "windows": {"type": "fixed", "size": "10m", "allowed_lateness": "5m"},
        "bounding": {"max_cells": 2},
        "mechanism": {"type": "discrete_laplace", "epsilon": 1.0},
        "accountants": [{"type": "composition"}],
        "output": {"path": str(folder / "out"), "report": False},
    }


def configured(value: dict):
    return loads(json.dumps(value))


def truth(folder: Path) -> list[list[int]]:
    """True counts of both cells, window by window."""
    found = pl.read_parquet(folder / "operator" / "truth.parquet").sort("window", "cell")
    return [part["count"].to_list() for part in found.partition_by("window", maintain_order=True)]


#: Eve's row of minute 8 arrived in minute 34: after her window, which was final at 15.
COUNTS = [[2, 0], [0, 2], [2, 1], [1, 1]]


def test_files_are_counted_and_a_row_is_late_by_its_own_arrival(incoming, tmp_path):
    result = run(configured(sections(tmp_path)))
    assert result.exit_code == 0
    assert truth(result.folder) == COUNTS
    assert (result.manifest["rows"]["rows"], result.manifest["rows"]["late"]) == (10, 1)
    assert [charge.window for charge in Ledger(result.folder / "operator" / "ledger")] == [1, 2, 3, 4]


def test_a_column_of_arrival_decides_where_there_is_one(incoming, tmp_path):
    value = sections(tmp_path, disorder="30m")
    for path in incoming.glob("*.csv"):  # eve's row was received in minute 14 and lay around until its file was written
        written = path.stat().st_mtime
        head, *rows = path.read_text().splitlines()
        received = [row.split(",")[1] if "eve" not in row else "2024-01-01T00:14:00+00:00" for row in rows]
        path.write_text("\n".join([f"{head},received", *(f"{r},{at}" for r, at in zip(rows, received))]) + "\n")
        os.utime(path, (written, written))
    value["source"]["of"]["columns"]["arrival"] = "received"
    result = run(configured(value))
    assert truth(result.folder) == [[3, 0], *COUNTS[1:]]
    assert result.manifest["rows"]["late"] == 0


def test_nobodys_rows_decide_about_others(incoming, tmp_path):
    """A file from the future makes nobody late: time goes on by the clock, and the run is over before its turn."""
    put(incoming, "z", 60 * 24 * 365 * 200, [(35, "zoe", "x")])
    result = run(configured(sections(tmp_path)))
    assert truth(result.folder) == COUNTS
    assert (result.manifest["rows"]["rows"], result.manifest["rows"]["late"]) == (10, 1)


def test_files_that_come_while_the_run_goes_on(incoming, tmp_path):
    """The folder is looked at again only when what was there has been read; by then the run is over here."""
    value = sections(tmp_path)
    late = FILES["c"]
    (incoming / "c.csv").unlink()
    plan = make_plan(configured(value), tmp_path / "plan")
    pieces = plan.config.source.micro_batches(plan, plan.folder, {}, 0, MIN_EVENT_TIME, Checkpointed())
    found = [next(pieces), next(pieces)]
    put(incoming, "c", *late)
    found += [piece for piece in pieces if piece is not None]
    assert sum(piece.block.n_rows for piece in found) == 6  # what was there showed that the clock had passed the end
    assert found[-1].after == plan.config.source.until + 5 * 60_000


def test_an_endless_run_reads_what_comes_and_ends_windows_by_the_clock(tmp_path):
    (tmp_path / "in").mkdir()
    value = sections(tmp_path, idle_after="0s", until=None)
    del value["source"]["until"]
    value["windows"] = {"type": "fixed", "size": "1s"}
    now = datetime.now(UTC)
    value["source"]["from"] = now.isoformat(timespec="seconds")
    plan = make_plan(configured(value), tmp_path / "plan")
    pieces = plan.config.source.micro_batches(plan, plan.folder, {}, 0, MIN_EVENT_TIME, Checkpointed())
    first = next(piece for piece in pieces if piece is not None)
    assert (first.block.n_rows, first.after >= now.timestamp() * 1000) == (0, True)  # a window is over, and empty
    path = put(tmp_path / "in", "a", 0, [(0, "annegret", "x")])
    os.utime(path, None)
    found = next(piece for piece in pieces if piece is not None and piece.block.n_rows)
    assert found.reached[0] == max(path.stat().st_mtime_ns // 1_000_000, found.before)


def test_an_interrupted_run_goes_on_in_the_middle_of_a_file(incoming, tmp_path, monkeypatch):
    alone = run(configured(sections(tmp_path)), tmp_path / "alone")
    count = local.StreamLoop._count

    def stop(self, piece):
        count(self, piece)
        if piece.number == 0:  # the first block of the first file
            self.stop.set()

    with monkeypatch.context() as once:
        once.setattr(local.StreamLoop, "_count", stop)
        assert run(configured(sections(tmp_path))).exit_code == INTERRUPTED
    (incoming / "a.csv").rename(incoming / "away")
    with pytest.raises(DataError, match=r"a\.csv: is gone, and was not read to its end; put it back"):
        run(configured(sections(tmp_path)), resume=True)
    (incoming / "away").rename(incoming / "a.csv")
    result = run(configured(sections(tmp_path)), resume=True)
    assert result.manifest["rows"] == alone.manifest["rows"]
    for name in ("public/releases.parquet", "operator/truth.parquet", "operator/ledger"):
        assert (result.folder / name).read_bytes() == (alone.folder / name).read_bytes()


def test_what_was_read_after_the_checkpoint_is_read_again_as_it_was(incoming, tmp_path):
    """The journal cuts the same micro-batches, with the same clock, although another file has appeared in between."""
    plan = make_plan(configured(sections(tmp_path)), tmp_path / "plan")

    def pieces():
        return plan.config.source.micro_batches(plan, plan.folder, {}, 0, MIN_EVENT_TIME, Checkpointed(number=0))

    first = list(zip(range(3), pieces()))
    put(incoming, "0", 5, [(3, "gus", "y")])
    again = list(zip(range(3), pieces()))
    for (_, one), (_, other) in zip(first, again):
        assert one.block.frame.equals(other.block.frame)
        assert (one.after, one.reached.tolist()) == (other.after, other.reached.tolist())


def test_a_file_that_changes_after_it_was_read_ends_the_run(incoming, tmp_path):
    value = sections(tmp_path)
    value["source"]["until"] = "2200-01-01T00:00:00Z"
    value["windows"]["size"] = "365d"
    plan = make_plan(configured(value), tmp_path / "plan")
    pieces = plan.config.source.micro_batches(plan, plan.folder, {}, 0, MIN_EVENT_TIME, Checkpointed())
    assert sum(piece.block.n_rows for _, piece in zip(range(6), pieces) if piece is not None) == 10
    with (incoming / "b.csv").open("a") as file:
        file.write("gus,2024-01-01T00:20:00Z,x\n")
    with pytest.raises(DataError, match=r"b\.csv: has changed after it was read; files have to be complete"):
        for _ in pieces:
            pass


def test_a_checkpoint_knows_the_files_that_are_still_there_and_no_others(incoming, tmp_path):
    value = sections(tmp_path)
    value["source"]["until"] = "2200-01-01T00:00:00Z"
    value["windows"]["size"] = "365d"
    plan = make_plan(configured(value), tmp_path / "plan")
    pieces = plan.config.source.micro_batches(plan, plan.folder, {}, 0, MIN_EVENT_TIME, Checkpointed())
    found = [piece for _, piece in zip(range(6), pieces) if piece is not None]
    assert [Path(name).name for name in found[-1].end["names"].tolist()] == ["a.csv", "b.csv", "c.csv"]
    (incoming / "a.csv").unlink()
    put(incoming, "d", 38, [(37, "annegret", "y")])
    last = next(piece for piece in pieces if piece is not None and piece.block.n_rows)
    assert [Path(name).name for name in last.end["names"].tolist()] == ["b.csv", "c.csv", "d.csv"]


def test_a_deployment_may_read_a_folder(incoming, tmp_path):
    new_key_file(tmp_path / "key")
    value = sections(tmp_path) | {"mode": "deployment", "noise_key": str(tmp_path / "key")}
    del value["seed"]
    result = run(configured(value))
    assert result.manifest["rows"]["late"] == 1
    assert json.loads((result.folder / "public" / "manifest.json").read_text())["lateness"].startswith("own")
    kept = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert b"annegret" not in kept
    assert b"a.csv" not in kept


def test_only_sources_of_files_keep_arriving():
    with pytest.raises(ParameterError, match="a source of files, such as csv or parquet"):
        Folder(of=Synthetic(n_users=5, days=1, seed=1))
    with pytest.raises(ParameterError, match="one whose files are not named after people"):
        Folder(of=Cabspotting(path="cabs"))
