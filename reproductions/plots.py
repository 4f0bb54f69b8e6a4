"""Plots of the tables in `reproductions.studies`. Requires matplotlib (the ``plot`` extra)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from reproductions.koga import CHECKINS
from reproductions.pyrgelis import COLUMNS, ROWS

#: Draws a table: as a figure, given Matplotlib's plotting functions, or on a pair of axes.
Drawing = Callable[[Any, pl.DataFrame], Any]
#: Rates below are drawn there: axes are logarithmic.
_SMALLEST = 1e-12


def draw(tables: dict[str, pl.DataFrame], folder: Path) -> list[str]:
    """Plot every table that corresponds to a figure as ``<table>.svg``. Return the names of these tables."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    drawn = [name for name in tables if name in DRAWINGS]
    with matplotlib.rc_context({"svg.hashsalt": "penstock"}):  # the same tables give the same files
        for name in drawn:
            figure = DRAWINGS[name](plt, tables[name])
            figure.tight_layout()
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            plt.close(figure)
    return drawn


def _single(size: tuple[float, float], drawing: Drawing) -> Drawing:
    """Return what draws a figure with a single pair of axes and a legend."""

    def drawn(plt: Any, table: pl.DataFrame) -> Any:
        figure, axis = plt.subplots(figsize=size)
        drawing(axis, table)
        axis.legend(fontsize="small")
        return figure

    return drawn


def _panels(plt: Any, table: pl.DataFrame, swept: str, drawing: Drawing) -> Any:
    """Draw a panel per smoothing and value of the ``swept`` column, one below the other."""
    keys = [name for name in ("smoothing", "towards", swept) if name in table.columns]
    parts = table.partition_by(keys, as_dict=True, maintain_order=True)
    figure, axes = plt.subplots(len(parts), 1, figsize=(8, 3.6 * len(parts)), squeeze=False)
    for axis, (values, panel) in zip(axes[:, 0], parts.items()):
        drawing(axis, panel)
        axis.set_title(", ".join(map(str, values)), fontsize="small")
        axis.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _sweep(axis: Any, panel: pl.DataFrame) -> None:
    """Draw bounds and (dashed) attacks, or their ratio."""
    value, label = ("ratio", "bound / best attack") if "ratio" in panel.columns else ("mean", "success")
    for (name,), line in panel.partition_by("quantity", as_dict=True, maintain_order=True).items():
        line = line.sort("at")
        style = "--" if "kind" in line.columns and line["kind"][0] == "attack" else "-"
        shown = line[value].clip(lower_bound=_SMALLEST)
        axis.plot(line["at"], shown, style, marker="o", markersize=3, label=name)
    axis.set(xlabel=panel["sweep"][0], ylabel=label, yscale="log")
    if panel["sweep"][0] == "sigma":
        axis.set_xscale("symlog", linthresh=0.25)


def _ranges(axis: Any, panel: pl.DataFrame) -> None:
    """Draw the quartiles of two bounds for each range of people."""
    for (name,), part in panel.partition_by("bound", as_dict=True, maintain_order=True).items():
        correlation = part["rank_correlation"].drop_nulls()
        part = part.drop_nulls("median")
        ends = (part["median"] - part["q25"], part["q75"] - part["median"])
        label = f"{name!s}, rank correlation {correlation[0]:.2f}" if len(correlation) else str(name)
        axis.errorbar((part["from"] + part["to"]) / 2, part["median"], yerr=ends, marker="o", capsize=3, label=label)
    axis.set(xlabel=panel["against"][0], ylabel="bound (quartiles)", ylim=(0, 1.02))


def _losses(axis: Any, table: pl.DataFrame) -> None:
    for (length_scale,), line in table.partition_by("length_scale", as_dict=True, maintain_order=True).items():
        axis.plot(line["noise_variance"], line["loss"], marker="o", markersize=3, label=f"length scale {length_scale}")
    alone = table.filter(pl.col("length_scale") == table["length_scale"][0])
    axis.plot(alone["noise_variance"], alone["independent_loss"], "b:", label="independent points")
    axis.set(xlabel="noise variance", ylabel="loss, nats", xscale="log", yscale="log")


def _hypotheses(axis: Any, table: pl.DataFrame) -> None:
    secret = table.filter(pl.col("is_secret"))
    for name, style in (("truth", "k-"), ("hypothesis", "r--")):
        axis.plot(table["time"], table[name], style, label=name)
        axis.plot(secret["time"], secret[name], style[0] + "o")
    axis.set(xlabel="time (secret points: dots)", ylabel="position")


