"""Settings of a Kafka topic that is read as a source."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.mechanisms.core.plugin import ParameterError, parameter
from penstock.pipeline.sources.reading.kafka_client import check_options
from penstock.pipeline.sources.reading.messages import MessageSettings


@dataclass(frozen=True, kw_only=True)
class KafkaSettings(MessageSettings):
    """Topic, brokers and format of the messages; `penstock.pipeline.sources.kafka.Kafka` says what they mean."""

    brokers: str = parameter(doc="addresses to begin with: host:port, several with commas between them")
    topic: str = parameter(doc="topic to read")
    offset: str = parameter("earliest", choices=("earliest", "latest"), doc="where a new run begins to read")
    disorder: int = parameter(
        1_000,
        kind="duration",
        at_least=0,
        unit="ms",
        doc="how far the watermark stays behind: by how much brokers' clocks may differ, or be set back",
    )
    watermark: str = parameter(
        "broker",
        choices=("broker", "events"),
        doc="what moves time and makes rows late: the broker's timestamps and clock; or the latest event (simulations)",
    )
    idle_after: int = parameter(
        60_000,
        kind="duration",
        above=0,
        unit="ms",
        doc="how far the clock goes behind at the end of a partition: more than the broker's clock may be behind; "
        "with watermark: events, time without an event after which a partition is left out",
    )
    clock: bool = parameter(
        False,
        choices=(True, False),
        doc="with watermark: events, whether time goes on by the clock, less idle_after, while all partitions are idle",
    )
    patience: int | None = parameter(
        None,
        kind="duration",
        above=0,
        unit="ms",
        doc="how long the topic may be out of reach (deleted, no broker answers) before the run ends with exit code 1, "
        "for --resume to go on; unset: 5m",
    )
    group: str | None = parameter(
        None, doc="consumer group to which the run commits its offsets, for watching its lag; never read"
    )
    dead_letters: str | None = parameter(None, doc="topic to which every message with rejected rows is reported")
    dead_letter_content: bool = parameter(
        False, choices=(True, False), doc="whether dead letters hold the message itself, which tells of people"
    )
    options: dict[str, str] = parameter(factory=dict, doc="options of the client, such as those of TLS and SASL")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self.options)
        if not self.topic or self.topic == self.dead_letters:
            raise ParameterError("topic", self.topic, "the name of a topic that is not the one of dead letters")

    @property
    def by_broker(self) -> bool:
        """Whether a row is held against the broker's timestamp of its message."""
        return self.watermark == "broker"

    @property
    def lateness_flaw(self) -> tuple[str, str] | None:
        """As in `LiveSource`: by the broker's timestamps a row's lateness is its own."""
        return None if self.by_broker else ("watermark", "broker (from a topic with LogAppendTime)")
