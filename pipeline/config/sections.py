"""Configuration sections and registries of the plug-ins that they refer to."""

from __future__ import annotations

import importlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.accountants.core.accountant import ACCOUNTANTS
from penstock.evaluation.metrics import GROUP, check_metric
from penstock.mechanisms.core.contract import MECHANISMS
from penstock.mechanisms.core.plugin import (
    FOLDERS,
    Checked,
    ParameterError,
    PluginError,
    Registry,
    load_visible,
    parameter,
    places,
    refresh,
)
from penstock.pipeline.sources.base import SOURCES
from penstock.pipeline.sources.reading.services import check_options, required_form
from penstock.pipeline.spaces.base import SPACES
from penstock.pipeline.windows.base import WINDOWS

#: Base class of every family of plug-ins, and the registry in which YAML's ``type`` is looked up.
FAMILIES: tuple[Registry[Any], ...] = (SOURCES, SPACES, WINDOWS, MECHANISMS, ACCOUNTANTS)
UNIONS: dict[type, Registry[Any]] = {family.base: family for family in FAMILIES}


def plugins_of(family: Registry[Any]) -> dict[str, type]:
    """Load every plug-in in a family and return them by name."""
    return {name: family.get(name) for name in family.names()}


def add_folder(folder: str) -> None:
    """Register the files in a folder as plug-ins of this thread. They cannot replace built-in ones.

    Its sub-folders are called as the packages are: ``mechanisms``, ``accountants``, ``sources``, ``spaces``,
    ``windows``, ``metrics``. Importing a plug-in runs its code; metrics are imported here. Raises `PluginError` if the
    file of a metric cannot be imported or does not register it, or the name of a file is taken.
    """
    folder = os.path.abspath(folder)
    if folder in FOLDERS.get():
        return
    packages = {family.package: family.group for family in UNIONS.values()} | {"penstock.evaluation": GROUP}
    for package, group in packages.items():
        inside, others = os.path.join(folder, group.rpartition(".")[2]), places(package, group)
        if os.path.isdir(inside):
            names = {file.stem: file for place in others for file in Path(place).glob("[!_]*.py")}
            for file in sorted(Path(inside).glob("[!_]*.py")):
                if other := names.get(file.stem):
                    raise PluginError(f"{file}:1: its name is that of {other}; rename the file and its class")
            path = importlib.import_module(package).__path__
            path[1:] = [inside, *(place for place in path[1:] if place != inside)]
    FOLDERS.set((*FOLDERS.get(), folder))
    refresh()
    for file in sorted(Path(folder, "metrics").glob("[!_]*.py")):
        check_metric(load_visible("penstock.evaluation", file.stem, GROUP))


@dataclass(frozen=True, kw_only=True)
class KafkaOutput(Checked):
    """The Kafka topics to which rows are sent. Each row is a JSON object with the columns of its file."""

    brokers: str = parameter(doc="bootstrap servers: host:port, separated by commas")
    releases: str | None = parameter(None, doc="topic of the releases; key: stream/window/cell")
    accounts: str | None = parameter(None, doc="topic of the public accounts; key: stream/accountant/subject/…")
    options: dict[str, str] = parameter(factory=dict, doc="options of the client; secrets as env: or file:")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self.options)
        if self.releases is None and self.accounts is None:
            raise ParameterError("releases", None, "the name of a topic (or give accounts)")


@dataclass(frozen=True, kw_only=True)
class StoreOutput(Checked):
    """A folder for public files in an object store, on HDFS or on a disk. Each file is written once."""

    path: str = parameter(doc="folder for this run alone (gs://, s3://, hdfs://, abfs://) or an absolute path")
    options: dict[str, str] = parameter(factory=dict, doc="fsspec's, such as endpoint_url; secrets as env: or file:")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self.options)
        if "://" not in self.path and not os.path.isabs(self.path):
            raise ParameterError("path", self.path, "a URL such as gs://bucket/folder, or an absolute path")


#: Form of the name of a topic of Pub/Sub.
TOPIC = "projects/PROJECT/topics/TOPIC"


