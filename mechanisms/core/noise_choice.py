"""Choice of the noise family if a schedule leaves it open: the family with less noise under the run's bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.mechanisms.core.contract import Facts, Window
from penstock.mechanisms.core.guarantee import EPSILON, GAUSSIAN, RHO
from penstock.mechanisms.core.schedules import BudgetSchedule

#: Noise by the measure of its budget.
LAWS_OF_NOISE = {EPSILON: "Laplace noise", RHO: "Gaussian noise by ρ", GAUSSIAN: "Gaussian noise by its exact ε"}


class NoiseChoice(NamedTuple):
    """An automatically chosen noise family, with the reason for the choice.

    Parameters
    ----------
    schedule
        The schedule with that noise; without a δ where it is pure.
    deviations
        Standard deviation in a count, by candidate.
    by_ledger
        Whether it had to be that of a ledger's measure.
    """

    schedule: BudgetSchedule
    deviations: dict[BudgetSchedule, float]
    by_ledger: bool

    @property
    def words(self) -> str:
        """The choice, described in one line."""
        chosen, delta = self.schedule.family, self.schedule.delta
        others = [
            f"{deviation:.3g} with {LAWS_OF_NOISE[one.family.measure]}"
            for one, deviation in self.deviations.items()
            if one != self.schedule
        ]
        spent = "the promise is a pure ε, no δ is spent" if delta is None else f"δ = {delta:g} is spent"
        name = LAWS_OF_NOISE[chosen.measure] + (", the measure of the ledger" if self.by_ledger else "")
        size = f"standard deviation {self.deviations[self.schedule]:.3g} in a count"
        return f"{name}: {', '.join([size, *others])}; {spent}."


def choose_noise(
    schedule: BudgetSchedule, facts: Facts, windows: Sequence[Window], measure: str | None = None
) -> NoiseChoice:
    """Choose the noise family with the smaller standard deviation. If they are equal, choose pure noise.

    Parameters
    ----------
    schedule
        The schedule whose noise is left open.
    facts, windows
        Public facts of the run, and the windows over which noise is compared: as it is for the first publication
        of a unit in each.
    measure
        That of a ledger, to which the noise must keep; None: there is none.

    **Privacy.** The choice is a function of public facts. Each candidate keeps to (ε, δ) by itself.

    Examples
    --------
    >>> from penstock.mechanisms import get
    >>> facts = Facts(n_cells=100, max_cells=4, n_windows=24)
    >>> open_noise = [get("w_event_uniform")(epsilon=epsilon, delta=1e-6, w=6) for epsilon in (2.0, 50.0)]
    >>> [choose_noise(one, facts, facts.windows()).schedule.noise for one in open_noise]
    ['discrete_gaussian', 'discrete_laplace']
    """
    deviations = {one: one.deviation(facts, windows) for one in schedule.candidates}
    of_ledger = [one for one in deviations if one.family.measure == measure]
    return NoiseChoice(min(of_ledger or deviations, key=lambda one: deviations[one]), deviations, bool(of_ledger))
