"""Several streams in a run: joint cost in accounts and ledgers, and separate releases."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from deployments import configured, sections

from penstock.accountants.core.charges import concentrated_rho, is_linked, most_of, pure_epsilon, replaced, together
from penstock.accountants.core.renyi import ORDERS, renyi
from penstock.mechanisms.core import events
from penstock.mechanisms.core.contract import Facts, Window
from penstock.mechanisms.core.plugin import ConfigError, ParameterError
from penstock.mechanisms.pegasus import Pegasus
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.monitoring.metrics import EPSILON, REGISTRY, WINDOWS
from penstock.pipeline.monitoring.verify import verify
from penstock.pipeline.output import checkpoint
from penstock.pipeline.output.ledger import Ledger
from penstock.pipeline.output.ledger_budget import Books, Terms, alike
from penstock.pipeline.output.worth import losses, of_streams
from penstock.pipeline.run import run
from penstock.pipeline.steps.release import Charge, ReleaseLoop

#: Two streams of two cells each.
STREAM_OF_CELL = np.array([0, 0, 1, 1])


def memberships(most: int) -> list[np.ndarray]:
    """All that one person may add to the four cells of a window."""
    vectors = (np.array(v) for v in itertools.product((0, 1), repeat=4))
    return [v for v in vectors if 0 < v.sum() <= most]


def loss_of_noise(scales: list[float], most: int) -> float:
    """Largest log-ratio of the output's distribution, over all neighbours and outputs; discrete Laplace noise."""
    outputs = np.arange(-4, 6)
    log_mass = [-np.abs(outputs[:, None] - np.arange(2)) / scales[stream] for stream in STREAM_OF_CELL]
    found = 0.0
    for added in memberships(most):
        # Cells are independent: the joint log-ratio of each output is the sum of those of its cells.
        ratios = [mass[:, 0] - mass[:, moved] for mass, moved in zip(log_mass, added)]
        joint = sum(np.meshgrid(*ratios, indexing="ij"))
        found = max(found, float(np.abs(joint).max()))
    return found


@pytest.mark.parametrize("most", [1, 2, 3, 4])
@pytest.mark.parametrize("epsilons", [(1.0, 1.0), (0.5, 2.0)])
def test_the_joint_charge_is_what_the_worst_neighbour_loses(epsilons, most):
    own = min(most, 2)
    scales = [own / epsilon for epsilon in epsilons]
    charges = [(events.DiscreteLaplace(l1=own, scale=scale),) for scale in scales]
    priced = pure_epsilon(together(charges, [own, own], most))
    assert priced == pytest.approx(loss_of_noise(scales, most), rel=1e-12)
    if epsilons == (1.0, 1.0) and most <= 2:
        assert together(charges, [own, own], most) == charges[0]  # as if there were one stream
    # Each bound that would be too low is below the loss of some neighbour.
    if most > 2:
        assert max(epsilons) < priced


def test_where_one_membership_may_cost_everything_charges_add():
    """Randomised response whether anybody is in a stream: one person in each of two streams loses both."""
    charges = [(events.PureDP(0.5),), (events.PureDP(0.25),)]
    exact = max(0.5 * min(1, v[:2].sum()) + 0.25 * min(1, v[2:].sum()) for v in memberships(2))
    assert pure_epsilon(together(charges, [2, 2], 2)) == exact == 0.75
    assert pure_epsilon(together(charges, [2, 2], 1)) == 0.5
    # Even shares, or the largest alone, would understate it.
    assert float(most_of([0.5, 0.25], [2, 2], 2)) < exact
    assert max(map(pure_epsilon, charges)) < exact


def test_a_person_sampled_as_a_whole_is_in_the_samples_of_all_streams():
    noise, rate = events.DiscreteLaplace(l1=1, scale=1.0), 0.3
    charges = [(events.Sampled(noise, rate, "user"),)] * 2
    exact = np.log(1 - rate + rate * np.exp(2.0))  # in both streams or in none
    assert sum(map(pure_epsilon, charges)) < exact <= pure_epsilon(together(charges, [1, 1], 2))
    # Of memberships that are sampled one by one, losses add.
    each = [(events.Sampled(noise, rate),)] * 2
    assert pure_epsilon(together(each, [1, 1], 2)) == pytest.approx(2 * np.log(1 - rate + rate * np.exp(1.0)))


