"""Gaussian noise on a tree of cells, made consistent so that sums over many cells are accurate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Facts, Interpretation, Measured, Mechanism, Release, Window
from penstock.mechanisms.core.events import Event
from penstock.mechanisms.core.guarantee import Guarantee
from penstock.mechanisms.core.noise import Noise
from penstock.mechanisms.core.noise_family import NOISE_FAMILIES, NoiseFamily
from penstock.mechanisms.core.plugin import check_one_of, parameter
from penstock.mechanisms.core.sensitivity import Sensitivity, of_tree
from penstock.mechanisms.core.state import State

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Hierarchy(Mechanism, Interpretation):
    """Add Gaussian noise to the counts at every level in a tree of cells and make the levels consistent.

    Parameters
    ----------
    rho
        Zero-concentrated DP of each window; sets σ = Δ/sqrt(2ρ) at every node of the tree.
    sigma
        Standard deviation at every node, instead of ``rho``.
    fan_out
        Cells of a group, and groups of a larger one: successive ones, in the order of the cells.
    noise
        ``discrete_gaussian`` (integers, the default) or ``gaussian``.

    **Privacy.** ρ-zCDP per window with ρ = Δ²/(2σ²): unit all of one user's events in one window, neighbours add or
    remove it (Bun and Steinke 2016, proposition 1.6). Δ² is the sum over the levels of the tree of the most that one
    user's C cells can add up to in squares: C at the cells, C² at the root. Reconciling is post-processing.

    Notes
    -----
    Time O(n_cells) a window, hardly any state. The estimate of every cell, and of every sum, is that of least squares
    over all nodes (Hay, Rastogi, Miklau, Suciu 2010, theorem 3; for any fan-out and a last group that is not full), in
    one pass up and one down; fan-outs of 8 to 16 do best (Qardaji, Yang, Li 2013). Its noise in a cell is Gaussian with
    the stated scale, close to it where the nodes' is discrete; cells near each other have noise that is correlated.

    Examples
    --------
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> (release,) = run_mechanism(Hierarchy(sigma=10.0), np.full((1, 64), 5), seed=1)
    >>> round(float(release.scale[0]), 2), round(release.values.sum())
    (9.42, 329)
    """

    rho: float | None = parameter(None, doc="zCDP budget of each window", above=0)
    sigma: float | None = parameter(None, doc="standard deviation at every node, instead of rho", at_least=0)
    fan_out: int = parameter(8, doc="cells of a group, and groups of a larger one", at_least=2)
    noise: str = parameter(
        "discrete_gaussian", doc="noise family at every node", choices=("discrete_gaussian", "gaussian")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of({"rho": self.rho, "sigma": self.sigma})

    @property
    def family(self) -> NoiseFamily:
        """The noise family at every node."""
        return NOISE_FAMILIES[self.noise]

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee, which is ρ-zCDP per window, jointly over all levels in the tree."""
        theorem = "Bun and Steinke 2016, proposition 1.6"
        return Guarantee(measure="rho", amount=self.rho, theorem=theorem, may_be_sampled=False)

    @classmethod
    def examples(cls) -> tuple[Hierarchy, ...]:
        """Return an instance with ρ and a small fan-out, and one with σ and a large fan-out."""
        return cls(rho=0.5, fan_out=2), cls(sigma=2.0, noise="gaussian")

    def start(self, facts: Facts) -> State:
        """Return the initial state with Δ², the squared joint L2 sensitivity of all nodes."""
        return {"sensitivity": facts.constant(of_tree(facts.n_cells, facts.sensitivity, self.fan_out).l2_squared)}

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Publish one window."""
        sigma = self._sigma(state)
        # A cell without a sensor is publicly empty, here as in the groups that it belongs to.
        levels = self._levels(counts if window.active is None else np.where(window.active, counts, 0))
        nodes = np.concatenate(levels, -1)
        ends = np.cumsum([level.shape[-1] for level in levels])[:-1]
        measured = np.split(self.family.add(noise, nodes, sigma), ends, -1)
        values, relative = reconciled(measured, self.fan_out)
        scale = np.broadcast_to(sigma * np.sqrt(relative), values.shape)
        return [
            Release.of(window, values, self.worst_charge(window, state), noise=self.family.of_sums, scale=scale)
        ], state

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """Return the charge for a window, which is the same for every window."""
        return (self.family.event(self._moved(state), self._sigma(state)),)

    def measured(self, facts: Facts) -> Measured:
        """Return the counts at all nodes as sums over cells."""
        nodes = np.concatenate(self._levels(np.eye(facts.n_cells)), -1)
        return Measured(cells=nodes, scale=self._sigma(self.start(facts)))

    def _levels(self, counts: NDArray[Any]) -> list[NDArray[Any]]:
        """Return each level's node counts, starting with the cells."""
        levels = [counts]
        while levels[-1].shape[-1] > 1:
            levels.append(_by_parent(levels[-1], self.fan_out).sum(-1))
        return levels

    def _moved(self, state: State) -> Sensitivity:
        return Sensitivity(np.inf, float(state["sensitivity"].max()))  # no pure noise is added

    def _sigma(self, state: State) -> float:
        if self.sigma is not None:
            return self.sigma
        return float(self.family.scale(self.rho, self._moved(state)))


def reconciled(measured: list[Array], fan_out: int) -> tuple[Array, Array]:
    """Return least-squares estimates of the cells from all nodes in a tree, and their variances relative to one node's.

    ``measured``: one array a level, cells first and the root last, shape (..., n_nodes), with equal noise in each node.

    >>> estimates, variances = reconciled([np.array([3.0, 5.0]), np.array([11.0])], 2)
    >>> estimates.tolist(), variances.round(4).tolist()
    ([4.0, 6.0], [0.6667, 0.6667])
    """
    # Up: what each node and all below it say of its sum. A place without a node has value and variance 0.
    upward = [(np.asarray(measured[0], np.float64), np.ones(measured[0].shape[-1]))]
    for level in measured[1:]:
        values, variances = upward[-1]
        below, doubt = _by_parent(values, fan_out).sum(-1), _by_parent(variances, fan_out).sum(-1)
        upward.append(((level * doubt + below) / (1 + doubt), doubt / (1 + doubt)))
    # Down: each group's sum becomes that of its parent; the difference goes by variance.
    estimate, variance = upward[-1]
    for values, variances in reversed(upward[:-1]):
        n_nodes = values.shape[-1]
        below, doubt = _by_parent(values, fan_out).sum(-1), _by_parent(variances, fan_out).sum(-1)
        share = variances / _of_parent(doubt, n_nodes, fan_out)
        estimate = values + share * _of_parent(estimate - below, n_nodes, fan_out)
        variance = variances - share**2 * _of_parent(doubt - variance, n_nodes, fan_out)
    return estimate, variance


def _by_parent(nodes: NDArray[Any], fan_out: int) -> NDArray[Any]:
    """Group one level's nodes by parent, shape (..., n_groups, fan_out). The last group is padded with zeros."""
    missing = -nodes.shape[-1] % fan_out
    full = np.concatenate([nodes, np.zeros((*nodes.shape[:-1], missing), nodes.dtype)], -1)
    return full.reshape(*nodes.shape[:-1], -1, fan_out)


def _of_parent(groups: Array, n_nodes: int, fan_out: int) -> Array:
    """Return each node's group value."""
    return np.repeat(groups, fan_out, -1)[..., :n_nodes]
