"""Public outputs have the same shape for any data: files, rows, order, earliest times."""

from __future__ import annotations

import json
import time
from pathlib import Path

import polars as pl
import pytest

from penstock.mechanisms.core.plugin import ConfigError
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.output import files
from penstock.pipeline.output.writer import RunWriter
from penstock.pipeline.runners.local import StreamLoop
from tests.tools.deployments import configured, sections
from tests.tools.small_configuration import run_locally as run

#: But for one person, without whom nothing would be released at all (`allow_empty`).
PLACEHOLDERS = "user,time,latitude,longitude\nx,2024-01-01T00:10:00Z,37.75,-122.45\n"
CROWD = "user,time,latitude,longitude\n" + "".join(
    f"u{i},2024-01-01T0{i % 6}:{i % 60:02d}:00Z,37.7{i % 9},-122.4{i % 9}\n" for i in range(300)
)


def released(tmp_path: Path, name: str, events: str, changes: dict, stream: bool) -> Path:
    value = sections(tmp_path) | changes
    (tmp_path / "events.csv").write_text(events)
    if stream:
        value["source"]["columns"] |= {"arrival": "time"}
        value["source"] = {"type": "stream", "of": value["source"], "order": "arrival"}
    return run(configured(value), tmp_path / name).folder / "public"


MECHANISMS = [
    {"type": "landmark_uniform", "epsilon": 1.0},
    {"type": "landmark_skip", "epsilon": 1.0},
    {"type": "w_event_sample", "epsilon": 1.0, "w": 2},
    {"type": "discrete_gaussian", "rho": 0.5},
    [{"type": "sampling", "rate": 0.5}, {"type": "discrete_laplace", "epsilon": 1.0}],
    [{"type": "temporal_generalization", "windows": 2}, {"type": "discrete_laplace", "epsilon": 1.0}],
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: (m[0] if isinstance(m, list) else m)["type"])
@pytest.mark.parametrize("stream", [False, True], ids=["files", "stream"])
def test_rows_files_and_charges_are_the_same_for_a_crowd_and_for_nobody(tmp_path, mechanism, stream):
    if stream and isinstance(mechanism, list):
        pytest.skip("chains are tried on files")
    changes = {"mechanism": mechanism, "accountants": [{"type": "composition"}]}
    crowd, nobody = (released(tmp_path, n, e, changes, stream) for n, e in (("crowd", CROWD), ("nobody", PLACEHOLDERS)))
    assert sorted(path.name for path in crowd.iterdir()) == sorted(path.name for path in nobody.iterdir())
    first, second = (pl.read_parquet(folder / "releases.parquet") for folder in (crowd, nobody))
    assert first.drop("value").equals(second.drop("value"))
    assert not first["value"].equals(second["value"])
    books = [pl.read_parquet(folder / "accounts.parquet") for folder in (crowd, nobody)]
    assert books[0].equals(books[1])
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in (crowd, nobody)]
    # The head of the ledger is a digest under the nonce of the run, and of no other length.
    assert len({len(manifest.pop("ledger_head")) for manifest in manifests}) == 1
    # Both are on one ledger, to which the second adds just what the first did.
    series = [manifest.pop("ledger_series") for manifest in manifests]
    for name in ("charges", "sum", "sum_of_30_days"):
        assert float(series[1][name]) == pytest.approx(2 * float(series[0][name]))
    assert manifests[0] == manifests[1]


