"""Public files on object stores: each name written once, the same bytes, no operator files."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, ClassVar

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from penstock.mechanisms.core.noise_keys import new_key_file
from penstock.mechanisms.core.plugin import ConfigError, DataError, MissingLibrary, ParameterError
from penstock.pipeline.config.sections import StoreOutput
from penstock.pipeline.output.sinks.store import Objects, by_window
from penstock.pipeline.sources.reading import file_systems
from tests.tools.ledgers import charges_in
from tests.tools.listeners import after_writes
from tests.tools.small_configuration import run_locally as run
from tests.tools.stored_runs import FINITE, WINDOWS, configured


class Store(MemoryFileSystem):
    """An object store in memory that records what is written, and has names that no object gets."""

    store: ClassVar[dict[str, Any]] = {}
    #: Every write, in order.
    writes: ClassVar[list[str]] = []
    #: End of a name that cannot be written, and of one that another process writes first.
    refused: ClassVar[str] = "nothing"
    taken: ClassVar[str] = "nothing"
    #: Options that the last one was made with.
    options: ClassVar[tuple[str, str]] = ("", "")

    def __init__(self, *arguments: Any, secret: str = "", endpoint_url: str = "", **options: Any) -> None:
        super().__init__(*arguments, **options)
        Store.options = secret, endpoint_url

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        assert mode == "create"
        if path.endswith(self.refused):
            raise OSError("the store is gone")
        if path.endswith(self.taken):
            super().pipe_file(path, b"other")
        self.writes.append(path)
        super().pipe_file(path, value, mode, **options)

    def find(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a listing costs more than a look")

    ls = glob = find


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.setitem(file_systems.LIBRARIES, "memory", "fsspec")
    Store.refused, Store.taken, Store.options = "nothing", "nothing", ("", "")
    Store.store.clear()
    Store.writes.clear()
    fsspec.register_implementation("memory", Store, clobber=True)
    yield Store.store
    fsspec.register_implementation("memory", MemoryFileSystem, clobber=True)


def names(objects: dict[str, Any], root: str = "/bucket/run/") -> set[str]:
    return {path.removeprefix(root) for path in objects}


def content(objects: dict[str, Any]) -> dict[str, bytes]:
    return {path.removeprefix("/bucket/run/"): file.getvalue() for path, file in objects.items()}


@pytest.mark.parametrize("runner", ["local", "direct"])
def test_a_finite_run_has_its_public_files_in_the_store(tmp_path, memory, runner):
    run(configured(tmp_path / "run"), runner=runner)
    assert names(memory) == FINITE
    for name in FINITE - {"run.json"}:
        assert content(memory)[name] == (tmp_path / "run" / "public" / name).read_bytes()
    assert Store.writes[-1] == "memory://bucket/run/manifest.json"


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
    parts = [pq.read_table(io.BytesIO(content(memory)[name])) for name in sorted(WINDOWS)]
    whole = pq.read_table(tmp_path / "run" / "public" / "releases.parquet")
    assert pa.concat_tables(parts).to_pylist() == whole.to_pylist()
    assert not [name for name in memory if name.endswith(".tmp")]


def test_nothing_is_written_twice_by_a_run_that_is_repeated(tmp_path, memory):
    config = configured(tmp_path / "run", streamed=True)
    run(config)
    before, n_writes = content(memory), len(Store.writes)
    run(config)  # a simulation replaces its folder and releases the same
    run(config, resume=True)  # and where it had finished, what is missing is published
    assert content(memory) == before
    assert len(Store.writes) == n_writes


def test_a_publication_that_was_cut_short_goes_on(tmp_path, memory):
    config = configured(tmp_path / "run")
    Store.refused = "manifest.json"
    with pytest.raises(DataError, match=r"run/manifest\.json: cannot be published .*the store is gone"):
        run(config)
    Store.refused = "nothing"
    assert run(config, resume=True).exit_code == 0
    assert names(memory) == FINITE


def test_a_stream_that_is_killed_and_goes_on_leaves_what_others_do(tmp_path, memory):
    run(configured(tmp_path / "whole" / "run", streamed=True))
    undisturbed = content(memory)
    memory.clear()

    def killed(*_):
        if "releases/000000000003.parquet" in names(memory):
            raise KeyboardInterrupt

    config = configured(tmp_path / "run", streamed=True)
    with after_writes(killed), pytest.raises(KeyboardInterrupt):
        run(config)
    assert names(memory) < names(undisturbed)
    run(config, resume=True)
    assert content(memory) == undisturbed


def test_other_content_is_never_replaced(tmp_path, memory):
    config = configured(tmp_path / "run", streamed=True)
    run(config)
    Store().open("memory://bucket/run/releases/000000000003.parquet", "wb", data=b"other")
    with pytest.raises(DataError, match=r"memory://bucket/run/releases/000000000003\.parquet: is there with other"):
        run(config)
    assert content(memory)["releases/000000000003.parquet"] == b"other"


def test_what_another_process_has_just_written_is_compared_and_never_replaced(memory):
    Store.taken = "a.json"
    objects = Objects(StoreOutput(path="memory://bucket/run"))
    assert not objects.put("a.json", b"mine")
    assert objects.put("b.json", b"other")
    assert content(memory) == {"a.json": b"other", "b.json": b"other"}


class Hdfs(MemoryFileSystem):
    """HDFS in memory, which records what is written."""

    store: ClassVar[dict[str, Any]] = {}
    written: ClassVar[list[str]] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("hdfs:").strip("/")

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self.written.append(path)
        super().pipe_file(path, value, mode, **options)


@pytest.fixture
def hdfs() -> Iterator[None]:
    fsspec.register_implementation("hdfs", Hdfs, clobber=True)
    yield
    fsspec.register_implementation("hdfs", "fsspec.implementations.arrow.HadoopFileSystem", clobber=True)


@pytest.mark.usefixtures("hdfs")
def test_a_file_of_hdfs_is_renamed_when_it_is_whole():
    objects = Objects(StoreOutput(path="hdfs://city/run"))
    assert objects.put("a.json", b"mine")
    assert not objects.put("a.json", b"other")
    assert content(Hdfs.store) == {"/city/run/a.json": b"mine"}
    (temporary,) = Hdfs.written
    assert temporary.startswith("hdfs://city/run/.a.json.")
    assert temporary.endswith(".tmp")


def test_a_folder_of_another_run_is_refused_before_anything_is_charged(tmp_path, memory):
    run(configured(tmp_path / "run"))
    before = content(memory)
    with pytest.raises(ConfigError, match=r"output\.store\.path: memory://bucket/run/run\.json is of another run"):
        run(configured(tmp_path / "other", seed="8"))
    assert content(memory) == before
    assert not charges_in(tmp_path / "other")


def test_a_deployment_publishes_nothing_of_the_operator(tmp_path, memory, monkeypatch):
    new_key_file(tmp_path / "noise.key")
    extra = {"mode": "deployment", "output.ledger_source": "events", "noise_key": str(tmp_path / "noise.key")}
    monkeypatch.setenv("STORE_SECRET", "hunter2")
    config = configured(
        tmp_path / "run",
        **extra,
        **{"output.store.options": '{"secret": "env:STORE_SECRET", "endpoint_url": "mars-1"}'},
    )
    run(config)
    assert Store.options == ("hunter2", "mars-1")
    assert names(memory) == FINITE | {"report.html"}
    public = {path.name for path in (tmp_path / "run" / "public").iterdir()}
    assert names(memory) - {"run.json"} <= public
    manifest = json.loads(content(memory)["manifest.json"])
    assert "store" not in manifest["configuration"]["output"]
    secret = [(tmp_path / "noise.key").read_bytes().strip(), b"hunter2", b"mars-1", str(tmp_path).encode()]
    assert not [(name, word) for name, data in content(memory).items() for word in secret if word in data]


def test_a_local_folder_is_a_store_too(tmp_path):
    run(configured(tmp_path / "run", tmp_path / "store", True))
    actual = {str(path.relative_to(tmp_path / "store")) for path in (tmp_path / "store").rglob("*") if path.is_file()}
    assert actual >= FINITE | WINDOWS
    assert not [name for name in actual if name.endswith(".tmp")]


def test_windows_have_the_same_bytes_however_they_were_put_together():
    one = pa.table({"stream": ["main"] * 3, "window": [1, 1, 2], "cell": pa.array(["a", "b", "a"]).dictionary_encode()})
    other = pa.table({"stream": ["main"], "window": [2], "cell": pa.array(["a"]).dictionary_encode()})
    ((_, first),), (_, (_, second)) = [list(by_window(other)), list(by_window(one))]
    assert first.equals(second)


@pytest.mark.parametrize(("scheme", "library"), [("gs", "gcsfs"), ("s3", "s3fs"), ("abfs", "adlfs")])
def test_a_library_that_is_missing_is_named_with_what_brings_it(without, scheme, library):
    without(library)
    with pytest.raises(MissingLibrary, match=rf"{scheme}:// needs {library}, .*pip install 'penstock\[{scheme}\]'"):
        Objects(StoreOutput(path=f"{scheme}://bucket/run")).put("run.json", b"")


def test_a_run_without_an_address_loads_no_library_of_stores(tmp_path):
    code = (
        "import sys; from penstock.pipeline.cli.main import main; main(sys.argv[1:]); "
        "print([name for name in sys.modules if name.partition('.')[0] in ('fsspec', 's3fs', 'gcsfs', 'aiohttp')])"
    )
    words = ["run", "configs/quickstart.yaml", "--runner", "local", "--quiet", "--out", str(tmp_path / "run")]
    words += ["--set", "source.until=2024-01-01T03:00:00Z"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_paths_and_options_that_no_store_has_are_refused(tmp_path):
    for scheme in ("ftp", "azfs"):
        with pytest.raises(ConfigError, match=rf"no file system for {scheme}://, but for abfs://, gs://, hdfs://, s3"):
            Objects(StoreOutput(path=f"{scheme}://bucket/run")).put("run.json", b"")
    with pytest.raises(
        ConfigError, match=r"output\.store\.options\.s3_region: Store of fsspec has no such option, but "
    ):
        Objects(StoreOutput(path="memory://bucket", options={"s3_region": "mars-1"})).put("run.json", b"")
    with pytest.raises(ParameterError, match="an absolute path"):
        StoreOutput(path="runs/store")
    with pytest.raises(ConfigError, match=r":8: output\.store\.path: .*a folder outside output\.path"):
        configured(tmp_path / "run", tmp_path / "run" / "store")
    with pytest.raises(ParameterError, match="env:"):
        StoreOutput(path="s3://bucket/run", options={"secret": "hunter2"})
    with pytest.raises(ConfigError, match=r":8: output\.path: .*output\.store publishes what is public"):
        configured("gs://bucket/run", "gs://bucket/run")
