"""Metrics, health and logs of a run, and what they must not reveal."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import disable_created_metrics, generate_latest

from penstock.mechanisms.core.noise_keys import new_key_file
from penstock.mechanisms.core.plugin import ParameterError
from penstock.pipeline.cli.main import main
from penstock.pipeline.config.run import loads
from penstock.pipeline.monitoring import logs, metrics
from penstock.pipeline.monitoring.metrics import (
    MEASURES,
    ROWS,
    WINDOWS,
    Health,
    Listener,
    RunMetrics,
    listening,
    running,
)
from penstock.pipeline.monitoring.server import health_pages, serve, serve_metrics
from penstock.pipeline.run import run
from tests.integration.ports import free_ports
from tests.tools.checkout import ROOT
from tests.tools.small_configuration import small_sections

START = datetime(2024, 1, 1, tzinfo=UTC)
SAMPLE = re.compile(r'(penstock_[a-z_]+)(?:\{([a-z_]+)="([^"\\]*)"\})? (-?[0-9.e+-]+)')
PLANTED = "planted-user-4711"


def samples(text: str) -> dict[tuple[str, str], float]:
    """Parse an exposition strictly: HELP, TYPE and unique samples."""
    actual: dict[tuple[str, str], float] = {}
    declared: dict[str, set[str]] = {}
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("#"):
            _, kind, name, _ = line.split(" ", 3)
            assert kind not in declared.setdefault(name, set())
            declared[name].add(kind)
            continue
        name, _, value, number = SAMPLE.fullmatch(line).groups()
        assert declared[re.sub("_(bucket|sum|count)$", "", name) if name not in declared else name] == {"HELP", "TYPE"}
        assert (name, value or "") not in actual
        actual[name, value or ""] = float(number)
    return actual


@pytest.fixture
def registry() -> Iterator[RunMetrics]:
    """The metrics of the runs of a test."""
    with listening(registry := RunMetrics()):
        yield registry


def exposition(registry: RunMetrics, with_operator: bool) -> str:
    """Text of metrics, as they are served."""
    disable_created_metrics()
    return generate_latest(registry.everything if with_operator else registry.public).decode()


def get(address: str, **headers: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=60) as answer:
        return answer.read().decode()


def status(address: str) -> int:
    try:
        get(address)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
    return 200


def events(n: int, seed: int, user: str = "user") -> list[tuple[str, str, str]]:
    rng = random.Random(seed)
    moments = [START + timedelta(minutes=rng.uniform(-10, 370)) for _ in range(n)]
    rows = [(f"{user}{rng.randrange(30)}", moment.isoformat(), rng.choice("abcz")) for moment in moments]
    return [*rows, (user, "not a time", "a")]


@pytest.mark.parametrize("n_shards", [1, 3])
def test_metrics_agree_with_the_manifest(small_run, registry, n_shards):
    result = small_run(events(500, seed=1), n_shards=n_shards)
    actual = samples(exposition(registry, with_operator=True))
    rows = result.manifest["rows"]
    for outcome in ROWS.values:
        assert actual["penstock_rows_total", outcome] == rows[outcome], outcome
    assert registry.total(ROWS) == rows["rows"] == 501
    assert [actual["penstock_windows_total", action] for action in WINDOWS.values] == [6, 0, 0]
    assert actual["penstock_last_window", ""] == 6
    assert actual["penstock_last_window_end_seconds", ""] == (START + timedelta(hours=6)).timestamp()
    assert actual["penstock_epsilon_total", ""] == pytest.approx(6.0)
    assert actual["penstock_budget_left", ""] == pytest.approx(0.0)
    assert not any(name.startswith("penstock_release_delay") for name, _ in actual)  # there is none in a finite run


def test_a_stream_measures_delays_and_checkpoints(small_run):
    source = {"type": "csv", "path": "", "columns": {"user": "user", "time": "time", "place": "place"}}
    bounds = {"from": "2024-01-01T00:00:00Z", "until": "2024-01-01T06:00:00Z"}
    first = small_run(events(500, seed=1))
    source["path"] = str(first.folder.parent / "events.csv")
    with listening(registry := RunMetrics()):
        result = small_run(source["path"], "stream", source={"type": "stream", "of": source | bounds})
    actual = samples(exposition(registry, with_operator=True))
    assert actual["penstock_rows_total", "used"] == result.manifest["rows"]["used"]
    n = actual["penstock_release_delay_seconds_count", ""]
    assert 1 <= n <= 6
    assert actual["penstock_release_delay_seconds_bucket", "+Inf"] == n
    assert actual["penstock_release_delay_seconds_bucket", "300.0"] == n
    assert 0 < actual["penstock_release_delay_seconds_sum", ""] < 60
    assert actual["penstock_checkpoint_bytes", ""] > 0
    assert abs(actual["penstock_last_checkpoint_seconds", ""] - time.time()) < 60
    assert START.timestamp() <= actual["penstock_latest_event_seconds", ""] < START.timestamp() + 6 * 3600


def test_who_listens_hears_of_the_runs_of_its_block_only(small_run):
    with listening(first := RunMetrics()):
        small_run(events(100, seed=1))
    with listening(second := RunMetrics()):
        small_run(events(50, seed=2))
    assert (first.total(ROWS), second.total(ROWS)) == (101, 51)


class Waiting(Listener):
    """Holds the run that tells it of rows until it may go on."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def record(self, measure, amount, value="") -> None:
        if measure is ROWS:
            self.reached.set()
            assert self.go_on.wait(60)


