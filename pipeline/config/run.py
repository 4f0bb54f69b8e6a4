"""A run's configuration: its sections, their defaults, and how it is loaded from YAML."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.accountants.core.accountant import Accountant
from penstock.evaluation.utility import DEFAULT
from penstock.mechanisms.core.contract import ChainStep
from penstock.mechanisms.core.plugin import FOLDERS, Checked, ConfigError, PluginError, parameter
from penstock.pipeline.config.build import FAILED, Builder, fields_of
from penstock.pipeline.config.rules import METRIC, RULES, broken_rules, check_unused_keys, on_points
from penstock.pipeline.config.sections import UNIONS, Output, add_folder
from penstock.pipeline.config.yaml import Mapping, Place, Problem, apply_override, locate, nodes, parse_section, write
from penstock.pipeline.counting.bounding import Bounding
from penstock.pipeline.sources.base import Source
from penstock.pipeline.spaces.base import Space
from penstock.pipeline.windows.base import Windows
from penstock.pipeline.windows.calendar import Calendar
from penstock.pipeline.windows.landmarks import Landmarks
from penstock.pipeline.windows.sensors import Sensors


@dataclass(frozen=True, kw_only=True)
class RunConfig(Checked):
    """A run's configuration."""

    name: str = parameter(doc="name of the run in reports")
    mode: str = parameter(
        "simulation",
        doc="deployment: secret noise key, no truth, and nothing public is taken from private data",
        choices=("simulation", "deployment"),
    )
    seed: int | None = parameter(None, at_least=0, doc="seed of a simulation's noise (unset: 0)")
    noise_key: str | None = parameter(None, kind="key", doc="secret of a deployment's noise")
    source: Source = parameter(doc="where events come from, and which time range of them is released")
    space: Space = parameter(doc="the public, fixed list of cells")
    sensors: Sensors = parameter(factory=Sensors, doc="cells that publish, window by window")
    windows: Windows = parameter(doc="division of event time")
    bounding: Bounding = parameter(factory=Bounding, doc="bounds on one user's contributions")
    landmarks: Landmarks | None = parameter(None, doc="windows that are significant to everybody, publicly known")
    budget_period: int | None = parameter(None, kind="duration", above=0, doc="time of a budget; unset: the whole run")
    mechanism: tuple[ChainStep, ...] = parameter(doc="steps on events, then one that releases, then post-processing")
    accountants: tuple[Accountant, ...] = parameter((), doc="accountants of the loss")
    utility: tuple[str, ...] = parameter(
        (), kind="metric", doc=f"metrics of a simulation; unset: {', '.join(DEFAULT)}; of traces mae"
    )
    output: Output = parameter(doc="folder, files, ledger and sinks")
    on_exhausted: str | None = parameter(
        None,
        doc="at the end of a budget: stop (exit code 3), or go on with refused rows (unset: on a cluster alone)",
        choices=("stop", "repeat"),
    )
    allow_no_guarantee: bool = parameter(False, doc="let a deployment release through a mechanism without guarantee")
    looked_at_data: bool | None = parameter(None, doc="values are from a look at the data; a deployment refuses true")
    allow_empty: bool | None = parameter(
        None, doc="release empty counts where no row can be used: a missing release tells nothing (unset: an error)"
    )
    typical_count: float | None = parameter(None, above=0, doc="mean count of a cell and window, publicly known")
    plugins: tuple[str, ...] = parameter((), kind="path", doc="folders of plug-ins, in sub-folders mechanisms, …")

    @property
    def calendar(self) -> Calendar:
        """The calendar of the run's windows."""
        return self.windows.calendar(self.source.from_, self.source.until)


#: Where a configuration names the folder of its run.
OUT = ("output", "path")


