"""Advice: of all settings of a grid, which keep the limits, which are on the frontier, and which of those is best."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.config.canonical import resolved
from pipeline.experiments import figures
from pipeline.experiments.config import Choose, ExperimentConfig, Figure
from pipeline.output import files
from pipeline.reporting.summary import as_yaml

if TYPE_CHECKING:
    from pipeline.experiments.load import Experiment


HEADER = """\
# Chosen by the experiment {name}: {found}.
# A simulation, ready to run: penstock run {file}
"""


def write_choice(experiment: Experiment, summary: pl.DataFrame, folder: Path) -> dict[str, Any]:
    """Write ``frontier.parquet``, ``frontier.csv``, ``figures/frontier.svg`` and, where a setting keeps all limits,
    ``best.yaml``.

    Returns
    -------
    What was chosen, as JSON can hold it.
    """
    choose = experiment.config.choose
    assert choose is not None
    # The seeds that are left of a setting with failed runs are the lucky ones: it is not up for choice.
    complete = summary.filter(pl.col("n") == len({cell.seed for cell in experiment.cells}))
    table = frontier(choose, figures.wide_summary(complete, choose.measures))
    with files.whole(folder / "frontier.parquet") as temporary:
        table.write_parquet(temporary)
    with files.whole(folder / "frontier.csv") as temporary:
        table.write_csv(temporary)
    best = table.filter(pl.col("best"))
    chart = _chart(experiment.config, summary, table, folder)
    choice: dict[str, Any] = {
        "at_least": choose.at_least,
        "at_most": choose.at_most,
        "prefer": choose.preferred,
        "judge_by": choose.judge_by,
        "settings": len(table),
        "allowed": int(table["allowed"].sum()),
        "on_frontier": int(table["frontier"].sum()),
        "chart": chart,
        "best": None,
    }
    path = folder / "best.yaml"
    path.unlink(missing_ok=True)  # of an earlier run with other limits
    if len(best):
        row = best.row(0, named=True)
        varied = {name: row[name] for name in experiment.columns}
        choice["best"] = {"values": varied, "means": {name: row[f"mean {name}"] for name in choose.measures}}
        _write_best(experiment, varied, choice["best"]["means"], path)
    return choice


def frontier(choose: Choose, wide: pl.DataFrame) -> pl.DataFrame:
    """Settings with ``allowed`` (keeps every limit), ``frontier`` (no other is as good in all and better in one) and
    ``best`` (the preferred measure decides among those allowed).

    Parameters
    ----------
    choose
        The limits.
    wide
        One row a setting, columns ``mean x``, ``low x`` and ``high x`` for each measure.

    Examples
    --------
    >>> wide = pl.DataFrame({"e": [1, 2, 3], "mean f1": [0.8, 0.9, 0.9], "mean loss": [1.0, 2.0, 3.0]})
    >>> limits = Choose(at_least={"f1": 0.85}, at_most={"loss": 5}, prefer="loss", judge_by="mean")
    >>> found = frontier(limits, wide)
    >>> found["allowed"].to_list(), found["frontier"].to_list(), found["best"].to_list()
    ([False, True, True], [True, True, False], [False, True, False])
    """
    allowed = np.ones(len(wide), bool)
    for limits, side, keeps in ((choose.at_least, "low", np.greater_equal), (choose.at_most, "high", np.less_equal)):
        for name, limit in limits.items():
            end = wide[f"mean {name}"]
            if choose.judge_by == "interval":
                end = wide[f"{side} {name}"].fill_null(end)
            allowed &= keeps(end.to_numpy(), limit)
    gains = np.stack([_gain(choose, name, wide[f"mean {name}"].to_numpy()) for name in choose.measures], axis=1)
    on_frontier = np.array([not _dominated(row, gains) for row in gains], bool)
    order = [choose.preferred, *(name for name in choose.measures if name != choose.preferred)]
    columns = [gains[:, choose.measures.index(name)] for name in order]
    best = np.zeros(len(wide), bool)
    if allowed.any():
        ranked = np.lexsort([-column for column in reversed(columns)])
        best[next(i for i in ranked if allowed[i])] = True
    return wide.with_columns(pl.Series("allowed", allowed), pl.Series("frontier", on_frontier), pl.Series("best", best))


def _gain(choose: Choose, name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The measure so that more is better."""
    higher = name in choose.at_least
    gain = np.where(np.isnan(values), -np.inf, values if higher else -values)
    return np.asarray(gain, np.float64)


def _dominated(row: NDArray[np.float64], gains: NDArray[np.float64]) -> bool:
    return bool(((gains >= row).all(axis=1) & (gains > row).any(axis=1)).any())


def _write_best(experiment: Experiment, varied: dict[str, Any], means: dict[str, float], path: Path) -> None:
    cell = next(
        cell
        for cell in experiment.cells
        if {k: _as_shown(v) for k, v in cell.values.items()} == {k: _as_shown(v) for k, v in varied.items()}
    )
    values = resolved(cell.config) | {"name": f"{experiment.config.name}-best", "output": {"path": "runs/best"}}
    metrics = [name for name in experiment.config.measures if "/" not in name and _is_metric(name)]
    found = ", ".join(f"{name} {value:.4g}" for name, value in means.items())
    header = HEADER.format(name=experiment.config.name, found=found, file=path.name)
    with files.whole(path) as temporary:
        temporary.write_text(header + as_yaml(values | {"utility": metrics}), encoding="utf-8")


def _as_shown(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, int | float) else str(value)


def _is_metric(name: str) -> bool:
    from evaluation.utility import METRICS

    return name in METRICS


def _chart(config: ExperimentConfig, summary: pl.DataFrame, table: pl.DataFrame, folder: Path) -> str | None:
    """Utility against risk of every setting; None where there are not two measures to show."""
    choose = config.choose
    assert choose is not None
    useful, risky = [*choose.at_least], [*choose.at_most]
    pair = (useful + risky)[:2] if not (useful and risky) else [useful[0], risky[0]]
    if len(pair) < 2:
        return None
    by = "variant" if "variant" in table.columns else None
    x, y = pair[1], pair[0]
    figure = Figure(file="frontier.svg", type="scatter", x=x, y=y, by=by, title="Every setting, and the limits")

    def limits(axes: Any) -> None:
        """Lines where the limits are, and rings around what keeps all of them."""
        for name, line in ((x, axes.axvline), (y, axes.axhline)):
            line((choose.at_least | choose.at_most)[name], color="black", linewidth=0.8, linestyle=":")
        for kept, size, width in (("allowed", 110, 0.8), ("best", 260, 1.6)):
            rows = table.filter(pl.col(kept))
            ring: Any = {"facecolors": "none", "edgecolors": "black", "zorder": 3}
            axes.scatter(rows[f"mean {x}"], rows[f"mean {y}"], s=size, linewidths=width, **ring)

    figures.draw(figure, config, summary, summary, folder / "figures", limits)
    return "figures/frontier.svg"
