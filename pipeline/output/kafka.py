"""Publish releases and public accounts to Kafka, at least once, after they are durable on disk."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from pipeline.config.sections import KafkaOutput
from pipeline.sources.reading.kafka_client import Producer

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


#: What makes two rows of a topic the same one.
RELEASE_KEY = ("stream", "window", "cell")
ACCOUNT_KEY = ("stream", "accountant", "subject", "window", "name")

#: Rows that are made into messages together.
_ROWS = 20_000

#: One for each cluster of brokers in a process.
_producers: dict[str, Producer] = {}


def publish_releases(plan: Plan, table: pa.Table) -> None:
    """Send releases to the topic that the configuration names, if any.

    Windows are sent in order, each at least once: what is released again after a kill is the same and is sent again
    under the same key. Returns when every row has been delivered.

    Raises
    ------
    DataError
        A row could not be delivered.
    """
    output = plan.config.output.kafka
    if output is not None and output.releases is not None:
        _publish(output, output.releases, table, RELEASE_KEY)


def publish_accounts(plan: Plan, table: pa.Table) -> None:
    """Send rows of public accounts, as `publish_releases` does."""
    output = plan.config.output.kafka
    if output is not None and output.accounts is not None:
        _publish(output, output.accounts, table, ACCOUNT_KEY)


def messages(table: pa.Table, key: tuple[str, ...]) -> list[tuple[str, bytes]]:
    """Key and JSON text of every row.

    Examples
    --------
    >>> messages(pa.table({"stream": ["main"], "window": [1], "value": [2.0]}), ("stream", "window"))
    [('main/1', b'{"stream":"main","window":1,"value":2.0}')]
    """
    frame = pl.DataFrame(table).with_columns(
        pl.col(pl.Categorical).cast(pl.String),
        pl.col(pl.Datetime).dt.strftime("%Y-%m-%dT%H:%M:%S%.3fZ"),
    )
    keys = frame.select(pl.concat_str([pl.col(name).cast(pl.String).fill_null("") for name in key], separator="/"))
    lines = io.BytesIO()
    frame.write_ndjson(lines)
    return list(zip(keys.to_series(), lines.getvalue().splitlines()))


def _publish(output: KafkaOutput, topic: str, table: pa.Table, key: tuple[str, ...]) -> None:
    where = json.dumps([output.brokers, output.options], sort_keys=True)
    if where not in _producers:
        _producers[where] = Producer(output.brokers, output.options)
    producer = _producers[where]
    try:
        for first in range(0, len(table), _ROWS):
            for name, text in messages(table.slice(first, _ROWS), key):
                producer.send(topic, name, text)
        producer.flush()
    except Exception:
        # It would fail for ever; an engine tries again in the same process.
        _producers.pop(where, None)
        raise
