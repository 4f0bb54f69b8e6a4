"""What retracing found, as rows of accounts, by mobility group, and for people to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from scipy.stats import beta

from accountants.inference.estimators import ESTIMATORS, Estimator
from evaluation.attacks.targets import MOBILITY_GROUPS
from pipeline.attack_reconstruction_game import Settings
from pipeline.attack_summary import CONFIDENCE, EVERYBODY, fewer_targets, mean_with_interval, shown
from pipeline.plan import STREAM

if TYPE_CHECKING:
    from pipeline.attack_reconstruction import Found

KINDS: Sequence[Estimator] = ESTIMATORS  # type: ignore[assignment]
MADE_UP = "made up"
BOUND = "success_upper_bound"
ACCOUNTANT = "attack_reconstruction"

#: Columns of ``operator/accounts.parquet``, then whom a row is about, how many trials are behind it, and the game.
SCHEMA: dict[str, Any] = {
    "stream": pl.String,
    "accountant": pl.String,
    "subject": pl.String,
    "window": pl.Int64,
    "name": pl.String,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "unit": pl.String,
    "adjacency": pl.String,
    "status": pl.String,
    "target": pl.Int64,
    "user": pl.String,
    "mobility": pl.String,
    "trials": pl.Int64,
    "stretches": pl.Int64,
    "game": pl.String,
}


def rows_of(own: Mapping[str, Any], found: Found, assumption: str, settings: Settings) -> list[dict[str, Any]]:
    """Rows of one target.

    Parameters
    ----------
    own
        Its columns ``target``, ``user`` and ``mobility``.
    found
        What was found out about it.
    assumption
        Its prior in words.
    settings
        How it was attacked.

    Returns
    -------
    ``<estimator>_success`` and ``<estimator>_hits`` (share of the windows guessed right) on its real ways,
    ``<estimator>_success_made_up`` on ways drawn from its prior, by somebody told where it was just before, and
    ``success_upper_bound``. Intervals (95 %, Clopper and Pearson) take stretches and made-up ways as independent
    trials; releases of the same stretch are none.
    """
    text = (
        f"{settings.horizon} windows, given their releases and all before, at most {settings.tolerance} of the windows "
        f"wrong; everybody else's cells known, {assumption}"
    )
    fixed: dict[str, Any] = {
        "stream": STREAM,
        "accountant": ACCOUNTANT,
        "subject": f"target {own['target']}",
        "window": None,
    }
    fixed |= {"adjacency": text, "status": "final", "stretches": settings.n_stretches, **own}

    def row(name: str, value: float, trials: int, limits: tuple[float, float] | None = None) -> dict[str, Any]:
        low, high = limits or (None, None)
        unit = "share" if name.endswith("_hits") else "probability"
        return fixed | {"name": name, "value": value, "low": low, "high": high, "unit": unit, "trials": trials}

    rows = []
    for kind, n_right in found.n_right.items():
        rate, trials = float((n_right >= settings.horizon - settings.tolerance).mean()), n_right.shape[1]
        rows.append(row(f"{kind}_success", rate, n_right.size, binomial_limits(rate, trials)))
        rows.append(row(f"{kind}_hits", float(n_right.mean()) / settings.horizon, n_right.size))
    for kind, (successes, n) in found.simulated.items():
        rate = successes / n
        rows.append(row(f"{kind}_success_made_up", rate, n, binomial_limits(rate, n)))
    return [*rows, row(BOUND, found.bound, 0)]


def binomial_limits(rate: float, n: int) -> tuple[float, float]:
    """Clopper and Pearson's limits of a share of ``n`` trials; a share between two of them is rounded outwards.

    >>> [round(limit, 3) for limit in binomial_limits(0.0, 10)]
    [0.0, 0.308]
    """
    error = (1 - CONFIDENCE) / 2
    fewer, more = np.floor(rate * n + 1e-9), np.ceil(rate * n - 1e-9)
    low = float(beta.ppf(error, fewer, n - fewer + 1)) if fewer > 0 else 0.0
    high = float(beta.ppf(1 - error, more + 1, n - more)) if more < n else 1.0
    return low, high


def summarize_reconstruction(results: pl.DataFrame) -> dict[str, Any]:
    """Mean success of each estimator, and the mean bound, of each mobility group.

    Parameters
    ----------
    results
        Of `SCHEMA`.

    Returns
    -------
    figures
        ``groups`` by name, people of the run first and ``made up`` last, which the bound is about: ``n_targets``,
        ``success`` of each estimator with ``mean``, ``low`` and ``high``, and ``bound``. Intervals (95 %) cover the
        choice of targets, by Student's t, and of trials, whichever is wider; those of made-up ways the trials.
    """
    everybody = (*MOBILITY_GROUPS, EVERYBODY)
    groups = {}
    for name in everybody:
        own = results if name == EVERYBODY else results.filter(pl.col("mobility") == name)
        if len(own):
            groups[name] = {
                "n_targets": own["target"].n_unique(),
                "success": {kind: _people(own.filter(pl.col("name") == f"{kind}_success")) for kind in KINDS},
                "bound": _bound(own),
            }
    made_up = {kind: results.filter(pl.col("name") == f"{kind}_success_made_up") for kind in KINDS}
    if any(map(len, made_up.values())):
        groups[MADE_UP] = {
            "n_targets": results["target"].n_unique(),
            "success": {kind: _made_up(rows) for kind, rows in made_up.items() if len(rows)},
            "bound": _bound(results),
        }
    return {"confidence": CONFIDENCE, "groups": groups}


def _bound(results: pl.DataFrame) -> float:
    return float(results.filter(pl.col("name") == BOUND)["value"].to_numpy().mean())


def _people(rows: pl.DataFrame) -> dict[str, float | None]:
    figure = mean_with_interval(rows["value"].to_numpy(), 0.0)
    # releases of one stretch are no trials of their own
    n_stretches = int(rows["stretches"].sum())
    low, high = binomial_limits(figure["mean"] or 0.0, n_stretches)
    return {
        "mean": figure["mean"],
        "low": low if figure["low"] is None else min(low, figure["low"]),
        "high": high if figure["high"] is None else max(high, figure["high"]),
    }


def _made_up(rows: pl.DataFrame) -> dict[str, float | None]:
    rate = float(np.average(rows["value"].to_numpy(), weights=rows["trials"].to_numpy()))
    low, high = binomial_limits(rate, int(rows["trials"].sum()))
    return {"mean": rate, "low": low, "high": high}


def reconstruction_text(summary: Mapping[str, Any]) -> str:
    """The table that a person reads."""
    game = summary["game"]
    lines = [
        f"reconstruction: {game['n_attacked']} of {game['n_people']} people, {game['horizon']} windows at a time, at "
        f"most {game['tolerance']} guessed wrong",
        f"stretches: {game['stretches']}, after {game['training']} training windows; releases of each: "
        f"{game['releases']}; prior: {game['prior']}",
        "share of ways retraced, in brackets 95 % intervals; the bound is for ways as the prior makes them (made up)",
        "each stretch from all releases up to its end; made-up ways by somebody told where they were just before it",
        f"{'mobility':<10} {'targets':>7}  " + "  ".join(f"{kind.replace('_', ' '):<20}" for kind in KINDS) + "  bound",
    ]
    for name, found in summary["groups"].items():
        cells = [shown(found["success"][kind]) if kind in found["success"] else "" for kind in KINDS]
        row = "  ".join(f"{cell:<20}" for cell in cells)
        lines.append(f"{name:<10} {found['n_targets']:>7}  {row}  {found['bound']:.3f}")
    return "\n".join([*lines, *fewer_targets(game)])
