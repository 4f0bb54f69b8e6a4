"""Summaries of games, averaged over targets with confidence intervals, and formatted as readable tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.accountants.inference.estimators import Estimator
from penstock.accountants.online_attack import auc_interval, exact_interval
from penstock.evaluation.attacks.challenge import CONFIDENCE, privacy_gain
from penstock.evaluation.attacks.parameters import MAX_PEOPLE
from penstock.evaluation.attacks.user_space import MOBILITY_GROUPS
from penstock.evaluation.metrics import half_width

EVERYBODY = "everybody"
#: An aggregate of fewer people is said to be no crowd.
CROWD = 10
KINDS: Sequence[Estimator] = get_args(Estimator)
SIMULATED = "made up"
BOUND = "success_upper_bound"
#: Estimators that read a release, and what follows their names where they read exact counts instead.
READERS: Sequence[Estimator] = ("map", "posterior_marginals")
EXACT = "_exact"


def summarize(results: pl.DataFrame) -> dict[str, Any]:
    """Return the mean area under the curve on raw and on released aggregates, and the gain, by mobility group.

    Returns ``groups`` by name: ``n_targets``, and ``raw``, ``released``, ``privacy_gain``, each with ``mean``,
    ``low`` and ``high``; and ``found``, for raw and released: the share of the challenges with their target that score
    above all but 1 % of those without, null where a target has fewer than 100 of these. The interval (95 %) covers the
    choice of targets, by Student's t, and of challenges, whichever is wider; that of a gain covers the targets only and
    is null for a single one, and for equal ones; that of what is found is exact, for these targets.
    """
    groups = {}
    for name, rows in by_mobility(results):
        raw, released = (rows.filter(pl.col("released") == one).sort("target") for one in (False, True))
        gain = privacy_gain(raw["auc"].to_numpy(), released["auc"].to_numpy())
        groups[name] = {
            "n_targets": len(raw),
            "raw": _area(raw),
            "released": _area(released),
            "found": {"raw": _true_positive_share(raw), "released": _true_positive_share(released)},
            "privacy_gain": mean_with_interval(np.asarray(gain)),
        }
    return {"confidence": CONFIDENCE, "groups": groups}


def by_mobility(results: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the rows of each nonempty mobility group, followed by all rows."""
    for name in (*MOBILITY_GROUPS, EVERYBODY):
        rows = results if name == EVERYBODY else results.filter(pl.col("mobility") == name)
        if len(rows):
            yield name, rows


