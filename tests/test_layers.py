"""Layering of imports between packages and inside the pipeline, and imports at the command's start."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest

from tests.tools.checkout import ROOT

BARRED = ("apache_beam", "pipeline")

#: Each may import those before it.
PACKAGES = ("mechanisms", "accountants", "evaluation", "pipeline", "penstock", "reproductions")
#: The entries of pipeline/, in the same order.
PIPELINE = (
    "atomic",
    "windows",
    "sources",
    "spaces",
    "counting",
    "releasing",
    "config",
    "output",
    "monitoring",
    "runners",
    "reporting",
    "run",
    "experiments",
    "cli",
)
#: Where in which module another one is imported: (importing, line, imported).
Import = tuple[str, int, str]


def imports_of(root: Path) -> list[Import]:
    """Every import of one module of the project by another, those inside functions and for type checkers too."""
    modules = {}
    for package in PACKAGES:
        for path in (root / package).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            modules[inside(".".join(parts[:-1] if parts[-1] == "__init__" else parts))] = path
    actual = []
    for module, path in sorted(modules.items()):
        for line, imported in named_imports(path):
            # ``from a.b import c`` imports the module a.b.c, or a name of a.b.
            known = imported if imported in modules else imported.rpartition(".")[0]
            if known in modules and known != module:
                actual.append((module, line, known))
    return actual


def named_imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, inside(alias.name)) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            yield from ((node.lineno, inside(f"{node.module}.{alias.name}")) for alias in node.names)


def inside(name: str) -> str:
    """A name without the package that the folders are installed in."""
    return name.removeprefix("penstock.") if name.split(".")[1:2] and name.split(".")[1] in PACKAGES else name


@cache
def own_imports() -> list[Import]:
    """Every import of one module of the checkout by another."""
    return imports_of(ROOT)


def upward(imports: list[Import], order: tuple[str, ...], depth: int) -> list[str]:
    """Imports of a later entry by an earlier one; an entry that is not in the order has no place."""
    wrong = []
    for module, line, imported in imports:
        here, there = (name.split(".")[depth] for name in (module, imported))
        if here not in order or there not in order:
            wrong.append(f"{module}:{line} imports {imported}; one of them has no place in the order")
        elif order.index(there) > order.index(here):
            wrong.append(f"{module}:{line} imports {imported}, which is above it")
    return wrong


def circle(imports: list[Import]) -> list[str]:
    """Return an import cycle, if any."""
    graph: dict[str, set[str]] = {}
    for module, _, imported in imports:
        graph.setdefault(module, set()).add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


#: What modules fill as they are imported, fields of classes; weak references to listeners.
FILLED = {
    "mechanisms/core/plugin.py": {"EXTERNAL_FILES"},
    "evaluation/metrics.py": {"METRICS"},
    "pipeline/config/build.py": {"_KNOWN"},
    "pipeline/config/rules.py": {"RULES"},
    "pipeline/monitoring/metrics.py": {"_AUDIENCES"},
}
CHANGES = {"append", "extend", "insert", "add", "update", "setdefault", "pop", "popleft", "remove", "discard", "clear"}


def changed_globals(tree: ast.Module) -> set[str]:
    """Names of a module that its functions bind again, or change in place."""
    named = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    inside = [node for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.Lambda) for node in ast.walk(one)]
    changed = {name for node in inside if isinstance(node, ast.Global) for name in node.names}
    for node in inside:
        is_change = (isinstance(node, ast.Attribute) and node.attr in CHANGES) or (
            isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
        )
        if is_change and isinstance(node.value, ast.Name):
            changed.add(node.value.id)
    return changed & named


def test_no_global_holds_what_a_run_learns():
    example = "held, kept, n = {}, [], 0\nHELD = {}\nKEPT = []\nN = 0\nFIXED = {}\nFIXED['a'] = 1\n"
    example += "def f(a):\n    global N\n    HELD[a] = 1\n    KEPT.append(a)\n    own = []\n    own.append(FIXED[a])\n"
    assert changed_globals(ast.parse(example)) == {"HELD", "KEPT", "N"}
    actual = {
        path.relative_to(ROOT).as_posix().removeprefix("penstock/"): changed
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if (changed := changed_globals(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert actual == FILLED


def test_packages_import_one_way():
    wrong = upward(own_imports(), PACKAGES, 0)
    assert not wrong, "\n".join(wrong)


def test_the_pipeline_imports_one_way():
    imports = own_imports()
    inside = [one for one in imports if all(name.startswith("pipeline.") for name in (one[0], one[2]))]
    assert len(inside) > 100
    assert not [one for one in imports if one[0] == "pipeline"], "below everything: exit codes"
    wrong = upward(inside, PIPELINE, 1)
    assert not wrong, "\n".join(wrong)


def test_what_repeats_papers_is_not_installed():
    assert any(module.startswith("reproductions") for module, _, _ in own_imports())
    assert not (ROOT / "penstock" / "reproductions").exists(), "what is in penstock/ is in the wheel"
    packaged = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("[tool.slipcover]")[0]
    assert "reproductions" not in packaged


def test_no_modules_import_each_other_in_a_circle():
    wrong = circle(own_imports())
    assert not wrong, " -> ".join(wrong)


def test_lazy_imports_and_those_for_type_checkers_count(tmp_path):
    lower, upper = tmp_path / "pipeline" / "windows", tmp_path / "pipeline" / "cli"
    for folder in (lower, upper):
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
    (upper / "main.py").write_text("from penstock.pipeline.windows import base\n")
    (lower / "base.py").write_text("def lazy():\n    from penstock.pipeline.cli.main import run\n")
    imports = imports_of(tmp_path)
    assert upward(imports, PIPELINE, 1) == ["pipeline.windows.base:2 imports pipeline.cli.main, which is above it"]
    assert sorted(set(circle(imports))) == ["pipeline.cli.main", "pipeline.windows.base"]
    (lower / "base.py").write_text("if TYPE_CHECKING:\n    import penstock.pipeline.cli.main\n")
    assert upward(imports_of(tmp_path), PIPELINE, 1)
    (lower / "base.py").write_text("import penstock.pipeline.elsewhere\n")
    (tmp_path / "pipeline" / "elsewhere.py").touch()
    assert "no place" in upward(imports_of(tmp_path), PIPELINE, 1)[0]


def loaded_by(code: str) -> set[str]:
    program = f"{code}\nimport sys; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {inside(name).partition(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize("package", ["mechanisms", "accountants", "evaluation"])
def test_pure_packages_never_import_beam_or_the_pipeline(package):
    code = f"""
