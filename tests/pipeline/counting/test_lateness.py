"""Lateness depends on a row's own times only, never on other people's rows."""

from __future__ import annotations

import json
import random
from datetime import timedelta

import numpy as np
import polars as pl
import pytest

from penstock.mechanisms.core.noise_keys import new_key_file
from penstock.mechanisms.core.plugin import ConfigError, DataError
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.counting.ingest import classify_rows, last_final_windows
from penstock.pipeline.runners.shared import live_input
from penstock.pipeline.sources.base import MIN_EVENT_TIME, Checkpointed
from penstock.pipeline.sources.reading import kafka
from penstock.pipeline.sources.reading.kafka_progress import Progress, TopicEntry
from tests.tools.small_configuration import START, small_sections
from tests.tools.small_configuration import run_locally as run

MINUTE = 60_000
BEGIN = int(START.timestamp() * 1000)
FIXED = {"type": "fixed", "size": "1h", "allowed_lateness": "10m"}
HALF = {"type": "fixed", "size": "30m", "allowed_lateness": "5m"}

#: A row: user, minute of the event, place, minute of its arrival.
Row = tuple[str, float, str, float]


def disordered(n: int, seed: int) -> list[Row]:
    """Rows of thirty people, received up to an hour and a half after the event, in the order of arrival."""
    rng = random.Random(seed)
    rows = [(f"u{rng.randrange(30)}", minute, rng.choice("abc")) for minute in (rng.uniform(0, 360) for _ in range(n))]
    return sorted(((*row, row[1] + rng.expovariate(1 / 20) % 90) for row in rows), key=lambda row: row[3])


def stream_sections(folder, rows: list[Row], arrival: bool = True, windows: dict = FIXED, **source) -> dict:
    def at(minute: float) -> str:
        return (START + timedelta(minutes=minute)).isoformat()

    lines = [f"{user},{at(minute)},{place},{at(received)}" for user, minute, place, received in rows]
    folder.mkdir(exist_ok=True)
    (folder / "events.csv").write_text("\n".join(["user,time,place,received", *lines]) + "\n")
    sections = small_sections(folder, str(folder / "events.csv"), windows=windows, landmarks=None)
    if arrival:
        sections["source"]["columns"] |= {"arrival": "received"}
    sections["source"] = {"type": "stream", "of": sections["source"], "order": "arrival", **source}
    return sections | {"mechanism": {"type": "discrete_laplace", "epsilon": 1.0}, "utility": []}


def streamed(folder, rows: list[Row], **changes):
    """Counts by window and cell, and the manifest, of a simulation."""
    result = run(loads(json.dumps(stream_sections(folder, rows, **changes))))
    truth = pl.read_parquet(result.folder / "operator" / "truth.parquet").sort("window", "cell")
    return truth["count"].to_numpy(), result


