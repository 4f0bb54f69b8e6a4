"""Privacy loss of a person by a release, a day and a run: bounds before it, sums after it, and wording."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from penstock.mechanisms.core.concentrated import SMOOTHING, epsilon_at
from penstock.mechanisms.core.guarantee import EPSILON, GAUSSIAN, RHO
from penstock.pipeline.config.plan import Plan
from penstock.pipeline.output.registration import own_terms
from penstock.pipeline.output.tables import releases_table
from penstock.pipeline.output.utility_summary import Rehearsal, first_rows, short
from penstock.pipeline.windows.calendar import DAY, wall_time

#: δ of the figures of a budget in ρ.
DELTA = 1e-6
#: ε of a day from which on a promise is weak, and from which on it is next to none.
WEAK, VERY_WEAK = 5.0, 10.0
HOUR = 3_600_000


def losses(releases: pl.LazyFrame, time_zone: str, measure: str | None = None) -> dict[str, float] | None:
    """Largest loss of a person by one release, a day and the run: sums of charges.

    A day pays for every release that shares time with it. It pays twice for one that goes beyond it: the person's other
    events stay there, and bounding may keep another of them. A charge is about all windows up to the next one that are
    published without a charge of their own, such as those of a budget period that is paid for once.

    Parameters
    ----------
    releases
        The table ``public/releases``, or ``public/traces``, of which the person who loses most counts.
    time_zone
        Zone of the days.
    measure
        Of the guarantee: where it is ``gaussian`` all noise is, and the ε at δ is the exact one. It takes the scale of
        a row for that of its noise; where shares of a count are released the latter is larger, and the loss less.

    Returns
    -------
    ε in nats by ``release``, ``day`` and ``run``. Where one of them is infinite, all are what their ρ says at
    ``delta``, which is there then; infinite without a guarantee. None before the first release.
    """
    amounts = ["epsilon", "rho"]
    if measure == GAUSSIAN:
        variance = pl.col("scale") ** 2
        minimum = pl.when(pl.col("noise").cast(pl.String) == "gaussian").then(0.0).otherwise(SMOOTHING)
        amount = pl.when(variance > minimum).then(pl.col("rho") * variance / (variance - minimum)).otherwise(math.inf)
        releases = releases.with_columns(gaussian=pl.when(pl.col("rho") > 0).then(amount).otherwise(0.0))
        amounts.append("gaussian")
    charge = pl.col(amounts)
    of_one = [f"one_{name}" for name in amounts]
    total = charge.sort().sum()  # groups come in any order, and the last bit of a sum depends on it
    if "pseudonym" in releases.collect_schema().names():
        person = ["pseudonym"]
        points = releases.with_columns(day=_date(pl.col("time"), time_zone))
        daily = points.group_by(*person, "day").agg(charge.max().name.prefix("one_"), total)
        days = daily.collect(engine="streaming")
        overall = days.group_by(*person).agg(total)
    else:
        # The windows of a block leave together, and are paid for once.
        first = _date(pl.col("window_start").min(), time_zone)
        last = _date((pl.col("window_end") - pl.duration(milliseconds=1)).max(), time_zone)
        is_covered = ((pl.col("action") == "published") & (pl.col("epsilon") == 0)).any()
        paid = first_rows(releases).group_by("available_at")
        released = paid.agg(charge.max(), first=first, last=last, is_covered=is_covered).collect(engine="streaming")
        # Of the windows that an earlier charge covers the last one ends it.
        covered = pl.when("is_covered").then("last").otherwise(None).max()
        number = (~pl.col("is_covered")).cum_sum()
        by_charge = released.sort("available_at").group_by(number.alias("charge"))
        charges = by_charge.agg(
            charge.max(), pl.col("first").min(), last=pl.max_horizontal(pl.col("last").first(), covered)
        )
        spans_days = pl.col("first") != pl.col("last")
        days = (
            charges.with_columns(charge.name.prefix("one_"), day=pl.date_ranges("first", "last"))
            .with_columns(charge * pl.when(spans_days).then(2.0).otherwise(1.0))
            .explode("day")
            .group_by("day")
            .agg(pl.col(of_one).max(), total)
        )
        overall = charges.select(total)
    if days.is_empty():
        return None
    of_release = days.select(of_one).max().row(0)
    of_day, of_run = (frame.select(amounts).max().row(0) for frame in (days, overall))
    return _price({"release": of_release, "day": of_day, "run": of_run})


def _price(amounts: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the ε of amounts in ε, ρ and, if there is a third, half of μ² of Gaussian noise.

    Where one ε is infinite all are the smallest that the others have at δ.
    """
    if all(math.isfinite(epsilon) for epsilon, *_ in amounts.values()):
        return {name: epsilon for name, (epsilon, *_) in amounts.items()}
    at_delta = {
        name: min(epsilon_at(kind, amount, DELTA) for kind, amount in zip((RHO, GAUSSIAN), others))
        for name, (_, *others) in amounts.items()
    }
    return at_delta | {"delta": DELTA}


def _date(time: pl.Expr, time_zone: str) -> pl.Expr:
    return time.dt.convert_time_zone(time_zone).dt.date()


# Before a run, from public facts alone.


