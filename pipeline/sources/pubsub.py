"""A Pub/Sub subscription as a live source. Beam's connector reads it, on runners that support the connector."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.mechanisms.core.plugin import DataError, ParameterError, parameter
from penstock.mechanisms.core.state import State
from penstock.pipeline.sources.base import Checkpointed, LiveInput, MicroBatch
from penstock.pipeline.sources.reading.messages import MessageSettings
from penstock.pipeline.sources.reading.services import required_form


@dataclass(frozen=True, kw_only=True)
class Pubsub(MessageSettings):
    """Read events from the messages of a Pub/Sub subscription, for ``--runner dataflow``.

    A row arrives when the service published its message. The watermark is the service's: no message that was published
    before it waits to be read any more. The service keeps what was read and is not counted yet as state of the job, so
    that a run goes on from there with ``--resume``. With ``until`` the run ends when the watermark has passed it (and
    what is allowed to be late); without, it goes on until it is stopped.

    Parameters
    ----------
    subscription
        A subscription for this run alone: what others acknowledge is not read.
    columns, format, schema
        As those of a topic of Kafka.

    Notes
    -----
    **Privacy**: a row is late if its message was published at the deadline of all its windows or later. That depends on
    the row and the service's clock alone. The watermark is an estimate: a row that comes behind it although it was
    published in time is counted as late, if all its windows have been counted.

    Messages that the service delivers twice are dropped by their id; one that was not changes no count, since a person
    counts once in a cell and window, and is a duplicate in the row equation.

    Examples
    --------
    >>> Pubsub(subscription="projects/city-1/subscriptions/events", columns={"place": "stop"}).layout.columns
    {'user': 'user', 'time': 'time', 'place': 'stop'}
    """

    by_connector = True
    on_services = True
    lateness_flaw = None  # a row's lateness depends only on its publication time

    subscription: str = parameter(doc="subscription to read: projects/PROJECT/subscriptions/SUBSCRIPTION")

    def __post_init__(self) -> None:
        super().__post_init__()
        if expected := required_form(self.subscription, "projects/PROJECT/subscriptions/SUBSCRIPTION"):
            raise ParameterError("subscription", self.subscription, expected)
        if self.disorder:
            raise ParameterError("disorder", self.disorder, "left out: the service's watermark waits for what is late")

    @property
    def recorded(self) -> Pubsub:
        """The subscription's configuration, without the options that concern reading it."""
        return replace(self, checkpoint=0)

    def micro_batches(
        self, run: LiveInput, folder: Path, start: State, number: int, latest: int, checkpointed: Checkpointed
    ) -> Iterator[MicroBatch | None]:
        """Raise `DataError`, because only Beam's connector can read the subscription."""
        raise DataError(f"{self.subscription}: is read by Beam's connector")

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 digest of the subscription's name. The contents are unbounded, so they have no digest."""
        return {"pubsub": hashlib.sha256(self.subscription.encode()).hexdigest()}