@pytest.mark.parametrize("most", [1, 2, 3])
def test_gaussian_noise_adds_in_rho_for_adding_and_for_replacing(most):
    sigmas, own = (1.5, 3.0), min(most, 2)
    charges = [(events.DiscreteGaussian(l2=own**0.5, sigma=sigma),) for sigma in sigmas]
    joint = together(charges, [own, own], most)
    weight = np.array([1 / (2 * sigmas[stream] ** 2) for stream in STREAM_OF_CELL])
    exact = max(float(v**2 @ weight) for v in memberships(most))
    assert concentrated_rho(joint) == pytest.approx(exact)
    assert renyi(joint) == pytest.approx(ORDERS * exact)
    one_for_another = max(float((a - b) ** 2 @ weight) for a in memberships(most) for b in memberships(most))
    instead = tuple(map(replaced, joint))
    assert concentrated_rho(instead) >= one_for_another
    assert (renyi(instead) >= ORDERS * one_for_another * (1 - 1e-12)).all()
    assert pure_epsilon(instead) == np.inf


def test_linked_windows_of_streams_cost_no_less_than_those_of_one():
    """Losses of windows that share a draw add before they are squared, in each stream and in all of them."""
    mechanism = Pegasus(epsilon=0.1, grouping=0.8)
    charge = mechanism.worst_charge(Window(index=1, start=0, end=1), mechanism.start(Facts(n_cells=2, max_cells=2)))
    for most in (1, 2):
        joint = together([charge, charge], [2, 2], most)
        for alone, own in ((charge, joint), (tuple(map(replaced, charge)), tuple(map(replaced, joint)))):
            assert concentrated_rho(own) >= concentrated_rho(alone)
            assert (renyi(own) >= renyi(alone)).all()
        assert is_linked(tuple(map(replaced, joint)))


def test_the_loss_of_linked_windows_is_no_less_than_that_of_one_stream():
    releases = pl.DataFrame({"stream": ["a", "b"], "window": [1, 1], "epsilon": [0.1, 0.1], "rho": [0.2, 0.2]})
    sensitivity = {"max_cells": 2, "streams": {name: {"shares": 1} for name in "ab"}}
    assert of_streams(releases, ["window"], sensitivity)["rho"].item() == 0.4
    unlinked = releases.with_columns(rho=pl.lit(0.1**2 / 2))
    assert of_streams(unlinked, ["window"], sensitivity)["rho"].item() == pytest.approx(0.01)


def test_the_most_that_memberships_cost_is_that_of_the_dearest_places():
    rng = random.Random(4)
    for _ in range(200):
        k, most = rng.randint(1, 4), rng.randint(1, 6)
        amounts, shares = [rng.choice((0.0, rng.random())) for _ in range(k)], [rng.randint(1, 4) for _ in range(k)]
        spread = itertools.product(*(range(n + 1) for n in shares))
        exact = max(sum(a * n / m for a, n, m in zip(amounts, taken, shares)) for taken in spread if sum(taken) <= most)
        assert float(most_of(amounts, shares, most)) == pytest.approx(exact)
    assert float(most_of([np.inf, 1.0], [2, 1], 1)) == np.inf


# A run.

STREAMS = {"north": ["r01c00", "r01c01"], "south": ["r00c00", "r00c01"]}
PLAIN = {"type": "discrete_laplace", "epsilon": 0.75}
PEOPLE = {"type": "sampling", "rate": 0.5, "unit": "user"}
COMPOSED: dict[str, Any] = {"accountants": [{"type": "composition"}], "landmarks": None}


@pytest.fixture
def value(tmp_path: Path) -> dict[str, Any]:
    """A deployment of two streams on a ledger of its own source."""
    found = sections(tmp_path) | {"streams": STREAMS, "mechanism": PLAIN} | COMPOSED
    found["output"] |= {"ledger": str(tmp_path / "ledger"), "report": False}
    return {name: section for name, section in found.items() if section is not None}


def actions(folder: Path) -> dict[str, list[str]]:
    frame = pl.read_parquet(folder / "public/releases.parquet").with_columns(pl.col("stream", "action").cast(pl.String))
    found = frame.group_by("stream", "window", maintain_order=True).agg(pl.col("action").first())
    return {name[0]: own["action"].to_list() for name, own in found.group_by("stream", maintain_order=True)}


