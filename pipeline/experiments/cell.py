"""One cell: the release loop over shared counts, the accountants over its releases, and the measures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.errors import DataError
from pipeline.account_loop import AccountLoop, writable
from pipeline.configuration.run import RunConfig, digest
from pipeline.counting import count_group, memberships_of
from pipeline.experiments.counts import Counts
from pipeline.experiments.measures import CellRun, measure, unit_of
from pipeline.manifest import versions
from pipeline.paths import PART_ROWS
from pipeline.pieces import Distinct
from pipeline.plan import Plan, make_plan
from pipeline.release_loop import Batch, ReleaseLoop
from pipeline.targets import Known, nobody


def release(plan: Plan, counts: Counts) -> Iterator[Batch]:
    """Releases of a whole run, in batches: byte for byte those of the pipeline on the same input."""
    loop = ReleaseLoop(plan)
    state = loop.start()
    step = max(1, PART_ROWS // plan.n_cells)
    seen = _sightings(plan)
    for row in range(0, plan.n_windows, step):
        bounded = counts.bounded[row : row + step]
        batch, state = loop.advance(state, row + 1, bounded)
        if plan.targets.n_targets:
            inside = (seen[:, 0] > row) & (seen[:, 0] <= row + step)
            batch = replace(batch, known=Known(row + 1, bounded, seen[inside]))
        yield batch
        if batch.stopped:
            return


def _sightings(plan: Plan) -> NDArray[np.int64]:
    """Where the targets of accountants are in each window; the source is read only if there are any."""
    if plan.targets.n_targets == 0:
        return nobody()
    pieces: dict[tuple[int, int], list[Distinct]] = {}
    source = plan.config.source
    for block in (block for span in source.spans() for block in source.read(span)):
        for key, piece in memberships_of(block, plan)[1]:
            pieces.setdefault(key, []).append(piece)
    return np.concatenate(
        [nobody(), *(count_group(group, parts, plan)[0].sightings for (group, _), parts in pieces.items())]
    )


def run_cell(config: RunConfig, counts: Counts) -> CellRun:
    """Run one configuration over counts that are there already.

    Parameters
    ----------
    config
        Of the cell.
    counts
        What `write_counts` has counted for it.

    Raises
    ------
    DataError
        Where a budget stopped the run before its last window: its measures would be those of fewer windows.
    """
    plan = make_plan(config)
    batches = list(release(plan, counts))
    if batches[-1].stopped:
        raise DataError(f"the run was stopped: {batches[-1].stopped}")
    accounts: dict[str, list[Any]] = {}
    for accountant, shards in zip(plan.accountants, plan.shards):
        for shard in range(len(shards)):
            loop = AccountLoop(plan, accountant, shard)
            state, rows = loop.start(), accounts.setdefault(loop.name, [])
            for batch in batches:
                made, state = loop.advance(state, batch)
                rows += made
    releases = tuple(release for batch in batches for release in batch.releases)
    if not releases:
        raise DataError("nothing was released")
    values = np.stack([np.asarray(release.values, np.float64) for release in releases], axis=1)
    active = np.stack(
        [np.ones(plan.n_cells, bool) if release.active is None else release.active for release in releases], axis=1
    )
    truth = counts.truth[[release.window - 1 for release in releases]].T
    return CellRun(
        plan=plan,
        truth=np.where(active, truth, 0.0),
        released=np.where(active, values, 0.0),
        releases=releases,
        accounts=accounts,
        seed=config.seed or 0,
        n_people=counts.facts.get("n_people"),
    )


def cell_record(config: RunConfig, counts: Counts, names: tuple[str, ...]) -> dict[str, Any]:
    """Every measure of a cell with its unit, and where the numbers come from, as JSON can hold it."""
    finished = run_cell(config, counts)
    measures = []
    for name in names:
        one = measure(name)
        value = one.compute(finished)
        measures.append({"measure": name, "value": writable(value), "unit": unit_of(one, finished)})
    return {
        "measures": measures,
        "configuration": digest(config).hex(),
        "seed": config.seed,
        "versions": versions(),
    }
