"""Experiment files: expansion of grids, and errors of invalid files."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.mechanisms.core.plugin import ConfigError, ParameterError
from penstock.pipeline.config.yaml import parse
from penstock.pipeline.experiments.config import Choose
from penstock.pipeline.experiments.load import ParameterGrid, loads_experiment
from penstock.pipeline.experiments.measures import measure

BASE = """\
name: small
source: {type: synthetic, seed: 1, n_users: 20, from: 2024-01-01T00:00:00Z, until: 2024-01-01T06:00:00Z}
space: {type: grid, south: 37.74, north: 37.82, west: -122.47, east: -122.37, rows: 2, columns: 2}
windows: {type: fixed, size: 1h}
bounding: {max_cells: 1}
mechanism: [{type: discrete_laplace, epsilon: 1}]
accountants: [{type: composition, w: 3}]
"""
TOP = "name: e\nquestion: which\nbase: base.yaml\nmeasures: [mae]\n"


@pytest.fixture
def load(tmp_path: Path):
    (tmp_path / "base.yaml").write_text(BASE)

    def go(text: str, *overrides: str, reduced: bool = False, top: str = TOP):
        return loads_experiment(top + text, "e.yaml", tmp_path, overrides, reduced)

    return go


def problems(load, text: str, *overrides: str, **more) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides, **more)
    return caught.value.problems


def test_settings_come_variants_first_then_crossed_then_seeds(load):
    text = """\
variants:
  plain:
  real: {mechanism: {type: laplace, epsilon: 1}}
grid:
  bounding.max_cells: [1, 2]
  "mechanism[0].epsilon": [0.5, 1.0]
seeds: 2
"""
    experiment = load(text)
    assert experiment.columns == ("variant", "bounding.max_cells", "mechanism[0].epsilon")
    rows = [(*cell.values.values(), cell.seed) for cell in experiment.trials]
    assert rows[:5] == [
        ("plain", 1, 0.5, 1),
        ("plain", 1, 0.5, 2),
        ("plain", 1, 1.0, 1),
        ("plain", 1, 1.0, 2),
        ("plain", 2, 0.5, 1),
    ]
    assert len(rows) == len(set(rows)) == 2 * 2 * 2 * 2
    last = experiment.trials[-1].config
    assert (type(last.mechanism[0]).__name__, last.mechanism[0].epsilon) == ("Laplace", 1.0)
    assert (last.bounding.max_cells, last.seed) == (2, 2)


def test_values_written_once_do_not_leak_into_other_cells(load):
    text = 'variants: {one: {mechanism: {type: laplace, epsilon: 9}}}\ngrid: {"mechanism[0].epsilon": [1, 2]}\n'
    assert [cell.config.mechanism[0].epsilon for cell in load(text).trials] == [1, 2]
    only_one = 'variants: {a: {mechanism: {type: laplace, epsilon: 9}}, b: {"mechanism[0].epsilon": 4}}\n'
    assert [cell.config.mechanism[0].epsilon for cell in load(only_one).trials] == [9, 4]


def test_fixed_changes_come_first_and_overrides_last(load):
    text = 'set: {"mechanism[0].epsilon": 3, bounding.max_cells: 2}\nseeds: 2\n'
    experiment = load(text, "base.bounding.max_cells=4", "seeds=3")
    assert [cell.seed for cell in experiment.trials] == [1, 2, 3]
    assert experiment.trials[0].config.mechanism[0].epsilon == 3
    assert experiment.trials[0].config.bounding.max_cells == 2  # `set` is a change to the base, however that came to be


def test_reduced_replaces_key_by_key(load):
    text = """\
grid: {"mechanism[0].epsilon": [1, 2, 3], bounding.max_cells: [1, 2]}
seeds: 5
reduced:
  seeds: 1
  grid: {"mechanism[0].epsilon": [2]}
