"""The two manifests: what may be told to everybody, and what the operator needs to know."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from accountants.core.accountant import Accountant
from mechanisms.core.mechanism import Mechanism
from pipeline.configuration.run import RunConfig, digest, resolved
from pipeline.key_epochs import key_epochs
from pipeline.plan import Plan

PACKAGES = ("apache-beam", "numpy", "scipy", "polars", "pyarrow", "river", "scikit-learn", "dp-accounting")
#: Penstock's own code, and the part of it that only shows what others have found.
CODE, SHOWN = ("accountants", "evaluation", "mechanisms", "pipeline"), "pipeline/reporting"
ROOT = Path(__file__).parent.parent
UNFIT = "This is a simulation: its seed undoes the noise. Its outputs are unfit for publication."


def versions() -> dict[str, str]:
    """Versions of everything that can affect a result."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("penstock", *PACKAGES):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


@cache
def code_digest(root: Path = ROOT) -> str:
    """SHA-256 of penstock's own source files, read once by a process: a result that is kept is that of this code only.

    Parameters
    ----------
    root
        Folder of the packages.
    """
    total = hashlib.sha256()
    for file in sorted(file for package in CODE for file in (root / package).rglob("*.py")):
        name = file.relative_to(root).as_posix()
        if not name.startswith(f"{SHOWN}/"):
            total.update(name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def made_by() -> dict[str, Any]:
    """What decides a result beside its configuration and input: versions, and penstock's code whatever its version."""
    return {"versions": versions(), "code": code_digest()}


def guarantee_in_words(mechanism: Mechanism) -> dict[str, str]:
    """What one mechanism promises, for people."""
    guarantee = mechanism.stated_guarantee
    return {
        "mechanism": type(mechanism).__module__.rpartition(".")[2],
        "guarantee": guarantee.statement if guarantee.exists else "none: the mechanism has no privacy guarantee",
        "unit": guarantee.unit,
        "neighbours": guarantee.neighbours,
        "theorem": guarantee.theorem,
    }


def public_manifest(plan: Plan, accounts: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """What may be published with the releases: no secret, nothing that depends on data but through the releases.

    Parameters
    ----------
    plan
        The run.
    accounts
        Every accountant's figures (`pipeline.outcome.account_summaries`); those that are not public are left out.
    """
    config = resolved(plan.config)
    if plan.config.mode == "deployment":
        config.pop("source", None)
    config["output"].pop("kafka", None)
    # The others' books are the operator's, and their settings may name people.
    config["accountants"] = [own for own, a in zip(config["accountants"], plan.config.accountants) if a.public]
    return {
        "name": plan.config.name,
        "mode": plan.config.mode,
        "notice": UNFIT if plan.config.mode == "simulation" else "Released under the guarantee below.",
        "configuration": config,
        "configuration_digest": digest(plan.config).hex(),
        "versions": versions(),
        "guarantee": [guarantee_in_words(m) for m in plan.config.mechanism],
        "sensitivity": {"max_cells": plan.max_cells, "l1": plan.max_cells, "l2": plan.max_cells**0.5},
        "cells": plan.n_cells,
        "windows": plan.calendar.n_windows,
        "distinct_people": plan.config.source.has_people,
        "accounts": [dict(books) for books in accounts if books["public"]],
    }


def input_digests(config: RunConfig) -> dict[str, str]:
    """SHA-256 of every input by its name; one over all where a deployment's files are named after people."""
    digests = config.source.digests()
    if config.mode == "simulation" or not config.source.recorded.names_users:
        return digests
    text = json.dumps(digests, sort_keys=True)
    return {f"{len(digests):,} files": hashlib.sha256(text.encode()).hexdigest()}


def operator_manifest(plan: Plan, **facts: Any) -> dict[str, Any]:
    """The operator's record of the run."""
    key = {"key": plan.key.fingerprint, "epochs": key_epochs(plan)}
    noise = {"seed": plan.config.seed} if plan.key.simulation else key
    return {
        # With the *name* of the key's file or variable, so that the run can be checked and repeated; never the key.
        "configuration": resolved(plan.config, secrets=True),
        "configuration_digest": digest(plan.config).hex(),
        "noise": noise,
        "versions": versions(),
        "accountants": [_name(a) for a in plan.accountants],
        "distinct_people": plan.config.source.has_people,
        **facts,
    }


def _name(accountant: Accountant) -> str:
    return type(accountant).__module__.rpartition(".")[2]
