"""Public files on object stores: each name written once, the same bytes, no operator files."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.io.filesystem import FileMetadata, FileSystem

from penstock.mechanisms.core.noise_keys import new_key_file
from penstock.mechanisms.core.plugin import ConfigError, DataError, MissingLibrary, ParameterError
from penstock.pipeline.config.sections import StoreOutput
from penstock.pipeline.output.sinks.store import Objects, by_window
from tests.tools.ledgers import charges_in
from tests.tools.listeners import after_writes
from tests.tools.small_configuration import run_locally as run
from tests.tools.stored_runs import FINITE, WINDOWS, configured


class Closing(io.BytesIO):
    """File of `Memory` that appears on close."""

    def __init__(self, objects: dict[str, bytes], path: str) -> None:
        super().__init__()
        self.objects, self.path = objects, path

    def close(self) -> None:
        if not self.closed:
            self.objects[self.path] = self.getvalue()
        super().close()


class Memory(FileSystem):  # type: ignore[misc]
    """An object store: names without folders, and no rename that could fail halfway."""

    OBJECTS: dict[str, bytes] = {}  # noqa: RUF012
    #: Every change, in order.
    WRITES: list[tuple[str, ...]] = []  # noqa: RUF012
    #: End of a name that no object gets.
    REFUSED = "nothing"

    @classmethod
    def scheme(cls) -> str:
        return "memory"

    def join(self, basepath: str, *paths: str) -> str:
        return "/".join([basepath.rstrip("/"), *paths])

    def split(self, path: str) -> tuple[str, str]:
        folder, _, name = path.rpartition("/")
        return folder, name

    def mkdirs(self, path: str) -> None:
        raise AssertionError("there are no folders")

    def has_dirs(self) -> bool:
        return False

    def _list(self, dir_or_prefix: str) -> Iterator[FileMetadata]:
        raise AssertionError("a listing costs more than a look")

    def create(self, path: str, mime_type: str = "", compression_type: str = "") -> io.BytesIO:
        self.WRITES.append(("create", path))
        return Closing(self.OBJECTS, path)

    def open(self, path: str, mime_type: str = "", compression_type: str = "") -> io.BytesIO:
        return io.BytesIO(self.OBJECTS[path])

    def rename(self, source_file_names: list[str], destination_file_names: list[str]) -> None:
        for source, target in zip(source_file_names, destination_file_names):
            if target.endswith(self.REFUSED):
                raise OSError("the store is gone")
            self.WRITES.append(("rename", target))
            self.OBJECTS[target] = self.OBJECTS.pop(source)

    def exists(self, path: str) -> bool:
        return path in self.OBJECTS

    copy = delete = size = last_updated = checksum = metadata = None


@pytest.fixture(autouse=True)
def memory() -> dict[str, bytes]:
    Memory.OBJECTS.clear()
    Memory.WRITES.clear()
    Memory.REFUSED = "nothing"
    return Memory.OBJECTS


def names(objects: dict[str, bytes], root: str = "memory://bucket/run/") -> set[str]:
    return {path.removeprefix(root) for path in objects}


@pytest.mark.parametrize("runner", ["local", "direct"])
def test_a_finite_run_has_its_public_files_in_the_store(tmp_path, memory, runner):
    run(configured(tmp_path / "run"), runner=runner)
    assert names(memory) == FINITE
    for name in FINITE - {"run.json"}:
        assert memory[f"memory://bucket/run/{name}"] == (tmp_path / "run" / "public" / name).read_bytes()
    assert Memory.WRITES[-1] == ("rename", "memory://bucket/run/manifest.json")


def test_a_stream_has_each_window_in_the_store_when_it_is_released(tmp_path, memory):
    seen = []

    def note(*_):
        seen.append({name for name in names(memory) if name.startswith("releases/")})

    with after_writes(note):
        run(configured(tmp_path / "run", streamed=True))
    assert seen[-1] == WINDOWS
    assert all(earlier <= later for earlier, later in pairwise(seen))
    begun = {name for name in names(memory) if name.startswith("manifests/")}
    assert names(memory) == FINITE | WINDOWS | begun
    assert len(begun) == 1
    parts = [pq.read_table(io.BytesIO(memory[f"memory://bucket/run/{name}"])) for name in sorted(WINDOWS)]
    whole = pq.read_table(tmp_path / "run" / "public" / "releases.parquet")
    assert pa.concat_tables(parts).to_pylist() == whole.to_pylist()
    assert not [name for name in memory if name.endswith(".tmp")]


def test_nothing_is_written_twice_by_a_run_that_is_repeated(tmp_path, memory):
    config = configured(tmp_path / "run", streamed=True)
    run(config)
    before, n_writes = dict(memory), len(Memory.WRITES)
    run(config)  # a simulation replaces its folder and releases the same
    run(config, resume=True)  # and where it had finished, what is missing is published
    assert memory == before
    assert len(Memory.WRITES) == n_writes


def test_a_publication_that_was_cut_short_goes_on(tmp_path, memory):
    config = configured(tmp_path / "run")
    Memory.REFUSED = "manifest.json"
    with pytest.raises(DataError, match=r"run/manifest\.json: cannot be published .*the store is gone"):
        run(config)
    Memory.REFUSED = "nothing"
    assert run(config, resume=True).exit_code == 0
    assert {name for name in names(memory) if not name.endswith(".tmp")} == FINITE


def test_a_stream_that_is_killed_and_goes_on_leaves_what_others_do(tmp_path, memory):
    run(configured(tmp_path / "whole" / "run", streamed=True))
    undisturbed = dict(memory)
    memory.clear()

    def killed(*_):
        if "releases/000000000003.parquet" in names(memory):
            raise KeyboardInterrupt

    config = configured(tmp_path / "run", streamed=True)
    with after_writes(killed), pytest.raises(KeyboardInterrupt):
        run(config)
    assert names(memory) < names(undisturbed)
    run(config, resume=True)
    assert memory == undisturbed


def test_other_content_is_never_replaced(tmp_path, memory):
    config = configured(tmp_path / "run", streamed=True)
    run(config)
    memory["memory://bucket/run/releases/000000000003.parquet"] = b"other"
    with pytest.raises(DataError, match=r"memory://bucket/run/releases/000000000003\.parquet: is there with other"):
        run(config)
    assert memory["memory://bucket/run/releases/000000000003.parquet"] == b"other"


def test_a_folder_of_another_run_is_refused_before_anything_is_charged(tmp_path, memory):
    run(configured(tmp_path / "run"))
    before = dict(memory)
    with pytest.raises(ConfigError, match=r"output\.store\.path: memory://bucket/run/run\.json is of another run"):
        run(configured(tmp_path / "other", seed="8"))
    assert memory == before
    assert not charges_in(tmp_path / "other")


def test_a_deployment_publishes_nothing_of_the_operator(tmp_path, memory, monkeypatch):
    new_key_file(tmp_path / "noise.key")
    extra = {"mode": "deployment", "output.ledger_source": "events", "noise_key": str(tmp_path / "noise.key")}
    monkeypatch.setenv("STORE_SECRET", "hunter2")
    config = configured(
        tmp_path / "run",
        **extra,
        **{"output.store.options": '{"s3_secret_access_key": "env:STORE_SECRET", "s3_region_name": "mars-1"}'},
    )
    run(config)
    assert names(memory) == FINITE | {"report.html"}
    public = {path.name for path in (tmp_path / "run" / "public").iterdir()}
    assert names(memory) - {"run.json"} <= public
    manifest = json.loads(memory["memory://bucket/run/manifest.json"])
    assert "store" not in manifest["configuration"]["output"]
    secret = [(tmp_path / "noise.key").read_bytes().strip(), b"hunter2", b"mars-1", str(tmp_path).encode()]
    assert not [(name, word) for name, data in memory.items() for word in secret if word in data]


def test_beams_local_files_are_a_store_too(tmp_path):
    run(configured(tmp_path / "run", tmp_path / "store", True))
    actual = {str(path.relative_to(tmp_path / "store")) for path in (tmp_path / "store").rglob("*") if path.is_file()}
    assert actual >= FINITE | WINDOWS
    assert not [name for name in actual if name.endswith(".tmp")]


def test_windows_have_the_same_bytes_however_they_were_put_together():
    one = pa.table({"stream": ["main"] * 3, "window": [1, 1, 2], "cell": pa.array(["a", "b", "a"]).dictionary_encode()})
    other = pa.table({"stream": ["main"], "window": [2], "cell": pa.array(["a"]).dictionary_encode()})
    ((_, first),), (_, (_, second)) = [list(by_window(other)), list(by_window(one))]
    assert first.equals(second)


@pytest.mark.parametrize(("scheme", "extra"), [("gs", "gcp"), ("s3", "aws"), ("azfs", "azure"), ("hdfs", "hadoop")])
def test_a_library_that_is_missing_is_named(without, scheme, extra):
    module = {"gs": "google.cloud.storage", "s3": "boto3", "azfs": "azure.storage.blob", "hdfs": "hdfs"}[scheme]
    without(module)
    with pytest.raises(MissingLibrary, match=rf"pip install 'apache-beam\[{extra}\]'"):
        Objects(StoreOutput(path=f"{scheme}://bucket/run")).put("run.json", b"")


def test_paths_that_no_store_has_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no file system for ftp://, but for azfs://.*gs://, hdfs://"):
        Objects(StoreOutput(path="ftp://bucket/run")).put("run.json", b"")
    with pytest.raises(ParameterError, match="an absolute path"):
        StoreOutput(path="runs/store")
    with pytest.raises(ConfigError, match=r":8: output\.store\.path: .*a folder outside output\.path"):
        configured(tmp_path / "run", tmp_path / "run" / "store")
    with pytest.raises(ParameterError, match="env:"):
        StoreOutput(path="s3://bucket/run", options={"s3_secret_access_key": "hunter2"})
    with pytest.raises(ConfigError, match=r":8: output\.path: .*output\.store publishes what is public"):
        configured("gs://bucket/run", "gs://bucket/run")
