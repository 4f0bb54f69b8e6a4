"""Release an array of counts directly through a mechanism or a chain of steps, without setting up a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

from penstock.mechanisms.core.plugin import ParameterError

# NumPy, polars and the pipeline are imported where they are used: every command imports this module.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from penstock.mechanisms.core.contract import ChainStep
    from penstock.pipeline.reporting.drawing import Drawing


_DAY = 86_400_000


@dataclass(frozen=True, repr=False)
class Released:
    """The result of releasing an array of counts. Notebooks display its accuracy, privacy cost and busiest cell.

    Parameters
    ----------
    values
        What is published, shape (n_windows, n_cells).
    margin
        Half-width of the interval that holds a count with 95 %, of the same shape; NaN where none can be stated.
    epsilon, rho
        Charge of each window in nats, shape (n_windows,); infinite if a window has none in that measure.
    action
        What was done in each window: published, repeated, refused
    steps
        Names of the mechanism and of what came after it.
    summary
        Mean count, and mean absolute errors in people of the values, of zeros, and of the last values shown again; with
        a filter also the share of counts that its intervals hold. Of the true counts: the operator's.
    loss
        Most that one person can lose by one ``release``, by a ``day``, and by all windows, the ``run``, in nats; where
        a charge is infinite, ε at ``delta``.
    """

    values: NDArray[np.float64]
    margin: NDArray[np.float64]
    epsilon: NDArray[np.float64]
    rho: NDArray[np.float64]
    action: tuple[str, ...]
    steps: tuple[str, ...]
    summary: dict[str, float]
    loss: dict[str, float]
    #: True counts, of the same shape.
    _truth: NDArray[np.float64] = field(compare=False)

    def __repr__(self) -> str:
        n_windows, n_cells = self.values.shape
        cost = "no bound on ε"
        if isfinite(self.loss["release"]):
            at = f" at δ = {self.loss['delta']:g}" if "delta" in self.loss else ""
            cost = f"ε = {self.loss['release']:.3g} a window, {self.loss['run']:.3g} in all{at}"
        return f"{type(self).__name__}({n_windows} windows × {n_cells} cells, {' → '.join(self.steps)}, {cost})"

    def plot(self, cell: int | None = None) -> Drawing:
        """Plot the released and true counts of a cell, numbered from 0, over time; by default the busiest."""
        from penstock.pipeline.reporting.drawing import draw_series

        n_windows, n_cells = self.values.shape
        if cell is not None and not 0 <= cell < n_cells:
            raise ParameterError("cell", cell, f"a cell from 0 to {n_cells - 1}")
        at = int(self.values.sum(axis=0).argmax()) if cell is None else cell
        return draw_series(
            f"People in cell {at}, window by window",
            [f"window {i + 1}" for i in range(n_windows)],
            self.values[:, at],
            self.margin[:, at],
            self._truth[:, at],
        )

    def _repr_html_(self) -> str:
        from penstock.pipeline.output.loss import describe_losses
        from penstock.pipeline.output.utility_summary import describe_utility
        from penstock.pipeline.reporting.drawing import notebook_html

        lines = [describe_utility(self.summary), describe_losses(self.loss)]
        return notebook_html(" → ".join(self.steps), lines, self.plot)


def release(
    counts: ArrayLike,
    mechanism: str | Mapping[str, Any] | ChainStep | Sequence[str | Mapping[str, Any] | ChainStep],
    *,
    max_cells: int,
    seed: int = 0,
    landmarks: Sequence[int] = (),
    budget_period: int | None = None,
    windows_per_day: int = 24,
    **parameters: Any,
) -> Released:
    """Release an array of counts through a mechanism or a chain of steps. The release is a simulation.

    **Privacy**: the guarantee is the mechanism's, for people who are in at most ``max_cells`` of the counts of a
    window. An array cannot show whether that is so: bound contributions before counting, as `run` does. The seed
    undoes the noise.

    Parameters
    ----------
    counts
        Distinct people, whole numbers of shape (n_windows, n_cells).
    mechanism
        Name of a mechanism on counts, with its parameters as keywords; a mapping as in a configuration, ``{"type":
        "discrete_laplace", "epsilon": 1.0}``; one that is built already; or a list of these: a mechanism, then what is
        made of its releases, such as ``filter``. Steps on events act before counting, and are refused.
    max_cells
        Cells of one window that one person is in at most.
    seed
        Of the noise.
    landmarks
        1-based indices of the landmark windows.
    budget_period
        Windows of a budget period; None: all.
    windows_per_day
        Windows that begin in a day, by which ``filter`` tells times of day, and by which the loss of a day is summed.
    parameters
        Of a mechanism that is named.

    Raises
    ------
    ConfigError, ParameterError
        Naming the parameter, the step or the array, and what would be right.

    Examples
    --------
    >>> released = release([[3, 0, 5], [4, 1, 7]], "discrete_laplace", max_cells=1, epsilon=1.0, seed=1)
    >>> released, released.values.shape, released.epsilon.tolist()
    (Released(2 windows × 3 cells, discrete_laplace, ε = 1 a window, 2 in all), (2, 3), [1.0, 1.0])
    >>> release([[3, 0], [4, 1]], [{"type": "w_event_uniform", "epsilon": 1.0, "w": 2}, "filter"], max_cells=1)
    Released(2 windows × 2 cells, w_event_uniform → filter, ε = 0.5 a window, 1 in all)
    """
    import numpy as np
    import polars as pl

    from penstock import mechanisms
    from penstock.accountants.core.charges import concentrated_rho, pure_epsilon
    from penstock.mechanisms.core.chain import Chain
    from penstock.mechanisms.core.contract import MECHANISMS, Facts
    from penstock.mechanisms.core.run import choose_auto_noise
    from penstock.pipeline.output.loss import losses
    from penstock.pipeline.output.tables import releases_table
    from penstock.pipeline.output.utility_summary import half_width, interval_coverage, utility_summary

    if isinstance(windows_per_day, int) and windows_per_day > _DAY:
        expected = f"at most {_DAY:,}: a window lasts a millisecond or more"
        raise ParameterError("windows_per_day", windows_per_day, expected)
    true_counts = _counts(counts)
    n_windows, n_cells = true_counts.shape
    steps = _steps(mechanism, parameters)
    facts = Facts(
        n_cells=n_cells,
        max_cells=max_cells,
        n_windows=n_windows,
        landmarks=tuple(landmarks),
        budget_period=budget_period,
        windows_per_day=windows_per_day,
    )
    windows = facts.windows(hour=_DAY // windows_per_day)
    chain = Chain.of(steps)
    arranged = choose_auto_noise(chain.reader if chain.simple else chain, facts, windows)
    made = mechanisms.run_mechanism(arranged, true_counts, facts, seed, windows=windows)
    # The table and the sums are those of a run.
    table = pl.DataFrame(releases_table(made, windows, list(map(str, range(n_cells))), 0))
    margin = table.select(half_width()).to_series().to_numpy()
    values, margin = (column.reshape(n_windows, n_cells) for column in (table["value"].to_numpy(), margin))
    deviation = table["standard_deviation"].to_numpy().reshape(n_windows, n_cells)
    truth = true_counts.astype(np.float64)
    return Released(
        values=values,
        margin=margin,
        epsilon=np.array([pure_epsilon(release.charge) for release in made]),
        rho=np.array([concentrated_rho(release.charge) for release in made]),
        action=tuple(str(release.action) for release in made),
        steps=tuple(MECHANISMS.name_of(type(step)) for step in steps),
        summary=utility_summary(truth, values) | interval_coverage(truth, values, deviation),
        loss=losses(table.lazy(), "UTC", arranged.guarantee.measure) or {},
        _truth=truth,
    )


def _counts(counts: ArrayLike) -> NDArray[Any]:
    """Validate the counts and return them as an array."""
    import numpy as np

    try:
        checked = np.asarray(counts)
    except ValueError:
        raise ParameterError("counts", "rows of different lengths", "of shape (n_windows, n_cells)") from None
    if checked.ndim != 2 or checked.size == 0:
        raise ParameterError("counts", checked.shape, "of shape (n_windows, n_cells), at least (1, 1)")
    if checked.dtype.kind in "if" and (checked < 0).any():
        raise ParameterError("counts", checked.min().item(), "counts of at least 0")
    return checked


def _steps(mechanism: Any, parameters: Mapping[str, Any]) -> list[ChainStep]:
    """Build the steps of a chain. Parameters are allowed only for a single mechanism given by name."""
    from penstock.mechanisms.core.contract import ChainStep, EventStep
    from penstock.pipeline.config.build import build_plugin

    if "axes" in parameters:
        raise ParameterError("axes", parameters["axes"], "left out: counts are (n_windows, n_cells), so give counts.T")
    if isinstance(mechanism, str):
        mechanism = {"type": mechanism, **parameters}
    elif parameters:
        expected = "left out: parameters of a step stand in its mapping, or the mechanism is built already"
        raise ParameterError(next(iter(parameters)), "", expected)
    is_list = isinstance(mechanism, list | tuple)
    steps = []
    for i, given in enumerate(mechanism if is_list else [mechanism]):
        section = {"type": given} if isinstance(given, str) else given
        path = ("mechanism", i) if is_list else ("mechanism",)
        step = section if isinstance(section, ChainStep) else build_plugin(ChainStep, section, "release", path)
        if isinstance(step, EventStep) or step.guarantee.on_points:
            expected = "one that works on counts: people are counted here already"
            raise ParameterError("mechanism", type(step).__name__, expected)
        steps.append(step)
    if not steps:
        raise ParameterError("mechanism", mechanism, "a mechanism on counts, or a list that begins with one")
    return steps
