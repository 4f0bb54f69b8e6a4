"""The ledger as one run opens it: which charges are its own, among those of others in a shared file."""

from __future__ import annotations

from typing import TypeVar

from pipeline import checkpoint, parts
from pipeline.ledger import Ledger
from pipeline.paths import ledger_path, parts_folder
from pipeline.plan import Plan

AnyLedger = TypeVar("AnyLedger", bound=Ledger)


def open_ledger(plan: Plan, kind: type[AnyLedger], strict: bool) -> AnyLedger:
    """The ledger of a run, which knows what is the run's own.

    Parameters
    ----------
    plan
        The run; its folder says where its charges begin and what it has released.
    kind
        `Ledger` for one process, another for several.
    strict
        Whether a window of the run's own may be charged for one input only. Charges that others have made before the
        run began count for it where it has released the same windows: of the same input, these were charged already.
    """
    if not strict:
        return kind(ledger_path(plan))
    stems = [part.stem for part in parts_folder(plan, "releases").glob("*.parquet")]
    released = {window for stem in stems for window in parts.windows_of(stem)}
    return kind(ledger_path(plan), True, checkpoint.charges_begin(plan), released)
