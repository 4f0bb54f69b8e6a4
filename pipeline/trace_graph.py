"""The Beam graph of a trace run: points by user, traces in order, releases out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apache_beam as beam

from pipeline.sources.base import Span
from pipeline.trace_stage import ReadPoints, ReleaseShard

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


def build(root: beam.Pipeline, plan: Plan, spans: list[Span], alone: bool = True) -> None:
    """Attach the whole graph to a pipeline."""
    _ = (
        root
        | "Spans" >> beam.Create(spans, reshuffle=False)
        | "ReadPoints" >> beam.ParDo(ReadPoints(plan))
        | "ByShard" >> beam.GroupByKey()
        | "ReleaseShard" >> beam.ParDo(ReleaseShard(plan))
    )
