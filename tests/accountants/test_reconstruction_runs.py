"""Reconstruction in whole runs: targets found while counting, followed in order, in any shards."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from penstock.mechanisms.core.plugin import PenstockError
from penstock.mechanisms.core.state import decode_state, encode_state
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.counting.targets import PrivateFacts

START = datetime(2024, 1, 1, tzinfo=UTC)
PRIOR = {"estimate": "first", "windows": 4, "smoothing": 0.5}
RAW = {"mechanism": {"type": "raw"}, "landmarks": None, "bounding": {"max_cells": 1, "keep": "first"}}


def made_up_events(seed=0, n=900, as_text=True):
    """Events of 12 people at three places; people 0 to 3 come in every hour."""
    rng = random.Random(seed)
    events = [(person, hour * 3600 + rng.randrange(3600)) for person in range(4) for hour in range(6)]
    events += [(rng.randrange(12), rng.randrange(6 * 3600)) for _ in range(n // 10)]
    name = "user{}" if as_text else "{}"
    return [
        (name.format(person), (START + timedelta(seconds=second)).isoformat(), rng.choice("abc"))
        for person, second in events
    ]


def where(events):
    """The first place of each person and window."""
    actual = {}
    for user, time, place in sorted(events, key=lambda event: event[1]):
        hour = (datetime.fromisoformat(time) - START) // timedelta(hours=1)
        actual.setdefault((user, hour + 1), "abc".index(place))
    return actual


def books(result):
    return pl.read_parquet(result.folder / "operator" / "accounts.parquet").drop("stream")


def reconstruction(**changes):
    return {"type": "reconstruction", "horizon": 3, "tolerance": 0, "targets": 5, "prior": PRIOR} | changes


@pytest.mark.parametrize("as_text", [True, False])
def test_raw_counts_show_everybody_where_they_were(small_run, as_text):
    events = made_up_events(as_text=as_text)
    users = [f"user{i}" if as_text else i for i in (3, 7, 0)]
    account = reconstruction(targets=users)
    result = small_run(events, accountants=[account], sensors={"fixed": ["a", "c"]}, **RAW)
    assert not re.search(r"user7|targets", (result.folder / "public" / "manifest.json").read_text(encoding="utf-8"))
    rows = books(result)
    here = where(events)
    for number, user in enumerate(map(str, users), start=1):
        target_rows = rows.filter(pl.col("subject") == f"target {number}")
        places = [here.get((user, window), -1) for window in range(1, 7)]
        visits = target_rows.filter(pl.col("name") == "visit_frequency").sort("window")["value"].to_list()
        expected = np.cumsum([place in (0, 2) for place in places]) / np.arange(1, 7)
        assert visits == pytest.approx(expected.tolist())
        known = target_rows.filter(pl.col("name") == "place_known").sort("window")["value"].to_list()
        assert len(known) == 6
        # Seen is known; not seen is at b, or nowhere.
        for place, value in zip(places, known):
            assert (value == 1) == (place in (0, 2))


def test_neither_order_nor_shards_change_the_accounts(small_run):
    events = made_up_events(1)
    noisy = RAW | {"mechanism": {"type": "laplace", "epsilon": 1.0}}
    one = books(small_run(events, "one", accountants=[reconstruction()], **noisy))
    assert one["subject"].n_unique() == 5
    order = ["subject", "window", "name", "status"]
    shuffled = random.Random(2).sample(events, len(events))
    for out, n_shards, shard in (("counted", 3, 256), ("watched", 1, 2), ("both", 5, 1)):
        other = books(small_run(shuffled, out, n_shards, accountants=[reconstruction(shard=shard)], **noisy))
        assert other.sort(order).equals(one.sort(order))


@pytest.mark.parametrize(
    "mechanism",
    [
        {"type": "fpa", "epsilon": 1.0, "coefficients": 1, "block": 4},
        [{"type": "sampling", "rate": 0.5}, {"type": "laplace", "epsilon": 1.0}],
        [{"type": "laplace", "epsilon": 1.0}, {"type": "suppress_small", "threshold": 2}],
        {"type": "w_event_bd", "epsilon": 1.0, "w": 2},
    ],
)
def test_releases_of_blocks_and_of_several_steps_find_their_facts(small_run, mechanism):
    changes = RAW | {"mechanism": mechanism}
    if "block" in mechanism:
        changes["bounding"] = changes["bounding"] | {"max_windows": 2, "max_block_cells": 2}
    rows = books(small_run(made_up_events(), accountants=[reconstruction()], **changes))
    shown = rows.filter(pl.col("name") == "best_bound")
    assert sorted(shown["window"].unique().to_list()) == [1, 2, 3, 4, 5, 6]
    assert shown.height == 30
    assert shown["value"].is_between(0, 1).all()


def test_a_run_that_says_too_much_is_refused(small_run):
    wrong = RAW | {"bounding": {"max_cells": 2}}
    with pytest.raises(PenstockError, match="max_cells"):
        small_run(made_up_events(), accountants=[reconstruction()], **wrong)
    with pytest.raises(PenstockError, match="targets"):
        small_run(made_up_events(), accountants=[reconstruction(targets=["nobody"])], **RAW)


def plan_of(tmp_path, events):
    path = tmp_path / "events.csv"
    path.write_text("\n".join(["user,time,place", *(",".join(map(str, event)) for event in events)]))
    text = f"""
    name: t
    source: {{type: csv, path: {path}, from: 2024-01-01T00:00:00Z, until: 2024-01-01T06:00:00Z,
              columns: {{user: user, time: time, place: place}}}}
    space: {{type: places, list: [a, b, c], elsewhere: false}}
    windows: {{type: fixed, size: 1h}}
    bounding: {{max_cells: 1}}
    mechanism: {{type: laplace, epsilon: 1.0}}
    accountants: [{{type: reconstruction, horizon: 3, tolerance: 0, targets: 4,
                    prior: {{estimate: first, windows: 4}}}}]
    output: {{path: {tmp_path / "out"}}}
    """
    return make_plan(loads(text))


def test_accounts_wait_for_facts_and_continue_after_a_restart(tmp_path):
    """A batch that comes too early waits; one that comes twice changes nothing; encoded books resume."""
    plan = plan_of(tmp_path, made_up_events())
    counts = np.random.default_rng(1).integers(0, 9, (6, 3))
    seen = np.array([[window, target, window % 3] for window in range(1, 7) for target in range(4)])
    loop = plan.release_loop()
    state, batches = loop.start(), []
    for first in (1, 3, 5):
        batch, state = loop.advance(state, first, counts[first - 1 : first + 1])
        known = PrivateFacts(first, counts[first - 1 : first + 1], seen[np.isin(seen[:, 0], [first, first + 1])])
        batches.append(batch.__class__(batch.releases, batch.charges, batch.stopped, known))
    book = plan.account_loop(0)
    data, whole = book.start(), []
    for batch in batches:
        assert not book.is_early(data, batch)
        rows, data = book.advance(data, batch)
        whole += rows
    assert book.is_early(book.start(), batches[1])
    again, resumed = [], book.start()
    for batch in (batches[0], batches[0], batches[1], batches[0], batches[2]):
        fresh = plan.account_loop(0)
        resumed = encode_state("account_loop", 1, decode_state(resumed, "account_loop", 1))
        rows, resumed = fresh.advance(resumed, batch)
        again += rows
    assert again == whole
    assert resumed == data
    assert {row.window for row in whole if row.name == "best_bound"} == {1, 2, 3, 4, 5, 6}


def test_an_experiment_keeps_the_same_accounts_as_a_run(small_run, tmp_path):
    from penstock.pipeline.experiments.trial import read_people, reading_config, run_trial, write_people

    plan = plan_of(tmp_path, made_up_events())
    write_people(reading_config(plan.config), tmp_path / "people.parquet")
    finished = run_trial(plan.config, read_people(tmp_path / "people.parquet"))
    rows = pl.DataFrame([row.as_dict() for row in finished.accounts["reconstruction"]], infer_schema_length=None)
    from penstock.pipeline.run import run

    whole = books(run(plan.config))
    order = ["subject", "window", "name", "status"]
    assert rows.sort(order)["value"].to_list() == whole.sort(order)["value"].to_list()
