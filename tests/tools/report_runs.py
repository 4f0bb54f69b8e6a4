"""Run folders made by hand, for reports of any accountant and size."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.pipeline.config.build import build_plugin
from penstock.pipeline.output.cells import write_cells
from penstock.pipeline.output.tables import ACCOUNTS, RELEASES, TRUTH, UTILITY
from penstock.pipeline.spaces.base import Space

START = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp() * 1000)
HOUR = 3_600_000


def account(accountant: str, name: str, window: int | None, value: float, **others: Any) -> dict[str, Any]:
    """Row of an accountant."""
    row = {"stream": "main", "accountant": accountant, "subject": "everybody", "window": window, "name": name}
    row |= {"value": value, "low": None, "high": None, "unit": "nats", "adjacency": "one window", "status": "final"}
    return row | others


def run_folder(
    folder: Path,
    n_windows: int = 24,
    cells: tuple[str, ...] = ("a", "b", "c", "d"),
    accounts: tuple[dict[str, Any], ...] = (),
    operator_accounts: tuple[dict[str, Any], ...] = (),
    refused: tuple[int, ...] = (),
    space: dict[str, Any] | None = None,
    truth: bool = True,
    public: dict[str, Any] | None = None,
    operator: dict[str, Any] | None = None,
    configuration: dict[str, Any] | None = None,
) -> Path:
    """Write the files of a run whose counts are window + cell and whose errors are 1."""
    n_cells = len(cells)
    window = np.repeat(np.arange(1, n_windows + 1), n_cells)
    counts = window + np.tile(np.arange(n_cells), n_windows)
    start = START + (window - 1) * HOUR
    shared = {
        "stream": np.full(window.size, "main"),
        "window": window,
        "window_start": start,
        "window_end": start + HOUR,
        "cell": np.tile(np.array(cells, object), n_windows),
    }
    released = shared | {
        "value": counts + 1.0,
        "epsilon": np.full(window.size, 0.125),
        "rho": np.full(window.size, 0.125),
        "noise": np.full(window.size, "laplace"),
        "scale": np.full(window.size, 2.0),
        "landmark": np.isin(window, (3, 4, 9)),
        "action": np.where(np.isin(window, refused), "refused", "published"),
        "repeats": pa.array(np.zeros(window.size, np.int64), mask=np.ones(window.size, bool)),
        "available_at": start + HOUR,
        "standard_deviation": pa.nulls(window.size, pa.float64()),
    }
    _write(folder / "public" / "releases.parquet", released, RELEASES)
    _write(folder / "public" / "accounts.parquet", list(accounts), ACCOUNTS)
    _write(folder / "operator" / "accounts.parquet", list(operator_accounts), ACCOUNTS)
    if truth:
        _write(folder / "operator" / "truth.parquet", shared | {"count": counts, "bounded": counts}, TRUTH)
        metric = {"stream": "main", "metric": "kendall_tau", "scope": "window", "low": None, "high": None}
        rows = [metric | {"window": w, "value": 1.0} for w in range(1, n_windows + 1)]
        _write(folder / "operator" / "utility.parquet", rows, UTILITY)
    _manifests(folder, cells, n_windows, space, public or {}, operator or {}, configuration or {})
    if space is not None:
        write_cells(folder, build_plugin(Space, space, "space", ("space",)))
    return folder


def _write(path: Path, rows: Any, schema: pa.Schema) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(rows, dict):
        table = pa.table([pa.array(rows[field.name]).cast(field.type) for field in schema], schema=schema)
    else:
        table = pa.Table.from_pylist(rows, schema=schema)
    pq.write_table(table, path)


def _manifests(folder: Path, cells: Any, n_windows: int, space: Any, public: Any, operator: Any, changes: Any) -> None:
    configuration = {
        "name": "by-hand",
        "mode": "simulation",
        "source": {"type": "synthetic", "from": "2024-01-01T00:00:00Z", "until": "2024-01-02T00:00:00Z"},
        "space": space or {"type": "places", "list": list(cells), "elsewhere": False},
        "windows": {"type": "fixed", "size": "1h"},
        "bounding": {"max_cells": 1},
        "mechanism": [{"type": "laplace", "epsilon": 0.5}],
        "accountants": [{"type": "landmark_budget", "budget": 5.0}],
        "output": {"path": str(folder)},
    } | changes
    guarantee = {
        "mechanism": "laplace",
        "guarantee": "ε-differential privacy per window",
        "unit": "all of one user's events in one window",
        "neighbours": "add or remove the unit",
        "theorem": "Dwork, McSherry, Nissim, Smith 2006",
    }
    shared = {"configuration": configuration, "configuration_digest": "0" * 64, "versions": {"penstock": "0.1.0"}}
    messages = {
        "name": "by-hand",
        "mode": "simulation",
        "notice": "Unfit.",
        "guarantee": [guarantee],
        "windows": n_windows,
    }
    rows = {"rows": 100, "used": 90, "duplicates": 10, "late": 0, "out_of_area": 10, "out_of_time": 0, "rejected": 0}
    kept = {"rows": rows | {"rejected_by_reason": {}}, "noise": {"seed": 3}, "exit": {"code": 0, "reason": "done"}}
    kept |= {"inputs": {"events.csv": "f" * 64}, "seconds": {"pipeline": 1.5}, "utility": {"kendall_tau": 1.0}}
    (folder / "public" / "manifest.json").write_text(json.dumps(shared | messages | public))
    (folder / "operator" / "manifest.json").write_text(json.dumps(shared | kept | operator))


def experiment_folder(folder: Path, **changes: Any) -> Path:
    """Folder of an experiment with two settings, two measures, a figure, a claim and a choice."""
    folder.mkdir(exist_ok=True)
    settings = [("uniform", 1.0, 0.8, 3.0), ("sample", 2.0, 0.9, None)]
    rows = [
        {
            "variant": variant,
            "epsilon": epsilon,
            "measure": measure,
            "unit": unit,
            "n": 2,
            "mean": mean,
            "low": low,
            "high": high,
        }
        for variant, epsilon, f1, mae in settings
        for measure, unit, mean, low, high in (
            ("hotspot_f1", "", f1, f1 - 0.1, f1 + 0.1),
            ("mae", "people", mae, None, None),
        )
    ]
    pl.DataFrame(rows).write_parquet(folder / "summary.parquet")
    f1 = {"mean hotspot_f1": [0.8, 0.9], "low hotspot_f1": [0.7, 0.8], "high hotspot_f1": [0.9, 1.0]}
    # With a single seed there is no interval, and a loss may be infinite.
    mae = {"mean mae": [3.0, float("inf")], "low mae": [None, None], "high mae": [None, None]}
    marks = {"allowed": [True, False], "frontier": [True, True], "best": [True, False]}
    varied = {"variant": ["uniform", "sample"], "epsilon": [1.0, 2.0]}
    pl.DataFrame(varied | f1 | mae | marks).write_parquet(folder / "frontier.parquet")
    (folder / "figures").mkdir()
    (folder / "figures" / "f1.csv").write_text("variant,mean hotspot_f1\n=uniform,0.8\nsample,\n")
    (folder / "figures" / "f1.svg").write_text(
        "<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
    )
    (folder / "best.yaml").write_text("name: <b>best</b>\n")
    manifest = {
        "name": "choose",
        "question": "Which <i>one</i>?",
        "notice": "Unfit.",
        "configuration": {
            "base": {"mechanism": {"epsilon": 1.0, "type": "laplace"}},
            "labels": {"hotspot_f1": "hotspots <i>found</i>"},
        },
        "measures": ["hotspot_f1", "mae"],
        "varied": ["variant", "epsilon"],
        "confidence": 0.95,
        "versions": {"penstock": "0.1.0"},
        "inputs": ["abc"],
        "cells": 4,
        "failed": [{"values": {"variant": "uniform"}, "seed": 2, "problem": "no budget <b>left</b>"}],
        "figures": [{"file": "figures/f1.svg", "title": "F1 & more", "data": "figures/f1.csv"}],
        "expected": [{"says": "uniform wins", "source": "A 2022", "at_most": 0.7, "value": 0.8, "verdict": "differs"}],
        "choice": {
            "settings": 2,
            "allowed": 1,
            "at_least": {"hotspot_f1": 0.75},
            "at_most": {"mae": 5.0},
            "best": {"values": {"epsilon": 1.0, "variant": "uniform"}, "means": {"hotspot_f1": 0.8, "mae": 3.0}},
        },
    }
    (folder / "experiment.json").write_text(json.dumps(manifest | changes))
    return folder


def trace_folder(folder: Path, n: int = 3) -> Path:
    """A run that releases n points of each of two people, a hundredth of a degree from the truth."""
    spent = (
        account("landmark_budget", "budget_spent", None, 0.7, subject="a"),
        account("landmark_budget", "budget_left", 2, 0.1, subject="b"),
        account("landmark_budget", "budget_left", 1, 0.3, subject="b"),
    )
    run_folder(
        folder,
        accounts=spent,
        operator={"users": {"users": 2, "points_per_user": {"median": 3.0}}, "utility": {"mae": 900.0}},
    )
    (folder / "public" / "releases.parquet").unlink()
    times = pl.Series([*range(n), *range(n)], dtype=pl.Datetime("ms", "UTC"))
    latitudes = [float(i) for i in range(1, 2 * n + 1)]
    truth = {"pseudonym": ["a"] * n + ["b"] * n, "time": times, "latitude": latitudes, "longitude": [0.0] * 2 * n}
    released = truth | {
        "longitude": [0.01] * 2 * n,
        "epsilon": [0.1] * 2 * n,
        "rho": [0.005] * 2 * n,
        "landmark": [i == 1 for i in range(n)] * 2,
        "action": ["published"] * (2 * n - 1) + ["repeated"],
    }
    pl.DataFrame(truth).write_parquet(folder / "operator" / "truth.parquet")
    pl.DataFrame(released).write_parquet(folder / "public" / "traces.parquet")
    scopes = {"metric": ["mae"] * 2, "scope": ["user:a", "user:b"], "value": [800.0, 1000.0]}
    pl.DataFrame(scopes).write_parquet(folder / "operator" / "utility.parquet")
    return folder
