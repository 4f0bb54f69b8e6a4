"""Membership inference against a configured release: the game, the attack and its summary."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import stats

from penstock.accountants.online_attack import auc_interval, exact_interval
from penstock.evaluation.attacks.challenge import privacy_gain
from penstock.evaluation.attacks.defenses import MAX_VALUES, Defense, mechanism_defense
from penstock.evaluation.attacks.game import ATTACKS, CLASSIFIERS, MembershipGame, in_threads
from penstock.evaluation.attacks.priors import CHALLENGES, PRIORS
from penstock.evaluation.attacks.targets import MOBILITY_GROUPS, draw_targets, mobility_groups
from penstock.mechanisms.core.plugin import Checked, DataError, ParameterError, parameter
from penstock.pipeline.config.canonical import content_digest, digest, resolved
from penstock.pipeline.config.plan import Plan, make_plan
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.counting.presence import Presence, read_presence
from penstock.pipeline.experiments.pieces import Record, Records
from penstock.pipeline.output import files as parts
from penstock.pipeline.output.manifest import made_by, versions

Listener = Callable[[int, int], None]
#: Told before the first attack: people attacked, and people seen.
Begun = Callable[[int, int], None]

TABLE, SUMMARY = "attack.parquet", "attack.json"

#: Targets where none are asked for, and the fewest where the values of their aggregates would be more than that.
TARGETS, FEWEST_TARGETS, MOST_VALUES = 30, 6, 600_000_000
#: An aggregate of fewer people is said to be no crowd.
CROWD = 10
#: Copies of all released aggregates that one attack holds, 8 bytes a value, and bytes for those attacked at a time.
COPIES, ROOM = 3, 4_000_000_000

EVERYBODY = "everybody"
CONFIDENCE = 0.95

#: Columns of the table of attacks.
SCHEMA: dict[str, Any] = {
    "game": pl.String,
    "target": pl.Int64,
    "user": pl.String,
    "mobility": pl.String,
    "released": pl.Boolean,
    "auc": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "n_train": pl.Int64,
    "n_challenges": pl.Int64,
    "n_features": pl.Int64,
    "found": pl.Int64,
}


#: Attacks that need the target's trace in the windows of the challenge.
KNOWS_TRACES = tuple(name for name in ATTACKS if name not in CLASSIFIERS)


@dataclass(frozen=True, kw_only=True)
class Game(Checked):
    """Parameters of the membership game; defaults follow the paper where the run is large enough.

    Pyrgelis, Troncoso, De Cristofaro, POMACS 2020, section 3.1: 150 targets, groups of 100 or more, one-week windows.
    """

    targets: int | None = parameter(
        None,
        doc="people attacked, a third of each mobility group; unset: 30, fewer (at least 6) where aggregates are large",
        at_least=3,
    )
    samples: int = parameter(1000, doc="labelled aggregates of each target", at_least=8)
    prior: str = parameter("subset", doc="what the adversary knows", choices=PRIORS)
    attack: str = parameter("pca", doc="how she decides", choices=ATTACKS)
    known: float = parameter(0.2, doc="prior subset: share of the people whom she knows", above=0, at_most=1)
    challenges: str = parameter(
        "known",
        doc="prior subset: whom challenges count beside the target, those she knows or others",
        choices=CHALLENGES,
    )
    group_size: int | None = parameter(
        None, doc="people in an aggregate; unset: half of those whom she can draw from, at most 100", at_least=1
    )
    inference: int | None = parameter(
        None, doc="windows of a challenge; unset: 168, or what the run has room for", at_least=1
    )
    observation: int | None = parameter(
        None, doc="windows to train on; unset: those of the challenge, or twice as many before it", at_least=1
    )
    components: int = parameter(600, doc="principal components at most", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attack in KNOWS_TRACES and self.prior != "subset":
            raise ParameterError("prior", self.prior, f"subset with the attack {self.attack}: she knows a trace")
        if self.challenges == "others" and self.prior != "subset":
            raise ParameterError("challenges", self.challenges, f"known with the prior {self.prior}")
        if self.challenges == "others" and self.known == 1:
            right = "below 1 with challenges of others: there is no one left whom she does not know"
            raise ParameterError("known", self.known, right)

    def periods(self, n_windows: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Observation and inference period as (start, stop), for a run of that many windows."""
        if self.prior == "subset":
            inference = self.inference or self.observation or min(168, n_windows)
            observation = self.observation or inference
            periods = (0, observation), (max(observation - inference, 0), observation)
        else:
            inference = self.inference or min(168, max(n_windows // 3, 1))
            observation = self.observation or 2 * inference
            periods = (0, observation), (observation, observation + inference)
        if observation < inference:
            raise ParameterError("observation", observation, f"at least the {inference} windows of a challenge")
        if periods[1][1] > n_windows:
            raise ParameterError("observation", self.observation, f"with the challenge within {n_windows} windows")
        return periods

    def people_in_a_group(self, n_people: int) -> int:
        """Size of an aggregate, drawn from a population of ``n_people``."""
        if self.group_size is not None:
            return self.group_size
        n_pool = n_people
        if self.prior == "subset":
            n_known = round(self.known * n_people)
            n_pool = min(n_known, n_people - n_known) if self.challenges == "others" else n_known
        return max(1, min(100, n_pool // 2))

    def settled(self, presence: Presence) -> Game:
        """The game with its number of targets, by default at most the people who are seen."""
        n_people, n_windows, n_cells = presence.raw.shape
        fitting = MOST_VALUES // (self.samples * n_windows * n_cells)
        default = min(max(fitting // len(MOBILITY_GROUPS) * len(MOBILITY_GROUPS), FEWEST_TARGETS), TARGETS)
        return self if self.targets is not None else replace(self, targets=min(default, max(n_people, 3)))

    def check_room(self, n_windows: int, n_cells: int) -> None:
        """Refuse more released aggregates than fit into memory."""
        observation, inference = self.periods(n_windows)
        length = inference[1] - inference[0]
        n_blocks = 1 if self.prior == "subset" else (observation[1] - observation[0]) // length + 1
        most = MAX_VALUES // (length * n_cells)
        if self.attack in ("pca", "lira") and self.samples // n_blocks * n_blocks > most:
            of_size = (
                f"where an aggregate has {length} windows of {n_cells} cells; a shorter inference has room for more"
            )
            raise ParameterError("samples", self.samples, f"at most {most} {of_size}")


@dataclass(frozen=True)
class AttackOutcome:
    """Result of an attack on a configured release."""

    folder: Path  # where ``operator/attack.parquet`` and ``operator/attack.json`` are
    results: pl.DataFrame  # one row for each target and kind of aggregates, raw or released
    summary: dict[str, Any]  # figures by mobility group, and the parameters of the game
    n_resumed: int  # attacks whose results come from an earlier call
    files: tuple[Path, ...] = ()  # files written


def attack(
    config: RunConfig,
    game: Game | None = None,
    *,
    folder: str | Path | None = None,
    n_jobs: int | None = None,
    minutes: float | None = None,
    begun: Begun = lambda n_targets, n_people: None,
    listener: Listener = lambda done, total: None,
) -> AttackOutcome:
    """Attack raw aggregates and those that the configured mechanism releases.

    Parameters
    ----------
    config
        Simulation of counts over a finite source. Its seed decides targets, groups and noise.
    game
        Parameters of the game; None: the defaults.
    folder
        Where to write; None: ``output.path``.
    n_jobs
        Targets attacked at a time, in threads; memory grows with it. None: one a processor, as far as 4 GB last.
    minutes
        End after the first target that is done later than this, one of each mobility group at least; a further call
        goes on with those that are left. None: attack all.
    begun
        Called once before the first attack with the number of people attacked, and of all who are seen.
    listener
        Called with the number of attacks made and of all.

    Returns
    -------
    outcome
        The same whatever `n_jobs`, and whether it was interrupted: attacks on disk from the same game are kept. With
        `minutes` it is about the targets that are done, ``n_left`` are not.

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
    if game.attack == "lira" or mechanism_defense(plan.mechanism) is not None:  # before anything is read
        game.check_room(n_windows, plan.n_cells)
    presence = read_presence(plan, max(observation[1], inference[1]))
    game = game.settled(presence)
    folder = Path(folder or config.output.path)
    name, kept = game_name(config, asdict(game), presence), Records(folder / "operator" / "attack")
    mobility = mobility_groups(presence.raw)
    # One of each mobility group in turn, so that those that are done first are a sample too.
    targets = targets_of(presence, game, config.seed or 0)
    nth = {group: count() for group in range(len(MOBILITY_GROUPS))}
    turn = {target: next(nth[mobility[target]]) for target in targets}
    targets.sort(key=lambda target: (turn[target], mobility[target]))
    pieces = [(target, released) for target in targets for released in (False, True)]
    rows = {piece: row for piece in pieces if (row := kept.read([name, *piece])) is not None}
    n_resumed = len(rows)
    games = {released: membership_game(plan, presence, game, released) for released in (False, True)}
    begun(len(targets), len(presence.users))
    listener(n_resumed, len(pieces))

    def play(piece: tuple[int, bool]) -> tuple[tuple[int, bool], Record]:
        """Attack one target, through the release or the raw counts."""
        target, released = piece
        own, defense = games[released]
        user = " ".join(str(word) for word in presence.users[target])
        row = {"user": user, "mobility": MOBILITY_GROUPS[mobility[target]], "released": released}
        return piece, row | asdict(own.attack(target, defense=defense, attack=game.attack))

    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    waiting = [piece for piece in pieces if piece not in rows]
    for piece, row in in_threads(play, waiting, n_jobs or jobs_with_room(game, games[True][0].space.shape)):
        kept.write([name, *piece], row)
        rows[piece] = row
        listener(len(rows), len(pieces))
        if time.monotonic() > end and len(_complete(rows)) >= len(MOBILITY_GROUPS):
            break
    table = write_table(folder / "operator" / TABLE, name, list(rows.values()), SCHEMA, ("released", "target"))
    table = table.filter(pl.col("target").is_in(_complete(rows)))
    n_attacked = table["target"].n_unique()
    n_people = len(presence.users)
    played = {**asdict(game), "observation": observation, "inference": inference, "n_people": n_people}
    played |= {"n_windows": n_windows, "group_size": game.people_in_a_group(n_people), "n_attacked": n_attacked}
    played["n_left"] = len(targets) - n_attacked
    summary = {
        "game": played,
        "mechanism": resolved(config)["mechanism"],
        "versions": versions(),
        **summarize(table),
    }
    parts.write_json(folder / "operator" / SUMMARY, summary)
    files = tuple(folder / "operator" / name for name in (SUMMARY, TABLE))
    return AttackOutcome(folder, table, summary, n_resumed, files)


def write_table(
    path: Path, game: str, rows: list[Record], schema: Mapping[str, Any], by: tuple[str, ...]
) -> pl.DataFrame:
    """Write the rows of a game, ordered ``by`` columns, atomically, and return them."""
    table = pl.DataFrame([{"game": game} | row for row in rows], schema=schema).sort(by, maintain_order=True)
    with parts.whole(path) as temporary:
        table.write_parquet(temporary)
    return table


def game_name(config: RunConfig, played: Any, presence: Presence) -> str:
    """Digest of everything that decides an attack's results, including users' movements and the code.

    ``played`` holds the parameters of the game as plain values.
    """
    own = hashlib.sha256(digest(config))
    plugins = [content_digest(folder) for folder in config.plugins]
    own.update(json.dumps([config.seed, played, made_by(), plugins], sort_keys=True).encode())
    for binary in (presence.raw, presence.released):
        own.update(str(binary.shape).encode())
        for person in binary:
            own.update(np.packbits(person).tobytes())
    return own.hexdigest()[:32]


def _complete(rows: Iterable[tuple[int, bool]]) -> list[int]:
    """Targets with both attacks, on raw and on released aggregates."""
    made = Counter(target for target, _ in rows)
    return sorted(target for target, n in made.items() if n == 2)


def jobs_with_room(game: Game, shape: tuple[int, int]) -> int:
    """Targets that may be attacked at a time: one a processor, and fewer where aggregates are large."""
    size = 8 * COPIES * game.samples * shape[0] * shape[1]
    return max(1, min(os.cpu_count() or 1, ROOM // size))


def counts_plan(config: RunConfig) -> Plan:
    """The plan without accountants, some of which read the source to learn a prior."""
    if config.windows.per_event or any(step.on_points for step in config.mechanism):
        raise ParameterError("mechanism", "a release of traces", "one of counts: the game is about aggregates")
    return make_plan(replace(config, accountants=()))


def targets_of(presence: Presence, game: Game, seed: int) -> list[int]:
    """Whom to attack, a third of each mobility group."""
    n_people = len(presence.users)
    if n_people < len(MOBILITY_GROUPS):
        raise DataError(f"{n_people} seen in these windows; an attack needs at least {len(MOBILITY_GROUPS)} people")
    n_targets = min(game.settled(presence).targets or 0, n_people)
    return [int(target) for target in draw_targets(presence.raw, n_targets, seed)]


def membership_game(
    plan: Plan, presence: Presence, game: Game, released: bool
) -> tuple[MembershipGame, Defense | None]:
    """The game over raw or released presence, and what the run's mechanism does to its aggregates."""
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
    return own, _defense(plan, own) if released else None


def _defense(plan: Plan, game: MembershipGame) -> Defense | None:
    """The run's mechanism, applied to the windows of one aggregate."""
    together, begins = plan.chain.together, game.space.blocks[:, 0]
    if (begins % together).any():
        raise ParameterError("observation", int(begins[-1]), f"cut at multiples of {together}, the longer windows")
    windows = plan.windows(1, game.space.shape[0])
    return mechanism_defense(plan.mechanism, facts=plan.facts(), windows=windows)


def summarize(results: pl.DataFrame) -> dict[str, Any]:
    """Mean area under the curve on raw and on released aggregates, and privacy gain, by mobility group.

    Returns ``groups`` by name: ``n_targets``, and ``raw``, ``released``, ``privacy_gain``, each with ``mean``,
    ``low`` and ``high``; and ``found``, for raw and released: the share of the challenges with their target that score
    above all but 1 % of those without, null where a target has fewer than 100 of these. The interval (95 %) covers the
    choice of targets, by Student's t, and of challenges, whichever is wider; that of a gain covers the targets only and
    is null for a single one, and for equal ones; that of what is found is exact, for these targets.
    """
    raw = results.filter(~pl.col("released")).sort("target")
    released = results.filter("released").sort("target")
    gain = np.asarray(privacy_gain(raw["auc"].to_numpy(), released["auc"].to_numpy()))
    groups = {}
    for name in (*MOBILITY_GROUPS, EVERYBODY):
        chosen = np.full(len(raw), True) if name == EVERYBODY else (raw["mobility"] == name).to_numpy()
        if chosen.any():
            groups[name] = {
                "n_targets": int(chosen.sum()),
                "raw": _area(raw.filter(chosen)),
                "released": _area(released.filter(chosen)),
                "found": {"raw": _found(raw.filter(chosen)), "released": _found(released.filter(chosen))},
                "privacy_gain": mean_with_interval(gain[chosen]),
            }
    return {"confidence": CONFIDENCE, "groups": groups}


def _area(results: pl.DataFrame) -> dict[str, float | None]:
    auc = results["auc"].to_numpy()
    n_challenges = int(results["n_challenges"].sum())
    limits = auc_interval(float(auc.mean()), n_challenges // 2, n_challenges - n_challenges // 2, CONFIDENCE)
    return widened(mean_with_interval(auc), limits)


def _found(results: pl.DataFrame) -> dict[str, float | None]:
    """Share of the challenges with their target that are found at 1 % false alarms, with its exact interval."""
    counted, n_present = results["found"].drop_nulls(), int(((results["n_challenges"] + 1) // 2).sum())
    if len(counted) < len(results):
        return {"mean": None, "low": None, "high": None}
    low, high = exact_interval(int(counted.sum()), n_present, CONFIDENCE)
    return {"mean": int(counted.sum()) / n_present, "low": low, "high": high}


def widened(figure: Mapping[str, float | None], limits: tuple[float, float]) -> dict[str, float | None]:
    """A mean with the wider of its own interval, over targets, and the limits over trials."""
    low, high = limits
    return {
        "mean": figure["mean"],
        "low": low if figure["low"] is None else min(low, figure["low"]),
        "high": high if figure["high"] is None else max(high, figure["high"]),
    }


def mean_with_interval(values: NDArray[np.float64]) -> dict[str, float | None]:
    """Mean and its interval by Student's t, between 0 and 1; no interval where values do not differ."""
    mean = float(values.mean())
    if values.size < 2 or np.ptp(values) == 0:  # equal values do not estimate a variance
        return {"mean": mean, "low": None, "high": None}
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, values.size - 1) * values.std(ddof=1) / np.sqrt(values.size))
    return {"mean": mean, "low": max(mean - reach, 0.0), "high": min(mean + reach, 1.0)}


def as_text(summary: Mapping[str, Any]) -> str:
    """The summary as a table for people."""
    game = summary["game"]
    lines = [
        f"{game['attack']} attack, prior {game['prior']}: {game['n_people']} people in groups of {game['group_size']}, "
        f"{game['samples']} samples a target",
        *counted_people(game),
        *attacked_part(game),
        "AUC: 1 is always right, 0.5 is guessing; in brackets 95 % intervals",
        f"{'mobility':<10} {'targets':>7}  {'AUC of raw counts':<21}  {'AUC of the release':<21}  privacy gain",
    ]
    for name, found in summary["groups"].items():
        cells = [shown(found[figure]) for figure in ("raw", "released", "privacy_gain")]
        lines.append(f"{name:<10} {found['n_targets']:>7}  {cells[0]:<21}  {cells[1]:<21}  {cells[2]}")
    groups = summary["groups"]
    return "\n".join([*lines, *found_rarely_wrong(groups), *near_chance(groups), *fewer_targets(game)])


def found_rarely_wrong(groups: Mapping[str, Any]) -> list[str]:
    """A line on how many are found with few false alarms, where there are enough challenges to tell.

    >>> one = {"mean": 0.25, "low": 0.2, "high": 0.3}
    >>> found_rarely_wrong({"everybody": {"found": {"raw": one, "released": one}}})
    ['found at 1 % false alarms: 0.250 [0.200, 0.300] of raw counts, 0.250 [0.200, 0.300] of the release']
    """
    found = groups[EVERYBODY].get("found")
    if not found or found["raw"]["mean"] is None:
        return []
    raw, released = shown(found["raw"]), shown(found["released"])
    return [f"found at 1 % false alarms: {raw} of raw counts, {released} of the release"]


def near_chance(groups: Mapping[str, Any]) -> list[str]:
    """A line on the gain where the attack on the release is hardly told from guessing.

    >>> area = {"mean": 0.504, "low": 0.47, "high": 0.54}
    >>> near_chance({"everybody": {"raw": {"mean": 0.7, "low": 0.6, "high": 0.8}, "released": area}})
    ['guessing has 0.5: gains of single targets are noise near it; of the mean areas the gain is 0.98']
    """
    found = groups[EVERYBODY]
    raw, released = (found[name]["mean"] for name in ("raw", "released"))
    low = found["released"]["low"]
    if raw <= 0.5 or (released if low is None else low) > 0.5:
        return []
    gain = (raw - max(released, 0.5)) / (raw - 0.5) if raw > released else 0.0
    return [f"guessing has 0.5: gains of single targets are noise near it; of the mean areas the gain is {gain:.2f}"]


def counted_people(game: Mapping[str, Any]) -> list[str]:
    """A line on the people in a challenge, under the prior ``subset``."""
    if game["prior"] != "subset":
        return []
    whom = {"known": "people whom she knows", "others": "people whom she does not know"}[game["challenges"]]
    share = f"{100 * game['known']:g} %"
    if game.get("attack") == "zero_knowledge":
        return ["she knows no one but her target, whose trace she has, the size of the group, and the mechanism"]
    return [f"she knows {share} of the people; challenges count {whom} beside the target ({game['challenges']})"]


def attacked_part(game: Mapping[str, Any]) -> list[str]:
    """Lines on whom and which windows a sample leaves out, and on aggregates that are no crowd."""
    lines, n_people, last = [], game["n_people"], max(game["observation"][1], game["inference"][1])
    if game["n_attacked"] < n_people:
        lines.append(
            f"a sample: {game['n_attacked']:,} of the {n_people:,} people seen are attacked, a third of each mobility "
            f"group, drawn by the seed (all: --targets {n_people})"
        )
    if last < game["n_windows"]:
        lines.append(
            f"the first {last:,} of {game['n_windows']:,} windows are attacked (others: --set source.from=…; more: "
            "--observation)"
        )
    if game["group_size"] < CROWD:
        lines.append(
            f"an aggregate counts {game['group_size']} of {n_people:,} people: that is no crowd, and no figure here is "
            "one of the whole release (--group-size, or windows with more people)"
        )
    return lines


def fewer_targets(game: Mapping[str, Any]) -> list[str]:
    """A line if fewer targets were attacked than requested, or than there was time for."""
    asked, attacked, n_left = game["targets"], game["n_attacked"], game.get("n_left", 0)
    if n_left:
        return [f"stopped for the time: {n_left} of {asked} targets are left, which the same command goes on with"]
    return [f"{attacked} people are all that there are: fewer targets than the {asked} asked for"] * (attacked < asked)


def shown(figure: Mapping[str, float | None]) -> str:
    """A mean and its interval as text."""
    if figure["low"] is None:
        return f"{figure['mean']:.3f}"
    return f"{figure['mean']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]"
