"""Build dataclasses from a parsed YAML document, reporting every problem with its line number."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable
from collections.abc import Mapping as Dictionary
from dataclasses import MISSING, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union

from penstock.mechanisms.core.plugin import (
    ConfigError,
    Parameter,
    ParameterError,
    PenstockError,
    PluginError,
    Registry,
    UnknownPlugin,
)
from penstock.pipeline.config import yaml
from penstock.pipeline.config.kinds import WrongValue, kind_of
from penstock.pipeline.config.sections import UNIONS
from penstock.pipeline.config.yaml import (
    Mapping,
    Node,
    Place,
    Problem,
    Scalar,
    Sequence,
    apply_override,
    locate,
    nodes,
    plain,
    shown,
)

# Keys, types and bounds, read from the dataclasses, and the phrases that messages describe them with.


@dataclass(frozen=True)
class Field:
    """A key in a configuration section."""

    name: str
    key: str
    hint: Any
    declared: Parameter
    default: Any  # MISSING: the key is mandatory

    @property
    def required(self) -> bool:
        """Return whether the key is mandatory."""
        return self.default is MISSING


def fields_of(cls: type) -> tuple[Field, ...]:
    """Return a section's keys (its `parameter` fields) in declaration order.

    >>> from penstock.pipeline.sources.base import Source
    >>> [field.key for field in fields_of(Source)]
    ['from', 'until', 'block_rows']
    """
    if cls in _KNOWN:
        return _KNOWN[cls]
    hints = typing.get_type_hints(cls)
    keys = []
    for field in dataclasses.fields(cls):
        declared = field.metadata.get("parameter")
        if declared is not None:
            default = field.default_factory() if field.default_factory is not MISSING else field.default
            keys.append(Field(field.name, declared.key or field.name, hints[field.name], declared, default))
    return _KNOWN.setdefault(cls, tuple(keys))


_KNOWN: dict[type, tuple[Field, ...]] = {}


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, with None as NoneType. For any other type hint, return a one-element tuple."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def is_section(hint: Any) -> bool:
    """Return whether a type is written in YAML as a section with fixed keys."""
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def is_tuple(hint: Any) -> bool:
    """Return whether a type is written in YAML as a list."""
    return typing.get_origin(hint) is tuple


def input_paths(section: Any) -> list[str]:
    """Return every input path named in a section and its subsections, in declaration order."""
    paths: list[str] = []
    for field in fields_of(type(section)):
        value = getattr(section, field.name)
        for entry in value if isinstance(value, tuple) else (value,):
            if is_section(type(entry)):
                paths += input_paths(entry)
            elif field.declared.kind == "path" and entry is not None:
                paths.append(str(entry))
    return paths


def expected(hint: Any, declared: Parameter, unions: dict[type, Registry[Any]]) -> str:
    """Describe a field's allowed values in a phrase that completes "must be …".

    >>> expected(tuple[float, ...] | None, Parameter(doc=""), {})
    'a list, each entry a number'
    """
    return " or ".join(_phrase(member, declared, unions) for member in alternatives(hint) if member is not type(None))


def _phrase(hint: Any, declared: Parameter, unions: dict[type, Registry[Any]]) -> str:
    if hint in unions:
        return f"a section with a type: {', '.join(unions[hint].names())}"
    if is_section(hint):
        return f"a section with keys out of: {', '.join(field.key for field in fields_of(hint))}"
    if is_tuple(hint):
        entries = typing.get_args(hint)
        if entries[-1] is Ellipsis:
            return f"a list, each entry {expected(entries[0], declared, unions)}"
        return f"a list of {len(entries)}: {', '.join(expected(entry, declared, unions) for entry in entries)}"
    if typing.get_origin(hint) is dict:
        return f"a section, each value {expected(typing.get_args(hint)[1], declared, unions)}"
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(str(choice) for choice in typing.get_args(hint))
    if declared.choices is not None and hint is not bool:
        return declared.expected()
    kind = kind_of(hint, declared)
    return kind.phrase(declared) if kind else "text"


def scalar(node: Node, hint: Any, declared: Parameter, folder: Path | None) -> Any:
    """Parse a scalar as the given type and kind, or raise `WrongValue`. Paths may also be relative to ``folder``."""
    if not isinstance(node, Scalar) or node.value is None:
        raise WrongValue
    if typing.get_origin(hint) is Literal:
        choices = [choice for choice in typing.get_args(hint) if choice == node.value]
        if not choices or type(choices[0]) is not type(node.value):
            raise WrongValue
        return choices[0]
    kind = kind_of(hint, declared)
    value: Any = kind.read(node.value, folder) if kind else node.value
    return Path(value) if hint is Path else value


# Nodes to dataclasses. Problems are collected, so that one pass reports all of them.


class _Failed(Enum):
    FAILED = "failed"


#: Stands for a value that could not be built and whose problem has been recorded.
FAILED = _Failed.FAILED
#: Other systems' names of a key, where they do not resemble its own.
ALIASES = dict.fromkeys(("period", "step", "every", "length", "duration", "width"), "size") | {"tz": "time_zone"}


class Builder:
    """Builder that converts nodes to dataclasses and collects problems.

    ``unions``: registry of plug-ins by their base class: such a field is a section whose ``type`` names the plug-in.
    ``folder``: where relative paths are looked for after the working directory; None: nowhere else.

    >>> from penstock.pipeline.sources.base import Source
    >>> from penstock.pipeline.config.yaml import parse
    >>> node, _ = parse("from: 2008-05-19\\nblock_rows: 0\\nunitl: x", "run.yaml")
    >>> builder = Builder({}, None)
    >>> builder.section(node, Source, ("source",)) is FAILED
    True
    >>> print(*sorted(map(str, builder.problems)), sep="\\n")  # doctest: +ELLIPSIS
    run.yaml:1: source.from: '2008-05-19' is not allowed; it must be a time such as 2008-05-19T00:00:00Z
    run.yaml:2: source.block_rows: 0 is not allowed; it must be a whole number at least 1
    run.yaml:3: source.unitl: unknown key; did you mean 'until'? (known: from, until, block_rows)
    """

    def __init__(self, unions: Dictionary[type, Registry[Any]], folder: Path | None) -> None:
        self.unions = dict(unions)
        self.folder = folder
        self.problems: list[Problem] = []

    def fail(self, node: Node, path: yaml.Path, text: str) -> _Failed:
        """Record a problem at a node's location."""
        self.problems.append(Problem(node.place, path, text))
        return FAILED

    def refuse(self, node: Node, path: yaml.Path, expected: str) -> _Failed:
        """Report an invalid value along with the value that was expected."""
        return self.fail(node, path, f"{shown(node)} is not allowed; it must be {expected}")

    def section(self, node: Node, cls: type, path: yaml.Path) -> Any:
        """Build a dataclass from a section. Returns FAILED if there is a problem."""
        return self.member(node, cls, Parameter(doc=""), path)

    def values(
        self, node: Mapping, cls: type, path: yaml.Path, also: tuple[str, ...] = (), plugin: str | None = None
    ) -> dict[str, Any]:
        """Return the value (or FAILED) of every mandatory or present field of a section, or of plug-in ``plugin``."""
        fields = fields_of(cls)
        known = (*also, *(field.key for field in fields))
        values: dict[str, Any] = {}
        guessed = set()
        for key in sorted(node.items.keys() - set(known)):
            if sentence := replacement(path, plugin, key):
                self.problems.append(Problem(node.keys[key], (*path, key), sentence))
                values[key] = FAILED
                continue
            alias = ALIASES.get(key.lower())
            near = [alias] if alias in known else difflib.get_close_matches(key.lower(), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            text = f"unknown key{hint} (known: {', '.join(known)})"
            self.problems.append(Problem(node.keys[key], (*path, key), text))
            values[key] = FAILED
            guessed.update(near)
        for field in fields:
            if field.key in node.items:
                value = node.items[field.key]
                sentence = replacement(path, plugin, field.key, value)
                below = (*path, field.key)
                values[field.name] = self.fail(value, below, sentence) if sentence else self.value(value, field, below)
            elif field.key in guessed:
                values[field.name] = FAILED
            elif field.required:
                phrase = expected(field.hint, field.declared, self.unions)
                values[field.name] = self.fail(node, (*path, field.key), f"missing; it must be {phrase}")
        return values

    def construct(self, node: Mapping, cls: type, values: dict[str, Any], path: yaml.Path) -> Any:
        """Construct a dataclass. If it rejects a value, report the problem at the line of the offending field."""
        if FAILED in values.values():
            return FAILED
        try:
            return cls(**values)
        except ParameterError as error:
            self.problems.append(_locate_refusal(node, cls, error, path))
        except (PenstockError, ValueError, TypeError, OSError) as error:
            self.fail(node, path, str(error))
        return FAILED

    def plugin(self, node: Mapping, base: type, path: yaml.Path) -> Any:
        """Build the plug-in named under ``type`` in a section. Returns FAILED if there is a problem."""
        registry = self.unions[base]
        if "type" not in node.items:
            return self.fail(node, (*path, "type"), f"missing; it must be one of {', '.join(registry.names())}")
        name = node.items["type"]
        if not isinstance(name, Scalar) or not isinstance(name.value, str):
            return self.refuse(name, (*path, "type"), f"one of {', '.join(registry.names())}")
        try:
            cls = registry.get(name.value)
        except UnknownPlugin as error:
            sentence = REMOVED.get(f"{registry.kind} {name.value}")
            text = f"{name.value!r} was removed; {sentence}" if sentence else str(error)
            return self.fail(name, (*path, "type"), text)
        except PenstockError as error:
            return self.fail(name, (*path, "type"), f"{name.value!r} cannot be loaded: {error}")
        values = self.values(node, cls, path, ("type",), f"{registry.kind} {name.value}")
        return self.construct(node, cls, values, path)

    def value(self, node: Node, field: Field, path: yaml.Path) -> Any:
        """Build a field's value and validate it against the field's declaration."""
        value = self.typed(node, field.hint, field.declared, path)
        if value is FAILED or (value is None and field.default is None):
            return value
        if not field.declared.allows(value):
            return self.refuse(node, path, expected(field.hint, field.declared, self.unions))
        return value

    def typed(self, node: Node, hint: Any, declared: Parameter, path: yaml.Path) -> Any:
        """Parse a node as the given type. If the type is a union, use the first member that matches."""
        members = alternatives(hint)
        if isinstance(node, Scalar) and node.value is None and type(None) in members:
            return None
        members = tuple(member for member in members if member is not type(None))
        if len(members) == 1:
            return self.member(node, members[0], declared, path)
        fitting = [member for member in members if self.fits(node, member)]
        if len(fitting) == 1:
            return self.member(node, fitting[0], declared, path)
        for member in fitting:
            trial = Builder(self.unions, self.folder)
            value = trial.member(node, member, declared, path)
            if value is not FAILED:
                return value
        return self.refuse(node, path, expected(hint, declared, self.unions))

    def fits(self, node: Node, hint: Any) -> bool:
        """Return whether a node has the right shape for a type: a scalar, a list or a section."""
        if hint in self.unions or is_section(hint) or typing.get_origin(hint) is dict:
            return isinstance(node, Mapping)
        return isinstance(node, Sequence if is_tuple(hint) else Scalar)

    def member(self, node: Node, hint: Any, declared: Parameter, path: yaml.Path) -> Any:
        """Parse a node as a single type, not a union."""
        if is_tuple(hint):
            return self.list(node, hint, declared, path)
        if isinstance(node, Mapping) and self.fits(node, hint):
            if hint in self.unions:
                return self.plugin(node, hint, path)
            if is_section(hint):
                return self.construct(node, hint, self.values(node, hint, path), path)
            inner = typing.get_args(hint)[1]
            values = {key: self.typed(item, inner, declared, (*path, key)) for key, item in node.items.items()}
            return FAILED if FAILED in values.values() else values
        try:
            if not self.fits(node, hint):
                raise WrongValue
            return scalar(node, hint, declared, self.folder)
        except WrongValue as wrong:
            return self.refuse(node, path, wrong.expected or expected(hint, declared, self.unions))
        except PluginError as error:
            return self.fail(node, path, f"{shown(node)} cannot be loaded: {error}")

    def list(self, node: Node, hint: Any, declared: Parameter, path: yaml.Path) -> Any:
        """Parse a list. A single value or section is treated as a list with one entry."""
        hints = typing.get_args(hint)
        if not isinstance(node, Sequence):
            is_one = any(self.fits(node, member) for member in alternatives(hints[0])) and plain(node) is not None
            if hints[-1] is not Ellipsis or not is_one:
                return self.refuse(node, path, expected(hint, declared, self.unions))
            value = self.typed(node, hints[0], declared, path)
            return FAILED if value is FAILED else (value,)
        if hints[-1] is Ellipsis:
            hints = (hints[0],) * len(node.items)
        if len(hints) != len(node.items):
            return self.refuse(node, path, expected(hint, declared, self.unions))
        values = [self.typed(node.items[i], hints[i], declared, (*path, i)) for i in range(len(hints))]
        return FAILED if FAILED in values else tuple(values)


def _locate_refusal(node: Mapping, cls: type, error: ParameterError, path: yaml.Path) -> Problem:
    """Locate the value that a dataclass rejected, which is the field or list entry named in the error."""
    steps: yaml.Path = tuple(error.field.split("."))
    place, refused = locate(node, steps)
    if isinstance(refused, Sequence):  # name the entry, not the list
        for i, item in enumerate(refused.items):
            if plain(item) == error.value:
                steps, place, refused = (*steps, i), item.place, item
                break
    elif isinstance(refused, Mapping) and error.value in refused.keys:
        text = f"unknown key; it must be {error.expected}"
        return Problem(refused.keys[error.value], (*path, *steps, error.value), text)
    if refused is None and steps[0] not in {field.key for field in fields_of(cls)}:
        steps, place, refused = (), node.place, node  # about the section as a whole
    if refused is None and error.value is None:
        return Problem(place, (*path, *steps), f"missing; it must be {error.expected}")
    value = shown(refused) if refused is not None else repr(error.value)
    return Problem(place, (*path, *steps), f"{value} is not allowed; it must be {error.expected}")


# Removed keys, plug-ins and values with their replacements.

#: What to use instead, by what was removed. In a section: ``section.key`` for a key, ``section.key=value`` for a value.
#: Plug-ins: ``kind name`` for a plug-in, ``kind name.key`` and ``kind name.key=value`` for a key of one, ``kind.key``
#: for a key that all of a kind had; ``.key`` behind that for a key of a section that was its value.
#: Each sentence completes "was removed; ".
REMOVED: dict[str, str] = {
    "accountant temporal.method": "the accountant has the sound bound only; the published figure is that of "
    "landmark_temporal_privacy_loss(…, method='paper')",
    "accountant conditional_inferential.interval": "figures are of the releases so far; those of the end are final",
    "accountant temporal.correlation.stationary": "the direction that is not given follows by Bayes' rule; give both",
    "accountants.classes.correlation.stationary": "the direction that is not given follows by Bayes' rule; give both",
    "accountant crowd_blending.epsilon": "δ is stated at the ε of the theorem; amplified_delta gives it at any other",
    "accountant temporal.longest_gap": "after 200 releases without a landmark the next counts as one; leave it out",
    "accountant temporal.bridged_states": "gaps are followed for chains of up to 20 states; leave it out",
    "accountant reconstruction.segment": "penstock attack reports the sharper bounds",
    "accountant reconstruction.n_samples": "penstock attack reports the sharper bounds",
    "mechanism fpa.calibration": "the sound calibration is left; papers have plug-in fpa_paper of reproductions/",
    "mechanism fpa.choice": "coefficients says how many are kept",
    "mechanism fpa.measured_sensitivity": "plug-in fpa_paper of reproductions/ has it",
    "mechanism fpa.transform": "plug-in fpa_paper of reproductions/ has it",
    "mechanism spatial_generalization.spread": "each cell shows the count of its group",
    "mechanism temporal_generalization.spread": "each window shows the count of its stretch",
    "mechanism smooth": "use smoothing: median or mean of mechanism pegasus",
    "mechanism.epsilon.temporal_goal": "write the number that 'penstock plan CONFIG --temporal GOAL' prints",
    "source kafka.format=arrow": "send an event a message, as JSON or Avro",
    "source pubsub.format=arrow": "send an event a message, as JSON or Avro",
    "source kafka.clock": "with watermark: events, time is that of the events",
    "source kafka.dead_letter_content": "a dead letter names the offset at which the topic holds the message",
    "source synthetic.disorder": "its events come in the order of time; late rows need a file with a column arrival",
    "window sliding": "sums over longer stretches are sums of released windows, or those of mechanism correlated",
    "streams": "the cells are released as one vector, which is faster than its parts; leave it out",
    "landmarks.drawn.shape": "points are drawn from anywhere in a trace; leave it out",
    "zip": "write keys that vary together as one variant each",
    "published": "published tables are in reproductions/shown",
    "differences": "explanations of the papers' figures are in reproductions/shown",
    "tables": "what pages show is in reproductions/shown",
    "study": "studies of the papers run by python -m reproductions",
    "confidence": "intervals over seeds are at 95 %",
    "figures.title": "labels name what a figure shows",
    "choose.judge_by": "the less favourable end of an interval must keep the limits",
    "figures.type=heat_map": "line, box and scatter are left",
    "figures.value": "it was for heat_map alone",
    "output.rejects_key": "file and line in operator/rejects.jsonl find the row in the input",
    "output.rejects": "a simulation keeps rejected rows, a deployment file and line, which find the row in the input",
    "output.bigquery": "use output.pubsub with a subscription of Pub/Sub that writes to BigQuery, or load the Parquet "
    "files of output.store",
}


def replacement(section: yaml.Path, plugin: str | None, key: str, value: Node | None = None) -> str | None:
    """Return advice about a removed key or value, given the section's plug-in (such as ``mechanism fpa``).

    >>> replacement(("mechanism", 0), "mechanism fpa", "choice")
    'was removed; coefficients says how many are kept'
    """
    names = {key: ""}
    if isinstance(value, Scalar):
        names = {f"{key}={value.text}": f"{value.text!r} "}
    elif value is not None:
        names = {f"{key}.{name}": f"{name} " for name in value.items} if plugin and isinstance(value, Mapping) else {}
    names_only = ".".join(step for step in section if isinstance(step, str))
    places = [plugin, plugin.partition(" ")[0]] if plugin else [names_only]
    for name, cure in names.items():
        for place in places:
            if sentence := REMOVED.get(f"{place}.{name}".removeprefix(".")):
                return f"{cure}was removed; {sentence}"
    return None


# One plug-in alone: from the command line, a manifest or values.


def load_plugin(base: type, name: str, settings: Iterable[str] = ()) -> Any:
    """Build a plug-in from ``key=value`` strings. Raises a `ConfigError` that lists every problem."""
    root = Mapping(Place("command line"), {}, {})
    problems = [problem for setting in (f"type={name}", *settings) for problem in apply_override(root, setting)]
    return _plugin(base, root, (), problems)


def build_plugin(base: type, section: Any, file: str, path: yaml.Path) -> Any:
    """Build a plug-in from plain values. Raises the same errors as `load_plugin`, located at ``path`` in ``file``."""
    return _plugin(base, nodes(section, Place(file)), path)


def _plugin(base: type, node: Node, path: yaml.Path, problems: Iterable[Problem] = ()) -> Any:
    builder = Builder(UNIONS, None)
    plugin = builder.section(node, base, path)
    if wrong := [*problems, *builder.problems]:
        raise ConfigError(tuple(map(str, wrong)))
    return plugin
