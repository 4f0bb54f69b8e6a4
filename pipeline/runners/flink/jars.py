"""Flink's Java dependencies: Beam's Flink runner and Flink itself, downloaded once with Maven and cached."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import apache_beam

from penstock.mechanisms.core.plugin import ConfigError, DataError

FLINK = "1.19"
#: Versions of Beam's Flink runner that were tested with this one's Python side, the newest that Maven had whole first,
#: with the digest of the names and contents of all jars. The two sides speak a protocol that is stable.
TESTED = {"2.62.0": "c9cddb2b7e87386621f67063232c57af55bbb83bca3c7a783ca0a5810f5a41bf"}
FETCH = "python -m penstock.pipeline.runners.flink.jars"
_MAIN = "org.apache.beam.runners.flink.FlinkJobServerDriver"
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


def versions() -> tuple[str, ...]:
    """Return the usable versions of Beam's Flink runner: the installed Beam's version, then tested ones."""
    return tuple(dict.fromkeys((apache_beam.__version__, *TESTED)))


def folder_of(version: str) -> Path:
    """Return the folder for a version's jars under ``$PENSTOCK_CACHE`` or ``~/.cache/penstock``."""
    cache = os.environ.get("PENSTOCK_CACHE") or Path.home() / ".cache" / "penstock"
    return Path(cache) / f"flink-{FLINK}-beam-{version}"


def version(begun_with: str | None = None) -> str:
    """Return the best fetched version, preferring a job's initial one. Raise `ConfigError` if no jars are fetched."""
    for candidate in filter(None, (begun_with, *versions())):
        if any(folder_of(candidate).glob("beam-runners-flink-*.jar")):
            return candidate
    raise ConfigError((f"--runner flink: {folder_of(versions()[-1])} holds no jars; fetch them with: {FETCH}",))


def class_path(begun_with: str | None = None) -> str:
    """Return the Java class path for a version. Raises `ConfigError` if no jars have been fetched."""
    return f"{folder_of(version(begun_with))}/*"


def server(jar: str | None = None, begun_with: str | None = None) -> tuple[str | None, list[str]]:
    """Return the runner's version (None if a custom jar's name lacks it) and its job server's Java arguments.

    >>> server("/opt/beam-runners-flink-1.19-job-server-2.77.0.jar")
    ('2.77.0', ['-jar', '/opt/beam-runners-flink-1.19-job-server-2.77.0.jar'])
    """
    if jar is None:
        return version(begun_with), ["-cp", class_path(begun_with), _MAIN]
    match = re.search(r"-(\d+\.\d+\.\d+)\.jar$", jar)
    return match and match[1], ["-jar", jar]


def keeps_one_state(version: str) -> bool:
    """Return whether a reader keeps a single state in Flink, as in Beam 2.76 and later, instead of one state per turn.

    https://github.com/apache/beam/pull/39191 is the remedy for https://github.com/apache/beam/issues/27648.

    >>> keeps_one_state("2.62.0"), keeps_one_state("2.76.0")
    (False, True)
    """
    return tuple(map(int, version.split(".")[:2])) >= (2, 76)


def java() -> str:
    """Return the path of the Java command. Raises `ConfigError` if it is missing."""
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not path or not Path(path).exists():
        raise ConfigError(("--runner flink: needs Java 17 (java on the PATH, or JAVA_HOME)",))
    return path


def _copy(folder: Path, version: str) -> None:
    """Use Maven to download the runner, a state backend and a logger with all their dependencies into ``jars``."""
    artifacts = (
        ("org.apache.beam", f"beam-runners-flink-{FLINK}", version),
        ("org.apache.flink", "flink-statebackend-rocksdb", "1.19.0"),
        ("org.slf4j", "slf4j-simple", "1.7.30"),
    )
    entries = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{number}</version></dependency>"
        for group, name, number in artifacts
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


def fetch(*, copy: Callable[[Path, str], None] = _copy, digests: Mapping[str, str] = TESTED) -> Path:
    """Fetch the jars with Maven unless they are cached. Either all of them are stored or none.

    The runner of the installed Beam is taken where Maven has all of it, otherwise the newest of `TESTED`. Raises
    `DataError` if Maven fails, or what it brings of a tested version is not what was tested.
    """
    for number, wanted in enumerate(versions(), start=1):
        folder = folder_of(wanted)
        try:
            if not folder.exists():
                folder.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
                    copy(Path(temporary), wanted)
                    os.replace(Path(temporary) / "jars", folder)
            break
        except DataError:
            if number == len(versions()):
                raise
    if (digest := digest_of(folder)) != digests.get(wanted, digest):
        raise DataError(f"{folder}: these jars are not the ones that were tested (digest {digest})")
    return folder


def digest_of(folder: Path) -> str:
    """Return a digest of the names and contents of a folder's jars."""
    total = hashlib.sha256()
    for jar in sorted(folder.glob("*.jar")):
        total.update(f"{jar.name} {hashlib.sha256(jar.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


if __name__ == "__main__":
    try:
        print(fetch())
    except DataError as error:
        sys.exit(str(error))
