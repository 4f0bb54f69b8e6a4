"""Studies as experiment files: line numbers of errors, any order and number of processes, resumption."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from penstock.evaluation.attacks.user_space import mobility_groups
from penstock.mechanisms.core.plugin import ConfigError
from penstock.pipeline.config.canonical import content_digest
from penstock.pipeline.experiments.load import load_experiment
from reproductions import run as module
from reproductions.__main__ import main
from reproductions.page import experiments_page
from reproductions.pyrgelis import WEEK, CabStudy, TargetPiece
from reproductions.run import StudyRun
from reproductions.saved import ROOT, save
from reproductions.study import STUDIES

HEAD = "name: e\nquestion: which\n"
GAME = "people: 15, targets: 3, group_size: 5, known: 0.5, samples: 40, components: 10"
STUDY = HEAD + f"study: {{type: exposure, {GAME}}}\nreduced: {{study: {{samples: 20}}}}\n"
CABS = [name for name in STUDIES.names() if issubclass(STUDIES.get(name), CabStudy)]


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
    return StudyRun.load(folder / "e.yaml").run(folder / "out", 1)


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in folder.rglob("*")
        if path.suffix in (".csv", ".svg") or path.parent.name == "cells"
    }


@pytest.mark.parametrize(
    ("text", "message"),
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
        (
            "study: {type: reconstruction_checkins, data_set: none}\n",
            "study.data_set: 'none' is not allowed; it must be one of",
        ),
        ("study: {type: exposure, path: nowhere}\n", "study.path: 'nowhere' is not allowed; it must be an existing"),
        ("study: {type: exposure}\nbase: quickstart.yaml\n", "e.yaml:4: base: unknown key"),
        ("study: {type: exposure}\nseeds: 3\n", "e.yaml:4: seeds: unknown key"),
    ],
)
def test_a_mistake_in_a_file_is_reported_with_its_line(write, text, message):
    with pytest.raises(ConfigError) as caught:
        StudyRun.load(write(HEAD + text))
    assert any(message in problem for problem in caught.value.problems), caught.value.problems


def test_overrides_and_the_reduced_size(write):
    study = StudyRun.load(write(), ["study.targets=6"], reduced=True)
    assert (study.config.study.targets, study.config.study.samples) == (6, 20)
    assert len(StudyRun.load(write(), ["study.targets=6"]).pieces()) == 6


EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_experiment_of_the_papers_is_ready_at_its_reduced_size(path):
    if "\nstudy:" in path.read_text(encoding="utf-8"):
        assert StudyRun.load(path, reduced=True).pieces()
    else:
        assert load_experiment(path, reduced=True).trials


def test_every_study_has_an_experiment():
    texts = "".join(path.read_text() for path in EXPERIMENTS)
    assert all(f"type: {name}\n" in texts for name in STUDIES.names())


def test_the_number_of_processes_changes_nothing(write, whole, tmp_path):
    StudyRun.load(write()).run(tmp_path / "two", 2)
    assert files(tmp_path / "two") == files(whole.folder)
    assert len(files(whole.folder)) == 3 + 5 + 4


@pytest.mark.parametrize("stop", [0, 2])
def test_an_interrupted_study_goes_on(write, whole, tmp_path, stop):
    def interrupt(done, failed):
        if done == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        StudyRun.load(write()).run(tmp_path / "part", 1, interrupt)
    seen = []
    outcome = StudyRun.load(write()).run(tmp_path / "part", 1, lambda *progress: seen.append(progress))
    assert (outcome.exit_code, outcome.manifest["resumed"]) == (0, stop)
    assert seen == [(done, 0) for done in range(stop, 4)]
    assert files(tmp_path / "part") == files(whole.folder)


@pytest.fixture
def undrawn(monkeypatch):
    monkeypatch.setattr(module, "draw", lambda tables, folder: {})


@pytest.mark.usefixtures("undrawn")
def test_more_targets_add_to_what_is_there_and_another_game_does_not(write, whole, tmp_path, monkeypatch):
    folder = shutil.copytree(whole.folder, tmp_path / "out")
    few, more = ({piece.target for piece in StudyRun.load(write(), [f"study.targets={n}"]).pieces()} for n in (3, 6))
    for targets, drawn_again in ((6, len(few & more)), (15, 6 + 3 - len(few & more))):
        again = StudyRun.load(write(), [f"study.targets={targets}"]).run(folder, 1)
        assert again.manifest["resumed"] == drawn_again <= targets
    for change in ("study.seed=2", "study.samples=30", "study.people=16"):
        assert StudyRun.load(write(), [change]).run(folder, 1).manifest["resumed"] == 0, change
    assert StudyRun.load(write()).run(folder, 1).manifest["resumed"] == 3
    monkeypatch.setattr(module, "code_digest", lambda root: "other code of the same version")
    assert StudyRun.load(write()).run(folder, 1).manifest["resumed"] == 0


def test_data_that_have_changed_are_read_again_by_the_same_process(write, tmp_path):
    cabs = tmp_path / "cabs"
    cabs.mkdir()
    path = write(STUDY.replace("type: exposure", f"type: exposure, path: {cabs}"))
    n_hours = []
    for rows in (3, 5):
        for cab in "abc":
            lines = [f"37.741 -122.469 0 {1211155201 + 3600 * hour}" for hour in range(rows)]
            (cabs / f"new_{cab}.txt").write_text("\n".join(lines))
        study = StudyRun.load(path).config.study
        inputs = tuple(content_digest(path) for path in study.inputs)
        n_hours.append(int(module._data(study, inputs).sum()))
    assert n_hours == [9, 15]


def test_a_piece_that_fails_takes_no_other_with_it(write, tmp_path, capsys):
    words = [str(write()), "--jobs", "1", "--out", str(tmp_path / "out")]
    assert main([*words, "--set", "study.group_size=20"]) == 1  # more than she knows
    assert "3 failed" in capsys.readouterr().out
    assert main([*words, "--set", "study.group_size=5"]) == 0
    assert "3: 0 made before, 0 failed" in capsys.readouterr().out
    assert main(words) == 0
    assert "3: 3 made before, 0 failed" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*words, "--save", "--reduced"])
    assert "saved tables stand for full runs" in capsys.readouterr().err


def test_a_study_goes_on_without_the_plotting_library(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    shutil.copytree(whole.folder / "cells", tmp_path / "out" / "cells")
    outcome = StudyRun.load(whole.folder.parent / "e.yaml").run(tmp_path / "out", 1)
    assert (outcome.exit_code, outcome.manifest["figures"]) == (0, [])
    assert "penstock[plot]" in outcome.manifest["not_drawn"]
    assert outcome.manifest["tables"] == whole.manifest["tables"]


def test_saved_tables_are_linked_from_the_page(whole, tmp_path):
    assert whole.manifest["configuration"]["study"]["type"] == "exposure"
    assert "simulation" in whole.manifest["notice"]
    save(whole.folder, tmp_path / "results")
    saved = sorted(path.name for path in (tmp_path / "results").iterdir())
    assert saved == ["e.json", *sorted(whole.manifest["tables"])]
    (tmp_path / "e.yaml").write_text(STUDY)
    shown = experiments_page([tmp_path / "e.yaml"], tmp_path / "results")
    assert "[membership_exposed.csv](results/membership_exposed.csv)" in shown
    assert "[3 pieces](results/e.json):" in shown
    assert "pieces" not in experiments_page([tmp_path / "e.yaml"], tmp_path / "nowhere")


def test_its_data_set_is_looked_for(write, tmp_path, monkeypatch, capsys):
    path = write(STUDY.replace("type: exposure", "type: exposure, path: data/cabspotting"))
    words = [str(path), "--out", str(tmp_path / "out"), "--jobs", "1"]
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path / "sets"))
    assert main(words) == 0
    assert "its data set is not here" in capsys.readouterr().out
    (tmp_path / "sets" / "cabspotting").mkdir(parents=True)
    (tmp_path / "sets" / "cabspotting" / "new_a.txt").write_text("37.741 -122.469 0 1211155201")
    assert main(words) == 1
    assert "it must be at most 1, the people who are seen" in capsys.readouterr().out  # found and read: one is too few


@pytest.mark.parametrize("name", CABS)
def test_pieces_are_told_apart_by_what_decides_them(name):
    study = STUDIES.get(name)(targets=3, people=24)
    pieces = study.pieces(study.data())
    assert len(set(pieces)) == len(pieces) >= 3
    assert all(isinstance(piece, TargetPiece) for piece in pieces)
    assert not set(study.decides) & {"path", "targets"}
    assert {"seed", "components", "people"} <= set(study.decides)
    assert np.array_equal(study.data(), study.data())
    assert isinstance(pl.DataFrame(pieces), pl.DataFrame)


@pytest.mark.parametrize(("n_targets", "shares"), [(3, [1, 1, 1]), (4, [2, 1, 1]), (5, [2, 2, 1]), (24, [8, 8, 8])])
@pytest.mark.parametrize("name", CABS)
def test_as_many_are_attacked_as_asked_for_in_turns_of_the_mobility_groups(name, n_targets, shares):
    study = STUDIES.get(name)(targets=n_targets, people=24)
    presence = study.data()
    groups = mobility_groups(presence[:, :WEEK])[list(dict.fromkeys(piece.target for piece in study.pieces(presence)))]
    assert np.bincount(groups).tolist() == shares


REDUCED = (
    "conditional_trace",
    "landmark_sets",
    "reconstruction_chain",
    "reconstruction_gowalla",
    "reconstruction_foursquare",
)


@pytest.mark.parametrize("name", REDUCED)
def test_pieces_of_other_studies_are_told_apart_by_what_decides_them(name):
    path = ROOT / "experiments" / f"{name}.yaml"
    study = StudyRun.load(path, reduced=True).config.study
    pieces = study.pieces(study.data())
    assert len({json.dumps(piece) for piece in pieces}) == len(pieces) >= 2
    # What is swept is in the pieces, so that more values add to what is there.
    assert not set(study.decides) & {"path", "sigmas", "sizes", "lengths", "uniform", "own"}
