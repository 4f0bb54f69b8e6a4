"""Transitions learned from a training part, with everything that others need to use them, as one file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountants.core.training import Training
from accountants.correlation.hull import Array
from accountants.correlation.matrices import count_transitions, estimated_matrix, transition_matrix
from accountants.correlation.time_reversal import backward_matrix
from mechanisms.core.errors import DataError, ParameterError

#: A dense matrix of this many states is 32 MB, and its hull takes about a minute.
MAX_STATES = 2000

_ARRAYS = ("transitions", "visits", "forward", "backward", "initial", "states")


@dataclass(frozen=True, kw_only=True, eq=False)
class Learned:
    """What a training part tells about how people move.

    Parameters
    ----------
    transitions
        Steps from state i to state j between neighbouring windows, shape (n, n), counts.
    visits
        Windows spent in each state, shape (n,), counts.
    forward, backward
        Pr(next = j | now = i) with the stated smoothing, and Pr(previous = j | now = i), shape (n, n).
    initial
        Distribution of the state in any one window: the share of visits, smoothed like a row, shape (n,).
    states
        Names of the states: the cells, and "unseen" last where that is a state.
    facts
        How it was made: ``windows``, ``users``, ``share`` of the people seen that these are, ``smoothing``.
    """

    transitions: Array
    visits: Array
    forward: Array
    backward: Array
    initial: Array
    states: NDArray[np.str_]
    facts: dict[str, Any]

    def write(self, path: str | Path) -> None:
        """Write all arrays and facts to a ``.npz`` or ``.json`` file."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        target = Path(path)
        if target.suffix == ".json":
            values = {name: array.tolist() for name, array in arrays.items()} | {"facts": self.facts}
            target.write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")
        elif target.suffix == ".npz":
            np.savez_compressed(target, **arrays, facts=np.array(json.dumps(self.facts)))
        else:
            raise ParameterError("out", str(path), "a file that ends in .npz or .json")

    @classmethod
    def read(cls, path: str | Path) -> Learned:
        """Read what `write` wrote; raises `DataError` for anything else."""
        source = Path(path)
        try:
            if source.suffix == ".json":
                values = json.loads(source.read_text(encoding="utf-8"))
            else:
                with np.load(source, allow_pickle=False) as arrays:
                    values = dict(arrays) | {"facts": json.loads(str(arrays["facts"]))}
            numbers = {name: np.asarray(values[name], float) for name in _ARRAYS if name != "states"}
            states, facts = np.asarray(values["states"], str), dict(values["facts"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{source}: not a file of learned transitions: {error}") from error
        for name in ("forward", "backward"):
            numbers[name] = transition_matrix(numbers[name], f"{source}: {name}")
        return cls(**numbers, states=states, facts=facts)


def learn(training: Training, cells: tuple[str, ...], smoothing: float, unseen: bool = False) -> Learned:
    """Learn from the whole of a training part.

    Parameters
    ----------
    training
        Where people were.
    cells
        Names of the cells.
    smoothing
        Steps added to each count before rows are scaled to 1.
    unseen
        Whether not being seen is a state of its own; otherwise only steps between two sightings count.

    Examples
    --------
    >>> training = Training(trajectories=np.array([[0, 1, 1, 0]]), users=np.array([[7]]), n_cells=2)
    >>> learn(training, ("a", "b"), smoothing=0.5).forward
    array([[0.25, 0.75],
           [0.5 , 0.5 ]])
    """
    trajectories = training.with_unseen() if unseen else training.trajectories
    n = training.n_cells + unseen
    check_size(n)
    transitions = count_transitions(trajectories, n)
    visits = np.bincount(trajectories[trajectories >= 0], minlength=n).astype(float)
    forward, backward = both_directions(transitions, smoothing)
    return Learned(
        transitions=transitions,
        visits=visits,
        forward=forward,
        backward=backward,
        initial=(visits + smoothing) / (visits + smoothing).sum(),
        states=np.array([*cells, *(("unseen",) if unseen else ())], str),
        facts={
            "windows": training.n_windows,
            "users": training.n_users,
            "share": training.share,
            "smoothing": smoothing,
            "unseen": unseen,
        },
    )


def both_directions(transitions: Array, smoothing: float) -> tuple[Array, Array]:
    """Forward matrix estimated from counts, and its reversal.

    By the stationary distribution; by the counts read backwards where there is none (smoothing 0, and places that
    nobody returns to).
    """
    forward = estimated_matrix(transitions, smoothing)
    try:
        return forward, backward_matrix(forward)
    except ParameterError:
        return forward, estimated_matrix(transitions.T, smoothing)


def presence_counts(transitions: Array) -> Array:
    """For each state, the counts of the two-state chain of not being (0) or being (1) in it, shape (n, 2, 2).

    >>> presence_counts(np.array([[3.0, 1.0], [2.0, 4.0]]))[0].tolist()
    [[4.0, 2.0], [1.0, 3.0]]
    """
    stays = np.diag(transitions)
    leaves, enters = transitions.sum(axis=1) - stays, transitions.sum(axis=0) - stays
    outside = transitions.sum() - stays - leaves - enters
    return np.stack([outside, enters, leaves, stays], axis=-1).reshape(-1, 2, 2)


def check_size(n_states: int) -> None:
    """Refuse matrices that are too large to be dense."""
    if n_states > MAX_STATES:
        raise ParameterError(
            "cells", n_states, f"at most {MAX_STATES} states to learn transitions of; use larger cells"
        )
