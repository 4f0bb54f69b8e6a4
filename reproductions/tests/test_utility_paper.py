"""Utility of five defenses on the San Francisco cabs, against tables 6, 8, 10, 14 and 18 of Pyrgelis et al."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.evaluation.utility import METRICS
from penstock.mechanisms import get
from penstock.mechanisms.core.chain import Chain
from reproductions.pyrgelis import WEEK, cab_presence
from reproductions.saved import ROOT, written
from reproductions.studies.privacy_gain import coarse, released
from tests.tools.real_data import data_folder as data_folder

pytestmark = pytest.mark.data
#: The published setting, the step, and how far each measure may be off: other groups of cabs are drawn, and what hangs
#: on the numbers of the cells (τ), or on nearly empty cells at the edge of the box (the error), is left out.
FOUR = {"mre_top": 0.002, "hotspot_f1": 0.035, "js_distance": 0.02, "pearson": 0.02}
ALL = {
    "mre": 0.003,
    "mre_top": 0.003,
    "hotspot_f1": 0.025,
    "hotspot_rank_tau": 0.1,
    "js_distance": 0.02,
    "pearson": 0.04,
}
LONGER = {"mre": 0.05, "hotspot_f1": 0.04}
COARSER = {"hotspot_f1": 0.1, "js_distance": 0.1, "pearson": 0.1}
CASES = [
    *(("sfc_suppress_small", f"k = {k}", ("suppress_small", {"threshold": k}), ALL) for k in (2, 5, 10, 20, 40)),
    *(("sfc_sampling", f"w = {w}", ("sampling", {"rate": 1 - w}), ALL) for w in (0.2, 0.4, 0.6, 0.8)),
    *(("sfc_fixed_ranges", f"x = {x}", ("fixed_ranges", {"width": x}), FOUR) for x in (2, 5, 10, 50)),
    *(
        ("sfc_spatial_generalization", f"{n}x{n}", ("spatial_generalization", {"rows": n, "columns": n}), COARSER)
        for n in (5, 2, 1)
    ),
    *(
        ("sfc_temporal_generalization", title, ("temporal_generalization", {"windows": hours}), LONGER)
        for title, hours in (("4 hours", 4), ("8 hours", 8), ("1 day", 24))
    ),
]


@pytest.fixture(scope="module")
def presence(data_folder):
    """Cabs × hours × cells, first week of the paper's three, of the cabs seen in it."""
    week = cab_presence(str(data_folder("cabspotting")))[:, :WEEK]
    return week[week.any(axis=(1, 2))]


@pytest.mark.parametrize(("name", "setting", "step", "tolerances"), CASES, ids=lambda value: str(value)[:30])
def test_figures_are_as_published(presence, name, setting, step, tolerances):
    chain = Chain.of([get(step[0])(**step[1])])
    rng = np.random.default_rng(7)
    scores = []
    for _ in range(4):
        group = presence[rng.choice(len(presence), 250, replace=False)]
        seen = coarse(group, chain)
        if chain.sampling is not None:
            seen = seen & (rng.random(seen.shape) < chain.sampling.rate)
        release = released(chain, seen.sum(axis=0)[None], [7])[0]
        scores.append([METRICS[measure].function(group.sum(axis=0).T, release.T) for measure in tolerances])
    published = written(ROOT / "experiments" / f"{name}.yaml")["published"]
    expected = dict(zip(published["measures"], published["rows"][setting]))
    for (measure, tolerance), score in zip(tolerances.items(), np.mean(scores, axis=0)):
        assert score == pytest.approx(expected[measure], abs=tolerance), measure
