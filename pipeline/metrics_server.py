"""The metrics and the health of the run of this process, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mechanisms.core.errors import ParameterError
from pipeline.health import HEALTH
from pipeline.metrics import REGISTRY
from pipeline.serving import LOOPBACK, Answer, is_loopback, serve

TEXT = "text/plain; version=0.0.4; charset=utf-8"


@contextmanager
def serve_metrics(port: int, address: str = LOOPBACK) -> Iterator[str]:
    """Serve ``/metrics`` in Prometheus' text format, and ``/healthz``, while the block runs.

    Parameters
    ----------
    port
        1 to 65535, or 0 for any free one.
    address
        Where to listen. Beyond the loopback interface only public measures are served: row counts and delays follow
        the private data, second by second.

    Yields
    ------
    The address of the server.

    Raises
    ------
    ParameterError
        For what is no port or no IP address.
    OSError
        Where the port is taken.
    """
    if not 0 <= port <= 65535:
        raise ParameterError("--metrics-port", port, "a port from 0 to 65535")
    with_operator = is_loopback(address)
    pages = {"/metrics": lambda: Answer(200, REGISTRY.exposition(with_operator), TEXT), **HEALTH.pages()}
    with serve(pages, port, address) as at:
        yield at
