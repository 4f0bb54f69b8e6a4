"""Runs on a file system in memory that is full, then read-only, then large enough."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.pipeline.config.run import loads
from penstock.pipeline.run import run
from tests.tools.ledgers import windows_in

N_WINDOWS = 48
#: A window is released with every piece that is read, so that the run takes the same room on any machine.
CONFIG = """
name: disk
seed: 7
source:
  type: stream
  checkpoint: 1h
  of: {type: csv, path: EVENTS, columns: {user: user, time: time, place: place}, block_rows: 40,
       time_format: unix_s, from: 2024-01-01T00:00:00Z, until: 2024-01-03T00:00:00Z}
space: {type: places, list: [a, b, c], elsewhere: false}
windows: {type: fixed, size: 1h}
bounding: {max_cells: 2}
mechanism: {type: discrete_laplace, epsilon: 0.5}
accountants: [{type: composition}]
output: {path: unused, report: false}
"""
SAME = ("public/releases.parquet", "public/accounts.parquet", "operator/truth.parquet", "operator/ledger")

#: Mounts a file system of $3 in the folder $1, and lets $2, a Python, begin a run there and go on with it.
STEPS = """
mount -t tmpfs -o size=$3 none "$1/disk" || exit 1
for step in full read-only large; do
    case $step in
        read-only) mount -o remount,ro "$1/disk" || exit 1 ;;
        large) mount -o remount,rw,size=64m "$1/disk" || exit 1 ;;
    esac
    [ $step = full ] && resume= || resume=--resume
    "$2" -m penstock.pipeline.cli.main run "$1/disk.yaml" --out "$1/disk/out" --quiet $resume 2>"$1/$step.said"
    echo $? >"$1/$step.code"
    wc -l <"$1/disk/out/operator/ledger" >"$1/$step.charged"
done
cp -a "$1/disk/out" "$1/out"
"""


def may_mount() -> bool:
    """Return whether this user may mount a file system."""
    try:
        words = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
        return subprocess.run(words, capture_output=True, timeout=30).returncode == 0
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not may_mount(), reason="nobody may mount a file system here")
def test_a_full_and_a_read_only_disk_lose_nothing(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    rows = [f"{n % 13},{1_704_067_200 + 90 * n},{'abc'[n % 3]}" for n in range(40 * N_WINDOWS)]
    (tmp_path / "events.csv").write_text("\n".join(["user,time,place", *rows]) + "\n")
    text = CONFIG.replace("EVENTS", str(tmp_path / "events.csv"))
    (tmp_path / "disk.yaml").write_text(text)
    words = ["unshare", "-m", "bash", "-c", STEPS, "bash", str(tmp_path), sys.executable, "500k"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr

    def of(kind: str) -> list[str]:
        return [(tmp_path / f"{step}.{kind}").read_text().strip() for step in ("full", "read-only", "large")]

    assert of("code") == ["1", "1", "0"], of("said")
    assert "No space left on device; nothing is lost" in of("said")[0]
    assert "Read-only file system" in of("said")[1]
    full, read_only, large = map(int, of("charged"))
    assert 0 < full == read_only < large
    alone = tmp_path / "alone"
    run(loads(text), alone)
    for name in SAME:
        assert (tmp_path / "out" / name).read_bytes() == (alone / name).read_bytes(), name
    assert windows_in(tmp_path / "out") == list(range(1, N_WINDOWS + 1))
