"""Fuzz targets with a fixed seed (`.ci/fuzz` runs many rounds), and hostile archives by hand."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.sources.reading.inputs import Limits, open_inputs
from tests.tools.checkout import ROOT


def fuzz(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz.run", "--seconds", "60", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_no_target_finds_a_fault_in_its_first_rounds():
    done = fuzz("--seed", "7", "--rounds", "25")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "; 0 faults" in done.stdout


def test_a_fault_is_found_and_can_be_repeated(tmp_path):
    broken = tmp_path / "broken.py"
    code = "import sys\nfrom tests.fuzz import run, targets\n"
    code += "def keys(random_, folder):\n    if random_.random() < 0.2:\n        raise ValueError('a fault')\n"
    broken.write_text(code + "targets.TARGETS['keys'] = keys\nsys.exit(run.main())\n")
    words = [sys.executable, str(broken), "--target", "keys", "--seed", "3"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([*words, "--rounds", "30"], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1
    repeat = next(line for line in done.stdout.splitlines() if line.startswith("to repeat"))
    number = repeat.split("--first ")[1].split()[0]
    words += ["--first", number, "--rounds", "1"]
    again = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert "ValueError: a fault" in again.stderr
    assert "1 faults" in again.stdout


def read(path: Path, limits: Limits = Limits()) -> list[str]:
    names = []
    for name, stream in open_inputs([str(path)], ("*.csv",), limits=limits):
        names.append(name.split("!")[-1])
        while stream.read(1 << 16):
            pass
    return names


SMALL = Limits(1 << 20, 20, 50)


def tar_of(path: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.parametrize("form", ["tar", "tar.gz", "zip"])
def test_members_that_are_small_bombs_share_one_allowance(tmp_path, form):
    members = {f"{i}.csv.gz": gzip.compress(b"x" * (1 << 18)) for i in range(20)}
    path = tmp_path / f"in.{form}"
    if form == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
    else:
        tar_of(path, members, "w:gz" if form == "tar.gz" else "w")
    # Each of them alone is within it.
    assert 1 << 18 < SMALL.free_bytes + SMALL.expansion * path.stat().st_size < 20 << 18
    with pytest.raises(DataError, match="out of proportion"):
        read(path, SMALL)


def test_too_many_members_are_refused(tmp_path):
    with pytest.raises(DataError, match="more than 50 members"):
        read(tar_of(tmp_path / "in.tar", {f"{i}.txt": b"" for i in range(60)}), SMALL)


@pytest.mark.parametrize("name", ["../a.csv", "/a.csv", "b/../../a.csv", "..\\a.csv", "C:/a.csv", "\\a.csv"])
def test_members_that_point_outside_are_refused(tmp_path, name):
    with pytest.raises(DataError, match="points outside the archive"):
        read(tar_of(tmp_path / "in.tar", {name: b"x"}))
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), "x")
    with pytest.raises(DataError, match="points outside the archive"):
        read(tmp_path / "in.zip")


def test_links_and_devices_in_archives_are_not_followed(tmp_path):
    with tarfile.open(tmp_path / "in.tar", "w") as archive:
        for name, kind in (("a.csv", tarfile.SYMTYPE), ("b.csv", tarfile.LNKTYPE), ("c.csv", tarfile.CHRTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        member = tarfile.TarInfo("d.csv")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))
    assert read(tmp_path / "in.tar") == ["d.csv"]


def test_an_archive_in_an_archive_is_not_opened(tmp_path):
    inner = tar_of(tmp_path / "inner.tar", {"a.csv": b"x"}).read_bytes()
    assert read(tar_of(tmp_path / "in.tar", {"inner.tar": inner, "b.csv": b"y"})) == ["b.csv"]
