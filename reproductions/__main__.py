"""Reproduce the papers' figures. ``python -m reproductions [FILE ...]`` runs the given files, or all experiments by
default.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.mechanisms.core.plugin import PenstockError
from penstock.pipeline.config.kinds import find
from penstock.pipeline.config.run import read_text
from penstock.pipeline.config.yaml import Mapping, parse, plain
from penstock.pipeline.experiments import runner
from penstock.pipeline.experiments.load import BASE, include_base, load_experiment, reduce
from reproductions.page import experiments_page
from reproductions.run import StudyResult, StudyRun
from reproductions.saved import RESULTS, ROOT, save

STUDY = "study"
#: Environment variable: folder of the unpacked data sets, searched if the path in the file does not exist.
DATA = "PENSTOCK_DATA"
#: Keys that name an input: for an override, then the section that may hold ``path``.
READ_FROM = (("base.source.path", ("set", "source")), ("base.source.path", (BASE, "source")), ("study.path", (STUDY,)))
PAGE = ROOT / "experiments.md"
FOLDERS = (ROOT / "experiments", ROOT.parent / "configs" / "experiments")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run experiments, or write the page that shows their saved results."""
    parser = argparse.ArgumentParser(prog="python -m reproductions", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="experiment files (default: all)")
    add = parser.add_argument
    add("--out", type=Path, default=Path("runs/experiments"), help="folder to write, one below for each")
    add("--jobs", type=int, help="processes at a time (default: one a processor)")
    add("--reduced", action="store_true", help="at the size that stands under reduced")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="change a value of every file")
    parser.add_argument("--save", action="store_true", help="keep the small tables of full runs in results/")
    parser.add_argument("--page", action="store_true", help="run nothing: write experiments.md from the saved results")
    parser.add_argument("--check", action="store_true", help="with --page: fail where it is not current")
    given = parser.parse_args(arguments)
    if given.page:
        return write_page(given.check)
    if given.save and given.reduced:
        parser.error("--save: saved tables stand for full runs, not for those with --reduced")
    return run_all(given.files or sorted(FOLDERS[0].glob("*.yaml")), given)


def run_all(paths: Sequence[Path], given: argparse.Namespace) -> int:
    """Run experiments in turn and print outcomes, skipping those without data. Return 1 if any failed."""
    ended: dict[str, list[str]] = {"done": [], "skipped": [], "FAILED": []}
    for path in paths:
        begun = time.monotonic()
        print(f"== {path.stem}", flush=True)
        try:
            overrides = data_overrides(path, given.reduced)
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


def data_overrides(path: Path, reduced: bool = False) -> list[str] | None:
    """Return the overrides that point an experiment to the data folder that has its data, or None if no folder has it.

    The loader reports any errors in the file.
    """
    root, problems = parse(read_text(path), str(path))
    if not isinstance(root, Mapping):
        return []
    folder = include_base(root, path.parent, problems)
    if reduced:
        reduce(root, problems)
    for key, steps in READ_FROM:
        section: Any = plain(root)
        for step in steps:
            section = section.get(step) if isinstance(section, dict) else None
        if isinstance(section, dict):
            named = section.get("path")
            if not isinstance(named, str) or find(named, folder) is not None:
                return []
            # Written as data/cabspotting/new_e*.txt: what follows data/ is looked up there.
            parts = Path(named).parts
            below = parts[parts.index("data") + 1 :] if "data" in parts else parts[-1:]
            elsewhere = Path(os.environ.get(DATA, "data"), *below)
            if find(str(elsewhere), None) is not None:
                return [f"{key}={elsewhere}"]
            print(f"its data set is not here: {named}; unpack it there, or name the folder above it in {DATA}")
            return None
    return []


def run(path: Path, overrides: list[str], given: argparse.Namespace) -> int:
    """Run one experiment or study, print its outcome, and return the exit code."""
    root, _ = parse(read_text(path), str(path))
    if isinstance(root, Mapping) and STUDY in root.items:
        study = StudyRun.load(path, overrides, given.reduced)
        outcome = study.run(given.out / study.config.name, given.jobs)
        print(summary(outcome))
        code, folder = outcome.exit_code, outcome.folder
    else:
        experiment = load_experiment(path, overrides, given.reduced)
        result = runner.run_experiment(experiment, given.out / experiment.config.name, given.jobs)
        print(runner.summary(result))
        code, folder = result.exit_code, result.folder
    if given.save and code == 0:
        save(folder, RESULTS)
    return code


def summary(outcome: StudyResult) -> str:
    """Summarise a study in a few lines: how many pieces were computed and which files were written."""
    manifest = outcome.manifest
    n_failed = len(manifest["failed"])
    lines = [f"pieces    {manifest['cells']:,}: {manifest['resumed']:,} made before, {n_failed:,} failed"]
    for failure in manifest["failed"]:
        values = ", ".join(f"{name}={value}" for name, value in failure["values"].items())
        lines.append(f"FAILED    {values}: {failure['problem']}")
    if "not_drawn" in manifest:
        lines.append(f"figures   not drawn: {manifest['not_drawn']}")
    return "\n".join([*lines, *(f"  {outcome.folder / name}" for name in (*manifest["tables"], *manifest["figures"]))])


def write_page(check: bool) -> int:
    """Write the page that shows saved results, or check that it is up to date."""
    paths = sorted((path for folder in FOLDERS for path in folder.glob("*.yaml")), key=lambda path: path.stem)
    text = experiments_page(paths, RESULTS, ROOT / "papers.yaml")
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    if check:
        print(f"{PAGE.name} is not current; run: python -m reproductions --page")
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
