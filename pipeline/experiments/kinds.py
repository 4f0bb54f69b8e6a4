"""The kinds of experiment files, told apart by the key that says what runs: a base that varies, or a study."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.configuration.document import Mapping
from pipeline.configuration.reader import parse
from pipeline.configuration.run import read_text
from pipeline.experiments.cell_runs import Listener
from pipeline.experiments.cells import BASE
from pipeline.experiments.load import load_experiment
from pipeline.experiments.runner import Outcome, run_experiment
from pipeline.experiments.study import STUDY, StudyRun, load_study


@dataclass(frozen=True)
class Ready:
    """An experiment of any kind, checked and ready to run.

    Parameters
    ----------
    name
        Of the experiment.
    n_steps
        Cells of a sweep, or pieces of a study.
    run
        Called with the folder to write (None: where the file says), processes at a time, and a listener.
    """

    name: str
    n_steps: int
    run: Callable[[str | Path | None, int | None, Listener], Outcome]


def ready(path: str | Path, overrides: Iterable[str] = (), reduced: bool = False) -> Ready:
    """Load an experiment file of any kind; arguments and errors are those of `load_experiment`."""
    root, _ = parse(read_text(path), str(path))
    keys = root.items.keys() if isinstance(root, Mapping) else ()
    return KINDS[next((kind for kind in KINDS if kind in keys), BASE)](path, overrides, reduced)


def _sweep(path: str | Path, overrides: Iterable[str], reduced: bool) -> Ready:
    experiment = load_experiment(path, overrides, reduced)
    return Ready(experiment.config.name, len(experiment.cells), partial(run_experiment, experiment))


def _study(path: str | Path, overrides: Iterable[str], reduced: bool) -> Ready:
    experiment = load_study(path, overrides, reduced)
    study = StudyRun(experiment)
    return Ready(experiment.config.name, len(study.pieces), study.run)


KINDS: dict[str, Callable[[str | Path, Iterable[str], bool], Ready]] = {STUDY: _study, BASE: _sweep}
