"""Mechanisms' privacy guarantees under given parameters, as numbers and as prose."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from typing import NamedTuple

import numpy as np

from penstock.mechanisms.core.concentrated import epsilon_at
from penstock.mechanisms.core.noise_family import NoiseFamily
from penstock.mechanisms.core.unit import LANDMARKS, WINDOW, Unit

#: δ at which a budget in ρ alone is stated as (ε, δ).
DELTA = 1e-6

EPSILON, RHO, GAUSSIAN = "epsilon", "rho", "gaussian"
#: What is promised, by the measure of its amount.
LAWS = {
    EPSILON: "ε-differential privacy",
    RHO: "ρ-zero-concentrated differential privacy",
    GAUSSIAN: "μ-Gaussian differential privacy",
}
#: Theorems on the sum of the amounts of a unit.
COMPOSITION = "Bun and Steinke 2016, lemma 2.3"
EXACT = "amounts of Gaussian noise add: Dong, Roth, Su 2022, corollary 2, hence ε at δ by Balle, Wang 2018, theorem 8"
RENYI_FILTER = "Feldman and Zrnic 2021, Rényi filter, for amounts that follow earlier releases"
#: What is proved of one point, by the noise that moves it.
ONE_POINT = {
    "planar_laplace": ", with planar Laplace noise (Andrés et al. 2013, sections 3.2 and 4.1)",
    "planar_gaussian": ", with planar Gaussian noise (Bun and Steinke 2016, lemma 2.4)",
}
#: Of the positions of traces, which are no more than a distance apart.
TIMES = "the times of the points are public"
#: The theorem on crowds.
CROWD_THEOREM = "Gehrke, Hay, Lui, Pass 2012, crowd-blending privacy, which is no differential privacy"


def theorem_of(theorem: str, family: NoiseFamily, adaptive: bool) -> str:
    """Cite the theorem for a unit's amounts, followed by any theorems for its noise and for summing the amounts."""
    theorem += ONE_POINT.get(family.name, "")
    if family.measure == GAUSSIAN:
        return f"{theorem}; {EXACT}"
    if family.is_concentrated:
        return f"{theorem}; amounts of ρ add: {RENYI_FILTER if adaptive else COMPOSITION}"
    return theorem


def at_most(loss: float, digits: int = 4) -> str:
    """Format a loss to the given number of digits, rounded up so that it is never understated.

    >>> at_most(0.0595238), at_most(0.1 + 0.2), at_most(12341.0), at_most(float("inf")), at_most(17.1428, 3)
    ('0.05953', '0.3', '1.235e+04', 'inf', '17.2')
    """
    # The twelfth digit of a binary number is that of the decimal one that was meant, and above it nothing is lost.
    return f"{float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(f'{loss:.12g}')):.{digits}g}"


