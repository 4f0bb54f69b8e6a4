"""The pages on plug-ins, followed literally outside of a checkout: files written, commands run, mistakes made."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import polars as pl
import pytest
from setuptools import find_namespace_packages

from penstock.accountants.core.accountant import AccountRow
from tests.tools.cases import slow
from tests.tools.checkout import ROOT


def page(name):
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def blocks(name):
    return re.findall(r"^```(\w+)\n(.*?)^```$", page(name), re.MULTILINE | re.DOTALL)


BLOCKS = blocks("add_a_mechanism.md")
RUNNERS = ("local", "direct")


def run(folder, script, **environment):
    """Run a script of the shell in a folder; its exit code and output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONDONTWRITEBYTECODE": "1"} | environment
    done = subprocess.run(
        ["sh", "-e", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def follow(folder, replacing=("", ""), name="add_a_mechanism.md"):
    """Write a page's files and run its commands in a folder; the outputs of the commands."""
    outputs = []
    for language, block in blocks(name):
        if language == "sh":
            outputs.append(run(folder, block))
            continue
        target = folder / block.splitlines()[0].removeprefix("# ")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(block.replace(*replacing), encoding="utf-8")
    return outputs


def test_the_page_has_a_mechanism_a_configuration_and_commands():
    assert [language for language, _ in BLOCKS] == ["python", "yaml", "sh", "python", "sh", "python", "sh"]


def test_following_the_page(tmp_path):
    (ran, log), (read, figures), (checked, suite) = follow(tmp_path)
    assert ran == 0, log
    assert read == 0, figures
    assert "1.8462 of 2.0 nats" in figures
    assert checked == 0, suite
    assert re.search(r"\b1\d passed", suite), suite


@pytest.mark.slow
def test_a_larger_budget_on_the_page_would_be_seen_by_the_accountant(tmp_path):
    replacing = ("window.index * (window.index + 1) / self.epsilon", "2 / self.epsilon")
    assert replacing[0] in page("add_a_mechanism.md")
    (ran, log), (read, _), (checked, suite) = follow(tmp_path, replacing)
    assert ran == 0, log
    assert read == 1
    assert checked == 0, suite


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    """A folder with a plug-in of every other kind, as the page writes it, and the output of its commands."""
    folder = tmp_path_factory.mktemp("town")
    return folder, follow(folder, name="plugins.md")


def test_a_folder_has_a_plug_in_of_every_kind(town):
    folder, [(code, log), (checked, suite)] = town
    assert checked == 0, suite
    assert "3 passed" in suite
    assert code == 0, log
    assert re.search(r"utility +empty_streets (0|1)", log), log
    assert "241 rows: 240 used" in log, log
    releases = pl.read_parquet(folder / "runs/town/public/releases.parquet")
    assert releases["cell"].unique().sort().to_list() == ["band 1", "band 2", "band 3", "band 4"]
    assert (releases["value"] % 10 == 0).all()
    accounts = pl.read_parquet(folder / "runs/town/public/accounts.parquet")
    assert accounts.filter(accountant="costliest_window")["value"].to_list() == [2.0] * 4
    [reject] = (folder / "runs/town/operator/rejects.jsonl").read_text().splitlines()
    assert '"line": 241' in reject


def test_the_page_says_what_each_field_of_an_account_holds():
    table = page("plugins.md").partition("| field of `AccountRow` |")[2].partition("\n\n")[0]
    names = [name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.partition(" | ")[0])]
    assert sorted(names) == sorted(field.name for field in fields(AccountRow))


def install(site, groups):
    """Write what an installer makes of the entry points of the package ``town``."""
    information = site / "town-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: town\nVersion: 1.0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in groups[group].items()) for group in groups
    ]
    (information / "entry_points.txt").write_text("\n".join(lines))


def test_an_installed_package_needs_no_folder(town, tmp_path):
    folder, _ = town
    declared = tomllib.loads((folder / "pyproject.toml").read_text())
    project = declared["project"]
    kinds = ("accountants", "mechanisms", "metrics", "sources", "spaces", "windows")
    packages = find_namespace_packages(str(folder), **declared["tool"]["setuptools"]["packages"]["find"])
    assert sorted(packages) == ["town", *(f"town.{kind}" for kind in kinds)]
    shutil.copytree(folder / "town", tmp_path / "site/town")
    install(tmp_path / "site", project["entry-points"])
    shutil.copy(folder / "events.jsonl", tmp_path)
    text = (folder / "town.yaml").read_text()
    assert "plugins: town\n" in text
    (tmp_path / "town.yaml").write_text(text.replace("plugins: town\n", ""))
    installed = {"PYTHONPATH": str(tmp_path / "site")}
    code, log = run(tmp_path, "penstock run town.yaml --runner local", **installed)
    assert code == 0, log
    runs = [pl.read_parquet(where / "runs/town/public/releases.parquet") for where in (folder, tmp_path)]
    assert runs[0].equals(runs[1])
    code, log = run(tmp_path, "penstock list metrics; penstock list spaces; penstock list windows", **installed)
    assert "empty_streets       Share of the empty cells" in log, log
    assert "bands" in log
    assert "lessons" in log
    code, log = run(tmp_path, "penstock validate town.yaml")
    assert code == 2
    assert "town.yaml:4: source.type" in log


