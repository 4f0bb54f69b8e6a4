"""Profiles: files of usual counts, where they come from, and what a filter makes of a good and of a wrong one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from penstock.mechanisms import get
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.contract import Facts, Window
from penstock.mechanisms.core.intervals import margin
from penstock.mechanisms.core.plugin import ConfigError, DataError, ParameterError
from penstock.mechanisms.core.run import run_mechanism
from penstock.mechanisms.core.usual_days import Profile, UsualCounts
from penstock.mechanisms.filter import Filter
from penstock.pipeline.cli.data import learn_profile
from penstock.pipeline.config.canonical import digest
from penstock.pipeline.output.utility_summary import ends
from penstock.pipeline.releasing.ledger import is_profile_charged
from penstock.pipeline.run import run
from tests.tools.deployments import configured, events, sections

N_CELLS, SIGMA = 40, 20.0


def usual_counts(seed=3):
    """Usual counts by hour and cell, shape (24, N_CELLS)."""
    rng = np.random.default_rng(seed)
    size, phase = rng.gamma(1.0, 40.0, N_CELLS), rng.choice([8, 13, 18], N_CELLS)
    return size * np.exp(np.cos((np.arange(24)[:, None] - phase) * np.pi / 12)) / 1.3


def error_and_coverage(folder, counts, profile):
    """Mean absolute error of each day, and the share of the counts in the intervals."""
    step = Filter()
    if profile is not None:
        cells = tuple(map(str, range(N_CELLS)))
        UsualCounts(counts=np.stack([profile] * 3), cells=cells, facts={}).write(folder / "profile.json")
        step = Filter(profile=Profile(file=str(folder / "profile.json")))
    made = run_mechanism(Chain.of([get("gaussian")(sigma=SIGMA), step]), counts, Facts(n_cells=N_CELLS), seed=1)
    values, deviations = (np.stack([getattr(one, name) for one in made]) for name in ("values", "standard_deviation"))
    low, high = ends(values, margin(values, deviations))
    return np.abs(values - counts).reshape(-1, 24, N_CELLS).mean((1, 2)), ((low <= counts) & (counts <= high)).mean()


def test_a_good_profile_helps_from_the_first_window_and_a_wrong_one_costs_little(tmp_path):
    usual = usual_counts()
    counts = np.random.default_rng(1).poisson(np.tile(usual, (7, 1)))
    without, _ = error_and_coverage(tmp_path, counts, None)
    good, covered = error_and_coverage(tmp_path, counts, usual)
    assert good[0] < 0.5 * without[0]
    assert good.mean() < 0.75 * without.mean()
    assert covered >= 0.92
    # The level of a profile is learned; of one that knows nothing of the cells little is left.
    assert error_and_coverage(tmp_path, counts, 3 * usual)[0].mean() < 1.1 * good.mean()
    wrong, covered = error_and_coverage(tmp_path, counts, usual_counts(8))
    assert wrong.mean() < 1.15 * without.mean()
    assert covered >= 0.92


def test_counts_are_found_by_name_and_time_whatever_the_windows(tmp_path):
    counts = np.arange(3.0 * 4 * 2).reshape(3, 4, 2)
    UsualCounts(counts=counts, cells=("a", "b"), facts={"source": "x"}).write(tmp_path / "p.json")
    held = UsualCounts.read(tmp_path / "p.json")
    assert (held.cells, held.facts) == (("a", "b"), {"source": "x"})
    assert held.rows(4, ("b", "new", "a"), 3).tolist() == [[b, 0.0, a] for a, b in counts.reshape(-1, 2)]
    # Eight times of day out of four, and two out of four: the middle of each decides.
    assert held.rows(8, None, 2)[:4].tolist() == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert held.rows(2, None, 2)[:2].tolist() == [[2, 3], [6, 7]]
    at = Window(index=1, start=0, end=1, day_type=2, time_of_day=13 * 3_600_000)
    assert held.at([at], ("a", "b")).tolist() == [[20, 21]]
    with pytest.raises(ParameterError, match="cells of the run, such as 'c'"):
        held.rows(4, ("c",), 1)
    with pytest.raises(ParameterError, match="one of 3 cells"):
        held.rows(4, None, 3)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"counts": [[[1.0]]]}, "types of day"),
        ({"counts": [[[1.0, -1.0]]] * 3}, "at least 0"),
        ({"counts": [[[1.0, float("nan")]]] * 3}, "finite"),
        ({"cells": None}, "not a file of usual counts"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, change, expected):
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"cells": ["a", "b"], "counts": [[[1.0, 2.0]]] * 3, "facts": {}} | change))
    with pytest.raises(DataError, match=rf"p\.json: .*{expected}"):
        UsualCounts.read(path)


def deployment(folder, mechanism, **output):
    value = sections(folder, mechanism=mechanism, accountants=[{"type": "composition"}])
    source = {"ledger": str(folder / "ledger"), "ledger_source": "events"}
    value["output"] = {"path": str(folder / "out"), "report": False, **source, **output}
    return value


PLAIN = {"type": "discrete_laplace", "epsilon": 1.0}


def test_a_profile_is_a_function_of_what_a_run_has_released_and_was_charged_for(tmp_path):
    config = configured(deployment(tmp_path, PLAIN))
    learned = learn_profile(config, tmp_path / "one.json")
    assert learned["windows"] == 6
    assert learned["ledger"] == str(tmp_path / "ledger")
    assert digest(config).hex()[:32] not in (tmp_path / "one.json").read_text()  # it would confirm guesses of paths
    assert UsualCounts.read(tmp_path / "one.json").counts.shape == (3, 24, 4)
    charged = (tmp_path / "ledger").read_bytes()
    # The input is another one, as if one person had been there or not; nothing but the releases is read.
    (tmp_path / "events.csv").write_text(events("somebody else", 1))
    learn_profile(config, tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert (tmp_path / "ledger").read_bytes() == charged
    # Another run over these windows is refused all of them.
    again = configured(deployment(tmp_path, PLAIN, path=str(tmp_path / "again")))
    with pytest.raises(DataError, match=r"again: nothing was released that a profile could be learned from"):
        learn_profile(again, tmp_path / "three.json")
    assert not (tmp_path / "three.json").exists()


def test_a_deployment_takes_what_is_public_or_paid_for_and_nothing_else(tmp_path):
    first = configured(deployment(tmp_path, PLAIN))
    path = str(tmp_path / "profile.json")
    learn_profile(first, path)

    def using(**given):
        steps = [PLAIN | {"epsilon": 0.5}, {"type": "filter", "profile": {"file": path, **given}}]
        return configured(deployment(tmp_path, steps))

    using(declared="public")
    paid = using(ledger=str(tmp_path / "ledger"))
    with pytest.raises(ConfigError, match=r"profile.*declared: public, or with the ledger"):
        using()
    other = tmp_path / "other"
    other.mkdir()
    run(configured(deployment(other, PLAIN, ledger_source="others")), runner="local")
    with pytest.raises(ConfigError, match=r"profile.*with the ledger"):
        # Its run has another source.
        using(ledger=str(other / "ledger"))
    with pytest.raises(ConfigError, match="left out if"):
        using(declared="public", ledger=path)
    result = run(paid, folder=tmp_path / "second", runner="local")
    manifest = json.loads((result.folder / "public" / "manifest.json").read_text())
    assert manifest["configuration"]["mechanism"][1]["profile"] == {"file": "profile.json", "ledger": "ledger"}
    again = deployment(tmp_path, PLAIN, ledger=str(other / "again"), new_ledger=True)
    run(configured(again), folder=other / "again_out", runner="local")
    with pytest.raises(ConfigError, match=r"profile.*with the ledger"):
        # Its run has the same configuration, and another noise.
        using(ledger=str(other / "again"))


def test_the_profile_of_a_simulation_is_not_paid_for_by_its_ledger(tmp_path):
    value = deployment(tmp_path, PLAIN, ledger=None) | {"mode": "simulation", "noise_key": None}
    learn_profile(configured({name: part for name, part in value.items() if part is not None}), tmp_path / "p.json")
    profile = Profile(file=str(tmp_path / "p.json"), ledger=str(tmp_path / "out" / "operator" / "ledger"))
    assert Path(profile.ledger).exists()
    assert not is_profile_charged(profile)


def test_what_is_not_noisy_counts_alone_is_refused(tmp_path):
    config = configured(deployment(tmp_path, [PLAIN, {"type": "filter"}]))
    with pytest.raises(ParameterError, match="with nothing after it"):
        learn_profile(config, tmp_path / "p.json")