def _area(results: pl.DataFrame) -> dict[str, float | None]:
    auc = results["auc"].to_numpy()
    n_challenges = int(results["n_challenges"].sum())
    limits = auc_interval(float(auc.mean()), n_challenges // 2, n_challenges - n_challenges // 2, CONFIDENCE)
    return widened(mean_with_interval(auc), limits)


def _true_positive_share(results: pl.DataFrame) -> dict[str, float | None]:
    """Return the true-positive rate at a false-positive rate of 1 %, with an exact confidence interval."""
    counted, n_present = results["found"].drop_nulls(), int(((results["n_challenges"] + 1) // 2).sum())
    if len(counted) < len(results):
        return {"mean": None, "low": None, "high": None}
    low, high = exact_interval(int(counted.sum()), n_present, CONFIDENCE)
    return {"mean": int(counted.sum()) / n_present, "low": low, "high": high}


def widened(figure: Mapping[str, float | None], limits: tuple[float, float]) -> dict[str, float | None]:
    """Return a mean whose interval covers both the interval over targets and the interval over trials."""
    low, high = limits
    return {
        "mean": figure["mean"],
        "low": low if figure["low"] is None else min(low, figure["low"]),
        "high": high if figure["high"] is None else max(high, figure["high"]),
    }


def mean_with_interval(values: NDArray[np.float64]) -> dict[str, float | None]:
    """Return the mean and its Student's t interval in [0, 1], without an interval if all values are equal."""
    mean = float(values.mean())
    if values.size < 2 or np.ptp(values) == 0:  # equal values do not estimate a variance
        return {"mean": mean, "low": None, "high": None}
    reach = half_width(values, CONFIDENCE)
    return {"mean": mean, "low": max(mean - reach, 0.0), "high": min(mean + reach, 1.0)}


def as_text(summary: Mapping[str, Any]) -> str:
    """Format the summary as a plain-text table."""
    game = summary["game"]
    lines = [
        f"{game['attack']} attack, prior {game['prior']}: {game['n_people']} people in groups of {game['group_size']}, "
        f"{game['samples']} samples a target",
        *counted_people(game),
        *attacked_part(game),
        "AUC: 1 is always right, 0.5 is guessing; in brackets 95 % intervals",
        f"{'mobility':<10} {'targets':>7}  {'AUC of raw counts':<21}  {'AUC of the release':<21}  privacy gain",
    ]
    for name, group in summary["groups"].items():
        cells = [shown(group[figure]) for figure in ("raw", "released", "privacy_gain")]
        lines.append(f"{name:<10} {group['n_targets']:>7}  {cells[0]:<21}  {cells[1]:<21}  {cells[2]}")
    groups = summary["groups"]
    released, raw = (groups[EVERYBODY][name]["mean"] for name in ("released", "raw"))
    lines.append(describe_attack("tells apart", "pairs (one counted, one not)", released, 0.5, raw))
    rates = groups[EVERYBODY]["found"]
    if rates["raw"]["mean"] is not None:
        found = f"{shown(rates['raw'])} of raw counts, {shown(rates['released'])} of the release"
        lines.append(f"found at 1 % false alarms: {found}")
    return "\n".join([*lines, *near_chance(groups), *missing_targets(game)])


def describe_attack(predicate: str, subject: str, released: float, without: float, raw: float) -> str:
    """Describe how many of 100 attempts succeed given the release, given exact counts, and given neither.

    >>> describe_attack("retraces", "hours", 0.42, 0.2, 0.421)
    'retraces 42 of 100 hours with the release, 42 from exact counts, 20 without either: the noise does not help here'
    """
    shown, exact, neither = (round(100 * share) for share in (released, raw, without))
    meaning = "the noise hides a part" if released < raw - 0.01 else "the noise does not help here"
    if released <= without:
        meaning = "the release adds nothing"
    return (
        f"{predicate} {shown} of 100 {subject} with the release, {exact} from exact counts, {neither} without either: "
        f"{meaning}"
    )


def near_chance(groups: Mapping[str, Any]) -> list[str]:
    """Return a caveat about the privacy gain if the attack is hardly better than chance."""
    everybody = groups[EVERYBODY]
    raw, released = (everybody[name]["mean"] for name in ("raw", "released"))
    low = everybody["released"]["low"]
    if raw <= 0.5 or (released if low is None else low) > 0.5:
        return []
    gain = (raw - max(released, 0.5)) / (raw - 0.5) if raw > released else 0.0
    return [f"guessing has 0.5: gains of single targets are noise near it; of the mean areas the gain is {gain:.2f}"]


def counted_people(game: Mapping[str, Any]) -> list[str]:
    """Describe which people are counted in a challenge under the prior ``subset``."""
    if game["prior"] != "subset":
        return []
    challenges_of = {"known": "people whom she knows", "others": "people whom she does not know"}[game["challenges"]]
    share = f"{100 * game['known']:g} %"
    if game.get("attack") == "zero_knowledge":
        return ["she knows no one but her target, whose trace she has, the size of the group, and the mechanism"]
    return [
        f"she knows {share} of the people; challenges count {challenges_of} beside the target ({game['challenges']})"
    ]


def attacked_part(game: Mapping[str, Any]) -> list[str]:
    """Describe which people and windows are not attacked, and warn about aggregates of too few people."""
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


def missing_targets(game: Mapping[str, Any]) -> list[str]:
    """Explain why fewer targets were attacked than requested."""
    requested, attacked, n_left = game["targets"], game["n_attacked"], game.get("n_left", 0)
    if n_left:
        return [f"stopped for the time: {n_left} of {requested} targets are left, which the same command goes on with"]
    return [f"{attacked} people are all that there are: fewer targets than the {requested} asked for"] * (
        attacked < requested
    )


def shown(figure: Mapping[str, float | None]) -> str:
    """Format a mean with its interval."""
    if figure["low"] is None:
        return f"{figure['mean']:.3f}"
    return f"{figure['mean']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]"


def binomial_limits(rate: float, n: int) -> tuple[float, float]:
    """Return the Clopper-Pearson limits of a rate observed in ``n`` trials. Fractional counts are rounded outward.

    >>> [round(limit, 3) for limit in binomial_limits(0.0, 10)]
    [0.0, 0.308]
    """
    fewer, more = math.floor(rate * n + 1e-9), math.ceil(rate * n - 1e-9)
    return exact_interval(fewer, n, CONFIDENCE)[0], exact_interval(more, n, CONFIDENCE)[1]


def summarize_reconstruction(results: pl.DataFrame) -> dict[str, Any]:
    """Return each estimator's mean success and the mean bound, by mobility group.

    The last group, ``made up``, are simulated trajectories, which the bound is about. Intervals (95 %) cover the choice
    of targets, by Student's t, and of trials, whichever is wider; those of simulated trajectories cover the trials.
    ``hits``: share of the windows that the best estimator of each kind guesses right: from the release, from exact
    counts, and without either.
    """

    def of_people(rows: pl.DataFrame) -> dict[str, float | None]:
        """Average over targets, because repeated releases of the same segment are not independent trials."""
        figure = mean_with_interval(rows["value"].to_numpy())
        return widened(figure, binomial_limits(figure["mean"] or 0.0, int(rows["stretches"].sum())))

    def pooled(rows: pl.DataFrame) -> dict[str, float | None]:
        """Return the success rate over all simulated trajectories."""
        rate = float(np.average(rows["value"].to_numpy(), weights=rows["trials"].to_numpy()))
        low, high = binomial_limits(rate, int(rows["trials"].sum()))
        return {"mean": rate, "low": low, "high": high}

    groups = {}
    made_up = results.filter(pl.col("name").str.ends_with("_made_up"))
    for name, group in [*by_mobility(results), *([(SIMULATED, results)] if len(made_up) else [])]:
        suffix, figure = ("_success_made_up", pooled) if name == SIMULATED else ("_success", of_people)
        rows_of = {kind: group.filter(pl.col("name") == kind + suffix) for kind in KINDS}
        groups[name] = {
            "n_targets": group["target"].n_unique(),
            "success": {kind: figure(rows) for kind, rows in rows_of.items() if len(rows)},
            "bound": float(group.filter(pl.col("name") == BOUND)["value"].to_numpy().mean()),
        }
    mean_of = dict(results.group_by("name").agg(pl.col("value").mean()).iter_rows())
    blind = [kind for kind in KINDS if kind not in READERS]
    reads = {"released": (READERS, ""), "raw": (READERS, EXACT), "without": (blind, "")}
    hits = {name: max(mean_of[f"{kind}{suffix}_hits"] for kind in kinds) for name, (kinds, suffix) in reads.items()}
    return {"confidence": CONFIDENCE, "groups": groups, "hits": hits}


def reconstruction_text(summary: Mapping[str, Any]) -> str:
    """Format the summary of a reconstruction attack as a plain-text table."""
    game = summary["game"]
    lines = [
        f"reconstruction: {game['n_attacked']} of {game['n_people']} people, {game['horizon']} windows at a time, at "
        f"most {game['tolerance']} guessed wrong",
        f"segments: {game['stretches']}, after {game['training']} training windows; releases of each: "
        f"{game['releases']}; prior: {game['prior']}",
        "adversary: knows "
        + ("everybody else's cells" if game["known"] == 1 else f"the cells of {game['known']:.0%} of others"),
        "share of trajectories retraced, in brackets 95 % intervals; the bound is for those of the prior (made up)",
        "each segment from all releases up to its end; drawn ones by an adversary who knows the place just before it",
        f"{'mobility':<10} {'targets':>7}  " + "  ".join(f"{kind.replace('_', ' '):<20}" for kind in KINDS) + "  bound",
    ]
    for name, group in summary["groups"].items():
        cells = [shown(group["success"][kind]) if kind in group["success"] else "" for kind in KINDS]
        row = "  ".join(f"{cell:<20}" for cell in cells)
        lines.append(f"{name:<10} {group['n_targets']:>7}  {row}  {group['bound']:.3f}")
    return "\n".join([*lines, describe_attack("retraces", game["guessed"], **summary["hits"]), *missing_targets(game)])


def recovery_text(summary: Mapping[str, Any]) -> str:
    """Format the summary of a recovery attack as a plain-text table."""
    game, rows = summary["game"], summary["found"]
    challenges_of = f"all {game['n_people']:,} people"
    if game["people"] < game["n_people"]:
        challenges_of = f"{game['people']:,} of {game['n_people']:,} people"
    windows_note = f"{game['windows']:,} windows"
    if game["windows"] < game["n_windows"]:
        windows_note = f"the first {game['windows']:,} of {game['n_windows']:,} windows"
    lines = [f"trajectory recovery: {challenges_of} in {windows_note}"]
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
    accuracy = {row["from"]: row["accuracy"] for row in rows}
    released, raw = accuracy["the release"], accuracy["raw counts"]
    without = max(accuracy["without the release"], accuracy["the release, shuffled"])
    return "\n".join([*lines, describe_attack("retraces", "visits", released, without, raw)])
