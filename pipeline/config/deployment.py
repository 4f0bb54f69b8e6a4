"""Rules of a deployment: no public fact comes from private data, and no noise can be undone."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

from penstock.mechanisms.core.contract import MECHANISMS, ChainStep, EventStep
from penstock.mechanisms.filter import Filter
from penstock.pipeline.config.rules import Finding, Rule
from penstock.pipeline.config.sections import Output
from penstock.pipeline.releasing.ledger import is_paid_for
from penstock.pipeline.sources.base import LiveSource, Source
from penstock.pipeline.spaces.base import Space


def key_follows_mode(mode: str, seed: int | None, noise_key: str | None) -> Iterator[Finding]:
    """A seed makes noise that anyone can undo; only a secret key protects a deployment."""
    if mode == "deployment" and seed is not None:
        yield Finding(("seed",), seed, "left out in a deployment (anyone who knows the seed can remove the noise)")
    if mode == "deployment" and noise_key is None:
        expected = "the path of a key file or env:NAME in a deployment ('penstock key new' makes one)"
        yield Finding(("noise_key",), None, expected)
    if mode == "simulation" and noise_key is not None:
        yield Finding(("noise_key",), noise_key, "left out in a simulation, whose noise comes from the seed")


def deployed_output_is_private(
    mode: str, noise_key: str | None, output: Output, mechanism: tuple[ChainStep, ...]
) -> Iterator[Finding]:
    """Files in the output folder may be handed on; a ledger belongs to an event source, which has one name."""
    if mode == "deployment" and output.ledger_source is None:
        expected = "a name for the event source, the same in all deployments over the same events"
        yield Finding(("output", "ledger_source"), None, expected)
    if output.ledger_budget is not None and any(getattr(step, "noise", "") == "auto" for step in mechanism):
        expected = "left out with noise: auto, since it is in ε or ρ as the noise is; or the noise must be named"
        yield Finding(("output", "ledger_budget"), output.ledger_budget, expected)
    if mode == "deployment" and output.rejects == "raw":  # a rejected row names a person and a place
        yield Finding(("output", "rejects"), "raw", "places in a deployment")
    if noise_key is not None and not noise_key.startswith("env:"):
        folder = os.path.realpath(output.path)
        if os.path.commonpath([folder, os.path.realpath(noise_key)]) == folder:
            yield Finding(("noise_key",), noise_key, "a file outside the output folder")


def deployed_facts_are_public(
    mode: str, space: Space, looked_at_data: bool | None, mechanism: tuple[ChainStep, ...]
) -> Iterator[Finding]:
    """Refuse public facts, and a profile, that were derived from private data."""
    if mode != "deployment":
        return
    for i, one in enumerate(mechanism):
        if isinstance(one, Filter) and one.profile is not None and not is_paid_for(one.profile):
            expected = "declared: public, or with the ledger that holds the charges of the run that it is learned from"
            yield Finding(("mechanism", i, "profile"), one.profile.file, expected)
    if space.derived_from_data:
        yield Finding(("space",), space, "a list of places from elsewhere, not the most visited of the private data")
    if looked_at_data:
        expected = (
            "left out in a deployment: decide what is marked LOOKED by what is publicly known, then remove the key"
        )
        yield Finding(("looked_at_data",), True, expected)


def deployed_mechanisms_have_a_guarantee(
    mode: str, mechanism: tuple[ChainStep, ...], allow_no_guarantee: bool
) -> Iterator[Finding]:
    """The first step on counts, which alone reads private values, has a guarantee, unless that is waived explicitly."""
    on_counts = [i for i, one in enumerate(mechanism) if not isinstance(one, EventStep)]
    for i in on_counts[:1] or range(len(mechanism))[-1:]:
        promised = mechanism[i].guarantee
        is_promise = promised.exists or promised.amount == math.inf  # that it is infinite is said below
        if mode == "deployment" and not allow_no_guarantee and not is_promise:
            expected = "a mechanism with a guarantee in a deployment (or set allow_no_guarantee: true)"
            yield Finding(("mechanism", i, "type"), "", expected)


def deployed_rows_are_people(mode: str, source: Source, allow_no_guarantee: bool) -> Iterator[Finding]:
    """A guarantee is for people, and whether a row is late depends on when it arrived, never on another's event."""
    if mode != "deployment":
        return
    if not source.has_people:
        yield Finding(("source", "type"), "", "a source whose rows belong to people, in a deployment")
    flaw = source.lateness_flaw if isinstance(source, LiveSource) else None
    if flaw is not None and not allow_no_guarantee:
        key, expected = flaw
        text = f"{expected}: else one person's event makes other people's rows late (or set allow_no_guarantee: true)"
        yield Finding(("source", key), getattr(source, key, None), text)


def deployed_noise_protects(mode: str, mechanism: tuple[ChainStep, ...]) -> Iterator[Finding]:
    """Floating-point noise carries traces of the count (Mironov 2012); none at all releases the counts themselves."""
    for i, one in enumerate(mechanism if mode == "deployment" else ()):
        name = MECHANISMS.name_of(type(one))
        family = getattr(one, "noise", name)
        if family in ("laplace", "gaussian"):
            key = "type" if name == family else "noise"
            yield Finding(("mechanism", i, key), family, f"discrete_{family} in a deployment")
        for amount, nothing in (("epsilon", math.inf), ("rho", math.inf), ("sigma", 0)):
            if getattr(one, amount, None) == nothing:
                expected = "finite in a deployment" if nothing else "above 0 in a deployment"
                yield Finding(("mechanism", i, amount), nothing, expected)


#: All rules of a deployment, in the order in which findings on one line are reported.
DEPLOYMENT_RULES: tuple[Rule, ...] = (
    key_follows_mode,
    deployed_output_is_private,
    deployed_facts_are_public,
    deployed_mechanisms_have_a_guarantee,
    deployed_rows_are_people,
    deployed_noise_protects,
)
