"""Parameters, registry and errors shared by all plug-ins."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import linecache
import math
import operator
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import MISSING, dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args, get_type_hints

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Errors.


class PenstockError(Exception):
    """Base class for all errors that penstock raises on purpose."""


class ParameterError(PenstockError, ValueError):
    """Raised if a parameter has an invalid value.

    Parameters
    ----------
    field
        Name of the parameter, as it is written in Python and YAML.
    value
        The value that was refused.
    expected
        What would be right, as a phrase that completes "must be …".

    Examples
    --------
    >>> str(ParameterError("epsilon", -1, "a number above 0"))
    'epsilon: -1 is not allowed; it must be a number above 0'
    """

    def __init__(self, field: str, value: Any, expected: str) -> None:
        self.field, self.value, self.expected = field, value, expected
        super().__init__(field, value, expected)

    def __str__(self) -> str:
        return f"{self.field}: {self.value!r} is not allowed; it must be {self.expected}"


class UnknownPlugin(PenstockError, KeyError):
    """Raised if no plug-in has the given name. The message lists similar names and all available names."""

    def __init__(self, kind: str, name: str, names: tuple[str, ...]) -> None:
        self.kind, self.name, self.names = kind, name, names
        super().__init__(kind, name, names)

    def __str__(self) -> str:
        near = nearest(self.name, self.names)
        hint = f"; did you mean {near!r}?" if near else ""
        return f"{self.name!r} is not a known {self.kind}{hint} (known: {', '.join(self.names)})"


class ConfigError(PenstockError):
    """Raised if a configuration is invalid. The message lists every problem, one per line."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(self.problems)


class DataError(PenstockError):
    """Raised if an input file cannot be read at all. The message names the file and, if known, the line."""


class MissingLibrary(PenstockError):
    """Raised if a required library is not installed. The message names the extra that provides it."""


class RowEquationError(PenstockError):
    """Raised if rows read do not equal rows accounted for, or windows due do not equal windows released."""


class BudgetExceeded(PenstockError):
    """Raised if a release would exceed the budget. Nothing was charged or released."""

    def __init__(self, window: int, spent: float, charge: float, budget: float) -> None:
        self.window, self.spent, self.charge, self.budget = window, spent, charge, budget
        super().__init__(window, spent, charge, budget)

    def __str__(self) -> str:
        spent = f"a charge of {self.charge:g} on top of {self.spent:g} already spent"
        return f"window {self.window}: {spent} exceeds the budget {self.budget:g}"


class UnsupportedEvent(PenstockError):
    """Raised if an accountant has no theorem for a privacy event or a schedule."""


class StateVersionError(PenstockError):
    """Raised if encoded state comes from a version that this code cannot read."""


# Parameters.

#: Limits that a declaration can set; NaN keeps none of them.
LIMITS: dict[str, Callable[[Any, Any], bool]] = {
    "above": operator.gt,
    "at_least": operator.ge,
    "below": operator.lt,
    "at_most": operator.le,
}


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One field's declaration: its meaning, unit and allowed values."""

    doc: str
    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    choices: tuple[Any, ...] | None = None
    unit: str | None = None
    kind: str | None = None
    key: str | None = None

    def expected(self) -> str:
        """Return a phrase that completes "must be …"."""
        if self.choices is not None:
            return "one of " + ", ".join(str(choice) for choice in self.choices)
        phrase = self.limits_in_words(lambda limit: f"{limit:,}" if isinstance(limit, int) else f"{limit:g}")
        return f"a number {phrase}".strip() + (f" ({self.unit})" if self.unit else "")

    def limits_in_words(self, show: Callable[[Any], str]) -> str:
        """Describe the limits, as in "at least 1 and at most 9". Return an empty string if there are none."""
        return " and ".join(f"{name.replace('_', ' ')} {show(limit)}" for name, limit in self.limits.items())

    @property
    def limits(self) -> dict[str, float]:
        """The declared limits by name (see `LIMITS`)."""
        return {name: limit for name in LIMITS if (limit := getattr(self, name)) is not None}

    def allows(self, value: Any) -> bool:
        """Return whether a value is an allowed choice or within the limits. NaN is never allowed."""
        if self.choices is not None:
            return value in self.choices
        if not self.limits:
            return not (isinstance(value, float) and math.isnan(value))
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return all(LIMITS[name](value, limit) for name, limit in self.limits.items())