@pytest.fixture(scope="module")
def package(town, tmp_path_factory):
    """The page's package with a mechanism of the other page, as pip installs it into ``site``, and what reads it."""
    pytest.importorskip("setuptools", minversion="70.1", reason="older ones build no wheel without the package wheel")
    folder, made = town[0], tmp_path_factory.mktemp("package")
    shutil.copytree(folder / "town", made / "source/town", ignore=shutil.ignore_patterns("__pycache__"))
    (made / "source/town/mechanisms/fading.py").write_text(BLOCKS[0][1], encoding="utf-8")
    declared, group = (folder / "pyproject.toml").read_text(), '[project.entry-points."penstock.mechanisms"]\n'
    assert group in declared
    entry = 'fading = "town.mechanisms.fading:Fading"\n'
    (made / "source/pyproject.toml").write_text(declared.replace(group, group + entry))
    pip = "python -m pip --disable-pip-version-check install -q --no-index --no-deps --no-build-isolation --no-compile"
    code, log = run(made, f"{pip} --target site ./source")
    assert code == 0, log
    shutil.copy(folder / "events.jsonl", made)
    text = (folder / "town.yaml").read_text()
    for before, after in (("plugins: town\n", ""), ("{type: laplace,", "{type: fading,")):
        assert before in text
        text = text.replace(before, after)
    (made / "town.yaml").write_text(text)
    return made


def test_an_installed_package_of_every_kind_runs_in_the_plain_loop_and_in_beam(package):
    site = {"PYTHONPATH": str(package / "site")}
    shutil.rmtree(package / "source")
    code, log = run(package, "penstock validate town.yaml", **site)
    assert code == 0, log
    runs = []
    for runner in RUNNERS:
        code, log = run(package, f"penstock run town.yaml --runner {runner} --out {runner}", **site)
        assert code == 0, log
        assert "241 rows: 240 used" in log, log
        assert re.search(r"utility +empty_streets (0|1)", log), log
        runs.append([pl.read_parquet(package / runner / f"public/{name}.parquet") for name in ("releases", "accounts")])
        assert runs[-1][0]["cell"].unique().sort().to_list() == ["band 1", "band 2", "band 3", "band 4"]
        accounts = runs[-1][1].filter(accountant="costliest_window")["value"].to_list()
        assert accounts == pytest.approx([2.0 / 2] * 4), "the share of the first window is the largest"
    assert all(one.equals(other) for one, other in zip(*runs, strict=True))
    code, log = run(package, "penstock run town.yaml --runner local")
    assert code == 2
    assert "Traceback" not in log


#: One mistake of each kind that shows when the file is loaded: before, after, and what is said of it.
INSTALLED_MISTAKES = {
    "mechanisms/fading": (
        "def worst_charge(",
        "def dearest(",
        r"fading.py:\d+: the class Fading must have worst_charge",
    ),
    "mechanisms/nearest_ten": ("import numpy", "import nunpy", "nearest_ten.py:6: .* No module named 'nunpy'"),
    "accountants/costliest_window": ("def charge(", "def cost(", "costliest_window.py:11: .* must have charge"),
    "sources/json_lines": ("(FileSource)", "", "json_lines.py:16: the class JsonLines must derive from"),
    "spaces/bands": ("return tuple(f", "return tuple((f", r"bands.py:\d+: SyntaxError"),
    "metrics/empty_streets": ('("empty_streets",', '("empty_roads",', "empty_streets.py:1: the file must register the"),
}


def test_mistakes_in_an_installed_package_are_a_line_each(package, tmp_path):
    shutil.copytree(package / "site", tmp_path / "site")
    shutil.copy(package / "town.yaml", tmp_path)
    shutil.copy(package / "events.jsonl", tmp_path)
    for name, (before, after, _) in INSTALLED_MISTAKES.items():
        path = tmp_path / "site/town" / f"{name}.py"
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))
    code, log = run(tmp_path, "penstock validate town.yaml", PYTHONPATH=str(tmp_path / "site"))
    assert code == 2
    assert "Traceback" not in log
    assert len(log.splitlines()) == len(INSTALLED_MISTAKES), log
    for name, (_, _, expected) in INSTALLED_MISTAKES.items():
        assert re.search(rf"^penstock: town.yaml:\d+: .*{expected}", log, re.MULTILINE), (name, log)


