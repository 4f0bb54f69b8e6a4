"""Releases to Pub/Sub and BigQuery with stubs of the official clients; tests/integration has the clients."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_configuration import published
from small_configuration import run_locally as run

from penstock.mechanisms.core.plugin import ConfigError, DataError, ParameterError
from penstock.pipeline.config.sections import BigQueryOutput, PubSubOutput
from penstock.pipeline.output.sinks.messages import PubSub
from penstock.pipeline.output.writer import sinks_of
from penstock.pipeline.sources.reading.services import MissingLibrary

TOPIC, ACCOUNTS = "projects/city-1/topics/footfall", "projects/city-1/topics/accounts"
TOPICS = f"report: false, pubsub: {{releases: {TOPIC}, accounts: {ACCOUNTS}}}"
TABLES = "report: false, bigquery: {releases: city-1.open.footfall, accounts: city-1.open.accounts, location: EU}"


class Sent(NamedTuple):
    topic: str
    data: bytes
    ordering_key: str
    id: str


class Topics:
    """Stub of ``google.cloud.pubsub_v1``."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.clients: list[dict[str, Any]] = []
        self.refuses = 0
        self.types = SimpleNamespace(BatchSettings=dict, PublisherOptions=dict)

    def PublisherClient(self, **options: Any) -> Any:
        self.clients.append(options)
        return SimpleNamespace(publish=self.publish)

    def publish(self, topic: str, data: bytes, ordering_key: str = "", **attributes: str) -> Any:
        def result(timeout: float) -> None:
            if self.refuses:
                self.refuses -= 1
                raise RuntimeError("404 Resource not found")
            self.sent.append(Sent(topic, data, ordering_key, **attributes))

        return SimpleNamespace(result=result)


@pytest.fixture
def topics(monkeypatch) -> Topics:
    found = Topics()
    monkeypatch.setitem(sys.modules, "google.cloud.pubsub_v1", found)
    return found


@pytest.mark.parametrize("streamed", [False, True])
def test_topics_are_told_every_row_in_order(tmp_path, topics, streamed):
    run(published(tmp_path / "run", TOPICS, streamed), runner="direct")
    releases = [message for message in topics.sent if message.topic == TOPIC]
    whole = pq.read_table(tmp_path / "run" / "public" / "releases.parquet").to_pylist()
    assert [message.id for message in releases] == [f"main/{row['window']}/{row['cell']}" for row in whole]
    assert [json.loads(message.data)["value"] for message in releases] == [row["value"] for row in whole]
    assert {message.ordering_key for message in topics.sent} == {"main"}
    assert {json.loads(message.data)["accountant"] for message in topics.sent if message.topic == ACCOUNTS} == {
        "composition"
    }
    ((options),) = topics.clients[:1]
    assert options["publisher_options"] == {"enable_message_ordering": True}


def test_a_repeated_row_has_the_same_id_and_bytes(tmp_path, topics):
    config = published(tmp_path / "run", TOPICS, streamed=True)
    run(config)
    once = list(topics.sent)
    run(config)
    assert topics.sent == once + once


def test_a_topic_that_refuses_ends_the_run_and_is_asked_again_by_a_new_client(topics):
    publisher = PubSub(PubSubOutput(releases=TOPIC, endpoint="europe-west1-pubsub.googleapis.com:443"))
    table = pa.table({"stream": ["main"], "window": [1], "cell": ["a"]})
    publisher.accounts(table)  # no topic for them
    assert not topics.clients
    topics.refuses = 1
    with pytest.raises(DataError, match=rf"topic {TOPIC}: 404 Resource not found"):
        publisher.releases(table)
    publisher.releases(table)
    assert [message.id for message in topics.sent] == ["main/1/a"]
    assert len(topics.clients) == 2
    assert topics.clients[0]["client_options"] == {"api_endpoint": "europe-west1-pubsub.googleapis.com:443"}


class Conflict(Exception):
    code = 409


class Job:
    """A load job: it appends all of its rows, or none."""

    def __init__(self, job_id: str, labels: dict[str, str], failure: str | None) -> None:
        self.job_id, self.labels = job_id, labels
        self.error_result = failure and {"reason": failure}

    def result(self, timeout: float) -> None:
        if self.error_result:
            raise RuntimeError(self.error_result["reason"])


class Warehouse:
    """Stub of ``google.cloud.bigquery``, its client and its service."""

    def __init__(self) -> None:
        self.tables: dict[str, Any] = {}
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.jobs: dict[str, Job] = {}
        self.failures: list[str] = []
        self.SchemaField = lambda name, kind, mode: SimpleNamespace(name=name, field_type=kind, mode=mode)
        self.LoadJobConfig = SimpleNamespace
        self.TimePartitioning = dict

    def Client(self, project: str, location: str) -> Warehouse:
        assert (project, location) == ("city-1", "EU")
        return self

    def Table(self, name: str, schema: list[Any]) -> Any:
        return SimpleNamespace(name=name, schema=schema, time_partitioning=None)

    def create_table(self, table: Any, exists_ok: bool) -> Any:
        assert exists_ok
        return self.tables.setdefault(table.name, table)

    def load_table_from_file(self, file: io.BytesIO, table: str, size: int, job_id: str, job_config: Any) -> Job:
        if job_id in self.jobs:
            raise Conflict(f"409 Already Exists: Job {job_id}")
        data = file.read()
        assert len(data) == size
        assert (job_config.source_format, job_config.write_disposition) == ("PARQUET", "WRITE_APPEND")
        job = self.jobs[job_id] = Job(job_id, job_config.labels, self.failures.pop() if self.failures else None)
        if job.error_result is None:
            self.rows.setdefault(table, []).extend(pq.read_table(io.BytesIO(data)).to_pylist())
        return job

    def get_job(self, job_id: str) -> Job:
        return self.jobs[job_id]