def parameter(default: Any = MISSING, *, factory: Any = MISSING, doc: str, **limits: Any) -> Any:
    """Declare a dataclass field and its limits.

    Parameters
    ----------
    default, factory
        Default value, or a function without arguments that makes it; neither: the field is required.
    doc
        One phrase for people: help, schema and generated tables show it.
    limits
        ``above``, ``at_least``, ``below``, ``at_most``, ``choices``, ``unit``; ``kind`` names how YAML is read:
        ``duration`` ("10m" to milliseconds), ``time`` (ISO 8601 to milliseconds since 1970 UTC), ``path``;
        ``key`` is the YAML key where it differs from the field (``from`` is a Python keyword).

    Examples
    --------
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Example(Checked):
    ...     epsilon: float = parameter(doc="budget of the series", above=0, unit="nats")
    >>> Example(epsilon=1.0)
    Example(epsilon=1.0)
    >>> Example(epsilon=0)
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.ParameterError: epsilon: 0 is not allowed; it must be a number above 0 (nats)
    """
    metadata = {"parameter": Parameter(doc=doc, **limits)}
    if factory is not MISSING:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def duration(default: Any = MISSING, **declared: Any) -> Any:
    """Declare a `parameter` in milliseconds, given in YAML as a duration; at least 0 unless ``above`` is declared."""
    limits = {} if "above" in declared else {"at_least": 0}
    return parameter(default, kind="duration", unit="ms", **limits | declared)


def chance(default: Any = None, *, doc: str) -> Any:
    """Declare a `parameter` δ below 1. It must be at least 1e-100 so that sums of logarithms stay finite."""
    return parameter(default, doc=doc, at_least=1e-100, below=1)


def stretch(default: Any = MISSING, *, doc: str = "length of the protected stretch") -> Any:
    """Declare a `parameter` w, the number of successive windows over which a schedule bounds the total spending."""
    return parameter(default, doc=doc, at_least=1, at_most=1_000_000, unit="windows")


def parameters_of(cls: type) -> dict[str, Parameter]:
    """Return a dataclass's declared parameters by field name, in declaration order."""
    return {f.name: f.metadata["parameter"] for f in dataclasses.fields(cls) if "parameter" in f.metadata}


class Checked:
    """Mixin for dataclasses that check their parameters on construction.

    A parameter with a default of None may be None; every other value must satisfy its declaration. Subclasses
    add conditions between fields by extending ``__post_init__`` and raising `ParameterError`.
    """

    @classmethod
    def examples(cls) -> tuple[Any, ...]:
        """Return typical instances for checks and tables. By default, they come from `typical`."""
        return typical(cls)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            declared = field.metadata.get("parameter")
            value = getattr(self, field.name)
            if declared is None or (value is None and field.default is None):
                continue
            if not declared.allows(value):
                raise ParameterError(declared.key or field.name, value, declared.expected())


def check_one_of(given: dict[str, Any], required: bool = True) -> None:
    """Raise `ParameterError` unless exactly one parameter is given. If not ``required``, none at all is also allowed.

    None, an empty tuple and an empty list stand for a parameter that is not given.

    >>> check_one_of({"list": ("a",), "file": None, "top": 3})
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.ParameterError: top: 3 is not allowed; it must be left out if list is given
    """
    present = [name for name, value in given.items() if value is not None and value != () and value != []]
    if len(present) > 1:
        raise ParameterError(present[1], given[present[1]], f"left out if {present[0]} is given")
    if required and not present:
        first, *others = given
        raise ParameterError(first, given[first], f"given, unless there is {' or '.join(others)}")


def check_whole(given: Mapping[str, Any], at_least: int = 1) -> None:
    """Raise `ParameterError` unless each value is None or a whole number no smaller than ``at_least``."""
    for name, value in given.items():
        if value is not None and not (hasattr(value, "__index__") and value >= at_least):
            raise ParameterError(name, value, f"a whole number of at least {at_least}")


def check_choice(field: str, value: Any, choices: Iterable[str]) -> None:
    """Raise `ParameterError` unless the value is one of the choices."""
    if value not in (allowed := tuple(choices)):
        raise ParameterError(field, value, f"one of {', '.join(allowed)}")