MISTAKES = {
    "syntax": ("nearest_ten", "values / 10)", "values / 10", r"py:\d+: SyntaxError"),
    "import": ("nearest_ten", "import numpy", "import nunpy", "py:6: ModuleNotFoundError: No module named 'nunpy'"),
    "name": ("nearest_ten", "class NearestTen", "class Nearest", "py:1: the file must hold a mechanism, the class N"),
    "base": ("nearest_ten", "(Postprocess)", "", "py:10: the class NearestTen must derive from Mechanism or"),
    "dataclass": ("nearest_ten", "@dataclass(frozen=True, kw_only=True)", "", r"py:\d+: .* must be a frozen dataclass"),
    "method": ("nearest_ten", "np.rint", "np.rind", "py:19: AttributeError: module 'numpy' has no attribute 'rind'"),
    "library": (
        "empty_streets",
        "import numpy",
        "import nunpy",
        "py:4: ModuleNotFoundError: No module named 'nunpy'; install nunpy, or mend the import",
    ),
    "loading": (
        "empty_streets",
        "import metric\n",
        "import metric\n\n1 / 0\n",
        r"py:8: ZeroDivisionError: division by zero; python /.*/empty_streets.py shows the traceback",
    ),
    "metric": ("empty_streets", "truth == 0", "truths == 0", "py:11: NameError: name 'truths' is not defined"),
    "shape": (
        "empty_streets",
        " np.nan)\n",
        " np.nan).mean()\n",
        r"py:8: .* shape \(\); it must be one for each",
    ),
    "another name": (
        "empty_streets",
        '("empty_streets",',
        '("empty_roads",',
        "py:1: the file must register the",
    ),
    "scope": ("empty_streets", '"window"', '"windows"', "py:8: .* it must be one of cell, window, day"),
    "row": (
        "costliest_window",
        "float(largest[0])",
        "largest",
        "py:19: a row of CostliestWindow holds what is",
    ),
    "spans": ("json_lines", "[Span(0, (self.path,))]", "None", "py:26: a method may take or return something else"),
    "arguments": ("nearest_ten", "transform(self, values)", "transform(self)", "py:17: a method may take or return"),
    "names": ("bands", 'f"band {number}"', "number", "py:19: a method may take or return something else"),
    "accountant": ("costliest_window", "def charge(", "def cost(", "py:11: the class CostliestWindow must have charge"),
    "space": ("bands", "np.floor", "np.flor", "py:27: AttributeError: module 'numpy' has no attribute 'flor'"),
    "nothing": (
        "nearest_ten",
        "def transform",
        "def transforms",
        r"py:\d+: .* must have transform or process",
    ),
    "one value": (
        "nearest_ten",
        "(values / 10)",
        "(values / 10)[..., :1]",
        r"py:17: NearestTen releases values of shape \(1,\)",
    ),
    "no number": (
        "nearest_ten",
        "(values / 10)",
        "(values / 10 * np.nan)",
        r"py:17: NearestTen releases values that are no numbers; only those of inactive sensors may be NaN",
    ),
    "out of bounds": (
        "empty_streets",
        "bounds=(0.0, 1.0)",
        "bounds=(0.0, 0.1)",
        r"py:\d+: metric empty_streets returns 1; by its bounds it must be from 0 to 0.1",
    ),
    "cells": (
        "bands",
        "np.floor",
        "9 + np.floor",
        "py:24: the space Bands: place must return a whole number for each event",
    ),
    "taken": ("empty_streets", 'metric("empty_streets"', 'metric("mae"', r"py:\d+: the metric mae is there already"),
    "field": (
        "bands",
        'n: int = parameter(4, doc="number of bands", at_least=1)',
        "n: int",
        r"py:\d+: .* must declare n with",
    ),
    "returns": (
        "costliest_window",
        ', {"largest": largest}',
        "",
        "py:19: charge must return a pair: rows, and the state as a dict",
    ),
    "rows": (
        "costliest_window",
        'AccountRow("everybody", window.index, "costliest_window", float(largest[0]))',
        '("everybody", 1)',
        "py:19: charge must return rows of AccountRow, not tuple",
    ),
    "no figure": (
        "costliest_window",
        "float(largest[0])",
        'float("nan")',
        "py:19: charge returns a row costliest_window whose value is no number",
    ),
    "no docstring": (
        "empty_streets",
        '    """Share of the empty cells that are released as less than one person."""\n',
        "",
        "py:8: the metric empty_streets has no docstring, the first line of which says what it measures",
    ),
    "days": ("empty_streets", '"window"', '"day"', "py:8: .* it must be true where scope is day"),
    "source": ("json_lines", "(FileSource)", "", "py:16: the class JsonLines must derive from "),
}

