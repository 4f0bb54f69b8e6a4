"""One trial of a sweep: row counts shared between trials, releases and accounts over them, and the measures."""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.accountants.core.accountant import ACCOUNTANTS
from penstock.mechanisms.core.contract import MECHANISMS
from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.config.canonical import digest, resolved
from penstock.pipeline.config.plan import Plan, make_plan
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.config.sections import Output
from penstock.pipeline.counting.bounding import released_counts
from penstock.pipeline.counting.contributions import Contributions
from penstock.pipeline.counting.count import contributions_of, count_group
from penstock.pipeline.counting.presence import read_memberships
from penstock.pipeline.counting.targets import PrivateFacts, no_target_cells
from penstock.pipeline.experiments.attacks.membership import Game
from penstock.pipeline.experiments.measures import TraceRun, TrialRun, measure, unit_of
from penstock.pipeline.experiments.pieces import digest_of
from penstock.pipeline.output import files
from penstock.pipeline.output.files import PART_ROWS
from penstock.pipeline.output.manifest import made_by, versions
from penstock.pipeline.releasing.account import AccountLoop, writable
from penstock.pipeline.releasing.release import Batch, ReleaseLoop
from penstock.pipeline.releasing.traces import TraceLoop, gather, points_of
from penstock.pipeline.sources.base import EventBlock


@dataclass(frozen=True)
class Counts:
    """Distinct users before and after contribution bounding, shape (n_windows, n_cells).

    ``facts`` holds the row equation of the counting run (``rows``), or the size of a random group (``n_people``).
    """

    truth: NDArray[np.int64]
    bounded: NDArray[np.int64]
    facts: dict[str, Any]


def counting_config(config: RunConfig) -> RunConfig:
    """The part of a configuration that decides the counts; trials for which it is equal share one counting run.

    What reads counts, and what follows it, is replaced by ``raw`` unless contributions are bounded over its blocks; a
    chain with steps on events stays unchanged, because they change the counts. The seed stays where a keyed hash
    decides which contributions count.
    """
    bounding = config.bounding
    over_blocks = bounding.max_windows is not None or bounding.max_block_cells is not None
    alone = all(step.stages != ("events",) for step in config.mechanism) and not over_blocks
    is_bounded = bounding.max_cells is not None or bounding.max_per_period is not None
    hashed = not alone or (bounding.keep == "hash" and is_bounded)
    if alone:
        raw = MECHANISMS.get("raw")()
        period = None if bounding.max_per_period is None else config.budget_period
        config = replace(config, mechanism=(raw,), landmarks=None, budget_period=period)
    return replace(
        config,
        name="counts",
        seed=config.seed if hashed or config.sensors.active == "one_random" else 0,
        accountants=(),
        utility=(),
        on_exhausted="repeat",
        output=Output(path="unused", user_summaries=False),
    )


def counts_name(config: RunConfig, inputs: Mapping[str, str], group_size: int | None = None) -> str:
    """Digest of everything that decides the counts of a trial, including the content of the input."""
    counting = resolved(counting_config(config), secrets=True)
    group = {} if group_size is None else {"group_size": group_size, "seed": config.seed}
    return digest_of({"config": counting, "inputs": inputs} | made_by() | group)


def write_counts(config: RunConfig, path: Path) -> None:
    """Count what a trial needs in the plain local loop, and write it atomically to one file."""
    from penstock.pipeline.run import run

    path.parent.mkdir(parents=True, exist_ok=True)
    if make_plan(config).on_points:
        write_events(config, path)
        return
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".counting-") as folder:
        result = run(counting_config(config), folder, runner="local")
        table = pl.read_parquet(Path(folder) / "operator" / "truth.parquet", columns=["window", "count", "bounded"])
        n_windows = int(result.manifest["windows"]["planned"])
        n_cells = len(config.space.resolve(config.source).cells)
        # Truth has no rows for the windows of a group without any event.
        rows = table["window"].to_numpy().reshape(-1, n_cells)[:, 0] - 1
        arrays = {}
        for column in ("count", "bounded"):
            arrays[column] = np.zeros((n_windows, n_cells), np.int64)
            arrays[column][rows] = table[column].to_numpy().reshape(-1, n_cells)
    _write(path, Counts(arrays["count"], arrays["bounded"], {"rows": result.manifest["rows"]}))


def _write(path: Path, counts: Counts) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = np.array(json.dumps(counts.facts))
    with files.whole(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, facts=facts, count=counts.truth, bounded=counts.bounded)


def write_events(config: RunConfig, path: Path) -> None:
    """Keep the events of a trial on traces in one file: what counts are for the others."""
    blocks = (block for span in config.source.spans() for block in config.source.read(span))
    columns = ("user", "time", "latitude", "longitude")
    calendar = make_plan(config).calendar
    frames = [
        block.frame.select(columns).filter(calendar.index(block.frame["time"].to_numpy()) > 0) for block in blocks
    ]
    with files.whole(path) as temporary:
        pl.concat(frames).write_parquet(temporary)


def read_counts(path: Path) -> Counts | pl.DataFrame:
    """Read the file of `write_counts` or `write_group_counts`; of traces the events."""
    if not zipfile.is_zipfile(path):
        return pl.read_parquet(path)
    with np.load(path, allow_pickle=False) as file:
        return Counts(file["count"], file["bounded"], json.loads(str(file["facts"])))


