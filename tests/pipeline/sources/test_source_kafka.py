"""Messages of Kafka without a broker: decoding, rejects, time."""

from __future__ import annotations

import io
import json
import random
from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from penstock.mechanisms.core.plugin import ConfigError, DataError, MissingLibrary, ParameterError
from penstock.pipeline.config.canonical import resolved
from penstock.pipeline.config.run import loads
from penstock.pipeline.config.sections import KafkaOutput
from penstock.pipeline.output.sinks import messages as kafka_output
from penstock.pipeline.sources.base import MIN_EVENT_TIME, Checkpointed
from penstock.pipeline.sources.kafka import Kafka
from penstock.pipeline.sources.reading import kafka_client, services
from penstock.pipeline.sources.reading.kafka import Consumer, block_of
from penstock.pipeline.sources.reading.kafka_progress import Journal, Progress, TopicEntry
from penstock.pipeline.sources.reading.payload import avro_parser

NOON = 1_704_110_400_000
AVRO = {
    "type": "record",
    "name": "event",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "place", "type": ["null", "string"]},
    ],
}


class Message:
    """Fake Kafka message."""

    kind = 2  # LogAppendTime

    def __init__(self, value, offset=0, sent=NOON, key=None):
        self._all = value, offset, sent, key

    def value(self):
        return self._all[0]

    def offset(self):
        return self._all[1]

    def timestamp(self):
        return (0, -1) if self._all[2] is None else (self.kind, self._all[2])

    def key(self):
        return self._all[3]


def kafka(**changes) -> Kafka:
    return Kafka(**{"brokers": "localhost:9092", "topic": "events", "columns": {"place": "place"}} | changes)


def block(source: Kafka, *values, **message):
    return block_of(source, 3, [Message(value, 10 + i, **message) for i, value in enumerate(values)])


def event(**changes) -> bytes:
    return json.dumps({"user": "ann", "time": "2024-01-01T12:00:00Z", "place": "a"} | changes).encode()


def test_json_messages_become_events():
    actual = block(kafka(), event(), event(user=7, more=[1, {}]), event(place="ü"))
    assert actual.rejects == ()
    assert actual.frame.to_dict(as_series=False) == {
        "user": ["ann", "7", "ann"],
        "time": [NOON] * 3,
        "place": ["a", "a", "ü"],
        "arrival": [NOON] * 3,
    }


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "the message is empty"),
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"user": ' + b"9" * 10_000 + b"}", "not valid JSON"),
        (b"[1]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (event(user=None), "user is missing (or is no integer)"),
        (event(user=True), "user is missing (or is no integer)"),
        (event(user=""), "user is missing (or is no integer)"),
        (event(user={"a": 1}), "user is missing (or is no integer)"),
        (b'{"user": "\\ud800", "time": "2024-01-01T12:00:00Z", "place": "a"}', "user is missing (or is no integer)"),
        (event(time="yesterday"), "time is not ISO 8601"),
        (event(time=NOON), "time is not ISO 8601"),
        (b"\0\0\0\0\7" + event(), "five bytes before the JSON, as of a schema id: see source.schema_ids"),
        (event(place=[]), "place is empty"),
    ],
)
def test_one_malformed_message_is_one_reject(value, reason):
    actual = block(kafka(), event(), value, event())
    assert actual.frame.height == 2
    assert [(reject.file, reject.line, reject.reason) for reject in actual.rejects] == [("events/3", 11, reason)]


@pytest.mark.parametrize("latitude", ["NaN", "Infinity", "1e999", "91", '"1°"', "true", "9" * 400])
def test_coordinates_are_finite_numbers_in_range(latitude):
    source = kafka(columns={}, time_format="unix_ms", user_type="integer")
    good = f'{{"user": 1, "time": {NOON}, "latitude": 1, "longitude": 2.5}}'
    actual = block(source, good.encode(), good.replace("1,", f"{latitude},", 2).replace(f"{latitude}", "1", 1).encode())
    assert actual.frame.rows() == [(1, NOON, 1.0, 2.5, NOON)]
    assert len(actual.rejects) == 1