#: Tried every time: some of each kind of plug-in.
KINDS = (
    "nothing",
    "one value",
    "no figure",
    "no docstring",
    "days",
    "returns",
    "cells",
    "taken",
    "method",
    "metric",
    "library",
    "loading",
    "shape",
    "row",
    "accountant",
    "space",
    "source",
)


@pytest.fixture
def copied(town, tmp_path):
    """A folder with the plug-ins of the page and what they read."""
    folder, _ = town
    shutil.copytree(folder / "town", tmp_path / "town")
    for file in ("town.yaml", "events.jsonl"):
        shutil.copy(folder / file, tmp_path)
    return tmp_path


@pytest.mark.parametrize("mistake", [*KINDS, *slow(sorted(MISTAKES.keys() - set(KINDS)))])
def test_a_mistake_is_one_line_with_file_line_and_cure(copied, mistake):
    name, before, after, expected = MISTAKES[mistake]
    [path] = (copied / "town").rglob(f"{name}.py")
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    code, log = run(copied, "penstock run town.yaml --runner local")
    assert code in (1, 2)
    assert re.search(rf"{name}[.:]{expected}", log), log
    assert "Traceback" not in log
    assert len(re.findall("^penstock: ", log, re.MULTILINE)) == 1, log


def test_a_mistake_is_the_same_line_in_the_plain_loop_and_in_beam(copied):
    path = copied / "town/mechanisms/nearest_ten.py"
    path.write_text(path.read_text().replace("return 10", "return {}['ten']"))
    (code, log), in_beam = (run(copied, f"penstock run town.yaml --runner {name} --out {name}") for name in RUNNERS)
    [line] = [line for line in log.splitlines() if line.startswith("penstock: ")]
    assert line.startswith(f"penstock: {path}:19: KeyError: 'ten' ("), line
    assert (code, [line]) == (in_beam[0], [line for line in in_beam[1].splitlines() if line.startswith("penstock: ")])


def test_a_file_with_a_taken_name_is_refused(copied):
    (copied / "town/mechanisms/clip.py").write_text("")
    code, log = run(copied, "penstock validate town.yaml")
    assert code == 2
    assert re.search(r"town/mechanisms/clip\.py:1: its name is that of .*rename the file and its class", log), log


def test_a_second_folder_with_a_taken_name_is_refused(copied):
    shutil.copytree(copied / "town/metrics", copied / "village/metrics")
    code, log = run(copied, "penstock validate town.yaml --set 'plugins=[town, village]'")
    assert code == 2
    assert re.search(r"village/metrics/empty_streets\.py:1: its name is that of .*town/metrics/empty_streets", log), log


@pytest.mark.parametrize(
    ("entry", "owner"),
    [
        ("mechanisms laplace = town.mechanisms.laplace:Laplace", "penstock/mechanisms/laplace.py"),
        ("mechanisms nearest_ten = town.mechanisms.nearest_ten:NearestTen", "town/mechanisms/nearest_ten.py"),
        ("metrics mae = town.metrics.mae:mae", r"penstock/evaluation/utility.py:\d+"),
        ("metrics empty_streets = town.metrics.empty_streets:empty_streets", "town/metrics/empty_streets.py:8"),
    ],
)
def test_an_entry_point_with_a_taken_name_is_refused(copied, entry, owner):
    group, _, line = entry.partition(" ")
    install(copied / "site", {f"penstock.{group}": dict([line.split(" = ")])})
    code, log = run(copied, "penstock run town.yaml --runner local", PYTHONPATH=str(copied / "site"))
    assert code in (1, 2)
    text = f"entry point {line} of penstock.{group}: its name is that of .*{owner}; rename it with its file"
    assert re.search(text, log), log


def test_an_entry_point_of_a_metric_is_called_as_its_file(copied):
    entry = {"penstock.metrics": {"empty_streets": "town.metrics:empty_streets"}}
    install(copied / "site", entry)
    shutil.rmtree(copied / "town/metrics")
    code, log = run(copied, "penstock run town.yaml --runner local", PYTHONPATH=str(copied / "site"))
    assert code == 2
    assert "it must be town.empty_streets:empty_streets" in log, log