def done(folder: Path) -> set[str]:
    return {action for own in actions(folder).values() for action in own}


def joint_by_window(path: Path, most: int) -> dict[int, float]:
    charged: dict[int, list[tuple[float, int]]] = {}
    for charge in Ledger(path):
        charged.setdefault(charge.window, []).append((charge.epsilon, max(1, charge.shares)))
    return {window: float(most_of(*map(list, zip(*found)), most)) for window, found in charged.items()}


def test_streams_of_one_cell_each_person_share_the_budget_of_the_ledger(tmp_path, value):
    value["output"]["ledger_budget"] = 1.0
    result = run(configured(value), tmp_path / "one")
    assert done(result.folder) == {"published"}
    assert joint_by_window(tmp_path / "ledger", 1) == dict.fromkeys(range(1, 7), 0.75)
    assert result.manifest["loss"]["release"] == 0.75
    assert all(check.passed for check in verify(result.folder))
    # Another run over the same source is charged in addition, and has nothing left.
    other = run(configured(value | {"on_exhausted": "repeat"}), tmp_path / "other")
    assert done(other.folder) == {"refused"}
    assert joint_by_window(tmp_path / "ledger", 1) == dict.fromkeys(range(1, 7), 0.75)


def test_a_stream_that_charged_twice_for_a_window_counts_twice():
    """As two simulations of one configuration do, with other input in the same time."""
    terms = Terms(source="", unit="", adjacency="", measure="epsilon", budget=9.0, span=1)
    charges = [
        Charge(stream, 1, 0, 1, 0.5, 0.125, False, "configuration", data, shares=1, most=1)
        for stream, data in (("s1", "some"), ("s2", "some"), ("s1", "other"))
    ]
    books = Books(terms)
    books.add(charges)
    assert books.summary()[0]["spent"] == 1.0


@pytest.mark.parametrize("runner", ["local", "direct"])
def test_the_ledger_stops_at_what_the_streams_cost_together(tmp_path, value, runner):
    value |= {"streams": 4, "bounding": {"max_cells": 2}}  # a person in two streams loses both charges
    value["output"] |= {"ledger_budget": 3.5, "ledger_span": "3h"}
    result = run(configured(value), tmp_path / "out", runner=runner)
    found = actions(result.folder)
    # All streams of a window are released or none: two windows of 1.5 in any three hours.
    assert list(found.values()) == [["published", "published", "refused"] * 2] * 4
    spent = joint_by_window(tmp_path / "ledger", 2)
    assert spent == {window: 0.0 if window % 3 == 0 else 1.5 for window in range(1, 7)}
    assert all(check.passed for check in verify(result.folder))


@pytest.mark.parametrize("runner", ["local", "direct"])
def test_metrics_add_up_what_windows_cost_together_as_the_ledger_does(tmp_path, value, runner):
    for name, changes, joint in (("even", {}, 0.75), ("apart", {"streams": 4, "bounding": {"max_cells": 2}}, 1.5)):
        value["output"]["ledger"] = str(tmp_path / name / "ledger")
        run(configured(value | changes), tmp_path / name / "out", runner=runner)
        spent = joint_by_window(tmp_path / name / "ledger", changes.get("bounding", {}).get("max_cells", 1))
        assert sum(spent.values()) == 6 * joint
        assert REGISTRY.value(EPSILON) == pytest.approx(6 * joint)
        assert REGISTRY.value(WINDOWS, "published") == 6 * (4 if changes else 2)


def test_the_terms_of_a_ledger_are_those_of_all_streams(tmp_path, value):
    value |= {"streams": 4, "bounding": {"max_cells": 2}}
    result = run(configured(value), tmp_path / "out")  # without a stated budget it is what one run promises
    assert done(result.folder) == {"published"}
    terms = next(entry.values for entry in Ledger(tmp_path / "ledger").entries() if not entry.is_charge)
    assert terms["budget"] == 1.5


BINDING: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "uniform": ({"type": "w_event_uniform", "epsilon": 3.0, "w": 3}, {"max_cells": 1}, {"ledger_budget": 2.0}),
    "cells of two streams": (PLAIN, {"max_cells": 2}, {"ledger_budget": 3.5}),
    "adaptive": ({"type": "w_event_ba", "epsilon": 3.0, "w": 3}, {"max_cells": 1}, {"ledger_budget": 4.0}),
    "gaussian": (
        {"type": "w_event_uniform", "epsilon": 3.0, "delta": 1e-6, "w": 3, "noise": "discrete_gaussian"},
        {"max_cells": 1},
        {"ledger_budget": 0.1},
    ),
}


