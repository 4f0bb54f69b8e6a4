"""The Beam graph of a local stream: tickets in, parts of the output files out, without end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.testing.test_stream import TestStream

from pipeline.feed import CODER
from pipeline.output.checkpoint import Checkpoints
from pipeline.stream_count import CountDue, CountSlice, Message
from pipeline.stream_stage import (
    AccountStream,
    ReleaseStream,
    WriteStreamReleases,
    WriteStreamTruth,
    account_name,
    account_parts,
)

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


def pieces(plan: Plan) -> tuple[str, ...]:
    """Names of everything that a checkpoint consists of."""
    return ("feed", "count", "release", "written", *map(account_name, account_parts(plan)))


def build(root: beam.Pipeline, plan: Plan, endpoint: str, checkpoints: Checkpoints) -> None:
    """Attach the whole graph to a pipeline."""
    counted = (
        root
        | "Tickets" >> TestStream(coder=CODER, endpoint=endpoint)
        | "CountSlice" >> beam.ParDo(CountSlice(plan)).with_output_types(tuple[int, Message])
        | "CountDue" >> beam.ParDo(CountDue(plan, checkpoints)).with_outputs("marks", main="counts")
    )
    counts = counted["counts"] | "WriteTruth" >> beam.ParDo(WriteStreamTruth(plan)).with_output_types(tuple[str, bytes])
    _ = (
        (counts, counted["marks"])
        | "CountsAndMarks" >> beam.Flatten().with_output_types(tuple[str, bytes])
        | "Release" >> beam.ParDo(ReleaseStream(plan, checkpoints))
        | "WriteReleases"
        >> beam.ParDo(WriteStreamReleases(plan, checkpoints)).with_output_types(tuple[tuple[int, int], Any])
        | "Account" >> beam.ParDo(AccountStream(plan, checkpoints))
    )
