"""Figures for a paper: tidy rows that name their seed, a LaTeX table, and the citation."""

from __future__ import annotations

import polars as pl
import yaml

import penstock
from penstock.pipeline.cli.main import main
from penstock.pipeline.reporting.data import citation
from penstock.pipeline.reporting.page import write_report
from penstock.pipeline.reporting.result import Result
from tests.tools.checkout import ROOT
from tests.tools.report_runs import account, experiment_folder, run_folder


def test_every_figure_of_a_run_names_what_decides_it(tmp_path):
    run_folder(tmp_path, accounts=(account("composition", "user_epsilon", None, 2.5, status="final"),))
    figures = Result(tmp_path).figures
    assert figures.select("kind", "measure", "value", "unit").rows() == [
        ("utility", "kendall_tau", 1.0, ""),
        ("account", "user_epsilon", 2.5, "nats"),
    ]
    assert figures.select("name", "version", "configuration", "seed").unique().rows() == [
        ("by-hand", "0.1.0", "0" * 64, "3")
    ]


def test_an_experiment_names_all_of_its_seeds(tmp_path):
    folder = experiment_folder(tmp_path, configuration={"base": {}, "seeds": 3}, not_drawn="no library")
    assert Result(folder).figures["seed"].unique().to_list() == ["1 to 3"]
    assert "seeds 1 to 3" in citation("x", {"versions": {}, "configuration": {"seeds": 3}})
    [page] = write_report(folder)
    assert "no library" in page.read_text(encoding="utf-8")


def test_a_report_for_a_paper_is_a_table_in_csv_and_latex(tmp_path, capsys):
    folder = experiment_folder(tmp_path)
    assert main(["report", str(folder), "--for", "paper"]) == 0
    assert capsys.readouterr().out.split() == [
        str(folder / name) for name in ("figures.csv", "figures.tex", "citation.bib")
    ]
    frame = pl.read_csv(folder / "figures.csv")
    assert frame.columns[:7] == ["variant", "epsilon", "measure", "value", "low", "high", "unit"]
    assert frame["value"].to_list() == [0.8, 3.0, 0.9, None]
    table = (folder / "figures.tex").read_text(encoding="utf-8")
    assert r"uniform & 1 & hotspot\_f1 & 0.8 & 0.7 & 0.9 &  \\" in table
    assert "version = {0.1.0}" in (folder / "citation.bib").read_text(encoding="utf-8")


def test_figures_of_a_deployment_stay_with_the_operator(tmp_path):
    run_folder(tmp_path, public={"mode": "deployment"})
    assert main(["report", str(tmp_path), "--for", "paper", "--json"]) == 0
    assert (tmp_path / "operator" / "figures.csv").is_file()
    assert not list(tmp_path.glob("figures*")) + list((tmp_path / "public").glob("figures*"))


def test_the_citation_has_the_title_and_authors_of_the_project():
    project = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert project["version"] == penstock.__version__
    entry = citation("x", {"versions": {"penstock": project["version"]}, "configuration_digest": "1"})
    title, author = project["title"].removeprefix("penstock"), project["authors"][0]["name"]
    assert f"{{penstock}}{title}}}" in entry
    assert f"author = {{{{{author}}}}}" in entry
    assert f"version = {{{project['version']}}}" in entry