def test_messages_are_read_like_lines_of_a_file():
    columns = {"user": "by.id", "latitude": "at.coordinates.1", "longitude": "at.coordinates.0"}
    value = {"by": {"id": "ann"}, "time": str(NOON), "at": {"coordinates": ["8.5", 47.25]}}
    expected = [("ann", NOON, 47.25, 8.5, NOON)]
    for unit, zeros in (("unix_ms", ""), ("unix_ns", "000000")):
        text = json.dumps(value | {"time": f"{NOON}{zeros}"}).encode()
        actual = block(kafka(columns=columns, time_format=unit), text, b"\xef\xbb\xbf" + text, b'{"by": ["ann"]}')
        assert actual.frame.rows() == expected * 2
        assert [reject.reason for reject in actual.rejects] == [
            f"time is not Unix {'milliseconds' if unit == 'unix_ms' else 'nanoseconds'}"
        ]


def test_a_field_whose_name_has_a_point_is_not_a_path():
    assert block(kafka(columns={"place": "a.b"}), event(**{"a.b": "c"})).frame["place"].to_list() == ["c"]


def test_an_event_cannot_be_long_after_its_message():
    source = kafka(ahead=60_000)
    late, early, unknown = NOON - 60_001, NOON - 60_000, None
    assert [r.reason for r in block(source, event(), sent=late).rejects] == ["time is later than its message was sent"]
    assert block(source, event(), sent=early).rejects == ()
    assert block(replace(source, watermark="events"), event(), sent=unknown).rejects == ()


def avro(*, schema=AVRO, **event) -> bytes:
    import fastavro

    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), event)
    return stream.getvalue()


def test_avro_records_become_events():
    source = kafka(format="avro", schema=json.dumps(AVRO), time_format="unix_ms")
    good = avro(user="ann", time=NOON, place="a")
    actual = block(source, good, good + b"x", good[:-1], b"\xff" * 20, avro(user="bob", time=NOON, place=None))
    assert actual.frame.rows() == [("ann", NOON, "a", NOON)]
    assert [reject.reason for reject in actual.rejects] == [
        "bytes after the Avro record",
        "not a record of the Avro schema",
        "not a record of the Avro schema",
        "place is empty",
    ]


def test_avro_with_a_schema_id_before_it():
    source = kafka(format="avro", schema=json.dumps(AVRO), schema_ids=True, time_format="unix_ms")
    good = avro(user="ann", time=NOON, place="a")
    actual = block(source, b"\0\0\0\0\7" + good, good)
    assert actual.frame.height == 1
    assert [reject.reason for reject in actual.rejects] == ["no schema id before the event"]


def test_json_with_a_schema_id_before_it():
    actual = block(kafka(schema_ids=True), b"\0\0\0\0\7" + event(), event())
    assert actual.frame.height == 1
    assert [reject.reason for reject in actual.rejects] == ["no schema id before the event"]


@pytest.mark.parametrize(
    ("logical", "factor"), [("timestamp-millis", 1), ("timestamp-micros", 1000), ("timestamp-nanos", 10**6)]
)
def test_logical_types_of_avro_say_how_times_are_written(logical, factor):
    schema = json.loads(json.dumps(AVRO))
    schema["fields"][1]["type"] = ["null", {"type": "long", "logicalType": logical}]
    source = kafka(format="avro", schema=json.dumps(schema))
    good = avro(schema=schema, user="ann", time=NOON * factor + factor - 1, place="a")
    assert block(source, good).frame.rows() == [("ann", NOON, "a", NOON)]
    with pytest.raises(ParameterError, match=r"time_format: 'unix_s' .* as the schema says"):
        kafka(format="avro", schema=json.dumps(schema), time_format="unix_s")


@pytest.mark.parametrize("logical", ["local-timestamp-millis", "date", "time-millis"])
def test_logical_types_that_are_no_instants_are_refused(logical):
    schema = json.loads(json.dumps(AVRO))
    schema["fields"][1]["type"] = {"type": "long", "logicalType": logical}
    with pytest.raises(ParameterError, match=f"columns.time: 'time' .* not {logical}"):
        kafka(format="avro", schema=json.dumps(schema), time_format="unix_ms")


def test_a_logical_type_of_text_is_text():
    schema = json.loads(json.dumps(AVRO))
    schema["fields"][1]["type"] = {"type": "string", "logicalType": "timestamp-millis"}
    good = avro(schema=schema, user="ann", time="2024-01-01T12:00:00Z", place="a")
    assert block(kafka(format="avro", schema=json.dumps(schema)), good).frame.height == 1


def test_points_as_text_are_no_column_of_messages():
    with pytest.raises(ParameterError, match=r"columns.point: 'at' .* latitude and longitude"):
        kafka(columns={"point": "at"})


