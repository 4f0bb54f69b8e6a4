"""A study of `evaluation.studies` as an experiment: its pieces in parallel and resumed, then tables and figures."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import polars.selectors as cs
from threadpoolctl import threadpool_limits

from evaluation.membership_plots import draw
from evaluation.study import STUDIES, Binary, Figures, Piece, Study
from mechanisms.core.parameters import parameter
from pipeline import parts
from pipeline.configuration.build import FAILED, Builder
from pipeline.configuration.canonical import content_digest
from pipeline.configuration.document import plain
from pipeline.configuration.overrides import apply_override
from pipeline.configuration.reader import parse_section
from pipeline.configuration.run import read_text
from pipeline.experiments.cell_runs import Listener
from pipeline.experiments.cells import raise_all
from pipeline.experiments.config import Heading
from pipeline.experiments.counts import digest_of
from pipeline.experiments.load import REDUCED, reduce
from pipeline.experiments.runner import Outcome, begin, finish, heading
from pipeline.experiments.workers import Workers
from pipeline.manifest import made_by

STUDY = "study"
DIGITS = 4


@dataclass(frozen=True, kw_only=True)
class StudyConfig(Heading):
    """Everything about an experiment that is a study."""

    study: Study = parameter(doc="figures made of many attacks, and how they are made")


@dataclass(frozen=True)
class StudyExperiment:
    """A study as it is asked for.

    Parameters
    ----------
    config
        What is shown, and how.
    written
        The whole file as plain values after all changes, for provenance.
    reduced
        Whether it runs at its reduced size.
    """

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
    """The pieces of a study on their way to tables.

    Parameters
    ----------
    experiment
        As `load_study` returns it; what it attacks is read at once.
    """

    def __init__(self, experiment: StudyExperiment) -> None:
        self.experiment, self.study = experiment, experiment.config.study
        self.inputs = (content_digest(self.study.path),) if self.study.path else ()
        self.pieces = self.study.pieces(_presence(self.study, self.inputs))

    def run(self, folder: str | Path | None, n_jobs: int | None, listener: Listener) -> Outcome:
        """Make every piece that is not there yet; then tables and figures, unless one has failed.

        Arguments and errors are those of `run_experiment`.
        """
        target = begin(self.experiment.config, folder, draws=True)
        kept = {piece: target / "cells" / f"{self._digest(piece)}.npz" for piece in self.pieces}
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
        return finish(target, heading(self.experiment) | own)

    def _digest(self, piece: Piece) -> str:
        """Of everything that decides the figures of a piece."""
        kind = STUDIES.name_of(type(self.study))
        return digest_of([kind, self.study.decides, piece, self.inputs, made_by()])

    def _write(self, folder: Path, kept: dict[Piece, Path]) -> dict[str, Any]:
        """Tables and figures; gives their files for the manifest."""
        tables = self.study.tables(
            _presence(self.study, self.inputs), {piece: _read(path) for piece, path in kept.items()}
        )
        for name, table in tables.items():
            with parts.whole(folder / f"{name}.csv") as temporary:
                table.with_columns(cs.float().round_sig_figs(DIGITS)).write_csv(temporary)
        figures = [
            {"file": f"figures/{name}.svg", "title": title, "data": f"{name}.csv"}
            for name, title in draw(tables, folder / "figures").items()
        ]
        return {"tables": [f"{name}.csv" for name in tables], "figures": figures}


def work(study: Study, inputs: tuple[str, ...], piece: Piece, path: Path) -> None:
    """Make one piece and keep its figures, whole; ``inputs``: digests of what it reads."""
    with threadpool_limits(1):  # so that they depend on no number of processors
        found = study.measure(_presence(study, inputs), piece)
    with parts.whole(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **found)


@lru_cache(maxsize=1)
def _presence(study: Study, inputs: tuple[str, ...]) -> Binary:
    """Read once for all pieces, and again where the ``inputs`` are others by now."""
    return study.presence()


def _read(path: Path) -> Figures:
    with np.load(path) as kept:
        return dict(kept)
