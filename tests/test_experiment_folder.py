"""All experiments of a folder, and the table of the papers' figures over them."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from experiment_cases import BASE, GRID
from experiments_page import compare, papers_section

from pipeline.cli import main as cli
from pipeline.experiments import __main__ as every
from pipeline.experiments.load import input_of

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
    return every.main([str(folder / "files"), "--out", str(folder / "out"), "--jobs", "1", *words])


def test_one_that_fails_or_has_no_data_does_not_stop_the_others(folder, capsys, monkeypatch):
    monkeypatch.setenv("PENSTOCK_DATA", str(folder / "nowhere"))
    write(folder, "a_needs_data", NEEDS_DATA)
    write(folder, "b_is_wrong", SMALL.replace("[mae", "[mea"))
    write(folder, "c", SMALL)
    assert ran(folder, "--reduced") == 1
    told = capsys.readouterr().out
    assert "its data set is not here: data/cabspotting" in told
    assert "1 done, 1 skipped, 1 FAILED" in told
    assert (folder / "out" / "e" / "report.html").exists()
    (folder / "files" / "b_is_wrong.yaml").unlink()
    assert ran(folder, "--save", str(folder / "saved")) == 0
    assert "4 done (2 of them before)" in capsys.readouterr().out
    assert pl.read_csv(folder / "saved" / "e.csv")["n"].to_list() == [2, 2]


def test_a_reduced_run_never_replaces_a_saved_table(folder, capsys):
    path = write(folder, "c", SMALL)
    (folder / "saved").mkdir()
    (folder / "saved" / "e.csv").write_text("of a full run")
    both = ["--out", str(folder / "out"), "--jobs", "1", "--reduced", "--save", str(folder / "saved")]
    for main, words in ((cli.main, ["experiment", str(path)]), (every.main, [str(path.parent)])):
        with pytest.raises(SystemExit) as ended:
            main(words + both)
        assert ended.value.code == 2
        assert "argument --save: not allowed with argument --reduced" in capsys.readouterr().err
    assert (folder / "saved" / "e.csv").read_text() == "of a full run"
    assert not (folder / "out").exists()


def test_data_sets_are_found_by_their_names(folder, capsys, monkeypatch):
    (folder / "sets" / "cabspotting").mkdir(parents=True)
    monkeypatch.setenv("PENSTOCK_DATA", str(folder / "sets"))
    write(folder, "cabs", NEEDS_DATA)
    assert ran(folder) == 1
    # It is there, and has nothing in it.
    assert "skipped: cabs" not in capsys.readouterr().out


def test_what_an_experiment_reads(folder):
    needs = write(folder, "cabs", NEEDS_DATA + "reduced: {set: {source: {type: synthetic, seed: 1}}}\n")
    assert input_of(needs) == ("base.source.path", "data/cabspotting", False)
    assert input_of(needs, reduced=True) is None
    (folder / "files" / "data" / "cabspotting").mkdir(parents=True)
    assert input_of(needs) == ("base.source.path", "data/cabspotting", True)
    assert input_of(write(folder, "small", SMALL)) is None


INDEX = """\
- paper: A 2022
  figures:
    - {figure: 1, shows: this, page: a.md#b, found: so here, verdict: differs}
    - {figure: 2, shows: that, experiment: table}
    - {figure: 3, shows: claims, experiment: claims}
    - {figure: 4, shows: more, experiment: later}
    - {figure: 5, shows: nothing, found: no data here, verdict: no data}
"""


def test_the_papers_figures_get_the_verdict_of_saved_results(tmp_path):
    (tmp_path / "papers.yaml").write_text(INDEX)
    measured = {"variant": ["a", "b"], "measure": ["mae", "mae"], "mean": [1.0, 5.0]}
    for name in ("table", "claims"):
        pl.DataFrame(measured).write_csv(tmp_path / f"{name}.csv")
    pl.DataFrame({"verdict": ["agrees", "agrees"]}).write_csv(tmp_path / "claims-expected.csv")
    published = {"measures": ["mae"], "rows": {"a": [1.09], "b": [9.0]}}
    experiments = {"table": {"published": published}, "claims": {}, "later": {}}
    lines = papers_section(tmp_path / "papers.yaml", experiments, tmp_path).splitlines()
    assert "| 1 | this | [a.md](a.md#b) | **differs**: so here |" in lines
    assert "| 2 | that | [table](#table) | **in part**: 1 of 2 figures within 10% or 0.02 |" in lines
    assert "| 3 | claims | [claims](#claims) | agrees: 2 claims: agrees |" in lines
    assert "| 4 | more | [later](#later) | not run in full yet |" in lines
    assert "| 5 | nothing | – | no data: no data here |" in lines


def test_a_figure_that_is_missing_is_not_near():
    frame = pl.DataFrame({"variant": ["a"], "measure": ["mae"], "mean": [1.0]})
    assert compare(frame, {"measures": ["mae", "mre"], "rows": {"a": [1.0, None], "b": [1.0, 1.0]}}) == (1, 3)


def test_every_experiment_of_the_index_is_there():
    from pipeline.config.yaml import parse, plain

    root = Path(__file__).parent.parent
    papers = plain(parse((root / "docs" / "papers.yaml").read_text(encoding="utf-8"), "papers.yaml")[0])
    entries = [entry for paper in papers for entry in paper["figures"]]
    for entry in entries:
        assert {"figure", "shows"} < set(entry)
        if "experiment" not in entry:
            assert {"found", "verdict"} < set(entry)
        elif (root / "docs" / "results" / f"{entry['experiment']}.csv").exists():
            assert (root / "configs" / "experiments" / f"{entry['experiment']}.yaml").exists()
        if "page" in entry:
            assert (root / "docs" / entry["page"].partition("#")[0]).exists()
