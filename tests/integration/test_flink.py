"""Real Flink, embedded and as a cluster whose processes are killed: what is released is what a local run releases."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.pipeline.config.run import load
from penstock.pipeline.run import run
from tests.integration import flink_runs
from tests.integration.flink_cluster import FlinkCluster, end
from tests.integration.flink_runs import check, goes_on, n_releases, needs_flink, wait_until, words_of

pytestmark = [pytest.mark.integration, needs_flink]

#: How often something is killed.
N_KILLS = int(os.environ.get("PENSTOCK_KILLS", "3"))
#: 60 windows of 10 minutes.
CONFIG = f"""
name: flink
seed: 7
{flink_runs.STREAM}
accountants: [{{type: composition}}, {{type: temporal, correlation: {{estimate: first, windows: 12}}}}]
output: {{path: runs/flink, report: false}}
"""
#: Nobody counts more than five times in two hours.
BOUNDED = (
    "bounding.max_per_period=5",
    "budget_period=2h",
    "landmarks=null",
    "mechanism={type: period_uniform, epsilon: 0.5}",
    "accountants=[{type: composition}]",
)
FINITE = f"source={flink_runs.CITY}"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stream that takes some seconds."""
    path = tmp_path_factory.mktemp("config") / "flink.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def local(config: Path) -> Path:
    """Run the same events locally."""
    folder = config.parent / "local"
    run(load(config, ["source.speed=max"]), folder)
    return folder


_started: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """Kill runs left over by a test."""
    yield
    while _started:
        end(_started.pop())