def release(plan: Plan, counts: Counts) -> Iterator[Batch]:
    """Releases of a whole run, in batches: byte-identical to those of the pipeline on the same input."""
    loop = ReleaseLoop(plan)
    state = loop.start()
    step = max(1, PART_ROWS // plan.n_cells)
    seen = _target_cells(plan)
    for row in range(0, plan.n_windows, step):
        bounded = counts.bounded[row : row + step]
        batch, state = loop.advance(state, row + 1, bounded)
        if plan.targets.n_targets:
            inside = (seen[:, 0] > row) & (seen[:, 0] <= row + step)
            batch = replace(batch, known=PrivateFacts(row + 1, bounded, seen[inside]))
        yield batch
        if batch.stopped:
            return


def _target_cells(plan: Plan) -> NDArray[np.int64]:
    """Cells of the accountants' targets by window; the source is read only if there are targets."""
    if plan.targets.n_targets == 0:
        return no_target_cells()
    pieces: dict[tuple[int, int], list[Contributions]] = {}
    source = plan.config.source
    for block in (block for span in source.spans() for block in source.read(span)):
        for key, piece in contributions_of(block, plan)[1]:
            pieces.setdefault(key, []).append(piece)
    return np.concatenate(
        [no_target_cells(), *(count_group(group, parts, plan)[0].target_cells for (group, _), parts in pieces.items())]
    )


def run_trial(config: RunConfig, counts: Counts, accountants: Collection[str] | None = None) -> TrialRun:
    """Release and account one configuration over counts made before, with all its accountants or with those named.

    Raises `DataError` where a budget stopped the run before its last window: its measures would be those of fewer
    windows.
    """
    plan = make_plan(config)
    batches = list(release(plan, counts))
    if batches[-1].stopped:
        raise DataError(f"the run was stopped: {batches[-1].stopped}")
    accounts: dict[str, list[Any]] = {}
    for accountant, shards in zip(plan.accountants, plan.shards):
        if accountants is not None and ACCOUNTANTS.name_of(type(accountant)) not in accountants:
            continue
        for shard in range(len(shards)):
            loop = AccountLoop(plan, accountant, shard)
            state, rows = loop.start(), accounts.setdefault(loop.name, [])
            for batch in batches:
                made, state = loop.advance(state, batch)
                rows += made
    releases = tuple(release for batch in batches for release in batch.releases)
    if not releases:
        raise DataError("nothing was released")
    values = np.stack([np.asarray(release.values, np.float64) for release in releases])
    active = np.stack(
        [np.ones(plan.n_cells, bool) if release.active is None else release.active for release in releases]
    )
    truth = counts.truth[[release.window - 1 for release in releases]]
    unknown = np.full(plan.n_cells, np.nan)
    deviation = [unknown if release.standard_deviation is None else release.standard_deviation for release in releases]
    return TrialRun(
        plan=plan,
        true_counts=np.where(active, truth, 0.0),
        values=np.where(active, values, 0.0),
        releases=releases,
        accounts=accounts,
        seed=config.seed or 0,
        deviations=np.stack(deviation),
        n_people=counts.facts.get("n_people"),
    )


def run_trace_trial(config: RunConfig, events: pl.DataFrame) -> TraceRun:
    """Release and account the traces of one configuration, as one shard: the releases are those of a run."""
    plan = make_plan(config)
    block = EventBlock(events, len(events), ())
    pieces = [piece for _, piece in points_of(block, plan)[1]]
    if not pieces:
        raise DataError("nothing was released")
    batch = TraceLoop(plan).release(0, gather(pieces, plan))
    names = (type(accountant).__module__.rpartition(".")[2] for accountant in plan.accountants)
    return TraceRun(plan, batch.traces, batch.released, dict(zip(names, batch.accounts)), config.seed or 0)


def trial_record(
    config: RunConfig, counts: Counts | pl.DataFrame, names: tuple[str, ...], game: Game | None = None
) -> dict[str, Any]:
    """Every measure of a trial with its unit, and the provenance of the numbers, for JSON."""
    wanted = [measure(name) for name in names]
    # Accounts cost more than releases; only a function may read some that no measure names.
    read = None if any(one.is_function for one in wanted) else {one.accountant for one in wanted if one.accountant}
    finished = run_trial(config, counts, read) if isinstance(counts, Counts) else run_trace_trial(config, counts)
    if game is not None and isinstance(finished, TrialRun):
        finished = replace(finished, game=game)
    measures = []
    for name, one in zip(names, wanted):
        value = one.compute(finished)
        measures.append({"measure": name, "value": writable(value), "unit": unit_of(one, finished)})
    return {
        "measures": measures,
        "configuration": digest(config).hex(),
        "seed": config.seed,
        "versions": versions(),
    }


def write_group_counts(wanted: Sequence[tuple[RunConfig, Path]], group_size: int) -> None:
    """Count a random group of users for each configuration, with one pass over their source.

    ``wanted`` holds configurations over the same users, each with the file to write. The seed draws the group
    uniformly among all users and decides sampling as in a run. Memory: about 40 bytes for each distinct user, cell
    and window.
    """
    first = make_plan(wanted[0][0])
    if first.on_points:
        raise DataError("group_size: traces are released of everybody; leave it out")
    n_windows = first.n_windows
    memberships = read_memberships(first, n_windows)
    people, number = np.unique(memberships.user, axis=0, return_inverse=True)
    if len(people) < group_size:
        raise DataError(f"group_size: {group_size} people are not to be had; the source shows {len(people)}")
    for config, path in wanted:
        plan = make_plan(config)
        rng = np.random.default_rng(config.seed)
        inside = np.zeros(len(people), bool)
        inside[rng.choice(len(people), group_size, replace=False)] = True
        group = memberships.take(inside[number.ravel()])
        place = (group.window - 1) * plan.n_cells + group.cell
        truth = np.bincount(place, minlength=n_windows * plan.n_cells).reshape(n_windows, plan.n_cells)
        bounded = released_counts(group, 1, n_windows, plan)
        _write(path, Counts(truth, bounded, {"n_people": group_size}))
