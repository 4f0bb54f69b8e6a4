"""Contract of a sink: a further destination of public rows and files, written after they are durable on disk."""

from __future__ import annotations

import pyarrow as pa


class Sink:
    """Base class of sinks; calls may be repeated after a kill.

    **Privacy**: a sink gets what is in ``public/`` of the run's folder, and nothing else.
    """

    def begin(self) -> None:
        """Check, before anything is charged, that the run may publish here; raises `PenstockError`.

        The folder of the run is ready, with what ``public/`` holds before the first release.
        """

    def releases(self, table: pa.Table) -> None:
        """Publish the rows of consecutive durable releases; returns after they have been delivered."""

    def accounts(self, table: pa.Table) -> None:
        """Publish rows of public accounts of counts, as `releases` does."""

    def end(self) -> None:
        """Publish the folder of a finished run."""
