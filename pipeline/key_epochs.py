"""The epochs of a run's noise key: which windows each one covers, and whether a run may go on with a longer key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mechanisms.core.noise_keys import BEGINNING
from pipeline.configuration.run import digest
from pipeline.configuration.values import format_time
from pipeline.ledger import Ledger
from pipeline.paths import ledger_path
from pipeline.plan import Plan


def key_epochs(plan: Plan) -> list[dict[str, Any]]:
    """Every epoch of the key: its fingerprint, when it begins, and its first window (traces have none).

    An epoch covers the windows from its first one up to the next epoch's; one that begins after the end of the run, or
    between two starts of windows, covers none.
    """
    rows = []
    for number, (start, fingerprint) in enumerate(zip(plan.key.epochs, plan.key.fingerprints), 1):
        begins = None if start == BEGINNING else format_time(start)
        row: dict[str, Any] = {"epoch": number, "fingerprint": fingerprint, "from": begins}
        if not plan.on_points:
            row["first_window"] = _first_window(plan, start)
        rows.append(row)
    return rows


def _first_window(plan: Plan, start: int) -> int | None:
    """The first window that starts at an instant or later; None where the run has none."""
    calendar = plan.calendar
    if start <= int(calendar.start(1)):
        return 1
    if calendar.until_ms is not None and start >= calendar.until_ms:
        return None
    inside = int(calendar.index(np.array([start]))[0])
    first = inside if int(calendar.start(inside)) == start else inside + 1
    return first if calendar.n_windows is None or first <= calendar.n_windows else None


def why_not_the_same_key(plan: Plan, begun_with: Sequence[str]) -> str | None:
    """What stands against continuing a run with the plan's key; None where nothing does.

    Parameters
    ----------
    plan
        The run as it is to go on.
    begun_with
        Fingerprints of the epochs that it began with. Further ones may have come, but only for windows that have not
        been charged yet: another noise for the same window would be a second release of it.
    """
    if not plan.key.continues(begun_with):
        return "began with another noise key; continue it with that one, or one that 'penstock key rotate' made of it"
    if len(plan.key.epochs) == len(begun_with):
        return None
    boundary, own = plan.key.epochs[len(begun_with)], digest(plan.config).hex()[:32]
    charged = (charge.window_start for charge in Ledger(ledger_path(plan)) if charge.configuration == own)
    if (last := max(charged, default=None)) is None or last < boundary:
        return None
    return (
        f"has released windows up to {format_time(last)}, and an epoch of its noise key now begins at "
        f"{format_time(boundary)}; begin it after what has been released"
    )