def expected_late(rows: list[Row], lateness: float) -> int:
    """By the definition, for windows of an hour."""
    return sum(received >= 60 * (minute // 60 + 1) + lateness for _, minute, _, received in rows)


def test_one_event_from_the_future_makes_nobody_else_late(tmp_path):
    rows = disordered(800, seed=1)
    attack = [("victim", 355.0, "a", rows[20][3]), *rows]
    attack.sort(key=lambda row: row[3])
    late = {}
    for arrival in (False, True):
        for name, world in (("without", rows), ("with", attack)):
            counts, result = streamed(tmp_path / f"{name}{arrival}", world, arrival=arrival)
            late[name, arrival] = result.manifest["rows"]["late"]
            public = json.loads((result.folder / "public" / "manifest.json").read_text())
            assert public["lateness"].startswith("own" if arrival else "shared")
            assert public["guarantee"][0]["guarantee"].startswith("none") is not arrival
            late["counts", name, arrival] = counts
    # In the order of the events alone, which only a simulation may take, one row decides about hundreds.
    assert late["with", False] > late["without", False] + 500
    assert late["with", True] == late["without", True] == expected_late(rows, 10) > 20
    difference = late["counts", "with", True] - late["counts", "without", True]
    assert (difference.sum(), np.count_nonzero(difference)) == (1, 1)


@pytest.mark.parametrize(("windows", "block_rows", "seed"), [(FIXED, 10, 2), (FIXED, 10**6, 3), (HALF, 40, 4)])
def test_the_others_count_the_same_with_and_without_a_person(tmp_path, windows, block_rows, seed):
    """Distinct people add up: everybody's counts are those of the others and those of one person alone."""
    rng = random.Random(seed)
    others = disordered(300, seed)
    person = [
        (
            "person",
            rng.uniform(0, 360),
            rng.choice("abc"),
            rng.choice((rng.uniform(0, 450), others[rng.randrange(300)][3])),
        )
        for _ in range(40)
    ]
    everybody = others + person
    rng.shuffle(everybody)  # arrival is in the column, not in the order of the file
    counts = [
        streamed(tmp_path / name, rows, windows=windows, block_rows=block_rows, disorder="7m")[0]
        for name, rows in (("all", everybody), ("others", others), ("person", person))
    ]
    assert counts[2].sum() > 0
    np.testing.assert_array_equal(counts[0], counts[1] + counts[2])


def test_a_row_received_at_the_deadline_is_late_and_one_before_it_is_not(tmp_path):
    rows = [("u", 59.0, "a", 69.99), ("v", 59.0, "a", 70.0), ("w", 61.0, "b", 70.0), ("x", 59.0, "a", 400.0)]
    counts, result = streamed(tmp_path, rows)
    assert result.manifest["rows"]["late"] == 2
    assert counts.reshape(6, 3)[:2].tolist() == [[1, 0, 0], [0, 1, 0]]


def test_the_clock_of_arrival_passes_the_last_deadline_and_its_disorder_while_rows_still_come(tmp_path):
    rows = [("u", 59.0, "a", 60.0), ("v", 355.0, "a", 376.9), ("w", 1.0, "a", 400.0), ("x", 1.0, "a", 900.0)]
    config = loads(json.dumps(stream_sections(tmp_path, rows, disorder="7m", block_rows=1)))
    plan = make_plan(config, tmp_path / "plan")
    pieces = config.source.micro_batches(live_input(plan), tmp_path / "spool", {}, 0, MIN_EVENT_TIME, Checkpointed())
    final = [plan.grid.last_final(piece.after - config.source.disorder) for piece in pieces]
    assert final[-3:] == [5, 6, 6]


def test_an_unreadable_arrival_is_a_reject(tmp_path):
    sections = stream_sections(tmp_path, disordered(50, seed=5))
    path = tmp_path / "events.csv"
    path.write_text(path.read_text() + "u1,2024-01-01T00:10:00+00:00,a,soon\n")
    rows = run(loads(json.dumps(sections))).manifest["rows"]
    assert rows["rejected_by_reason"] == {"arrival cannot be read": 1}


def deployed(sections: dict, folder) -> dict:
    if not (folder / "key").exists():
        new_key_file(folder / "key")
    return {key: value for key, value in sections.items() if key != "seed"} | {
        "mode": "deployment",
        "noise_key": str(folder / "key"),
        "accountants": [{"type": "composition"}],
        "output": sections["output"] | {"ledger_source": "events"},
    }


def test_a_deployment_without_arrival_times_is_refused_with_what_would_be_right(tmp_path):
    rows = disordered(50, seed=6)
    shared = deployed(stream_sections(tmp_path, rows, arrival=False), tmp_path)
    with pytest.raises(ConfigError, match=r":16: source.order: 'arrival' is not allowed; it must be time; or map when"):
        loads(json.dumps(shared, indent=1))
    result = run(loads(json.dumps(shared | {"allow_no_guarantee": True})))
    manifest = json.loads((result.folder / "public" / "manifest.json").read_text())
    assert manifest["guarantee"][0]["guarantee"].startswith("none: lateness is shared")
    for world in (stream_sections(tmp_path, rows), stream_sections(tmp_path, rows, arrival=False, order="time")):
        assert loads(json.dumps(deployed(world, tmp_path))).mode == "deployment"


def test_a_deployment_on_a_column_of_arrival_keeps_no_trace_of_it(tmp_path):
    """Positions and people leave before the spool; releases are those of an undisturbed order."""
    rows = disordered(200, seed=7)
    result = run(loads(json.dumps(deployed(stream_sections(tmp_path, rows), tmp_path))))
    assert result.manifest["rows"]["late"] == expected_late(rows, 10)


# Kafka: a row arrives when the broker appends its message.

TOPIC = """
name: topic
seed: 1
source: {type: kafka, brokers: "localhost:1", topic: events, time_format: unix_ms, columns: {place: place},
  from: 2024-01-01T00:00:00Z, MORE}
space: {type: places, list: [a, b, c], elsewhere: false}
windows: {type: fixed, size: 1h, allowed_lateness: 10m}
mechanism: {type: discrete_laplace, epsilon: 0.5}
output: {path: PATH, report: false, ledger_source: events}
"""


class Message:
    """Fake Kafka message."""

    def __init__(self, row: Row, offset: int, kind: int = 2) -> None:
        self.row, self._offset, self.kind = row, offset, kind

    def value(self):
        user, minute, place, _ = self.row
        return json.dumps({"user": user, "time": BEGIN + round(minute * MINUTE), "place": place}).encode()

    def offset(self):
        return self._offset

    def timestamp(self):
        return self.kind, BEGIN + round(self.row[3] * MINUTE)


class Partitions:
    """A consumer without a broker."""

    at_once = 64

    def __init__(self) -> None:
        self.ended: set[int] = set()
        self.unread: set[int] = set()

    def assign(self, _):
        pass

    def at_end(self, partition):
        return partition in self.ended

    def confirmed(self, partitions):
        return frozenset(partitions - self.unread)

    def pause(self, _):
        pass

    def listed(self):
        return [0, 1]


def reader_of(folder, more: str, n_partitions: int = 1):
    plan = make_plan(loads(TOPIC.replace("PATH", str(folder)).replace("MORE", more)), folder)
    reader = kafka._TopicReader(plan.config.source, live_input(plan), Partitions(), None, {}, MIN_EVENT_TIME)
    reader.add(dict.fromkeys(range(n_partitions), 0))
    return plan, reader


def slices(reader, rows: list[Row], sizes):
    """Rows of one partition as the reader cuts them."""
    at = number = 0
    while at < len(rows):
        world = [Message(row, at + i) for i, row in enumerate(rows[at : at + next(sizes)])]
        yield reader.batch(TopicEntry(number, {0: (at, at + len(world))}, frozenset()), {0: world})
        at, number = at + len(world), number + 1


def used(folder, rows: list[Row], seed: int = 0, more: str = "disorder: 1m") -> list[Row]:
    """Rows that are in time, read in slices of any size."""
    plan, reader = reader_of(folder, more)
    rng, actual = random.Random(seed), []
    for piece in slices(reader, rows, iter(lambda: rng.randrange(1, 60), 0)):
        actual += classify_rows(piece.block, plan.grid, plan.space, last_final_windows(piece, plan.grid)).used.tolist()
    return [row for row, is_used in zip(rows, actual, strict=True) if is_used]


def test_one_event_from_the_future_makes_nobody_else_late_in_a_topic(tmp_path):
    rows = disordered(800, seed=1)
    attack = [*rows[:20], ("victim", 355.0, "a", rows[20][3]), *rows[20:]]
    events = "watermark: events, disorder: 1m"
    lost = [len(world) - len(used(tmp_path, world, more=events)) for world in (rows, attack)]
    assert lost[1] > lost[0] + 500
    without, with_victim = used(tmp_path, rows), used(tmp_path, attack)
    assert [row for row in with_victim if row[0] != "victim"] == without
    assert len(rows) - len(without) == expected_late(rows, 10)


@pytest.mark.parametrize("seed", range(8))
def test_in_a_topic_the_others_rows_fare_the_same_with_and_without_a_person(tmp_path, seed):
    rows = disordered(300, seed)
    others = [row for row in rows if row[0] != "u3"]
    assert len(others) < len(rows)
    assert [row for row in used(tmp_path, rows, seed) if row[0] != "u3"] == used(tmp_path, others, seed + 1)


def test_timestamps_of_senders_are_refused(tmp_path):
    row = ("u", 5.0, "a", 5.0)
    plan, reader = reader_of(tmp_path, "disorder: 0s")
    with pytest.raises(DataError, match=r"partition 0, offset 9: .* message.timestamp.type=LogAppendTime"):
        reader.batch(TopicEntry(0, {0: (9, 10)}, frozenset()), {0: [Message(row, 9, kind=1)]})
    _, reader = reader_of(tmp_path, "watermark: events")
    assert reader.batch(TopicEntry(0, {0: (9, 10)}, frozenset()), {0: [Message(row, 9, kind=1)]}).block.n_rows == 1
    assert plan.config.source.lateness_flaw is None
    shared = TOPIC.replace("PATH", str(tmp_path / "out")).replace("MORE", "watermark: events")
    new_key_file(tmp_path / "key")
    shared = shared.replace("seed: 1", f"mode: deployment\nnoise_key: {tmp_path / 'key'}")
    with pytest.raises(ConfigError, match=r"source.watermark: .*events.* is not allowed; it must be broker"):
        loads(shared)
    with pytest.raises(ConfigError, match=r"columns.arrival"):
        loads(TOPIC.replace("PATH", "out").replace("MORE", "disorder: 0s").replace("{place", "{arrival: at, place"))


def test_a_broker_that_sets_its_clock_back_by_less_than_the_disorder_changes_nothing(tmp_path):
    rows = [("u", 50.0, "a", 70.5), ("v", 50.0, "a", 69.7), ("w", 50.0, "a", 71.1), ("x", 50.0, "a", 69.7)]
    # The last one would have been in time, and its window is gone: the assumption did not hold, and it is counted late.
    assert [row[0] for row in used(tmp_path, rows)] == ["v"]
    assert [row[0] for row in used(tmp_path, rows, more="disorder: 2m")] == ["v", "x"]


def test_at_the_end_of_a_partition_the_clock_goes_on_once_the_broker_confirms_it(tmp_path):
    _, reader = reader_of(tmp_path, "idle_after: 30s", n_partitions=2)
    consumer, row = reader.consumer, ("u", 20.0, "a", 30.0)
    reader.batch(TopicEntry(0, {0: (0, 1), 1: (0, 1)}, frozenset()), {0: [Message(row, 0)], 1: [Message(row, 0)]})

    def at(minute: float):
        reader.now = lambda: BEGIN / 1000 + 60 * minute
        assert reader.assign_and_pause({}) == {}
        idle, clock = reader.quiet({})
        if idle:
            reader.batch(TopicEntry(1, {}, idle, clock, reader.listed), {})
        return sorted(idle), (reader.progress.watermark - BEGIN) / MINUTE

    assert at(100) == ([], 30)  # nothing is at its end
    consumer.ended = {0}
    assert at(100) == ([], 30)  # the other one may have more
    consumer.ended = {0, 1}
    assert at(70.4) == ([], 30)  # no window is final 30 s before that
    consumer.unread = {1}
    assert at(70.6) == ([], 30)  # something is there that cannot be read yet, such as an open transaction
    consumer.unread = set()
    assert at(70.6) == ([0, 1], 70.1)
    assert at(100) == ([], 70.1)


def test_what_the_clock_decided_is_decided_again(tmp_path):
    progress = Progress({0: 5, 1: 7}, {0: 70, 1: 90}, by_broker=True, disorder=5)
    progress.read({}, frozenset({0}), clock=100)
    assert (progress.times, progress.watermark, progress.idle) == ({0: 100, 1: 90}, 90, frozenset())
    [reached] = progress.read({0: (8, np.array([60, 95, 120]))}, frozenset())
    assert reached.tolist() == [95, 95, 120]  # held against its own arrival, and against what is gone
    again = Progress(watermark=90, by_broker=True, disorder=5)
    again.restore(progress.as_state())
    assert again == progress


class Topic(Partitions):
    """A consumer of a topic of which a broker that is asked in time knows two partitions, the second one new."""

    refused, more = ConnectionError, False

    def __init__(self, rows: dict[int, list[Row]]) -> None:
        super().__init__()
        self.rows, self.minute, self.answers = rows, 0.0, True
        self.at: dict[int, int] = {}
        self.n_asked = 0

    def __call__(self, _):
        return self

    def partitions(self):
        return [0]

    def topic_id(self):
        return "id"

    def listed(self):
        self.n_asked += 1
        return list(self.rows) if self.answers else None

    def bounds(self, partition):
        return 0, len(self._there(partition))

    def assign(self, offsets):
        self.at |= offsets

    def _there(self, partition):
        return [row for row in self.rows[partition] if row[3] <= self.minute]

    def at_end(self, partition):
        return self.at[partition] == len(self._there(partition))

    def unreadable_reason(self):
        return None

    def poll(self, _):
        actual = {}
        for partition, at in self.at.items():
            if world := [Message(row, n) for n, row in enumerate(self._there(partition))][at:]:
                actual[partition], self.at[partition] = world, at + len(world)
        return actual

    def close(self):
        pass

    def pieces(self, plan):
        """Micro-batches of a run that asks for the partitions at every turn."""
        start = ({}, 0, MIN_EVENT_TIME, Checkpointed())
        options = {"now": lambda: BEGIN / 1000 + 60 * self.minute, "retry": -1.0}
        return kafka.micro_batches(plan.config.source, live_input(plan), self, *start, **options)


def test_a_message_that_ends_a_window_waits_for_no_other_turn(tmp_path):
    """The topic is listed before the message is read, not before the next one."""
    topic = Topic({0: [("u", minute - 1.0, "a", float(minute)) for minute in (30, 75)]})
    plan = make_plan(loads(TOPIC.replace("PATH", str(tmp_path)).replace("MORE", "disorder: 0s, idle_after: 1m")))
    pieces = topic.pieces(plan)
    for topic.minute in (30.0, 76.0):
        piece = next(pieces)
    assert (piece.block.frame["user"].to_list(), piece.after) == (["u"], BEGIN + 75 * MINUTE)


@pytest.mark.parametrize("is_quiet", [False, True])
def test_a_window_waits_for_a_list_of_the_partitions_that_is_younger_than_its_deadline(tmp_path, caplog, is_quiet):
    """A partition that was added at minute 40 has rows for the first hour, which is final at minute 70."""
    mine = [("u", minute - 1.0, "a", float(minute)) for minute in range(5, 60 if is_quiet else 200, 5)]
    topic = Topic({0: mine, 1: [("v", 30.0, "a", 45.0), ("w", 50.0, "a", 69.0), ("x", 50.0, "a", 71.0)]})
    plan = make_plan(loads(TOPIC.replace("PATH", str(tmp_path)).replace("MORE", "disorder: 0s, idle_after: 1m")))
    pieces = topic.pieces(plan)
    fates: dict[str, set[bool]] = {}
    reached = []
    for minute in (30, 60, 72, 90, 91, 92, 95, 100, 150, 199):
        topic.minute, topic.answers = float(minute), minute not in (72, 90, 91)
        if minute <= 60:
            topic.listed = lambda: [0]  # not there yet, or not known to the broker
        else:
            topic.__dict__.pop("listed", None)
        for _ in range(6):
            if (piece := next(pieces)) is None:
                continue
            users = piece.block.frame["user"].to_list()
            rows = classify_rows(piece.block, plan.grid, plan.space, last_final_windows(piece, plan.grid))
            for user, is_used in zip(users, rows.used.tolist()):
                fates.setdefault(user, set()).add(is_used)
            reached.append((minute, (piece.after - BEGIN) / MINUTE))
    assert {user: fates[user] for user in "vwx"} == {"v": {True}, "w": {True}, "x": {False}}
    assert all(time < 70 for minute, time in reached if minute < 92)
    assert max(time for minute, time in reached if minute < 100) >= 70
    assert [m for m in caplog.messages if "windows wait" in m] == [
        "topic events: no broker lists all partitions; windows wait until one does"
    ]