@pytest.mark.parametrize("case", BINDING)
def test_streams_in_any_order_are_refused_the_same_windows_and_do_not_pass_the_budget(tmp_path, value, case):
    """Beam releases streams side by side: one may be hours ahead of the other."""
    mechanism, bounding, budget = BINDING[case]
    value |= {"streams": 4 if case == "cells of two streams" else 2, "mechanism": mechanism, "bounding": bounding}
    value |= {"on_exhausted": "repeat"}
    value["output"] |= budget | {"ledger_span": "3h"}
    values = np.random.default_rng(3).integers(0, 90, (4, 6, 4))
    found = []
    for seed in range(8):
        folder = tmp_path / str(seed)
        value["output"]["ledger"] = str(folder / "ledger")
        plan = make_plan(configured(value), folder, b"a run")
        checkpoint.begin(plan)
        loops = [[loop := ReleaseLoop(s), loop.start(), checkpoint.open_ledger(plan, True), 1] for s in plan.streams]
        order = [which for which in range(len(loops)) for _ in range(6)]
        if seed:  # at first one stream after the other
            random.Random(seed).shuffle(order)
        released: dict[tuple[str, int], tuple[str, bytes]] = {}
        for which in order:
            loop, state, ledger, number = loops[which]
            counts = values[which, number - 1 : number, : loop.plan.n_cells]
            batch, loops[which][1] = ledger.charge(lambda limit: loop.advance(state, number, counts, limit))  # noqa: B023
            loops[which][3] = number + 1
            (release,) = batch.releases
            released[loop.plan.stream, number] = str(release.action), release.values.tobytes()
        found.append(released)
        dearest = Books(plan_terms(plan), "")
        dearest.add(list(Ledger(folder / "ledger")))
        assert max(row["spent"] for row in dearest.summary()) <= budget["ledger_budget"] * (1 + 1e-9)
    assert all(own == found[0] for own in found)
    assert {"published", "refused"} <= {action for action, _ in found[0].values()}


def test_what_streams_count_for_if_all_charge_alike(tmp_path, value):
    value["bounding"] = {"max_cells": 2}
    found = {}
    for kind, mechanism in (("even", PLAIN), ("adaptive", {"type": "w_event_ba", "epsilon": 1.0, "w": 2})):
        plan = make_plan(configured(value | {"mechanism": mechanism}), tmp_path, b"a run")
        found[kind] = {measure: alike(plan, measure) for measure in ("epsilon", "rho")}
    # Two memberships of one stream share ε; ρ grows with its square, so the books do not split it.
    assert found["even"] == {"epsilon": {"north": 1.0, "south": 1.0}, "rho": {"north": 2.0, "south": 2.0}}
    assert found["adaptive"]["epsilon"] == found["adaptive"]["rho"] == {"north": 2.0, "south": 2.0}


def plan_terms(plan: Any) -> Terms:
    entries = Ledger(Path(plan.config.output.ledger)).entries()
    return next(Terms.of_entry(entry.values) for entry in entries if entry.values.get("entry") == "terms")


def test_another_run_that_charges_between_two_streams_cannot_make_them_pass_the_budget(tmp_path, value):
    value |= {"streams": 4, "bounding": {"max_cells": 2}, "on_exhausted": "repeat"}
    value["output"] |= {"ledger_budget": 7.0, "ledger_span": "3h"}
    loops = []
    for name, mechanism in (("one", PLAIN | {"epsilon": 1.0}), ("two", PLAIN)):
        plan = make_plan(configured(value | {"mechanism": mechanism}), tmp_path / name, name.encode() * 16)
        checkpoint.begin(plan)
        loops.append([(ReleaseLoop(own), checkpoint.open_ledger(plan, True)) for own in plan.streams])
    published = []

    def release(which: int, stream: int, n: int) -> None:
        loop, ledger = loops[which][stream]
        counts = np.zeros((n, loop.plan.n_cells), int)
        batch, _ = ledger.charge(lambda limit: loop.advance(loop.start(), 1, counts, limit))
        published.append(sum(release.action == "published" for release in batch.releases))

    for which, stream in ((0, 0), (1, 0), (1, 1), (0, 1)):
        release(which, stream, 3)
    dearest = Books(plan_terms(plan), "")
    dearest.add(list(Ledger(tmp_path / "ledger")))
    assert dearest.summary()[0]["spent"] == 7.0
    assert published == [3, 2, 2, 1]  # the second run leaves the other stream of the first one less


