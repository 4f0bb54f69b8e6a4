"""Whether the run of this process is alive, and whether it takes work: for those who start and restart it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.serving import Answer, Pages

#: Seconds without a sign of life after which a stream counts as stuck; it gives one several times a second.
PATIENCE = 120.0


class Health:
    """State of a run: ``starting``, ``running``, ``draining`` (asked to stop), ``ended`` or ``failed``.

    Examples
    --------
    >>> health = Health()
    >>> with health.watched():
    ...     health.state, health.ready
    ('running', True)
    >>> health.state, health.live, health.ready
    ('ended', True, False)
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A run is being prepared."""
        self.state = "starting"
        self._beat: float | None = None

    def beat(self) -> None:
        """A sign of life; who has given one must go on."""
        self._beat = time.monotonic()

    def drain(self) -> None:
        """The run has been asked to stop, and finishes what is under way."""
        self.state = "draining"

    @contextmanager
    def watched(self) -> Iterator[None]:
        """The run goes on while the block does."""
        self.state = "running"
        try:
            yield
        except BaseException:
            self.state = "failed"
            raise
        self._beat, self.state = None, "ended"

    @property
    def live(self) -> bool:
        """Whether there is no reason to end and restart the process."""
        stuck = self._beat is not None and time.monotonic() - self._beat > PATIENCE
        return self.state != "failed" and not stuck

    @property
    def ready(self) -> bool:
        """Whether the run reads and releases."""
        return self.state == "running" and self.live

    def pages(self) -> Pages:
        """``/healthz`` and ``/healthz/live``: 200 while alive; ``/healthz/ready``: 200 while running. Else 503."""
        return {
            "/healthz": lambda: self._page(self.live),
            "/healthz/live": lambda: self._page(self.live),
            "/healthz/ready": lambda: self._page(self.ready),
        }

    def _page(self, good: bool) -> Answer:
        from pipeline.serving import Answer  # a server's modules, which most runs do without

        said = {"state": self.state, "live": self.live, "ready": self.ready}
        return Answer(200 if good else 503, json.dumps(said) + "\n", "application/json")


#: Health of the run of this process.
HEALTH = Health()
