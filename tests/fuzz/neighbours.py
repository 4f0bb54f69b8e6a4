"""Neighbouring inputs through the whole pipeline: what one person can move is at most what is charged for it.

Noise hides what a mechanism received, so counts are read where it received them: in a simulation from
``operator/truth.parquet`` (``bounded``), in a deployment from releases of ``raw``. What else lies in ``public/`` is
compared as it is.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl

from penstock.mechanisms.core.plugin import BudgetExceeded, ConfigError, DataError
from penstock.pipeline import STOPPED
from penstock.pipeline.config.plan import Plan, ledger_path, make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.output import checkpoint
from penstock.pipeline.output.files import has_truth
from penstock.pipeline.releasing.ledger import Ledger
from penstock.pipeline.run import run
from tests.fuzz.worlds import KINDS, START, Change, Rows, World, change, one_in_every_cell, smaller

#: Neighbours of each world.
N_CHANGES = 3
#: Neighbours that were compared, by kind of world, what was changed, and mechanism.
COMPARED: Counter[str] = Counter()
#: A sum of floating-point charges may miss its exact value by this share.
ROUNDING = 1e-9
#: Digests and heads of chains in the manifest, which look random whatever the data.
_DIGEST = re.compile(r'"[0-9a-f]{16,}"')
#: Mechanisms whose decisions, hence charges and actions, follow their noise.
ADAPTIVE = {"landmark_adaptive", "w_event_bd", "w_event_ba", "fast", "rescue_dp"}


class NeighbourError(AssertionError):
    """One person moved more than what was charged."""


@dataclass
class Seen:
    """Observed outcome of one run: true counts and everything in ``public/``."""

    counts: np.ndarray[Any, Any]
    public: dict[str, Any]
    plan: Plan | None = None
    releases: pl.DataFrame = field(default_factory=pl.DataFrame)
    manifest: dict[str, Any] = field(default_factory=dict)
    ledger: list[dict[str, Any]] = field(default_factory=list)

    @property
    def promises(self) -> bool:
        """Return whether the run's lateness leaves its guarantee intact."""
        return not str(self.manifest.get("lateness", "")).startswith("shared")


def neighbours(random_: random.Random, folder: Path) -> None:
    """A random world with some neighbours, or several runs of one: a fuzz target."""
    if (text := TRIES[random_.choice(list(TRIES))](random_, folder)) is not None:
        raise NeighbourError(text)


def tried(world: World, random_: random.Random, folder: Path) -> tuple[Change, list[str]] | None:
    """The first of some neighbours that moves too much, and what does; None if none was found.

    A simulation refuses an input without any usable row as a whole; it is no neighbour here. A deployment may not.
    """
    refusals = () if world.sections["mode"] == "deployment" else (DataError,)
    with suppress(*refusals):
        base = observed(world, world.rows, folder)
        for _ in range(N_CHANGES):
            one = change(random_, world)
            with suppress(*refusals):
                actual = violations(world, one, folder, base)
                COMPARED.update([world.kind, one.unit, *{step["type"] for step in world.mechanism}])
                if actual:
                    return one, actual
    return None


def _try_neighbours(kind: str, random_: random.Random, folder: Path) -> str | None:
    world = KINDS[kind](random_)
    convicted = tried(world, random_, folder)
    return None if convicted is None else described(world, *shrunk(world, *convicted, folder))


def samples(random_: random.Random, folder: Path) -> str | None:
    """Every window of every run draws a sample of its own."""
    steps = [{"type": "sampling", "rate": 0.5}, {"type": "raw"}]
    days = [one_in_every_cell(random_, steps, first) for first in (0, 24)]
    drawn = [row.tobytes() for day in days for row in observed(day, day.rows, folder)[0].counts]
    text = f"{len(drawn)} windows of two runs drew {len(set(drawn))} samples of 36 people"
    return text if len(set(drawn)) < len(drawn) else None


def nonces(random_: random.Random, folder: Path) -> str | None:
    """A second run over the same input releases it with other noise."""
    world = one_in_every_cell(random_, [{"type": "discrete_laplace", "epsilon": 1.0}])
    first, second = (observed(world, world.rows, folder, False)[0].counts for _ in range(2))
    same = int((first == second).all(axis=1).sum())
    return f"{same} of {len(first)} windows are the same when the input is released again" if same else None


