"""Counted offsets are reconciled with those of the topic."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.cli.main import main
from penstock.pipeline.config.run import loads
from penstock.pipeline.counting.ingest import RowCounts
from penstock.pipeline.run import run
from penstock.pipeline.runners.beam.coders import NamedBlock, decode, decode_rows, encode, row_counts
from penstock.pipeline.sources.base import EventBlock, MicroBatch
from penstock.pipeline.sources.reading.offsets import OffsetRange, OffsetsRead, joined_ranges
from tests.tools.scripted_topic import NOON, Topic, source

OVER = NOON + 60_000
EVENTS = {"watermark": "events"}


@pytest.mark.parametrize(
    ("topic", "ranges", "changes", "words"),
    [
        (Topic([NOON, NOON, OVER]), [(0, 0, 2, 2)], {}, []),
        (Topic([NOON, NOON, OVER]), [(0, 0, 1, 1)], {}, ["offsets 1 to 2 of partition 0 were not read"]),
        (Topic([NOON, NOON]), [(0, 0, 1, 1)], {}, ["offsets 1 to 2 of partition 0 were not read"]),
        # Markers of transactions, and what was compacted, are no messages.
        (Topic([NOON, None, None, OVER]), [(0, 0, 1, 1)], {}, []),
        (Topic([NOON, None]), [(0, 0, 1, 1)], {}, []),
        # A partition that no reader has had: a message before the last window is final belongs to the run.
        (Topic([OVER], [NOON, OVER]), [(0, 0, 1, 1)], {}, ["offsets 0 to 1 of partition 1 were not read"]),
        (Topic([OVER], [OVER]), [(0, 0, 1, 1)], {}, []),
        (Topic([OVER], []), [(0, 0, 1, 1)], {}, []),
        # What a broker has deleted since it can say nothing of.
        (Topic([NOON, NOON, NOON], deleted=2), [(0, 0, 1, 1)], {}, []),
        (Topic([NOON, OVER]), [(0, 1, 2, 1)], {}, ["offsets 0 to 1 of partition 0 were not read"]),
        (Topic([NOON, OVER]), [(0, 1, 2, 1)], {"offset": "latest"}, []),
        # By events the readers say how far the run goes.
        (Topic([NOON, NOON]), [(0, 0, 1, 1)], EVENTS, []),
        (Topic([OVER], [OVER]), [(0, 0, 1, 1)], EVENTS, ["offsets 0 to 1 of partition 1 were not read"]),
    ],
)
def test_brokers_say_what_was_not_read(connect, topic, ranges, changes, words):
    connect(topic)
    read = OffsetsRead(tuple(joined_ranges(ranges)), "first", OVER)
    assert source(**changes).describe_unread_input(read) == words
    # An interrupted run has yet to read the rest.
    interrupted = OffsetsRead(read.ranges, "first")
    assert source(**changes).describe_unread_input(interrupted) == [
        one for one in words if "offsets 0 to 1 of partition 0" in one
    ]


def test_a_topic_that_was_created_again_says_nothing_of_the_first(connect):
    connect(Topic([NOON], topic_id="second"))
    with pytest.raises(DataError, match=r"created again \(its id was first and is second"):
        source().describe_unread_input(OffsetsRead((), "first", OVER))


def test_ranges_join_in_any_order_and_show_what_is_counted_twice():
    pieces = [(1, 4, 6, 2), (0, 5, 9, 3), (0, 0, 5, 5), (1, 0, 3, 3), (1, 2, 3, 1), (0, 9, 9, 0, 0, 1)]
    expected = [
        OffsetRange(0, 0, 9, 8, 0, 1),
        OffsetRange(1, 0, 3, 4, 1, 0),
        OffsetRange(1, 4, 6, 2, 0, 0),
    ]
    for turn in range(len(pieces)):
        total = RowCounts()
        for piece in pieces[turn:] + pieces[:turn]:
            total.add(RowCounts(offsets=[OffsetRange(*piece)]))
        assert total.offsets == expected
        assert decode_rows(row_counts(total, 3)[1]) == (total, 3)
    gaps = ["offsets 3 to 4 of partition 1 were not counted", "1 offsets of partition 1 were counted twice"]
    assert OffsetsRead(tuple(expected)).gaps() == gaps
    more = "partition 1 was not read to the end of the run, only to 6"
    assert OffsetsRead(tuple(expected), over=OVER).gaps() == [*gaps, more]


def test_offsets_travel_with_a_block_and_count_once():
    frame = pl.DataFrame({"time": [1, 2, 3], "user": [1, 2, 3], "place": ["a", "b", "c"]})
    block = EventBlock(frame, 3, (), (OffsetRange(2, 7, 12, 3),))
    assert decode(encode(NamedBlock("a", block))).block.offsets == block.offsets
    assert [piece.offsets for piece in block.pieces(2)] == [block.offsets, ()]


def batches(*numbers: int):
    """Micro-batches of an hour with a message each, the last one of which ends the run."""
    for number in numbers:
        time = NOON + number * 600_000
        frame = pl.DataFrame({"time": [time], "user": ["ann"], "place": ["a"]})
        read = OffsetRange(0, number, number + 1, 1, 0, int(number == 6))
        yield MicroBatch(number, EventBlock(frame, 1, (), (read,)), time, time, np.array([time]))


@pytest.fixture
def config(tmp_path):
    value = {
        "name": "offsets",
        "seed": 1,
        "source": {"type": "kafka", "brokers": "localhost:1", "topic": "events", "columns": {"place": "place"}}
        | {"from": "2024-01-01T12:00:00Z", "until": "2024-01-01T13:00:00Z", "watermark": "events"},
        "space": {"type": "places", "list": ["a", "b"]},
        "windows": {"type": "fixed", "size": "10m"},
        "mechanism": {"type": "discrete_laplace", "epsilon": 1.0},
        "output": {"path": str(tmp_path / "out")},
    }
    return value


@pytest.mark.parametrize("kept", [range(7), (0, 1, 3, 4, 5, 6), range(6)])
def test_a_run_that_has_lost_offsets_fails_and_says_so(tmp_path, connect, config, kept):
    connect(Topic([NOON] * 7), batches(*kept))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    is_whole, folder = len(kept) == 7, tmp_path / "out"
    words = "partition 0 was not read to the end of the run" if 6 not in kept else "offsets 2 to 3 of partition 0"
    result = run(loads(json.dumps(config)))
    assert result.exit_code == (0 if is_whole else 1)
    offsets = result.manifest["offsets"]
    assert [words in one for one in offsets["shortfall"]] == ([] if is_whole else [True])
    assert (sum(one["records"] for one in offsets["ranges"]), offsets["unchecked"]) == (len(kept), None)
    page = (folder / "report.html").read_text()
    assert ("not all of the input was counted" in page) != is_whole
    assert main(["verify", str(folder)]) == (0 if is_whole else 1)
    # It has ended: its releases are out, and nothing is left to go on with.
    assert not (folder / "public" / "parts").exists()
    assert main(["run", str(path), "--resume", "--quiet"]) == result.exit_code


def test_brokers_that_do_not_answer_leave_a_caution(tmp_path, connect, config):
    class Silent(Topic):
        def partitions(self):
            raise DataError("topic events: no broker answers")

    connect(Silent(), batches(*range(7)))
    result = run(loads(json.dumps(config)))
    assert (result.exit_code, result.manifest["offsets"]["unchecked"]) == (0, "topic events: no broker answers")
    assert "the brokers were not asked" in (tmp_path / "out" / "report.html").read_text()
    assert main(["verify", str(tmp_path / "out")]) == 0
