"""All experiments of a folder, in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from reproductions.__main__ import data_overrides, main
from tests.tools.experiment_cases import BASE, GRID

SMALL = GRID.replace("[1, 9]", "[1]") + "reduced: {seeds: 1}\n"
NEEDS_DATA = """\
name: cabs
question: q
base: base.yaml
set: {source: {type: cabspotting, path: data/cabspotting}}
measures: [mae]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "base.yaml.txt").write_text(BASE)
    return tmp_path


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / "files" / f"{name}.yaml"
    path.write_text(text.replace("base.yaml", "base.yaml.txt"))
    return path


def ran(folder: Path, *words: str) -> int:
    paths = sorted(map(str, (folder / "files").glob("*.yaml")))
    return main([*paths, "--out", str(folder / "out"), "--jobs", "1", *words])


def test_one_that_fails_or_has_no_data_does_not_stop_the_others(folder, capsys, monkeypatch):
    monkeypatch.setenv("PENSTOCK_DATA", str(folder / "nowhere"))
    write(folder, "a_needs_data", NEEDS_DATA)
    write(folder, "b_is_wrong", SMALL.replace("[mae", "[mea"))
    write(folder, "c", SMALL)
    assert ran(folder, "--reduced") == 1
    messages = capsys.readouterr().out
    assert "its data set is not here: data/cabspotting" in messages
    assert "1 done, 1 skipped, 1 FAILED" in messages
    assert (folder / "out" / "e" / "report.html").exists()
    (folder / "files" / "b_is_wrong.yaml").unlink()
    assert ran(folder) == 0
    assert "4 done (2 of them before)" in capsys.readouterr().out


def test_a_part_of_a_data_set_is_found_below_its_folder(folder, monkeypatch):
    monkeypatch.setenv("PENSTOCK_DATA", str(folder / "sets"))
    cabs = write(folder, "cabs", NEEDS_DATA.replace("data/cabspotting", "data/cabspotting/new_e*.txt"))
    (folder / "sets" / "cabspotting").mkdir(parents=True)
    assert data_overrides(cabs) is None
    (folder / "sets" / "cabspotting" / "new_ea.txt").touch()
    assert data_overrides(cabs) == [f"base.source.path={folder / 'sets' / 'cabspotting' / 'new_e*.txt'}"]


def test_what_an_experiment_reads(folder, monkeypatch):
    monkeypatch.setenv("PENSTOCK_DATA", str(folder / "sets"))
    needs = write(folder, "cabs", NEEDS_DATA + "reduced: {set: {source: {type: synthetic, seed: 1}}}\n")
    assert data_overrides(needs) is None
    assert data_overrides(needs, reduced=True) == []
    assert data_overrides(write(folder, "small", SMALL)) == []
    (folder / "sets" / "cabspotting").mkdir(parents=True)
    assert data_overrides(needs) == [f"base.source.path={folder / 'sets' / 'cabspotting'}"]
    (folder / "files" / "data" / "cabspotting").mkdir(parents=True)
    assert data_overrides(needs) == []
