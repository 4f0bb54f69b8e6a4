"""The example of CONTRIBUTING.md, followed literally in a copy of the checkout: its file written, its commands run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import polars as pl
import pytest

from tests.tools.cases import slow
from tests.tools.checkout import ROOT

SECTION = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## One change")[2].partition("\n## ")[0]
[BLOCK] = re.findall(r"^```python\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
PROSE = SECTION.replace(BLOCK, "")
#: Lines of the shell: what is indented, continued lines joined.
CLONE, *COMMANDS = re.findall(r"^ {4}(?! )(.+)$", PROSE.replace("\\\n", " "), re.MULTILINE)
LEFT_OUT = (".git", ".venv", "build", "runs", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the checkout, whose ``.venv`` has the commands of the environment of this test."""
    copy = tmp_path_factory.mktemp("clone") / "penstock"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    (copy / ".venv/bin").mkdir(parents=True)
    modules = {"python": "", "penstock": "-m penstock.pipeline.cli.main", "ruff": "-m ruff", "mypy": "-m mypy"}
    for name, words in modules.items():
        path = copy / ".venv/bin" / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n', encoding="utf-8")
        path.chmod(0o755)
    for stamp in (".core", ".dev", ".test"):
        (copy / ".venv" / stamp).touch()
    return copy


def shell(folder, command):
    """Run a command as in a shell in a folder; its exit code and output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "VENV", "MAKE"))}
    environment |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["sh", "-e", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_the_section_begins_with_a_clone_and_has_a_file_and_commands():
    assert CLONE == "git clone … penstock && cd penstock && make .venv/.dev .venv/.test"
    assert [command.split()[0] for command in COMMANDS] == [".venv/bin/python", ".venv/bin/penstock", "make"]
    assert "Write `mechanisms/round_to.py`:" in PROSE
    assert "Name it in the last row of the table in `docs/mechanisms.md`" in PROSE


def test_the_new_step_is_checked_and_run(checkout):
    (checkout / "mechanisms/round_to.py").write_text(BLOCK, encoding="utf-8")
    unnamed, log = shell(checkout, COMMANDS[0])
    assert unnamed == 1, log
    assert re.search(r"^\.{10,}F\.* +\[100%\]", log), log
    page = checkout / "docs/mechanisms.md"
    row, text = "| `fixed_ranges`, ", page.read_text("utf-8")
    assert text.count(row) == 1
    page.write_text(text.replace(row, "| `round_to`, `fixed_ranges`, "), encoding="utf-8")
    code, log = shell(checkout, COMMANDS[0])
    assert code == 0, log
    assert re.search(r"^\.{10,} +\[100%\]", log), log
    code, log = shell(checkout, COMMANDS[1])
    assert code == 0, log
    values = pl.read_parquet(checkout / "runs/rounded/public/releases.parquet")["value"]
    assert (values % 5 == 0).all()
    assert values.n_unique() > 3


@pytest.mark.parametrize("last", ["make docs lint", *slow(["make docs lint types"])])
def test_the_pages_are_made_again(checkout, last):
    assert COMMANDS[2].startswith(last)
    (checkout / "mechanisms/round_to.py").write_text(BLOCK, encoding="utf-8")
    code, log = shell(checkout, last)
    assert code == 0, log
    assert "`round_to`" in (checkout / "docs/configuration.md").read_text("utf-8")
    assert shell(checkout, ".venv/bin/python docs/generate.py --check")[0] == 0
