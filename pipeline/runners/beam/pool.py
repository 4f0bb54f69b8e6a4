"""Start Python workers for task managers. Unlike Beam's built-in pool, it listens only on the loopback interface.

``python -m penstock.pipeline.runners.beam.pool --port 50000`` serves a task manager of this machine. Whoever reaches
the port of a pool may run code as its user: open it to a network with ``--host`` only where nobody else gets there.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc
from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.monitoring.server import LOOPBACK

#: Requests that are answered side by side: each starts or ends a worker.
_THREADS = 4
_OPTIONS = (("grpc.http2.max_pings_without_data", 0), ("grpc.http2.max_ping_strikes", 0), ("grpc.so_reuseport", 0))


class _WorkerPool(BeamFnExternalWorkerPoolServicer):  # type: ignore[misc]
    """A worker pool that keeps track of the processes it has started."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.started: set[str] = set()

    def StartWorker(self, request: Any, context: Any) -> Any:
        """Start a worker. Beam's service definition prescribes the method name."""
        self.started.add(request.worker_id)
        return super().StartWorker(request, context)


@contextmanager
def worker_pool(host: str = LOOPBACK, port: int = 0, **options: Any) -> Iterator[str]:
    """Serve Python workers until the block ends, and yield the address for ``--environment_config``.

    Port 0 is a free one; ``options`` are those of Beam's `BeamFnExternalWorkerPoolServicer`, such as ``use_process``: a
    process for each worker. Raises `DataError` if the address is taken, or not one of this machine.
    """
    workers = _WorkerPool(**options)
    server = grpc.server(ThreadPoolExecutor(_THREADS, "penstock-pool"), options=_OPTIONS)
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(workers, server)
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError:
        raise DataError(f"a pool of workers cannot listen at {host}:{port}: choose another --host or --port") from None
    server.start()
    try:
        yield f"{host}:{bound}"
    finally:
        server.stop(1).wait()
        for worker in workers.started:
            workers.StopWorker(beam_fn_api_pb2.StopWorkerRequest(worker_id=worker), None)


def main(words: Sequence[str] | None = None) -> None:
    """Serve a worker pool until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m penstock.pipeline.runners.beam.pool", description=__doc__)
    parser.add_argument("--host", default=LOOPBACK, help="address to listen at (default: %(default)s)")
    parser.add_argument("--port", type=int, default=50_000, help="port to listen at (default: %(default)s)")
    given = parser.parse_args(words)
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    with worker_pool(given.host, given.port, use_process=True) as address:
        print(f"pool of workers at {address}", flush=True)
        signal.sigwait(signals)


if __name__ == "__main__":
    main()
