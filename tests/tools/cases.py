"""Cases of parametrised tests, of which some are left to ``make slow``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow(cases: Iterable[Any]) -> list[Any]:
    """Cases that only ``make slow`` runs."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow) for case in cases]


def seeds(n_quick: int, n_all: int) -> list[Any]:
    """Numbers from 0 on, of which the first few are tried every time and the others by ``make slow``."""
    return [*range(n_quick), *slow(range(n_quick, n_all))]
