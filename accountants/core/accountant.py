"""The accountant interface: a fold over releases that yields rows of privacy costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.accountants.core.training import Training
from penstock.mechanisms.core.contract import ChainStep, Facts, Mechanism, Release, Window
from penstock.mechanisms.core.plugin import Checked, Registry, UnsupportedEvent
from penstock.mechanisms.core.sensitivity import Bounds
from penstock.mechanisms.core.state import State
from penstock.mechanisms.temporal_generalization import TemporalGeneralization

if TYPE_CHECKING:
    from penstock.mechanisms.core.run import ReleasedTraces


@dataclass(frozen=True)
class AccountRow:
    """A row in ``accounts.parquet``, which holds one value from an accountant."""

    subject: str  # whom it is about: "everybody", a user class, or (operator only) a target
    window: int | None  # 1-based; None: the whole run
    name: str  # of the figure
    value: float
    low: float | None = None  # its interval, where it has one
    high: float | None = None
    unit: str = "nats"
    adjacency: str = "add_remove"  # which two inputs are compared, and under which assumption, in words
    status: str = "final"  # "provisional" while later releases can still change it

    def as_dict(self) -> dict[str, Any]:
        """Return the row as a dict by column name."""
        return asdict(self)


Rows = list[AccountRow]


@dataclass(frozen=True, kw_only=True)
class AccountingFacts(Bounds):
    """Attributes of a run that its accountants need at the start: contribution bounds, release and windows."""

    n_cells: int  # size of the release
    n_windows: int | None = None  # windows in the run; None on an endless stream
    mechanism: Mechanism | None = None  # the one that sees counts, whose releases are accounted
    # All steps of the release, in order: those on events before the mechanism and post-processing after it too.
    steps: tuple[ChainStep, ...] = ()
    # Public facts of the windows from one to another, both inclusive, future ones included: active sensors, landmarks,
    # budget periods; None: not known beforehand.
    windows: Callable[[int, int], Sequence[Window]] | None = None
    landmarks: bool = False  # whether the run has any
    training: Mapping[str, Any] | None = None  # operator-only: result of the accountant's `Accountant.prepare`

    def of_mechanism(self, n_replicas: int | None = None) -> Facts:
        """Return the mechanism's `Facts`, for accountants that run the mechanism themselves."""
        return Facts(n_cells=self.n_cells, n_windows=self.n_windows, n_replicas=n_replicas, **self.limits())

    @property
    def replaces_in_blocks(self) -> bool:
        """Return whether bounding may replace removed events with the same person's other events in the block."""
        # Bounding then chooses among the events of several windows: of a block, of a budget period, or of the windows
        # that are counted as one.
        coarse = any(isinstance(step, TemporalGeneralization) for step in self.steps)
        over_windows = any(bound is not None for name, bound in self.limits().items() if name != "max_cells")
        return over_windows or (coarse and self.max_cells < self.n_cells)


class Accountant(Checked):
    """Base class for accountants: a frozen dataclass whose methods are pure functions.

    ``model`` is immutable and shipped once (priors, hulls); ``state`` is a flat dict of arrays. An accountant sees
    every window's release exactly once and in order.
    """

    version: ClassVar[int] = 1
    #: What releases it has a theorem for: ``counts``, ``points`` (traces) or both.
    stages: ClassVar[tuple[str, ...]] = ("counts",)
    #: Names of operator-only facts of a window that `charge` needs in ``private``: ``counts`` (n_cells,), as bounded;
    #: ``target_cells`` (n_targets,), the cell of each person under "targets" in what was prepared, -1 where not seen.
    needs: ClassVar[tuple[str, ...]] = ()
    #: Whether its figures hold under a bound on a user's budget period: what goes from one window makes room in later
    #: ones.
    bounds_periods: ClassVar[bool] = False
    #: Whether it prices releases that read other windows, too (`events.Linked`).
    prices_links: ClassVar[bool] = True
    #: Whether it needs to know more than a deployment does, such as who is in a group.
    simulation_only: ClassVar[bool] = False
    #: Whether it sends made-up users through the mechanism window by window, which blocks and steps on events break.
    follows_groups: ClassVar[bool] = False
    #: Keys of a run, of ``landmarks`` and ``budget_period``, that its figures depend on whatever the mechanism is.
    reads: ClassVar[tuple[str, ...]] = ("landmarks", "budget_period")

    @property
    def public(self) -> bool:
        """Return whether the rows are safe to publish because they depend only on past releases."""
        return True

    @property
    def training_windows(self) -> int | None:
        """The number of initial windows that `prepare` learns from, or None."""
        return None

    @property
    def named_users(self) -> tuple[int | str, ...]:
        """The user ids listed in the configuration, whose rows `prepare` gets in `Training.named`."""
        return ()

    def prepare(self, training: Training | None) -> Mapping[str, Any] | None:
        """Read files and learn priors. This is done once, during planning.

        Parameters
        ----------
        training
            At least `training_windows` windows of the stream; None if that is None.

        Returns
        -------
        `AccountingFacts.training` of the workers: small, and independent of the number of people.
        """
        return None

    def shards(self, prepared: Mapping[str, Any] | None) -> tuple[Mapping[str, Any] | None, ...]:
        """Split the prepared model into independent shards. By default, there is only one."""
        return (prepared,)

    @classmethod
    def lacks(cls) -> str:
        """Return the names of missing methods. The accountant's ``stages`` determine which methods it needs."""
        needed = {"counts": ("charge", "start"), "points": ("account_traces",)}
        names = (name for stage in cls.stages for name in needed[stage])
        return ", ".join(name for name in names if getattr(cls, name) is getattr(Accountant, name))

    def start(self, facts: AccountingFacts) -> tuple[Any, State]:
        """Return the model and the initial state. Raise `UnsupportedEvent` if no theorem applies."""
        raise UnsupportedEvent(f"{type(self).__name__} accounts traces, not counts")

    def charge(
        self, release: Release, window: Window, private: Mapping[str, Any], model: Any, state: State
    ) -> tuple[Rows, State]:
        """Account for one release. Unknown events are rejected without side effects."""
        raise UnsupportedEvent(f"{type(self).__name__} accounts traces, not counts")

    def account_traces(self, released: ReleasedTraces) -> Rows:
        """Account for users' released traces. Each user's values depend only on that user's trace."""
        raise UnsupportedEvent(f"{type(self).__name__} accounts counts, not traces")

    def finish(self, model: Any, state: State) -> Rows:
        """Return the values that become final only at the end of the run."""
        return []

    def summary(self, model: Any, state: State) -> dict[str, Any]:
        """Return the values so far for the manifest (numbers and strings by name), which are as public as the rows."""
        return {}


ACCOUNTANTS: Registry[Accountant] = Registry("penstock.accountants", "accountant", Accountant)
