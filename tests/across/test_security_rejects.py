"""Rejected rows of a deployment are dropped; where they were is kept."""

from __future__ import annotations

import json

import pytest

from penstock.mechanisms.core.plugin import ConfigError
from tests.tools.deployments import configured, leaks, planted, sections
from tests.tools.small_configuration import run_locally as run


def rejects(folder):
    return [json.loads(line) for line in (folder / "operator" / "rejects.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"rejects": "raw"}, r"output\.rejects: was removed; a simulation keeps rejected rows"),
        ({"rejects_key": "reader.pub"}, r"output\.rejects_key: was removed; file and line"),
    ],
)
def test_removed_options_for_rejects_are_refused_before_anything_is_read(tmp_path, output, message, working_folder):
    value = sections(tmp_path)
    with pytest.raises(ConfigError, match=message):
        configured(value | {"output": value["output"] | output})


@pytest.mark.parametrize("stream", [False, True])
def test_a_deployment_keeps_where_a_rejected_row_was(tmp_path, stream):
    value = sections(tmp_path)
    if stream:
        value["source"] = {"type": "stream", "of": value["source"], "order": "time"}
    folder = run(configured(value)).folder
    assert not leaks(folder, planted(tmp_path))
    assert [(row["line"], row["raw"]) for row in rejects(folder)] == [(8, None), (9, None)]