@dataclass(frozen=True, kw_only=True)
class PubSubOutput(Checked):
    """The Pub/Sub topics to which rows are sent. Each row is a JSON object with the columns of its file."""

    releases: str | None = parameter(None, doc=f"topic of the releases: {TOPIC}")
    accounts: str | None = parameter(None, doc="topic of the public accounts")
    endpoint: str | None = parameter(
        None, doc="regional endpoint, which keeps the order of windows, such as europe-west1-pubsub.googleapis.com:443"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, name in (("releases", self.releases), ("accounts", self.accounts)):
            if name is not None and (expected := required_form(name, TOPIC)):
                raise ParameterError(field, name, expected)
        if self.releases is None and self.accounts is None:
            raise ParameterError("releases", None, f"{TOPIC} (or give accounts)")


def check_local(field: str, path: str) -> None:
    """Raise `ParameterError` if a path is in an object store (``gs:`` would become a folder) or its name is too long.

    >>> check_local("path", "gs://bucket/run")
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.ParameterError: path: 'gs://bucket/run': must be a path of a file system with ...
    """
    if "://" in path:
        expected = "a path of a file system with locks and atomic renames (a disk, NFS), which object stores lack; "
        raise ParameterError(field, path, expected + "output.store publishes what is public to one")
    if max(len(os.fsencode(part)) for part in path.split(os.sep)) > LONGEST_NAME:
        raise ParameterError(field, path, f"a path of names of at most {LONGEST_NAME} bytes")


#: Bytes of a file's name: file systems take 255, and heads, locks and temporary files have longer ones.
LONGEST_NAME = 200
_SOURCE_NAME = re.compile(rf"\w[\w.-]{{,{LONGEST_NAME - 1}}}", re.ASCII)

#: Keys of the output that name a sink: where something is published says nothing of what it is.
SINKS = ("kafka", "store", "pubsub")


@dataclass(frozen=True, kw_only=True)
class Output(Checked):
    """A run's output: its folder, files, ledger and sinks."""

    path: str = parameter(kind="output", doc="folder of the run; public/ in it is all that may leave the operator")
    truth: bool = parameter(True, doc="write the true counts for the operator (simulation only, whatever is set)")
    user_summaries: bool = parameter(True, doc="summarise users (how many, cells and windows each) for the operator")
    report: bool = parameter(True, doc="write report.html; a deployment has one to publish and one for the operator")
    outlines: str | None = parameter(
        None, kind="path", doc="GeoJSON, GeoParquet or GeoPackage outlines for the maps; a simplified copy is published"
    )
    ledger: str | None = parameter(
        None,
        kind="output",
        doc="ledger of deployments over the same events; unset: penstock/ledgers/<ledger_source> under "
        "XDG_STATE_HOME or ~/.local/state (required on a cluster)",
    )
    ledger_budget: float | None = parameter(
        None, above=0, unit="nats", doc="budget of the ledger for a person, as ε or ρ; unset: the first run's promise"
    )
    ledger_span: int | None = parameter(
        None,
        kind="duration",
        above=0,
        unit="ms",
        doc="stretch that this budget protects; unset: the first run's unit",
    )
    ledger_source: str | None = parameter(None, doc="name of the event source of the ledger; required in a deployment")
    new_ledger: bool = parameter(False, doc="begin another ledger over a source: their total cost is then unknown")
    delay: int = parameter(
        0,
        kind="duration",
        at_least=0,
        unit="ms",
        doc="fixed time from a final window of a stream to its release; if shorter than the work takes, the moment of "
        "release tells how much there was to count",
    )
    kafka: KafkaOutput | None = parameter(None, doc="topics that releases and public accounts are sent to as well")
    store: StoreOutput | None = parameter(None, doc="object store or file system to which public files are copied")
    pubsub: PubSubOutput | None = parameter(None, doc="topics of Pub/Sub that releases and accounts are sent to")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_local("path", self.path)
        check_local("ledger", self.ledger or "")
        if self.ledger_source is not None and not _SOURCE_NAME.fullmatch(self.ledger_source):
            expected = f"at most {LONGEST_NAME} letters, digits, '.', '_' and '-'"
            raise ParameterError("ledger_source", self.ledger_source, expected)
        if self.ledger_span is not None and self.ledger_budget is None:
            raise ParameterError("ledger_budget", None, "given with ledger_span: what a person's events in it may cost")
        target = os.path.realpath(self.path)
        store = self.store.path if self.store is not None else "://"
        if "://" not in store and os.path.commonpath([target, os.path.realpath(store)]) == target:
            raise ParameterError("store.path", store, "a folder outside output.path")
