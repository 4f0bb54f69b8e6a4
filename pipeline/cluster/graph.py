"""The Beam graph of a cluster: blocks of events in, parts of the output files out, without end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apache_beam as beam
from apache_beam.typehints import Tuple

from pipeline.cluster.account_stage import AccountOnCluster
from pipeline.cluster.books import ENTRIES, Entry, KeepBooks, all_read, entry
from pipeline.cluster.count_stage import CountBlocks, CountOpen
from pipeline.cluster.release_stage import BEGIN, ReleaseOnCluster, WriteOnCluster, account_parts
from pipeline.config.plan import STREAM, Plan
from pipeline.output.files import parts_folder
from pipeline.steps.release import Batch

#: How events come in: see `pipeline.cluster.blocks`.
Read = Callable[[beam.Pipeline, Plan], Any]

# Types of tagged outputs, which Beam does not work out: the coders of keys have to be the same everywhere.
_PIECE = Tuple[Tuple[int, int], bytes]
_COUNTS = Tuple[str, bytes]
_ENTRY = Tuple[int, bytes]


def build(root: beam.Pipeline, plan: Plan, read: Read) -> None:
    """Attach the whole graph to a pipeline.

    Parameters
    ----------
    root
        The pipeline.
    plan
        The run, as `as_cluster_plan` makes it.
    read
        Where blocks of events come from; keeps to the contract of `pipeline.cluster.blocks`.
    """
    begin = root | "Begin" >> beam.Impulse()
    blocks = read(root, plan)
    pieces = blocks | "CountBlocks" >> beam.ParDo(CountBlocks(plan)).with_outputs(ENTRIES, main="pieces")
    pieces["pieces"].element_type = _PIECE
    counted = pieces["pieces"] | "CountOpen" >> beam.ParDo(CountOpen(plan)).with_outputs(ENTRIES, main="counts")
    start = begin | "Start" >> beam.Map(lambda _: (STREAM, BEGIN)).with_output_types(tuple[str, bytes])
    counted["counts"].element_type = _COUNTS
    released = (
        (counted["counts"], start)
        | "CountsAndStart" >> beam.Flatten().with_output_types(tuple[str, bytes])
        | "Release" >> beam.ParDo(ReleaseOnCluster(plan)).with_outputs(ENTRIES, main="batches")
    )
    released["batches"].element_type = Batch
    _ = (
        released["batches"]
        | "WriteReleases" >> beam.ParDo(WriteOnCluster(plan)).with_output_types(tuple[tuple[int, int], Batch])
        | "Account" >> beam.ParDo(AccountOnCluster(plan))
    )
    opening = begin | "Opening" >> beam.Map(lambda _: entry()).with_output_types(Entry)
    entries = [opening, *(step[ENTRIES] for step in (pieces, counted, released))]
    for collection in entries:
        collection.element_type = _ENTRY
    _ = entries | "Entries" >> beam.Flatten().with_output_types(Entry) | "Books" >> beam.ParDo(KeepBooks(plan))


def has_ended(plan: Plan) -> bool:
    """Whether everything has been read, released and accounted, or a budget was used up."""
    ended = parts_folder(plan, "ended")
    if any(not (ended / f"account-{number:03d}-{shard:06d}.json").exists() for number, shard in account_parts(plan)):
        return False
    stopped = (parts_folder(plan, "stopped") / "stopped.json").exists()
    return stopped or ((ended / "releases.json").exists() and all_read(plan))
