"""What an attack found, by mobility group: for the file, the terminal and machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import stats

from evaluation.attacks.scores import auc_interval, privacy_gain
from evaluation.attacks.targets import MOBILITY_GROUPS

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
}


def summarize(results: pl.DataFrame) -> dict[str, Any]:
    """Mean area under the curve on raw and released aggregates, and the privacy gain, of each mobility group.

    Parameters
    ----------
    results
        Of `SCHEMA`; every target with raw and with released aggregates.

    Returns
    -------
    figures
        ``groups`` by name: ``n_targets``, and ``raw``, ``released``, ``privacy_gain``, each with ``mean``, ``low`` and
        ``high``. The interval (95 %) covers the choice of targets, by Student's t, and of challenges, whichever is
        wider; that of a gain covers the targets only and is null for a single one, and for equal ones.
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
                "privacy_gain": mean_with_interval(gain[chosen], 0.0),
            }
    return {"confidence": CONFIDENCE, "groups": groups}


def _area(results: pl.DataFrame) -> dict[str, float | None]:
    auc = results["auc"].to_numpy()
    figure, n_challenges = mean_with_interval(auc, 0.0), int(results["n_challenges"].sum())
    low, high = auc_interval(float(auc.mean()), n_challenges // 2, n_challenges - n_challenges // 2, CONFIDENCE)
    return {
        "mean": figure["mean"],
        "low": low if figure["low"] is None else min(low, figure["low"]),
        "high": high if figure["high"] is None else max(high, figure["high"]),
    }


def mean_with_interval(values: NDArray[np.float64], least: float) -> dict[str, float | None]:
    """Mean and its interval by Student's t, between ``least`` and 1; no interval where values do not differ."""
    mean = float(values.mean())
    if values.size < 2 or np.ptp(values) == 0:  # equal values say nothing of how far off they are
        return {"mean": mean, "low": None, "high": None}
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, values.size - 1) * values.std(ddof=1) / np.sqrt(values.size))
    return {"mean": mean, "low": max(mean - reach, least), "high": min(mean + reach, 1.0)}


def as_text(summary: Mapping[str, Any]) -> str:
    """The table that a person reads."""
    game = summary["game"]
    lines = [
        f"{game['attack']} attack, prior {game['prior']}: {game['n_people']} people in groups of {game['group_size']}, "
        f"{game['samples']} samples a target",
        *counted_people(game),
        "AUC: 1 is always right, 0.5 is guessing; in brackets 95 % intervals",
        f"{'mobility':<10} {'targets':>7}  {'AUC of raw counts':<21}  {'AUC of the release':<21}  privacy gain",
    ]
    for name, found in summary["groups"].items():
        cells = [shown(found[figure]) for figure in ("raw", "released", "privacy_gain")]
        lines.append(f"{name:<10} {found['n_targets']:>7}  {cells[0]:<21}  {cells[1]:<21}  {cells[2]}")
    return "\n".join([*lines, *fewer_targets(game)])


def counted_people(game: Mapping[str, Any]) -> list[str]:
    """A line that says whom challenges count beside the target, where the adversary knows some of the people."""
    if game["prior"] != "subset":
        return []
    whom = {"known": "people whom she knows", "others": "people whom she does not know"}[game["challenges"]]
    share = f"{100 * game['known']:g} %"
    return [f"she knows {share} of the people; challenges count {whom} beside the target ({game['challenges']})"]


def fewer_targets(game: Mapping[str, Any]) -> list[str]:
    """A line that says that fewer people were attacked than were asked for, where that is so."""
    asked, attacked = game["targets"], game["n_attacked"]
    return [f"{attacked} people are all that there are: fewer targets than the {asked} asked for"] * (attacked < asked)


def shown(figure: Mapping[str, float | None]) -> str:
    """A mean and its interval as text."""
    if figure["low"] is None:
        return f"{figure['mean']:.3f}"
    return f"{figure['mean']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]"


@contextmanager
def show_attacks(enabled: bool) -> Iterator[Callable[[int, int], None]]:
    """A progress bar over all attacks on standard error, and the listener that moves it."""
    if not enabled:
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("attacks"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading …", total=None)

        def listener(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield listener
