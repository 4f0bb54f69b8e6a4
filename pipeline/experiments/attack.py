"""Attacks on a configured release: preparing the run under attack, resuming a game and writing its output files."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.evaluation.attacks.defenses import mechanism_defense
from penstock.evaluation.attacks.game import in_threads
from penstock.evaluation.attacks.membership import SCHEMA, MembershipAttack
from penstock.evaluation.attacks.parameters import (
    MAX_PEOPLE,
    AttackedRun,
    AttackListener,
    Game,
    ReconstructionGame,
    RecoveryGame,
)
from penstock.evaluation.attacks.reconstruction import ReconstructionAttack, Settings, check_likelihood, resolve_game
from penstock.evaluation.attacks.recovery import Recovery, attack_recovery, trajectory_recovery
from penstock.evaluation.attacks.user_space import MOBILITY_GROUPS
from penstock.mechanisms.core.contract import MECHANISMS, Generalization
from penstock.mechanisms.core.geometry import corners_of, offsets_between
from penstock.mechanisms.core.plugin import DataError, ParameterError
from penstock.pipeline import atomic
from penstock.pipeline.config.canonical import content_digest, digest, resolved
from penstock.pipeline.config.plan import Plan, make_plan
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.counting.spec import STREAM
from penstock.pipeline.experiments.pieces import Record, RecordFolder
from penstock.pipeline.output.manifest import software_versions, versions
from penstock.pipeline.output.tables import ACCOUNTS
from penstock.pipeline.spaces.base import Space
from penstock.pipeline.windows.calendar import DAY, wall_time

#: Copies of all released aggregates that one attack holds, 8 bytes a value, and bytes for those attacked at a time.
COPIES, ROOM = 3, 4_000_000_000
#: First part of a day, in which people stay where they are (Xu et al. 2017): until six.
NIGHT = DAY // 4
#: Columns of ``operator/accounts.parquet``, then the target, the trials behind a value, and the game.
RECONSTRUCTION_SCHEMA: dict[str, Any] = {
    **pl.DataFrame(ACCOUNTS.empty_table()).schema,
    **dict.fromkeys(("target", "trials", "stretches"), pl.Int64),
    **dict.fromkeys(("user", "mobility", "game"), pl.String),
}
SILENT = AttackListener()


@dataclass(frozen=True)
class AttackOutcome:
    """The result of an attack on a configured release."""

    folder: Path  # where ``operator/attack.parquet`` and ``operator/attack.json`` are
    results: pl.DataFrame  # one row for each target and kind of aggregates, raw or released
    summary: dict[str, Any]  # figures by mobility group, and the parameters of the game
    n_resumed: int  # targets whose results come from an earlier call
    files: tuple[Path, ...] = ()  # files written


def attack(
    config: RunConfig,
    game: Game | None = None,
    *,
    folder: str | Path | None = None,
    n_jobs: int | None = None,
    minutes: float | None = None,
    listener: AttackListener = SILENT,
) -> AttackOutcome:
    """Attack both the raw aggregates and the releases of the configured mechanism (`MembershipAttack`).

    ``config``: simulation of counts over a finite source. Its seed decides targets, groups and noise. ``folder``: where
    to write; None: ``output.path``. ``n_jobs``: targets attacked at a time, in threads; memory grows with it. None: one
    a processor, as far as 4 GB last. ``minutes``: end after the first target that is done later than this, one of each
    mobility group at least; a further call goes on with those that are left. None: attack all.

    Returns the same whatever `n_jobs`, and whether it was interrupted: attacks on disk from the same game are kept.
    With `minutes` it is about the targets that are done, ``n_left`` are not. Memory as for `People.presence` and
    `MembershipGame`.
    """
    game = game or Game()
    plan = counts_plan(config)
    n_windows = plan.grid.calendar.n_windows or 0
    observation, inference = game.periods(n_windows)
    if game.attack == "lira" or mechanism_defense(plan.chain.mechanism) is not None:  # before anything is read
        game.check_room(n_windows, plan.grid.n_cells)
    run = attacked_run(plan, max(observation[1], inference[1]))
    played = MembershipAttack(run, game)
    targets = played.in_turn
    n_jobs = n_jobs or max(1, min(os.cpu_count() or 1, ROOM // (8 * COPIES * played.n_values)))
    listener.begun(len(targets), len(run.users))
    folder = Path(folder or config.output.path)
    name, kept = game_name(config, asdict(played.game), run), RecordFolder(folder / "operator" / "attack")
    rows, n_resumed = play_all(kept, name, targets, played.play, n_jobs, listener, played.seconds, minutes)
    table = pl.DataFrame([{"game": name} | row for row in rows], SCHEMA).sort("released", "target", maintain_order=True)
    return finish_attack(config, folder, table, played.summary(table), n_resumed, ("attack.json", "attack.parquet"))


def reconstruct(
    config: RunConfig,
    game: ReconstructionGame | None = None,
    *,
    folder: str | Path | None = None,
    n_jobs: int | None = None,
    listener: AttackListener = SILENT,
) -> AttackOutcome:
    """Reconstruct trajectories from the mechanism's releases and bound any attack (`ReconstructionAttack`).

    ``config``: simulation of counts over a finite source, one cell a person and window. Its seed decides targets and
    noise. ``folder``: where to write; None: ``output.path``. ``n_jobs``: targets attacked at a time, in threads; memory
    grows with it. None: one a processor.

    Returns one row for each target and figure, in the columns of ``operator/accounts.parquet``; the same whatever
    `n_jobs`, and whether it was interrupted: targets on disk from the same game are kept. Raises `ParameterError` or
    `UnsupportedEvent` if the attack does not apply to the configured release.
    Memory as for `People.presence` and `decode_trajectories`; O(n_targets n_windows n_releases n_places²) time, and
    that of `success_upper_bound` for each target and schedule, and for each segment unless the prior is stationary.
    """
    game = game or ReconstructionGame()
    plan, settings = prepare_reconstruction(config, game)
    run = attacked_run(plan, settings.n_windows)
    played = ReconstructionAttack(run, game, settings)
    listener.begun(len(played.targets), len(run.users))
    folder = Path(folder or config.output.path)
    learned = content_digest(settings.known.learned) if settings.known.learned else None
    name = game_name(config, [asdict(game), asdict(settings), learned], run)
    kept, n_jobs = RecordFolder(folder / "operator" / "attack"), n_jobs or os.cpu_count() or 1
    rows, n_resumed = play_all(kept, name, played.targets, played.play, n_jobs, listener, played.seconds)
    named = [{"game": name, "stream": STREAM} | row for row in rows]
    table = pl.DataFrame(named, RECONSTRUCTION_SCHEMA).sort("target", maintain_order=True)
    files = ("attack_reconstruction.json", "attack_reconstruction.parquet")
    return finish_attack(config, folder, table, played.summary(table), n_resumed, files)


def prepare_reconstruction(config: RunConfig, game: ReconstructionGame) -> tuple[Plan, Settings]:
    """Check that the attack applies and resolve its parameters before reading any data."""
    plan = counts_plan(config)
    if not config.source.has_people:
        expected = "one that tells people apart: here every trip is a new person, without a trajectory to retrace"
        raise ParameterError("source", type(config.source).__name__.lower(), expected)
    if plan.bounds.max_cells != 1:
        reason = "with several cells of a window there is no single trajectory to retrace"
        expected = f"1 for a reconstruction attack: {reason}"
        raise ParameterError("bounding.max_cells", config.bounding.max_cells, expected)
    check_likelihood(plan.chain, plan.config.mechanism)
    if plan.grid.calendar.n_windows is None:
        raise DataError("an endless stream cannot be attacked as a whole; give the source an end (until)")
    return plan, resolve_game(game, config.accountants, plan.grid.calendar.n_windows, plan.grid.n_cells)


def recovery(
    config: RunConfig,
    game: RecoveryGame | None = None,
    *,
    folder: str | Path | None = None,
    listener: AttackListener = SILENT,
) -> AttackOutcome:
    """Recover trajectories from both raw and released counts (`attack_recovery`).

    `game`: parameters; None: the defaults. `folder`: where to write ``operator/attack_recovery.json``; None:
    ``output.path``.
    """
    game = game or RecoveryGame()
    check_recoverable(config)
    plan = counts_plan(config)
    n_windows = min(game.windows or 168, plan.grid.n_windows)
    positions, known = knowledge(plan, range(1, n_windows + 1))
    summary = attack_recovery(attacked_run(plan, n_windows), game, positions, known, listener)
    if positions_of(plan.space) is None:
        summary["found"] = [row | {"distance": None} for row in summary["found"]]
    table, folder = pl.DataFrame(summary["found"]), Path(folder or config.output.path)
    return finish_attack(config, folder, table, summary, 0, ("attack_recovery.json",))


def recovered(plan: Plan, released: NDArray[np.float64], windows: Sequence[int], *, n: int = MAX_PEOPLE) -> Recovery:
    """Recover the trajectories of everyone (at most ``n`` people) from the releases for some of a run's windows.

    `released` (n_windows, n_cells): what it released.
    """
    check_recoverable(plan.config)
    presence = plan.people.presence(plan.grid.n_windows).raw
    if len(presence) > n:
        expected = f"at most {n:,} people, to recover trajectories: fewer windows, or a smaller source"
        raise ParameterError("source", f"{len(presence):,} people", expected)
    positions, known = knowledge(plan, windows)
    seen = presence[:, np.asarray(windows) - 1]
    return trajectory_recovery(seen, released, positions, **known, seed=plan.config.seed or 0)


def check_recoverable(config: RunConfig) -> None:
    """Reject a run in which people have no trajectories across cells and windows."""
    if not config.source.has_people:
        expected = "one that tells people apart, to recover trajectories: here every trip is a new person"
        raise ParameterError("source", type(config.source).__name__.lower(), expected)
    coarse = [step for step in config.mechanism if isinstance(step, Generalization)]
    if coarse:
        expected = "without coarse cells and windows, to recover trajectories"
        raise ParameterError("mechanism", MECHANISMS.name_of(type(coarse[0])), expected)


def knowledge(plan: Plan, windows: Sequence[int]) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Return the positions of the cells, and a dictionary with the night windows and the number of windows per day.

    Night is from midnight to six by the local time of a window's start; of windows of a day or longer all are. Where
    windows divide a day, days of that many windows are counted from the first one.
    """
    calendar = plan.grid.calendar
    starts = [wall_time(calendar.time_zone, calendar.start(index)) for index in windows]
    night = (np.array(starts) % DAY < NIGHT) | (calendar.step >= DAY)
    divides = DAY % calendar.step == 0 and calendar.step < DAY
    positions = positions_of(plan.space)
    known = {"night": night, "day": calendar.per_day if divides else None}
    return np.eye(plan.grid.n_cells) if positions is None else positions, known