#: What is wrong with a random world, by kind; None: nothing.
TRIES: dict[str, Callable[[random.Random, Path], str | None]] = {
    **{kind: partial(_try_neighbours, kind) for kind in KINDS},
    "samples": samples,
    "nonces": nonces,
}


def shrunk(world: World, one: Change, actual: list[str], folder: Path) -> tuple[Change, list[str]]:
    """Reduce a violation to few rows by leaving out one after the other."""
    going = True
    while going:
        going = False
        for candidate in smaller(one):
            try:
                left = violations(world, candidate, folder)
            except DataError:  # without a usable row there is no run
                continue
            if left:
                one, actual, going = candidate, left, True
                break
    return one, actual


def described(world: World, one: Change, actual: list[str]) -> str:
    """A violation in words: what moved, the configuration, and the rows of both inputs."""
    lines = [*actual, f"{world.kind}: {one.unit} of user {one.user}", json.dumps(world.sections)]
    lines.append(f"windows: {world.n_windows} of {world.step} s, runs until {world.ends or (world.n_windows,)}")
    for row in sorted({*one.before, *one.after}, key=lambda row: (row.user, row.time)):
        where = "both" if row in one.before and row in one.after else "before" if row in one.before else "after"
        lines.append(f"  {where}: {row}")
    return "\n".join(lines)


def violations(world: World, one: Change, folder: Path, base: list[Seen] | None = None) -> list[str]:
    """What moved by more than is charged, or at all where nothing may; ``base``: what the world's own rows show."""
    known = {world.rows: base} if base else {}
    before, after = (known.get(rows) or observed(world, rows, folder) for rows in (one.before, one.after))
    if len(before) != len(after):
        return [f"{len(before)} runs were accepted, and {len(after)} of the neighbour"]
    if "traces.parquet" in before[0].public:
        return list(_moved_traces(one, before[0], after[0]))
    actual = [text for first, second in zip(before, after) for text in _public(world, first, second)]
    if all(seen.promises for seen in before) and not actual:
        actual += list(_counts(world, one, before, after))
    return actual


# Runs.


def observed(world: World, rows: Rows, folder: Path, coupled: bool = True) -> list[Seen]:
    """Every run of a world over some rows; the ones after the first may be refused by the ledger.

    ``coupled`` runs have the nonces of the same runs over other rows, so that all that differs is what rows decide.
    """
    for name in ("out", "state"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "noise.key.ledgers").unlink(missing_ok=True)  # no run of other rows is known
    seen: list[Seen] = []
    for number in range(len(world.runs)):
        config = loads(world.written(folder, rows, number), "world.yaml", folder)
        try:
            drawn = patch.object(checkpoint, "nonce_of_run", return_value=bytes([number] * 32))
            with patch.dict(os.environ, XDG_STATE_HOME=str(folder / "state")), drawn if coupled else nullcontext():
                result = run(config, folder / "out" / str(number), runner="local")
        except (ConfigError, BudgetExceeded):
            if number == 0:
                raise
            continue
        if number == 0 or result.exit_code != STOPPED:
            with patch.dict(os.environ, XDG_STATE_HOME=str(folder / "state")):
                seen.append(_seen(result.folder, make_plan(config, result.folder), folder))
    return seen


def _seen(out: Path, plan: Plan, folder: Path) -> Seen:
    manifest = json.loads((out / "public" / "manifest.json").read_text())
    public: dict[str, Any] = {"manifest.json": _DIGEST.sub('""', json.dumps(manifest, sort_keys=True))}
    for path in sorted((out / "public").iterdir()):
        public.setdefault(path.name, pl.read_parquet(path) if path.suffix == ".parquet" else None)
    if plan.on_points:
        return Seen(np.zeros((0, 0)), public, plan, manifest=manifest)
    releases = public["releases.parquet"]
    table = pl.read_parquet(out / "operator" / "truth.parquet") if has_truth(plan) else releases
    column = table["bounded" if has_truth(plan) else "value"]
    whole = plan.grid.n_windows * plan.grid.n_cells
    counts = column.to_numpy().astype(float) if len(column) == whole else np.zeros(0)
    counts = counts.reshape(-1, plan.grid.n_cells)
    entries = Ledger(ledger_path(plan)).entries()
    charges = [entry.values for entry in entries if entry.kind == "charge"]
    return Seen(counts, public, plan, releases, manifest, charges)


