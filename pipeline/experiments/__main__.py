"""Run every experiment of a folder: ``python -m penstock.pipeline.experiments configs/experiments``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from penstock.mechanisms.core.plugin import PenstockError
from penstock.pipeline.config.kinds import find
from penstock.pipeline.experiments.load import READ_FROM as READ_FROM
from penstock.pipeline.experiments.load import Places, input_of, load_experiment
from penstock.pipeline.experiments.runner import run_experiment, summary

#: Environment variable: folder of the unpacked data sets, searched if the path in the file does not exist.
DATA = "PENSTOCK_DATA"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all experiments, skipping failures and missing data sets."""
    parser = argparse.ArgumentParser(prog="python -m penstock.pipeline.experiments", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of experiment files")
    add_arguments(parser)
    given = parser.parse_args(arguments)
    return run_all(sorted(given.folder.glob("*.yaml")), given, lambda *request: run_sweep(*request)[0])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a command that runs several experiments."""
    parser.add_argument(
        "--out", type=Path, default=Path("runs/experiments"), help="folder to write, one below for each"
    )
    parser.add_argument("--jobs", type=int, help="processes at a time (default: one a processor)")
    parser.add_argument("--reduced", action="store_true", help="at the size that stands under reduced")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a value of every file")


def run_all(
    paths: Iterable[Path],
    given: argparse.Namespace,
    run: Callable[[Path, list[str], argparse.Namespace], int],
    read_from: Places = READ_FROM,
) -> int:
    """Run experiments in turn and print their outcomes; return 1 if any failed."""
    ended: dict[str, list[str]] = {"done": [], "skipped": [], "FAILED": []}
    for path in paths:
        begun = time.monotonic()
        print(f"== {path.stem}", flush=True)
        try:
            data = input_of(path, given.reduced, read_from)
            overrides = _elsewhere(data.key, data.path) if data and not data.exists else []
            if overrides is None:
                ending = "skipped"
            else:
                ending = "FAILED" if run(path, overrides + given.set, given) else "done"
        except PenstockError as error:
            print(error)
            ending = "FAILED"
        ended[ending].append(path.stem)
        print(f"{ending}: {path.stem}, {time.monotonic() - begun:.1f} s\n", flush=True)
    print(", ".join(f"{len(names)} {ending}" for ending, names in ended.items()))
    return 1 if ended["FAILED"] else 0


def _elsewhere(key: str, path: str) -> list[str] | None:
    """The change that names a data set where it is found in the other folder; None where it is not."""
    # Written as data/cabspotting/new_e*.txt: what follows data/ is looked up there.
    parts = Path(path).parts
    below = parts[parts.index("data") + 1 :] if "data" in parts else parts[-1:]
    elsewhere = Path(os.environ.get(DATA, "data"), *below)
    if find(str(elsewhere), None) is None:
        print(f"its data set is not here: {path}; unpack it there, or name the folder above it in {DATA}")
        return None
    return [f"{key}={elsewhere}"]


def run_sweep(path: Path, overrides: list[str], given: argparse.Namespace) -> tuple[int, Path]:
    """Run one sweep and print its outcome; return the exit code and the folder."""
    experiment = load_experiment(path, overrides, given.reduced)
    outcome = run_experiment(experiment, given.out / experiment.config.name, given.jobs)
    print(summary(outcome))
    return outcome.exit_code, outcome.folder


if __name__ == "__main__":
    sys.exit(main())
