"""The ledger as one run opens it: which charges are its own, among those of others in a shared file."""

from __future__ import annotations

from pipeline import checkpoint, parts
from pipeline.ledger import Ledger
from pipeline.paths import ledger_path, parts_folder
from pipeline.plan import Plan


def open_ledger(plan: Plan, strict: bool) -> Ledger:
    """The ledger of a run, which knows what is the run's own.

    Parameters
    ----------
    plan
        The run; its folder says where its charges begin and what it has released.
    strict
        Whether a window of the run's own may be charged for one input only. Charges that others have made before the
        run began count for it where it has released the same windows: of the same input, these were charged already.
    """
    if not strict:
        return Ledger(ledger_path(plan))
    stems = [part.stem for part in parts_folder(plan, "releases").glob("*.parquet")]
    released = {window for stem in stems for window in parts.windows_of(stem)}
    return Ledger(ledger_path(plan), True, checkpoint.charges_begin(plan), released)
