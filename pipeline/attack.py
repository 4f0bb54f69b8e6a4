"""``penstock attack``: play the membership game against a configured release, before anybody else does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from evaluation.attacks.challenge import AttackResult
from evaluation.attacks.game import MembershipGame
from evaluation.attacks.released import Defense
from evaluation.attacks.targets import MOBILITY_GROUPS, draw_targets, mobility_groups
from evaluation.defenses import mechanism_defense
from mechanisms.core.errors import DataError, ParameterError
from pipeline import parts
from pipeline.attack_game import Game
from pipeline.attack_store import Store, game_name
from pipeline.attack_summary import SCHEMA, summarize
from pipeline.configuration.run import RunConfig, resolved
from pipeline.manifest import versions
from pipeline.plan import Plan, make_plan
from pipeline.presence import Presence, read_presence

__all__ = ["Game", "Listener", "Outcome", "attack", "counts_plan"]

Listener = Callable[[int, int], None]

TABLE, SUMMARY = "attack.parquet", "attack.json"


@dataclass(frozen=True)
class Outcome:
    """What an attack found.

    Attributes
    ----------
    folder
        Where ``operator/attack.parquet`` and ``operator/attack.json`` are.
    results
        One row for each target and kind of aggregates, raw or released.
    summary
        Figures by mobility group, and how the game was played.
    n_resumed
        Attacks that an earlier call had already made.
    files
        What was written.
    """

    folder: Path
    results: pl.DataFrame
    summary: dict[str, Any]
    n_resumed: int
    files: tuple[Path, ...] = ()


def attack(
    config: RunConfig,
    game: Game | None = None,
    *,
    folder: str | Path | None = None,
    n_jobs: int = 1,
    listener: Listener = lambda done, total: None,
) -> Outcome:
    """Attack raw aggregates and those that the configured mechanism releases.

    Parameters
    ----------
    config
        Of a simulation of counts over a finite source. Its seed decides targets, groups and noise.
    game
        How the game is played; None: as it is by default.
    folder
        Where to write; None: ``output.path``.
    n_jobs
        Targets attacked at a time, in threads; memory grows with it.
    listener
        Called with the number of attacks made and of all.

    Returns
    -------
    outcome
        The same whatever `n_jobs`, and whether it was interrupted: attacks on disk from the same game are kept.

    Notes
    -----
    The adversary is strategic: she trains on released aggregates. Every aggregate is a run of its own over the first
    windows, with noise of its own. Bounding, coarse people and sampling are those of the run, hence the same for all
    aggregates. Memory as for `read_presence` and `MembershipGame`.
    """
    game = game or Game()
    plan = counts_plan(config)
    n_windows = plan.calendar.n_windows or 0
    observation, inference = game.periods(n_windows)
    if mechanism_defense(plan.mechanism) is not None:  # before anything is read
        game.check_room(n_windows, plan.n_cells)
    presence = read_presence(plan, max(observation[1], inference[1]))
    folder = Path(folder or config.output.path)
    store = Store(
        folder / "operator" / TABLE, SCHEMA, game_name(config, asdict(game), presence), ("released", "target")
    )
    mobility = mobility_groups(presence.raw)
    targets = _targets(presence, game, config.seed or 0)
    total = 2 * len(targets)
    rows = store.kept()
    n_resumed = len(rows)
    listener(n_resumed, total)
    for released in (False, True):
        done = {row["target"] for row in rows if row["released"] == released}
        waiting = [target for target in targets if target not in done]
        for result in _attacks(plan, presence, game, released, waiting, n_jobs):
            user = " ".join(str(word) for word in presence.users[result.target])
            own = {"user": user, "mobility": MOBILITY_GROUPS[mobility[result.target]]}
            rows.append({**own, "released": released, **asdict(result)})
            store.write(rows)
            listener(len(rows), total)
    table = store.write(rows)
    played = {**asdict(game), "observation": observation, "inference": inference, "n_people": len(presence.users)}
    summary = {
        "game": played | {"group_size": game.people_in_a_group(len(presence.users)), "n_attacked": len(targets)},
        "mechanism": resolved(config)["mechanism"],
        "versions": versions(),
        **summarize(table),
    }
    parts.write_json(folder / "operator" / SUMMARY, summary)
    files = tuple(folder / "operator" / name for name in (SUMMARY, TABLE))
    return Outcome(folder, table, summary, n_resumed, files)


def counts_plan(config: RunConfig) -> Plan:
    """A plan without accountants, which would read the source for what they learn."""
    if config.windows.per_event or any(step.on_points for step in config.mechanism):
        raise ParameterError("mechanism", "a release of traces", "one of counts: the game is about aggregates")
    return make_plan(replace(config, accountants=()))


def _targets(presence: Presence, game: Game, seed: int) -> list[int]:
    n_people = len(presence.users)
    if n_people < len(MOBILITY_GROUPS):
        raise DataError(f"{n_people} seen in these windows; an attack needs at least {len(MOBILITY_GROUPS)} people")
    return [int(target) for target in draw_targets(presence.raw, min(game.targets, n_people), seed)]


def _attacks(
    plan: Plan, presence: Presence, game: Game, released: bool, targets: list[int], n_jobs: int
) -> Iterator[AttackResult]:
    observation, inference = game.periods(plan.n_windows)
    own = MembershipGame(
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
    defense = _defense(plan, own) if released else None
    yield from own.attack_targets(targets, n_jobs=n_jobs, defense=defense, attack=game.attack)


def _defense(plan: Plan, game: MembershipGame) -> Defense | None:
    """The run's mechanism over the windows of one aggregate."""
    together, begins = plan.chain.together, game.space.blocks[:, 0]
    if (begins % together).any():
        raise ParameterError("observation", int(begins[-1]), f"cut at multiples of {together}, the longer windows")
    windows = plan.windows(1, game.space.shape[0])
    return mechanism_defense(plan.mechanism, facts=plan.facts(), windows=windows)