def load(path: str | Path, overrides: Iterable[str] = (), out: str | Path | None = None) -> RunConfig:
    """Load a configuration file, applying the ``key.path=value`` overrides in order.

    ``out``: as in `loads`. Raises `ConfigError` with every problem found, one line each.
    """
    return loads(read_text(path), name=str(path), folder=Path(path).parent, overrides=overrides, out=out)


def read_text(path: str | Path) -> str:
    """Read a configuration file. Raises `ConfigError` if it does not exist."""
    if Path(path).suffix in (".csv", ".gz"):
        raise ConfigError((f"{path}: is no configuration, which is a YAML file; 'penstock init {path}' drafts one",))
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError((f"{path}: is not UTF-8 text (byte {error.start}); it must be a YAML file",)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError((f"{path}: cannot be read ({reason}); it must be a YAML file",)) from None


def loads(
    text: str,
    name: str = "<string>",
    folder: Path | None = None,
    overrides: Iterable[str] = (),
    out: str | Path | None = None,
) -> RunConfig:
    """Load a configuration from YAML text.

    ``name``: what to call it in messages. ``folder``: where relative input paths are looked for after the working
    directory. ``overrides``: as in `load`. ``out``: the folder of the run where there is no ``output.path``. Raises
    `ConfigError` with every problem found, in the order of the lines.

    >>> loads("nmae: example\\nname: 7\\nseed: -1")
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.ConfigError: ...
    """
    root, problems = parse_section(text, name, "a run")
    if root.items.keys() & {"base", "study"} and not root.items.keys() & {"source", "mechanism"}:
        raise ConfigError((f"{name}: is an experiment, not the configuration of a run: penstock experiment {name}",))
    for override in overrides:
        problems += apply_override(root, override)
    if out is not None and locate(root, OUT)[1] is None:
        problems += filter(None, [write(root, OUT, nodes(str(out), Place("--out")))])
    return from_document(root, folder, problems)


def add_plugins(root: Mapping, folder: Path | None) -> list[Problem]:
    """Register a configuration's plug-ins in place of the previous configuration's, and return any problems."""
    builder = Builder(UNIONS, folder)
    FOLDERS.set(())
    if (node := root.items.get("plugins")) is not None:
        [field] = (field for field in fields_of(RunConfig) if field.name == "plugins")
        folders = builder.value(node, field, ("plugins",))
        for path in () if folders is FAILED else folders:
            try:
                add_folder(path)
            except PluginError as error:
                builder.fail(node, ("plugins",), str(error))
    return builder.problems


def from_document(
    root: Mapping, folder: Path | None = None, problems: Iterable[Problem] = (), is_trial: bool = False
) -> RunConfig:
    """Validate a parsed configuration document. Raises `ConfigError` with every problem and its line.

    ``problems``: what is known to be wrong already. ``is_trial``: accept keys that nothing in the configuration reads
    (`rules.check_unused_keys`), since another trial may read them.
    """
    problems = list(problems)
    if broken := add_plugins(root, folder):
        raise ConfigError(tuple(map(str, problems + broken)))  # which names there are is not known
    builder = Builder(UNIONS, folder)
    fields = {field.name: field for field in fields_of(RunConfig)}
    values = builder.values(root, RunConfig, ())
    problems += [problem for problem in builder.problems if problem not in problems]
    known = {name: field.default for name, field in fields.items() if not field.required} | values
    rules = [rule for rule in RULES if not (is_trial and rule is check_unused_keys)]
    if known["mode"] == "deployment":
        from penstock.pipeline.config.deployment import DEPLOYMENT_RULES

        rules += DEPLOYMENT_RULES
    problems += broken_rules(rules, root, known)
    if problems:
        problems.sort(key=lambda problem: math.inf if problem.place.line is None else problem.place.line)
        raise ConfigError(tuple(map(str, problems)))
    if values.get("mode", "simulation") == "simulation":
        values.setdefault("utility", (METRIC,) if on_points(values["mechanism"]) else DEFAULT)
    return RunConfig(**values)
