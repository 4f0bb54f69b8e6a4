"""The release stage of the graph: counts in any order in, releases in order out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.coders import BytesCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.utils.timestamp import Timestamp

from mechanisms.core.contract import Release
from mechanisms.core.state import decode_state
from pipeline.config.plan import STREAM
from pipeline.monitoring import metrics
from pipeline.output import files
from pipeline.output.checkpoint import open_ledger
from pipeline.output.files import PART_ROWS, parts_folder, write_beside
from pipeline.output.kafka import publish_releases
from pipeline.output.tables import releases_table
from pipeline.steps.release import Batch, ReleaseLoop
from pipeline.steps.targets import Known, nobody
from pipeline.waiting import leave

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


class ReleaseInOrder(beam.DoFn):
    """Step the release loop through the windows in order, whatever order their counts arrive in.

    Counts wait in state until a timer at the end of their last window (plus allowed lateness) fires; any firing
    releases *every* window up to it, empty ones included, so that firings may repeat or come in any order.
    """

    PENDING = BagStateSpec("pending", BytesCoder())
    LOOP = ReadModifyWriteStateSpec("loop", BytesCoder())
    DUE = TimerSpec("due", TimeDomain.WATERMARK)

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def setup(self) -> None:
        """Make what is not shipped."""
        self.loop = ReleaseLoop(self.plan)
        self.ledger = open_ledger(self.plan, strict=self.plan.resumed)

    def process(
        self,
        element: tuple[str, bytes],
        pending: Any = beam.DoFn.StateParam(PENDING),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> None:
        """Keep the counts and ask to be woken when their windows are over."""
        data = decode_state(element[1], "counts", 1)
        last = int(data["first"]) + len(data["bounded"]) - 1
        pending.add(element[1])
        due.set(Timestamp(micros=self.deadline(last) * 1000), dynamic_timer_tag=str(last))

    def deadline(self, window: int) -> int:
        """When a window is final, in milliseconds since 1970."""
        return int(self.plan.calendar.end(window)) + self.plan.config.windows.allowed_lateness

    @on_timer(DUE)
    def fire(
        self,
        tag: Any = beam.DoFn.DynamicTimerTagParam,
        pending: Any = beam.DoFn.StateParam(PENDING),
        loop: Any = beam.DoFn.StateParam(LOOP),
    ) -> Iterator[Batch]:
        """Release every window up to the one the timer was set for."""
        state = loop.read() or self.loop.start()
        first, last = self.loop.released(state) + 1, int(tag)
        if last < first:
            return
        blocks, later = self._due(pending.read(), first, last)
        leave(pending, later)
        step = max(1, PART_ROWS // self.plan.n_cells)
        for start in range(first, last + 1, step):
            counts = self._window_counts(blocks, start, min(start + step - 1, last))
            batch, state = self.loop.advance(state, start, counts)
            if self.plan.targets.n_targets:
                batch = replace(batch, known=Known(start, counts, self._sightings(blocks, start, len(counts))))
            self.ledger.append(batch.charges)
            metrics.released(batch, int(self.plan.calendar.end(start + len(counts) - 1)))
            yield batch
            if batch.stopped:
                break
        loop.write(state)

    def _due(self, encoded: Iterable[bytes], first: int, last: int) -> tuple[dict[int, Any], list[bytes]]:
        blocks, later = {}, []
        for data in encoded:
            block = decode_state(data, "counts", 1)
            start = int(block["first"])
            if start > last:
                later.append(data)
            elif start + len(block["bounded"]) - 1 >= first:
                blocks[start] = block
        return blocks, later

    def _window_counts(self, blocks: dict[int, Any], first: int, last: int) -> Any:
        counts = np.zeros((last - first + 1, self.plan.n_cells), np.int64)
        for start, block in ((start, block["bounded"]) for start, block in blocks.items()):
            low, high = max(first, start), min(last, start + len(block) - 1)
            if low <= high:
                counts[low - first : high - first + 1] = block[low - start : high - start + 1]
        return counts

    @staticmethod
    def _sightings(blocks: dict[int, Any], first: int, n_windows: int) -> Any:
        found = np.concatenate([nobody(), *(block["sightings"] for block in blocks.values())])
        return found[(found[:, 0] >= first) & (found[:, 0] < first + n_windows)]


class WriteReleases(beam.DoFn):
    """Write batches of releases as parts, a stream's not before ``output.delay`` has passed."""

    write = staticmethod(files.write_part)
    sleep = staticmethod(time.sleep)

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def process(self, batch: Batch) -> Iterator[Batch]:
        """Write one batch and pass it on to the accountants."""
        plan = self.plan
        if batch.stopped:
            files.write_json(parts_folder(plan, "stopped") / "stopped.json", batch.stopped)
        if batch.releases:
            first, last = batch.releases[0].window, batch.releases[-1].window
            folder, name = parts_folder(plan, "releases"), files.stretch(first, last)
            final = self.final_since(last)
            if final is None:  # nobody waits for it
                write_beside(folder, name, lambda: self.publish(folder, name, self.table(batch.releases)))
            else:
                table = self.table(batch.releases)  # before the wait: how long it takes is nobody's business
                self.wait(final)
                self.publish(folder, name, table)
                metrics.written(final)
        yield batch

    def table(self, releases: Sequence[Release]) -> pa.Table:
        """Rows of some releases that follow each other."""
        plan = self.plan
        windows = plan.windows(releases[0].window, releases[-1].window)
        return releases_table(releases, windows, plan.space.cells, STREAM, plan.config.windows.allowed_lateness)

    def publish(self, folder: Path, name: str, table: pa.Table) -> pa.Table:
        """Write a part and send it to the topic, if there is one; returns what the part holds."""
        held = self.write(folder, name, table)
        # What a reader of the topic is told is what the file says, whoever wrote it first.
        publish_releases(self.plan, held)
        return held

    def wait(self, final: float | None) -> None:
        """Let a release leave a fixed time after its window was final, whatever there was to count.

        What is caught up with is late already and leaves at once.
        """
        delay = self.plan.config.output.delay / 1000
        left = 0.0 if final is None else final + delay - time.time()
        if 0 < left <= delay:
            self.sleep(left)

    def final_since(self, window: int) -> float | None:
        """When a window became final, in seconds since 1970; None where that was not while the run went on."""
        deadline = self.plan.calendar.end(window) + self.plan.config.windows.allowed_lateness
        return int(deadline) / 1000 if self.plan.streaming else None
