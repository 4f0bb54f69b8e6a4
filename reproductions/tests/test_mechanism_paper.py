"""Generalization on the San Francisco cabs, against tables 6, 8 and 10 of the paper."""

from __future__ import annotations

import json

import numpy as np
import pytest
from test_utility_paper import mean_scores, presence

from penstock.mechanisms import get
from penstock.mechanisms.core.run import run_mechanism
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.counting.contributions import ContributionRows
from penstock.pipeline.counting.count import released_counts
from tests.tools.small_configuration import grid

__all__ = ["presence"]  # a fixture

MRE, MRE_TOP, F1, JS, PEARSON = 0, 1, 2, 4, 5
TEMPORAL = {4: (0.134, 0.823), 8: (0.280, 0.781), 24: (0.703, 0.709)}  # table 8: MRE and F1 by hours
SPATIAL = {5: (0.534, 0.215, 0.684), 2: (0.344, 0.402, 0.507), 1: (0.049, 0.434, 0.367)}  # table 6: F1, JS, r by rows
RANGES = {  # table 10: MRE of the busiest cells, F1, JS, r by width
    2: (0.000, 0.983, 0.070, 0.809),
    5: (0.001, 0.953, 0.103, 0.700),
    10: (0.002, 0.911, 0.164, 0.594),
    50: (0.011, 0.658, 0.354, 0.239),
}


def generalized(tmp_path, step):
    """A defence that counts a group of cabs again, as the pipeline does."""
    (tmp_path / "none.csv").write_text("user,time,latitude,longitude\n")
    sections = {
        "name": "paper",
        "source": {
            "type": "csv",
            "path": str(tmp_path / "none.csv"),
            "from": "2008-05-19T00:00:00Z",
            "until": "2008-05-26T00:00:00Z",
            "columns": {"user": "user", "time": "time", "latitude": "latitude", "longitude": "longitude"},
        },
        "space": grid(10),
        "windows": {"type": "fixed", "size": "1h"},
        "mechanism": step,
        "output": {"path": str(tmp_path / "out")},
    }
    plan = make_plan(loads(json.dumps(sections)))

    def defend(group, rng):
        user, window, cell = np.nonzero(group.transpose(0, 2, 1))
        memberships = ContributionRows(user[:, None].astype(np.int64), window + 1, cell)
        return released_counts(memberships, 1, group.shape[2], plan).T

    return defend


@pytest.mark.data
@pytest.mark.parametrize("hours", TEMPORAL)
def test_longer_windows(tmp_path, presence, hours):
    scores = mean_scores(presence, generalized(tmp_path, {"type": "temporal_generalization", "windows": hours}))
    mre, f1 = TEMPORAL[hours]
    assert scores[MRE] == pytest.approx(mre, rel=0.05)
    assert scores[F1] == pytest.approx(f1, abs=0.04)


@pytest.mark.data
@pytest.mark.parametrize("rows", SPATIAL)
def test_coarser_grids(tmp_path, presence, rows):
    step = {"type": "spatial_generalization", "rows": rows, "columns": rows}
    scores = mean_scores(presence, generalized(tmp_path, step))
    # The error itself hangs on nearly empty cells at the edge of the box, which the paper does not give.
    assert np.abs(scores[[F1, JS, PEARSON]] - SPATIAL[rows]).max() < 0.1


@pytest.mark.data
@pytest.mark.parametrize("width", RANGES)
def test_fixed_ranges(presence, width):
    def defend(group, rng):
        releases = run_mechanism(get("fixed_ranges")(width=width), group.sum(axis=0).T)
        return np.array([release.values for release in releases]).T

    scores = mean_scores(presence, defend)[[MRE_TOP, F1, JS, PEARSON]]
    assert (np.abs(scores - RANGES[width]) <= (0.002, 0.035, 0.02, 0.02)).all()
