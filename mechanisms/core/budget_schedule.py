"""What all budget schedules share: how an allocated ε becomes a published vector, and how a vector is repeated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.errors import ParameterError
from mechanisms.core.event import Event, Repeated
from mechanisms.core.examples import examples_of
from mechanisms.core.facts import Facts
from mechanisms.core.mechanism import Guarantee, Mechanism
from mechanisms.core.parameters import parameter
from mechanisms.core.perturb import PURE_FAMILIES, active_l1, add_noise, pure_event, pure_scale
from mechanisms.core.point_mechanism import PLANAR
from mechanisms.core.release import Release
from mechanisms.core.state import State
from mechanisms.core.trace_schedule import TraceSchedule
from mechanisms.core.window import Window

if TYPE_CHECKING:
    from mechanisms.core.noise import Noise

LANDMARK_GUARANTEE = Guarantee(
    unit="one user's bounded contributions in all landmark windows of a budget period and in any one other window",
    neighbours="add or remove the unit; landmarks are public",
    statement="ε-differential privacy per budget period",
    theorem="Katsomallos, Tzompanaki, Kotzinos 2022, landmark privacy (sequential composition)",
)


@dataclass(frozen=True, kw_only=True)
class BudgetSchedule(TraceSchedule):
    """Base of mechanisms that decide *when to spend how much* and leave the noise to a pure family.

    Parameters
    ----------
    epsilon
        Budget that the schedule divides, in nats.
    noise
        ``discrete_laplace`` (integers, the default) or ``laplace`` on counts; ``planar_laplace`` on traces.
    radius
        On traces: distance in metres at which ε holds.
    """

    epsilon: float = parameter(doc="budget that the schedule divides", above=0, unit="nats")
    noise: str = parameter(
        "discrete_laplace",
        doc="noise family; planar_laplace: release points of traces",
        choices=(*PURE_FAMILIES, PLANAR),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.radius is not None and not self.on_points:
            raise ParameterError("radius", self.radius, f"left out unless noise is {PLANAR}")

    @property
    def on_points(self) -> bool:
        """Whether the noise is that of points."""
        return self.noise == PLANAR

    @classmethod
    def examples(cls) -> tuple[Mechanism, ...]:
        """One instance for every noise family of counts."""
        return tuple(example for example in examples_of(cls) if not example.on_points)

    def start(self, facts: Facts) -> State:
        """Sensitivity, and nothing released yet."""
        return {
            "max_cells": facts.constant(facts.sensitivity, np.int64),
            "last": np.zeros((*facts.shape, facts.n_cells)),
            "last_window": facts.constant(0, np.int64),
        }

    def charge_of(self, window: Window, state: State, epsilon: Any) -> tuple[Event, ...]:
        """Event of publishing this window's vector with ``epsilon``."""
        l1 = active_l1(window, state["max_cells"])
        return (pure_event(self.noise, l1, pure_scale(epsilon, l1)),)

    def publish(
        self, window: Window, counts: NDArray[Any], state: State, epsilon: Any, noise: Noise
    ) -> tuple[Release, State]:
        """Publish the window with ``epsilon`` and remember what was published."""
        scale = pure_scale(epsilon, active_l1(window, state["max_cells"]))
        values = add_noise(noise, self.noise, counts, scale if np.ndim(scale) else float(scale))
        release = Release.of(
            window,
            values,
            self.charge_of(window, state, epsilon),
            noise=self.noise,
            scale=scale[..., None] if np.ndim(scale) else float(scale),
        )
        last = values if window.active is None else np.where(window.active, values, state["last"])
        remembered = {
            "last": np.asarray(last, np.float64),
            "last_window": np.full_like(state["last_window"], window.index),
        }
        return release, state | remembered

    def decide(
        self,
        window: Window,
        counts: NDArray[Any],
        state: State,
        epsilon: Any,
        publish: NDArray[np.bool_],
        noise: Noise,
        decision: tuple[Event, ...] = (),
    ) -> tuple[Release, State]:
        """Publish or repeat, replica by replica.

        Parameters
        ----------
        epsilon
            Budget of a publication, shape of the leading axes.
        publish
            Which replicas publish, same shape.
        decision
            What reading the data for the decision has cost already.
        """
        if publish.ndim == 0:
            if not publish:
                repeated = self.repeat(window, state)
                return replace(repeated, charge=(*decision, *repeated.charge)), state
            release, state = self.publish(window, counts, state, epsilon, noise)
            return replace(release, charge=(*decision, *release.charge)), state
        allotted = np.where(publish, epsilon, self.epsilon)
        made, published = self.publish(window, counts, state, allotted, noise)
        shown = self.repeat(window, state)
        scale = np.where(publish[..., None], made.scale, np.inf)
        release = replace(
            made,
            values=np.where(publish[..., None], made.values, shown.values),
            action=np.where(publish, "published", "repeated"),
            # An infinite scale is a publication without content: the price of the replicas that repeat.
            charge=(*decision, pure_event(self.noise, active_l1(window, state["max_cells"]), scale[..., 0])),
            scale=scale,
            repeats=np.where(publish, -1, state["last_window"]),
        )
        merged = {
            name: np.where(publish.reshape(publish.shape + (1,) * (new.ndim - publish.ndim)), new, state[name])
            for name, new in published.items()
        }
        return release, merged

    def repeat(self, window: Window, state: State) -> Release:
        """Show the last published vector again; costs nothing."""
        last = state["last_window"]
        repeats = last.astype(np.int64) if last.ndim else int(last)
        charge = (Repeated(int(last.max())),)
        return Release.of(window, state["last"].copy(), charge, action="repeated", repeats=repeats)
