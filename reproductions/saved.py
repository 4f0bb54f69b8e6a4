"""Saved results: small tables from full runs, and the parts of an experiment that pages show."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from penstock.pipeline import atomic
from penstock.pipeline.config.run import read_text
from penstock.pipeline.config.yaml import parse, plain

ROOT = Path(__file__).parent
RESULTS = ROOT / "results"
#: Files beside those of the experiments: ``tables`` (measures to save; without any, the first), and of a
#: published table ``published`` and ``differences``.
SHOWN = ROOT / "shown"


def written(path: Path) -> dict[str, Any]:
    """Return the contents of an experiment file, including the settings that control its presentation on pages."""
    return _content(path) | _content(SHOWN / path.name)


def _content(path: Path) -> dict[str, Any]:
    root, _ = parse(read_text(path), path.name) if path.exists() else (None, [])
    return plain(root) if root is not None else {}


#: Digits of a digest that a saved table keeps.
DIGEST_DIGITS = 16


def save(folder: Path, results: Path) -> None:
    """Copy the small tables, claims and provenance of a completed experiment to the documentation.

    Writes ``<name>.csv``, ``<name>-expected.csv`` and ``<name>.json`` to ``results``.
    """
    manifest = json.loads((folder / "experiment.json").read_text(encoding="utf-8"))
    name = manifest["name"]
    if "tables" in manifest:
        copied = {table: table for table in manifest["tables"]}
    else:
        _save_summary(
            folder,
            results / f"{name}.csv",
            shown_measures(manifest["configuration"] | _content(SHOWN / f"{name}.yaml")),
        )
        copied = {"expected.csv": f"{name}-expected.csv"} if (folder / "expected.csv").exists() else {}
    for source, saved in copied.items():
        with atomic.replacing(results / saved) as temporary:
            temporary.write_bytes((folder / source).read_bytes())
    kept = {key: manifest[key] for key in ("inputs", "versions", "cells", "confidence", "tables") if key in manifest}
    atomic.write_json(results / f"{name}.json", kept | {"failed": len(manifest["failed"])})


def _save_summary(folder: Path, path: Path, shown: list[str]) -> None:
    """Write the rounded means and confidence intervals of the measures that are shown."""
    summary = pl.read_parquet(folder / "summary.parquet").filter(pl.col("measure").is_in(shown))
    summary = summary.drop("versions", "inputs", "standard_deviation", "minimum", "maximum").with_columns(
        pl.col("configuration").str.slice(0, DIGEST_DIGITS),
        *(
            pl.col(column).round_sig_figs(6)
            for column in ("mean", "low", "high")
            if summary.schema[column] == pl.Float64  # null without any result
        ),
    )
    with atomic.replacing(path) as temporary:
        summary.write_csv(temporary)


def shown_measures(experiment: Mapping[str, Any]) -> list[str]:
    """Return the measures to save: those listed in ``tables``, or the first one by default."""
    return list(experiment.get("tables") or experiment["measures"][:1])
