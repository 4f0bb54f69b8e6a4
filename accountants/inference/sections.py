"""How the movement prior that an adversary knows is declared in a configuration."""

from __future__ import annotations

from dataclasses import dataclass

from mechanisms.core.errors import ParameterError
from mechanisms.core.parameters import Checked, parameter


@dataclass(frozen=True, kw_only=True)
class Line(Checked):
    """The one-dimensional test chain over the cells in their order; see `chain_prior`."""

    n: int = parameter(doc="number of places: the cells of the run", at_least=1)
    tau: float = parameter(0.1, doc="reach of a move as a share of the line", above=0)


@dataclass(frozen=True, kw_only=True)
class KnownPrior(Checked):
    """What an adversary knows of how each target moves: exactly one of ``estimate``, ``chain`` and ``learned``.

    Parameters
    ----------
    estimate, top, min_windows, smoothing, towards, initial
        A prior for each target from its own cells in the first ``windows`` windows of the run; see `estimate_prior`.
        Smoothing towards places where somebody never is understates what a regular person risks
        (``docs/experiments_reconstruction.md``); ``own`` visits do not.
        Not being seen is a place of its own, which with ``top`` holds all but the most visited cells too.
    chain
        A model, the same for every target.
    learned
        File that ``penstock learn`` wrote, the same for every target.
    windows
        How many windows to learn from, and to draw targets from: people seen there.

    Examples
    --------
    >>> KnownPrior(estimate="first", windows=24, top=100).towards
    'own'
    >>> KnownPrior(estimate="first")
    Traceback (most recent call last):
    mechanisms.core.errors.ParameterError: windows: None is not allowed; it must be ...
    """

    estimate: str | None = parameter(None, choices=("first",), doc="learn from the first windows of the run's stream")
    chain: Line | None = parameter(None, doc="a walk on a line of cells")
    learned: str | None = parameter(None, kind="path", doc="file that `penstock learn` wrote")
    windows: int | None = parameter(None, at_least=2, doc="how many windows to learn and to draw targets from")
    top: int | None = parameter(None, at_least=1, doc="how many of the most visited cells are places of their own")
    min_windows: int = parameter(1, at_least=1, doc="windows a person must be seen in to become a target")
    smoothing: float = parameter(0.1, above=0, doc="total weight of the moves added to each row: no move is ruled out")
    towards: str = parameter(
        "own",
        choices=("own", "uniform", "population"),
        doc="added moves: to places by one's own visits, to any place alike, or as people in general move",
    )
    initial: str = parameter("stationary", choices=("stationary", "empirical"), doc="where the walk begins")

    def __post_init__(self) -> None:
        super().__post_init__()
        ways = {"estimate": self.estimate, "chain": self.chain, "learned": self.learned}
        given = [name for name, value in ways.items() if value is not None]
        if not given:
            raise ParameterError("estimate", None, "given, or one of chain, learned")
        if len(given) > 1:
            raise ParameterError(given[1], ways[given[1]], f"left out where {given[0]} is given")
        if self.estimate is not None and self.windows is None:
            raise ParameterError("windows", None, "given with estimate: how many windows to learn from")
