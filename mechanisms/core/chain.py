"""Chains of steps that act as one mechanism: coarsening, sampling, a single release and post-processing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.blocks import BlockMechanism, release_windows, seen, waiting
from penstock.mechanisms.core.contract import (
    MECHANISMS,
    ChainStep,
    EventStep,
    Facts,
    Generalization,
    Mechanism,
    Postprocess,
    Release,
    Window,
)
from penstock.mechanisms.core.events import FREE, Block, Event
from penstock.mechanisms.core.guarantee import Guarantee
from penstock.mechanisms.core.noise import Noise
from penstock.mechanisms.core.plugin import ParameterError, PluginError, place_of
from penstock.mechanisms.core.schedules import Schedule
from penstock.mechanisms.core.sensitivity import price_of_replacement
from penstock.mechanisms.core.state import State, nested, part
from penstock.mechanisms.core.unit import Unit
from penstock.mechanisms.raw import Raw
from penstock.mechanisms.sampling import Sampling
from penstock.mechanisms.spatial_generalization import SpatialGeneralization
from penstock.mechanisms.temporal_generalization import TemporalGeneralization

#: Steps on events, in the order in which they act: people are coarsened, then bounded, then sampled.
EVENT_STEPS: tuple[type[EventStep], ...] = (SpatialGeneralization, TemporalGeneralization, Sampling)


@dataclass(frozen=True, kw_only=True)
class Chain(Mechanism):
    """All steps in a configuration, combined into a single mechanism."""

    reader: Mechanism  # the one step that sees counts
    after: tuple[Postprocess, ...] = ()  # post-processing of its releases, in order
    # Steps on events, carried out before counting; None: absent.
    sampling: Sampling | None = None
    spatial: SpatialGeneralization | None = None
    temporal: TemporalGeneralization | None = None
    event_steps: tuple[EventStep, ...] = ()  # all that drop memberships, sampling among them
    groups: NDArray[np.int64] | None = None  # with `spatial`: coarse cell of every cell, shape (n_cells,)

    @classmethod
    def of(cls, steps: Sequence[ChainStep], groups: NDArray[np.int64] | None = None) -> Chain:
        """Arrange steps into a chain (raw if no step reads counts). Raise `ParameterError` if any step is misplaced."""
        for position, advice in misplaced(steps):
            raise ParameterError(f"mechanism[{position}]", MECHANISMS.name_of(type(steps[position])), advice)
        spatial, temporal, sampling = (next(iter(_of_kind(steps, kind)), None) for kind in EVENT_STEPS)
        return (cls if temporal is None else LongerChain)(
            reader=next(iter(_of_kind(steps, Mechanism)), Raw()),
            after=tuple(_of_kind(steps, Postprocess)),
            sampling=sampling,
            spatial=spatial,
            temporal=temporal,
            event_steps=tuple(step for step in _of_kind(steps, EventStep) if not isinstance(step, Generalization)),
            groups=groups,
        )

    @property
    def version(self) -> int:  # type: ignore[override]
        """The version of the state format, derived from the versions of the steps."""
        return (2 if self.after else 1) + sum(step.version - 1 for step in (self.reader, *self.after))

    @property
    def mechanism(self) -> Mechanism:
        """The chain itself, or its only step if it has just one."""
        return self.reader if self.simple else self

    @property
    def n_merged(self) -> int:
        """The number of windows merged into one for counting."""
        return 1 if self.temporal is None else self.temporal.windows

    @property
    def bounding_windows(self) -> int:
        """The number of windows over which contributions are bounded jointly: a merged window's or a block's length."""
        return max(self.n_merged, self.reader.unit.n_bounded)

    @property
    def guarantee(self) -> Guarantee:
        """The reading step's guarantee."""
        return self.reader.guarantee

    @property
    def simple(self) -> bool:
        """Return whether the chain consists of a single step that reads counts."""
        return not self.after and not self.reshapes

    @property
    def reshapes(self) -> bool:
        """Return whether any step changes memberships before counting."""
        return bool(self.event_steps) or self.spatial is not None or self.temporal is not None

    def coarse(self, facts: Facts) -> Facts:
        """Convert the run's `Facts` to coarse windows and cells for the reading step."""
        return facts if self.groups is None else replace(facts, n_cells=int(self.groups.max()) + 1)

    def start(self, facts: Facts) -> State:
        """Return the initial state of every step that processes counts."""
        state = nested("reader", self.reader.start(self.coarse(facts)))
        for number, step in enumerate(self.after):
            state |= nested(f"after{number}", step.start(facts))
        return state

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Run the reading step and copy its releases to every cell that they cover."""
        # `counts` hold the coarse count in every cell of its group; all sensors are active there.
        coarse = counts
        if self.groups is not None:
            coarse = counts[..., np.unique(self.groups, return_index=True)[1]]
            window = replace(window, active=None)
        made, reader = self.reader.step(window, coarse, part("reader", state), noise)
        state = state | nested("reader", reader)
        releases: list[Release] = []
        for release in made:
            check_values(self.reader, ("step",), release, coarse.shape)
            dated = replace(release, day_type=window.day_type, time_of_day=window.time_of_day)
            shown, state = self._process(self._in_cells(dated), state)
            releases.append(shown)
        return releases, state

    def finish(self, state: State, noise: Noise) -> list[Release]:
        """Return the reading step's final releases after post-processing."""
        releases = []
        for release in self.reader.finish(part("reader", state), noise):
            shown, state = self._process(self._in_cells(release), state)
            releases.append(shown)
        return releases

    def noise_state(self, state: State) -> State:
        """Return the reading step's part of the state, which alone determines the noise.

        Floating-point state of post-processing may differ between processors, where a retry must draw the same noise.
        """
        return {name: array for name, array in state.items() if not name.startswith("after")}

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """Return the reading step's worst-case charge."""
        if self.groups is not None:
            window = replace(window, active=None)
        return self._amplify(self.reader.worst_charge(window, part("reader", state)))

    def _in_cells(self, release: Release) -> Release:
        """Expand a release from groups of cells to individual cells."""
        if self.spatial is None or self.groups is None:
            return release
        entries = {name: getattr(release, name) for name in ("values", "scale", "standard_deviation", "alarm")}
        # A single entry for all groups stays as it is.
        in_cells: dict[str, Any] = {
            name: np.asarray(one)[..., self.groups]
            for name, one in entries.items()
            if np.shape(one)[-1:] == release.values.shape[-1:]
        }
        return replace(release, **in_cells)

    def _process(self, release: Release, state: State) -> tuple[Release, State]:
        """Amplify the charge by sampling and apply the post-processing steps."""
        charge = self._amplify(release.charge)
        for number, step in enumerate(self.after):
            shape = np.shape(release.values)
            release, after = step.process(release, part(f"after{number}", state))
            check_values(step, ("transform", "process"), release, shape)
            state = state | nested(f"after{number}", after)
        return replace(release, charge=charge), state

    def _amplify(self, charge: tuple[Event, ...]) -> tuple[Event, ...]:
        """Amplify a charge by sampling, unless it covers a whole period, whose windows are sampled separately."""
        is_drawn_apart = self.reader.unit.kind == "period"
        return charge if self.sampling is None or is_drawn_apart else self.sampling.sampled(charge)


