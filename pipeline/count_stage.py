"""The counting stages of the graph: spans of input in, bounded counts of groups of windows out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mechanisms.core.state import encode_state
from pipeline.config.plan import STREAM
from pipeline.count_spans import counting_of, span_memberships, write_users
from pipeline.monitoring import metrics
from pipeline.output import files
from pipeline.output.files import PART_ROWS, parts_folder, write_beside
from pipeline.output.tables import truth_table
from pipeline.sources.base import Span
from pipeline.steps.contributions import encoded
from pipeline.steps.count import GroupCounts, count_group
from pipeline.steps.ingest import Fate

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


class CountSpans(beam.DoFn):
    """Read spans of input and reduce every block of them to distinct memberships."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def process(self, span: Span) -> Iterator[tuple[tuple[int, int], bytes]]:
        """Emit ((group, shard), memberships)."""
        for piece in span_memberships([span], self.plan):
            if isinstance(piece, Fate):
                metrics.read_rows(piece)
            else:
                key, found = piece
                yield key, encoded(found, self.plan, key[0])


class CountHere(beam.DoFn):
    """Read and count everything in this process: where there are no other workers a shuffle would only copy."""

    def __init__(self, plan: Plan, spans: Sequence[Span]) -> None:
        self.plan, self.spans = plan, spans

    def process(self, impulse: bytes) -> Iterator[tuple[int, GroupCounts]]:
        """Emit (group, counts) of every group in order."""
        with counting_of(self.spans, self.plan) as found:
            for piece in found:
                if isinstance(piece, Fate):
                    metrics.read_rows(piece)
                else:
                    yield (piece.first - 1) // self.plan.group, piece


class CountGroup(beam.DoFn):
    """Exact bounded counts of one group of windows and one shard of users."""

    USERS = "users"

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def process(self, element: tuple[tuple[int, int], Iterable[bytes]]) -> Iterator[Any]:
        """Emit (group, counts), and the users' visits where a summary is asked for."""
        (group, shard), pieces = element
        counts, seen = count_group(group, pieces, self.plan)
        if seen is not None:
            yield beam.pvalue.TaggedOutput(self.USERS, (shard, seen))
        yield group, counts


class WriteUsers(beam.DoFn):
    """Summarise the users of one shard for the operator's manifest."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def process(self, element: tuple[int, Iterable[Any]]) -> None:
        """Write per-user numbers of cells and windows; no identity."""
        write_users(*element, self.plan)


class WriteTruth(beam.DoFn):
    """Keep what was counted (simulation only) and how many memberships it came from."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def process(self, element: tuple[int, GroupCounts]) -> Iterator[tuple[str, bytes]]:
        """Pass the bounded counts on to the release, keyed by stream."""
        _, group = element
        plan = self.plan
        self.note(group)
        if plan.config.mode == "simulation" and plan.config.output.truth:
            step = max(1, PART_ROWS // plan.n_cells)
            for row in range(0, len(group.counts), step):
                self.write(group.first + row, group.counts[row : row + step], group.bounded[row : row + step])
        counted = {"first": np.asarray(group.first), "bounded": group.bounded, "sightings": group.sightings}
        yield STREAM, encode_state("counts", 1, counted)

    def write(self, first: int, counts: NDArray[Any], bounded: NDArray[Any]) -> None:
        """Write the counts of consecutive windows."""
        plan, folder = self.plan, parts_folder(self.plan, "truth")
        windows = plan.windows(first, first + len(counts) - 1)
        name = files.stretch(first, windows[-1].index)

        def write() -> pa.Table:
            return files.write_part(folder, name, truth_table(counts, bounded, windows, plan.space.cells, STREAM))

        write_beside(folder, name, write)

    def note(self, group: GroupCounts) -> None:
        """Write down how many memberships there were."""
        files.write_json(parts_folder(self.plan, "memberships") / f"{group.first:012d}.json", group.n_memberships)
