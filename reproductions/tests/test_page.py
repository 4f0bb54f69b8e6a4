"""The generated experiments page, and explanations of every figure that differs from its paper."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from penstock.pipeline.config.yaml import parse, plain
from penstock.pipeline.experiments.config import Expectation
from penstock.pipeline.experiments.results import verdict
from penstock.pipeline.experiments.runner import run_experiment
from reproductions.__main__ import FOLDERS
from reproductions.page import (
    claims_section,
    distant_figures,
    experiments_page,
    papers_section,
    published_figures,
    published_table,
)
from reproductions.saved import RESULTS, ROOT, save, shown_measures, written
from tests.tools.experiment_cases import GRID, experiment_in

FILES = (ROOT / "experiments").glob("sfc_*.yaml")
#: Sweeps; studies have no such tables.
EXPERIMENTS = sorted(path.stem for path in FILES if (RESULTS / path.with_suffix(".csv").name).exists())


def experiment_file(name: str) -> Path:
    return next(path for folder in FOLDERS if (path := folder / f"{name}.yaml").exists())


def index_entries() -> list[dict[str, Any]]:
    papers = plain(parse((ROOT / "papers.yaml").read_text(encoding="utf-8"), "papers.yaml")[0])
    return [entry for paper in papers for entry in paper["figures"]]


def explained(difference: Mapping[str, Any], far: Mapping[tuple[str, str], float]) -> list[tuple[str, str]]:
    """Settings and measures that a difference is about.

    >>> explained({"measures": ["mae"]}, {("a", "mae"): 1.0, ("a", "mre"): 2.0})
    [('a', 'mae')]
    """
    settings = difference.get("settings")
    return [one for one in far if one[1] in difference["measures"] and (not settings or one[0] in settings)]


INDEX = """\
- paper: A 2022
  figures:
    - {figure: 1, shows: this, page: a.md#b, found: so here, verdict: differs}
    - {figure: 2, shows: that, experiment: table}
    - {figure: 3, shows: claims, experiment: claims}
    - {figure: 5, shows: own claims apart, experiment: other}
    - {figure: 6, shows: ours only, experiment: ours}
    - {figure: 4, shows: nothing, found: no data here, verdict: no data}
"""


def test_the_papers_figures_get_the_verdict_of_saved_results(tmp_path):
    (tmp_path / "papers.yaml").write_text(INDEX)
    measured = {"variant": ["a", "b"], "measure": ["mae", "mae"], "mean": [1.0, 5.0]}
    for name in ("table", "claims"):
        pl.DataFrame(measured).write_csv(tmp_path / f"{name}.csv")
    judged = {
        "claims": (["A 2022, table 1", "A 2022"], ["agrees", "agrees"]),
        "other": (["the setting", "A 2022", "B 2014, on other data"], ["agrees", "differs", "differs"]),
        "ours": (["the aim", "the aim"], ["agrees", "differs"]),
    }
    for name, (sources, verdicts) in judged.items():
        pl.DataFrame({"source": sources, "verdict": verdicts}).write_csv(tmp_path / f"{name}-expected.csv")
    published = {"measures": ["mae"], "rows": {"a": [1.09], "b": [9.0]}}
    experiments = {"table": {"published": published}, "claims": {}, "other": {}, "ours": {}}
    lines = papers_section(tmp_path / "papers.yaml", experiments, tmp_path).splitlines()
    assert "* 1: this. **[differs](a.md#b)**: so here" in lines
    assert "* 2: that. **[in part](#table)**: 1 of 2 figures near" in lines
    assert "* 3: claims. [agrees](#claims): 2 of 2 claims agree" in lines
    counts = "Claims of A: 0 of 1 agree, B: 0 of 1, our own: 1 of 1"
    assert f"* 5: own claims apart. **[differs](#other)**: {counts}" in lines
    assert "* 6: ours only. **[in part](#ours)**: 1 of 2 claims agrees" in lines
    assert "* 4: nothing. No data: no data here" in lines


def test_claims_show_their_limits_and_the_interval_of_what_does_not_agree():
    claims = pl.DataFrame(
        {
            "says": ["one", "two", "three", "four"],
            "source": ["A 2022", "A 2022", "the aim", "the aim"],
            "at_least": [0.9, None, 1.0, None],
            "at_most": [1.1, 1.0, None, 1.0],
            "value": [1.0, 1.01, 1.5, 2.0],
            "low": [0.99, 0.99, 1.1, 1.99],
            "high": [1.01, 1.03, 1.9, 2.01],
            "verdict": ["agrees", "too close to tell", "agrees", "differs"],
        }
    )
    experiment = {"expected": [{"source": source, "measure": "mae"} for source in claims["source"]]}
    assert claims_section(claims, experiment) == [
        "Claims of A: 1 of 2 agrees, our own: 1 of 2:",
        "",
        "* **too close to tell**: two (≤ 1): 1.01 [0.99, 1.03]",
        "* **differs**: four (≤ 1): 2",
        "",
    ]
    confirmed: dict[str, Any] = {"expected": experiment["expected"][:1]}
    assert claims_section(claims[:1], confirmed) == ["1 of 1 claims agrees, on mae.", ""]
    assert claims_section(claims[:1], confirmed | {"labels": {"mae": "error"}})[0] == "1 of 1 claims agrees, on error."


def test_a_published_table_has_ours_before_each_figure_and_marks_what_is_far():
    means = {"measure": ["mae", "mae", "f1"], "mean": [1.0, 5.0, 0.5], "variant": ["a", "b", "a"]}
    summary = pl.DataFrame(means).select("variant", "measure", "mean")
    published = {"measures": ["mae", "f1"], "rows": {"a": [1.05, 0.6], "b": [9.0, None], "c": [2.0, 0.1]}}
    assert published_table(summary, published) == [
        "|ours/published|mae|f1|",
        "|-|-|-|",
        "|a|1/1.05|**0.5/0.6**|",
        "|b|**5/9**||",
        "|c|**/2**|**/0.1**|",
        "",
    ]
    second = pl.DataFrame({"variant": ["a, second box"], "measure": ["mae"], "mean": [1.1]})
    both = published_table(pl.concat([summary, second]), published | {"source": "A 2022, as quoted to us"})
    assert both[:3] == ["|ours/second box/quoted|mae|f1|", "|-|-|-|", "|a|1/1.1/1.05|**0.5//0.6**|"]


def test_every_published_figure_stands_on_the_page():
    page = (ROOT / "experiments.md").read_text(encoding="utf-8")
    for name in EXPERIMENTS:
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        for setting, _, figure in published_figures(written(experiment_file(name)).get("published") or {"rows": {}}):
            [row] = [line for line in section.splitlines() if line.startswith(f"|{setting}|")]
            assert f"/{figure:.3g}" in row


CLAIMED = sorted(path.name.removesuffix("-expected.csv") for path in RESULTS.glob("*-expected.csv"))


@pytest.mark.parametrize("name", CLAIMED)
def test_saved_claims_are_those_of_the_experiment_files_with_the_verdict_that_follows(name):
    experiment = written(experiment_file(name))
    saved = pl.read_csv(RESULTS / f"{name}-expected.csv").to_dicts()
    page = (ROOT / "experiments.md").read_text(encoding="utf-8")
    section = " ".join(page.partition(f"\n## {name}\n")[2].partition("\n## ")[0].split())
    assert len(saved) == len(experiment["expected"])
    for row, claim in zip(saved, experiment["expected"], strict=True):
        stated = Expectation(**claim)
        assert (row["says"], row["source"]) == (stated.says, stated.source)
        assert (row["at_least"], row["at_most"]) == (stated.at_least, stated.at_most)
        assert row["verdict"] == verdict(stated, row["value"], row["low"], row["high"])
        assert row["verdict"] == "agrees" or f"* **{row['verdict']}**: {row['says']} (" in section


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_say_why_figures_are_not_the_paper_s(name):
    experiment, results = written(experiment_file(name)), RESULTS
    far = distant_figures(pl.read_csv(results / f"{name}.csv"), experiment.get("published") or {"rows": {}})
    if (results / f"{name}-expected.csv").exists():
        verdicts = pl.read_csv(results / f"{name}-expected.csv")["verdict"].to_list()
        claims = zip(experiment["expected"], verdicts, strict=True)
        far |= {(one["where"]["variant"], one["measure"]): 0.0 for one, verdict in claims if verdict != "agrees"}
    messages = [explained(difference, far) for difference in experiment.get("differences", ())]
    assert all(messages), "a difference that is none any more"
    assert set(far) <= {pair for pairs in messages for pair in pairs}, "figures that differ without a reason"


def test_every_experiment_of_the_index_is_there():
    for entry in index_entries():
        assert {"figure", "shows"} < set(entry)
        if "experiment" not in entry:
            assert "verdict" in entry
            assert {"page", "found"} & set(entry)
        elif (RESULTS / f"{entry['experiment']}.csv").exists():
            assert experiment_file(entry["experiment"]).exists()
        if "page" in entry:
            assert (ROOT / entry["page"].partition("#")[0]).exists()


def test_no_result_has_a_better_verdict_by_hand_than_by_the_claims_of_its_experiment():
    order = ["differs", "in part", "agrees"]
    names = [path.stem for path in (ROOT / "experiments").glob("*.yaml") if path.stem in CLAIMED]
    for name in names:
        index = [one for one in index_entries() if name == one.get("experiment") or f"#{name}" == one.get("page")]
        assert index, f"{name} has claims of a paper, and no entry"
        for entry in index:
            if entry.get("verdict") in order:
                verdicts = pl.read_csv(RESULTS / f"{name}-expected.csv")["verdict"]
                agreed = (verdicts == "agrees").to_list()
                ruled = "agrees" if all(agreed) else "in part" if any(agreed) else "differs"
                assert order.index(entry["verdict"]) <= order.index(ruled), name


EXPECTED = """
expected:
  - says: nine times the budget, a smaller error
    source: arithmetic
    measure: mae
    where: {variant: uniform, "mechanism[0].epsilon": 9}
    over: {"mechanism[0].epsilon": 1}
    at_most: 0.5
  - {says: impossible, source: nobody, measure: mae, where: {variant: uniform}, at_most: -1}
"""


def test_saved_results_become_a_section_of_the_page(tmp_path):
    experiment = experiment_in(tmp_path)(GRID + EXPECTED, "seeds=3")
    folder = run_experiment(experiment, tmp_path / "out", n_jobs=1).folder
    save(folder, tmp_path)
    (tmp_path / "e.yaml").write_text(GRID + EXPECTED)
    (tmp_path / "f.yaml").write_text(GRID.replace("name: e", "name: f"))
    page = experiments_page([tmp_path / "e.yaml", tmp_path / "f.yaml"], tmp_path)
    assert "## e\n\nwhich" in page
    assert "* **differs**: impossible (≤ -1): " in page
    assert "[means](results/e.csv), [claims](results/e-expected.csv)" in " ".join(page.split())
    assert "No full run is saved: [configuration](" in page


def test_what_the_pages_show_is_measured():
    for folder in FOLDERS:
        for path in folder.glob("*.yaml"):
            experiment = written(path)
            if "base" not in experiment:
                continue
            measures = set(experiment["measures"])
            assert set(shown_measures(experiment)) <= measures, path
            assert set((experiment.get("published") or {}).get("measures", ())) <= measures, path
            assert all(set(one["measures"]) <= measures for one in experiment.get("differences") or ()), path
