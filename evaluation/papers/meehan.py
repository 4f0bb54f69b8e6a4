"""Conditional inferential loss of a trace's secret points, and the worst hypothesis: figure 2 of Meehan and Chaudhuri.

``python -m penstock.evaluation.papers.meehan --out DIR`` writes the tables as CSV and, with the extra ``plot``, the
figures as SVG.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import polars.selectors as cs

from penstock.accountants.gaussian_process.kernels import GaussianProcess
from penstock.accountants.gaussian_process.readings import loss_table, worst_hypothesis, worst_pair

TIMES = tuple(range(10))
SECRET = (0, 2, 4, 6, 8)
LENGTH_SCALES = (0.5, 1.0, 2.0, 4.0)
NOISE_VARIANCES = (0.1, 0.15, 0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)


def losses() -> pl.DataFrame:
    """Figure 2a: loss of every other of ten points against the noise variance, for several length scales.

    Returns
    -------
    Columns ``noise_variance``, ``length_scale``, ``loss``, ``independent_loss`` and ``ratio``; nats, order 2, radius 1.

    Examples
    --------
    >>> losses().height
    44
    """
    return pl.DataFrame(loss_table(NOISE_VARIANCES, LENGTH_SCALES, TIMES, SECRET))


def hypotheses(length_scale: float = 2.0, sigma: float = 1.0, seed: int = 1) -> pl.DataFrame:
    """Figure 2b: a trace drawn from the prior, as its secret points and as the worst hypothesis about them explain it.

    ``sigma``: standard deviation of the noise that the worst hypothesis is chosen for; the RBF kernel has variance 1.

    Returns
    -------
    One row a point: ``time``, ``is_secret``, ``trace``, and the expected positions ``truth`` given the secret points,
    ``hypothesis`` given points at most radius 1 from them in the mean square.

    Examples
    --------
    >>> points = hypotheses().filter(pl.col("is_secret"))
    >>> (points["truth"] == points["trace"]).all()
    True
    """
    model = GaussianProcess(length_scale=length_scale)
    trace = np.random.default_rng(seed).multivariate_normal(np.zeros(len(TIMES)), model.covariance(np.array(TIMES)))
    direction = worst_pair(TIMES, SECRET, sigma, length_scale)
    truth, hypothesis = worst_hypothesis(TIMES, trace, SECRET, direction, 1.0, model)
    is_secret = np.isin(TIMES, SECRET)
    # at secret points the truth is the trace itself, not the trace to rounding
    truth = np.where(is_secret, trace, truth)
    columns = {"time": TIMES, "is_secret": is_secret, "trace": trace, "truth": truth, "hypothesis": hypothesis}
    return pl.DataFrame(columns)


def draw(table: pl.DataFrame, points: pl.DataFrame, path: Path) -> None:
    """Both parts of the figure as one SVG; needs matplotlib (the extra ``plot``)."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "penstock"
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    for (length_scale,), line in table.partition_by("length_scale", as_dict=True, maintain_order=True).items():
        left.plot(line["noise_variance"], line["loss"], marker="o", markersize=3, label=f"length scale {length_scale}")
    alone = table.filter(pl.col("length_scale") == LENGTH_SCALES[0])
    left.plot(alone["noise_variance"], alone["independent_loss"], "b:", label="independent points")
    left.set(xlabel="noise variance", ylabel="loss, nats", xscale="log", yscale="log")
    secret = points.filter(pl.col("is_secret"))
    for name, style in (("truth", "k-"), ("hypothesis", "r--")):
        right.plot(points["time"], points[name], style, label=name)
        right.plot(secret["time"], secret[name], style[0] + "o")
    right.set(xlabel="time (secret points: dots)", ylabel="position")
    for axis in (left, right):
        axis.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main(words: Sequence[str] | None = None) -> None:
    """Write both tables, and the figure where matplotlib is installed."""
    parser = argparse.ArgumentParser(prog="python -m penstock.evaluation.papers.meehan", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/conditional-figures"), metavar="DIR")
    given = parser.parse_args(words)
    given.out.mkdir(parents=True, exist_ok=True)
    table, points = losses(), hypotheses()
    for name, rows in (("losses", table), ("hypotheses", points)):
        rows.with_columns(cs.float().round_sig_figs(4)).write_csv(given.out / f"conditional_inferential_{name}.csv")
    try:
        draw(table, points, given.out / "conditional_inferential.svg")
    except ModuleNotFoundError as error:
        print(f"no figure, only tables: {error} (pip install 'penstock[plot]')")
    print(given.out)


if __name__ == "__main__":
    main()