def expected_losses(rehearsal: Rehearsal) -> dict[str, float] | None:
    """Upper bound of `losses`, from the configuration alone.

    A run whose charges are fixed beforehand is rehearsed on zeros, and its charges summed as those of the run will be.
    Where they follow earlier outputs, or the run is long or endless, the budget of the mechanism's unit counts in full
    for as many units as a day, or the run, can meet: more than the run will come to, never less.

    ``run`` is missing for an endless stream.
    """
    plan = rehearsal.plan
    if not rehearsal.has_every_charge:
        return _budget_totals(plan)
    # A block may end with windows that no release is about.
    by_index = {window.index: window for window in rehearsal.windows}
    released = [by_index[release.window] for release in rehearsal.releases]
    first = [release.replica(0) for release in rehearsal.releases]
    table = pl.DataFrame(releases_table(first, released, list(plan.space.cells), plan.grid.lateness_ms))
    return losses(table.lazy(), plan.config.windows.time_zone, plan.chain.reader.guarantee.measure)


def _budget_totals(plan: Plan) -> dict[str, float]:
    """Return the budget of a unit times the number of units in a day and in a run."""
    terms, calendar = own_terms(plan), plan.grid.calendar
    n_windows = calendar.n_windows
    day = DAY if calendar.time_zone == "UTC" else DAY + HOUR  # that clocks are set back in
    begin = wall_time(calendar.time_zone, calendar.start(1))
    per_day = -(-day // terms.step)
    if begin % terms.step or DAY % terms.step:
        per_day = 2 * (per_day + 1)  # some windows go beyond the day
    day_is_whole = terms.period is not None and DAY % terms.period == begin % DAY == 0
    n_periods = 1 if terms.period is None or n_windows is None else -(-n_windows * terms.step // terms.period)
    periods = DAY // (terms.period or 1) if day_is_whole else 2 * (-(-day // (terms.period or day)) + 1)

    def amounts(n: int, periods: int) -> tuple[float, ...]:
        """Return the amounts (see `_price`) of a number of successive windows in a number of periods."""
        units = -(-n // terms.length) if terms.kind == "stretch" else periods
        if terms.kind == "landmarks":
            # Landmarks cost with every other window, one at a time, at most the budget.
            units = max(n, 1) + periods - 1
        total = terms.budget * units
        if terms.measure == EPSILON:
            return total, total**2 / 2
        return (math.inf, total) if terms.measure == RHO else (math.inf, math.inf, total)

    figures = {"release": amounts(1, 1), "day": amounts(per_day, periods)}
    return _price(figures if n_windows is None else figures | {"run": amounts(n_windows, n_periods)})


# In words.


def even_odds(epsilon: float) -> str:
    """Upper bound on the posterior probability after even odds, for ε.

    >>> [even_odds(epsilon) for epsilon in (0.0, 1.0, 2.0, 5.0, 10.0)]
    ['50 %', '73 %', '88 %', '99.3 %', 'over 99.9 %']
    """
    share = 100 / (1 + math.exp(-epsilon))
    return "over 99.9 %" if share > 99.9 else f"{share:.1f} %" if share >= 98.5 else f"{share:.0f} %"


def losses_in_words(figures: Mapping[str, float], one: str = "person") -> str:
    """Describe the result of `losses` or `expected_losses` in a sentence; ``one``: the holder of an id.

    >>> losses_in_words({"release": 0.4, "day": 2.0, "run": 14.0})
    'One person loses at most ε = 2 by a day (even odds become at most 88 %), 14 by the whole run (over 99.9 %),
    0.4 by one release (60 %); in nats, sums of the charges.'
    >>> losses_in_words({"release": math.inf, "day": math.inf, "run": math.inf})
    'What one person loses has no bound: not by one release, not by a day, not by the whole run.'
    """
    if math.isinf(figures["release"]):
        return f"What one {one} loses has no bound: not by one release, not by a day, not by the whole run."
    names = {"day": "by a day", "run": "by the whole run", "release": "by one release"}
    amounts = [
        f"{short(figures[name])} {words} ({even_odds(figures[name])})"
        for name, words in names.items()
        if name in figures
    ]
    amounts[0] = amounts[0].replace("(", "(even odds become at most ").replace("at most over", "over")
    delta = f" at δ = {figures['delta']:g}" if "delta" in figures else ""
    endless = "" if "run" in figures else ", and as much again by each day that follows"
    return f"One {one} loses at most ε = {', '.join(amounts)}{endless}; in nats{delta}, sums of the charges."


def caution(figures: Mapping[str, Any] | None) -> str | None:
    """Caution for the losses of `losses`; None if a day is sufficiently protected or unbounded.

    >>> caution({"release": 0.4, "day": 9.6, "run": 134.0})
    'A day costs one person up to ε = 9.6: weak protection, even odds become over 99.9 %.'
    >>> caution({"release": 2.0, "day": 2.0, "run": 2.0})
    """
    if figures is None or math.isinf(figures["release"]):
        return None
    day, run = figures["day"], figures.get("run", 0.0)
    if day > VERY_WEAK:
        return f"A day costs one person up to ε = {short(day)}: next to no protection."
    if day > WEAK:
        return f"A day costs one person up to ε = {short(day)}: weak protection, even odds become {even_odds(day)}."
    if run > VERY_WEAK:
        return (
            f"The whole run costs one person up to ε = {short(run)}: a single day is protected, whoever is there every "
            "day has next to no protection."
        )
    return None
