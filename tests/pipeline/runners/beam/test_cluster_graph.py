"""The streaming graph in this process, fed with blocks and watermarks by hand."""

import json
import random
import shutil
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import apache_beam as beam
import numpy as np
import polars as pl
import pytest
from apache_beam import TaggedOutput
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.runners.common import DoFnSignature
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.sdf_utils import RestrictionTrackerView, ThreadsafeRestrictionTracker
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.userstate import get_dofn_specs
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from penstock.mechanisms.core.plugin import StateVersionError
from penstock.pipeline import atomic
from penstock.pipeline.config.plan import Plan, ledger_path
from penstock.pipeline.config.run import loads
from penstock.pipeline.counting.ingest import RowCounts
from penstock.pipeline.monitoring.redaction import UnforeseenError
from penstock.pipeline.output import manifest
from penstock.pipeline.output.writer import RunWriter
from penstock.pipeline.run import run
from penstock.pipeline.runners.beam.coders import (
    BlockCoder,
    Cursor,
    CursorCoder,
    NamedBlock,
    decode,
    decode_rows,
    encode,
    unpack,
)
from penstock.pipeline.runners.beam.counts import CountWhenFinal, FindContributions
from penstock.pipeline.runners.beam.graph import GRAPH, build, has_ended, write_final_summaries
from penstock.pipeline.runners.beam.read import CursorTracker, Reader, Replay
from penstock.pipeline.runners.beam.step import end_of_input, final_at
from penstock.pipeline.sources.base import EventBlock, Reject
from tests.tools.cases import seeds
from tests.tools.ledgers import charges_in
from tests.tools.stream_graph import CONFIG, STEPS, plan_in


def blocks_of(plan: Plan) -> list[EventBlock]:
    """All events, a block for every hour."""
    reader = Reader(plan, Cursor())
    blocks = []
    while not reader.ended:
        blocks.append(reader.piece.block)
        reader.advance()
    frame = pl.concat([block.frame for block in blocks])
    hours = frame["time"] // 3_600_000
    return [EventBlock(rows := frame.filter(hours == hour), rows.height) for hour in sorted(set(hours))]


def feed(plan: Plan, blocks: list[tuple[str, EventBlock | None, int | None]]) -> None:
    """Run the graph over named blocks, each followed by a watermark (milliseconds)."""
    stream, reached = TestStream(coder=BlockCoder()), 0
    for name, block, watermark in [*blocks, ("", None, end_of_input(plan))]:
        if block is not None:
            at = Timestamp(micros=1000 * int(block.frame["time"].min()))
            stream.add_elements([TimestampedValue(NamedBlock(name, block), at)])
        # This runner lets a watermark pass the counting before its timers have been called, so it takes small steps.
        deadlines = [final_at(plan, group) for group in range(plan.grid.n_windows)]
        for step in sorted({*(at - 2 for at in deadlines), *(at - 1 for at in deadlines), watermark or 0}):
            if reached < step <= (watermark or 0):
                stream.advance_watermark_to(Timestamp(micros=1000 * step))
                reached = step
    pipeline = beam.Pipeline(runner=BundleBasedDirectRunner())
    build(pipeline, plan, stream)
    pipeline.run().wait_until_finish()


def released(plan: Plan) -> bytes:
    """Collect the outputs of the graph."""
    manifest.merge_outputs(plan)
    return (plan.folder / "public" / "releases.parquet").read_bytes()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finite run of the same configuration."""
    folder = tmp_path_factory.mktemp("local") / "run"
    run(loads(CONFIG.replace("PATH", str(folder))))
    return folder


def in_time(plan: Plan) -> list[tuple[str, EventBlock, int | None]]:
    """Every hour's block, then the watermark at the end of the hour."""
    actual = []
    for number, block in enumerate(blocks_of(plan)):
        actual.append((f"hour/{number}", block, plan.grid.calendar.end(number + 1)))
    return actual


@pytest.fixture(scope="module")
def fed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the graph on every hour's block, in time, over two shards; read only."""
    folder = tmp_path_factory.mktemp("fed") / "run"
    plan = plan_in(folder)
    feed(plan, in_time(plan))
    return folder


@pytest.fixture
def fed(fed_once: Path, tmp_path: Path) -> Plan:
    """The plan of a copy of it."""
    shutil.copytree(fed_once, tmp_path, dirs_exist_ok=True)
    return plan_in(tmp_path)


