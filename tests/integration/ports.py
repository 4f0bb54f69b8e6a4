"""Ports for the processes that tests start."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

#: Below those that the system gives to whoever asks for any, a listener or a client: nobody is given one meanwhile.
LOWEST, DEFAULT = 10_000, 32_768
_ANY = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(n_ports: int) -> list[int]:
    """Ports of this machine that nobody listens on, and that none is given by chance before they are listened on."""
    first = int(_ANY.read_text().split()[0]) if _ANY.exists() else DEFAULT
    highest = first if first >= 2 * LOWEST else DEFAULT  # where nearly all are given to anybody, there are no others
    drawn, found = random.SystemRandom(), []  # tests that run side by side draw others, whatever their seed
    with ExitStack() as listeners:
        while len(found) < n_ports:
            listener = listeners.enter_context(socket.socket())
            with suppress(OSError):
                listener.bind(("127.0.0.1", drawn.randrange(LOWEST, highest)))
                found.append(int(listener.getsockname()[1]))
    return found
