"""Where a run keeps what."""

from __future__ import annotations

from pathlib import Path

from pipeline.plan import Plan

#: Rows of one part file; also bounds how much is released between two writes of the ledger.
PART_ROWS = 500_000

#: Outputs that may leave the operator.
PUBLIC = ("releases", "accounts_public")


def parts_folder(plan: Plan, kind: str) -> Path:
    """Where parts of one output are kept until they are merged."""
    return plan.folder / ("public" if kind in PUBLIC else "operator") / "parts" / kind


def ledger_path(plan: Plan) -> Path:
    """The ledger of the run, or the shared one that the configuration names."""
    return Path(plan.config.output.ledger or plan.folder / "operator" / "ledger")
