"""Ctrl-C ends a command with its documented exit code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.pipeline.cli import main
from penstock.pipeline.cli.main import COMMANDS
from penstock.pipeline.monitoring.redaction import redact_errors
from tests.tools.small_configuration import made_up_events, small_sections

#: Ctrl-C reaches it also where the tests were begun in the background.
BUSY = """
import signal
import time
from penstock.pipeline.cli.main import script
from penstock.pipeline import run

def merge_outputs(_):
    print("running", flush=True)
    time.sleep(600)

signal.signal(signal.SIGINT, signal.default_int_handler)
run.outcome.merge_outputs = merge_outputs
script()
"""


@pytest.mark.parametrize("words", [[], ["--json"], ["--log", "text"]])
def test_ctrl_c_ends_a_run(tmp_path: Path, words: list[str]) -> None:
    config = tmp_path / "run.json"
    config.write_text(json.dumps(small_sections(tmp_path, made_up_events(20))))
    command = [sys.executable, "-c", BUSY, "run", str(config)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "--runner", "local", *words], **pipes) as process:
        assert process.stdout is not None
        while (line := process.stdout.readline()) != "running\n":
            assert line.startswith(("loss ", "CAUTION ", "expect ")), line
        process.send_signal(signal.SIGINT)
        try:
            out, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 4
    assert errors.splitlines()[-1] == "penstock: interrupted: continue with --resume"
    assert "Traceback" not in errors
    messages = {"exit_code": 4, "error": "KeyboardInterrupt", "problems": ["interrupted: continue with --resume"]}
    assert (json.loads(out) if out else messages) == messages
    assert bool(out) == ("--json" in words)


@pytest.mark.parametrize("deployment", [False, True])
def test_ctrl_c_is_told_as_such_whatever_it_became_on_its_way(monkeypatch, capsys, deployment: bool) -> None:
    """As Python has it where it strikes in a class that is being made."""

    class Field:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    def execute(_: object) -> int:
        with redact_errors(deployment):
            type("Owner", (), {"field": Field()})
        return 0

    monkeypatch.setitem(COMMANDS, "list", replace(COMMANDS["list"], execute=execute))
    assert main.main(["list"]) == 4
    assert capsys.readouterr().err == "penstock: interrupted\n"
