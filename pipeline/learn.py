"""``penstock learn``: how people move in the first windows of a stream, as a file for others to use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from accountants.correlation.learned import Learned, learn
from mechanisms.core.errors import ParameterError
from pipeline.configuration.run import RunConfig
from pipeline.plan import make_plan
from pipeline.training import plan_training


def learn_to_file(
    config: RunConfig, path: str | Path, n_windows: int | None = None, smoothing: float = 0.1, unseen: bool = False
) -> dict[str, Any]:
    """Learn transitions, both matrices and the initial distribution, and write them.

    Parameters
    ----------
    config
        Whose source, space, windows and bounding say where people were.
    path
        A ``.npz`` or ``.json`` file.
    n_windows
        How many windows from the beginning; None: what the accountants of the configuration ask for, or all.
    smoothing
        Steps added to each count.
    unseen
        Whether not being seen is a state of its own.

    Returns
    -------
    What was learned from how much, for people to read.
    """
    if Path(path).suffix not in (".npz", ".json"):
        raise ParameterError("out", str(path), "a file that ends in .npz or .json")
    if n_windows is not None and n_windows < 2:
        raise ParameterError("windows", n_windows, "at least 2, for there to be a step")
    asked = max((accountant.training_windows or 0 for accountant in config.accountants), default=0)
    plan = make_plan(replace(config, accountants=()))
    training = plan_training(plan, n_windows or asked or plan.n_windows)
    learned: Learned = learn(training, plan.space.cells, smoothing, unseen)
    learned.write(path)
    return {"file": str(path), "states": len(learned.states), "steps": int(learned.transitions.sum()), **learned.facts}
