"""Tables of the paper's membership figures, on synthetic cabs."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from penstock.evaluation.attacks.game import MembershipGame
from penstock.evaluation.attacks.user_space import mobility_groups
from penstock.mechanisms import get
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.plugin import ConfigError
from penstock.mechanisms.core.run import run_mechanism
from penstock.pipeline.config.sections import add_folder
from reproductions.pyrgelis import cab_presence, trade_off_table
from reproductions.run import PLUGINS
from reproductions.studies.privacy_gain import NamedChain, PrivacyGain, coarse, released

#: Monday, 19 May 2008, 00:00 UTC.
BEGIN = 1_211_155_200


@pytest.fixture(scope="module")
def binary():
    rng = np.random.default_rng(3)
    busy = rng.gamma(1.0, 0.1, (40, 1, 1)) * rng.gamma(0.5, 1.0, (1, 100, 1))
    return (rng.random((40, 100, 168)) < np.clip(busy, 0.001, 0.9)).swapaxes(1, 2)


def test_cabs_are_placed_in_cells_and_hours(tmp_path):
    rows = [(37.741, -122.469, 0), (37.741, -122.469, 30), (37.819, -122.371, 3601), (37.73, -122.4, 5)]
    lines = [f"{north} {east} 0 {BEGIN + seconds}" for north, east, seconds in rows]
    (tmp_path / "new_a.txt").write_text("\n".join(lines))
    (tmp_path / "new_elsewhere.txt").write_text(f"37.0 -122.4 0 {BEGIN}")
    presence = cab_presence(str(tmp_path))
    assert presence.shape == (1, 504, 100)
    assert np.argwhere(presence[0]).tolist() == [[0, 0], [1, 99]]
    with pytest.raises(ConfigError, match="nowhere"):
        cab_presence(str(tmp_path / "nowhere"))


def test_gains_meet_the_tables_of_utility(tmp_path):
    gains = pl.DataFrame({"defense": ["SSC k = 2", "FPA ε = 1", "DGAR x′ = 2"], "gain": [0.25, 0.5, 0.75]})
    rows = {"variant": ["k = 2", "k = 2", "k = 5"], "measure": ["mre", "pearson", "mre"], "mean": [0.1, 0.8, 0.3]}
    pl.DataFrame(rows).write_csv(tmp_path / "sfc_suppress_small.csv")
    rows = {"variant": ["x′ = 2", "x′ = 2, all middles"], "measure": ["mre", "mre"], "mean": [0.01, 0.12]}
    pl.DataFrame(rows).write_csv(tmp_path / "sfc_adaptive_ranges.csv")
    raw = dict.fromkeys(("mre", "mre_top", "js_distance"), 0.0)
    raw |= {"hotspot_f1": 1.0, "hotspot_rank_tau": 1.0, "pearson": 0.95}
    facts = {"defense": "true counts", "reading": "as here"}
    pl.DataFrame([facts | raw, facts | {"reading": "of another box"} | raw]).write_csv(
        tmp_path / "utility_differences.csv"
    )
    table = trade_off_table(gains, tmp_path)
    assert table.select("metric", "privacy_gain", "utility_loss").rows() == [
        ("mre", 0.25, 0.1),
        ("mre", 0.75, 0.12),  # of the reading that is attacked
        ("pearson", 0.25, pytest.approx(0.15)),  # less than the raw counts, not than 1
    ]


def chain_of(*steps):
    return Chain.of([get(name)(**parameters) for name, parameters in steps])


def test_coarse_presence_counts_a_person_once_in_each_group_and_shows_it_in_every_cell(binary):
    both = chain_of(("spatial_generalization", {"rows": 2, "columns": 5}), ("temporal_generalization", {"windows": 24}))
    blocks = binary.reshape(40, 7, 24, 2, 5, 5, 2).any(axis=(2, 4, 6))
    expected = np.broadcast_to(blocks[:, :, None, :, None, :, None], (40, 7, 24, 2, 5, 5, 2)).reshape(binary.shape)
    assert np.array_equal(coarse(binary, both), expected)


@pytest.mark.parametrize(
    "steps",
    [
        [("fixed_ranges", {"width": 3})],
        [("suppress_small", {"threshold": 2})],
        [("adaptive_ranges", {"parts": 2, "block": 168})],
        [("suppress_unpopular", {"fraction": 0.8, "block": 168, "where": "both"}), ("fixed_ranges", {"width": 3})],
    ],
)
def test_steps_without_noise_release_what_the_pipeline_does(binary, steps):
    chain = chain_of(*steps)
    counts = np.stack([binary[:30].sum(axis=0), binary[10:].sum(axis=0)])
    pipeline = [[one.values for one in run_mechanism(chain, aggregate)] for aggregate in counts]
    assert np.array_equal(released(chain, counts, [1]), pipeline)


def test_fourier_noise_on_many_aggregates_has_the_scale_of_the_mechanism(binary):
    add_folder(PLUGINS)
    chain = chain_of(("fpa_paper", {"epsilon": 1, "coefficients": 1, "block": 168, "measured_sensitivity": 4.0}))
    counts = np.repeat(binary.sum(axis=0)[None], 200, axis=0)
    errors = released(chain, counts, [1])[:, 0] - counts.mean(axis=1)
    assert errors.std() == pytest.approx(np.sqrt(2 / 168) * 4.0, rel=0.03)


def test_the_same_first_targets_whatever_their_number(binary):
    presence = np.concatenate([binary, binary, binary], axis=1)
    defenses = (NamedChain(name="none", mechanism=(get("raw")(),)),)
    few, more = (PrivacyGain(targets=n, defenses=defenses).chosen(presence) for n in (6, 9))
    assert (more[:6] == few).all()
    assert sorted(mobility_groups(presence)[few].tolist()) == [0, 0, 1, 1, 2, 2]


def test_where_no_count_ever_varies_nobody_is_told_from_anybody(binary):
    everywhere = np.ones_like(binary[:, :6, :5])
    for attack in ("pca", "statistics"):
        game = MembershipGame(everywhere, group_size=12, observation=6, inference=6, n_samples=60, seed=1)
        assert game.attack(0, attack=attack).auc == 0.5
