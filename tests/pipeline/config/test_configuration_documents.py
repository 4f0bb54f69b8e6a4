"""The configuration page is current, and its examples are valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.mechanisms.core.plugin import ConfigError
from penstock.pipeline.config.run import loads
from penstock.pipeline.config.schema import with_reference
from tests.tools.checkout import ROOT

PAGE = ROOT / "docs" / "configuration.md"


def test_the_reference_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    hint = "run: python docs/generate.py"
    assert page == with_reference(page), hint


def test_the_example_loads(tmp_path: Path, working_folder: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rides-1.csv").write_text("rider,at,lat,lon\n")
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert loads(example).name == "evening-footfall"
    with pytest.raises(ConfigError):
        loads(example, overrides=["mode=deployment"])