@pytest.mark.parametrize(("first", "second"), [("local", "direct"), ("direct", "local"), ("direct", "direct")])
def test_two_runs_of_a_process_do_not_hear_each_other(tmp_path, first, second):
    held, registries, healths = Waiting(), (RunMetrics(), RunMetrics()), (Health(), Health())

    def run_one(number: int, runner: str, n_rows: int, *others: Listener) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        sections = small_sections(folder, events(n_rows, seed=number), accountants=[])
        sections["output"] = {"path": str(folder / "out"), "report": False}
        with listening(registries[number], healths[number], *others):
            run(loads(json.dumps(sections)), runner=runner)

    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(run_one, 0, first, 100, held)
        assert held.reached.wait(60)
        threads.submit(run_one, 1, second, 50).result(60)
        seen = registries[0].total(ROWS), registries[0].value(WINDOWS, "published")
        assert [health.state for health in healths] == ["running", "ended"]
        held.go_on.set()
        running.result(60)
    assert seen[0] <= 100
    assert not seen[1]
    assert [registry.total(ROWS) for registry in registries] == [101, 51]
    assert [registry.value(WINDOWS, "published") for registry in registries] == [6, 6]
    assert [health.state for health in healths] == ["ended", "ended"]


def test_pickled_listeners_are_the_same_ones_in_this_process_and_none_in_another():
    with listening(RunMetrics(), Health()):
        carried = pickle.dumps(metrics.current_listeners())
        assert pickle.loads(carried) is metrics.current_listeners()
        assert len(pickle.loads(carried).listeners) == 2
        code = f"import pickle; print(pickle.loads({carried!r}).listeners)"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert other.stdout == "()\n"
    assert pickle.loads(carried).listeners == ()


def test_a_run_that_fails_leaves_the_health_of_another_as_it_is(small_run):
    fine, broken = Health(), Health()

    class Broken(Listener):
        def record(self, measure, amount, value="") -> None:
            raise ZeroDivisionError

    def fail() -> None:
        with listening(broken, Broken()):
            small_run(events(50, seed=1))

    with listening(fine), running():
        with ThreadPoolExecutor(1) as thread, pytest.raises(ZeroDivisionError):
            thread.submit(fail).result(60)
        assert (fine.state, broken.state) == ("running", "failed")


def test_public_measures_do_not_depend_on_the_data(small_run):
    with listening(one := RunMetrics()):
        small_run(events(500, seed=1))
    with listening(other := RunMetrics()):
        small_run(events(90, seed=2))
    public = exposition(one, with_operator=False)
    assert exposition(other, with_operator=False) == public
    assert exposition(other, with_operator=True) != exposition(one, with_operator=True)
    names = {name for name, _ in samples(public)}
    assert names == {f"penstock_{measure.name}" for measure in MEASURES if measure.public}


def test_every_measure_is_explained_with_who_may_see_it():
    page = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `penstock_(\w+)(?:\{\w+\})?` \| (\w+ \| \w+) \|", page, re.MULTILINE))
    assert rows == {m.name: f"{m.kind} | {'everybody' if m.public else 'operator'}" for m in MEASURES}


def test_a_counter_follows_workers_elsewhere_also_when_they_go_back(registry):
    for counted in (7, 12, 5):
        metrics.take_over(ROWS, counted, "used")
        assert registry.value(ROWS, "used") == counted
    assert registry.value(metrics.BUDGET_LEFT) is None  # a gauge that is not set is absent, and raises no alarm
    assert "penstock_budget_left" not in exposition(registry, with_operator=True)


