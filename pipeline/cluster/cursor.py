"""How far a reader has come, as what the engine keeps of a splittable step: its restriction and its watermark."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from apache_beam.coders import Coder
from apache_beam.coders.coders import NullableCoder, TimestampCoder
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.core import RestrictionProvider, WatermarkEstimatorProvider
from apache_beam.utils.timestamp import Timestamp

from mechanisms.core.plugin import StateVersionError
from mechanisms.core.state import State, StateFormat
from pipeline.sources.base import NEVER, Slice

FORMAT = StateFormat("cursor")
_NUMBERS, _POSITION = ("number", "latest", "ended", "reader"), "position."


@dataclass(frozen=True, eq=False)
class Cursor:
    """How far a source has been read.

    Parameters
    ----------
    position
        In the terms of the source (`Slice.end`).
    number, latest
        Number of the next slice, and the time that was reached before it.
    ended
        Whether nothing is left for this reader: the rest was left to another.
    reader
        Number of the reader among those that share the source.
    """

    position: State = field(default_factory=dict)
    number: int = 0
    latest: int = NEVER
    ended: bool = False
    reader: int = 0

    def after(self, piece: Slice) -> Cursor:
        """The same reader's cursor behind a slice."""
        return Cursor(piece.end, piece.number + 1, piece.after, reader=self.reader)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cursor) and CursorCoder().encode(self) == CursorCoder().encode(other)

    def __hash__(self) -> int:
        return hash((self.number, self.latest, self.ended))


@dataclass(frozen=True, eq=False)
class UnreadableCursor(Cursor):
    """A cursor that this code cannot read.

    Coders work outside of steps, where an error would tell nobody but the engine: the step that gets it refuses it.

    Parameters
    ----------
    data
        Its bytes, which stay what they are.
    reason
        Why they cannot be read.
    """

    data: bytes = b""
    reason: str = ""


class CursorCoder(Coder):  # type: ignore[misc]
    """Cursors as bytes.

    Examples
    --------
    >>> CursorCoder().decode(CursorCoder().encode(Cursor(number=3))).number
    3
    >>> CursorCoder().decode(b"of another time").reason
    'these bytes are not an encoded penstock state'
    """

    def encode(self, value: Cursor) -> bytes:
        """Its numbers beside the position of the source."""
        if isinstance(value, UnreadableCursor):
            return value.data
        own = {name: np.asarray(getattr(value, name)) for name in _NUMBERS}
        return FORMAT.encode(own | {_POSITION + name: array for name, array in value.position.items()})

    def decode(self, encoded: bytes) -> Cursor:
        """The inverse of `encode`; an `UnreadableCursor` of a version that this code cannot read."""
        try:
            state = FORMAT.decode(encoded)
        except StateVersionError as error:
            return UnreadableCursor(data=encoded, reason=str(error))
        number, latest, ended, reader = (state.pop(name).item() for name in _NUMBERS)
        position = {name.removeprefix(_POSITION): array for name, array in state.items()}
        return Cursor(position, number, latest, ended, reader)

    def is_deterministic(self) -> bool:
        """Equal cursors have equal bytes."""
        return True


class CursorTracker(RestrictionTracker):  # type: ignore[misc]
    """Everything from a cursor on; never split for several readers, only left to be continued.

    Examples
    --------
    >>> tracker = CursorTracker(Cursor())
    >>> tracker.try_claim(Cursor(number=1)), tracker.try_split(0)[1].number, tracker.try_claim(Cursor(number=2))
    (True, 1, False)
    """

    def __init__(self, restriction: Cursor) -> None:
        self._cursor, self._left = restriction, False

    def current_restriction(self) -> Cursor:
        """Where to go on, or the end if that was left to another."""
        return replace(self._cursor, ended=True) if self._left else self._cursor

    def try_claim(self, position: Cursor) -> bool:
        """Move behind a slice."""
        if self._left:
            return False
        self._cursor = position
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[Cursor, Cursor] | None:
        """Leave what has not been claimed; a fraction of something endless cannot be told."""
        if fraction_of_remainder != 0 or self._left or self._cursor.ended:
            return None
        self._left = True
        return replace(self._cursor, ended=True), self._cursor

    def check_done(self) -> None:
        """Raise `ValueError` unless the end was reached or the rest was left."""
        if not (self._left or self._cursor.ended):
            raise ValueError(f"the source was left at slice {self._cursor.number} without a word")

    def current_progress(self) -> RestrictionProgress:
        """Unknown: a source may have no end."""
        return RestrictionProgress(completed=float(self._cursor.number), remaining=0.0 if self._cursor.ended else 1.0)

    def is_bounded(self) -> bool:
        """A live source is unbounded, also where it comes to an end."""
        return False


class FromTheStart(RestrictionProvider):  # type: ignore[misc]
    """One reader for each element, which is the cursor that it begins at, as bytes."""

    def initial_restriction(self, element: bytes) -> Cursor:
        """From its beginning."""
        return CursorCoder().decode(element)

    def create_tracker(self, restriction: Cursor) -> CursorTracker:
        """A tracker of what is left."""
        return CursorTracker(restriction)

    def restriction_size(self, element: bytes, restriction: Cursor) -> float:
        """The same for all: size decides nothing here."""
        return 1.0

    def restriction_coder(self) -> Coder:
        """How positions are kept in checkpoints."""
        return CursorCoder()

    def truncate(self, element: bytes, restriction: Cursor) -> None:
        """A drained job reads nothing more."""


class WatermarkByHand(WatermarkEstimatorProvider):  # type: ignore[misc]
    """A watermark that the reader sets, and that checkpoints keep in a standard coder."""

    def initial_estimator_state(self, element: bytes, restriction: Cursor) -> None:
        """No time yet."""

    def create_watermark_estimator(self, estimator_state: Timestamp | None) -> ManualWatermarkEstimator:
        """Where it was left."""
        return ManualWatermarkEstimator(estimator_state)

    def estimator_state_coder(self) -> Coder:
        """Beam's own would pickle it."""
        return NullableCoder(TimestampCoder())
