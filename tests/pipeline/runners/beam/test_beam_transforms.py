"""Operator tests of every transform with Beam's test tools: late data, empty windows, repeated firings."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np
import polars as pl
import pytest
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.test_stream import TestStream
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import TimestampedValue

from penstock.mechanisms.core.contract import Release
from penstock.pipeline.config.plan import ledger_path, make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.counting.count import GroupCounts
from penstock.pipeline.counting.ingest import RowCounts
from penstock.pipeline.counting.spec import STREAM
from penstock.pipeline.monitoring.metrics import PERIODS_CLOSED, RunMetrics, listening
from penstock.pipeline.output.files import parts_folder
from penstock.pipeline.releasing.release import Batch
from penstock.pipeline.runners.beam import IN_PROCESS, counts, distributed, graph
from penstock.pipeline.runners.beam.coders import (
    BatchCoder,
    BlockCoder,
    NamedBlock,
    decode,
    decode_rows,
    encode_counts,
    row_counts,
)
from penstock.pipeline.runners.beam.counts import CountDistinctUsers
from penstock.pipeline.runners.beam.graph import Account, ReleaseInOrder, TallyRows, WriteReleases
from penstock.pipeline.runners.beam.read import ReadEvents
from penstock.pipeline.runners.beam.step import ROWS, end_of_input, final_at, timestamp
from penstock.pipeline.runners.beam.traces import ReleaseTraces
from penstock.pipeline.sources.base import EventBlock, Reject
from penstock.pipeline.sources.stream import Stream
from tests.tools.engine_state import Bag, Cell, Due
from tests.tools.ledgers import windows_in

if TYPE_CHECKING:
    from penstock.pipeline.config.plan import Plan


#: Four windows of an hour, cells a and b.
CONFIG = """
name: transforms
seed: 7
source: {type: csv, path: EVENTS, from: 2024-01-01T00:00:00Z, until: 2024-01-01T04:00:00Z}
space: {type: places, list: [a, b], elsewhere: false}
windows: {type: fixed, size: 1h, allowed_lateness: 5m}
mechanism: {type: discrete_laplace, epsilon: 0.5}
accountants: [{type: composition}]
output: {path: PATH, report: false}
"""
HOUR = 3_600_000
FIRST = 1704067200000  # 2024-01-01T00:00:00Z


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """The plan of a finite run."""
    (tmp_path / "events.csv").write_text(
        "user,time,place\nann,2024-01-01T00:10:00Z,a\nbob,2024-01-01T00:20:00Z,a\nann,2024-01-01T02:30:00Z,b\nx,never,a\n"
    )
    text = CONFIG.replace("EVENTS", str(tmp_path / "events.csv"))
    folder = tmp_path / "run"
    (folder / "operator").mkdir(parents=True)
    return make_plan(loads(text.replace("PATH", str(folder))), folder)


@pytest.fixture
def stream(plan: Plan) -> Plan:
    """The plan of a stream of the same events."""
    return distributed(make_plan(replace(plan.config, source=Stream(of=plan.config.source)), plan.folder))


def block(*rows: tuple[str, int, str], name: str = "block", rejects: tuple[Reject, ...] = ()) -> NamedBlock:
    """A block of (user, hour, place) rows, a minute after the hour."""
    users, hours, places = (list(column) for column in zip(*rows))
    times = [FIRST + hour * HOUR + 60_000 for hour in hours]
    frame = pl.DataFrame({"time": times, "user": users, "place": places})
    return NamedBlock(name, EventBlock(frame, len(rows) + len(rejects), rejects))


ROWS_OF_EVENTS = [("ann", 0, "a"), ("ann", 0, "a"), ("bob", 0, "a"), ("ann", 2, "b")]


def in_process() -> TestPipeline:
    """A pipeline on the pinned runner."""
    return TestPipeline(runner=IN_PROCESS)


def counts_of(first: int, counts: list[list[int]], plan: Plan) -> tuple[str, bytes]:
    """Counts of a group of windows, as they travel."""
    array = np.array(counts)
    return STREAM, encode_counts(GroupCounts(first, array, array, int(array.sum())), int(array.sum()), plan)


def vectors(element: tuple[str, bytes], *, bounded: bool = False) -> dict[int, list[int]]:
    """Windows with anybody in them, and their counts, before or after bounding."""
    actual = decode(element[1])[0]
    counts = actual.bounded if bounded else actual.counts
    return {actual.first + row: vector.tolist() for row, vector in enumerate(counts) if vector.any()}


def test_spans_are_read_as_named_blocks(plan: Plan) -> None:
    with in_process() as pipeline:
        read = pipeline | ReadEvents(plan)
        assert read.element_type is NamedBlock
        actual = read | beam.Map(lambda named: (named.name, named.block.frame["user"].to_list(), named.block.n_rows))
        assert_that(actual, equal_to([("000000000/000000000", ["ann", "bob", "ann"], 4)]))


def test_distinct_users_are_counted_exactly_in_any_order(plan: Plan) -> None:
    blocks = [block(*ROWS_OF_EVENTS[i:], name=f"block/{i}") for i in range(4)]
    with in_process() as pipeline:
        counted = pipeline | beam.Create(blocks) | CountDistinctUsers(plan)
        actual = counted["counts"] | beam.FlatMap(lambda element: sorted(vectors(element).items()))
        rows = counted[ROWS] | beam.Map(lambda element: decode_rows(element[1])[0].used)
        assert_that(actual, equal_to([(1, [2, 0]), (3, [0, 1])]))
        assert_that(rows | beam.CombineGlobally(sum), equal_to([4 + 3 + 2 + 1]), label="Rows")


def test_rejects_are_kept_once_under_the_name_of_their_block(plan: Plan) -> None:
    one = block(*ROWS_OF_EVENTS, rejects=(Reject("events.csv", 7, "no time", "x,never,a"),))
    with in_process() as pipeline:
        counted = pipeline | beam.Create([one, one]) | CountDistinctUsers(plan)
        counts = counted[ROWS] | beam.Map(lambda element: decode_rows(element[1])[0].rejected)
        rejected = counts | beam.Filter(bool)  # further row counts hold memberships only
        assert_that(rejected, equal_to([{"no time": 1}] * 2))
    (path,) = parts_folder(plan, "rejects").iterdir()
    assert len(path.read_text().splitlines()) == 1


def test_windows_are_released_in_order_whatever_order_counts_come_in(plan: Plan) -> None:
    groups = [counts_of(first, [[first, 0]], plan) for first in (4, 2, 1, 3)]
    assert plan.batching.group == 1
    with in_process() as pipeline:
        released = pipeline | beam.Create(groups) | ReleaseInOrder(plan)
        windows = released["releases"] | beam.Map(lambda batch: batch.releases[0].window)
        assert_that(windows, equal_to([1, 2, 3, 4]))
    assert windows_in(ledger_path(plan)) == [1, 2, 3, 4]


def test_windows_without_an_event_are_released_where_there_is_none_at_all(plan: Plan) -> None:
    with in_process() as pipeline:
        nothing = pipeline | beam.Create([]) | beam.Map(lambda _: (STREAM, b"")).with_output_types(tuple[str, bytes])
        released = nothing | ReleaseInOrder(plan)
        windows = released["releases"] | beam.FlatMap(lambda batch: [release.window for release in batch.releases])
        assert_that(windows, equal_to([1, 2, 3, 4]))


def batches(plan: Plan) -> list[Batch]:
    """The releases of four windows, one by one."""
    loop = plan.release_loop()
    state, made = loop.start(), []
    for window in range(1, 5):
        batch, state = loop.advance(state, window, np.array([[window, 0]]))
        made.append(batch)
    return made


def test_releases_are_written_once_and_passed_on(plan: Plan) -> None:
    made = batches(plan)
    with in_process() as pipeline:
        written = pipeline | beam.Create([*made, *made]) | WriteReleases(plan)
        windows = written | beam.Map(lambda batch: batch.releases[0].window)
        assert_that(windows, equal_to([1, 2, 3, 4] * 2))
    parts = sorted(parts_folder(plan, "releases").glob("*.parquet"))
    assert [pl.read_parquet(part)["window"].unique().to_list() for part in parts] == [[1], [2], [3], [4]]


def test_accountants_see_every_release_once_and_in_order(plan: Plan) -> None:
    made = batches(plan)
    with in_process() as pipeline:
        rows = pipeline | beam.Create([made[i] for i in (2, 0, 3, 0, 1)]) | Account(plan)
        spent = rows | beam.FlatMap(
            lambda named: [
                (named[0], row.window, row.value) for row in named[1] if row.name == "user_epsilon" and row.window
            ]
        )
        assert_that(spent, equal_to([("composition", n, pytest.approx(0.5 * n)) for n in range(1, 5)]))
    assert (parts_folder(plan, "summaries") / "000.json").exists()


def test_row_counts_are_added_up_and_written_down(plan: Plan) -> None:
    with in_process() as pipeline:
        actual = pipeline | "Found" >> beam.Create(
            [row_counts(RowCounts(rows=3, used=3)), row_counts(RowCounts(rows=1, late=1))]
        )
        counted = pipeline | "Counted" >> beam.Create([row_counts(memberships=2)])
        total = (actual, counted) | TallyRows(plan) | beam.Map(decode_rows)
        assert_that(total, equal_to([(RowCounts(rows=4, used=3, late=1), 2)]))
    assert '"rows": 4' in (parts_folder(plan, "row_counts") / "cluster.json").read_text()


def fed(elements: list[tuple[NamedBlock | None, int]], coder: Any = None) -> TestStream:
    """Blocks, each at the time of its first event, and each followed by a watermark."""
    made = TestStream(coder=coder or BlockCoder())
    for named, watermark in elements:
        if named is not None:
            at = timestamp(int(named.block.frame["time"].min()))
            made = made.add_elements([TimestampedValue(named, at)])
        made = made.advance_watermark_to(timestamp(watermark))
    return made


def test_rows_of_a_window_that_is_final_are_late(stream: Plan) -> None:
    after_first, end = final_at(stream, 0), end_of_input(stream)
    blocks = [(block(("ann", 0, "a"), name="0"), after_first), (block(("bob", 0, "a"), ("bob", 2, "b"), name="1"), end)]
    with TestPipeline(runner=BundleBasedDirectRunner()) as pipeline:
        counted = pipeline | fed(blocks) | CountDistinctUsers(stream)
        actual = counted["counts"] | beam.FlatMap(lambda element: sorted(vectors(element).items()))
        late = counted[ROWS] | beam.Map(lambda element: decode_rows(element[1])[0].late) | beam.Filter(bool)
        assert_that(actual, equal_to([(1, [1, 0]), (3, [0, 1])]))
        assert_that(late, equal_to([1]), label="Late")


def test_a_stream_keeps_to_what_windows_before_have_left_of_a_bound_on_a_period(stream: Plan) -> None:
    bounding = replace(stream.config.bounding, max_per_period=2)
    bounded = distributed(make_plan(replace(stream.config, bounding=bounding, budget_period=24 * HOUR), stream.folder))
    days = [("ann", 0, "a"), ("bob", 0, "a")], [("ann", 1, "b")], [("ann", 2, "a"), ("bob", 2, "b")], [("ann", 3, "a")]
    blocks = [(block(*rows, name=str(at)), final_at(stream, at)) for at, rows in enumerate(days)]
    # Ann has counted twice when the third hour comes, and Bob once.
    expected = [(1, [2, 0]), (2, [0, 1]), (3, [0, 1])]
    with TestPipeline(runner=BundleBasedDirectRunner()) as pipeline:
        counted = pipeline | fed(blocks) | CountDistinctUsers(bounded)
        actual = counted["counts"] | beam.FlatMap(lambda element: sorted(vectors(element, bounded=True).items()))
        assert_that(actual, equal_to(expected))
    # One timer for all, and timers in the wrong order and again: the same counts.
    actual = counts.FindContributions(bounded)
    actual.setup()
    actual.start_bundle()
    sent = [one for named, _ in reversed(blocks) for one in actual.process(named, timestamp(FIRST))]
    pieces = [one.value for one in (*sent, *actual.finish_bundle()) if not isinstance(one, beam.pvalue.TaggedOutput)]
    assert {key for key, _ in pieces} == {(0, 0)}
    for tags in (["3"], ["0", "3", "1", "2"], ["2", "0", "3", "3"], ["0", "1", "2", "3"]):
        step, pending, lane, quota = counts.CountWhenFinal(bounded), Bag(), Cell(), Cell()
        step.setup()
        for piece in pieces:
            assert list(step.process(piece, pending, lane, Due())) == []
        made = [one for tag in tags for one in step.fire((0, 0), tag, pending, lane, quota)]
        of = [vectors(one, bounded=True) for one in made if not isinstance(one, beam.pvalue.TaggedOutput)]
        assert sorted(entry for one in of for entry in one.items()) == expected


def test_a_bound_on_a_period_holds_when_a_stream_goes_back_and_other_rows_are_in_time(stream: Plan) -> None:
    bounding = replace(stream.config.bounding, max_per_period=1)
    bounded = distributed(make_plan(replace(stream.config, bounding=bounding, budget_period=24 * HOUR), stream.folder))

    def released(*hours: list[tuple[str, int, str]]) -> list[list[list[int]]]:
        """Outcome of a start from empty state, with timely rows for each hour."""
        actual, count, release = (
            counts.FindContributions(bounded),
            counts.CountWhenFinal(bounded),
            graph.ReleaseWhenDue(bounded),
        )
        for step in (actual, count, release):
            step.setup()
        pending, lane, quota, waiting, further, loop = Bag(), Cell(), Cell(), Bag(), Bag(), Cell()
        for hour, rows in enumerate(hours):
            actual.start_bundle()
            sent = [*actual.process(block(*rows), timestamp(FIRST)), *actual.finish_bundle()] if rows else []
            for one in sent:
                if not isinstance(one, beam.pvalue.TaggedOutput):
                    assert list(count.process(one.value, pending, lane, Due())) == []
            for one in [*count.fire((0, 0), str(hour), pending, lane, quota)]:
                if not isinstance(one, beam.pvalue.TaggedOutput):
                    list(release.process(one, waiting, further, loop, Due()))
            list(release.fire(str(hour), waiting, further, loop, Due()))
        paths = sorted(parts_folder(bounded, "counted").iterdir())
        return [decode(path.read_bytes())[0].bounded[0].tolist() for path in paths]

    ann, bob = [("ann", 0, "a")], [("bob", 0, "b")]
    with listening(registry := RunMetrics()):
        assert released(ann) == [[1, 0]]
        # The same rows again, and more: nothing is lost.
        assert released(ann, [("ann", 1, "a"), ("bob", 1, "b")]) == [[1, 0], [0, 1]]
        assert registry.total(PERIODS_CLOSED) == 0
        # Ann's first row is late now, or nobody's is in time: she must not count again, and the operator is told.
        assert released(bob, [], [("ann", 2, "a")]) == [[1, 0], [0, 1], [0, 0]]
        assert released([], [], [], [("ann", 3, "a")]) == [[1, 0], [0, 1], [0, 0], [0, 0]]
        assert registry.total(PERIODS_CLOSED) == 2


def test_counts_that_come_after_their_release_are_late(stream: Plan) -> None:
    after_first, end = final_at(stream, 0), end_of_input(stream)
    coder = beam.coders.TupleCoder([beam.coders.StrUtf8Coder(), beam.coders.BytesCoder()])
    fed_counts = (
        TestStream(coder=coder)
        .add_elements([TimestampedValue(counts_of(1, [[2, 0]], stream), timestamp(FIRST))])
        .advance_watermark_to(timestamp(after_first))
        .add_elements([TimestampedValue(counts_of(1, [[5, 0]], stream), timestamp(FIRST))])
        .advance_watermark_to(timestamp(end))
    )
    with TestPipeline(runner=BundleBasedDirectRunner()) as pipeline:
        released = pipeline | fed_counts.with_output_types(tuple[str, bytes]) | ReleaseInOrder(stream)
        windows = released["releases"] | beam.FlatMap(lambda batch: [release.window for release in batch.releases])
        late = released[ROWS] | beam.Map(lambda element: decode_rows(element[1])[0].late) | beam.Filter(bool)
        assert_that(windows, equal_to([1, 2, 3, 4]))
        assert_that(late, equal_to([5]), label="Late")


def test_windows_without_an_event_are_released_in_order_too(stream: Plan) -> None:
    coder = beam.coders.TupleCoder([beam.coders.StrUtf8Coder(), beam.coders.BytesCoder()])
    empty = TestStream(coder=coder)
    for group in range(4):
        empty = empty.advance_watermark_to(timestamp(final_at(stream, group)))
    with TestPipeline(runner=BundleBasedDirectRunner()) as pipeline:
        released = pipeline | empty.with_output_types(tuple[str, bytes]) | ReleaseInOrder(stream)
        windows = released["releases"] | beam.FlatMap(lambda batch: [release.window for release in batch.releases])
        assert_that(windows, equal_to([1, 2, 3, 4]))
    assert windows_in(ledger_path(stream)) == [1, 2, 3, 4]


def test_a_timer_that_fires_again_releases_nothing_again(stream: Plan) -> None:
    step = graph.ReleaseWhenDue(stream)
    step.setup()
    loop, bag = Cell(), Bag()
    fired = [[], [], [], []]
    for number, tag in enumerate(("1", "1", "0", "3")):
        made = [one for one in step.fire(tag, bag, Bag(), loop, Due()) if isinstance(one, Batch)]
        fired[number] = [release.window for batch in made for release in batch.releases]
    assert fired == [[1, 2], [], [], [3, 4]]


@pytest.mark.parametrize("seed", range(6))
def test_elements_and_timers_in_any_order_and_again_release_each_window_once(stream: Plan, seed: int) -> None:
    """An engine delivers in any order that the watermark allows, fires timers again, and goes back to checkpoints."""
    chance = random.Random(seed)
    shards = [[counts_of(1 + group, [[group + shard, shard]], stream) for shard in range(3)] for group in range(4)]
    work: list[Any] = sorted([*chance.choices(range(4), k=6), 0, 1, 2, 3])  # tags of timers
    work += chance.choices(range(4), k=3)  # once more after the end
    for group, elements in enumerate(shards):
        for element in elements:
            work.insert(
                chance.randrange(1 + next(i for i, w in enumerate(work) if type(w) is int and w >= group)), element
            )
    step = graph.ReleaseWhenDue(stream)
    step.setup()
    pending, further, loop, at, memberships = Bag(), Bag(), Cell(), 0, 0
    checkpoint, n_failures = ([], [], None, 0, 0), 0
    released: dict[int, set[bytes]] = {}
    while at < len(work):
        if chance.random() < 0.2:
            checkpoint = ([*pending], [*further], loop.value, at, memberships)
        elif chance.random() < 0.3 and n_failures < 5:
            pending[:], further[:], loop.value, at, memberships = checkpoint
            n_failures += 1
        actual = (
            step.fire(str(work[at]), pending, further, loop, Due())
            if isinstance(work[at], int)
            else step.process(work[at], pending, further, loop, Due())
        )
        for one in actual:
            if isinstance(one, Batch):
                for release in one.releases:
                    released.setdefault(release.window, set()).add(np.asarray(release.values).tobytes())
            else:
                assert decode_rows(one.value[1])[0].late == 0
                memberships += decode_rows(one.value[1])[1]
        at += 1
    assert n_failures > 0
    assert {window: len(values) for window, values in released.items()} == {1: 1, 2: 1, 3: 1, 4: 1}
    assert windows_in(ledger_path(stream)) == [1, 2, 3, 4]
    assert memberships == 0  # counted with the groups, and taken back only if one is late


def test_an_execution_from_the_beginning_again_changes_and_charges_nothing(stream: Plan) -> None:
    """As an engine does that goes back behind a release, and has other rows in time then."""
    coder = beam.coders.TupleCoder([beam.coders.StrUtf8Coder(), beam.coders.BytesCoder()])
    actual: list[list[bytes]] = []
    for count in (2, 9):
        fed_counts = (
            TestStream(coder=coder)
            .add_elements([TimestampedValue(counts_of(1, [[count, 0]], stream), timestamp(FIRST))])
            .advance_watermark_to(timestamp(end_of_input(stream)))
        )
        with TestPipeline(runner=BundleBasedDirectRunner()) as pipeline:
            released = pipeline | fed_counts.with_output_types(tuple[str, bytes]) | ReleaseInOrder(stream)
            _ = released["releases"] | WriteReleases(stream)
        actual.append([part.read_bytes() for part in sorted(parts_folder(stream, "releases").iterdir())])
    assert actual[0] == actual[1]
    assert windows_in(ledger_path(stream)) == [1, 2, 3, 4]


def test_traces_are_released_by_the_same_ends(tmp_path: Path) -> None:
    text = """
