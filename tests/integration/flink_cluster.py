"""A real Flink on this machine: a job manager, task managers and a pool of Python workers, each a process to kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.pipeline.runners.flink.jars import class_path, folder_of, java, version
from penstock.pipeline.runners.flink.jobs import JAVA_OPTIONS
from tests.integration.ports import free_ports

ROOT = Path(__file__).parents[2]
JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"


class FlinkCluster:
    """A session cluster; everything it starts ends with the block.

    Parameters
    ----------
    folder
        For its configuration, logs and working files.
    n_task_managers, n_slots
        Processes that work, and what each of them can do side by side.
    """

    def __init__(self, folder: Path, n_task_managers: int = 2, n_slots: int = 2) -> None:
        self.folder, self.n_task_managers, self.n_slots = folder, n_task_managers, n_slots
        self.rpc_port, self.rest_port, self.pool_port = free_ports(3)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self._configure()
        self.start_job_manager()
        for number in range(self.n_task_managers):
            self.start_task_manager(number)
        self.start_pool()
        self.wait_for_slots()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            end(process)

    @property
    def options(self) -> list[str]:
        """Return the options that submit a run to this cluster."""
        return [
            f"--flink_master=localhost:{self.rest_port}",
            "--environment_type=EXTERNAL",
            f"--environment_config=localhost:{self.pool_port}",
            # The cluster has all jars; without this they would be sent to it with every job.
            f"--files_to_stage={next(folder_of(version()).glob('slf4j-api-*.jar'))}",
        ]

    def start_job_manager(self) -> None:
        """Start (again) the job manager."""
        self._start_java("job-manager", JOB_MANAGER, "600m")

    def start_task_manager(self, number: int) -> None:
        """Start (again) one of the task managers."""
        self._start_java(f"task-manager-{number}", TASK_MANAGER, "900m")

    def start_pool(self) -> None:
        """Start (again) the pool that starts Python workers when a task manager asks for one."""
        command = [sys.executable, "-m", "penstock.pipeline.runners.beam.pool"]
        self._start("pool", [*command, "--port", str(self.pool_port)])

    def kill(self, name: str) -> None:
        """Kill one of the processes: no time to say goodbye."""
        process = self._processes[name]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def workers(self) -> list[int]:
        """The Python workers of the pool."""
        return children(self._processes["pool"].pid)

    def kill_worker(self) -> bool:
        """Kill a Python worker of the pool, if any."""
        workers = self.workers()
        if workers:
            os.kill(workers[-1], signal.SIGKILL)
        return bool(workers)

    def processes(self) -> dict[str, list[int]]:
        """Numbers of the processes that are alive, by what they are."""
        actual: dict[str, list[int]] = {}
        for name, process in self._processes.items():
            actual.setdefault(name.rstrip("-0123456789"), []).append(process.pid)
        return actual | {"python workers": children(self._processes["pool"].pid)}

    def wait_for_slots(self, seconds: float = 90) -> None:
        """Wait until all task managers have reported."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if self.rest("/overview")["taskmanagers"] >= self.n_task_managers:
                    return
            except OSError:
                pass
            time.sleep(0.3)
        raise TimeoutError(f"no cluster after {seconds} seconds; see {self.folder}/*.log")

    def rest(self, path: str) -> Any:
        """Query the REST service of the job manager."""
        with urllib.request.urlopen(f"http://localhost:{self.rest_port}{path}", timeout=60) as answer:
            return json.load(answer)

    def jobs(self) -> list[str]:
        """Jobs that go on."""
        over = ("CANCELED", "FINISHED", "FAILED")
        return [job["id"] for job in self.rest("/jobs")["jobs"] if job["status"] not in over]

    def _configure(self) -> None:
        network = f"{24 * self.n_slots}m"
        settings: dict[str, Any] = {
            "jobmanager.rpc.address": "localhost",
            "jobmanager.rpc.port": self.rpc_port,
            "jobmanager.bind-host": "localhost",
            "rest.address": "localhost",
            "rest.bind-address": "localhost",
            "rest.port": self.rest_port,
            "taskmanager.host": "localhost",
            "taskmanager.bind-host": "localhost",
            "taskmanager.numberOfTaskSlots": self.n_slots,
            "taskmanager.cpu.cores": 1.0,
            # Flink's start script would work these out.
            "taskmanager.memory.framework.heap.size": "128m",
            "taskmanager.memory.framework.off-heap.size": "64m",
            "taskmanager.memory.jvm-metaspace.size": "256m",
            "taskmanager.memory.jvm-overhead.min": "64m",
            "taskmanager.memory.jvm-overhead.max": "64m",
            "taskmanager.memory.task.heap.size": "384m",
            "taskmanager.memory.task.off-heap.size": "64m",
            "taskmanager.memory.managed.size": "64m",
            # A bounded job sorts what it sends, and waits for ever where there is no room for that.
            "taskmanager.network.sort-shuffle.min-buffers": 64,
            "taskmanager.memory.network.min": network,
            "taskmanager.memory.network.max": network,
            "cluster.evenly-spread-out-slots": "true",
            # Its own jars are those of every job: loaded and compiled once for all of them.
            "classloader.resolve-order": "parent-first",
            # A process that is gone is noticed in seconds; one that is slow on a busy machine is not given up.
            "heartbeat.interval": 1000,
            "heartbeat.timeout": 15000,
            "io.tmp.dirs": self.folder / "tmp",
        }
        (self.folder / "tmp").mkdir(parents=True)
        text = "".join(f"{name}: {value}\n" for name, value in settings.items())
        (self.folder / "flink-conf.yaml").write_text(text)

    def _start_java(self, name: str, main: str, heap: str) -> None:
        command = [
            java(),
            *JAVA_OPTIONS,
            f"-Xmx{heap}",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            class_path(),
            main,
        ]
        self._start(name, [*command, "--configDir", str(self.folder)])

    def _start(self, name: str, command: list[str]) -> None:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True, umask=0o077,
            )  # fmt: skip


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and everything that it has started."""
    for worker in children(process.pid):
        os.kill(worker, signal.SIGKILL)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def children(parent: int) -> list[int]:
    """Processes that a process has started, in the order of their numbers."""
    actual = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        if int(fields[1]) == parent and fields[0] != "Z":
            actual.append(int(stat.parent.name))
    return sorted(actual)
