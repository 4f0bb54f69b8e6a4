"""Recovery of trajectories from a configured release, together with baselines."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import polars as pl

from penstock.evaluation.attacks.parameters import RecoveryGame
from penstock.evaluation.attacks.recovery import Agreement, trajectory_recovery
from penstock.mechanisms.core.plugin import DataError
from penstock.mechanisms.core.run import run_mechanism
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.counting.presence import read_presence
from penstock.pipeline.experiments.games import membership
from penstock.pipeline.experiments.games.measures import check_recoverable, knowledge, positions_of
from penstock.pipeline.experiments.games.membership import SILENT, AttackListener, AttackOutcome

SUMMARY = "attack_recovery.json"
#: What is recovered from, in the order of the table.
RAW, RELEASED, NOTHING, SHUFFLED = "raw counts", "the release", "without the release", "the release, shuffled"


def recovery(
    config: RunConfig,
    game: RecoveryGame | None = None,
    *,
    folder: str | Path | None = None,
    listener: AttackListener = SILENT,
) -> AttackOutcome:
    """Recover trajectories from both raw and released counts.

    `game`: parameters; None: the defaults. `folder`: where to write ``operator/attack_recovery.json``; None:
    ``output.path``. `listener`: as of `attack`.

    With everybody and all windows, the release is that of the run. A sample of people is counted and released on its
    own: its counts are smaller, and the same noise hides more.
    """
    game = game or RecoveryGame()
    check_recoverable(config)
    plan = membership.counts_plan(config)
    n_windows = min(game.windows or 168, plan.grid.n_windows)
    presence = read_presence(plan, n_windows)
    n_people = len(presence.users)
    if n_people < 2:
        raise DataError("one person seen in these windows; trajectories are told apart from two people on")
    rng = np.random.default_rng(config.seed or 0)
    chosen = np.sort(rng.choice(n_people, min(game.people, n_people), replace=False))
    raw, bounded = presence.raw[chosen], presence.released[chosen].sum(axis=0)
    windows = plan.grid.windows(1, n_windows)
    made = run_mechanism(plan.mechanism, bounded, plan.facts(), windows=windows, source=plan.keys.noise())
    released = np.array([np.broadcast_to(release.values, bounded.shape[1]) for release in made], np.float64)
    counts = {RAW: raw.sum(axis=0), RELEASED: released}
    positions, known = knowledge(plan, range(1, n_windows + 1))
    listener.begun(chosen.size, n_people)
    listener.made(0, len(counts))
    begin = time.monotonic()

    def paced(n_done: int) -> None:
        """Report the estimated duration: trajectories are recovered twice from raw and twice from released counts."""
        if not agreement:
            listener.foreseen((time.monotonic() - begin) * 2 * len(counts) * n_windows / n_done)

    agreement: dict[str, Agreement] = {}
    for done, (name, shown) in enumerate(counts.items(), 1):
        result = trajectory_recovery(raw, shown, positions, **known, seed=config.seed or 0, paced=paced)
        agreement |= {name: result.recovered, NOTHING: result.nothing, SHUFFLED: result.shuffled}
        listener.made(done, len(counts))
    rows = [{"from": name, **asdict(agreement[name])} for name in (RAW, RELEASED, NOTHING, SHUFFLED)]
    if positions_of(plan.space) is None:
        rows = [row | {"distance": None} for row in rows]
    played = {"people": int(chosen.size), "n_people": n_people, "windows": n_windows, "n_windows": plan.grid.n_windows}
    gain = agreement[RELEASED].accuracy - max(agreement[NOTHING].accuracy, agreement[SHUFFLED].accuracy)
    summary = {"game": played, "found": rows, "gain": gain}
    return membership.finish_attack(
        config, Path(folder or config.output.path), pl.DataFrame(rows), summary, 0, (SUMMARY,)
    )
