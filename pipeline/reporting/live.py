"""Live report of a run in progress, served only on the loopback interface."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.mechanisms.core.plugin import PenstockError
from penstock.pipeline.monitoring.server import Answer, serve
from penstock.pipeline.reporting.data import Run
from penstock.pipeline.reporting.page import run_page

#: Seconds after the end of a run for readers to fetch its last page; a page polls every 2 seconds.
FINAL_WAIT = 5.0


class LivePage:
    """The latest page of a run. It is rendered again whenever a file has changed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lock = folder, threading.Lock()
        self.signature: tuple[tuple[str, int], ...] | None = None
        self.text = ""
        self.last_served = -FINAL_WAIT
        self.served_end = False

    def get(self) -> str:
        """Return the current page, or raise `PenstockError` if the run has not begun."""
        with self.lock:
            paths = sorted(self.folder.glob("*/**/*"))
            signature = tuple((str(path), path.stat().st_mtime_ns) for path in paths if path.is_file())
            if signature != self.signature:
                run = Run(self.folder)
                self.text, self.served_end, self.signature = run_page(run, live=True), run.is_over, signature
            self.last_served = time.monotonic()
            return self.text


@contextmanager
def watch(folder: Path) -> Iterator[str]:
    """Serve a run's page and yield its address. Serving goes on briefly after the block for browsers still open."""
    page = LivePage(folder)

    def newest() -> Answer:
        """Render the page for the current state of the run."""
        try:
            return Answer(200, page.get())
        except (PenstockError, OSError):
            return Answer(503, "<!doctype html><title>penstock</title><p>The run is about to begin …", again=True)

    # The page shows true counts, and so it is served to this machine only.
    with serve({"/": newest}, 0) as address:
        print(f"watch the run at {address}/", file=sys.stderr)
        yield f"{address}/"
        # A reader of the last seconds polls once more and gets the final page.
        while time.monotonic() - page.last_served < FINAL_WAIT and not page.served_end:
            time.sleep(0.05)
