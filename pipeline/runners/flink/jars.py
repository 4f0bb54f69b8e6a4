"""The Java side of Flink: Beam's Flink runner and Flink itself, fetched once with Maven into a cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from penstock.mechanisms.core.plugin import ConfigError, DataError

#: What is fetched. Flink and the runner have to fit each other; the Python side speaks a protocol that is stable.
FLINK, RUNNER = "1.19", "2.62.0"
ARTIFACTS = (
    ("org.apache.beam", f"beam-runners-flink-{FLINK}", RUNNER),
    ("org.apache.flink", "flink-statebackend-rocksdb", "1.19.0"),
    ("org.slf4j", "slf4j-simple", "1.7.30"),
)
#: Digest of the names and contents of all jars.
DIGEST = "f3116bfc1c4c48d203f233fe2b41b208a46312f1d26fe9da47fab4b8b3f77a57"
FETCH = "python -m penstock.pipeline.runners.flink.jars"
#: What keeps the rest that a reader leaves for its next turn. It would keep each under a new name, and Flink holds
#: every name for ever (https://github.com/apache/beam/issues/27648): kilobytes a turn, until checkpoints fail. A reader
#: has one rest at a time, so one name is enough: ``this.idGenerator.getId()`` becomes a constant and seven no-ops.
_HANDLER = (
    "org/apache/beam/runners/fnexecution/control/BundleCheckpointHandlers$StateAndTimerBundleCheckpointHandler.class"
)
_NEW_NAME, _ONE_NAME = bytes.fromhex("2ab40003b900120100"), bytes.fromhex("1209") + bytes(7)
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


def jars_folder() -> Path:
    """Where the jars are kept: below ``$PENSTOCK_CACHE``, or ``~/.cache/penstock``."""
    cache = os.environ.get("PENSTOCK_CACHE") or Path.home() / ".cache" / "penstock"
    return Path(cache) / f"flink-{FLINK}-beam-{RUNNER}-one-name"


def class_path() -> str:
    """The jars as Java wants them; raises `ConfigError` where they have not been fetched."""
    folder = jars_folder()
    if not any(folder.glob("beam-runners-flink-*.jar")):
        raise ConfigError((f"--runner flink: {folder} holds no jars; fetch them with: {FETCH}",))
    return f"{folder}/*"


def java() -> str:
    """The Java command; raises `ConfigError` where there is none."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not found or not Path(found).exists():
        raise ConfigError(("--runner flink: needs Java 17 (java on the PATH, or JAVA_HOME)",))
    return found


def fetch() -> Path:
    """Fetch the jars with Maven, unless they are there, and check them; they appear together or not at all.

    Raises
    ------
    DataError
        If Maven fails, or what it brings is not what was tested.
    """
    folder = jars_folder()
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            _copy(Path(temporary))
            keep_one_name(Path(temporary) / "jars")
            os.replace(Path(temporary) / "jars", folder)
    if (found := digest_of(folder)) != DIGEST:
        raise DataError(f"{folder}: these jars are not the ones that were tested (digest {found})")
    return folder


def keep_one_name(folder: Path) -> None:
    """Let the runner keep what readers leave for their next turn under one name (see `_HANDLER`)."""
    path = folder / f"beam-runners-java-fn-execution-{RUNNER}.jar"
    with zipfile.ZipFile(path) as jar:
        members = [(info, jar.read(info)) for info in jar.infolist()]
    with zipfile.ZipFile(path, "w") as jar:
        for info, data in members:
            info.compress_type = zipfile.ZIP_STORED  # the same bytes whatever would compress here
            jar.writestr(info, data.replace(_NEW_NAME, _ONE_NAME) if info.filename == _HANDLER else data)


def digest_of(folder: Path) -> str:
    """Digest of the names and contents of the jars of a folder."""
    total = hashlib.sha256()
    for jar in sorted(folder.glob("*.jar")):
        total.update(f"{jar.name} {hashlib.sha256(jar.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def _copy(folder: Path) -> None:
    entries = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in ARTIFACTS
    )
    (folder / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>penstock</groupId><artifactId>flink</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{entries}</dependencies></project>\n"
    )
    command = ["mvn", "-q", "-B", "-C", "-f", str(folder / "pom.xml"), _PLUGIN]
    command += ["-DoutputDirectory=" + str(folder / "jars"), "-DincludeScope=runtime"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise DataError("mvn is not installed; the jars of Flink are fetched with Maven") from None
    if done.returncode:
        raise DataError("Maven could not fetch Flink:\n" + (done.stdout + done.stderr)[-2000:])


if __name__ == "__main__":
    try:
        print(fetch())
    except DataError as error:
        sys.exit(str(error))
