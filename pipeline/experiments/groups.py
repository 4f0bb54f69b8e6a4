"""Random groups of people: each seed of an experiment counts another one, and the source is read once for all."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from mechanisms.core.errors import DataError
from mechanisms.core.mechanism import MECHANISMS
from pipeline import parts
from pipeline.configuration.run import RunConfig, resolved
from pipeline.event_steps import released_counts
from pipeline.experiments.counts import counting_config, digest_of, write_counts
from pipeline.experiments.workers import Task
from pipeline.plan import make_plan
from pipeline.presence import read_memberships


def counting_tasks(wanted: Mapping[Path, RunConfig], group_size: int | None) -> list[tuple[Task, tuple[Path, ...]]]:
    """What makes all counts, each task with the files that it writes.

    Parameters
    ----------
    wanted
        By the file to write, a configuration that needs it.
    group_size
        People in a group; None: everybody, counted by the pipeline.
    """
    if group_size is None:
        return [((write_counts, (config, path)), (path,)) for path, config in wanted.items()]
    alike: dict[str, list[tuple[RunConfig, Path]]] = defaultdict(list)
    for path, config in wanted.items():
        # Whom the source shows depends neither on the seed nor on what is done to counts.
        seen = replace(counting_config(config), mechanism=(MECHANISMS.get("raw")(),), seed=0)
        alike[digest_of(resolved(seen, secrets=True))].append((config, path))
    return [
        ((write_group_counts, (tuple(same), group_size)), tuple(path for _, path in same)) for same in alike.values()
    ]


def write_group_counts(wanted: Sequence[tuple[RunConfig, Path]], group_size: int) -> None:
    """Count a random group for each configuration, with one pass over their source.

    Parameters
    ----------
    wanted
        Configurations over the same people, each with the file to write. The seed draws the group, uniformly among
        all who are seen, and decides sampling as in a run.
    group_size
        People in a group.

    Raises
    ------
    DataError
        Fewer people are seen than a group has.

    Notes
    -----
    Who is where is held in memory, some 40 bytes for each of the people's distinct cells and windows.
    """
    first = make_plan(wanted[0][0])
    n_windows = first.n_windows
    memberships = read_memberships(first, n_windows)
    people, number = np.unique(memberships.user, axis=0, return_inverse=True)
    if len(people) < group_size:
        raise DataError(f"group_size: {group_size} people are not to be had; the source shows {len(people)}")
    facts = json.dumps({"n_people": group_size})
    for config, path in wanted:
        plan = make_plan(config)
        rng = np.random.default_rng(config.seed)
        inside = np.zeros(len(people), bool)
        inside[rng.choice(len(people), group_size, replace=False)] = True
        group = memberships.take(inside[number.ravel()])
        place = (group.window - 1) * plan.n_cells + group.cell
        truth = np.bincount(place, minlength=n_windows * plan.n_cells).reshape(n_windows, plan.n_cells)
        bounded = released_counts(group, 1, n_windows, plan)
        path.parent.mkdir(parents=True, exist_ok=True)
        with parts.whole(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, facts=np.array(facts), count=truth, bounded=bounded)