def test_instants_in_two_units_are_refused():
    schema = json.loads(json.dumps(AVRO))
    kinds = [{"type": "long", "logicalType": logical} for logical in ("timestamp-millis", "timestamp-micros")]
    schema["fields"][1]["type"] = kinds
    with pytest.raises(ParameterError, match=r"columns.time: 'time' .* one unit, not unix_ms and unix_us"):
        kafka(format="avro", schema=json.dumps(schema), time_format="unix_ms")


@pytest.mark.parametrize(
    ("kind", "format", "message_part"), [("long", "iso", "times are numbers"), ("string", "unix_ms", "times are text")]
)
def test_times_that_no_message_can_have_are_refused_beforehand(kind, format, message_part):
    schema = json.loads(json.dumps(AVRO))
    schema["fields"][1]["type"] = kind
    with pytest.raises(ParameterError, match=message_part):
        kafka(format="avro", schema=json.dumps(schema), time_format=format)


@pytest.mark.parametrize(
    ("field", "kind", "said"),
    [
        (0, "double", "columns.user: 'user' .* not double"),
        (1, "boolean", "columns.time: 'time' .* of text or numbers, not boolean"),
        (1, ["null"], "columns.time: 'time' .* of text or numbers, not null"),
        (2, "bytes", "columns.place: 'place' .* not bytes"),
        (2, None, r"columns.place: 'place' .* a field of the schema \(user, time\)"),
    ],
)
def test_fields_of_which_no_value_is_read_are_refused_beforehand(field, kind, said):
    schema = json.loads(json.dumps(AVRO))
    if kind is None:
        del schema["fields"][field]
    else:
        schema["fields"][field]["type"] = kind
    with pytest.raises(ParameterError, match=said):
        kafka(format="avro", schema=json.dumps(schema))


@pytest.mark.parametrize(("format", "factor"), [("unix_us", 1000), ("unix_ns", 10**6)])
def test_json_may_count_micro_or_nanoseconds(format, factor):
    actual = block(kafka(time_format=format), event(time=NOON * factor + 1))
    assert actual.frame["time"].to_list() == [NOON]


@pytest.mark.parametrize(
    "schema",
    [
        "{",
        "[]",
        '"string"',
        json.dumps({"type": "array", "items": "null"}),
        json.dumps(AVRO | {"fields": [{"name": "next", "type": ["null", "event"]}]}),
        json.dumps(AVRO | {"fields": [{"name": "next", "type": {"type": "array", "items": "null"}}]}),
        json.dumps(AVRO | {"fields": [{"name": "next", "type": {"type": "map", "values": "int"}}]}),
    ],
)
def test_a_schema_that_could_hold_without_bounds_is_refused(schema):
    with pytest.raises(ParameterError, match="schema"):
        kafka(format="avro", schema=schema)


def test_damaged_avro_and_json_are_malformed_and_nothing_else():
    parse, rng = avro_parser(json.dumps(AVRO)), random.Random(7)
    source = kafka(format="avro", schema=json.dumps(AVRO), time_format="unix_ms")
    good, n_read = avro(user="ann", time=NOON, place="a"), 0
    assert parse(good)["user"] == "ann"
    for make, topic_source in ((good, source), (event(), kafka())):
        damaged = []
        for _ in range(2000):
            data = bytearray(make)
            data[rng.randrange(len(data))] = rng.randrange(256)
            damaged.append(bytes(data))
        actual = block(topic_source, *damaged)
        assert actual.n_rows == 2000
        n_read += actual.frame.height
    assert 0 < n_read < 4000


def test_time_is_the_earliest_of_the_partitions():
    progress = Progress(offsets={0: 0, 1: 0, 2: 0}, times=dict.fromkeys(range(3), MIN_EVENT_TIME), first=0, limit=1000)
    nobody = frozenset()
    progress.read({0: (5, np.array([100, 50, 300])), 1: (1, np.array([40]))}, nobody)
    assert progress.watermark == MIN_EVENT_TIME
    progress.read({2: (1, np.array([-5]))}, nobody)
    assert progress.watermark == MIN_EVENT_TIME
    progress.read({2: (2, np.array([70]))}, nobody)
    assert progress.watermark == 40
    progress.read({}, frozenset({1}))
    assert progress.watermark == 70
    [reached] = progress.read({1: (2, np.array([50, 60]))}, nobody)
    assert (reached.tolist(), progress.watermark) == ([70, 70], 70)
    progress.read({0: (6, np.array([5000])), 1: (3, np.array([5000])), 2: (3, np.array([5000]))}, nobody)
    assert progress.watermark == 1000
    progress.read({}, frozenset({0, 1, 2}))
    assert progress.watermark == 1000


