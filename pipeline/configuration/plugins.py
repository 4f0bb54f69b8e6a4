"""Which sections name a plug-in, where the plug-ins are found, and how folders of further ones are added."""

from __future__ import annotations

import importlib
import os
from typing import Any

from accountants.core.accountant import ACCOUNTANTS, Accountant
from mechanisms.core.mechanism import MECHANISMS, Mechanism
from mechanisms.core.registry import Registry, refresh
from pipeline.source import SOURCES, Source
from pipeline.space import SPACES, Space
from pipeline.window import WINDOWS, Windows

#: Base class of every family of plug-ins, and the registry in which YAML's ``type`` is looked up.
UNIONS: dict[type, Registry[Any]] = {
    Source: SOURCES,
    Space: SPACES,
    Windows: WINDOWS,
    Mechanism: MECHANISMS,
    Accountant: ACCOUNTANTS,
}


def plugins_of(family: Registry[Any]) -> dict[str, type]:
    """Every plug-in of a family by name, loaded; files that hold functions only are none."""
    return {name: family.get(name) for name in family.names()}


def add_folder(folder: str) -> None:
    """Let the files of a folder be plug-ins too; what the project brings itself cannot be replaced.

    Parameters
    ----------
    folder
        Its sub-folders are called as the packages are: ``mechanisms``, ``accountants``, ``sources``, ``spaces``,
        ``windows``. Importing a plug-in runs its code.
    """
    for family in UNIONS.values():
        inside = os.path.abspath(os.path.join(folder, family.package.rpartition(".")[2]))
        path = importlib.import_module(family.package).__path__
        if os.path.isdir(inside) and inside not in path:
            path.append(inside)
            refresh()
