"""HTTP server for metrics, health and the live page."""

from __future__ import annotations

import ipaddress
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from mechanisms.core.plugin import ParameterError
from pipeline.monitoring.metrics import REGISTRY

# Whether the run of this process is alive, and whether it takes work: for those who start and restart it.


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

        said = {"state": self.state, "live": self.live, "ready": self.ready}
        return Answer(200 if good else 503, json.dumps(said) + "\n", "application/json")


#: Health of the run of this process.
HEALTH = Health()


# A small HTTP server for what a run shows of itself: a few pages, nothing but GET.


LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Answer:
    """What a page answers: status, text, its media type, and whether to ask again in a second."""

    status: int
    text: str
    kind: str = "text/html; charset=utf-8"
    again: bool = False


Pages = Mapping[str, Callable[[], Answer]]


def is_loopback(address: str) -> bool:
    """Whether an address is reached from this machine only; raises `ParameterError` for what is no IP address.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
    (True, False)
    """
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        raise ParameterError("address", address, "an IP address, such as 127.0.0.1 or 0.0.0.0") from None


@contextmanager
def serve(pages: Pages, port: int = 0, address: str = LOOPBACK) -> Iterator[str]:
    """Serve pages while the block runs.

    Parameters
    ----------
    pages
        By path; each is called once for a request.
    port
        0: any free one.
    address
        IP address to listen on. On the loopback interface a request must name this machine as its host: a name that
        another site points here gets nothing.

    Yields
    ------
    The address of the server, such as ``http://127.0.0.1:9464``.

    Raises
    ------
    OSError
        Where the port is taken.
    """
    server = _server(address, port, _handler(pages, is_loopback(address)))
    threading.Thread(target=server.serve_forever, name="penstock-pages", daemon=True).start()
    host = f"[{address}]" if ":" in address else address
    try:
        yield f"http://{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _server(address: str, port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    class Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

    return Server((address, port), handler)


def _handler(pages: Pages, loopback: bool) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if loopback and self.headers.get("Host", "").rpartition(":")[0] not in ("127.0.0.1", "localhost", "[::1]"):
                self._answer(Answer(403, "this page is served to this machine only"))
            elif self.path in pages:
                self._answer(pages[self.path]())
            else:
                self._answer(Answer(404, f"there are: {', '.join(pages)}"))

        def _answer(self, answer: Answer) -> None:
            body = answer.text.encode("utf-8")
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            if answer.again:
                self.send_header("Refresh", "1")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing: standard error belongs to the run."""

    return Handler


# The metrics and the health of the run of this process, over HTTP.


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
