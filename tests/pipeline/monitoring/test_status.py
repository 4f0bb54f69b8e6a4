"""Monitoring from outside: `penstock status`, alert rules, dashboard."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from penstock.pipeline.cli.inspect import status_lines
from penstock.pipeline.cli.main import main
from penstock.pipeline.config.run import loads
from penstock.pipeline.monitoring import status
from penstock.pipeline.monitoring.metrics import MEASURES
from penstock.pipeline.output.files import LOCK, exclusive_lock
from tests.tools.checkout import ROOT
from tests.tools.listeners import interrupted
from tests.tools.small_configuration import run_locally as run

NINE = datetime(2024, 1, 1, 9, tzinfo=UTC).timestamp()


def configured(folder: Path):
    """A stream of a day that keeps a landmark budget of ε = 8 for landmarks at noon and any one other hour."""
    value = {
        "name": "watched",
        "seed": 3,
        "source": {
            "type": "stream",
            "of": {"type": "synthetic", "n_users": 60, "days": 1, "seed": 1},
            "disorder": "10m",
            "block_rows": 20,
        },
        "space": {"type": "grid", "south": 37.74, "north": 37.82, "west": -122.47, "east": -122.37}
        | {"rows": 2, "columns": 2},
        "windows": {"type": "fixed", "size": "1h"},
        "landmarks": {"windows": [13]},
        "mechanism": {"type": "landmark_uniform", "epsilon": 8.0, "noise": "discrete_laplace"},
        "output": {"path": str(folder / "out"), "report": False},
    }
    return loads(json.dumps(value))


@pytest.fixture
def stopped(tmp_path):
    """Folder of a stream that was stopped as its clock passed ten past nine: nine windows were final by then."""
    with interrupted(lambda _, latest: latest >= NINE + 600):
        result = run(configured(tmp_path))
    assert result.exit_code == 4
    return result


def test_a_folder_says_how_far_its_run_has_come(stopped, capsys):
    actual = status.of_folder(stopped.folder)
    rows = stopped.manifest["rows"]
    assert (actual.state, actual.detail, actual.exit_code) == ("stopped", "--resume continues it", 4)
    assert (actual.released, actual.planned, actual.last_window_end, actual.due) == (9, 24, NINE, 0)
    assert (actual.rows, actual.late) == (rows["rows"], rows["late"])
    assert NINE <= actual.watermark < NINE + 3600
    assert actual.watermark * 1000 % 1 == 0
    assert actual.budget_left == pytest.approx(8.0 - 4.0)
    assert main(["status", str(stopped.folder)]) == 4  # nobody works on it
    printed = capsys.readouterr().out
    assert "9 of 24 windows, the latest until 2024-01-01T09:00:00Z" in printed
    assert "ε 4 left in this period" in printed
    with exclusive_lock(stopped.folder):
        assert status.of_folder(stopped.folder).state == "running"
        assert main(["status", str(stopped.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["released"] == 9


def test_the_lock_of_a_killed_process_holds_nobody(stopped):
    gone = subprocess.Popen(["true"])
    gone.wait()
    from socket import gethostname

    (stopped.folder / LOCK).write_text(f"process {gone.pid} on {gethostname()}\n")
    actual = status.of_folder(stopped.folder)
    assert (actual.state, actual.exit_code) == ("stopped", 1)  # whatever it was before it was continued and killed
    (stopped.folder / LOCK).write_text(f"process {gone.pid} on another machine\n")
    assert status.of_folder(stopped.folder).state == "running"  # nobody here can know better


def test_a_run_that_has_ended_says_so(tmp_path, capsys):
    result = run(configured(tmp_path))
    actual = status.of_folder(result.folder)
    assert (actual.state, actual.detail, actual.released) == ("ended", "exit code 0: done", 24)
    assert actual.rows == result.manifest["rows"]["rows"]
    assert main(["status", str(result.folder)]) == 0
    assert main(["status", str(tmp_path)]) == 1
    assert "no run was begun here" in capsys.readouterr().err


def served() -> set[str]:
    """Names of all series that a run can serve."""
    suffixes = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
    return {f"penstock_{measure.name}{end}" for measure in MEASURES for end in suffixes[measure.kind]}


def rules() -> list[dict]:
    actual = yaml.safe_load((ROOT / "deploy" / "prometheus-alerts.yaml").read_text(encoding="utf-8"))
    return [rule for group in actual["groups"] for rule in group["rules"]]


def dashboard() -> dict:
    return json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text(encoding="utf-8"))


def test_alert_rules_and_the_dashboard_name_series_that_there_are():
    expressions = [rule["expr"] for rule in rules()]
    expressions += [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    named = {name for expression in expressions for name in re.findall(r"penstock_\w+", expression)}
    assert named <= served()
    assert {"penstock_last_window_end_seconds", "penstock_windows_due", "penstock_budget_left"} <= named
    labels = {(label, value) for text in expressions for label, value in re.findall(r'(\w+)="(\w+)"', text)}
    known = {(measure.label, value) for measure in MEASURES for value in measure.values}
    assert labels <= known | {("job", "penstock")}
    assert all(text.count("(") == text.count(")") for text in expressions)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool, which Prometheus comes with")
def test_every_alert_fires_and_none_for_a_run_that_is_well():
    messages = subprocess.run(
        ["promtool", "test", "rules", str(ROOT / "deploy" / "prometheus-alerts-test.yaml")],
        capture_output=True,
        text=True,
    )
    assert messages.returncode == 0, messages.stdout + messages.stderr


def test_rows_of_one_fate_are_held_against_all_of_them():
    """Both sides have other labels, so that without ``ignoring`` they would never meet."""
    for rule in rules():
        if " sum without (fate) " in rule["expr"]:
            assert " ignoring (fate) " in rule["expr"]


def test_every_alert_has_its_place_in_the_runbook():
    page = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    titles = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    for rule in rules():
        file, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert file == "docs/runbook.md"
        assert anchor in anchors
        assert f"`{rule['alert']}`" in page


def test_panels_do_not_overlap_and_have_numbers_of_their_own():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24


def test_the_compose_file_has_the_versions_that_were_run_and_the_paths_that_all_share():
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))["services"]
    broker = (ROOT / "tests" / "integration" / "kafka_broker.py").read_text(encoding="utf-8")
    jars = (ROOT / "penstock" / "pipeline" / "runners" / "flink" / "jars.py").read_text(encoding="utf-8")
    assert services["broker"]["image"].split(":")[1] == re.search('^VERSION = "(.+)"', broker, re.MULTILINE)[1]
    flink = re.search('^FLINK = "(.+)"', jars, re.MULTILINE)[1]
    assert {services[name]["image"] for name in ("jobmanager", "taskmanager")} == {f"flink:{flink}-java17"}
    assert services["broker"]["environment"]["KAFKA_LOG_MESSAGE_TIMESTAMP_TYPE"] == "LogAppendTime"
    shared = [services[name]["volumes"] for name in ("jobmanager", "taskmanager", "workers", "job", "resumed")]
    assert all(volumes == shared[0] for volumes in shared)
    begun, resumed = services["job"]["command"], services["resumed"]["command"]
    assert [word for word in resumed if word != "--resume"] == begun
    assert all("noise.key" in services[name]["secrets"] for name in ("workers", "job", "resumed"))


def test_a_run_without_a_release_says_so():
    assert status_lines(status.Status(state="running", planned=18), 0.0)[1] == "released   nothing yet of 18 windows"
    assert status_lines(status.Status(state="starting"), 0.0)[1:] == ["released   nothing yet"]