def test_a_graph_of_this_version_has_these_steps_with_this_state(tmp_path: Path) -> None:
    actual: dict[str, list[str]] = {}

    class Steps(PipelineVisitor):
        def visit_transform(self, transform_node: AppliedPTransform) -> None:
            fn = getattr(transform_node.transform, "fn", None)
            specs = get_dofn_specs(fn) if isinstance(fn, beam.DoFn) else ()
            actual[transform_node.full_label] = sorted(spec.name for kind in specs for spec in kind)

    pipeline = beam.Pipeline()
    build(pipeline, plan_in(tmp_path))
    pipeline.visit(Steps())
    assert (GRAPH, actual) == (9, STEPS)


def test_a_cluster_releases_what_a_finite_run_releases(fed: Plan, local: Path) -> None:
    assert released(fed) == (local / "public" / "releases.parquet").read_bytes()
    for name in ("public/accounts.parquet", "operator/truth.parquet", "operator/ledger"):
        assert (fed.folder / name).read_bytes() == (local / name).read_bytes(), name
    assert has_ended(fed)
    actual = json.loads((local / "operator" / "manifest.json").read_text())["rows"]
    assert manifest.row_equation(fed) == actual


def test_neither_order_nor_shards_change_a_release(tmp_path: Path, local: Path) -> None:
    plan = plan_in(tmp_path, n_shards=5)
    blocks = [(name, block, None) for name, block, _ in in_time(plan)]
    feed(plan, [blocks[i] for i in np.random.default_rng(3).permutation(len(blocks))])
    assert released(plan) == (local / "public" / "releases.parquet").read_bytes()


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_elements_and_watermarks_in_any_order_and_executed_again_leave_the_same(
    tmp_path: Path, local: Path, seed: int
) -> None:
    """Blocks of any size come in any order; the watermark moves as far as those that are still to come allow."""
    chance = random.Random(seed)
    plan = plan_in(tmp_path, n_shards=chance.choice([1, 2, 5]))
    for _ in range(chance.choice([1, 2])):
        feed(plan, in_any_order(plan, chance))
    assert released(plan) == (local / "public" / "releases.parquet").read_bytes()
    for name in ("public/accounts.parquet", "operator/truth.parquet", "operator/ledger"):
        assert (tmp_path / name).read_bytes() == (local / name).read_bytes(), name
    assert has_ended(plan)
    assert manifest.row_equation(plan) == json.loads((local / "operator" / "manifest.json").read_text())["rows"]


def in_any_order(plan: Plan, chance: random.Random) -> list[tuple[str, EventBlock | None, int | None]]:
    """The rows of every hour in a few blocks; some windows become final early, as soon as their rows are there."""
    pieces = []
    for hour, block in enumerate(blocks_of(plan)):
        for piece in block.pieces(chance.randrange(20, 200)):
            # Mostly in the order of time, by some hours.
            pieces.append((hour + chance.uniform(0, chance.choice([1, 6])), hour, piece))
    pieces.sort(key=lambda piece: piece[0])
    actual: list[tuple[str, EventBlock | None, int | None]] = []
    for number, (_, hour, piece) in enumerate(pieces):
        open_from = min([hour for _, hour, _ in pieces[number + 1 :]], default=plan.grid.n_windows - 1)
        watermark = final_at(plan, open_from) - 2 - chance.randrange(7_000_000)
        actual.append((f"{hour}/{number}", piece, watermark if chance.random() < 0.7 else None))
    return actual


def test_a_run_from_the_beginning_again_changes_and_charges_nothing(fed: Plan) -> None:
    first, charges = released(fed), ledger_path(fed).read_bytes()
    feed(fed, in_time(fed))
    assert (released(fed), ledger_path(fed).read_bytes()) == (first, charges)
    assert len(charges.splitlines()) == 13


def test_what_was_counted_before_a_failure_counts(fed: Plan, local: Path) -> None:
    """The second attempt misses an hour, as when other rows are late then; its release stays what it was."""
    feed(fed, in_time(fed)[1:])
    assert released(fed) == (local / "public" / "releases.parquet").read_bytes()
    assert len(charges_in(ledger_path(fed))) == 12


