"""Contract of a sink: where public rows and files of a run go as well, after they are durable in its folder."""

from __future__ import annotations

import io
from typing import Any

import polars as pl
import pyarrow as pa

#: What makes two rows the same one, wherever they are sent.
RELEASE_KEY = ("stream", "window", "cell")
ACCOUNT_KEY = ("stream", "accountant", "subject", "window", "name")

#: Rows that are made into messages together.
ROWS = 20_000


class Sink:
    """Base of every sink. A sink does nothing before it is called, and may be called again with the same after a kill.

    **Privacy**: a sink gets what is in ``public/`` of the run's folder, and nothing else.
    """

    def begin(self) -> None:
        """Check, before anything is charged, that the run may publish here; raises `PenstockError`.

        The folder of the run is ready, with what ``public/`` holds before the first release.
        """

    def releases(self, table: pa.Table) -> None:
        """Publish the rows of consecutive releases, which are on disk; they are published when this returns."""

    def accounts(self, table: pa.Table) -> None:
        """Publish rows of public accounts of counts, as `releases` does."""

    def end(self) -> None:
        """Publish what the folder of a run holds that has come to its end; all of it is there."""


class MessageSink(Sink):
    """Base of sinks that send each row to the topic of its table, at least once and in order.

    What is released again after a kill is the same, and is sent again under the same key. The service is not contacted
    before there is something to send.

    Parameters
    ----------
    releases, accounts
        Topics; None: these rows are not sent.
    """

    def __init__(self, releases: str | None, accounts: str | None) -> None:
        self._releases, self._accounts = releases, accounts
        self._client: Any = None

    def releases(self, table: pa.Table) -> None:
        """Send releases; returns when every row has been delivered, and raises `DataError` where one could not be."""
        self._publish(self._releases, table, RELEASE_KEY)

    def accounts(self, table: pa.Table) -> None:
        """Send rows of public accounts, as `releases` does."""
        self._publish(self._accounts, table, ACCOUNT_KEY)

    def _publish(self, topic: str | None, table: pa.Table, key: tuple[str, ...]) -> None:
        if topic is None:
            return
        if self._client is None:
            self._client = self._connect()
        try:
            for first in range(0, len(table), ROWS):
                self._send(topic, messages(table.slice(first, ROWS), key))
        except Exception:
            self._client = None  # it would refuse all that follows; an engine tries again with the same sink
            raise

    def _connect(self) -> Any:
        """The client that sends."""
        raise NotImplementedError

    def _send(self, topic: str, rows: list[tuple[str, bytes]]) -> None:
        """Send the messages, key and text, and wait until all have been delivered."""
        raise NotImplementedError


def messages(table: pa.Table, key: tuple[str, ...]) -> list[tuple[str, bytes]]:
    """Key and JSON text of every row.

    Examples
    --------
    >>> messages(pa.table({"stream": ["main"], "window": [1], "value": [2.0]}), ("stream", "window"))
    [('main/1', b'{"stream":"main","window":1,"value":2.0}')]
    """
    frame = pl.DataFrame(table).with_columns(
        pl.col(pl.Categorical).cast(pl.String),
        pl.col(pl.Datetime).dt.strftime("%Y-%m-%dT%H:%M:%S%.3fZ"),
    )
    keys = frame.select(pl.concat_str([pl.col(name).cast(pl.String).fill_null("") for name in key], separator="/"))
    lines = io.BytesIO()
    frame.write_ndjson(lines)
    return list(zip(keys.to_series(), lines.getvalue().splitlines()))
