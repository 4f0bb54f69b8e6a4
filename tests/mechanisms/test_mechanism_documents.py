"""Every mechanism is on the page that explains mechanisms."""

from __future__ import annotations

import pytest

from penstock import mechanisms
from tests.tools.checkout import ROOT

PAGES = [ROOT / "docs" / name for name in ("mechanisms.md", "traces.md")]


@pytest.mark.parametrize("name", mechanisms.names())
def test_mechanism_is_explained(name):
    page = PAGES[mechanisms.get(name).examples()[0].guarantee.on_points]
    assert f"`{name}`" in page.read_text(encoding="utf-8")