# What must not move, and what may move by so much.


def _public(world: World, before: Seen, after: Seen) -> Iterator[str]:
    """Files, rows, their order and public columns: the same, whatever the data."""
    adaptive = bool(ADAPTIVE & {step["type"] for step in world.mechanism})
    if sorted(before.public) != sorted(after.public):
        yield f"files: {sorted(before.public)} and {sorted(after.public)}"
        return
    loose = {"value", *(("epsilon", "rho", "noise", "scale", "action", "repeats") if adaptive else ())}
    if {"filter", "kalman"} & {step["type"] for step in world.mechanism}:
        loose |= {"standard_deviation", "alarm"}  # learned from releases
    first, second = before.releases, after.releases
    if not first.height == second.height == before.counts.size:
        yield f"rows of releases.parquet: {first.height} and {second.height}"
        return
    for name in first.columns:
        if name not in loose and not first[name].equals(second[name]):
            yield f"column {name} of releases.parquet differs"
    if adaptive:
        return
    if not before.public["accounts.parquet"].equals(after.public["accounts.parquet"]):
        yield "accounts.parquet differs"
    if before.public["manifest.json"] != after.public["manifest.json"]:
        yield f"manifest.json: {before.public['manifest.json']} and {after.public['manifest.json']}"


def _counts(world: World, one: Change, before: list[Seen], after: list[Seen]) -> Iterator[str]:
    """Bounded counts: what each window moves, which windows do, and what the moves of all of them cost."""
    costs = np.zeros(2)
    published: set[bytes] = set()
    for first, second in zip(before, after):
        moved = _moves(first, second)
        yield from _sensitivity(world, one, first, moved)
        values = first.releases["value"].to_numpy().tobytes()
        if values not in published:  # the same noise again is no second release
            costs += _losses(world, first, moved)
        published.add(values)
    kinds = {step["type"] for step in world.mechanism}
    if kinds & ({"sampling", "fpa", "hierarchy", "pegasus", "correlated", "raw"} | ADAPTIVE):
        return  # what a sample, a block, a tree, a group, a sum or a decision costs is for the distinguishing audit
    epsilon, rho = _claims(world, one, before)
    if costs[0] > epsilon * (1 + ROUNDING):
        yield f"loss {costs[0]:.6g}, charged {epsilon:.6g} for one {one.unit}"
    if costs[1] > rho * (1 + ROUNDING):
        yield f"rho {costs[1]:.6g}, charged {rho:.6g} for one {one.unit}"


def _moves(before: Seen, after: Seen) -> np.ndarray[Any, Any]:
    """Differences as the noise meets them: one row for each longer window, one column for each group of cells."""
    assert before.plan is not None
    chain, difference = before.plan.chain, after.counts - before.counts
    if chain.groups is not None:
        difference = difference[:, np.unique(chain.groups, return_index=True)[1]]
    return difference[:: chain.n_merged]


