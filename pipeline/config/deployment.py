"""Rules for deployments: public facts must not be derived from private data, and it must be impossible to remove the
noise.
"""

from __future__ import annotations

import math
import os

from penstock.mechanisms.core.contract import MECHANISMS, NOISELESS, EventStep, amounts, noise_of
from penstock.mechanisms.core.schedules import AUTO, Schedule
from penstock.mechanisms.filter import Filter
from penstock.pipeline.config.rules import Accountants, Finding, Findings, Rule, Steps, on_points
from penstock.pipeline.config.sections import Output
from penstock.pipeline.releasing.ledger import is_profile_charged
from penstock.pipeline.sources.base import LiveSource, Source
from penstock.pipeline.sources.reading.columns import MappedColumns
from penstock.pipeline.spaces.base import Space
from penstock.pipeline.windows.landmarks import Landmarks


def require_secret_key(seed: int | None, noise_key: str | None, output: Output) -> Findings:
    """Require a secret key outside the output folder: anyone can remove noise that is drawn from a known seed."""
    if seed is not None:
        yield Finding(("seed",), seed, "left out in a deployment (anyone who knows the seed can remove the noise)")
    if noise_key is None:
        expected = "the path of a key file or env:NAME in a deployment ('penstock key new' makes one)"
        yield Finding(("noise_key",), None, expected)
    elif not noise_key.startswith("env:"):
        folder = os.path.realpath(output.path)
        if os.path.commonpath([folder, os.path.realpath(noise_key)]) == folder:
            yield Finding(("noise_key",), noise_key, "a file outside the output folder")


def require_ledger_terms(output: Output, mechanism: Steps) -> Findings:
    """Require a name for the event source in the ledger and a fixed measure for the ledger's budget."""
    if output.ledger_source is None:
        expected = "a name for the event source, the same in all deployments over the same events"
        yield Finding(("output", "ledger_source"), None, expected)
    if output.ledger_budget is not None and any(noise_of(step) == AUTO for step in mechanism):
        expected = "left out with noise: auto, since it is in ε or ρ as the noise is; or the noise must be named"
        yield Finding(("output", "ledger_budget"), output.ledger_budget, expected)


def reject_truth(accountants: Accountants, utility: tuple[str, ...]) -> Findings:
    """Reject metrics, which need true counts, and attack games, which need known members."""
    for i, accountant in enumerate(accountants):
        if accountant.simulation_only:
            yield Finding(("accountants", i, "type"), "", "left out in a deployment; play the game on a simulation")
    if utility:
        yield Finding(("utility",), utility, "left out in a deployment, which keeps no true counts")


def require_public_facts(
    space: Space, looked_at_data: bool | None, mechanism: Steps, landmarks: Landmarks | None
) -> Findings:
    """Reject supposedly public facts and profiles that are derived from private data."""
    for i, step in enumerate(mechanism):
        if isinstance(step, Filter) and step.profile is not None and not is_profile_charged(step.profile):
            expected = "declared: public, or with the ledger that holds the charges of the run that it is learned from"
            expected += " (a profile of an earlier version names no run: learn it again)"
            yield Finding(("mechanism", i, "profile"), step.profile.file, expected)
    if space.derived_from_data:
        yield Finding(("space",), space, "a list of places from elsewhere, not the most visited of the private data")
    if looked_at_data:
        expected = "left out in a deployment: decide what is marked LOOKED by what is public, then remove the key"
        yield Finding(("looked_at_data",), True, expected)
    for name, reason in (("stay_points", "where someone stays is private"), ("drawn", "they mean nothing")):
        if on_points(mechanism) and (value := getattr(landmarks, name, None)) is not None:
            expected = f"left out in a deployment: {reason}; give windows, times or recurring"
            yield Finding(("landmarks", name), value, expected)


def require_guarantee(mechanism: Steps, allow_no_guarantee: bool) -> Findings:
    """Require that the first step on counts, the only one that reads private values, has a guarantee, unless waived."""
    on_counts = [i for i, step in enumerate(mechanism) if not isinstance(step, EventStep)]
    for i in on_counts[:1] or range(len(mechanism))[-1:]:
        promised = mechanism[i].guarantee
        # That a parameter is infinite is said below.
        is_promise = promised.exists or any(value == math.inf for value in amounts(mechanism[i]).values())
        if not allow_no_guarantee and not is_promise:
            expected = "a mechanism with a guarantee in a deployment (or set allow_no_guarantee: true)"
            yield Finding(("mechanism", i, "type"), "", expected)


def require_user_rows(source: Source, allow_no_guarantee: bool) -> Findings:
    """Require that rows belong to people and that a row's lateness depends only on its own arrival."""
    if not source.has_people:
        at = ("source", "columns", "user") if isinstance(source, MappedColumns) else ("source", "type")
        expected = "a column that says who it is, in a deployment: of rows without one, nobody can be promised anything"
        yield Finding(at, "", expected)
    flaw = source.lateness_flaw if isinstance(source, LiveSource) else None
    if flaw is not None and not allow_no_guarantee:
        key, expected = flaw
        text = f"{expected}: else one person's event makes other people's rows late (or set allow_no_guarantee: true)"
        yield Finding(("source", key), getattr(source, key, None), text)


def require_exact_noise(mechanism: Steps) -> Findings:
    """Reject mechanisms without noise or with floating-point noise, which leaks the count (Mironov 2012)."""
    for i, step in enumerate(mechanism):
        name = MECHANISMS.name_of(type(step))
        family = noise_of(step)
        if isinstance(step, Schedule) and family != AUTO:
            family = step.family.name
        if family in ("laplace", "gaussian"):
            key = "type" if name == family else "noise"
            yield Finding(("mechanism", i, key), family, f"discrete_{family} in a deployment")
        for amount, value in amounts(step).items():
            if value == NOISELESS[amount]:
                expected = "finite in a deployment" if value else "above 0 in a deployment"
                yield Finding(("mechanism", i, amount), value, expected)


#: All rules of a deployment, in the order in which findings on one line are reported.
DEPLOYMENT_RULES: tuple[Rule, ...] = (
    require_secret_key,
    require_ledger_terms,
    reject_truth,
    require_public_facts,
    require_guarantee,
    require_user_rows,
    require_exact_noise,
)
