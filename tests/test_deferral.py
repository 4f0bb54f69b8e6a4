"""Stand-ins for modules that are imported when something in them is used."""

from __future__ import annotations

import builtins
import copy
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Union, get_args

import pytest

from pipeline.deferral import deferred

LATE = '''
class Base:
    """Something to subclass."""

class Trouble(Exception):
    """Something to catch."""

def fail():
    raise Trouble("late")

def twice(number):
    return 2 * number
'''


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package of two modules, which nobody has imported."""
    folder = tmp_path / "latecomer"
    folder.mkdir()
    (folder / "__init__.py").write_text("VALUE = 7\n")
    (folder / "inner.py").write_text(LATE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] in ("latecomer", "importer")]:
        del sys.modules[name]


def loaded() -> list[str]:
    """Its modules that are imported."""
    return sorted(name for name in sys.modules if name.split(".")[0] == "latecomer")


def test_what_is_imported_meanwhile_is_loaded_by_its_first_use() -> None:
    with deferred("latecomer"):
        import latecomer
        from latecomer.inner import twice
    assert loaded() == []
    assert twice(4) == 8
    assert loaded() == ["latecomer", "latecomer.inner"]
    assert latecomer.VALUE == 7


def test_everybody_who_imports_it_afterwards_gets_the_module() -> None:
    with deferred("latecomer"):
        from latecomer.inner import twice
    import latecomer.inner

    assert type(latecomer.inner.twice).__name__ == "function"
    assert twice(1) == 2


def test_an_importer_gets_the_true_names_at_the_first_use_of_one(tmp_path: Path) -> None:
    (tmp_path / "importer.py").write_text(
        "from latecomer.inner import Trouble, fail\n"
        "def caught():\n"
        "    try:\n"
        "        fail()\n"
        "    except Trouble as error:\n"
        "        return str(error)\n"
    )
    with deferred("latecomer"):
        import importer
    assert loaded() == []
    assert importer.caught() == "late"
    assert isinstance(importer.Trouble, type)


def test_classes_are_subclassed_and_compared_with() -> None:
    with deferred("latecomer"):
        from latecomer.inner import Base, Trouble

    class Derived(Base):
        """Made from a stand-in."""

    assert Derived.__mro__[1].__module__ == "latecomer.inner"
    assert isinstance(Derived(), Base)
    assert issubclass(Derived, Base)
    assert not isinstance(3, Trouble)


def test_a_hint_is_no_use() -> None:
    with deferred("latecomer"):
        from latecomer.inner import Base

        hint = Union[int, Base, None]  # noqa: UP007 -- typing asks its members what parameters they have
    assert loaded() == []
    assert get_args(hint) == (int, Base, type(None))
    assert isinstance(Base(), Base)


def test_only_what_is_named_is_deferred() -> None:
    with deferred("latecomer.inner"):
        import latecomer
        from latecomer.inner import twice
    assert loaded() == ["latecomer"]
    assert latecomer.VALUE == 7
    assert twice(2) == 4


def test_another_thread_gets_the_module() -> None:
    found: list[str] = []

    def work() -> None:
        from latecomer.inner import twice

        found.append(type(twice).__name__)

    with deferred("latecomer"):
        from latecomer.inner import twice  # noqa: F401 -- the stand-in is there first

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == ["function"]


def test_another_thread_may_import_what_has_stand_ins_in_any_order() -> None:
    found: list[str] = []

    def work() -> None:
        import latecomer.inner
        from latecomer.inner import Base

        found.extend([latecomer.inner.__name__, Base.__name__])

    with deferred("latecomer"):
        import latecomer.inner  # noqa: F401 -- the stand-in is there first

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert loaded() == ["latecomer", "latecomer.inner"]
    assert found == ["latecomer.inner", "Base"]


def test_a_submodule_that_was_asked_for_is_there() -> None:
    with deferred("latecomer"):
        import latecomer.inner
    assert latecomer.inner.twice(3) == 6
    assert latecomer.VALUE == 7


def test_a_stand_in_can_be_copied() -> None:
    with deferred("latecomer"):
        from latecomer.inner import twice

        assert repr(copy.copy(twice)) == "<what is latecomer.inner.twice>"
    assert loaded() == []


def test_the_statement_is_python_s_own_afterwards() -> None:
    before = builtins.__import__
    with pytest.raises(ZeroDivisionError), deferred("latecomer"):
        raise ZeroDivisionError
    assert builtins.__import__ is before


def test_what_is_not_there_is_missed_at_once() -> None:
    with deferred("nowhere_to_be_found", "latecomer"):
        with pytest.raises(ModuleNotFoundError):
            import nowhere_to_be_found  # noqa: F401
        with pytest.raises(ModuleNotFoundError):
            import latecomer.nowhere  # noqa: F401


def test_what_is_loaded_already_is_left_alone() -> None:
    import latecomer.inner

    with deferred("latecomer"):
        from latecomer.inner import twice
    assert twice is latecomer.inner.twice


def test_beam_has_the_names_that_it_has_otherwise() -> None:
    program = """
import sys
from pipeline import process
from pipeline.beam_start import HARDLY_USED, import_beam

process.prepare()
import_beam(alone={alone})
import apache_beam
from apache_beam.typehints import typehints
if {alone}:
    assert not set(HARDLY_USED) & set(sys.modules), set(HARDLY_USED) & set(sys.modules)
names = {{f"{{m.__name__}}.{{n}}" for m in (apache_beam, apache_beam.coders, typehints) for n in vars(m)}}
print(*sorted(names), typehints.is_consistent_with(list[int], list[str]), typehints.is_subhint(int, object))
"""
    said = [
        subprocess.run([sys.executable, "-c", program.format(alone=alone)], check=True, capture_output=True, text=True)
        for alone in (True, False)
    ]
    assert said[0].stdout == said[1].stdout
