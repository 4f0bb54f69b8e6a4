"""Modules that another one asks for and hardly ever uses: imported when something in them is used."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


@contextmanager
def deferred(*names: str) -> Iterator[None]:
    """Let this thread's imports of modules that are not loaded yet give stand-ins meanwhile.

    A name that is taken from such a module stands for itself until it is called, looked into, subclassed or compared
    with; then the module is imported, and whoever holds a stand-in of its package gets what it stands for. Afterwards
    everybody who imports such a module gets the module.

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
    finder = _Finder(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        finder.withdraw()


class _Finder(MetaPathFinder, Loader):
    """Finds stand-ins, for one thread: others may be reading input by a plug-in's own means."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names, self.thread = set(names), threading.get_ident()
        self.made: list[_StandIn] = []

    def find_spec(self, fullname: str, path: Any, target: object = None) -> ModuleSpec | None:
        """Where the true module is, to be loaded by this."""
        if threading.get_ident() != self.thread or self.name_of(fullname) is None:
            return None
        true = PathFinder.find_spec(fullname, path)
        if true is None:
            return None
        spec = ModuleSpec(fullname, self, origin=true.origin)
        spec.submodule_search_locations = true.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty one."""
        self.made.append(_StandIn(spec.name, self))
        return self.made[-1]

    def exec_module(self, module: ModuleType) -> None:
        """Nothing yet."""

    def name_of(self, fullname: str) -> str | None:
        """Which of the deferred modules this is or belongs to."""
        return next((name for name in self.names if f"{fullname}.".startswith(f"{name}.")), None)

    def withdraw(self, only: str | None = None) -> None:
        """Take stand-ins out of the modules that are imported already: all, or those of one deferred module."""
        for module in self.made:
            name = module.__name__
            if sys.modules.get(name) is module and only in (None, self.name_of(name)):
                del sys.modules[name]
        if only is not None:
            self.names.discard(only)


class _StandIn(ModuleType):
    """Stands for a module: gives stand-ins for what is taken from it while its importer is imported."""

    def __init__(self, name: str, finder: _Finder) -> None:
        super().__init__(name)
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        if not self._is_asked_by_importer():
            return getattr(self._true(), name)
        if name.startswith("__"):  # the import system asks what it has to set
            raise AttributeError(name)
        return _Name(self, name)

    def _is_asked_by_importer(self) -> bool:
        """Whether its importer is still imported, by whom this is asked."""
        return self._finder in sys.meta_path and threading.get_ident() == self._finder.thread

    def _true(self) -> ModuleType:
        """Import the module; what stands for something in its package is replaced wherever it was imported to."""
        package = self._finder.name_of(self.__name__)
        if package is not None:
            self._finder.withdraw(package)
            for importer in list(sys.modules.values()):
                for key, value in list(getattr(importer, "__dict__", {}).items()):
                    if type(value) is _Name and f"{value._module.__name__}.".startswith(f"{package}."):
                        setattr(importer, key, value._true())
        return import_module(self.__name__)


class _Name:
    """Stands for something in a module."""

    def __init__(self, module: _StandIn, name: str) -> None:
        self._module, self._name = module, name

    def _true(self) -> Any:
        return getattr(self._module._true(), self._name)

    def __repr__(self) -> str:
        return f"<what is {self._module.__name__}.{self._name}>"

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self._true()(*values, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and self._module._is_asked_by_importer():  # it may be part of a hint
            raise AttributeError(name)
        return getattr(self._true(), name)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._true(),)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._true())

    def __subclasscheck__(self, kind: type) -> bool:
        return issubclass(kind, self._true())
