"""Ports for the processes that tests start."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path

#: Below those that the system gives to whoever asks for any, a listener or a client: nobody is given one meanwhile.
LOWEST, DEFAULT = 10_000, 32_768
_ANY = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(n_ports: int, *, anybodys: Path = _ANY) -> list[int]:
    """Return unused ports outside the ephemeral range."""
    first = int(anybodys.read_text().split()[0]) if anybodys.exists() else DEFAULT
    highest = first if first >= 2 * LOWEST else DEFAULT  # where nearly all are given to anybody, there are no others
    drawn, ports = random.SystemRandom(), list[int]()  # tests that run side by side draw others, whatever their seed
    with ExitStack() as listeners:
        while len(ports) < n_ports:
            listener = listeners.enter_context(socket.socket())
            with suppress(OSError):
                listener.bind(("127.0.0.1", drawn.randrange(LOWEST, highest)))
                ports.append(int(listener.getsockname()[1]))
    return ports


def listeners(pids: Iterable[int]) -> dict[int, set[tuple[str, int]]]:
    """Addresses and ports that processes listen at."""
    actual = {}
    sockets = _listening()
    for pid in pids:
        actual[pid] = {sockets[link] for link in _links(pid) if link in sockets}
    return actual


def descendants(pid: int) -> list[int]:
    """Child processes of a process, recursively."""
    children = list[int]()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # a thread that has ended meanwhile
            children += map(int, (task / "children").read_text().split())
    return [*children, *(one for child in children for one in descendants(child))]


def name_of(pid: int) -> str:
    """Name of a process; empty if it has ended."""
    path = Path(f"/proc/{pid}/comm")
    return path.read_text().strip() if path.exists() else ""


def open_to_others(pids: Iterable[int]) -> set[str]:
    """Names of those processes that listen at an address which other machines reach."""
    actual = listeners(pids)
    return {
        name_of(pid) for pid, places in actual.items() if any(not ip_address(host).is_loopback for host, _ in places)
    }


def _links(pid: int) -> list[str]:
    links = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # a file that was closed meanwhile
            links.append(os.readlink(link))
    return links


def _listening() -> dict[str, tuple[str, int]]:
    """Address and port of every listening socket of this machine, by the name that processes hold it under."""
    actual = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            host, port = fields[1].split(":")
            if fields[3] == "0A":  # LISTEN
                # Words of four bytes, each in the order of the machine.
                data = b"".join(bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8))
                address = ip_address(data)
                if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
                    address = address.ipv4_mapped
                actual[f"socket:[{fields[9]}]"] = (str(address), int(port, 16))
    return actual
