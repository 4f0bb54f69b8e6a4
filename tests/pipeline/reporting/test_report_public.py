"""Pages of a deployment: a public one from published files alone, and an operator's one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from penstock.pipeline.cli.main import main
from penstock.pipeline.reporting.live import watch
from penstock.pipeline.reporting.page import write_report
from tests.tools.deployments import configured, sections
from tests.tools.report_pages import Text, data
from tests.tools.report_runs import run_folder
from tests.tools.small_configuration import run_locally as run


@pytest.fixture(scope="module")
def deployed(tmp_path_factory) -> Path:
    return run(configured(sections(tmp_path_factory.mktemp("deployed"))), runner="local").folder


def pages(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html"))


def test_a_deployment_writes_one_page_to_publish_and_one_for_the_operator(deployed):
    assert pages(deployed) == ["operator/report.html", "public/report.html"]
    private = Text((deployed / "operator" / "report.html").read_text()).text
    assert "for the operator only" in private
    assert "Danger: not for publication." in private
    assert "8 rows = 6 used" in private
    public = Text((deployed / "public" / "report.html").read_text()).text
    assert "made from the published files only" in public
    assert "not for publication" not in public


def test_nothing_of_the_operator_is_on_the_public_page(deployed):
    page = (deployed / "public" / "report.html").read_text()
    manifest = json.loads((deployed / "operator" / "manifest.json").read_text())
    private = [
        manifest["noise"]["key"],
        str(deployed.parent),
        "events.csv",
        "noise.key",
        "rejected",
        *manifest["inputs"].values(),
    ]
    assert not [fact for fact in private if fact in page]
    operator = (deployed / "operator" / "report.html").read_text()
    assert [fact for fact in private if fact in operator] == private


def test_the_public_page_is_a_function_of_the_published_files(deployed, tmp_path):
    """Also where nothing else is at hand, and whatever else is."""
    shutil.copytree(deployed / "public", tmp_path / "copy" / "public")
    (tmp_path / "copy" / "public" / "report.html").unlink()
    assert write_report(tmp_path / "copy") == [tmp_path / "copy" / "public" / "report.html"]
    assert pages(tmp_path / "copy") == ["public/report.html"]
    expected = (deployed / "public" / "report.html").read_bytes()
    assert (tmp_path / "copy" / "public" / "report.html").read_bytes() == expected
    shutil.copytree(deployed, tmp_path / "other")
    manifest = json.loads((tmp_path / "other" / "operator" / "manifest.json").read_text())
    manifest["rows"] |= {"rows": 10**9, "used": 10**9}
    (tmp_path / "other" / "operator" / "manifest.json").write_text(json.dumps(manifest))
    books = pl.read_parquet(deployed / "public" / "accounts.parquet").with_columns(subject=pl.lit("a person"))
    books.write_parquet(tmp_path / "other" / "operator" / "accounts.parquet")
    write_report(tmp_path / "other")
    assert "a person" in (tmp_path / "other" / "operator" / "report.html").read_text()
    assert (tmp_path / "other" / "public" / "report.html").read_bytes() == expected


def test_a_page_reads_no_file_that_the_configuration_names(tmp_path):
    """A map from a stations file would differ from what a reader of the published files can make."""
    stations = tmp_path / "stations.csv"
    stations.write_text("station,latitude,longitude\na,1.0,2.0\nb,1.0,3.0\n")
    deployment = {"mode": "deployment", "space": {"type": "stations", "file": str(stations), "radius": 100}}
    folder = run_folder(
        tmp_path / "run", cells=("a", "b"), truth=False, public={"mode": "deployment"}, configuration=deployment
    )
    assert [data(path.read_text())["geometry"] for path in write_report(folder)] == [None, None]


def test_the_command_names_both_pages(deployed, tmp_path, capsys):
    folder = shutil.copytree(deployed, tmp_path / "run")
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.split() == [str(folder / side / "report.html") for side in ("operator", "public")]
    assert not (folder / "report.html").exists()


def test_a_deployment_is_watched_on_the_operators_page(deployed):
    import urllib.request

    with watch(deployed) as address, urllib.request.urlopen(address, timeout=10) as answer:
        assert "for the operator only" in answer.read().decode()
