"""Studies (experiments made of independent pieces, say one attack each), and loading experiment files of any kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars.selectors as cs
from threadpoolctl import threadpool_limits

from penstock.evaluation.papers.plots import draw
from penstock.evaluation.papers.study import STUDIES, Figures, Study
from penstock.mechanisms.core.plugin import parameter
from penstock.pipeline.config.build import FAILED, Builder
from penstock.pipeline.config.canonical import content_digest
from penstock.pipeline.config.run import read_text
from penstock.pipeline.config.yaml import Mapping, apply_override, parse, parse_section, plain
from penstock.pipeline.experiments import figures
from penstock.pipeline.experiments.config import ExperimentHeader
from penstock.pipeline.experiments.load import BASE, REDUCED, load_experiment, raise_all, reduce
from penstock.pipeline.experiments.runner import (
    RECORDS,
    ExperimentResult,
    Listener,
    Workers,
    begin,
    finish,
    heading,
    run_experiment,
)
from penstock.pipeline.experiments.trial import digest_of
from penstock.pipeline.output import files
from penstock.pipeline.output.manifest import made_by

STUDY = "study"
DIGITS = 4


@dataclass(frozen=True, kw_only=True)
class StudyConfig(ExperimentHeader):
    """Configuration of a study."""

    study: Study = parameter(doc="figures made of many pieces, and how they are made")


@dataclass(frozen=True)
class StudyExperiment:
    """A loaded study; ``written`` is the whole file as plain values after all changes, for provenance."""

    config: StudyConfig
    written: dict[str, Any]
    reduced: bool = False


def load_study(path: str | Path, overrides: Iterable[str] = (), reduced: bool = False) -> StudyExperiment:
    """Load the file of a study; arguments and errors are those of `pipeline.experiments.load.load_experiment`."""
    root, problems = parse_section(read_text(path), str(path), "an experiment")
    if reduced:
        reduce(root, problems)
    for override in overrides:
        problems += apply_override(root, override)
    builder = Builder({Study: STUDIES}, Path(path).parent)
    config = builder.construct(root, StudyConfig, builder.values(root, StudyConfig, (), (REDUCED,)), ())
    problems += builder.problems
    raise_all(problems)
    assert config is not FAILED  # or there was a problem
    return StudyExperiment(config, plain(root), reduced)


class StudyRun:
    """The run of a loaded study: missing pieces in worker processes, then tables and figures; reads the data set."""

    def __init__(self, experiment: StudyExperiment) -> None:
        self.experiment, self.study = experiment, experiment.config.study
        self.inputs = tuple(content_digest(path) for path in self.study.inputs)
        self.pieces = self.study.pieces(_data(self.study, self.inputs))

    def run(self, folder: str | Path | None, n_jobs: int | None, listener: Listener) -> ExperimentResult:
        """Make every missing piece; then tables and figures, unless one has failed.

        Arguments and errors are those of `run_experiment`.
        """
        target = begin(self.experiment.config, folder)
        kept = {piece: target / RECORDS / f"{self._digest(piece)}.npz" for piece in self.pieces}
        waiting = {str(i): piece for i, piece in enumerate(self.pieces) if not kept[piece].exists()}
        n_done = n_resumed = len(kept) - len(waiting)
        workers = Workers(min(n_jobs or os.cpu_count() or 1, max(1, len(waiting))))
        for number, piece in waiting.items():
            workers.submit(number, (work, (self.study, self.inputs, piece, kept[piece])))
        failed = []
        listener(n_done, 0, 0)
        for number, problem in workers.results():
            if problem is None:
                n_done += 1
            else:
                failed.append({"values": waiting[number]._asdict(), "seed": self.study.seed, "problem": problem})
            listener(n_done, len(failed), 0)
        own = {"inputs": list(self.inputs), "cells": len(kept), "resumed": n_resumed, "failed": failed, "varied": []}
        own |= {"tables": [], "figures": []} if failed else self._write(target, kept)
        return finish(target, heading(self.experiment.config, self.experiment.written, self.experiment.reduced) | own)

    def _digest(self, piece: Any) -> str:
        """Digest of everything that decides the figures of a piece."""
        kind = STUDIES.name_of(type(self.study))
        return digest_of([kind, self.study.decides, piece, self.inputs, made_by()])

    def _write(self, folder: Path, kept: dict[Any, Path]) -> dict[str, Any]:
        """Write tables and figures; return their files for the manifest."""
        tables = self.study.tables(_data(self.study, self.inputs), {piece: _read(path) for piece, path in kept.items()})
        for name, table in tables.items():
            with files.whole(folder / f"{name}.csv") as temporary:
                table.with_columns(cs.float().round_sig_figs(DIGITS)).write_csv(temporary)
        own: dict[str, Any] = {"tables": [f"{name}.csv" for name in tables], "figures": []}
        if not figures.installed():
            return own | {"not_drawn": figures.NOT_DRAWN}
        own["figures"] = [
            {"file": f"figures/{name}.svg", "title": title, "data": f"{name}.csv"}
            for name, title in draw(tables, folder / "figures").items()
        ]
        return own


def work(study: Study, inputs: tuple[str, ...], piece: Any, path: Path) -> None:
    """Make one piece and write its figures atomically; ``inputs``: digests of the files it reads."""
    with threadpool_limits(1):  # results must not depend on the number of processors
        found = study.measure(_data(study, inputs), piece)
    with files.whole(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **found)


@lru_cache(maxsize=1)
def _data(study: Study, inputs: tuple[str, ...]) -> Any:
    """The data of a study, read once for all pieces of the same ``inputs``."""
    return study.data()


def _read(path: Path) -> Figures:
    with np.load(path) as kept:
        return dict(kept)


@dataclass(frozen=True)
class Ready:
    """A loaded experiment of any kind, ready to run."""

    name: str
    #: Trials of a sweep, or pieces of a study.
    n_steps: int
    #: Called with the folder to write (None: where the file says), processes at a time, and a listener.
    run: Callable[[str | Path | None, int | None, Listener], ExperimentResult]


def ready(path: str | Path, overrides: Iterable[str] = (), reduced: bool = False) -> Ready:
    """Load an experiment file of any kind; arguments and errors are those of `load_experiment`."""
    root, _ = parse(read_text(path), str(path))
    keys = root.items.keys() if isinstance(root, Mapping) else ()
    return KINDS[next((kind for kind in KINDS if kind in keys), BASE)](path, overrides, reduced)


def _sweep(path: str | Path, overrides: Iterable[str], reduced: bool) -> Ready:
    experiment = load_experiment(path, overrides, reduced)
    return Ready(experiment.config.name, len(experiment.trials), partial(run_experiment, experiment))


def _study(path: str | Path, overrides: Iterable[str], reduced: bool) -> Ready:
    experiment = load_study(path, overrides, reduced)
    study = StudyRun(experiment)
    return Ready(experiment.config.name, len(study.pieces), study.run)


#: Loader of each kind of experiment file, by the key that identifies it.
KINDS: dict[str, Callable[[str | Path, Iterable[str], bool], Ready]] = {STUDY: _study, BASE: _sweep}
