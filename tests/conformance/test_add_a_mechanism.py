"""The tutorial docs/add_a_mechanism.md, followed literally, outside of a checkout: files written, commands run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT

PAGE = (ROOT / "docs" / "add_a_mechanism.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def follow(folder, replacing=("", "")):
    """Write the page's files and run its commands in a folder; the outputs of the commands."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    outputs = []
    for language, block in BLOCKS:
        if language != "sh":
            target = folder / block.splitlines()[0].removeprefix("# ")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.replace(*replacing), encoding="utf-8")
            continue
        environment = os.environ | {"PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            ["sh", "-e", "-c", block], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        outputs.append((done.returncode, done.stdout + done.stderr))
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
    assert replacing[0] in PAGE
    (ran, log), (read, _), (checked, suite) = follow(tmp_path, replacing)
    assert ran == 0, log
    assert read == 1
    assert checked == 0, suite