def positions_of(space: Space) -> NDArray[np.float64] | None:
    """Return each cell's centre in metres east and north, shape (n_cells, 2), or None if cells have no coordinates."""
    corners = [corners_of(cell) for cell in space.geometry()]
    if not all(map(len, corners)):
        return None
    middles = np.array([(points.min(axis=0) + points.max(axis=0)) / 2 for points in corners])[:, ::-1]
    return offsets_between(middles.mean(axis=0), middles)


def attacked_run(plan: Plan, n_windows: int) -> AttackedRun:
    """Read the people in a run's first windows and return the run in the form that games attack."""
    presence = plan.people.presence(n_windows)
    return AttackedRun(
        users=presence.users,
        raw=presence.raw,
        released=presence.released,
        mechanism=plan.chain.mechanism,
        chain=plan.chain,
        steps=plan.config.mechanism,
        facts=plan.facts(),
        windows=plan.grid.windows,
        noise=plan.keys.noise(),
        seed=plan.config.seed or 0,
    )


def play_all(
    kept: RecordFolder,
    game: str,
    targets: Sequence[int],
    play: Callable[[int], list[Record]],
    n_jobs: int,
    listener: AttackListener,
    seconds: Callable[[], float],
    minutes: float | None = None,
) -> tuple[list[Record], int]:
    """Return the rows for all of a game's targets in order, and the number of targets attacked by earlier calls.

    ``seconds`` says how long one target takes, before the first that is left. ``minutes``: as for `attack`.
    """
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    records = {one: record["rows"] for one in targets if (record := kept.read([game, one])) is not None}
    n_resumed = len(records)
    waiting = [target for target in targets if target not in records]
    if waiting:
        one = seconds()
        every, fewest = (one * math.ceil(n / n_jobs) for n in (len(waiting), len(MOBILITY_GROUPS)))
        listener.foreseen(every if minutes is None else min(every, max(60 * minutes, fewest)))
    listener.made(n_resumed, len(targets))
    for target, rows in in_threads(lambda target: (target, play(target)), waiting, n_jobs):
        kept.write([game, target], {"rows": rows})
        records[target] = rows
        listener.made(len(records), len(targets))
        if time.monotonic() > end and len(records) >= len(MOBILITY_GROUPS):
            break
    return [row for target in targets for row in records.get(target, ())], n_resumed


