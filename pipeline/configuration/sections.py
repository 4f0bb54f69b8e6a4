"""The small sections of a configuration that belong to no other step of the pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mechanisms.core.errors import ParameterError
from mechanisms.core.parameters import Checked, parameter
from pipeline.kafka.output import KafkaOutput


@dataclass(frozen=True, kw_only=True)
class Bounding(Checked):
    """How much one user may contribute; the sensitivity of every release comes from here.

    Examples
    --------
    >>> Bounding(max_cells=5).keep
    'hash'
    """

    max_cells: int | None = parameter(
        None, at_least=1, doc="cells of one window that one user can add 1 to; unset: all cells of the space"
    )
    keep: str = parameter(
        "hash", choices=("hash", "first", "last", "most_frequent"), doc="which cells are kept where a user has more"
    )
    max_windows: int | None = parameter(None, at_least=1, doc="windows of a block that one user counts in; unset: all")
    max_block_cells: int | None = parameter(
        None, at_least=1, doc="cells that one user counts in over all windows of a block; unset: no further bound"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_block_cells is not None and self.max_block_cells < (self.max_cells or 1):
            raise ParameterError("max_block_cells", self.max_block_cells, f"at least max_cells ({self.max_cells})")


@dataclass(frozen=True, kw_only=True)
class Output(Checked):
    """What is written, and where.

    Examples
    --------
    >>> Output(path="runs/example").truth
    True
    """

    path: str = parameter(kind="output", doc="folder of the run; public/ in it is all that may leave the operator")
    truth: bool = parameter(True, doc="write the true counts for the operator (simulation only, whatever is set)")
    user_summaries: bool = parameter(True, doc="summarise users (how many, cells and windows each) for the operator")
    report: bool = parameter(True, doc="write report.html, the page to read a run by, for the operator")
    rejects: Literal["raw", "places", "sealed"] | None = parameter(
        None,
        doc="rejected rows: kept as they are (a simulation's default), only where they were and why (a deployment's), "
        "or sealed for a reader elsewhere",
    )
    rejects_key: str | None = parameter(
        None, kind="path", doc="with rejects: sealed, the public key (.pub) of 'penstock key pair'"
    )
    ledger: str | None = parameter(
        None, kind="output", doc="ledger file shared by all configurations over the same events; unset: inside path"
    )
    delay: int = parameter(
        0,
        kind="duration",
        at_least=0,
        unit="ms",
        doc="how long after its window is final a release of a stream leaves, however long it took to make: more than "
        "it takes, or when it leaves tells how much there was to count",
    )
    kafka: KafkaOutput | None = parameter(None, doc="topics that releases and public accounts are sent to as well")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.rejects == "sealed") != (self.rejects_key is not None):
            right = "given with rejects: sealed" if self.rejects == "sealed" else "left out without rejects: sealed"
            raise ParameterError("rejects_key", self.rejects_key, right)
