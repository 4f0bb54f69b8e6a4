"""Estimate a run's cost and error in advance from public information alone by rehearsing it without people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from penstock.accountants.core.charges import charges_shown, concentrated_rho, pure_epsilon
from penstock.mechanisms.core.contract import Interpretation, Postprocess, Release, Window
from penstock.mechanisms.core.guarantee import EPSILON, RHO
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.run import run_mechanism
from penstock.mechanisms.core.unit import Unit
from penstock.pipeline.config.plan import Plan, outline
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.output.loss import ReleaseCosts, of_counts, price, short
from penstock.pipeline.output.registration import run_terms
from penstock.pipeline.windows.calendar import DAY, wall_time

HOUR = 3_600_000
#: Windows of a rehearsal where not all are rehearsed, and how many counts these and all may hold.
REHEARSED = 168
MAX_COUNTS = 200_000
MAX_TOTAL_COUNTS = 500_000
#: Counts of a rehearsal, about, where a run holds fewer: of a few counts the figures would be a matter of luck.
MIN_COUNTS = 20_000


class Rehearsal(NamedTuple):
    """A simulated run without people, based on public facts and a public seed, with replicas for stable estimates.

    ``releases`` are noisy counts before post-processing; ``has_every_charge`` if they are of all windows, and no charge
    follows earlier outputs.
    """

    plan: Plan
    windows: Sequence[Window]
    releases: list[Release]
    has_every_charge: bool


def rehearse(config: RunConfig, *, max_counts: int = MAX_TOTAL_COUNTS) -> Rehearsal | None:
    """Release windows of zero counts through the steps, covering the whole run if it is small.

    None for traces and for cells derived from the data, which is not read.
    """
    if any(step.guarantee.on_points for step in config.mechanism) or config.space.derived_from_data:
        return None
    plan = outline(config, NoiseKey.from_seed(0))
    n_cells, n_in_run, reader = plan.grid.n_cells, plan.grid.calendar.n_windows, plan.chain.reader
    n_windows = max(plan.chain.bounding_windows, min(REHEARSED, MAX_COUNTS // n_cells))
    is_fixed = reader.unit.kind == "period" or not reader.guarantee.adaptive
    is_whole = is_fixed and n_in_run is not None and n_in_run * n_cells <= max_counts
    if n_in_run is not None:
        n_windows = n_in_run if is_whole else min(n_windows, n_in_run)
    nobody = np.zeros((max(1, MIN_COUNTS // (n_windows * n_cells)), n_windows, n_cells), np.int64)
    noisy = replace(plan.chain, after=())  # what is done to the noisy counts would show zeros as zeros
    windows = plan.grid.windows(1, n_windows)
    return Rehearsal(plan, windows, run_mechanism(noisy, nobody, plan.facts(), windows=windows), is_whole)


def expected_losses(rehearsal: Rehearsal) -> dict[str, float] | None:
    """Return an upper bound on the result of `losses` based on the configuration alone.

    Charges that are fixed beforehand are summed over a rehearsal. Otherwise the budget of the mechanism's unit counts
    in full for as many units as a day, or the run (missing for an endless stream), can meet; and ``unit``, what one of
    several windows costs, takes the place of ``release``.
    """
    plan = rehearsal.plan
    if not rehearsal.has_every_charge:
        return _budget_totals(plan)
    # A block may end with windows that no release is about.
    by_index, zone = {window.index: window for window in rehearsal.windows}, plan.config.windows.time_zone
    first = [release.replica(0) for release in rehearsal.releases]
    rows = []
    for release, charge in zip(first, charges_shown(first)):
        scales = np.broadcast_to(release.scale, release.values.shape)
        scales = scales if release.active is None else scales[release.active]
        if not len(scales):  # no cell is active
            continue
        window, epsilon = by_index[release.window], pure_epsilon(charge)
        available = window.end + plan.grid.lateness_ms if release.available_at is None else release.available_at
        days = [wall_time(zone, moment) // DAY for moment in (window.start, window.end - 1)]
        is_covered = release.action == "published" and epsilon == 0
        rows.append((available, *days, is_covered, epsilon, concentrated_rho(charge), release.noise, scales[0]))
    return of_counts(ReleaseCosts(*map(np.array, zip(*rows))), plan.chain.reader.guarantee.measure) if rows else None


def _budget_totals(plan: Plan) -> dict[str, float]:
    """Return a unit's budget times the number of units in a day and in the run."""
    terms, calendar = run_terms(plan), plan.grid.calendar
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
        """Return the amounts (see `price`) for consecutive windows that span a number of periods."""
        units = -(-n // terms.length) if terms.kind == "stretch" else periods
        if terms.kind == "landmarks":
            # Landmarks cost with every other window, one at a time, at most the budget.
            units = max(n, 1) + periods - 1
        total = terms.budget * units
        if terms.measure == EPSILON:
            return total, total**2 / 2
        return (math.inf, total) if terms.measure == RHO else (math.inf, math.inf, total)

    first = "release" if (terms.kind, terms.length) == ("stretch", 1) else "unit"
    figures = {first: amounts(1, 1), "day": amounts(per_day, periods)}
    return price(figures if n_windows is None else figures | {"run": amounts(n_windows, n_periods)})


def budget_unit(rehearsal: Rehearsal) -> str:
    """Describe in words the windows that the figure ``unit`` of `expected_losses` covers, or return an empty string."""
    if rehearsal.has_every_charge:
        return ""
    terms = run_terms(rehearsal.plan)
    kind = "run" if terms.kind == "period" and terms.period is None else terms.kind
    return Unit(kind, terms.length if kind == "stretch" else 1).words().removeprefix("one user's events in ")


def expected_noise(rehearsal: Rehearsal) -> tuple[float, float] | None:
    """Return the noise's mean absolute value and 95 % quantile for a single count, or None if there is no noise."""
    sizes = np.abs(np.concatenate([release.values for release in rehearsal.releases]))
    sizes = np.sort(sizes[np.isfinite(sizes)])
    return (float(sizes.mean()), float(sizes[math.ceil(0.95 * len(sizes)) - 1])) if sizes.any() else None


def noise_warning(config: RunConfig, noise: float) -> str | None:
    """Return a warning if the mean absolute noise is at least as large as the typical count, if that is known."""
    typical = config.typical_count
    if typical is None or noise < typical:
        return None
    smoothing_note = ", unless smoothing mends it" if _is_smoothed(config) else ""
    figures = f"about {short(noise)} {_counted(config)} of noise where {short(typical)} are typical"
    return f"Zeros would be nearer to the counts{smoothing_note}: {figures}. {remedies(noise, typical)}"


def _counted(config: RunConfig) -> str:
    return "people" if config.source.has_people else "trips"


def _is_smoothed(config: RunConfig) -> bool:
    return any(
        isinstance(step, Postprocess) or not Interpretation.of(step).releases_single_counts for step in config.mechanism
    )


def describe_expected_noise(config: RunConfig, mean: float, upper: float) -> str:
    """Describe the result of `expected_noise` in a sentence."""
    text = (
        f"Noise will make a count wrong by about {short(mean)} {_counted(config)} on average, and by up to "
        f"{short(upper)} in 95 % of cases"
    )
    if (typical := config.typical_count) is None:
        return f"{text}: counts that are not well above that are lost in it (typical_count sets yours beside it)."
    given = f"{text}; {short(typical)} are typical (typical_count)"
    later = ", before it is smoothed" if _is_smoothed(config) else ""
    return f"{given}: by {100 * mean / typical:.0f} % of a count{later}."


def remedies(error: float, count: float) -> str:
    """Suggest remedies for a release that is worse than zeros, such as larger counts with the same error.

    >>> remedies(24.0, 10.0)
    'Take larger cells or longer windows, of 3 times as many people, or more budget.'
    """
    fuller = f", of {short(max(math.ceil(error / count), 2))} times as many people," if count > 0 else ""
    return f"Take larger cells or longer windows{fuller} or more budget."
