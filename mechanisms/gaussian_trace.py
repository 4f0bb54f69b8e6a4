"""Gaussian noise on every point in a trace, either independent or designed to meet a goal."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Facts, Release, Window
from penstock.mechanisms.core.geometry import published
from penstock.mechanisms.core.guarantee import Guarantee
from penstock.mechanisms.core.noise import Noise
from penstock.mechanisms.core.plugin import Checked, ParameterError, check_one_of, parameter
from penstock.mechanisms.core.schedules import Offer, Schedule
from penstock.mechanisms.core.sensitivity import of_point
from penstock.mechanisms.core.state import State

KERNELS = ("rbf", "matern12", "matern32", "periodic")
FAMILIES = ("singletons", "every_other", "sliding_blocks")


@dataclass(frozen=True, kw_only=True)
class LengthScales(Checked):
    """The length scales of processes that an adversary may know: a single value, or all values up to a maximum."""

    at_most: float | None = parameter(None, doc="longest of all length scales above 0", above=0, below=math.inf)
    exactly: float | None = parameter(None, doc="the only length scale", above=0, below=math.inf)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of({"at_most": self.at_most, "exactly": self.exactly})

    @property
    def longest(self) -> float:
        """The longest length scale."""
        return float(self.at_most or self.exactly or 0.0)


@dataclass(frozen=True, kw_only=True)
class TracePrior(Checked):
    """An adversary's assumed knowledge: a Gaussian-process prior on each axis of a trace, and the set of secret points.

    ``length_scale`` is in seconds, without a unit for a periodic kernel. A number stands for ``at_most``: every length
    scale up to it is protected. The longest is not always the worst.
    """

    kernel: str = parameter("rbf", doc="kernel of the process", choices=KERNELS)
    length_scale: float | LengthScales = parameter(doc="longest length scale of the process, or {exactly: …}")
    variance: float = parameter(doc="variance of a position on each axis", above=0, unit="square metres")
    period: float | None = parameter(None, doc="period of the periodic kernel", above=0, unit="seconds")
    nugget: float = parameter(
        0.0, doc="variance that a position shares with no other", at_least=0, unit="square metres"
    )
    secrets: str = parameter("singletons", doc="points that are secret together", choices=FAMILIES)
    width: int = parameter(2, doc="points of a sliding block", at_least=1)
    order: float = parameter(2.0, doc="order of the Rényi divergence", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.kernel == "periodic") != (self.period is not None):
            raise ParameterError("period", self.period, "given for the periodic kernel and for no other")
        given = self.length_scale
        is_number = isinstance(given, int | float) and not isinstance(given, bool) and 0 < given < math.inf
        if not is_number and not isinstance(given, LengthScales):
            raise ParameterError("length_scale", given, "a finite number above 0, {at_most: …} or {exactly: …}")

    @property
    def length_scales(self) -> LengthScales:
        """The length scales to protect against."""
        given = self.length_scale
        return given if isinstance(given, LengthScales) else LengthScales(at_most=float(given))


@dataclass(frozen=True, kw_only=True)
class ConditionalGoal(TracePrior):
    """The maximum conditional inferential loss about each chosen secret in a trace.

    The noise is worked out for each trace, from the times of its own points, which are public. No plan made beforehand
    holds for the times that come: sets of secrets can lose more at longer gaps as well as at shorter ones.
    """

    goal: float = parameter(doc="largest loss of every chosen secret", above=0, unit="nats")
    # points of a trace that are released. Later ones repeat the last of these, and are no secrets of the promise.
    n_points: int = parameter(100, doc="points of a trace that are released; later ones repeat the last", at_least=1)


@dataclass(frozen=True, kw_only=True)
class PlannedNoise(Checked):
    """Noise planned for each trace to meet a goal."""

    conditional_goal: ConditionalGoal = parameter(doc="the loss that the noise is to keep to")


#: Points of a trace with designed noise.
MOST_DESIGNED = 1000


@dataclass(frozen=True, kw_only=True)
class GaussianTrace(Schedule):
    """Perturb every point in every trace with Gaussian noise, either at a given scale or as needed to meet a goal.

    Parameters
    ----------
    sigma
        Standard deviation on each axis, in metres; or ``conditional_goal``: the conditional inferential loss that
        secret points may have when the points of a trace depend on each other. It is worked out for each trace from the
        times of its points: `penstock.accountants.gaussian_process.goal.planned_deviations`.
    radius
        How far apart the two hypotheses about a secret point may be, in metres; 1 if unset.
    covariance
        ``white``: independent noise of one size (if unset). ``designed``, with a goal: noise that depends on that of
        earlier points, shaped for the goal, of less total variance:
        `penstock.accountants.gaussian_process.goal.planned_factors`.

    **Privacy.** Alone, a point has a Rényi loss of order λ of λ·radius²/(2σ²) (ρ-zCDP with ρ = radius²/(2σ²); Bun and
    Steinke 2016, proposition 1.6). With a goal, every chosen secret of every trace has at most the goal's loss,
    whatever the times of its points, against an adversary who knows that each axis is a Gaussian process with the
    given kernel and any one length scale up to the
    given one. What no noise can keep to the goal is refused: all points of a trace in which secret points follow from
    each other to machine precision, and points beyond the goal's ``n_points``. Unit: the secret points of one user;
    neighbours differ in their positions. Meehan and Chaudhuri 2021. Designed noise of covariance Σ says more about
    some differences of points than its scale suggests, so each point is charged radius²/(2·λ_min(Σ)): the sum over any
    points covers δᵀΣ⁻¹δ/2 for every δ up to the radius at each of them.

    Notes
    -----
    The pure ε is infinite. State: the last release; of designed noise also a secret, the draws of up to ``n_points``
    points. O(n_users) a timestamp, designed O(n_users·n_points). Planning is what costs: some hundred
    iterations of O(n_points³), seconds for 100 points, once for all traces with equal gaps.

    Examples
    --------
    >>> from penstock.mechanisms.core.run import run_traces
    >>> track = np.tile([39.9, 116.4], (3, 1))
    >>> (released,) = run_traces(GaussianTrace(sigma=50.0), [track], seed=1)
    >>> released.scale.tolist()
    [50.0, 50.0, 50.0]
    """

    sigma: float | PlannedNoise = parameter(doc="standard deviation on each axis in metres, or a conditional_goal")
    radius: float | None = parameter(None, doc="distance of the two hypotheses about a secret point; unset: 1", above=0)
    covariance: str | None = parameter(
        None,
        doc="designed: less noise, but dependent, for a conditional_goal; unset: white",
        choices=("white", "designed"),
    )
    law: ClassVar[str] = "planar_gaussian"
    theorem: ClassVar[str] = "Bun and Steinke 2016, proposition 1.6"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.goal is not None:
            if self.is_designed and self.goal.n_points > MOST_DESIGNED:
                text = f"at most {MOST_DESIGNED:,} with designed noise, whose state holds a draw for each"
                raise ParameterError("sigma.conditional_goal.n_points", self.goal.n_points, text)
        elif self.is_designed:
            expected = "white, unless sigma is a conditional_goal: it is shaped for one"
            raise ParameterError("covariance", "designed", expected)
        elif isinstance(self.sigma, bool) or not isinstance(self.sigma, int | float) or not 0 <= self.sigma < math.inf:
            raise ParameterError("sigma", self.sigma, "a finite number at least 0 (metres), or a conditional_goal")

    @classmethod
    def examples(cls) -> tuple[GaussianTrace, ...]:
        """Return an instance with a given σ. An instance with a goal would require traces."""
        return (cls(sigma=100.0),)

    @property
    def goal(self) -> ConditionalGoal | None:
        """The loss that planned noise keeps to, or None if σ is given."""
        return self.sigma.conditional_goal if isinstance(self.sigma, PlannedNoise) else None

    @property
    def is_designed(self) -> bool:
        """Return whether the noise is correlated between points."""
        return self.covariance == "designed"

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee, which is ρ per point or the largest privacy loss about the secret points."""
        if self.goal is None:
            return replace(super().guarantee, amount=float(self._spent(self.sigma)))
        theorem = "Meehan and Chaudhuri 2021, theorem 3.1"
        dependence = "it is designed for the times of a trace" if self.is_designed else ""
        return replace(super().guarantee, amount=None, goal=self.goal.goal, theorem=theorem, dependence=dependence)

    @property
    def budget(self) -> float:
        """Always infinite: σ is given or follows from the points' times, so no budget is guaranteed."""
        return math.inf

    def refused(self, window: Window, state: State) -> Any:
        """Return a mask of points to refuse because they exceed the planned number or no noise meets the goal."""
        if self.goal is None:
            return False
        if window.deviation is None or (self.is_designed and window.factor is None):
            plan = "planned_factors" if self.is_designed else "planned_deviations"
            expected = f"worked out for the traces first: penstock.accountants.gaussian_process.goal.{plan}"
            raise ParameterError("sigma", "conditional_goal", expected)
        return ~np.isfinite(window.deviation) | (window.index > self.goal.n_points)

    def start(self, facts: Facts) -> State:
        """Return the initial state, with a buffer for draws if the noise is designed."""
        state = super().start(facts)
        if self.goal and self.is_designed:
            state["draws"] = np.zeros((*facts.shape, self.goal.n_points, 2))
        return state

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Release every user's next point. If the noise is designed, first draw that point's variable."""
        if self.is_designed and window.index <= state["draws"].shape[1]:
            draws = state["draws"].copy()
            draws[:, window.index - 1] = noise.gaussian(1.0, counts.shape)
            state = state | {"draws": draws}
        return super().step(window, counts, state, noise)

    def perturb(self, window: Window, values: NDArray[Any], offer: Offer, scale: Any, noise: Noise) -> tuple[Any, Any]:
        """Add noise to the points. Designed noise is the point's Cholesky factor row times the draws so far."""
        if not self.is_designed:
            return super().perturb(window, values, offer, scale, noise)
        offsets, draws = np.zeros(values.shape), offer.state["draws"]
        # One after the other: a user's noise must not depend, by rounding, on how many are in the shard.
        for point in range(window.index):
            offsets += window.factor[:, point, None] * draws[:, point]
        return published(values, offsets), scale

    def amount(self, window: Window, state: State) -> Any:
        """Return the noise's ρ. For designed noise, it is computed in the direction with the least noise."""
        return np.broadcast_to(self._spent(self._sigma(window, state)), state["last_window"].shape)

    def _spent(self, sigma: Any) -> Any:
        return self.family.spends(sigma, of_point(self.metres))

    def _offer(self, window: Window, state: State) -> Offer:
        # The scale is stated, not worked out from what it costs.
        offer = super()._offer(window, state)
        stated = np.linalg.norm(window.factor, axis=1) if self.is_designed else self._sigma(window, state)
        return offer._replace(scale=np.where(offer.amount > 0, stated, 0.0))

    def _sigma(self, window: Window, state: State) -> Any:
        if self.goal is None:
            return self.sigma
        return np.where(self.refused(window, state), 1.0, window.deviation)
