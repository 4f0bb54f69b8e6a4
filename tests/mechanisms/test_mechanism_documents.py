"""Every mechanism is on the page that explains mechanisms."""

from __future__ import annotations

import pytest
from checkout import ROOT

from penstock import mechanisms

PAGES = [ROOT / "docs" / name for name in ("mechanisms.md", "traces.md")]


@pytest.mark.parametrize("name", mechanisms.names())
def test_mechanism_is_explained(name):
    stages = mechanisms.get(name).stages
    page = PAGES[1] if stages == ("points",) else PAGES[0]
    assert f"`{name}`" in page.read_text(encoding="utf-8")
