"""Empirical privacy of whole runs: neighbouring inputs are distinguished no better than the accounts say.

Both inputs go through the pipeline once, which gives the counts that the mechanism receives, its public facts and the
accounts. The release is then repeated in many replicas, of which the first is the one that the pipeline wrote.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import polars as pl
import pytest

from penstock import mechanisms
from penstock.mechanisms.core.concentrated import epsilon_of
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.run import run_mechanism
from penstock.mechanisms.core.schedules import TraceSchedule
from penstock.mechanisms.w_event_ba import WEventBa
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.releasing import traces
from penstock.pipeline.run import run
from penstock.pipeline.runners.shared import counted, reduced
from tests.tools.distinguishing import HalvedNoise, HalvedTraces, best_bound, correlated_evidence, decisions, evidence

N_REPLICAS, DELTA = 12_000, 0.02
EPSILON = 2.0


@dataclass(frozen=True)
class Case:
    """Two inputs: others in every cell of every window, and one person in each cell of some windows.

    ``claim`` names the figure of `composition`, or is what the manifest promises for an ε fixed in advance.
    """

    steps: list[dict[str, Any]]
    claim: str | float
    n_cells: int = 1
    n_windows: int = 1
    others: int | tuple[int, ...] = 1  # in each cell of every window, or of the windows in turn
    person: tuple[int, ...] = (1,)
    changes: dict[str, Any] = field(default_factory=dict)
    sharp: bool = True
    n_replicas: int = N_REPLICAS

    def sections(self, folder, present) -> dict[str, Any]:
        others = (self.others,) * self.n_windows if isinstance(self.others, int) else self.others
        rows = [
            (f"{who}", window, cell)
            for window, n_others in enumerate(others, start=1)
            for cell in range(self.n_cells)
            for who in [f"u{cell}_{n}" for n in range(n_others)] + ["person"] * (present and window in self.person)
        ]
        rows += [("bystander", self.n_windows, 0)] * (not self.others)  # a run needs a row
        lines = [f"{who},2024-01-01T{window - 1:02d}:30:00Z,c{cell}" for who, window, cell in rows]
        path = folder / "events.csv"
        path.write_text("\n".join(["user,time,place", *lines]) + "\n")
        return {
            "name": "audited",
            "seed": 5,
            "source": {
                "type": "csv",
                "path": str(path),
                "from": "2024-01-01T00:00:00Z",
                "until": f"2024-01-01T{self.n_windows:02d}:00:00Z",
                "columns": {"user": "user", "time": "time", "place": "place"},
            },
            "space": {"type": "places", "list": [f"c{cell}" for cell in range(self.n_cells)], "elsewhere": False},
            "windows": {"type": "fixed", "size": "1h"},
            "bounding": {"max_cells": self.n_cells},
            "mechanism": self.steps,
            "accountants": [{"type": "composition", "delta": DELTA}],
            "output": {"path": str(folder / "out"), "report": False},
        } | self.changes


def schedule(name, **parameters):
    return [{"type": name, "epsilon": EPSILON, **parameters}]


#: One or more for each mechanism with a guarantee: what the guarantee's unit can change at worst.
CASES = {
    "laplace": Case(schedule("laplace"), "event_epsilon"),
    "discrete_laplace": Case(schedule("discrete_laplace"), "event_epsilon"),
    "gaussian": Case([{"type": "gaussian", "rho": 0.5}], "event_epsilon_rdp"),
    "discrete_gaussian": Case([{"type": "discrete_gaussian", "rho": 0.5}], "event_epsilon_rdp", n_cells=2),
    "fpa": Case(
        schedule("fpa", coefficients=1, block=2),
        "user_epsilon",
        n_windows=2,
        person=(1, 2),
        changes={"bounding": {"max_cells": 1, "max_windows": 2}},
    ),
    "fast": Case(schedule("fast", publications=2), EPSILON, n_windows=3, person=(1, 2, 3)),
    "period_uniform": Case(schedule("period_uniform"), EPSILON, n_windows=3, person=(1, 2, 3), sharp=False),
    "fast in rho": Case(
        [{"type": "fast", "rho": 0.5, "noise": "discrete_gaussian", "publications": 2}],
        "period_epsilon_rdp",
        n_windows=3,
        person=(1, 2, 3),
    ),
    "pegasus": Case(schedule("pegasus"), "event_epsilon"),
    "hierarchy": Case([{"type": "hierarchy", "rho": 0.5, "fan_out": 2}], "event_epsilon_rdp", n_cells=2),
    "correlated": Case(
        [{"type": "correlated", "rho": 0.5, "w": 2, "band": 2}], "w_event_epsilon_rdp", n_windows=3, person=(1, 2)
    ),
    "rescue_dp": Case(
        schedule("rescue_dp", w=12, growth=0, noise="gaussian", delta=DELTA),
        "w_event_epsilon_rdp",
        n_windows=12,
        person=tuple(range(1, 13)),
    ),
    "landmark_uniform": Case(
        schedule("landmark_uniform"), EPSILON, n_windows=2, person=(1, 2), changes={"landmarks": {"windows": [1]}}
    ),
    "period_uniform of bounded periods": Case(
        schedule("period_uniform"),
        EPSILON,
        n_windows=2,
        person=(1, 2),
        changes={"bounding": {"max_cells": 1, "max_per_period": 1}},
    ),
    "landmark_skip": Case(
        schedule("landmark_skip"), EPSILON, n_windows=2, person=(1, 2), changes={"landmarks": {"windows": [1]}}
    ),
    "landmark_adaptive": Case(
        schedule("landmark_adaptive"), EPSILON, n_windows=2, person=(1, 2), changes={"landmarks": {"windows": [1]}}
    ),
    "w_event_uniform": Case(schedule("w_event_uniform", w=2), "w_event_epsilon", n_windows=2, person=(1, 2)),
    "w_event_sample": Case(schedule("w_event_sample", w=2), "w_event_epsilon", n_windows=2, person=(1, 2)),
    # The question is closest to its threshold where the others are as far from it as the person takes them.
    "w_event_bd": Case(schedule("w_event_bd", w=1), EPSILON, n_cells=2, others=3),
    "w_event_ba": Case(schedule("w_event_ba", w=1), EPSILON, n_cells=2, others=1),
    "w_event_bd over windows": Case(
        schedule("w_event_bd", w=3), EPSILON, n_cells=2, n_windows=4, others=9, person=(1, 2, 3), sharp=False
    ),
    "w_event_ba over windows": Case(
        schedule("w_event_ba", w=3), EPSILON, n_cells=2, n_windows=4, others=9, person=(1, 2, 3), sharp=False
    ),
    # A part of ρ pays for questions, of which the decisions tell little: many windows that differ, many replicas.
    "w_event_bd in rho": Case(
        [{"type": "w_event_bd", "rho": 0.5, "w": 5, "noise": "discrete_gaussian"}],
        "w_event_epsilon_rdp",
        n_windows=5,
        others=(400, 1, 400, 1, 400),
        person=(1, 2, 3, 4, 5),
        n_replicas=48_000,
    ),
    "w_event_ba in rho": Case(
        [{"type": "w_event_ba", "rho": 0.5, "w": 1, "noise": "discrete_gaussian"}],
        "w_event_epsilon_rdp",
        n_cells=2,
        others=200,
        n_replicas=48_000,
    ),
}


def named(*, sharp: bool = False) -> list[Any]:
    """Names of cases, those of which half of the noise can be convicted or all; many replicas are for the night."""
    night = pytest.mark.slow
    return [
        pytest.param(name, marks=night if case.n_replicas > N_REPLICAS else ())
        for name, case in CASES.items()
        if case.sharp or not sharp
    ]


class OneCellQuestion(WEventBa):
    """Draw the question's noise for one cell, and charge for C."""

    __doc__ = WEventBa.__doc__

    def ask(self, window, values, state, noise):
        family, (_, scale) = self.view.query_family, self.view.query(self.query_budget, window, state)
        total, n = self.view.distance(values, self.view.last_release(window, state), window)
        return family.add(noise, np.floor(total).astype(int)[..., None], scale / 2)[..., 0] / n


