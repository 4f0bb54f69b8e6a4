"""The data-protection statement agrees with the published files, and reads no others."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.cli.main import main
from penstock.pipeline.reporting.data import Run
from penstock.pipeline.reporting.data_protection import write_statement
from penstock.pipeline.reporting.page import write_report
from penstock.pipeline.run import run
from tests.tools.checkout import ROOT
from tests.tools.deployments import configured, sections
from tests.tools.report_pages import Text
from tests.tools.report_runs import account, experiment_folder, run_folder, trace_folder


@pytest.fixture(scope="module")
def deployed(tmp_path_factory) -> Path:
    """The folder of a deployment with a bounded period, without its operator's side."""
    folder = tmp_path_factory.mktemp("deployed")
    changes = {"bounding": {"max_cells": 1, "max_per_period": 2}, "budget_period": "1d"}
    changes |= {"mechanism": {"type": "period_uniform", "epsilon": 1.0}, "landmarks": None}
    made = run(configured(sections(folder, **changes)), runner="local").folder
    shutil.rmtree(made / "operator")
    return made


def words(folder: Path) -> str:
    return Text(write_statement(folder).read_text(encoding="utf-8")).text


def plain(text: str) -> str:
    """Markdown without its marks, on one line."""
    return re.sub(r"\s+", " ", re.sub(r"[*`]", "", text)).strip()


def test_a_deployment_says_what_it_promises_to_whom_and_at_what_loss(deployed):
    text = words(deployed)
    assert "penstock · deployment · for the data-protection officer" in text
    assert "A limited promise." in text[:400]
    assert "A simulation" not in text
    for fact in (
        "all of one user's events in a budget period",
        "ε-differential privacy per budget period, with ε = 1 nats",
        "change by a factor of at most 2.72",
        "Dwork, McSherry, Nissim, Smith 2006",
        "period_uniform (epsilon 1.0, noise discrete_laplace)",
        "In 1 cell of a window.",
        "2 memberships (cell × window) in each 1d, the earliest first.",
        "By one release 1 × 2.72 73.2 %",
        "By a day 1 × 2.72 73.2 %",
        "By the whole run 1 × 2.72 73.2 %",
        "loss of a budget period (landmark_budget) 2 nats",
        "drawn from a secret key",
        "none: all of the input is read before it is counted",
        "Data-protection officer",
    ):
        assert fact in text, fact


def test_that_a_release_tells_of_somebody_is_said_unless_empty_ones_are_allowed(deployed, tmp_path):
    message = "that there is a release then reveals that someone was there"
    assert message in words(deployed)
    other = shutil.copytree(deployed, tmp_path / "other")
    manifest = json.loads((other / "public" / "manifest.json").read_text())
    manifest["configuration"]["allow_empty"] = True
    (other / "public" / "manifest.json").write_text(json.dumps(manifest))
    assert message not in words(other)


def test_what_stays_with_the_operator_is_said_of_the_kind_of_run(deployed, tmp_path):
    run_folder(tmp_path)
    assert "operator/ holds true counts, rejected rows and the ledger." in words(tmp_path)
    assert "no true counts are kept" in words(deployed)
    assert "holds true counts" not in words(deployed)


