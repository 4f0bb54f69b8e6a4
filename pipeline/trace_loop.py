"""The release of one shard of traces: every user's points in order, each once, nothing beyond the budget."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountants.core.trace_view import TraceView
from mechanisms.core.errors import BudgetExceeded
from mechanisms.core.timestamp import PointRelease
from mechanisms.core.trace_noise import TraceNoise
from mechanisms.core.trace_run import ReleasedTraces, Step, collect, release_traces
from mechanisms.core.traces import TraceAgenda, Traces
from pipeline.configuration.run import digest
from pipeline.ledger import Charge
from pipeline.plan import Plan
from pipeline.space import Space
from pipeline.trace_accounts import view

#: Sums of shares such as 3 · (ε/3) may pass ε by rounding alone.
ROUNDING = 1e-9


@dataclass(frozen=True)
class TraceBatch:
    """One shard's releases in the order of its traces, and the charges to make durable before they leave."""

    released: ReleasedTraces
    charges: tuple[Charge, ...]


class TraceLoop:
    """Steps the mechanism through all traces of a shard; knows no Beam and keeps nothing.

    Parameters
    ----------
    plan
        The run.

    Notes
    -----
    `release` is a pure function of the shard's traces; a user's releases depend on that user's trace only, whatever
    shard it is in.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.configuration = digest(plan.config)
        self.noise = TraceNoise(plan.key, self.configuration)
        landmarks = plan.config.landmarks
        self.max_landmarks = landmarks.max_per_period if landmarks else None
        self.origin = centre(plan.space)

    def release(self, shard: int, traces: Traces) -> TraceBatch:
        """Release all traces of a shard; raises `BudgetExceeded` before anything leaves."""
        agenda = TraceAgenda(traces, self.origin, self.max_landmarks)
        charges = []

        def steps() -> Any:
            for step in release_traces(self.plan.point_mechanism, agenda, self.noise):
                charges.append(self._charge(shard, step, traces))
                yield step

        released = collect(steps(), len(traces.times))
        budget = self.plan.point_mechanism.landmark_budget
        if budget is not None:
            check_budget(budget, view(self.plan, traces, released))
        return TraceBatch(released, tuple(charges))

    def _charge(self, shard: int, step: Step, traces: Traces) -> Charge:
        """The most that any user of the shard paid at this step: one line of the ledger, not one a user."""
        release, times = step.release, step.time.time
        return Charge(
            stream=f"traces/{shard}",
            window=step.time.index,
            window_start=int(times.min()),
            window_end=int(times.max()) + 1,
            epsilon=float(release.epsilon.max()),
            rho=_rho(release, self.plan.point_mechanism.metres),
            landmark=bool(step.time.landmark.any()),
            configuration=self.configuration.hex()[:32],
            data=self._digest(traces.users[traces.user_of[step.rows]], times, traces.points[step.rows]),
        )

    def _digest(self, *arrays: NDArray[Any]) -> str:
        message = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
        return hmac.new(self.plan.key.subkey("ledger"), message, hashlib.sha256).hexdigest()[:32]


def _rho(release: PointRelease, radius: float) -> float:
    """Largest zCDP ρ of telling two points ``radius`` apart: radius²/(2σ²), or ε²/2."""
    if release.noise != "gaussian":
        return float(release.epsilon.max()) ** 2 / 2
    sigma = float(release.scale.min())
    return radius**2 / (2 * sigma**2) if sigma else np.inf


def check_budget(budget: float, seen: TraceView) -> None:
    """Raise `BudgetExceeded` if any user's sum over L ∪ {t} passes the budget in any budget period."""
    users, sums = seen.landmark_sums()
    if (sums > budget * (1 + ROUNDING)).any():
        worst = int(sums.argmax())
        last = int(np.append(seen.starts[1:], len(seen.times))[users[worst]])
        raise BudgetExceeded(last - int(seen.starts[users[worst]]), 0.0, float(sums[worst]), budget)


def centre(space: Space) -> tuple[float, float]:
    """Middle of the box around all cells of a space: the public point shown before a first release."""
    corners = [np.asarray(cell.get("polygon") or [cell["point"]]) for cell in space.geometry() if len(cell) > 1]
    if not corners:
        return 0.0, 0.0
    west, south = np.min([corner.min(axis=0) for corner in corners], axis=0)
    east, north = np.max([corner.max(axis=0) for corner in corners], axis=0)
    return float((south + north) / 2), float((west + east) / 2)