def observed(case, folder, present):
    """Run once and return plan, true counts, releases and accounts."""
    config = loads(json.dumps(case.sections(folder, present)))
    out = run(config, runner="local").folder
    counts = pl.read_parquet(out / "operator" / "truth.parquet")["bounded"].to_numpy()
    plan = make_plan(config)
    released = pl.read_parquet(out / "public" / "releases.parquet")
    [books] = json.loads((out / "public" / "manifest.json").read_text())["accounts"]
    table = pl.read_parquet(out / "public" / "accounts.parquet").filter(pl.col("window").is_null())
    figures = dict(table.select("name", "value").iter_rows())
    if case.claim in figures:
        assert books[case.claim] == pytest.approx(figures[case.claim])
    return plan, counts.reshape(-1, case.n_cells), released, figures


def replicas(plan, counts, mechanism=None, source=None):
    """Releases of all replicas of a run; ``counts`` of each."""
    windows = plan.grid.windows(1, counts.shape[1])
    source = source or plan.keys.noise()
    return run_mechanism(mechanism or plan.chain.mechanism, counts, plan.facts(), windows=windows, source=source)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Releases of a case by name and presence, cached."""
    return cache(lambda name, present: observed(CASES[name], tmp_path_factory.mktemp("audited"), present))


def measured(name, shown, mechanism=None, source=None):
    """Lower confidence bound on the distinguishing ε, and the claim."""
    case, runs, inputs, figures = CASES[name], [], [], {}
    for present in (False, True):
        plan, counts, released, figures = shown(name, present)
        every = np.broadcast_to(counts, (case.n_replicas, *counts.shape))
        made = replicas(plan, every, mechanism, source and source(plan))
        if mechanism is None and source is None:
            first = np.concatenate([np.broadcast_to(one.values, every[:, 0].shape)[0] for one in made])
            assert np.array_equal(first, released["value"].to_numpy())
        runs.append(made)
        inputs.append(every)
    claim = figures[case.claim] if isinstance(case.claim, str) else case.claim
    scored = [(_scores(case, made, inputs), decisions(made, case.n_replicas)) for made in runs]
    return best_bound(*scored, delta=DELTA if "rdp" in str(case.claim) else 0.0), claim


def _scores(case, made, inputs):
    if case.steps[0]["type"] == "correlated":
        return correlated_evidence(case.steps[0]["band"], made, *inputs)
    if case.steps[0]["type"] not in ("fpa", "hierarchy"):
        return evidence(made, *inputs)
    return sum(release.values.sum(axis=1) for release in made)  # the one coefficient that is kept, the tree's root


def test_every_mechanism_with_a_guarantee_of_counts_is_audited():
    promised = {name: mechanisms.get(name).examples()[0].guarantee for name in mechanisms.names()}
    guaranteed = {name for name, one in promised.items() if one.exists and not one.on_points}
    assert guaranteed == {name.partition(" ")[0] for name in CASES}


@pytest.mark.parametrize("name", named())
def test_nobody_finds_more_than_is_claimed(name, shown):
    actual, claim = measured(name, shown)
    assert actual <= claim <= (EPSILON * (1 + 1e-9) if "rdp" not in str(CASES[name].claim) else np.inf)


@pytest.mark.parametrize("name", named(sharp=True))
def test_half_of_the_noise_is_convicted(name, shown):
    actual, claim = measured(name, shown, source=lambda plan: HalvedNoise.of(plan.keys.noise()))
    assert actual > claim


def test_a_question_with_one_cells_noise_is_convicted(shown):
    [step] = CASES["w_event_ba"].steps
    parameters = {name: value for name, value in step.items() if name != "type"}
    actual, claim = measured("w_event_ba", shown, mechanism=OneCellQuestion(**parameters))
    assert actual > claim


# Samples: the mask is drawn for every replica, by the key of a run of its own.


SAMPLED = Case(
    [{"type": "sampling", "rate": 0.5}, {"type": "discrete_laplace", "epsilon": EPSILON}],
    "w_event_epsilon",
    n_windows=3,
    others=0,
    person=(1, 2),
    changes={"accountants": [{"type": "composition", "delta": DELTA, "w": 2}]},
)


def sampled_counts(plan, n_keys):
    """Counts for each key, shape (n_keys, n_windows, n_cells)."""
    counts = np.zeros((n_keys, plan.grid.n_windows, plan.grid.n_cells), np.int64)
    blocks = [block for span in plan.config.source.spans() for block in plan.config.source.read(span)]
    for number in range(n_keys):
        keyed = replace(plan, keys=replace(plan.keys, noise_key=NoiseKey.from_seed(number)))
        for block in blocks:
            for (group, _), piece in reduced(keyed, block)[1]:
                actual, _ = counted(keyed, group, [piece])
                counts[number, actual.first - 1 : actual.first - 1 + len(actual.bounded)] += actual.bounded
    return counts


def sampled_bound(folder, masked, n_replicas=N_REPLICAS):
    """Lower bound on ε of a run of samples, and its claim; ``masked`` makes the counts of the replicas."""
    runs, figures = [], {}
    for present in (False, True):
        plan, _, _, figures = observed(SAMPLED, folder, present)
        runs.append(replicas(plan, masked(plan, n_replicas)))
    nobody = np.zeros((n_replicas, 3, 1), np.int64)
    somebody = nobody + np.array([1, 1, 0])[:, None]
    gains = [[evidence([release], nobody, somebody) for release in made] for made in runs]
    # Of the mixture: absent, present and sampled, present and not.
    rate = SAMPLED.steps[0]["rate"]
    scored = [(sum(np.log1p(rate * np.expm1(gain)) for gain in row), [""] * n_replicas) for row in gains]
    return best_bound(*scored), figures[SAMPLED.claim]


@pytest.mark.slow
def test_a_sampled_run_loses_no_more_than_is_claimed(tmp_path):
    actual, claim = sampled_bound(tmp_path, sampled_counts)
    assert 0.5 * claim < actual <= claim < 2 * EPSILON


def without_sampling(plan, n_keys):
    counts = sampled_counts(plan, 64).max(axis=0)
    return np.broadcast_to(counts, (n_keys, *counts.shape))


def one_sample_for_the_run(plan, n_keys):
    counts = sampled_counts(plan, 64).max(axis=0)
    return counts * (np.random.default_rng(1).random((n_keys, 1, 1)) < SAMPLED.steps[0]["rate"])


@pytest.mark.parametrize("broken", [without_sampling, one_sample_for_the_run])
def test_a_sample_that_is_none_is_convicted(tmp_path, broken):
    actual, claim = sampled_bound(tmp_path, broken, 4 * N_REPLICAS)
    assert actual > claim


# Traces: every user of a run is a replica, at one place or at another ``RADIUS`` metres further from the centre.


RADIUS = 1000.0
DEGREE = 111_194.93
ONE_OF_TWO = {"landmarks": {"windows": [1]}}
#: How far the nearer place is from the centre, in radii: where the question's threshold is just out of reach.
NEARER = {"w_event_bd": 3}
#: Steps, points of each user, and changes of the configuration.
TRACES = {
    "planar_laplace": ([{"type": "planar_laplace", "epsilon": EPSILON, "radius": RADIUS}], 1, {}),
    **{f"landmark_{name}": (None, 2, ONE_OF_TWO) for name in ("uniform", "skip", "adaptive")},
    **{f"w_event_{name}": (None, 1, {}) for name in ("uniform", "sample", "bd", "ba")},
    # Its loss is Rényi's: that of a Gaussian mechanism over all points of the user.
    "gaussian_trace": ([{"type": "gaussian_trace", "sigma": RADIUS, "radius": RADIUS}], 2, {"accountants": []}),
}
#: Schedules that are audited with Gaussian noise, too.
GAUSSIAN = ("landmark_uniform", "landmark_adaptive", "w_event_bd")


def traces_of(name, folder, metres, n_users, rho=None):
    """Released traces by user (n_users, n_points, 2), with charges, decisions and the claim."""
    steps, n_points, changes = TRACES[name]
    family = {"radius": RADIUS} | ({"w": n_points} if name.startswith("w_") else {})
    family |= {"noise": "planar_laplace"} if rho is None else {"noise": "planar_gaussian", "rho": rho}
    lines = [
        f"{user},2024-01-01T00:{10 * point:02d}:00Z,{metres / DEGREE!r},0.0"
        for user in range(n_users)
        for point in range(1, n_points + 1)
    ]
    (folder / "traces.csv").write_text("\n".join(["user,time,latitude,longitude", *lines]) + "\n")
    sections = {
        "name": "audited",
        "seed": 5,
        "source": {
            "type": "csv",
            "path": str(folder / "traces.csv"),
            "from": "2024-01-01T00:00:00Z",
            "until": "2024-01-01T01:00:00Z",
            "columns": {"user": "user", "time": "time", "latitude": "latitude", "longitude": "longitude"},
        },
        "space": {"type": "grid", "south": -1, "north": 1, "west": -1, "east": 1, "rows": 1, "columns": 1},
        "windows": {"type": "timestamps"},
        "mechanism": steps or (schedule(name, **family) if rho is None else [{"type": name, **family}]),
        "accountants": [{"type": "landmark_budget"}],
        "output": {"path": str(folder / "out"), "report": False},
    } | changes
    out = run(loads(json.dumps(sections)), runner="local").folder / "public"
    released = pl.read_parquet(out / "traces.parquet")
    assert released.height == n_users * n_points
    if name == "gaussian_trace":
        spent = epsilon_of(n_points / 2, DELTA)
    else:
        spent = pl.read_parquet(out / "accounts.parquet").filter(pl.col("name") == "budget_spent")["value"].max()
    values = released.select("latitude", "longitude").to_numpy().reshape(n_users, n_points, 2)
    cost = released["epsilon" if rho is None else "rho"].to_numpy().reshape(n_users, n_points)
    actions = released["action"].cast(pl.String).to_numpy().reshape(n_users, n_points)
    return values, cost, actions, spent


def traces_bound(name, folder, rho=None):
    """Lower bound on ε of telling two places apart, and the largest claim of any user."""
    n_users = 8_000
    nearer = NEARER.get(name, 1)
    places, scored, claims = (nearer * RADIUS, (nearer + 1) * RADIUS), [], []
    for metres in places:
        values, cost, actions, spent = traces_of(name, folder, metres, n_users, rho)
        far, near = (np.linalg.norm(values - (place / DEGREE, 0.0), axis=-1) * DEGREE for place in places)
        if name == "gaussian_trace":
            gain = (far**2 - near**2) / (2 * RADIUS**2)
        else:
            apart = (far - near) / RADIUS if rho is None else (far**2 - near**2) / RADIUS**2
            gain = np.where(actions == "published", cost * apart, 0.0)
        scored.append((gain.sum(axis=1), [" ".join(row) for row in actions]))
        claims.append(spent)
    if rho is not None:
        return best_bound(*scored, delta=DELTA), epsilon_of(max(claims), DELTA)
    return best_bound(*scored, delta=DELTA if name == "gaussian_trace" else 0.0), max(claims)


def test_every_mechanism_with_a_guarantee_of_one_point_is_audited():
    kinds = [(name, mechanisms.get(name)) for name in mechanisms.names()]
    guaranteed = {
        name for name, kind in kinds if issubclass(kind, TraceSchedule) or kind.examples()[0].guarantee.on_points
    }
    assert guaranteed == {*TRACES}


@pytest.mark.parametrize("name", TRACES)
def test_nobody_tells_two_places_apart_better_than_is_claimed(name, tmp_path):
    actual, claim = traces_bound(name, tmp_path)
    assert actual <= claim
    assert name == "gaussian_trace" or claim <= EPSILON * (1 + 1e-9)


@pytest.fixture
def halved_traces(monkeypatch):
    monkeypatch.setattr(traces, "NoiseSource", HalvedTraces)


@pytest.mark.usefixtures("halved_traces")
@pytest.mark.parametrize("name", TRACES)
def test_half_of_the_noise_of_traces_is_convicted(name, tmp_path):
    actual, claim = traces_bound(name, tmp_path)
    assert actual > claim


#: ε = 2.3 at the δ of the audit; half of the noise is worth four times as much.
RHO = 0.3


@pytest.mark.parametrize("name", GAUSSIAN)
def test_a_budget_in_rho_keeps_two_places_as_near_as_is_claimed(name, tmp_path):
    actual, claim = traces_bound(name, tmp_path, rho=RHO)
    assert actual <= claim <= epsilon_of(RHO, DELTA) * (1 + 1e-9)


@pytest.mark.usefixtures("halved_traces")
@pytest.mark.parametrize("name", GAUSSIAN[:2])
def test_half_of_the_gaussian_noise_of_traces_is_convicted(name, tmp_path):
    actual, claim = traces_bound(name, tmp_path, rho=RHO)
    assert actual > claim
