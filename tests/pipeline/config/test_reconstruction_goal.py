"""``penstock plan --reconstruction``: the printed line keeps the goal."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

from penstock.accountants.markov import MarkovPrior, chain_prior
from penstock.evaluation.attacks.parameters import ReconstructionGame
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import PenstockError
from penstock.pipeline.cli.main import main
from penstock.pipeline.config import reconstruction_goal
from penstock.pipeline.config.plan import outline
from penstock.pipeline.config.reconstruction_goal import plan_reconstruction
from penstock.pipeline.config.run import RunConfig, loads
from penstock.pipeline.experiments.attack import reconstruct
from tests.tools.reconstruction_oracle import Enumeration

CHAIN = {"type": "reconstruction", "horizon": 3, "tolerance": 1, "targets": 1, "prior": {"windows": 2}}


def sections(columns: int = 3, hours: int = 5, **changes: Any) -> dict[str, Any]:
    """Configuration of a synthetic city on a line, against informed adversaries."""
    known = CHAIN | {"prior": {"chain": {"n": columns, "tau": 0.4}, "windows": 2}}
    return {
        "name": "retrace",
        "seed": 3,
        "source": {"type": "synthetic", "n_users": 20, "from": "2024-01-01T00:00:00Z"}
        | {"until": f"2024-01-01T{hours:02}:00:00Z", "events_per_hour": 2.0},
        "space": {"type": "grid", "south": 37.74, "north": 37.82, "west": -122.47, "east": -122.37}
        | {"rows": 1, "columns": columns},
        "windows": {"type": "fixed", "size": "1h"},
        "bounding": {"max_cells": 1},
        "mechanism": {"type": "discrete_laplace", "epsilon": 9.0},
        "accountants": [known],
        "output": {"path": "unused"},
    } | changes


def load(**changes: Any) -> RunConfig:
    return loads(json.dumps(sections(**changes)))


def best_success(prior: MarkovPrior, channel: Any, n_windows: int, horizon: int, tolerance: int) -> float:
    """Largest success, by enumeration, over the stretches, with all releases up to the end of each."""
    largest = 0.0
    for last in range(horizon, n_windows + 1):
        truth = Enumeration(prior, last)
        joint = truth.weight[:, None] * channel(truth, last)
        guesses = np.array(list(itertools.product(range(prior.n_locations), repeat=horizon)))
        near = (guesses[:, None] != truth.paths[None, :, last - horizon :]).sum(axis=2) <= tolerance
        largest = max(largest, float((near @ joint).max(axis=0).sum()))
    return largest


@pytest.mark.parametrize("share", [0.75, 0.9])
@pytest.mark.parametrize("after", [[], [{"type": "clip", "least": 0}]])
def test_the_planned_epsilon_keeps_the_share_whatever_is_guessed(share, after):
    noise = {"type": "discrete_laplace", "epsilon": 9.0}
    planned = plan_reconstruction(load(hours=4, mechanism=[noise, *after]), share)
    assert (planned.section, planned.key) == ("mechanism[0]", "epsilon")

    def truth(epsilon: float) -> float:
        """Success of the best guess."""
        return best_success(
            chain_prior(3, 0.4),
            lambda paths, last: paths.discrete_laplace_channel([range(3)] * last, 1 / epsilon),
            n_windows=4,
            horizon=3,
            tolerance=1,
        )

    assert truth(planned.value) <= share < truth(5 * planned.value)


def test_the_planned_sensors_keep_the_share_whatever_is_guessed():
    given = sections(columns=5, mechanism={"type": "raw"}, hours=4)
    planned = plan_reconstruction(loads(json.dumps(given)), 0.8)
    assert (planned.section, planned.key) == ("sensors", "fixed")
    config = loads(json.dumps(given | {"sensors": yaml.safe_load(planned.line())}))
    active = np.flatnonzero(config.sensors.prepare(config.space.resolve(config.source).cells, 0).mask(1))
    assert 0 < active.size < 5

    def truth(cells: Any) -> float:
        return best_success(
            chain_prior(5, 0.4),
            lambda paths, last: paths.raw_channel([cells] * last),
            n_windows=4,
            horizon=3,
            tolerance=1,
        )

    assert truth(active) <= 0.8 < truth(range(5))


CITY = {
    "space": {
        "type": "grid",
        "south": 37.74,
        "north": 37.82,
        "west": -122.47,
        "east": -122.37,
        "rows": 3,
        "columns": 3,
    },
    "source": {"type": "synthetic", "n_users": 20, "days": 1, "from": "2024-01-01T00:00:00Z", "events_per_hour": 2.0},
    "accountants": [
        {"type": "reconstruction", "horizon": 4, "tolerance": 1, "prior": {"estimate": "first", "windows": 12}}
    ],
}


@pytest.fixture
def planned(tmp_path, capsys):
    """Planned line and remarks for the synthetic city."""
    (tmp_path / "run.yaml").write_text(json.dumps(sections(**CITY, mechanism={"type": "gaussian", "sigma": 1.0})))
    assert main(["plan", str(tmp_path / "run.yaml"), "--reconstruction", "0.85"]) == 0
    line, remark, _ = capsys.readouterr().out.split("\n")
    return line, remark


def test_the_line_says_what_is_planned_and_for_whom(planned):
    line, remark = planned
    assert "# of mechanism[0]: at most 0.85 of people retraced in 3 of any 4 windows in a row (bound 0." in line
    assert remark.startswith("# not covered: people who move otherwise than the prior says")


@pytest.mark.slow
def test_no_more_people_of_the_made_up_city_are_retraced_than_planned(planned, tmp_path):
    config = load(**CITY, mechanism={"type": "gaussian"} | yaml.safe_load(planned[0]))
    game = ReconstructionGame(targets=20, releases=4, simulated=100, bound_samples=0)
    rows = reconstruct(config, game, folder=tmp_path).results.group_by("name").agg(pl.col("value").mean())
    rates = dict(rows.iter_rows())
    for kind in ("map", "posterior_marginals"):
        assert rates[f"{kind}_success"] <= 0.85
        assert 0.2 < rates[f"{kind}_success_made_up"] <= 0.85


@pytest.mark.parametrize(
    ("changes", "share", "message"),
    [
        ({}, 1.0, "share: 1.0 is not allowed; it must be above 0 and below 1"),
        ({}, 0.05, "accountants[0].tolerance: 0."),
        ({"accountants": []}, 0.5, "accountants: a plan needs one reconstruction accountant, whose prior, horizon and"),
        ({"bounding": {"max_cells": 2}}, 0.5, "reconstruction: a person may count in 2 cells of a window"),
        (
            {"accountants": [CHAIN | {"horizon": 9, "prior": {"chain": {"n": 3}, "windows": 2}}]},
            0.5,
            "horizon: 9 is not",
        ),
        ({"mechanism": {"type": "raw"}, "columns": 3}, 0.7, "sensors: counts without noise cannot keep the goal"),
        (
            {"source": {"type": "synthetic", "endless": True}}
            | {"accountants": [CHAIN | {"targets": [1], "prior": {"chain": {"n": 3}}}]},
            0.5,
            "source: the source has no end (until); a plan of",
        ),
    ],
)
def test_plans_that_cannot_be_made_are_refused(changes, share, message):
    with pytest.raises(PenstockError) as caught:
        plan_reconstruction(load(**changes), share)
    assert str(caught.value).startswith(message)


def test_a_deployment_plans_with_a_public_model_only(tmp_path):
    (tmp_path / "key").write_text("0" * 64)
    (tmp_path / "key").chmod(0o600)
    deployment = {"mode": "deployment", "noise_key": str(tmp_path / "key"), "seed": None}
    value = sections(**CITY) | deployment
    value["output"] = {"path": str(tmp_path / "out"), "ledger_source": "events"}
    del value["seed"]
    with pytest.raises(PenstockError, match=r"accountants\[0\].prior: a release planned from people's data tells of"):
        plan_reconstruction(loads(json.dumps(value)), 0.5)


def test_of_stretches_with_the_same_sensors_only_those_with_the_least_noise_are_looked_at():
    """A Monday with landmarks has more noise an hour than the Tuesday without."""
    days = CITY | {"source": CITY["source"] | {"days": 2}, "budget_period": "1d"}
    days |= {"landmarks": {"recurring": ["Mon 07:00-09:00"]}}
    config = load(**days, mechanism={"type": "landmark_uniform", "epsilon": 2.0})
    plan = outline(config, NoiseKey.from_seed(0))
    crowd = reconstruction_goal._crowd(plan, config.accountants[0])
    stretches = crowd._stretches(plan)
    every = max(crowd.largest_share([one] * crowd.n_stretches) for one in stretches)
    assert len(crowd._distinct_stretches(stretches)) < len({one.scale.tobytes() for one in stretches})
    assert crowd.largest_share(stretches) >= every
