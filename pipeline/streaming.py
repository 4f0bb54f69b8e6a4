"""Run a stream on this machine: unbounded, with a real watermark, until it ends or is stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline.monitoring.server import HEALTH
from pipeline.output import checkpoint
from pipeline.output.checkpoint import Checkpoints

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


#: Why a stream ends before its end: it was asked to, or Beam's runner has waited for its feed in vain.
INTERRUPTED = "interrupted"
SILENCE = "interrupted: Beam's runner heard nothing for 30 s and gave up, as on an overloaded machine or a slow disk"


def run_stream(plan: Plan) -> str | None:
    """Read, count, release and account a stream; parts of the output files are left to be merged.

    Parameters
    ----------
    plan
        The run; it goes on from the latest checkpoint in its folder, if there is one.

    Returns
    -------
    None where the stream came to its end; otherwise why not. It was stopped by SIGINT or SIGTERM, or since a budget was
    used up; or the machine was too busy to feed it.

    Raises
    ------
    PenstockError
        As for any run.
    """
    import apache_beam as beam
    from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner

    from pipeline.feed import Feed
    from pipeline.stream_graph import build, pieces

    checkpoints = Checkpoints(checkpoint.folder(plan), pieces(plan))
    with Feed(plan, checkpoints) as feed, stopping(feed.stop), _serving(feed) as endpoint:
        # The one runner of Beam on a single machine with a watermark that moves while events come in.
        pipeline = beam.Pipeline(runner=BundleBasedDirectRunner())
        build(pipeline, plan, endpoint, checkpoints)
        try:
            pipeline.run().wait_until_finish()
            heard_all = feed.exhausted
        finally:
            feed.stop()
    if feed.error is not None:
        raise feed.error
    if not heard_all:
        return SILENCE
    return None if feed.finished else INTERRUPTED


@contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end a stream cleanly; a second one ends the program."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: object) -> None:
        signal.signal(number, signal.default_int_handler)
        HEALTH.drain()
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _serving(feed: object) -> Iterator[str]:
    from apache_beam.testing.test_stream_service import TestStreamServiceController

    service = TestStreamServiceController(feed)
    service.start()
    try:
        yield service.endpoint
    finally:
        service.stop()
