"""Utility of defenses on the San Francisco cabs, against the tables of Pyrgelis, Troncoso, De Cristofaro (2020)."""

from __future__ import annotations

import json

import numpy as np
import pytest

from penstock.evaluation.attacks.defenses import defended_presence, mechanism_defense, random_guess
from penstock.evaluation.utility import METRICS
from penstock.mechanisms import get
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.steps.individuals import read_presence

pytestmark = [pytest.mark.data, pytest.mark.slow]

GROUP_SIZE, N_GROUPS = 250, 10
NAMES = ("mre", "mre_top", "hotspot_f1", "js_distance", "pearson")
#: How far from the paper: cells at the edge of its unknown area decide some of the figures.
NEAR = {"mre": 0.003, "mre_top": 0.004, "hotspot_f1": 0.03, "js_distance": 0.1, "pearson": 0.03}

SUPPRESS_SMALL = {  # table 14, by threshold
    5: (0.015, 0.000, 0.999, 0.087, 0.710),
    10: (0.021, 0.000, 0.995, 0.150, 0.610),
    20: (0.029, 0.001, 0.978, 0.269, 0.503),
    40: (0.041, 0.005, 0.869, 0.468, 0.324),
    80: (0.050, 0.032, 0.381, 0.532, 0.104),
}
SAMPLING = {  # table 18, by share dropped
    0.2: (0.011, 0.012, 0.931, 0.040, 0.922),
    0.4: (0.021, 0.024, 0.894, 0.066, 0.849),
    0.6: (0.032, 0.036, 0.846, 0.099, 0.751),
    0.8: (0.042, 0.048, 0.761, 0.160, 0.594),
}


@pytest.fixture(scope="module")
def groups(data_folder):
    """Presence of ten random groups in the first week."""
    sections = {
        "name": "cabs",
        "source": {
            "type": "cabspotting",
            "path": str(data_folder("cabspotting")),
            "from": "2008-05-19T00:00:00Z",
            "until": "2008-05-26T00:00:00Z",
        },
        "space": {"type": "grid", "rows": 10, "columns": 10}
        | {"south": 37.74, "north": 37.82, "west": -122.47, "east": -122.37},
        "windows": {"type": "fixed", "size": "1h"},
        "mechanism": {"type": "raw"},
        "output": {"path": "unused"},
    }
    presence = read_presence(make_plan(loads(json.dumps(sections))), 168).raw.swapaxes(1, 2)
    chosen = (np.random.default_rng(g).choice(len(presence), GROUP_SIZE, replace=False) for g in range(N_GROUPS))
    return [presence[members] for members in chosen]


def utility(groups, release):
    """Mean over the groups of each metric of ``release(presence, seed)``, all (n_cells, n_windows)."""
    found = [
        [METRICS[name].scores(binary.sum(axis=0), release(binary, seed))[1].mean() for name in NAMES]
        for seed, binary in enumerate(groups)
    ]
    return dict(zip(NAMES, np.mean(found, axis=0)))


def check(found, paper):
    for name, value in zip(NAMES, paper):
        assert found[name] == pytest.approx(value, abs=NEAR[name]), name


@pytest.mark.parametrize("threshold", SUPPRESS_SMALL)
def test_suppressing_small_counts(groups, threshold):
    defense = mechanism_defense(get("suppress_small")(threshold=threshold))
    found = utility(groups, lambda binary, seed: defense(binary.sum(axis=0).T[None], seed)[0].T)
    check(found, SUPPRESS_SMALL[threshold])


@pytest.mark.parametrize("dropped", SAMPLING)
def test_sampling(groups, dropped):
    step = get("sampling")(rate=1 - dropped)
    check(
        utility(groups, lambda binary, seed: defended_presence(binary, [step], seed=seed).sum(axis=0)),
        SAMPLING[dropped],
    )


def test_a_random_guess(groups):
    found = utility(groups, lambda binary, seed: random_guess(binary.sum(axis=0), seed, GROUP_SIZE))
    paper = {"mre_top": 0.08, "hotspot_f1": 0.094, "js_distance": 0.472, "pearson": 0.001}
    for name, value in paper.items():
        assert found[name] == pytest.approx(value, abs=0.015), name
