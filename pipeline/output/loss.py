"""A person's privacy loss from a single release, a day and the whole run, as sums of charges and as prose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.concentrated import SMOOTHING, epsilon_at
from penstock.mechanisms.core.guarantee import DELTA, GAUSSIAN, LAWS, RHO, at_most
from penstock.mechanisms.core.sensitivity import price_of_replacement

if TYPE_CHECKING:
    import polars as pl

#: ε of a day from which on a promise is weak, and from which on it is next to none.
WEAK, VERY_WEAK = 5.0, 10.0


def short(value: float) -> str:
    """Format a number to three digits, or as a whole number if it is at least 100.

    >>> short(0.0417), short(3.8), short(1203.7)
    ('0.0417', '3.8', '1,204')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def short_loss(loss: float) -> str:
    """Format a loss like `short`, but rounded up so that it is never understated.

    >>> short_loss(0.04171), short_loss(17.142857), short_loss(2.0), short_loss(1203.2)
    ('0.0418', '17.2', '2', '1,204')
    """
    return short(float(at_most(loss, max(3, len(f"{loss:.0f}")))))


class ReleaseCosts(NamedTuple):
    """Costs and times of count releases as columns. ``is_covered`` marks releases published without a charge."""

    available_at: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    is_covered: NDArray[np.bool_]
    epsilon: NDArray[np.float64]
    rho: NDArray[np.float64]
    noise: NDArray[np.str_]
    scale: NDArray[np.float64]


def losses(releases: pl.LazyFrame, time_zone: str, measure: str | None = None) -> dict[str, float] | None:
    """Return a person's largest privacy loss from one ``release``, a ``day`` and the ``run``, as sums of charges.

    A day pays for every release that shares time with it, for one that goes beyond it at the price of a replacement:
    the person's other events stay there, and bounding may keep another of them. A charge is about all windows up to the
    next one that are published without a charge of their own, such as those of a budget period that is paid for once.

    The result is in nats, at ``delta`` if an ε is infinite; None before the first release. With the ``measure``
    ``gaussian`` all noise is Gaussian and the ε at δ exact; where shares of a count are released the loss is less.
    """
    import polars as pl

    def day(time: pl.Expr) -> pl.Expr:
        return time.dt.convert_time_zone(time_zone).dt.date().to_physical().cast(pl.Int64)

    if "pseudonym" in releases.collect_schema().names():
        charge = pl.col("epsilon", "rho")
        of_one = charge.max().name.prefix("one_")
        total = charge.sort().sum()  # groups come in any order, and the last bit of a sum depends on it
        points = releases.with_columns(day=day(pl.col("time")))
        days = points.group_by("pseudonym", "day").agg(of_one, total).collect(engine="streaming")
        if days.is_empty():
            return None
        overall = days.group_by("pseudonym").agg(total)
        figures = (days.select("one_epsilon", "one_rho"), days.select(charge), overall.select(charge))
        return price(dict(zip(FIGURES, (frame.max().row(0) for frame in figures))))
    noise, scale = ("noise", "scale") if measure == GAUSSIAN else (pl.lit(""), pl.lit(0.0))
    paid = first_rows(releases).select(
        pl.col("available_at").to_physical(),
        first=day(pl.col("window_start")),
        last=day(pl.col("window_end") - pl.duration(milliseconds=1)),
        is_covered=(pl.col("action") == "published") & (pl.col("epsilon") == 0),
        epsilon="epsilon",
        rho="rho",
        noise=noise,
        scale=scale,
    )
    columns = paid.collect(engine="streaming").to_dict(as_series=True)
    return of_counts(ReleaseCosts(**{name: column.to_numpy() for name, column in columns.items()}), measure)


def first_rows(releases: pl.LazyFrame) -> pl.LazyFrame:
    """Return the first row of each release in ``public/releases``, in which the rows of a release are adjacent."""
    import polars as pl

    return releases.filter(pl.col("window").ne_missing(pl.col("window").shift()))


#: Names of the figures of `losses`.
FIGURES = ("release", "day", "run")


def of_counts(paid: ReleaseCosts, measure: str | None) -> dict[str, float] | None:
    """Return the `losses` from count releases."""
    if not len(paid.available_at):
        return None
    columns = [paid.epsilon, paid.rho]
    if measure == GAUSSIAN:  # μ²/2 for each release
        variance, least = paid.scale**2, np.where(paid.noise == "gaussian", 0.0, SMOOTHING)
        with np.errstate(divide="ignore", invalid="ignore"):
            amount = np.where(variance > least, paid.rho * variance / (variance - least), math.inf)
        columns.append(np.where(paid.rho > 0, amount, 0.0))
    amounts = np.stack(columns, axis=1)
    order = np.argsort(paid.available_at, kind="stable")
    at = _starts(paid.available_at[order])
    amounts = np.maximum.reduceat(amounts[order], at)
    first, last = np.minimum.reduceat(paid.first[order], at), np.maximum.reduceat(paid.last[order], at)
    is_covered = np.logical_or.reduceat(paid.is_covered[order], at)
    # Of the windows that an earlier charge covers the last one ends it.
    at = _starts(np.cumsum(~is_covered))
    end = np.maximum(last[at], np.maximum.reduceat(np.where(is_covered, last, -(2**62)), at))
    amounts, begin = np.maximum.reduceat(amounts, at), np.minimum.reduceat(first, at)
    n_days = end - begin + 1
    row = np.repeat(np.arange(len(at)), n_days)
    day = begin[row] + np.arange(len(row)) - np.repeat(np.cumsum(n_days) - n_days, n_days)
    order = np.argsort(day, kind="stable")
    prices = np.array([[price_of_replacement(kind, is_pure) for kind in LAWS] for is_pure in (False, True)])
    # A ρ may in part be that of a pure question about counts, unless all noise is Gaussian.
    is_pure = np.isfinite(amounts[:, 0]) | (measure != GAUSSIAN)
    partly = prices[is_pure.astype(int), : amounts.shape[1]]
    of_days = (amounts * np.where((end > begin)[:, None], partly, 1.0))[row[order]]
    cuts = [*_starts(day[order]), len(row)]
    of_day = [max(math.fsum(column[i:j]) for i, j in pairwise(cuts)) for column in of_days.T]
    return price(dict(zip(FIGURES, (amounts.max(axis=0), of_day, [math.fsum(column) for column in amounts.T]))))


