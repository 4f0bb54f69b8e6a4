"""Sink interface: an additional destination for public rows and files once they are durable on disk."""

from __future__ import annotations

import pyarrow as pa


class Sink:
    """Base class for sinks. Calls may be repeated after a crash.

    **Privacy**: a sink gets what is in ``public/`` of the run's folder, and nothing else.
    """

    def begin(self) -> None:
        """Check that the run may publish here before anything is charged. Raises `PenstockError` if it may not."""

    def releases(self, table: pa.Table) -> None:
        """Publish rows of consecutive, already durable releases, and return once they are delivered."""

    def accounts(self, table: pa.Table) -> None:
        """Publish rows of the public accounts of counts in the same way as `releases`."""

    def end(self) -> None:
        """Publish a completed run's folder."""