def test_what_is_late_does_not_depend_on_how_partitions_are_mixed():
    """Rows are held against their own partition: any mix of the partitions accepts the same rows."""
    rng = np.random.default_rng(3)
    parts = {p: np.arange(200) * 10 - rng.integers(0, 80, 200) for p in range(3)}
    outcomes = set()
    for seed in range(20):
        mix = random.Random(seed)
        progress, at = (
            Progress(offsets=dict.fromkeys(parts, 0), times=dict.fromkeys(parts, MIN_EVENT_TIME)),
            dict.fromkeys(parts, 0),
        )
        late = {}
        while any(at[p] < 200 for p in parts):
            ends = {p: min(200, at[p] + mix.randrange(0, 30)) for p in parts}
            rows = {p: (end, parts[p][at[p] : end]) for p, end in ends.items() if end > at[p]}
            for p, reached in zip(rows, progress.read(rows, frozenset())):
                late.setdefault(p, []).extend((rows[p][1] // 100 * 100 + 100 <= reached - 20).tolist())
            at = ends
        outcomes.add(json.dumps([late[p] for p in parts]))
    assert len(outcomes) == 1
    assert "true" in outcomes.pop()


def test_by_the_broker_a_row_is_held_against_its_arrival():
    """However long after the row before it; one that a clock set back has made older, against what has passed."""
    progress = Progress({0: 0, 1: 0}, {0: MIN_EVENT_TIME, 1: MIN_EVENT_TIME}, disorder=5, by_broker=True)
    assert np.concatenate(progress.read({0: (2, np.array([10, 90]))}, frozenset())).tolist() == [10, 90]
    assert np.concatenate(progress.read({0: (4, np.array([60, 95]))}, frozenset())).tolist() == [85, 95]
    assert np.concatenate(progress.read({1: (1, np.array([40]))}, frozenset())).tolist() == [40]


def test_progress_goes_on_from_its_state():
    progress = Progress(offsets={4: 7, 1: 2}, times={4: 30, 1: MIN_EVENT_TIME}, idle=frozenset({1}), watermark=30)
    again = Progress(watermark=30)
    again.restore(progress.as_state())
    assert again == progress


def test_a_journal_keeps_what_no_checkpoint_covers(tmp_path):
    journal = Journal(tmp_path, 0, TopicEntry.decode)
    entries = [TopicEntry(n, {0: (n, n + 1), 10: (5, 9)}, frozenset({2}), clock=n) for n in range(5)]
    for entry in entries:
        journal.append(entry, Checkpointed(number=0))
    with journal.path.open("a") as file:
        file.write('{"number": 5, "ran')
    assert Journal(tmp_path, 3, TopicEntry.decode).entries == entries[3:]
    assert Journal(tmp_path, 3, TopicEntry.decode).entries == entries[3:]
    assert Journal(tmp_path, 2, TopicEntry.decode).entries == []


def test_a_journal_is_taken_over_and_stays_short(tmp_path):
    dead = Journal(tmp_path, 0, TopicEntry.decode)
    dead.append(TopicEntry(0, {}, frozenset()), Checkpointed(number=0))
    alive = Journal(tmp_path, 0, TopicEntry.decode)
    with pytest.raises(FileNotFoundError):
        dead.append(TopicEntry(1, {0: (1, 2)}, frozenset()), Checkpointed(number=0))
    ranges = dict.fromkeys(range(1000), (10**12, 10**12 + 1))
    for number in range(1, 200):
        alive.append(TopicEntry(number, ranges, frozenset()), Checkpointed(number=number - 3))
    assert alive.path.stat().st_size < 3 << 20
    assert [entry.number for entry in Journal(tmp_path, 196, TopicEntry.decode).entries] == [196, 197, 198, 199]


def test_a_journal_keeps_everything_while_an_engine_may_go_back(tmp_path):
    journal, ranges = Journal(tmp_path, 0, TopicEntry.decode), dict.fromkeys(range(1000), (10**12, 10**12 + 1))
    for number in range(60):
        journal.append(TopicEntry(number, ranges, frozenset()), Checkpointed())
    assert journal.path.stat().st_size > 3 << 19
    assert len(Journal(tmp_path, 0, TopicEntry.decode).entries) == 60


def test_secrets_are_named_and_never_written(tmp_path, monkeypatch):
    with pytest.raises(ParameterError) as caught:
        kafka(options={"sasl.password": "hunter2"})
    assert "hunter2" not in str(caught.value)
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    options = {"security.protocol": "SASL_SSL", "sasl.password": "env:KAFKA_PASSWORD"}
    assert kafka_client.resolved_options("a:1", options)["sasl.password"] == "hunter2"
    secret = tmp_path / "password"
    secret.write_text("hunter2\n")
    secret.chmod(0o644)
    with pytest.raises(DataError, match="others may read this"):
        services.resolved_value("ssl.key.password", f"file:{secret}")
    secret.chmod(0o600)
    assert services.resolved_value("ssl.key.password", f"file:{secret}") == "hunter2"
    with pytest.raises(DataError, match="is not set"):
        services.resolved_value("sasl.password", "env:NOT_THERE_AT_ALL")
    assert "hunter2" not in json.dumps(resolved(configured(options=options), secrets=True))


@pytest.mark.parametrize(
    "name",
    [
        "group.id",
        "enable.auto.commit",
        "plugin.library.paths",
        "isolation.level",
        "ssl.engine.location",
        "sasl.kerberos.kinit.cmd",
    ],
)
def test_options_that_would_undo_what_is_promised_are_refused(name):
    with pytest.raises(ParameterError, match=name):
        kafka(options={name: "x"})


def configured(**changes):
    source = {"type": "kafka", "brokers": "localhost:9092", "topic": "events", "columns": {"place": "place"}}
    return loads(
        json.dumps(
            {
                "name": "kafka",
                "source": source | {"from": "2024-01-01T00:00:00Z"} | changes,
                "space": {"type": "places", "list": ["a", "b"], "elsewhere": False},
                "windows": {"type": "fixed", "size": "1h"},
                "mechanism": {"type": "discrete_laplace", "epsilon": 1.0},
                "output": {"path": "out"},
            }
        )
    )


def test_a_topic_is_a_source_without_an_end():
    config = configured()
    assert config.source.endless
    assert config.source.recorded.options == {}
    with pytest.raises(DataError, match="as they come"):
        config.source.from_start()
    assert list(kafka(columns={"latitude": "y", "place": "p"}).layout.columns.values()) == [
        "user",
        "time",
        "y",
        "longitude",
        "p",
    ]
    with pytest.raises(ConfigError, match="dead letters"):
        configured(dead_letters="events")


def test_the_missing_client_is_named(without):
    without("confluent_kafka")
    with pytest.raises(MissingLibrary, match=r"penstock\[kafka\]"):
        kafka_client.library()


def test_a_producer_that_has_failed_is_not_asked_again(monkeypatch):
    class Broken:
        made = 0

        def __init__(self, *_):
            Broken.made += 1

        def send(self, *_):
            raise DataError("a message could not be delivered")

    monkeypatch.setattr(kafka_output, "Producer", Broken)
    output = KafkaOutput(brokers="broken:1", releases="footfall")
    table = pa.table({"stream": ["main"], "window": [1], "cell": ["a"]})
    publisher = kafka_output.Publisher(output)
    assert Broken.made == 0
    publisher.accounts(table)  # no topic for them
    assert Broken.made == 0
    for _ in range(2):  # an engine tries again with the same writer
        with pytest.raises(DataError):
            publisher.releases(table)
    assert Broken.made == 2


class Pieces(Consumer):
    """A consumer that is brought a partition's messages, by their offsets, a few at a time, and then its end at 9."""

    def __init__(self, *pieces):
        self._waiting, self._ended, self._pieces = {0: deque()}, {}, deque(pieces)

    def _fill(self, seconds=0.0):
        self._waiting[0] += [SimpleNamespace(offset=lambda n=n: n) for n in self._pieces.popleft()]
        self._ended = {} if self._pieces else {0: 0.0}

    def bounds(self, partition):
        return 0, 9


def test_a_batch_that_is_read_again_has_all_of_its_messages():
    consumer = Pieces([2, 3], [4], [5, 6], [])
    assert [message.offset() for message in consumer.take({0: (2, 6)})[0]] == [2, 3, 4, 5]
    assert [message.offset() for message in consumer.take({0: (6, 9)})[0]] == [6]  # 7 and 8 hold no message
