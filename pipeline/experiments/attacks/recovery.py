"""Trajectory recovery from a configured release: the attack, and its figures beside those without a release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.evaluation.attacks.recovery import Found, trajectory_recovery
from penstock.mechanisms.core.plugin import Checked, DataError, parameter
from penstock.mechanisms.core.run import run_mechanism
from penstock.pipeline.config.canonical import resolved
from penstock.pipeline.config.plan import Plan
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.counting.presence import read_presence
from penstock.pipeline.experiments.attacks.measures import MAX_PEOPLE, check_recoverable, knowledge, positions_of
from penstock.pipeline.experiments.attacks.membership import AttackOutcome, Begun, Listener, counts_plan
from penstock.pipeline.output import files as parts
from penstock.pipeline.output.manifest import versions

SUMMARY = "attack_recovery.json"
#: What is recovered from, in the order of the table.
RAW, RELEASED, NOTHING, SHUFFLED = "raw counts", "the release", "without the release", "the release, shuffled"


@dataclass(frozen=True, kw_only=True)
class RecoveryGame(Checked):
    """Parameters of trajectory recovery; the defaults keep it within minutes."""

    people: int = parameter(
        1000, doc="most people counted; of more, a sample drawn by the seed", at_least=2, at_most=MAX_PEOPLE
    )
    windows: int | None = parameter(None, doc="first windows of the run; unset: 168, or all that there are", at_least=2)


def recovery(
    config: RunConfig,
    game: RecoveryGame | None = None,
    *,
    folder: str | Path | None = None,
    begun: Begun = lambda n_targets, n_people: None,
    listener: Listener = lambda done, total: None,
) -> AttackOutcome:
    """Recover trajectories from raw counts and from what the configured mechanism releases of them.

    `game`: parameters; None: the defaults. `folder`: where to write ``operator/attack_recovery.json``; None:
    ``output.path``.

    With everybody and all windows, the release is that of the run. A sample of people is counted and released on its
    own: its counts are smaller, and the same noise hides more.
    """
    game = game or RecoveryGame()
    check_recoverable(config)
    plan = counts_plan(config)
    n_windows = min(game.windows or 168, plan.n_windows)
    presence = read_presence(plan, n_windows)
    n_people = len(presence.users)
    if n_people < 2:
        raise DataError("one person seen in these windows; trajectories are told apart from two people on")
    rng = np.random.default_rng(config.seed or 0)
    chosen = np.sort(rng.choice(n_people, min(game.people, n_people), replace=False))
    raw = presence.raw[chosen]
    counts = {RAW: raw.sum(axis=0), RELEASED: _released(plan, presence.released[chosen].sum(axis=0))}
    positions, known = knowledge(plan, range(1, n_windows + 1))
    begun(chosen.size, n_people)
    listener(0, len(counts))
    found: dict[str, Found] = {}
    for done, (name, shown) in enumerate(counts.items(), 1):
        one = trajectory_recovery(raw, shown, positions, **known, seed=config.seed or 0)
        found |= {name: one.found, NOTHING: one.nothing, SHUFFLED: one.shuffled}
        listener(done, len(counts))
    rows = [{"from": name, **asdict(found[name])} for name in (RAW, RELEASED, NOTHING, SHUFFLED)]
    if positions_of(plan.space) is None:
        rows = [row | {"distance": None} for row in rows]
    summary = {
        "game": {
            "people": int(chosen.size),
            "n_people": n_people,
            "windows": n_windows,
            "n_windows": plan.n_windows,
        },
        "found": rows,
        "gain": found[RELEASED].accuracy - max(found[NOTHING].accuracy, found[SHUFFLED].accuracy),
        "mechanism": resolved(config)["mechanism"],
        "versions": versions(),
    }
    path = Path(folder or config.output.path) / "operator" / SUMMARY
    parts.write_json(path, summary)
    return AttackOutcome(path.parent.parent, pl.DataFrame(rows), summary, 0, (path,))


def _released(plan: Plan, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """What the run's steps release of some counts, with the run's noise."""
    windows = plan.windows(1, len(counts))
    made = run_mechanism(plan.mechanism, counts, plan.facts(), windows=windows, source=plan.noise())
    return np.array([np.broadcast_to(release.values, counts.shape[1]) for release in made], np.float64)


def recovery_text(summary: Mapping[str, Any]) -> str:
    """The summary as a table for people."""
    game, rows = summary["game"], summary["found"]
    whom = f"all {game['n_people']:,} people"
    if game["people"] < game["n_people"]:
        whom = f"{game['people']:,} of {game['n_people']:,} people"
    when = f"{game['windows']:,} windows"
    if game["windows"] < game["n_windows"]:
        when = f"the first {game['windows']:,} of {game['n_windows']:,} windows"
    lines = [f"trajectory recovery: {whom} in {when}"]
    if game["people"] < game["n_people"]:
        lines.append(
            "a sample, drawn by the seed, counted and released alone: no figure here is one of the whole release "
            f"(more: --people N, at most {MAX_PEOPLE:,})"
        )
    lines += [
        "right: share of the windows with a person in which the trajectory that fits that person best is right",
        f"{'':<22} {'right':>6}  {'metres off':>10}",
    ]
    for row in rows:
        distance = "" if row["distance"] is None else f"{row['distance']:>10,.0f}"
        lines.append(f"{row['from']:<22} {row['accuracy']:>6.3f}  {distance}".rstrip())
    gain = summary["gain"]
    said = f"{gain:.3f} more than" if gain > 0 else "no more than"
    return "\n".join([*lines, f"of the release is right {said} without it, or by its counts alone"])
