"""The mechanism interface: pure functions of state, and the types `Facts`, `Window` and `Release` that they use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.events import Block, Event, Repeated
from penstock.mechanisms.core.guarantee import Guarantee
from penstock.mechanisms.core.intervals import LEAST, deviation_of, margin
from penstock.mechanisms.core.noise import Noise
from penstock.mechanisms.core.plugin import Checked, ParameterError, Registry, check_whole
from penstock.mechanisms.core.portable import millionths
from penstock.mechanisms.core.sensitivity import Bounds
from penstock.mechanisms.core.state import State
from penstock.mechanisms.core.unit import Unit

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

#: Kinds of days that a calendar tells apart; a public holiday is a Sunday.
DAY_TYPES = ("weekday", "saturday", "sunday")
#: Milliseconds of a day.
DAY = 86_400_000


@dataclass(frozen=True, kw_only=True)
class Window:
    """Public attributes of one window (in traces, of many users' n-th points), known before reading any data.

    On traces every event of a user is a window of its own, which begins and ends with it, so that the same index means
    another time for every user: times, landmarks and periods are arrays of shape (n_users,). The times of the points
    are public, their positions are not.

    Parameters
    ----------
    index
        Position in the run, 1-based.
    start, end
        Half-open interval in milliseconds since 1970 UTC.
    landmark
        Whether the window is a landmark; landmarks are public.
    landmarks_to_come, regulars_to_come
        How many landmarks and how many regular windows follow in the same budget period; None if the stream is
        endless and has no period.
    period
        Budget period the window belongs to, 0-based.
    n_landmarks
        Landmarks in the whole period: listed, or the declared maximum; None where unknown.
    n_windows
        Windows in the whole period; None on an endless stream without one.
    period_last
        Index of the last window of the period; None on an endless stream without one.
    active
        Which sensors publish in this window, shape (n_cells,); None: all.
    origin
        On traces: latitude and longitude of a public point, shown until a first release, shape (2,).
    deviation
        On traces: standard deviation in metres that was worked out for the user's trace, of dependent noise in the
        direction of least noise; infinite if none is large enough, shape (n_users,); None if nothing was planned.
    factor
        On traces with dependent noise: row of the Cholesky factor of the noise covariance of the user's trace, in
        metres, up to this point, shape (n_users, index); None: noise is independent.
    day_type
        Kind of the day on which the window starts, by the local calendar: one of `DAY_TYPES`, by its position.
    time_of_day
        What the local clock shows when the window starts, in milliseconds since midnight.

    Examples
    --------
    >>> Window(index=1, start=0, end=3_600_000).landmark
    False
    """

    index: int
    start: Any
    end: Any
    landmark: Any = False
    landmarks_to_come: Any = None
    regulars_to_come: Any = None
    period: Any = 0
    n_landmarks: Any = 0
    n_windows: Any = None
    period_last: int | None = None
    active: NDArray[np.bool_] | None = field(default=None, compare=False)
    origin: Any = field(default=None, compare=False)
    deviation: Any = field(default=None, compare=False)
    factor: Any = field(default=None, compare=False)
    day_type: int = 0
    time_of_day: int = 0


@dataclass(frozen=True, kw_only=True)
class Facts(Bounds):
    """Public attributes of a run, known before the first window.

    Parameters
    ----------
    n_cells
        Length of every count vector.
    max_cells
        Cells in which a person is counted in one window; the other bounds are those of `Bounds`.
    n_windows
        Windows in the run; None on an endless stream.
    landmarks
        1-based indices of the landmark windows (for the plain loop; a pipeline gives them window by window).
    budget_period
        Windows per budget period; None: the whole run is one period.
    max_landmarks
        Declared maximum of landmarks per period, in place of their number.
    windows_per_day
        Windows that begin in a day, at least 1.
    n_replicas
        Independent copies stepped at once; None: one run, without a leading axis.
    cells
        Names of the cells; None: they have none.

    Examples
    --------
    >>> Facts(n_cells=3, max_cells=4).sensitivity
    3
    >>> [w.landmarks_to_come for w in Facts(n_cells=1, n_windows=3, landmarks=(1, 3)).windows()]
    [1, 1, 0]
    """

    n_cells: int
    n_windows: int | None = None
    landmarks: tuple[int, ...] = ()
    budget_period: int | None = None
    max_landmarks: int | None = None
    windows_per_day: int = 24
    n_replicas: int | None = None
    cells: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers = ("n_cells", "n_windows", "budget_period", "windows_per_day", "n_replicas")
        check_whole({name: getattr(self, name) for name in numbers})
        check_whole({"max_landmarks": self.max_landmarks}, at_least=0)
        object.__setattr__(self, "landmarks", tuple(sorted({int(i) for i in self.landmarks})))
        if self.landmarks and (self.landmarks[0] < 1 or self.landmarks[-1] > (self.n_windows or np.inf)):
            raise ParameterError("landmarks", self.landmarks, f"window indices from 1 to {self.n_windows}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The leading axes of every state array: () or (n_replicas,)."""
        return () if self.n_replicas is None else (self.n_replicas,)

    @property
    def sensitivity(self) -> int:
        """The L1 sensitivity of one window's count vector under add/remove, which equals the squared L2 sensitivity."""
        return min(self.max_cells, self.n_cells)

    def constant(self, value: float, dtype: type = np.float64) -> NDArray[np.generic]:
        """Return a state array with one entry per replica, all set to the same number."""
        return np.full(self.shape, value, dtype)

    def windows(self, n_windows: int | None = None, hour: int = 3_600_000) -> list[Window]:
        """Return hourly windows from 1970 for the plain loop, with the given landmarks and budget periods."""
        n = self.n_windows or n_windows
        if n is None:
            raise ParameterError("n_windows", None, "given, to list the windows")
        landmark = np.zeros(n, bool)
        if self.landmarks and self.landmarks[-1] > n:
            raise ParameterError("landmarks", self.landmarks, f"window indices from 1 to {n}")
        landmark[np.asarray(self.landmarks, int) - 1] = True
        length = self.budget_period or n
        period = np.arange(n) // length
        columns = in_periods(landmark, period, self.max_landmarks)
        rows = zip(*(column.tolist() for column in columns.values()))
        return [
            Window(
                index=i + 1,
                start=i * hour,
                end=(i + 1) * hour,
                landmark=bool(landmark[i]),
                period=i // length,
                period_last=min((i // length + 1) * length, n),
                time_of_day=i * hour % DAY,
                **dict(zip(columns, row)),
            )
            for i, row in enumerate(rows)
        ]


def in_periods(landmark: Mask, period: Integers, max_landmarks: int | None) -> dict[str, Integers]:
    """Return each window's remaining and total landmarks and regular windows, given nondecreasing period numbers."""
    counted = []
    for mask in (landmark, ~landmark):
        totals = np.bincount(period, weights=mask).astype(np.int64)
        counted.append((totals[period], np.cumsum(totals)[period] - np.cumsum(mask)))
    (landmarks, left), (regulars, regulars_left) = counted
    n_windows = landmarks + regulars
    if max_landmarks is not None:
        left = np.maximum(max_landmarks - (landmarks - left), 0)
        landmarks = np.full_like(landmarks, max_landmarks)
    to_come = {"landmarks_to_come": left, "regulars_to_come": regulars_left}
    return to_come | {"n_landmarks": landmarks, "n_windows": n_windows}


#: What is done in a window, best first.
ACTIONS = ("published", "repeated", "refused")


@dataclass(frozen=True, kw_only=True)
class Release:
    """One window's published vector and its provenance (for traces: many users' points at one timestamp).

    Parameters
    ----------
    window
        1-based index of the window.
    values
        Shape (..., n_cells): what is published; NaN where the cell's sensor is not active. On traces (n_users, 2):
        latitude and longitude in degrees.
    action
        One of `ACTIONS`; for replicas and users, an array of them.
    noise
        Name of the noise family, "none" without.
    scale
        Scale of the noise in the values: a number, or an array that broadcasts against ``values``. On traces in metres:
        1/ε, or σ.
    charge
        Privacy events of this release, to be priced by accountants. On traces one event: what it costs to tell two
        points ``radius`` metres apart, the decision whether to publish included.
    landmark
        Whether the window is a landmark.
    repeats
        Window whose release is shown again, 0 for the public constant before any; None: not a repetition. For
        replicas and users an array, -1 where one is no repetition.
    available_at
        When it can be published, milliseconds since 1970; None: at the window's end + allowed lateness.
    active
        Mask of active sensors; None: all.
    standard_deviation
        Standard deviation of each value as a guess of the count, shape of ``values``; None: not estimated.
    alarm
        Cells whose value is unusual and believed, shape of ``values``; None: not judged.
    day_type, time_of_day
        Those of the window, for the steps that follow.
    """

    window: int
    values: NDArray[Any]
    action: str | NDArray[np.str_] = "published"
    noise: str = "none"
    scale: float | NDArray[np.float64] = 0.0
    charge: tuple[Event, ...] = ()
    landmark: bool = False
    repeats: int | NDArray[np.int64] | None = None
    available_at: int | None = None
    active: NDArray[np.bool_] | None = None
    standard_deviation: NDArray[np.float64] | None = None
    alarm: NDArray[np.bool_] | None = None
    day_type: int = 0
    time_of_day: int = 0

    @classmethod
    def of(cls, window: Window, values: NDArray[Any], charge: tuple[Event, ...], **further: Any) -> Release:
        """Build the release of one window with inactive sensors masked. ``further`` holds the remaining fields."""
        if not all(isinstance(event, Event) for event in charge):
            raise TypeError(f"charge: {charge} is not allowed; it must be a tuple of privacy events")
        public = np.asarray(values, np.float64)
        if window.active is not None:
            public = np.where(window.active, public, np.nan)
        return cls(
            window=window.index, values=public, charge=charge, landmark=window.landmark, active=window.active, **further
        )

    def replica(self, number: int) -> Release:
        """Return one replica's release, identical to the release from a run with this replica alone."""

        def entry_of(value: Any) -> Any:
            """Return the replica's entry of a value, or an event with every field reduced to that entry."""
            if isinstance(value, Event):
                return replace(value, **{name: entry_of(part) for name, part in vars(value).items()})
            return value[number] if np.ndim(value) else value

        changes: dict[str, Any] = {"values": self.values[number], "action": str(entry_of(self.action))}
        for name in ("standard_deviation", "alarm"):
            if getattr(self, name) is not None:
                changes[name] = getattr(self, name)[number]
        changes["charge"] = tuple(map(entry_of, self.charge))
        scale = entry_of(self.scale)
        changes["scale"] = float(scale[0]) if np.shape(scale) == (1,) else scale
        if isinstance(self.repeats, np.ndarray):
            repeated = int(entry_of(self.repeats))
            changes["repeats"] = None if repeated < 0 else repeated
            if repeated >= 0:
                # The last event prices a publication, which this replica did not make, unless it is that of a period.
                changes |= {"noise": "none", "scale": 0.0}
                if not any(isinstance(event, Block) for event in changes["charge"][-1:]):
                    changes["charge"] = (*changes["charge"][:-1], Repeated(repeated))
        return replace(self, **changes)


class Measured(NamedTuple):
    """Linear functions of the counts x, ``windows`` @ x @ ``cells``, to which noise is added. None means the identity.

    A release is a function of them, so that ``windows`` @ release @ ``cells`` tells as much. ``scale``: of their noise;
    None: that of the releases.
    """

    windows: NDArray[np.float64] | None = None
    cells: NDArray[np.float64] | None = None
    scale: float | None = None


class Interpretation:
    """Relation of published values to the counts, used by conformance checks, audits, attacks and accountants.

    The base class describes a mechanism that adds noise to every count. Any other mechanism also derives from this
    class and overrides what differs.
    """

    @classmethod
    def of(cls, step: Any) -> Interpretation:
        """Return a step's interpretation: releases are noisy counts unless the step defines otherwise."""
        return step if isinstance(step, Interpretation) else Interpretation()

    @property
    def releases_single_counts(self) -> bool:
        """Return whether each published value is the noisy count of its cell alone."""
        return True

    @property
    def adds_noise_only(self) -> bool:
        """Return whether published values are counts plus noise, so that the noise determines their likelihood."""
        given = (type(self).without_noise, type(self).noise_in)
        return self.releases_single_counts and given == (Interpretation.without_noise, Interpretation.noise_in)

    def measured(self, facts: Facts) -> Measured:
        """Return the quantities to which noise is added. By default, these are the counts."""
        return Measured()

    def without_noise(self, counts: NDArray[Any]) -> NDArray[Any]:
        """Return the release without noise, shape (n_windows, n_cells). By default, these are the counts."""
        return counts

    def noise_in(self, published: NDArray[np.float64], counts: NDArray[Any]) -> NDArray[np.float64]:
        """Recover the noise in published values from the true counts. All arrays have shape (n_windows, n_cells)."""
        return np.asarray(published - self.without_noise(counts))


class ChainStep(Checked, ABC):
    """One step of a ``mechanism``, a frozen dataclass of parameters: `EventStep`, `Mechanism` or `Postprocess`."""

    version: ClassVar[int] = 1

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        public = {name for name in vars(Interpretation) if not name.startswith("_")} - {"of"}
        given = {name for base in cls.__mro__ for name in vars(base)}
        if not issubclass(cls, Interpretation) and (names := sorted(public & given)):
            raise TypeError(f"{cls.__name__} has {', '.join(names)}: it must derive from Interpretation, too")

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee under these parameters. There is none by default."""
        return Guarantee()


@dataclass(frozen=True, kw_only=True)
class Mechanism(ChainStep):
    """Base class for mechanisms that turn counts into releases.

    It implements `start`, `step` and `worst_charge`, and says what it promises. Most are a `schedules.Schedule`, which
    leaves only amounts to be said. State is a flat dict of arrays whose leading axes are those of `Facts.shape`.
    """

    @property
    def unit(self) -> Unit:
        """The guarantee's unit of privacy."""
        return self.guarantee.unit

    def start(self, facts: Facts) -> State:
        """Return the initial state."""
        return {}

    @abstractmethod
    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Process one window and return any releases that are ready, together with the next state.

        Parameters
        ----------
        window
            Public facts of the window.
        counts
            Shape (..., n_cells), integers; leading axes are independent replicas. Never changed.
        state
            From `start` or the previous step. Never changed.
        noise
            Keyed noise, bound to this window, input and state.

        Returns
        -------
        The releases that are now ready ([] while a block fills) and the next state. Of a block's releases the first
        carries the charge, a `Block`; the others carry none.
        """

    def finish(self, state: State, noise: Noise) -> list[Release]:
        """Return any releases still pending at the end of a finite run, such as a short last block."""
        return []

    def noise_state(self, state: State) -> State:
        """Return the count-dependent part of a state, which determines a step's noise and charge."""
        return state

    @abstractmethod
    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """Return an upper bound on the next step's charge that depends only on earlier releases.

        A block announces its charge at its first window, after which nothing may be in its way.
        """


#: Every kind of step by name.
MECHANISMS: Registry[ChainStep] = Registry("penstock.mechanisms", "mechanism", ChainStep)


class EventStep(ChainStep):
    """Base class for steps that act on events before counting."""

    @property
    def draws_users(self) -> bool:
        """Return whether a user's memberships in a window or block share one hash. They do if ``unit`` is "user"."""
        return bool(getattr(self, "unit", None) == "user")

    @abstractmethod
    def keep(
        self, users: NDArray[Any], cells: NDArray[np.int64], window: Window, hashes: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Return a mask of the distinct (user, cell) memberships to keep, given keyed, uniform ``hashes``."""


class Generalization(EventStep):
    """Base class for the two steps that coarsen memberships before counting and drop none."""

    def keep(
        self, users: NDArray[Any], cells: NDArray[np.int64], window: Window, hashes: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Keep every membership, merging coarse duplicates."""
        return np.ones(len(cells), bool)


class Postprocess(ChainStep):
    """Base class for functions of releases alone, which spend no budget: `transform`, or `start` and `process`."""

    #: Whether it must stand directly after the step that releases, whose noise it has to know.
    reads_noise: ClassVar[bool] = False
    #: Whether every release that it shows has an `alarm` for each cell.
    raises_alarms: ClassVar[bool] = False
    #: Whether nothing may stand after it.
    is_last: ClassVar[bool] = False

    @classmethod
    def lacks(cls) -> str:
        """Return the alternative methods if a step implements none of them."""
        is_bare = cls.process is Postprocess.process and cls.transform is Postprocess.transform
        return "transform or process" if is_bare else ""

    def start(self, facts: Facts) -> State:
        """Return the state before the first release."""
        return {}

    def process(self, release: Release, state: State) -> tuple[Release, State]:
        """Transform a release and return it as `released_as` does, with the next state."""
        return self.released_as(release, self.transform(np.asarray(release.values, np.float64))), state

    def released_as(self, release: Release, shown: NDArray[np.float64]) -> Release:
        """Return the release with the values ``shown``, and its standard deviation widened to keep intervals valid."""
        values, deviation = np.asarray(release.values, np.float64), release.standard_deviation
        if deviation is not None and shown.shape == values.shape:
            possible = np.maximum(values, 0.0)
            moved = np.abs(shown - possible)
            # By more than the rounding; below LEAST no interval reaches one person, and most not half of one.
            wider = np.maximum(deviation_of(shown, margin(possible, deviation) + moved + 0.001), LEAST)
            deviation = np.where(moved > 0, millionths(np.maximum(wider, deviation)), deviation)
        return replace(release, values=shown, standard_deviation=deviation)

    def transform(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the transformed values, shape (..., n_cells). NaN marks inactive sensors and stays NaN."""
        raise NotImplementedError(f"{type(self).__name__} does not map values one by one")


#: Parameters that say how much noise a step adds, with their values if it adds none. They are read by these names from
#: any step that has them, as is `NOISE`, the name of a family of noise.
NOISELESS: dict[str, float] = {"epsilon": np.inf, "rho": np.inf, "sigma": 0.0}
NOISE = "noise"


def amounts(step: ChainStep) -> dict[str, Any]:
    """Return the step's parameters in `NOISELESS` that are set."""
    return {name: value for name in NOISELESS if (value := getattr(step, name, None)) is not None}


def noise_of(step: ChainStep) -> str:
    """Return a step's ``noise`` parameter, or the step's name (such as ``gaussian``) if it has no such parameter."""
    return str(getattr(step, NOISE, None) or MECHANISMS.name_of(type(step)))
