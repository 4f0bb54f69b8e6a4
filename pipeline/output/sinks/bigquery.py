"""Load releases and public accounts into BigQuery, each once."""

from __future__ import annotations

import hashlib
import importlib
import io
from http import HTTPStatus
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.mechanisms.core.plugin import ConfigError, DataError
from penstock.pipeline.output import tables
from penstock.pipeline.output.checkpoint import public_name
from penstock.pipeline.output.sinks import Sink
from penstock.pipeline.output.sinks.store import as_parquet, by_window
from penstock.pipeline.sources.reading.services import MissingLibrary

if TYPE_CHECKING:
    from penstock.pipeline.config.plan import Plan
    from penstock.pipeline.config.sections import BigQueryOutput


#: Seconds that a load may take.
PATIENCE = 600.0
#: Column that a table is divided by into days.
_DAY = "window_start"


class BigQuery(Sink):
    """Loads Parquet into tables by the official client: a load a window of a stream, otherwise the files of a run.

    A load is a job, whose name is a function of run, table and window. BigQuery takes each name once, and a job appends
    all of its rows or none: what is loaded again after a kill is there once. Public accounts are loaded when the run
    has come to its end. Tables are made with the columns of the files; `schema_of` says their types.
    """

    def __init__(self, plan: Plan, output: BigQueryOutput) -> None:
        self.plan, self.output = plan, output
        self._connected: Any = None

    def begin(self) -> None:
        """Make the tables that are not there; raises `ConfigError` where one lacks a column."""
        for key, schema in (("releases", tables.RELEASES), ("accounts", tables.ACCOUNTS)):
            if (name := getattr(self.output, key)) is not None:
                self._make(key, name, schema)

    def releases(self, table: pa.Table) -> None:
        """Load the windows of a stream; returns when they are there."""
        if self.plan.streaming and self.output.releases is not None:
            for name, rows in by_window(table):
                self._load(self.output.releases, name, as_parquet(rows))

    def end(self) -> None:
        """Load the files of a run that has come to its end; of a stream the releases are there."""
        for name, table in (("releases", self.output.releases), ("accounts", self.output.accounts)):
            path = self.plan.folder / "public" / f"{name}.parquet"
            if table is not None and path.exists() and not (name == "releases" and self.plan.streaming):
                self._load(table, name, path.read_bytes())

    @property
    def _bigquery(self) -> Any:
        try:
            return importlib.import_module("google.cloud.bigquery")
        except ImportError:
            text = "BigQuery needs a client that is not installed: pip install 'penstock[bigquery]'"
            raise MissingLibrary(text) from None

    def _client(self, table: str) -> Any:
        if self._connected is None:
            self._connected = self._bigquery.Client(project=table.split(".")[0], location=self.output.location)
        return self._connected

    def _make(self, key: str, name: str, schema: pa.Schema) -> None:
        bigquery = self._bigquery
        wanted = bigquery.Table(name, schema=[bigquery.SchemaField(*field) for field in schema_of(schema)])
        if _DAY in schema.names:
            wanted.time_partitioning = bigquery.TimePartitioning(field=_DAY)
        try:
            found = self._client(name).create_table(wanted, exists_ok=True)
        except Exception as error:
            raise DataError(f"BigQuery, table {name}: {error}") from error
        there = {field.name for field in found.schema}
        if lacking := [column for column in schema.names if column not in there]:
            text = f"{name} is there without {', '.join(lacking)}; name a table that is not there yet"
            raise ConfigError((f"output.bigquery.{key}: {text}",))

    def _load(self, table: str, name: str, data: bytes) -> None:
        client, content = self._client(table), hashlib.sha256(data).hexdigest()[:32]
        job_name = hashlib.sha256("\0".join((public_name(self.plan), table, name)).encode()).hexdigest()[:40]
        config = self._bigquery.LoadJobConfig(
            source_format="PARQUET",
            write_disposition="WRITE_APPEND",
            create_disposition="CREATE_NEVER",
            labels={"content": content},
        )
        try:
            for attempt in count():
                job_id = f"penstock-{job_name}-{attempt}"
                if (earlier := self._submit(client, job_id, table, data, config)) is None:
                    return
                if earlier.labels.get("content") != content:
                    break
                if _has_loaded(earlier):
                    return
        except Exception as error:
            raise DataError(f"BigQuery, table {table}: {name} could not be loaded: {error}") from error
        raise DataError(f"BigQuery, table {table}: {name} is loaded with other content, by job {job_id}")

    @staticmethod
    def _submit(client: Any, job_id: str, table: str, data: bytes, config: Any) -> Any:
        """Load a file under a job's name; the job that has the name already, None where there was none."""
        try:
            job = client.load_table_from_file(io.BytesIO(data), table, size=len(data), job_id=job_id, job_config=config)
        except Exception as error:
            if getattr(error, "code", None) != HTTPStatus.CONFLICT:
                raise
            return client.get_job(job_id)
        job.result(timeout=PATIENCE)
        return None


def _has_loaded(job: Any) -> bool:
    """Whether a job has loaded its rows, once it has ended; one that has failed has loaded nothing."""
    try:
        job.result(timeout=PATIENCE)
    except Exception:
        if job.error_result is None:
            raise
        return False
    return True


def schema_of(schema: pa.Schema) -> list[tuple[str, str, str]]:
    """Name, type and mode of every column of a table of BigQuery.

    >>> schema_of(pa.schema([pa.field("cell", pa.string(), nullable=False), ("repeats", pa.int64())]))
    [('cell', 'STRING', 'REQUIRED'), ('repeats', 'INTEGER', 'NULLABLE')]
    """
    return [(field.name, _type_of(field.type), "NULLABLE" if field.nullable else "REQUIRED") for field in schema]


def _type_of(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP"
    return {pa.int64(): "INTEGER", pa.float64(): "FLOAT", pa.bool_(): "BOOLEAN"}.get(kind, "STRING")
