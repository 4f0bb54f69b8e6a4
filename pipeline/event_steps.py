"""What happens to people's memberships before they are counted for release: coarsened, bounded, sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.mechanism import Mechanism
from mechanisms.core.noise import keyed_hash
from mechanisms.sampling import Sampling
from pipeline.bounding import bound, bound_block, identity
from pipeline.membership import Memberships, merge

if TYPE_CHECKING:
    from pipeline.plan import Plan

Integers = NDArray[np.int64]


def released_counts(memberships: Memberships, first: int, n_windows: int, plan: Plan) -> Integers:
    """Counts that the mechanism sees, of consecutive windows and one shard of users.

    Coarse cells and windows are counted afresh: whoever is in two of a group's cells counts once. Bounding follows, so
    that it holds at the level of the noise, and sampling comes last: sampling first would leave a user with many
    memberships some of them almost surely, and nothing would be gained.

    Parameters
    ----------
    memberships
        Distinct, sorted by user, window and cell.
    first, n_windows
        The windows; ``first`` begins a block.

    Returns
    -------
    Shape (n_windows, n_cells); a coarse count stands in every cell and window that it covers.
    """
    memberships = released_memberships(memberships, plan)
    place = (memberships.window - first) * plan.n_cells + memberships.cell
    counts = np.bincount(place, minlength=n_windows * plan.n_cells).reshape(n_windows, plan.n_cells)
    if plan.chain.together > 1:
        counts = counts[np.arange(n_windows) // plan.chain.together * plan.chain.together]
    return counts if plan.chain.groups is None else counts[:, plan.chain.groups]


def released_memberships(memberships: Memberships, plan: Plan) -> Memberships:
    """The memberships that `released_counts` counts: coarse cells by number, longer windows by their first one."""
    chain, bounding = plan.chain, plan.config.bounding
    if chain.groups is not None or chain.together > 1:
        memberships = _coarse(memberships, chain.groups, chain.together, bounding.keep)
    blocks = plan.block_bounds
    if blocks is None:
        kept = bound(memberships, plan.max_cells, bounding.keep, plan.hash_key)
    else:
        kept = bound_block(memberships, blocks, plan.max_cells, bounding.keep, plan.hash_key)
    if not kept.all():
        memberships = memberships.take(kept)
    for step in chain.keepers:
        memberships = memberships.take(_kept(step, memberships, plan))
    return memberships


def _coarse(memberships: Memberships, groups: Integers | None, together: int, keep: str) -> Memberships:
    """Distinct memberships of coarse cells and of stretches of windows, which go by their first window."""
    if len(memberships) == 0:
        return memberships
    cell = memberships.cell if groups is None else groups[memberships.cell]
    window = (memberships.window - 1) // together * together + 1
    return merge([Memberships(memberships.user, window, cell, memberships.mark)], keep)


def _kept(step: Mechanism, memberships: Memberships, plan: Plan) -> NDArray[np.bool_]:
    """Which memberships a step keeps."""
    key, window = plan.key.subkey("sampling"), memberships.window
    if getattr(step, "unit", "membership") == "user":
        hashes = keyed_hash(key, *identity(memberships), (window - 1) // plan.chain.unit_windows)
    else:
        hashes = keyed_hash(key, *identity(memberships), window, memberships.cell)
    user, kept = memberships.user[:, 0], np.ones(len(memberships), bool)
    if isinstance(step, Sampling):  # it looks at the hashes only, hence at all windows together
        return step.keep(user, memberships.cell, plan.windows(1, 1)[0], hashes)
    order = np.argsort(window, kind="stable")
    present, begins = np.unique(window[order], return_index=True)
    for index, rows in zip(present.tolist(), np.split(order, begins[1:])):
        facts = plan.windows(index, index)[0]
        kept[rows] = step.keep(user[rows], memberships.cell[rows], facts, hashes[rows])
    return kept
