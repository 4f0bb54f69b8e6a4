"""A small HTTP server for what a run shows of itself: a few pages, nothing but GET."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from mechanisms.core.errors import ParameterError

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