def test_beyond_this_machine_only_public_measures_are_served(small_run):
    with serve_metrics(0) as address:
        small_run(events(100, seed=1))
        assert samples(get(f"{address}/metrics"))["penstock_rows_total", "rejected"] == 1
        with pytest.raises(urllib.error.HTTPError, match="403"):
            get(f"{address}/metrics", Host="penstock.example")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(f"{address}/operator/manifest.json")
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(urllib.request.Request(f"{address}/metrics", b"", method="POST"), timeout=60)
        with urllib.request.urlopen(f"{address}/metrics", timeout=60) as answer:
            assert answer.headers["Cache-Control"] == "no-store"
            assert answer.headers["Content-Type"].startswith("text/plain")
    with serve_metrics(0, "0.0.0.0") as address:
        small_run(events(100, seed=1))
        names = {name for name, _ in samples(get(f"{address.replace('0.0.0.0', '127.0.0.1')}/metrics"))}
    assert "penstock_windows_total" in names
    assert not names & {f"penstock_{measure.name}" for measure in MEASURES if not measure.public}


@pytest.mark.parametrize(("port", "address"), [(70000, "127.0.0.1"), (-1, "127.0.0.1"), (0, "localhost")])
def test_wrong_addresses_are_explained(port, address):
    with (
        pytest.raises(ParameterError, match=r"a port from 0 to 65535|an IP address"),
        serve_metrics(port, address),
    ):
        pass


def test_a_taken_port_is_a_message(tmp_path, capsys):
    config = endless(tmp_path)
    with serve_metrics(0) as address:
        port = address.rpartition(":")[2]
        assert main(["run", str(config), "--metrics-port", port, "--quiet"]) == 1
    words = f"--metrics-port {port}: nothing can be served at this port of 127.0.0.1 (Address already in use); choose"
    assert words in capsys.readouterr().err


def test_beam_counts_the_same(small_run, tmp_path):
    import apache_beam as beam

    from penstock.pipeline.config.plan import make_plan
    from penstock.pipeline.config.run import loads
    from penstock.pipeline.runners.beam import IN_PROCESS
    from penstock.pipeline.runners.beam.graph import build

    first = small_run(events(300, seed=1))
    config = loads(
        json.dumps(
            first.manifest["configuration"] | {"output": {"path": str(tmp_path / "again"), "ledger_source": "events"}}
        )
    )
    pipeline = beam.Pipeline(IN_PROCESS)
    build(pipeline, make_plan(config, tmp_path / "again"))
    result = pipeline.run()
    result.wait_until_finish()
    actual = result.metrics().query(beam.metrics.MetricsFilter().with_namespace("penstock"))
    counters = {entry.key.metric.name: entry.committed for entry in actual["counters"]}
    gauges = {entry.key.metric.name: entry.committed.value for entry in actual["gauges"]}
    rows = first.manifest["rows"]
    assert counters["rows_used"] == rows["used"]
    assert counters["rows_rejected"] == rows["rejected"] == 1
    assert counters["windows_published"] == 6
    assert counters["epsilon_millionths"] == 6_000_000
    assert gauges["last_window"] == 6


def test_health_follows_the_run():
    health = Health()
    assert (health.state, health.live, health.ready) == ("starting", True, False)
    with listening(health), serve(health_pages(health)) as address:
        with running():
            assert json.loads(get(f"{address}/healthz/ready")) == {"state": "running", "live": True, "ready": True}
            metrics.set_state("draining")
            assert (status(f"{address}/healthz/ready"), status(f"{address}/healthz/live")) == (503, 200)
        assert (health.state, status(f"{address}/healthz")) == ("ended", 200)
        with pytest.raises(ZeroDivisionError), running():
            _ = 1 / 0
        assert (health.state, status(f"{address}/healthz/live")) == ("failed", 503)


def test_a_stream_that_gives_no_sign_of_life_is_not_live():
    now = [100.0]
    health = Health(clock=lambda: now[0])
    with listening(health), running():
        now[0] += 1000
        assert health.live  # a finite run gives none
        metrics.beat()
        assert health.ready
        now[0] += 1000
        assert not health.live
        assert not health.ready


def endless(folder: Path) -> Path:
    path = folder / "endless.yaml"
    value = {
        "name": "endless",
        "seed": 3,
        "source": {
            "type": "stream",
            "of": {"type": "synthetic", "n_users": 100, "endless": True},
            "speed": "36000x",
            "checkpoint": "200ms",
        },
        "space": {"type": "grid", "south": 37.74, "north": 37.82, "west": -122.47, "east": -122.37, "rows": 2}
        | {"columns": 2},
        "windows": {"type": "fixed", "size": "1h"},
        "mechanism": {"type": "discrete_laplace", "epsilon": 1.0},
        "output": {"path": str(folder / "out"), "report": False, "ledger_source": "events"},
    }
    path.write_text(json.dumps(value))
    return path


