"""Chains of steps: coarse counts, samples and block bounds against Python sets, and whole runs."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest

from penstock.accountants.core.charges import concentrated_rho, pure_epsilon, replaced
from penstock.mechanisms import get, names
from penstock.mechanisms.core.chain import Chain, misplaced
from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.events import Block, Sampled
from penstock.mechanisms.core.intervals import margin
from penstock.mechanisms.core.plugin import ConfigError, ParameterError
from penstock.mechanisms.core.run import run_mechanism
from penstock.mechanisms.core.state import decode_state, encode_state
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.counting.bounding import CountingBounds, bound_block
from penstock.pipeline.counting.contributions import ContributionRows, merge
from penstock.pipeline.counting.count import released_counts, released_memberships
from penstock.pipeline.monitoring.verify import verify

START = datetime(2024, 1, 1, tzinfo=UTC)
N_WINDOWS, ROWS, COLUMNS = 8, 2, 3
GRID = {"type": "grid", "south": 0, "north": 2, "west": 0, "east": 3, "rows": ROWS, "columns": COLUMNS}


def sections(folder, mechanism, n_windows=N_WINDOWS, **changes):
    source = {
        "type": "csv",
        "path": str(folder / "events.csv"),
        "from": "2024-01-01T00:00:00Z",
        "until": (START + timedelta(hours=n_windows)).isoformat(),
        "columns": {"user": "user", "time": "time", "latitude": "latitude", "longitude": "longitude"},
    }
    return {
        "name": "chain",
        "seed": 3,
        "source": source,
        "space": GRID,
        "windows": {"type": "fixed", "size": "1h"},
        "bounding": {"max_cells": 2},
        "mechanism": mechanism,
        "output": {"path": str(folder / "out"), "report": False},
    } | changes


def write_events(folder, n=1500, seed=0, users=60):
    """Events as (user, window, cell), and the same as a file."""
    rng = random.Random(seed)
    events, lines = [], ["user,time,latitude,longitude"]
    for _ in range(n):
        user, second = rng.randrange(users), rng.randrange(N_WINDOWS * 3600)
        latitude, longitude = rng.random() * ROWS, rng.random() * COLUMNS
        events.append((user, second // 3600 + 1, int(latitude) * COLUMNS + int(longitude)))
        lines.append(f"{user},{(START + timedelta(seconds=second)).isoformat()},{latitude},{longitude}")
    (folder / "events.csv").write_text("\n".join(lines) + "\n")
    return events


def plan_of(folder, mechanism, **changes):
    return make_plan(loads(json.dumps(sections(folder, mechanism, **changes))))


def memberships_of(events):
    user, window, cell = (np.array(column, np.int64) for column in zip(*sorted(set(events))))
    return merge([ContributionRows(user[:, None], window, cell)])


def counted(folder, events, mechanism, **changes):
    plan = plan_of(folder, mechanism, **changes)
    return released_counts(memberships_of(events), 1, N_WINDOWS, plan.chain, plan.grid, plan.bounds, plan.keys)


def coarse_sets(events, group, together):
    """Distinct users of each coarse cell and stretch of windows."""
    people = defaultdict(set)
    for user, window, cell in events:
        people[(window - 1) // together, group(cell)].add(user)
    return people


SPATIAL = {"type": "spatial_generalization", "rows": 1, "columns": 3}
TEMPORAL = {"type": "temporal_generalization", "windows": 3}


@pytest.mark.parametrize(
    ("steps", "group", "together"),
    [
        ([SPATIAL], lambda cell: cell % 3, 1),
        ([TEMPORAL], lambda cell: cell, 3),
        ([SPATIAL, TEMPORAL], lambda cell: cell % 3, 3),
        ([SPATIAL | {"rows": 2, "columns": 1}], lambda cell: cell // 3, 1),
    ],
)
def test_coarse_people_are_counted_again(tmp_path, steps, group, together):
    events = write_events(tmp_path)
    people = coarse_sets(events, group, together)
    actual = counted(tmp_path, events, steps, bounding={"max_cells": 6})
    for window in range(1, N_WINDOWS + 1):
        for cell in range(ROWS * COLUMNS):
            assert actual[window - 1, cell] == len(people[(window - 1) // together, group(cell)])


def test_people_are_bounded_at_the_coarse_level(tmp_path):
    """A user in both rows of one column is in one coarse cell, and bounding to one keeps it."""
    events = [(user, 1, cell) for user in range(50) for cell in (0, 3)]
    write_events(tmp_path, 1)
    actual = counted(tmp_path, events, [SPATIAL], bounding={"max_cells": 1})
    assert actual[0].tolist() == [50, 0, 0, 50, 0, 0]
    fine = counted(tmp_path, events, [{"type": "raw"}], bounding={"max_cells": 1})
    assert fine[0].sum() == 50
    # A user in three coarse cells keeps as many of them as the bound leaves.
    events = [(user, 1, cell) for user in range(50) for cell in range(6)]
    for most in (1, 2, 3):
        assert counted(tmp_path, events, [SPATIAL], bounding={"max_cells": most})[0, :3].sum() == 50 * most


@pytest.mark.parametrize("unit", ["membership", "user"])
def test_samples_have_their_rate_and_their_unit(tmp_path, unit):
    events = [(user, window, cell) for user in range(2000) for window in (1, 2) for cell in (0, 4)]
    write_events(tmp_path, 1)
    actual = counted(tmp_path, events, [{"type": "sampling", "rate": 0.3, "unit": unit}])
    kept = actual[:2][:, [0, 4]]
    assert (np.abs(kept / 2000 - 0.3) < 5 * np.sqrt(0.21 / 2000)).all()
    if unit == "user":  # both cells of a window are kept or dropped together, windows are drawn apart
        assert (kept[:, 0] == kept[:, 1]).all()
        assert kept[0, 0] != kept[1, 0]
    else:
        assert kept[0, 0] != kept[0, 1]


@pytest.mark.parametrize("unit", ["membership", "user"])
def test_another_window_day_or_configuration_is_another_sample(tmp_path, unit):
    """A mask by window *number* was the same in every daily run: sixty of them were one sample."""
    n_users = 4000
    users, windows = np.arange(n_users).repeat(2), np.tile([1, 2], n_users)
    everybody = ContributionRows(users[:, None], windows, np.zeros(2 * n_users, int))
    masks, digests = [], {}
    for day, rate in ((1, 0.3), (2, 0.3), (1, 0.3001)):
        source = {"from": f"2024-01-0{day}T00:00:00Z", "until": f"2024-01-0{day}T08:00:00Z"}
        steps = [{"type": "sampling", "rate": rate, "unit": unit}, {"type": "discrete_laplace", "epsilon": 1.0}]
        value = sections(tmp_path, steps)
        (tmp_path / "events.csv").write_text("user,time,latitude,longitude\n")
        value["source"] |= source
        plan = make_plan(loads(json.dumps(value)))
        # The day is in the digest of the configuration, too: by itself it must make the difference.
        digest = digests.setdefault(rate, plan.keys.configuration)
        plan = replace(plan, keys=replace(plan.keys, configuration=digest))
        kept = released_memberships(everybody, plan.chain, plan.grid, plan.bounds, plan.keys)
        for window in (1, 2):
            masks.append(np.isin(np.arange(n_users), kept.user[kept.window == window, 0]))
    assert np.mean(masks) == pytest.approx(0.3, abs=0.02)
    assert np.abs(np.corrcoef(masks)[np.triu_indices(len(masks), 1)]).max() < 6 / np.sqrt(n_users)


def test_several_events_of_one_sample_are_charged_in_full():
    """A question and a publication read the same sample: who is in it is seen by both, and neither is amplified."""
    sampling, facts = get("sampling")(rate=0.5), Facts(n_cells=3)
    single = get("laplace")(epsilon=1.0)
    for mechanism, n_events in ((single, 1), (get("w_event_bd")(epsilon=2.0, w=2), 2)):
        chain = Chain.of([sampling, mechanism])
        [release] = run_mechanism(chain, np.full((1, 3), 10**6), facts, seed=1)
        worst = chain.worst_charge(facts.windows(1)[0], chain.start(facts))
        [whole] = run_mechanism(mechanism, np.full((1, 3), 10**6), facts, seed=1)
        assert len(release.charge) == len(worst) == n_events
        for charge in (release.charge, worst):
            amplified = sum(isinstance(event, Sampled) for event in charge)
            assert amplified == (1 if n_events == 1 else 0)
        spent, full = pure_epsilon(release.charge), pure_epsilon(whole.charge)
        assert spent == pytest.approx(np.log1p(0.5 * np.expm1(full)) if n_events == 1 else full)


@pytest.mark.parametrize("unit", ["membership", "user"])
def test_memberships_of_a_block_that_are_sampled_one_by_one_amplify_nothing(unit):
    """They meet again in its coefficients; a user who is kept or dropped as a whole does not."""
    chain = Chain.of([get("sampling")(rate=0.5, unit=unit), get("fpa")(epsilon=1.0, coefficients=1, block=2)])
    releases = run_mechanism(chain, np.zeros((2, 3), int), Facts(n_cells=3, n_windows=2), seed=1)
    [event] = releases[0].charge
    assert isinstance(event, Block)
    assert isinstance(event.inner, Sampled) == (unit == "user")
    spent = np.log1p(0.5 * np.expm1(1.0)) if unit == "user" else 1.0
    assert pure_epsilon(releases[0].charge) == pytest.approx(spent)


def test_users_are_sampled_by_block_where_there_are_blocks(tmp_path):
    events = [(user, window, 0) for user in range(2000) for window in range(1, 9)]
    write_events(tmp_path, 1)
    steps = [
        {"type": "sampling", "rate": 0.3, "unit": "user"},
        {"type": "fpa", "epsilon": 1, "coefficients": 1, "block": 4},
    ]
    actual = counted(tmp_path, events, steps)[:, 0]
    assert len(set(actual[:4])) == len(set(actual[4:])) == 1
    assert actual[0] != actual[4]


def test_bounding_comes_before_sampling(tmp_path):
    """A user with six cells keeps none of the two that count with probability (1 − p)², not (1 − p)⁶."""
    events = [(user, 1, cell) for user in range(4000) for cell in range(6)]
    write_events(tmp_path, 1)
    actual = counted(tmp_path, events, [{"type": "sampling", "rate": 0.25}])[0].sum()
    assert abs(actual / 4000 - 2 * 0.25) < 5 * np.sqrt(2 * 0.25 * 0.75 / 4000)


@pytest.mark.parametrize("keep", ["hash", "first", "last", "most_frequent"])
@pytest.mark.parametrize("bounds", [(3, 2, 2), (4, 1, None), (4, None, 3), (2, 2, 1)])
def test_a_block_is_bounded_in_windows_and_cells(keep, bounds):
    length, max_windows, max_block_cells = bounds
    rng = np.random.default_rng(4)
    rows = np.unique(
        np.column_stack([rng.integers(0, 30, 900), rng.integers(1, 9, 900), rng.integers(0, 7, 900)]), axis=0
    )
    actual = ContributionRows(rows[:, :1], rows[:, 1], rows[:, 2], rng.integers(0, 100, len(rows)))
    blocks = CountingBounds(
        max_cells=2, max_windows=max_windows, max_block_cells=max_block_cells, keep=keep, block_length=length
    )
    kept = bound_block(actual, blocks, b"key" * 6)
    windows, cells, per_window = defaultdict(set), defaultdict(set), defaultdict(int)
    for user, window, cell in rows[kept].tolist():
        block = (window - 1) // length
        windows[user, block].add(window)
        cells[user, block].add(cell)
        per_window[user, window] += 1
    assert max(per_window.values()) <= 2
    assert max(map(len, windows.values())) <= (max_windows or 99)
    assert max(map(len, cells.values())) <= (max_block_cells or 99)
    # Everybody keeps something of every block, and nothing is dropped that no bound asks for.
    assert set(windows) == {(user, (window - 1) // length) for user, window, _ in rows.tolist()}
    loose = bound_block(actual, replace(blocks, max_cells=99, max_windows=99, max_block_cells=99), b"key" * 6)
    assert loose.all()


def test_the_best_windows_of_a_block_are_kept():
    rows = ContributionRows(np.full((4, 1), 7), np.array([1, 2, 3, 4]), np.array([0, 0, 1, 1]), np.array([5, 9, 2, 7]))
    first = CountingBounds(max_windows=2, keep="first", block_length=4)
    assert bound_block(rows, first, b"k" * 16).tolist() == [True, False, True, False]
    assert bound_block(rows, replace(first, keep="last"), b"k" * 16).tolist() == [False, True, False, True]
    cells = CountingBounds(max_block_cells=1, keep="most_frequent", block_length=4)
    assert bound_block(rows, cells, b"k" * 16).tolist() == [True, True, False, False]


CHAINS = [
    [{"type": "sampling", "rate": 0.7}, {"type": "perturb_small", "threshold": 9, "epsilon": 1.0}],
    [{"type": "sampling", "rate": 0.7, "unit": "user"}, {"type": "fpa", "epsilon": 1.0, "coefficients": 3, "block": 4}],
    [SPATIAL, {"type": "discrete_laplace", "epsilon": 1.0}, {"type": "suppress_small", "threshold": 3}],
    [TEMPORAL, {"type": "sampling", "rate": 0.5}],
    [TEMPORAL, {"type": "laplace", "epsilon": 1.0}, {"type": "fixed_ranges", "width": 5}],
    [{"type": "discrete_laplace", "epsilon": 1.0}, {"type": "fixed_ranges", "width": 3}],
]


@pytest.mark.parametrize("steps", CHAINS, ids=lambda steps: "-".join(step["type"] for step in steps))
def test_a_run_of_a_chain_is_the_plain_loop_and_the_same_for_any_split(tmp_path, steps):
    from penstock.pipeline.run import run

    write_events(tmp_path)
    config = loads(json.dumps(sections(tmp_path, steps, accountants=[{"type": "composition"}])))
    one = run(config, tmp_path / "one", "local")
    split = run(config, tmp_path / "split", n_shards=3)
    frame = pl.read_parquet(one.folder / "public" / "releases.parquet")
    assert frame.equals(pl.read_parquet(split.folder / "public" / "releases.parquet"))
    assert all(check.passed for check in verify(one.folder)), verify(one.folder)
    plan = make_plan(config)
    truth = pl.read_parquet(one.folder / "operator" / "truth.parquet")
    bounded = truth["bounded"].to_numpy().reshape(N_WINDOWS, -1)
    plain = run_mechanism(
        plan.chain.mechanism, bounded, plan.facts(), windows=plan.grid.windows(1, N_WINDOWS), source=plan.keys.noise()
    )
    assert np.array_equal(frame["value"].to_numpy().reshape(N_WINDOWS, -1), [release.values for release in plain])
    per_window = frame.group_by("window", maintain_order=True).first()
    paid = sum(pure_epsilon(release.charge) for release in plain)
    blocks = per_window.group_by("available_at", maintain_order=True).first()
    assert blocks["epsilon"].sum() == pytest.approx(paid)


def test_generalization_reads_one_vector_and_shows_it_everywhere(tmp_path):
    events = write_events(tmp_path)
    plan = plan_of(tmp_path, [SPATIAL, TEMPORAL, {"type": "discrete_laplace", "epsilon": 1.0}])
    counts = released_counts(memberships_of(events), 1, N_WINDOWS, plan.chain, plan.grid, plan.bounds, plan.keys)
    releases = run_mechanism(plan.chain.mechanism, counts, plan.facts(), windows=plan.grid.windows(1, N_WINDOWS))
    values = np.array([release.values for release in releases])
    for stretch in (slice(0, 3), slice(3, 6), slice(6, 8)):
        assert (values[stretch] == values[stretch.start]).all()
    assert np.array_equal(values[:, :3], values[:, 3:])
    assert [bool(release.charge) for release in releases] == [True, False, False] * 2 + [True, False]
    assert releases[6].charge[0].last == N_WINDOWS


@pytest.mark.parametrize("n_replicas", [None, 2])
@pytest.mark.parametrize(
    ("reader", "scale"),
    [
        ({"type": "laplace", "epsilon": 0.5}, 4.0),
        ({"type": "discrete_gaussian", "rho": 0.125}, 2 * 2**0.5),
        ({"type": "landmark_uniform", "epsilon": 0.25, "noise": "laplace"}, 8.0),
    ],
)
def test_all_cells_of_a_group_state_the_noise_that_is_drawn_for_it(reader, scale, n_replicas):
    groups, counts = np.array([0, 0, 0, 1]), np.tile([[600, 600, 600, 200]], (3, 1))
    counts = counts if n_replicas is None else np.stack([counts] * n_replicas)
    mechanism = get(reader["type"])(**{name: value for name, value in reader.items() if name != "type"})
    chain = Chain.of([get("spatial_generalization")(group_size=3), mechanism], groups)
    made = run_mechanism(chain, counts, Facts(n_cells=4, max_cells=2), seed=1)
    for release in made if n_replicas is None else [release.replica(1) for release in made]:
        assert np.broadcast_to(release.scale, 4).tolist() == [scale] * 4
        assert len(set(release.values[:3].tolist())) == 1


def test_a_cell_states_the_noise_of_its_own_group():
    groups, counts = np.array([0, 0, 1, 2]), np.tile([[6, 6, 2, 9]], (2, 1))
    hierarchy = get("hierarchy")(rho=0.5, fan_out=2)
    (release, _) = run_mechanism(Chain.of([get("spatial_generalization")(group_size=2), hierarchy], groups), counts)
    (coarse, _) = run_mechanism(hierarchy, counts[:, [0, 2, 3]])
    assert coarse.scale[0] != coarse.scale[2]
    assert release.scale.tolist() == coarse.scale[groups].tolist()


def test_an_error_that_is_stated_of_a_longer_window_stands_in_each_of_its_windows():
    counts = np.full((6, 2), 500)

    longer = get("temporal_generalization")(windows=3)
    chain = Chain.of([longer, get("gaussian")(sigma=6.0), get("kalman")()])
    releases = run_mechanism(chain, counts, seed=1)
    # The first release is all that is known.
    assert [release.standard_deviation.tolist() for release in releases[:3]] == [[6.0, 6.0]] * 3


def test_a_chain_resumes_from_encoded_state():
    steps = [get("temporal_generalization")(windows=2), get("laplace")(epsilon=1.0), get("kalman")()]
    from penstock.mechanisms.core.noise import NoiseSource
    from penstock.mechanisms.core.noise_keys import NoiseKey
    from penstock.mechanisms.core.run import step_through

    facts, counts = Facts(n_cells=3, n_windows=5), np.arange(15).reshape(5, 3)
    source = NoiseSource(NoiseKey.from_seed(1), configuration=b"")

    def values(between):
        steps_made = step_through(Chain.of(steps), counts, facts, facts.windows(), source, between)
        return [release.values.tolist() for made, _ in steps_made for release in made]

    assert values(lambda s: decode_state(encode_state("chain", 1, s), "chain", 1)) == values(lambda s: s)


def test_stations_are_grouped_by_neighbourhood_or_by_name():
    rng = np.random.default_rng(1)
    stations = [{"cell": str(i), "point": rng.random(2).tolist(), "group": "ab"[i % 2]} for i in range(37)]
    groups = get("spatial_generalization")(group_size=5).groups(stations)
    sizes = np.bincount(groups)
    assert sizes.max() <= 5
    assert sizes.min() >= 2
    assert get("spatial_generalization")().groups(stations).tolist() == [i % 2 for i in range(37)]
    nowhere = [stations[0], {"cell": "elsewhere"}, *stations[1:4]]
    assert get("spatial_generalization")(group_size=9).groups(nowhere).tolist() == [0, 1, 0, 0, 0]
    assert get("spatial_generalization")(rows=1, columns=1).groups(nowhere).tolist() == [0, 1, 0, 0, 0]
    with pytest.raises(ParameterError, match="rows"):
        get("spatial_generalization")(rows=1, columns=1).groups([{"cell": "a"}])


def test_what_makes_sense_is_let_through():
    sensible = [
        ["sampling", "perturb_small"],
        ["sampling", "fpa"],
        ["spatial_generalization", "temporal_generalization", "sampling", "discrete_laplace", "suppress_small"],
        ["fpa", "fixed_ranges"],
        ["sampling"],
    ]
    examples = {name: get(name).examples()[0] for chain in sensible for name in chain}
    for chain in sensible:
        assert list(misplaced([examples[name] for name in chain])) == []


def test_a_part_of_a_longer_window_costs_at_most_twice_the_budget():
    """Chains behind temporal_generalization keep their promise at the price of replacements."""
    longer, price = get("temporal_generalization")(windows=2), {True: concentrated_rho, False: pure_epsilon}
    n_refused = 0
    for name in names():
        for example in get(name).examples():
            promised = example.guarantee
            if promised.unit.kind != "stretch" or promised.amount is None or promised.on_points:
                continue
            charged = price[promised.concentrated]
            worst = example.worst_charge(Facts(n_cells=3).windows(1)[0], example.start(Facts(n_cells=3)))
            is_covered = charged([replaced(event) for event in worst]) <= 2 * charged(worst) * (1 + 1e-9)
            if list(misplaced([longer, example])):
                n_refused += not is_covered
            else:
                assert is_covered, example
    assert n_refused >= 2, "w_event_bd and w_event_ba in ρ"


LAPLACE = {"type": "laplace", "epsilon": 1.0}
FPA = {"type": "fpa", "epsilon": 1.0, "coefficients": 3, "block": 4}
REFUSED = [
    ([LAPLACE, FPA], {}, "mechanism[1].type", "both read true counts"),
    ([{"type": "suppress_small", "threshold": 3}, LAPLACE], {}, "mechanism[1].type", "before suppress_small"),
    ([LAPLACE, LAPLACE], {}, "mechanism[1].type", "both read true counts"),
    # Parts of longer windows count as replacements: a question in ε then costs four times its ρ, not twice.
    (
        [TEMPORAL, {"type": "w_event_bd", "rho": 1.0, "w": 2, "noise": "discrete_gaussian"}],
        {},
        "mechanism[1].type",
        "with noise in ε",
    ),
    (
        [LAPLACE, {"type": "clip"}, {"type": "fixed_ranges", "width": 3}],
        {},
        "mechanism[1].type",
        "last, after fixed",
    ),
    ([LAPLACE, {"type": "clip"}, {"type": "filter"}], {}, "mechanism[1].type", "last, after filter"),
    ([LAPLACE, {"type": "clip"}, {"type": "kalman"}], {}, "mechanism[2].type", "directly after laplace"),
    ([{"type": "filter"}], {}, "mechanism[0].type", "after a mechanism that adds noise"),
    ([LAPLACE, {"type": "sampling", "rate": 0.5}], {}, "mechanism[1].type", "before laplace"),
    ([{"type": "sampling", "rate": 0.5}, SPATIAL, LAPLACE], {}, "mechanism[1].type", "before sampling"),
    ([{"type": "sampling", "rate": 0.5}] * 2, {}, "mechanism[1].type", "listed once"),
    ([TEMPORAL, FPA], {}, "mechanism[1].type", "single windows"),
    ([LAPLACE, {"type": "adaptive_ranges", "parts": 2, "block": 4}], {}, "mechanism[1].type", "both read true counts"),
    ([SPATIAL, LAPLACE], {"sensors": {"fixed": ["r00c00"]}}, "sensors", "covers several cells"),
    ([SPATIAL | {"rows": None, "columns": None}, LAPLACE], {}, "mechanism[0].rows", "names no groups"),
    ([LAPLACE], {"bounding": {"max_cells": 1, "max_windows": 3}}, "bounding.max_windows", "fpa"),
]


@pytest.mark.parametrize(("steps", "changes", "where", "why"), REFUSED, ids=range(len(REFUSED)))
def test_a_chain_that_makes_no_sense_is_an_error_that_says_why(tmp_path, steps, changes, where, why):
    write_events(tmp_path, 5)
    with pytest.raises(ConfigError) as caught:
        loads(json.dumps(sections(tmp_path, steps, **changes)))
    assert any(where in problem and why in problem for problem in caught.value.problems), caught.value.problems


@pytest.mark.parametrize(("budget", "n_refused"), [(0.5, 8), (1.5, 4), (2.5, 0)])
def test_a_block_that_cannot_be_afforded_is_refused_window_by_window(tmp_path, budget, n_refused):
    from penstock.pipeline.run import run

    write_events(tmp_path)
    books = [{"type": "landmark_budget", "budget": budget}, {"type": "composition", "w": 2}]
    changes = {"landmarks": {"windows": [2, 7]}, "accountants": books, "on_exhausted": "repeat"}
    result = run(loads(json.dumps(sections(tmp_path, [FPA], **changes))))
    frame = (
        pl.read_parquet(result.folder / "public" / "releases.parquet").group_by("window", maintain_order=True).first()
    )
    actions = frame["action"].cast(pl.String).to_list()
    assert actions == ["published"] * (8 - n_refused) + ["refused"] * n_refused
    assert all(check.passed for check in verify(result.folder))
    rows = pl.read_parquet(result.folder / "public" / "accounts.parquet").filter(pl.col("window").is_null())
    user = rows.filter(pl.col("name") == "user_epsilon")["value"].item()
    assert user == pytest.approx((8 - n_refused) / 4)
    # Two successive windows may be in two blocks.
    stretch = rows.filter(pl.col("name") == "w_event_epsilon")["value"].item()
    assert stretch == pytest.approx((8 - n_refused) / 4)


@pytest.mark.parametrize(("step", "n_new"), [({"type": "raw"}, 1), (LAPLACE, N_WINDOWS), (FPA, 1)])
def test_other_data_is_another_charge_wherever_the_noise_is_other(tmp_path, step, n_new):
    """One event more in window 1 changes the noise of every window whose state it reaches, hence their charges."""

    write_events(tmp_path, 5)
    loop = plan_of(tmp_path, [step], accountants=[]).release_loop()
    counts = np.full((N_WINDOWS, ROWS * COLUMNS), 20)
    more = counts.copy()
    more[0, 0] += 1
    first, second, again = (loop.advance(loop.start(), 1, table)[0].charges for table in (counts, more, counts))
    assert [(charge.window, charge.data) for charge in first] == [(charge.window, charge.data) for charge in again]
    assert (
        len({(charge.window, charge.data) for charge in second} - {(charge.window, charge.data) for charge in first})
        == n_new
    )


@pytest.mark.parametrize("kind", ["period_uniform", "fast"])
def test_users_who_are_drawn_anew_in_every_window_amplify_no_charge_of_a_period(kind):
    """24 windows at a rate of .04 show a user at least once with probability .62, hence δ = .05 is not met at ε = 0."""
    reader = get(kind)(epsilon=96.0, noise="laplace")
    facts = Facts(n_cells=1, n_windows=24)
    counts = np.zeros((24, 1), int)
    chain = Chain.of([get("sampling")(rate=0.04, unit="user"), reader])
    assert run_mechanism(chain, counts, facts)[0].charge == run_mechanism(reader, counts, facts)[0].charge
    assert chain.worst_charge(facts.windows()[0], chain.start(facts)) == run_mechanism(reader, counts, facts)[0].charge


def test_an_interval_still_holds_what_it_held_after_a_value_was_moved():
    counts = np.random.default_rng(1).poisson([2, 9, 60], (480, 3))

    def held(*after: Any) -> float:
        releases = run_mechanism(Chain.of([get("gaussian")(sigma=5.0), get("filter")(), *after]), counts, seed=1)
        margins = [margin(release.values, release.standard_deviation) for release in releases]
        off = [np.abs(release.values - row) for release, row in zip(releases, counts)]
        return float(np.mean(np.array(off) <= np.array(margins)))

    # With the deviation of the unmoved value it would be less than two thirds.
    assert held() >= 0.94
    assert held(get("fixed_ranges")(width=40)) >= 0.94
    assert held(get("suppress_small")(threshold=10)) >= 0.94
    # What is not moved keeps its deviation.
    chain = [get("gaussian")(sigma=5.0), get("filter")()]
    (plain, same) = (run_mechanism(Chain.of([*chain, *after]), counts, seed=1)[-1] for after in ([], [get("clip")()]))
    assert plain.standard_deviation.tolist() == same.standard_deviation.tolist()
