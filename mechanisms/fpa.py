"""Fourier perturbation: noise on the low frequencies of a block of windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core import events
from penstock.mechanisms.core.blocks import BlockMechanism
from penstock.mechanisms.core.contract import Facts, Guarantee
from penstock.mechanisms.core.fourier import Bounds, Calibration, candidates, choose_number
from penstock.mechanisms.core.plugin import ParameterError, parameter
from penstock.mechanisms.core.portable import in_order
from penstock.mechanisms.core.state import State

if TYPE_CHECKING:
    from penstock.mechanisms.core.draws import Noise


FAMILIES = ("laplace", "gaussian", "discrete_laplace", "discrete_gaussian")


@dataclass(frozen=True, kw_only=True)
class Fpa(BlockMechanism):
    """Keep the first Fourier coefficients of each cell over a block, add noise to them, and transform back.

    Parameters
    ----------
    epsilon
        Budget of one block with Laplace noise, in nats.
    rho
        zCDP budget of one block with Gaussian noise, in place of ``epsilon``.
    coefficients
        k: real coefficients that are kept, of the constant, cosine 1, sine 1, cosine 2, …; with ``calibration: paper``
        complex ones.
    block
        n: windows of a block; the last one of a run may be shorter.
    noise
        ``laplace`` or ``gaussian``; ``discrete_laplace`` and ``discrete_gaussian`` do the same on a lattice of 2⁻²⁰
        in integers, whose noise carries no floating-point trace.
    choice
        Share of the budget for choosing how many of the ``coefficients`` to keep (exponential mechanism on the norms of
        what is cut off and of the noise); 0: all are kept. With real-valued noise only.
    calibration
        ``sound``: from the bounded sensitivity. ``paper``: scale √k·Δ₂/ε on k complex coefficients, priced at what it
        is really worth.
    transform
        With ``calibration: paper``: ``orthonormal`` or, with √n less noise, ``unnormalised``.
    measured_sensitivity
        With ``calibration: paper``: Δ₂ as measured from the data, which leaves no guarantee; unset: √(C·W).

    **Privacy.** ε-differential privacy, or ρ-zCDP, of each block: unit all of one user's events in a block, neighbours
    add or remove it, with C, W and U as contribution bounding enforces them. Laplace scale L1/ε with L1 the smallest
    of three bounds (see `core.fourier`), σ = √(C·W/(2ρ)). Rastogi and Nath 2010, theorem 4.1, with the sensitivity of
    a real transform; Bun and Steinke 2016, proposition 1.6. A user seen in several blocks adds up their budgets.

    Notes
    -----
    Delay: n windows; every release says when its block was complete. Time O(k · n_cells) a window, state the same.
    ``noise`` and ``scale`` of a release are those of the coefficients, in counts. Without noise the release is the
    projection onto the low frequencies: both halves of the spectrum are there.

    Examples
    --------
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> counts = np.array([[4], [0], [4], [0], [9]])
    >>> [r.values.round(9).item() for r in run_mechanism(Fpa(epsilon=np.inf, coefficients=1, block=4), counts)]
    [2.0, 2.0, 2.0, 2.0, 9.0]
    """

    epsilon: float | None = parameter(None, doc="budget of one block with Laplace noise", above=0, unit="nats")
    rho: float | None = parameter(None, doc="zCDP budget of one block with Gaussian noise", above=0)
    coefficients: int = parameter(doc="coefficients that are kept", at_least=1)
    block: int = parameter(doc="windows of a block", at_least=1)
    noise: str = parameter("laplace", doc="noise family", choices=FAMILIES)
    choice: float = parameter(
        0.0, doc="share of the budget spent on choosing how many coefficients to keep", at_least=0, below=1
    )
    calibration: str = parameter("sound", doc="how noise is calibrated", choices=("sound", "paper"))
    transform: str = parameter(
        "orthonormal", doc="transform of the paper's calibration", choices=("orthonormal", "unnormalised")
    )
    measured_sensitivity: float | None = parameter(
        None, doc="L2 sensitivity measured from the data, for the paper's calibration", above=0
    )
    ideal: ClassVar[str] = "projection of each cell's block onto its low frequencies"
    guarantee: ClassVar[Guarantee] = Guarantee(
        unit="all of one user's events in one block of windows",
        neighbours="add or remove the unit",
        statement="ε-differential privacy, or ρ-zero-concentrated differential privacy, per block (calibration: sound)",
        theorem="Rastogi and Nath 2010, theorem 4.1, with the bounded sensitivity of a real transform",
    )
    kept: ClassVar[tuple[str, ...]] = ("n_windows", "bounds")

    @property
    def stated_guarantee(self) -> Guarantee:
        """None with the paper's calibration: its ε is not what one user's block is worth."""
        sound = self.calibration == "sound"
        return self.guarantee if sound else replace(self.guarantee, statement="none", theorem="none")

    def __post_init__(self) -> None:
        super().__post_init__()
        gaussian, paper = self.noise.endswith("gaussian"), self.calibration == "paper"
        needed, other = ("rho", "epsilon") if gaussian else ("epsilon", "rho")
        if getattr(self, needed) is None:
            raise ParameterError(needed, None, f"given with {self.noise} noise")
        if getattr(self, other) is not None:
            raise ParameterError(other, getattr(self, other), f"left out with {self.noise} noise")
        if self.coefficients > self.block:
            raise ParameterError("coefficients", self.coefficients, f"at most block ({self.block})")
        if self.choice and (self.noise.startswith("discrete") or paper):
            raise ParameterError("choice", self.choice, "0 with integer noise and with calibration: paper")
        if paper and self.noise != "laplace":
            raise ParameterError("noise", self.noise, "laplace with calibration: paper")
        if paper and self.coefficients > self.block // 2 + 1:
            raise ParameterError("coefficients", self.coefficients, f"at most block // 2 + 1 ({self.block // 2 + 1})")
        if not paper and (self.transform != "orthonormal" or self.measured_sensitivity is not None):
            name = "transform" if self.transform != "orthonormal" else "measured_sensitivity"
            raise ParameterError(name, getattr(self, name), "left out without calibration: paper")

    @classmethod
    def examples(cls) -> tuple[Fpa, ...]:
        """Every noise family, every calibration, few and all coefficients."""
        paper = cls(epsilon=1.0, coefficients=2, block=5, calibration="paper")
        return (
            *(cls(epsilon=1.0, coefficients=3, block=5, noise=family) for family in ("laplace", "discrete_laplace")),
            *(cls(rho=0.5, coefficients=5, block=5, noise=family) for family in ("gaussian", "discrete_gaussian")),
            cls(epsilon=1.0, coefficients=1, block=4, choice=0.25),
            paper,
            replace(paper, transform="unnormalised"),
            replace(paper, measured_sensitivity=1.5),
        )

    @property
    def length(self) -> int:
        """Windows of a block."""
        return self.block

    @property
    def unit_windows(self) -> int:
        """Users are bounded over the block."""
        return self.block

    @cached_property
    def _noise(self) -> Calibration:
        """Scale and price of the noise: of what the choice leaves of the budget."""
        return Calibration(
            budget=self._whole * (1 - self.choice),
            n_coefficients=self.coefficients,
            noise=self.noise,
            paper=self.calibration == "paper",
            unnormalised=self.transform == "unnormalised",
            measured=self.measured_sensitivity,
        )

    def empty(self, facts: Facts) -> State:
        """No coefficient yet; the bounds C, W and U."""
        windows = min(facts.max_windows or self.block, self.block)
        cells = min(facts.max_block_cells or facts.n_cells, facts.n_cells)
        bounds = np.broadcast_to(np.array([facts.sensitivity, windows, cells]), (*facts.shape, 3)).copy()
        n_rows = len(self._noise.matrices(self.block)[0])
        kind = np.int64 if self._noise.lattice else np.float64
        state: State = {"bounds": bounds, "coefficients": np.zeros((*facts.shape, n_rows, facts.n_cells), kind)}
        return state | ({"energy": facts.constant(0.0)} if self.choice else {})

    def gather(self, row: int, n_windows: int, counts: NDArray[Any], state: State) -> State:
        """Add one window's part to every coefficient."""
        basis = self._noise.matrices(n_windows)[0]
        if self._noise.lattice:
            basis = basis.astype(np.int64)
        part = basis[:, row, None] * counts[..., None, :]
        if len(basis) < state["coefficients"].shape[-2]:  # a short block has fewer
            part = np.concatenate([part, np.zeros_like(state["coefficients"][..., len(basis) :, :])], axis=-2)
        total = np.add(part, state["coefficients"], out=part)
        added = {"coefficients": total}
        if self.choice:
            added["energy"] = np.asarray(state["energy"] + (np.asarray(counts, np.float64) ** 2).sum(axis=-1))
        return added

    def publish(self, n_windows: int, state: State, noise: Noise) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Noise on the coefficients, and back."""
        basis, inverse = self._noise.matrices(n_windows)
        exact = state["coefficients"][..., : len(basis), :]
        scale: Any = self._noise.scale(n_windows, _bounds(state))
        kept: NDArray[np.bool_] = np.ones((len(basis), 1), bool)
        if self.choice:
            number = self._number(n_windows, state, noise)
            kept = (np.arange(len(basis)) < number[..., None])[..., None]
            scale = self._noise.scales(n_windows, _bounds(state), number)
        per_row = np.asarray(scale)[..., None, None] if np.ndim(scale) else float(scale)
        noisy = exact + getattr(noise, self.noise)(per_row, exact.shape)
        values = in_order(inverse, np.where(kept, noisy, 0.0)) * self._noise.unit
        shown = np.asarray(scale * self._noise.unit)
        scale = shown[..., None] if shown.ndim else float(shown)
        return values, {"noise": "gaussian" if self._noise.gaussian else "laplace", "scale": scale}

    def block_charge(self, n_windows: int, state: State) -> tuple[events.Event, ...]:
        """The same for every block of one length; for the paper's calibration, its true price."""
        kept = self._noise.charge(n_windows, _bounds(state))
        if not self.choice:
            return (kept,)
        if not self._noise.gaussian:  # how many coefficients there are, and so their scale, is chosen; their cost not
            kept = events.Laplace(1.0, 1 / self._noise.budget)
        return (events.PureDP(self._choice_epsilon), kept)

    def without_noise(self, counts: NDArray[Any]) -> NDArray[Any]:
        """The low-pass projection, block by block."""
        return np.concatenate([self._noise.projection(block) for block in self.blocks(counts)])

    def noise_in(self, published: NDArray[np.float64], counts: NDArray[Any]) -> NDArray[np.float64]:
        """Noise of the coefficients, repeated where there are fewer of them than windows."""
        parts = []
        for block in self.blocks(published - self.without_noise(counts)):
            noise = self._noise.coefficients(block)
            parts.append(noise[np.arange(len(block)) % len(noise)])
        return np.concatenate(parts)

    @property
    def _whole(self) -> float:
        return self.epsilon or self.rho or 0.0

    @property
    def _choice_epsilon(self) -> float:
        share = self._whole * self.choice
        return float(np.sqrt(2 * share)) if self._noise.gaussian else share

    def _number(self, n_windows: int, state: State, noise: Noise) -> NDArray[np.int64]:
        """How many coefficients are kept, one number a replica."""
        numbers = candidates(len(self._noise.matrices(n_windows)[0]))
        cells, windows, _ = bounds = _bounds(state)
        return choose_number(
            numbers,
            power=(state["coefficients"] ** 2).sum(axis=-1),
            energy=state["energy"],
            spread=self._noise.spread(n_windows, bounds, numbers, state["coefficients"].shape[-1]),
            sensitivity=float(np.sqrt(float(cells) * windows)),
            epsilon=self._choice_epsilon,
            noise=noise,
        )


def _bounds(state: State) -> Bounds:
    cells, windows, block_cells = state["bounds"].reshape(-1, 3)[0].tolist()
    return cells, windows, block_cells