def start(config: Path, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a run that ends with its test at the latest."""
    driver = flink_runs.start(config, folder, *words)
    _started.append(driver)
    return driver


def test_an_embedded_flink_with_workers_in_the_driver(config: Path, local: Path, tmp_path: Path) -> None:
    assert start(config, tmp_path / "run", "--set", "source.speed=max").wait(240) == 0, words_of(tmp_path / "run")
    check(tmp_path / "run", local)


@pytest.mark.parametrize("source", ["source.speed=max", FINITE])
def test_a_bound_on_a_persons_period_holds(config: Path, tmp_path: Path, source: str) -> None:
    bounded = [source, *BOUNDED]
    run(load(config, bounded), tmp_path / "local")
    words = [word for text in bounded for word in ("--set", text)]
    assert start(config, tmp_path / "run", *words).wait(240) == 0, words_of(tmp_path / "run")
    check(tmp_path / "run", tmp_path / "local")


def test_an_interrupted_run_goes_on_from_its_last_checkpoint(
    config: Path, local: Path, tmp_path: Path, cluster: FlinkCluster
) -> None:
    folder, options = tmp_path / "run", ["--", *cluster.options]
    driver = start(config, folder, *options)
    assert goes_on(folder, driver), words_of(folder)
    driver.send_signal(signal.SIGINT)
    assert driver.wait(120) == 4, words_of(folder)
    assert cluster.jobs() == []
    assert start(config, folder, "--resume", *options).wait(240) == 0, words_of(folder)
    check(folder, local)
    assert cluster.jobs() == []


def test_a_job_that_has_lost_its_driver_makes_room(
    config: Path, local: Path, tmp_path: Path, cluster: FlinkCluster
) -> None:
    folder, options = tmp_path / "run", ["--", *cluster.options, "--checkpointing_interval=1000"]
    driver = start(config, folder, *options)
    assert goes_on(folder, driver), words_of(folder)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    assert len(cluster.jobs()) == 1
    assert start(config, folder, "--resume", *options).wait(240) == 0, words_of(folder)
    check(folder, local)
    assert cluster.jobs() == []


def test_kills(config: Path, local: Path, tmp_path: Path, cluster: FlinkCluster) -> None:
    """Python workers, task managers and the job manager are killed in turn, at random moments of the run."""
    folder, chance = tmp_path / "run", random.Random(N_KILLS)
    # The more kills have to find their place, the slower the windows pass.
    speed = ["--set", f"source.speed={max(60, 3600 // (1 + N_KILLS))}x"]
    options = ["--shards", "2", *speed, "--", *cluster.options, "--checkpointing_interval=1000"]
    driver = start(config, folder, *options)
    for number in range(N_KILLS):
        assert goes_on(folder, driver), words_of(folder)
        time.sleep(chance.uniform(0.0, 1.5))
        driver = kill(number, cluster, driver, (config, folder, *options))
    assert driver.wait(300) == 0, words_of(folder)
    assert "attemptsBeforeResetBackoff=15," in (cluster.folder / "job-manager.log").read_text()
    check(folder, local)
    assert cluster.jobs() == []


def test_a_kill_under_a_bound_on_a_persons_period(config: Path, tmp_path: Path, cluster: FlinkCluster) -> None:
    """The state of the job restores what people have used of their periods."""
    local, folder = tmp_path / "local", tmp_path / "run"
    run(load(config, ["source.speed=max", *BOUNDED]), local)
    words = [word for text in ("source.speed=1800x", *BOUNDED) for word in ("--set", text)]
    options = ["--shards", "2", *words, "--", *cluster.options, "--checkpointing_interval=1000"]
    driver = start(config, folder, *options)
    assert goes_on(folder, driver, 3), words_of(folder)
    kill(1, cluster, driver, (config, folder, *options))
    assert driver.wait(300) == 0, words_of(folder)
    check(folder, local)
    assert cluster.jobs() == []


# It comes back in `test_kills`, too.
@pytest.mark.parametrize("comes_back", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_lost_job_manager_ends_the_driver_and_the_run_is_resumed(
    config: Path, tmp_path: Path, cluster: FlinkCluster, comes_back: bool
) -> None:
    """Without high availability Flink forgets the job; under a bound on a person's period too, nothing else is lost."""
    local, folder = tmp_path / "local", tmp_path / "run"
    run(load(config, ["source.speed=max", *BOUNDED]), local)
    words = [word for text in ("source.speed=1800x", *BOUNDED) for word in ("--set", text)]
    options = ["--shards", "2", *words, "--", *cluster.options, "--checkpointing_interval=1000"]
    driver = start(config, folder, *options)
    assert goes_on(folder, driver, 3), words_of(folder)
    cluster.kill("job-manager")
    lost = time.monotonic()
    if comes_back:
        cluster.start_job_manager()
    code = driver.wait(300)
    print(f"exit code {code} after {time.monotonic() - lost:.0f} s and {n_releases(folder)} windows")
    if not comes_back:
        cluster.start_job_manager()
    cluster.wait_for_slots()
    assert code == 1, words_of(folder)
    assert "--resume goes on" in words_of(folder)
    assert n_releases(folder) < 60
    assert start(config, folder, "--resume", *options).wait(300) == 0, words_of(folder)
    check(folder, local)
    assert cluster.jobs() == []


def kill(number: int, cluster: FlinkCluster, driver: subprocess.Popen[bytes], again: tuple) -> subprocess.Popen[bytes]:
    """Kill the next of the three; without its job manager a run is submitted again, from its latest checkpoint."""
    config, folder, *options = again
    print("kill", ("worker", "task manager", "job manager")[number % 3], "after", n_releases(folder), "windows")
    if number % 3 == 0:
        # What was released last may be the last word of a job that is gone: its successor has no workers yet.
        assert wait_until(lambda: bool(cluster.workers()), 120)
        assert cluster.kill_worker()
    elif number % 3 == 1:
        cluster.kill(f"task-manager-{number // 3 % 2}")
        cluster.start_task_manager(number // 3 % 2)
    else:
        checkpoints = folder / "operator" / "checkpoint" / "flink"
        assert wait_until(lambda: any("_metadata" in names for _, _, names in os.walk(checkpoints)), 60)
        cluster.kill("job-manager")
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        cluster.start_job_manager()
        cluster.wait_for_slots()
        return start(config, folder, "--resume", *options)
    return driver
