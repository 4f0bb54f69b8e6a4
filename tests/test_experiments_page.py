"""The generator of the experiments page, and that the experiment files explain every figure that differs."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from experiments_page import differences_table, explained, far_figures, measured, papers_section

from penstock.pipeline.config.yaml import parse, plain

ROOT = Path(__file__).parent.parent
FILES = (ROOT / "configs" / "experiments").glob("sfc_*.yaml")
#: Sweeps; studies have no such tables.
EXPERIMENTS = sorted(path.stem for path in FILES if "\nbase: " in path.read_text(encoding="utf-8"))

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


def test_a_table_of_differences():
    summary = pl.DataFrame({"variant": ["a", "b"], "measure": ["mae"] * 2, "mean": [1.0, 3.14159]})
    experiment = {
        "labels": {"mae": "error"},
        "published": {"measures": ["mae"], "rows": {"a": [1.05], "b": [2.0]}},
        "differences": [
            {"measures": ["mae"], "why": "nobody\nknows"},
            {"measures": ["mae"], "settings": ["a"], "paper": "about 9", "why": "|Y| of it"},
        ],
    }
    assert differences_table(summary, experiment)[4:6] == [
        "| error: b | 2 | 3.14 | nobody knows |",
        "| error: a | about 9 | 1 | \\|Y\\| of it |",
    ]
    assert differences_table(summary, {}) == []


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_say_why_figures_are_not_the_paper_s(name):
    root, _ = parse((ROOT / "configs" / "experiments" / f"{name}.yaml").read_text(encoding="utf-8"), name)
    experiment = plain(root)
    results = ROOT / "docs" / "results"
    far = far_figures(measured(pl.read_csv(results / f"{name}.csv")), experiment.get("published") or {"rows": {}})
    told = [explained(difference, far) for difference in experiment.get("differences", ())]
    assert all(told), "a difference that is none any more"
    about = {pair for pairs in told for pair in pairs}
    assert set(far) <= about, "figures that differ without a reason"
    if (results / f"{name}-expected.csv").exists():
        verdicts = pl.read_csv(results / f"{name}-expected.csv")["verdict"].to_list()
        for claim, verdict in zip(experiment["expected"], verdicts):
            assert verdict == "agrees" or (claim["where"]["variant"], claim["measure"]) in about


def test_every_experiment_of_the_index_is_there():
    papers = plain(parse((ROOT / "docs" / "papers.yaml").read_text(encoding="utf-8"), "papers.yaml")[0])
    entries = [entry for paper in papers for entry in paper["figures"]]
    for entry in entries:
        assert {"figure", "shows"} < set(entry)
        if "experiment" not in entry:
            assert {"found", "verdict"} < set(entry)
        elif (ROOT / "docs" / "results" / f"{entry['experiment']}.csv").exists():
            assert (ROOT / "configs" / "experiments" / f"{entry['experiment']}.yaml").exists()
        if "page" in entry:
            assert (ROOT / "docs" / entry["page"].partition("#")[0]).exists()