"""
    assert len(load(text).trials) == 3 * 2 * 5
    small = load(text, reduced=True).trials
    assert [tuple(cell.values.values()) for cell in small] == [(2, 1), (2, 2)]


def test_sections_as_values_are_shown_as_json(load):
    experiment = load("grid: {windows: [{type: fixed, size: 1h}, {type: fixed, size: 2h}]}\n")
    assert [cell.values["windows"] for cell in experiment.trials] == [
        '{"size": "1h", "type": "fixed"}',
        '{"size": "2h", "type": "fixed"}',
    ]
    assert [cell.config.windows.size for cell in experiment.trials] == [3_600_000, 7_200_000]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gird: {a: [1]}\n", "e.yaml:5: gird: unknown key; did you mean 'grid'?"),
        ("grid: 3\n", "e.yaml:5: grid: 3 is not allowed; it must be a section of key paths"),
        ("grid:\n  a..b: [1]\n", "e.yaml:6: grid.a..b: not a key path such as mechanism[0].epsilon"),
        ("grid:\n  seed: [1]\n", "e.yaml:6: grid.seed: 'seed' cannot be varied here"),
        ("grid:\n  space.rows: []\n", "e.yaml:6: grid.space.rows: a list is not allowed; it must be a list of all"),
        (
            "grid:\n  space.rows: {from: 1}\n",
            "e.yaml:6: grid.space.rows: a section is not allowed; it must be a list of all values, such as [0.5, 1, 2]",
        ),
        ("variants: {a: 3}\n", "e.yaml:5: variants.a: 3 is not allowed"),
        (
            "grid:\n  space.rows:\n  - 2\n  - no\n",
            "e.yaml:8: space.rows: 'no' is not allowed; it must be a whole number",
        ),
        ("grid:\n  space.rows.more: [1]\n", "e.yaml:6: grid.space.rows.more: is a single value"),
        ("grid:\n  spaec.rows: [1]\n", "e.yaml:6: spaec: unknown key; did you mean 'space'?"),
        ("seeds: [1, 1]\n", "e.yaml:5: seeds: a list is not allowed; it must be a whole number"),
        ("seeds: 0\n", "seeds: 0 is not allowed; it must be a whole number at least 1"),
        ("figures: [{file: a.pdf, type: line, x: seed, y: mae}]\n", "a file name ending in .svg or .png"),
        ("figures: [{file: ../a.svg, type: line, x: seed, y: mae}]\n", "a file name ending in .svg or .png"),
        (
            "figures: [{file: a.svg, type: line, x: seed, y: mre}]\n",
            "figures[0]: 'mre' is not allowed; it must be a measure",
        ),
        (
            "figures: [{file: a.svg, type: line, x: mae, y: mae}]\n",
            "figures[0]: 'mae' is not allowed; it must be something",
        ),
        ("expected: [{says: x, source: y, measure: mae}]\n", "expected[0].at_least"),
        ("choose: {}\n", "choose.at_least"),
        ("choose: {at_least: {pearson: 1}}\n", "e.yaml:5: choose.at_least: 'pearson' is not allowed"),
        ("set: {mode: deployment}\n", "'deployment' is not allowed"),
    ],
)
def test_a_mistake_in_a_file_is_reported_with_its_line(load, text: str, message: str):
    actual = problems(load, text)
    assert any(message in problem for problem in actual), actual


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hotspot_f", "did you mean 'hotspot_f1'?"),
        ("temporal/loss", "e.yaml:4: measures[0]: no accountant temporal in every trial"),
        ("nobody/loss", "accountant/name, the accountant out of"),
        ("composition/user_epsilon/middle", "accountant/name/max"),
        ("nothing.at_all:here", "a function that can be imported"),
    ],
)
def test_a_wrong_measure_is_reported_with_its_line(load, name: str, message: str):
    actual = problems(load, "", top=TOP.replace("[mae]", f"[{name}]"))
    assert any("e.yaml:4: measures[0]" in problem and message in problem for problem in actual), actual


def test_errors_of_the_base_name_its_own_file_and_every_problem_comes_once(load, tmp_path: Path):
    (tmp_path / "base.yaml").write_text(BASE.replace("max_cells: 1", "max_cells: 0"))
    actual = problems(load, 'grid: {"mechanism[0].epsilon": [1, 2, 3]}\n')
    assert len(actual) == 1
    assert actual[0].startswith(f"{tmp_path}/base.yaml:5: bounding.max_cells: 0 is not allowed")


def test_a_base_that_is_not_there(load):
    actual = problems(load, "", top=TOP.replace("base.yaml", "elsewhere.yaml"))
    assert actual[0].startswith("e.yaml:3: base: 'elsewhere.yaml' is not allowed; it must be a section")
    assert problems(load, "", top=TOP.replace("base: base.yaml\n", ""))[0].startswith("e.yaml:1: base: missing")


def test_too_many_cells_are_refused_before_they_are_made():
    many = list(range(1000))
    grid = ParameterGrid(parse(f"grid: {{a: {many}, b: {many}}}", "e.yaml")[0])
    assert "1,000,000 settings; there must be at most 100,000" in str(grid.problems[0])


def test_a_document_that_is_no_section():
    with pytest.raises(ConfigError, match=r"e\.yaml: is empty; it must be a section"):
        loads_experiment("", "e.yaml")


def test_what_limits_need():
    with pytest.raises(ParameterError, match="prefer"):
        Choose(at_least={"mae": 1}, prefer="share_published")


def test_a_function_can_be_a_measure():
    one = measure("math:isfinite")
    assert (one.name, one.unit, one.accountant) == ("math:isfinite", "", None)


def test_a_key_that_no_trial_reads_is_refused_where_it_stands(load, tmp_path):
    (tmp_path / "base.yaml").write_text(f"{BASE}budget_period: 1d\nlandmarks: {{windows: [2]}}\n")
    plain = "variants: {a: {bounding.max_cells: 2}, b: }\n"
    says = "must be left out: no mechanism and no accountant of any trial reads it"
    # The accountant composition reads the period.
    assert problems(load, plain) == (f"{tmp_path}/base.yaml:9: base.landmarks: {says}",)
    # One trial that reads them is enough, and so is to take them away.
    assert len(load("variants: {a: {mechanism: {type: landmark_uniform, epsilon: 1}}, b: }\n").trials) == 2
    assert len(load("set: {budget_period: null, landmarks: null}\n").trials) == 1
    # What is set below a key counts as the key.
    (tmp_path / "base.yaml").write_text(BASE)
    assert problems(load, "set: {landmarks.windows: [2]}\n") == (f"e.yaml:5: set.landmarks.windows: {says}",)


def test_measures_may_be_those_of_plugins_of_the_base(load, tmp_path):
    metrics = tmp_path / "lab" / "metrics"
    metrics.mkdir(parents=True)
    (metrics / "half_error.py").write_text(
        '''"""Half of an error."""
from penstock.evaluation.metrics import metric

@metric("half_error", "window", higher_is_better=False)
def half_error(truth, released):
    """Half of the mean error."""
    return abs(truth - released).mean(1) / 2
'''
    )
    top = TOP.replace("mae", "mae, half_error")
    assert any("'half_error' is not allowed" in problem for problem in problems(load, "seeds: 1\n", top=top))
    (tmp_path / "base.yaml").write_text(BASE + f"plugins: {tmp_path / 'lab'}\n")
    assert load("seeds: 1\n", top=top).config.measures == ("mae", "half_error")
    (tmp_path / "base.yaml").write_text(BASE + "plugins: nowhere\n")
    assert any("nowhere" in problem for problem in problems(load, "seeds: 1\n", top=top))
