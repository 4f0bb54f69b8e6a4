"""FAST: publish when a PID controller says so, spending equal parts of a period's budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Facts, Window
from penstock.mechanisms.core.plugin import parameter
from penstock.mechanisms.core.portable import exp
from penstock.mechanisms.core.schedules import Offer, PeriodSchedule
from penstock.mechanisms.core.state import State
from penstock.mechanisms.kalman import correct

#: Gains of the controller, proportional and integral, and the publications that its integral covers.
PROPORTIONAL, INTEGRAL, MEMORY = 0.9, 0.1, 5


@dataclass(frozen=True, kw_only=True)
class Fast(PeriodSchedule):
    """Publish a limited number of times per budget period, sooner after surprising releases and later after others.

    Parameters
    ----------
    epsilon, rho, delta, noise, accounting
        As in `BudgetSchedule`, on counts. The budget is that of a budget period, or of a whole run without periods.
    publications
        M: the most publications in a period; each has the same noise.
    process_variance
        Of the Kalman filter by which surprise is measured.
    set_point, growth
        ξ: the relative surprise at which the interval stays as it is. θ: windows by which it can grow at once.

    **Privacy.** User-level ε-differential privacy for a budget period: the noise is that of the memberships of at most
    M publications, min(n, M·C) with a bound n on those of a period, in whichever windows they are; the times of
    publications are functions of earlier ones. Unit: all of one user's bounded contributions in a budget period;
    neighbours add or remove it. Fan and Xiong 2014, theorem 3, by sequential composition. With Gaussian noise all of
    this holds of ρ in place of ε (Bun, Steinke 2016, lemma 2.3). The period is charged once, as in `period_uniform`.

    Notes
    -----
    Time and state O(n_cells) a window. The paper's estimator is `kalman` after it, with the same ``process_variance``.
    The paper samples each series on its own. Here all cells are published together, and the surprise is their mean:
    windows without a publication cost nothing in any cell.

    Examples
    --------
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> steady = np.full((12, 2), 1000)
    >>> releases = run_mechanism(Fast(epsilon=8.0, publications=4), steady, Facts(n_cells=2), seed=1)
    >>> [release.window for release in releases if release.action == "published"]
    [1, 2, 5, 9]
    """

    publications: int = parameter(8, doc="most publications in a budget period", at_least=1)
    process_variance: float = parameter(
        100.0, doc="variance of the change of a count from one window to the next", at_least=0
    )
    set_point: float = parameter(0.1, doc="relative surprise at which the interval stays as it is", above=0)
    growth: float = parameter(3.0, doc="windows by which the interval can grow at once", at_least=0, unit="windows")
    adaptive: ClassVar[bool] = True
    first: ClassVar[dict[str, Any]] = {"published": 0, "due": 0, "interval": 1.0, "surprises": np.zeros(MEMORY)}
    per_period: ClassVar[tuple[str, ...]] = ("published",)
    theorem: ClassVar[str] = "Fan and Xiong 2014, theorem 3"

    def windows_together(self, window: Window) -> int:
        """Return the maximum number of publications per period."""
        return min(self.publications, super().windows_together(window))

    def start(self, facts: Facts) -> State:
        """Return the initial state, in which a publication is due at once and there is no estimate."""
        shape = (*facts.shape, facts.n_cells)
        return super().start(facts) | {"estimate": np.zeros(shape), "variance": np.full(shape, np.inf)}

    def amount(self, window: Window, state: State) -> Any:
        """Return the whole budget if a publication is due. The noise covers all of a period's publications jointly."""
        is_due = (state["due"] <= window.index) & (state["published"] < self.publications)
        return np.where(is_due, self.budget, 0.0)

    def record(self, window: Window, offer: Offer, after: State) -> State:
        """Measure how surprising a publication is and schedule the next one."""
        publish, values = offer.publish, after["last"]
        seen = np.broadcast_to(publish[..., None] & (True if window.active is None else window.active), values.shape)
        predicted, spread = after["estimate"], after["variance"] + self.process_variance
        noise: NDArray[np.float64] = self.family.variance(np.asarray(offer.scale)[..., None])
        estimate, spread = correct(predicted, spread, np.where(seen, values, 0.0), np.where(seen, noise, np.inf))
        surprise = np.abs(estimate - predicted) / np.maximum(np.abs(estimate), 1.0)
        surprise = np.where(seen, surprise, 0.0).sum(-1) / np.maximum(np.count_nonzero(seen, -1), 1)
        surprises = np.concatenate([surprise[..., None], after["surprises"][..., :-1]], -1)
        control = PROPORTIONAL * surprise + INTEGRAL * surprises.mean(-1)
        error = np.minimum((control - self.set_point) / self.set_point, 50.0)
        interval = np.maximum(1.0, after["interval"] + self.growth * (1.0 - exp(error)))
        return {
            "published": after["published"] + publish,
            "interval": np.where(publish, interval, after["interval"]),
            "due": np.where(publish, window.index + np.rint(interval), after["due"]).astype(np.int64),
            "surprises": np.where(publish[..., None], surprises, after["surprises"]),
            "estimate": estimate,
            "variance": spread,
        }