def test_rows_behind_the_watermark_are_late_row_by_row(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    blocks = in_time(plan)
    moved = [*blocks[:2], *blocks[3:6], (blocks[2][0], blocks[2][1], None), *blocks[6:]]
    feed(plan, moved)
    actual = manifest.row_equation(plan)
    assert actual["late"] == blocks[2][1].n_rows - found_outside(plan, blocks[2][1]) > 0
    manifest.merge_outputs(plan)
    truth = pl.read_parquet(tmp_path / "operator" / "truth.parquet")
    assert truth.filter(pl.col("window") == 3)["count"].sum() == 0


def found_outside(plan: Plan, block: EventBlock) -> int:
    """Rows of a block outside the area."""
    return int((np.asarray(plan.space.place(block.frame)) < 0).sum())


def test_what_a_job_that_went_back_has_left_gives_way_to_the_figures_of_the_end(fed: Plan) -> None:
    assert has_ended(fed)
    rows, accounts = manifest.row_equation(fed), manifest.account_summaries(fed)
    assert rows["duplicates"] > 0
    writer = RunWriter(fed)  # the state of a checkpoint in the midst of the run
    writer.row_counts("cluster", RowCounts(rows=rows["rows"], used=rows["rows"]))
    writer.memberships("cluster", 3)
    writer.summary(0, {"windows": 1})
    assert manifest.row_equation(fed) != rows
    write_final_summaries(fed)
    assert (manifest.row_equation(fed), manifest.account_summaries(fed)) == (rows, accounts)


def test_windows_without_events_are_released_too(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    feed(plan, in_time(plan)[:1])
    manifest.merge_outputs(plan)
    releases = pl.read_parquet(tmp_path / "public" / "releases.parquet")
    assert releases["window"].unique().sort().to_list() == list(range(1, 13))


def test_a_used_up_budget_ends_the_run(tmp_path: Path) -> None:
    text = CONFIG.replace("{type: discrete_laplace, epsilon: 0.5}", "{type: landmark_uniform, epsilon: 1.0}")
    text = text.replace("[{type: composition}]", "[{type: landmark_budget}, {type: composition}]")
    plan = plan_in(tmp_path, text=text + "landmarks: {windows: [2, 4]}\n")
    feed(plan, in_time(plan))
    assert has_ended(plan)


def test_a_block_survives_the_way(tmp_path: Path) -> None:
    frame = pl.DataFrame({"time": [5, 6], "user": ["a", "b"], "place": ["x", "y"]})
    block = EventBlock(frame, 3, (Reject("topic", 7, "no time", "{}"),))
    named = decode(encode(NamedBlock("topic/0/7", block, np.array([0, 4]))))
    assert (named.name, named.block.n_rows, named.block.rejects) == ("topic/0/7", 3, block.rejects)
    assert named.block.frame.equals(frame)
    assert named.closed.tolist() == [0, 4]
    assert decode(encode(NamedBlock("n", block))).closed is None


@pytest.mark.parametrize("data", [b"", b"PAR1", b"penstock block", b'penstock block{"version": 9}\n'])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(StateVersionError):
        decode(data)


def test_a_reader_goes_on_from_any_cursor(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    plan = replace(plan, config=replace(plan.config, source=replace(plan.config.source, speed="7200x")))
    whole, cursors = [], [Cursor()]
    reader = Reader(plan, Cursor())
    while not reader.ended:
        whole.append(reader.piece.block.frame)
        reader.advance()
        cursors.append(CursorCoder().decode(CursorCoder().encode(reader.cursor)))
    assert len(whole) > 3
    later = Reader(plan, cursors[3])
    rest = []
    while not later.ended:
        rest.append(later.piece.block.frame)
        later.advance()
    assert pl.concat(rest).equals(pl.concat(whole[3:]))


def test_a_reader_that_stops_without_a_word_is_an_error() -> None:
    tracker = CursorTracker(Cursor())
    with pytest.raises(ValueError, match="without a word"):
        tracker.check_done()
    assert tracker.try_split(0.5) is None
    assert tracker.try_split(0) is not None
    tracker.check_done()


def test_the_deadline_of_a_group_includes_the_lateness(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    assert final_at(plan, 0) == plan.grid.calendar.end(1) + 300_000
    assert end_of_input(plan) > final_at(plan, 11)


def test_a_reader_that_failed_is_never_taken_for_one_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_in(tmp_path)

    def fails(*_: object) -> Iterator[None]:
        yield None
        raise RuntimeError("no broker")

    monkeypatch.setattr(type(plan.config.source), "micro_batches", fails)
    for _ in range(3):  # an engine goes back to the same cursor, in the same process
        with pytest.raises(RuntimeError, match="no broker"):
            list(Replay(plan).process(b"", CursorTracker(Cursor()), ManualWatermarkEstimator(None)))


def turn_of(plan: Plan, tracker: ThreadsafeRestrictionTracker, seconds: float = -1.0) -> Iterator[TimestampedValue]:
    """A turn, with what the engine gives it."""
    return Replay(plan, turn=seconds).process(b"", RestrictionTrackerView(tracker), ManualWatermarkEstimator(None))


def names_of(blocks: Iterable[TimestampedValue]) -> list[str]:
    return [block.value.name for block in blocks]


def test_a_turn_that_is_held_up_still_reads_one_slice(tmp_path: Path) -> None:
    plan, cursor = plan_in(tmp_path), Cursor()
    for number in range(2):
        tracker = ThreadsafeRestrictionTracker(CursorTracker(cursor))
        assert names_of(turn_of(plan, tracker)) == [f"000/{number:012d}"]
        cursor, _ = tracker.deferred_status()
        assert cursor.number == number + 1


@pytest.mark.parametrize(
    ("more", "left", "expected"),
    [(True, 3600.0, 0.0), (False, -100.0, 1.5), (False, 2.0, 1.5), (False, 10.0, 5.0), (False, 3600.0, 20.0)],
)
def test_a_reader_waits_only_where_it_has_read_all_that_had_come_and_half_of_what_a_window_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: bool, left: float, expected: float
) -> None:
    """Flink's runner counts whole seconds, and passes watermarks on only while nothing is read."""
    plan = plan_in(tmp_path)
    monkeypatch.setattr("time.time", lambda: plan.grid.deadline(1) / 1000 - left)
    source = type(plan.config.source)
    original = source.micro_batches
    monkeypatch.setattr(
        source, "micro_batches", lambda *given: (replace(piece, more=more) for piece in original(*given))
    )
    tracker = ThreadsafeRestrictionTracker(CursorTracker(Cursor()))
    assert names_of(turn_of(plan, tracker)) == ["000/000000000000"]
    after, delay = tracker.deferred_status()
    assert after.number == 1
    assert plan.grid.last_final(after.latest) == 0
    assert float(delay) == pytest.approx(expected, abs=0.5)


@pytest.mark.parametrize("seconds", [-1.0, np.inf], ids=["ends after a slice", "goes on"])
def test_a_turn_that_was_given_up_shares_no_reader_with_its_successor(tmp_path: Path, seconds: float) -> None:
    plan = plan_in(tmp_path)
    given_up, successor = (
        turn_of(plan, ThreadsafeRestrictionTracker(CursorTracker(Cursor())), seconds) for _ in range(2)
    )
    first = names_of(islice(given_up, 1))
    more = names_of(islice(given_up, 1))
    assert (first, more) == (["000/000000000000"], ["000/000000000001"] if seconds > 0 else [])
    assert names_of(islice(successor, 1)) == first


@pytest.mark.parametrize("mode", ["simulation", "deployment"])
def test_the_words_of_an_error_leave_no_step_of_a_deployment(tmp_path: Path, mode: str) -> None:
    plan = plan_in(tmp_path)
    plan = replace(plan, config=replace(plan.config, mode=mode))
    block = EventBlock(pl.DataFrame({"time": ["ann, 51.4778"], "user": [1], "place": ["a"]}), 1)
    step = FindContributions(plan)
    step.setup()
    step.start_bundle()
    with pytest.raises(Exception) as caught:
        _ = [*step.process(NamedBlock("block", block)), *step.finish_bundle()]
    written = "".join(traceback.format_exception(caught.value))
    assert isinstance(caught.value, UnforeseenError) == (mode == "deployment")
    assert ("ann, 51.4778" in written) == (mode == "simulation")


def test_blocks_leave_in_order_with_their_timestamps_before_the_bundle_ends(tmp_path: Path) -> None:
    plan = plan_in(tmp_path, n_shards=1)
    step = FindContributions(plan)
    step.setup()
    start = plan.grid.calendar.from_ms
    for _ in range(2):  # also after a bundle that was given up
        step.start_bundle()
        actual = []
        for n_rows in range(1, 8):
            same = (pl.lit(start).alias("time"), pl.lit(37.75).alias("latitude"), pl.lit(-122.4).alias("longitude"))
            frame = pl.DataFrame({"user": range(n_rows)}).with_columns(same)
            actual += step.process(NamedBlock(f"block/{n_rows}", EventBlock(frame, n_rows)), Timestamp(n_rows))
    assert len(actual) < 14
    actual += step.finish_bundle()
    step.teardown()
    contributions = [value for value in actual if not isinstance(value, TaggedOutput)]
    assert [(unpack(value.value[1])[1], value.timestamp) for value in contributions] == [
        (n_rows, Timestamp(n_rows)) for n_rows in range(1, 8)
    ]
    rows = [value.value for value in actual if isinstance(value, TaggedOutput)]
    assert [(decode_rows(value.value[1])[0].rows, value.timestamp) for value in rows] == [
        (n_rows, Timestamp(n_rows)) for n_rows in range(1, 8)
    ]


def test_the_engine_sees_the_steps_as_they_are_meant(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    assert DoFnSignature(Replay(plan)).is_unbounded_per_element()
    assert DoFnSignature(CountWhenFinal(plan)).is_stateful_dofn()


def test_of_several_writers_of_counts_the_first_counts(tmp_path: Path) -> None:
    path = tmp_path / "counted" / "7"
    for data in (b"first", b"second"):
        atomic.write_first(path, data)
    assert path.read_bytes() == b"first"
    assert [actual.name for actual in path.parent.iterdir()] == ["7"]
