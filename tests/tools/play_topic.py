"""Play a source into a topic, at a stated rate: ``python -m tests.tools.play_topic CONFIG --brokers … --topic …``."""

from __future__ import annotations

import argparse
import importlib
import io
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from penstock.pipeline.sources.base import Source
from penstock.pipeline.sources.reading.kafka_client import Producer, library

#: How far behind the end of the run the event that ends it is, in milliseconds.
_BEYOND = 366 * 86_400_000


def play(
    source: Source,
    producer: Producer,
    topic: str,
    n_partitions: int,
    format: str = "json",
    rows: int = 10_000,
    rate: float | None = None,
    end: bool = False,
) -> int:
    """Send the events of a source to the partitions of a topic, those of one user to the same one.

    To a source of type kafka their times are ``unix_ms``, whatever the format.

    Parameters
    ----------
    source
        Where events come from.
    producer, topic, n_partitions
        Where they go.
    format
        ``json``: a message each; ``avro``: likewise, by `avro_schema`.
    rows
        Events that are sent together.
    rate
        Events a second; None: as fast as it goes.
    end
        Whether to send an event long after the end of the run to every partition, so that a run with ``until`` ends.

    Returns
    -------
    Number of events of the source.
    """
    begun, n_sent = time.monotonic(), 0
    last = None
    for frame in _pieces(source, rows):
        for partition, value in _messages(frame, n_partitions, format):
            producer.send(topic, "", value, partition)
        n_sent, last = n_sent + frame.height, frame
        if rate is not None:
            time.sleep(max(0.0, begun + n_sent / rate - time.monotonic()))
    if end and last is not None and source.until is not None:
        beyond = last[-1:].with_columns(pl.lit(source.until + _BEYOND).alias("time"))
        for partition in range(n_partitions):
            for _, value in _messages(beyond, 1, format):
                producer.send(topic, "", value, partition)
    producer.flush()
    return n_sent


def avro_schema(columns: Iterable[str], integer_users: bool) -> str:
    """Avro schema of the events that `play` sends."""
    types = {"user": "long" if integer_users else "string", "time": "long", "place": "string"}
    fields = [{"name": name, "type": types.get(name, "double")} for name in columns]
    return json.dumps({"type": "record", "name": "event", "fields": fields})


def _pieces(source: Source, rows: int) -> Iterator[pl.DataFrame]:
    for block in source.all_blocks():
        yield from block.frame.iter_slices(rows)


def _messages(frame: pl.DataFrame, n_partitions: int, format: str) -> Iterator[tuple[int, bytes]]:
    """Partition and content of the messages for some events."""
    partition = (frame["user"].hash(seed=0).to_numpy() % np.uint64(n_partitions)).astype(np.int64)
    yield from zip(partition.tolist(), _values(frame, format))


def _values(frame: pl.DataFrame, format: str) -> Iterator[bytes]:
    if format == "json":
        lines = io.BytesIO()
        frame.write_ndjson(lines)
        yield from lines.getvalue().splitlines()
        return
    import fastavro

    schema = fastavro.parse_schema(json.loads(avro_schema(frame.columns, frame["user"].dtype.is_integer())))
    for event in frame.iter_rows(named=True):
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, event)
        yield stream.getvalue()


def make_topics(
    brokers: str, topics: dict[str, int], options: dict[str, Any] | None = None, by_broker: bool = False
) -> None:
    """Make topics with so many partitions each, one replica; their timestamps are the senders' or the broker's."""
    library()
    administration: Any = importlib.import_module("confluent_kafka.admin")
    admin = administration.AdminClient({"bootstrap.servers": brokers, **(options or {})})
    config = {"message.timestamp.type": "LogAppendTime" if by_broker else "CreateTime"}
    wanted = [administration.NewTopic(name, number, 1, config=config) for name, number in topics.items()]
    made = admin.create_topics(wanted)
    for future in made.values():
        future.result()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    from penstock.pipeline.config.run import load

    parser = argparse.ArgumentParser(prog="python -m tests.tools.play_topic", description=__doc__)
    parser.add_argument("config", help="configuration whose source is played")
    parser.add_argument("--brokers", required=True, help="host:port, several with commas between them")
    parser.add_argument("--topic", required=True, help="a topic that exists")
    parser.add_argument("--format", default="json", choices=("json", "avro"))
    parser.add_argument("--rows", type=int, default=10_000, help="events that are sent together")
    parser.add_argument("--rate", type=float, help="events a second; as fast as it goes where it is left out")
    parser.add_argument("--end", action="store_true", help="end runs that have an until with an event beyond it")
    given = parser.parse_args(arguments)
    client = library().Consumer({"bootstrap.servers": given.brokers, "group.id": "penstock"})
    n_partitions = len(client.list_topics(given.topic, timeout=20).topics[given.topic].partitions)
    client.close()
    producer = Producer(given.brokers, {})
    source = load(given.config).source
    begun = time.monotonic()
    n_sent = play(source, producer, given.topic, n_partitions, given.format, given.rows, given.rate, given.end)
    seconds = time.monotonic() - begun
    print(f"{n_sent:,} events in {seconds:.1f} s ({n_sent / seconds:,.0f}/s) to {n_partitions} partitions")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
