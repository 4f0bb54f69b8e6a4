"""Membership inference against a configured release: the game, the attack and the attack's summary."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from penstock.evaluation.attacks.defenses import Defense, mechanism_defense
from penstock.evaluation.attacks.game import MembershipGame, in_threads
from penstock.evaluation.attacks.parameters import Game
from penstock.evaluation.attacks.summaries import summarize
from penstock.evaluation.attacks.targets import MOBILITY_GROUPS, draw_targets, mobility_groups, most_exposed
from penstock.mechanisms.core.plugin import DataError, ParameterError
from penstock.pipeline import atomic
from penstock.pipeline.config.canonical import content_digest, digest, resolved
from penstock.pipeline.config.plan import Plan, make_plan
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.counting.presence import Presence, read_presence
from penstock.pipeline.experiments.pieces import Record, RecordFolder
from penstock.pipeline.output.manifest import made_by, versions

TABLE, SUMMARY = "attack.parquet", "attack.json"
#: Copies of all released aggregates that one attack holds, 8 bytes a value, and bytes for those attacked at a time.
COPIES, ROOM = 3, 4_000_000_000
#: Seconds of an attack that are told before the first target is done.
WORTH_TELLING = 60.0

#: Columns of the table of attacks.
SCHEMA: dict[str, Any] = {
    **{"game": pl.String, "target": pl.Int64, "user": pl.String, "mobility": pl.String, "released": pl.Boolean},
    **dict.fromkeys(("auc", "low", "high"), pl.Float64),
    **dict.fromkeys(("n_train", "n_challenges", "n_features", "found"), pl.Int64),
}


@dataclass(frozen=True)
class AttackListener:
    """A set of callbacks for the progress of an attack."""

    #: Told before the first attack: people attacked, and people seen.
    begun: Callable[[int, int], None] = lambda n_targets, n_people: None
    #: Told before the first target of an attack on membership if its release takes long, and after the first target of
    #: an attack or days of a recovery: seconds that the whole takes at that pace.
    foreseen: Callable[[float], None] = lambda seconds: None
    #: Told after every target, and before the first: targets attacked, and all.
    made: Callable[[int, int], None] = lambda n_made, n_targets: None


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
    """Attack both the raw aggregates and those released by the configured mechanism.

    ``config``: simulation of counts over a finite source. Its seed decides targets, groups and noise. ``folder``: where
    to write; None: ``output.path``. ``n_jobs``: targets attacked at a time, in threads; memory grows with it. None: one
    a processor, as far as 4 GB last. ``minutes``: end after the first target that is done later than this, one of each
    mobility group at least; a further call goes on with those that are left. None: attack all.

    Returns the same whatever `n_jobs`, and whether it was interrupted: attacks on disk from the same game are kept.
    With `minutes` it is about the targets that are done, ``n_left`` are not.

    The adversary is strategic: she trains on released aggregates. Every aggregate is a run of its own over the first
    windows, with noise of its own. Bounding, coarse people and sampling are those of the run, hence the same for all
    aggregates. Memory as for `read_presence` and `MembershipGame`.
    """
    game = game or Game()
    plan = counts_plan(config)
    n_windows = plan.grid.calendar.n_windows or 0
    observation, inference = game.periods(n_windows)
    if game.attack == "lira" or mechanism_defense(plan.mechanism) is not None:  # before anything is read
        game.check_room(n_windows, plan.grid.n_cells)
    presence = read_presence(plan, max(observation[1], inference[1]))
    game = game.settled(*presence.raw.shape)
    folder = Path(folder or config.output.path)
    name, kept = game_name(config, asdict(game), presence), RecordFolder(folder / "operator" / "attack")
    mobility = mobility_groups(presence.raw)
    # One of each mobility group in turn, so that those that are done first are a sample too.
    targets = targets_of(presence, game, config.seed or 0)
    nth = {group: count() for group in range(len(MOBILITY_GROUPS))}
    turn = {target: next(nth[mobility[target]]) for target in targets}
    targets.sort(key=lambda target: (turn[target], mobility[target]))
    games = {released: membership_game(plan, presence, game, released) for released in (False, True)}
    n_values = game.samples * math.prod(games[True][0].space.shape)
    n_jobs = n_jobs or max(1, min(os.cpu_count() or 1, ROOM // (8 * COPIES * n_values)))
    listener.begun(len(targets), len(presence.users))

    def foreseen(seconds: float) -> None:
        """Report the estimated time for all targets, or only for those that can be attacked within the time limit."""
        fewest = seconds * len(MOBILITY_GROUPS) / len(targets)
        listener.foreseen(seconds if minutes is None else min(seconds, max(60 * minutes, fewest)))

    def play(target: int) -> list[Record]:
        """Attack one target, using both the raw counts and the release."""
        user = " ".join(map(str, presence.users[target]))
        identity = {"user": user, "mobility": MOBILITY_GROUPS[mobility[target]]}
        return [
            identity | {"released": released} | asdict(one.attack(target, defense=defense, attack=game.attack))
            for released, (one, defense) in games.items()
        ]

    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    if any(kept.read([name, target]) is None for target in targets):
        seconds = seconds_a_target(*games[True], game.samples) * len(targets) / n_jobs
        if seconds > WORTH_TELLING:
            foreseen(seconds)
    told = replace(listener, foreseen=foreseen)
    rows, n_resumed = play_all(
        kept, name, targets, play, n_jobs, told, lambda n: time.monotonic() > end and n >= len(MOBILITY_GROUPS)
    )
    table = pl.DataFrame([{"game": name} | row for row in rows], SCHEMA).sort("released", "target", maintain_order=True)
    n_attacked = table["target"].n_unique()
    n_people = len(presence.users)
    played = {**asdict(game), "observation": observation, "inference": inference, "n_people": n_people}
    played |= {"n_windows": n_windows, "group_size": game.people_in_a_group(n_people)}
    played |= {"n_attacked": n_attacked, "n_left": len(targets) - n_attacked}
    return finish_attack(config, folder, table, {"game": played} | summarize(table), n_resumed, (SUMMARY, TABLE))


def seconds_a_target(game: MembershipGame, defense: Defense | None, n_aggregates: int, n_tried: int = 8) -> float:
    """Estimate the time to make the releases that an attack on one target trains on, by timing releases of zeros."""
    if defense is None:
        return 0.0
    taken = []
    for n_released in (1, 1 + n_tried):
        begin = time.monotonic()
        defense(np.zeros((n_released, *game.space.shape), np.int64), 0)
        taken.append(time.monotonic() - begin)
    return max(taken[1] - taken[0], 0.0) / n_tried * n_aggregates


def play_all(
    kept: RecordFolder,
    game: str,
    targets: Sequence[int],
    play: Callable[[int], list[Record]],
    n_jobs: int,
    listener: AttackListener,
    is_over: Callable[[int], bool] = lambda n_made: False,
) -> tuple[list[Record], int]:
    """Return the rows of all targets of a game in order, and the number of targets attacked by earlier calls."""
    records = {one: record["rows"] for one in targets if (record := kept.read([game, one])) is not None}
    n_resumed = len(records)
    listener.made(n_resumed, len(targets))
    waiting = [target for target in targets if target not in records]

    def timed(target: int) -> tuple[int, list[Record], float]:
        """Attack a target, and return its rows with the elapsed seconds."""
        begin = time.monotonic()
        return target, play(target), time.monotonic() - begin

    for number, (target, rows, seconds) in enumerate(in_threads(timed, waiting, n_jobs)):
        if number == 0:
            listener.foreseen(seconds * math.ceil(len(waiting) / n_jobs))
        kept.write([game, target], {"rows": rows})
        records[target] = rows
        listener.made(len(records), len(targets))
        if is_over(len(records)):
            break
    return [row for target in targets for row in records.get(target, ())], n_resumed


def finish_attack(
    config: RunConfig, folder: Path, table: pl.DataFrame, record: Record, n_resumed: int, names: tuple[str, ...]
) -> AttackOutcome:
    """Write the summary of a game, with mechanism and versions, to the first named file, and its table to others."""
    summary = record | {"mechanism": resolved(config)["mechanism"], "versions": versions()}
    files = tuple(folder / "operator" / name for name in names)
    for path in files[1:]:
        with atomic.replacing(path) as temporary:
            table.write_parquet(temporary)
    atomic.write_json(files[0], summary)
    return AttackOutcome(folder, table, summary, n_resumed, files)


def game_name(config: RunConfig, played: Any, presence: Presence) -> str:
    """Return a digest of all inputs of an attack, including users' movements and the code.

    ``played`` holds the parameters of the game as plain values.
    """
    digested = hashlib.sha256(digest(config))
    plugins = [content_digest(folder) for folder in config.plugins]
    digested.update(json.dumps([config.seed, played, made_by(), plugins], sort_keys=True).encode())
    for binary in (presence.raw, presence.released):
        digested.update(str(binary.shape).encode())
        for person in binary:
            digested.update(np.packbits(person).tobytes())
    return digested.hexdigest()[:32]


def counts_plan(config: RunConfig) -> Plan:
    """Return a plan without accountants, since some of them read the source to learn a prior."""
    if config.windows.per_event or any(step.guarantee.on_points for step in config.mechanism):
        raise ParameterError("mechanism", "a release of traces", "one of counts: the game is about aggregates")
    return make_plan(replace(config, accountants=()))


def targets_of(presence: Presence, game: Game, seed: int) -> list[int]:
    """Choose the people to attack."""
    n_people = len(presence.users)
    if n_people < len(MOBILITY_GROUPS):
        raise DataError(f"{n_people} seen in these windows; an attack needs at least {len(MOBILITY_GROUPS)} people")
    n_targets = min(game.settled(*presence.raw.shape).targets or 0, n_people)
    exposed = game.whom == "exposed"
    chosen = most_exposed(presence.released, n_targets) if exposed else draw_targets(presence.raw, n_targets, seed)
    return [int(target) for target in chosen]


def membership_game(
    plan: Plan, presence: Presence, game: Game, released: bool
) -> tuple[MembershipGame, Defense | None]:
    """Return the membership game on raw or released presence, with the run's mechanism as the defence."""
    observation, inference = game.periods(plan.grid.n_windows)
    membership = MembershipGame(
        presence.released if released else presence.raw,
        prior=game.prior,
        group_size=game.people_in_a_group(len(presence.users)),
        known=game.known,
        challenges=game.challenges,
        observation=observation,
        inference=inference,
        n_samples=game.samples,
        n_components=game.components,
        seed=plan.config.seed or 0,
    )
    if not released:
        return membership, None
    together, begins = plan.chain.together, membership.space.blocks[:, 0]
    if (begins % together).any():
        raise ParameterError("observation", int(begins[-1]), f"cut at multiples of {together}, the longer windows")
    windows = plan.grid.windows(1, membership.space.shape[0])
    return membership, mechanism_defense(plan.mechanism, facts=plan.facts(), windows=windows)