@dataclass(frozen=True, kw_only=True)
class LongerChain(Chain):
    """A chain that merges windows. Steps on counts release merged windows, which are copied to the original ones."""

    temporal: TemporalGeneralization

    @property
    def guarantee(self) -> Guarantee:
        """The reading step's guarantee, restated for the original windows."""
        promised, length = self.reader.guarantee, self.reader.unit.length
        if self.n_merged == 1 or promised.unit.kind not in ("window", "stretch"):
            return promised
        if length == 1:
            return replace(promised, unit=Unit.block(self.n_merged))
        # No stretch of so many windows meets more than w of the longer ones. Where it holds only a part of one, other
        # events of the person may be counted in its place, at the price of a replacement.
        unit, factor = Unit.stretch((length - 1) * self.n_merged + 1), price_of_replacement(promised.measure or "")
        return replace(promised, unit=unit, amount=None if promised.amount is None else factor * promised.amount)

    def coarse(self, facts: Facts) -> Facts:
        """Convert the run's `Facts` to coarse windows and cells for the reading step."""
        n_windows = None if facts.n_windows is None else -(-facts.n_windows // self.n_merged)
        return replace(super().coarse(facts), n_windows=n_windows, landmarks=(), budget_period=None)

    def start(self, facts: Facts) -> State:
        """Return the initial state of every step that processes counts, and an empty merged window."""
        state = super().start(replace(facts, windows_per_day=max(1, facts.windows_per_day // self.n_merged)))
        length = np.full(facts.shape, facts.n_windows or 0, np.int64)
        return state | waiting(facts, self.n_merged) | {"n_windows": length, "begin": facts.constant(0, np.int64)}

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Buffer windows until the last one of a merged window, which carries the counts, and release all of them."""
        row = (window.index - 1) % self.n_merged
        begin = window.start if row == 0 else int(np.max(state["begin"]))
        state = state | seen(window, row, state) | {"begin": np.full_like(state["begin"], begin)}
        if row < self.n_merged - 1 and window.index != int(np.max(state["n_windows"])):
            return [], state
        made, state = super().step(self._longer(window, state), counts, state, noise)
        releases = [one for release in made for one in self._in_windows(release, state)]
        return releases, state | {name: np.zeros_like(state[name]) for name in state if name.startswith("block_")}

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """Return the reading step's worst-case charge, which is due at the start of a merged window."""
        if int(np.max(state["block_first"])):
            return ()
        worst, last = super().worst_charge(self._longer(window, state), state), window.index + self.n_merged - 1
        return tuple(e if isinstance(e, FREE) else Block(e, window.index, last) for e in worst)

    def _longer(self, window: Window, state: State) -> Window:
        """Return the longer window that the steps on counts see."""
        index = (window.index - 1) // self.n_merged + 1
        begin = int(np.max(state["begin"])) if int(np.max(state["block_first"])) else window.start
        return replace(window, index=index, start=begin, active=None, landmark=False)

    def _in_windows(self, release: Release, state: State) -> list[Release]:
        """Expand a merged window's release to one release per original window."""
        first, last = (int(np.max(state[name])) for name in ("block_first", "block_last"))
        rows = np.repeat(np.asarray(release.values)[..., None, :], last - first + 1, axis=-2)
        kept = ("action", "noise", "scale", "standard_deviation", "alarm")
        common = {name: getattr(release, name) for name in kept}
        made = release_windows(state, (first - 1) % self.n_merged, rows, release.charge, **common)
        if release.repeats is None:
            return made
        coarse = np.asarray(release.repeats)
        fine = [np.where(coarse > 0, (coarse - 1) * self.n_merged + 1 + place, coarse) for place in range(len(made))]
        return [replace(one, repeats=window if window.ndim else int(window)) for one, window in zip(made, fine)]


def check_values(step: ChainStep, methods: Sequence[str], release: Release, shape: tuple[int, ...]) -> None:
    """Raise an error that names the step's method if it failed to release a number for every active sensor."""
    values = np.asarray(release.values)
    if values.shape != shape:
        wrong = f"of shape {values.shape}; they must have that of the counts, {shape}"
    elif np.isinf(values).any() or (np.isnan(values) & (True if release.active is None else release.active)).any():
        wrong = "that are no numbers; only those of inactive sensors may be NaN"
    else:
        return
    raise PluginError(f"{place_of(type(step), methods)}: {type(step).__name__} releases values {wrong}")


def misplaced(steps: Sequence[ChainStep]) -> Iterator[tuple[int, str]]:
    """Yield the position of each misplaced step in a chain, with advice on where it belongs."""
    reader: Mechanism | None = None
    stage = -1
    for position, step in enumerate(steps):
        before = steps[:position]
        if isinstance(step, EventStep):
            order = next((i for i, kind in enumerate(EVENT_STEPS) if isinstance(step, kind)), stage)
            counted = next((earlier for earlier in before if not isinstance(earlier, EventStep)), None)
            if counted is not None:
                yield position, f"before {_name(counted)}: it changes who is counted, and counts are made already"
            elif order == stage and stage >= 0:
                yield position, f"listed once: {_name(step)} stands before it"
            elif order < stage:
                yield position, f"before {_name(EVENT_STEPS[stage])}: samples are drawn from coarse memberships"
            stage = max(stage, order)
        elif isinstance(step, Postprocess):
            if step.is_last and position < len(steps) - 1:
                yield position, f"last, after {_name(steps[-1])}: it changes the values that later steps read"
            if step.reads_noise and (advice := _weighting_advice(reader, before)):
                yield position, advice
        elif isinstance(step, Mechanism) and reader is None:
            reader = step
            if _of_kind(before, Postprocess):
                yield position, f"before {_name(before[-1])}, which works on what it releases"
            yield from ((position, advice) for advice in _unreadable_input(step, before))
        elif reader is not None:
            yield (
                position,
                (
                    f"left out, or in place of {_name(reader)}: both read true counts, and only one step may; after it "
                    "only functions of its release, such as suppress_small or fixed_ranges"
                ),
            )


def _weighting_advice(reader: Mechanism | None, before: Sequence[ChainStep]) -> str | None:
    """Return advice if a step needs to know the reading step's noise but cannot, or None if there is no problem."""
    if reader is None:
        return "after a mechanism that adds noise to counts, such as discrete_laplace"
    if before[-1] is not reader:
        return f"directly after {_name(reader)}: it has to know the noise of what it reads"
    if reader.unit.n_bounded > 1:
        return f"left out: the noise of {_name(reader)} is that of a block, not of single counts"
    if reason := reader.guarantee.dependence:
        return f"left out: the noise of {_name(reader)} is not independent from window to window ({reason})"
    return None


def _unreadable_input(reader: Mechanism, before: Sequence[ChainStep]) -> Iterator[str]:
    longer = _of_kind(before, TemporalGeneralization)
    if longer and (isinstance(reader, BlockMechanism) or reader.unit.has_periods):
        yield "a mechanism of single windows after temporal_generalization (or set windows.size to the longer window)"
    if longer and isinstance(reader, Schedule) and reader.query_budget and reader.guarantee.concentrated:
        # A part of a longer window counts as a replacement, at twice the ρ of Gaussian noise, but four times that of
        # the question's, which is pure.
        yield "with noise in ε, or a mechanism without dissimilarity queries, after temporal_generalization"
    if not reader.guarantee.may_be_sampled and _of_kind(before, Sampling):
        yield "without sampling before it: one membership is in several of its counts, and nothing is claimed for that"


def _of_kind(steps: Sequence[ChainStep], kind: type[Any]) -> list[Any]:
    return [step for step in steps if isinstance(step, kind)]


def _name(step: ChainStep | type[ChainStep]) -> str:
    return MECHANISMS.name_of(step if isinstance(step, type) else type(step))
