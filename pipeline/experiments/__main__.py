"""Run every experiment of a folder: ``python -m penstock.pipeline.experiments configs/experiments``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from penstock.mechanisms.core.plugin import PenstockError
from penstock.pipeline.config.build import find
from penstock.pipeline.experiments.load import input_of
from penstock.pipeline.experiments.results import save
from penstock.pipeline.experiments.runner import summary
from penstock.pipeline.experiments.study import ready

#: Environment variable: folder of the unpacked data sets, searched if the path in the file does not exist.
DATA = "PENSTOCK_DATA"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all experiments; one that fails, or whose data set is missing, does not stop the others."""
    parser = argparse.ArgumentParser(prog="python -m penstock.pipeline.experiments", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of experiment files")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/experiments"), help="folder to write, one below for each"
    )
    parser.add_argument("--jobs", type=int, help="processes at a time (default: one a processor)")
    # Saved tables stand for full runs.
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--reduced", action="store_true", help="at the size that stands under reduced")
    size.add_argument("--save", type=Path, metavar="DIR", help="also copy the small tables of full runs there")
    given = parser.parse_args(arguments)
    ended: dict[str, list[str]] = {"done": [], "skipped": [], "FAILED": []}
    for path in sorted(given.folder.glob("*.yaml")):
        begun = time.monotonic()
        ending = _run(path, given)
        ended[ending].append(path.stem)
        print(f"{ending}: {path.stem}, {time.monotonic() - begun:.1f} s\n", flush=True)
    print(", ".join(f"{len(names)} {ending}" for ending, names in ended.items()))
    return 1 if ended["FAILED"] else 0


def _run(path: Path, given: argparse.Namespace) -> str:
    print(f"== {path.stem}", flush=True)
    try:
        overrides = []
        data = input_of(path, given.reduced)
        if data and not data.there:
            # Written as data/cabspotting/new_e*.txt: what follows data/ is looked up in the other folder.
            parts = Path(data.path).parts
            below = parts[parts.index("data") + 1 :] if "data" in parts else parts[-1:]
            elsewhere = Path(os.environ.get(DATA, "data"), *below)
            if find(str(elsewhere), None) is None:
                print(f"its data set is not here: {data.path}; unpack it there, or name the folder above it in {DATA}")
                return "skipped"
            overrides = [f"{data.key}={elsewhere}"]
        experiment = ready(path, overrides, given.reduced)
        outcome = experiment.run(given.out / experiment.name, given.jobs, lambda done, failed, counts: None)
        if given.save:
            save(outcome.folder, given.save)
    except PenstockError as error:
        print(error)
        return "FAILED"
    print(summary(outcome))
    return "FAILED" if outcome.exit_code else "done"


if __name__ == "__main__":
    sys.exit(main())
