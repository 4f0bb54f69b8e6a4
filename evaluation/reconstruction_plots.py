"""The figures of `evaluation.reconstruction_figures` as SVG; needs matplotlib (the extra ``plot``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

_FLOOR = 1e-12


def draw(tables: dict[str, pl.DataFrame], folder: Path) -> list[Path]:
    """Draw every table that is a sweep, and every binned one."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "penstock"
    import matplotlib.pyplot as plt

    drawn = []
    for name, table in tables.items():
        panels = _panels(table)
        figure, axes = plt.subplots(len(panels), 1, figsize=(8, 3.6 * len(panels)), squeeze=False)
        for axis, (title, panel) in zip(axes[:, 0], panels):
            if "bound" in panel.columns:
                _quartiles(axis, panel)
            else:
                _lines(axis, panel)
            axis.set_title(title, fontsize="small")
            axis.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1.0, 0.5))
        figure.tight_layout()
        path = folder / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
        drawn.append(path)
    return drawn


def _panels(table: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """One panel for each sweep, data set and smoothing."""
    keys = [name for name in ("data", "people", "smoothing", "towards", "sweep", "against") if name in table.columns]
    parts = table.partition_by(keys, as_dict=True, maintain_order=True)
    return [
        (", ".join(f"{name} {value}" for name, value in zip(keys, values)), panel) for values, panel in parts.items()
    ]


def _lines(axis: Any, panel: pl.DataFrame) -> None:
    value = "ratio" if "ratio" in panel.columns else "mean"
    for (name,), line in panel.partition_by("quantity", as_dict=True, maintain_order=True).items():
        line = line.sort("at")
        is_attack = "kind" in line.columns and line["kind"][0] == "attack"
        style = "--" if is_attack else "-"
        axis.plot(line["at"], line[value].clip(lower_bound=_FLOOR), style, marker="o", markersize=3, label=name)
    axis.set(xlabel=panel["sweep"][0], ylabel="bound / best attack" if value == "ratio" else "success", yscale="log")
    if panel["sweep"][0] == "sigma":
        axis.set_xscale("symlog", linthresh=0.25)


def _quartiles(axis: Any, panel: pl.DataFrame) -> None:
    for (name,), part in panel.partition_by("bound", as_dict=True, maintain_order=True).items():
        part = part.drop_nulls("median")
        ends = (part["median"] - part["q25"], part["q75"] - part["median"])
        middle = (part["from"] + part["to"]) / 2
        correlation = part["rank_correlation"].drop_nulls()
        label = f"{name!s}, rank correlation {correlation[0]:.2f}" if len(correlation) else str(name)
        axis.errorbar(middle, part["median"], yerr=ends, marker="o", capsize=3, label=label)
    axis.set(xlabel=panel["against"][0], ylabel="bound (quartiles)", ylim=(0, 1.02))