def test_a_look_at_the_data_and_rows_that_are_trips_are_said(deployed, tmp_path, monkeypatch):
    assert "were chosen without looking at the data The choice" in words(deployed)
    other = shutil.copytree(deployed, tmp_path / "other")
    manifest = json.loads((other / "public" / "manifest.json").read_text())
    manifest["configuration"]["looked_at_data"], manifest["distinct_people"] = True, False
    (other / "public" / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(Run, "losses", {"release": 2.0, "day": 2.0, "run": 60.0})
    text = words(other)
    assert "not so: some were taken from the data (looked_at_data) The choice" in text
    assert "Caution. The whole run costs one trip up to" in text


def test_what_to_cite_are_the_digests_of_the_published_files(deployed):
    text = words(deployed)
    for name in ("manifest.json", "releases.parquet", "accounts.parquet", "cells.geojson"):
        digest = hashlib.sha256((deployed / "public" / name).read_bytes()).hexdigest()
        assert f"{name} {digest}" in text
    assert re.search(r"ledger head [0-9a-f]{64}", text)


def test_an_acknowledged_ledger_leaves_the_total_unknown(deployed, tmp_path):
    charged_once = "every release over the same events is charged to one ledger"
    together = "by all runs over the same events"
    text = words(deployed)
    assert charged_once in text
    assert together in text
    assert "the total is unknown" not in (deployed / "public" / "report.html").read_text()
    other = shutil.copytree(deployed, tmp_path / "other")
    manifest = json.loads((other / "public" / "manifest.json").read_text())
    (other / "public" / "manifest.json").write_text(json.dumps(manifest | {"total": "unknown: other ledgers"}))
    text = words(other)
    assert charged_once not in text
    assert together not in text
    assert "who was there throughout, by the runs on this ledger" in text
    assert "the total over all ledgers is unknown" in text
    (page,) = write_report(other)
    assert "the total is unknown" in page.read_text()


def test_nothing_of_the_operator_is_read_or_named(deployed, tmp_path):
    """The fixture has no operator/; with one that says otherwise the page stays the same."""
    expected = write_statement(deployed).read_bytes()
    other = shutil.copytree(deployed, tmp_path / "other")
    (other / "operator").mkdir()
    (other / "operator" / "manifest.json").write_text('{"configuration": "another"}')
    (other / "operator" / "accounts.parquet").write_text("no table")
    assert write_statement(other).read_bytes() == expected
    assert not [fact for fact in ("events.csv", "noise.key", str(deployed.parent)) if fact in expected.decode()]


def test_a_simulation_is_marked_before_anything_else(tmp_path):
    text = words(run_folder(tmp_path, accounts=(account("composition", "user_epsilon", None, 12.0),)))
    assert "A simulation." in text[:200]
    assert "would promise if it were deployed" in text
    assert "anyone who has it can remove all noise" in text
    assert "a whole person, pure (composition) 12 nats one window the whole run final" in text
    assert "By the whole run 3 × 20.1 95.3 %" in text


def test_a_loss_of_other_neighbours_has_another_name_and_its_reason(tmp_path):
    rows = (account("composition", "event_epsilon", None, 4.0), account("composition", "user_epsilon", None, 2.0))
    folder = run_folder(tmp_path, accounts=rows)
    reason = "one window; where a person counts in one cell or bounding chooses among windows, an event that goes"
    name = "one window, or one event changed for another, pure"
    statement, page = words(folder), write_report(folder)[0].read_text(encoding="utf-8")
    assert f"{name} (composition) 4 nats {reason}" in statement
    assert "a whole person, pure (composition) 2 nats one window the whole run" in statement
    assert name in page
    assert reason in page


def test_without_a_guarantee_the_first_line_says_so(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    raw = {"mechanism": {"type": "raw"}, "allow_no_guarantee": True, "landmarks": None, "accountants": []}
    raw["output"] = {"path": str(folder / "out"), "ledger_source": "events"}  # no budget holds an exact release
    text = words(run(configured(sections(folder, **raw)), runner="local").folder)
    assert "No guarantee." in text[:250]
    assert "A limited promise." not in text
    assert "Nothing, to nobody. In force: raw." in text
    assert "What one person loses has no bound" in text


def test_a_lateness_that_others_decide_leaves_no_guarantee(tmp_path):
    lateness = "shared: the latest event moves the clock"
    step = {"mechanism": "laplace", "unit": "u", "neighbours": "n", "theorem": "t"}
    public = {"guarantee": [step | {"guarantee": f"none: lateness is {lateness}"}], "lateness": lateness}
    text = words(run_folder(tmp_path, public=public))
    assert "No guarantee." in text
    assert f"(laplace) (lateness is {lateness})" in text


def test_a_chain_an_unbounded_person_trips_and_an_epsilon_that_promises_nothing(tmp_path):
    step = {"mechanism": "laplace", "guarantee": "ε-differential privacy per window", "unit": "all of it"}
    step |= {"neighbours": "add or remove it", "theorem": "a proof", "measure": "epsilon", "amount": 60.0}
    after = {"mechanism": "filter", "guarantee": "none: the mechanism has no privacy guarantee"}
    after |= {"unit": "-", "neighbours": "-", "theorem": "-"}
    public = {"guarantee": [step, after], "sensitivity": {"max_cells": 4}, "distinct_people": False}
    configuration = {"mechanism": [{"type": "laplace", "epsilon": 60.0}, {"type": "filter"}], "bounding": {}}
    text = words(run_folder(tmp_path, public=public, configuration=configuration))
    assert "So large an ε promises next to nothing." in text
    assert "Further steps (filter) neither add to the promise nor break it" in text
    assert "bounding.max_cells is not set" in text
    assert "Every row or trip, the same to each" in text


def test_traces_and_a_run_that_goes_on(tmp_path):
    traces = words(trace_folder(tmp_path / "traces"))
    assert "Traces of 2 people were released" in traces
    assert "By one point" in traces
    folder = run_folder(tmp_path / "begun")
    for name in ("releases", "accounts"):
        (folder / "public" / f"{name}.parquet").unlink()
    begun = words(folder)
    assert "Nothing has been released yet." in begun
    assert "every figure here is provisional" in begun


def test_it_names_the_adversaries_of_the_security_page_and_what_the_readme_does_not_promise(tmp_path):
    text = words(run_folder(tmp_path))
    security = plain((ROOT / "docs" / "security.md").read_text())
    rows = (ROOT / "docs" / "security.md").read_text().partition("## Adversaries")[2].partition("\n\nTrusted")[0]
    named = [line.split("|")[1].strip() for line in rows.splitlines() if line.startswith("| ")][1:]
    assert len(named) == 5
    for adversary in (*named, "the operator of the broker", "the holders of the noise key"):
        assert adversary in text
        assert adversary.lower() in security.lower()
    bullets = (ROOT / "README.md").read_text().partition("## What it does not protect")[2].partition("\n## ")[0]
    for bullet in bullets.split("\n* ")[1:]:
        assert plain(bullet).partition(" ")[2] in text, bullet


def test_the_command_writes_it_and_an_experiment_has_none(deployed, tmp_path, capsys):
    page = deployed / "public" / "data_protection.html"
    page.unlink(missing_ok=True)
    assert main(["report", str(deployed), "--for", "data-protection"]) == 0
    assert capsys.readouterr().out.split() == [str(page)]
    assert page.is_file()
    with pytest.raises(DataError, match="an experiment publishes nothing"):
        write_statement(experiment_folder(tmp_path))


def test_a_name_never_becomes_markup_and_no_script_may_run(tmp_path):
    page = write_statement(run_folder(tmp_path, public={"name": "<script>alert(1)</script>"})).read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'; style-src 'sha256-" in page
    assert "script-src" not in page


def test_headings_descend_and_every_table_is_named(deployed):
    page = write_statement(deployed).read_text()
    assert re.findall(r"<h(\d)>", page) == ["1", *"2" * 7]
    tables = re.findall(r"<table.*?</table>", page, re.DOTALL)
    assert all("<caption>" in table and "<th" in table for table in tables)
    assert page.count("<th>") == 0
