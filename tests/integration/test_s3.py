"""A store on S3 by Beam's own file system and Amazon's client, against the server of moto; ``.ci/clouds`` has both."""

from __future__ import annotations

import pytest

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.run import run
from tests.test_output_store import FINITE, WINDOWS, configured

boto3 = pytest.importorskip("boto3")
moto = pytest.importorskip("moto.server")

pytestmark = pytest.mark.integration


def test_a_bucket_has_what_the_folder_has_and_is_not_written_twice(tmp_path, monkeypatch):
    secret = "not-a-secret"
    monkeypatch.setenv("STORE_SECRET", secret)
    server = moto.ThreadedMotoServer(port=0)
    server.start()
    try:
        address = "http://{}:{}".format(*server.get_host_and_port())
        names = {"aws_access_key_id": "x", "aws_secret_access_key": secret, "region_name": "us-east-1"}
        client = boto3.client("s3", endpoint_url=address, **names)
        client.create_bucket(Bucket="bucket")
        options = f'{{"s3_endpoint_url": "{address}", "s3_access_key_id": "x", "s3_region_name": "us-east-1", '
        options += '"s3_secret_access_key": "env:STORE_SECRET"}'
        changes = {"output.store.options": options}
        config = configured(tmp_path / "run", "s3://bucket/run", streamed=True, **changes)
        for resume in (False, True, False):
            run(config, resume=resume)
        found = {entry["Key"].removeprefix("run/") for entry in client.list_objects_v2(Bucket="bucket")["Contents"]}
        assert {name for name in found if not name.startswith("manifests/")} == FINITE | WINDOWS
        for name in FINITE - {"run.json"}:
            data = client.get_object(Bucket="bucket", Key=f"run/{name}")["Body"].read()
            assert data == (tmp_path / "run" / "public" / name).read_bytes()
        client.put_object(Bucket="bucket", Key="run/releases/000000000003.parquet", Body=b"other")
        with pytest.raises(DataError, match=r"s3://bucket/run/releases/000000000003\.parquet: is there with other"):
            run(config)
    finally:
        server.stop()