name: traces
seed: 7
source: {type: synthetic, seed: 1, n_users: 40, from: 2024-01-01T00:00:00Z, until: 2024-01-01T06:00:00Z}
space: {type: grid, south: 37.74, north: 37.82, west: -122.47, east: -122.37, rows: 2, columns: 2}
windows: {type: timestamps}
mechanism: {type: planar_laplace, epsilon: 0.01}
accountants: [{type: landmark_budget}]
output: {path: PATH, report: false}
"""
    folder = tmp_path / "run"
    plan = make_plan(loads(text.replace("PATH", str(folder))), folder, n_shards=2)
    (folder / "operator").mkdir(parents=True)
    with in_process() as pipeline:
        released = pipeline | ReadEvents(plan) | ReleaseTraces(plan)
        assert_that(released["shards"], equal_to([0, 1]))
        total = (released[ROWS],) | TallyRows(plan) | beam.Map(lambda data: decode_rows(data)[0].rows)
        assert_that(total | beam.Map(lambda n: n > 0), equal_to([True]), label="Rows")


def test_batches_and_blocks_have_coders_of_their_own() -> None:
    registry = beam.coders.registry
    assert isinstance(registry.get_coder(NamedBlock), BlockCoder)
    assert isinstance(registry.get_coder(Batch), BatchCoder)
    batch = Batch((Release(window=1, values=np.zeros(2)),), ())
    assert BatchCoder().estimate_size(batch) == 16