def wait_for(condition, seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return met


def test_a_stream_is_watched_and_drained(tmp_path):
    address = f"http://127.0.0.1:{free_ports(1)[0]}"
    command = [sys.executable, "-m", "penstock.pipeline.cli.main", "run", str(endless(tmp_path)), "--log", "json"]
    command += ["--metrics-port", address.rpartition(":")[2]]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert wait_for(lambda: status(f"{address}/healthz/ready") == 200)

        def counted(name: str, label: str = "") -> float:
            return samples(get(f"{address}/metrics")).get((name, label), 0)

        assert wait_for(lambda: counted("penstock_windows_total", "published") >= 10)
        assert counted("penstock_rows_total", "used") > 0
        # A delay is known once the release is on disk, which is after the window has been counted as released.
        assert wait_for(lambda: counted("penstock_release_delay_seconds_count") > 0)
    finally:
        os.kill(process.pid, signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 4
    message = [json.loads(line) for line in errors.splitlines()]
    names = [entry["event"] for entry in message]
    assert (names[0], names[-1], message[-1]["exit_code"]) == ("run begun", "run ended", 4)
    assert "checkpoint written" in names
    lasts = [entry["last"] for entry in message if entry["event"] == "windows released"]
    assert lasts == sorted(lasts)
    assert lasts[-1] >= 10
    assert all(datetime.fromisoformat(entry["time"]).tzinfo for entry in message)


def test_a_deployment_tells_no_identity(tmp_path, capsys):
    key = tmp_path / "key"
    new_key_file(key)
    lines = ["user,time,place", *(",".join(row) for row in events(200, seed=1, user=PLANTED))]
    (tmp_path / "events.csv").write_text("\n".join(lines) + "\n")
    columns = {"user": "user", "time": "time", "place": "place"}
    bounds = {"from": "2024-01-01T00:00:00Z", "until": "2024-01-01T06:00:00Z"}
    config = {
        "name": "deployed",
        "mode": "deployment",
        "noise_key": str(key),
        "source": {"type": "csv", "path": str(tmp_path / "events.csv"), "columns": columns} | bounds,
        "space": {"type": "places", "list": ["a", "b", "c"], "elsewhere": False},
        "windows": {"type": "fixed", "size": "1h"},
        "mechanism": {"type": "discrete_laplace", "epsilon": 1.0},
        "output": {"path": str(tmp_path / "out"), "ledger_source": "events"},
    }
    (tmp_path / "deployed.yaml").write_text(json.dumps(config))
    with serve_metrics(0) as address:
        assert main(["run", str(tmp_path / "deployed.yaml"), "--log", "json"]) == 0
        messages = get(f"{address}/metrics") + get(f"{address}/healthz")
    shown = capsys.readouterr()
    assert "windows released" in shown.err
    secret = json.loads(key.read_text())["epochs"][0]["secret"]
    for text in (messages, shown.out, shown.err):
        assert PLANTED not in text
        assert secret not in text
    assert "rejected" not in shown.err  # row counts are in the operator's files and on its own machine


def quote() -> None:
    """Raise an error that quotes the row."""
    logging.getLogger("some.library").warning("cannot read %s", PLANTED)
    logging.getLogger("some.library").info("not shown")
    raise ValueError(PLANTED)


@pytest.mark.parametrize("style", ["json", "text"])
def test_other_libraries_are_not_quoted_in_a_deployment(style):
    for deployment in (False, True):
        stream = io.StringIO()
        with pytest.raises(ValueError), logs.logging_to(stream, style, deployment):
            quote()
        message = stream.getvalue().splitlines()
        assert len(message) == 2
        assert (PLANTED in message[0]) is not deployment
        assert "some.library:" in message[0]
        assert "ValueError" in message[1]
        assert PLANTED not in message[1]


def test_nothing_is_logged_unless_asked_for(small_run, caplog, capsys):
    with logs.logging_to(style=None):
        small_run(events(50, seed=1))
    assert capsys.readouterr().err == ""


def test_without_logs_other_libraries_are_quoted_nowhere(tmp_path, capfd):
    """Also by the handler that Python, or Beam on its import, adds where the root logger has none."""
    program = f"""
import logging
logging.getLogger().handlers.clear()
from penstock.pipeline.monitoring.logs import logging_to
with logging_to(style=None, deployment=True):
    import apache_beam
    logging.error("cannot read %s", {PLANTED!r})
    logging.getLogger("apache_beam.runners.worker").error("cannot read %s", {PLANTED!r})
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert PLANTED not in capfd.readouterr().err
