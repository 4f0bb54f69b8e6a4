"""Release windows in order: one vector per window, each released once and within the budget."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.core.accountant import Accountant, AccountingFacts
from penstock.accountants.core.charges import concentrated_rho, gaussian_amount, pure_epsilon
from penstock.accountants.landmark_budget import Budget, LandmarkBudget
from penstock.mechanisms.core.chain import Chain, check_values
from penstock.mechanisms.core.contract import MECHANISMS, Facts, Release, Window
from penstock.mechanisms.core.events import Block, Event, Repeated
from penstock.mechanisms.core.guarantee import GAUSSIAN
from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.plugin import BudgetExceeded
from penstock.mechanisms.core.state import State, decode_state, encode_state, nested, part
from penstock.mechanisms.core.unit import LANDMARKS
from penstock.pipeline.counting.bounding import CountingBounds
from penstock.pipeline.counting.spec import RunKeys
from penstock.pipeline.counting.targets import PrivateFacts
from penstock.pipeline.releasing.ledger import Charge, Ledger
from penstock.pipeline.windows.grid import WindowGrid

FORMAT = ("release_loop", 1)


@dataclass(frozen=True)
class Batch:
    """Releases of consecutive windows, the charges that must be stored first, and the reason if releasing has stopped.

    ``known`` are operator-only facts of the windows that went in; ``budget_left`` is of the current budget period.
    """

    releases: tuple[Release, ...]
    charges: tuple[Charge, ...]
    stopped: str | None = None
    known: PrivateFacts | None = None
    budget_left: float | None = None


class Guard(NamedTuple):
    """The accountant of a landmark budget that no release may exceed, with its model and initial state."""

    accountant: LandmarkBudget
    model: Budget
    state: State


def guard_of(accountants: Sequence[Accountant], facts: AccountingFacts) -> Guard | None:
    """Return the guard of the run's smallest landmark budget, or None if the run has no landmark budget."""
    guards = [accountant for accountant in accountants if isinstance(accountant, LandmarkBudget)]
    if not guards and facts.mechanism is not None and facts.mechanism.guarantee.amount_of(LANDMARKS) is not None:
        guards = [LandmarkBudget()]
    # Where several keep a budget, the smallest is the one that can be exceeded.
    return min((Guard(guard, *guard.start(facts)) for guard in guards), key=lambda guard: guard.model, default=None)


