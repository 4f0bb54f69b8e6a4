"""Privacy gain of the paper's defenses on the taxi data, and what each costs: its figures 6(b) and 7 to 10."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from evaluation.attacks.scores import privacy_gain

RAW = "raw"


def gain_table(areas: Mapping[str, Mapping[int, float]]) -> pl.DataFrame:
    """Privacy gain of each defense over its targets.

    Parameters
    ----------
    areas
        Under the curve, by defense and target; those of ``raw`` counts are what is gained from.

    Returns
    -------
    One row for each defense: ``n_targets``, mean of the ``auc``, and of the gain the ``mean``, its ``low`` and ``high``
    (95 %, over targets) and the quartiles ``q25``, ``median`` and ``q75``; ``mirrored`` is the mean where an area below
    ½ counts like the one above ½ that an adversary reaches by turning her answers round.

    Examples
    --------
    >>> found = gain_table({"raw": {1: 1.0, 2: 1.0}, "noise": {1: 0.75, 2: 0.4}})
    >>> found.select("defense", "n_targets", "mean", "mirrored").row(0)
    ('noise', 2, 0.25, 0.65)
    """
    rows = []
    for name, own in areas.items():
        if name == RAW:
            continue
        raw, defended = np.array([areas[RAW][target] for target in own]), np.array(list(own.values()))
        gain = np.asarray(privacy_gain(raw, defended))
        turned = np.asarray(privacy_gain(raw, np.maximum(defended, 1 - defended)))
        reach = 1.96 * gain.std(ddof=1) / np.sqrt(gain.size) if gain.size > 1 else np.nan
        q25, median, q75 = np.quantile(gain, (0.25, 0.5, 0.75)).tolist()
        mean = float(gain.mean())
        row = {"mean": mean, "low": max(mean - reach, 0.0), "high": min(mean + reach, 1.0)}
        row |= {"q25": q25, "median": median, "q75": q75, "mirrored": float(turned.mean())}
        rows.append({"defense": name, "n_targets": gain.size, "auc": float(defended.mean())} | row)
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