import importlib, pkgutil, penstock.{package}
for module in pkgutil.walk_packages(penstock.{package}.__path__, "penstock.{package}."):
    importlib.import_module(module.name)
"""
    assert not loaded_by(code) & set(BARRED)


def test_the_check_would_notice():
    assert "pipeline" in loaded_by("import penstock.pipeline.cli.main")


def test_help_imports_nothing_heavy():
    heavy = {"numpy", "polars", "pyarrow", "apache_beam", "scipy", "sklearn", "yaml"}
    code = (
        "import penstock.pipeline.cli.main\ntry: penstock.pipeline.cli.main.main(['--help'])\nexcept SystemExit: pass"
    )
    assert not loaded_by(code) & heavy


def test_a_check_of_the_quick_start_loads_nothing_heavy():
    heavy = {"polars", "pyarrow", "apache_beam", "scipy", "sklearn", "shapely"}
    heavy |= {"email", "socket", "zipfile", "statistics", "threadpoolctl"}  # entry points, and what waits for numbers
    quick_start = str(ROOT / "configs" / "quickstart.yaml")
    code = f"import penstock.pipeline.cli.main as cli; cli.main(['validate', {quick_start!r}])"
    assert not loaded_by(code) & heavy


def foreign_imports(node: ast.AST) -> list[str]:
    """Return the modules that a statement imports, or that a test asks for before it imports them."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    is_asked = isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.importorskip"
    return [node.args[0].value] if is_asked else []


def test_what_is_imported_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stated = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    declared = {re.split(r"[\[<>=~]", one)[0].replace("-", "_").lower() for one in stated}
    packages = packages_distributions()
    imported = {
        name.partition(".")[0]: path.relative_to(ROOT)
        for folder in (*PACKAGES, "tests", "docs", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in foreign_imports(node)
    }
    foreign = imported.keys() - sys.stdlib_module_names - {"penstock", "reproductions", "tests", "benchmarks"}
    # Of many distributions, and asked for by a test whether it is there.
    foreign -= {"google", "apitools"}
    assert {"numpy", "grpc", "geopandas", "moto", "griffe"} <= foreign
    undeclared = {
        name
        for name in foreign
        if not declared & {one.replace("-", "_").lower() for one in (name, *packages.get(name, ()))}
    }
    assert not undeclared, {name: imported[name] for name in undeclared}


def test_folders_of_tests_mirror_the_tree():
    beside = {"across", "conformance", "fuzz", "integration", "tools"}
    folders = {file.parent.relative_to(ROOT / "tests") for file in (ROOT / "tests").rglob("test_*.py")}
    wrong = {str(path) for path in folders if not (ROOT / path).is_dir() and path.parts[0] not in beside}
    assert len(folders) > 20
    assert not wrong, f"{wrong}: no such folder of modules"


def test_no_test_imports_a_name_on_the_path():
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("tests", "reproductions/tests")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and re.fullmatch(r"test_\w+|conftest", node.module or "")
    ]
    assert not wrong, f"{wrong}: what several tests need is in tests/tools"