def test_streams_that_spend_in_different_windows_add_up(tmp_path, value):
    adaptive = {"type": "w_event_ba", "epsilon": 1.0, "w": 2}
    plan = make_plan(configured(value | {"mechanism": adaptive}), tmp_path / "out", b"a run")
    assert plan.joint_factor == 2.0
    assert "2 times" in json.dumps(checkpoint_manifest(plan))
    assert replace(plan, stream="north", places=(0, 1)).joint_factor == 1.0
    uniform = make_plan(configured(value), tmp_path / "out", b"a run")
    assert uniform.joint_factor == 1.0


def checkpoint_manifest(plan: Any) -> dict[str, Any]:
    from penstock.pipeline.output.manifest import public_manifest

    return public_manifest(plan)


def test_noise_is_that_of_the_stream(value, tmp_path):
    """No two streams share a draw, and one is not changed by what happens in the other."""
    plan = make_plan(configured(value), tmp_path, b"a run")
    window = plan.windows(1, 1)[0]
    draws = [
        stream.noise().at(window.start, window.end, "step", np.zeros(2), {}).discrete_laplace(np.asarray(9.0), (64,))
        for stream in plan.streams
    ]
    assert (draws[0] != draws[1]).any()


def test_a_page_is_made_of_all_streams(tmp_path, value):
    value["output"]["report"] = True
    result = run(configured(value), tmp_path / "out")
    page = (result.folder / "public" / "report.html").read_text()
    assert "for each of 2 streams, the same for all of them together" in page
    sensitivity = json.loads((result.folder / "public/manifest.json").read_text())["sensitivity"]
    assert losses(pl.scan_parquet(result.folder / "public/releases.parquet"), "UTC", sensitivity)


# What is refused.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"streams": 5}, r"streams: 5 is not allowed; it must be from 1 to 4, the number of cells"),
        ({"streams": {"north": ["r01c00", "r01c01"]}}, r"2 of 4 cells are in no stream \('r00c00', 'r00c01'\)"),
        ({"streams": STREAMS | {"west": ["r00c00"]}}, r"streams.west\[0\]: .*in one stream only; .*'south' already"),
        ({"streams": {"north": ["r9"]}}, r"streams.north\[0\]: 'r9' is not allowed; it must be a cell of the space"),
        ({"streams": {"main": ["r00c00"]}}, r"streams.main: 'main' cannot be the name of a stream"),
        ({"bounding": {"max_per_period": 3}}, r"bounding.max_per_period: .*left out with streams"),
        ({"sensors": {"fixed": ["r00c00"]}}, r"sensors: .*left out with streams"),
        (
            {"mechanism": [{"type": "sampling", "rate": 0.5, "unit": "user"}, PLAIN]},
            r"mechanism\[0\].unit: .*do not add",
        ),
        ({"on_exhausted": "stop"}, r"on_exhausted: 'stop' is not allowed; it must be repeat"),
        (
            {"accountants": [{"type": "crowd_blending"}]},
            r"accountants\[0\].type: .*composition, landmark_budget or temporal",
        ),
        (
            {"accountants": [{"type": "landmark_budget", "budget": 1}]},
            r"accountants\[0\].budget: .*output.ledger_budget",
        ),
        (
            {"mechanism": {"type": "fpa", "epsilon": 1, "coefficients": 2, "block": 3}},
            r"mechanism\[0\].type: .*streams",
        ),
    ],
)
def test_what_cannot_be_priced_is_refused(value, changes, message):
    with pytest.raises(ConfigError, match=message):
        configured(value | changes)


def test_attacks_and_audits_release_one_vector(value):
    from penstock.pipeline.experiments.attacks.audit import audit
    from penstock.pipeline.experiments.attacks.membership import counts_plan

    for refuse in (audit, counts_plan):
        with pytest.raises(
            ParameterError, match="streams: 'north, south' is not allowed; it must be left out of attacks"
        ):
            refuse(configured(value))
