"""The summary of users against Python sets."""

from collections import defaultdict

import numpy as np
import pytest

from penstock.pipeline.counting.contributions import Contributions, IdentityTable, KeyLayout, distinct_keys
from penstock.pipeline.counting.count import summarise_users, visits

N_CELLS, GROUP = 9, 4


@pytest.mark.parametrize("kinds", [("small",), ("small",) * 3, ("sparse",) * 2, ("digests",) * 3, ("small", "digests")])
def test_cells_and_windows_of_every_user(kinds: tuple[str, ...]) -> None:
    random = np.random.default_rng(4)
    cells: dict[tuple[int, ...], set[int]] = defaultdict(set)
    windows: dict[tuple[int, ...], set[int]] = defaultdict(set)
    actual: list[Contributions] = []
    for group, kind in enumerate(kinds):
        user = random.integers(0, 40, 300)
        window, cell = random.integers(0, GROUP, 300), random.integers(0, N_CELLS, 300)
        identity = user[:, None]
        if kind == "sparse":
            identity = user[:, None] * 10**15 - 7
        if kind == "digests":
            identity = np.column_stack([user * 10**17 - 9, user % 3])
        for who, when, where in zip(np.pad(identity, ((0, 0), (0, 2 - identity.shape[1]))).tolist(), window, cell):
            cells[tuple(who)].add(int(where))
            windows[tuple(who)].add(group * GROUP + int(when))
        layout, table = KeyLayout(GROUP, N_CELLS), None
        if kind != "small":
            identities, user = np.unique(identity, axis=0, return_inverse=True)
            table = IdentityTable(identities)
        actual.append(visits(Contributions(distinct_keys(layout.pack(user.ravel(), window, cell)), table), layout))
    summary = summarise_users(actual, N_CELLS)
    assert summary == {
        "cells": [len(cells[who]) for who in sorted(cells)],
        "windows": [len(windows[who]) for who in sorted(cells)],
    }
