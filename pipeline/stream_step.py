"""What all steps of a local stream have in common: they stay in this process and write checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np

from mechanisms.core.state import State
from pipeline.feed import feed_of
from pipeline.monitoring import metrics
from pipeline.output import files
from pipeline.output.checkpoint import Checkpoints
from pipeline.output.files import parts_folder

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


#: What begins the bytes of a checkpoint's mark among encoded counts.
MARK = b"mark"
#: Outputs whose parts are joined while a stream goes on.
ROLLED = ("releases", "truth", "accounts_public", "accounts")


class InProcess(beam.DoFn):  # type: ignore[misc]
    """A step that stays in this process: the runner copies a step for every bundle, and this one is its own copy."""

    plan: Plan
    is_set_up = False

    def setup(self) -> None:
        """Make what is made once."""
        if not self.is_set_up:
            super().setup()
            self.is_set_up = True

    def __dir__(self) -> list[str]:
        # The runner looks through all methods for state and timers, for every bundle several times.
        return [name for name in ("process", "fire") if hasattr(self, name)]

    def __reduce__(self) -> Any:
        feed_of(self.plan.folder).steps[type(self).__name__] = self
        return step_of, (self.plan.folder, type(self).__name__)


def step_of(folder: Path, name: str) -> Any:
    """A step of the stream that writes into a folder."""
    return feed_of(folder).steps[name]


def commit(plan: Plan, checkpoints: Checkpoints, number: int, name: str, state: State) -> None:
    """Write one piece; with the last one, small parts that the checkpoint covers are joined into larger ones."""
    if checkpoints.write(number, name, state):
        metrics.checkpoint_written(sum(path.stat().st_size for path in checkpoints.folder.rglob("*") if path.is_file()))
        for kind in ROLLED:
            files.roll(parts_folder(plan, kind))


def as_bytes(data: bytes) -> Any:
    """Bytes as the array that a state can hold."""
    return np.frombuffer(data, np.uint8)
