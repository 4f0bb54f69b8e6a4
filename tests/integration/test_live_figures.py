"""While a stream runs, on each runner: every figure of dashboard and alerts is served, ports are on loopback, and files
of the operator are its owner's.
"""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from tests.integration.flink_cluster import ROOT, FlinkCluster
from tests.integration.flink_runs import needs_flink, running, wait_until, words_of
from tests.integration.ports import descendants, free_ports, open_to_others
from tests.integration.test_flink import config
from tests.integration.test_prism import LOCATION, needs_prism
from tests.tools.deployments import accessible_to_others

pytestmark = pytest.mark.integration
__all__ = ["config"]
#: A budget of which something is left.
LANDMARKS = (
    "landmarks={recurring: [Mon-Sun 00:00-24:00]}",
    "budget_period=2h",
    "mechanism={type: landmark_uniform, epsilon: 0.5}",
    "accountants=[{type: landmark_budget}]",
)


def with_labels(text: str) -> set[str]:
    """Series in a query or a page of metrics, each by its name alone and with each label that has one value."""
    series = set[str]()
    for name, labels in re.findall(r"(penstock_\w+)(?:\{([^}]*)\})?", text):
        series |= {name, *(f"{name}{{{label}}}" for label in re.findall(r'\w+="[^"]*"', labels))}
    return series


def asked() -> set[str]:
    """Series that the dashboard and the alert rules name, and the values of labels that they ask for."""
    dashboard = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text(encoding="utf-8"))
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus-alerts.yaml").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return with_labels(" ".join(expressions))


def looked_at(
    config: Path,
    folder: Path,
    words: tuple[str, ...],
    missing: frozenset[str] = frozenset(),
    others: Sequence[int] = (),
) -> tuple[set[str], set[str]]:
    """Run until everything but ``missing`` has been served with a value.

    Returns the series that were not served, and which of the driver's processes and ``others`` listen beyond loopback.
    """
    (port,) = free_ports(1)
    budget = [word for text in LANDMARKS for word in ("--set", text)]
    series = set[str]()

    def all_served() -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
            lines = page.read().decode().splitlines()
            series.update(with_labels("\n".join(line for line in lines if line.startswith("penstock_"))))
        return asked() - missing <= series or driver.poll() is not None

    with running(config, folder, "--metrics-port", str(port), *budget, *words) as driver:
        wait_until(all_served, 300)
        listening = open_to_others([driver.pid, *descendants(driver.pid), *others])
        assert accessible_to_others(folder / "operator") == []
        if driver.poll() is None:
            driver.send_signal(signal.SIGINT)
            assert driver.wait(120) == 4, words_of(folder)
        print(words_of(folder))
    return asked() - series, listening


def test_of_the_plain_loop(config: Path, tmp_path: Path) -> None:
    assert looked_at(config, tmp_path / "run", ("--runner", "local")) == (set(), set())


@needs_prism
def test_prism_serves_every_figure_but_those_of_checkpoints(config: Path, tmp_path: Path) -> None:
    """Prism keeps no checkpoints."""
    missing = frozenset({"penstock_checkpoint_bytes", "penstock_last_checkpoint_seconds"})
    unserved, listening = looked_at(config, tmp_path / "run", ("--runner", "prism", *LOCATION), missing)
    assert unserved <= missing
    assert listening <= {"prism"}  # as docs/security.md says


@needs_flink
def test_of_an_embedded_flink(config: Path, tmp_path: Path) -> None:
    unserved, listening = looked_at(config, tmp_path / "run", ("--", "--checkpointing_interval=1000"))
    assert unserved == set()
    assert listening <= {"java"}


@needs_flink
def test_of_a_cluster(config: Path, tmp_path: Path) -> None:
    with FlinkCluster(tmp_path / "cluster", n_task_managers=1) as cluster:
        words = ("--", *cluster.options, "--parallelism=1", "--checkpointing_interval=1000")
        listening = cluster.processes()
        assert open_to_others([*listening["job-manager"], *listening["task-manager"], *listening["pool"]]) == set()
        # Task managers hold services for workers once they have a job, on all interfaces.
        unserved, is_open = looked_at(config, tmp_path / "run", words, others=listening["pool"])
        assert unserved == set()
        assert is_open <= {"java"}