class UnitPhrases(NamedTuple):
    """A guarantee as prose: its statement, unit of privacy, neighbours and theorem."""

    statement: str
    unit: str
    neighbours: str
    theorem: str


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """A mechanism's privacy guarantee.

    >>> promised = Guarantee(unit=Unit.stretch(4), measure="epsilon", amount=1.0, theorem="Kellaris 2014")
    >>> promised.words.statement, promised.words.unit
    ('w-event ε-differential privacy, with ε = 1 nats', "all of one user's events in any 4 successive windows")
    >>> promised.in_general.unit
    "all of one user's events in any w successive windows"
    """

    unit: Unit = WINDOW  # what of one user is protected together
    # ``epsilon``, ``rho`` of zero-concentrated differential privacy, or ``gaussian``: half of μ² of Gaussian
    # differential privacy, where all noise is Gaussian; None: no differential privacy is promised.
    measure: str | None = None
    amount: float | None = None  # ε or ρ of a unit; None if it follows from the bounds of the run
    delta: float | None = None  # δ at which a ρ is stated as (ε, δ); None: `DELTA`
    theorem: str = "none"  # where it is proved: authors, year, theorem
    # On traces: distance in metres of the positions that neighbours differ in. None: counts.
    radius: float | None = None
    # On traces: conditional inferential loss that secret points keep to, in place of an amount.
    goal: float | None = None
    crowd: tuple[int, float] | None = None  # k and ε of the crowd that a user in one count blends with
    # Amounts that are spent depend on earlier outputs, so that no accounting may take them for fixed in advance.
    adaptive: bool = False
    charged: float | None = None  # what the charges of a unit may add up to, where it is more than the amount
    linked: bool = False  # charges link windows (`events.Linked`): the loss of one is not that of its release alone
    may_be_sampled: bool = True  # each membership is in one noisy number, so that sampling before makes a sampled event
    # Why the noise of different windows is not independent, as steps that weigh it against predictions take it to be.
    dependence: str = ""

    @property
    def exists(self) -> bool:
        """Return whether the mechanism guarantees anything, either a goal or a finite amount."""
        return self.goal is not None or (self.measure is not None and self.amount != np.inf)

    @property
    def independent(self) -> bool:
        """Return whether noise is independent across windows."""
        return not self.dependence

    @property
    def concentrated(self) -> bool:
        """Return whether the amount is stated in ρ or μ²/2."""
        return self.measure in (RHO, GAUSSIAN)

    @property
    def on_points(self) -> bool:
        """Return whether the guarantee concerns positions in traces rather than counts."""
        return self.radius is not None

    def amount_of(self, unit: Unit) -> float | None:
        """Return the amount if the guarantee applies to the given unit, or None if it does not."""
        return self.amount if self.unit == unit and self.measure is not None else None

    @property
    def words(self) -> UnitPhrases:
        """The guarantee as prose, with parameter values."""
        sizes = str(self.unit.length), "" if self.radius is None else f"{self.radius:,g}"
        figure = self._figure() if self.exists else ""
        return self._phrases(*sizes, f", with {figure}" if figure else "")

    @property
    def in_general(self) -> UnitPhrases:
        """The guarantee as prose, with symbols instead of parameter values."""
        return self._phrases("w" if self.unit.kind == "stretch" else "", "`radius`", "")

    def _figure(self) -> str:
        if self.goal is not None:
            return f"a loss of at most {self.goal:g}"
        if self.amount is None:
            return ""
        if not self.concentrated:
            return f"ε = {at_most(self.amount)} nats"
        delta = self.delta or DELTA
        amount = f"ρ = {at_most(self.amount)}" if self.measure == RHO else f"μ = {at_most((2 * self.amount) ** 0.5)}"
        return f"{amount}, hence ε = {at_most(epsilon_at(self.measure, self.amount, delta))} at δ = {delta:g}"

    def _phrases(self, length: str, metres: str, figure: str) -> UnitPhrases:
        if self.crowd is not None:
            neighbours = "the user is left out, where the crowd does not hide them already"
            return UnitPhrases("none", "one user who is in a single count", neighbours, self.theorem)
        if self.goal is None and self.measure is None:
            return UnitPhrases("none", "none", "none", self.theorem)
        if self.radius is not None:
            statement, unit, neighbours = self._of_traces(length, metres)
        else:
            statement, unit = self._of_counts(length)
            neighbours = "add or remove the unit" + ("; landmarks are public" if self.unit == LANDMARKS else "")
        return UnitPhrases(statement + figure if self.exists else "none", unit, neighbours, self.theorem)

    def _of_counts(self, length: str) -> tuple[str, str]:
        """Describe a guarantee on counts: its statement and unit."""
        law = LAWS[self.measure or EPSILON]
        kind = self.unit.kind
        statements = {"stretch": f"w-event {law}", "run": f"user-level {law}"}
        per = kind if kind in ("window", "block") else "budget period"
        statement = statements.get(kind, f"{law} per {per}")
        return statement, f"all of {self.unit.words(length)}"

    def _of_traces(self, length: str, metres: str) -> tuple[str, str, str]:
        """Describe a guarantee on traces: its statement, unit and neighbours."""
        if self.goal is not None:
            return (
                "conditional inferential privacy of secret points",
                "the secret points of one user's trace",
                f"two hypotheses at most {metres} metres apart at each secret point; {TIMES}",
            )
        within = f"indistinguishability within {metres} metres"
        law = f"ρ-zero-concentrated {within}" if self.concentrated else f"ε-{within}"
        if self.unit == WINDOW:
            geo = law if self.concentrated else f"ε-geo-{within}"
            return (
                f"{geo}, for each point",
                "one point of one user",
                f"two positions at most {metres} metres apart; {TIMES}",
            )
        neighbours = f"two traces at most {metres} metres apart at each of these points; {TIMES}"
        if self.unit == LANDMARKS:
            unit = "one user's positions at all landmarks of a budget period and at any one other point"
            return f"{law}, per user and budget period", unit, f"{neighbours}, and so are landmarks"
        unit = f"one user's positions at any {length} successive points"
        return f"{law}, for any {length} successive points of a user", unit, neighbours
