"""Budgets in ε, in ρ or in (ε, δ), and the noise that each can pay for."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.mechanisms.core.concentrated import rho_of
from penstock.mechanisms.core.contract import Mechanism
from penstock.mechanisms.core.noise_family import NOISE_FAMILIES, NoiseFamily, families
from penstock.mechanisms.core.plugin import ParameterError, chance, parameter, parameters_of


@dataclass(frozen=True, kw_only=True)
class Budgeted(Mechanism):
    """Base class for mechanisms with a budget for their unit of privacy and a choice of noise.

    Parameters
    ----------
    epsilon
        Budget in nats. With Gaussian noise it is that of (ε, ``delta``).
    rho
        With Gaussian noise, in place of epsilon and delta: the budget in ρ of zero-concentrated differential privacy.
    delta
        With Gaussian noise and an epsilon: δ of the whole. The noise has the largest ρ that keeps to both.
    noise
        Name of the noise family.
    """

    epsilon: float | None = parameter(None, doc="budget of the unit", above=0, unit="nats")
    rho: float | None = parameter(None, doc="with Gaussian noise: the budget in zCDP, instead of epsilon", above=0)
    delta: float | None = chance(doc="with Gaussian noise and epsilon: δ of the whole")
    noise: str = parameter("discrete_laplace", doc="noise family", choices=families("counts"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.family.is_concentrated:
            offered = parameters_of(type(self))["noise"].choices or ()
            gaussian = ", ".join(name for name in families(measure="rho") if name in offered)
            for name in ("rho", "delta"):
                if getattr(self, name) is not None:
                    raise ParameterError(name, getattr(self, name), f"left out unless noise is one of {gaussian}")
            if self.epsilon is None:
                raise ParameterError("epsilon", None, f"given with {self.noise} noise")
        elif (self.rho is None) == (self.epsilon is None):
            raise ParameterError("rho", self.rho, f"given with {self.noise} noise, or else epsilon and delta")
        elif (self.epsilon is None) != (self.delta is None):
            raise ParameterError("delta", self.delta, "given where epsilon is, and only there")

    @property
    def family(self) -> NoiseFamily:
        """The noise family."""
        return NOISE_FAMILIES[self.noise]

    @property
    def budget(self) -> float:
        """The budget of a unit: ε, or ρ with Gaussian noise."""
        if self.rho is not None:
            return self.rho
        epsilon = self.epsilon or 0.0
        return epsilon if self.delta is None else rho_of(epsilon, self.delta)