def _starts(sorted_keys: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.flatnonzero(np.diff(sorted_keys, prepend=sorted_keys[0] - 1))


def price(amounts: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Convert amounts in ε, ρ and optionally μ²/2 to ε. If any ε is infinite, use the smallest ε at δ that the
    other measures imply.
    """
    if all(math.isfinite(epsilon) for epsilon, *_ in amounts.values()):
        return {name: float(epsilon) for name, (epsilon, *_) in amounts.items()}
    at_delta = {
        name: min(epsilon_at(kind, amount, DELTA) for kind, amount in zip((RHO, GAUSSIAN), others))
        for name, (_, *others) in amounts.items()
    }
    return at_delta | {"delta": DELTA}


# In words.


def even_odds(epsilon: float) -> str:
    """Format an upper bound on the posterior probability for a given ε and even prior odds.

    >>> [even_odds(epsilon) for epsilon in (0.0, 1.0, 2.0, 5.0, 10.0)]
    ['50 %', '73.2 %', '88.1 %', '99.4 %', 'over 99.9 %']
    """
    share = 100 / (1 + math.exp(-epsilon))
    return "over 99.9 %" if share > 99.9 else f"{at_most(share, 3)} %"


def describe_losses(figures: Mapping[str, float], one: str = "person", unit: str = "") -> str:
    """Describe the result of `losses` or `expected_losses` in a sentence. ``one`` is the noun for the holder of an id,
    and ``unit`` describes the span that the figure ``unit`` covers.

    >>> describe_losses({"release": 0.4, "day": 2.0, "run": 14.0})
    'One person loses at most ε = 2 by a day (even odds become at most 88.1 %), 14 by the whole run (over 99.9 %),
    0.4 by one release (59.9 %); in nats, sums of the charges.'
    >>> describe_losses({"release": 2.0, "day": 4.0, "run": 2.0})
    'One person loses at most ε = 4 by a day (even odds become at most 98.3 %), 2 by the whole run (88.1 %), 2 by one
    release (88.1 %); in nats, sums of the charges. A day costs more than the run because a charge goes beyond it:
    without its events, others of the person may be counted in their place.'
    >>> describe_losses({"unit": 1.0, "day": 4.0}, unit="any 6 successive windows")
    'One person loses at most ε = 4 by a day (even odds become at most 98.3 %), and as much again by each day that
    follows, 1 in any 6 successive windows (73.2 %); in nats, sums of the charges.'
    >>> describe_losses({"release": math.inf, "day": math.inf, "run": math.inf})
    'What one person loses has no bound: not by one release, not by a day, not by the whole run.'
    """
    if math.isinf(figures["day"]):
        return f"What one {one} loses has no bound: not by one release, not by a day, not by the whole run."
    names = {"day": "by a day", "run": "by the whole run", "release": "by one release", "unit": f"in {unit}"}
    amounts = [
        f"{short_loss(figures[n])} {words} ({even_odds(figures[n])})" for n, words in names.items() if n in figures
    ]
    amounts[0] = amounts[0].replace("(", "(even odds become at most ").replace("at most over", "over")
    if "run" not in figures:
        amounts[0] += ", and as much again by each day that follows"
    delta = f" at δ = {figures['delta']:g}" if "delta" in figures else ""
    words = f"One {one} loses at most ε = {', '.join(amounts)}; in nats{delta}, sums of the charges."
    return f"{words}{explain_day_excess(figures, one)}"


def explain_day_excess(figures: Mapping[str, float], one: str = "person") -> str:
    """Explain, after a leading space, why a day costs more than the run. Return an empty string if it does not."""
    if figures["day"] <= figures.get("run", math.inf):
        return ""
    return (
        " A day costs more than the run because a charge goes beyond it: without its events, others of the "
        f"{one} may be counted in their place."
    )


def caution(figures: Mapping[str, Any] | None, one: str = "person") -> str | None:
    """Return a warning about the result of `losses`, or None if the loss is small or unbounded. ``one`` is the noun for
    the holder of an id.

    >>> caution({"release": 0.4, "day": 9.6, "run": 134.0})
    'A day costs one person up to ε = 9.6: weak protection, even odds become over 99.9 %.'
    >>> caution({"release": 2.0, "day": 2.0, "run": 2.0})
    >>> caution({"release": 2.0, "day": 2.0, "run": 60.0}, "trip")
    'The whole run costs one trip up to ε = 60, and a person as much again by every further trip: next to no
    protection.'
    """
    if figures is None or math.isinf(figures["day"]):
        return None
    day, run = figures["day"], figures.get("run", 0.0)
    if day > VERY_WEAK:
        return f"A day costs one {one} up to ε = {short_loss(day)}: next to no protection."
    if day > WEAK:
        return f"A day costs one {one} up to ε = {short_loss(day)}: weak protection, even odds become {even_odds(day)}."
    if run > VERY_WEAK:
        after = f", and a person as much again by every further {one}: next to no protection."
        if one == "person":
            after = ": a single day is protected, whoever is there every day has next to no protection."
        return f"The whole run costs one {one} up to ε = {short_loss(run)}{after}"
    return None
