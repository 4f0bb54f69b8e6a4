"""Privacy gain of the paper's defenses on the taxi data: what its figure 6(b) shows, target by target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from evaluation.attacks.game import MembershipGame
from evaluation.attacks.released import Defense
from evaluation.attacks.scores import privacy_gain
from evaluation.attacks.targets import MOBILITY_GROUPS, sample_targets
from evaluation.cabs import COLUMNS, ROWS
from evaluation.membership_defenses import WEEK, PaperDefense

RAW = "raw"
#: The paper's game for defenses on the taxi data (section 4.1).
GAME: dict[str, Any] = {
    "group_size": 250,
    "known": 0.5,
    "challenges": "others",
    "observation": WEEK,
    "inference": WEEK,
    "n_samples": 2400,
    "n_components": 600,
}
SCHEMA: dict[str, Any] = {
    "defense": pl.String,
    "target": pl.Int64,
    "mobility": pl.String,
    "auc": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
}


def measure_gains(
    binary: NDArray[np.bool_], defenses: Sequence[PaperDefense], path: Path, *, n_targets: int = 30, seed: int = 1
) -> Iterator[tuple[int, int]]:
    """Attack every target raw and behind every defense, keeping each result as soon as it is there.

    Parameters
    ----------
    binary (n_cabs, 100, n_windows)
        As `evaluation.cabs.cab_presence` gives; the first week is attacked.
    defenses
        Of `evaluation.membership_defenses.paper_defenses`.
    path
        CSV file of single targets, which stays with whoever holds the data. What it has is not attacked again.
    n_targets
        A third of each mobility group.
    seed
        Of targets, groups and noise.

    Yields
    ------
    done, total
        Attacks.

    Notes
    -----
    Targets are taken in turns from the mobility groups, and each is attacked behind every defense before the next: a
    run that is stopped leaves fewer targets, not fewer defenses. An attack on defended counts takes 2 s (rounded or
    suppressed ones) to 10 s (blocks) and 1.1 GiB, a quarter of a second where only memberships change.
    """
    week = binary[:, :, :WEEK]
    targets = sample_targets(week, n_targets // len(MOBILITY_GROUPS), seed).reshape(len(MOBILITY_GROUPS), -1)
    order = [(int(target), MOBILITY_GROUPS[group]) for turn in targets.T for group, target in enumerate(turn)]
    games: dict[str, tuple[MembershipGame, Defense | None]] = {RAW: (MembershipGame(week, **GAME, seed=seed), None)}
    for one in defenses:
        presence, defense = one.of(week, ROWS, COLUMNS)
        games[one.name] = MembershipGame(presence, **GAME, seed=seed), defense
    rows = pl.read_csv(path, schema=SCHEMA).to_dicts() if path.exists() else []
    done = {(row["defense"], row["target"]) for row in rows}
    waiting = [(name, *target) for target in order for name in games if (name, target[0]) not in done]
    for number, (name, target, mobility) in enumerate(waiting):
        game, defense = games[name]
        result = game.attack(target, defense=defense)
        own = {"auc": result.auc, "low": result.low, "high": result.high}
        rows.append({"defense": name, "target": target, "mobility": mobility, **own})
        pl.DataFrame(rows, schema=SCHEMA).write_csv(path)
        yield len(rows), len(rows) + len(waiting) - number - 1


def gain_table(attacks: pl.DataFrame) -> pl.DataFrame:
    """Privacy gain of each defense over its targets.

    Parameters
    ----------
    attacks
        As `measure_gains` keeps them.

    Returns
    -------
    One row for each defense: ``n_targets``, mean of the ``auc``, and of the gain the ``mean``, its ``low`` and ``high``
    (95 %, over targets) and the quartiles ``q25``, ``median`` and ``q75``; ``mirrored`` is the mean where an area below
    ½ counts like the one above ½ that an adversary reaches by turning her answers round.

    Examples
    --------
    >>> keys = {"target": [1, 2, 1, 2], "mobility": ["highly"] * 4}
    >>> areas = {"auc": [1.0, 1.0, 0.75, 0.4], "low": [0.5] * 4, "high": [1.0] * 4}
    >>> found = gain_table(pl.DataFrame({"defense": ["raw", "raw", "noise", "noise"], **keys, **areas}))
    >>> found.select("defense", "n_targets", "mean", "mirrored").row(0)
    ('noise', 2, 0.25, 0.65)
    """
    raw = attacks.filter(pl.col("defense") == RAW).select("target", raw="auc")
    rows = []
    for (name,), part in attacks.join(raw, on="target").group_by("defense", maintain_order=True):
        if name == RAW:
            continue
        gain = np.asarray(privacy_gain(part["raw"].to_numpy(), part["auc"].to_numpy()))
        reach = 1.96 * gain.std(ddof=1) / np.sqrt(gain.size) if gain.size > 1 else np.nan
        q25, median, q75 = np.quantile(gain, (0.25, 0.5, 0.75)).tolist()
        mean = float(gain.mean())
        areas = part["auc"].to_numpy()
        turned = np.asarray(privacy_gain(part["raw"].to_numpy(), np.maximum(areas, 1 - areas)))
        own = {"mean": mean, "low": max(mean - reach, 0.0), "high": min(mean + reach, 1.0)}
        own |= {"q25": q25, "median": median, "q75": q75, "mirrored": float(turned.mean())}
        rows.append({"defense": name, "n_targets": gain.size, "auc": float(areas.mean())} | own)
    return pl.DataFrame(rows)


#: Experiment with the utility of each family of defenses, and how it names a setting.
EXPERIMENTS = {
    "SPG": "sfc_spatial_generalization",
    "TG": "sfc_temporal_generalization",
    "SPG+TG": "sfc_temporal_generalization",
    "DGFR": "sfc_fixed_ranges",
    "DGAR": "sfc_adaptive_ranges",
    "SSC": "sfc_suppress_small",
    "SLP": "sfc_suppress_unpopular",
    "SMP": "sfc_sampling",
    "PSC": "sfc_perturb_small",
    "FPA": "sfc_fpa",
    "SPSC": "sfc_sampling_perturb_small",
    "SFPA": "sfc_sampling_fpa",
}
BOTH = {"1x1, 1 week": "1 week, 1x1"}


def trade_off_table(gains: pl.DataFrame, results: Path) -> pl.DataFrame:
    """Figures 7 to 10: privacy gain beside the loss of utility, for every defense that has both.

    Parameters
    ----------
    gains
        Of `gain_table`.
    results
        Folder with the tables of the experiments sfc_*.

    Returns
    -------
    ``defense``, ``family``, ``metric``, ``privacy_gain`` (the ``mirrored`` one, as the paper's figures have it) and
    ``utility_loss``: the metric itself where 0 is best, and 1 less the metric where 1 is.
    """
    metrics = {"mre": 0, "mre_top": 0, "hotspot_f1": 1, "hotspot_rank_tau": 1, "js_distance": 0, "pearson": 1}
    rows = []
    for metric, best in metrics.items():
        for row in gains.iter_rows(named=True):
            family, _, setting = row["defense"].partition(" ")
            path = results / f"{EXPERIMENTS[family]}.csv"
            if not path.exists():
                continue
            found = pl.read_csv(path).filter(variant=BOTH.get(setting, setting), measure=metric)["mean"].to_list()
            for value in found:
                loss = abs(best - value)
                own = {"defense": row["defense"], "family": family, "metric": metric}
                rows.append(own | {"privacy_gain": row["mirrored"], "utility_loss": loss})
    return pl.DataFrame(rows)
