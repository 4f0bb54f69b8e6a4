"""Files that keep arriving in a folder: each read once, lateness by each row's own arrival."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import time
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import apache_beam as beam
import fsspec
import polars as pl
import pytest
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.testing.test_stream import TestStream
from apache_beam.utils.timestamp import Timestamp
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from penstock.mechanisms.core.noise_keys import new_key_file
from penstock.mechanisms.core.plugin import ConfigError, DataError, ParameterError
from penstock.pipeline import INTERRUPTED
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.monitoring.metrics import CHECKPOINT, ROWS, Listener, listening
from penstock.pipeline.output import manifest
from penstock.pipeline.run import check_runner
from penstock.pipeline.runners.beam import distributed
from penstock.pipeline.runners.beam.coders import BlockCoder, Cursor, CursorCoder
from penstock.pipeline.runners.beam.graph import build
from penstock.pipeline.runners.beam.read import CursorTracker, Replay
from penstock.pipeline.runners.beam.step import end_of_input, final_at
from penstock.pipeline.runners.shared import live_input
from penstock.pipeline.sources.base import MIN_EVENT_TIME, Checkpointed
from penstock.pipeline.sources.cabspotting import Cabspotting
from penstock.pipeline.sources.csv import Csv
from penstock.pipeline.sources.folder import Folder
from penstock.pipeline.sources.reading import file_systems, services
from penstock.pipeline.sources.reading.file_systems import LocalFiles, RemoteFiles
from penstock.pipeline.sources.synthetic import Synthetic
from tests.tools.ledgers import windows_in
from tests.tools.listeners import interrupted
from tests.tools.small_configuration import run_locally as run

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
def lose_patience(monkeypatch):
    """Function after which readers no longer wait for what does not answer."""
    return lambda: monkeypatch.setattr(services, "PATIENCE", 0.0)


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
        "output": {"path": str(folder / "out"), "report": False, "ledger_source": "events"},
    }


def configured(value: dict):
    return loads(json.dumps(value))


def truth(folder: Path) -> list[list[int]]:
    """True counts of both cells, window by window."""
    actual = pl.read_parquet(folder / "operator" / "truth.parquet").sort("window", "cell")
    return [part["count"].to_list() for part in actual.partition_by("window", maintain_order=True)]


#: Eve's row of minute 8 arrived in minute 34: after her window, which was final at 15.
COUNTS = [[2, 0], [0, 2], [2, 1], [1, 1]]


def test_files_are_counted_and_a_row_is_late_by_its_own_arrival(incoming, tmp_path):
    result = run(configured(sections(tmp_path)))
    assert result.exit_code == 0
    assert truth(result.folder) == COUNTS
    assert (result.manifest["rows"]["rows"], result.manifest["rows"]["late"]) == (10, 1)
    assert windows_in(result.folder) == [1, 2, 3, 4]


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
    pieces = plan.config.source.micro_batches(live_input(plan), plan.folder, {}, 0, MIN_EVENT_TIME, Checkpointed())
    actual = [next(pieces), next(pieces)]
    put(incoming, "c", *late)
    actual += [piece for piece in pieces if piece is not None]
    assert sum(piece.block.n_rows for piece in actual) == 6  # what was there showed that the clock had passed the end
    assert actual[-1].after == plan.config.source.until + 5 * 60_000


def test_an_endless_run_reads_what_comes_and_ends_windows_by_the_clock(tmp_path):
    (tmp_path / "in").mkdir()
    value = sections(tmp_path, idle_after="0s", until=None)
    del value["source"]["until"]
    value["windows"] = {"type": "fixed", "size": "1s"}
    now = datetime.now(UTC)
    value["source"]["from"] = now.isoformat(timespec="seconds")
    plan = make_plan(configured(value), tmp_path / "plan")
    pieces = plan.config.source.micro_batches(live_input(plan), plan.folder, {}, 0, MIN_EVENT_TIME, Checkpointed())
    first = next(piece for piece in pieces if piece is not None)
    assert (first.block.n_rows, first.after >= now.timestamp() * 1000) == (0, True)  # a window is over, and empty
    path = put(tmp_path / "in", "a", 0, [(0, "annegret", "x")])
    os.utime(path, None)
    actual = next(piece for piece in pieces if piece is not None and piece.block.n_rows)
    assert actual.watermarks[0] == max(path.stat().st_mtime_ns // 1_000_000, actual.before)


def test_an_interrupted_run_goes_on_in_the_middle_of_a_file(incoming, tmp_path):
    alone = run(configured(sections(tmp_path)), tmp_path / "alone")
    with interrupted(lambda n_slices, _: n_slices == 1):  # the first block of the first file
        assert run(configured(sections(tmp_path))).exit_code == INTERRUPTED
    (incoming / "a.csv").rename(incoming / "away")
    with pytest.raises(DataError, match=r"a\.csv: is gone, and was not read to its end; put it back"):
        run(configured(sections(tmp_path)), resume=True)
    (incoming / "away").rename(incoming / "a.csv")
    result = run(configured(sections(tmp_path)), resume=True)
    assert result.manifest["rows"] == alone.manifest["rows"]
    for name in ("public/releases.parquet", "operator/truth.parquet", "operator/ledger"):
        assert (result.folder / name).read_bytes() == (alone.folder / name).read_bytes()


def test_what_was_read_is_in_a_checkpoint_in_time_though_nothing_follows(incoming, tmp_path):
    value = sections(tmp_path, until="2200-01-01T00:00:00Z", checkpoint="300ms")
    value["windows"]["size"] = "365d"

    class Watch(Listener):
        began, n_rows = time.monotonic(), 0.0

        def record(self, measure, amount, value=""):
            self.n_rows += amount if measure is ROWS else 0
            if measure is CHECKPOINT and self.n_rows == 10:
                self.n_rows = 0
                os.kill(os.getpid(), signal.SIGINT)

        def beat(self):
            assert time.monotonic() - self.began < 20, "the last rows are in no checkpoint"

    with listening(Watch()):
        assert run(configured(value)).exit_code == INTERRUPTED


def test_what_was_read_after_the_checkpoint_is_read_again_as_it_was(incoming, tmp_path):
    """The journal cuts the same micro-batches, with the same clock, although another file has appeared in between."""
    plan = make_plan(configured(sections(tmp_path)), tmp_path / "plan")

    def pieces():
        return plan.config.source.micro_batches(
            live_input(plan), plan.folder, {}, 0, MIN_EVENT_TIME, Checkpointed(number=0)
        )

    first = list(zip(range(3), pieces()))
    put(incoming, "0", 5, [(3, "gus", "y")])
    again = list(zip(range(3), pieces()))
    for (_, one), (_, other) in zip(first, again):
        assert one.block.frame.equals(other.block.frame)
        assert (one.after, one.watermarks.tolist()) == (other.after, other.watermarks.tolist())


@pytest.mark.parametrize("is_longer", [True, False])
def test_a_file_that_changes_after_it_was_read_ends_the_run(incoming, tmp_path, is_longer):
    value = sections(tmp_path)
    value["source"]["until"] = "2200-01-01T00:00:00Z"
    value["windows"]["size"] = "365d"
    plan = make_plan(configured(value), tmp_path / "plan")
    pieces = plan.config.source.micro_batches(live_input(plan), plan.folder, {}, 0, MIN_EVENT_TIME, Checkpointed())
    assert sum(piece.block.n_rows for _, piece in zip(range(6), pieces) if piece is not None) == 10
    with (incoming / "b.csv").open("a" if is_longer else "r+") as file:
        file.write("gus,2024-01-01T00:20:00Z,x\n" if is_longer else "u")
    os.utime(incoming / "b.csv")  # another time of writing, though the machine's clock be coarse
    with pytest.raises(DataError, match=r"b\.csv: has changed after it was read; files have to be complete"):
        for _ in zip(range(100), pieces):
            pass


def test_a_checkpoint_knows_the_files_that_are_still_there_and_no_others(incoming, tmp_path):
    value = sections(tmp_path)
    value["source"]["until"] = "2200-01-01T00:00:00Z"
    value["windows"]["size"] = "365d"
    plan = make_plan(configured(value), tmp_path / "plan")
    pieces = plan.config.source.micro_batches(live_input(plan), plan.folder, {}, 0, MIN_EVENT_TIME, Checkpointed())
    actual = [piece for _, piece in zip(range(6), pieces) if piece is not None]
    assert [Path(name).name for name in actual[-1].end["names"].tolist()] == ["a.csv", "b.csv", "c.csv"]
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


def endless_pieces(folder: Path) -> Iterator:
    """Micro-batches of a run without an end in sight."""
    value = sections(folder, until="2200-01-01T00:00:00Z")
    value["windows"]["size"] = "365d"
    plan = make_plan(configured(value), folder / "plan")
    return plan.config.source.micro_batches(live_input(plan), plan.folder, {}, 0, MIN_EVENT_TIME, Checkpointed())


def n_rows(pieces: Iterator, n_micro_batches: int = 6) -> int:
    return sum(piece.block.n_rows for _, piece in zip(range(n_micro_batches), pieces) if piece is not None)


def test_a_folder_that_is_not_there_is_no_empty_folder(incoming, tmp_path, lose_patience, caplog):
    pieces = endless_pieces(tmp_path)
    assert n_rows(pieces) == 10
    incoming.rename(tmp_path / "away")
    with caplog.at_level(logging.WARNING, "penstock"):
        assert [next(pieces), next(pieces)] == [None, None]
    (record,) = caplog.records
    assert record.getMessage().endswith("; the run waits 300 s for it")
    (tmp_path / "away").rename(incoming)
    put(incoming, "d", 38, [(37, "annegret", "y")])
    assert next(piece for piece in pieces if piece is not None and piece.block.n_rows).block.n_rows == 1
    incoming.rename(tmp_path / "away")
    lose_patience()
    with pytest.raises(DataError, match=r"for 1 s \(.*\)\. Nothing is lost: .* --resume goes on from it"):
        for _ in pieces:
            pass


def test_a_folder_that_is_unmounted_is_no_empty_folder(incoming, tmp_path, monkeypatch):
    """The mount point that it leaves behind is there, and empty, and on another device."""
    pieces = endless_pieces(tmp_path)
    assert n_rows(pieces) == 10
    for path in incoming.glob("*.csv"):
        path.unlink()
    stat = os.stat

    def on_another_device(path, *arguments, **options):
        actual = stat(path, *arguments, **options)
        return os.stat_result((*actual[:2], actual.st_dev + 1, *actual[3:])) if Path(path) == incoming else actual

    with monkeypatch.context() as unmounted:
        unmounted.setattr("penstock.pipeline.sources.reading.file_systems.os.stat", on_another_device)
        assert next(pieces) is None
        unmounted.setattr(services, "PATIENCE", 0.0)
        with pytest.raises(DataError, match=r"in: is on another file system than before \(is it mounted\?\)"):
            for _ in pieces:
                pass


def zipped(rows: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("d.csv", f"user,time,place\n{rows}\n")
    return packed.getvalue()


def test_a_single_file_that_is_moved_away_leaves_its_neighbours_alone(incoming, tmp_path):
    files = LocalFiles(Csv(path=str(incoming / "a.csv")))
    assert list(files.listing()) == [str(incoming / "a.csv")]
    (incoming / "a.csv").rename(tmp_path / "a.csv")
    assert files.listing() == {}


def test_archives_are_read_beside_other_files(incoming, tmp_path):
    path = incoming / "d.zip"
    path.write_bytes(zipped("gus,2024-01-01T00:36:00Z,y"))
    os.utime(path, (START + 38 * 60,) * 2)
    assert truth(run(configured(sections(tmp_path))).folder) == [*COUNTS[:3], [1, 2]]


def test_only_sources_of_files_keep_arriving():
    with pytest.raises(ParameterError, match="a source of files, such as csv or parquet"):
        Folder(of=Synthetic(n_users=5, days=1, seed=1))
    with pytest.raises(ParameterError, match="one whose files are not named after people"):
        Folder(of=Cabspotting(path="cabs"))


# Files that keep arriving in an object store.


class Bucket(MemoryFileSystem):
    """An object store in memory."""

    store: ClassVar[dict[str, Any]] = {}
    #: Whether nobody answers, and how often reading fails.
    AWAY, N_FAILURES = False, 0

    def unstrip_protocol(self, name: str) -> str:
        return f"memory:/{name}"

    def find(self, *args: Any, **options: Any) -> Any:
        if self.AWAY:
            raise OSError("nobody answers")
        return super().find(*args, **options)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if self.N_FAILURES and mode == "rb":
            type(self).N_FAILURES -= 1
            raise OSError("try again")
        return super()._open(path, mode, **options)


def upload(name: str, data: bytes, written: float) -> None:
    """Write an object of the bucket, as at a time."""
    Bucket().pipe_file(name, data)
    Bucket.store[Bucket._strip_protocol(name)].created = datetime.fromtimestamp(written, UTC)


@pytest.fixture
def bucket(incoming, monkeypatch):
    """Bucket with the same files and ignored ones."""
    monkeypatch.setitem(file_systems.LIBRARIES, "memory", "fsspec")
    fsspec.register_implementation("memory", Bucket, clobber=True)
    Bucket.store.clear()
    Bucket.AWAY, Bucket.N_FAILURES = False, 0
    for path in incoming.glob("*.csv"):
        upload(f"memory://city/in/deep/{path.name}", path.read_bytes(), path.stat().st_mtime)
    for name in ("in/.hidden.csv", "inn/a.csv"):
        upload(f"memory://city/{name}", b"user,time\n", 5.0)
    yield Bucket.store
    fsspec.register_implementation("memory", MemoryFileSystem, clobber=True)


def in_bucket(folder: Path, path: str = "memory://city/in", **source) -> dict:
    value = sections(folder, **source)
    value["source"]["of"]["path"] = path
    return value


def test_archives_of_a_bucket_are_read_beside_other_objects(bucket, tmp_path):
    upload("memory://city/in/d.zip", zipped("gus,2024-01-01T00:36:00Z,y"), START + 38 * 60)
    assert truth(run(configured(in_bucket(tmp_path))).folder) == [*COUNTS[:3], [1, 2]]


def test_a_store_that_fails_while_it_is_read_is_asked_again(bucket, tmp_path, lose_patience, caplog):
    Bucket.N_FAILURES = 2
    with caplog.at_level(logging.WARNING, "penstock"):
        result = run(configured(in_bucket(tmp_path)))
    assert truth(result.folder) == COUNTS
    (waited,) = [record.getMessage() for record in caplog.records if "waits" in record.getMessage()]
    assert "memory://city/in/deep/a.csv: cannot be read (OSError: try again)" in waited
    Bucket.N_FAILURES = 10
    lose_patience()
    with pytest.raises(DataError, match=r"for 1 s \(.*cannot be read \(OSError: try again\)\)\. Nothing is lost"):
        run(configured(in_bucket(tmp_path)), tmp_path / "again")
    Bucket.N_FAILURES = 0
    assert truth(run(configured(in_bucket(tmp_path)), tmp_path / "again", resume=True).folder) == COUNTS


@pytest.mark.parametrize("path", ["memory://city/in", "memory://city/in/", "memory://city/in/**/*.csv"])
def test_a_bucket_is_read_as_a_folder_is(bucket, tmp_path, path):
    alone = run(configured(sections(tmp_path)), tmp_path / "alone")
    result = run(configured(in_bucket(tmp_path, path)))
    assert truth(result.folder) == COUNTS
    assert result.manifest["rows"] == alone.manifest["rows"]
    for name in ("public/releases.parquet", "public/accounts.parquet", "operator/truth.parquet", "operator/ledger"):
        assert (result.folder / name).read_bytes() == (alone.folder / name).read_bytes()


def test_rejects_of_a_bucket_name_the_object(bucket, tmp_path):
    upload("memory://city/in/d.csv", b"user,time,place\nann,yesterday,x\n", START + 35 * 60)
    result = run(configured(in_bucket(tmp_path)))
    (reject,) = map(json.loads, (result.folder / "operator" / "rejects.jsonl").read_text().splitlines())
    assert (reject["file"], reject["line"]) == ("memory://city/in/d.csv", 2)
    upload("memory://city/in/d.csv", b"place\nx\n", START + 35 * 60)
    with pytest.raises(DataError, match=r"memory://city/in/d\.csv: there is no column 'user'"):
        run(configured(in_bucket(tmp_path)))


def pieces_of(folder: Path, **source) -> Iterator:
    value = in_bucket(folder, until="2200-01-01T00:00:00Z", **source)
    value["windows"]["size"] = "365d"
    plan = make_plan(configured(value), folder / "plan")
    return plan.config.source.micro_batches(live_input(plan), plan.folder, {}, 0, MIN_EVENT_TIME, Checkpointed())


def test_an_object_that_is_replaced_after_it_was_read_ends_the_run(bucket, tmp_path):
    pieces = pieces_of(tmp_path)
    assert sum(piece.block.n_rows for _, piece in zip(range(6), pieces) if piece is not None) == 10
    upload("memory://city/in/deep/b.csv", bucket["/city/in/deep/b.csv"].getvalue(), START + 36 * 60)
    with pytest.raises(DataError, match=r"memory://city/in/deep/b\.csv: has changed after it was read"):
        for _ in pieces:
            pass


def test_an_object_that_is_replaced_or_removed_before_it_is_read_ends_the_run(bucket, tmp_path):
    pieces = pieces_of(tmp_path)
    next(pieces)
    removed = bucket.pop("/city/in/deep/b.csv")
    with pytest.raises(DataError, match=r"deep/b\.csv: is gone, and was not read to its end; put it back"):
        list(zip(range(4), pieces))
    pieces = pieces_of(tmp_path / "again")
    bucket["/city/in/deep/b.csv"] = removed
    next(pieces)
    upload("memory://city/in/deep/b.csv", removed.getvalue() + b"x", removed.created.timestamp())
    with pytest.raises(DataError, match=r"deep/b\.csv: has changed since the run found it"):
        list(zip(range(4), pieces))


def test_a_store_that_does_not_answer_stops_the_clock_and_at_last_the_run(bucket, tmp_path, lose_patience):
    Bucket.AWAY = True
    with pytest.raises(DataError, match=r"memory://city/in: cannot be listed \(OSError: nobody answers"):
        next(pieces_of(tmp_path))  # it has never answered
    Bucket.AWAY = False
    pieces = pieces_of(tmp_path)
    actual = [piece for _, piece in zip(range(6), pieces) if piece is not None]
    Bucket.AWAY = True
    assert next(pieces) is None
    assert actual[-1].after < datetime.now(UTC).timestamp() * 1000
    lose_patience()
    with pytest.raises(DataError, match="cannot be listed"):
        for _ in pieces:
            pass


def test_a_store_that_is_away_after_hours_of_reading_is_waited_for(bucket, tmp_path, lose_patience, monkeypatch):
    pieces = pieces_of(tmp_path)
    assert sum(piece.block.n_rows for _, piece in zip(range(6), pieces) if piece is not None) == 10
    clock, hours = time.monotonic, 10 * services.PATIENCE
    monkeypatch.setattr(time, "monotonic", lambda: clock() + hours)
    Bucket.AWAY = True
    assert next(pieces) is None
    lose_patience()
    with pytest.raises(DataError, match="cannot be listed"):
        for _ in pieces:
            pass


def test_the_store_is_asked_again_at_every_look(bucket):
    files = RemoteFiles(Csv(path="memory://city/in"), {})
    first = files.listing()
    upload("memory://city/in/e.csv", b"x", START)
    assert files.listing().keys() - first.keys() == {"memory://city/in/e.csv"}
    Bucket().rm("/city/in/e.csv")
    assert files.listing() == first


@pytest.mark.parametrize("pattern", ["**/*.log", "**"])
def test_a_pattern_of_a_bucket_says_itself_which_names_are_wanted(bucket, tmp_path, pattern):
    for name in list(bucket):
        bucket[name.replace(".csv", ".log")] = bucket.pop(name)
    bucket["/city/in/deep/"] = MemoryFile(Bucket(), "/city/in/deep/", b"")  # a folder, as some clients make one
    result = run(configured(in_bucket(tmp_path, f"memory://city/in/{pattern}")))
    assert truth(result.folder) == COUNTS


def test_the_graph_of_a_splittable_reader_releases_what_the_plain_loop_does(bucket, tmp_path):
    """Every turn is in a worker of its own, which has only the cursor and the folder of the run."""
    alone = run(configured(in_bucket(tmp_path)), tmp_path / "alone")
    plan = distributed(make_plan(configured(in_bucket(tmp_path)), tmp_path / "plan"), 2)
    (plan.folder / "public").mkdir(parents=True)
    stream, cursor, reached, end = TestStream(coder=BlockCoder()), Cursor(), 0, end_of_input(plan)
    while reached < end:
        tracker, watermark = CursorTracker(cursor), ManualWatermarkEstimator(None)
        stream.add_elements(list(Replay(plan).process(b"", OneStep(tracker), watermark)))
        now = watermark.current_watermark()
        # This runner lets a watermark pass the counting before its timers have been called, so it takes small steps.
        deadlines = [final_at(plan, group) for group in range(plan.grid.n_windows)]
        for step in sorted({*(at - 2 for at in deadlines), *(at - 1 for at in deadlines), end}):
            if now is not None and reached < step <= now.micros // 1000:
                stream.advance_watermark_to(Timestamp(micros=1000 * step))
                reached = step
        _, rest = tracker.try_split(0) or (None, tracker.current_restriction())
        cursor = CursorCoder().decode(CursorCoder().encode(rest))
    pipeline = beam.Pipeline(runner=BundleBasedDirectRunner())
    build(pipeline, plan, stream)
    pipeline.run().wait_until_finish()
    manifest.merge_outputs(plan)
    assert (plan.folder / "public" / "releases.parquet").read_bytes() == (
        alone.folder / "public" / "releases.parquet"
    ).read_bytes()
    assert manifest.row_equation(plan) == alone.manifest["rows"]


class OneStep:
    """A tracker that lets a turn claim a single micro-batch."""

    def __init__(self, tracker: CursorTracker) -> None:
        self._tracker, self._claimed = tracker, False

    def current_restriction(self) -> Cursor:
        return self._tracker.current_restriction()

    def try_claim(self, position: Cursor) -> bool:
        is_first, self._claimed = not self._claimed, True
        return is_first and self._tracker.try_claim(position)

    def defer_remainder(self, _: object) -> None:
        """The test takes the rest in any case."""


def test_an_address_is_for_files_that_keep_arriving_and_options_for_an_address(tmp_path):
    with pytest.raises(ParameterError, match=r"options: .*left out if files are on a disk"):
        Folder(of=Csv(path="in"), options={"endpoint_url": "http://localhost"})
    with pytest.raises(ParameterError, match=r"options\.secret: .*env: and the name of a variable"):
        Folder(of=Csv(path="s3://city/in"), options={"secret": "hunter2"})
    with pytest.raises(DataError, match=r"s3://city/in: only files that keep arriving \(source.type: folder\)"):
        Csv(path="s3://city/in").spans()
    value = in_bucket(tmp_path, "nowhere://city/in")
    with pytest.raises(ConfigError, match=r"source\.of\.path: there is no file system for nowhere://"):
        run(configured(value))


def test_services_may_read_it_and_not_a_replay(tmp_path):
    value = in_bucket(tmp_path)
    check_runner(configured(value), "dataflow")
    value["source"] = {"type": "stream", "of": sections(tmp_path)["source"]["of"]} | {
        "from": "2024-01-01T00:00:00Z",
        "until": "2024-01-01T00:40:00Z",
    }
    (tmp_path / "in").mkdir()
    value["source"]["of"]["path"] = str(tmp_path / "in")
    (tmp_path / "in" / "a.csv").write_text("user,time,place\nann,2024-01-01T00:00:00Z,x\n")
    with pytest.raises(ConfigError, match="a stream of this source runs on this machine, or on Flink"):
        check_runner(configured(value), "dataflow")