CheckedT = TypeVar("CheckedT", bound=Checked)

#: Tried in this order for a parameter without a default.
WHOLE_NUMBERS = (3, 1, 2, 10, 100)
NUMBERS = (1.0, 0.5, 2.0, 10.0, 100.0)


def typical(cls: type[CheckedT], **given: Any) -> tuple[CheckedT, ...]:
    """Return an instance with small valid numbers, followed by one instance per alternative parameter choice.

    ``given`` are parameters of all of them; a choice that the plug-in refuses beside these is left out. Raises
    `ParameterError` if a parameter without a default has neither choices nor a number that suits its bounds.
    """
    hints, declared, values = get_type_hints(cls), parameters_of(cls), {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.default is field.default_factory is MISSING:
            kinds = {hints[field.name], *get_args(hints[field.name])}
            numbers = NUMBERS if float in kinds else WHOLE_NUMBERS if int in kinds else ()
            allowed = [n for n in declared[field.name].choices or numbers if declared[field.name].allows(n)]
            if not allowed:
                raise ParameterError(field.name, None, "given by a class method `examples` of the plug-in")
            values[field.name] = allowed[0]
    made = [cls(**values | given)]
    for name, parameter in declared.items():
        for choice in parameter.choices or ():
            with contextlib.suppress(ParameterError):
                other = dataclasses.replace(made[0], **{name: choice})  # type: ignore[type-var]
                if other not in made:
                    made.append(other)
    return tuple(made)


# Registry.

#: Folders of plug-ins that names are looked up in, those of the configuration that this thread loaded last. A folder
#: that an earlier one named stays importable, so that its plug-ins can be pickled, and is not looked in.
FOLDERS: ContextVar[tuple[str, ...]] = ContextVar("folders", default=())

T = TypeVar("T")


class PluginError(PenstockError):
    """Raised if a plug-in file is unusable. The message names the file and line and says how to fix it."""


class Registry(Generic[T]):
    """One package's plug-ins, located by file name: ``landmark_uniform.py`` defines the class ``LandmarkUniform``.

    Those of installed packages are found by their entry points, in the group that `group` names.

    >>> registry = Registry("penstock.mechanisms", "mechanism", object)
    >>> "raw" in registry.names(), registry.group
    (True, 'penstock.mechanisms')
    """

    # `kind` is a noun for messages, `base` the class that plug-ins derive from; `internal` are modules of the package
    # that are no plug-ins although they hold a class of their name.
    def __init__(self, package: str, kind: str, base: type, internal: tuple[str, ...] = ()) -> None:
        self.package, self.kind, self.base, self.internal = package, kind, base, internal

    @property
    def group(self) -> str:
        """The entry-point group, such as ``penstock.spaces``."""
        return f"penstock.{self.package.rpartition('.')[2]}"

    def names(self) -> tuple[str, ...]:
        """Return the sorted names of all plug-ins without importing any of them."""
        in_folders = _names_in(self.package, places(self.package))
        return tuple(sorted({*in_folders, *installed(self.group)} - {*self.internal}))

    def get(self, name: str) -> type[T]:
        """Return a plug-in class by name. Raise `UnknownPlugin` or, if its file is unusable, `PluginError`."""
        entry = None if name in self.internal else installed(self.group).get(name)
        if name not in self.internal and name in _files(self.package):
            module = load_visible(self.package, name)
            if entry is not None:
                raise name_conflict(entry, module.__file__)
        elif entry is not None:
            module = load_entry(entry, class_name(name))
        else:
            raise UnknownPlugin(self.kind, name, self.names())
        return self._check_class(module, class_name(name))

    def _check_class(self, module: ModuleType, name: str) -> type[T]:
        """Return a module's plug-in class. Raise `PluginError` with its line if it is unsuitable."""
        plugin = getattr(module, name, None)
        if not isinstance(plugin, type):
            raise PluginError(f"{module.__file__}:1: the file must hold a {self.kind}, the class {name}")
        wrong = None
        if not issubclass(plugin, self.base):
            # Where a plug-in may be of several sorts, these are the classes beside the base.
            derived: list[type] = self.base.__subclasses__()
            sorts = [sort.__name__ for sort in derived if sort.__module__ == self.base.__module__]
            wrong = f"must derive from {' or '.join(sorts) or self.base.__name__} ({self.base.__module__})"
        elif "__dataclass_params__" not in vars(plugin):
            wrong = "must be a frozen dataclass: @dataclass(frozen=True, kw_only=True) above it"
        elif missing := ", ".join(sorted(getattr(plugin, "__abstractmethods__", ()))) or (
            plugin.lacks() if hasattr(plugin, "lacks") else ""
        ):
            wrong = f"must have {missing}"
        elif bare := [
            field.name
            for field in dataclasses.fields(plugin)  # type: ignore[arg-type]
            if field.init and not field.metadata and field.default is field.default_factory is MISSING
        ]:
            wrong = f"must declare {bare[0]} with a default or with = parameter(doc=...)"
        if wrong:
            raise PluginError(f"{module.__file__}:{inspect.getsourcelines(plugin)[1]}: the class {name} {wrong}")
        return plugin

    def name_of(self, plugin: type) -> str:
        """Return the name under which a plug-in class is registered, which is its file's name."""
        return plugin.__module__.rpartition(".")[2]


def place_of(plugin: Any, names: Iterable[str] = ()) -> str:
    """Return the file and line of a class or function, or of its first method in ``names``, or else its module."""
    methods = [vars(plugin)[name] for name in names if isinstance(plugin, type) and name in vars(plugin)]
    for code in (*(getattr(method, "fget", method) for method in methods), plugin):
        code = inspect.unwrap(code)  # as the line is that of what a decorator was put on
        with contextlib.suppress(OSError, TypeError):
            return f"{inspect.getfile(code)}:{inspect.getsourcelines(code)[1]}"
    return str(plugin.__module__)


#: Files of plug-ins that were imported and are not part of penstock.
EXTERNAL_FILES: set[str] = set()


def load(module: str) -> ModuleType:
    """Import the file of a plug-in. Convert any error to a `PluginError` that names the line."""
    spec = importlib.util.find_spec(module)
    if spec and spec.origin and not Path(spec.origin).is_relative_to(Path(__file__).parents[2]):
        EXTERNAL_FILES.add(spec.origin)
    try:
        return importlib.import_module(module)
    except (PluginError, MissingLibrary):
        raise
    except Exception as error:  # the file may hold anything
        text = describe_plugin_error(error) or f"{module}: {type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError):
            text += f"; install {error.name}, or mend the import"
        elif not isinstance(error, (PenstockError, SyntaxError)) and spec:
            text += f"; python {spec.origin} shows the traceback"
        raise PluginError(text) from error


def load_visible(package: str, name: str, group: str = "") -> ModuleType:
    """Import a plug-in of a package or of the current folders. Raise `PluginError` if it was loaded from elsewhere."""
    module = load(f"{package}.{name}")
    for place in places(package, group)[1:]:
        file = os.path.join(place, f"{name}.py")
        if os.path.isfile(file) and file != module.__file__:
            text = f"its name is that of {module.__file__}, which is loaded already; rename the file and its class"
            raise PluginError(f"{file}:1: {text}")
    return module


def places(package: str, group: str = "") -> tuple[str, ...]:
    """Return the folders that hold plug-ins: the package itself, and a sub-folder of each of the current folders.

    ``group``: what entry points of the kind are called, if not as the package.
    """
    kind = (group or package).rpartition(".")[2]
    package_folder = next(iter(importlib.import_module(package).__path__))
    return package_folder, *(os.path.abspath(os.path.join(folder, kind)) for folder in FOLDERS.get())


def describe_plugin_error(error: BaseException) -> str | None:
    """Describe an error by the line of a third-party plug-in that raised it (``fading.py:7: NameError: …``), or None.

    If a line of penstock failed, the plug-in in use there is a possible cause: its method may return the wrong thing.
    """
    if isinstance(error, SyntaxError) and error.filename in EXTERNAL_FILES:
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    lines = [line for line in traceback.extract_tb(error.__traceback__) if line.filename in EXTERNAL_FILES]
    text = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
    if lines:
        return f"{lines[-1].filename}:{lines[-1].lineno}: {text}"
    places = ", ".join(_plugins_in_use(error))
    if not places or isinstance(error, RuntimeError):
        return None
    last = traceback.extract_tb(error.__traceback__)[-1]
    cause = "a method may take or return something else than it must, or this is a fault of penstock"
    return f"{places}: {cause}: {text} ({last.filename}:{last.lineno})"


def _plugins_in_use(error: BaseException) -> list[str]:
    """Return the locations of third-party plug-ins called in the innermost frame that calls any, or else of all."""
    modules = [module for module in list(sys.modules.values()) if getattr(module, "__file__", None) in EXTERNAL_FILES]
    kinds = [
        kind
        for module in modules
        for kind in vars(module).values()
        if (inspect.isclass(kind) or inspect.isfunction(kind)) and kind.__module__ == module.__name__
    ]
    for frame, number in reversed(list(traceback.walk_tb(error.__traceback__))):
        called = set(re.findall(r"\.(\w+)", linecache.getline(frame.f_code.co_filename, number)))
        if named := [kind for kind in kinds if called & vars(kind).keys()]:
            return sorted({place_of(kind, called) for kind in named})
    return sorted(map(place_of, kinds))


@cache
def _entry_points() -> Any:
    """Return the entry points of all installed packages. The result is cached."""
    from importlib.metadata import entry_points  # loads a dozen modules

    return entry_points()


@cache
def installed(group: str) -> dict[str, EntryPoint]:
    """Return a group's entry points by name."""
    if not _is_extended():
        return {}
    entries: dict[str, EntryPoint] = {}
    for entry in _entry_points().select(group=group):
        if entries.setdefault(entry.name, entry).value != entry.value:
            raise name_conflict(entry, f"{entries[entry.name].value}, of another package")
    return entries


@cache
def _is_extended() -> bool:
    """Return whether any installed package may declare penstock entry points. An archive on the path always counts."""
    files = (file for folder in sys.path for file in Path(folder).glob("*-[iI][nN][fF][oO]/entry_points.txt"))
    declared = (re.search(rb"^\s*\[penstock\.", file.read_bytes(), re.MULTILINE) for file in files)
    return any(map(os.path.isfile, sys.path)) or any(declared)


def load_entry(entry: EntryPoint, attribute: str) -> ModuleType:
    """Import an entry point's file after checking that the entry point names the plug-in class correctly."""
    folder, _, file = entry.module.rpartition(".")
    if (file, entry.attr) != (entry.name, attribute):
        text = f"{folder or 'package'}.{entry.name}:{attribute}"
        raise PluginError(f"entry point {entry.name} = {entry.value} of {entry.group}: it must be {text}")
    return load(entry.module)


def name_conflict(entry: EntryPoint, owner: object) -> PluginError:
    """Return the error for an entry point whose name is already taken."""
    text = f"its name is that of {owner}; rename it with its file"
    return PluginError(f"entry point {entry.name} = {entry.value} of {entry.group}: {text}")


def class_name(name: str) -> str:
    """Return the class name that a plug-in file must define."""
    return "".join(part.capitalize() for part in name.split("_"))


def refresh() -> None:
    """Rediscover plug-ins after adding a folder to a package."""
    _names_in.cache_clear()
    importlib.invalidate_caches()


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Return the most similar name, or None if no name is similar enough."""
    known = list(names)
    matches = difflib.get_close_matches(word, known, n=max(1, len(known)))
    letters = sorted(word)
    # stable: equally similar names stay in the order of the library
    matches.sort(key=lambda name: (-difflib.SequenceMatcher(None, name, word).ratio(), sorted(name) != letters))
    return matches[0] if matches else None


@cache
def _names_in(package: str, folders: tuple[str, ...]) -> tuple[str, ...]:
    """Return the modules that define a class named after their file. The source is read without importing it."""
    names = []
    for name in sorted(_files(package)):
        spec = importlib.util.find_spec(f"{package}.{name}")
        text = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
        if re.search(rf"^class {class_name(name)}\b", text, re.MULTILINE):
            names.append(name)
    return tuple(names)


def _files(package: str) -> list[str]:
    return [m.name for m in pkgutil.iter_modules(places(package)) if not m.ispkg and not m.name.startswith("_")]
