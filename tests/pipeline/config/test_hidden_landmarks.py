"""Private landmarks among public ones: choice and guarantee by enumeration."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import yaml

from penstock.accountants.landmark_budget import landmark_loss
from penstock.mechanisms.core.plugin import PenstockError
from penstock.mechanisms.landmark_uniform import LandmarkUniform
from penstock.pipeline.cli.main import main
from penstock.pipeline.config.hidden_landmarks import LandmarkChoice, describe_choice, plan_landmarks, worst_loss
from penstock.pipeline.config.run import loads
from tests.tools.small_configuration import grid
from tests.tools.small_configuration import run_locally as run


def masks(n_windows, size):
    """Every set of windows of a size."""
    for places in itertools.combinations(range(n_windows), size):
        yield np.isin(np.arange(n_windows), places)


def law(choice, landmarks):
    """Probability of every public set, from the exponential mechanism's definition."""
    sets = list(masks(choice.n_windows, choice.shown))
    weight = np.exp([choice.epsilon * (chosen & landmarks).sum() for chosen in sets])
    return sets, weight / weight.sum()


@pytest.mark.parametrize(("size", "shown"), [(1, 3), (2, 3), (3, 2), (4, 4), (6, 3)])
def test_the_choice_costs_epsilon_about_each_landmark_whichever_they_are(size, shown):
    choice = LandmarkChoice(n_windows=6, size=size, shown=shown, epsilon=0.7)
    laws = {}
    for landmarks in masks(6, size):
        sets, probability = law(choice, landmarks)
        covered = np.array([(chosen & landmarks).sum() for chosen in sets])
        actual = np.bincount(covered, weights=probability, minlength=size + 1)
        np.testing.assert_allclose(choice.coverage(), actual, atol=1e-12)
        laws[tuple(landmarks)] = probability
    for one, other in itertools.permutations(laws, 2):
        ratio = np.log(laws[one] / laws[other]).max()
        n_replaced = (np.array(one) & ~np.array(other)).sum()
        assert ratio <= choice.epsilon * n_replaced + 1e-12
        assert ratio <= choice.whole_epsilon + 1e-12
        if n_replaced == 1:
            assert ratio == pytest.approx(choice.epsilon)


@pytest.mark.parametrize(("size", "shown"), [(1, 3), (2, 3), (2, 5), (3, 2), (3, 4), (4, 4), (6, 3)])
def test_the_stated_probability_of_covering_so_many_landmarks_is_never_more_than_it_is(size, shown):
    """By enumeration."""
    for epsilon in (0.3, 0.7, 1.1, 1.9):
        choice = LandmarkChoice(n_windows=6, size=size, shown=shown, epsilon=epsilon)
        landmarks = next(masks(6, size))
        sets, probability = law(choice, landmarks)
        _, sentence = describe_choice(choice, LandmarkUniform(epsilon=1.0))
        covered, stated = re.fullmatch(r".* where (\d+) or more .* which has probability ([\d.]+)", sentence).groups()
        is_so = [(chosen & landmarks).sum() >= int(covered) for chosen in sets]
        exact = probability[is_so].sum()
        assert exact - 0.001 < float(stated) <= exact + 1e-12


def test_other_numbers_draw_an_independent_set():
    """Choices from the same bits would tell more together than the sum of what each costs."""
    first = LandmarkChoice(n_windows=40, size=5, shown=20, epsilon=1.0)
    choices = [first, replace(first, epsilon=np.nextafter(1.0, 2.0)), replace(first, shown=19)]
    keys = [bytes([number]) * 16 for number in range(40)]
    one, *others = ([choice.choose(np.arange(40) < 5, key)[5:] for key in keys] for choice in choices)
    for other in others:  # of the 35 windows that are no landmarks about half are in either set
        assert 0.35 < np.mean(np.equal(one, other)) < 0.65


def test_sets_are_drawn_by_the_law():
    choice = LandmarkChoice(n_windows=5, size=2, shown=2, epsilon=1.0)
    landmarks = np.array([False, True, False, False, True])
    sets, probability = law(choice, landmarks)
    n = 1000
    keys = (hashlib.sha256(str(number).encode()).digest() for number in range(n))
    drawn = Counter(tuple(choice.choose(landmarks, key)) for key in keys)
    counts = np.array([drawn[tuple(chosen)] for chosen in sets])
    assert counts.sum() == n
    assert ((counts - n * probability) ** 2 / (n * probability)).sum() < 27.9  # χ², 9 degrees of freedom, 0.1 %
    key = bytes(32)
    assert (choice.choose(landmarks, key) == choice.choose(landmarks, key)).all()


def test_the_worst_loss_is_that_of_the_worst_set_of_landmarks():
    rng = np.random.default_rng(1)
    for _ in range(40):
        n_windows = int(rng.integers(3, 8))
        size, shown = (int(rng.integers(1, n_windows + 1)) for _ in range(2))
        amounts, chosen = rng.choice([0.0, 0.3, 1.0, rng.random()], n_windows), np.zeros(n_windows, bool)
        chosen[rng.permutation(n_windows)[:shown]] = True
        for covered in range(size + 1):
            losses = [
                landmark_loss(amounts, landmarks).max()
                for landmarks in masks(n_windows, size)
                if (landmarks & chosen).sum() >= covered
            ]
            assert worst_loss(amounts, chosen, size, covered) == pytest.approx(max(losses, default=0.0))


