"""Modules that another one asks for and hardly ever uses: imported when something in them is used."""

from __future__ import annotations

import builtins
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any


@contextmanager
def deferred(*names: str) -> Iterator[None]:
    """Let import statements of this thread give stand-ins meanwhile for modules that are not loaded yet.

    A name that is taken from such a module stands for itself until it is called, looked into, subclassed or compared
    with; then the module is imported, and whoever holds a stand-in of its package gets what it stands for. Other
    threads, and compiled modules, which import by themselves, get the modules.

    Parameters
    ----------
    *names
        Modules; their submodules are meant too. One that is not installed is still missed at once.

    Examples
    --------
    >>> _ = sys.modules.pop("tabnanny", None)
    >>> with deferred("tabnanny"):
    ...     from tabnanny import check
    >>> "tabnanny" in sys.modules, check
    (False, <what is tabnanny.check>)
    >>> check.__name__, "tabnanny" in sys.modules
    ('check', True)
    """
    deferral = _Deferral(names, builtins.__import__)
    # What others import finds the modules in their place: only the statement is another one, for one thread.
    builtins.__import__ = statement = deferral.statement
    try:
        yield
    finally:
        deferral.thread = 0
        if builtins.__import__ is statement:
            builtins.__import__ = deferral.true


class _Deferral:
    """The import statement meanwhile, and what it was asked for."""

    def __init__(self, names: tuple[str, ...], true: Any) -> None:
        self.names, self.true = names, true
        #: The importing thread; none has the number 0.
        self.thread = threading.get_ident()
        #: Modules by the deferred one that they belong to.
        self.asked: defaultdict[str, set[str]] = defaultdict(set)

    @property
    def is_here(self) -> bool:
        """Whether the importer is asking."""
        return threading.get_ident() == self.thread

    def statement(self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        """Import a module, or what stands for it."""
        package = self.package(name) if self.is_here and not level else None
        if package is None or package in sys.modules or not _is_there(name):
            return self.true(name, globals, locals, fromlist, level)
        self.asked[package].add(name)
        # Without a list of names the statement wants the outermost package.
        return _StandIn(name if fromlist else name.partition(".")[0], package, self)

    def package(self, name: str) -> str | None:
        """Which of the deferred modules this is or belongs to."""
        return next((package for package in self.names if f"{name}.".startswith(f"{package}.")), None)

    def end(self, package: str) -> None:
        """Import what was asked for of a package; its stand-ins are replaced wherever they were imported to."""
        for name in self.asked.pop(package, ()):
            import_module(name)
        for importer in list(sys.modules.values()):
            for key, value in list(getattr(importer, "__dict__", {}).items()):
                if type(value) in (_StandIn, _Name) and value._package == package:
                    setattr(importer, key, value._true())


def _is_there(name: str) -> bool:
    """Whether a module can be found, without importing the packages that it is in."""
    path: Any = None
    parts = name.split(".")
    for n_parts in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:n_parts]), path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return True


class _StandIn(ModuleType):
    """Stands for a module, and gives stand-ins for what is taken from it."""

    def __init__(self, name: str, package: str, deferral: _Deferral) -> None:
        super().__init__(name)
        self._package, self._deferral = package, deferral

    def __getattr__(self, name: str) -> Any:
        if not self._deferral.is_here:
            return getattr(self._true(), name)
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(self, name)

    def _true(self) -> ModuleType:
        if self._package in self._deferral.asked:
            self._deferral.end(self._package)
        return import_module(self.__name__)


class _Name:
    """Stands for something in a module."""

    def __init__(self, module: _StandIn, name: str) -> None:
        self._module, self._name, self._package = module, name, module._package

    def _true(self) -> Any:
        return getattr(self._module._true(), self._name)

    def __repr__(self) -> str:
        return f"<what is {self._module.__name__}.{self._name}>"

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self._true()(*values, **named)

    def __getattr__(self, name: str) -> Any:
        # A copy has not got its own yet; and it may be part of a hint, which asks what else it is.
        if name in ("_module", "_name", "_package") or (name.startswith("__") and self._module._deferral.is_here):
            raise AttributeError(name)
        return getattr(self._true(), name)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._true(),)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._true())

    def __subclasscheck__(self, kind: type) -> bool:
        return issubclass(kind, self._true())
