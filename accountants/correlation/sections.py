"""How the correlation that an adversary knows is declared in a configuration."""

from __future__ import annotations

from dataclasses import dataclass

from mechanisms.core.errors import ParameterError
from mechanisms.core.parameters import Checked, parameter


@dataclass(frozen=True, kw_only=True)
class SmoothedIdentity(Checked):
    """States that mostly stay (Laplacian smoothing of the identity); see `laplacian_smoothing_matrix`."""

    n: int = parameter(2, doc="number of states", at_least=1)
    s: float = parameter(doc="strength of the smoothing: the smaller, the stronger the correlation", at_least=0)


@dataclass(frozen=True, kw_only=True)
class Walk(Checked):
    """A walk on a line of places; see `chain_matrix`."""

    n: int = parameter(100, doc="number of places", at_least=1)
    tau: float = parameter(0.1, doc="reach of a step as a share of the line", above=0)


@dataclass(frozen=True, kw_only=True)
class KnownCorrelation(Checked):
    """What an adversary knows of how a person moves: exactly one of the ways to say it.

    Parameters
    ----------
    backward, forward
        Files of transition matrices (``.npy`` or ``.csv``): previous given now, next given now.
    laplacian, chain
        A model with a public matrix.
    learned
        File that ``penstock learn`` wrote.
    estimate, windows, of, smoothing, unseen
        An estimate from the first ``windows`` windows of the run's own stream. With ``of: users`` a person's states
        are the cells; with ``of: cells`` they are being in one cell or not, and the loss is the largest for any cell.
    stationary
        Where one direction alone is given, derive the other from it and its stationary distribution by Bayes' rule.

    Examples
    --------
    >>> KnownCorrelation(estimate="first", windows=168).is_public
    False
    >>> KnownCorrelation(estimate="first")
    Traceback (most recent call last):
    mechanisms.core.errors.ParameterError: windows: None is not allowed; it must be ...
    """

    backward: str | None = parameter(None, kind="path", doc="file of Pr(previous | now), .npy or .csv")
    forward: str | None = parameter(None, kind="path", doc="file of Pr(next | now), .npy or .csv")
    laplacian: SmoothedIdentity | None = parameter(None, doc="states that mostly stay")
    chain: Walk | None = parameter(None, doc="a walk on a line of places")
    learned: str | None = parameter(None, kind="path", doc="file that `penstock learn` wrote")
    estimate: str | None = parameter(None, choices=("first",), doc="learn from the first windows of the run's stream")
    windows: int | None = parameter(None, at_least=2, doc="how many windows to learn from")
    of: str = parameter("users", choices=("users", "cells"), doc="states: a person's cell, or in one cell or not")
    smoothing: float = parameter(0.1, at_least=0, doc="steps added to each count: 0 makes the unseen impossible")
    unseen: bool = parameter(False, doc="whether not being seen is a place of its own (of: users)")
    stationary: bool = parameter(True, doc="derive a direction that is not given by Bayes' rule")

    def __post_init__(self) -> None:
        super().__post_init__()
        ways = {
            "backward" if self.forward is None else "forward": self.forward or self.backward,
            "laplacian": self.laplacian,
            "chain": self.chain,
            "learned": self.learned,
            "estimate": self.estimate,
        }
        given = [name for name, value in ways.items() if value is not None]
        if not given:
            expected = "given, or one of backward, forward, laplacian, chain, learned"
            raise ParameterError("estimate", None, expected)
        if len(given) > 1:
            raise ParameterError(given[1], ways[given[1]], f"left out where {given[0]} is given")
        if self.estimate is not None and self.windows is None:
            raise ParameterError("windows", None, "given with estimate: how many windows to learn from")
        if self.estimate is None and self.windows is not None:
            raise ParameterError("windows", self.windows, "left out without estimate")

    @property
    def is_public(self) -> bool:
        """Whether it is known without looking at the stream."""
        return self.estimate is None and self.learned is None


@dataclass(frozen=True, kw_only=True)
class UserClass(Checked):
    """People who move alike, with a correlation of their own: a subject of the books."""

    name: str = parameter(doc="what the class is called in the rows")
    correlation: KnownCorrelation = parameter(doc="how people of this class move")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.correlation.estimate is not None:
            expected = "a file or a model for a class (an estimate from the stream is one for everybody)"
            raise ParameterError("correlation.estimate", self.correlation.estimate, expected)
