"""Every experiment of a folder, one after the other: ``python -m pipeline.experiments configs/experiments``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mechanisms.core.plugin import PenstockError
from pipeline.experiments.load import input_of
from pipeline.experiments.results import save
from pipeline.experiments.runner import summary
from pipeline.experiments.study import ready

#: Folder of the unpacked data sets, by their names, where they are not under ``data``.
DATA = "PENSTOCK_DATA"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them all; one that fails, or whose data set is not there, does not stop the others.

    Returns
    -------
    0 where all that could run ended well, else 1.
    """
    parser = argparse.ArgumentParser(prog="python -m pipeline.experiments", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of experiment files")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/experiments"), help="folder to write, one below for each"
    )
    parser.add_argument("--jobs", type=int, help="processes at a time (default: one a processor)")
    # A table that is saved stands for a full run.
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--reduced", action="store_true", help="at the size that stands under reduced")
    size.add_argument("--save", type=Path, metavar="DIR", help="also copy the small tables of full runs there")
    asked = parser.parse_args(arguments)
    ended: dict[str, list[str]] = {"done": [], "skipped": [], "FAILED": []}
    for path in sorted(asked.folder.glob("*.yaml")):
        begun = time.monotonic()
        fate = _run(path, asked)
        ended[fate].append(path.stem)
        print(f"{fate}: {path.stem}, {time.monotonic() - begun:.1f} s\n", flush=True)
    print(", ".join(f"{len(names)} {fate}" for fate, names in ended.items()))
    return 1 if ended["FAILED"] else 0


def _run(path: Path, asked: argparse.Namespace) -> str:
    print(f"== {path.stem}", flush=True)
    try:
        overrides = []
        data = input_of(path, asked.reduced)
        if data and not data.there:
            elsewhere = Path(os.environ.get(DATA, "data")) / Path(data.path).name
            if not elsewhere.exists():
                print(f"its data set is not here: {data.path}; unpack it there, or name the folder above it in {DATA}")
                return "skipped"
            overrides = [f"{data.key}={elsewhere}"]
        experiment = ready(path, overrides, asked.reduced)
        outcome = experiment.run(asked.out / experiment.name, asked.jobs, lambda done, failed, counts: None)
        if asked.save:
            save(outcome.folder, asked.save)
    except PenstockError as error:
        print(error)
        return "FAILED"
    print(summary(outcome))
    return "FAILED" if outcome.exit_code else "done"


if __name__ == "__main__":
    sys.exit(main())
