"""Plug-ins are found by the file they live in; nothing is registered by hand."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
import re
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

from mechanisms.core.errors import PenstockError, UnknownPlugin

T = TypeVar("T")


class Registry(Generic[T]):
    """All plug-ins of one package: the file ``landmark_uniform.py`` holds the class ``LandmarkUniform``.

    Parameters
    ----------
    package
        Import path of the package whose modules (not sub-packages) are the plug-ins.
    kind
        What one of them is called in messages, for instance "mechanism".

    Examples
    --------
    >>> registry = Registry("mechanisms", "mechanism")
    >>> "raw" in registry.names()
    True
    """

    def __init__(self, package: str, kind: str) -> None:
        self.package, self.kind = package, kind

    def names(self) -> tuple[str, ...]:
        """Names of all plug-ins, sorted; imports none of them."""
        return _module_names(self.package)

    def get(self, name: str) -> type[T]:
        """Class of one plug-in; raises `UnknownPlugin` with near misses."""
        names = self.names()
        if name not in names and name not in _files(self.package):
            raise UnknownPlugin(self.kind, name, names, tuple(difflib.get_close_matches(name, names, n=1)))
        module = importlib.import_module(f"{self.package}.{name}")
        plugin: type[T] | None = getattr(module, class_name(name), None)
        if plugin is None:
            raise PenstockError(f"{module.__file__}: a {self.kind} called {name!r} must be a class {class_name(name)}")
        return plugin

    def name_of(self, plugin: type) -> str:
        """Name under which a plug-in class is known: the file it is defined in."""
        return plugin.__module__.rpartition(".")[2]


def class_name(name: str) -> str:
    """Class that a plug-in file must define.

    >>> class_name("w_event_uniform")
    'WEventUniform'
    """
    return "".join(part.capitalize() for part in name.split("_"))


def refresh() -> None:
    """Look for plug-ins again, after a folder was added to a package."""
    _module_names.cache_clear()
    importlib.invalidate_caches()


@cache
def _module_names(package: str) -> tuple[str, ...]:
    return tuple(sorted(name for name in _files(package) if _defines_plugin(package, name)))


def _files(package: str) -> list[str]:
    path = importlib.import_module(package).__path__
    return [m.name for m in pkgutil.iter_modules(path) if not m.ispkg and not m.name.startswith("_")]


def _defines_plugin(package: str, name: str) -> bool:
    """Whether the file has the class of its name; read as text, since listing imports nothing."""
    spec = importlib.util.find_spec(f"{package}.{name}")
    if spec is None or spec.origin is None:
        return False
    text = Path(spec.origin).read_text(encoding="utf-8")
    return re.search(rf"^class {class_name(name)}\b", text, re.MULTILINE) is not None