def finish_attack(
    config: RunConfig, folder: Path, table: pl.DataFrame, record: Record, n_resumed: int, names: tuple[str, ...]
) -> AttackOutcome:
    """Write a game's summary, including mechanism and versions, to the first file and its table to the other files."""
    summary = record | {"mechanism": resolved(config)["mechanism"], "versions": versions()}
    files = tuple(folder / "operator" / name for name in names)
    for path in files[1:]:
        with atomic.replacing(path) as temporary:
            table.write_parquet(temporary)
    atomic.write_json(files[0], summary)
    return AttackOutcome(folder, table, summary, n_resumed, files)


def game_name(config: RunConfig, played: Any, run: AttackedRun) -> str:
    """Return a digest of everything that affects an attack's results, including the users' movements and the code.

    ``played`` holds the parameters of the game as plain values.
    """
    digested = hashlib.sha256(digest(config))
    plugins = [content_digest(folder) for folder in config.plugins]
    digested.update(json.dumps([config.seed, played, software_versions(), plugins], sort_keys=True).encode())
    for binary in (run.raw, run.released):
        digested.update(str(binary.shape).encode())
        for person in binary:
            digested.update(np.packbits(person).tobytes())
    return digested.hexdigest()[:32]


def counts_plan(config: RunConfig) -> Plan:
    """Return a plan without accountants because some of them would read the source to learn a prior."""
    if config.windows.per_event or any(step.guarantee.on_points for step in config.mechanism):
        raise ParameterError("mechanism", "a release of traces", "one of counts: the game is about aggregates")
    return make_plan(replace(config, accountants=()))
