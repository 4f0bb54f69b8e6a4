"""Refusals of a deployment, one by one, with the offending key and the remedy."""

from __future__ import annotations

import pytest

from penstock.mechanisms.core.plugin import ConfigError
from tests.tools.deployments import configured, sections

TRACES = {"windows": {"type": "timestamps"}, "mechanism": {"type": "planar_laplace", "epsilon": 1.0, "radius": 50}}


REFUSED = [
    # whoever knows the seed removes the noise
    ({"seed": 3}, "seed: 3"),
    ({"noise_key": None}, "noise_key: missing"),
    # public facts from private data
    ({"space": {"type": "places", "top": 2, "elsewhere": True}}, "space"),
    # noise that is none, or can be taken off
    ({"mechanism": {"type": "laplace", "epsilon": 1.0}}, "discrete_laplace in a deployment"),
    ({"mechanism": {"type": "gaussian", "rho": 1.0}}, "discrete_gaussian in a deployment"),
    (
        {"mechanism": {"type": "landmark_uniform", "epsilon": 1.0, "noise": "laplace"}},
        "discrete_laplace in a deployment",
    ),
    ({"mechanism": {"type": "fpa", "epsilon": 1.0, "coefficients": 1, "block": 3}}, "discrete_laplace in a deployment"),
    ({"mechanism": {"type": "discrete_laplace", "epsilon": "inf"}}, "finite in a deployment"),
    # no guarantee
    *(
        ({"mechanism": mechanism}, "a mechanism with a guarantee in a deployment .or set allow_no_guarantee: true")
        for mechanism in (
            {"type": "raw"},
            {"type": "suppress_small", "threshold": 5},
            {"type": "perturb_small", "threshold": 5, "epsilon": 1.0},
            {"type": "crowd_blending", "threshold": 5},
            {"type": "fixed_ranges", "width": 5},
            {"type": "adaptive_ranges", "parts": 5, "block": 3},
            {"type": "suppress_unpopular", "fraction": 0.2, "block": 3},
            [{"type": "sampling", "rate": 0.5}],
            [{"type": "spatial_generalization", "rows": 1, "columns": 1}],
        )
    ),
    # truth, labels
    ({"utility": ["mae"]}, "utility"),
    ({"accountants": [{"type": "membership"}]}, "accountants.0..type"),
    # traces
    ({**TRACES, "landmarks": {"stay_points": {"distance": 200, "time": "10m"}}}, "where someone stays is private"),
    (
        {**TRACES, "mechanism": {"type": "planar_laplace", "epsilon": "inf", "radius": 50}},
        "finite in a deployment",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[str(list(c.values())[-1])[:60] for c, _ in REFUSED])
def test_a_deployment_is_refused_with_its_key_and_remedy(tmp_path, changes, message, working_folder):
    value = {key: part for key, part in (sections(tmp_path) | changes).items() if part is not None}
    if "windows" in changes:
        del value["bounding"]
        if "stay_points" not in value["landmarks"]:
            del value["landmarks"]
    with pytest.raises(ConfigError, match=message):
        configured(value)
    # It is the deployment that is refused: a simulation may do all of it.
    if {"noise_key", "seed", "space", "accountants"} & changes.keys():  # these miss something there too
        return
    configured(value | {"mode": "simulation", "noise_key": None})


def test_what_is_refused_above_is_all_that_is_wrong(tmp_path):
    assert configured(sections(tmp_path)).mode == "deployment"


def test_trips_are_no_people(tmp_path):
    (tmp_path / "tripdata.csv").write_text("")
    value = sections(tmp_path)
    value["source"] = {"type": "citibike", "path": str(tmp_path / "tripdata.csv"), "from": value["source"]["from"]}
    with pytest.raises(ConfigError, match="a column that says who it is, in a deployment"):
        configured(value)


def test_a_key_in_the_output_folder_is_refused(tmp_path):
    value = sections(tmp_path) | {"output": {"path": str(tmp_path), "ledger_source": "events"}}
    with pytest.raises(ConfigError, match="a file outside the output folder"):
        configured(value)


def test_no_guarantee_can_be_waived_in_so_many_words(tmp_path):
    value = sections(tmp_path) | {"mechanism": {"type": "raw"}, "allow_no_guarantee": True}
    assert configured(value).allow_no_guarantee
