"""Location of the real data sets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_folder():
    """Folder of an unpacked real data set; the test is skipped where the data is not at hand."""

    def find(name: str) -> Path:
        root = os.environ.get("PENSTOCK_DATA")
        if not root:
            pytest.skip("PENSTOCK_DATA does not say where the real data sets are")
        folder = Path(root) / name
        if not folder.is_dir():
            pytest.skip(f"the data set {name} is not in PENSTOCK_DATA")
        return folder

    return find
