"""The run that a game attacks, as arrays and callables, and progress callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.contract import ChainStep, Facts, Mechanism, Window
from penstock.mechanisms.core.noise import NoiseSource


@dataclass(frozen=True, eq=False)
class AttackedRun:
    """The people in the first windows of a run, and the mechanism that is applied to their counts.

    ``users`` (n_users, 1) or (n_users, 2): their identities; ``raw`` and ``released`` (n_users, n_windows, n_cells):
    who was in a cell, and who is counted there after bounding.
    """

    users: NDArray[np.int64]
    raw: NDArray[np.bool_]
    released: NDArray[np.bool_]
    mechanism: Mechanism  # the chain, or its only step
    chain: Chain
    steps: tuple[ChainStep, ...]  # as configured
    facts: Facts  # of the whole run
    windows: Callable[[int, int], Sequence[Window]]  # by first and last number, from 1
    noise: NoiseSource  # of the run's own release
    seed: int  # decides targets, groups and simulations


@dataclass(frozen=True)
class AttackListener:
    """Callbacks that report the progress of an attack."""

    #: Told before the first attack: people attacked, and people seen.
    begun: Callable[[int, int], None] = lambda n_targets, n_people: None
    #: Told before the first target: seconds that the whole takes, by a trial of a small part.
    foreseen: Callable[[float], None] = lambda seconds: None
    #: Told after every target, and before the first: targets attacked, and all.
    made: Callable[[int, int], None] = lambda n_made, n_targets: None
