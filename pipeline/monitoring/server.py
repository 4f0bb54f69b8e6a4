"""HTTP server for a run's metrics, health checks and live page."""

from __future__ import annotations

import ipaddress
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import disable_created_metrics, make_wsgi_app

from penstock.mechanisms.core.plugin import DataError, ParameterError
from penstock.pipeline.monitoring.metrics import Health, RunMetrics, listening

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

LOOPBACK = "127.0.0.1"
#: Names of this machine in a request to the loopback interface.
_OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True)
class Answer:
    """A page as a WSGI application. If ``again`` is set, the browser reloads it after a second."""

    status: int
    text: str
    kind: str = "text/html; charset=utf-8"
    again: bool = False

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Send the page."""
        headers = [("Content-Type", self.kind), *([("Refresh", "1")] if self.again else [])]
        start_response(f"{self.status} {HTTPStatus(self.status).phrase}", headers)
        return [self.text.encode()]


#: Pages by path; each is called once for a request and returns the WSGI application that answers it.
Pages = Mapping[str, "Callable[[], WSGIApplication]"]


def is_loopback(address: str) -> bool:
    """Return whether an IP address is a loopback address. Raises `ParameterError` if it is not an IP address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        raise ParameterError("address", address, "an IP address, such as 127.0.0.1 or 0.0.0.0") from None


@contextmanager
def serve(pages: Pages, port: int = 0, address: str = LOOPBACK) -> Iterator[str]:
    """Serve pages during the block and yield the server's address. Raise `OSError` if the port is in use."""

    class Server(ThreadingMixIn, WSGIServer):
        """Server with one daemon thread per request."""

        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

    site = _site(pages, is_loopback(address))
    with make_server(address, port, site, Server, _Quiet) as server:
        threading.Thread(target=server.serve_forever, name="penstock-pages", daemon=True).start()
        host = f"[{address}]" if ":" in address else address
        try:
            yield f"http://{host}:{server.server_port}"
        finally:
            server.shutdown()


def _site(pages: Pages, loopback: bool) -> WSGIApplication:
    """Return an application that serves all pages, answers only GET requests and forbids caching."""

    def site(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:

        def start(status: str, headers: list[tuple[str, str]], *failure: Any) -> Callable[[bytes], object]:
            """Start a response that must not be cached."""
            return start_response(status, [*headers, ("Cache-Control", "no-store")], *failure)

        make_page, page = pages.get(environ["PATH_INFO"]), Answer(404, f"there are: {', '.join(pages)}")
        # A web site whose name resolves to this machine could otherwise read a page through a browser here.
        if loopback and environ.get("HTTP_HOST", "").rpartition(":")[0] not in _OWN_NAMES:
            page = Answer(403, "this page is served to this machine only")
        elif environ["REQUEST_METHOD"] != "GET":
            page = Answer(405, "GET is the only method")
        elif make_page is not None:
            return make_page()(environ, start)
        return page(environ, start)

    return site


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Suppress request logging because standard error belongs to the run."""


def health_pages(health: Health) -> Pages:
    """Return ``/healthz`` and ``/healthz/live`` (200 while alive) and ``/healthz/ready`` (200 while running)."""

    def page(is_good: bool) -> Answer:
        shown = {"state": health.state, "live": health.live, "ready": health.ready}
        return Answer(200 if is_good else 503, json.dumps(shown) + "\n", "application/json")

    return {
        "/healthz": lambda: page(health.live),
        "/healthz/live": lambda: page(health.live),
        "/healthz/ready": lambda: page(health.ready),
    }


@contextmanager
def serve_metrics(port: int, address: str = LOOPBACK) -> Iterator[str]:
    """Serve ``/metrics`` and ``/healthz`` for the runs in the block, and yield the server's address.

    Beyond the loopback interface only public measures are served: row counts and delays follow the private data, second
    by second. Raises `ParameterError` for an invalid port or IP address, and `DataError` if the port is taken.
    """
    if not 0 <= port <= 65535:
        raise ParameterError("--metrics-port", port, "a port from 0 to 65535")
    disable_created_metrics()  # a second series for every counter, with the time when it was made
    registry, health = RunMetrics(), Health()
    metrics = make_wsgi_app(registry.everything if is_loopback(address) else registry.public)
    with listening(registry, health), ExitStack() as served:
        try:
            pages: Pages = {"/metrics": lambda: metrics, **health_pages(health)}
            served_at = served.enter_context(serve(pages, port, address))
        except OSError as error:
            text = f"nothing can be served at this port of {address} ({error.strerror})"
            raise DataError(f"--metrics-port {port}: {text}; choose another one, or 0 for any") from None
        yield served_at
