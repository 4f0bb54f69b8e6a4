"""A real Kafka broker for tests: one node in KRaft mode, from Maven Central's artefacts, without a container.

``python -m tests.integration.kafka_broker`` fetches what it needs, runs a broker until Ctrl-C and prints its address;
with ``--fetch`` it only fetches. Needs ``java`` (17 or newer) and, the first time, ``mvn``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.integration.ports import free_ports

VERSION = "3.9.1"
_SECONDS = 120.0

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock.tests</groupId><artifactId>kafka-broker</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
"""

_SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listeners={listeners},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={listeners}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL
log.dirs={folder}/data
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
"""


def cache() -> Path:
    """Return the cache folder."""
    return Path(os.environ.get("PENSTOCK_CACHE", Path.home() / ".cache" / "penstock"))


def missing() -> str | None:
    """Return the missing prerequisites of a broker, if any."""
    for command in ("java", "mvn"):
        if shutil.which(command) is None:
            return f"{command} is not installed"
    return None


def fetch() -> Path:
    """Fetch the broker's jars with Maven unless cached."""
    folder = cache() / f"kafka-{VERSION}"
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        (Path(work) / "pom.xml").write_text(_POM)
        copy = ["dependency:copy-dependencies", f"-DoutputDirectory={work}/jars", "-DincludeScope=runtime"]
        subprocess.run(["mvn", "-q", "-B", *copy], cwd=work, check=True, timeout=600)
        os.replace(Path(work) / "jars", folder)
    return folder


class Broker:
    """One broker, whose data live in a folder: it can be stopped and started again.

    Parameters
    ----------
    folder
        For settings, data and the log.
    settings
        Further settings, a line each; may add a listener ``SASL_SSL`` on `secure_port`.
    secure
        Whether to listen on `secure_port` with SASL over TLS as well; ``settings`` say with which certificate.
    """

    def __init__(self, folder: Path, settings: str = "", secure: bool = False) -> None:
        self.folder = folder
        self.port, controller, self.secure_port = free_ports(3)
        listeners = f"PLAINTEXT://127.0.0.1:{self.port}"
        if secure:
            listeners += f",SASL_SSL://localhost:{self.secure_port}"
        folder.mkdir(parents=True, exist_ok=True)
        text = _SETTINGS.format(listeners=listeners, controller=controller, folder=folder)
        (folder / "server.properties").write_text(text + settings)
        self._process: subprocess.Popen[bytes] | None = None
        self._java("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", self._settings).wait()

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """Bootstrap address of the broker."""
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """Log of the broker."""
        return self.folder / "broker.log"

    def start(self) -> None:
        """Start it and wait until it answers."""
        printed_before = self.log.stat().st_size
        self._process = self._java("kafka.Kafka", self._settings)
        until = time.monotonic() + _SECONDS
        while b"Kafka Server started" not in self.log.read_bytes()[printed_before:]:
            if self._process.poll() is not None or time.monotonic() > until:
                printed = self.log.read_text()
                self.stop()
                raise RuntimeError(f"the broker did not start:\n{printed[-4000:]}")
            time.sleep(0.1)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Stop the broker and keep its data."""
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    @property
    def _settings(self) -> str:
        return str(self.folder / "server.properties")

    def _java(self, *arguments: str) -> subprocess.Popen[bytes]:
        options = ["-Xmx512m", "-XX:+UseSerialGC"]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                ["java", *options, "-cp", f"{fetch()}/*", *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def wait_for(
    condition: Callable[[], bool], process: subprocess.Popen[bytes] | None = None, seconds: float = 60
) -> None:
    """Wait until something holds, while a process is alive."""
    until = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, "the process has ended"
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


def main() -> int:
    """Run a broker by hand."""
    fetch()
    if "--fetch" in sys.argv[1:]:
        return 0
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder)) as broker:
        print(broker.address, flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


if __name__ == "__main__":
    sys.exit(main())