def _sensitivity(world: World, one: Change, seen: Seen, moved: np.ndarray[Any, Any]) -> Iterator[str]:
    """Windows of the changed rows move by C or, where others take their place, 2·C; all others not at all.

    But for those that come later in a bounded budget period.
    """
    assert seen.plan is not None
    limits, sensitivity = seen.plan.config.bounding, seen.manifest["sensitivity"]
    part = one.unit == "event" or (one.unit in ("step", "stretch") and world.kind != "files")
    most, square = (2 if part else 1) * sensitivity["l1"], (2 if part else 1) * sensitivity["l2"] ** 2
    for index, row in enumerate(moved):
        if np.abs(row).sum() > most or (row**2).sum() > square * (1 + ROUNDING):
            yield f"window {index + 1} moves by {row.tolist()}, more than {most:g}"
    calendar, unit = seen.plan.grid.calendar, seen.plan.chain.bounding_windows
    times = np.array([row.time + START for row in one.touched], np.int64) * 1000
    latest = calendar.index(times)
    hit = {window for window in latest.tolist() if window}
    blocks = {(window - 1) // unit for window in hit}
    if seen.plan.bounds.over_periods:
        facts = seen.plan.grid.windows(1, seen.plan.grid.n_windows)
        since = {facts[window - 1].period: window for window in sorted(hit, reverse=True)}
        blocks |= {one.index - 1 for one in facts if one.index >= since.get(one.period, np.inf)}
    together = seen.plan.chain.n_merged
    for index in np.flatnonzero(np.abs(moved).sum(axis=1)).tolist():
        if index * together // unit not in blocks:
            yield f"window {index * together + 1} moves by {moved[index].tolist()}, though the rows are elsewhere"
    if seen.plan.bounds.over_blocks and one.unit == "person":
        for begin in range(0, len(moved), unit):
            block = np.abs(moved[begin : begin + unit])
            if (block.sum(axis=1) > 0).sum() > (limits.max_windows or unit):
                yield f"{(block.sum(axis=1) > 0).sum()} windows of a block move"
            if limits.max_block_cells and (block.sum(axis=0) > 0).sum() > limits.max_block_cells:
                yield f"{(block.sum(axis=0) > 0).sum()} cells of a block move"


def _losses(world: World, seen: Seen, moved: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Exact worst loss, pure and in ρ, of telling the two counts apart by the noise that the releases declare."""
    assert seen.plan is not None
    n_cells, together = seen.plan.grid.n_cells, seen.plan.chain.n_merged
    first = seen.releases.filter((pl.col("action") == "published") & ((pl.col("window") - 1) % together == 0))
    windows = (first["window"].to_numpy()[::n_cells] - 1) // together
    scale = first["scale"].to_numpy().reshape(-1, n_cells)[:, : moved.shape[1]]
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.nan_to_num(np.abs(moved[windows]) / scale, posinf=np.inf)
    gaussian = any("gaussian" in name for name in seen.releases["noise"].unique().to_list())
    return np.array([0.0, (steps**2).sum() / 2]) if gaussian else np.array([steps.sum(), 0.0])


def _claims(world: World, one: Change, seen: list[Seen]) -> tuple[float, float]:
    """ε and ρ that are announced for a unit: over several runs, by their ledgers."""
    if len(world.ends) > 1:
        return sum(line["epsilon"] for run in seen for line in run.ledger), np.inf
    books = next(account for account in seen[0].manifest["accounts"] if account["accountant"] == "composition")
    names = {"person": "user", "stretch": "w_event", "step": "event", "event": "event"}
    if one.unit == "landmarks":
        reader = next(step for step in world.mechanism if step["type"].startswith("landmark"))
        return float(reader["epsilon"]), np.inf
    pure = books[f"{names[one.unit]}_epsilon"]
    return np.inf if pure is None else float(pure), float(books["user_rho"]) if one.unit == "person" else np.inf


def _moved_traces(one: Change, before: Seen, after: Seen) -> Iterator[str]:
    """Others' traces stay to the last bit; where a point moves, all that says which points there are stays."""
    first, second = (seen.public["traces.parquet"] for seen in (before, after))
    gone = {name for frame in (first, second) for name in frame["pseudonym"].cast(pl.String).unique()}
    changed = {
        name
        for name in gone
        if not first.filter(pl.col("pseudonym").cast(pl.String) == name).equals(
            second.filter(pl.col("pseudonym").cast(pl.String) == name)
        )
    }
    if len(changed) > 1:
        yield f"{len(changed)} traces differ"
    for frame in (first, second):
        names, times = frame["pseudonym"].cast(pl.String).to_list(), frame["time"].to_list()
        if list(zip(names, times)) != sorted(zip(names, times)):
            yield "points are not in the order of pseudonym and time"
    if one.unit in ("moved", "left", "tied"):
        shape = ("pseudonym", "time", "epsilon", "landmark", "action")
        if not first.select(shape).equals(second.select(shape)):
            yield f"{first.height} and {second.height} points, or others, after one moved"
        elif not before.public["accounts.parquet"].equals(after.public["accounts.parquet"]):
            yield "accounts.parquet differs"
