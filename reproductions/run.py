"""Run a study from a file. Missing pieces are computed in worker processes before tables and figures are written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars.selectors as cs

from penstock.mechanisms.core.plugin import parameter
from penstock.pipeline import atomic
from penstock.pipeline.config.build import FAILED, Builder
from penstock.pipeline.config.canonical import content_digest
from penstock.pipeline.config.run import read_text
from penstock.pipeline.config.sections import UNIONS, add_folder
from penstock.pipeline.config.yaml import apply_override, parse_section, plain
from penstock.pipeline.experiments import figures
from penstock.pipeline.experiments.config import ExperimentHeader
from penstock.pipeline.experiments.load import REDUCED, raise_all, reduce
from penstock.pipeline.experiments.pieces import Listener, Piece, Record, run_missing
from penstock.pipeline.experiments.runner import RECORDS, begin, heading
from penstock.pipeline.output.manifest import code_digest, software_versions
from reproductions.plots import draw
from reproductions.study import STUDIES, Figures, Study

DIGITS = 4
#: Plug-ins that a study may name.
PLUGINS = str(Path(__file__).parent / "plugins")


@dataclass(frozen=True, kw_only=True)
class StudyConfig(ExperimentHeader):
    """The contents of a study file."""

    study: Study = parameter(doc="figures made of many pieces, and how they are made")


class StudyResult(NamedTuple):
    """The folder of a completed study and the contents of its ``experiment.json``."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def exit_code(self) -> int:
        """The exit code, which is 1 if any piece failed and 0 otherwise."""
        return 1 if self.manifest["failed"] else 0


@dataclass(frozen=True)
class StudyRun:
    """A study loaded from a file. ``written`` holds the whole file as plain values, including all overrides."""

    config: StudyConfig
    written: dict[str, Any]
    reduced: bool

    @classmethod
    def load(cls, path: str | Path, overrides: Iterable[str] = (), reduced: bool = False) -> StudyRun:
        """Load a study from a file. Parameters and errors are the same as for `load_experiment`."""
        root, problems = parse_section(read_text(path), str(path), "an experiment")
        if reduced:
            reduce(root, problems)
        for override in overrides:
            problems += apply_override(root, override)
        add_folder(PLUGINS)
        builder = Builder({**UNIONS, Study: STUDIES}, Path(path).parent)
        config = builder.construct(root, StudyConfig, builder.values(root, StudyConfig, (), (REDUCED,)), ())
        problems += builder.problems
        raise_all(problems)
        assert config is not FAILED  # or there was a problem
        return cls(config, plain(root), reduced)

    def pieces(self) -> dict[Any, Piece]:
        """Read the data set and return all of the study's pieces, each with its unit of work."""
        study = self.config.study
        inputs = tuple(content_digest(path) for path in study.inputs)
        made_of = [
            STUDIES.name_of(type(study)),
            study.decides,
            inputs,
            software_versions(),
            code_digest(Path(__file__).parent),
        ]
        return {
            piece: Piece([*made_of, list(piece)], _measure, (study, inputs, piece))
            for piece in study.pieces(_data(study, inputs))
        }

    def run(
        self,
        folder: str | Path | None = None,
        n_jobs: int | None = None,
        listener: Listener = lambda done, failed: None,
    ) -> StudyResult:
        """Compute all missing pieces. Unless any piece failed, write tables and figures as well."""
        config, target = self.config, begin(self.config, folder)
        pieces = self.pieces()
        made = run_missing(list(pieces.values()), target / RECORDS, n_jobs or os.cpu_count() or 1, listener, (PLUGINS,))
        names = list(pieces)
        manifest = heading(config, self.written, self.reduced) | {
            "inputs": [content_digest(path) for path in config.study.inputs],
            "cells": len(pieces),
            "resumed": made.n_resumed,
            "failed": [{"values": names[i]._asdict(), "problem": problem} for i, problem in made.failed.items()],
            "tables": [],
            "figures": [],
        }
        if not made.failed:
            manifest |= self._write(target, {names[i]: _arrays(made.records[i]) for i in range(len(names))})
        atomic.write_json(target / "experiment.json", manifest)
        return StudyResult(target, manifest)

    def _write(self, folder: Path, measured: Mapping[Any, Figures]) -> dict[str, Any]:
        """Write tables and figures, and return the files to list in the manifest."""
        study = self.config.study
        tables = study.tables(_data(study, tuple(content_digest(path) for path in study.inputs)), measured)
        for name, table in tables.items():
            with atomic.replacing(folder / f"{name}.csv") as temporary:
                table.with_columns(cs.float().round_sig_figs(DIGITS)).write_csv(temporary)
        written: dict[str, Any] = {"tables": [f"{name}.csv" for name in tables]}
        if not figures.installed():
            return written | {"not_drawn": figures.NOT_DRAWN}
        return written | {"figures": [f"figures/{name}.svg" for name in draw(tables, folder / "figures")]}


def _measure(study: Study, inputs: tuple[str, ...], piece: Any) -> Record:
    """Compute the results of one piece, as lists. ``inputs`` contains the digests of its input files."""
    measured = study.measure(_data(study, inputs), piece)
    return {"figures": [[name, np.asarray(values).tolist()] for name, values in measured.items()]}  # in their order


def _arrays(record: Record) -> Figures:
    return {name: np.asarray(values, np.float64) for name, values in record["figures"]}


@lru_cache(maxsize=1)
def _data(study: Study, inputs: tuple[str, ...]) -> Any:
    """Load a study's data. It is loaded only once for all pieces that have the same ``inputs``."""
    return study.data()
