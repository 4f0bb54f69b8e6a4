"""Repeat figures of the papers: ``python -m reproductions [FILE ...]``; without files all of its experiments."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.pipeline.config.run import read_text
from penstock.pipeline.config.yaml import Mapping, parse
from penstock.pipeline.experiments.__main__ import READ_FROM, add_arguments, run_all, run_sweep
from reproductions.page import experiments_page
from reproductions.run import StudyResult, StudyRun
from reproductions.saved import HERE, RESULTS, save

STUDY = "study"
PAGE = HERE / "experiments.md"
FOLDERS = (HERE / "experiments", HERE.parent / "configs" / "experiments")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run experiments, or write the page of their saved results."""
    parser = argparse.ArgumentParser(prog="python -m reproductions", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="experiment files (default: all)")
    add_arguments(parser)
    parser.add_argument("--save", action="store_true", help="keep the small tables of full runs in results/")
    parser.add_argument("--page", action="store_true", help="run nothing: write experiments.md from the saved results")
    parser.add_argument("--check", action="store_true", help="with --page: fail where it is not current")
    given = parser.parse_args(arguments)
    if given.page:
        return write_page(given.check)
    if given.save and given.reduced:
        parser.error("--save: saved tables stand for full runs, not for those with --reduced")
    paths = given.files or sorted(FOLDERS[0].glob("*.yaml"))
    return run_all(paths, given, run, (*READ_FROM, ("study.path", (STUDY,))))


def run(path: Path, overrides: list[str], given: argparse.Namespace) -> int:
    """Run one experiment or study, print its outcome and return the exit code."""
    root, _ = parse(read_text(path), str(path))
    if isinstance(root, Mapping) and STUDY in root.items:
        study = StudyRun.load(path, overrides, given.reduced)
        outcome = study.run(given.out / study.config.name, given.jobs)
        print(summary(outcome))
        code, folder = outcome.exit_code, outcome.folder
    else:
        code, folder = run_sweep(path, overrides, given)
    if given.save and code == 0:
        save(folder, RESULTS)
    return code


def summary(outcome: StudyResult) -> str:
    """The result of a study in a few lines: pieces, and files."""
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
    """Write, or check, the page of saved results."""
    paths = sorted((path for folder in FOLDERS for path in folder.glob("*.yaml")), key=lambda path: path.stem)
    text = experiments_page(paths, RESULTS, HERE / "papers.yaml")
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    if check:
        print(f"{PAGE.name} is not current; run: python -m reproductions --page")
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
