"""S3 by s3fs, against the server of moto; ``.ci/clouds`` has both."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.config.run import load
from penstock.pipeline.run import run
from tests.integration.flink_runs import contents, needs_flink, running, words_of
from tests.tools.stored_runs import FINITE, WINDOWS, configured

boto3 = pytest.importorskip("boto3")
moto = pytest.importorskip("moto.server")
pytest.importorskip("s3fs")

pytestmark = pytest.mark.integration

SECRET = "not-a-secret"


@pytest.fixture
def client(monkeypatch):
    """Amazon's client of a server with one bucket."""
    monkeypatch.setenv("STORE_SECRET", SECRET)
    server = moto.ThreadedMotoServer(port=0)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    names = {"aws_access_key_id": "x", "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=address, **names)
    client.create_bucket(Bucket="bucket")
    yield client
    server.stop()


def options_of(client) -> dict[str, str]:
    """Options in the names of s3fs."""
    return {
        "endpoint_url": client.meta.endpoint_url,
        "key": "x",
        "secret": "env:STORE_SECRET",
    }


def test_a_bucket_has_what_the_folder_has_and_is_not_written_twice(tmp_path, client):
    changes = {"output.store.options": json.dumps(options_of(client))}
    config = configured(tmp_path / "run", "s3://bucket/run", streamed=True, **changes)
    for resume in (False, True, False):
        run(config, resume=resume)
    actual = {entry["Key"].removeprefix("run/") for entry in client.list_objects_v2(Bucket="bucket")["Contents"]}
    assert {name for name in actual if not name.startswith("manifests/")} == FINITE | WINDOWS
    for name in FINITE - {"run.json"}:
        data = client.get_object(Bucket="bucket", Key=f"run/{name}")["Body"].read()
        assert data == (tmp_path / "run" / "public" / name).read_bytes()
    client.put_object(Bucket="bucket", Key="run/releases/000000000003.parquet", Body=b"other")
    with pytest.raises(DataError, match=r"s3://bucket/run/releases/000000000003\.parquet: is there with other"):
        run(config)


@pytest.mark.parametrize("runner", ["direct", pytest.param("flink", marks=needs_flink)])
def test_files_that_keep_arriving_in_a_bucket(tmp_path, client, runner):
    """The releases are those of a finite run of the same rows."""
    begin = int(time.time())
    config = ARRIVING.replace("FROM", stamp(begin - 40)).replace("UNTIL", stamp(begin)).replace("PATH", str(tmp_path))
    overrides = [f"source.options={json.dumps(options_of(client))}"]
    rows = [(f"u{i % 7}", begin - 40 + i % 40, "xy"[i % 2]) for i in range(200)]
    for part in range(4):
        put(client, f"{part}.csv", rows[part::4])
    config_file = tmp_path / "run.yaml"
    config_file.write_text(config)
    if runner == "flink":
        words = [word for text in overrides for word in ("--set", text)]
        with running(config_file, tmp_path / "run", *words) as driver:
            assert driver.wait(240) == 0, words_of(tmp_path / "run")
    else:
        assert run(load(config_file, overrides), tmp_path / "run").exit_code == 0
    (tmp_path / "in.csv").write_bytes(as_csv(rows))
    of = {"type": "csv", "path": str(tmp_path / "in.csv"), "from": stamp(begin - 40), "until": stamp(begin)}
    alone = run(load(config_file, [f"source={json.dumps(of)}"]), tmp_path / "alone")
    for name in ("public/releases.parquet", "public/accounts.parquet", "operator/truth.parquet", "operator/ledger"):
        assert (tmp_path / "run" / name).read_bytes() == (alone.folder / name).read_bytes()
    assert SECRET.encode() not in b"".join(contents(tmp_path / "run").values())


ARRIVING = """
name: arriving
seed: 3
source:
  type: folder
  of: {type: csv, path: s3://bucket/in}
  from: FROM
  until: UNTIL
  idle_after: 2s
space: {type: places, list: [x, y], elsewhere: false}
windows: {type: fixed, size: 5s, allowed_lateness: 1m}
bounding: {max_cells: 2}
mechanism: {type: discrete_laplace, epsilon: 1.0}
accountants: [{type: composition}]
output: {path: PATH/run, report: false}
"""


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def as_csv(rows: list[tuple[str, float, str]]) -> bytes:
    return "\n".join(["user,time,place", *(f"{user},{stamp(at)},{place}" for user, at, place in rows)]).encode() + b"\n"


def put(client, name: str, rows: list[tuple[str, float, str]]) -> None:
    client.put_object(Bucket="bucket", Key=f"in/{name}", Body=as_csv(rows))
