"""The tables of `reproductions.studies` as figures; needs matplotlib (the extra ``plot``)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from reproductions.koga import CHECKINS
from reproductions.pyrgelis import COLUMNS, ROWS

#: Rates below are drawn there: axes are logarithmic.
_SMALLEST = 1e-12


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


def _sweeps(plt: Any, table: pl.DataFrame) -> Any:
    """A panel for each sweep and smoothing; bounds, and dashed attacks, or their ratio."""
    panels = _panels(table, "sweep")
    figure, axes = plt.subplots(len(panels), 1, figsize=(8, 3.6 * len(panels)), squeeze=False)
    value, label = ("ratio", "bound / best attack") if "ratio" in table.columns else ("mean", "success")
    for axis, (title, panel) in zip(axes[:, 0], panels):
        for (name,), line in panel.partition_by("quantity", as_dict=True, maintain_order=True).items():
            line = line.sort("at")
            style = "--" if "kind" in line.columns and line["kind"][0] == "attack" else "-"
            shown = line[value].clip(lower_bound=_SMALLEST)
            axis.plot(line["at"], shown, style, marker="o", markersize=3, label=name)
        axis.set(xlabel=panel["sweep"][0], ylabel=label, yscale="log")
        if panel["sweep"][0] == "sigma":
            axis.set_xscale("symlog", linthresh=0.25)
        axis.set_title(title, fontsize="small")
        axis.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _ranges(plt: Any, table: pl.DataFrame) -> Any:
    """A panel for each quantity and smoothing; quartiles of two bounds by range of people."""
    panels = _panels(table, "against")
    figure, axes = plt.subplots(len(panels), 1, figsize=(8, 3.6 * len(panels)), squeeze=False)
    for axis, (title, panel) in zip(axes[:, 0], panels):
        for (name,), part in panel.partition_by("bound", as_dict=True, maintain_order=True).items():
            correlation = part["rank_correlation"].drop_nulls()
            part = part.drop_nulls("median")
            ends = (part["median"] - part["q25"], part["q75"] - part["median"])
            label = f"{name!s}, rank correlation {correlation[0]:.2f}" if len(correlation) else str(name)
            axis.errorbar(
                (part["from"] + part["to"]) / 2, part["median"], yerr=ends, marker="o", capsize=3, label=label
            )
        axis.set(xlabel=panel["against"][0], ylabel="bound (quartiles)", ylim=(0, 1.02))
        axis.set_title(title, fontsize="small")
        axis.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _panels(table: pl.DataFrame, swept: str) -> list[tuple[str, pl.DataFrame]]:
    keys = [name for name in ("smoothing", "towards", swept) if name in table.columns]
    parts = table.partition_by(keys, as_dict=True, maintain_order=True)
    return [(", ".join(map(str, values)), panel) for values, panel in parts.items()]


def _losses(plt: Any, table: pl.DataFrame) -> Any:
    figure, axis = plt.subplots(figsize=(6, 4))
    for (length_scale,), line in table.partition_by("length_scale", as_dict=True, maintain_order=True).items():
        axis.plot(line["noise_variance"], line["loss"], marker="o", markersize=3, label=f"length scale {length_scale}")
    alone = table.filter(pl.col("length_scale") == table["length_scale"][0])
    axis.plot(alone["noise_variance"], alone["independent_loss"], "b:", label="independent points")
    axis.set(xlabel="noise variance", ylabel="loss, nats", xscale="log", yscale="log")
    axis.legend(fontsize="small")
    return figure


def _hypotheses(plt: Any, table: pl.DataFrame) -> Any:
    figure, axis = plt.subplots(figsize=(6, 4))
    secret = table.filter(pl.col("is_secret"))
    for name, style in (("truth", "k-"), ("hypothesis", "r--")):
        axis.plot(table["time"], table[name], style, label=name)
        axis.plot(secret["time"], secret[name], style[0] + "o")
    axis.set(xlabel="time (secret points: dots)", ylabel="position")
    axis.legend(fontsize="small")
    return figure


def _landmark_losses(plt: Any, table: pl.DataFrame) -> Any:
    methods, names = (table[key].unique(maintain_order=True).to_list() for key in ("method", "correlation"))
    figure, axes = plt.subplots(len(methods), len(names), figsize=(13, 10), sharex=True, squeeze=False)
    for row, method in zip(axes, methods):
        for axis, name in zip(row, names):
            _shapes(axis, table.filter(pl.col("method") == method, pl.col("correlation") == name))
            axis.set(title=f"{name} correlation, {method}", xlabel="landmarks, %", ylabel="loss, nats", yscale="log")
    axes[0][0].legend(fontsize="small")
    return figure


def _landmark_distances(plt: Any, table: pl.DataFrame) -> Any:
    figure, axis = plt.subplots(figsize=(6, 4))
    _shapes(axis, table)
    axis.set(xlabel="landmarks, %", ylabel="windows to a landmark or end", yscale="symlog")
    axis.legend(fontsize="small")
    return figure


def _shapes(axis: Any, table: pl.DataFrame) -> None:
    for (shape,), line in table.partition_by("shape", as_dict=True, maintain_order=True).items():
        axis.errorbar(line["percentage"], line["mean"], yerr=line["standard_deviation"], marker="o", label=shape)


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
    "membership_comparison": (_deciles, "Areas under the curve of both attacks, locations known"),
    "membership_past_attacks": (_deciles, "Areas under the curve of both attacks, past participation known"),
    "membership_exposed": (_deciles, "Areas under the curve, locations known"),
    "membership_past_comparison": (_deciles, "Areas under the curve, past participation known"),
    "membership_activity": (_activity, "When the most and the least exposed tenth are seen"),
    "membership_loadings": (_loadings, "Loadings by popularity of cells and hours"),
    "membership_past_loadings": (_loadings, "Loadings by popularity of cells and hours"),
    "membership_places": (_places, "Where and when the components load"),
    "membership_past_places": (_places, "Where and when the components load"),
    "reconstruction_chain": (_sweeps, "Bounds and attacks on a simulated chain"),
    "reconstruction_chain_ratio": (_sweeps, "Bounds over the best attack on a simulated chain"),
    **{
        f"reconstruction_{name}{end}": (drawing, f"{title}, {name.capitalize()}")
        for name in CHECKINS
        for end, drawing, title in (
            ("", _sweeps, "Mean bounds and attacks on check-ins"),
            ("_ratio", _sweeps, "Mean bounds over the best attack on check-ins"),
            ("_bins", _ranges, "Bounds by visits and by spectral gap"),
        )
    },
    "landmark_distance": (_landmark_distances, "Distance from landmarks by their share and shape"),
    "landmark_loss": (_landmark_losses, "Temporal loss by share and shape of landmarks"),
    "conditional_losses": (_losses, "Loss of every other point against the noise"),
    "conditional_hypotheses": (_hypotheses, "The trace and the worst hypothesis about it"),
}