class ReleaseLoop:
    """Loop that steps the mechanism through consecutive windows. Only the encoded state persists between calls.

    `advance` is a pure function of (state, first window, counts): a retried call returns the same bytes, because
    noise is keyed by the input and the state. ``repeats``: whether the last release is shown again where a budget would
    be exceeded, in place of stopping.
    """

    def __init__(
        self,
        chain: Chain,
        facts: Facts,
        grid: WindowGrid,
        bounds: CountingBounds,
        keys: RunKeys,
        guard: Guard | None = None,
        repeats: bool = False,
    ) -> None:
        self.chain, self.facts, self.grid, self.bounds, self.keys = chain, facts, grid, bounds, keys
        self.guard, self.repeats, self.mechanism, self.noise = guard, repeats, chain.mechanism, keys.noise()
        self._noises: dict[str, NoiseSource] = {"": self.noise, keys.noise_key.nonce.hex(): self.noise}
        self.name = MECHANISMS.name_of(type(self.mechanism))
        self._spans_windows = bounds.spans_windows(chain.n_merged)

    def start(self) -> bytes:
        """Return the state before the first window."""
        budget = self.guard.state if self.guard else {}
        shown: State = {
            "released": np.asarray(0),
            "stopped": np.asarray(False),
            "shown": np.zeros(self.grid.n_cells),
            "shown_window": np.asarray(0),
        }
        return self._encode(self.mechanism.start(self.facts), budget, shown)

    def released(self, data: bytes) -> int:
        """Return the last released window. Rows that arrive later for this or an earlier window are ignored."""
        return int(self._decode(data)[2]["released"])

    def stopped(self, data: bytes) -> bool:
        """Return whether releasing has stopped because the budget is exhausted."""
        return bool(self._decode(data)[2]["stopped"])

    def worst(self, data: bytes) -> Charge:
        """Return the next window's worst-case charge, which depends only on earlier releases."""
        inner, _, shown = self._decode(data)
        index = int(shown["released"]) + 1
        window = self.grid.window(index)
        return self._charge(self.mechanism.worst_charge(window, inner), window)

    def advance(
        self, data: bytes, first: int, counts: NDArray[Any], ledger: Ledger | None = None
    ) -> tuple[Batch, bytes]:
        """Release consecutive windows, from the next one (``first``) on, given bounded counts (n_windows, n_cells).

        ``data`` is the state from `start` or the previous call; in the ``ledger``, if any, every step is checked before
        it is made and charged after it.
        """
        inner, budget, shown = self._decode(data)
        if first != int(shown["released"]) + 1:
            raise ValueError(f"window {first} does not follow window {int(shown['released'])}")
        releases: list[Release] = []
        charges: list[Charge] = []
        stopped, left = None, None
        for window, vector in zip(self.grid.windows(first, first + len(counts) - 1), counts):
            if bool(shown["stopped"]):
                break
            before = inner
            try:
                made, inner = self._step(window, vector, inner, budget, ledger)
            except BudgetExceeded as error:
                if not self.repeats:
                    shown, stopped = shown | {"stopped": np.asarray(True)}, str(error)
                    break
                made, vector = [self._refuse(window, shown)], vector[:0]
            due = self._charges(made, window, vector, before)
            try:
                for charge in due:
                    if ledger is not None:
                        ledger.charge(charge)
            except BudgetExceeded as error:  # another run has charged since the block began
                shown, stopped = shown | {"stopped": np.asarray(True)}, str(error)
                break
            charges += due
            for release in made:
                if self.guard:
                    index = release.window
                    of_release = window if index == window.index else self.grid.window(index)
                    rows, budget = self.guard.accountant.charge(release, of_release, {}, self.guard.model, budget)
                    left = next((row.value for row in rows if row.name == "budget_left"), None)
                shown = shown | self._remember_shown(release, shown)
                if release.available_at is not None:  # it waited for later windows, whose late rows are counted too
                    release = replace(release, available_at=release.available_at + self.grid.lateness_ms)
                releases.append(release)
            shown = shown | {"released": np.asarray(window.index)}
        batch = Batch(tuple(releases), tuple(charges), stopped, budget_left=left)
        return batch, self._encode(inner, budget, shown)

    def _step(
        self, window: Window, vector: NDArray[Any], inner: State, budget: State, ledger: Ledger | None
    ) -> tuple[list[Release], State]:
        """Step the mechanism if the worst-case charge is affordable. The last window flushes all pending releases."""
        worst = self.mechanism.worst_charge(window, inner)
        begin = (
            self.bounds.first_joint_window(window, self.chain.bounding_windows) if self._spans_windows else window.index
        )
        if any(isinstance(event, Block) and event.first > begin for event in worst):
            # Windows before were refused. What people did in them decides what is counted in this one, so that a charge
            # for the windows from here on would leave out some whose events it tells of.
            raise BudgetExceeded(window.index, 0.0, max(pure_epsilon(worst), concentrated_rho(worst)), 0.0)
        if self.guard:
            self.guard.accountant.check(window, worst, self.guard.model, budget)
        source = self.noise
        if ledger is not None:
            if worst:
                ledger.check(self._charge(worst, window))
            nonce = ledger.nonce(window.index)
            if nonce not in self._noises:
                key = self.keys.noise_key.for_run(bytes.fromhex(nonce))
                self._noises[nonce] = replace(self.noise, key=key)
            source = self._noises[nonce]
        noise = source.at(window.start, window.end, "step", vector, self.mechanism.noise_state(inner))
        made, inner = self.mechanism.step(window, vector, inner, noise)
        if window.index == self.grid.calendar.n_windows:
            bound = self.mechanism.noise_state(inner)
            noise = source.at(window.start, window.end, "finish", np.zeros_like(vector), bound)
            made = made + self.mechanism.finish(inner, noise)
        for release in made:
            check_values(self.chain.reader, ("step", "finish"), release, (self.grid.n_cells,))
        return made, inner

    def _refuse(self, window: Window, last_shown: State) -> Release:
        shown = int(last_shown["shown_window"])
        values = np.asarray(last_shown["shown"], np.float64)
        return Release(
            window=window.index,
            values=values if window.active is None else np.where(window.active, values, np.nan),
            action="refused",
            charge=(Repeated(shown),),
            landmark=window.landmark,
            repeats=shown,
            active=window.active,
        )

    @staticmethod
    def _remember_shown(release: Release, shown: State) -> State:
        if release.action != "published":
            return {}
        values = release.values if release.active is None else np.where(release.active, release.values, shown["shown"])
        return {"shown": values, "shown_window": np.asarray(release.window)}

    def _charges(self, made: list[Release], window: Window, vector: NDArray[Any], state: State) -> list[Charge]:
        """Return the charges for a step. Free steps are recorded as well, along with a digest of their input."""
        # Keyed: the digest of a short vector of small numbers could be inverted by trying them all. With the state:
        # other data in an earlier window means other noise, hence another charge. What follows the noise is left out:
        # it is not the same to the last bit on every processor.
        message = f"{window.start} {window.end} ".encode() + np.ascontiguousarray(vector, "<i8").tobytes()
        message += encode_state(self.name, self.mechanism.version, self.mechanism.noise_state(state))
        data = hmac.digest(self.keys.ledger, message, "sha256").hex()[:32] if len(vector) else ""
        # The other windows of a block are charged with its first.
        due = [
            replace(self._charge(release.charge, window), window=release.window) for release in made if release.charge
        ]
        if made and not due:
            due = [self._charge((), window)]
        return [replace(charge, last=max(charge.window, charge.last), data=data) for charge in due]

    def _charge(self, events: tuple[Event, ...], window: Window) -> Charge:
        """Return the charge for a window's events. The charge for a block covers all windows in the block."""
        blocks = [event for event in events if isinstance(event, Block)]
        first = min([window.index, *(block.first for block in blocks)])
        last = max([window.index, *(block.last for block in blocks)])
        if (n_windows := self.grid.calendar.n_windows) is not None:
            last = min(last, n_windows)
        epsilon, rho = pure_epsilon(events), concentrated_rho(events)
        promises_gaussian = self.chain.reader.guarantee.measure == GAUSSIAN
        gaussian = gaussian_amount(events) if promises_gaussian else np.inf
        return Charge(first, last, epsilon, rho, window.index, replaced=self._spans_windows, gaussian=gaussian)

    def _encode(self, inner: State, budget: State, shown: State) -> bytes:
        mechanism = np.frombuffer(encode_state(self.name, self.mechanism.version, inner), np.uint8)
        flat = {name: np.asarray(value) for name, value in nested("budget", budget).items()} | nested("loop", shown)
        return encode_state(*FORMAT, flat | {"mechanism": mechanism})

    def _decode(self, data: bytes) -> tuple[State, State, State]:
        flat = decode_state(data, *FORMAT)
        inner = decode_state(flat["mechanism"].tobytes(), self.name, self.mechanism.version)
        return inner, part("budget", flat), part("loop", flat)
