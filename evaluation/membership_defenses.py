"""The defenses of Pyrgelis, Troncoso and De Cristofaro (2020) with their settings for the taxi data, as mechanisms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evaluation.attacks.released import Defense
from evaluation.defenses import defended_presence, mechanism_defense
from mechanisms.adaptive_ranges import AdaptiveRanges
from mechanisms.core.generalization import Generalization
from mechanisms.core.mechanism import Mechanism
from mechanisms.fixed_ranges import FixedRanges
from mechanisms.fpa import Fpa
from mechanisms.perturb_small import PerturbSmall
from mechanisms.sampling import Sampling
from mechanisms.spatial_generalization import SpatialGeneralization
from mechanisms.suppress_small import SuppressSmall
from mechanisms.suppress_unpopular import SuppressUnpopular
from mechanisms.temporal_generalization import TemporalGeneralization

#: Hours of the week under attack; mechanisms over a block take it as one.
WEEK = 168
#: √2645, the largest L2 norm of any cab's week: the sensitivity of the Fourier noise is measured, as in the paper.
MEASURED = 51.43


#: Shares that sampling and suppression drop.
DROPPED = (0.2, 0.4, 0.6, 0.8)


@dataclass(frozen=True)
class PaperDefense:
    """One defense with one setting.

    Parameters
    ----------
    family
        The paper's abbreviation: SPG, TG, SPG+TG, DGFR, DGAR, SSC, SLP, SMP, PSC, FPA, SPSC or SFPA.
    setting
        What is varied, in the paper's terms; w is the share that sampling drops.
    steps
        Mechanisms in the order of a configuration.
    in_figure
        Whether it is among the defenses that the privacy gain is measured for by default.
    """

    family: str
    setting: str
    steps: tuple[Mechanism, ...]
    in_figure: bool = True

    @property
    def name(self) -> str:
        """Family and setting."""
        return f"{self.family} {self.setting}"

    def of(self, binary: NDArray[np.bool_], rows: int, columns: int) -> tuple[NDArray[np.bool_], Defense | None]:
        """Presence as generalization leaves it, and what the other steps do to counts (None: nothing).

        Sampling is drawn anew for every aggregate, as the adversary does not know which memberships were kept.

        Parameters
        ----------
        binary (n_users, rows·columns, n_windows)
            Presence on a grid, row by row.
        rows, columns
            Of the grid.
        """
        coarse = [step for step in self.steps if isinstance(step, Generalization)]
        if not coarse:
            return binary, mechanism_defense(self.steps, resample=True)
        spatial = [step for step in coarse if isinstance(step, SpatialGeneralization)]
        groups = spatial[0].groups(grid_geometry(rows, columns)) if spatial else None
        return defended_presence(binary, coarse, groups=groups), mechanism_defense(self.steps, groups=groups)


def grid_geometry(rows: int, columns: int) -> list[dict[str, list[list[float]]]]:
    """Unit squares of a grid, row by row.

    >>> grid_geometry(1, 2)[1]
    {'polygon': [[1.0, 0.0], [2.0, 1.0]]}
    """
    return [
        {"polygon": [[float(column), float(row)], [column + 1.0, row + 1.0]]}
        for row in range(rows)
        for column in range(columns)
    ]


def paper_defenses() -> tuple[PaperDefense, ...]:
    """Every defense and setting of the paper's tables for the taxi data.

    Examples
    --------
    >>> [one.name for one in paper_defenses() if one.family == "SPG"]
    ['SPG 5x5', 'SPG 2x2', 'SPG 1x1']
    """
    return tuple(_generalization()) + tuple(_hiding()) + tuple(_perturbation())


def _generalization() -> Iterator[PaperDefense]:
    for n in (5, 2, 1):
        yield PaperDefense("SPG", f"{n}x{n}", (SpatialGeneralization(rows=n, columns=n),))
    for hours, name in ((4, "4 hours"), (8, "8 hours"), (24, "1 day"), (WEEK, "1 week")):
        yield PaperDefense("TG", name, (TemporalGeneralization(windows=hours),))
    coarsest = SpatialGeneralization(rows=1, columns=1), TemporalGeneralization(windows=WEEK)
    yield PaperDefense("SPG+TG", "1x1, 1 week", coarsest)
    for width in (2, 5, 10, 50, 100, 250):
        yield PaperDefense("DGFR", f"x = {width}", (FixedRanges(width=width),), width >= 50)
    for parts in (1, 2, 4, 8, 16):
        yield PaperDefense("DGAR", f"x′ = {parts}", (AdaptiveRanges(parts=parts, block=WEEK),), parts <= 2)


def _hiding() -> Iterator[PaperDefense]:
    for k in (2, 5, 10, 20, 40, 80, 160):
        yield PaperDefense("SSC", f"k = {k}", (SuppressSmall(threshold=k),), k >= 80)
    for z in DROPPED:
        yield PaperDefense("SLP", f"z = {z}", (SuppressUnpopular(fraction=z, block=WEEK, where="both"),), z == 0.8)
    for w in DROPPED:
        yield PaperDefense("SMP", f"w = {w}", (_sampling(w),), w == 0.8)


def _perturbation() -> Iterator[PaperDefense]:
    small = PerturbSmall(threshold=20, epsilon=0.1, noise="laplace")
    fourier = Fpa(
        epsilon=10.0,
        coefficients=24,
        block=WEEK,
        calibration="paper",
        transform="unnormalised",
        measured_sensitivity=MEASURED,
    )
    for k in (2, 5, 10, 20, 40, 80, 160):
        yield PaperDefense("PSC", f"k = {k}", (replace(small, threshold=k),), k == 160)
    for epsilon in (0.01, 0.1, 1.0, 10.0):
        yield PaperDefense("FPA", f"ε = {epsilon:g}", (replace(fourier, epsilon=epsilon),), epsilon >= 1)
    for w in DROPPED:
        yield PaperDefense("SPSC", f"w = {w}", (_sampling(w), small), w == 0.8)
    for w in DROPPED:
        # A sampled week is shorter: its largest L2 norm shrinks with the square root of what is kept.
        sampled = replace(fourier, measured_sensitivity=MEASURED * float(np.sqrt(1 - w)))
        yield PaperDefense("SFPA", f"w = {w}", (_sampling(w), sampled), w == 0.8)


def _sampling(dropped: float) -> Sampling:
    return Sampling(rate=round(1 - dropped, 12))