def _landmark_losses(plt: Any, table: pl.DataFrame) -> Any:
    methods, names = (table[key].unique(maintain_order=True).to_list() for key in ("method", "correlation"))
    figure, axes = plt.subplots(len(methods), len(names), figsize=(13, 10), sharex=True, squeeze=False)
    for row, method in zip(axes, methods):
        for axis, name in zip(row, names):
            _shapes(axis, table.filter(pl.col("method") == method, pl.col("correlation") == name))
            axis.set(title=f"{name} correlation, {method}", xlabel="landmarks, %", ylabel="loss, nats", yscale="log")
    axes[0][0].legend(fontsize="small")
    return figure


def _landmark_distances(axis: Any, table: pl.DataFrame) -> None:
    _shapes(axis, table)
    axis.set(xlabel="landmarks, %", ylabel="windows to a landmark or end", yscale="symlog")


def _shapes(axis: Any, table: pl.DataFrame) -> None:
    for (shape,), line in table.partition_by("shape", as_dict=True, maintain_order=True).items():
        axis.errorbar(line["percentage"], line["mean"], yerr=line["standard_deviation"], marker="o", label=shape)


def _deciles(axis: Any, table: pl.DataFrame) -> None:
    for row in table.iter_rows(named=True):
        areas = [row[f"q{10 * i}"] for i in range(11)]
        axis.step(areas, [i / 10 for i in range(11)], where="post", marker="o", markersize=3, label=row["attack"])
    axis.set(xlabel="area under the curve", ylabel="share of the targets", xlim=(0.45, 1.01))


def _activity(axis: Any, table: pl.DataFrame) -> None:
    for name in ("most", "least"):
        axis.plot(table["hour"], table[name], label=f"{name} exposed tenth")
    axis.set(xlabel="hour of the week (UTC)", ylabel="relative activity")


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


def _gains(axis: Any, table: pl.DataFrame) -> None:
    table = table.reverse()
    ends = (table["median"] - table["q25"], table["q75"] - table["median"])
    axis.errorbar(table["median"], table["defense"], xerr=ends, fmt="o", capsize=3, label="median and quartiles")
    axis.plot(table["gain"], table["defense"], "x", label="mean")
    axis.set(xlabel="privacy gain", xlim=(-0.02, 1.02))


def _trade_off(plt: Any, table: pl.DataFrame) -> Any:
    metrics = table["metric"].unique(maintain_order=True).to_list()
    figure, axes = plt.subplots(2, -(-len(metrics) // 2), figsize=(13, 8), squeeze=False)
    for axis, metric in zip(axes.flat, metrics):
        panel = table.filter(metric=metric).partition_by("family", as_dict=True, maintain_order=True)
        for (family,), points in panel.items():
            axis.plot(points["privacy_gain"], points["utility_loss"], "o", label=family)
        axis.set(xlabel="privacy gain", ylabel="loss of utility", title=metric)
        axis.set_yscale("log" if metric.startswith("mre") else "linear")
    axes[0][0].legend(fontsize="x-small")
    return figure


_OF_SWEEP = partial(_panels, swept="sweep", drawing=_sweep)
#: What draws a table.
DRAWINGS: dict[str, Drawing] = {
    **dict.fromkeys(
        ("membership_comparison", "membership_past_attacks", "membership_exposed", "membership_past_comparison"),
        _single((6, 3.4), _deciles),
    ),
    "membership_gain": _single((6, 6), _gains),
    "membership_trade_off": _trade_off,
    "membership_activity": _single((8, 3), _activity),
    **dict.fromkeys(("membership_loadings", "membership_past_loadings"), _loadings),
    **dict.fromkeys(("membership_places", "membership_past_places"), _places),
    **{
        f"reconstruction_{name}{end}": drawing
        for name in ("chain", *CHECKINS)
        for end, drawing in (
            *(("", _OF_SWEEP), ("_ratio", _OF_SWEEP)),
            ("_bins", partial(_panels, swept="against", drawing=_ranges)),
        )
    },
    "landmark_distance": _single((6, 4), _landmark_distances),
    "landmark_loss": _landmark_losses,
    "conditional_losses": _single((6, 4), _losses),
    "conditional_hypotheses": _single((6, 4), _hypotheses),
}