@pytest.fixture
def warehouse(monkeypatch) -> Warehouse:
    found = Warehouse()
    monkeypatch.setitem(sys.modules, "google.cloud.bigquery", found)
    return found


@pytest.mark.parametrize("streamed", [False, True])
def test_tables_hold_the_rows_of_the_files_however_often_a_run_is_repeated(tmp_path, warehouse, streamed):
    config = published(tmp_path / "run", TABLES, streamed)
    run(config)
    run(config)  # a simulation that is repeated releases the same
    run(config, resume=True)
    for name in ("releases", "accounts"):
        table = f"city-1.open.{'footfall' if name == 'releases' else name}"
        assert warehouse.rows[table] == pq.read_table(tmp_path / "run" / "public" / f"{name}.parquet").to_pylist()
    assert len(warehouse.jobs) == (7 if streamed else 2)
    footfall = warehouse.tables["city-1.open.footfall"]
    assert footfall.time_partitioning == {"field": "window_start"}
    assert [(field.name, field.field_type, field.mode) for field in footfall.schema][-5:] == [
        ("landmark", "BOOLEAN", "REQUIRED"),
        ("action", "STRING", "REQUIRED"),
        ("repeats", "INTEGER", "NULLABLE"),
        ("available_at", "TIMESTAMP", "REQUIRED"),
        ("standard_deviation", "FLOAT", "NULLABLE"),
    ]


def test_a_load_that_failed_is_tried_again_under_another_name(tmp_path, warehouse):
    config = published(tmp_path / "run", TABLES)
    warehouse.failures = ["quotaExceeded"]
    with pytest.raises(DataError, match=r"table city-1\.open\.footfall: releases could not be loaded: quotaExceeded"):
        run(config)
    run(config, resume=True)
    assert sorted(job_id[-2:] for job_id in warehouse.jobs) == ["-0", "-0", "-1"]
    whole = pq.read_table(tmp_path / "run" / "public" / "releases.parquet").to_pylist()
    assert warehouse.rows["city-1.open.footfall"] == whole


def test_other_content_under_the_same_name_is_no_repeat(tmp_path, warehouse):
    config = published(tmp_path / "run", TABLES)
    run(config)
    for job in warehouse.jobs.values():
        job.labels = {"content": "other"}
    with pytest.raises(DataError, match=r"releases is loaded with other content, by job penstock-[0-9a-f]{40}-0"):
        run(config)


def test_a_table_without_a_column_is_refused_before_anything_is_charged(tmp_path, warehouse):
    warehouse.tables["city-1.open.footfall"] = warehouse.Table("city-1.open.footfall", [])
    with pytest.raises(ConfigError, match=r"city-1\.open\.footfall is there without stream, window"):
        run(published(tmp_path / "run", TABLES))
    assert not (tmp_path / "run" / "operator" / "ledger").exists()


def test_the_missing_clients_are_named(tmp_path, monkeypatch):
    for module, extra, sink in (("pubsub_v1", "pubsub", TOPICS), ("bigquery", "bigquery", TABLES)):
        monkeypatch.setitem(sys.modules, f"google.cloud.{module}", None)
        with pytest.raises(MissingLibrary, match=rf"penstock\[{extra}\]"):
            run(published(tmp_path / extra, sink))


@pytest.mark.parametrize(
    ("section", "values", "right"),
    [
        (PubSubOutput, {}, "projects/PROJECT/topics/TOPIC"),
        (PubSubOutput, {"releases": "footfall"}, "projects/PROJECT/topics/TOPIC"),
        (PubSubOutput, {"releases": "projects/city/topics/footfall"}, "PROJECT, here 'city', a project id: 6 to 30"),
        (PubSubOutput, {"releases": "projects/city-1/topics/1st"}, "TOPIC, here '1st', 3 to 255 letters"),
        (BigQueryOutput, {"accounts": "open.footfall"}, r"PROJECT\.DATASET\.TABLE"),
        (BigQueryOutput, {"accounts": "city.open.footfall"}, "PROJECT, here 'city', a project id"),
        (BigQueryOutput, {"accounts": "city-1.open-data.footfall"}, "DATASET, here 'open-data', 1 to 1,024 letters"),
    ],
)
def test_names_that_no_service_has_are_refused(section, values, right):
    with pytest.raises(ParameterError, match=right):
        section(**values)


def test_short_windows_of_a_stream_are_too_many_loads(tmp_path):
    with pytest.raises(ConfigError, match=r"output\.bigquery\.releases: .*shorter than a minute"):
        published(tmp_path, TABLES, streamed=True, **{"windows.size": "30s"})
    published(tmp_path, TABLES, **{"windows.size": "30s"})


def test_every_sink_is_made_where_it_is_named(tmp_path):
    from penstock.pipeline.config.plan import make_plan

    found = sinks_of(make_plan(published(tmp_path, f"{TOPICS}, {TABLES.removeprefix('report: false, ')}")))
    assert [type(sink).__name__ for sink in found] == ["PubSub", "BigQuery"]
