"""Which steps may follow each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mechanisms.core.mechanism import MECHANISMS, Mechanism
from mechanisms.core.transformation import Transformation
from mechanisms.sampling import Sampling
from mechanisms.spatial_generalization import SpatialGeneralization
from mechanisms.temporal_generalization import TemporalGeneralization

#: Steps on events, in the order in which they act: people are coarsened, then bounded, then sampled.
EVENT_STEPS: tuple[type[Mechanism], ...] = (SpatialGeneralization, TemporalGeneralization, Sampling)


def misplaced(steps: Sequence[Mechanism]) -> Iterator[tuple[int, str]]:
    """Positions of steps that make no sense where they stand, each with what would be right.

    Examples
    --------
    >>> from mechanisms import get
    >>> noise, small = get("laplace")(epsilon=1.0), get("suppress_small")(threshold=5)
    >>> list(misplaced([noise, small]))
    []
    >>> [position for position, _ in misplaced([small, noise])]
    [1]
    """
    reader: Mechanism | None = None
    stage = -1
    for position, step in enumerate(steps):
        if step.stages == ("events",):
            order = next((i for i, kind in enumerate(EVENT_STEPS) if isinstance(step, kind)), stage)
            if reader is not None:
                yield position, f"before {_name(reader)}: it changes who is counted, and counts are made already"
            elif order == stage and stage >= 0:
                yield position, f"listed once: {_name(step)} stands before it"
            elif order < stage:
                yield position, f"before {_name(EVENT_STEPS[stage])}: samples are drawn from coarse memberships"
            stage = max(stage, order)
        elif reader is None:
            reader = step
            yield from ((position, right) for right in _cannot_read(step, steps[:position]))
        elif not isinstance(step, Transformation) or not step.follows:
            yield (
                position,
                (
                    f"left out, or in place of {_name(reader)}: both read true counts, and only one step may; after it "
                    "only functions of its release, such as suppress_small or fixed_ranges"
                ),
            )


def _cannot_read(reader: Mechanism, before: Sequence[Mechanism]) -> Iterator[str]:
    longer = any(isinstance(step, TemporalGeneralization) for step in before)
    if longer and (isinstance(getattr(reader, "block", None), int) or reader.landmark_budget is not None):
        yield "a mechanism of single windows after temporal_generalization (or set windows.size to the longer window)"


def _name(step: Mechanism | type[Mechanism]) -> str:
    return MECHANISMS.name_of(step if isinstance(step, type) else type(step))
