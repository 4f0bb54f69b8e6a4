"""Beam runs against the plain loop of every count mechanism, with the same key and windows."""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl
import pytest

from penstock import mechanisms
from penstock.accountants.core.charges import concentrated_rho, pure_epsilon
from penstock.mechanisms.core.contract import EventStep
from penstock.mechanisms.core.events import Block
from penstock.mechanisms.core.run import run_mechanism
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.run import run
from tests.tools.plugin_checks import every_example
from tests.tools.small_configuration import small_sections, with_what_is_read

EVENTS = [
    (f"u{i % 37}", f"2024-01-01T{i * 7 % 6:02d}:{i % 60:02d}:00Z", "abc"[i * i % 3])
    for i in range(400)
    if i * 7 % 6 != 3
]
#: By Beam one mechanism of each kind that it could tell apart: noise alone, a schedule, a block, a learner, a sample.
BY_BEAM = ("discrete_laplace", "landmark_adaptive", "fpa", "pegasus", "w_event_sample")
CASES = [
    pytest.param(name, example, "direct" if name in BY_BEAM and not number else "local", id=f"{name}-{number}")
    for name, number, example in every_example(mechanisms)
    if not (isinstance(example, EventStep) or example.guarantee.on_points or getattr(example, "reads_noise", False))
]


def configuration(tmp_path, name, example, **changes):
    parameters = {
        field.name: value
        for field in dataclasses.fields(example)
        if (value := getattr(example, field.name)) is not None
    }
    changed = {"landmarks": {"windows": [2, 5]}, "mechanism": {"type": name, **parameters}}
    return with_what_is_read(small_sections(tmp_path, EVENTS, **(changed | changes)))  # every mechanism has landmarks


@pytest.mark.parametrize(("name", "example", "runner"), CASES)
def test_a_run_releases_what_the_mechanism_does_alone(tmp_path, name, example, runner):
    config = configuration(tmp_path, name, example)
    folder = run(config, runner=runner).folder
    plan = make_plan(config)
    truth = pl.read_parquet(folder / "operator" / "truth.parquet")
    counts = truth["bounded"].to_numpy().reshape(plan.grid.n_windows, plan.grid.n_cells)
    assert not counts[3].any()
    windows = plan.grid.windows(1, plan.grid.n_windows)
    plain = run_mechanism(plan.chain.mechanism, counts, plan.facts(), windows=windows, source=plan.keys.noise())
    frame = pl.read_parquet(folder / "public" / "releases.parquet")
    assert frame["value"].to_numpy().tobytes() == np.concatenate([r.values for r in plain]).tobytes()
    # A block's charge is shown in each of its windows, though it is paid once.
    blocks = [event for r in plain for event in r.charge if isinstance(event, Block)]
    charges = [r.charge or [block for block in blocks if block.first <= r.window <= block.last] for r in plain]
    first_rows = frame.filter(pl.col("cell") == "a")
    for column, expected in {
        "window": [r.window for r in plain],
        "action": [str(r.action) for r in plain],
        "repeats": [r.repeats for r in plain],
        "landmark": [r.landmark for r in plain],
        "epsilon": [pure_epsilon(charge) for charge in charges],
        "rho": [concentrated_rho(charge) for charge in charges],
        "noise": [r.noise for r in plain],
        "scale": [float(np.broadcast_to(r.scale, plan.grid.n_cells)[0]) for r in plain],
    }.items():
        assert first_rows[column].to_list() == expected, column
