"""Conditions on the steps of a release: which may stand together, and what they need of the other sections."""

from __future__ import annotations

from collections.abc import Iterator

from accountants.core.accountant import Accountant
from mechanisms.core.chain import Chain
from mechanisms.core.chain_order import misplaced
from mechanisms.core.errors import DataError, ParameterError
from mechanisms.core.generalization import Generalization
from mechanisms.core.mechanism import MECHANISMS, Mechanism
from mechanisms.spatial_generalization import SpatialGeneralization
from mechanisms.temporal_generalization import TemporalGeneralization
from pipeline.configuration.rule import Finding, Rule
from pipeline.configuration.sections import Bounding
from pipeline.sensors import Sensors
from pipeline.space import Space
from pipeline.window import Windows


def steps_make_sense(mechanism: tuple[Mechanism, ...]) -> Iterator[Finding]:
    """Steps on events come first, one step reads true counts, and only post-processing follows."""
    if not mechanism:
        yield Finding(("mechanism",), mechanism, "a list that ends in a mechanism on counts, such as landmark_uniform")
    for position, right in misplaced(mechanism):
        yield Finding(("mechanism", position, "type"), "", right)


def generalization_has_all_sensors(mechanism: tuple[Mechanism, ...], sensors: Sensors) -> Iterator[Finding]:
    """A coarse count tells of all cells and windows that it covers."""
    for step in mechanism:
        if isinstance(step, Generalization) and sensors != Sensors():
            name = MECHANISMS.name_of(type(step))
            yield Finding(("sensors",), sensors, f"left out: with {name} each count covers several cells or windows")


def cells_can_be_grouped(mechanism: tuple[Mechanism, ...], space: Space) -> Iterator[Finding]:
    """Coarse cells are made of the places of the cells, or of groups that the space names."""
    for i, step in enumerate(mechanism):
        if isinstance(step, SpatialGeneralization) and not space.derived_from_data:
            try:
                step.groups(space.geometry())
            except ParameterError as error:
                yield Finding(("mechanism", i, error.field), error.value, error.expected)
            except DataError as error:
                yield Finding(("space",), space, f"a space that can be read ({error})")


def blocks_hold_an_event_once(mechanism: tuple[Mechanism, ...], windows: Windows) -> Iterator[Finding]:
    """Where windows overlap, an event can be on both sides of a border between blocks."""
    for i, step in enumerate(mechanism):
        long = step.unit_windows > 1 or isinstance(step, TemporalGeneralization)
        if long and windows.step < windows.size:
            right = "a mechanism for overlapping windows, such as discrete_laplace: an event would be in two blocks"
            yield Finding(("mechanism", i, "type"), "", right)


def block_bounds_have_a_block(mechanism: tuple[Mechanism, ...], bounding: Bounding) -> Iterator[Finding]:
    """A bound over a block is enforced where there are blocks only."""
    if any(step.unit_windows > 1 for step in mechanism):
        return
    for name in ("max_windows", "max_block_cells"):
        if getattr(bounding, name) is not None:
            yield Finding(("bounding", name), getattr(bounding, name), "left out without a mechanism over blocks (fpa)")


def attacks_can_follow(mechanism: tuple[Mechanism, ...], accountants: tuple[Accountant, ...]) -> Iterator[Finding]:
    """The running attack sends groups through the mechanism, window by window."""
    if not mechanism or any(misplaced(mechanism)):
        return
    chain = Chain.of(mechanism)
    for i, one in enumerate(accountants):
        if one.follows_groups and (chain.reshapes or chain.unit_windows > 1):
            right = "left to penstock attack: it follows neither steps on events nor blocks of windows"
            yield Finding(("accountants", i, "type"), "", right)


RULES: tuple[Rule, ...] = (
    steps_make_sense,
    generalization_has_all_sensors,
    cells_can_be_grouped,
    blocks_hold_an_event_once,
    block_bounds_have_a_block,
    attacks_can_follow,
)