def sections(tmp_path, **changes):
    return {
        "name": "hidden",
        "seed": 3,
        "source": {"type": "synthetic", "n_users": 20, "from": "2024-01-01T00:00:00Z", "until": "2024-01-01T10:00:00Z"},
        "space": grid(2),
        "windows": {"type": "fixed", "size": "1h"},
        "bounding": {"max_cells": 1},
        "landmarks": {"windows": [1]},
        "mechanism": {"type": "landmark_uniform", "epsilon": 2.0},
        "accountants": [{"type": "landmark_budget"}],
        "output": {"path": str(tmp_path / "out"), "report": False},
    } | changes


@pytest.mark.parametrize("name", ["landmark_uniform", "landmark_skip", "landmark_adaptive"])
def test_the_printed_guarantee_holds_for_every_set_of_landmarks(tmp_path, name, capsys):
    given = sections(tmp_path, mechanism={"type": name, "epsilon": 2.0})
    (tmp_path / "run.yaml").write_text(json.dumps(given))
    (tmp_path / "private.txt").write_text("3\n7\n")
    words = ["plan", str(tmp_path / "run.yaml"), "--landmarks", str(tmp_path / "private.txt"), "--among", "4"]
    assert main([*words, "--epsilon", "1.5"]) == 0
    line, remark, _ = capsys.readouterr().out.split("\n")
    assert "4 windows in which 2 private landmarks hide; the choice costs 1.5 nats about each and 3 about all" in line
    promised = float(remark.partition("= ")[2].partition(";")[0])
    landmarks = yaml.safe_load(line)
    chosen = landmarks["landmarks"]
    result = run(loads(json.dumps(given | landmarks)))
    public = json.loads((result.folder / "public" / "manifest.json").read_text())
    assert public["hidden_landmarks"] == [line.partition("configuration: ")[2], remark.removeprefix("# ")]
    rows = pl.read_parquet(result.folder / "public" / "accounts.parquet")
    spent = rows.filter(pl.col("name") == "epsilon").sort("window")["value"].to_numpy()
    mask = np.isin(np.arange(1, 11), chosen["windows"])
    worst = max(landmark_loss(spent, landmarks).max() for landmarks in masks(10, 2))
    assert worst <= promised * (1 + 1e-9)
    assert worst_loss(spent, mask, 2) == pytest.approx(worst)
    if name == "landmark_uniform":
        assert promised == pytest.approx(1.2)  # three windows of 2 / 5 each


@pytest.mark.parametrize(
    ("changes", "text", "among", "message"),
    [
        ({}, "3\n11\n", 4, "private.txt:2: '11' must be the number of a window, from 1 to 10"),
        ({}, "\n", 4, "private.txt: no landmark; it must list the numbers of windows"),
        ({}, "3\n", 11, "shown: 11 is not allowed; it must be at most the 10 windows of the run"),
        (
            {"mechanism": {"type": "laplace", "epsilon": 1.0}, "accountants": []},
            "3\n",
            4,
            "mechanism: private landmarks",
        ),
    ],
)
def test_choices_that_cannot_be_made_are_refused(tmp_path, changes, text, among, message):
    (tmp_path / "private.txt").write_text(text)
    value = sections(tmp_path, **changes)
    if "accountants" in changes:
        del value["landmarks"]
    with pytest.raises(PenstockError) as caught:
        plan_landmarks(loads(json.dumps(value)), tmp_path / "private.txt", among, 1.0)
    assert message in str(caught.value)


def test_what_hides_them_is_asked_for(tmp_path, capsys):
    (tmp_path / "run.yaml").write_text(json.dumps(sections(tmp_path)))
    assert main(["plan", str(tmp_path / "run.yaml"), "--landmarks", "private.txt", "--among", "4"]) == 2
    assert "--epsilon: None is not allowed; it must be given with --landmarks" in capsys.readouterr().err


HIDDEN = {"number": 2, "epsilon": 1.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"landmarks": {"recurring": ["07:00-09:00"], "hidden": HIDDEN}},
            "landmarks.hidden: a section is not allowed; it must be left out",
        ),
        ({"landmarks": {"windows": [1], "max_per_period": 2, "hidden": HIDDEN}}, "unless windows, and nothing else"),
        ({"landmarks": {"windows": [1], "hidden": HIDDEN}, "budget_period": "5h"}, "of one budget period"),
        (
            {"landmarks": {"windows": [1], "hidden": HIDDEN | {"number": 11}}},
            "landmarks.hidden.number: 11 is not allowed; it must be at most the 10 windows of the run",
        ),
        (
            {"landmarks": {"windows": [1], "hidden": HIDDEN}, "mechanism": {"type": "laplace", "epsilon": 1.0}},
            "a landmark mechanism on counts",
        ),
    ],
)
def test_hidden_landmarks_without_a_price_are_refused(tmp_path, changes, message):
    with pytest.raises(PenstockError) as caught:
        loads(json.dumps(sections(tmp_path, **changes)))
    assert message in str(caught.value)
