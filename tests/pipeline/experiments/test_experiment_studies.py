"""Studies as experiment files: line numbers of errors, any order and number of processes, resumption."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from checkout import ROOT
from experiments_page import experiments_page

from penstock.evaluation.attacks.targets import mobility_groups
from penstock.evaluation.papers.pyrgelis import WEEK, CabStudy, Piece
from penstock.evaluation.papers.study import STUDIES
from penstock.mechanisms.core.plugin import ConfigError
from penstock.pipeline.cli.main import main
from penstock.pipeline.experiments import __main__ as every
from penstock.pipeline.experiments import study as module
from penstock.pipeline.experiments.load import input_of
from penstock.pipeline.experiments.results import save
from penstock.pipeline.experiments.study import ready
from penstock.pipeline.output import manifest

HEAD = "name: e\nquestion: which\n"
GAME = "people: 15, targets: 3, group_size: 5, known: 0.5, samples: 40, components: 10"
STUDY = HEAD + f"study: {{type: exposure, {GAME}}}\nreduced: {{study: {{samples: 20}}}}\n"
CABS = [name for name in STUDIES.names() if issubclass(STUDIES.get(name), CabStudy)]
QUIET = lambda done, failed, counts: None  # noqa: E731


@pytest.fixture
def write(tmp_path):
    def go(text: str = STUDY) -> Path:
        path = tmp_path / "e.yaml"
        path.write_text(text)
        return path

    return go


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    (folder / "e.yaml").write_text(STUDY)
    return ready(folder / "e.yaml").run(folder / "out", 1, QUIET)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.suffix in (".csv", ".npz", ".svg")}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "study: {type: exposures}\n",
            "e.yaml:3: study.type: 'exposures' is not a known study; did you mean 'exposure'?",
        ),
        (
            "study: {targets: 3}\n",
            "e.yaml:3: study.type: missing; it must be one of attack_comparison, conditional_trace",
        ),
        ("study:\n  type: exposure\n  target: 3\n", "e.yaml:5: study.target: unknown key; did you mean 'targets'?"),
        (
            "study: {type: exposure, targets: 2}\n",
            "study.targets: 2 is not allowed; it must be a whole number at least 3",
        ),
        ("study: {type: privacy_gain, defenses: none}\n", "study.defenses: 'none' is not allowed; it must be one of"),
        ("study: {type: exposure, path: nowhere}\n", "study.path: 'nowhere' is not allowed; it must be an existing"),
        ("study: {type: exposure}\nbase: quickstart.yaml\n", "e.yaml:4: base: unknown key"),
        ("study: {type: exposure}\nseeds: 3\n", "e.yaml:4: seeds: unknown key"),
    ],
)
def test_a_wrong_file_is_told_where(write, text, said):
    with pytest.raises(ConfigError) as caught:
        ready(write(HEAD + text))
    assert any(said in problem for problem in caught.value.problems), caught.value.problems


def test_overrides_and_the_reduced_size(write):
    experiment = module.load_study(write(), ["study.targets=6"], reduced=True)
    assert (experiment.config.study.targets, experiment.config.study.samples) == (6, 20)
    assert ready(write(), ["study.targets=6"]).n_steps == 6


@pytest.mark.parametrize(
    "path",
    sorted((ROOT / "configs" / "experiments").glob("*.yaml")),
    ids=lambda path: path.stem,
)
def test_every_experiment_of_the_project_is_ready_at_its_reduced_size(path):
    assert ready(path, reduced=True).n_steps > 0


def test_every_study_has_an_experiment():
    configs = ROOT / "configs" / "experiments"
    texts = "".join(path.read_text() for path in configs.glob("*.yaml"))
    assert all(f"type: {name}\n" in texts for name in STUDIES.names())


def test_the_number_of_processes_changes_nothing(write, whole, tmp_path):
    ready(write()).run(tmp_path / "two", 2, QUIET)
    assert files(tmp_path / "two") == files(whole.folder)
    assert len(files(whole.folder)) == 3 + 5 + 4


@pytest.mark.parametrize("stop", [0, 2])
def test_an_interrupted_study_goes_on(write, whole, tmp_path, monkeypatch, stop):
    def interrupt(done, failed, counts):
        if done == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ready(write()).run(tmp_path / "part", 1, interrupt)
    made, seen = [], []
    work = module.work
    monkeypatch.setattr(module, "work", lambda *a: made.append(a) or work(*a))
    outcome = ready(write()).run(tmp_path / "part", 1, lambda *progress: seen.append(progress))
    assert (outcome.exit_code, outcome.manifest["resumed"], len(made)) == (0, stop, 3 - stop)
    assert seen == [(done, 0, 0) for done in range(stop, 4)]
    assert files(tmp_path / "part") == files(whole.folder)


def test_more_targets_add_to_what_is_there_and_another_game_does_not(write, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "draw", lambda tables, folder: {})
    folder = shutil.copytree(whole.folder, tmp_path / "out")
    everybody = ready(write(), ["study.targets=15"]).run(folder, 1, QUIET)
    assert everybody.manifest["resumed"] == 3
    for change in ("study.seed=2", "study.samples=30", "study.people=16"):
        assert ready(write(), [change]).run(folder, 1, QUIET).manifest["resumed"] == 0, change
    assert ready(write()).run(folder, 1, QUIET).manifest["resumed"] == 3
    monkeypatch.setattr(manifest, "code_digest", lambda: "other code of the same version")
    assert ready(write()).run(folder, 1, QUIET).manifest["resumed"] == 0


def test_who_is_drawn_again_is_not_attacked_again(write, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "draw", lambda tables, folder: {})
    folder = shutil.copytree(whole.folder, tmp_path / "out")
    few, more = (
        {piece.target for piece in module.StudyRun(module.load_study(write(), [f"study.targets={n}"])).pieces}
        for n in (3, 6)
    )
    again = ready(write(), ["study.targets=6"]).run(folder, 1, QUIET)
    assert again.manifest["resumed"] == len(few & more) < 6


def test_data_that_have_changed_are_read_again_by_the_same_process(write, tmp_path):
    cabs = tmp_path / "cabs"
    cabs.mkdir()
    path = write(STUDY.replace("type: exposure", f"type: exposure, path: {cabs}"))
    n_hours = []
    for rows in (3, 5):
        for cab in "abc":
            lines = [f"37.741 -122.469 0 {1211155201 + 3600 * hour}" for hour in range(rows)]
            (cabs / f"new_{cab}.txt").write_text("\n".join(lines))
        study = module.StudyRun(module.load_study(path))
        n_hours.append(int(module._data(study.study, study.inputs).sum()))
    assert n_hours == [9, 15]


def test_a_piece_that_fails_takes_no_other_with_it(write, tmp_path, capsys):
    words = ["experiment", str(write()), "--jobs", "1", "--out", str(tmp_path / "out")]
    assert main([*words, "--set", "study.group_size=20"]) == 1  # more than she knows
    assert "3 failed" in capsys.readouterr().out
    assert main([*words, "--set", "study.group_size=5"]) == 0
    assert "3 done (0 of them before), 0 failed" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["resumed"], found["tables"][0]) == (3, "membership_exposed.csv")


def test_a_study_goes_on_without_the_plotting_library(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    shutil.copytree(whole.folder / "cells", tmp_path / "out" / "cells")
    outcome = ready(whole.folder.parent / "e.yaml").run(tmp_path / "out", 1, QUIET)
    assert (outcome.exit_code, outcome.manifest["figures"]) == (0, [])
    assert "penstock[plot]" in outcome.manifest["not_drawn"]
    assert outcome.manifest["tables"] == whole.manifest["tables"]


def test_the_page_shows_tables_and_figures_and_says_where_they_are_from(whole, tmp_path):
    page = (whole.folder / "report.html").read_text()
    assert "3 of 3 pieces ended well." in page
    assert "membership_importance.csv" in page
    assert page.count("data:image/svg") == 4
    manifest = json.loads((whole.folder / "experiment.json").read_text())
    assert manifest["configuration"]["study"]["type"] == "exposure"
    assert "simulation" in manifest["notice"]
    save(whole.folder, tmp_path / "results")
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["e.json", *sorted(manifest["tables"])]
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "e.yaml").write_text(STUDY)
    shown = experiments_page(tmp_path / "configs", tmp_path / "results")
    assert "[membership_exposed.csv](results/membership_exposed.csv)" in shown
    assert "3 pieces: " in shown
    assert "pieces" not in experiments_page(tmp_path / "configs", tmp_path / "nowhere")


def test_its_data_set_is_looked_for(write, tmp_path, monkeypatch, capsys):
    path = write(STUDY.replace("type: exposure", "type: exposure, path: data/cabspotting"))
    assert input_of(path) == ("study.path", "data/cabspotting", False)
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path / "sets"))
    assert every.main([str(tmp_path), "--out", str(tmp_path / "out"), "--jobs", "1"]) == 0
    assert "its data set is not here" in capsys.readouterr().out
    cabs = tmp_path / "sets" / "cabspotting"
    cabs.mkdir(parents=True)
    (cabs / "new_a.txt").write_text("37.741 -122.469 0 1211155201")
    assert every.main([str(tmp_path), "--out", str(tmp_path / "out"), "--jobs", "1"]) == 1
    said = "study.targets: 3 is not allowed; it must be at most 1, the people who are seen"
    assert said in capsys.readouterr().out  # found and read: one cab is too few


@pytest.mark.parametrize("name", CABS)
def test_pieces_are_told_apart_by_what_decides_them(name):
    study = STUDIES.get(name)(targets=3, people=24)
    pieces = study.pieces(study.data())
    assert len(set(pieces)) == len(pieces) >= 3
    assert all(isinstance(piece, Piece) for piece in pieces)
    assert not set(study.decides) & {"path", "targets", "utility", "defenses"}
    assert {"seed", "components", "people"} <= set(study.decides)
    assert np.array_equal(study.data(), study.data())
    assert isinstance(pl.DataFrame(pieces), pl.DataFrame)


@pytest.mark.parametrize(("n_targets", "shares"), [(3, [1, 1, 1]), (4, [2, 1, 1]), (5, [2, 2, 1]), (24, [8, 8, 8])])
@pytest.mark.parametrize("name", CABS)
def test_as_many_are_attacked_as_asked_for_in_turns_of_the_mobility_groups(name, n_targets, shares):
    study = STUDIES.get(name)(targets=n_targets, people=24)
    presence = study.data()
    seen = presence if name == "past_exposure" else presence[:, :, :WEEK]
    groups = mobility_groups(seen)[list(dict.fromkeys(piece.target for piece in study.pieces(presence)))]
    assert np.bincount(groups).tolist() == shares
    if name == "privacy_gain":
        assert groups[:3].tolist() == [0, 1, 2]
        assert groups[3:5].tolist() == [0, 1][: n_targets - 3]


REDUCED = ("conditional_trace", "reconstruction_chain", "reconstruction_gowalla", "reconstruction_foursquare")


@pytest.mark.parametrize("name", REDUCED)
def test_pieces_of_other_studies_are_told_apart_by_what_decides_them(name):
    path = ROOT / "configs" / "experiments" / f"{name}.yaml"
    study = module.load_study(path, reduced=True).config.study
    pieces = study.pieces(study.data())
    assert len({json.dumps(piece) for piece in pieces}) == len(pieces) >= 2
    # What is swept is in the pieces, so that more values add to what is there.
    assert not set(study.decides) & {"path", "sigmas", "sizes", "lengths", "uniform", "own"}
