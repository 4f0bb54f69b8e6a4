"""The tables of `penstock.evaluation.papers.studies` as figures; needs matplotlib (the extra ``plot``)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from penstock.evaluation.papers.pyrgelis import COLUMNS, ROWS


def draw(tables: dict[str, pl.DataFrame], folder: Path) -> dict[str, str]:
    """Draw every table that is a figure as ``<its name>.svg``; gives the title of each."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    drawn = {name: DRAWINGS[name][1] for name in tables if name in DRAWINGS}
    with matplotlib.rc_context({"svg.hashsalt": "penstock"}):  # the same tables give the same files
        for name in drawn:
            figure = DRAWINGS[name][0](plt, tables[name])
            figure.tight_layout()
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            plt.close(figure)
    return drawn


def _gains(plt: Any, table: pl.DataFrame) -> Any:
    figure, axis = plt.subplots(figsize=(8, 0.28 * len(table) + 1))
    place = list(range(len(table)))[::-1]
    axis.barh(place, table["q75"] - table["q25"], left=table["q25"], height=0.6, alpha=0.4, label="middle half")
    axis.plot(table["mean"], place, "o", markersize=4, label="mean")
    axis.set(yticks=place, yticklabels=table["defense"].to_list(), xlim=(-0.02, 1.02), xlabel="privacy gain")
    axis.legend(fontsize="small", loc="lower right")
    return figure


def _trade_offs(plt: Any, table: pl.DataFrame) -> Any:
    metrics = table["metric"].unique(maintain_order=True).to_list()
    figure, axes = plt.subplots(-(-len(metrics) // 2), 2, figsize=(10, 3.4 * -(-len(metrics) // 2)), squeeze=False)
    for axis, metric in zip(axes.ravel(), metrics):
        panel = table.filter(pl.col("metric") == metric)
        for number, ((family,), part) in enumerate(panel.group_by("family", maintain_order=True)):
            marker = "o" if number < 6 else "^"
            style = {"color": f"C{number % 6}", "marker": marker, "linestyle": "", "markersize": 5}
            axis.plot(part["utility_loss"], part["privacy_gain"], label=family, **style)
        axis.set(xlabel=f"loss of utility: {metric}", ylabel="privacy gain", ylim=(-0.02, 1.02))
        if metric.startswith("mre"):
            axis.set_xscale("symlog", linthresh=1e-3)
            axis.set_xlim(left=0)
    for axis in axes.ravel()[len(metrics) :]:
        axis.axis("off")
    axes[0, 1].legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _deciles(plt: Any, table: pl.DataFrame) -> Any:
    figure, axis = plt.subplots(figsize=(6, 3.4))
    for row in table.iter_rows(named=True):
        areas = [row[f"q{10 * i}"] for i in range(11)]
        axis.step(areas, [i / 10 for i in range(11)], where="post", marker="o", markersize=3, label=row["attack"])
    axis.set(xlabel="area under the curve", ylabel="share of the targets", xlim=(0.45, 1.01))
    axis.legend(fontsize="small")
    return figure


def _activity(plt: Any, table: pl.DataFrame) -> Any:
    figure, axis = plt.subplots(figsize=(8, 3))
    for name in ("most", "least"):
        axis.plot(table["hour"], table[name], label=f"{name} exposed tenth")
    axis.set(xlabel="hour of the week (UTC)", ylabel="relative activity")
    axis.legend(fontsize="small")
    return figure


def _loadings(plt: Any, table: pl.DataFrame) -> Any:
    groups = table["targets"].unique(maintain_order=True).to_list()
    figure, axes = plt.subplots(1, len(groups), figsize=(3.6 * len(groups), 3.4), squeeze=False)
    for axis, name in zip(axes[0], groups):
        panel = table.filter(pl.col("targets") == name).sort("cells", "windows")
        size = int(panel["cells"].max())  # type: ignore[arg-type]  # integers of one's own
        image = panel["loading"].to_numpy().reshape(size, -1)
        axis.imshow(image, origin="lower", cmap="Reds", vmin=0, vmax=1, extent=(0.5, 10.5, 0.5, 10.5), aspect="auto")
        axis.set(title=name, xlabel="hours by popularity (tenths)", ylabel="cells by popularity (tenths)")
    return figure


def _places(plt: Any, table: pl.DataFrame) -> Any:
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), width_ratios=(1, 2))
    cells = table.filter(axis="cell").sort("index")["loading"].to_numpy().reshape(ROWS, COLUMNS)
    axes[0].imshow(cells, origin="lower", cmap="Reds", vmin=0, vmax=1)
    axes[0].set(title="cells, north up", xticks=[], yticks=[])
    windows = table.filter(axis="window").sort("index")
    axes[1].plot(windows["index"], windows["loading"])
    axes[1].set(xlabel="hour of the week (UTC)", ylabel="loading", ylim=(0, 1.05))
    return figure


#: What draws a table, and what it shows.
DRAWINGS: dict[str, tuple[Callable[[Any, pl.DataFrame], Any], str]] = {
    "membership_gain": (_gains, "Privacy gain of every defense"),
    "membership_trade_off": (_trade_offs, "Privacy gain against the loss of utility"),
    "membership_comparison": (_deciles, "Areas under the curve of both attacks, locations known"),
    "membership_past_attacks": (_deciles, "Areas under the curve of both attacks, past participation known"),
    "membership_exposed": (_deciles, "Areas under the curve, locations known"),
    "membership_past_comparison": (_deciles, "Areas under the curve, past participation known"),
    "membership_activity": (_activity, "When the most and the least exposed tenth are seen"),
    "membership_loadings": (_loadings, "Loadings by popularity of cells and hours"),
    "membership_past_loadings": (_loadings, "Loadings by popularity of cells and hours"),
    "membership_places": (_places, "Where and when the components load"),
    "membership_past_places": (_places, "Where and when the components load"),
}
