"""A trace whose later releases may be promised: what is known of it after each one, and when the promise is broken."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from accountants.gaussian_process.kernels import GaussianProcess
from accountants.gaussian_process.running import Future, add_release, start_trace
from mechanisms.core.state import State


@dataclass(frozen=True)
class PromisedTrace:
    """What does not change along a trace.

    Parameters
    ----------
    axis
        The prior of both axes.
    future
        What is promised of later releases; None: nothing.
    block
        Last points that are treated exactly.
    is_bounded
        Whether the releases have a known bound at all.

    Examples
    --------
    >>> trace = PromisedTrace(GaussianProcess(length_scale=600.0), Future(interval=60.0, sigma=100.0), block=25)
    >>> early = trace.after(trace.after(trace.start(), 0.0, 100.0), 30.0, 100.0)
    >>> bool(early["broken"])
    True
    """

    axis: GaussianProcess
    future: Future | None
    block: int
    is_bounded: bool = True

    @staticmethod
    def start() -> State:
        """Nothing released."""
        return start_trace(1) | {"broken": np.asarray(False)}

    def after(self, state: State, time: float, sigma: float) -> State:
        """State after one more release; without a known bound, or against the promise, it is broken for good.

        Parameters
        ----------
        state
            From `start` or `after`.
        time
            Seconds, not before the last release.
        sigma
            Standard deviation of the release's noise in metres: infinite for a repetition, 0 where no bound is known.
        """
        sigma = sigma if self.is_bounded else 0.0
        if bool(state["broken"]) or np.isinf(sigma):
            return state
        times, future = state["times"], self.future
        early = future is not None and len(times) > 0 and time - times[-1] < future.interval
        if sigma == 0 or early or (future is not None and sigma < future.sigma):
            return self.start() | {"broken": np.asarray(True)}
        return add_release(state, time, sigma, (self.axis,), self.block) | {"broken": np.asarray(False)}
