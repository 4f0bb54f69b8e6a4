"""The ``penstock`` command as a later release could be: every layout of state is one version on, with a migration.

With ``--earlier`` in front it is an earlier release instead, which cannot read how far a reader has come.

The mechanism keeps whole numbers in half the width, the accountant calls its sums by another name, and each layout of
the pipeline itself has a step to the next version. What is migrated is printed, once.
"""

import sys
from typing import Any

import numpy as np

from penstock.accountants.composition import Composition
from penstock.mechanisms.core.state import State, StateFormat
from penstock.mechanisms.discrete_laplace import DiscreteLaplace
from penstock.pipeline.cli.main import main
from penstock.pipeline.runners.beam import coders, read
from penstock.pipeline.steps import account
from penstock.pipeline.steps import release as release_loop

LAYOUTS = (
    (release_loop, "FORMAT"),
    (account, "FORMAT"),
    (coders, "BATCH"),
    (coders, "ROWS"),
    (coders, "COUNTS"),
    (coders, "LANE"),
    (read, "FORMAT"),
)
_announced: set[str] = set()


def announce(name: str, state: State) -> State:
    """Say once that state of this name was migrated."""
    if name not in _announced:
        _announced.add(name)
        print(f"migrated {name}", flush=True)
    return state


def upgrade_layouts() -> None:
    """Every layout of the pipeline in its next version, which holds what the present one holds."""
    for module, name in LAYOUTS:
        before: StateFormat = getattr(module, name)
        steps = {**before.steps, before.version: lambda state, name=before.name: announce(name, state)}
        setattr(module, name, StateFormat(before.name, before.version + 1, steps))


def of_width(state: State, kind: type) -> State:
    """State with whole numbers of a width."""
    return {name: array.astype(kind) if array.dtype.kind == "i" else array for name, array in state.items()}


def upgrade_mechanism(kind: Any) -> None:
    """A mechanism whose state has whole numbers of 32 bits; equal numbers draw equal noise."""
    start, step, worst_charge = kind.start, kind.step, kind.worst_charge

    def later_step(self: Any, window: Any, counts: Any, state: State, noise: Any) -> Any:
        releases, after = step(self, window, counts, of_width(state, np.int64), noise)
        return releases, of_width(after, np.int32)

    kind.version += 1
    kind.start = lambda self, facts: of_width(start(self, facts), np.int32)
    kind.step = later_step
    kind.worst_charge = lambda self, window, state: worst_charge(self, window, of_width(state, np.int64))
    kind.migrate = lambda self, version, state: announce("mechanism", of_width(state, np.int32))


def renamed(state: State, old: str, new: str) -> State:
    """State with an array under another name."""
    return {new if name == old else name: array for name, array in state.items()}


def upgrade_accountant(kind: Any) -> None:
    """An accountant whose sums are called totals."""
    start, charge, finish, summary = kind.start, kind.charge, kind.finish, kind.summary

    def later_start(self: Any, facts: Any) -> Any:
        model, state = start(self, facts)
        return model, renamed(state, "sums", "totals")

    def later_charge(self: Any, release: Any, window: Any, private: Any, model: Any, state: State) -> Any:
        rows, after = charge(self, release, window, private, model, renamed(state, "totals", "sums"))
        return rows, renamed(after, "sums", "totals")

    kind.version += 1
    kind.start, kind.charge = later_start, later_charge
    kind.finish = lambda self, model, state: finish(self, model, renamed(state, "totals", "sums"))
    kind.summary = lambda self, model, state: summary(self, model, renamed(state, "totals", "sums"))
    kind.migrate = lambda self, version, state: announce("accountant", renamed(state, "sums", "totals"))


if __name__ == "__main__":
    if sys.argv[1] == "--earlier":
        read.FORMAT = StateFormat("cursor", 0)
        sys.exit(main(sys.argv[2:]))
    upgrade_layouts()
    upgrade_mechanism(DiscreteLaplace)
    upgrade_accountant(Composition)
    sys.exit(main(sys.argv[1:]))