def departures(tmp_path: Path, name: str, n_people: int, delay: str = "0s") -> list[tuple[str, float]]:
    """Parts of a live stream's releases and when each leaves, in seconds after the first event is due.

    One person, or as many as are asked for, in the same minutes: when events come is the same, how many is not.
    """
    lines = [f"u{i},2024-01-01T0{n // 6}:{n % 6}5:00Z,37.75,-122.45" for n in range(36) for i in range(n_people)]
    (tmp_path / "events.csv").write_text("\n".join(["user,time,latitude,longitude", *lines]) + "\n")
    value = sections(tmp_path)
    value["source"] = {"type": "stream", "of": value["source"], "speed": "7200x"}  # a window in half a second
    value["output"] = {"path": str(tmp_path / name), "delay": delay, "ledger_source": "events", "ledger_budget": 9.0}
    left: list[tuple[str, float]] = []
    begun = 0.0
    run_loop = StreamLoop.run

    def write(folder: Path, stem: str, table: object) -> object:
        if folder.name == "releases":
            left.append((stem, time.monotonic() - begun))
        return write_part(folder, stem, table)  # type: ignore[arg-type]

    def begin(loop: StreamLoop) -> str | None:
        nonlocal begun
        begun = loop._begun
        return run_loop(loop)

    write_part = files.write_part
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StreamLoop, "run", begin)
        patched.setattr(files, "write_part", write)
        run(configured(value), tmp_path / name)
    return left


def test_a_live_stream_releases_no_window_before_its_time_for_a_crowd_or_for_one(tmp_path):
    """Every window once, in order, none before it is final; how long counting takes is not hidden."""
    late = []
    for name, n_people in (("crowd", 3000), ("one", 1)):
        left = departures(tmp_path, name, n_people)
        windows = [(window, at) for stem, at in left for window in files.windows_of(stem)]
        assert [window for window, _ in windows] == list(range(1, 7))
        late.append([round(at - 0.5 * window, 3) for window, at in windows])
        assert min(late[-1][:-1]) >= 0  # the last one leaves with the end of the file
    print("late by, in seconds:", *late)


def test_a_delayed_release_leaves_when_its_time_has_come_however_long_it_took(tmp_path):
    """To make a crowd's takes 0.7 s and one person's 0.1 s: both leave a second after their window was final."""
    value = sections(tmp_path) | {"output": {"path": str(tmp_path / "out"), "delay": "1s", "ledger_source": "events"}}
    value["source"] = {"type": "stream", "of": value["source"], "speed": "60x"}
    (tmp_path / "events.csv").write_text(PLACEHOLDERS)
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    step = RunWriter(make_plan(configured(value)), clock=lambda: now, sleep=sleep)
    left = []
    for taken in (0.7, 0.1, 0.0, 1.5):
        now = 100.0 + taken
        step._wait(100.0)
        left.append(now)
    assert left == pytest.approx([101.0, 101.0, 101.0, 101.5])  # the last one took longer than the delay


def test_a_delay_is_shorter_than_from_one_window_to_the_next(tmp_path):
    """An hour of the events passes in a minute."""
    value = sections(tmp_path)
    value["source"] = {"type": "stream", "of": value["source"], "speed": "60x"}
    assert configured(value | {"output": {"path": "out", "delay": "59s", "ledger_source": "x"}}).output.delay == 59_000
    with pytest.raises(ConfigError, match=r"output.delay: '60s' .* must be shorter than from one window to the next"):
        configured(value | {"output": {"path": "out", "delay": "60s", "ledger_source": "x"}})


def test_a_delayed_stream_releases_the_same_not_before_its_time(tmp_path):
    """A window in half a second; all but the last one, which leaves with the end of the file, wait 0.3 s."""
    left = departures(tmp_path, "one", 1, delay="300ms")
    windows = [(window, at) for stem, at in left for window in files.windows_of(stem)]
    assert [window for window, _ in windows] == list(range(1, 7))
    assert min(at - 0.5 * window for window, at in windows[:-1]) >= 0.3


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: (m[0] if isinstance(m, list) else m)["type"])
def test_values_are_whole_numbers_and_carry_nothing_below_one(tmp_path, mechanism):
    folder = released(tmp_path, "out", CROWD, {"mechanism": mechanism, "accountants": []}, stream=False)
    values = pl.read_parquet(folder / "releases.parquet")["value"].to_numpy()
    assert (values == values.astype(int)).all()
    assert (abs(values) < 2**53).all()
