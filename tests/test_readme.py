"""Generated documentation is current, links resolve, and commands exist."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from types import FrameType

import pytest

import penstock
from penstock import accountants, mechanisms
from penstock.pipeline.cli import inspect
from penstock.pipeline.config.run import load
from penstock.pipeline.run import run
from penstock.pipeline.runners.beam import graph
from tests.tools.checkout import ROOT, script
from tests.tools.small_configuration import small_sections

generate = script("docs/generate.py")
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: What the generator reads and writes.
GENERATED = ("configuration.md", "glossary.md")
FOLDERS = (ROOT / "docs", ROOT / "reproductions")
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for folder in FOLDERS for page in sorted(folder.glob("*.md"))),
]


def test_generated_parts_are_current():
    command = [sys.executable, "docs/generate.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_stale_table_is_noticed_and_rewritten(tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    for name in ("README.md", *(f"docs/{name}" for name in GENERATED)):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    stale = tmp_path / "README.md"
    stale.write_text(README.replace("| `temporal` |", "| `cooked` |"), encoding="utf-8")
    assert (generate.main(["--check"], tmp_path), capsys.readouterr().out) == (
        1,
        "README.md is not current; run: make docs\n",
    )
    assert generate.main([], tmp_path) == 0
    assert stale.read_text(encoding="utf-8") == README


def test_the_demo_prints_what_the_readme_shows(tmp_path):
    shown = README.partition("$ penstock demo\n")[2].partition("took ")[0]
    command = [sys.executable, "-m", "penstock.pipeline.cli.main", "demo"]
    printed = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert shown in printed.stdout


@pytest.mark.parametrize(("kind", "package"), [("mechanisms", mechanisms), ("accountants", accountants)])
def test_tables_have_a_row_for_every_plug_in(kind, package):
    table = inspect.markdown(kind).splitlines()
    assert [re.match(r"\| `(\w+)` \|", line).group(1) for line in table[2:]] == list(package.names())
    assert len({line.count(" | ") for line in table}) == 1


@pytest.mark.parametrize("kind", ["mechanisms", "accountants", "sources", "spaces", "windows", "metrics"])
def test_every_plug_in_has_a_promise(kind):
    for entry in inspect.entries(kind):
        assert entry["promise"].endswith("."), entry["name"]
        assert entry["name"] in inspect.text(kind)
        assert f"`{entry['name']}`" in inspect.markdown(kind)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert re.match(r"[a-z]+:", target) or (page.parent / target).exists(), target


def test_messages_name_pages_as_the_menu_does_and_no_file_that_an_installed_package_lacks():
    labels = set(re.findall(r"^\* \[(.+?)\]", (ROOT / "docs" / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    named = set()
    parts = ("pipeline", "mechanisms", "accountants", "evaluation")
    for path in (path for part in parts for path in (ROOT / "penstock" / part).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        docstrings = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, documented)}
        texts = {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        for text in texts - docstrings:
            assert not re.search(r"[a-z]\.md\b", text), (path, text)
            named |= set(re.findall(r"documentation: (.+?)\)", text))
    for template in (ROOT / "penstock" / "pipeline").rglob("*.html"):
        text = re.sub(r"\{#.*?#\}", "", template.read_text(encoding="utf-8"))
        assert not re.search(r"[a-z]\.md\b", text), template
        named |= set(re.findall(r"documentation, ([A-Z]\w+)", text))
    assert named == {"Bring data", "Flink", "Glossary", "Security", "Write an experiment"}
    assert named <= labels


def test_mechanisms_that_the_readme_offers_exist():
    offered = re.findall(
        r"^\|[^|]*\| `(\w+)` \|", README.partition("## Mechanisms")[2].partition("\n## ")[0], re.MULTILINE
    )
    assert len(offered) == 8
    assert set(offered) <= set(mechanisms.names())


@pytest.mark.parametrize("pages", ["", "https://example.org/"])
def test_the_description_of_a_package_has_no_link_that_leads_nowhere(pages):
    described = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")["description"](pages)
    links = re.findall(r"\]\(([^)]*)\)", described)
    assert all(link.startswith(("https://", "#")) for link in links)
    assert bool(links) == bool(pages)
    assert "[getting started" in described or not pages
    assert "pip install penstock" in described.splitlines()[2]


def test_the_version_is_in_one_place(capsys):
    from penstock.pipeline.cli.main import main

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"penstock {penstock.__version__}\n"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "penstock.__version__"}


def test_commands_of_the_readme_exist():
    from penstock.pipeline.cli.main import main

    for command in set(re.findall(r"^\| `penstock (\w+)", README, re.MULTILINE)):
        with pytest.raises(SystemExit) as stopped:
            main([command, "--help"])
        assert stopped.value.code == 0, command


def called_by_a_run(folder: Path) -> set[tuple[str, str]]:
    """File and name of every function of the project that loading and running a small configuration calls."""
    events = [("ann", "2024-01-01T08:12:00Z", place) for place in "ab"]
    parts = {"bounding": {"max_cells": 1}, "mechanism": {"type": "discrete_laplace", "epsilon": 1.0}}
    sections = small_sections(folder, events, n_windows=10, accountants=[{"type": "composition"}], **parts)
    path, actual = folder / "run.yaml", set()
    path.write_text(json.dumps(sections))

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            actual.add((frame.f_code.co_filename, frame.f_code.co_name))

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run(load(path), folder / "out", runner="local")
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    inside = ((Path(file).resolve(), name) for file, name in actual)
    ours = ((path.relative_to(ROOT).as_posix(), name) for path, name in inside if path.is_relative_to(ROOT))
    return {(path.removeprefix("penstock/"), name) for path, name in ours}


def test_the_way_of_one_event_is_the_one_it_takes(tmp_path):
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    steps = re.findall(r"^\| (\d+) \| `([\w.]+)` \| `([\w/]+\.py)` \|", page, re.MULTILINE)
    assert [int(number) for number, _, _ in steps] == list(range(1, len(steps) + 1))
    assert 10 <= len(steps) <= 20
    places = set()
    for _, name, path in steps:
        scope = ast.parse((ROOT / "penstock" / path).read_text(encoding="utf-8")).body
        for part in name.split("."):
            [actual] = [node for node in scope if getattr(node, "name", None) == part]
            scope = actual.body
        places.add((path, actual.name))
    # The step of a schedule takes the place of the one that the contract declares.
    places = places - {("mechanisms/core/contract.py", "step")} | {("mechanisms/core/schedules.py", "step")}
    assert places <= called_by_a_run(tmp_path)
    transforms = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert "CountDistinctUsers" in transforms
    for transform in transforms:
        assert hasattr(graph, transform), transform
