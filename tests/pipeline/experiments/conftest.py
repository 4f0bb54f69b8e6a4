"""Fixture for a changed version of penstock under the same number."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.pipeline.output import manifest


@pytest.fixture
def other_code(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Function after which the digest of the code is another."""
    return lambda: monkeypatch.setattr(manifest, "code_digest", lambda: "other code of the same version")
