"""Where releases and public accounts are sent to, besides the files."""

from __future__ import annotations

from dataclasses import dataclass

from mechanisms.core.errors import ParameterError
from mechanisms.core.parameters import Checked, parameter
from pipeline.kafka.client import check_options


@dataclass(frozen=True, kw_only=True)
class KafkaOutput(Checked):
    """Topics that rows are sent to, each row a JSON object with the columns of its file.

    Examples
    --------
    >>> KafkaOutput(brokers="localhost:9092", releases="footfall").accounts is None
    True
    """

    brokers: str = parameter(doc="addresses to begin with: host:port, several with commas between them")
    releases: str | None = parameter(None, doc="topic of the releases; key: stream/window/cell")
    accounts: str | None = parameter(
        None, doc="topic of the public accounts; key: stream/accountant/subject/window/name"
    )
    options: dict[str, str] = parameter(factory=dict, doc="options of the client; secrets as env: or file:")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self.options)
        if self.releases is None and self.accounts is None:
            raise ParameterError("releases", None, "the name of a topic (or give accounts)")
