"""What a deployment refuses: everything that would make public facts from private data, or noise that can be undone."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

from accountants.core.accountant import Accountant
from mechanisms.core.errors import DataError
from mechanisms.core.mechanism import MECHANISMS, Mechanism
from pipeline import sealing
from pipeline.configuration.rule import Finding, Rule
from pipeline.configuration.sections import Output
from pipeline.source import Source
from pipeline.space import Space


def key_follows_mode(mode: str, seed: int | None, noise_key: str | None) -> Iterator[Finding]:
    """A seed makes noise that anybody can undo; only a secret key protects a deployment."""
    if mode == "deployment" and seed is not None:
        yield Finding(("seed",), seed, "left out in a deployment (whoever knows the seed can remove the noise)")
    if mode == "deployment" and noise_key is None:
        right = "the path of a key file or env:NAME in a deployment ('penstock key new' makes one)"
        yield Finding(("noise_key",), None, right)
    if mode == "simulation" and noise_key is not None:
        yield Finding(("noise_key",), noise_key, "left out in a simulation, whose noise comes from the seed")


def key_stays_out_of_the_output(noise_key: str | None, output: Output) -> Iterator[Finding]:
    """What lies in the output folder may be handed on."""
    if noise_key is None or noise_key.startswith("env:"):
        return
    folder = os.path.realpath(output.path)
    if os.path.commonpath([folder, os.path.realpath(noise_key)]) == folder:
        yield Finding(("noise_key",), noise_key, "a file outside the output folder")


def deployed_cells_are_public(mode: str, space: Space) -> Iterator[Finding]:
    """A cell list taken from private data tells of it."""
    if mode == "deployment" and space.derived_from_data:
        yield Finding(("space",), space, "a list of places from elsewhere, not the most visited of the private data")


def deployed_mechanisms_have_a_guarantee(
    mode: str, mechanism: tuple[Mechanism, ...], allow_no_guarantee: bool
) -> Iterator[Finding]:
    """A deployment releases through a mechanism with a guarantee, unless that is waived in so many words.

    It is the first one after steps on events; what follows works on private values.
    """
    on_counts = [i for i, one in enumerate(mechanism) if one.stages != ("events",)]
    for i in on_counts[:1] or range(len(mechanism))[-1:]:
        if mode == "deployment" and not allow_no_guarantee and not mechanism[i].stated_guarantee.exists:
            right = "a mechanism with a guarantee in a deployment (or set allow_no_guarantee: true)"
            yield Finding(("mechanism", i, "type"), "", right)


def deployed_noise_is_exact(mode: str, mechanism: tuple[Mechanism, ...]) -> Iterator[Finding]:
    """Floating-point noise carries traces of the count (Mironov 2012)."""
    for i, one in enumerate(mechanism):
        name = MECHANISMS.name_of(type(one))
        family = getattr(one, "noise", name)
        if mode == "deployment" and family in ("laplace", "gaussian") and "counts" in one.stages:
            key = "type" if name == family else "noise"
            yield Finding(("mechanism", i, key), family, f"discrete_{family} in a deployment")


def deployed_noise_is_there(mode: str, mechanism: tuple[Mechanism, ...]) -> Iterator[Finding]:
    """An infinite budget, or noise of size zero, releases the counts themselves."""
    for i, one in enumerate(mechanism):
        for name, nothing in (("epsilon", math.inf), ("rho", math.inf), ("sigma", 0)):
            if mode == "deployment" and getattr(one, name, None) == nothing:
                right = "finite in a deployment" if nothing else "above 0 in a deployment"
                yield Finding(("mechanism", i, name), nothing, right)


def deployed_calibration_is_sound(mode: str, mechanism: tuple[Mechanism, ...]) -> Iterator[Finding]:
    """The papers' calibrations are for comparison."""
    for i, one in enumerate(mechanism):
        if mode == "deployment" and getattr(one, "calibration", None) == "paper":
            right = "left to its default in a deployment (the paper's is for comparison)"
            yield Finding(("mechanism", i, "calibration"), "paper", right)


def deployment_keeps_no_truth(mode: str, utility: tuple[str, ...]) -> Iterator[Finding]:
    """Utility compares with the truth, which a deployment does not keep."""
    if mode == "deployment" and utility:
        yield Finding(("utility",), utility, "left out in a deployment, which keeps no true counts")


def deployed_rejects_are_not_kept(mode: str, output: Output) -> Iterator[Finding]:
    """A rejected row names a person and a place."""
    if mode == "deployment" and output.rejects == "raw":
        yield Finding(("output", "rejects"), "raw", "places or sealed in a deployment")


def rejects_can_be_sealed(output: Output) -> Iterator[Finding]:
    """What cannot be sealed must be known before anything is read."""
    if output.rejects_key is None:
        return
    if not sealing.is_installed():
        yield Finding(("output", "rejects"), output.rejects, f"raw or places: sealed {sealing.INSTALL}")
        return
    try:
        sealing.public_key(output.rejects_key)
    except DataError:
        yield Finding(("output", "rejects_key"), output.rejects_key, "the .pub file of 'penstock key pair'")


def deployed_rows_are_people(mode: str, source: Source) -> Iterator[Finding]:
    """Where a row is no person, no guarantee for people can be given."""
    if mode == "deployment" and not source.has_people:
        yield Finding(("source", "type"), "", "a source whose rows belong to people, in a deployment")


def deployed_accountants_need_no_labels(mode: str, accountants: tuple[Accountant, ...]) -> Iterator[Finding]:
    """The membership game, for one, is played with groups whose members are known: a simulation."""
    for i, one in enumerate(accountants):
        if mode == "deployment" and one.simulation_only:
            yield Finding(("accountants", i, "type"), "", "left out in a deployment; play the game on a simulation")


RULES: tuple[Rule, ...] = (
    key_follows_mode,
    key_stays_out_of_the_output,
    deployed_cells_are_public,
    deployed_mechanisms_have_a_guarantee,
    deployed_noise_is_exact,
    deployed_noise_is_there,
    deployed_calibration_is_sound,
    deployment_keeps_no_truth,
    deployed_rejects_are_not_kept,
    rejects_can_be_sealed,
    deployed_rows_are_people,
    deployed_accountants_need_no_labels,
)
